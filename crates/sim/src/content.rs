//! The reference content of one regular file, with the history that a crash may cut.

use std::sync::Arc;
use tarn_base::Timespec;

/// A file's content after one operation.
#[derive(Clone, Debug)]
pub struct Snap {
    /// The operation's number.
    pub op: u64,
    pub data: Arc<Vec<u8>>,
    /// Modification and change time, if the operation came to its end.
    pub times: Option<(Timespec, Timespec)>,
}

/// What a file was after each operation that may not be durable yet.
#[derive(Clone, Debug)]
pub struct Content {
    record_size: usize,
    /// Oldest first; never empty.
    snaps: Vec<Snap>,
    /// `(operation, snap)`: where the namespace shows this operation, nothing older than this snap may be found.
    floors: Vec<(u64, u64)>,
}

impl Content {
    pub fn new(op: u64, record_size: usize, data: Vec<u8>) -> Content {
        let first = Snap { op, data: Arc::new(data), times: None };
        Content { record_size, snaps: vec![first], floors: Vec::new() }
    }

    fn last(&self) -> &Snap {
        &self.snaps[self.snaps.len() - 1]
    }

    pub fn data(&self) -> &[u8] {
        &self.last().data
    }

    pub fn times(&self) -> Option<(Timespec, Timespec)> {
        self.last().times
    }

    /// The file becomes `data` by operation `op`.
    pub fn set(&mut self, op: u64, data: Vec<u8>) {
        self.snaps.push(Snap { op, data: Arc::new(data), times: None });
    }

    /// An operation leaves the bytes alone but may move the times.
    pub fn touch(&mut self, op: u64) {
        let data = self.last().data.clone();
        self.snaps.push(Snap { op, data, times: None });
    }

    /// The times that were seen after the last operation.
    pub fn adopt(&mut self, times: (Timespec, Timespec)) {
        let last = self.snaps.len() - 1;
        self.snaps[last].times = Some(times);
    }

    pub fn write(&mut self, op: u64, offset: usize, data: &[u8]) {
        let mut new = self.data().to_vec();
        let end = offset + data.len();
        new.resize(new.len().max(end), 0);
        new[offset..end].copy_from_slice(data);
        self.set(op, new);
    }

    /// Truncation or extension. One that is parted by a crash leaves the old size and zeros from the new size to the
    /// end of its record.
    pub fn set_size(&mut self, op: u64, size: usize) {
        let old = self.data();
        if size < old.len() && !size.is_multiple_of(self.record_size) {
            let end = (size / self.record_size + 1) * self.record_size;
            let mut parted = old.to_vec();
            let end = end.min(parted.len());
            parted[size..end].fill(0);
            self.set(op, parted);
        }
        let mut new = self.data().to_vec();
        new.resize(size, 0);
        self.set(op, new);
    }

    pub fn zero(&mut self, op: u64, offset: usize, end: usize) {
        let mut new = self.data().to_vec();
        let end = end.min(new.len());
        if offset < end {
            new[offset..end].fill(0);
        }
        self.set(op, new);
    }

    pub fn read(&self, offset: usize, len: usize) -> &[u8] {
        let data = self.data();
        let end = (offset + len).min(data.len());
        &data[offset.min(end)..end]
    }

    /// Everything up to now is durable.
    pub fn synced(&mut self) {
        self.snaps.drain(..self.snaps.len() - 1);
        self.floors.clear();
    }

    /// Where the namespace shows operation `op`, everything up to now is committed.
    pub fn committed_before(&mut self, op: u64) {
        self.floors.push((op, self.last().op));
    }

