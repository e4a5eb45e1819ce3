//! Operations on names and attributes, each made on the model first: a crash may come before the answer does.

use crate::run::{Halt, Run, Step, again, fenced_or};
use tarn_base::posix::{Cred, FileKind, NewNode, RenameMode, SetAttr, SetTime, XattrMode, mode};
use tarn_base::{FsError, Ino, Timespec};
use tarn_client::Handle;
use tarn_sim::history::Unanswered;
use tarn_sim::tree::{Node, Tree};

/// The user of all of it; permissions are the door's business.
pub const USER: Cred = Cred { uid: 0, gid: 0 };
/// Beyond so many inodes, names are rather removed than made.
const CROWD: usize = 45;
const NAMES: [&[u8]; 9] =
    [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"a name that is rather long", b"\xff\x01"];

/// What an operation does to one of an inode's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moves {
    No,
    Must,
    May,
    To(Timespec),
}

/// Whether two errors are the same for the caller.
fn alike(a: &FsError, b: &FsError) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

impl Run {
    pub fn any_dir(&self) -> u64 {
        let tree = self.history.tree();
        let mut dirs = tree.reachable();
        dirs.retain(|ino| tree.node(*ino).is_some_and(Node::is_dir));
        dirs[self.chance.below(dirs.len() as u64) as usize]
    }

    fn any_name(&self) -> Vec<u8> {
        NAMES[self.chance.below(NAMES.len() as u64) as usize].to_vec()
    }

    /// A name that is there, nearly always.
    fn any_entry(&self) -> (u64, Vec<u8>) {
        let tree = self.history.tree();
        let all: Vec<(u64, Vec<u8>)> = tree
            .reachable()
            .into_iter()
            .flat_map(|dir| {
                tree.node(dir)
                    .into_iter()
                    .flat_map(move |node| node.entries.keys().map(move |n| (dir, n.clone())))
            })
            .collect();
        if all.is_empty() || self.chance.percent(5) {
            return (self.any_dir(), self.any_name());
        }
        all[self.chance.below(all.len() as u64) as usize].clone()
    }

    /// An inode that has a name.
    pub fn any_inode(&self) -> u64 {
        let all = self.history.tree().reachable();
        all[self.chance.below(all.len() as u64) as usize]
    }

    /// Whether there is enough already.
    pub fn crowded(&self) -> bool {
        self.history.tree().nodes.len() > CROWD
    }

    /// The model's answer and the file system's must be the same. A success becomes what stands now before the file
    /// system is asked.
    async fn agreed<T>(
        &mut self,
        what: &str,
        touched: &[u64],
        model: Result<(u64, Tree), FsError>,
        call: impl AsyncFn() -> Result<T, FsError>,
    ) -> Step<Option<T>> {
        let expected = model.map(|(op, mut tree)| {
            for ino in touched {
                self.remember(*ino);
                if tree.node(*ino).is_some_and(|node| !node.is_file()) {
                    tree.change(*ino).times = None;
                }
            }
            self.history.push(op, tree);
        });
        let answer = call().await;
        match (expected, answer) {
            (Ok(()), Ok(value)) => Ok(Some(value)),
            (Err(expected), Err(error)) if alike(&expected, &error) => Ok(None),
            (_, Err(error @ (FsError::Fenced | FsError::Io(_)))) => Err(fenced_or(error, what)),
            (expected, answer) => {
                let answer = answer.map(drop);
                Err(format!("{what} gave {answer:?} where {expected:?} is right").into())
            }
        }
    }

