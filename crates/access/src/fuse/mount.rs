//! Mounting: what may be chosen, what the kernel is asked for, and the mount while it lasts.

use super::answer::Waits;
use super::around::Around;
use super::awake::{Awake, Wakefulness};
use super::counters::{Counters, FuseStats};
use super::device::{self, Leaving};
use super::door::Door;
use super::hybrid::Hybrid;
use super::jobs::{JobId, Tagger};
use super::late::Late;
use super::locks::LockBook;
use super::mounts::{mounted_at, resolve, take_over};
use fuser::{Config, InitFlags, KernelConfig, Session, SessionACL};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tarn_base::SystemClock;
use tarn_base::job::Jobs;
use tarn_base::profile::{Profile, Profiling};
use tarn_client::Client;
use thiserror::Error;
use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;

/// Why a mount was not made or not undone, in one line that says what to do.
#[derive(Debug, Error)]
pub enum MountError {
    #[error(
        "/dev/fuse is missing: load the kernel's module with 'modprobe fuse', or give the container the device"
    )]
    NoDevice,
    #[error(
        "this user may not open /dev/fuse: as root, let everybody with 'chmod 666 /dev/fuse', as udev does"
    )]
    ClosedDevice,
    #[error("fusermount3 is not installed: install the package 'fuse3', or mount as root")]
    NoHelper,
    #[error("allow_other is refused: add the line 'user_allow_other' to /etc/fuse.conf, or mount as root")]
    AllowOther,
    #[error("{}: {}", .0.display(), .1)]
    Mountpoint(PathBuf, io::Error),
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} is not empty: mount elsewhere, or use -o nonempty to cover what is in it", .0.display())]
    NotEmpty(PathBuf),
    #[error("{} is mounted already", .0.display())]
    Mounted(PathBuf),
    #[error("{} is in use: close what is open in it, or unmount lazily", .0.display())]
    Busy(PathBuf),
    #[error("cannot mount or unmount {}: {}", .0.display(), .1)]
    Refused(PathBuf, String),
    #[error("FUSE: {0}")]
    Session(#[from] io::Error),
}

/// How a file system is mounted. [`MountOptions::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct MountOptions {
    pub mountpoint: PathBuf,
    /// What the mount table shows as the source: `pool/dataset`.
    pub source: String,
    /// Users other than the one who mounts may use it; permissions are checked by the kernel either way.
    /// Default: if root mounts.
    pub allow_other: bool,
    pub read_only: bool,
    /// Cover a directory that is not empty.
    pub nonempty: bool,
    /// Device nodes work. Default: yes; never for users.
    pub dev: bool,
    /// Setuid and setgid programs work. Default: yes; never for users.
    pub suid: bool,
    /// Programs can be run. Default: yes.
    pub exec: bool,
    /// Threads that read requests. Default: one for each core, at least 2.
    pub threads: usize,
    /// How long a thread looks for the next request before it sleeps, where requests come fast; no longer than [`AWAKE_PATIENCE`]
    /// where processors are kept awake. Default: 50 us, or none on one core.
    pub patience: Duration,
    /// Whether processors are kept awake while requests come fast. Default: [`Awake::Auto`].
    pub awake: Awake,
    /// Largest request in bytes. Default: 1 MiB, the kernel's own limit unless it is raised.
    pub max_write: u32,
    /// Requests that the kernel sends without anybody waiting for them (readahead, asynchronous I/O) at a time.
    /// Default: 64.
    pub max_background: u16,
    /// How far the kernel reads ahead of a stream, in KiB. Only root can set it; others have the kernel's 128.
    /// Default: 1024.
    pub read_ahead_kb: u32,
    /// Files of at least so many bytes go around the kernel's page cache when they are opened for reading for the first
    /// time, unless readers of such files turn out to ask for little at a time. Default: 256 MiB.
    pub hybrid_io: u64,
    /// How long the kernel may keep attributes. Default: [`KEPT`]. Of files changed lately it keeps them less long.
    pub attr_ttl: Duration,
    /// How long the kernel may keep names, and their absence. Default: [`KEPT`].
    pub entry_ttl: Duration,
    /// How requests are told apart by job, and where jobs are counted.
    pub job_id: JobId,
    pub jobs: Arc<Jobs>,
}

/// How long the kernel may keep names and attributes. All that changes them goes through it, so it need not ask again; but a
/// host that lost its dataset to another one is not to be asked in vain for ever.
pub const KEPT: Duration = Duration::from_secs(600);

