//! Finding pools by their labels, taking them and letting them go.
//!
//! A pool is found by the buckets that are named, wherever they lie now: a vdev is known by the guid in its label.
//! Of the labels of one pool the one with the highest (epoch, generation) counts and says which vdevs there are;
//! all must be found, as there is no redundancy for segments yet.
//!
//! An import first looks at the label (is it for us to take?), then asks the authority, and then reads the labels
//! again: whoever was faster has changed them. Only then does it write its own.

use crate::authority::{Authority, Gate, bucket, host};
use crate::config::{PoolConfig, name_problem};
use crate::create::claim_epoch;
use crate::label::{self, Found, HostId, Label, LabelState};
use crate::open::{Opened, open};
use crate::pool::Parts;
use crate::text::now_ms;
use crate::vdev::Vdev;
use crate::{Error, Pool, Result, usage};
use futures::StreamExt;
use futures::future::join_all;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tarn_base::point::{self, Point};
use tarn_base::{Epoch, PoolGuid, VdevGuid};
use tarn_bucket::Location;

/// Buckets opened at once while searching.
const SEARCH: usize = 32;

/// A pool that a search came upon.
#[derive(Debug, Clone)]
pub struct FoundPool {
    pub config: PoolConfig,
    pub exported: bool,
    /// Who has it, or had it when it crashed.
    pub holder: Option<HostId>,
    /// Its vdevs, in order, and where each was found.
    pub urls: Vec<(VdevGuid, Option<String>)>,
    /// Why it cannot be imported as it is, in one line.
    pub problem: Option<String>,
}

/// How to import.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    pub host: HostId,
    /// Take the pool although another host has it. Its holder is fenced.
    pub force: bool,
    pub new_name: Option<String>,
    /// Bytes of the ARC.
    pub memory: u64,
}

/// One pool's vdevs among the buckets searched.
struct Candidate {
    newest: Label,
    found: Vec<(Label, Opened)>,
}

impl Pool {
    /// Looks for pools in the buckets named. A directory that is no bucket itself but holds some is searched one
    /// level deep. Gives also what kept buckets from being used, a line each.
    pub async fn scan(urls: &[String]) -> Result<(Vec<FoundPool>, Vec<String>)> {
        let (candidates, problems) = search(urls).await?;
        Ok((candidates.into_values().map(describe).collect(), problems))
    }

    /// Imports a pool from the buckets named: by its name or guid, or the only one there is.
    pub async fn import(
        urls: &[String],
        name_or_guid: Option<&str>,
        options: ImportOptions,
    ) -> Result<Arc<Pool>> {
        let (candidates, problems) = search(urls).await?;
        let candidate = select(candidates, problems, name_or_guid)?;
        import_candidate(candidate, options).await
    }

    /// Opens a pool that this host knows, from where it knows its buckets to be.
    pub async fn open_cached(urls: &[String], guid: PoolGuid, options: ImportOptions) -> Result<Arc<Pool>> {
        Pool::import(urls, Some(&guid.to_string()), options).await
    }

    /// Lets go of the pool for good: any host may import it.
    pub async fn export(&self) -> Result<()> {
        self.sync().await?;
        point::pass(Point::ExportSynced);
        let mut generation = self.generation.lock().await;
        self.gate.check(true).await?;
        *generation += 1;
        let config =
            PoolConfig { generation: *generation, epoch: self.gate.epoch(), ..(*self.config()).clone() };
        let vdevs = self.vdevs();
        self.write_labels(&config, LabelState::Exported, &vdevs, vdevs.len().min(2)).await?;
        self.close_caches().await;
        point::pass(Point::ExportLabelled);
        self.gate.release().await
    }

    /// Lets go of the pool for now: it stays this host's, and the next process of this host may open it.
    pub async fn release(&self) -> Result<()> {
        self.close_caches().await;
        let synced = match self.gate.pass() {
            Ok(()) => self.sync().await,
            // What a holder who was taken over has not synced is nobody's any more.
            Err(_) => Ok(()),
        };
        self.gate.release().await?;
        synced
    }
}

/// The buckets to look into: those named, or what lies in a directory that is none itself.
async fn spread(url: &str) -> Result<Vec<(String, bool)>> {
    let Location::Local(path) = Location::parse(url)? else { return Ok(vec![(url.to_string(), true)]) };
    let labelled = |path: &Path| label::keys().iter().any(|key| path.join(key).exists());
    if labelled(&path) {
        return Ok(vec![(url.to_string(), true)]);
    }
    let below = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        labelled(&path).then(|| (path.display().to_string(), false))
    };
    let entries = std::fs::read_dir(&path).map_err(|_| {
        usage(format!("{}: no directory that can be read: name a bucket of the pool", path.display()))
    })?;
    let mut inside: Vec<_> = entries.filter_map(below).collect();
    inside.sort();
    if inside.is_empty() {
        inside.push((url.to_string(), true));
    }
    Ok(inside)
}

