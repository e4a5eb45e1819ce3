//! What a client costs by itself: 4 KiB reads at random places of a file in the ARC, without a kernel in between.
//!
//!     cargo run --release --example hot [MIB]
//!
//! Prints a line of JSON: reads a second of one thread, and of two at once.

use rand::seq::SliceRandom;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_base::posix::Cred;
use tarn_base::{Answer, DatasetId, Ino, SystemClock};
use tarn_client::{Client, ClientOptions, Handle, OpenMode};
use tarn_mdt::{Mdt, MdtOptions};
use tarn_pool::{CreateSpec, HostId, Pool};
use tarn_server::LocalMds;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// How long each figure is measured.
const TIME: Duration = Duration::from_secs(3);

async fn client() -> Result<Arc<Client>, Failure> {
    let spec = CreateSpec {
        name: "tank".into(),
        urls: vec![format!("mem://hot-{}", std::process::id())],
        properties: BTreeMap::new(),
        root_properties: BTreeMap::new(),
        host: HostId { id: 1, name: "hot".into() },
        force: false,
    };
    let pool = Pool::create(spec).await?;
    let mdt =
        Mdt::open(pool.clone(), DatasetId(1), MdtOptions::new(Arc::new(SystemClock::default()))).await?;
    Ok(Client::new(LocalMds::new(mdt), pool, ClientOptions::new(tokio::runtime::Handle::current())))
}

/// A file of `size` bytes that is committed and in the ARC.
async fn written(client: &Arc<Client>, size: u64) -> Result<Handle, Failure> {
    let mode = OpenMode { read: true, write: true, ..OpenMode::default() };
    let cred = Cred { uid: 0, gid: 0 };
    let (attr, file) = client.create_open(cred, Ino::ROOT, b"file", 0o644, 0, mode).wait().await?;
    for at in (0..size).step_by(MIB as usize) {
        let block: Vec<u8> = (0..MIB).map(|n| (n * 31 + at) as u8).collect();
        client.write(file, at, &block, false).wait().await?;
    }
    client.fsync(attr.ino, false).wait().await?;
    // One after the other, or at even distances, they would be a stream, which leaves room for others behind it. By chance
    // some are: so they are read until all stay.
    for _ in 0..100 {
        let mut places: Vec<u64> = (0..size).step_by(MIB as usize).collect();
        places.shuffle(&mut rand::rng());
        let mut waited = false;
        for at in places {
            let read = client.read(file, at, MIB as usize);
            waited |= matches!(read, Answer::Pending(_));
            read.wait().await?;
        }
        if !waited {
            return Ok(file);
        }
    }
    Err("the file does not stay in memory".into())
}

/// Reads a second; an error if one has to wait or is short.
fn reads(client: &Arc<Client>, file: Handle, size: u64, seed: u64) -> Result<f64, Failure> {
    let (start, mut done, mut place) = (Instant::now(), 0u64, seed);
    while start.elapsed() < TIME {
        for _ in 0..64 {
            place = place.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (place >> 33) % (size / BLOCK) * BLOCK;
            match client.read(file, at, BLOCK as usize) {
                Answer::Ready(Ok(buf)) if buf.len() == BLOCK as usize => done += 1,
                Answer::Ready(other) => return Err(format!("a read at {at} gave {other:?}").into()),
                Answer::Pending(_) => return Err(format!("a read at {at} found nothing in memory").into()),
            }
        }
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

fn main() -> Result<(), Failure> {
    let size = std::env::args().nth(1).map_or(Ok(64), |mib| mib.parse())? * MIB;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = runtime.block_on(client())?;
    let file = runtime.block_on(written(&client, size))?;
    let one = reads(&client, file, size, 1)?;
    let two = std::thread::scope(|scope| {
        let threads = [2, 3].map(|seed| {
            let client = &client;
            scope.spawn(move || reads(client, file, size, seed))
        });
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a reader ended")?).sum::<Result<f64, _>>()
    })?;
    println!("{{\"one\": {one:.0}, \"two\": {two:.0}}}");
    Ok(())
}
