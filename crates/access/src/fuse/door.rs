//! Every request of the kernel, with the client's operation that answers it.

use super::answer::{Refuse, Signals, Waits, or_else, then};
use super::around::Around;
use super::awake::Wakefulness;
use super::convert::*;
use super::errno::errno;
use super::jobs::Tagger;
use super::late::{Late, Touch, Touched};
use super::listing::{Entry, list, list_names};
use super::locks::{Asked, LockBook};
use super::mount::Wanted;
use super::reply::{GENERATION, Ttl, open_flags, send_read, send_sized};
use fuser::*;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tarn_base::job::{self, Errand};
use tarn_base::posix::{Attr, FileKind, NewNode, SetAttr, SetCtime, mode};
use tarn_base::{Answer, Clock, FsError, Ino, SystemClock};
use tarn_client::{Client, Handle, OpenMode};

/// Most bytes that one copy can report in its reply, in whole pages.
const COPY_MAX: u64 = 0xffff_f000;

pub(super) struct Door {
    pub client: Arc<Client>,
    pub waits: Waits,
    pub wanted: Wanted,
    pub around: Arc<Around>,
    /// See [`super::MountOptions`].
    pub attr_ttl: Duration,
    pub entry_ttl: Duration,
    pub clock: SystemClock,
    pub locks: LockBook,
    pub late: Late,
    /// What keeps processors awake, where it can.
    pub awake: Option<Arc<Wakefulness>>,
    /// Whether the kernel cannot do without opening directories.
    pub opens_directories: bool,
    /// Tells jobs apart, if anybody wants that.
    pub tagger: Option<Tagger>,
}

impl Door {
    fn ttl(&self) -> Ttl {
        Ttl { attr: self.attr_ttl, entry: self.entry_ttl, now: self.clock.now() }
    }

    /// Replies to what gives an inode a name.
    fn named(&self, request: &Request, touches: &[Touch], answer: Answer<Attr>, reply: ReplyEntry) {
        let ttl = self.ttl();
        self.changed(request, touches, answer, reply, move |reply, attr| ttl.reply_entry(reply, attr), drop);
    }

    /// Replies to what has made a file and opened it.
    fn made(
        &self,
        request: &Request,
        touches: &[Touch],
        open: OpenMode,
        answer: Answer<(Attr, Handle)>,
        reply: ReplyCreate,
    ) {
        let (ttl, client, around) = (self.ttl(), self.client.clone(), self.around.clone());
        let send = move |reply, (attr, handle): (Attr, Handle)| {
            let direct = around.opened(attr.ino, handle, open, true, attr.size);
            ttl.reply_create(reply, (attr, handle), direct)
        };
        let undo = move |(_, handle): (Attr, Handle)| client.close(handle);
        self.changed(request, touches, answer, reply, send, undo);
    }

    /// Changes a file's content in a way in which the kernel does not say whether setuid and setgid must go: they go unless it
    /// is root's.
    fn without_privileges<T: Send + 'static>(
        &self,
        request: &Request,
        file: INodeNo,
        change: impl FnOnce(&Arc<Client>) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        if request.uid() == 0 {
            return change(&self.client);
        }
        let (client, late) = (self.client.clone(), self.late.clone());
        then(self.client.drop_privileges(ino(file)), move |dropped| {
            if dropped {
                late.attributes_changed(file);
            }
            change(&client)
        })
    }

    /// Replies to what changes names or files. If it is done when nobody waits for it any more, it goes to `undo`, and the
    /// kernel asks again for what it touched.
    fn changed<T, R>(
        &self,
        request: &Request,
        touches: &[Touch],
        answer: Answer<T>,
        reply: R,
        send: impl FnOnce(R, T) + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) where
        T: Send + 'static,
        R: Refuse,
    {
        let touched = match &answer {
            Answer::Ready(_) => None,
            Answer::Pending(_) => Some(self.late.touched(touches)),
        };
        let undo = move |value| {
            undo(value);
            touched.into_iter().for_each(Touched::ask_again);
        };
        self.waits.answer_or_undo(request, Signals::Killable, answer, reply, send, undo);
    }

    /// Replies to what takes names away.
    fn removed(&self, request: &Request, touches: &[Touch], answer: Answer<Option<Ino>>, reply: ReplyEmpty) {
        let client = self.client.clone();
        // The kernel forgot the inode when it was told that the call was cut off.
        let undo = move |gone: Option<Ino>| gone.into_iter().for_each(|ino| client.forget(ino));
        self.changed(request, touches, answer, reply, |reply, _| reply.ok(), undo);
    }

    fn done(&self, request: &Request, answer: Answer<()>, reply: ReplyEmpty) {
        self.waits.answer(request, Signals::Killable, answer, reply, |reply, ()| reply.ok());
    }

    fn create_node(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        node: NewNode,
        reply: ReplyEntry,
    ) {
        let answer = self.client.create(cred(request), ino(parent), name.as_bytes(), node);
        self.named(request, &[Touch::Name(parent, name)], answer, reply);
    }
}

