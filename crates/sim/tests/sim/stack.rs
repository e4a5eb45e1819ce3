//! The stack under test, from the client down to the pool, and how a host comes to have it.

use crate::chance::Chance;
use crate::disk::{Disk, LATEST};
use crate::host::SimClock;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tarn_base::{ChecksumKind, Compression, DatasetId, FsError};
use tarn_bucket::fault::{FaultBucket, Rates};
use tarn_client::{Client, ClientOptions};
use tarn_mdt::{Mdt, MdtOptions, Properties};
use tarn_pool::{CreateSpec, HostId, ImportOptions, Pool, Reach};
use tarn_proto::wire::{Dial, Export, Hello, Incoming, Link, Outward, Refusal, Served, serve};
use tarn_server::{Exported, LocalMds};
use tokio::task::AbortHandle;

const NAME: &str = "tank";
const DATASET: DatasetId = DatasetId(1);

/// How one world is made; drawn from its seed.
#[derive(Debug, Clone)]
pub struct Shape {
    pub record_size: u32,
    pub vdevs: u64,
    pub needs_sync: bool,
    pub slowest_us: u64,
    pub rates: Rates,
    pub rewind: &'static str,
    pub deadline: &'static str,
    pub compression: Compression,
    pub checksum: ChecksumKind,
    pub flush_age: Duration,
    pub dirty_max: u64,
    /// The client is at the other end of a stream, without a pool of its own.
    pub remote: bool,
}

impl Shape {
    pub fn draw(chance: &Chance) -> Shape {
        let hostile = chance.below(4) as f64;
        let rate = |of: f64| of * hostile;
        let rates = Rates {
            fail: rate(0.008),
            reply_lost: rate(0.008),
            short: rate(0.008),
            hang: rate(0.001),
            flip: rate(0.01),
            no_space: 0.0,
            delay: rate(0.03),
            longest_delay: Duration::from_millis(1 + chance.below(3000)),
        };
        Shape {
            record_size: [4096, 4096, 8192][chance.below(3) as usize],
            vdevs: 1 + chance.below(3),
            needs_sync: chance.percent(60),
            slowest_us: [200, 5_000, 60_000][chance.below(3) as usize],
            rates,
            rewind: ["0", "0", "3s", "60s"][chance.below(4) as usize],
            deadline: ["2s", "60s", "60s"][chance.below(3) as usize],
            compression: [Compression::Lz4, Compression::Off, Compression::Zstd(1)][chance.below(3) as usize],
            checksum: [ChecksumKind::Xxh3, ChecksumKind::Blake3][chance.below(2) as usize],
            flush_age: Duration::from_millis([20, 400, 5000][chance.below(3) as usize]),
            dirty_max: (64 + chance.below(400)) << 10,
            remote: chance.percent(30),
        }
    }
}

/// The buckets of a world: they outlive every host.
pub struct Disks {
    pub disks: Vec<Arc<Disk>>,
    pub faults: Vec<Arc<FaultBucket>>,
    pub urls: Vec<String>,
}

impl Disks {
    pub fn new(chance: &Arc<Chance>, shape: &Shape) -> Disks {
        let mut all = Disks { disks: Vec::new(), faults: Vec::new(), urls: Vec::new() };
        for n in 0..shape.vdevs {
            let (name, url) = (format!("sim-{n}"), format!("mem://sim-{n}"));
            let disk = Disk::new(url.clone(), chance.clone(), shape.needs_sync, shape.slowest_us);
            let fault = FaultBucket::new(disk.clone());
            tarn_bucket::memory::stand_in(&name, fault.clone());
            all.disks.push(disk);
            all.faults.push(fault);
            all.urls.push(url);
        }
        all
    }

    /// From here on requests fail at these rates.
    pub fn storm(&self, chance: &Chance, rates: Rates) {
        for fault in &self.faults {
            fault.random(chance.below(u64::MAX), rates);
        }
    }

