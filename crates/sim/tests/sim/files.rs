//! Operations on files' data, each made on the model first, and the choice of what comes next.

use crate::names::{Moves, USER};
use crate::run::{Open, Run, Step, again, fenced_or};
use crate::stack::Stack;
use futures::future::join_all;
use std::time::Duration;
use tarn_base::posix::{FileKind, RenameMode, SetAttr};
use tarn_base::{Clock, FsError, Ino, Timespec};
use tarn_client::{FallocMode, OpenMode, Seek, Target};
use tarn_sim::tree::Node;

/// Offsets stay below this, in bytes.
const SPAN: u64 = 40 << 10;
/// Handles open at once.
const HANDLES: usize = 8;

impl Stack {
    pub fn clock_now(&self) -> Timespec {
        self.clock.now()
    }
}

impl Run {
    /// One random operation.
    pub async fn step(&mut self) -> Step {
        let die = self.chance.below(100);
        self.before.clear();
        let (name, done) = match die {
            0..7 => ("create", self.create(FileKind::Regular).await),
            7..10 => ("mkdir", self.create(FileKind::Directory).await),
            10..12 => {
                let kinds = [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice];
                ("mknod", self.create(kinds[self.chance.below(4) as usize]).await)
            }
            12..14 => ("symlink", self.create(FileKind::Symlink).await),
            14..16 => ("link", self.link().await),
            16..21 => ("remove", self.remove(false).await),
            21..23 => ("remove", self.remove(true).await),
            23..27 => ("rename", self.rename(RenameMode::Replace).await),
            27..28 => ("rename_noreplace", self.rename(RenameMode::NoReplace).await),
            28..29 => ("rename_exchange", self.rename(RenameMode::Exchange).await),
            29..32 => ("setattr", self.set_attributes().await),
            32..34 => ("setxattr", self.set_xattr().await),
            34..35 => ("removexattr", self.remove_xattr().await),
            35..38 => ("readdir", self.look().await),
            38..39 => ("tmpfile", self.create_unnamed().await),
            39..44 => ("open", self.open().await),
            44..46 => ("close", self.close()),
            46..47 => {
                self.forget();
                ("forget", Ok(()))
            }
            47..59 => ("write", self.write().await),
            59..69 => ("read", self.read().await),
            69..74 => ("truncate", self.truncate().await),
            74..79 => ("fallocate", self.fallocate().await),
            79..83 => ("copy_file_range", self.copy().await),
            83..86 => ("seek", self.seek().await),
            86..89 => ("fsync", self.fsync(false).await),
            89..90 => ("fdatasync", self.fsync(true).await),
            90..91 => ("sync", self.sync().await),
            91..96 => ("concurrent", self.concurrent().await),
            _ => ("time", self.pass_time().await),
        };
        self.chance.count(&format!("op {name}"));
        if self.crowded() && done.is_ok() {
            return self.remove(false).await;
        }
        done
    }

    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let mut state = self.chance.below(u64::MAX) | 1;
        // Half of all data compresses.
        let coarse = self.chance.percent(50);
        let mut next = move |at: usize| {
            if !coarse || at.is_multiple_of(64) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
            }
            (state >> 24) as u8
        };
        (0..len).map(&mut next).collect()
    }

    fn offset(&self) -> u64 {
        let (offset, record) = (self.chance.below(SPAN), u64::from(self.shape.record_size));
        match self.chance.below(4) {
            0 => offset / record * record,
            1 => (offset / record * record).saturating_sub(1),
            _ => offset,
        }
    }

    fn len(&self) -> usize {
        let record = self.shape.record_size as usize;
        match self.chance.below(4) {
            0 => 1 + self.chance.below(64) as usize,
            1 => record * (1 + self.chance.below(4) as usize),
            _ => 1 + self.chance.below(20_000) as usize,
        }
    }

    /// An open file, opened if there is none; `None` when there is no file at all.
    async fn any_open(&mut self) -> Step<Option<Open>> {
        if self.open.is_empty() {
            self.open().await?;
        }
        if self.open.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.open[self.chance.below(self.open.len() as u64) as usize]))
    }

    async fn open(&mut self) -> Step {
        let tree = self.history.tree();
        let mut files = tree.reachable();
        files.retain(|ino| tree.node(*ino).is_some_and(Node::is_file));
        if files.is_empty() {
            return Ok(());
        }
        if self.open.len() >= HANDLES {
            self.close()?;
        }
        let ino = files[self.chance.below(files.len() as u64) as usize];
        let append = self.chance.percent(25);
        let truncate = !append && self.chance.percent(8);
        self.note(format!("open {ino} append={append} truncate={truncate}"));
        let mode = OpenMode { read: true, write: true, truncate, direct: self.chance.percent(15) };
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        if truncate {
            let op = self.history.next_op();
            self.remember(ino);
            self.history.file(ino).set_size(op, 0);
        }
        let opened = again(|| client.open(Ino(ino), mode).wait()).await;
        let (handle, ..) = opened.map_err(|e| fenced_or(e, &format!("opening {ino}")))?;
        self.open.push(Open { handle, ino, append });
        let moves = if truncate { Moves::May } else { Moves::No };
        self.see(ino, start, moves, moves).await
    }

    fn close(&mut self) -> Step {
        if self.open.is_empty() {
            return Ok(());
        }
        let at = self.chance.below(self.open.len() as u64) as usize;
        let open = self.open.swap_remove(at);
        self.note(format!("close {}", open.ino));
        self.stack().client.close(open.handle);
        self.drop_if_gone(open.ino);
        Ok(())
    }

    async fn write(&mut self) -> Step {
        match self.any_open().await? {
            Some(open) => self.write_to(open.handle, open.ino, open.append).await,
            None => Ok(()),
        }
    }

    pub async fn write_to(&mut self, handle: tarn_client::Handle, ino: u64, append: bool) -> Step {
        let (offset, len) = (self.offset(), self.len());
        let end = self.history.file(ino).data().len() as u64;
        let offset = if append { end } else { offset };
        if append && end > 3 * SPAN {
            return Ok(());
        }
        let data = self.bytes(len);
        self.note(format!("write {ino} {offset}+{len} append={append}"));
        let op = self.history.next_op();
        self.remember(ino);
        self.history.file(ino).write(op, offset as usize, &data);
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let target = if append { Target::End } else { Target::At(offset) };
        let written = again(|| client.write(handle, target, &data, false).wait()).await;
        match written {
            Ok(n) if n == len => self.see(ino, start, Moves::Must, Moves::Must).await,
            Ok(n) => Err(format!("write took {n} of {len} bytes").into()),
            Err(e) => Err(fenced_or(e, "write")),
        }
    }

    async fn read(&mut self) -> Step {
        let Some(open) = self.any_open().await? else { return Ok(()) };
        let (offset, len) =
            if self.chance.percent(25) { (0, 4 * SPAN as usize) } else { (self.offset(), self.len()) };
        self.note(format!("read {} {offset}+{len}", open.ino));
        let client = self.stack().client.clone();
        let found = again(|| client.read(open.handle, offset, len).wait()).await;
        let found = found.map_err(|e| fenced_or(e, &format!("read of {}", open.ino)))?.to_vec();
        self.same(open.ino, &found, offset as usize, len)
    }

    fn same(&mut self, ino: u64, found: &[u8], offset: usize, len: usize) -> Step {
        let expected = self.history.file(ino).read(offset, len);
        if found == expected {
            return Ok(());
        }
        let at = found.iter().zip(expected).position(|(a, b)| a != b).map(|at| at + offset);
        let (is, should) = (found.len(), expected.len());
        Err(format!("file {ino} read at {offset}: {is} bytes for {should}, different from byte {at:?}")
            .into())
    }

    async fn truncate(&mut self) -> Step {
        let Some(open) = self.any_open().await? else { return Ok(()) };
        let (ino, size) = (open.ino, self.offset());
        let by_handle = self.chance.percent(50).then_some(open.handle);
        self.note(format!("truncate {ino} to {size}"));
        let op = self.history.next_op();
        self.remember(ino);
        self.history.file(ino).set_size(op, size as usize);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = again(|| client.setattr(USER, Ino(ino), set, by_handle).wait()).await;
        answer.map_err(|e| fenced_or(e, "truncate"))?;
        self.see(ino, start, Moves::Must, Moves::Must).await
    }

    async fn fallocate(&mut self) -> Step {
        use FallocMode::{Allocate, AllocateKeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize};
        let Some(open) = self.any_open().await? else { return Ok(()) };
        let modes = [PunchHole, PunchHole, ZeroRange, ZeroRangeKeepSize, Allocate, AllocateKeepSize];
        let how = modes[self.chance.below(6) as usize];
        let (ino, offset, len) = (open.ino, self.offset(), self.len() as u64);
        self.note(format!("fallocate {how:?} {ino} {offset}+{len}"));
        let (op, end) = (self.history.next_op(), (offset + len) as usize);
        self.remember(ino);
        self.history.file(ino).touch(op);
        if matches!(how, PunchHole | ZeroRange | ZeroRangeKeepSize) {
            self.history.file(ino).zero(op, offset as usize, end);
        }
        let size = self.history.file(ino).data().len();
        if matches!(how, Allocate | ZeroRange) && end > size {
            self.history.file(ino).set_size(op, end);
        }
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = again(|| client.fallocate(open.handle, how, offset, len).wait()).await;
        answer.map_err(|e| fenced_or(e, "fallocate"))?;
        self.see(ino, start, Moves::May, Moves::May).await
    }

    async fn copy(&mut self) -> Step {
        let (Some(from), Some(to)) = (self.any_open().await?, self.any_open().await?) else { return Ok(()) };
        let record = u64::from(self.shape.record_size);
        let (mut at, mut target, len) = (self.offset(), self.offset(), self.len() as u64);
        if self.chance.percent(70) {
            (at, target) = (at / record * record, target / record * record);
        }
        if target + len > 3 * SPAN {
            return Ok(());
        }
        self.note(format!("copy {} {at}+{len} to {} {target}", from.ino, to.ino));
        let data = self.history.file(from.ino).read(at as usize, len as usize).to_vec();
        let have = data.len() as u64;
        let apart = at + have <= target || target + have <= at;
        let refused = from.ino == to.ino && !apart && have > 0;
        if have > 0 && !refused {
            let op = self.history.next_op();
            self.remember(to.ino);
            self.history.file(to.ino).write(op, target as usize, &data);
        }
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let copied = again(|| client.copy_range(from.handle, at, to.handle, target, len).wait()).await;
        match copied {
            Err(FsError::Invalid(_)) if refused => Ok(()),
            Ok(n) if !refused && n == have && n > 0 => {
                self.see(to.ino, start, Moves::Must, Moves::Must).await
            }
            Ok(0) if !refused && have == 0 => Ok(()),
            Err(error @ (FsError::Fenced | FsError::Io(_))) => Err(fenced_or(error, "copy")),
            other => Err(format!("copy gave {other:?} for {have} bytes, refused={refused}").into()),
        }
    }

    async fn seek(&mut self) -> Step {
        let Some(open) = self.any_open().await? else { return Ok(()) };
        let offset = self.offset();
        self.note(format!("seek {} {offset}", open.ino));
        let client = self.stack().client.clone();
        let data = again(|| client.seek(open.handle, offset, Seek::Data).wait()).await;
        let hole = again(|| client.seek(open.handle, offset, Seek::Hole).wait()).await;
        for answer in [&data, &hole] {
            if let Err(error @ (FsError::Fenced | FsError::Io(_))) = answer {
                return Err(fenced_or(error.clone(), "seek"));
            }
        }
        let (bytes, offset) = (self.history.file(open.ino).data(), offset as usize);
        let good = match (&data, &hole) {
            (Err(FsError::NoData), Err(FsError::NoData)) => offset >= bytes.len(),
            (Ok(_) | Err(FsError::NoData), Ok(hole)) if offset < bytes.len() => {
                let until = data.clone().map_or(bytes.len(), |at| at as usize);
                let (hole, skipped) = (*hole as usize, until >= offset && until <= bytes.len());
                let zeros = skipped && bytes[offset..until].iter().all(|byte| *byte == 0);
                zeros && hole >= offset && (hole == bytes.len() || bytes.get(hole) == Some(&0))
            }
            _ => false,
        };
        let size = bytes.len();
        if good {
            Ok(())
        } else {
            Err(format!("seek {offset} of {size} gave data {data:?}, hole {hole:?}").into())
        }
    }

    async fn fsync(&mut self, datasync: bool) -> Step {
        let Some(open) = self.any_open().await? else { return self.sync().await };
        self.note(format!("fsync {}", open.ino));
        let client = self.stack().client.clone();
        let answer = match self.chance.percent(50) {
            true => again(|| client.fsync_handle(open.handle, datasync).wait()).await,
            false => again(|| client.fsync(Ino(open.ino), datasync).wait()).await,
        };
        answer.map_err(|e| fenced_or(e, "fsync"))?;
        self.history.file(open.ino).synced();
        self.names_synced();
        self.chance.trace("is durable");
        Ok(())
    }

    fn names_synced(&mut self) {
        self.history.names_synced();
        let open: Vec<u64> = self.open.iter().map(|open| open.ino).collect();
        self.history.forget_gone(|ino| open.contains(&ino));
    }

    async fn sync(&mut self) -> Step {
        self.note("sync".into());
        let client = self.stack().client.clone();
        again(|| client.sync_all().wait()).await.map_err(|e| fenced_or(e, "sync"))?;
        self.history.synced();
        self.names_synced();
        Ok(())
    }

    async fn pass_time(&mut self) -> Step {
        let millis = [50, 1500, 12_000, 70_000][self.chance.below(4) as usize];
        let millis = self.chance.below(millis);
        self.note(format!("{millis} ms pass"));
        tokio::time::sleep(Duration::from_millis(millis)).await;
        Ok(())
    }

    /// Several files are written and synced at the same time.
    async fn concurrent(&mut self) -> Step {
        let mut chosen: Vec<Open> = Vec::new();
        for open in &self.open {
            if !open.append && chosen.iter().all(|other| other.ino != open.ino) {
                chosen.push(*open);
            }
        }
        let (mut calls, start) = (Vec::new(), self.stack().clock_now());
        for open in &chosen {
            let (offset, len, client) = (self.offset(), self.len(), self.stack().client.clone());
            let (data, op, sync) = (self.bytes(len), self.history.next_op(), self.chance.percent(50));
            let pause = Duration::from_micros(self.chance.below(3000));
            self.note(format!("concurrently write {} {offset}+{len}, fsync={sync}", open.ino));
            self.remember(open.ino);
            self.history.file(open.ino).write(op, offset as usize, &data);
            let (handle, ino) = (open.handle, open.ino);
            calls.push(async move {
                tokio::time::sleep(pause).await;
                let written = again(|| client.write(handle, offset, &data, false).wait()).await?;
                if sync {
                    again(|| client.fsync(Ino(ino), false).wait()).await?;
                }
                Ok((ino, written == data.len(), sync))
            });
        }
        let answers: Vec<Result<(u64, bool, bool), FsError>> = join_all(calls).await;
        for answer in answers {
            let (ino, whole, synced) = answer.map_err(|e| fenced_or(e, "a concurrent write"))?;
            if !whole {
                return Err(format!("a concurrent write to {ino} was cut").into());
            }
            if synced {
                self.history.file(ino).synced();
                self.names_synced();
            }
            self.see(ino, start, Moves::Must, Moves::Must).await?;
        }
        Ok(())
    }
}
