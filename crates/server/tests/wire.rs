//! A metadata server at the other end of a stream: the same calls, over a real dataset on a pool in memory.

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tarn_base::block::{SEGMENT_OBJECT_MAX, SEGMENT_RECORDS_MAX, SEGMENT_SIZE_MAX};
use tarn_base::posix::{Cred, FileKind, NewNode, RenameMode, SetAttr, XattrMode};
use tarn_base::{
    ChecksumKind, Compression, DatasetId, FsError, Ino, RecordOwner, SegmentId, SystemClock, Txg, VdevId,
};
use tarn_mdt::{Mdt, MdtOptions};
use tarn_pool::{CreateSpec, HostId, Pool, SegmentBuilder};
use tarn_proto::wire::{
    Broken, Dial, Export, Hello, Incoming, Link, Outward, Refusal, RemoteMds, RemoteOss, Served, serve,
};
use tarn_proto::{LockKind, LockMode, LockOwner, LockRange, Mds, Oss, OssError};
use tarn_server::{Exported, LocalMds};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const ROOT: Cred = Cred { uid: 0, gid: 0 };

const DATASET: DatasetId = DatasetId(1);

const ALL: LockRange = LockRange { start: 0, end: u64::MAX };

/// A host: its disks outlive it.
struct World {
    pool: Arc<Pool>,
    mdt: Mutex<Arc<Mdt>>,
    export: Mutex<Arc<Exported>>,
    /// Ends the connections there are.
    connections: Mutex<Vec<JoinHandle<Result<(), Broken>>>>,
    up: AtomicBool,
}

impl Export for World {
    fn admit<'a>(&'a self, hello: &'a Hello) -> BoxFuture<'a, Result<Served, Refusal>> {
        let export = self.export.lock().clone();
        Box::pin(async move {
            match hello.dataset.as_str() {
                "tank" => export.admit(hello).await,
                other => Err(Refusal::Not(format!("there is no dataset '{other}'"))),
            }
        })
    }
}

impl World {
    async fn new() -> Arc<World> {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let n = WORLDS.fetch_add(1, Relaxed);
        let spec = CreateSpec {
            name: "tank".into(),
            urls: (0..3).map(|i| format!("mem://wire-{}-{n}-{i}", std::process::id())).collect(),
            properties: BTreeMap::from([("rewind".into(), "0".into())]),
            root_properties: BTreeMap::new(),
            host: HostId { id: 7, name: "here".into() },
            force: false,
        };
        let pool = Pool::create(spec).await.expect("pool");
        let mdt = open(&pool).await;
        let export = Mutex::new(Exported::new("tank", pool.clone(), mdt.clone(), BTreeMap::new()));
        Arc::new(World {
            pool,
            mdt: Mutex::new(mdt),
            export,
            connections: Mutex::default(),
            up: AtomicBool::new(true),
        })
    }

    /// The dataset without a wire.
    fn local(&self) -> Arc<LocalMds> {
        LocalMds::new(self.mdt.lock().clone())
    }

    /// Breaks every connection, and returns when nobody answers on one any more.
    async fn cut(&self) {
        let connections: Vec<_> = self.connections.lock().drain(..).collect();
        for connection in connections {
            connection.abort();
            let _ = connection.await;
        }
    }

    /// The host's process is there, or it is not.
    async fn set_up(&self, up: bool) {
        self.up.store(up, Relaxed);
        self.cut().await;
    }

    /// Ends the host's process and starts it anew: what is not durable is lost.
    async fn crash(&self) {
        self.crash_and(|_| async {}).await;
    }

    /// The same, with something that the new one does before anybody is let in.
    async fn crash_and<F: Future<Output = ()>>(&self, first: impl FnOnce(Arc<Mdt>) -> F) {
        self.set_up(false).await;
        self.mdt.lock().abandon();
        let mdt = open(&self.pool).await;
        first(mdt.clone()).await;
        *self.export.lock() = Exported::new("tank", self.pool.clone(), mdt.clone(), BTreeMap::new());
        *self.mdt.lock() = mdt;
        self.up.store(true, Relaxed);
    }
}

