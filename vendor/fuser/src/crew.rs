//! tarn: Which threads wait for requests, and how.
//!
//! To wake a thread that sleeps in the kernel takes longer than to answer most requests, and a caller that makes one
//! request after another pays for it each time. So one thread, the *watcher*, looks for the next request for a moment
//! before it sleeps, where the last ones came within such a moment; and no other thread sleeps where the kernel would
//! wake it for a request that the watcher takes. The others, its *helpers*, wait here:
//!
//! - They are called when the watcher finds one request after another without having to wait, and go back when nothing
//!   is left. One caller alone that waits for each of its answers calls nobody, however fast it is.
//! - While there are requests at all they look now and then whether the watcher is still at the same one, and watch in
//!   its place until it is done: a request that takes long, or waits for what another one does, holds nothing up for
//!   longer than a [`TICK`].
//!
//! An idle session has one thread that sleeps in the kernel, and helpers that nothing wakes.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::PollFd;
use nix::poll::PollFlags;
use nix::poll::PollTimeout;
use parking_lot::Condvar;
use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::channel::Channel;
use crate::ll::fuse_abi::fuse_in_header;
use crate::ll::fuse_abi::fuse_opcode;

/// So many requests in a row that were there at once, or more than one for so long, are work for two.
const BACKLOG: u32 = 4;
const BACKLOG_TIME: Duration = Duration::from_micros(100);
/// How long a helper looks for more when it has answered a request.
const HELPS: Duration = Duration::from_micros(20);
/// A thread that lets others run for so long has no core of its own.
const AWAY: Duration = Duration::from_micros(10);
/// How often a helper looks after the watcher, and after how many looks without a request it rests.
const TICK: Duration = Duration::from_millis(10);
const REST: u32 = 100;

/// The threads of a session.
#[derive(Debug)]
pub(crate) struct Crew {
    /// How long to look for the next request before sleeping.
    patience: Duration,
    /// Helpers that were called and have not come yet.
    calls: Mutex<usize>,
    called: Condvar,
    /// Helpers that wait, and those of them that nothing but a call wakes.
    waiting: AtomicUsize,
    resting: AtomicUsize,
    /// Requests that the watcher has taken, and whether it is at the last of them.
    taken: AtomicU64,
    at_work: AtomicBool,
    ended: AtomicBool,
}

/// What one thread does.
#[derive(Debug)]
pub(crate) struct Member {
    watches: bool,
    /// How long to look before sleeping, as things are.
    patience: Duration,
    /// Requests in a row that were there at once, and since when.
    streak: u32,
    since: Instant,
    /// Who made the last request that somebody waits for.
    caller: u32,
    /// The request at which the watcher was found for too long.
    stands_in: Option<u64>,
}

