//! What the wire moves, beside what the same stream moves without it: two processes of this program, TCP on the
//! loopback between them, with TLS if certificates are given.
//!
//!     cargo bench --workspace --bench wire -- [CA CERT KEY]
//!
//! Prints a line of JSON.

use bytes::Bytes;
use futures::StreamExt;
use futures::future::{BoxFuture, ready};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_base::posix::{Cred, FileKind, NewNode};
use tarn_base::{DatasetId, Grant, Ino, SegmentId, SystemClock, VdevId};
use tarn_mdt::{Mdt, MdtOptions};
use tarn_pool::{CreateSpec, HostId, Pool};
use tarn_proto::wire::{
    Dial, Export, Hello, Incoming, Link, Outward, Refusal, RemoteMds, RemoteOss, Served, serve,
};
use tarn_proto::{Mds, Oss, OssError, Room};
use tarn_server::Exported;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Reply<T> = BoxFuture<'static, Result<T, OssError>>;

/// An object, and how many of them are asked for at a time.
const OBJECT: usize = 4 << 20;
const AT_ONCE: usize = 8;
/// How long each figure is measured.
const TIME: Duration = Duration::from_secs(3);
const DATASET: DatasetId = DatasetId(1);

/// Objects that cost nothing to read.
struct Memory(Bytes);

impl Oss for Memory {
    fn get(&self, _: SegmentId, range: Range<u64>) -> Reply<Bytes> {
        Box::pin(ready(Ok(self.0.slice(range.start as usize..range.end as usize))))
    }

    fn get_tail(&self, _: SegmentId, len: u64) -> Reply<(Bytes, u64)> {
        let all = self.0.len() as u64;
        Box::pin(ready(Ok((self.0.slice((all - len) as usize..), all))))
    }

    fn put(&self, _: SegmentId, _: Vec<Bytes>) -> Reply<()> {
        Box::pin(ready(Ok(())))
    }

    fn stored(&self, _: SegmentId, _: u64) -> Reply<()> {
        Box::pin(ready(Ok(())))
    }

    fn room(&self, _: VdevId) -> Reply<Option<Room>> {
        Box::pin(ready(Ok(None)))
    }
}

struct Host(Arc<Exported>, Arc<Memory>);

impl Export for Host {
    fn admit<'a>(&'a self, hello: &'a Hello) -> BoxFuture<'a, Result<Served, Refusal>> {
        Box::pin(async move { Ok(Served { oss: self.1.clone(), ..self.0.admit(hello).await? }) })
    }
}

async fn host() -> Result<Host, Failure> {
    let spec = CreateSpec {
        name: "tank".into(),
        urls: vec![format!("mem://bench-{}", std::process::id())],
        properties: BTreeMap::new(),
        root_properties: BTreeMap::new(),
        host: HostId { id: 1, name: "bench".into() },
        force: false,
    };
    let pool = Pool::create(spec).await?;
    let mdt = Mdt::open(pool.clone(), DATASET, MdtOptions::new(Arc::new(SystemClock::default()))).await?;
    let object = Bytes::from(vec![7; OBJECT]);
    Ok(Host(Exported::new("tank", pool, mdt, BTreeMap::new()), Arc::new(Memory(object))))
}

fn apart<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + 'static>(stream: S) -> (Incoming, Outward) {
    let (reader, writer) = tokio::io::split(stream);
    (Box::new(reader), Box::new(writer))
}

fn acceptor(files: &[String]) -> Result<Option<TlsAcceptor>, Failure> {
    let [_, cert, key] = files else { return Ok(None) };
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn connector(files: &[String]) -> Result<Option<TlsConnector>, Failure> {
    let [ca, ..] = files else { return Ok(None) };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

/// The server's process: tells its two ports, one for the wire, one for the stream alone.
async fn serving(files: &[String]) -> Result<(), Failure> {
    let (wire, raw) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    println!("{} {}", wire.local_addr()?.port(), raw.local_addr()?.port());
    let (host, tls) = (Arc::new(host().await?), acceptor(files)?);
    let accept = |stream: TcpStream, tls: Option<TlsAcceptor>| async move {
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>(match tls {
            Some(tls) => apart(tls.accept(stream).await?),
            None => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader) as Incoming, Box::new(writer) as Outward)
            }
        })
    };
    loop {
        tokio::select! {
            caller = wire.accept() => {
                let (host, tls, stream) = (host.clone(), tls.clone(), caller?.0);
                tokio::spawn(async move {
                    let (reader, writer) = accept(stream, tls).await?;
                    serve(&*host, reader, writer).await.map_err(Failure::from)
                });
            }
            caller = raw.accept() => {
                let (tls, stream) = (tls.clone(), caller?.0);
                tokio::spawn(async move {
                    let (_reader, mut writer) = accept(stream, tls).await?;
                    let object = vec![7; OBJECT];
                    while writer.write_all(&object).await.is_ok() {}
                    Ok::<_, Failure>(())
                });
            }
        }
    }
}

