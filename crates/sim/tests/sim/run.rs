//! One world from its making to its end: lives that begin with an import and end with a crash or a remount.

use crate::chance::Chance;
use crate::disk::LATEST;
use crate::host;
use crate::stack::{self, Disks, Shape, Stack};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tarn_base::posix::{Attr, FileKind};
use tarn_base::{FsError, Ino, Timespec};
use tarn_client::{Handle, OpenMode};
use tarn_sim::history::{Found, History};
use tarn_sim::tree::{Node, ROOT};

/// No call may take longer than this, faults and all.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long a host that was taken over may go unaware of it: the authority is asked every 5 s.
const UNAWARE: Duration = Duration::from_secs(8);

/// Why a life cannot go on.
#[derive(Debug, Clone)]
pub enum Halt {
    /// Something is not as it must be.
    Wrong(String),
    /// A call failed for longer than a bucket does.
    Failed(String),
    /// Another host has the pool.
    Fenced,
}

impl From<String> for Halt {
    fn from(text: String) -> Halt {
        Halt::Wrong(text)
    }
}

pub type Step<T = ()> = Result<T, Halt>;

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Crash,
    Remount,
    Over,
}

/// An open file.
#[derive(Clone, Copy)]
pub struct Open {
    pub handle: Handle,
    pub ino: u64,
    pub append: bool,
}

pub struct Run {
    pub chance: Arc<Chance>,
    pub shape: Shape,
    disks: Disks,
    stack: Option<Stack>,
    pub history: History,
    pub open: Vec<Open>,
    /// Inodes without names that this client's user has not forgotten yet.
    pub nameless: Vec<u64>,
    /// Operations still to do.
    pub left: u64,
    /// Number of the host that has the pool.
    on: u64,
    born: bool,
    /// The last life ended by a crash or a takeover.
    crashed: bool,
    log: Vec<String>,
    /// Times of inodes as they were before the operation under way.
    pub before: BTreeMap<u64, (Timespec, Timespec)>,
}

/// What a world came to.
pub struct Outcome {
    pub counts: BTreeMap<String, u64>,
    pub trace: u64,
    pub wrong: Option<String>,
}

/// Runs a world of so many operations.
pub fn run(seed: u64, operations: u64) -> Outcome {
    host::arm(seed);
    let chance = Arc::new(Chance::new(seed));
    let shape = Shape::draw(&chance);
    let disks = Disks::new(&chance, &shape);
    let history = History::new(shape.record_size as usize);
    let mut run = Run {
        chance: chance.clone(),
        shape,
        disks,
        stack: None,
        history,
        open: Vec::new(),
        nameless: Vec::new(),
        left: operations,
        on: 0,
        born: false,
        crashed: false,
        log: Vec::new(),
        before: BTreeMap::new(),
    };
    let wrong = run.lives().err();
    for fault in &run.disks.faults {
        for (name, count) in fault.happened() {
            chance.count_more(&format!("fault {name}"), count);
        }
    }
    let wrong = wrong.map(|why| format!("{why}\nthe world: {:?}\n{}", run.shape, run.recent()));
    Outcome { counts: chance.counts(), trace: chance.trace_hash(), wrong }
}

impl Run {
    fn recent(&self) -> String {
        let from = self.log.len().saturating_sub(60);
        format!("the last operations:\n    {}", self.log[from..].join("\n    "))
    }

    fn lives(&mut self) -> Result<(), String> {
        loop {
            let runtime = host::runtime().map_err(|e| e.to_string())?;
            self.chance.live();
            let end = runtime.block_on(async {
                let chance = self.chance.clone();
                tokio::select! {
                    biased;
                    () = chance.crashes() => Ok(End::Crash),
                    end = self.life() => end,
                }
            });
            // Whoever did not say goodbye ends here, in the middle of whatever it does.
            self.chance.stop();
            self.count_work();
            drop(runtime);
            host::end_process();
            match end {
                Ok(End::Over) => return Ok(()),
                Ok(End::Remount) => self.chance.count("op remount"),
                Ok(End::Crash) => {
                    self.note("the machine stops".into());
                    self.chance.count("op crash");
                    self.disks.disks.iter().for_each(|disk| disk.crash());
                    self.crashed = true;
                }
                Err(Halt::Wrong(why) | Halt::Failed(why)) => return Err(why),
                Err(Halt::Fenced) => return Err("the only host was refused".into()),
            }
        }
    }

    /// What went on in the background of the life that ends, and the end of its stack.
    fn count_work(&mut self) {
        let Some(stack) = self.stack.take() else { return };
        let stats = stack.mdt.stats();
        let work = [
            ("txgs", stats.txgs),
            ("reaped", stats.reaped),
            ("segments_deleted", stats.segments_deleted),
            ("segments_compacted", stats.segments_compacted),
        ];
        for (what, count) in work {
            self.chance.count_more(&format!("work {what}"), count);
        }
    }

