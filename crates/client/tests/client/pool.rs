//! The client over a real pool of buckets in memory.

use crate::mds::{MemMds, Served};
use crate::store::{Behaviour, Store};
use crate::world::{READ_WRITE, ROOT, pattern};
use std::sync::Arc;
use tarn_base::posix::SetAttr;
use tarn_base::{Answer, Compression, Ino, SystemClock};
use tarn_client::{Client, ClientOptions};
use tarn_pool::{CreateSpec, HostId, Pool};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_survive_in_a_real_pool() {
    let spec = CreateSpec {
        name: "tank".into(),
        urls: (0..4).map(|n| format!("mem://client-test-{n}")).collect(),
        properties: Default::default(),
        root_properties: Default::default(),
        host: HostId { id: 1, name: "here".into() },
        force: false,
    };
    let pool = Pool::create(spec).await.unwrap();
    let clock = Arc::new(SystemClock::default());
    let mds = MemMds::new(1, 128 << 10, Store::new(1, Behaviour::default()), clock);
    mds.info.lock().compression = Compression::Lz4;
    let mount = || {
        let options = ClientOptions::new(tokio::runtime::Handle::current());
        Client::new(Arc::new(Served(mds.clone())), pool.clone(), options)
    };
    let client = mount();
    let make = client.create_open(ROOT, Ino::ROOT, b"big", 0o644, 0, READ_WRITE);
    let (attr, file) = make.wait().await.unwrap();
    let data = pattern(1, 0, 12 << 20);
    for (at, piece) in (0..).step_by(1 << 20).zip(data.chunks(1 << 20)) {
        client.write(file, at, piece, false).wait().await.unwrap();
    }
    client.fsync(attr.ino, false).wait().await.unwrap();
    *mds.pending.lock() = 0.0;
    // What was just written is read back from memory, at whatever length its last record has.
    assert!(matches!(client.read(file, 5 << 20, 1 << 20), Answer::Ready(Ok(_))));
    client
        .setattr(ROOT, attr.ino, SetAttr { size: Some(777_777), ..SetAttr::default() }, None)
        .wait()
        .await
        .unwrap();
    client.shutdown(|_| {}).await.unwrap();

    let client = mount();
    let (file, attr, _) = client.open(attr.ino, READ_WRITE).wait().await.unwrap();
    assert_eq!(attr.size, 777_777);
    let found = client.read(file, 0, 1 << 20).wait().await.unwrap();
    assert_eq!(found.to_vec(), &data[..777_777]);
}
