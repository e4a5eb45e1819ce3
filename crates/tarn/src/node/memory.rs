//! How much memory a node may use, and for what: the one place where it is divided, and where what is in use is
//! added up. The parts divide their own further (`Shares` in the pool and in the metadata target).

use crate::telemetry::MemorySample;

/// Bytes for each purpose. They add up to what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Records: the ARC, and what is on its way into it.
    pub records: u64,
    /// Data that is not yet in a bucket.
    pub dirty: u64,
    /// Segments on their way to a bucket: what was packed for them.
    pub flights: u64,
    /// Rows and database of all open datasets.
    pub metadata: u64,
}

/// Least that a node works with, in bytes.
const LEAST: u64 = 128 << 20;
/// The program itself: its code, its threads, connections, and what the allocator has between things.
const PROGRAM: u64 = 40 << 20;
/// Most dirty data, in bytes: enough to keep every bucket busy, and soon flushed when somebody waits for it.
const DIRTY_MOST: u64 = 256 << 20;
/// Most that is taken without being asked for, in bytes.
const MOST: u64 = 4 << 30;

impl Memory {
    /// Of what the program itself leaves: an eighth for dirty data but no more than [`DIRTY_MOST`], half as much for
    /// segments on their way, a quarter for metadata, the rest for records.
    pub fn split(bytes: u64) -> Memory {
        let total = bytes.max(LEAST);
        let rest = total - PROGRAM;
        let (dirty, metadata) = ((rest / 8).min(DIRTY_MOST), rest / 4);
        let flights = dirty / 2;
        Memory { total, records: rest - dirty - flights - metadata, dirty, flights, metadata }
    }

    /// Requests that the kernel may send without anybody waiting for them: each may bring a buffer of 1 MiB.
    pub fn requests(&self) -> u16 {
        ((self.total / 16) >> 20).clamp(8, 64) as u16
    }
}

/// Has the allocator keep no more arenas than there are cores. Each keeps what it has been given, and by itself it makes eight
/// for each core: of 128 MiB that a node might have, they held as many again. To be called before threads are.
pub fn few_arenas() {
    #[cfg(target_env = "gnu")]
    {
        let cores = std::thread::available_parallelism().map_or(2, usize::from).max(2);
        // SAFETY: it sets a number, and no other thread is there that allocates.
        let set = unsafe { libc::mallopt(libc::M_ARENA_MAX, cores as libc::c_int) };
        debug_assert_eq!(set, 1);
    }
}

/// One part of the memory.
pub struct Part {
    pub name: &'static str,
    /// `None`: it is bounded, and does not say how much it has.
    pub used: Option<u64>,
    pub limit: u64,
}

/// What memory is used for now: parts of one name are added up.
pub fn report(memory: &Memory, parts: Vec<Part>) -> MemorySample {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut out = MemorySample {
        limit: memory.total,
        resident: kilobytes(&status, "VmRSS:"),
        resident_peak: kilobytes(&status, "VmHWM:"),
        ..MemorySample::default()
    };
    for Part { name, used, limit } in parts {
        out.used += used.unwrap_or(0);
        let part = out.parts.entry(name.to_string()).or_default();
        part.used = used.map(|used| part.used.unwrap_or(0) + used);
        part.limit += limit;
    }
    out
}

/// A quarter of the memory that this process may use, from 128 MiB to 4 GiB.
pub fn default_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let host = kilobytes(&read("/proc/meminfo"), "MemTotal:").unwrap_or(4 << 30);
    let group = read("/sys/fs/cgroup/memory.max").trim().parse().unwrap_or(u64::MAX);
    (host.min(group) / 4).clamp(LEAST, MOST)
}

/// Bytes of a line such as `MemTotal:  16384 kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kb| kb << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_split_and_bounded() {
        for bytes in [LEAST, 256 << 20, 1 << 30, 64 << 30] {
            let m = Memory::split(bytes);
            assert_eq!(PROGRAM + m.records + m.dirty + m.flights + m.metadata, bytes);
            assert!(m.records > m.dirty, "{m:?}");
        }
        assert_eq!(Memory::split(1), Memory::split(LEAST));
        assert_eq!(kilobytes("MemFree: 1 kB\nMemTotal:       16384 kB\n", "MemTotal:"), Some(16 << 20));
        assert!((LEAST..=MOST).contains(&default_bytes()));
    }

    #[test]
    fn parts_of_one_name_are_added_up() {
        let part = |name, used, limit| Part { name, used, limit };
        let parts = vec![part("rows", Some(3), 10), part("rows", Some(4), 10), part("tables", None, 5)];
        let shown = report(&Memory::split(LEAST), parts);
        assert_eq!((shown.used, shown.limit), (7, LEAST));
        assert_eq!((shown.parts["rows"].used, shown.parts["rows"].limit), (Some(7), 20));
        assert_eq!((shown.parts["tables"].used, shown.parts["tables"].limit), (None, 5));
        assert!(shown.resident.is_some() && shown.resident_peak >= shown.resident);
    }
}
