//! Adding cache vdevs to a pool, taking them away, opening and closing them.

use super::device::{Cache, SIZE_MIN};
use super::place::{self, Mark};
use crate::config::{CacheConfig, PoolConfig};
use crate::text::now_ms;
use crate::{Pool, Result, usage};
use futures::future::join_all;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::timeout;

/// Part of what is free on its file system that a cache takes when nobody says how much.
const DEFAULT_PART: u64 = 2;
/// Sizes that nobody named are multiples of this, in bytes.
const ROUND: u64 = 16 << 20;
/// A mount waits no longer for its caches.
const START_LIMIT: Duration = Duration::from_secs(2);
/// Deleting a cache's files takes no longer, or is left to somebody else.
const CLEAR_LIMIT: Duration = Duration::from_secs(60);

/// Does work on files off the threads that do I/O.
async fn on_files<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|e| Err(usage(format!("the work was interrupted: {e}"))))
}

/// The directory's own path, and how large a cache in it is to be.
fn survey(dir: &str, size: Option<u64>) -> Result<(PathBuf, u64)> {
    let path = Path::new(dir).canonicalize().map_err(|e| usage(format!("{dir}: {e}")))?;
    if !path.is_dir() {
        return Err(usage(format!("{dir}: a cache is a directory of a local file system")));
    }
    let free = place::free(&path)?;
    let size = size.unwrap_or(free / DEFAULT_PART / ROUND * ROUND);
    if size < SIZE_MIN {
        return Err(usage(format!("{dir}: a cache has {} MiB at least", SIZE_MIN >> 20)));
    }
    if size > free {
        return Err(usage(format!("{dir}: only {} MiB are free there: choose a smaller size", free >> 20)));
    }
    Ok((path, size))
}

impl Pool {
    /// Makes directories of this host cache vdevs of the pool, of `size` bytes each, or half of what is free there, and
    /// uses them at once. A directory must be empty, or have been a cache; `force` takes those of other pools.
    pub async fn add_caches(&self, dirs: &[String], size: Option<u64>, force: bool) -> Result<()> {
        if dirs.is_empty() {
            return Err(usage("name at least one directory for a cache"));
        }
        let mut new: Vec<CacheConfig> = Vec::new();
        for dir in dirs {
            let named = dir.clone();
            let (path, size) = on_files(move || survey(&named, size)).await?;
            let path = path.into_os_string().into_string();
            let path = path.map_err(|_| usage(format!("{dir}: the path is not UTF-8")))?;
            let config = self.config();
            if new.iter().chain(self.own_caches(&config)).any(|cache| cache.path == path) {
                return Err(usage(format!("{path} is a cache of this pool already")));
            }
            let guid = rand::random_range(1..=u64::MAX);
            new.push(CacheConfig { guid, host: self.host.clone(), path, size, added_ms: now_ms() });
        }
        let (pool, pool_name) = (self.guid, self.config().name.clone());
        let mut made = Vec::new();
        let mut result = Ok(());
        for cache in &new {
            let mark = Mark { pool, pool_name: pool_name.clone(), cache: cache.guid };
            let dir = PathBuf::from(&cache.path);
            result = on_files(move || place::make(&dir, &mark, force)).await;
            if result.is_err() {
                break;
            }
            made.push(cache.clone());
        }
        if result.is_ok() {
            let added = new.clone();
            result = self
                .update_config(|config| {
                    config.caches.extend(added);
                    Ok(())
                })
                .await;
        }
        if let Err(error) = result {
            for cache in &made {
                self.unmake(cache).await;
            }
            return Err(error);
        }
        let added: Vec<Arc<Cache>> =
            new.into_iter().map(|config| self.l2arc.cache(config, self.guid)).collect();
        self.l2arc.set(self.l2arc.all().iter().chain(&added).cloned().collect());
        if self.l2arc.started.load(Relaxed) {
            start(&added).await;
        } else {
            join_all(added.iter().map(|cache| cache.probe())).await;
        }
        Ok(())
    }

    /// Takes cache vdevs away, by their paths or guids, and deletes their files where they are here. No data moves.
    pub async fn remove_caches(&self, names: &[String]) -> Result<()> {
        let config = self.config();
        let mut gone: Vec<CacheConfig> = Vec::new();
        for name in names {
            let found = self
                .own_caches(&config)
                .chain(&config.caches)
                .find(|cache| cache.path == *name || cache.guid.to_string() == *name);
            let Some(found) = found else {
                let what = match config.vdevs.iter().any(|vdev| vdev.url == *name) {
                    true => "is a bucket with data in it: only caches can be taken away",
                    false => "is no cache of this pool",
                };
                return Err(usage(format!("{name} {what}")));
            };
            gone.push(found.clone());
        }
        let is_gone = |guid: u64| gone.iter().any(|cache| cache.guid == guid);
        self.update_config(|config| {
            config.caches.retain(|cache| !is_gone(cache.guid));
            Ok(())
        })
        .await?;
        let all = self.l2arc.all();
        let (closed, kept): (Vec<_>, Vec<_>) =
            all.iter().cloned().partition(|cache| is_gone(cache.config.guid));
        self.l2arc.set(kept);
        join_all(closed.iter().map(|cache| cache.close())).await;
        for cache in gone.iter().filter(|cache| cache.host.id == self.host.id) {
            self.unmake(cache).await;
        }
        Ok(())
    }

    fn own_caches<'a>(&self, config: &'a PoolConfig) -> impl Iterator<Item = &'a CacheConfig> {
        let host = self.host.id;
        config.caches.iter().filter(move |cache| cache.host.id == host)
    }

    /// Deletes a cache's files. That this failed is nobody's trouble: what is left is found and refused, or taken.
    async fn unmake(&self, cache: &CacheConfig) {
        let (dir, pool, guid) = (PathBuf::from(&cache.path), self.guid, cache.guid);
        let unmade = tokio::task::spawn_blocking(move || place::unmake(&dir, pool, guid));
        let why = match timeout(CLEAR_LIMIT, unmade).await {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(why))) => why,
            Ok(Err(e)) => e.to_string(),
            Err(_) => "it does not answer".into(),
        };
        tracing::warn!("cache {}: its files are left behind: {why}", cache.path);
    }

    /// Opens this host's caches, and uses them until the pool is closed. Returns when they are open, or after two seconds:
    /// then they are opened meanwhile. What cannot be opened is told in the log and the status, and tried again.
    pub async fn start_caches(&self) {
        self.l2arc.started.store(true, Relaxed);
        start(&self.l2arc.all()).await;
    }

    /// Writes what waits and closes the caches; takes some seconds at most.
    pub(crate) async fn close_caches(&self) {
        join_all(self.l2arc.all().iter().map(|cache| cache.close())).await;
    }

    /// Closes this host's caches and deletes their files.
    pub(crate) async fn destroy_caches(&self) {
        self.close_caches().await;
        let config = self.config();
        join_all(self.own_caches(&config).map(|cache| self.unmake(cache))).await;
    }

    /// Looks how caches do that nobody has open.
    pub(crate) async fn probe_caches(&self) {
        let all = self.l2arc.all();
        join_all(all.iter().filter(|cache| !cache.started()).map(|cache| cache.probe())).await;
    }
}

async fn start(caches: &[Arc<Cache>]) {
    caches.iter().for_each(|cache| cache.start());
    let _ = timeout(START_LIMIT, join_all(caches.iter().map(|cache| cache.tried()))).await;
}
