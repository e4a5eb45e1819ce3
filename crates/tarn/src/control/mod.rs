//! What a command asks of the process that has a pool open, and what it answers.
//!
//! A request is one JSON line; the answer is any number of progress lines and one last line. The same types are
//! used without a socket when a command opens the pool itself, so there is one handler for both.

mod client;
pub mod report;
pub mod wire;

pub use client::{Door, Reach, ask, find, follow, wait_released};

use crate::progress::Progress;
use crate::telemetry::Sample;
use report::{CheckReport, DatasetReport, DoorReport, HistoryEntry, MountReport, PoolReport, ProfileReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use tarn_access::fuse::Awake;

/// Both ends must be of the same version.
pub const VERSION: u32 = 2;

/// A request with what the node must know of its sender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    pub version: u32,
    /// The command line, for the pool's history.
    pub command: String,
    pub request: Request,
}

impl Call {
    pub fn new(command: &str, request: Request) -> Call {
        Call { version: VERSION, command: command.to_string(), request }
    }
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The pool, its vdevs and counters: [`Reply::Pool`].
    Pool,
    /// Every dataset; with `usage`, opens those that are not, to ask them: [`Reply::Datasets`].
    Datasets {
        usage: bool,
    },
    /// [`Reply::History`].
    History,
    /// [`Reply::Mounts`].
    Mounts,
    /// All counters: [`Reply::Stats`].
    Stats,
    /// [`Reply::Added`].
    AddVdevs {
        urls: Vec<String>,
        force: bool,
    },
    /// Makes directories cache vdevs of `size` bytes each; by default of what is natural there.
    AddCaches {
        dirs: Vec<String>,
        size: Option<u64>,
        force: bool,
    },
    /// Takes cache vdevs away, by their directories or guids.
    RemoveVdevs {
        names: Vec<String>,
    },
    SetPool {
        properties: BTreeMap<String, String>,
    },
    ClearErrors,
    Export {
        force: bool,
    },
    DestroyPool {
        force: bool,
    },
    Create {
        name: String,
        parents: bool,
        properties: BTreeMap<String, String>,
    },
    /// [`Reply::Destroyed`], also when `dry_run`.
    Destroy {
        name: String,
        recursive: bool,
        force: bool,
        dry_run: bool,
    },
    Rename {
        from: String,
        to: String,
        parents: bool,
        force: bool,
    },
    Set {
        names: Vec<String>,
        properties: BTreeMap<String, String>,
    },
    Inherit {
        names: Vec<String>,
        property: String,
        recursive: bool,
    },
    /// Mounts one dataset at a directory, and below it those whose mountpoint is inherited from it:
    /// [`Reply::Mounts`] with the new ones.
    Mount {
        dataset: String,
        dir: PathBuf,
        options: MountRequest,
    },
    /// Mounts datasets where their mountpoints say: one, or all that can be.
    MountOwn {
        dataset: Option<String>,
        options: MountRequest,
    },
    /// Flushes and unmounts; answers when everything is durable.
    Unmount {
        what: Unmount,
        force: bool,
    },
    /// Serves datasets to clients on other hosts: [`Reply::Serving`].
    Serve(ServeRequest),
    StopServing,
    /// Takes a dataset away from a client on another host.
    GiveUpClient {
        dataset: String,
    },
    /// Where datasets are served, and who has them: [`Reply::Door`].
    Door,
    /// [`Reply::Check`].
    Check {
        dataset: Option<String>,
        data: bool,
        repair: bool,
    },
    /// Times what is asked of mounts, and answers when the time is over: [`Reply::Profile`].
    Profile(ProfileRequest),
    /// Has a profile end now.
    EndProfile {
        id: u64,
    },
}

/// What to unmount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unmount {
    Dir(PathBuf),
    Dataset(String),
    All,
}

/// What to profile, and how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRequest {
    /// A number that nobody else's profile has, to end it by.
    pub id: u64,
    /// One dataset, or everything that is mounted.
    pub dataset: Option<String>,
    pub time_ms: u64,
}

/// How to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServeRequest {
    pub listen: SocketAddr,
    pub certificates: Certificates,
    /// Where scrapes of metrics are answered.
    pub metrics: Option<SocketAddr>,
}

/// Files in PEM form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Certificates {
    /// Whom we believe.
    pub ca: Option<PathBuf>,
    /// Who we are, and the key to it.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// How a mount shall behave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountRequest {
    pub read_only: bool,
    pub allow_other: bool,
    pub noatime: bool,
    /// `None`: as the dataset's property says; so with those below.
    pub relatime: Option<bool>,
    pub dev: Option<bool>,
    pub suid: Option<bool>,
    pub exec: Option<bool>,
    /// Bytes that the kernel reads ahead.
    pub read_ahead: Option<u64>,
    /// Bytes of records that are kept in memory at most.
    pub arc: Option<u64>,
    /// Bytes that are fetched ahead of readers at most.
    pub prefetch: Option<u64>,
    /// Files of so many bytes are first read around the kernel's page cache.
    pub hybrid_io: Option<u64>,
    /// Whether processors are kept awake while it is busy.
    pub awake: Option<Awake>,
    /// Bytes for caches and dirty data; counts when the mount starts the node.
    pub memory: Option<u64>,
    /// Where scrapes of metrics are answered.
    pub metrics: Option<SocketAddr>,
    /// How jobs are told apart: see [`tarn_access::fuse::JobId`].
    pub job_id: Option<String>,
    /// Mount over a directory that is not empty.
    pub overlay: bool,
    /// For a dataset that another host serves.
    pub certificates: Certificates,
    /// Bytes go by way of that host, even if the buckets could be reached.
    pub through_server: bool,
}

impl MountRequest {
    /// Puts what was asked for in the place of a dataset's properties.
    pub fn lay_over(&self, values: &mut BTreeMap<String, String>) {
        let mut put = |name: &str, on: bool| values.insert(name.into(), if on { "on" } else { "off" }.into());
        if self.noatime {
            put("atime", false);
        }
        let chosen =
            [("relatime", self.relatime), ("devices", self.dev), ("setuid", self.suid), ("exec", self.exec)];
        for (name, value) in chosen {
            if let Some(on) = value {
                put(name, on);
            }
        }
    }
}

/// A line of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Work goes on.
    Progress(Progress),
    /// Work goes on, and there is no figure for it.
    Working,
    /// The node is flushing and will let go of the pool: ask again when the connection ends.
    Closing(Option<Progress>),
    Done(Box<Reply>),
    /// `usage`: the request itself was wrong.
    Failed {
        text: String,
        usage: bool,
    },
}

impl Message {
    pub fn from_result(result: anyhow::Result<Reply>) -> Message {
        match result {
            Ok(reply) => Message::Done(Box::new(reply)),
            Err(e) if e.is::<crate::error::Closing>() => Message::Closing(None),
            Err(e) => {
                Message::Failed { text: crate::error::one_line(&e), usage: crate::error::status(&e) == 2 }
            }
        }
    }
}

/// What comes of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Ok,
    /// Done, and what the administrator should know of the new buckets.
    Added {
        cautions: Vec<String>,
    },
    Pool(PoolReport),
    Datasets(Vec<DatasetReport>),
    History(Vec<HistoryEntry>),
    Mounts(Vec<MountReport>),
    Destroyed(Vec<String>),
    Check(CheckReport),
    /// Done, and what the administrator should know of it.
    Serving {
        at: SocketAddr,
        cautions: Vec<String>,
    },
    Door(Option<DoorReport>),
    Stats(Box<Sample>),
    Profile(Box<ProfileReport>),
}
