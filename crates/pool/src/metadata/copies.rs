//! One copy of a metadata object: reading it, and knowing whether it is good.

use super::object::{BLOCK, Footer, Identity};
use super::store::REGION;
use crate::vdev::Vdev;
use bytes::Bytes;
use object_store::GetRange;
use std::ops::Range;
use std::sync::Arc;

/// Fetched from the end of an object about which nothing is known: all of most objects, and the footer of the rest.
const TAIL: u64 = 2 * BLOCK + 4096;

/// The same where only the footer is wanted: enough for an object of 100 MiB.
const HEAD: u64 = 8 << 10;

/// Why a copy did not give what was asked for.
#[derive(Debug)]
pub(super) enum CopyError {
    Absent,
    /// The text says what is wrong with it.
    Damaged(String),
    /// The bucket did not answer as it should.
    Failed(tarn_bucket::Error),
    /// There are no such bytes in the object.
    Range(String),
}

impl From<tarn_bucket::Error> for CopyError {
    fn from(error: tarn_bucket::Error) -> CopyError {
        match error {
            tarn_bucket::Error::NotFound(_) => CopyError::Absent,
            other => CopyError::Failed(other),
        }
    }
}

/// Part of an object, verified.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub footer: Arc<Footer>,
    pub range: Range<u64>,
    pub bytes: Bytes,
}

/// What to read.
#[derive(Debug, Clone)]
pub(super) enum Want {
    /// Only the footer.
    Head,
    All,
    Range(GetRange),
}

impl Want {
    /// A range given by both of its ends, smaller than a region.
    pub fn small_range(&self) -> Option<Range<u64>> {
        match self {
            Want::Range(GetRange::Bounded(range)) if range.end.saturating_sub(range.start) < REGION => {
                Some(range.clone())
            }
            _ => None,
        }
    }

    fn range(&self, payload: u64) -> Result<Range<u64>, CopyError> {
        match self {
            Want::Head => Ok(0..0),
            Want::All => Ok(0..payload),
            Want::Range(range) => range.as_range(payload).map_err(|e| CopyError::Range(e.to_string())),
        }
    }
}

/// Reads and verifies. With `known`, the footer of the same object from an earlier read, one request brings just
/// the blocks wanted; if they do not fit it (the object was replaced meanwhile), that is reported as damage and the
/// caller tries without.
pub(super) async fn read(
    vdev: &Vdev,
    identity: &Identity<'_>,
    want: &Want,
    known: Option<Arc<Footer>>,
) -> Result<Part, CopyError> {
    if let Some(footer) = known
        && !matches!(want, Want::Head)
    {
        let range = want.range(footer.payload)?;
        let bytes = fetch(vdev, identity.key, &footer, &range).await?;
        return Ok(Part { footer, range, bytes });
    }
    let length = if matches!(want, Want::Head) { HEAD } else { TAIL };
    let (mut tail, size) = vdev.get_tail_hasty(identity.key, length).await?;
    let footer = match Footer::parse(&tail, size, identity).map_err(CopyError::Damaged)? {
        Ok(footer) => footer,
        Err(len) => {
            tail = vdev.get_hasty(identity.key, size.saturating_sub(len)..size).await?;
            match Footer::parse(&tail, size, identity).map_err(CopyError::Damaged)? {
                Ok(footer) => footer,
                Err(_) => return Err(CopyError::Damaged("it is cut short".into())),
            }
        }
    };
    let footer = Arc::new(footer);
    let range = want.range(footer.payload)?;
    if range.is_empty() {
        return Ok(Part { footer, range, bytes: Bytes::new() });
    }
    // The tail may hold the blocks already.
    let blocks = footer.blocks(&range);
    let tail_start = size - tail.len() as u64;
    let bytes = if blocks.start >= tail_start {
        let held = tail.slice((blocks.start - tail_start) as usize..(blocks.end - tail_start) as usize);
        cut(&footer, &blocks, &range, held)?
    } else {
        fetch(vdev, identity.key, &footer, &range).await?
    };
    Ok(Part { footer, range, bytes })
}

async fn fetch(vdev: &Vdev, key: &str, footer: &Footer, range: &Range<u64>) -> Result<Bytes, CopyError> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let blocks = footer.blocks(range);
    let held = vdev.get_hasty(key, blocks.clone()).await?;
    cut(footer, &blocks, range, held)
}

fn cut(footer: &Footer, blocks: &Range<u64>, range: &Range<u64>, held: Bytes) -> Result<Bytes, CopyError> {
    if held.len() as u64 != blocks.end - blocks.start {
        return Err(CopyError::Damaged("it is cut short".into()));
    }
    if !footer.verify(blocks.start, &held) {
        return Err(CopyError::Damaged(format!("a checksum within bytes {blocks:?} is wrong")));
    }
    Ok(held.slice((range.start - blocks.start) as usize..(range.end - blocks.start) as usize))
}
