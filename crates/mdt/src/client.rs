//! A client on another host, beyond a crash of this one: who has the dataset, and what was done for it last.
//!
//! The client keeps what it was told until it knows that to be durable, and after a crash makes it again as it was
//! ([`tarn_base::Trace`]). What it was not told of may have been done or not, and what it was told of may be durable
//! without its knowledge. So every change leaves the number of its request in the transaction group that it is in, until
//! the client says that it will not ask again: asked for once more, it is not done once more. Numbers of transaction groups
//! would not tell: after a crash they are given anew, and the first ones to the target's own work.
//!
//! For as long as a client has the dataset, what only it knows to be in use is left alone when the dataset is opened:
//! inodes without a name, and segments that are not committed yet. [`Mdt::resumed`] says which inodes are; segments are
//! looked for at the close, when none is on its way.

use crate::phys::{ClientPhys, Value, decode, encode};
use crate::tx::Tx;
use crate::{Mdt, key, no_stop};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tarn_base::{Done, FsError, Ino, Request, Trace, Txg};

/// The client that has the dataset.
pub struct ClientState {
    pub id: u64,
    /// Requests that the client may ask for once more.
    done: BTreeMap<u64, Done>,
    /// It does not ask for those before.
    settled: u64,
    /// Requests that the open txg has carried out.
    lately: usize,
}

/// So many requests are carried out in one txg: the client keeps each until it is durable.
const REQUESTS: usize = 8 << 10;

impl ClientState {
    fn new(id: u64) -> ClientState {
        ClientState { id, done: BTreeMap::new(), settled: 0, lately: 0 }
    }

    pub fn from_phys(row: ClientPhys) -> ClientState {
        let durable = row.done.into_iter().map(|(number, ino)| (number, Done::Durably(ino)));
        ClientState { done: durable.collect(), ..ClientState::new(row.id) }
    }

    /// A request was carried out, in the open txg.
    pub fn note(&mut self, request: &Request, trace: Trace) {
        self.done.insert(request.number, Done::Lately(trace));
        self.settled = self.settled.max(request.settled);
        self.lately += 1;
    }

    /// Whether the client keeps so much that the open txg should close.
    pub fn is_full(&self) -> bool {
        self.lately >= REQUESTS
    }

    /// The row for a txg that closes, if it changes.
    pub fn row(&mut self) -> Option<Value> {
        if std::mem::take(&mut self.lately) == 0 {
            return None;
        }
        self.done = self.done.split_off(&self.settled);
        let done = self.done.iter().map(|(number, done)| (*number, done.ino()));
        Some(encode(&ClientPhys { id: self.id, done: done.collect() }))
    }
}

impl Mdt {
    /// The client that has the dataset.
    pub fn client(&self) -> Option<u64> {
        self.op.lock().client.as_ref().map(|client| client.id)
    }

    /// All txgs up to this one are durable.
    pub fn durable(&self) -> Txg {
        self.engine.durable()
    }

    /// Gives the dataset to a client, durably, and says whether it had it already. Nobody else has it.
    pub async fn admit(self: &Arc<Self>, id: u64) -> Result<bool, FsError> {
        match self.client() {
            Some(other) if other == id => return Ok(true),
            Some(_) => return Err(FsError::WouldBlock),
            None => {}
        }
        let row = encode(&ClientPhys { id, done: Vec::new() });
        self.change_slowly(&|tx: &mut Tx| {
            tx.put(key::client_row(), row.clone());
            Ok(())
        })
        .await?;
        self.op.lock().client = Some(ClientState::new(id));
        self.sync().await?;
        Ok(false)
    }

    /// What became of a request that the client asks for once more; `None`: it was not carried out.
    pub fn done(&self, number: u64) -> Option<Done> {
        self.op.lock().client.as_ref()?.done.get(&number).copied()
    }

    /// The client is there again, has made again what was lost, and has these inodes open, each so often.
    pub async fn resumed(self: &Arc<Self>, opens: Vec<(Ino, u32)>) -> Result<(), FsError> {
        let opens: HashMap<Ino, u32> = opens.into_iter().filter(|(_, count)| *count > 0).collect();
        let mut closed = Vec::new();
        {
            let mut open = self.open_inodes.lock();
            open.retain(|ino, entry| {
                let kept = opens.contains_key(ino);
                closed.extend((!kept && entry.orphan).then_some(*ino));
                kept
            });
            for (ino, count) in opens {
                open.entry(ino).or_default().count = count;
            }
        }
        for ino in self.orphans().await? {
            match self.open_inodes.lock().get_mut(&ino) {
                Some(entry) => entry.orphan = true,
                None => closed.push(ino),
            }
        }
        closed.sort_unstable();
        closed.dedup();
        closed.into_iter().for_each(|ino| self.reaper.push(ino));
        self.finish_truncations().await
    }

    /// The client has let the dataset go, or will not be let in any more: what it alone knew of is forgotten.
    pub async fn dismiss(self: &Arc<Self>) -> Result<(), FsError> {
        if self.op.lock().client.take().is_none() {
            return Ok(());
        }
        self.change_slowly(&|tx: &mut Tx| {
            tx.delete(key::client_row());
            Ok(())
        })
        .await?;
        self.resumed(Vec::new()).await?;
        // It may have left segments under any of its grants.
        *self.old_grants.lock() = self.open_grants().await?;
        self.sync().await
    }

    /// Inodes without a name.
    pub(crate) async fn orphans(&self) -> Result<Vec<Ino>, FsError> {
        let rows = self.rows_of(key::table::ORPHAN).await?;
        Ok(rows.iter().filter_map(|(key, _)| key::ino_of(key)).collect())
    }

    /// Who had the dataset when it was closed, or not closed.
    pub(crate) async fn load_client(&self) -> Result<(), FsError> {
        let Some(row) = self.db.get(&key::client_row()).await? else { return Ok(()) };
        let row: ClientPhys = decode("client", &row).map_err(no_stop)?;
        self.op.lock().client = Some(ClientState::from_phys(row));
        Ok(())
    }
}