    /// From here on every request does what it shall.
    pub fn calm(&self) {
        self.faults.iter().for_each(|fault| fault.calm());
    }
}

/// A host with the pool open and a client on it.
#[derive(Clone)]
pub struct Stack {
    pub pool: Arc<Pool>,
    pub mdt: Arc<Mdt>,
    pub client: Arc<Client>,
    pub clock: Arc<SimClock>,
    far: Option<Far>,
}

/// The `n`th host of this process. Two processes that run one seed must not take each other's hosts for their own.
fn host(n: u64) -> HostId {
    let id = (n + 1) << 48 | u64::from(std::process::id());
    HostId { id, name: format!("host{n}") }
}

/// Makes the pool, on the host of that number.
pub async fn create(disks: &Disks, shape: &Shape, on: u64) -> Result<Arc<Pool>, String> {
    let properties = [
        ("rewind", shape.rewind),
        ("deadline", shape.deadline),
        ("authority", "bucket"),
        ("segment_size", "256K"),
    ];
    let spec = CreateSpec {
        name: NAME.into(),
        urls: disks.urls.clone(),
        properties: properties.map(|(name, value)| (name.to_string(), value.to_string())).into(),
        root_properties: BTreeMap::new(),
        host: host(on),
        force: false,
    };
    Pool::create(spec).await.map_err(|e| format!("the pool cannot be made: {e}"))
}

/// Imports the pool on the host of that number.
pub async fn import(disks: &Disks, on: u64, force: bool) -> tarn_pool::Result<Arc<Pool>> {
    let options = ImportOptions { host: host(on), force, new_name: None, memory: 4 << 20 };
    Pool::import(&disks.urls, Some(NAME), options).await
}

/// The server of a client that is at the other end of a stream. It may end, and another takes its place.
struct Host {
    /// None while it is down.
    export: Mutex<Option<Arc<Exported>>>,
    /// The connection that it serves.
    serving: Mutex<Option<AbortHandle>>,
}

impl Host {
    fn new(pool: &Arc<Pool>, mdt: &Arc<Mdt>) -> Arc<Host> {
        let host = Arc::new(Host { export: Mutex::default(), serving: Mutex::default() });
        host.begin(pool, mdt);
        host
    }

    fn begin(&self, pool: &Arc<Pool>, mdt: &Arc<Mdt>) {
        let export = Exported::new(NAME, pool.clone(), mdt.clone(), BTreeMap::new());
        *self.export.lock() = Some(export);
    }

    fn end(&self) {
        *self.export.lock() = None;
        self.cut();
    }

    fn cut(&self) {
        if let Some(serving) = self.serving.lock().take() {
            serving.abort();
        }
    }
}

impl Export for Host {
    fn admit<'a>(&'a self, hello: &'a Hello) -> BoxFuture<'a, Result<Served, Refusal>> {
        let export = self.export.lock().clone();
        let down = || Refusal::Not("the server is down".into());
        Box::pin(async move { export.ok_or_else(down)?.admit(hello).await })
    }
}

/// A way to a server in this process.
struct Here(Arc<Host>);

#[async_trait::async_trait]
impl Dial for Here {
    fn name(&self) -> String {
        "here".into()
    }

    async fn dial(&self) -> std::io::Result<(Incoming, Outward)> {
        let (here, there) = tokio::io::duplex(64 << 10);
        let host = self.0.clone();
        let serving = tokio::spawn(async move {
            let (reader, writer) = tokio::io::split(there);
            serve(&*host, reader, writer).await
        });
        *self.0.serving.lock() = Some(serving.abort_handle());
        let (reader, writer) = tokio::io::split(here);
        Ok((Box::new(reader), Box::new(writer)))
    }
}

/// A client with a wire between itself and the server.
#[derive(Clone)]
struct Far {
    host: Arc<Host>,
    link: Arc<Link>,
}

