//! What a dataset's memory for metadata is for, and how much of it is in use.

use crate::Mdt;
use crate::txg::TXG_BYTES;

/// Bytes for each purpose. They add up to what the dataset has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Committed rows: inodes, names, block maps.
    pub rows: u64,
    /// Which names directories have.
    pub names: u64,
    /// Pages of listings.
    pub pages: u64,
    /// Block maps as they were decoded lately.
    pub maps: u64,
    /// Blocks of the database.
    pub blocks: u64,
    /// Parts of the database's objects around blocks that were read.
    pub regions: u64,
    /// A txg closes when its rows take so much, and operations wait when they take so much. There are two at a time.
    pub txg: u64,
    pub overfull: u64,
    /// Segments that are committed before they are in their buckets (`carry`).
    pub carried: u64,
    /// Rows that the database has in its log and not in a table yet, as it counts them: keys and values alone.
    pub unflushed: u64,
    /// Such rows become a table when they are so many bytes.
    pub table: u64,
    /// The longest table that compaction writes, and how much it reads ahead in each table that it merges.
    pub compacted: u64,
    pub fetch: u64,
}

/// What the database's tables in memory take for each byte of keys and values: rows are short.
const UNFLUSHED_COST: u64 = 4;

impl Shares {
    pub fn of(bytes: u64) -> Shares {
        let part = bytes / 16;
        Shares {
            rows: 4 * part + part / 2,
            names: part / 4,
            maps: part / 4,
            pages: part / 2,
            blocks: 3 * part,
            regions: part,
            txg: TXG_BYTES.min(part / 2),
            overfull: part,
            carried: part / 2,
            unflushed: (3 * part / UNFLUSHED_COST).min(64 << 20),
            table: (3 * part / UNFLUSHED_COST / 2).min(16 << 20),
            // Half a part for the table being written, half for about a dozen that are read.
            compacted: (part / 2).clamp(1 << 20, 64 << 20),
            fetch: (part / 2 / 12).clamp(64 << 10, 2 << 20),
        }
    }
}

/// Memory in use by a dataset's metadata, and the most that each part may take; in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemoryUse {
    /// With pages of listings.
    pub rows: u64,
    pub rows_max: u64,
    pub blocks: u64,
    pub blocks_max: u64,
    pub regions: u64,
    pub regions_max: u64,
    /// Rows of the open txg, and what is carried.
    pub changes: u64,
    /// Of two txgs.
    pub changes_max: u64,
    /// The most that the database may have in tables in memory, and for compaction. It does not say how much it has.
    pub tables_max: u64,
}

impl Mdt {
    pub fn memory(&self) -> MemoryUse {
        let (rows, rows_max) = self.rows.usage();
        let (blocks, blocks_max) = self.db.blocks();
        let (regions, regions_max) = self.pool.metadata_memory(self.dataset);
        let Shares { overfull, carried, unflushed, compacted, .. } = self.shares;
        MemoryUse {
            rows: rows + self.pages.bytes(),
            rows_max: rows_max + self.shares.pages,
            blocks,
            blocks_max,
            regions,
            regions_max,
            changes: self.op.lock().bytes + self.carrier.bytes(),
            changes_max: 2 * overfull + carried,
            tables_max: UNFLUSHED_COST * unflushed + 2 * compacted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for bytes in [8 << 20, 56 << 20, 248 << 20, 1 << 30, 8 << 30] {
            let s = Shares::of(bytes);
            let kept = s.rows + s.names + s.pages + s.maps + s.blocks + s.regions;
            let all = kept + 2 * s.overfull + s.carried + UNFLUSHED_COST * s.unflushed;
            assert!(all + s.compacted + 12 * s.fetch <= bytes + (2 << 20), "{bytes}: {s:?}");
            assert!(all >= bytes / 10 * 7, "{bytes}: {s:?}");
            assert!(s.txg < s.overfull && s.table < s.unflushed, "{s:?}");
        }
    }
}