    /// Attributes must be the model's, and times must have moved as the operation that began at `start` moves them.
    pub async fn see(&mut self, ino: u64, start: Timespec, mtime: Moves, ctime: Moves) -> Step {
        let attr = self.attr(ino).await?;
        let now = self.stack().clock_now();
        let wrong = |what: String| Halt::Wrong(format!("inode {ino}: {what}"));
        let Some(node) = self.history.tree().node(ino).cloned() else {
            return Err(wrong("the model lost it".into()));
        };
        let (is, should) = (
            (attr.kind, attr.mode, attr.uid, attr.gid, attr.rdev, attr.nlink),
            (node.kind, node.mode, node.uid, node.gid, node.rdev, node.nlink),
        );
        if is != should {
            return Err(wrong(format!("attributes {is:?}, not {should:?}")));
        }
        let size = match node.kind {
            FileKind::Regular => self.history.file(ino).data().len(),
            FileKind::Directory => node.entries.len(),
            _ => node.target.len(),
        };
        if attr.size != size as u64 {
            return Err(wrong(format!("size {}, not {size}", attr.size)));
        }
        let before = self.before.remove(&ino).or_else(|| self.history.times(ino));
        let fits = |moves: Moves, before: Option<Timespec>, found: Timespec| {
            let moved = (start..=now).contains(&found);
            let stayed = before.is_none_or(|before| before == found);
            match moves {
                Moves::No => stayed,
                Moves::Must => moved,
                Moves::May => stayed || moved,
                Moves::To(time) => found == time,
            }
        };
        if !fits(mtime, before.map(|t| t.0), attr.mtime) || !fits(ctime, before.map(|t| t.1), attr.ctime) {
            let times = (attr.mtime, attr.ctime);
            return Err(wrong(format!(
                "times {times:?} after {before:?}, {mtime:?} and {ctime:?}, {start:?} to {now:?}"
            )));
        }
        self.history.adopt_times(ino, (attr.mtime, attr.ctime));
        Ok(())
    }

    /// Keeps in mind what an inode's times are before an operation on it.
    pub fn remember(&mut self, ino: u64) {
        if let Some(times) = self.history.times(ino) {
            self.before.entry(ino).or_insert(times);
        }
    }

    /// An inode's content is the same after `op`, its times may not be.
    pub fn touch(&mut self, op: u64, ino: u64) {
        if self.history.tree().node(ino).is_some_and(Node::is_file) {
            self.remember(ino);
            self.history.file(ino).touch(op);
        }
    }

    pub async fn create(&mut self, kind: FileKind) -> Step {
        let (dir, name) = (self.any_dir(), self.any_name());
        let bits = self.chance.below(0o10000) as u32;
        let target = if kind == FileKind::Symlink {
            self.bytes(1 + self.chance.below(300) as usize)
        } else {
            Vec::new()
        };
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = if device { 0x0103 } else { 0 };
        self.note(format!("create {kind:?} {dir}/{}", name.escape_ascii()));
        let mut node = Node::new(kind, if kind == FileKind::Symlink { 0o777 } else { bits });
        (node.rdev, node.target) = (rdev, target.clone());
        if self.history.tree().node(dir).is_some_and(|dir| dir.mode & mode::SETGID != 0) {
            node.gid = self.history.tree().node(dir).map_or(0, |dir| dir.gid);
            if kind == FileKind::Directory {
                node.mode |= mode::SETGID;
            }
        }
        let expected = self.history.tree().may_add(dir, &name);
        let op = self.history.next_op();
        if expected.is_ok() {
            let (name, node) = (name.clone(), node.clone());
            self.history.unanswered = Some(Unanswered { op, dir, name, node });
        }
        let new = NewNode {
            kind,
            mode: if kind == FileKind::Symlink { 0o777 } else { bits },
            umask: 0,
            rdev,
            target,
        };
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = again(|| client.create(USER, Ino(dir), &name, new.clone()).wait()).await;
        let attr = match (expected, answer) {
            (_, Err(error @ (FsError::Fenced | FsError::Io(_)))) => return Err(fenced_or(error, "create")),
            (Ok(()), Ok(attr)) => attr,
            (Err(expected), Err(error)) if alike(&expected, &error) => return Ok(()),
            (expected, answer) => {
                return Err(format!("create gave {answer:?} where {expected:?} is right").into());
            }
        };
        self.history.unanswered = None;
        self.remember(dir);
        let mut tree = self.history.tree().clone();
        tree.add(dir, &name, attr.ino.0, node);
        self.history.push(op, tree);
        if kind == FileKind::Regular {
            self.history.add_file(op, attr.ino.0);
        }
        self.see(attr.ino.0, start, Moves::Must, Moves::Must).await?;
        self.see(dir, start, Moves::Must, Moves::Must).await
    }