/// Everything found, by pool, and what kept buckets from being used.
async fn search(urls: &[String]) -> Result<(BTreeMap<PoolGuid, Candidate>, Vec<String>)> {
    let mut places: Vec<(String, bool)> = Vec::new();
    for url in urls {
        for place in spread(url).await? {
            if !places.iter().any(|p| p.0 == place.0) {
                places.push(place);
            }
        }
    }
    let look = |(url, named): (String, bool)| async move {
        let looked = async {
            let opened = open(&url).await?;
            Ok::<_, Error>((opened.label().await?, opened))
        };
        (named, looked.await)
    };
    let looked: Vec<_> = futures::stream::iter(places).map(look).buffered(SEARCH).collect().await;
    let mut pools: BTreeMap<PoolGuid, Candidate> = BTreeMap::new();
    let mut problems = Vec::new();
    for (named, looked) in looked {
        let (label, opened) = match looked {
            Ok((Found::Label(label), opened)) if label.state != LabelState::Destroyed => (*label, opened),
            Ok((Found::Damaged(problem) | Found::Unusable(problem), _)) => {
                problems.push(problem);
                continue;
            }
            Ok(_) => continue,
            Err(error) if named => {
                problems.push(error.to_string());
                continue;
            }
            Err(error) => {
                tracing::warn!("{error}");
                continue;
            }
        };
        let candidate = pools
            .entry(label.pool.guid)
            .or_insert_with(|| Candidate { newest: label.clone(), found: Vec::new() });
        // One directory by two names is one bucket.
        if opened.local.is_some() && candidate.found.iter().any(|(_, o)| o.local == opened.local) {
            continue;
        }
        if label.rank() > candidate.newest.rank() {
            candidate.newest = label.clone();
        }
        candidate.found.push((label, opened));
    }
    Ok((pools, problems))
}

impl Candidate {
    fn places(&self, guid: VdevGuid) -> Vec<&str> {
        self.found.iter().filter(|(label, _)| label.vdev == guid).map(|(_, opened)| opened.url()).collect()
    }

    /// Why the pool cannot be imported from these buckets by anyone.
    fn problem(&self) -> Option<String> {
        let pool = &self.newest.pool;
        if let Some(problem) = self.newest.feature_problem() {
            return Some(problem);
        }
        let mut missing = Vec::new();
        for vdev in &pool.vdevs {
            match self.places(vdev.guid)[..] {
                [] => missing.push(format!("{} (last seen at {})", vdev.id, vdev.url)),
                [_] => {}
                [a, b, ..] => {
                    return Some(format!(
                        "pool '{}': vdev {} is there twice, at {a} and at {b}: one is a copy, leave it out",
                        pool.name, vdev.id
                    ));
                }
            }
        }
        (!missing.is_empty()).then(|| {
            format!(
                "pool '{}': {} of {} vdevs not found: {}: name their buckets too",
                pool.name,
                missing.len(),
                pool.vdevs.len(),
                missing.join(", ")
            )
        })
    }
}

fn describe(candidate: Candidate) -> FoundPool {
    let newest = &candidate.newest;
    let place = |guid| candidate.places(guid).first().map(|url| url.to_string());
    FoundPool {
        config: newest.pool.clone(),
        exported: newest.state == LabelState::Exported,
        holder: newest.holder.clone(),
        urls: newest.pool.vdevs.iter().map(|v| (v.guid, place(v.guid))).collect(),
        problem: candidate.problem(),
    }
}

fn select(
    mut candidates: BTreeMap<PoolGuid, Candidate>,
    problems: Vec<String>,
    name_or_guid: Option<&str>,
) -> Result<Candidate> {
    let names = |candidates: &BTreeMap<PoolGuid, Candidate>| {
        let each = candidates.values().map(|c| format!("{} ({})", c.newest.pool.name, c.newest.pool.guid));
        each.collect::<Vec<_>>().join(", ")
    };
    let wanted: Vec<PoolGuid> = candidates
        .iter()
        .filter(|(guid, c)| name_or_guid.is_none_or(|n| c.newest.pool.name == n || guid.to_string() == n))
        .map(|(guid, _)| *guid)
        .collect();
    match (&wanted[..], name_or_guid) {
        ([guid], _) => match candidates.remove(guid) {
            // What kept a bucket from being used says more than that one is missing.
            Some(candidate) if candidate.problem().is_some() && !problems.is_empty() => {
                Err(usage(problems.join("; ")))
            }
            Some(candidate) => Ok(candidate),
            None => Err(usage("no pool found")),
        },
        ([], _) if !problems.is_empty() => Err(usage(problems.join("; "))),
        ([], Some(name)) if candidates.is_empty() => {
            Err(usage(format!("no pool '{name}' in the buckets named")))
        }
        ([], Some(name)) => {
            Err(usage(format!("no pool '{name}' in the buckets named; there is: {}", names(&candidates))))
        }
        ([], None) => Err(usage("no pool in the buckets named")),
        (_, _) => {
            Err(usage(format!("several pools found: {}: name one, or give its guid", names(&candidates))))
        }
    }
}

