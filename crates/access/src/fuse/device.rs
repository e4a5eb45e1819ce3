//! The system's side of mounting: `mount(2)` for root, the setuid helper `fusermount3` for everybody else.

use super::mount::{MountError, MountOptions};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg, socketpair,
};
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Command, Stdio};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// What the mount table calls it.
const KIND: &str = "fuse.tarn";
const SUBTYPE: &str = "tarn";

/// Mounts at `path`, an existing directory, and gives the connection to the kernel.
pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if !Path::new(DEVICE).exists() {
        return Err(MountError::NoDevice);
    }
    if nix::unistd::geteuid().is_root() { mount_as_root(path, options) } else { mount_as_user(path, options) }
}

/// Whether more connections can be opened beside the one that mounting gave.
pub(super) fn can_clone() -> bool {
    OpenOptions::new().read(true).write(true).open(DEVICE).is_ok()
}

fn mount_as_root(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let refused = |what: String| MountError::Refused(path.into(), what);
    let device: OwnedFd = OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE)
        .map_err(|error| refused(format!("{DEVICE}: {error}")))?
        .into();
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        libc::S_IFDIR,
        nix::unistd::getuid(),
        nix::unistd::getgid(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let source = Some(options.source.as_str());
    nix::mount::mount(source, path, Some(KIND), flags(options), Some(data.as_str())).map_err(|errno| {
        match errno {
            Errno::EPERM => refused("not permitted; mounting needs CAP_SYS_ADMIN".into()),
            Errno::ENODEV => MountError::NoDevice,
            errno => refused(errno.desc().into()),
        }
    })?;
    Ok(device)
}

fn flags(options: &MountOptions) -> MsFlags {
    let mut flags = MsFlags::empty();
    flags.set(MsFlags::MS_RDONLY, options.read_only);
    flags.set(MsFlags::MS_NODEV, !options.dev);
    flags.set(MsFlags::MS_NOSUID, !options.suid);
    flags.set(MsFlags::MS_NOEXEC, !options.exec);
    flags
}

/// The helper's options. It adds `nosuid` and `nodev` for all but root.
fn helper_options(options: &MountOptions) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut list =
        vec![format!("fsname={source}"), format!("subtype={SUBTYPE}"), "default_permissions".into()];
    list.extend(options.allow_other.then(|| "allow_other".into()));
    list.extend(options.read_only.then(|| "ro".into()));
    list.extend((!options.exec).then(|| "noexec".into()));
    list.join(",")
}

/// The helper mounts and sends the connection through a socket, whose number is in `_FUSE_COMMFD`.
fn mount_as_user(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let refused = |what: String| MountError::Refused(path.into(), what);
    let system = |errno: Errno| refused(errno.desc().into());
    // Without SOCK_CLOEXEC: the helper must inherit its end.
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::empty()).map_err(system)?;
    let helper = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    drop(theirs);
    let device = receive(&ours);
    drop(ours);
    let output = helper.wait_with_output().map_err(|error| refused(error.to_string()))?;
    match device {
        Ok(Some(device)) if output.status.success() => Ok(device),
        _ => Err(helper_error(path, &output.stderr)),
    }
}

fn no_helper(error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::Session(error),
    }
}

/// What the helper complained of, in one line.
fn helper_error(path: &Path, stderr: &[u8]) -> MountError {
    let text = String::from_utf8_lossy(stderr);
    if text.contains("user_allow_other") {
        return MountError::AllowOther;
    }
    if text.contains(DEVICE) && text.contains(Errno::EACCES.desc()) {
        return MountError::ClosedDevice;
    }
    let line = text.lines().next().unwrap_or("the helper failed and does not say why");
    let line = line.strip_prefix(HELPER).map_or(line, |rest| rest.trim_start_matches([':', ' ']));
    MountError::Refused(path.into(), line.into())
}

/// `None` when the sender went away without sending.
fn receive(socket: &OwnedFd) -> nix::Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    let mut control = cmsg_space!(RawFd);
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut buffers, Some(&mut control), flags) {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    for item in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = item
            && let Some(&fd) = fds.first()
        {
            // SAFETY: the kernel has just made this descriptor for this process, and nobody else knows of it.
            return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(None)
}

/// How a mount is taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaving {
    /// [`MountError::Busy`] while something in it is open or somebody's working directory.
    Idle,
    /// It leaves the tree at once and ends when nobody uses it any more.
    Lazy,
    /// The same, and every request that waits or comes fails at once.
    Abort,
}

/// Unmounts.
pub(super) fn unmount(path: &Path, how: Leaving) -> Result<(), MountError> {
    let refused = |what: String| MountError::Refused(path.into(), what);
    if nix::unistd::geteuid().is_root() {
        if how == Leaving::Abort {
            // The kernel ends the connection even where it then refuses, as it does while the mount is in use.
            let _ = nix::mount::umount2(path, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW);
        }
        let flags = match how {
            Leaving::Idle => MntFlags::empty(),
            Leaving::Lazy | Leaving::Abort => MntFlags::MNT_DETACH,
        } | MntFlags::UMOUNT_NOFOLLOW;
        return nix::mount::umount2(path, flags)
            .or_else(|errno| match errno {
                // Aborting it was enough.
                Errno::EINVAL | Errno::ENOENT if how == Leaving::Abort => Ok(()),
                errno => Err(errno),
            })
            .map_err(|errno| match errno {
                Errno::EBUSY => MountError::Busy(path.into()),
                errno => refused(errno.desc().into()),
            });
    }
    let mode = if how == Leaving::Idle { "-u" } else { "-uz" };
    let output = Command::new(HELPER).arg(mode).arg("--").arg(path).output().map_err(no_helper)?;
    match output.status.success() {
        true => Ok(()),
        false if String::from_utf8_lossy(&output.stderr).contains("busy") => {
            Err(MountError::Busy(path.into()))
        }
        false => Err(helper_error(path, &output.stderr)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_told_everything_and_nothing_more() {
        let mut options = MountOptions::new("/mnt", "tank/a,b\\c");
        options.allow_other = true;
        options.read_only = true;
        options.exec = false;
        let plain = "fsname=tank/a\\,b\\\\c,subtype=tarn,default_permissions";
        assert_eq!(helper_options(&options), format!("{plain},allow_other,ro,noexec"));
        let flags = flags(&options);
        assert_eq!(flags, MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC);
    }

    #[test]
    fn the_helpers_complaints_become_one_line() {
        let path = Path::new("/mnt");
        let refused =
            b"fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n";
        assert!(matches!(helper_error(path, refused), MountError::AllowOther));
        let other = helper_error(path, b"fusermount3: user has no write access to mountpoint /mnt\nmore\n");
        let line = "cannot mount or unmount /mnt: user has no write access to mountpoint /mnt";
        assert_eq!(other.to_string(), line);
        assert!(helper_error(path, b"").to_string().contains("does not say why"));
    }
}
