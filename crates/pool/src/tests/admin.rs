//! Making, finding, moving, growing and destroying pools.

use super::world::*;
use crate::codec::frame;
use crate::label::{Found, LabelState};
use crate::{Error, Pool};
use bytes::Bytes;
use tarn_base::{ChecksumKind, Compression, VdevId};
use tarn_bucket::{Operation, fault::Fault};

fn text<T>(result: crate::Result<T>) -> String {
    let Err(error) = result else { panic!("must fail") };
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.is_empty());
    text
}

#[tokio::test]
async fn a_pool_is_made_found_exported_and_imported() {
    let root = tempfile::tempdir().unwrap();
    let urls = directories(root.path(), 3);
    let mut wish = spec(&urls, 1);
    wish.properties.insert("comment".into(), "mine".into());
    wish.root_properties.insert("recordsize".into(), "1M".into());
    let pool = Pool::create(wish).await.unwrap();
    let config = pool.config();
    assert_eq!((config.name.as_str(), config.vdevs.len(), config.datasets.len()), ("tank", 3, 1));
    let dataset = &config.datasets[0];
    assert_eq!((dataset.id.0, dataset.name.as_str(), dataset.metadata_vdevs.len()), (1, "tank", 3));
    assert_eq!(dataset.properties["recordsize"], "1M");
    assert_eq!(pool.property("comment").as_deref(), Some("mine"));
    assert_eq!(pool.property("rewind").as_deref(), Some("10m"));
    assert_eq!(pool.property("authority").as_deref(), Some("host"));
    pool.log_history("pool create tank").await.unwrap();
    pool.set_property("rewind", "0").await.unwrap();
    assert_eq!(pool.rewind(), std::time::Duration::ZERO);
    assert!(text(pool.set_property("rewind", "soon").await).contains("0 to 30d"));
    assert!(text(pool.set_property("guid", "1").await).contains("read-only"));
    pool.export().await.unwrap();
    assert!(pool.update_config(|_| Ok(())).await.is_err());
    assert!(pool.place(1).is_err());
    drop(pool);

    // The directory above them is searched one level deep.
    let above = [root.path().display().to_string()];
    let (found, _) = Pool::scan(&above).await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].exported && found[0].problem.is_none() && found[0].holder.is_none());
    assert!(found[0].urls.iter().all(|(_, url)| url.is_some()));
    let pool = Pool::import(&above, None, options(2)).await.unwrap();
    assert_eq!(pool.property("rewind").as_deref(), Some("0"));
    assert_eq!(pool.history().await.unwrap().len(), 1);
    assert!(pool.epoch() > config.epoch);
    pool.release().await.unwrap();

    // The same host goes on without ado, by name and by guid; a new name reaches the datasets.
    let pool = Pool::open_cached(&urls, config.guid, options(2)).await.unwrap();
    pool.release().await.unwrap();
    let renamed = crate::ImportOptions { new_name: Some("barrel".into()), ..options(2) };
    let pool = Pool::import(&urls, Some("tank"), renamed).await.unwrap();
    assert_eq!(pool.config().datasets[0].name, "barrel");
    assert!(text(Pool::import(&urls, Some("tank"), options(2)).await).contains("there is: barrel"));
}

#[tokio::test]
async fn bad_arguments_are_refused_in_one_line_and_leave_nothing() {
    let urls = memory(2);
    let with = |change: &dyn Fn(&mut crate::CreateSpec)| {
        let mut wish = spec(&urls, 1);
        change(&mut wish);
        Pool::create(wish)
    };
    assert!(text(with(&|s| s.name = "1tank".into()).await).contains("begin with a letter"));
    assert!(text(with(&|s| s.name = "mirror".into()).await).contains("reserved"));
    assert!(text(with(&|s| s.urls.clear()).await).contains("at least one"));
    assert!(text(with(&|s| s.urls.push(urls[0].clone())).await).contains("same bucket"));
    assert!(text(with(&|s| s.urls.push("ftp://x".into())).await).contains("unknown scheme"));
    assert!(text(with(&|s| s.urls.push("/no/such/dir".into())).await).contains("no such directory"));
    assert!(text(with(&|s| drop(s.properties.insert("nope".into(), "1".into()))).await).contains("unknown"));
    let host = |s: &mut crate::CreateSpec| drop(s.properties.insert("authority".into(), "host".into()));
    assert!(text(with(&host).await).contains("authority"));
    for url in &urls {
        assert_eq!(objects(url).await, Vec::<String>::new());
    }
    assert!(text(Pool::import(&urls, None, options(1)).await).contains("no pool"));
}

