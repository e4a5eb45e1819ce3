//! The object store in which a dataset keeps its metadata (SlateDB): two copies of everything, verified.
//!
//! # Placement
//! An object's copies lie on the first two of the dataset's metadata vdevs in the order of a hash of path and vdev
//! (rendezvous hashing). The list of vdevs is fixed when the dataset is made, so places never change. We call the
//! first the *primary* and the second the *second*. With one vdev there is only a primary.
//!
//! # Creating: the primary decides
//! SlateDB fences writers by create-if-absent: of two who create one path, exactly one may succeed, for ever. So:
//! 1. Create on the primary. If it says `Exists`, its object's trailer is read: the same nonce means that it is
//!    ours and only the reply was lost (the nonce follows from SlateDB's put id, so a retry has the same), and we
//!    go on; else the path is taken.
//! 2. Create on the second. If it says `Exists` with our nonce, it is our own earlier try or a reader's repair.
//!
//! Both are durable when answered, and success is reported after both.
//!
//! *Why not both at once?* Then two writers could each have one copy, and no rule could tell that from the state
//! where an old object lost its primary copy. In sequence, nobody writes the second without having won the primary,
//! so the second holds what once won or nothing.
//!
//! *The primary is unreachable:* the create fails. It is not decided on the second, because another writer may
//! reach the primary. SlateDB retries, and work goes on when the bucket is back.
//!
//! *The second is unreachable:* the create fails too, though the primary has the object; a retry finds it by its
//! nonce and goes on with step 2. Metadata is not acknowledged with one copy.
//!
//! *Crash between the steps:* one copy exists, not acknowledged. It counts: reads find it, and a listing that finds
//! an object with one copy for a while has the other made.
//!
//! *The primary lost its object, the second has it.* A reader finds the primary without it, reads the second, and
//! puts it back on the primary by create. A creator who comes first wins step 1, though the path is taken, and
//! learns of it in step 2: the second holds a foreign object. By the rule above that one once won: the primary is
//! overwritten with it and the create fails. In between a reader could see the creator's object; that needs a lost
//! object, a writer who does not know of the path (a stale one), and a read in the same moment, and it lasts only
//! if the creator crashes right there.
//!
//! # Reading
//! The primary is read first. A copy is good if trailer and the crcs of the blocks read are right and the trailer
//! is this pool's and this key's. A copy that is absent or damaged is replaced from the other one, counted against
//! its vdev and noted. "Not found" is only answered when both copies are absent: one absent and one unreachable is
//! an error. A bucket that fails is an error only if the other copy cannot be read either.
//!
//! # Overwriting, updating, deleting
//! SSTs have names that are never used twice: both copies are put at once. The few objects that are replaced
//! (SlateDB's collection boundary, by compare-and-swap on the e-tag, which is the nonce) are written primary first,
//! one at a time, after asking the pool's authority: the primary is always the newer. A delete takes the second
//! first, so that what a crash leaves is a primary, and a later create finds it.
//!
//! # Listing
//! The union over all metadata vdevs. One vdev may fail to list (what it holds is also elsewhere).

mod copies;
mod facade;
mod heal;
mod multipart;
pub(crate) mod object;
mod store;

pub(crate) use store::MetadataStore;

use tarn_base::{DatasetId, VdevGuid};

/// Where a dataset's metadata lies in a bucket, ending in `/`.
pub(crate) fn prefix(dataset: DatasetId) -> String {
    format!("m/{:08x}/", dataset.0)
}

/// The order in which vdevs are asked to hold a path's copies: indexes into `vdevs`, the first two hold it.
fn placement(path: &str, vdevs: &[VdevGuid]) -> Vec<usize> {
    let score = |vdev: &VdevGuid| {
        let mut bytes = path.as_bytes().to_vec();
        bytes.extend_from_slice(&vdev.0.to_le_bytes());
        twox_hash::XxHash3_64::oneshot(&bytes)
    };
    let mut order: Vec<usize> = (0..vdevs.len()).collect();
    order.sort_by_cached_key(|&i| (std::cmp::Reverse(score(&vdevs[i])), vdevs[i]));
    order
}

#[cfg(test)]
mod tests;