/// Whether this host may take the pool, by its label.
fn may_take(label: &Label, options: &ImportOptions) -> Result<()> {
    match &label.holder {
        Some(holder)
            if label.state == LabelState::Active && holder.id != options.host.id && !options.force =>
        {
            Err(Error::Held(bucket::held_text(&label.pool.name, holder, label.held_since_ms)))
        }
        _ => Ok(()),
    }
}

async fn import_candidate(candidate: Candidate, options: ImportOptions) -> Result<Arc<Pool>> {
    if let Some(problem) = candidate.problem() {
        return Err(usage(problem));
    }
    if let Some(problem) = options.new_name.as_deref().and_then(name_problem) {
        return Err(usage(problem));
    }
    may_take(&candidate.newest, &options)?;
    let vdevs = build_vdevs(&candidate).await?;
    let property =
        candidate.newest.pool.properties.get("authority").map_or("host", String::as_str).to_string();
    let seen = &candidate.newest.pool;
    let authority: Box<dyn Authority> = match property.as_str() {
        "host" => Box::new(host::acquire(seen, &vdevs, &options.host, Epoch(seen.epoch.0 + 1))?),
        other => Box::new(claim_epoch(other, seen, &vdevs, &options.host, options.force).await?),
    };
    point::pass(Point::ImportClaimed);
    // From here on nobody else takes it; whoever was faster has left a newer label.
    let newest = match newest_now(candidate.newest, &vdevs).await {
        Ok(newest) if newest.pool.epoch < authority.epoch() => newest,
        Ok(newest) => {
            authority.release().await?;
            return Err(Error::Held(format!(
                "pool '{}' was taken by another host just now",
                newest.pool.name
            )));
        }
        Err(error) => {
            authority.release().await?;
            return Err(error);
        }
    };
    if let Err(error) = may_take(&newest, &options) {
        authority.release().await?;
        return Err(error);
    }
    let pool = Pool::assemble(Parts {
        config: newest.pool,
        host: options.host,
        held_since_ms: now_ms(),
        features: newest.features,
        vdevs,
        gate: Arc::new(Gate::new(authority)),
        memory: options.memory,
    });
    let vdevs = pool.vdevs();
    let entered = pool
        .commit_config(
            |config| {
                for vdev in &mut config.vdevs {
                    if let Some(found) = vdevs.iter().find(|v| v.guid == vdev.guid) {
                        vdev.url = found.url().to_string();
                    }
                }
                if let Some(name) = &options.new_name {
                    config.rename(name);
                }
                Ok(())
            },
            &vdevs,
        )
        .await;
    if let Err(error) = entered {
        let _ = pool.gate.release().await;
        return Err(error);
    }
    pool.watch_uploads();
    Gate::watch(&pool.gate);
    Ok(pool)
}

/// The pool's vdevs in order of their ids.
async fn build_vdevs(candidate: &Candidate) -> Result<Vec<Arc<Vdev>>> {
    let mut devices = Vec::new();
    let mut vdevs = Vec::new();
    for config in &candidate.newest.pool.vdevs {
        if let Some((_, opened)) = candidate.found.iter().find(|(label, _)| label.vdev == config.guid) {
            let device = opened.device(&mut devices).await?;
            vdevs.push(Arc::new(Vdev::new(config.id, config.guid, opened.clone(), device)));
        }
    }
    vdevs.sort_by_key(|v| v.id);
    Ok(vdevs)
}

/// The newest label as it is now.
async fn newest_now(seen: Label, vdevs: &[Arc<Vdev>]) -> Result<Label> {
    let mut newest = seen;
    for found in join_all(vdevs.iter().map(|v| label::read(&*v.bucket))).await {
        match found? {
            Found::Label(label) if label.pool.guid == newest.pool.guid => {
                if label.rank() > newest.rank() {
                    newest = *label;
                }
            }
            _ => {
                return Err(Error::Held(format!(
                    "pool '{}' changed while it was imported",
                    newest.pool.name
                )));
            }
        }
    }
    Ok(newest)
}