/// How long it is worth to look for a request, where it takes little to be woken by one: longer takes the processor from
/// those who are about to make it.
pub const AWAKE_PATIENCE: Duration = Duration::from_micros(20);

impl MountOptions {
    pub fn new(mountpoint: impl Into<PathBuf>, source: impl Into<String>) -> MountOptions {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
        MountOptions {
            mountpoint: mountpoint.into(),
            source: source.into(),
            allow_other: nix::unistd::geteuid().is_root(),
            read_only: false,
            nonempty: false,
            dev: true,
            suid: true,
            exec: true,
            threads: cores.max(2),
            patience: if cores > 1 { Duration::from_micros(50) } else { Duration::ZERO },
            awake: Awake::Auto,
            max_write: 1 << 20,
            max_background: 64,
            read_ahead_kb: 1024,
            hybrid_io: 256 << 20,
            attr_ttl: KEPT,
            entry_ttl: KEPT,
            job_id: JobId::default(),
            jobs: Arc::default(),
        }
    }
}

/// Bounds that the kernel is asked for when the session begins.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// See [`MountOptions`].
    pub max_write: u32,
    pub max_background: u16,
}

/// Asks the kernel for what Tarn wants, as far as this kernel has it.
///
/// Not asked for, on purpose: `WRITEBACK_CACHE`, which would own size and times; `AUTO_INVAL_DATA`, which drops
/// cached pages whenever the time of modification moves, so after each of our own writes; `ATOMIC_O_TRUNC`, by which an
/// open empties a file before the kernel has refused it (a program that is being executed); `OVER_IO_URING`, by which a
/// process that waits for a lock can hold up the one that is to release it (docs/ARCHITECTURE.md); `ABORT_ERROR`, which
/// makes an ordinary end look like a failure.
pub fn negotiate(wanted: Wanted, config: &mut KernelConfig) {
    let flags = [
        InitFlags::FUSE_ASYNC_READ,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_BIG_WRITES,
        InitFlags::FUSE_MAX_PAGES,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_POSIX_LOCKS,
        InitFlags::FUSE_FLOCK_LOCKS,
        InitFlags::FUSE_POSIX_ACL,
        InitFlags::FUSE_DONT_MASK,
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        InitFlags::FUSE_EXPORT_SUPPORT,
        InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    ];
    for flag in flags {
        if config.add_capabilities(flag).is_err() {
            tracing::info!(?flag, "the kernel lacks a FUSE feature");
        }
    }
    // Values out of the kernel's range are brought into it.
    if let Err(nearest) = config.set_max_write(wanted.max_write) {
        let _ = config.set_max_write(nearest);
    }
    if let Err(nearest) = config.set_max_background(wanted.max_background) {
        let _ = config.set_max_background(nearest);
    }
}

/// A file system while it is mounted. Dropping it unmounts lazily.
pub struct Mounted {
    mountpoint: PathBuf,
    ended: watch::Receiver<bool>,
    /// Out of the tree already: whatever is at the mountpoint now is somebody else's.
    detached: AtomicBool,
    runtime: Runtime,
    counters: Arc<Counters>,
}

/// Mounts what `client` serves. The mountpoint must be an empty directory; one whose daemon died is taken over.
/// Requests that must wait run on `runtime`.
pub fn mount(client: Arc<Client>, options: MountOptions, runtime: Runtime) -> Result<Mounted, MountError> {
    take_over(&options.mountpoint)?;
    let mountpoint = check_mountpoint(&options)?;
    let counters = Arc::new(Counters::default());
    let late = Late::new(runtime.clone());
    let awake = Wakefulness::new(options.awake).map(Arc::new);
    let door = Door {
        client,
        waits: Waits { runtime: runtime.clone(), interrupts: Arc::default(), counters: counters.clone() },
        wanted: Wanted { max_write: options.max_write, max_background: options.max_background },
        around: Arc::new(Around::new(Hybrid::new(options.hybrid_io))),
        attr_ttl: options.attr_ttl,
        entry_ttl: options.entry_ttl,
        clock: SystemClock::default(),
        locks: LockBook::default(),
        late: late.clone(),
        awake: awake.clone(),
        opens_directories: true,
        tagger: Tagger::new(options.job_id.clone(), options.jobs.clone(), runtime.clone()),
    };
    let device = device::mount(&mountpoint, &options)?;
    let (end, ended) = watch::channel(false);
    let keeps_awake = awake.is_some();
    if let Some(awake) = awake {
        let mut ended = ended.clone();
        runtime.spawn(async move {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => {}
                () = awake.run() => {}
            }
        });
    }
    let mounted = Mounted { mountpoint, ended, detached: AtomicBool::new(false), runtime, counters };
    let mut config = Config::default();
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = device::can_clone();
    config.patience = if keeps_awake { options.patience.min(AWAKE_PATIENCE) } else { options.patience };
    // The kernel decides who may come in, by allow_other; it asks in the name of others only for what they have
    // open already.
    let session = Session::from_fd(door, device, SessionACL::All, config)?;
    late.begin(session.notifier());
    std::thread::Builder::new().name("fuse-session".into()).spawn(move || {
        if let Err(error) = session.run() {
            tracing::error!(%error, "the FUSE session failed");
        }
        // Nobody may be listening any more.
        let _ = end.send(true);
    })?;
    set_read_ahead(&mounted.mountpoint, options.read_ahead_kb);
    Ok(mounted)
}