impl Filesystem for Door {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        super::mount::negotiate(self.wanted, config);
        // Both came with Linux 6.6.
        self.around.begin(config.capabilities().contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP));
        self.opens_directories = !config.capabilities().contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        Ok(())
    }

    fn received(&self, request: &Request) {
        let counters = &self.waits.counters;
        let now = counters.received(request.opcode());
        if let Some(awake) = &self.awake {
            awake.received(now);
        }
        let stopwatch = counters.stopwatch(request.opcode(), request.nodeid());
        let job = self.tagger.as_ref().map(|tagger| tagger.job(request, now));
        if let Some(job) = &job {
            job.operation(now.as_millis() as u64);
        }
        if job.is_some() || stopwatch.is_some() {
            job::set_current(Errand { job, stopwatch });
        }
    }

    fn handled(&self, _request: &Request) {
        self.waits.counters.handled();
        job::set_current(Errand::default());
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let client = self.client.clone();
        let answer = match name.as_bytes() {
            // Asked by those who come with an inode number: NFS, open_by_handle_at.
            b"." => self.client.getattr(ino(parent)),
            b".." => then(self.client.parent(ino(parent)), move |parent| client.getattr(parent)),
            name => self.client.lookup(ino(parent), name),
        };
        let answer = or_else(answer.map(Some), |error| match error {
            FsError::NotFound => Answer::ok(None),
            error => Answer::err(error),
        });
        let ttl = self.ttl();
        self.waits.answer(request, Signals::Killable, answer, reply, move |reply, attr| match attr {
            Some(attr) => ttl.reply_entry(reply, attr),
            None => reply.entry(&ttl.entry, &absent(), GENERATION),
        });
    }

    fn forget(&self, _request: &Request, file: INodeNo, _lookups: u64) {
        // The kernel gives back all its references when it drops an inode, whose number never comes again if it has
        // no name: they need no counting.
        self.client.forget(ino(file));
    }

    fn getattr(&self, request: &Request, file: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let ttl = self.ttl();
        let answer = self.client.getattr(ino(file));
        self.waits.answer(request, Signals::Killable, answer, reply, move |reply, attr| {
            ttl.reply_attr(reply, attr)
        });
    }

    fn statx(&self, request: &Request, file: INodeNo, _handle: Option<FileHandle>, reply: ReplyStatx) {
        let ttl = self.ttl();
        let answer = self.client.getattr(ino(file));
        self.waits.answer(request, Signals::Killable, answer, reply, move |reply, attr| {
            reply.attr(&ttl.of(&attr), &file_attr(&attr));
        });
    }

    fn setattr(
        &self,
        request: &Request,
        file: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        kill_suidgid: bool,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode: mode.map(|mode| mode & mode::PERMISSIONS),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map_or(SetCtime::Now, |time| SetCtime::To(tarn_base::Timespec::from_system(time))),
            kill_privileges: kill_suidgid,
        };
        let handle = handle.map(|handle| Handle(handle.0));
        let touch = if size.is_some() { Touch::Data(file) } else { Touch::Attributes(file) };
        let (answer, ttl) = (self.client.setattr(cred(request), ino(file), set, handle), self.ttl());
        self.changed(request, &[touch], answer, reply, move |reply, attr| ttl.reply_attr(reply, attr), drop);
    }

    fn readlink(&self, request: &Request, file: INodeNo, reply: ReplyData) {
        let answer = self.client.readlink(ino(file));
        self.waits.answer(request, Signals::Killable, answer, reply, |reply, target| reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        match file_kind(mode) {
            Ok(kind) => {
                let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
                let rdev = if device { rdev } else { 0 };
                let node = NewNode { kind, mode: mode & mode::PERMISSIONS, umask, rdev, target: Vec::new() };
                self.create_node(request, parent, name, node, reply);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let kind = FileKind::Directory;
        let node = NewNode { kind, mode: mode & mode::PERMISSIONS, umask, rdev: 0, target: Vec::new() };
        self.create_node(request, parent, name, node, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes().to_vec();
        let node = NewNode { kind: FileKind::Symlink, mode: 0o777, umask: 0, rdev: 0, target };
        self.create_node(request, parent, name, node, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self.client.unlink(ino(parent), name.as_bytes());
        self.removed(request, &[Touch::Name(parent, name)], answer, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let answer = self.client.rmdir(ino(parent), name.as_bytes());
        self.removed(request, &[Touch::Name(parent, name)], answer, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let answer = match rename_mode(flags) {
            Ok(mode) => {
                let (from, to) = (ino(parent), ino(new_parent));
                self.client.rename(from, name.as_bytes(), to, new_name.as_bytes(), mode)
            }
            Err(error) => Answer::err(error),
        };
        let touches = [Touch::Name(parent, name), Touch::Name(new_parent, new_name)];
        self.removed(request, &touches, answer, reply);
    }

    fn link(&self, request: &Request, file: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let answer = self.client.link(ino(file), ino(parent), name.as_bytes());
        self.named(request, &[Touch::Name(parent, name), Touch::Attributes(file)], answer, reply);
    }

    fn open(
        &self,
        request: &Request,
        file: INodeNo,
        flags: OpenFlags,
        _kill_suidgid: bool,
        reply: ReplyOpen,
    ) {
        let mode = open_mode(flags);
        let answer = self.client.open(ino(file), mode);
        let around = self.around.clone();
        let send = move |reply: ReplyOpen, (handle, attr, keep): (Handle, Attr, bool)| {
            let direct = around.opened(attr.ino, handle, mode, keep, attr.size);
            reply.opened(FileHandle(handle.0), open_flags(direct, keep));
        };
        let client = self.client.clone();
        let undo = move |(handle, _, _)| client.close(handle);
        self.waits.answer_or_undo(request, Signals::Killable, answer, reply, send, undo);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        _kill_suidgid: bool,
        reply: ReplyCreate,
    ) {
        let touches = [Touch::Name(parent, name)];
        let (cred, parent, open) = (cred(request), ino(parent), open_mode(OpenFlags(flags)));
        let permissions = mode & mode::PERMISSIONS;
        let created = self.client.create_open(cred, parent, name.as_bytes(), permissions, umask, open);
        let (client, name) = (self.client.clone(), name.as_bytes().to_vec());
        let answer = or_else(created, move |error| match error {
            // The name came to be since the kernel looked; without O_EXCL that is as good.
            FsError::Exists if flags & libc::O_EXCL == 0 => {
                let found = client.lookup(parent, &name);
                then(found, move |attr| client.open(attr.ino, open).map(|(handle, attr, _)| (attr, handle)))
            }
            error => Answer::err(error),
        });
        self.made(request, &touches, open, answer, reply);
    }

    fn tmpfile(
        &self,
        request: &Request,
        parent: INodeNo,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let permissions = mode & mode::PERMISSIONS & !umask;
        let open = open_mode(OpenFlags(flags));
        let answer = self.client.create_unnamed(cred(request), ino(parent), permissions);
        self.made(request, &[], open, answer, reply);
    }

    fn read(
        &self,
        request: &Request,
        _file: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handle = Handle(handle.0);
        self.around.hybrid.asked(handle, size.into());
        let answer = self.client.read(handle, offset, size as usize);
        self.waits.answer(request, Signals::Killable, answer, reply, |reply, buf| send_read(reply, &buf));
    }

    fn write(
        &self,
        request: &Request,
        _file: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let written = self.client.write(Handle(handle.0), target(offset, write_flags, flags), data, kill);
        // The kernel sends an fsync after synchronous writes through its cache, and none after direct ones.
        let direct = write_flags.contains(WriteFlags::FUSE_WRITE_LOCKOWNER);
        let answer = if direct && flags.0 & libc::O_DSYNC != 0 {
            let (client, datasync) = (self.client.clone(), flags.0 & libc::O_SYNC != libc::O_SYNC);
            then(written, move |n| client.fsync_handle(Handle(handle.0), datasync).map(move |()| n))
        } else {
            written
        };
        self.waits.answer(request, Signals::LetGo, answer, reply, |reply, n| reply.written(n as u32));
    }

    fn flush(
        &self,
        request: &Request,
        file: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let client = self.client.clone();
        let flush = move || client.take_write_error(Handle(handle.0)).into();
        let answer = self.locks.process_closed(&self.client, ino(file), owner.0, flush);
        self.done(request, answer, reply);
    }

    fn release(
        &self,
        request: &Request,
        file: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _flock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let client = self.client.clone();
        self.around.closed(ino(file), Handle(handle.0));
        let close = move || {
            client.close(Handle(handle.0));
            Answer::ok(())
        };
        let answer = self.locks.file_closed(&self.client, ino(file), handle.0, close);
        self.waits.answer(request, Signals::Ignore, answer, reply, |reply, ()| reply.ok());
    }

    fn fsync(
        &self,
        request: &Request,
        _file: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.done(request, self.client.fsync_handle(Handle(handle.0), datasync), reply);
    }

    fn opendir(&self, _request: &Request, _dir: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // A listing is stateless. Kernels that hear so once do not ask again, and keep listings until the directory
        // changes.
        match self.opens_directories {
            true => reply.opened(FileHandle(0), FopenFlags::empty()),
            false => reply.error(Errno::ENOSYS),
        }
    }

    fn readdir(
        &self,
        request: &Request,
        dir: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let answer = list_names(&self.client, ino(dir), offset, reply.size());
        self.waits.answer(request, Signals::Killable, answer, reply, |mut reply, listing| {
            listing.fill(|entry| match entry {
                Entry::Dot(ino, cookie, name) => reply.add(INodeNo(ino.0), cookie, FileType::Directory, name),
                Entry::Real(e) => {
                    let name = OsStr::from_bytes(&e.name);
                    reply.add(INodeNo(e.ino.0), e.cookie, file_type(e.kind), name)
                }
            });
            reply.ok();
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        dir: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let answer = list(&self.client, ino(dir), offset, reply.size());
        let ttl = self.ttl();
        self.waits.answer(request, Signals::Killable, answer, reply, move |mut reply, listing| {
            listing.fill(|entry| match entry {
                Entry::Dot(ino, cookie, name) => {
                    // The kernel takes the number and the type from it, and nothing else.
                    let attr = FileAttr { ino: INodeNo(ino.0), kind: FileType::Directory, ..absent() };
                    reply.add(attr.ino, cookie, name, &Duration::ZERO, &Duration::ZERO, &attr, GENERATION)
                }
                Entry::Real(e) => {
                    let (name, attr) = (OsStr::from_bytes(&e.name), file_attr(&e.attr));
                    reply.add(attr.ino, e.cookie, name, &ttl.of(&e.attr), &ttl.entry, &attr, GENERATION)
                }
            });
            reply.ok();
        });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        _dir: INodeNo,
        _handle: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        self.done(request, self.client.sync_all(), reply);
    }

    fn syncfs(&self, request: &Request, _file: INodeNo, reply: ReplyEmpty) {
        self.done(request, self.client.sync_all(), reply);
    }

    fn statfs(&self, request: &Request, _file: INodeNo, reply: ReplyStatfs) {
        let answer = self.client.statfs();
        self.waits.answer(request, Signals::Killable, answer, reply, |reply, stat| {
            let (blocks, free, inodes, free_inodes) = stat_fs(&stat);
            let (block, name_max) = (STAT_BLOCK as u32, tarn_base::posix::NAME_MAX as u32);
            reply.statfs(blocks, free, free, inodes, free_inodes, block, name_max, block);
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        file: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let answer = match xattr_mode(flags) {
            Err(error) => Answer::err(error),
            Ok(_) if !xattr_supported(name.as_bytes()) => Answer::err(FsError::NotSupported),
            Ok(_) if xattr_nameless(name.as_bytes()) => {
                Answer::err(FsError::invalid("no name behind its class"))
            }
            // Made anew and there before: it cannot be both, and which of them fails says whether it is there.
            Ok(None) => {
                let there = self.client.getxattr(ino(file), name.as_bytes());
                then(there, |_| Answer::err(FsError::Exists))
            }
            Ok(Some(mode)) => self.client.setxattr(ino(file), name.as_bytes(), value, mode),
        };
        self.done(request, answer, reply);
    }

    fn getxattr(&self, request: &Request, file: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let answer = if xattr_supported(name.as_bytes()) {
            self.client.getxattr(ino(file), name.as_bytes())
        } else {
            Answer::err(FsError::NotSupported)
        };
        self.waits.answer(request, Signals::Killable, answer, reply, move |reply, value| {
            send_sized(reply, size, &value);
        });
    }

    fn listxattr(&self, request: &Request, file: INodeNo, size: u32, reply: ReplyXattr) {
        let answer = self.client.listxattr(ino(file));
        // Attributes of the trusted class do not exist for others: the kernel leaves it to the file system to say so.
        let privileged = request.uid() == 0;
        self.waits.answer(request, Signals::Killable, answer, reply, move |reply, names| {
            let visible = names.into_iter().filter(|name| privileged || !name.starts_with(b"trusted."));
            let list: Vec<u8> = visible.flat_map(|name| name.into_iter().chain([0])).collect();
            send_sized(reply, size, &list);
        });
    }

    fn removexattr(&self, request: &Request, file: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let acl = is_acl(name.as_bytes());
        let answer = or_else(self.client.removexattr(ino(file), name.as_bytes()), move |error| match error {
            // No ACL is what was asked for.
            FsError::NoAttribute if acl => Answer::ok(()),
            error => Answer::err(error),
        });
        self.done(request, answer, reply);
    }

    fn getlk(
        &self,
        request: &Request,
        file: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        flock: bool,
        reply: ReplyLock,
    ) {
        let (ino, handle, owner) = (ino(file), handle.0, owner.0);
        let asked = Asked { ino, handle, owner, start, end, typ, pid, flock };
        LockBook::test(&self.client, &self.waits, request, asked, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        file: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        flock: bool,
        reply: ReplyEmpty,
    ) {
        let (ino, handle, owner) = (ino(file), handle.0, owner.0);
        let asked = Asked { ino, handle, owner, start, end, typ, pid, flock };
        self.locks.set(&self.client, &self.waits, request, asked, sleep, reply);
    }

    fn interrupt(&self, _request: &Request, unique: RequestId) {
        self.waits.interrupts.interrupt(unique.0);
    }

    fn fallocate(
        &self,
        request: &Request,
        file: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let answer = match falloc_mode(mode) {
            Ok(mode) => self.without_privileges(request, file, move |client| {
                client.fallocate(Handle(handle.0), mode, offset, length)
            }),
            Err(error) => Answer::err(error),
        };
        self.changed(request, &[Touch::Data(file)], answer, reply, |reply, ()| reply.ok(), drop);
    }

    fn lseek(
        &self,
        request: &Request,
        _file: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let answer = match (seek(whence), u64::try_from(offset)) {
            (Ok(what), Ok(offset)) => self.client.seek(Handle(handle.0), offset, what),
            (Ok(_), Err(_)) => Answer::err(FsError::NoData),
            (Err(error), _) => Answer::err(error),
        };
        self.waits.answer(request, Signals::Killable, answer, reply, |reply, at| reply.offset(at as i64));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _from: INodeNo,
        from_handle: FileHandle,
        from_offset: u64,
        to_file: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let answer = if flags.is_empty() {
            let (from, to) = (Handle(from_handle.0), Handle(to_handle.0));
            self.without_privileges(request, to_file, move |client| {
                client.copy_range(from, from_offset, to, to_offset, len.min(COPY_MAX))
            })
        } else {
            Answer::err(FsError::invalid("copy flags"))
        };
        let send = |reply: ReplyWrite, n| reply.written(n as u32);
        self.changed(request, &[Touch::Data(to_file)], answer, reply, send, drop);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _file: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn poll(
        &self,
        _request: &Request,
        _file: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // Always ready; the kernel then asks no more.
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _request: &Request, _file: INodeNo, _block_size: u32, _index: u64, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _request: &Request, _file: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions by itself; it then asks no more.
        reply.error(Errno::ENOSYS);
    }
}