/// Its memory for records is as small as the pool's.
async fn remote(
    mdt: &Arc<Mdt>,
    pool: &Arc<Pool>,
    options: ClientOptions,
) -> Result<(Arc<Client>, Far), FsError> {
    let failed = |what: String| FsError::Io(what);
    let host = Host::new(pool, mdt);
    // The client of the last life went down with its host.
    let last = mdt.client().unwrap_or(0);
    let export = host.export.lock().clone();
    export.ok_or(FsError::NotFound)?.give_up().await?;
    let dial = Box::new(Here(host.clone()));
    let link = Link::open(dial, last + 1, NAME).await.map_err(|e| failed(e.to_string()))?;
    let client = Client::remote(link.clone(), NAME, Reach::Host, 4 << 20, |_| options).await;
    Ok((client.map_err(|e| failed(e.to_string()))?.0, Far { host, link }))
}

fn mdt_options(shape: &Shape, clock: &Arc<SimClock>) -> MdtOptions {
    let properties = Properties {
        record_size: shape.record_size,
        compression: shape.compression,
        checksum: shape.checksum,
        atime: false,
        ..Properties::default()
    };
    MdtOptions { properties, memory: 4 << 20, hash_bits: 8, ..MdtOptions::new(clock.clone()) }
}

impl Stack {
    /// Opens the dataset and puts a client on it.
    pub async fn open(pool: Arc<Pool>, shape: &Shape) -> Result<Stack, FsError> {
        let clock = Arc::new(SimClock::new());
        let mdt = Mdt::open(pool.clone(), DATASET, mdt_options(shape, &clock)).await?;
        let mut options = ClientOptions::new(tokio::runtime::Handle::current());
        options.dirty_max = shape.dirty_max;
        options.flush_age = shape.flush_age;
        options.prefetch_max = 128 << 10;
        options.told_of_forgetting = true;
        options.clock = clock.clone();
        let (client, far) = match shape.remote {
            true => {
                let made = remote(&mdt, &pool, options).await;
                let (client, far) = made.inspect_err(|_| mdt.abandon())?;
                (client, Some(far))
            }
            false => (Client::new(LocalMds::new(mdt.clone()), pool.clone(), options), None),
        };
        Ok(Stack { pool, mdt, client, clock, far })
    }

    /// Breaks the client's connection, if it has one.
    pub fn cut(&self) {
        self.far.iter().for_each(|far| far.host.cut());
    }

    /// The client is at the other end of a stream.
    pub fn is_remote(&self) -> bool {
        self.far.is_some()
    }

    /// Ends the client's server, with all that is not durable.
    pub fn end_server(&self) {
        self.far.iter().for_each(|far| far.host.end());
        self.mdt.abandon();
    }

    /// A server in its place.
    pub async fn begin_server(&mut self, shape: &Shape) -> Result<(), FsError> {
        self.mdt = Mdt::open(self.pool.clone(), DATASET, mdt_options(shape, &self.clock)).await?;
        self.far.iter().for_each(|far| far.host.begin(&self.pool, &self.mdt));
        Ok(())
    }

    /// Unmounts, as a daemon does that is asked to.
    pub async fn close(&self) -> Result<(), String> {
        if !self.far.as_ref().is_some_and(|far| far.link.closed()) {
            self.client.shutdown(|_| {}).await.map_err(|e| format!("unmount: {e}"))?;
        }
        if let Some(far) = &self.far {
            if far.link.unmade() > 0 {
                return Err(format!("{} changes could not be made again", far.link.unmade()));
            }
            far.link.leave().await.map_err(|e| format!("leaving: {e}"))?;
        }
        // A daemon does not wait: what arrives after its end is what `tarn check --repair` is for.
        tokio::time::sleep(LATEST).await;
        self.mdt.close().await.map_err(|e| format!("closing the dataset: {e}"))?;
        self.pool.keep_books(DATASET).await.map_err(|e| format!("keeping the books: {e}"))?;
        self.pool.release().await.map_err(|e| format!("letting the pool go: {e}"))
    }
}
