//! A bucket in a local directory: each object is a file at its key's path.
//!
//! - **Atomic.** An object is written to a file of its own below [`TEMPORARY`] and renamed into place, so that
//!   readers see the old or the new. Create-if-absent is a hard link, which the kernel refuses if the name is
//!   taken. A crash leaves at most a file that the next writer removes once it is old.
//! - **Durable.** A put and a delete are so after [`Bucket::sync`], which is a `syncfs` shared by all buckets of
//!   the file system (see [`sync`]). A create is so when it returns: file and directories are fsynced. Until its sync a
//!   put may be lost with the power, and where it replaces an object its file is fsynced before it is renamed, so that
//!   what a power loss leaves is the old object or the new one, and not a name whose content never reached the disk.
//! - **A lost write stays lost.** After a failed `syncfs` the kernel takes the lost pages for clean and the next
//!   call succeeds. So a bucket that has seen a failure fails every later sync that has something to make
//!   durable, until it is opened anew.
//! - **Contained.** Every path is resolved by the kernel below the root and through no symbolic link.
//! - **Folders come and go.** A delete removes folders that it emptied; a put whose folder went away meanwhile
//!   makes it again. They cannot miss each other: the kernel removes no folder that has an entry, and puts no
//!   entry into a folder that was removed.

mod sync;

use crate::buffer::Buffer;
use crate::error::object;
use crate::key::{self, TEMPORARY};
use crate::{Bucket, Capacity, Error, ObjectInfo, Result};
use bytes::Bytes;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, RenameFlags, ResolveFlag, openat2, renameat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::sys::statvfs::fstatvfs;
use nix::sys::uio::pread;
use nix::unistd::{UnlinkatFlags, fsync, linkat, unlinkat};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use sync::Device;

/// Files are the owner's only: they hold what all users of the file system wrote.
const FILE_MODE: Mode = Mode::from_bits_truncate(0o600);
const FOLDER_MODE: Mode = Mode::from_bits_truncate(0o700);
/// How often a write makes a folder again that deletes keep taking away.
const FOLDER_TRIES: usize = 100;
/// An unfinished write older than this belongs to nobody any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A directory as a bucket.
pub struct LocalBucket {
    root: Arc<Root>,
}

struct Root {
    url: String,
    file: File,
    device: Arc<Device>,
    /// Failed rounds of the device when this was opened.
    failures_before: u64,
    /// Answered puts and deletes, and how many of them a sync has covered.
    changes: AtomicU64,
    synced: AtomicU64,
    /// Names unfinished writes: a random number for this opening, and one for each.
    opening: u64,
    next: AtomicU64,
    swept: AtomicBool,
}

impl LocalBucket {
    /// Opens the directory `path`, which must be there. Changes nothing in it.
    pub fn open(path: &Path) -> Result<LocalBucket> {
        let url = path.display().to_string();
        let config = |why: String| Error::Config(format!("{url}: {why}"));
        let file = File::open(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                config("no such directory: make it with mkdir, or mount its disk".into())
            }
            std::io::ErrorKind::NotADirectory => {
                config("a part of this path is a file: a local bucket is a directory of its own".into())
            }
            std::io::ErrorKind::PermissionDenied => config("this user may not open the directory".into()),
            _ => config(e.to_string()),
        })?;
        let stat = fstat(&file).map_err(|e| config(e.desc().into()))?;
        if kind(&stat) != SFlag::S_IFDIR {
            return Err(config("not a directory: a local bucket is a directory of its own".into()));
        }
        let device = Device::of(stat.st_dev, &file).map_err(|e| config(e.to_string()))?;
        let root = Root {
            url,
            file,
            failures_before: device.failures().0,
            device,
            changes: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            opening: rand::random(),
            next: AtomicU64::new(0),
            swept: AtomicBool::new(false),
        };
        Ok(LocalBucket { root: Arc::new(root) })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = self.root.clone();
        let done = tokio::task::spawn_blocking(move || work(&root)).await;
        done.map_err(|e| Error::Io(format!("{}: {e}", self.root.url)))?
    }
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

