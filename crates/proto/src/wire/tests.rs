use super::calls::Call;
use super::frame::*;
use super::message::{Message, Told, answered, encode};
use super::{Dial, Incoming, Link, Outward, PING_EVERY, Pong, SILENCE, VERSIONS, Welcome, listen};
use crate::{DatasetInfo, FileCommit, RecordWrite};
use bytes::Bytes;
use proptest::prelude::*;
use std::io::ErrorKind;
use std::pin::Pin;
use tarn_base::block::SEGMENT_RECORDS_MAX;
use tarn_base::{
    BlockPtr, Checksum, ChecksumKind, Compression, DatasetId, FsError, Grant, Ino, SegmentId, Timespec, Txg,
    VdevId,
};
use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};
use tokio_io_timeout::TimeoutReader;

async fn frames(bytes: &[u8]) -> Vec<std::io::Result<Frame>> {
    let mut reader = Reader::new(bytes);
    let mut found = Vec::new();
    loop {
        match reader.next().await {
            Ok(None) => return found,
            Ok(Some(frame)) => found.push(Ok(frame)),
            Err(error) => {
                found.push(Err(error));
                return found;
            }
        }
    }
}

async fn bytes(sent: &[Outgoing]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for frame in sent {
        writer.send(frame).await.unwrap();
    }
    writer.into_inner().await
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn example() -> Vec<Outgoing> {
    let bulk = vec![Bytes::from_static(b"some"), Bytes::from(vec![7; 300_000])];
    vec![
        Outgoing::new(Kind::Ping, 0, Vec::new()),
        Outgoing { kind: Kind::Call, id: u64::MAX, message: vec![1; 100_000], bulk },
        Outgoing::new(Kind::Answer, 7, vec![2]),
    ]
}

#[tokio::test]
async fn frames_arrive_as_they_were_sent() {
    let sent = example();
    let got = frames(&bytes(&sent).await).await;
    assert_eq!(got.len(), sent.len());
    for (got, sent) in got.into_iter().zip(sent) {
        let got = got.unwrap();
        assert_eq!((got.kind, got.id, &got.message[..]), (sent.kind, sent.id, &sent.message[..]));
        assert_eq!(got.bulk, sent.bulk.concat());
    }
}

#[tokio::test]
async fn what_is_too_long_is_neither_sent_nor_received() {
    let mut writer = Writer::new(Vec::new());
    assert!(writer.send(&Outgoing::new(Kind::Call, 1, vec![0; MESSAGE_MAX + 1])).await.is_err());
    let mut header = bytes(&[Outgoing::new(Kind::Call, 1, Vec::new())]).await;
    header[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = frames(&header).await.pop().unwrap().unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

/// Each record in a file of its own, and every number as long as it gets.
#[test]
fn a_commit_of_a_whole_segment_goes_into_a_message() {
    let grant = Grant { vdev: VdevId(u16::MAX), dataset: DatasetId(u32::MAX), number: u32::MAX };
    let ptr = BlockPtr {
        segment: SegmentId { grant, seq: u32::MAX },
        offset: u32::MAX,
        stored: u32::MAX,
        logical: u32::MAX,
        compression: Compression::Zstd(19),
        checksum: Checksum::Blake3([255; 32]),
        birth: Txg(u64::MAX),
        flags: 255,
    };
    let file = FileCommit {
        ino: Ino(u64::MAX),
        records: vec![RecordWrite { record: u64::MAX, ptr: Some(ptr) }],
        size_at_least: u64::MAX,
        mtime: Some(Timespec { sec: i64::MIN, nsec: u32::MAX }),
    };
    let commit = Message::Mds(Call::Commit { files: vec![file; SEGMENT_RECORDS_MAX] });
    let len = postcard::to_stdvec(&commit).unwrap().len();
    assert!(len + 10 <= MESSAGE_MAX, "{len} bytes");
}

#[tokio::test]
async fn a_stream_that_ends_within_a_frame_is_an_error() {
    let whole = bytes(&example()[2..]).await;
    for len in 1..whole.len() {
        let error = frames(&whole[..len]).await.pop().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len}");
    }
}

proptest! {
    /// Whatever comes in, it is read or refused; and what has a wrong bit in it is not taken for what was sent.
    #[test]
    fn garbage_does_no_harm(garbage in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..33, bit in 0u8..8) {
        runtime().block_on(async {
            frames(&garbage).await;
            let mut whole = bytes(&example()[2..]).await;
            whole[at] ^= 1 << bit;
            let wrong = frames(&whole).await;
            prop_assert!(wrong[0].is_err(), "{wrong:?}");
            Ok(())
        })?;
    }
}

/// Gives the other end of each connection away.
struct Ends(mpsc::UnboundedSender<DuplexStream>);

#[async_trait::async_trait]
impl Dial for Ends {
    fn name(&self) -> String {
        "ends".into()
    }

    async fn dial(&self) -> std::io::Result<(Incoming, Outward)> {
        let (here, there) = duplex(64 << 10);
        self.0.send(there).map_err(|_| ErrorKind::ConnectionRefused)?;
        let (reader, writer) = split(here);
        Ok((Box::new(reader), Box::new(writer)))
    }
}

type FromClient = Reader<Pin<Box<TimeoutReader<ReadHalf<DuplexStream>>>>>;

/// A server that has welcomed a client; it hears when that falls silent.
async fn welcomed(end: DuplexStream, pong: &Pong) -> (FromClient, Writer<WriteHalf<DuplexStream>>) {
    let (reader, writer) = split(end);
    let (mut reader, mut writer) = (listen(reader), Writer::new(writer));
    assert_eq!(reader.next().await.unwrap().unwrap().kind, Kind::Hello);
    let (Pong { info, durable }, version) = (pong.clone(), VERSIONS.1);
    let welcome = Welcome { version, instance: 1, known: true, durable, info, pool: Vec::new() };
    let welcome = postcard::to_stdvec(&welcome).unwrap();
    writer.send(&Outgoing::new(Kind::Welcome, 0, welcome)).await.unwrap();
    writer.flush().await.unwrap();
    (reader, writer)
}

#[tokio::test(start_paused = true)]
async fn a_server_may_take_long_to_take_a_client_up_again() {
    let info = DatasetInfo {
        id: DatasetId(1),
        compression: Compression::Off,
        checksum: ChecksumKind::Xxh3,
        read_only: false,
        atime: false,
        relatime: false,
    };
    let pong = Pong { info, durable: Txg(0) };
    let (dialled, mut ends) = mpsc::unbounded_channel();
    let serving = tokio::spawn(async move {
        drop(welcomed(ends.recv().await.unwrap(), &pong).await);
        let (mut reader, mut writer) = welcomed(ends.recv().await.unwrap(), &pong).await;
        let asked = reader.next().await.unwrap().unwrap();
        assert_eq!(asked.kind, Kind::Call);
        let (until, mut pongs) = (Instant::now() + 3 * SILENCE, interval(PING_EVERY));
        while Instant::now() < until {
            pongs.tick().await;
            let frame = Outgoing::new(Kind::Pong, 0, postcard::to_stdvec(&pong).unwrap());
            writer.send(&frame).await.unwrap();
            writer.flush().await.unwrap();
            assert_eq!(reader.next().await.unwrap().unwrap().kind, Kind::Ping);
        }
        let told = Told { trace: None, durable: Txg(0) };
        let answer = answered(told, &encode(&Ok::<(), FsError>(())));
        writer.send(&Outgoing::new(Kind::Answer, asked.id, answer)).await.unwrap();
        writer.flush().await.unwrap();
        while reader.next().await.unwrap().is_some() {}
    });
    let link = Link::open(Box::new(Ends(dialled)), 1, "tank").await.unwrap();
    let back = async {
        while link.connections() < 2 {
            tokio::time::sleep(PING_EVERY).await;
        }
    };
    assert!(timeout(6 * SILENCE, back).await.is_ok(), "{:?}", link.lost());
    assert_eq!(link.lost(), None);
    serving.abort();
}
