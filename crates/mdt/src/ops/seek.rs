//! Where data and holes begin, by committed records.

use crate::phys::{CHUNK_RECORDS, Chunk};
use crate::{Mdt, Stop, key};
use std::sync::Arc;
use tarn_base::{Answer, FsError, Ino};

/// Chunks that one scan asks for.
const BATCH: usize = 16;

impl Mdt {
    /// Offset in bytes of the first data at or after `offset`; [`FsError::NoData`] when only a hole follows.
    pub fn seek_data(self: &Arc<Self>, ino: Ino, offset: u64) -> Answer<u64> {
        let mdt = self.clone();
        self.begun(async move {
            let attr = mdt.getattr(ino).wait().await?;
            let record_size = u64::from(attr.record_size);
            let first = offset / record_size;
            let (_, end) = key::of_inode(key::table::CHUNK, ino);
            let mut from = key::chunk(ino, first / CHUNK_RECORDS);
            loop {
                let rows = mdt.scan(&from, &end, BATCH).await?;
                for (key, row) in &rows {
                    let number = key::chunk_of(key).ok_or(FsError::Io("block map key is short".into()))?;
                    let map = Chunk::decode(row, attr.record_size).map_err(no_stop)?;
                    let records = (number * CHUNK_RECORDS..).zip(&map.ptrs);
                    let data = records.filter(|(record, ptr)| *record >= first && ptr.is_some());
                    if let Some((record, _)) = data.min_by_key(|(record, _)| *record) {
                        let at = offset.max(record * record_size);
                        return if at < attr.size { Ok(at) } else { Err(FsError::NoData) };
                    }
                    from = key::chunk(ino, number + 1);
                }
                if rows.len() < BATCH {
                    return Err(FsError::NoData);
                }
            }
        })
    }

    /// Offset in bytes of the first hole at or after `offset`; the end of the file is one.
    pub fn seek_hole(self: &Arc<Self>, ino: Ino, offset: u64) -> Answer<u64> {
        self.look(move |tx| {
            let inode = tx.inode(ino)?;
            if offset >= inode.size {
                return Err(FsError::NoData.into());
            }
            let record_size = 1u64 << inode.record_shift;
            let mut record = offset / record_size;
            while record * record_size < inode.size {
                let map = tx.map(ino, record / CHUNK_RECORDS, record_size as u32)?;
                let rest = &map.ptrs[(record % CHUNK_RECORDS) as usize..];
                if let Some(hole) = rest.iter().position(Option::is_none) {
                    return Ok(offset.max((record + hole as u64) * record_size).min(inode.size));
                }
                record += rest.len() as u64;
            }
            Ok(inode.size)
        })
    }
}

fn no_stop(stop: Stop) -> FsError {
    match stop {
        Stop::Fail(error) => error,
        Stop::Missing(_) => FsError::Io("block map row is missing".into()),
    }
}
