//! What is mounted where, and mountpoints whose daemon is gone.

use super::device;
use super::mount::MountError;
use nix::errno::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq)]
pub(super) struct MountEntry {
    /// Device number, `major:minor`.
    pub device: String,
    pub mountpoint: PathBuf,
    /// `fuse.tarn`, `ext4`, ...
    pub kind: String,
}

/// The topmost mount exactly at `mountpoint`, an absolute path without links.
pub(super) fn mounted_at(mountpoint: &Path) -> Option<MountEntry> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    table.split(|b| *b == b'\n').filter_map(parse).rfind(|entry| entry.mountpoint == mountpoint)
}

/// See `proc_pid_mountinfo(5)`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let device = fields.nth(2)?;
    let mountpoint = fields.nth(1)?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mountpoint = PathBuf::from(OsString::from_vec(unescape(mountpoint)));
    Some(MountEntry { device: text(device), mountpoint, kind: text(kind) })
}

/// The kernel writes blanks, newlines and backslashes in paths as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.first_chunk::<3>().filter(|_| byte == b'\\');
        match code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

/// The absolute path without links. The last component is not looked into: it may be a mount whose daemon is
/// gone.
pub(super) fn resolve(mountpoint: &Path) -> std::io::Result<PathBuf> {
    match (mountpoint.parent(), mountpoint.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            let path = parent.canonicalize()?.join(name);
            // A link is followed, to whatever it names, but only if that answers.
            Ok(path.canonicalize().unwrap_or(path))
        }
        _ => mountpoint.canonicalize(),
    }
}

/// Frees a mountpoint whose FUSE daemon is gone, so that it can be mounted again: every access to it says
/// "Transport endpoint is not connected". Says whether there was one. A mount that answers is left alone.
pub fn take_over(mountpoint: &Path) -> Result<bool, MountError> {
    // Attributes may still come from the kernel's cache; this always asks the daemon.
    let dead = |error| matches!(error, Errno::ENOTCONN | Errno::ECONNABORTED);
    if !nix::sys::statfs::statfs(mountpoint).is_err_and(dead) {
        return Ok(false);
    }
    let path = resolve(mountpoint).map_err(|error| MountError::Mountpoint(mountpoint.into(), error))?;
    match mounted_at(&path) {
        Some(entry) if entry.kind.starts_with("fuse") => {
            device::unmount(&path, device::Leaving::Lazy)?;
            tracing::info!(mountpoint = %path.display(), "took over a mountpoint whose daemon was gone");
            Ok(true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mount_table_is_read() {
        let line =
            b"36 35 0:51 / /mnt/a\\040b\\134\xff rw,nosuid shared:1 master:2 - fuse.tarn tank/x rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!((entry.device.as_str(), entry.kind.as_str()), ("0:51", "fuse.tarn"));
        assert_eq!(entry.mountpoint.into_os_string().into_vec(), b"/mnt/a b\\\xff");
        assert_eq!(parse(b"36 35 0:51 / /mnt"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn the_root_is_mounted_and_a_fresh_folder_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = resolve(dir.path()).unwrap();
        assert!(mounted_at(Path::new("/")).is_some());
        assert!(mounted_at(&path).is_none());
        assert!(!take_over(&path).unwrap());
        assert!(!take_over(&path.join("missing")).unwrap());
    }
}
