//! Threads that wait for requests in turns: none is lost, and none that takes long holds the others up.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo, InitFlags, KernelConfig, ReplyAttr,
    ReplyEntry, Request, Session,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

const SLOW: Duration = Duration::from_secs(1);

/// A directory of names that nobody has; of some of them it takes long to say so.
struct Nobody;

impl Filesystem for Nobody {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Otherwise the kernel asks one thing of a directory at a time.
        config
            .add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS)
            .map_err(|_| io::ErrorKind::Unsupported.into())
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attr = FileAttr {
            ino,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&Duration::from_secs(60), &attr);
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name.to_string_lossy().starts_with("slow") {
            std::thread::sleep(SLOW);
        }
        reply.error(Errno::ENOENT);
    }
}

fn look(dir: &Path, name: &str) {
    let error = std::fs::metadata(dir.join(name)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{name}");
}

#[test]
fn requests_are_answered_however_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let mut config = Config::default();
    config.n_threads = Some(3);
    config.clone_fd = true;
    config.patience = Duration::from_micros(50);
    let session = Session::new(Nobody, dir, &config).unwrap().spawn().unwrap();

    // One after another, many at once, and after a rest that is longer than helpers look after the watcher.
    (0..1000).for_each(|n| look(dir, &format!("one{n}")));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || (0..500).for_each(|n| look(dir, &format!("many{thread}-{n}"))));
        }
    });
    std::thread::sleep(Duration::from_millis(1500));
    look(dir, "rested");

    // Two that take long, whichever threads have them: the third goes on.
    for rest in [0, 1500] {
        std::thread::sleep(Duration::from_millis(rest));
        std::thread::scope(|scope| {
            for slow in ["slow1", "slow2"] {
                scope.spawn(move || look(dir, slow));
                std::thread::sleep(Duration::from_millis(50));
            }
            let begun = Instant::now();
            (0..100).for_each(|n| look(dir, &format!("beside{n}")));
            assert!(begun.elapsed() < SLOW / 2, "{:?}", begun.elapsed());
        });
    }

    // All threads end with the session.
    session.umount_and_join().unwrap();
}
