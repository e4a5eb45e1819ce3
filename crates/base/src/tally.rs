//! What a store charges for, counted: requests by the classes of price lists, and bytes on the way.

use crate::job;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Whose prices hold for a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    S3,
    Gcs,
    Azure,
    /// A directory: it costs nothing.
    Local,
}

impl Provider {
    pub const ALL: [Provider; 4] = [Provider::S3, Provider::Gcs, Provider::Azure, Provider::Local];

    pub fn name(self) -> &'static str {
        match self {
            Provider::S3 => "s3",
            Provider::Gcs => "gcs",
            Provider::Azure => "azure",
            Provider::Local => "local",
        }
    }
}

/// The classes of requests that price lists tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// What writes: PUT, COPY, POST, and each part of an upload.
    Put,
    List,
    Get,
    Head,
    Delete,
}

/// Counts one bucket's requests, and charges them to the job that they are made for.
pub struct Tally {
    provider: Provider,
    counts: Counts,
}

impl Tally {
    pub fn new(provider: Provider) -> Tally {
        Tally { provider, counts: Counts::default() }
    }

    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// A request with a body of so many bytes goes out.
    pub fn sent(&self, charge: Charge, bytes: u64) {
        self.counts.sent(charge, bytes);
        job::charged(|job| job.tally(self.provider).sent(charge, bytes));
    }

    /// So many bytes of a body went out, with a request that was counted by itself.
    pub fn sent_bytes(&self, bytes: u64) {
        self.counts.sent_bytes(bytes);
        job::charged(|job| job.tally(self.provider).sent_bytes(bytes));
    }

    /// So many bytes of a body came.
    pub fn received(&self, bytes: u64) {
        self.counts.received(bytes);
        job::charged(|job| job.tally(self.provider).received(bytes));
    }

    pub fn snapshot(&self) -> TallyStats {
        self.counts.snapshot()
    }
}

/// Requests and bytes, by themselves.
#[derive(Default)]
pub struct Counts {
    put: AtomicU64,
    list: AtomicU64,
    get: AtomicU64,
    head: AtomicU64,
    delete: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl Counts {
    fn of(&self, charge: Charge) -> &AtomicU64 {
        match charge {
            Charge::Put => &self.put,
            Charge::List => &self.list,
            Charge::Get => &self.get,
            Charge::Head => &self.head,
            Charge::Delete => &self.delete,
        }
    }

    fn sent(&self, charge: Charge, bytes: u64) {
        self.of(charge).fetch_add(1, Relaxed);
        self.sent_bytes(bytes);
    }

    fn sent_bytes(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Relaxed);
    }

    fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn snapshot(&self) -> TallyStats {
        self.each(|counter| counter.load(Relaxed))
    }

    /// What was counted, which is counted here no more.
    pub fn take(&self) -> TallyStats {
        self.each(|counter| counter.swap(0, Relaxed))
    }

    fn each(&self, value: impl Fn(&AtomicU64) -> u64) -> TallyStats {
        TallyStats {
            put: value(&self.put),
            list: value(&self.list),
            get: value(&self.get),
            head: value(&self.head),
            delete: value(&self.delete),
            sent_bytes: value(&self.sent_bytes),
            received_bytes: value(&self.received_bytes),
        }
    }
}

/// A tally at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TallyStats {
    pub put: u64,
    pub list: u64,
    pub get: u64,
    pub head: u64,
    pub delete: u64,
    /// Bytes of bodies of requests.
    pub sent_bytes: u64,
    /// Bytes of bodies of answers.
    pub received_bytes: u64,
}

impl TallyStats {
    /// Every number of this with the same of `other`.
    pub fn with(&self, other: &TallyStats, join: impl Fn(u64, u64) -> u64) -> TallyStats {
        TallyStats {
            put: join(self.put, other.put),
            list: join(self.list, other.list),
            get: join(self.get, other.get),
            head: join(self.head, other.head),
            delete: join(self.delete, other.delete),
            sent_bytes: join(self.sent_bytes, other.sent_bytes),
            received_bytes: join(self.received_bytes, other.received_bytes),
        }
    }

    pub fn and(&self, other: &TallyStats) -> TallyStats {
        self.with(other, |a, b| a + b)
    }

    pub fn since(&self, before: &TallyStats) -> TallyStats {
        self.with(before, u64::saturating_sub)
    }

    pub fn requests(&self) -> u64 {
        self.put + self.list + self.get + self.head + self.delete
    }
}
