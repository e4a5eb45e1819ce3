//! The object store in which a dataset keeps its metadata (SlateDB): two copies of everything, verified.
//!
//! # Placement
//! An object's copies lie on the first two of the dataset's metadata vdevs in the order of a hash of path and vdev
//! (rendezvous hashing). The list of vdevs is fixed when the dataset is made, so places never change. We call the
//! first the *primary* and the second the *second*. With one vdev there is only a primary.
//!
//! # Creating: the older epoch wins
//! SlateDB fences writers by create-if-absent: of two who create one path, exactly one may succeed, for ever. Both
//! copies are created at once, because a sync waits for it, and success is reported when both are there and ours.
//! Within a process, creates of one path come one after another.
//!
//! *One copy was there already.* Then both are read. With our nonce in both, only the reply of an earlier try was lost
//! (the nonce follows from SlateDB's put id, so a retry has the same): the authority is asked whether the pool is still
//! ours, and the create succeeds. Else the path is taken, whoever has it. What lies there may be:
//! - an object whose other copy was lost. It may have been acknowledged: our copy in the gap has to go;
//! - a half of somebody's create, and ours is the other half. It is a writer that took the pool over from us, or from
//!   which we took it over: others of our time there are none. Neither was told of success.
//!
//! One rule serves both, as nobody can tell them apart: *the object of the older epoch wins, and the newer writer puts it
//! over its own before it is told that the path is taken*. So an acknowledged object is never given up for a later one;
//! who took the pool over finds at that path what it will find there for ever; and the older writer, who sees an epoch
//! above its own, touches nothing. It may have seen its object win. That is why it asks the authority first: success
//! after a takeover would come too late for the new holder to see it.
//!
//! *One vdev is unreachable:* the create fails, though the other may have the object; a retry finds it by its nonce.
//! Metadata is not acknowledged with one copy.
//!
//! *Crash before both are there:* one copy exists, not acknowledged. It counts: reads find it, and a listing that finds
//! an object with one copy for a while has the other made.
//!
//! *The primary lost its object, the second has it.* A reader finds the primary without it, reads the second, and
//! puts it back on the primary by create. A creator who comes first gives way to the second's by the rule above. In
//! between a reader could see the creator's object; that needs a lost object, a writer who does not know of the path (a
//! stale one), and a read in the same moment, and it lasts only if the creator crashes right there.
//!
//! # Reading
//! The primary is read first. A copy is good if trailer and the crcs of the blocks read are right and the trailer
//! is this pool's and this key's. A copy that is absent or damaged is replaced from the other one, counted against
//! its vdev and noted. "Not found" is only answered when both copies are absent: one absent and one unreachable is
//! an error. A bucket that fails is an error only if the other copy cannot be read either.
//!
//! The second is read only where the primary fails. So that it is no surprise then, a check reads both (`scrub`).
//!
//! # Overwriting, updating, deleting
//! SSTs have names that are never used twice: both copies are put at once. The few objects that are replaced
//! (SlateDB's collection boundary, by compare-and-swap on the e-tag, which is the nonce) are written primary first,
//! one at a time, after asking the pool's authority: the primary is always the newer. What a failure or a crash left
//! half done is finished before the object is read again: else a repair of the primary from the second would undo what
//! readers have seen, and SlateDB, who has seen a boundary, tries for ever to move an earlier one. A delete takes the
//! second first, so that what a crash leaves is a primary, and a reader asks for no other.
//!
//! # Listing
//! The union over all metadata vdevs. One vdev may fail to list (what it holds is also elsewhere).

mod copies;
mod facade;
mod heal;
mod multipart;
pub(crate) mod object;
mod of_pool;
mod scrub;
mod store;

pub use scrub::ScrubbedMetadata;
pub use store::Changed;
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
