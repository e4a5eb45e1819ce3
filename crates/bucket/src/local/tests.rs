//! What is particular to directories; what every bucket does is in `tests/conformance.rs`.

use super::*;

fn bucket() -> (tempfile::TempDir, LocalBucket) {
    let dir = tempfile::tempdir().unwrap();
    let bucket = LocalBucket::open(dir.path()).unwrap();
    (dir, bucket)
}

fn body(text: &'static str) -> Vec<Bytes> {
    vec![Bytes::from_static(text.as_bytes())]
}

#[test]
fn what_is_not_a_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    for (name, part) in [("none", "mkdir"), ("file", "not a directory")] {
        let error = LocalBucket::open(&dir.path().join(name)).err().unwrap();
        assert!(matches!(&error, Error::Config(text) if text.contains(part)), "{error}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn nothing_is_reached_through_a_symbolic_link() {
    let (dir, bucket) = bucket();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("door")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), dir.path().join("window")).unwrap();
    assert!(bucket.get("door/secret", 0..9).await.is_err());
    assert!(bucket.get("window", 0..9).await.is_err());
    assert!(bucket.put("door/new", body("x")).await.is_err());
    assert!(bucket.create("door/new", body("x")).await.is_err());
    let _ = bucket.delete(&["door/secret".into()]).await;
    assert_eq!(bucket.list("").await.unwrap(), vec![]);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    // An object takes a link's place and not what it points to.
    bucket.put("window", body("new")).await.unwrap();
    assert_eq!(std::fs::read_to_string(outside.path().join("secret")).unwrap(), "secret");
}

#[tokio::test]
async fn a_failed_or_finished_write_leaves_nothing_behind() {
    let (dir, bucket) = bucket();
    bucket.put("a", body("x")).await.unwrap();
    bucket.create("b/c", body("x")).await.unwrap();
    assert!(matches!(bucket.create("b/c", body("y")).await, Err(Error::Exists(_))));
    assert!(matches!(bucket.put("a/d", body("y")).await, Err(Error::Config(_))));
    assert!(matches!(bucket.put("b", body("y")).await, Err(Error::Config(_))));
    assert_eq!(std::fs::read_dir(dir.path().join(TEMPORARY)).unwrap().count(), 0);
}

#[tokio::test]
async fn old_unfinished_writes_are_swept_and_young_ones_stay() {
    let (dir, bucket) = bucket();
    std::fs::create_dir(dir.path().join(TEMPORARY)).unwrap();
    let file = |name: &str| dir.path().join(TEMPORARY).join(name);
    let old = File::create(file("old")).unwrap();
    old.set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
    File::create(file("young")).unwrap();
    bucket.put("a", body("x")).await.unwrap();
    assert!(!file("old").exists() && file("young").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn emptied_folders_go_and_no_put_is_lost_to_that() {
    let (dir, bucket) = bucket();
    let bucket = Arc::new(bucket);
    let tasks = (0..8).map(|task| {
        let bucket = bucket.clone();
        tokio::spawn(async move {
            for round in 0..200 {
                let key = format!("x/y/{task}");
                if round % 2 == 0 {
                    bucket.put(&key, body("x")).await.unwrap();
                } else {
                    bucket.create(&key, body("x")).await.unwrap();
                }
                assert_eq!(bucket.get(&key, 0..9).await.unwrap(), "x");
                bucket.delete(std::slice::from_ref(&key)).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert!(!dir.path().join("x").exists());
}

#[tokio::test]
async fn a_sync_after_a_lost_write_fails_for_good() {
    let (_dir, bucket) = bucket();
    bucket.put("a", body("x")).await.unwrap();
    bucket.sync().await.unwrap();
    let device = bucket.root.device.clone();
    device.fail();
    // Nothing is new, so nothing can have been lost.
    bucket.sync().await.unwrap();
    bucket.put("a", body("y")).await.unwrap();
    assert!(matches!(bucket.sync().await, Err(Error::Io(_))));
    assert!(matches!(bucket.sync().await, Err(Error::Io(_))));
}

#[tokio::test]
async fn a_full_file_system_says_so() {
    let (_dir, bucket) = bucket();
    assert!(matches!(bucket.root.fail("k", Errno::ENOSPC), Error::NoSpace(_)));
    assert!(matches!(bucket.root.fail("k", Errno::EDQUOT), Error::NoSpace(_)));
    let capacity = bucket.capacity().await.unwrap().unwrap();
    assert!(capacity.total >= capacity.free && capacity.total > 0);
}
