//! How much memory a node may use, and for what.

/// Bytes for each purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Verified records.
    pub arc: u64,
    /// Data that is not yet in a bucket.
    pub dirty: u64,
    /// Rows and database blocks of all open datasets.
    pub metadata: u64,
}

/// Least that a node works with, in bytes.
const LEAST: u64 = 128 << 20;
/// Most dirty data, in bytes: enough to keep every bucket busy, and soon flushed when somebody waits for it.
const DIRTY_MOST: u64 = 256 << 20;
/// Most that is taken without being asked for, in bytes.
const MOST: u64 = 4 << 30;

impl Memory {
    /// A quarter for metadata, an eighth for dirty data but no more than [`DIRTY_MOST`], the rest for the ARC.
    pub fn split(bytes: u64) -> Memory {
        let bytes = bytes.max(LEAST);
        let (dirty, metadata) = ((bytes / 8).min(DIRTY_MOST), bytes / 4);
        Memory { arc: bytes - dirty - metadata, dirty, metadata }
    }
}

/// A quarter of the memory that this process may use, from 128 MiB to 4 GiB.
pub fn default_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let host = host_bytes(&read("/proc/meminfo")).unwrap_or(4 << 30);
    let group = read("/sys/fs/cgroup/memory.max").trim().parse().unwrap_or(u64::MAX);
    (host.min(group) / 4).clamp(LEAST, MOST)
}

/// `MemTotal:  16384 kB`
fn host_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kb| kb << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_split_and_bounded() {
        let memory = Memory::split(1 << 30);
        assert_eq!(memory.arc + memory.dirty + memory.metadata, 1 << 30);
        assert_eq!(Memory::split(1), Memory::split(LEAST));
        assert_eq!(host_bytes("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        assert!((LEAST..=MOST).contains(&default_bytes()));
    }
}