#[tokio::test]
async fn one_directory_by_two_names_is_one_bucket() {
    let root = tempfile::tempdir().unwrap();
    let mut urls = directories(root.path(), 1);
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&urls[0], &link).unwrap();
    urls.push(link.display().to_string());
    assert!(text(Pool::create(spec(&urls, 1)).await).contains("same bucket"));
}

#[tokio::test]
async fn a_failed_creation_is_taken_back() {
    for at in ["tarn/claim", "tarn/label", "a/"] {
        let urls = memory(3);
        make_faulty(&urls[2]);
        make_faulty(&urls[0]);
        Pool::scan(&urls).await.unwrap();
        for url in [&urls[2], &urls[0]] {
            let faulty = faulty(url);
            faulty.script(Operation::Put, at, 1, Fault::Fail);
            faulty.script(Operation::Create, at, 1, Fault::Fail);
        }
        assert!(Pool::create(spec(&urls, 1)).await.is_err(), "{at}");
        for url in &urls {
            faulty(&urls[0]).calm();
            assert_eq!(objects(url).await, Vec::<String>::new(), "{at}");
        }
        faulty(&urls[2]).calm();
        Pool::create(spec(&urls, 1)).await.unwrap();
    }
}

#[tokio::test]
async fn a_bucket_in_a_pool_is_taken_only_by_force() {
    let urls = memory(2);
    let pool = create(&urls).await;
    write(&pool, segment(VdevId(0), 1, 0), &[data(100, 1, false)], Compression::Off, ChecksumKind::Xxh3)
        .await
        .unwrap();
    assert!(text(Pool::create(spec(&urls, 1)).await).contains("active pool 'tank'"));
    pool.export().await.unwrap();
    assert!(text(Pool::create(spec(&urls, 1)).await).contains("exported pool 'tank'"));
    raw(&urls[0]).delete(&["tarn/label".into()]).await.unwrap();
    // One copy of two tells as much.
    assert!(text(Pool::create(spec(&urls, 1)).await).contains("exported pool 'tank'"));
    raw(&urls[0]).delete(&crate::label::keys()).await.unwrap();
    let one = &urls[..1];
    assert!(text(Pool::create(spec(one, 1)).await).contains("former pool"));
    let wish = crate::CreateSpec { force: true, ..spec(one, 1) };
    let again = Pool::create(wish).await.unwrap();
    assert_ne!(again.guid(), pool.guid());
    assert!(objects(&urls[0]).await.iter().all(|key| !key.starts_with("d/")));
}

#[tokio::test]
async fn moved_and_renamed_buckets_are_found_by_guid() {
    let root = tempfile::tempdir().unwrap();
    let urls = directories(root.path(), 3);
    let pool = create(&urls).await;
    let records = vec![data(70_000, 1, true), data(5000, 2, false)];
    let mut all = Vec::new();
    for n in 0..3 {
        let id = segment(VdevId(n), 1, 0);
        all.extend(write(&pool, id, &records, Compression::Lz4, ChecksumKind::Xxh3).await.unwrap());
    }
    pool.export().await.unwrap();
    drop(pool);
    let elsewhere = tempfile::tempdir().unwrap();
    for (n, url) in urls.iter().enumerate() {
        copy_tree(url.as_ref(), &elsewhere.path().join(format!("other-{}", 9 - n)));
    }
    drop(root);
    let above = [elsewhere.path().display().to_string()];
    let pool = Pool::import(&above, Some("tank"), options(5)).await.unwrap();
    let read = pool.read(&all, crate::Caching::Keep).await.unwrap();
    assert!(read.chunks(2).all(|pair| pair == records));
    assert!(pool.config().vdevs[0].url.ends_with("other-9"));
}

