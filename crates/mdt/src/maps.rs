//! Block maps as they were decoded lately.
//!
//! Reading a record needs one pointer, and the row that holds it holds [`CHUNK_RECORDS`](crate::phys::CHUNK_RECORDS) of
//! them: decoding it takes longer than all else that a read from memory does. So a decoded chunk is kept, together with
//! the bytes that it was decoded from. It stands for a row only if that is the very same bytes, in the same place: as
//! long as they are kept here nothing else can lie there.

use crate::Stop;
use crate::phys::{Chunk, Value};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::Arc;
use tarn_base::Ino;

/// What a decoded chunk costs beside its pointers.
const ENTRY: u64 = 192;

#[derive(Clone)]
struct Decoded {
    row: Value,
    record_size: u32,
    map: Arc<Chunk>,
}

#[derive(Clone)]
struct Weight;

impl Weighter<(Ino, u64), Decoded> for Weight {
    fn weight(&self, _: &(Ino, u64), decoded: &Decoded) -> u64 {
        // The row may be in no other place any more.
        ENTRY + decoded.row.len() as u64 + decoded.map.size()
    }
}

pub(crate) struct Maps(Cache<(Ino, u64), Decoded, Weight>);

impl Maps {
    /// As many as take about so many bytes.
    pub fn new(bytes: u64) -> Maps {
        Maps(Cache::with_weighter((bytes / Chunk::empty().size()) as usize, bytes, Weight))
    }

    /// The chunk that the row holds.
    pub fn decoded(&self, ino: Ino, chunk: u64, row: &Value, record_size: u32) -> Result<Arc<Chunk>, Stop> {
        let same = |known: &Decoded| Arc::ptr_eq(&known.row, row) && known.record_size == record_size;
        if let Some(known) = self.0.get(&(ino, chunk)).filter(same) {
            return Ok(known.map);
        }
        let map = Arc::new(Chunk::decode(row, record_size)?);
        self.0.insert((ino, chunk), Decoded { row: row.clone(), record_size, map: map.clone() });
        Ok(map)
    }

    /// Bytes in use, and the most that there may be.
    pub fn usage(&self) -> (u64, u64) {
        (self.0.weight(), self.0.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::{BlockPtr, Checksum, Compression, DatasetId, Grant, SegmentId, Txg, VdevId};

    fn chunk(seq: u32) -> Chunk {
        let mut chunk = Chunk::empty();
        chunk.ptrs[3] = Some(BlockPtr {
            segment: SegmentId { grant: Grant { vdev: VdevId(0), dataset: DatasetId(1), number: 1 }, seq },
            offset: 0,
            stored: 4096,
            logical: 4096,
            compression: Compression::Off,
            checksum: Checksum::Xxh3(7),
            birth: Txg(3),
            flags: 0,
        });
        chunk
    }

    #[test]
    fn only_the_same_bytes_are_the_same_map() {
        let maps = Maps::new(1 << 20);
        let rows = [1, 2].map(|seq| chunk(seq).encode(4096));
        let first = maps.decoded(Ino(5), 0, &rows[0], 4096).unwrap();
        assert_eq!(*first, chunk(1));
        assert!(Arc::ptr_eq(&first, &maps.decoded(Ino(5), 0, &rows[0], 4096).unwrap()));
        // The row was written anew.
        assert_eq!(*maps.decoded(Ino(5), 0, &rows[1], 4096).unwrap(), chunk(2));
        // Equal bytes elsewhere are decoded again, which is right as well.
        let copy = Value::from(&rows[1][..]);
        assert_eq!(*maps.decoded(Ino(5), 0, &copy, 4096).unwrap(), chunk(2));
        assert!(maps.decoded(Ino(5), 0, &b"?"[..].into(), 4096).is_err());
    }

    #[test]
    fn memory_is_bounded() {
        let maps = Maps::new(64 << 10);
        let row = chunk(1).encode(4096);
        (0..1000).for_each(|n| _ = maps.decoded(Ino(5), n, &row, 4096).unwrap());
        let (used, most) = maps.usage();
        assert!(used > 0 && used <= most && most <= 64 << 10, "{used} of {most}");
    }
}