async fn open(pool: &Arc<Pool>) -> Arc<Mdt> {
    let options = MdtOptions::new(Arc::new(SystemClock::default()));
    Mdt::open(pool.clone(), DATASET, options).await.expect("dataset")
}

/// A way to the host.
struct Way(Arc<World>);

#[async_trait::async_trait]
impl Dial for Way {
    fn name(&self) -> String {
        "world".into()
    }

    async fn dial(&self) -> std::io::Result<(Incoming, Outward)> {
        if !self.0.up.load(Relaxed) {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let (stream, served) = dial(&self.0);
        self.0.connections.lock().push(served);
        let (reader, writer) = split(stream);
        Ok((Box::new(reader), Box::new(writer)))
    }
}

/// A stream to a server of its own; what the server says of it at its end.
fn dial(world: &Arc<World>) -> (DuplexStream, JoinHandle<Result<(), Broken>>) {
    let (here, there) = duplex(64 << 10);
    let (reader, writer) = split(there);
    let world = world.clone();
    (here, tokio::spawn(async move { serve(&*world, reader, writer).await }))
}

async fn connect(world: &Arc<World>, dataset: &str) -> Result<Arc<Link>, Broken> {
    Link::open(Box::new(Way(world.clone())), 1, dataset).await
}

fn node(kind: FileKind) -> NewNode {
    NewNode { kind, mode: 0o750, umask: 0, rdev: 0, target: Vec::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_call_answers_as_it_does_without_a_wire() {
    let world = World::new().await;
    let mds = RemoteMds::new(connect(&world, "tank").await.unwrap());
    let dir = mds.create(ROOT, Ino::ROOT, b"dir", node(FileKind::Directory)).wait().await.unwrap();
    let file = mds.create(ROOT, dir.ino, b"na\xffme", node(FileKind::Regular)).wait().await.unwrap();
    assert_eq!(world.local().lookup(dir.ino, b"na\xffme").wait().await, Ok(file));
    assert_eq!(mds.lookup(dir.ino, b"na\xffme").wait().await, Ok(file));
    assert_eq!(mds.lookup(dir.ino, b"none").wait().await, Err(FsError::NotFound));
    assert_eq!(
        mds.setattr(file.ino, SetAttr { size: Some(5), ..SetAttr::default() }).wait().await.unwrap().size,
        5
    );
    let long = vec![b'v'; 60_000];
    mds.setxattr(file.ino, b"user.a", &long, XattrMode::Create).wait().await.unwrap();
    assert_eq!(mds.getxattr(file.ino, b"user.a").wait().await, Ok(long));
    assert_eq!(mds.listxattr(file.ino).wait().await, Ok(vec![b"user.a".to_vec()]));
    let moved = mds.rename(dir.ino, b"na\xffme", Ino::ROOT, b"x", RenameMode::NoReplace).wait().await;
    assert_eq!(moved, Ok(None));
    let names = mds.names(Ino::ROOT, 0, 10).wait().await.unwrap();
    let mut names: Vec<_> = names.into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, [b"dir".to_vec(), b"x".to_vec()]);
    let grants = mds.grants(vec![VdevId(0), VdevId(2)]).wait().await.unwrap();
    assert_eq!((grants.len(), grants[1].vdev), (2, VdevId(2)));
    mds.open(file.ino).wait().await.unwrap();
    assert_eq!(mds.unlink(Ino::ROOT, b"x").wait().await, Ok(Some(file.ino)));
    // It is open twice now; a close has no answer, so that what follows shows it.
    mds.close(file.ino);
    mds.close(file.ino);
    mds.sync().wait().await.unwrap();
    assert_eq!(
        mds.getattr(file.ino).wait().await.map(|attr| attr.ino),
        world.local().getattr(file.ino).wait().await.map(|attr| attr.ino)
    );
    assert_eq!(mds.info(), world.local().info());
    assert_eq!(
        mds.statfs().wait().await.unwrap().inodes,
        world.local().statfs().wait().await.unwrap().inodes
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_are_under_way_at_once_and_one_that_waits_holds_up_no_other() {
    let world = World::new().await;
    let mds = Arc::new(RemoteMds::new(connect(&world, "tank").await.unwrap()));
    let file = mds.create(ROOT, Ino::ROOT, b"file", node(FileKind::Regular)).wait().await.unwrap().ino;
    let owner = |token| LockOwner { kind: LockKind::Posix, token, pid: 1 };
    mds.lock(file, owner(1), ALL, LockMode::Exclusive, true).wait().await.unwrap();
    let waits = mds.lock(file, owner(2), ALL, LockMode::Exclusive, true);
    let waits = tokio::spawn(waits.wait());
    let calls = (0..1000).map(|n| {
        let mds = mds.clone();
        tokio::spawn(async move {
            let name = format!("file{n}");
            let made = mds.create(ROOT, Ino::ROOT, name.as_bytes(), node(FileKind::Regular)).wait().await?;
            Ok::<_, FsError>(mds.lookup(Ino::ROOT, name.as_bytes()).wait().await? == made)
        })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap(), Ok(true));
    }
    assert!(!waits.is_finished());
    // Nobody waits for the second any more: the third gets the lock.
    waits.abort();
    let third = mds.lock(file, owner(3), ALL, LockMode::Exclusive, true);
    let third = tokio::spawn(third.wait());
    tokio::time::sleep(Duration::from_millis(100)).await;
    mds.unlock(file, owner(1), ALL).wait().await.unwrap();
    assert_eq!(timeout(Duration::from_secs(10), third).await.unwrap().unwrap(), Ok(()));
}

/// Whenever it is that nobody waits for a lock any more: before the server knows of it, while it waits, when it is granted,
/// or when its answer is here and nobody has looked.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_given_up_while_it_is_granted_is_given_back() {
    let world = World::new().await;
    let link = connect(&world, "tank").await.unwrap();
    let mds = Arc::new(RemoteMds::new(link));
    let file = mds.create(ROOT, Ino::ROOT, b"file", node(FileKind::Regular)).wait().await.unwrap().ino;
    let owner = |token| LockOwner { kind: LockKind::Posix, token, pid: 1 };
    let range = |start, end| LockRange { start, end };
    let (whole, before, rest) = (range(0, 29), range(0, 19), range(20, 29));
    let mut given_up = 0;
    for n in 0..400 {
        mds.lock(file, owner(1), range(5, 9), LockMode::Exclusive, false).wait().await.unwrap();
        mds.lock(file, owner(2), rest, LockMode::Shared, false).wait().await.unwrap();
        let waits = tokio::spawn(mds.lock(file, owner(2), whole, LockMode::Exclusive, true).wait());
        let unlock = tokio::spawn(mds.unlock(file, owner(1), ALL).wait());
        for _ in 0..n % 40 {
            tokio::task::yield_now().await;
        }
        waits.abort();
        unlock.await.unwrap().unwrap();
        if waits.await.is_err() {
            given_up += 1;
            let found = mds.lock_test(file, owner(3), before, LockMode::Exclusive).wait().await.unwrap();
            assert_eq!(found, None, "it has what it gave up");
            let found = mds.lock_test(file, owner(3), rest, LockMode::Exclusive).wait().await.unwrap();
            assert_eq!(found.map(|held| (held.range, held.mode)), Some((rest, LockMode::Shared)));
        }
        mds.unlock(file, owner(2), ALL).wait().await.unwrap();
    }
    assert!(given_up > 20, "{given_up}");
    // A server that is started anew hears of none of them.
    world.crash().await;
    assert_eq!(mds.lock_test(file, owner(3), ALL, LockMode::Exclusive).wait().await, Ok(None));
}

#[tokio::test]
async fn who_is_refused_is_told_why_in_a_line() {
    let world = World::new().await;
    let refused = connect(&world, "nothing").await.err().unwrap();
    assert_eq!(refused, Broken::Refused("there is no dataset 'nothing'".into()));
    // Something that is no client of ours at all.
    let (mut stream, served) = dial(&world);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(matches!(served.await.unwrap(), Err(Broken::Lost(_))));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}

/// Takes everything and says nothing.
struct Silent;

#[async_trait::async_trait]
impl Dial for Silent {
    fn name(&self) -> String {
        "silent".into()
    }

    async fn dial(&self) -> std::io::Result<(Incoming, Outward)> {
        let (here, there) = duplex(64 << 10);
        std::mem::forget(there);
        let (reader, writer) = split(here);
        Ok((Box::new(reader), Box::new(writer)))
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_that_goes_silent_is_given_up() {
    let opened = timeout(Duration::from_secs(120), Link::open(Box::new(Silent), 1, "tank")).await;
    assert!(matches!(opened.unwrap(), Err(Broken::Lost(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_at_a_time_has_a_dataset() {
    let world = World::new().await;
    let first = connect(&world, "tank").await.unwrap();
    let second = Link::open(Box::new(Way(world.clone())), 2, "tank").await;
    let why = second.err().unwrap().to_string();
    assert_eq!(why, "'tank' is in use by another client: one at a time");
    first.leave().await.unwrap();
    Link::open(Box::new(Way(world.clone())), 2, "tank").await.unwrap();
}

/// Until a client has come in or has left, nobody on the host itself may take its place.
#[tokio::test]
async fn a_dataset_is_taken_while_its_client_comes_or_leaves() {
    let world = World::new().await;
    let export = world.export.lock().clone();
    let watched = export.clone();
    // Looked at each time that the other task waits for something.
    async fn throughout<T>(export: &Exported, task: impl Future<Output = T>) -> T {
        let mut task = std::pin::pin!(task);
        std::future::poll_fn(|cx| {
            let polled = task.as_mut().poll(cx);
            assert!(polled.is_ready() || export.taken(), "somebody else could have it");
            polled
        })
        .await
    }
    assert!(!export.taken());
    let hello = Hello { oldest: 1, newest: 9, client: 1, dataset: "tank".into(), resumes: false };
    let served = throughout(&watched, export.admit(&hello)).await.ok().unwrap();
    throughout(&watched, served.session.leave()).await.unwrap();
    assert!(!export.taken());
    let moving = export.moving();
    assert!(export.taken());
    drop(moving);
    assert!(!export.taken());
}

fn bsd(token: u64) -> LockOwner {
    LockOwner { kind: LockKind::Bsd, token, pid: 1 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_made_anew_and_nothing_is_done_twice() {
    let world = World::new().await;
    let link = connect(&world, "tank").await.unwrap();
    let mds = Arc::new(RemoteMds::new(link.clone()));
    let file = mds.create(ROOT, Ino::ROOT, b"file", node(FileKind::Regular)).wait().await.unwrap().ino;
    mds.lock(file, bsd(1), ALL, LockMode::Exclusive, true).wait().await.unwrap();
    let waits = tokio::spawn(mds.lock(file, bsd(2), ALL, LockMode::Exclusive, true).wait());
    let makers: Vec<_> = (0..4)
        .map(|maker| {
            let (mds, link) = (mds.clone(), link.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    if link.connections() > 10 {
                        break;
                    }
                    let name = format!("file{maker}-{n}");
                    mds.create(ROOT, Ino::ROOT, name.as_bytes(), node(FileKind::Regular)).wait().await?;
                    mds.rename(Ino::ROOT, name.as_bytes(), Ino::ROOT, b"same", RenameMode::Replace)
                        .wait()
                        .await?;
                }
                Ok::<_, FsError>(())
            })
        })
        .collect();
    while makers.iter().any(|maker| !maker.is_finished()) {
        tokio::time::sleep(Duration::from_millis(15)).await;
        world.cut().await;
    }
    for maker in makers {
        assert_eq!(maker.await.unwrap(), Ok(()));
    }
    assert!(!waits.is_finished());
    mds.unlock(file, bsd(1), ALL).wait().await.unwrap();
    assert_eq!(timeout(Duration::from_secs(20), waits).await.unwrap().unwrap(), Ok(()));
    assert_eq!(mds.names(Ino::ROOT, 0, 10).wait().await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_had_lost_is_made_again_as_it_was() {
    let world = World::new().await;
    let link = connect(&world, "tank").await.unwrap();
    let mds = Arc::new(RemoteMds::new(link.clone()));
    let mut made = BTreeMap::new();
    for round in 0..5 {
        let dir = mds.create(ROOT, Ino::ROOT, format!("dir{round}").as_bytes(), node(FileKind::Directory));
        let dir = dir.wait().await.unwrap().ino;
        for n in 0..20 {
            let name = format!("{n}");
            let file = mds.create(ROOT, dir, name.as_bytes(), node(FileKind::Regular)).wait().await.unwrap();
            let size = SetAttr { size: Some(n), ..SetAttr::default() };
            let attr = mds.setattr(file.ino, size).wait().await.unwrap();
            made.insert((dir, name), attr);
            if n == 10 && round % 2 == 0 {
                mds.sync().wait().await.unwrap();
            }
        }
        // Open and without a name, and once more under another one.
        let open = mds.open(made[&(dir, "3".to_string())].ino).wait().await.unwrap();
        mds.unlink(dir, b"3").wait().await.unwrap();
        made.remove(&(dir, "3".to_string()));
        let linked = mds.link(made[&(dir, "4".to_string())].ino, dir, b"again").wait().await.unwrap();
        made.insert((dir, "4".into()), linked);
        made.insert((dir, "again".into()), linked);
        mds.lock(linked.ino, bsd(1), ALL, LockMode::Exclusive, false).wait().await.unwrap();
        world.crash().await;
        // It is open still.
        assert_eq!(mds.getattr(open.ino).wait().await.unwrap().ino, open.ino);
        let theirs = mds.lock_test(linked.ino, bsd(2), ALL, LockMode::Shared).wait().await.unwrap();
        assert!(theirs.is_some());
        for ((dir, name), attr) in &made {
            let now = mds.lookup(*dir, name.as_bytes()).wait().await;
            assert_eq!(now.as_ref(), Ok(attr), "{dir}/{name}");
        }
        mds.close(open.ino);
        mds.close(open.ino);
        mds.unlock(linked.ino, bsd(1), ALL).wait().await.unwrap();
    }
    assert_eq!(link.unmade(), 0);
    mds.sync().wait().await.unwrap();
    link.leave().await.unwrap();
    // Nothing is left of what had no name.
    let mdt = world.mdt.lock().clone();
    let report = mdt.check(false, |_| {}).await.unwrap();
    assert_eq!(report.problems().collect::<Vec<_>>(), Vec::<String>::new());
}

/// A way that can be broken in the middle of something.
struct Brittle {
    world: Arc<World>,
    /// The next connection ends when so many bytes have gone to the server.
    bytes: Arc<AtomicU64>,
    /// What the server says is lost.
    deaf: Arc<AtomicBool>,
}

impl Brittle {
    fn of(world: &Arc<World>) -> Brittle {
        Brittle { world: world.clone(), bytes: Arc::new(u64::MAX.into()), deaf: Arc::default() }
    }
}

#[async_trait::async_trait]
impl Dial for Brittle {
    fn name(&self) -> String {
        "brittle".into()
    }

    async fn dial(&self) -> std::io::Result<(Incoming, Outward)> {
        let (from_server, to_server) = Way(self.world.clone()).dial().await?;
        let (ours, theirs) = duplex(64 << 10);
        let (mut left, right) = split(theirs);
        let (limit, deaf) = (self.bytes.swap(u64::MAX, Relaxed), self.deaf.clone());
        tokio::spawn(async move {
            let (mut to_server, mut right, mut from_server) = (to_server, right, from_server);
            let mut out = (&mut left).take(limit);
            let hear = async {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                    if !deaf.load(Relaxed) && right.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                _ = tokio::io::copy(&mut out, &mut to_server) => {}
                () = hear => {}
            }
        });
        let (reader, writer) = split(ours);
        Ok((Box::new(reader), Box::new(writer)))
    }
}

/// Transaction groups of a server that was started anew have the numbers of those that the last one has lost.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_does_on_its_own_is_not_taken_for_what_was_lost() {
    let world = World::new().await;
    let link = connect(&world, "tank").await.unwrap();
    let mds = RemoteMds::new(link.clone());
    mds.sync().wait().await.unwrap();
    let made = mds.create(ROOT, Ino::ROOT, b"lost", node(FileKind::Regular)).wait().await.unwrap();
    world
        .crash_and(|mdt| async move {
            for n in 0..3 {
                mdt.setxattr(Ino::ROOT, b"user.own", &[n], XattrMode::Any).wait().await.unwrap();
                mdt.sync().await.unwrap();
            }
        })
        .await;
    assert_eq!(mds.lookup(Ino::ROOT, b"lost").wait().await, Ok(made));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_may_end_again_while_what_was_lost_is_made_again() {
    let world = World::new().await;
    let way = Brittle::of(&world);
    let bytes = way.bytes.clone();
    let link = Link::open(Box::new(way), 1, "tank").await.unwrap();
    let mds = RemoteMds::new(link.clone());
    mds.sync().wait().await.unwrap();
    let mut made = Vec::new();
    for n in 0..60 {
        let name = format!("{n}").into_bytes();
        let file = mds.create(ROOT, Ino::ROOT, &name, node(FileKind::Regular)).wait().await.unwrap();
        mds.setxattr(file.ino, b"user.large", &[n; 60_000], XattrMode::Create).wait().await.unwrap();
        mds.unlink(Ino::ROOT, &name).wait().await.unwrap();
        let file = mds.create(ROOT, Ino::ROOT, &name, node(FileKind::Regular)).wait().await.unwrap();
        made.push((name, file.ino));
    }
    // Within the second message and the third; the last crash finds some of it durable.
    for (limit, sync) in [(1_500_000, false), (2_500_000, true), (u64::MAX, false)] {
        bytes.store(limit, Relaxed);
        let connections = link.connections();
        world.crash().await;
        if sync {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let mdt = world.mdt.lock().clone();
            mdt.sync().await.unwrap();
        }
        while limit == u64::MAX && link.connections() == connections {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for (name, ino) in &made {
        let found = mds.lookup(Ino::ROOT, name).wait().await.map(|attr| attr.ino);
        assert_eq!(found, Ok(*ino), "{}", String::from_utf8_lossy(name));
    }
    assert_eq!((mds.names(Ino::ROOT, 0, 100).wait().await.unwrap().len(), link.unmade()), (made.len(), 0));
}

/// A change that was carried out, and whose answer was lost with the connection, is kept as others are.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_twice_is_made_again_when_it_is_lost() {
    let world = World::new().await;
    let way = Brittle::of(&world);
    let deaf = way.deaf.clone();
    let mds = RemoteMds::new(Link::open(Box::new(way), 1, "tank").await.unwrap());
    mds.sync().wait().await.unwrap();
    deaf.store(true, Relaxed);
    let asked = tokio::spawn(mds.create(ROOT, Ino::ROOT, b"file", node(FileKind::Regular)).wait());
    while world.local().lookup(Ino::ROOT, b"file").wait().await.is_err() {
        tokio::task::yield_now().await;
    }
    world.cut().await;
    deaf.store(false, Relaxed);
    let made = asked.await.unwrap().unwrap();
    world.crash().await;
    assert_eq!(mds.lookup(Ino::ROOT, b"file").wait().await, Ok(made));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_for_a_server_that_is_away_until_the_link_is_given_up() {
    let world = World::new().await;
    let link = connect(&world, "tank").await.unwrap();
    let mds = RemoteMds::new(link.clone());
    world.set_up(false).await;
    let waits = tokio::spawn(mds.getattr(Ino::ROOT).wait());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished() && link.lost().is_some());
    world.set_up(true).await;
    let told = timeout(Duration::from_secs(20), waits).await.unwrap().unwrap();
    assert_eq!(told.map(|attr| attr.ino), Ok(Ino::ROOT));
    world.set_up(false).await;
    let waits = tokio::spawn(mds.getattr(Ino::ROOT).wait());
    tokio::time::sleep(Duration::from_millis(100)).await;
    link.give_up();
    let told = timeout(Duration::from_secs(20), waits).await.unwrap().unwrap();
    assert!(matches!(told, Err(FsError::Io(_))), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_nobody_waits_for_any_more_is_made_again_like_others() {
    let world = World::new().await;
    let link = connect(&world, "tank").await.unwrap();
    let mds = RemoteMds::new(link.clone());
    let asked = mds.create(ROOT, Ino::ROOT, b"file", node(FileKind::Regular));
    // Asked for, and given up before the answer is here.
    let waits = tokio::spawn(asked.wait());
    while world.local().lookup(Ino::ROOT, b"file").wait().await.is_err() {
        tokio::task::yield_now().await;
    }
    waits.abort();
    let made = mds.lookup(Ino::ROOT, b"file").wait().await.unwrap();
    mds.setattr(made.ino, SetAttr { size: Some(9), ..SetAttr::default() }).wait().await.unwrap();
    world.crash().await;
    let again = mds.lookup(Ino::ROOT, b"file").wait().await.map(|attr| (attr.ino, attr.size));
    assert_eq!((again, link.unmade()), (Ok((made.ino, 9)), 0));
}

/// A way on which a megabyte takes a second.
struct Slow(Arc<World>);

async fn trickle(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        tokio::time::sleep(Duration::from_micros(len as u64)).await;
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}

#[async_trait::async_trait]
impl Dial for Slow {
    fn name(&self) -> String {
        "slow".into()
    }

    async fn dial(&self) -> std::io::Result<(Incoming, Outward)> {
        let (stream, _served) = dial(&self.0);
        let (here, between) = duplex(64 << 10);
        let ((reader, writer), (incoming, outward)) = (split(stream), split(between));
        tokio::spawn(trickle(reader, outward));
        tokio::spawn(trickle(incoming, writer));
        let (reader, writer) = split(here);
        Ok((Box::new(reader), Box::new(writer)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_way_is_none_that_is_lost() {
    let world = World::new().await;
    let link = Link::open(Box::new(Slow(world)), 1, "tank").await.unwrap();
    let (mds, oss) = (RemoteMds::new(link.clone()), RemoteOss::new(link.clone()));
    let grant = mds.grants(vec![VdevId(0)]).wait().await.unwrap()[0];
    let start = tokio::time::Instant::now();
    // Longer than either end would stay silent, and more than one frame of it. What is in them is no segment.
    let puts = (0..3).map(|seq| oss.put(SegmentId { grant, seq }, vec![vec![7; 15 << 20].into()]));
    for put in futures::future::join_all(puts).await {
        assert!(matches!(put, Err(OssError::Denied(_))), "{put:?}");
    }
    assert!(start.elapsed() > Duration::from_secs(45));
    assert_eq!(link.connections(), 1);
}

/// Of the largest segment that a pool may have, with as many records as it may have.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_segment_goes_into_a_frame_and_what_is_longer_ends_no_connection() {
    let world = World::new().await;
    let link = connect(&world, "tank").await.unwrap();
    let (mds, oss) = (RemoteMds::new(link.clone()), RemoteOss::new(link.clone()));
    let grant = mds.grants(vec![VdevId(0)]).wait().await.unwrap()[0];
    let segment = SegmentId { grant, seq: 0 };
    let mut builder = SegmentBuilder::new(segment);
    // Of no aligned length, so that there is padding too.
    let lens = [
        SEGMENT_SIZE_MAX as usize / SEGMENT_RECORDS_MAX - 63,
        SEGMENT_SIZE_MAX as usize / SEGMENT_RECORDS_MAX + 63,
    ];
    let records = lens.map(|len| Bytes::from(vec![9; len]));
    for record in 0..SEGMENT_RECORDS_MAX as u64 {
        let owner = RecordOwner { dataset: DATASET, ino: Ino(5), record };
        let content = records[(record % 2) as usize].clone();
        builder.add(owner, content, Compression::Off, ChecksumKind::Blake3, Txg(0));
    }
    let body = builder.finish();
    let len = body.object;
    assert_eq!(body.payload, SEGMENT_SIZE_MAX);
    assert!(len > SEGMENT_SIZE_MAX + SEGMENT_RECORDS_MAX as u64 * 76 && len <= SEGMENT_OBJECT_MAX, "{len}");
    world.pool.put_segment(body).await.unwrap();
    let soon = Duration::from_secs(60);
    let whole = timeout(soon, oss.get(segment, 0..len)).await.expect("an answer").unwrap();
    assert_eq!(whole.len() as u64, len);
    timeout(soon, oss.put(segment, vec![whole.clone()])).await.expect("an answer").unwrap();
    let long = vec![whole.clone(), whole.slice(..(SEGMENT_OBJECT_MAX + 1 - len) as usize)];
    let refused = timeout(soon, oss.put(segment, long)).await.expect("an answer");
    assert!(matches!(refused, Err(OssError::Io(_))), "{refused:?}");
    assert_eq!(link.connections(), 1);
}