fn info(key: String, stat: &FileStat) -> ObjectInfo {
    let modified_ms = stat.st_mtime * 1000 + stat.st_mtime_nsec / 1_000_000;
    ObjectInfo { key, size: stat.st_size as u64, modified_ms }
}

/// A key's folder, empty for the root, and its last part.
fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('/').unwrap_or(("", key))
}

/// An unfinished write, which is removed when this is dropped. Once it has been renamed there is nothing to
/// remove.
struct Unfinished<'a> {
    root: &'a Root,
    path: String,
    file: File,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(&self.root.file, self.path.as_str(), UnlinkatFlags::NoRemoveDir);
    }
}

impl Root {
    fn fail(&self, key: &str, error: Errno) -> Error {
        let place = if key.is_empty() { self.url.clone() } else { object(&self.url, key) };
        match error {
            Errno::ENOENT => Error::NotFound(place),
            Errno::ENOSPC | Errno::EDQUOT => Error::NoSpace(place),
            Errno::EACCES | Errno::EPERM => Error::Denied(format!("{place}: {}", error.desc())),
            Errno::EROFS => Error::Denied(format!("{place}: the file system is read-only")),
            Errno::EISDIR | Errno::ENOTDIR => {
                Error::Config(format!("{place}: an object and a folder cannot have one name"))
            }
            Errno::ELOOP => Error::Config(format!("{place}: a symbolic link lies in the way: remove it")),
            Errno::EXDEV => {
                Error::Config(format!("{place}: another file system is mounted there: unmount it"))
            }
            Errno::ENAMETOOLONG => {
                Error::Config(format!("{place}: the name is too long for the file system"))
            }
            _ => Error::Io(format!("{place}: {}", error.desc())),
        }
    }

    fn open(&self, path: &str, flags: OFlag, mode: Mode) -> nix::Result<OwnedFd> {
        let within = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS
            | ResolveFlag::RESOLVE_NO_XDEV;
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(within);
        loop {
            match openat2(&self.file, path, how) {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                other => return other,
            }
        }
    }

