//! The directory of a cache vdev, and how it is known to be the right one.
//!
//! ```text
//! DIR/tarn-cache    whose it is; locked by the process that uses it
//! DIR/records/      what the cache holds, in files of the engine's own
//! ```
//!
//! Nothing is written, and nothing deleted, in a directory without the mark: where a file system is not mounted, what
//! lies below its mountpoint is left alone.

use crate::codec::{FrameError, frame, unframe};
use crate::{Result, usage};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tarn_base::PoolGuid;

const MARK: &str = "tarn-cache";
const MAGIC: &[u8; 8] = b"TARNCACH";
const VERSION: u16 = 1;
/// A mark is never longer, in bytes.
const MARK_MAX: u64 = 64 << 10;
/// What a fresh file system has, and nobody minds.
const PASSED_OVER: &str = "lost+found";

/// Whose cache a directory is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub pool: PoolGuid,
    /// For people.
    pub pool_name: String,
    /// The cache vdev's guid.
    pub cache: u64,
}

/// Where the engine has its files.
pub(super) fn records(dir: &Path) -> PathBuf {
    dir.join("records")
}

/// A directory in use by this process, until it is dropped.
pub(super) struct Held {
    dir: PathBuf,
    mark: File,
}

impl Held {
    /// Bytes that it takes on its file system; an error when what lies at its path is not it any more. Blocks.
    pub fn look(&self) -> std::io::Result<u64> {
        let (there, held) = (std::fs::metadata(self.dir.join(MARK))?, self.mark.metadata()?);
        if (there.dev(), there.ino()) != (held.dev(), held.ino()) {
            return Err(std::io::Error::other("another directory lies in its place"));
        }
        let mut bytes = 0;
        for entry in std::fs::read_dir(records(&self.dir))? {
            // `st_blocks` counts units of 512 bytes, whatever the file system's.
            bytes += entry?.metadata()?.blocks() * 512;
        }
        Ok(bytes)
    }

    /// Deletes what the cache holds. Blocks.
    pub fn wipe(&self) -> std::io::Result<()> {
        clear(&self.dir)?;
        std::fs::create_dir(records(&self.dir))
    }
}

fn clear(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(records(dir)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Reads a mark; `None` when there is none. Errors are one line, without the directory's name.
fn read(dir: &Path) -> std::result::Result<Option<(File, Mark)>, String> {
    let file = OpenOptions::new().read(true).write(true).open(dir.join(MARK));
    let file = match file {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    let mut bytes = Vec::new();
    (&file).take(MARK_MAX).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    let body = unframe(MAGIC, VERSION, &bytes).map_err(|e| match e {
        FrameError::Newer(version) => format!("it has format {version}: use a newer Tarn"),
        FrameError::Damaged => format!("its file {MARK} is damaged"),
    })?;
    let mark =
        serde_json::from_slice(body).map_err(|e| format!("its file {MARK} cannot be understood: {e}"))?;
    Ok(Some((file, mark)))
}

fn lock(file: File) -> std::result::Result<File, String> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err("another process uses it".into()),
        Err(std::fs::TryLockError::Error(e)) => Err(format!("it cannot be locked: {e}")),
    }
}

/// Says in one line why the directory is not this cache's, or that it is. Blocks.
pub(super) fn check(dir: &Path, pool: PoolGuid, cache: u64) -> std::result::Result<(), String> {
    find(dir, pool, cache).map(drop)
}

fn find(dir: &Path, pool: PoolGuid, cache: u64) -> std::result::Result<File, String> {
    match read(dir)? {
        Some((file, mark)) if mark.pool == pool && mark.cache == cache => Ok(file),
        Some((_, mark)) => Err(format!("it is another cache, of pool '{}'", mark.pool_name)),
        None if dir.is_dir() => Err("the directory is no cache (is its file system mounted?)".into()),
        None => Err("there is no such directory".into()),
    }
}

/// Takes the directory of a cache that was made before. Blocks.
pub(super) fn hold(dir: &Path, pool: PoolGuid, cache: u64) -> std::result::Result<Held, String> {
    let mark = lock(find(dir, pool, cache)?)?;
    match std::fs::create_dir(records(dir)) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e.to_string()),
        _ => Ok(Held { dir: dir.to_path_buf(), mark }),
    }
}