    /// A file without a name, and perhaps one for it later.
    pub async fn create_unnamed(&mut self) -> Step {
        let dir = self.any_dir();
        self.note(format!("create without a name in {dir}"));
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let made = again(|| client.create_unnamed(USER, Ino(dir), 0o640).wait()).await;
        let (attr, handle) = made.map_err(|e| fenced_or(e, "a file without a name"))?;
        let op = self.history.next_op();
        let mut node = Node::new(FileKind::Regular, 0o640);
        node.nlink = 0;
        if self.history.tree().node(dir).is_some_and(|dir| dir.mode & mode::SETGID != 0) {
            node.gid = self.history.tree().node(dir).map_or(0, |dir| dir.gid);
        }
        let mut tree = self.history.tree().clone();
        tree.nodes.insert(attr.ino.0, std::sync::Arc::new(node));
        self.history.push(op, tree);
        self.history.add_file(op, attr.ino.0);
        self.open.push(crate::run::Open { handle, ino: attr.ino.0, append: false });
        self.see(attr.ino.0, start, Moves::Must, Moves::Must).await?;
        self.write_to(handle, attr.ino.0, false).await?;
        if self.chance.percent(60) {
            let (dir, name) = (self.any_dir(), self.any_name());
            self.link_to(attr.ino.0, dir, name).await?;
        }
        Ok(())
    }

    pub async fn link(&mut self) -> Step {
        let ino = self.any_inode();
        let (dir, name) = (self.any_dir(), self.any_name());
        self.link_to(ino, dir, name).await
    }

    async fn link_to(&mut self, ino: u64, dir: u64, name: Vec<u8>) -> Step {
        self.note(format!("link {ino} as {dir}/{}", name.escape_ascii()));
        let (op, mut tree) = (self.history.next_op(), self.history.tree().clone());
        let model = tree.link(ino, dir, &name).map(|()| (op, tree));
        let done = model.is_ok();
        if done && self.history.tree().node(ino).is_some_and(Node::is_file) {
            self.history.file(ino).committed_before(op);
            self.touch(op, ino);
        }
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = async || again(|| client.link(Ino(ino), Ino(dir), &name).wait()).await;
        if self.agreed("link", &[ino, dir], model, answer).await?.is_some() {
            self.see(ino, start, Moves::No, Moves::Must).await?;
            self.see(dir, start, Moves::Must, Moves::Must).await?;
        }
        Ok(())
    }

    pub async fn remove(&mut self, directory: bool) -> Step {
        let (dir, name) = self.any_entry();
        let directory = match self.history.tree().lookup(dir, &name) {
            Ok(ino) if self.chance.percent(90) => self.history.tree().node(ino).is_some_and(Node::is_dir),
            _ => directory,
        };
        self.note(format!("remove {dir}/{} directory={directory}", name.escape_ascii()));
        let (op, mut tree) = (self.history.next_op(), self.history.tree().clone());
        let gone = tree.remove(dir, &name, directory);
        let model = gone.clone().map(|_| (op, tree));
        if let Ok((ino, _)) = gone {
            self.touch(op, ino);
        }
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = async || match directory {
            true => again(|| client.rmdir(Ino(dir), &name).wait()).await,
            false => again(|| client.unlink(Ino(dir), &name).wait()).await,
        };
        self.agreed("remove", &[dir], model, answer).await?;
        let Ok((ino, last)) = gone else { return Ok(()) };
        self.see(dir, start, Moves::Must, Moves::Must).await?;
        if last {
            self.lost(ino);
            return Ok(());
        }
        self.see(ino, start, Moves::No, Moves::Must).await
    }

    /// An inode has no name any more. It goes when it is neither open nor known to the user.
    fn lost(&mut self, ino: u64) {
        self.nameless.push(ino);
        if self.open.iter().any(|open| open.ino == ino) {
            self.chance.count("op unlink_open");
        }
        if self.chance.percent(50) {
            self.forget();
        }
    }