impl Crew {
    pub(crate) fn new(patience: Duration) -> Crew {
        Crew {
            patience,
            calls: Mutex::new(0),
            called: Condvar::new(),
            waiting: AtomicUsize::new(0),
            resting: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            at_work: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    pub(crate) fn member(&self, watches: bool) -> Member {
        Member {
            watches,
            patience: self.patience,
            streak: 0,
            since: Instant::now(),
            caller: 0,
            stands_in: None,
        }
    }

    /// The next request for this thread; `ENODEV` at the session's end.
    pub(crate) fn receive(
        &self,
        member: &mut Member,
        channel: &Channel,
        buffer: &mut [u8],
    ) -> nix::Result<usize> {
        if !member.watches {
            let (size, at_once) = self.help(member, channel, buffer)?;
            self.note_backlog(member, &buffer[..size], at_once);
            return Ok(size);
        }
        self.at_work.store(false, SeqCst);
        let (size, at_once) = self.watch(member, channel, buffer)?;
        self.note_backlog(member, &buffer[..size], at_once);
        self.taken.fetch_add(1, SeqCst);
        self.at_work.store(true, SeqCst);
        // From now on they look after this thread.
        if self.resting.load(SeqCst) > 0 {
            let _calls = self.calls.lock();
            self.called.notify_all();
        }
        Ok(size)
    }

    /// No thread is to wait any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, SeqCst);
        let _calls = self.calls.lock();
        self.called.notify_all();
    }

    /// The next request, and whether it was there at once.
    fn watch(
        &self,
        member: &mut Member,
        channel: &Channel,
        buffer: &mut [u8],
    ) -> nix::Result<(usize, bool)> {
        if let Some(size) = channel.try_receive(buffer)? {
            return Ok((size, true));
        }
        loop {
            if let Some(size) = look(channel, buffer, member.patience)? {
                return Ok((size, false));
            }
            let since = Instant::now();
            sleep(channel, PollTimeout::NONE)?;
            // Nothing is gained by looking where requests come now and then.
            let soon = since.elapsed() < self.patience;
            member.patience = if soon { self.patience } else { Duration::ZERO };
            if let Some(size) = channel.try_receive(buffer)? {
                return Ok((size, false));
            }
        }
    }

    /// As [`Crew::watch`] does, when it is called or has to stand in.
    fn help(
        &self,
        member: &mut Member,
        channel: &Channel,
        buffer: &mut [u8],
    ) -> nix::Result<(usize, bool)> {
        loop {
            if self.ended.load(SeqCst) {
                return Err(Errno::ENODEV);
            }
            if let Some(size) = channel.try_receive(buffer)? {
                return Ok((size, true));
            }
            if let Some(size) = look(channel, buffer, HELPS)? {
                return Ok((size, false));
            }
            match member.stands_in.filter(|taken| self.is_stuck(*taken)) {
                Some(_) => sleep(channel, PollTimeout::from(TICK.as_millis() as u8))?,
                None => member.stands_in = self.wait(),
            }
        }
    }

    fn note_backlog(&self, member: &mut Member, request: &[u8], at_once: bool) {
        let Some((caller, waits)) = caller_of(request) else { return };
        let same = std::mem::replace(&mut member.caller, caller) == caller;
        if !at_once || same && waits {
            member.streak = 0;
            return;
        }
        if member.streak == 0 {
            member.since = Instant::now();
        }
        member.streak += 1;
        let long = member.streak >= BACKLOG || member.since.elapsed() > BACKLOG_TIME;
        if long && self.waiting.load(SeqCst) > 0 {
            let mut calls = self.calls.lock();
            if *calls < self.waiting.load(SeqCst) {
                *calls += 1;
                self.called.notify_one();
            }
        }
    }

    fn is_stuck(&self, taken: u64) -> bool {
        self.at_work.load(SeqCst) && self.taken.load(SeqCst) == taken
    }

    /// Waits for a call, or until the watcher was at one request for too long, which is then given.
    fn wait(&self) -> Option<u64> {
        let (mut quiet, mut taken) = (0, self.taken.load(SeqCst));
        let mut calls = self.calls.lock();
        loop {
            if *calls > 0 || self.ended.load(SeqCst) {
                *calls = calls.saturating_sub(1);
                return None;
            }
            self.waiting.fetch_add(1, SeqCst);
            if quiet < REST {
                self.called.wait_for(&mut calls, TICK);
            } else {
                self.resting.fetch_add(1, SeqCst);
                // It may have begun in between.
                if !self.at_work.load(SeqCst) {
                    self.called.wait(&mut calls);
                }
                self.resting.fetch_sub(1, SeqCst);
                quiet = 0;
            }
            self.waiting.fetch_sub(1, SeqCst);
            let now = self.taken.load(SeqCst);
            if now == taken && *calls == 0 && self.at_work.load(SeqCst) {
                return Some(now);
            }
            quiet = if now == taken { quiet + 1 } else { 0 };
            taken = now;
        }
    }
}

/// Who makes a request, and whether it makes no other before this one is answered: of data several parts may be on their
/// way. None where nobody waits for an answer.
fn caller_of(request: &[u8]) -> Option<(u32, bool)> {
    let (header, _) = fuse_in_header::ref_from_prefix(request).ok()?;
    match fuse_opcode::try_from(header.opcode).ok()? {
        fuse_opcode::FUSE_FORGET
        | fuse_opcode::FUSE_BATCH_FORGET
        | fuse_opcode::FUSE_RELEASE
        | fuse_opcode::FUSE_RELEASEDIR => None,
        fuse_opcode::FUSE_READ | fuse_opcode::FUSE_WRITE => Some((header.pid, false)),
        // All who are in another namespace of processes are 0.
        _ => Some((header.pid, header.pid != 0)),
    }
}

/// Looks for a request for so long, or until others have had the core meanwhile and made none: who has work for it
/// should have it.
fn look(channel: &Channel, buffer: &mut [u8], patience: Duration) -> nix::Result<Option<usize>> {
    if patience.is_zero() {
        return Ok(None);
    }
    let since = Instant::now();
    let mut looked = Duration::ZERO;
    loop {
        std::thread::yield_now();
        if let Some(size) = channel.try_receive(buffer)? {
            return Ok(Some(size));
        }
        let now = since.elapsed();
        if now >= patience || now - looked > AWAY {
            return Ok(None);
        }
        looked = now;
    }
}

/// Sleeps until there may be a request, or for so long.
fn sleep(channel: &Channel, limit: PollTimeout) -> nix::Result<()> {
    let mut device = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    match nix::poll::poll(&mut device, limit) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}
