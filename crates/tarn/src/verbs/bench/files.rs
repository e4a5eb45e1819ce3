//! Files in a directory of their own, used as a program would.

use super::meter::Watch;
use super::{What, median};
use anyhow::{Context, Result, bail};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of a small read or write, and how many are timed.
pub const SMALL: usize = 4 << 10;
pub const TIMES: usize = 40;
/// Small files that are made at once, and bytes of each.
pub const MANY: usize = 1000;
pub const MANY_SIZE: usize = 8 << 10;
/// Bytes that a program writes or reads at a time.
const BLOCK: usize = 4 << 20;

pub struct Files {
    folder: PathBuf,
    size: u64,
    stopped: AtomicBool,
}

impl Files {
    pub fn new(dir: &Path, size: u64) -> Result<Files> {
        let folder = dir.join(format!(".tarn-bench-{:016x}", rand::random::<u64>()));
        fs::create_dir(&folder).with_context(|| format!("cannot write to {}", dir.display()))?;
        Ok(Files { folder, size, stopped: AtomicBool::new(false) })
    }

    /// In the unit of `what`.
    pub fn measure(&self, what: What) -> Result<f64> {
        match what {
            What::Write => self.write(),
            What::Read => self.read(),
            What::SmallWrite => self.small_writes(),
            What::SmallRead => self.small_reads(),
            What::Many => self.many(),
        }
    }

    /// Whoever measures ends soon.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    fn check(&self) -> Result<()> {
        if self.stopped.load(Relaxed) {
            bail!("stopped");
        }
        Ok(())
    }

    /// Where everything is that is written.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn stream(&self) -> PathBuf {
        self.folder.join("stream")
    }

    fn write(&self) -> Result<f64> {
        let mut block = vec![0; BLOCK];
        rand::Rng::fill_bytes(&mut rand::rng(), &mut block);
        let start = Watch::start();
        let mut file = File::create(self.stream())?;
        let mut left = self.size;
        while left > 0 {
            self.check()?;
            // No two blocks are the same.
            block[..8].copy_from_slice(&left.to_le_bytes());
            let len = left.min(BLOCK as u64);
            file.write_all(&block[..len as usize])?;
            left -= len;
        }
        file.sync_all()?;
        Ok(start.rate(self.size))
    }

    /// Past the kernel's page cache. What was streamed out is not kept in the ARC either.
    fn read(&self) -> Result<f64> {
        let mut block = vec![0; BLOCK];
        let start = Watch::start();
        let mut file = direct(&self.stream())?;
        let mut all = 0;
        loop {
            self.check()?;
            match file.read(&mut block)? {
                0 => break,
                n => all += n as u64,
            }
        }
        if all != self.size {
            bail!("{all} bytes were read of {}", self.size);
        }
        Ok(start.rate(self.size))
    }

    /// One after the other, each synced.
    fn small_writes(&self) -> Result<f64> {
        let (block, file) = (vec![7; SMALL], File::create(self.folder.join("synced"))?);
        let mut times = Vec::new();
        for n in 0..TIMES {
            self.check()?;
            let start = Watch::start();
            file.write_all_at(&block, (n * SMALL) as u64)?;
            file.sync_all()?;
            times.push(start.elapsed());
        }
        Ok(median(times))
    }

    /// Here and there in the stream.
    fn small_reads(&self) -> Result<f64> {
        let (mut block, file) = (vec![0; SMALL], direct(&self.stream())?);
        let blocks = self.size / SMALL as u64;
        let mut times = Vec::new();
        for _ in 0..TIMES {
            self.check()?;
            let at = rand::random::<u64>() % blocks * SMALL as u64;
            let start = Watch::start();
            file.read_exact_at(&mut block, at)?;
            times.push(start.elapsed());
        }
        Ok(median(times))
    }

    /// Files a second, with one sync at the end.
    fn many(&self) -> Result<f64> {
        let (folder, block) = (self.folder.join("many"), vec![7; MANY_SIZE]);
        let start = Watch::start();
        fs::create_dir(&folder)?;
        for n in 0..MANY {
            self.check()?;
            fs::write(folder.join(n.to_string()), &block)?;
        }
        File::open(&folder)?.sync_all()?;
        Ok(start.rate(MANY as u64))
    }

    /// Deletes everything that was written.
    pub fn tidy(&self) -> Result<()> {
        fs::remove_dir_all(&self.folder).with_context(|| format!("{} is left", self.folder.display()))
    }
}

fn direct(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)
}
