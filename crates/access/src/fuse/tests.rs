use super::answer::{Caller, Refuse, Signals, Waits, or_else, then};
use super::convert::*;
use super::errno::errno;
use super::listing::{Entry, Listing};
use fuser::{Errno, FileType, OpenFlags, RenameFlags, TimeOrNow, WriteFlags};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tarn_base::posix::{Attr, DirEntry, FileKind, RenameMode, SetTime, StatFs, XattrMode};
use tarn_base::{Answer, FsError, Ino, Timespec};
use tarn_client::{FallocMode, LockMode, LockRange, Seek, Target};

fn attr(kind: FileKind) -> Attr {
    let time = Timespec { sec: 1_000_000, nsec: 5 };
    Attr {
        ino: Ino(9),
        kind,
        mode: 0o4755,
        nlink: 2,
        uid: 1000,
        gid: 100,
        rdev: 0x0801,
        size: 4097,
        allocated: 513,
        atime: Timespec { sec: -2, nsec: 500_000_000 },
        mtime: time,
        ctime: time,
        crtime: time,
        record_size: 16 << 20,
        data_version: 1,
    }
}

#[test]
fn errors_have_the_numbers_that_programs_look_for() {
    let pairs = [
        (FsError::NotFound, libc::ENOENT),
        (FsError::Exists, libc::EEXIST),
        (FsError::NotDirectory, libc::ENOTDIR),
        (FsError::IsDirectory, libc::EISDIR),
        (FsError::NotEmpty, libc::ENOTEMPTY),
        (FsError::NotPermitted, libc::EPERM),
        (FsError::AccessDenied, libc::EACCES),
        (FsError::invalid("x"), libc::EINVAL),
        (FsError::NameTooLong, libc::ENAMETOOLONG),
        (FsError::TooManyLinks, libc::EMLINK),
        (FsError::FileTooLarge, libc::EFBIG),
        (FsError::NoSpace, libc::ENOSPC),
        (FsError::QuotaExceeded, libc::EDQUOT),
        (FsError::ReadOnly, libc::EROFS),
        (FsError::NoAttribute, libc::ENODATA),
        (FsError::Range, libc::ERANGE),
        (FsError::TooBig, libc::E2BIG),
        (FsError::CrossDevice, libc::EXDEV),
        (FsError::Loop, libc::ELOOP),
        (FsError::NoData, libc::ENXIO),
        (FsError::WouldBlock, libc::EAGAIN),
        (FsError::Deadlock, libc::EDEADLK),
        (FsError::Interrupted, libc::EINTR),
        (FsError::Stale, libc::ESTALE),
        (FsError::NotSupported, libc::EOPNOTSUPP),
        (FsError::TooManyOpen, libc::ENFILE),
        (FsError::Fenced, libc::EIO),
        (FsError::Io("x".into()), libc::EIO),
    ];
    for (error, number) in pairs {
        assert_eq!(errno(&error).code(), number, "{error}");
        assert_ne!(errno(&error), Errno::ENOSYS);
    }
}

#[test]
fn attributes_go_to_the_kernel_unchanged() {
    let out = file_attr(&attr(FileKind::Regular));
    assert_eq!((out.ino.0, out.size, out.blocks, out.perm), (9, 4097, 2, 0o4755));
    assert_eq!((out.nlink, out.uid, out.gid, out.rdev), (2, 1000, 100, 0x0801));
    assert_eq!(Timespec::from_system(out.atime), Timespec { sec: -2, nsec: 500_000_000 });
    assert_eq!(out.kind, FileType::RegularFile);
    assert_eq!(out.blksize, 1 << 20);
}