/// A way to a port of the server.
#[derive(Clone)]
struct Port(u16, Option<TlsConnector>);

#[async_trait::async_trait]
impl Dial for Port {
    fn name(&self) -> String {
        format!("port {}", self.0)
    }

    async fn dial(&self) -> std::io::Result<(Incoming, Outward)> {
        let stream = TcpStream::connect(("127.0.0.1", self.0)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.1 else {
            let (reader, writer) = stream.into_split();
            return Ok((Box::new(reader), Box::new(writer)));
        };
        let name = ServerName::try_from("localhost").map_err(std::io::Error::other)?;
        Ok(apart(tls.connect(name, stream).await?))
    }
}

/// MB a second of the stream alone.
async fn raw(port: &Port) -> Result<f64, Failure> {
    let (mut reader, _writer) = port.dial().await?;
    let mut buffer = vec![0; 1 << 20];
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        bytes += reader.read(&mut buffer).await?;
    }
    Ok(bytes as f64 / 1e6 / start.elapsed().as_secs_f64())
}

/// MB a second of objects.
async fn bulk(link: &Arc<Link>) -> Result<f64, Failure> {
    let oss = RemoteOss::new(link.clone());
    let segment = SegmentId { grant: Grant { vdev: VdevId(0), dataset: DATASET, number: 1 }, seq: 1 };
    let (start, mut bytes) = (Instant::now(), 0);
    let mut got =
        futures::stream::repeat_with(|| oss.get(segment, 0..OBJECT as u64)).buffer_unordered(AT_ONCE);
    while start.elapsed() < TIME {
        bytes += got.next().await.ok_or("no end")??.len();
    }
    Ok(bytes as f64 / 1e6 / start.elapsed().as_secs_f64())
}

/// Calls a second, so many at a time.
async fn calls<F: Future<Output = bool>>(at_once: usize, call: impl Fn(u64) -> F) -> f64 {
    let (start, mut done, mut number) = (Instant::now(), 0u64, 0);
    let mut answers = futures::stream::repeat_with(|| {
        number += 1;
        call(number)
    })
    .buffer_unordered(at_once);
    while start.elapsed() < TIME {
        assert_eq!(answers.next().await, Some(true), "a call failed");
        done += 1;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

async fn measure(wire: Port, raw_port: Port) -> Result<(), Failure> {
    let link = Link::open(Box::new(wire), std::process::id().into(), "tank").await?;
    let mds = RemoteMds::new(link.clone());
    let (mut raws, mut bulks) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        raws.push(raw(&raw_port).await?);
        bulks.push(bulk(&link).await?);
    }
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let ratios = middle(raws.iter().zip(&bulks).map(|(raw, bulk)| bulk / raw).collect());
    let mut metadata = Vec::new();
    for at_once in [1, 16] {
        let get = calls(at_once, |_| async { mds.getattr(Ino::ROOT).wait().await.is_ok() }).await;
        let make = calls(at_once, |n| {
            let node =
                NewNode { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0, target: Vec::new() };
            let name = format!("{at_once}-{n}");
            let made = mds.create(Cred { uid: 0, gid: 0 }, Ino::ROOT, name.as_bytes(), node);
            async { made.wait().await.is_ok() }
        })
        .await;
        metadata.push(format!("\"getattr_{at_once}\": {get:.0}, \"create_{at_once}\": {make:.0}"));
    }
    println!(
        "{{\"raw_mb_s\": {:.0}, \"bulk_mb_s\": {:.0}, \"ratio\": {ratios:.2}, {}}}",
        middle(raws),
        middle(bulks),
        metadata.join(", ")
    );
    Ok(())
}

/// The other process, ended with this one.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if words.first().is_some_and(|word| word == "serve") {
        return runtime.block_on(serving(&words[1..]));
    }
    let server =
        Command::new(std::env::current_exe()?).arg("serve").args(&words).stdout(Stdio::piped()).spawn()?;
    let mut server = Server(server);
    let mut ports = String::new();
    BufReader::new(server.0.stdout.take().ok_or("no output")?).read_line(&mut ports)?;
    let (wire, raw) = ports.trim().split_once(' ').ok_or("the server told no ports")?;
    let tls = connector(&words)?;
    runtime.block_on(measure(Port(wire.parse()?, tls.clone()), Port(raw.parse()?, tls)))
}
