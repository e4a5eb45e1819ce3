//! Mountpoints as the kernel sees them: dead ones that an ended process left, and plain unmounting.

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use std::path::Path;
use std::process::{Command, Stdio};

/// The process that served the mount at `dir` is gone. May wait for a process that lives.
pub fn is_dead(dir: &Path) -> bool {
    matches!(nix::sys::stat::stat(dir), Err(Errno::ENOTCONN | Errno::ECONNABORTED))
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

/// Makes sure that something can be mounted at `dir`: a directory, empty unless `overlay`. A mount that an ended
/// process left there is taken down first.
pub fn prepare(dir: &Path, overlay: bool) -> Result<()> {
    if is_dead(dir) {
        tracing::info!("taking down what an ended process left at {}", dir.display());
        detach(dir)?;
    }
    let meta = std::fs::metadata(dir).with_context(|| format!("cannot mount at {}", dir.display()))?;
    if !meta.is_dir() {
        bail!("cannot mount at {}: it is not a directory", dir.display());
    }
    let mut entries = std::fs::read_dir(dir).with_context(|| format!("cannot mount at {}", dir.display()))?;
    if !overlay && entries.next().is_some() {
        bail!("cannot mount at {}: the directory is not empty; empty it, or use -o nonempty", dir.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_is_mounted_over() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path(), false).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(prepare(dir.path(), false).unwrap_err().to_string().contains("not empty"));
        prepare(dir.path(), true).unwrap();
        assert!(prepare(&file, true).unwrap_err().to_string().contains("not a directory"));
        assert!(prepare(&dir.path().join("none"), true).is_err());
    }
}