#[test]
fn files_changed_lately_are_asked_for_again_soon() {
    let ttl = Duration::from_secs(60);
    let now = |sec: i64| Timespec { sec: 1_000_000 + sec, nsec: 0 };
    let attr = |kind| Attr { mode: 0o755, ..attr(kind) };
    assert_eq!(attr_ttl(&attr(FileKind::Regular), now(3), ttl), YOUNG_TTL);
    assert_eq!(attr_ttl(&attr(FileKind::Regular), now(300), ttl), ttl);
    assert_eq!(attr_ttl(&attr(FileKind::Regular), now(40), ttl), Duration::from_secs(40));
    assert_eq!(attr_ttl(&attr(FileKind::Directory), now(3), ttl), ttl);
    let emptied = Attr { size: 0, ..attr(FileKind::Regular) };
    assert_eq!(attr_ttl(&emptied, now(3), ttl), YOUNG_TTL);
    assert_eq!(attr_ttl(&Attr { allocated: 0, ..emptied }, now(3), ttl), ttl);
    assert_eq!(attr_ttl(&attr(FileKind::Regular), now(3), Duration::ZERO), Duration::ZERO);
}

#[test]
fn whose_rights_a_file_gives_is_asked_for_each_time() {
    let now = Timespec { sec: 2_000_000, nsec: 0 };
    let ttl = |mode, kind| attr_ttl(&Attr { mode, ..attr(kind) }, now, Duration::from_secs(60)).as_secs();
    assert_eq!([0o755, 0o4755, 0o2755].map(|mode| ttl(mode, FileKind::Regular)), [60, 0, 0]);
    assert_eq!(ttl(0o2755, FileKind::Directory), 60);
}

#[test]
fn kinds_survive_the_kernels_encoding() {
    use FileKind::*;
    for (bits, kind) in [
        (0, Regular),
        (libc::S_IFREG, Regular),
        (libc::S_IFDIR, Directory),
        (libc::S_IFLNK, Symlink),
        (libc::S_IFIFO, Fifo),
        (libc::S_IFSOCK, Socket),
        (libc::S_IFCHR, CharDevice),
        (libc::S_IFBLK, BlockDevice),
    ] {
        assert_eq!(file_kind(bits | 0o644), Ok(kind));
    }
    assert!(file_kind(libc::S_IFMT).is_err());
}

#[test]
fn open_flags_become_a_mode() {
    let mode = open_mode(OpenFlags(libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC));
    assert!(!mode.read && mode.write && mode.truncate && !mode.direct);
    let mode = open_mode(OpenFlags(libc::O_RDONLY | libc::O_DIRECT));
    assert!(mode.read && !mode.write && !mode.truncate && mode.direct);
    let mode = open_mode(OpenFlags(libc::O_RDWR));
    assert!(mode.read && mode.write);
}

#[test]
fn a_write_appends_by_its_descriptor_and_a_page_does_not() {
    let appends = OpenFlags(libc::O_RDWR | libc::O_APPEND);
    assert!(matches!(target(7, WriteFlags::empty(), appends), Target::End));
    assert!(matches!(target(7, WriteFlags::empty(), OpenFlags(libc::O_RDWR)), Target::At(7)));
    assert!(matches!(target(7, WriteFlags::FUSE_WRITE_CACHE, appends), Target::Page(7)));
}

#[test]
fn only_known_flags_pass() {
    assert_eq!(rename_mode(RenameFlags::empty()), Ok(RenameMode::Replace));
    assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE), Ok(RenameMode::NoReplace));
    assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE), Ok(RenameMode::Exchange));
    assert!(matches!(rename_mode(RenameFlags::RENAME_WHITEOUT), Err(FsError::Invalid(_))));
    assert!(rename_mode(RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE).is_err());

    assert_eq!(falloc_mode(0), Ok(FallocMode::Allocate));
    assert_eq!(falloc_mode(1), Ok(FallocMode::AllocateKeepSize));
    assert_eq!(falloc_mode(3), Ok(FallocMode::PunchHole));
    assert_eq!(falloc_mode(0x10), Ok(FallocMode::ZeroRange));
    assert_eq!(falloc_mode(0x11), Ok(FallocMode::ZeroRangeKeepSize));
    for unknown in [2, libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
        assert_eq!(falloc_mode(unknown), Err(FsError::NotSupported));
    }

    assert_eq!(seek(libc::SEEK_DATA), Ok(Seek::Data));
    assert_eq!(seek(libc::SEEK_HOLE), Ok(Seek::Hole));
    assert!(seek(libc::SEEK_END).is_err());

    assert_eq!(xattr_mode(0), Ok(Some(XattrMode::Any)));
    assert_eq!(xattr_mode(libc::XATTR_CREATE), Ok(Some(XattrMode::Create)));
    assert_eq!(xattr_mode(libc::XATTR_REPLACE), Ok(Some(XattrMode::Replace)));
    assert_eq!(xattr_mode(libc::XATTR_CREATE | libc::XATTR_REPLACE), Ok(None));
    assert!(xattr_nameless(b"user.") && !xattr_nameless(b"user.x") && !xattr_nameless(b"user"));
}