    /// The user forgets the inodes without names.
    pub fn forget(&mut self) {
        for ino in std::mem::take(&mut self.nameless) {
            self.stack().client.forget(Ino(ino));
            self.drop_if_gone(ino);
        }
    }

    pub fn drop_if_gone(&mut self, ino: u64) {
        let nameless = self.history.tree().node(ino).is_some_and(|node| node.nlink == 0);
        if nameless && !self.nameless.contains(&ino) && self.open.iter().all(|open| open.ino != ino) {
            self.history.tree_mut().nodes.remove(&ino);
        }
    }

    pub async fn rename(&mut self, how: RenameMode) -> Step {
        let (dir, name) = self.any_entry();
        let (to, new) = match self.chance.percent(60) {
            true => self.any_entry(),
            false => (self.any_dir(), self.any_name()),
        };
        self.note(format!("rename {how:?} {dir}/{} {to}/{}", name.escape_ascii(), new.escape_ascii()));
        let (op, mut tree) = (self.history.next_op(), self.history.tree().clone());
        let source = tree.lookup(dir, &name).ok();
        let target = tree.lookup(to, &new).ok();
        let gone = tree.rename((dir, &name), (to, &new), how);
        let moved = gone.is_ok() && (how == RenameMode::Exchange || source != target);
        if let Some(source) = source.filter(|_| moved) {
            if target.is_some() && tree.node(source).is_some_and(Node::is_file) {
                self.history.file(source).committed_before(op);
            }
            self.touch(op, source);
        }
        if let Some(target) = target.filter(|target| moved && Some(*target) != source) {
            self.touch(op, target);
        }
        let model = gone.clone().map(|_| (op, tree));
        let touched: Vec<u64> = [Some(dir), Some(to), source, target].into_iter().flatten().collect();
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = async || again(|| client.rename(Ino(dir), &name, Ino(to), &new, how).wait()).await;
        if self.agreed("rename", if moved { &touched } else { &[] }, model, answer).await?.is_none() || !moved
        {
            return Ok(());
        }
        self.see(dir, start, Moves::Must, Moves::Must).await?;
        if to != dir {
            self.see(to, start, Moves::Must, Moves::Must).await?;
        }
        for ino in [source, target].into_iter().flatten() {
            // A directory may be both: what was renamed into it counts as well.
            let own = if ino == dir || ino == to { Moves::May } else { Moves::No };
            if Ok(Some(ino)) != gone {
                self.see(ino, start, own, Moves::Must).await?;
            }
        }
        if let Ok(Some(ino)) = gone {
            self.lost(ino);
        }
        Ok(())
    }

    pub async fn set_attributes(&mut self) -> Step {
        let ino = self.any_inode();
        let (mut set, mut mtime) = (SetAttr::default(), Moves::No);
        match self.chance.below(3) {
            0 => set.mode = Some(self.chance.below(0o10000) as u32),
            1 => {
                set.uid = Some(self.chance.below(4) as u32);
                set.gid = self.chance.percent(50).then(|| self.chance.below(4) as u32);
            }
            _ => {
                let time = Timespec { sec: self.chance.below(2_000_000_000) as i64, nsec: 7 };
                (set.mtime, mtime) = (Some(SetTime::To(time)), Moves::To(time));
            }
        }
        self.note(format!("set attributes of {ino}: {set:?}"));
        let (op, mut tree) = (self.history.next_op(), self.history.tree().clone());
        change(tree.change(ino), &set);
        self.touch(op, ino);
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = async || again(|| client.setattr(USER, Ino(ino), set, None::<Handle>).wait()).await;
        self.agreed("attributes", &[ino], Ok((op, tree)), answer).await?;
        self.see(ino, start, mtime, Moves::Must).await
    }

