//! Reading by the rules, and putting right what is found wrong on the way.

use super::copies::{self, CopyError, Part, Want};
use super::object::Identity;
use super::placement;
use super::store::{Listed, MetadataStore, Os, REGION, absent, fatal, generic};
use crate::damage::DamageRecord;
use crate::outage::Side;
use crate::text::now_ms;
use crate::vdev::Vdev;
use crate::{Error, Result};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use object_store::GetRange;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Files of the database that are written once and never under a name that was used before.
const IMMUTABLE: &str = ".sst";
/// Files of the database that are replaced.
const REPLACED: &str = ".boundary";
/// So often a copy has to be damaged before that is believed of it, and not of the way to it.
const BELIEVED: usize = 3;

impl MetadataStore {
    /// Reads by the rules: primary first, then the second; a bad or absent copy is replaced. Of what is written once the
    /// second is asked too when the primary is slow. Waits for a bucket, where calls wait, only when no copy can be
    /// read without it.
    pub(super) async fn read_healing(&self, path: &str, want: &Want) -> Os<Part> {
        let holders = self.holders(path);
        if path.ends_with(REPLACED) {
            self.finish_update(path, &holders).await;
        }
        let mut overtaken = 0;
        // Again when a repair finds that somebody made the object meanwhile: what is there now counts.
        while overtaken < 3 {
            let (good, bad) = self.first_good(path, &holders, want).await?;
            let Some((vdev, part)) = good else {
                self.footers.remove(path);
                let failed = bad.iter().find(|(_, error)| matches!(error, CopyError::Failed(_)));
                match failed {
                    Some((n, _)) if holders[*n].outages.outlast(Side::Read).await => continue,
                    _ => return Err(self.unreadable(path, &holders, &bad)),
                }
            };
            self.footers.insert(path.to_string(), part.footer.clone());
            let mut again = false;
            for (n, problem) in bad {
                again |= self.repair(path, holders[n], vdev, problem).await;
            }
            if !again {
                return Ok(part);
            }
            overtaken += 1;
        }
        Err(generic(format!("{}: it is being replaced all the time", self.key(path))))
    }

    /// Brings to the second what an update that failed or crashed has brought to the primary alone. Where that cannot be
    /// found out it is left to the next read.
    async fn finish_update(&self, path: &str, holders: &[&Arc<Vdev>]) {
        let &[primary, second] = holders else { return };
        if self.alike.lock().contains(path) || self.gate.pass().is_err() {
            return;
        }
        let _one = self.rewriting.lock().await;
        if self.alike.lock().contains(path) {
            return;
        }
        let key = self.key(path);
        let identity = Identity { pool: self.pool, key: &key };
        for _ in 0..BELIEVED {
            let whole = match copies::read(primary, &identity, &Want::All, None).await {
                Ok(whole) if whole.footer.epoch <= self.gate.epoch() => whole,
                Err(CopyError::Damaged(_)) => continue,
                _ => return,
            };
            let same = |part: Part| part.footer.nonce == whole.footer.nonce;
            let done = match copies::read(second, &identity, &Want::Head, None).await.map(same) {
                Ok(true) => true,
                Err(CopyError::Failed(_)) => false,
                _ => self.rewrite(second, path, &whole).await.is_ok(),
            };
            if done {
                self.alike.lock().insert(path.to_string());
            }
            return;
        }
    }