#[test]
fn attributes_of_unknown_spaces_do_not_exist() {
    for name in ["user.a", "trusted.b", "security.capability", "system.posix_acl_default"] {
        assert!(xattr_supported(name.as_bytes()), "{name}");
    }
    for name in ["system.nfs4_acl", "users.a", "a", ""] {
        assert!(!xattr_supported(name.as_bytes()), "{name}");
    }
}

#[test]
fn locks_reach_to_the_end_of_every_file() {
    assert_eq!(lock_range(5, i64::MAX as u64), LockRange { start: 5, end: u64::MAX });
    assert_eq!(lock_range(5, 9), LockRange { start: 5, end: 9 });
    assert_eq!(lock_mode(libc::F_UNLCK), Ok(None));
    for mode in [LockMode::Shared, LockMode::Exclusive] {
        assert_eq!(lock_mode(lock_type(mode)), Ok(Some(mode)));
    }
    assert!(lock_mode(77).is_err());
}

#[test]
fn times_keep_their_nanoseconds() {
    let before = Timespec { sec: -1, nsec: 1 };
    assert_eq!(set_time(TimeOrNow::SpecificTime(before.to_system())), SetTime::To(before));
    assert_eq!(set_time(TimeOrNow::Now), SetTime::Now);
}

#[test]
fn statfs_counts_in_blocks() {
    let stat = StatFs { total: 1 << 20, free: 1 << 19, inodes: 10 };
    assert_eq!(stat_fs(&stat), (256, 128, 10 + 1024, 1024));
    assert_eq!(stat_fs(&StatFs::default()), (0, 0, 0, 0));
}

#[test]
fn a_listing_starts_with_the_dots_and_goes_on_where_it_was_left() {
    let entry = |name: &str, cookie| DirEntry { name: name.into(), cookie, attr: attr(FileKind::Regular) };
    let seen = |after, room| {
        let entries = if after < 20 { vec![entry("a", 10), entry("b", 20)] } else { vec![] };
        let listing = Listing { dir: Ino(5), parent: Ino(1), after, entries };
        let mut seen = Vec::new();
        listing.fill(|next| {
            if seen.len() == room {
                return true;
            }
            seen.push(match next {
                Entry::Dot(ino, cookie, name) => (ino.0, cookie, name.to_string()),
                Entry::Real(e) => (e.attr.ino.0, e.cookie, String::from_utf8(e.name.clone()).unwrap()),
            });
            false
        });
        seen
    };
    let all = [(5, 1, ".".into()), (1, 2, "..".into()), (9, 10, "a".into()), (9, 20, "b".into())];
    assert_eq!(seen(0, 9), all);
    assert_eq!(seen(0, 1), all[..1]);
    assert_eq!(seen(1, 9), all[1..]);
    assert_eq!(seen(2, 9), all[2..]);
    assert_eq!(seen(20, 9), []);
}

/// Says what became of a request.
struct Report(mpsc::Sender<Result<u32, i32>>);

impl Refuse for Report {
    fn refuse(self, errno: Errno) {
        self.0.send(Err(errno.code())).unwrap();
    }
}

fn waits() -> Waits {
    Waits { runtime: tokio::runtime::Handle::current(), interrupts: Arc::default(), counters: Arc::default() }
}

/// This very thread, which is alive.
fn caller(unique: u64) -> Caller {
    Caller { unique, thread: nix::unistd::gettid().as_raw() as u32 }
}