/// The mountpoint's absolute path, if something can be mounted there.
fn check_mountpoint(options: &MountOptions) -> Result<PathBuf, MountError> {
    let given = &options.mountpoint;
    let error = |error| MountError::Mountpoint(given.clone(), error);
    let path = resolve(given).map_err(error)?;
    if !fs::metadata(&path).map_err(error)?.is_dir() {
        return Err(MountError::NotADirectory(given.clone()));
    }
    if mounted_at(&path).is_some_and(|entry| entry.kind.starts_with("fuse")) {
        return Err(MountError::Mounted(given.clone()));
    }
    if !options.nonempty && fs::read_dir(&path).map_err(error)?.next().is_some() {
        return Err(MountError::NotEmpty(given.clone()));
    }
    Ok(path)
}

/// The kernel limits a FUSE mount's readahead to 128 KiB when it is made; afterwards root may raise it.
fn set_read_ahead(mountpoint: &Path, kib: u32) {
    let Some(entry) = mounted_at(mountpoint) else { return };
    let file = format!("/sys/class/bdi/{}/read_ahead_kb", entry.device);
    if let Err(error) = fs::write(&file, kib.to_string()) {
        tracing::info!(file, %error, "readahead stays at the kernel's default");
    }
}

impl Mounted {
    /// Where, as an absolute path without links.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// What the kernel asked so far.
    pub fn stats(&self) -> FuseStats {
        self.counters.snapshot()
    }

    /// Enters what the kernel asks from now on into `profile`, until what this gives is dropped.
    pub fn profile(&self, profile: &Arc<Profile>) -> Profiling {
        self.counters.profiler.profile(profile)
    }

    /// Whether the mount is still in use; false once it has been unmounted, by whomever, and left by the last
    /// who used it.
    pub fn is_mounted(&self) -> bool {
        !*self.ended.borrow()
    }

    /// Waits until it is unmounted, by whomever, and no request comes any more. What was written may still be in
    /// the client's memory.
    pub async fn ended(&self) {
        // An error means that the session's thread is gone without a word, which is an end too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// As [`Mounted::ended`], on a thread outside the runtime.
    pub fn wait(&self) {
        self.runtime.block_on(self.ended());
    }

    /// Unmounts. [`MountError::Busy`] while something in it is in use.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.detach(Leaving::Idle)
    }

    /// Takes the mount out of the tree at once; what is open stays usable, and [`Mounted::ended`] comes when it
    /// is closed.
    pub fn unmount_lazily(&self) -> Result<(), MountError> {
        self.detach(Leaving::Lazy)
    }

    /// Takes the mount out of the tree at once and fails whatever is asked of it, now or later: for a mount whose
    /// requests would wait for ever. Only root can do so; for others it is as [`Mounted::unmount_lazily`].
    pub fn abort(&self) -> Result<(), MountError> {
        self.detach(Leaving::Abort)
    }

    fn detach(&self, how: Leaving) -> Result<(), MountError> {
        if self.is_mounted() && !self.detached.load(Ordering::Acquire) {
            device::unmount(&self.mountpoint, how)?;
            self.detached.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount_lazily() {
            tracing::warn!(mountpoint = %self.mountpoint.display(), %error, "cannot unmount");
        }
    }
}