    pub async fn set_xattr(&mut self) -> Step {
        let ino = self.any_inode();
        let name = [b"user.a", b"user.b", b"user.c"][self.chance.below(3) as usize].to_vec();
        let value = self.bytes(self.chance.below(200) as usize);
        let how = [XattrMode::Any, XattrMode::Create, XattrMode::Replace][self.chance.below(3) as usize];
        self.note(format!("set {} of {ino}, {how:?}", name.escape_ascii()));
        let (op, mut tree) = (self.history.next_op(), self.history.tree().clone());
        let had = tree.change(ino).xattrs.contains_key(&name);
        let model = match (how, had) {
            (XattrMode::Create, true) => Err(FsError::Exists),
            (XattrMode::Replace, false) => Err(FsError::NoAttribute),
            _ => {
                tree.change(ino).xattrs.insert(name.clone(), value.clone());
                Ok((op, tree))
            }
        };
        let done = model.is_ok();
        if done {
            self.touch(op, ino);
        }
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = async || again(|| client.setxattr(Ino(ino), &name, &value, how).wait()).await;
        self.agreed("setxattr", &[ino], model, answer).await?;
        if done { self.see(ino, start, Moves::No, Moves::Must).await } else { Ok(()) }
    }

    pub async fn remove_xattr(&mut self) -> Step {
        let ino = self.any_inode();
        let own = self.history.tree().node(ino).and_then(|node| node.xattrs.keys().next().cloned());
        let name = own.unwrap_or_else(|| b"user.a".to_vec());
        self.note(format!("remove {} of {ino}", name.escape_ascii()));
        let (op, mut tree) = (self.history.next_op(), self.history.tree().clone());
        let had = tree.change(ino).xattrs.remove(&name).is_some();
        if had {
            self.touch(op, ino);
        }
        let model = if had { Ok((op, tree)) } else { Err(FsError::NoAttribute) };
        let (client, start) = (self.stack().client.clone(), self.stack().clock_now());
        let answer = async || again(|| client.removexattr(Ino(ino), &name).wait()).await;
        self.agreed("removexattr", &[ino], model, answer).await?;
        if had { self.see(ino, start, Moves::No, Moves::Must).await } else { Ok(()) }
    }

    /// A directory and an inode's attributes as they are read.
    pub async fn look(&mut self) -> Step {
        let (dir, page) = (self.any_dir(), 1 + self.chance.below(4) as usize);
        self.note(format!("list {dir} by {page}"));
        let mut found: Vec<(Vec<u8>, u64)> =
            self.list(dir, page).await?.into_iter().map(|(name, attr)| (name, attr.ino.0)).collect();
        found.sort();
        let entries = self.history.tree().node(dir).map(|node| node.entries.clone()).unwrap_or_default();
        let expected: Vec<(Vec<u8>, u64)> = entries.into_iter().collect();
        if found != expected {
            return Err(format!("directory {dir} lists {found:?}, not {expected:?}").into());
        }
        let (ino, client) = (self.any_inode(), self.stack().client.clone());
        let names =
            again(|| client.listxattr(Ino(ino)).wait()).await.map_err(|e| fenced_or(e, "listxattr"))?;
        let Some(node) = self.history.tree().node(ino).cloned() else { return Ok(()) };
        if names != node.xattrs.keys().cloned().collect::<Vec<_>>() {
            return Err(
                format!("inode {ino} has the attributes {names:?}, not {:?}", node.xattrs.keys()).into()
            );
        }
        for (name, value) in &node.xattrs {
            let found = again(|| client.getxattr(Ino(ino), name).wait()).await;
            if let Err(error @ (FsError::Fenced | FsError::Io(_))) = found {
                return Err(fenced_or(error, "getxattr"));
            }
            if found.as_ref() != Ok(value) {
                return Err(format!("attribute {} of {ino} is {found:?}", name.escape_ascii()).into());
            }
        }
        let now = self.stack().clock_now();
        self.see(ino, now, Moves::No, Moves::No).await
    }
}

/// What setting attributes does to a node.
fn change(node: &mut Node, set: &SetAttr) {
    if (set.uid.is_some() || set.gid.is_some()) && node.is_file() {
        node.mode &= !mode::SETUID;
        if node.mode & mode::GROUP_EXEC != 0 {
            node.mode &= !mode::SETGID;
        }
    }
    node.mode = set.mode.unwrap_or(node.mode);
    node.uid = set.uid.unwrap_or(node.uid);
    node.gid = set.gid.unwrap_or(node.gid);
}