#[tokio::test]
async fn missing_doubled_and_newer_buckets_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let urls = directories(root.path(), 3);
    let pool = create(&urls).await;
    pool.export().await.unwrap();
    let refusal = text(Pool::import(&urls[..1], None, options(1)).await);
    assert!(refusal.contains("2 of 3 vdevs not found") && refusal.contains(&urls[2]), "{refusal}");
    assert!(Pool::scan(&urls[..1]).await.unwrap().0[0].problem.is_some());
    // A bucket that was named is not missing: it is said what is wrong with it.
    let label = get(&urls[1], crate::label::KEY).await;
    for key in crate::label::keys() {
        set(&urls[1], &key, b"no label".to_vec()).await;
    }
    let refusal = text(Pool::import(&urls, None, options(1)).await);
    assert!(refusal.contains(&urls[1]) && refusal.contains("label is damaged"), "{refusal}");
    assert!(!refusal.contains("name their buckets"), "{refusal}");
    set(&urls[1], crate::label::KEY, label).await;

    let copy = root.path().join("copy");
    copy_tree(urls[1].as_ref(), &copy);
    let mut more = urls.clone();
    more.push(copy.display().to_string());
    let refusal = text(Pool::import(&more, None, options(1)).await);
    assert!(refusal.contains("twice") && refusal.contains("copy"), "{refusal}");
    // The same directory named twice is no trouble.
    let mut twice = urls.clone();
    twice.push(urls[0].clone());
    let pool = Pool::import(&twice, None, options(1)).await.unwrap();
    pool.export().await.unwrap();

    set(&urls[0], "tarn/label", frame(b"TARNLABL", 2, b"{}").to_vec()).await;
    let refusal = text(Pool::import(&urls, None, options(1)).await);
    assert!(refusal.contains(&urls[0]) && refusal.contains("format 2"), "{refusal}");
    for url in &urls[1..] {
        set(url, "tarn/label", frame(b"TARNLABL", 2, b"{}").to_vec()).await;
    }
    let refusal = text(Pool::import(&urls, None, options(1)).await);
    assert!(refusal.contains("format 2"), "{refusal}");
}

