//! How many extended attributes an inode may have, and what becomes of those that it has too many of.

mod world;

use tarn_base::posix::{XATTR_LIST_MAX, XATTR_SIZE_MAX, XATTR_SUM_MAX, XattrMode};
use tarn_base::{FsError, Ino};
use world::{World, now};

async fn set(w: &World, ino: Ino, name: &str, len: usize) -> Result<(), FsError> {
    w.mdt.setxattr(ino, name.as_bytes(), &vec![7; len], XattrMode::Any).wait().await
}

async fn list(w: &World, ino: Ino) -> Result<usize, FsError> {
    w.mdt.listxattr(ino).wait().await.map(|names| names.len())
}

/// The database itself, while nobody has the dataset open.
async fn database(w: &World) -> slatedb::Db {
    let row = w.pool.config().datasets[0].clone();
    let store = w.pool.metadata_store(&row).expect("store");
    slatedb::Db::builder("db", store).build().await.expect("open")
}

/// Attributes that are stored, of whatever inode.
async fn stored(w: &mut World) -> usize {
    w.mdt.close().await.expect("close");
    let db = database(w).await;
    let mut rows = db.scan(b"X".to_vec()..b"Y".to_vec()).await.expect("scan");
    let mut count = 0;
    while rows.next().await.expect("row").is_some() {
        count += 1;
    }
    db.close().await.expect("close");
    w.crash().await;
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn values_have_room_for_so_many_bytes_and_no_more() {
    let mut w = World::new().await;
    let file = w.file(Ino::ROOT, "file").await;
    let few = XATTR_SUM_MAX / XATTR_SIZE_MAX;
    for n in 0..few {
        let set = w.mdt.setxattr(file, format!("user.{n}").as_bytes(), &[1; XATTR_SIZE_MAX], XattrMode::Any);
        now(set).expect("the first few are not counted");
    }
    let ctime = w.attr(file).await.expect("file").ctime;
    assert_eq!(set(&w, file, "user.more", 1).await, Err(FsError::NoSpace));
    assert_eq!(w.attr(file).await.expect("file").ctime, ctime);
    // What is there may get shorter, and then others have room.
    assert_eq!(set(&w, file, "user.0", XATTR_SIZE_MAX - 100).await, Ok(()));
    assert_eq!(set(&w, file, "user.more", 60).await, Ok(()));
    assert_eq!(set(&w, file, "user.more", 101).await, Err(FsError::NoSpace));
    assert_eq!(set(&w, file, "user.more", 100).await, Ok(()));
    w.reopen().await;
    assert_eq!(set(&w, file, "user.1", XATTR_SIZE_MAX).await, Ok(()));
    assert_eq!(set(&w, file, "user.yet", 1).await, Err(FsError::NoSpace));
    assert_eq!(list(&w, file).await, Ok(few + 1));
    w.mdt.removexattr(file, b"user.2").wait().await.expect("remove");
    assert_eq!(set(&w, file, "user.yet", XATTR_SIZE_MAX).await, Ok(()));
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_as_many_names_as_can_be_listed_and_all_end_with_their_inode() {
    let mut w = World::new().await;
    let file = w.file(Ino::ROOT, "file").await;
    let name = |n: usize| format!("user.{n:0250}");
    let most = XATTR_LIST_MAX / 256;
    for n in 0..most {
        assert_eq!(set(&w, file, &name(n), 3).await, Ok(()), "{n}");
    }
    assert_eq!(set(&w, file, "user.x", 0).await, Err(FsError::NoSpace));
    assert_eq!(set(&w, file, &name(7), 500).await, Ok(()));
    assert_eq!(list(&w, file).await, Ok(most));
    w.mdt.sync().await.expect("sync");
    assert_eq!(stored(&mut w).await, most);
    w.unlink(Ino::ROOT, "file").await.expect("unlink");
    w.mdt.sync().await.expect("sync");
    w.crash().await;
    w.until("reaped", async |w| w.attr(file).await == Err(FsError::Stale)).await;
    assert_eq!(stored(&mut w).await, 0);
    w.assert_clean().await;
}

/// As an older Tarn left it.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_attributes_are_listed_and_freed_a_few_at_a_time() {
    const MANY: usize = 400;
    let mut w = World::new().await;
    let file = w.file(Ino::ROOT, "file").await;
    for n in 0..=XATTR_SUM_MAX / XATTR_SIZE_MAX {
        set(&w, file, &format!("user.{n:05}"), 1).await.expect("set");
    }
    w.mdt.close().await.expect("close");
    let db = database(&w).await;
    for n in 0..MANY {
        let key = [b"X", &file.0.to_be_bytes()[..], format!("user.{n:05}").as_bytes()].concat();
        db.put(&key, vec![5; XATTR_SIZE_MAX]).await.expect("put");
    }
    db.close().await.expect("close");
    w.crash().await;
    assert_eq!(set(&w, file, "user.more", 1).await, Err(FsError::NoSpace));
    assert_eq!(set(&w, file, "user.00009", 5).await, Ok(()));
    let reads = w.mdt.stats().database_reads;
    assert_eq!(list(&w, file).await, Ok(MANY));
    let listing = w.mdt.stats().database_reads - reads;
    assert!(listing >= MANY as u64 / 17, "{listing} reads");
    w.unlink(Ino::ROOT, "file").await.expect("unlink");
    w.until("reaped", async |w| w.attr(file).await == Err(FsError::Stale)).await;
    let freeing = w.mdt.stats().database_reads - reads - listing;
    assert!(freeing >= MANY as u64 / 17, "{freeing} reads");
    assert_eq!(stored(&mut w).await, 0);
    w.assert_clean().await;
}