/// Makes a directory a cache, empty and durably. Refuses one that holds something else, also with `force`; one that is a
/// cache already only without it. Blocks.
pub(super) fn make(dir: &Path, mark: &Mark, force: bool) -> Result<()> {
    let refused = |why: &str| usage(format!("{}: {why}", dir.display()));
    let failed = |e: std::io::Error| refused(&e.to_string());
    let found = read(dir).or_else(|why| if force { Ok(None) } else { Err(refused(&why)) })?;
    if let Some((_, other)) = &found
        && other.pool != mark.pool
        && !force
    {
        return Err(refused(&format!(
            "it is a cache of pool '{}': remove it there, or use -f to take it",
            other.pool_name
        )));
    }
    // Nobody may be at work in there, whatever was asked.
    let held = found.map(|(file, _)| lock(file)).transpose().map_err(|why| refused(&why))?;
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let ours = name == MARK || (name == "records" && held.is_some());
        if !ours && name != PASSED_OVER {
            return Err(refused(&format!(
                "it holds something else ('{}'): a cache wants an empty directory",
                name.to_string_lossy()
            )));
        }
    }
    clear(dir).map_err(failed)?;
    let body = serde_json::to_vec(mark).map_err(|e| refused(&e.to_string()))?;
    let mut options = OpenOptions::new();
    let mut file =
        options.create(true).write(true).truncate(true).mode(0o600).open(dir.join(MARK)).map_err(failed)?;
    file.write_all(&frame(MAGIC, VERSION, &body)).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
}

/// Deletes a cache's files; the directory stays. Does nothing where there is none. Blocks.
pub(super) fn unmake(dir: &Path, pool: PoolGuid, cache: u64) -> std::result::Result<(), String> {
    check(dir, pool, cache)?;
    clear(dir).map_err(|e| e.to_string())?;
    std::fs::remove_file(dir.join(MARK)).map_err(|e| e.to_string())
}

/// Bytes that are free on the directory's file system for who is not root. Blocks.
pub(super) fn free(dir: &Path) -> Result<u64> {
    let stat = nix::sys::statvfs::statvfs(dir);
    let stat = stat.map_err(|e| usage(format!("{}: {}", dir.display(), e.desc())))?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_becomes_a_cache_and_only_its_own_pool_finds_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let mark = |pool, cache| Mark { pool: PoolGuid(pool), pool_name: format!("p{pool}"), cache };
        assert!(check(dir, PoolGuid(1), 7).unwrap_err().contains("no cache"));
        std::fs::create_dir(dir.join("lost+found")).unwrap();
        std::fs::write(dir.join("mine"), "x").unwrap();
        for force in [false, true] {
            let refused = make(dir, &mark(1, 7), force).unwrap_err().to_string();
            assert!(refused.contains("'mine'") && !refused.contains('\n'), "{refused}");
        }
        assert!(!dir.join(MARK).exists());
        std::fs::remove_file(dir.join("mine")).unwrap();
        make(dir, &mark(1, 7), false).unwrap();

        check(dir, PoolGuid(1), 7).unwrap();
        assert!(check(dir, PoolGuid(1), 8).is_err() && check(dir, PoolGuid(2), 7).is_err());
        let held = hold(dir, PoolGuid(1), 7).unwrap();
        assert!(hold(dir, PoolGuid(1), 7).is_err_and(|why| why.contains("another process")));
        assert!(make(dir, &mark(2, 9), true).unwrap_err().to_string().contains("another process"));
        std::fs::write(records(dir).join("f"), vec![1; 10_000]).unwrap();
        assert!(held.look().unwrap() >= 10_000);
        drop(held);

        assert!(make(dir, &mark(2, 9), false).unwrap_err().to_string().contains("pool 'p1'"));
        make(dir, &mark(2, 9), true).unwrap();
        assert!(!records(dir).join("f").exists());
        assert!(unmake(dir, PoolGuid(1), 7).is_err() && dir.join(MARK).exists());
        unmake(dir, PoolGuid(2), 9).unwrap();
        assert!(!dir.join(MARK).exists() && !records(dir).exists() && dir.join("lost+found").exists());
    }

    #[test]
    fn a_directory_that_was_replaced_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("c");
        std::fs::create_dir(&dir).unwrap();
        let mark = Mark { pool: PoolGuid(1), pool_name: "p".into(), cache: 7 };
        make(&dir, &mark, false).unwrap();
        let held = hold(&dir, PoolGuid(1), 7).unwrap();
        assert!(held.look().is_ok());
        std::fs::rename(&dir, root.path().join("away")).unwrap();
        assert!(held.look().is_err());
        std::fs::create_dir(&dir).unwrap();
        make(&dir, &mark, false).unwrap();
        assert!(held.look().is_err());
    }
}
