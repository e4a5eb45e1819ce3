//! What a file's content must be, and what it may be after a crash.

/// A file as a vector of bytes, with the history that a crash may cut.
#[derive(Clone, Default)]
pub struct Model {
    pub data: Vec<u8>,
    /// For each byte since the last fsync: every value that it had while it was inside the file.
    seen: Vec<[u64; 4]>,
    /// Smallest and largest size since the last fsync.
    sizes: (usize, usize),
}

impl Model {
    fn note(&mut self, from: usize, to: usize) {
        self.seen.resize(self.seen.len().max(to), [0; 4]);
        for at in from..to {
            let value = self.data[at];
            self.seen[at][usize::from(value >> 6)] |= 1 << (value & 63);
        }
    }

    fn note_size(&mut self) {
        self.sizes = (self.sizes.0.min(self.data.len()), self.sizes.1.max(self.data.len()));
    }

    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let old = self.data.len();
        let end = offset + data.len();
        if end > old {
            self.data.resize(end, 0);
        }
        // A gap was zeros from the moment of this write on; the written range never was.
        if offset > old {
            self.note(old, offset);
        }
        self.data[offset..end].copy_from_slice(data);
        self.note(offset, end);
        self.note_size();
    }

    pub fn set_size(&mut self, size: usize) {
        let old = self.data.len();
        self.data.resize(size, 0);
        if size > old {
            self.note(old, size);
        }
        self.note_size();
    }

    pub fn zero(&mut self, offset: usize, end: usize) {
        let end = end.min(self.data.len());
        if offset < end {
            self.data[offset..end].fill(0);
            self.note(offset, end);
        }
    }

    pub fn read(&self, offset: usize, len: usize) -> &[u8] {
        let end = (offset + len).min(self.data.len());
        &self.data[offset.min(end)..end]
    }

    /// All that was written is durable.
    pub fn synced(&mut self) {
        self.seen.clear();
        self.sizes = (self.data.len(), self.data.len());
        self.note(0, self.data.len());
    }

    /// Whether a file found after a crash is one of those that the history allows; says what is wrong.
    pub fn check_survivor(&self, found: &[u8]) -> Result<(), String> {
        if found.len() < self.sizes.0 || found.len() > self.sizes.1 {
            return Err(format!("size {} is not within {:?}", found.len(), self.sizes));
        }
        for (at, value) in found.iter().enumerate() {
            let seen = self.seen.get(at).copied().unwrap_or_default();
            if seen[usize::from(value >> 6)] & (1 << (value & 63)) == 0 {
                return Err(format!("byte {at} of {} is {value}, which it never was", found.len()));
            }
        }
        Ok(())
    }
}
