//! What the tests are made of: hosts, buckets, faults between pool and bucket.

use crate::open::Opened;

/// Puts what a test asked for between the pool and a bucket.
pub(crate) fn interpose(opened: Opened) -> Opened {
    opened
}