    fn open_folder(&self, folder: &str) -> nix::Result<OwnedFd> {
        let path = if folder.is_empty() { "." } else { folder };
        self.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())
    }

    fn make_folder(&self, folder: &str) -> nix::Result<()> {
        let ends = folder.match_indices('/').map(|(at, _)| at).chain([folder.len()]);
        for end in ends.filter(|end| *end > 0) {
            let (parent, name) = split(&folder[..end]);
            match mkdirat(self.open_folder(parent)?, name, FOLDER_MODE) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Does `work` on a path in `folder`, which is made as often as it is found missing.
    fn in_folder<T>(&self, folder: &str, mut work: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
        for _ in 0..FOLDER_TRIES {
            match work() {
                Err(Errno::ENOENT) => {}
                other => return other,
            }
            match self.make_folder(folder) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
            }
        }
        // Not ENOENT, which would say that there is no such object.
        Err(Errno::EBUSY)
    }

    /// The object's open file, for reading, and what it is.
    fn open_object(&self, key: &str) -> Result<(OwnedFd, FileStat)> {
        let gone = || Error::NotFound(object(&self.url, key));
        let opened = self.open(key, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty());
        let file = opened.map_err(|e| if e == Errno::ENOTDIR { gone() } else { self.fail(key, e) })?;
        let stat = fstat(&file).map_err(|e| self.fail(key, e))?;
        match kind(&stat) {
            SFlag::S_IFREG => Ok((file, stat)),
            _ => Err(gone()),
        }
    }

    fn read(&self, key: &str, file: &OwnedFd, range: Range<u64>) -> Result<Bytes> {
        let len = range.end.saturating_sub(range.start) as usize;
        let mut body = Buffer::new(len);
        let mut filled = 0;
        while filled < len {
            match pread(file, &mut body.as_mut()[filled..], (range.start + filled as u64) as i64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(self.fail(key, e)),
            }
        }
        body.truncate(filled);
        Ok(body.freeze())
    }

    /// Writes `body` to a file without a key yet.
    fn write(&self, key: &str, body: &[Bytes]) -> Result<Unfinished<'_>> {
        if !self.swept.swap(true, Ordering::Relaxed) {
            self.sweep();
        }
        let path = format!("{TEMPORARY}/{:x}-{:x}", self.opening, self.next.fetch_add(1, Ordering::Relaxed));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let file = self
            .in_folder(TEMPORARY, || self.open(&path, flags, FILE_MODE))
            .map_err(|e| self.fail(key, e))?;
        let mut unfinished = Unfinished { root: self, path, file: File::from(file) };
        let mut slices: Vec<_> =
            body.iter().filter(|piece| !piece.is_empty()).map(|piece| IoSlice::new(piece)).collect();
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            match unfinished.file.write_vectored(left) {
                Ok(0) => return Err(self.fail(key, Errno::EIO)),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.fail(key, Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO)))),
            }
        }
        Ok(unfinished)
    }

    /// Removes what a crash left unfinished long ago. Best effort: it costs only space.
    fn sweep(&self) {
        let Ok(mut files) = self.open_folder(TEMPORARY).and_then(Dir::from_fd) else { return };
        let Ok(folder) = self.open_folder(TEMPORARY) else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for name in files.iter().flatten().map(|entry| entry.file_name().to_owned()) {
            let old = |stat: FileStat| {
                let age = now.saturating_sub(Duration::from_secs(stat.st_mtime.max(0) as u64));
                kind(&stat) == SFlag::S_IFREG && age > ABANDONED
            };
            if fstatat(&folder, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok_and(old) {
                let _ = unlinkat(&folder, name.as_c_str(), UnlinkatFlags::NoRemoveDir);
            }
        }
    }

    fn put(&self, key: &str, body: &[Bytes]) -> Result<()> {
        let unfinished = self.write(key, body)?;
        let (folder, name) = split(key);
        let rename =
            |flags| renameat2(&self.file, unfinished.path.as_str(), self.open_folder(folder)?, name, flags);
        match self.in_folder(folder, || rename(RenameFlags::RENAME_NOREPLACE)) {
            // EINVAL: the file system does not know the flag.
            Err(Errno::EEXIST | Errno::EINVAL) => {
                let replaced = fsync(&unfinished.file)
                    .and_then(|()| self.in_folder(folder, || rename(RenameFlags::empty())));
                replaced.map_err(|e| self.fail(key, e))?;
            }
            renamed => renamed.map_err(|e| self.fail(key, e))?,
        }
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn create(&self, key: &str, body: &[Bytes]) -> Result<()> {
        let unfinished = self.write(key, body)?;
        fsync(&unfinished.file).map_err(|e| self.fail(key, e))?;
        let (folder, name) = split(key);
        let link = || {
            let folder = self.open_folder(folder)?;
            linkat(&self.file, unfinished.path.as_str(), folder, name, AtFlags::empty())
        };
        match self.in_folder(folder, link) {
            Ok(()) => {}
            Err(Errno::EEXIST) => return Err(Error::Exists(object(&self.url, key))),
            Err(e) => return Err(self.fail(key, e)),
        }
        // Whoever takes this object for theirs although the fsync below did not return can still sync it.
        self.changes.fetch_add(1, Ordering::Release);
        self.fsync_folders(folder).map_err(|e| {
            // It would not be durable, so it must not be there.
            let _ = self.open_folder(folder).and_then(|f| unlinkat(f, name, UnlinkatFlags::NoRemoveDir));
            self.fail(key, e)
        })
    }

    /// Makes the folder's entries durable and its own way from the root.
    fn fsync_folders(&self, folder: &str) -> nix::Result<()> {
        let mut folder = folder;
        loop {
            match self.open_folder(folder) {
                Ok(open) => fsync(&open)?,
                // The object was deleted already, and its folder with it.
                Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
            }
            if folder.is_empty() {
                return Ok(());
            }
            folder = split(folder).0;
        }
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let mut folders = BTreeSet::new();
        for key in keys {
            let (folder, name) = split(key);
            let removed =
                self.open_folder(folder).and_then(|f| unlinkat(f, name, UnlinkatFlags::NoRemoveDir));
            match removed {
                Ok(()) => {
                    self.changes.fetch_add(1, Ordering::Release);
                    folders.insert(folder);
                }
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EISDIR) => {}
                Err(e) => return Err(self.fail(key, e)),
            }
        }
        for folder in folders {
            self.remove_empty(folder);
        }
        Ok(())
    }

    /// Removes `folder` and those above it as far as they are empty. One that cannot be removed stays.
    fn remove_empty(&self, mut folder: &str) {
        while !folder.is_empty() {
            let (parent, name) = split(folder);
            let removed = self.open_folder(parent).and_then(|f| unlinkat(f, name, UnlinkatFlags::RemoveDir));
            if removed.is_err() {
                return;
            }
            folder = parent;
        }
    }

    fn list(&self, top: &str) -> Result<Vec<ObjectInfo>> {
        let mut objects = Vec::new();
        let mut folders = vec![top.to_string()];
        while let Some(folder) = folders.pop() {
            match self.list_folder(&folder, &mut objects, &mut folders) {
                // Removed while the listing went on, or never there.
                Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(e) => return Err(self.fail(&folder, e)),
            }
        }
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    fn list_folder(
        &self,
        folder: &str,
        objects: &mut Vec<ObjectInfo>,
        folders: &mut Vec<String>,
    ) -> nix::Result<()> {
        let open = self.open_folder(folder)?;
        let mut entries = Dir::from_fd(self.open_folder(folder)?)?;
        for entry in entries.iter() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") || folder.is_empty() && name == TEMPORARY {
                continue;
            }
            let key = if folder.is_empty() { name.to_string() } else { format!("{folder}/{name}") };
            match fstatat(&open, entry.file_name(), AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) if kind(&stat) == SFlag::S_IFREG => objects.push(info(key, &stat)),
                Ok(stat) if kind(&stat) == SFlag::S_IFDIR => folders.push(key),
                Ok(_) | Err(Errno::ENOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl Bucket for LocalBucket {
    fn url(&self) -> &str {
        &self.root.url
    }

    async fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        key::check(&self.root.url, key)?;
        let key = key.to_string();
        self.run(move |root| {
            let (file, stat) = root.open_object(&key)?;
            root.read(&key, &file, range.start..range.end.min(stat.st_size as u64))
        })
        .await
    }

    async fn get_tail(&self, key: &str, len: u64) -> Result<(Bytes, u64)> {
        key::check(&self.root.url, key)?;
        let key = key.to_string();
        self.run(move |root| {
            let (file, stat) = root.open_object(&key)?;
            let size = stat.st_size as u64;
            Ok((root.read(&key, &file, size.saturating_sub(len)..size)?, size))
        })
        .await
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo> {
        key::check(&self.root.url, key)?;
        let key = key.to_string();
        self.run(move |root| {
            let (_, stat) = root.open_object(&key)?;
            Ok(info(key, &stat))
        })
        .await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        key::check(&self.root.url, key)?;
        let key = key.to_string();
        self.run(move |root| root.put(&key, &body)).await
    }

    async fn create(&self, key: &str, body: Vec<Bytes>) -> Result<()> {
        key::check(&self.root.url, key)?;
        let key = key.to_string();
        self.run(move |root| root.create(&key, &body)).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        for key in keys {
            key::check(&self.root.url, key)?;
        }
        let keys = keys.to_vec();
        self.run(move |root| root.delete(&keys)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let folder = key::folder(&self.root.url, prefix)?.to_string();
        self.run(move |root| root.list(&folder)).await
    }

    async fn sync(&self) -> Result<()> {
        let root = &self.root;
        let changes = root.changes.load(Ordering::Acquire);
        if root.synced.load(Ordering::Acquire) >= changes {
            return Ok(());
        }
        root.device.sync().await;
        let (failures, last) = root.device.failures();
        if failures > root.failures_before {
            return Err(Error::Io(format!(
                "{}: writes were lost: {last}; open the pool anew to go on",
                root.url
            )));
        }
        root.synced.fetch_max(changes, Ordering::AcqRel);
        Ok(())
    }

    async fn capacity(&self) -> Result<Option<Capacity>> {
        self.run(|root| {
            let stat = fstatvfs(root.file.as_fd()).map_err(|e| root.fail("", e))?;
            let unit = stat.fragment_size();
            Ok(Some(Capacity { total: stat.blocks() * unit, free: stat.blocks_available() * unit }))
        })
        .await
    }
}

#[cfg(test)]
mod tests;
