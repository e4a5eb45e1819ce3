//! What the kernel has mounted, from `/proc/self/mountinfo`.

use anyhow::{Context, Result};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mounted file system of Tarn's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMount {
    pub dataset: String,
    pub dir: PathBuf,
}

/// Every mounted file system of Tarn's in this mount namespace, in the order they were mounted.
pub fn mounted() -> Result<Vec<KernelMount>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    Ok(parse(&text))
}

/// The topmost mount at exactly this directory.
pub fn at(dir: &Path) -> Result<Option<KernelMount>> {
    Ok(mounted()?.into_iter().rev().find(|m| m.dir == dir))
}

fn parse(text: &str) -> Vec<KernelMount> {
    text.lines().filter_map(line).collect()
}

/// `36 35 98:0 /root /dir options ... - type source options`
fn line(line: &str) -> Option<KernelMount> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    if system.next()? != "fuse.tarn" {
        return None;
    }
    let dataset = String::from_utf8(unescape(system.next()?)).ok()?;
    let dir = PathBuf::from(OsString::from_vec(unescape(mount.split(' ').nth(4)?)));
    Some(KernelMount { dataset, dir })
}

/// The kernel writes space, tab, newline and backslash as `\040` and the like.
fn unescape(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = bytes.get(i + 1..i + 4).and_then(|d| std::str::from_utf8(d).ok());
        match code.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) if bytes[i] == b'\\' => {
                out.push(byte);
                i += 4;
            }
            _ => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_picked_out() {
        let text = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
60 21 0:50 / /mnt/a\\040b rw,nosuid - fuse.tarn tank/home rw,user_id=0
61 21 0:51 / /x rw - fuse.other tank rw
garbage
62 21 0:52 / /y rw shared:7 master:3 - fuse.tarn tank rw
";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], KernelMount { dataset: "tank/home".into(), dir: "/mnt/a b".into() });
        assert_eq!(found[1].dir, Path::new("/y"));
    }
}
