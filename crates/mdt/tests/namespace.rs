//! Names, links, attributes, ACLs: over a real pool in memory, with crashes.

mod world;

use std::collections::BTreeSet;
use std::time::Duration;
use tarn_base::posix::{FileKind, NewNode, RenameMode, SetAttr, SetCtime, SetTime, XattrMode};
use tarn_base::{FsError, Ino, Request, Timespec};
use world::{ROOT, World, now};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_synced_is_there_after_a_crash_and_nothing_half() {
    let mut w = World::new().await;
    let dir = w.dir(Ino::ROOT, "dir").await;
    let file = w.file(dir, "file").await;
    w.mdt.sync().await.expect("sync");
    w.file(dir, "later").await;
    let old = w.mdt.clone();
    w.crash().await;
    assert_eq!(w.mdt.lookup(dir, b"file").wait().await.map(|a| a.ino), Ok(file));
    assert_eq!(w.mdt.lookup(dir, b"later").wait().await.err(), Some(FsError::NotFound));
    w.assert_clean().await;
    // The old owner can change nothing any more.
    let node = NewNode { kind: FileKind::Regular, mode: 0, umask: 0, rdev: 0, target: vec![] };
    let _ = old.create(ROOT, dir, b"ghost", node).wait().await;
    assert_eq!(old.sync().await, Err(FsError::Fenced));
    assert_eq!(w.mdt.lookup(dir, b"ghost").wait().await.err(), Some(FsError::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pools_owner_opens_anew_what_a_former_owner_has_opened() {
    let w = World::new().await;
    w.file(Ino::ROOT, "before").await;
    w.mdt.sync().await.expect("sync");
    // A host that had the pool before, and slept since it asked whether it still has.
    let row = w.pool.config().datasets[0].clone();
    let store = w.pool.metadata_store(&row).expect("store");
    let settings = slatedb::config::Settings { flush_interval: None, ..Default::default() };
    let woken = slatedb::Db::builder("db", store).with_settings(settings).build().await.expect("open");
    w.file(Ino::ROOT, "after").await;
    w.mdt.sync().await.expect("the owner goes on");
    assert!(w.mdt.lookup(Ino::ROOT, b"before").wait().await.is_ok());
    let late = async {
        woken.put(b"late", b"").await?;
        woken.flush().await
    };
    let late = tokio::time::timeout(Duration::from_secs(5), late).await;
    assert!(!matches!(late, Ok(Ok(()))), "the former owner wrote");
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_that_was_given_up_writes_nothing_and_leaves_the_next_owner_alone() {
    let mut w = World::new().await;
    w.file(Ino::ROOT, "kept").await;
    w.mdt.sync().await.expect("sync");
    w.file(Ino::ROOT, "lost").await;
    let old = w.mdt.clone();
    old.abandon();
    assert_eq!(old.sync().await, Err(FsError::Fenced));
    w.crash().await;
    let node = NewNode { kind: FileKind::Regular, mode: 0, umask: 0, rdev: 0, target: vec![] };
    assert_eq!(old.create(ROOT, Ino::ROOT, b"ghost", node).wait().await.err(), Some(FsError::Fenced));
    w.file(Ino::ROOT, "new").await;
    w.mdt.sync().await.expect("the next owner writes");
    assert!(w.mdt.lookup(Ino::ROOT, b"kept").wait().await.is_ok());
    assert_eq!(w.mdt.lookup(Ino::ROOT, b"lost").wait().await.err(), Some(FsError::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn hot_calls_answer_from_memory() {
    let mut w = World::new().await;
    let file = w.file(Ino::ROOT, "file").await;
    assert!(now(w.mdt.lookup(Ino::ROOT, b"file")).is_ok());
    w.reopen().await;
    assert!(w.mdt.lookup(Ino::ROOT, b"file").wait().await.is_ok());
    assert_eq!(w.mdt.lookup(Ino::ROOT, b"none").wait().await.err(), Some(FsError::NotFound));
    let before = w.mdt.stats();
    assert!(now(w.mdt.lookup(Ino::ROOT, b"file")).is_ok());
    assert!(now(w.mdt.getattr(file)).is_ok());
    assert_eq!(now(w.mdt.lookup(Ino::ROOT, b"none")).err(), Some(FsError::NotFound));
    let after = w.mdt.stats();
    assert_eq!((after.pending, after.database_reads), (before.pending, before.database_reads));
}

#[tokio::test(flavor = "multi_thread")]
async fn cold_rows_come_with_their_neighbours() {
    let mut w = World::new().await;
    let dir = w.dir(Ino::ROOT, "dir").await;
    let mut files = Vec::new();
    for n in 0..640 {
        files.push(w.file(dir, &format!("file{n}")).await);
    }
    w.reopen().await;
    w.file(dir, "uncommitted").await;
    let before = w.mdt.stats().database_reads;
    // In an order in which no two are next to each other.
    for n in 0..640 {
        assert!(w.attr(files[n * 37 % 640]).await.is_ok());
    }
    let reads = w.mdt.stats().database_reads - before;
    assert!(reads <= 2 * 640 / 64 + 2, "{reads} reads");
    // What was changed meanwhile is not made older by what comes along.
    w.unlink(dir, "file7").await.expect("unlink");
    w.mdt.sync().await.expect("sync");
    w.mdt.getattr(files[8]).wait().await.expect("its neighbour");
    // The reaper takes a moment.
    for _ in 0..100 {
        match w.attr(files[7]).await {
            Ok(attr) => assert_eq!(attr.nlink, 0),
            Err(error) => {
                assert_eq!(error, FsError::Stale);
                return;
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("what was removed is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_too_large_to_be_known_is_read_once_for_all_who_list_it() {
    let mut w = World::new().await;
    let dir = w.dir(Ino::ROOT, "dir").await;
    let mut names: BTreeSet<String> = (0..2500).map(|n| format!("file{n}")).collect();
    for name in &names {
        w.file(dir, name).await;
    }
    w.reopen().await;
    assert_eq!(listed(&w, dir, 64).await, names);
    let reads = w.mdt.stats().database_reads;
    assert_eq!(now(w.mdt.names(dir, 0, 1000)).map(|names| names.len()), Ok(1000));
    assert_eq!(now(w.mdt.names(dir, 0, 5000)).map(|names| names.len()), Ok(2500));
    assert_eq!(w.mdt.stats().database_reads, reads);
    // However many list it at once, each page is read once.
    w.file(dir, "one more").await;
    names.insert("one more".into());
    let pages = w.mdt.stats().database_reads;
    assert_eq!(listed(&w, dir, 64).await, names);
    let pages = w.mdt.stats().database_reads - pages;
    w.unlink(dir, "one more").await.expect("unlink");
    names.remove("one more");
    let reads = w.mdt.stats().database_reads;
    let all = futures::future::join_all((0..32).map(|_| listed(&w, dir, 64))).await;
    assert!(all.iter().all(|found| *found == names));
    let again = w.mdt.stats().database_reads - reads;
    assert!(pages >= 3 && again <= pages + 2, "{pages} reads, {again} for many");
    lists_follow_changes(&w, dir, &mut names).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_directory_that_is_known_is_put_together_once_for_all_who_list_it() {
    let w = World::new().await;
    let dir = w.dir(Ino::ROOT, "dir").await;
    let mut names: BTreeSet<String> = (0..2500).map(|n| format!("file{n}")).collect();
    for name in &names {
        w.file(dir, name).await;
    }
    // The dataset reads a little on its own account too.
    let (before, own) = (w.mdt.stats().database_reads, 3);
    for page in [64, 1000, 1024, 1025, 2499, 2500, 2501] {
        assert_eq!(listed(&w, dir, page).await, names, "{page}");
    }
    let reads = w.mdt.stats().database_reads - before;
    assert!(reads <= own, "{reads}");
    lists_follow_changes(&w, dir, &mut names).await;
    let reads = w.mdt.stats().database_reads - before;
    assert!(reads <= 2 * own, "{reads}");
}

/// All names of a directory, each once.
async fn listed(w: &World, dir: Ino, page: usize) -> BTreeSet<String> {
    let found = w.names(dir, page).await;
    let names: BTreeSet<String> = found.iter().cloned().collect();
    assert_eq!(found.len(), names.len(), "a name twice");
    names
}

/// Changes the directory of `names` from `file0` to `file2499`, and lists it after each change and meanwhile.
async fn lists_follow_changes(w: &World, dir: Ino, names: &mut BTreeSet<String>) {
    // Whoever lists after a change sees it.
    for n in 0..30 {
        let name = format!("file{}", n * 83);
        match n % 3 {
            0 => {
                w.unlink(dir, &name).await.expect("unlink");
                names.remove(&name);
            }
            1 => {
                w.rename(dir, &name, dir, &format!("{name}-")).await.expect("rename");
                names.remove(&name);
                names.insert(format!("{name}-"));
            }
            _ => {
                w.file(dir, &format!("{name}+")).await;
                names.insert(format!("{name}+"));
            }
        }
        assert_eq!(listed(w, dir, 100 + n).await, *names, "{n}");
    }
    // What nobody touches is in every listing, whatever happens beside it.
    let changes = async {
        for n in 0..300 {
            w.file(dir, &format!("new{n}")).await;
            w.unlink(dir, &format!("new{n}")).await.expect("unlink");
        }
    };
    let lists = async {
        for page in [33, 500, 64, 1000] {
            let found = listed(w, dir, page).await;
            assert!(names.is_subset(&found), "{page}");
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(changes, lists, lists_again(w, dir, names));
    assert_eq!(listed(w, dir, 77).await, *names);
}

async fn lists_again(w: &World, dir: Ino, names: &BTreeSet<String>) {
    for page in 20..40 {
        let found: BTreeSet<String> = w.names(dir, page).await.into_iter().collect();
        assert!(names.is_subset(&found), "{page}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_names_are_known_the_database_is_not_asked() {
    let mut w = World::new().await;
    let dir = w.dir(Ino::ROOT, "dir").await;
    w.mdt.sync().await.expect("sync");
    let before = w.mdt.stats().database_reads;
    for n in 0..100 {
        assert_eq!(now(w.mdt.lookup(dir, format!("file{n}").as_bytes())).err(), Some(FsError::NotFound));
        w.file(dir, &format!("file{n}")).await;
        if n % 30 == 0 {
            w.mdt.sync().await.expect("sync");
        }
    }
    assert_eq!(w.mdt.stats().database_reads, before);
    let gone = now(w.mdt.lookup(dir, b"file7")).expect("there").ino;
    w.unlink(dir, "file7").await.expect("unlink");
    // The reaper may ask for what it frees.
    w.until("the inode is freed", async |w| w.attr(gone).await == Err(FsError::Stale)).await;
    let before = w.mdt.stats().database_reads;
    assert_eq!(now(w.mdt.lookup(dir, b"file7")).err(), Some(FsError::NotFound));
    assert_eq!(now(w.mdt.names(dir, 0, 1000)).map(|names| names.len()), Ok(99));
    assert_eq!(w.mdt.stats().database_reads, before);

    // Directories that were made one after the other are mostly listed so too.
    let mut dirs = Vec::new();
    for n in 0..128 {
        dirs.push((w.dir(dir, &format!("dir{n}")).await, 1 + n % 5));
    }
    for &(dir, count) in &dirs {
        for n in 0..count {
            w.file(dir, &format!("file{n}")).await;
        }
    }
    w.reopen().await;
    w.file(dirs[40].0, "uncommitted").await;
    let before = w.mdt.stats().database_reads;
    for (n, &(dir, count)) in dirs.iter().enumerate() {
        let names = w.mdt.names(dir, 0, 100).wait().await.expect("names");
        assert_eq!(names.len(), count + usize::from(n == 40));
        assert!(w.mdt.lookup(dir, b"none").wait().await.is_err());
    }
    let reads = w.mdt.stats().database_reads - before;
    assert!(reads <= 12, "{reads} reads");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_listing_is_known_until_something_changes() {
    let w = World::new().await;
    let dir = w.dir(Ino::ROOT, "dir").await;
    for n in 0..5 {
        w.file(dir, &format!("file{n}")).await;
    }
    let all = w.mdt.readdir(dir, 0, 100).wait().await.expect("readdir");
    let last = all[4].cookie;
    assert_eq!(now(w.mdt.readdir(dir, last, 100)), Ok(Vec::new()));
    assert_eq!(now(w.mdt.names(dir, last, 100)), Ok(Vec::new()));
    // Names come before and after the end as their hashes have it; all of the new ones are found.
    let more = 50;
    for n in 0..more {
        w.file(dir, &format!("more{n}")).await;
    }
    let listed = w.mdt.names(dir, 0, 100).wait().await.expect("names");
    let behind = listed.iter().filter(|entry| entry.cookie > last).count();
    assert_eq!(listed.len(), 5 + more);
    assert_eq!(w.mdt.names(dir, last, 100).wait().await.expect("names").len(), behind);
    assert_eq!(w.mdt.names(dir, last, 1).wait().await.expect("names").len(), behind.min(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn colliding_names_list_right_in_pages() {
    let mut w = World::with_hash_bits(2).await;
    let dir = w.dir(Ino::ROOT, "dir").await;
    let mut expected: BTreeSet<String> = BTreeSet::new();
    for i in 0..300 {
        w.file(dir, &format!("name{i}")).await;
        expected.insert(format!("name{i}"));
    }
    for i in (0..300).step_by(3) {
        w.unlink(dir, &format!("name{i}")).await.expect("unlink");
        expected.remove(&format!("name{i}"));
    }
    for page in [1, 7, 1000] {
        let names = w.names(dir, page).await;
        assert_eq!(names.len(), expected.len(), "page of {page}");
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
    }
    // A name that stays keeps its cookie while others come and go.
    let first = w.mdt.readdir(dir, 0, 100).wait().await.expect("readdir");
    let cookie = first[50].cookie;
    for e in &first[..50] {
        w.mdt.unlink(dir, &e.name).wait().await.expect("unlink");
    }
    let rest = w.mdt.readdir(dir, cookie, 1000).wait().await.expect("readdir");
    assert_eq!(rest.len() + 51, expected.len());
    w.reopen().await;
    assert_eq!(w.names(dir, 13).await.len() + 50, expected.len());
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renames_keep_counts_right() {
    let mut w = World::new().await;
    let (a, b) = (w.dir(Ino::ROOT, "a").await, w.dir(Ino::ROOT, "b").await);
    let sub = w.dir(a, "sub").await;
    let file = w.file(a, "file").await;
    let rename = |from, name: &'static str, to, new: &'static str, mode| {
        let mdt = w.mdt.clone();
        async move { mdt.rename(from, name.as_bytes(), to, new.as_bytes(), mode).wait().await.map(drop) }
    };
    use RenameMode::*;
    assert_eq!(rename(a, "sub", b, "sub", Replace).await, Ok(()));
    assert_eq!((w.attr(a).await.unwrap().nlink, w.attr(b).await.unwrap().nlink), (2, 3));
    assert_eq!(w.mdt.parent(sub).wait().await, Ok(b));
    assert!(matches!(rename(Ino::ROOT, "b", sub, "x", Replace).await, Err(FsError::Invalid(_))));
    assert_eq!(rename(a, "file", b, "sub", NoReplace).await, Err(FsError::Exists));
    assert_eq!(rename(a, "file", b, "sub", Replace).await, Err(FsError::IsDirectory));
    assert_eq!(rename(b, "sub", a, "file", Replace).await, Err(FsError::NotDirectory));
    assert_eq!(rename(a, "file", b, "sub", Exchange).await, Ok(()));
    assert_eq!(w.mdt.lookup(b, b"sub").wait().await.map(|x| x.ino), Ok(file));
    assert_eq!((w.attr(a).await.unwrap().nlink, w.attr(b).await.unwrap().nlink), (3, 2));
    w.file(sub, "inside").await;
    w.dir(b, "empty").await;
    assert_eq!(rename(b, "empty", a, "file", Replace).await, Err(FsError::NotEmpty));
    w.unlink(sub, "inside").await.expect("unlink");
    assert_eq!(rename(b, "empty", a, "file", Replace).await, Ok(()));
    assert_eq!(w.mdt.rmdir(a, b"nothing").wait().await, Err(FsError::NotFound));
    w.assert_clean().await;
    w.crash().await;
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_inode_outlives_its_name_and_a_crash_reclaims_it() {
    let mut w = World::new().await;
    let file = w.file(Ino::ROOT, "file").await;
    w.mdt.open_inode(file).wait().await.expect("open");
    w.unlink(Ino::ROOT, "file").await.expect("unlink");
    assert_eq!(w.attr(file).await.map(|a| a.nlink), Ok(0));
    w.mdt.sync().await.expect("sync");
    w.crash().await;
    w.until("reaped after the crash", async |w| w.attr(file).await == Err(FsError::Stale)).await;
    let made = w.mdt.create_unnamed(ROOT, Ino::ROOT, 0o600).wait().await.expect("unnamed");
    w.mdt.link(made.ino, Ino::ROOT, b"named").wait().await.expect("link");
    w.mdt.close_inode(made.ino);
    let other = w.mdt.create_unnamed(ROOT, Ino::ROOT, 0o600).wait().await.expect("unnamed");
    w.mdt.close_inode(other.ino);
    w.until("reaped after the close", async |w| w.attr(other.ino).await == Err(FsError::Stale)).await;
    assert_eq!(w.attr(made.ino).await.map(|a| a.nlink), Ok(1));
    w.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_and_acls_follow_each_other() {
    const ACCESS: &[u8] = b"system.posix_acl_access";
    const DEFAULT: &[u8] = b"system.posix_acl_default";
    let acl = |owner: u16, group: u16, mask: u16| {
        let mut out = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in
            [(1u16, owner, !0u32), (2, 7, 5), (4, group, !0), (0x10, mask, !0), (0x20, 0, !0)]
        {
            out.extend(tag.to_le_bytes());
            out.extend(perm.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    };
    let w = World::new().await;
    let dir = w.dir(Ino::ROOT, "dir").await;
    w.mdt.setxattr(dir, DEFAULT, &acl(7, 5, 7), XattrMode::Any).wait().await.expect("default ACL");
    let set = SetAttr { mode: Some(0o2755), gid: Some(42), ..SetAttr::default() };
    w.mdt.setattr(dir, set).wait().await.expect("setattr");
    let node = NewNode { kind: FileKind::Regular, mode: 0o666, umask: 0o077, rdev: 0, target: vec![] };
    let file = w.mdt.create(ROOT, dir, b"file", node).wait().await.expect("create");
    assert_eq!((file.mode, file.gid), (0o660, 42));
    assert!(w.mdt.getxattr(file.ino, ACCESS).wait().await.is_ok());
    let chmod = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    w.mdt.setattr(file.ino, chmod).wait().await.expect("chmod");
    assert_eq!(w.mdt.getxattr(file.ino, ACCESS).wait().await, Ok(acl(6, 5, 4)));
    let sub = w.dir(dir, "sub").await;
    assert_eq!(w.mdt.listxattr(sub).wait().await.map(|names| names.len()), Ok(2));
    assert_eq!(w.attr(sub).await.map(|a| a.mode & 0o2000), Ok(0o2000));
    for (mode, error) in [(XattrMode::Create, FsError::Exists), (XattrMode::Replace, FsError::NoAttribute)] {
        let name: &[u8] = if mode == XattrMode::Create { ACCESS } else { b"user.x" };
        assert_eq!(w.mdt.setxattr(file.ino, name, &acl(6, 5, 4), mode).wait().await, Err(error));
    }
    w.assert_clean().await;
}

/// The change time is now, what the caller says, or stays what it is at that moment.
#[tokio::test]
async fn an_access_time_may_be_set_without_a_change() {
    let w = World::new().await;
    let file = w.file(Ino::ROOT, "file").await;
    let at = |sec| Timespec { sec, nsec: 5 };
    let set = async |set| w.mdt.setattr(file, set).wait().await.expect("setattr");
    let atime = SetAttr { atime: Some(SetTime::To(at(7))), ..SetAttr::default() };
    let to = set(SetAttr { ctime: SetCtime::To(at(9)), ..atime }).await;
    assert_eq!((to.atime, to.ctime), (at(7), at(9)));
    assert_eq!(set(SetAttr::default()).await.ctime, at(9));
    let chmod = set(SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
    assert!(chmod.ctime > at(9));
    let left = set(SetAttr { ctime: SetCtime::Leave, atime: Some(SetTime::To(at(8))), ..atime }).await;
    assert_eq!((left.atime, left.ctime), (at(8), chmod.ctime));
    w.assert_clean().await;
}

/// What was without a name, was named, closed and opened again is an open file like any other when it loses that name.
#[tokio::test]
async fn a_file_that_was_named_late_is_not_freed_while_it_is_open() {
    let w = World::new().await;
    let ino = w.mdt.create_unnamed(ROOT, Ino::ROOT, 0o644).wait().await.expect("unnamed").ino;
    w.mdt.link(ino, Ino::ROOT, b"late").wait().await.expect("named");
    w.mdt.close_inode(ino);
    // Nothing waits from here to the loss of the name, so what runs in the background sees them together.
    now(w.mdt.open_inode(ino)).expect("open");
    let gone = now(w.mdt.unlink(Ino::ROOT, b"late")).expect("unlink");
    assert_eq!(gone, Some(ino));
    w.mdt.close_inode(ino);
    w.mdt.sync().await.expect("sync");
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(w.attr(ino).await.map(|attr| attr.nlink), Ok(0));
    w.mdt.close_inode(ino);
    w.until("it is freed", async |w| w.attr(ino).await == Err(FsError::Stale)).await;
    w.assert_clean().await;
}

/// Random operations against a model in memory, with crashes: after one, the state is that of the last sync or
/// of a later moment, and everything checks out.
#[tokio::test(flavor = "multi_thread")]
async fn random_names_match_a_model() {
    use rand::{RngExt, SeedableRng};
    for seed in 0..4 {
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        let mut w = World::with_hash_bits(6).await;
        let mut model: std::collections::BTreeMap<String, bool> = Default::default();
        for step in 0..1500 {
            let name = format!("n{}", rng.random_range(0..40));
            let other = format!("n{}", rng.random_range(0..40));
            match rng.random_range(0..100) {
                0..30 => {
                    let dir = rng.random_bool(0.3);
                    let kind = if dir { FileKind::Directory } else { FileKind::Regular };
                    let made = w.make(Ino::ROOT, &name, kind).await;
                    assert_eq!(made.is_ok(), !model.contains_key(&name));
                    model.entry(name).or_insert(dir);
                }
                30..55 => {
                    let gone = w.unlink(Ino::ROOT, &name).await;
                    assert_eq!(gone.is_ok(), model.get(&name) == Some(&false));
                    model.retain(|n, dir| *n != name || *dir);
                }
                55..65 => {
                    let gone = w.rmdir(Ino::ROOT, &name).await;
                    assert_eq!(gone.is_ok(), model.get(&name) == Some(&true));
                    model.retain(|n, dir| *n != name || !*dir);
                }
                65..90 => {
                    let moved = w.rename(Ino::ROOT, &name, Ino::ROOT, &other).await;
                    let fits = match (model.get(&name), model.get(&other)) {
                        (Some(_), None) => true,
                        (Some(a), Some(b)) => a == b,
                        _ => false,
                    };
                    assert_eq!(moved.is_ok(), fits, "{name} to {other}");
                    if fits && name != other {
                        let dir = model.remove(&name).expect("checked");
                        model.insert(other, dir);
                    }
                }
                90..97 => assert_eq!(
                    w.names(Ino::ROOT, 7).await.into_iter().collect::<BTreeSet<_>>(),
                    model.keys().cloned().collect::<BTreeSet<_>>()
                ),
                _ if step % 10 == 0 => {
                    w.mdt.sync().await.expect("sync");
                    w.crash().await;
                }
                _ => w.mdt.sync().await.expect("sync"),
            }
        }
        assert_eq!(w.names(Ino::ROOT, 50).await.len(), model.len());
        w.assert_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inode_is_found_by_its_path() {
    let w = World::new().await;
    let outer = w.dir(Ino::ROOT, "outer").await;
    let inner = w.dir(outer, "inner").await;
    let (file, top) = (w.file(inner, "file").await, w.file(Ino::ROOT, "top").await);
    let gone = w.file(inner, "gone").await;
    w.unlink(inner, "gone").await.expect("unlink");
    let paths = w.mdt.paths(&[file, top, inner, gone].into()).await.expect("paths");
    assert_eq!(paths.len(), 3);
    assert_eq!(paths[&file], b"/outer/inner/file");
    assert_eq!(paths[&top], b"/top");
    assert_eq!(paths[&inner], b"/outer/inner");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unnamed_file_that_is_opened_anew_before_it_is_freed_stays_until_it_is_closed() {
    let w = World::new().await;
    w.mdt.admit(1).await.expect("client");
    let file = w.mdt.create_unnamed(world::ROOT, Ino::ROOT, 0o600).wait().await.expect("unnamed").ino;
    // The client was not told of it, does not count it among its open files, and asks once more.
    w.mdt.resumed(Vec::new()).await.expect("resumed");
    assert_eq!(w.mdt.open_inode(file).wait().await.map(|attr| attr.ino), Ok(file));
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(w.attr(file).await.map(|attr| attr.nlink), Ok(0));
    w.mdt.close_inode(file);
    w.until("it is freed", async |w| w.attr(file).await == Err(FsError::Stale)).await;
    w.assert_clean().await;
}

/// Makes a file and removes it, so many times, as requests of a client.
async fn makes_and_removes(w: &World, times: u64) {
    for number in 0..times {
        let request = Request::new(number, 0, None);
        let node = NewNode { kind: FileKind::Regular, mode: 0, umask: 0, rdev: 0, target: vec![] };
        request.run(|| w.mdt.create(ROOT, Ino::ROOT, b"f", node)).wait().await.expect("create");
        let gone = request.run(|| w.mdt.unlink(Ino::ROOT, b"f")).wait().await.expect("unlink");
        gone.into_iter().for_each(|ino| w.mdt.close_inode(ino));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_txg_has_made_and_removed_is_never_written_and_a_client_keeps_it_for_so_long() {
    let w = World::new().await;
    assert!(w.names(Ino::ROOT, 50).await.is_empty());
    w.file(Ino::ROOT, "stays").await;
    makes_and_removes(&w, 1000).await;
    w.until("all are freed", async |w| w.mdt.stats().reaped == 1000).await;
    w.mdt.sync().await.expect("sync");
    let stats = w.mdt.stats();
    assert!(stats.rows_synced < 50 * stats.txgs, "{stats:?}");
    w.mdt.admit(1).await.expect("client");
    let (before, since) = (w.mdt.stats().txgs, std::time::Instant::now());
    makes_and_removes(&w, 5000).await;
    w.until("a txg is written", async |w| w.mdt.stats().txgs > before).await;
    assert!(since.elapsed() < Duration::from_secs(4), "its time, which is 5 s, was not over");
    w.assert_clean().await;
}