    /// The first good copy, and why others gave none. Each is asked when those before it failed, or are slow to answer
    /// where it does not matter which of them does. A range that is not in the object ends it: no copy has it.
    async fn first_good<'a>(
        &self,
        path: &str,
        holders: &[&'a Arc<Vdev>],
        want: &Want,
    ) -> Os<(Option<(&'a Arc<Vdev>, Part)>, Vec<(usize, CopyError)>)> {
        let any = path.ends_with(IMMUTABLE);
        let (mut asked, mut bad) = (FuturesUnordered::new(), Vec::new());
        for (n, &vdev) in holders.iter().enumerate() {
            let start = Instant::now();
            asked.push(async move { (n, self.read_copy(path, vdev, want).await) });
            let last = n + 1 == holders.len();
            let patience = if any && !last { vdev.outages.patience() } else { Duration::MAX };
            while let Ok(answer) = timeout(patience, asked.next()).await {
                match answer {
                    Some((n, Ok(part))) => return Ok((Some((holders[n], part)), bad)),
                    Some((_, Err(CopyError::Range(text)))) => return Err(fatal(text)),
                    Some((n, Err(error))) => bad.push((n, error)),
                    None => break,
                }
            }
            if !asked.is_empty() {
                vdev.outages.doubt(start);
            }
        }
        Ok((None, bad))
    }

    /// As [`Self::read_healing`]; a small piece of a database file comes with what lies around it.
    pub(super) async fn read_near(&self, path: &str, want: &Want) -> Os<Part> {
        let Some(range) = want.small_range().filter(|_| path.ends_with(IMMUTABLE)) else {
            return self.read_healing(path, want).await;
        };
        let start = range.start / REGION * REGION;
        if range.end > start + REGION {
            return self.read_healing(path, want).await;
        }
        let read =
            async { self.read_healing(path, &Want::Range(GetRange::Bounded(start..start + REGION))).await };
        let region = self.regions.get_or_insert_async(&(path.to_string(), start), read).await?;
        let end = range.end.min(region.range.end);
        if range.start >= end {
            // The object's end, or behind it: its own rules hold.
            return self.read_healing(path, want).await;
        }
        let bytes = region.bytes.slice((range.start - start) as usize..(end - start) as usize);
        Ok(Part { footer: region.footer, range: range.start..end, bytes })
    }

    /// One copy, with the footer that is remembered where it fits.
    async fn read_copy(&self, path: &str, vdev: &Vdev, want: &Want) -> std::result::Result<Part, CopyError> {
        let key = self.key(path);
        let identity = Identity { pool: self.pool, key: &key };
        let known = self.footers.get(path);
        if known.is_some() && !matches!(want, Want::Head) {
            match copies::read(vdev, &identity, want, known).await {
                // It may be of an object that was replaced.
                Err(CopyError::Damaged(_) | CopyError::Range(_)) => drop(self.footers.remove(path)),
                other => return other,
            }
        }
        copies::read(vdev, &identity, want, None).await
    }

    /// Why no copy could be read.
    fn unreadable(
        &self,
        path: &str,
        holders: &[&Arc<Vdev>],
        bad: &[(usize, CopyError)],
    ) -> object_store::Error {
        if bad.iter().all(|(_, error)| matches!(error, CopyError::Absent)) {
            return absent(path);
        }
        let key = self.key(path);
        let mut may_pass = false;
        let mut problems = Vec::new();
        for (n, error) in bad {
            let url = holders[*n].url();
            problems.push(match error {
                CopyError::Failed(error) => {
                    may_pass |= error.passes_soon();
                    error.to_string()
                }
                CopyError::Damaged(problem) => {
                    self.note(holders[*n], &key, problem, false);
                    format!("{url}: {key}: {problem}")
                }
                _ => format!("{url}: {key} is not there"),
            });
        }
        let text = problems.join("; ");
        if may_pass { generic(text) } else { fatal(text) }
    }

    /// Replaces a copy that a read found bad from the good one; what goes wrong with that is left to the next read.
    /// `true`: the object was made there by somebody else in the meantime.
    pub(super) async fn repair(
        &self,
        path: &str,
        bad: &Arc<Vdev>,
        good: &Arc<Vdev>,
        problem: CopyError,
    ) -> bool {
        let text = match &problem {
            CopyError::Absent => "it is not there",
            CopyError::Damaged(text) => text,
            CopyError::Failed(_) | CopyError::Range(_) => return false,
        };
        if self.gate.pass().is_err() || self.books.lock().deleted.contains(path) {
            return false;
        }
        let key = self.key(path);
        let identity = Identity { pool: self.pool, key: &key };
        let _one = self.rewriting.lock().await;
        let Ok(whole) = copies::read(good, &identity, &Want::All, None).await else { return false };
        let result = if matches!(problem, CopyError::Absent) {
            match bad.create(&key, self.body(&whole, &identity)).await {
                Err(Error::Bucket(tarn_bucket::Error::Exists(_))) => return true,
                other => other,
            }
        } else {
            self.rewrite(bad, path, &whole).await
        };
        self.note(bad, &key, text, result.is_ok());
        match result {
            Ok(()) => tracing::info!("{}: {key}: {text}; repaired from {}", bad.url(), good.url()),
            Err(error) => tracing::warn!("{}: {key}: {text}; repair failed: {error}", bad.url()),
        }
        false
    }

    fn body(&self, whole: &Part, identity: &Identity<'_>) -> Vec<Bytes> {
        vec![whole.bytes.clone(), whole.footer.to_bytes(identity)]
    }

    pub(super) async fn rewrite(&self, vdev: &Arc<Vdev>, path: &str, whole: &Part) -> Result<()> {
        let key = self.key(path);
        let body = self.body(whole, &Identity { pool: self.pool, key: &key });
        vdev.put_durable(&key, body).await
    }

    pub(super) fn note(&self, vdev: &Vdev, key: &str, problem: &str, repaired: bool) {
        vdev.checksum_errors.fetch_add(1, Relaxed);
        self.damage.note(DamageRecord {
            seen_ms: 0,
            vdev: vdev.url().to_string(),
            object: key.to_string(),
            segment: None,
            offset: None,
            owner: None,
            file: None,
            problem: problem.to_string(),
            repaired,
        });
    }

    /// Has the missing copy made of what was listed with one, in the background.
    pub(super) fn complete(&self, found: &Listed) {
        let settled = now_ms() - self.settled_ms.load(Relaxed);
        let mut lone = Vec::new();
        for (path, (_, modified_ms, places)) in found {
            let holders = placement(path, &self.guids);
            if *modified_ms < settled && holders.iter().take(2).any(|i| !places.contains(i)) {
                let held = holders.iter().take(2).find(|i| places.contains(i));
                let lacks = holders.iter().take(2).find(|i| !places.contains(i));
                if let (Some(&held), Some(&lacks)) = (held, lacks) {
                    lone.push((path.clone(), held, lacks));
                }
            }
        }
        let Some(this) = self.this.upgrade() else { return };
        if lone.is_empty() {
            return;
        }
        tokio::spawn(async move {
            for (path, held, lacks) in lone {
                this.repair(&path, &this.vdevs[lacks], &this.vdevs[held], CopyError::Absent).await;
            }
        });
    }
}