#[tokio::test]
async fn the_second_copy_of_a_label_serves_and_the_first_is_written_anew() {
    for count in [1, 3] {
        let urls = memory(count);
        for wrong in [None, Some(b"no label".to_vec()), Some(Vec::new())] {
            let pool = match Pool::import(&urls, None, options(1)).await {
                Ok(pool) => pool,
                Err(_) => create(&urls).await,
            };
            pool.set_property("comment", "mine").await.unwrap();
            pool.export().await.unwrap();
            for url in &urls {
                match &wrong {
                    Some(bytes) => set(url, crate::label::KEY, bytes.clone()).await,
                    None => raw(url).delete(&[crate::label::KEY.into()]).await.unwrap(),
                }
            }
            let pool = Pool::import(&urls, None, options(1)).await.unwrap();
            assert_eq!(pool.property("comment").as_deref(), Some("mine"));
            for url in &urls {
                assert_eq!(get(url, crate::label::KEY).await, get(url, crate::label::SPARE).await);
            }
            // While the pool is in use a check finds either copy.
            for key in crate::label::keys() {
                assert_eq!(pool.scrub_labels().await.unwrap(), Default::default());
                set(&urls[0], &key, b"no label".to_vec()).await;
                assert_eq!(pool.scrub_labels().await.unwrap(), (vec![urls[0].clone()], vec![]));
            }
            pool.export().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_label_of_another_pool_is_told_and_not_written_over() {
    let urls = memory(3);
    let (pool, other) = (create(&urls[..2]).await, create(&urls[2..]).await);
    let foreign = get(&urls[2], crate::label::KEY).await;
    for key in crate::label::keys() {
        set(&urls[1], &key, foreign.clone()).await;
        assert!(text(pool.scrub_labels().await).contains("another pool, 'tank'"));
        assert_eq!(get(&urls[1], &key).await, foreign);
    }
    drop(other);
}

#[tokio::test]
async fn unknown_features_are_refused_by_class() {
    let urls = memory(1);
    let pool = create(&urls).await;
    pool.export().await.unwrap();
    let Found::Label(label) = crate::label::read(&*raw(&urls[0])).await.unwrap() else { panic!() };
    let mut label = *label;
    label.features.compatible.push("org:colours".into());
    set(&urls[0], "tarn/label", label.to_bytes().unwrap().to_vec()).await;
    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    pool.export().await.unwrap();
    let Found::Label(kept) = crate::label::read(&*raw(&urls[0])).await.unwrap() else { panic!() };
    assert_eq!(kept.features, label.features);
    let mut label = *kept;
    label.features.incompatible.push("org:encryption".into());
    set(&urls[0], "tarn/label", label.to_bytes().unwrap().to_vec()).await;
    let refusal = text(Pool::import(&urls, None, options(1)).await);
    assert!(refusal.contains("org:encryption") && refusal.contains("newer"), "{refusal}");
}

#[tokio::test]
async fn vdevs_are_added_online_and_used_at_once() {
    let urls = memory(4);
    let pool = create(&urls[..3]).await;
    assert!(text(pool.add_vdevs(&urls[..1], false).await).contains("of this pool already"));
    make_faulty(&urls[3]);
    Pool::scan(&urls[3..]).await.unwrap();
    faulty(&urls[3]).script(Operation::Put, "tarn/label", 1, Fault::Fail);
    assert!(pool.add_vdevs(&urls[3..], false).await.is_err());
    assert_eq!(objects(&urls[3]).await, Vec::<String>::new());
    assert_eq!(pool.config().vdevs.len(), 3);

    assert_eq!(pool.add_vdevs(&urls[3..], false).await.unwrap(), [VdevId(3)]);
    let placed: Vec<_> = (0..8).map(|_| pool.place(4 << 20).unwrap()).collect();
    assert!(placed.contains(&VdevId(3)), "{placed:?}");
    let ptrs =
        write(&pool, segment(VdevId(3), 1, 0), &[Bytes::from("x")], Compression::Off, ChecksumKind::Xxh3)
            .await
            .unwrap();
    // Metadata places of the old dataset stay.
    assert_eq!(pool.config().datasets[0].metadata_vdevs.len(), 3);
    pool.export().await.unwrap();
    assert!(text(Pool::import(&urls[..3], None, options(1)).await).contains("1 of 4 vdevs"));
    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    assert_eq!(pool.read(&ptrs, crate::Caching::Keep).await.unwrap(), [Bytes::from("x")]);
}

#[tokio::test]
async fn a_bucket_that_is_added_by_force_loses_what_it_held() {
    let urls = memory(2);
    let former = create(&urls[1..]).await;
    write(&former, segment(VdevId(0), 1, 0), &[data(100, 1, false)], Compression::Off, ChecksumKind::Xxh3)
        .await
        .unwrap();
    former.log_history("x").await.unwrap();
    set(&urls[1], "m/00000005/manifest/00000000000000000001.manifest", b"old".to_vec()).await;
    former.release().await.unwrap();
    let pool = create(&urls[..1]).await;
    assert!(text(pool.add_vdevs(&urls[1..], false).await).contains("active pool 'tank'"));
    pool.add_vdevs(&urls[1..], true).await.unwrap();
    assert_eq!(objects(&urls[1]).await, ["tarn/label", "tarn/spare-label"]);
    // What is in the pool is not emptied, whatever force is used.
    for url in &urls {
        let again = pool.add_vdevs(std::slice::from_ref(url), true).await;
        assert!(text(again).contains("of this pool already"));
    }
    pool.release().await.unwrap();
    Pool::import(&urls, None, options(1)).await.unwrap();
}

#[tokio::test]
async fn a_directory_of_a_running_pool_is_not_added_by_force() {
    let root = tempfile::tempdir().unwrap();
    let urls = [memory(1), directories(root.path(), 1)].concat();
    let running = create(&urls[1..]).await;
    running.log_history("x").await.unwrap();
    let before = objects(&urls[1]).await;
    let pool = create(&urls[..1]).await;
    assert!(text(pool.add_vdevs(&urls[1..], true).await).contains("is in use by process"));
    assert_eq!(objects(&urls[1]).await, before);
    running.log_history("y").await.unwrap();
}

/// A pool of two directories that fail on purpose, and one directory more.
async fn a_pool_that_may_grow(root: &std::path::Path) -> (std::sync::Arc<Pool>, Vec<String>) {
    let urls = directories(root, 3);
    urls[..2].iter().for_each(|url| make_faulty(url));
    (create(&urls[..2]).await, urls)
}

#[tokio::test]
async fn a_vdev_that_a_label_may_name_keeps_its_own() {
    let root = tempfile::tempdir().unwrap();
    let (pool, urls) = a_pool_that_may_grow(root.path()).await;
    // One label names the new vdev, and no other can be written that does not.
    faulty(&urls[0]).script(Operation::Put, "tarn/label", 1, Fault::ReplyLost);
    faulty(&urls[0]).script(Operation::Put, "tarn/label", 1, Fault::Fail);
    faulty(&urls[1]).script(Operation::Put, "tarn/label", 2, Fault::Fail);
    assert!(pool.add_vdevs(&urls[2..], false).await.is_err());
    assert_eq!(pool.config().vdevs.len(), 2);
    pool.release().await.unwrap();
    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    assert_eq!(pool.config().vdevs.len(), 3);
}

#[tokio::test]
async fn a_vdev_that_could_not_be_added_leaves_nothing_and_can_be_added_again() {
    let root = tempfile::tempdir().unwrap();
    let (pool, urls) = a_pool_that_may_grow(root.path()).await;
    faulty(&urls[1]).script(Operation::Put, "tarn/label", 1, Fault::Fail);
    assert!(pool.add_vdevs(&urls[2..], false).await.is_err());
    assert!(!std::path::Path::new(&urls[2]).join("tarn").exists());
    pool.release().await.unwrap();
    let pool = Pool::import(&urls[..2], None, options(1)).await.unwrap();
    // Where it leaves its label behind, that is no member of the pool and can be taken.
    faulty(&urls[1]).script(Operation::Put, "tarn/label", 2, Fault::Fail);
    assert!(pool.add_vdevs(&urls[2..], false).await.is_err());
    assert!(text(pool.add_vdevs(&urls[2..], false).await).contains("active pool 'tank'"));
    assert_eq!(pool.add_vdevs(&urls[2..], true).await.unwrap(), [VdevId(2)]);
    pool.release().await.unwrap();
    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    assert_eq!(pool.config().vdevs.len(), 3);
}

#[tokio::test]
async fn destroy_leaves_nothing_and_a_half_destroyed_pool_is_no_pool() {
    let root = tempfile::tempdir().unwrap();
    let urls = directories(root.path(), 2);
    let pool = create(&urls).await;
    write(&pool, segment(VdevId(1), 1, 0), &[data(100, 1, false)], Compression::Off, ChecksumKind::Xxh3)
        .await
        .unwrap();
    pool.log_history("x").await.unwrap();
    pool.destroy().await.unwrap();
    for url in &urls {
        assert_eq!(objects(url).await, Vec::<String>::new());
        assert!(!std::path::Path::new(url).join("tarn").exists());
    }

    let urls = memory(2);
    make_faulty(&urls[1]);
    let pool = create(&urls).await;
    pool.log_history("x").await.unwrap();
    faulty(&urls[1]).script(Operation::List, "h/", 1, Fault::Fail);
    assert!(pool.destroy().await.is_err());
    assert!(Pool::scan(&urls).await.unwrap().0.is_empty());
    let Found::Label(label) = crate::label::read(&*raw(&urls[0])).await.unwrap() else { panic!() };
    assert_eq!(label.state, LabelState::Destroyed);
    assert!(matches!(Pool::import(&urls, None, options(1)).await, Err(Error::Usage(_))));
}

#[tokio::test]
async fn history_survives_the_loss_of_one_copy() {
    let urls = memory(3);
    let pool = create(&urls).await;
    for n in 0..5 {
        pool.log_history(&format!("command {n}")).await.unwrap();
    }
    for key in objects(&urls[1]).await.iter().filter(|k| k.starts_with("h/")) {
        tamper(&urls[1], key, |bytes| bytes[40] ^= 1).await;
    }
    let history = pool.history().await.unwrap();
    assert_eq!(history.len(), 5);
    assert!(history.iter().all(|entry| entry.host == host(1)));
}

#[tokio::test]
async fn a_label_write_that_fails_on_one_of_three_counts_and_the_newest_wins() {
    let urls = memory(3);
    make_faulty(&urls[1]);
    let pool = create(&urls).await;
    faulty(&urls[1]).script(Operation::Put, "tarn/label", 1, Fault::Fail);
    pool.set_property("comment", "newest").await.unwrap();
    pool.release().await.unwrap();
    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    assert_eq!(pool.property("comment").as_deref(), Some("newest"));
    // Two failures of three are too many: the change is not believed, and the next one supersedes it.
    make_faulty(&urls[2]);
    pool.release().await.unwrap();
    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    for url in &urls[1..] {
        faulty(url).script(Operation::Put, "tarn/label", 1, Fault::Fail);
    }
    assert!(pool.set_property("comment", "lost").await.is_err());
    assert_eq!(pool.property("comment").as_deref(), Some("newest"));
    pool.set_property("failmode", "continue").await.unwrap();
    pool.release().await.unwrap();
    let pool = Pool::import(&urls, None, options(1)).await.unwrap();
    assert_eq!(pool.property("comment").as_deref(), Some("newest"));
}