    /// From an import to the end of a life.
    async fn life(&mut self) -> Step<End> {
        let pool = self.import().await?;
        self.enter(pool).await?;
        self.disks.storm(&self.chance, self.shape.rates);
        let started = tokio::time::Instant::now();
        while self.left > 0 {
            match self.chance.below(1000) {
                0..8 if !self.chance.crash_is_set() => {
                    if self.chance.percent(30) {
                        return Ok(End::Crash);
                    }
                    self.chance.crash_after(1 + self.chance.below(60));
                }
                8..16 if !self.chance.crash_is_set() => {
                    // What was on its way when the last machine stopped has arrived or never will.
                    tokio::time::sleep_until(started + 2 * LATEST).await;
                    self.leave().await?;
                    return Ok(End::Remount);
                }
                16..21 if !self.chance.crash_is_set() => self.taken_over().await?,
                21..29 if self.stack().is_remote() => {
                    self.note("the connection is cut".into());
                    self.chance.count("op cut");
                    self.stack().cut();
                }
                29..35 if self.stack().is_remote() => self.restart_server().await?,
                _ => {}
            }
            self.left -= 1;
            self.step().await?;
        }
        tokio::time::sleep_until(started + 2 * LATEST).await;
        self.leave().await?;
        self.look_back().await?;
        Ok(End::Over)
    }

