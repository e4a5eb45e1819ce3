//! The pool's history: one small object for every administrative command, on two vdevs.

use crate::codec::{frame, unframe};
use crate::label::HostId;
use crate::text::now_ms;
use crate::{Error, Pool, Result};
use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where history lies.
pub(crate) const PREFIX: &str = "h/";
pub(crate) const MAGIC: &[u8; 8] = b"TARNHIST";
const VERSION: u16 = 1;
/// Entries read at once.
const AT_ONCE: usize = 32;

/// One command that somebody gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Milliseconds since 1970.
    pub time_ms: i64,
    pub text: String,
    pub host: HostId,
}

/// Reads an entry's object.
pub(crate) fn parse(bytes: &[u8]) -> Option<HistoryEntry> {
    serde_json::from_slice(unframe(MAGIC, VERSION, bytes).ok()?).ok()
}

/// An entry's object.
pub(crate) fn to_bytes(entry: &HistoryEntry) -> Result<Bytes> {
    let body =
        serde_json::to_vec(entry).map_err(|e| Error::Usage(format!("history cannot be written: {e}")))?;
    Ok(frame(MAGIC, VERSION, &body))
}

impl Pool {
    /// Remembers a command, durably.
    pub async fn log_history(&self, text: &str) -> Result<()> {
        self.gate.pass()?;
        let entry = HistoryEntry { time_ms: now_ms(), text: text.to_string(), host: self.host.clone() };
        // The number keeps two commands of one millisecond apart; keys sort by time.
        let key = format!("{PREFIX}{:016}-{:08x}", entry.time_ms, rand::random::<u32>());
        let object = to_bytes(&entry)?;
        let vdevs = self.vdevs();
        let first = entry.time_ms.unsigned_abs() as usize % vdevs.len().max(1);
        let two = vdevs.iter().cycle().skip(first).take(vdevs.len().min(2));
        try_join_all(two.map(|vdev| vdev.put_durable(&key, vec![object.clone()]))).await.map(drop)
    }

    /// Every command remembered, oldest first. What cannot be read is passed over.
    pub async fn history(&self) -> Result<Vec<HistoryEntry>> {
        let vdevs = self.vdevs();
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut failed = None;
        for (i, listed) in join_all(vdevs.iter().map(|vdev| vdev.list(PREFIX))).await.into_iter().enumerate()
        {
            match listed {
                Ok(objects) => objects.into_iter().for_each(|o| places.entry(o.key).or_default().push(i)),
                Err(error) => failed = Some(error),
            }
        }
        if places.is_empty()
            && let Some(error) = failed
        {
            return Err(error.into());
        }
        let vdevs = &vdevs;
        let read = |(key, places): (String, Vec<usize>)| async move {
            for i in places {
                if let Ok(bytes) = vdevs[i].get_whole(&key).await
                    && let Some(entry) = parse(&bytes)
                {
                    return Some(entry);
                }
            }
            tracing::warn!("history entry {key} cannot be read");
            None
        };
        Ok(stream::iter(places).map(read).buffered(AT_ONCE).filter_map(|e| async { e }).collect().await)
    }
}
