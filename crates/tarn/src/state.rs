//! What this host remembers between commands, all below one directory.
//!
//! - `hostid`: the random number by which pools know this host. Two state directories are two hosts.
//! - `pools.json`: pools that were created or imported here, with the URLs of their vdevs (as `zpool.cache`).
//! - `POOL.lock`: held by whichever process has the pool open, the daemon or a single command.
//! - `POOL.sock`, `POOL.log`: the daemon's door and its log.
//!
//! Files are replaced whole: written beside, fsynced, renamed. `pools.json` is changed under a lock of its own, so
//! that two commands do not lose each other's change.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A pool that this host knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPool {
    pub name: String,
    pub guid: u64,
    pub urls: Vec<String>,
    /// Exported here: kept so that `pool import NAME` finds it again without `-d`.
    #[serde(default)]
    pub exported: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct PoolsFile {
    version: u32,
    pools: Vec<KnownPool>,
}

const POOLS_VERSION: u32 = 1;

/// The state directory.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// The right to have a pool open on this host. It ends when the last process that holds the open file (the one that
/// took it, and any that inherited it) drops it or ends.
pub struct PoolLock {
    file: File,
}

impl PoolLock {
    /// Lets a child process that is started next have the right too; gives the number to hand to
    /// [`PoolLock::inherited`] there.
    pub fn pass_on(&self) -> Result<RawFd> {
        use nix::fcntl::{FcntlArg, FdFlag, fcntl};
        fcntl(&self.file, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(std::os::fd::AsRawFd::as_raw_fd(&self.file))
    }

    /// The right that the parent process passed on as `fd`.
    pub fn inherited(fd: RawFd) -> Result<PoolLock> {
        use nix::fcntl::{FcntlArg, FdFlag, fcntl};
        if fd < 3 {
            bail!("descriptor {fd} is no pool lock");
        }
        // SAFETY: the parent made this descriptor for us alone; a wrong number fails in the calls below.
        let file = unsafe { File::from_raw_fd(fd) };
        fcntl(&file, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).context("the pool lock was not passed on")?;
        file.try_lock().context("the pool lock was not passed on")?;
        let lock = PoolLock { file };
        lock.sign();
        Ok(lock)
    }

    /// Writes who holds it, for the message that others print; nothing depends on it.
    fn sign(&self) {
        use std::os::unix::fs::FileExt;
        let text = format!("{}\n", std::process::id());
        let _ = self.file.set_len(0).and_then(|()| self.file.write_all_at(text.as_bytes(), 0));
    }
}

impl StateDir {
    /// Opens the directory, making it (mode 0700) where it is missing.
    pub fn open(path: PathBuf) -> Result<StateDir> {
        let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        created.with_context(|| {
            format!(
                "cannot make the state directory {}: set TARN_STATE_DIR to one you can write",
                path.display()
            )
        })?;
        let path = path.canonicalize().with_context(|| format!("state directory {}", path.display()))?;
        Ok(StateDir { path })
    }