    /// The pool, made or imported, faults or not.
    async fn import(&mut self) -> Step<Arc<tarn_pool::Pool>> {
        self.disks.calm();
        if !self.born {
            let pool = stack::create(&self.disks, &self.shape, self.on).await?;
            self.born = true;
            return Ok(pool);
        }
        if self.chance.percent(50) {
            self.disks.storm(&self.chance, self.shape.rates);
        }
        if self.crashed && self.chance.percent(10) {
            self.chance.crash_after(1 + self.chance.below(60));
        }
        let mut why = String::new();
        for attempt in 0..40 {
            match stack::import(&self.disks, self.on, false).await {
                Ok(pool) => return Ok(pool),
                Err(error) => why = error.to_string(),
            }
            if attempt > 20 {
                self.disks.calm();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Err(format!("the pool cannot be imported: {why}").into())
    }

    /// Opens the dataset, and holds what is there against the model.
    async fn enter(&mut self, pool: Arc<tarn_pool::Pool>) -> Step {
        let mut tries = 0;
        let stack = loop {
            match Stack::open(pool.clone(), &self.shape).await {
                Ok(stack) => break stack,
                Err(error) if tries > 40 => {
                    return Err(format!("the dataset cannot be opened: {error}").into());
                }
                Err(_) => tries += 1,
            }
            if tries > 20 {
                self.disks.calm();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        self.stack = Some(stack);
        self.open.clear();
        self.nameless.clear();
        self.disks.calm();
        let found = self.read_back().await?;
        if self.crashed {
            self.history.may_survive(&found).map_err(|why| format!("after the crash: {why}"))?;
        } else if self.chance.life.load(SeqCst) > 1 {
            self.history.is_now(&found).map_err(|why| format!("after the remount: {why}"))?;
        }
        self.history.adopt(found);
        self.crashed = false;
        self.check().await
    }

    async fn leave(&mut self) -> Step {
        self.note("unmount".into());
        for open in std::mem::take(&mut self.open) {
            self.stack().client.close(open.handle);
        }
        for ino in std::mem::take(&mut self.nameless) {
            self.stack().client.forget(Ino(ino));
        }
        let stack = self.stack().clone();
        let mut tries = 0;
        loop {
            match tokio::time::timeout(LONGEST, stack.close()).await {
                Ok(Ok(())) => break,
                Ok(Err(why)) if tries > 40 => return Err(why.into()),
                Ok(Err(_)) => tries += 1,
                Err(_) => return Err("the unmount has no end".to_string().into()),
            }
            self.disks.calm();
        }
        self.history.synced();
        let open = |_| false;
        self.history.forget_gone(open);
        Ok(())
    }

    /// The client's server ends, and another takes its place: the client does not notice.
    async fn restart_server(&mut self) -> Step {
        self.note("the server is started anew".into());
        self.chance.count("op restart");
        self.stack().end_server();
        let shape = self.shape.clone();
        let mut tries = 0;
        while let Err(error) = self.stack_mut().begin_server(&shape).await {
            if tries > 40 {
                return Err(format!("the server cannot be started anew: {error}").into());
            }
            tries += 1;
            if tries > 20 {
                self.disks.calm();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// The end of a world: everything once more, from the buckets.
    async fn look_back(&mut self) -> Step {
        self.crashed = false;
        let pool = self.import().await?;
        self.enter(pool).await?;
        self.leave().await
    }

    /// Another host takes the pool while this one goes on.
    async fn taken_over(&mut self) -> Step {
        self.chance.count("op takeover");
        self.note("another host takes the pool".into());
        self.refuse_without_force().await?;
        let old = self.stack().clone();
        let (on, disks, shape) = (self.on + 1, self.disks.urls.clone(), self.shape.clone());
        let chance = self.chance.clone();
        let take = async {
            let buckets = Disks { disks: Vec::new(), faults: Vec::new(), urls: disks };
            tokio::time::sleep(Duration::from_micros(chance.below(200_000))).await;
            let mut why = String::new();
            let mut pool = None;
            for _ in 0..60 {
                match &pool {
                    None => match stack::import(&buckets, on, true).await {
                        Ok(taken) => pool = Some(taken),
                        Err(error) => why = error.to_string(),
                    },
                    Some(pool) => match Stack::open(pool.clone(), &shape).await {
                        Ok(stack) => return Ok(stack),
                        Err(error) => why = error.to_string(),
                    },
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(Halt::Wrong(format!("the pool cannot be taken over: {why}")))
        };
        let goes_on = async {
            for _ in 0..chance.below(12) {
                match self.step().await {
                    // It may also miss what the newcomer has freed.
                    Err(Halt::Fenced | Halt::Failed(_)) => return Ok(()),
                    other => other?,
                }
            }
            Step::Ok(())
        };
        let (taken, went_on) = tokio::join!(take, goes_on);
        went_on?;
        let new = taken?;
        tokio::time::sleep(UNAWARE).await;
        self.disks.calm();
        refused(&old).await?;
        self.on = on;
        self.crashed = true;
        self.count_work();
        set_comment(&new, &format!("host {on}")).await?;
        let _ = tokio::time::timeout(LONGEST, old.mdt.close()).await;
        drop(old);
        self.enter_taken(new).await?;
        self.disks.storm(&self.chance, self.shape.rates);
        Ok(())
    }

    /// Without force nobody gets what another host has.
    async fn refuse_without_force(&mut self) -> Step {
        self.disks.calm();
        let answer = stack::import(&self.disks, self.on + 1, false).await;
        self.disks.storm(&self.chance, self.shape.rates);
        match answer {
            Err(tarn_pool::Error::Held(_)) => Ok(()),
            Err(other) => Err(format!("an import without force ended with: {other}").into()),
            Ok(_) => Err("a pool that is in use was imported without force".to_string().into()),
        }
    }

    async fn enter_taken(&mut self, new: Stack) -> Step {
        self.stack = Some(new);
        self.open.clear();
        self.nameless.clear();
        let found = self.read_back().await?;
        self.history.may_survive(&found).map_err(|why| format!("after the takeover: {why}"))?;
        self.history.adopt(found);
        self.crashed = false;
        self.check().await
    }

    pub fn stack(&self) -> &Stack {
        // Set by `enter` before anything else happens in a life.
        self.stack.as_ref().expect("a life has a stack")
    }

    fn stack_mut(&mut self) -> &mut Stack {
        self.stack.as_mut().expect("a life has a stack")
    }

    pub fn note(&mut self, text: String) {
        self.chance.trace(&text);
        let at = self.log.len();
        self.log.push(format!("{at} {text}"));
    }

    /// The dataset's own checker, every byte.
    async fn check(&mut self) -> Step {
        let report = self.stack().mdt.check(true, |_| {}).await.map_err(|e| format!("check: {e}"))?;
        if report.is_clean() {
            return Ok(());
        }
        let problems: Vec<String> = report.problems().take(20).collect();
        Err(format!("the check found: {}", problems.join("; ")).into())
    }

    /// The whole file system as the client shows it.
    async fn read_back(&mut self) -> Step<Found> {
        let mut found = Found::default();
        let root = self.attr(ROOT).await?;
        self.take_in(&mut found, &root, ROOT).await?;
        let mut dirs = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            for (name, attr) in self.list(dir, 7).await? {
                found.tree.change(dir).entries.insert(name, attr.ino.0);
                if found.tree.node(attr.ino.0).is_some() {
                    continue;
                }
                self.take_in(&mut found, &attr, dir).await?;
                if attr.kind == FileKind::Directory {
                    dirs.push(attr.ino.0);
                }
            }
        }
        for ino in found.tree.reachable() {
            let Some(node) = found.tree.node(ino) else { continue };
            let size = self.attr(ino).await?.size;
            if node.is_dir() && size != node.entries.len() as u64 {
                return Err(
                    format!("directory {ino} says {size} entries and has {}", node.entries.len()).into()
                );
            }
        }
        Ok(found)
    }

    async fn take_in(&mut self, found: &mut Found, attr: &Attr, parent: u64) -> Step {
        let (ino, client) = (attr.ino, self.stack().client.clone());
        let mut node = Node::new(attr.kind, attr.mode);
        (node.uid, node.gid, node.rdev, node.nlink) = (attr.uid, attr.gid, attr.rdev, attr.nlink);
        node.times = Some((attr.mtime, attr.ctime));
        if attr.kind == FileKind::Directory {
            node.parent = if ino.0 == ROOT { ROOT } else { parent };
        }
        let said = |what: &str, e: FsError| Halt::Wrong(format!("{what} of inode {ino}: {e}"));
        if attr.kind == FileKind::Symlink {
            node.target = client.readlink(ino).wait().await.map_err(|e| said("target", e))?;
        }
        for name in client.listxattr(ino).wait().await.map_err(|e| said("attributes", e))? {
            let value = client.getxattr(ino, &name).wait().await.map_err(|e| said("attribute", e))?;
            node.xattrs.insert(name, value);
        }
        if attr.kind == FileKind::Regular {
            let mode = OpenMode { read: true, ..OpenMode::default() };
            let (handle, ..) = client.open(ino, mode).wait().await.map_err(|e| said("opening", e))?;
            let data =
                client.read(handle, 0, attr.size as usize + 1).wait().await.map_err(|e| said("data", e))?;
            client.close(handle);
            if data.len() as u64 != attr.size {
                return Err(format!("file {ino} says {} bytes and has {}", attr.size, data.len()).into());
            }
            found.data.insert(ino.0, data.to_vec());
        }
        found.tree.nodes.insert(ino.0, Arc::new(node));
        Ok(())
    }

    pub async fn attr(&self, ino: u64) -> Step<Attr> {
        let client = self.stack().client.clone();
        let answer = again(|| client.getattr(Ino(ino)).wait()).await;
        answer.map_err(|e| fenced_or(e, &format!("attributes of inode {ino}")))
    }

    /// A directory's entries, so many at a time.
    pub async fn list(&self, dir: u64, page: usize) -> Step<Vec<(Vec<u8>, Attr)>> {
        let client = self.stack().client.clone();
        let (mut cookie, mut all) = (0, Vec::new());
        loop {
            let answer = again(|| client.readdir(Ino(dir), cookie, page).wait()).await;
            let entries = answer.map_err(|e| fenced_or(e, &format!("listing of {dir}")))?;
            let Some(last) = entries.last() else { return Ok(all) };
            if last.cookie <= cookie {
                return Err(format!("listing of {dir}: the cookie does not grow").into());
            }
            cookie = last.cookie;
            all.extend(entries.into_iter().map(|entry| (entry.name, entry.attr)));
        }
    }
}

/// Sets a property, which a pool takes as soon as it has found that its buckets answer again.
async fn set_comment(stack: &Stack, comment: &str) -> Step {
    let mut why = String::new();
    for _ in 0..30 {
        match stack.pool.set_property("comment", comment).await {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Err(Halt::Wrong(format!("the new host's property: {why}")))
}

/// A host that was taken over long enough ago must be refused.
async fn refused(old: &Stack) -> Step {
    if !matches!(old.pool.check_authority().await, Err(tarn_pool::Error::Fenced)) {
        return Err("a host does not know that its pool was taken over".to_string().into());
    }
    match old.pool.set_property("comment", "of the old host").await {
        Err(tarn_pool::Error::Fenced) => Ok(()),
        // It is told of its buckets first.
        Err(tarn_pool::Error::Bucket(_)) if old.pool.suspended().is_some() => Ok(()),
        other => Err(format!("a host that was taken over set a property: {other:?}").into()),
    }
}

pub fn fenced_or(error: FsError, what: &str) -> Halt {
    match error {
        FsError::Fenced => Halt::Fenced,
        FsError::Io(why) => Halt::Failed(format!("{what}: {why}")),
        other => Halt::Wrong(format!("{what}: {other}")),
    }
}

/// Tries until it succeeds or fails for a reason of its own: what a bucket refused may work the next time.
pub async fn again<T, F: Future<Output = Result<T, FsError>>>(call: impl Fn() -> F) -> Result<T, FsError> {
    let mut tries = 0;
    loop {
        let answer = tokio::time::timeout(LONGEST, call()).await;
        match answer.unwrap_or_else(|_| Err(FsError::invalid("it has no end"))) {
            Err(FsError::Io(_)) if tries < 100 => tries += 1,
            other => return other,
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