const TIME: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ready_is_answered_on_the_spot() {
    let (sender, replies) = mpsc::channel();
    let send = |report: Report, value| report.0.send(Ok(value)).unwrap();
    waits().answer(caller(1), Signals::Killable, Answer::ok(5), Report(sender.clone()), send);
    assert_eq!(replies.try_recv(), Ok(Ok(5)));
    waits().answer(caller(1), Signals::Ignore, Answer::err(FsError::NoSpace), Report(sender), send);
    assert_eq!(replies.try_recv(), Ok(Err(libc::ENOSPC)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_wait_for_a_lock_and_drops_it() {
    let (sender, replies) = mpsc::channel();
    let (held, mut gone) = tokio::sync::oneshot::channel::<()>();
    let waits = waits();
    let lock = Answer::<()>::pending(async move {
        let _held = held;
        std::future::pending().await
    });
    waits.answer(caller(7), Signals::GiveUp, lock, Report(sender), |_, ()| {});
    assert!(replies.recv_timeout(Duration::from_millis(50)).is_err());
    waits.interrupts.interrupt(7);
    assert_eq!(replies.recv_timeout(TIME), Ok(Err(libc::EINTR)));
    assert_eq!(gone.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_outlives_a_harmless_signal_and_lets_the_dead_go() {
    let (sender, replies) = mpsc::channel();
    let waits = waits();
    let slow = || {
        Answer::pending(async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(5)
        })
    };
    let send = |report: Report, value| report.0.send(Ok(value)).unwrap();
    waits.answer(caller(1), Signals::Killable, slow(), Report(sender.clone()), send);
    waits.interrupts.interrupt(1);
    assert_eq!(replies.recv_timeout(TIME), Ok(Ok(5)));
    // No thread has this number.
    let dead = Caller { unique: 2, thread: u32::MAX };
    waits.answer(dead, Signals::Killable, slow(), Report(sender.clone()), send);
    waits.interrupts.interrupt(2);
    assert_eq!(replies.recv_timeout(TIME), Ok(Ok(5)), "what ends soon is told, for the kernel's sake");
    let dead = Caller { unique: 3, thread: u32::MAX };
    let endless = Answer::pending(std::future::pending());
    waits.answer(dead, Signals::Killable, endless, Report(sender), send);
    waits.interrupts.interrupt(3);
    assert_eq!(replies.recv_timeout(TIME), Ok(Err(libc::EINTR)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_dead_wrote_does_not_come_after_they_were_let_go() {
    let (sender, replies) = mpsc::channel();
    let (held, mut gone) = tokio::sync::oneshot::channel::<()>();
    let waits = waits();
    let write = Answer::<()>::pending(async move {
        let _held = held;
        std::future::pending().await
    });
    let dead = Caller { unique: 4, thread: u32::MAX };
    waits.answer(dead, Signals::LetGo, write, Report(sender), |_, ()| {});
    waits.interrupts.interrupt(4);
    assert_eq!(replies.recv_timeout(TIME), Ok(Err(libc::EINTR)));
    assert_eq!(gone.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Closed));
}

#[tokio::test]
async fn steps_follow_each_other_at_once_where_they_can() {
    let ready = then(Answer::ok(1), |n| Answer::ok(n + 1));
    assert!(matches!(ready, Answer::Ready(Ok(2))));
    let failed = then(Answer::<u32>::err(FsError::Stale), |n| Answer::ok(n + 1));
    assert!(matches!(failed, Answer::Ready(Err(FsError::Stale))));
    assert_eq!(then(Answer::pending(async { Ok(1) }), |n| Answer::ok(n + 1)).wait().await, Ok(2));
    let mended = or_else(Answer::err(FsError::NotFound), |_| Answer::ok(7));
    assert!(matches!(mended, Answer::Ready(Ok(7))));
    let pending = Answer::pending(async { Err(FsError::NotFound) });
    assert_eq!(or_else(pending, |_| Answer::ok(7)).wait().await, Ok(7));
}