    /// Where state is kept when the command line does not say: where `TARN_STATE_DIR` says, else in `/var/lib/tarn` for
    /// root, in the user's own directory for others.
    pub fn usual_path() -> Result<PathBuf> {
        if let Some(dir) = std::env::var_os("TARN_STATE_DIR").filter(|dir| !dir.is_empty()) {
            return Ok(dir.into());
        }
        if nix::unistd::geteuid().is_root() {
            return Ok("/var/lib/tarn".into());
        }
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        if let Some(dir) = absolute("XDG_STATE_HOME") {
            return Ok(dir.join("tarn"));
        }
        match absolute("HOME") {
            Some(home) => Ok(home.join(".local/state/tarn")),
            None => bail!("no place for state: set TARN_STATE_DIR"),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn socket(&self, pool: &str) -> PathBuf {
        self.path.join(format!("{pool}.sock"))
    }

    pub fn log(&self, pool: &str) -> PathBuf {
        self.path.join(format!("{pool}.log"))
    }

    /// This host's number, made up at the first call and kept.
    pub fn host_id(&self) -> Result<u64> {
        let path = self.path.join("hostid");
        let _guard = self.guard("hostid.lock")?;
        match std::fs::read_to_string(&path) {
            Ok(text) => u64::from_str_radix(text.trim(), 16).ok().filter(|id| *id != 0).with_context(|| {
                format!("{} holds no host id: remove it if no pool is in use here", path.display())
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let id = rand::random::<u64>().max(1);
                self.replace("hostid", format!("{id:016x}\n").as_bytes())?;
                Ok(id)
            }
            Err(e) => Err(e).with_context(|| path.display().to_string()),
        }
    }

    /// Every pool known here, in name order.
    pub fn pools(&self) -> Result<Vec<KnownPool>> {
        Ok(self.read_pools()?.pools)
    }

    /// The pool of this name (or guid) that is imported here.
    pub fn pool(&self, name: &str) -> Result<KnownPool> {
        let pools = self.pools()?;
        let found = pools.iter().find(|p| p.name == name && !p.exported);
        found.cloned().with_context(|| {
            if pools.iter().any(|p| p.name == name) {
                format!("pool '{name}' is exported: import it with 'tarn pool import {name}'")
            } else {
                format!(
                    "no pool '{name}' on this host: 'tarn pool list' shows those there are, \
                     'tarn pool import -d BUCKET' finds others"
                )
            }
        })
    }

    /// Remembers a pool, in place of what was known of its guid or its name.
    pub fn remember(&self, pool: KnownPool) -> Result<()> {
        self.change(|pools| {
            pools.retain(|p| p.guid != pool.guid && p.name != pool.name);
            pools.push(pool);
            pools.sort_by(|a, b| a.name.cmp(&b.name));
        })
    }

    /// Forgets a pool.
    pub fn forget(&self, guid: u64) -> Result<()> {
        self.change(|pools| pools.retain(|p| p.guid != guid))
    }

    /// Marks a pool as exported.
    pub fn exported(&self, guid: u64) -> Result<()> {
        self.change(|pools| pools.iter_mut().filter(|p| p.guid == guid).for_each(|p| p.exported = true))
    }

    /// Names of the nodes that have another host's dataset: of those that listen, and of those that were killed.
    pub fn visits(&self) -> Result<Vec<String>> {
        let list = || -> std::io::Result<Vec<String>> {
            let names = std::fs::read_dir(&self.path)?.map(|entry| entry.map(|e| e.file_name()));
            names.map(|name| name.map(|name| name.to_string_lossy().into_owned())).collect()
        };
        let files = list().with_context(|| self.path.display().to_string())?;
        let name =
            |file: &String| file.strip_suffix(".sock").filter(|n| n.starts_with('@')).map(String::from);
        let mut names: Vec<String> = files.iter().filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// Tries to take the right to have `pool` open; `None` while another process of this host has it.
    pub fn try_lock(&self, pool: &str) -> Result<Option<PoolLock>> {
        let path = self.path.join(format!("{pool}.lock"));
        let file = open_lock(&path)?;
        match file.try_lock() {
            Ok(()) => {
                let lock = PoolLock { file };
                lock.sign();
                Ok(Some(lock))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e).with_context(|| path.display().to_string()),
        }
    }

    /// The process that has `pool` open, as far as its lock file says.
    pub fn lock_holder(&self, pool: &str) -> Option<u32> {
        std::fs::read_to_string(self.path.join(format!("{pool}.lock"))).ok()?.trim().parse().ok()
    }

    /// Keeps other processes out of a file's change until it is dropped.
    fn guard(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let file = open_lock(&path)?;
        file.lock().with_context(|| path.display().to_string())?;
        Ok(file)
    }

    fn read_pools(&self) -> Result<PoolsFile> {
        let path = self.path.join("pools.json");
        let mut text = String::new();
        match File::open(&path).and_then(|mut f| f.read_to_string(&mut text)) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(PoolsFile::default()),
            Err(e) => return Err(e).with_context(|| path.display().to_string()),
        }
        let file: PoolsFile = serde_json::from_str(&text).with_context(|| {
            format!("{} is damaged: move it away and import the pools again", path.display())
        })?;
        if file.version > POOLS_VERSION {
            bail!("{} was written by a newer tarn: use that one", path.display());
        }
        Ok(file)
    }

    fn change(&self, change: impl FnOnce(&mut Vec<KnownPool>)) -> Result<()> {
        let _guard = self.guard("pools.lock")?;
        let mut file = self.read_pools()?;
        file.version = POOLS_VERSION;
        change(&mut file.pools);
        self.replace("pools.json", &serde_json::to_vec_pretty(&file)?)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = self.path.join(format!("{name}.new"));
        let write = || -> std::io::Result<()> {
            let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).to_owned();
            let mut file = options.open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, self.path.join(name))?;
            File::open(&self.path)?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", self.path.join(name).display()))
    }
}

fn open_lock(path: &Path) -> Result<File> {
    let options =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).to_owned();
    options.open(path).with_context(|| format!("cannot open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (tempfile::TempDir, StateDir) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path().join("state")).unwrap();
        (dir, state)
    }

    fn pool(name: &str, guid: u64) -> KnownPool {
        KnownPool { name: name.into(), guid, urls: vec![format!("/disks/{name}")], exported: false }
    }

    #[test]
    fn the_host_id_is_made_once() {
        let (_dir, state) = state();
        let id = state.host_id().unwrap();
        assert_ne!(id, 0);
        assert_eq!(state.host_id().unwrap(), id);
        std::fs::write(state.path().join("hostid"), "gibberish").unwrap();
        assert!(state.host_id().is_err());
    }

    #[test]
    fn pools_are_remembered_exported_and_forgotten() {
        let (_dir, state) = state();
        state.remember(pool("tank", 1)).unwrap();
        state.remember(pool("archive", 2)).unwrap();
        state.remember(pool("tank", 3)).unwrap();
        let names: Vec<_> = state.pools().unwrap().into_iter().map(|p| (p.name, p.guid)).collect();
        assert_eq!(names, [("archive".into(), 2), ("tank".into(), 3)]);
        state.exported(3).unwrap();
        assert!(state.pool("tank").unwrap_err().to_string().contains("exported"));
        state.forget(2).unwrap();
        assert!(state.pool("archive").unwrap_err().to_string().contains("no pool"));
    }

    #[test]
    fn changes_from_many_threads_are_all_kept() {
        let (_dir, state) = state();
        std::thread::scope(|s| {
            for i in 1..=8 {
                let state = &state;
                s.spawn(move || state.remember(pool(&format!("p{i}"), i)).unwrap());
            }
        });
        assert_eq!(state.pools().unwrap().len(), 8);
    }

    #[test]
    fn a_file_left_half_written_beside_is_no_harm() {
        let (_dir, state) = state();
        state.remember(pool("tank", 1)).unwrap();
        std::fs::write(state.path().join("pools.json.new"), "{\"version\":1,\"po").unwrap();
        assert_eq!(state.pools().unwrap().len(), 1);
        state.remember(pool("archive", 2)).unwrap();
        assert_eq!(state.pools().unwrap().len(), 2);
    }

    #[test]
    fn damage_and_the_future_are_refused() {
        let (_dir, state) = state();
        std::fs::write(state.path().join("pools.json"), "not json").unwrap();
        assert!(state.pools().unwrap_err().to_string().contains("damaged"));
        std::fs::write(state.path().join("pools.json"), "{\"version\":99,\"pools\":[]}").unwrap();
        assert!(state.pools().unwrap_err().to_string().contains("newer"));
    }

    #[test]
    fn visits_are_found_by_their_sockets() {
        let (_dir, state) = state();
        for name in ["@host:8276:tank:a.sock", "@b:1:t.sock", "tank.sock", "@b:1:t.log", "@gone:1:t.lock"] {
            std::fs::write(state.path().join(name), "").unwrap();
        }
        assert_eq!(state.visits().unwrap(), ["@b:1:t", "@host:8276:tank:a"]);
    }

    #[test]
    fn one_process_at_a_time_has_a_pool() {
        let (_dir, state) = state();
        let lock = state.try_lock("tank").unwrap();
        assert!(lock.is_some());
        assert!(state.try_lock("tank").unwrap().is_none());
        assert!(state.try_lock("other").unwrap().is_some());
        assert_eq!(state.lock_holder("tank"), Some(std::process::id()));
        drop(lock);
        assert!(state.try_lock("tank").unwrap().is_some());
    }
}