    /// Whether a crash may leave this, where the namespace shows the operations up to `shown` and not `next`. Says
    /// what is wrong.
    pub fn may_survive(
        &self,
        found: &[u8],
        times: (Timespec, Timespec),
        shown: u64,
        next: u64,
    ) -> Result<(), String> {
        let floors = self.floors.iter().filter(|(op, _)| *op <= shown);
        let floor = floors.map(|(_, snap)| *snap).max().unwrap_or(0);
        let from = self.snaps.iter().rposition(|snap| snap.op <= floor).unwrap_or(0);
        let window: Vec<&Snap> = self.snaps[from..].iter().filter(|snap| snap.op < next).collect();
        let sizes = window.iter().map(|snap| snap.data.len());
        let (Some(min), Some(max)) = (sizes.clone().min(), sizes.max()) else {
            return Err("it was not made yet".into());
        };
        if !(min..=max).contains(&found.len()) {
            return Err(format!("its size {} is not within {min}..={max}", found.len()));
        }
        for (record, bytes) in found.chunks(self.record_size).enumerate() {
            let start = record * self.record_size;
            let was = |snap: &&&Snap| snap.data.get(start..start + bytes.len()) == Some(bytes);
            if !window.iter().any(|snap| was(&snap)) {
                return Err(format!(
                    "record {record} of {} bytes is none of the {} that it was (first bytes {:?})",
                    found.len(),
                    window.len(),
                    &bytes[..bytes.len().min(8)]
                ));
            }
        }
        self.times_fit(&window, times)
    }

    fn times_fit(&self, window: &[&Snap], found: (Timespec, Timespec)) -> Result<(), String> {
        if window.iter().any(|snap| snap.times.is_none()) {
            return Ok(());
        }
        let within = |found: Timespec, all: &dyn Fn(&(Timespec, Timespec)) -> Timespec| {
            let seen = window.iter().filter_map(|snap| snap.times.as_ref()).map(all);
            seen.clone().min().is_none_or(|min| min <= found) && seen.max().is_none_or(|max| found <= max)
        };
        if within(found.0, &|times| times.0) && within(found.1, &|times| times.1) {
            return Ok(());
        }
        Err(format!("its times {found:?} are none that it had"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: (Timespec, Timespec) = (Timespec { sec: 0, nsec: 0 }, Timespec { sec: 0, nsec: 0 });

    fn survives(content: &Content, found: &[u8], shown: u64, next: u64) -> bool {
        content.may_survive(found, T, shown, next).is_ok()
    }

    #[test]
    fn records_survive_one_by_one_and_never_mixed() {
        let mut content = Content::new(0, 4, b"aaaabbbb".to_vec());
        content.write(1, 0, b"ccccdddd");
        for good in [b"aaaabbbb", b"ccccbbbb", b"aaaadddd", b"ccccdddd"] {
            assert!(survives(&content, good, 0, 9));
        }
        assert!(!survives(&content, b"ccaabbbb", 0, 9));
        assert!(!survives(&content, b"ccccdddd", 0, 1), "written after what the namespace lacks");
        content.synced();
        assert!(!survives(&content, b"aaaadddd", 0, 9));
    }

    #[test]
    fn a_size_never_covers_what_was_not_written() {
        let mut content = Content::new(0, 4, Vec::new());
        content.write(1, 0, b"aaaabbbbcccc");
        assert!(survives(&content, b"aaaabbbb", 0, 9));
        assert!(!survives(&content, b"\0\0\0\0bbbb", 0, 9));
        assert!(!survives(&content, b"aaaa\0\0\0\0cccc", 0, 9));
        let mut hole = Content::new(0, 4, Vec::new());
        hole.write(1, 8, b"cccc");
        assert!(survives(&hole, b"\0\0\0\0\0\0\0\0cccc", 0, 9));
    }

    #[test]
    fn a_parted_truncation_shows_zeros_and_a_rename_shows_the_whole() {
        let mut content = Content::new(0, 4, b"aaaabbbb".to_vec());
        content.set_size(1, 2);
        assert!(survives(&content, b"aa\0\0bbbb", 0, 9));
        assert!(!survives(&content, b"aa\0\0b", 0, 1));
        content.committed_before(5);
        assert!(survives(&content, b"aaaabbbb", 4, 9) && !survives(&content, b"aaaabbbb", 5, 9));
        assert!(survives(&content, b"aa", 5, 9));
    }
}
