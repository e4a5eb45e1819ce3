//! Mountpoints as the kernel sees them: dead ones that an ended process left, and plain unmounting.

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// For a process that is gone the kernel answers at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The process that served the mount at `dir` is gone. One that lives may have to wait for others itself, and is not waited
/// for.
pub fn is_dead(dir: &Path) -> bool {
    let (dir, (tell, told)) = (dir.to_owned(), mpsc::channel());
    // Attributes may still come from the kernel's cache; this always asks the process.
    std::thread::spawn(move || tell.send(nix::sys::statfs::statfs(&dir).map(drop)));
    matches!(told.recv_timeout(AT_ONCE), Ok(Err(Errno::ENOTCONN | Errno::ECONNABORTED)))
}

/// Takes a dead mount out of the tree.
pub fn detach(dir: &Path) -> Result<()> {
    kernel_unmount(dir, true)
}

/// Asks the kernel to unmount `dir`; `lazy` takes it out of the tree even while it is in use.
pub fn kernel_unmount(dir: &Path, lazy: bool) -> Result<()> {
    let flags = if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() } | MntFlags::UMOUNT_NOFOLLOW;
    match umount2(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::EPERM) => fusermount(dir, lazy),
        Err(Errno::EBUSY) => bail!("{} is in use: leave it, or use -f", dir.display()),
        Err(e) => Err(e).with_context(|| format!("cannot unmount {}", dir.display())),
    }
}

/// The set-uid helper of libfuse, for users other than root.
fn fusermount(dir: &Path, lazy: bool) -> Result<()> {
    let flag = if lazy { "-uz" } else { "-u" };
    let output = Command::new("fusermount3").arg(flag).arg("--").arg(dir).stdin(Stdio::null()).output();
    let output = output.context("cannot run fusermount3: install the package fuse3")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        if text.contains("busy") {
            bail!("{} is in use: leave it, or use -f", dir.display());
        }
        bail!("cannot unmount {}: {}", dir.display(), text.trim());
    }
    Ok(())
}

/// Makes the directory `dir` if nothing is there. What a killed process left there is left for the mount to take
/// over.
pub fn make_dir(dir: &Path) -> Result<()> {
    match std::fs::create_dir_all(dir) {
        // Something is there that cannot be looked at: the mount finds out what.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.with_context(|| format!("cannot make {}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_made_where_they_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        make_dir(&deep).unwrap();
        make_dir(&deep).unwrap();
        assert!(deep.is_dir() && !is_dead(&deep));
        std::fs::write(deep.join("file"), "x").unwrap();
        assert!(make_dir(&deep.join("file/below")).is_err());
    }

    #[test]
    fn what_is_not_mounted_cannot_be_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        assert!(kernel_unmount(dir.path(), false).unwrap_err().to_string().contains("cannot unmount"));
    }
}
