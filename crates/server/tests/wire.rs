//! A metadata server at the other end of a stream: the same calls, over a real dataset on a pool in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tarn_base::posix::{Cred, FileKind, NewNode, RenameMode, SetAttr, XattrMode};
use tarn_base::{DatasetId, FsError, Ino, SystemClock, VdevId};
use tarn_mdt::{Mdt, MdtOptions};
use tarn_pool::{CreateSpec, HostId, Pool};
use tarn_proto::wire::{Broken, Connection, Export, Hello, RemoteMds, Served, serve};
use tarn_proto::{LockKind, LockMode, LockOwner, LockRange, Mds};
use tarn_server::{LocalMds, LocalOss};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const ROOT: Cred = Cred { uid: 0, gid: 0 };

const DATASET: DatasetId = DatasetId(1);

struct One(Arc<LocalMds>, Arc<Pool>);

impl Export for One {
    fn open(&self, hello: &Hello) -> Result<Served, String> {
        match hello.dataset.as_str() {
            "tank" => Ok(Served {
                mds: self.0.clone(),
                oss: LocalOss::new(self.1.clone(), DATASET),
                pool: self.1.invitation(DATASET).map_err(|e| e.to_string())?,
            }),
            other => Err(format!("there is no dataset '{other}'")),
        }
    }
}

async fn export() -> Arc<One> {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    let n = WORLDS.fetch_add(1, Relaxed);
    let spec = CreateSpec {
        name: "tank".into(),
        urls: (0..3).map(|i| format!("mem://wire-{}-{n}-{i}", std::process::id())).collect(),
        properties: BTreeMap::new(),
        root_properties: BTreeMap::new(),
        host: HostId { id: 7, name: "here".into() },
        force: false,
    };
    let pool = Pool::create(spec).await.expect("pool");
    let options = MdtOptions::new(Arc::new(SystemClock::default()));
    let mdt = Mdt::open(pool.clone(), DATASET, options).await.expect("dataset");
    Arc::new(One(LocalMds::new(mdt), pool))
}

/// A stream to a server of its own; what the server says of it at its end.
fn dial(export: &Arc<One>) -> (DuplexStream, JoinHandle<Result<(), Broken>>) {
    let (here, there) = duplex(64 << 10);
    let (reader, writer) = split(there);
    let export = export.clone();
    (here, tokio::spawn(async move { serve(&*export, reader, writer).await }))
}

async fn connect(export: &Arc<One>, dataset: &str) -> Result<Arc<Connection>, Broken> {
    let (reader, writer) = split(dial(export).0);
    Connection::open(reader, writer, 1, dataset).await
}

fn node(kind: FileKind) -> NewNode {
    NewNode { kind, mode: 0o750, umask: 0, rdev: 0, target: Vec::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_call_answers_as_it_does_without_a_wire() {
    let export = export().await;
    let mds = RemoteMds::new(connect(&export, "tank").await.unwrap());
    let dir = mds.create(ROOT, Ino::ROOT, b"dir", node(FileKind::Directory)).wait().await.unwrap();
    let file = mds.create(ROOT, dir.ino, b"na\xffme", node(FileKind::Regular)).wait().await.unwrap();
    assert_eq!(export.0.lookup(dir.ino, b"na\xffme").wait().await, Ok(file));
    assert_eq!(mds.lookup(dir.ino, b"na\xffme").wait().await, Ok(file));
    assert_eq!(mds.lookup(dir.ino, b"none").wait().await, Err(FsError::NotFound));
    assert_eq!(mds.setattr(file.ino, SetAttr { size: Some(5), ..SetAttr::default() }).wait().await.unwrap().size, 5);
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
    assert_eq!(mds.getattr(file.ino).wait().await.map(|attr| attr.ino), export.0.getattr(file.ino).wait().await.map(|attr| attr.ino));
    assert_eq!(mds.info(), export.0.info());
    assert_eq!(mds.statfs().wait().await.unwrap().inodes, export.0.statfs().wait().await.unwrap().inodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_are_under_way_at_once_and_one_that_waits_holds_up_no_other() {
    let export = export().await;
    let mds = Arc::new(RemoteMds::new(connect(&export, "tank").await.unwrap()));
    let file = mds.create(ROOT, Ino::ROOT, b"file", node(FileKind::Regular)).wait().await.unwrap().ino;
    let owner = |token| LockOwner { kind: LockKind::Posix, token, pid: 1 };
    let all = LockRange { start: 0, end: u64::MAX };
    mds.lock(file, owner(1), all, LockMode::Exclusive, true).wait().await.unwrap();
    let waits = mds.lock(file, owner(2), all, LockMode::Exclusive, true);
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
    let third = mds.lock(file, owner(3), all, LockMode::Exclusive, true);
    let third = tokio::spawn(third.wait());
    tokio::time::sleep(Duration::from_millis(100)).await;
    mds.unlock(file, owner(1), all).wait().await.unwrap();
    assert_eq!(timeout(Duration::from_secs(10), third).await.unwrap().unwrap(), Ok(()));
}

#[tokio::test]
async fn who_is_refused_is_told_why_in_a_line() {
    let export = export().await;
    let refused = connect(&export, "nothing").await.err().unwrap();
    assert_eq!(refused, Broken::Refused("there is no dataset 'nothing'".into()));
    // Something that is no client of ours at all.
    let (mut stream, served) = dial(&export);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(matches!(served.await.unwrap(), Err(Broken::Lost(_))));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_end_that_goes_silent_is_given_up() {
    // A server that takes everything and says nothing.
    let (here, _there) = duplex(64 << 10);
    let (reader, writer) = split(here);
    let opened = timeout(Duration::from_secs(60), Connection::open(reader, writer, 1, "tank")).await;
    assert!(matches!(opened.unwrap(), Err(Broken::Lost(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_fails_its_calls_and_frees_what_they_wait_for() {
    let export = export().await;
    let (here, served) = dial(&export);
    let (reader, writer) = split(here);
    let connection = Connection::open(reader, writer, 1, "tank").await.unwrap();
    let mds = RemoteMds::new(connection.clone());
    let file = mds.create(ROOT, Ino::ROOT, b"file", node(FileKind::Regular)).wait().await.unwrap().ino;
    let owner = LockOwner { kind: LockKind::Bsd, token: 1, pid: 1 };
    let all = LockRange { start: 0, end: u64::MAX };
    export.0.lock(file, owner, all, LockMode::Exclusive, true).wait().await.unwrap();
    let waits = mds.lock(file, LockOwner { token: 2, ..owner }, all, LockMode::Exclusive, true);
    let waits = tokio::spawn(waits.wait());
    tokio::time::sleep(Duration::from_millis(100)).await;
    served.abort();
    let told = timeout(Duration::from_secs(20), waits).await.unwrap().unwrap();
    assert!(matches!(told, Err(FsError::Io(_))), "{told:?}");
    assert!(connection.broken().is_some());
    assert!(matches!(mds.getattr(file).wait().await, Err(FsError::Io(_))));
}

