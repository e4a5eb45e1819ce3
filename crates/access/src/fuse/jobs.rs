//! Which job a request belongs to: by what `/proc` says of the process that made it.
//!
//! A thread that reads requests remembers the last processes that it met, so that a request of a known one takes no look
//! into `/proc`, and no lock.

use fuser::Request;
use std::cell::RefCell;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tarn_base::job::{Job, Jobs};
use tokio::runtime::Handle as Runtime;

/// How long a process is believed to be what it was. It may have executed another program since, or have ended and left
/// its number to another.
const FRESH: Duration = Duration::from_secs(2);
/// Processes that a thread remembers.
const REMEMBERED: usize = 64;
/// An environment is waited for no longer.
const ENVIRONMENT_LIMIT: Duration = Duration::from_millis(200);
/// Bytes of what `/proc` says that are looked at.
const PROC_MAX: usize = 256 << 10;

/// How requests are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JobId {
    /// Not at all.
    #[default]
    Off,
    /// By the program and its user: `rsync.1000`.
    CommUid,
    /// By a variable of the process's environment; as by `CommUid` where it is not set.
    Env(String),
    /// By the control group.
    Cgroup,
    /// All of this mount's are one job.
    Fixed(String),
}

impl FromStr for JobId {
    type Err = String;

    fn from_str(text: &str) -> Result<JobId, String> {
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '=' | ':');
        match text.split_once(':') {
            None if text == "off" => Ok(JobId::Off),
            None if text == "comm.uid" => Ok(JobId::CommUid),
            None if text == "cgroup" => Ok(JobId::Cgroup),
            None if !text.is_empty() && text.chars().all(plain) => Ok(JobId::Fixed(text.into())),
            Some(("env", name)) if !name.is_empty() && name.chars().all(plain) => Ok(JobId::Env(name.into())),
            _ => {
                Err(format!("jobid={text}: write off, comm.uid, env:NAME, cgroup, or a name without blanks"))
            }
        }
    }
}

struct Remembered {
    tagger: u64,
    process: (u32, u32),
    since: Duration,
    job: Arc<Job>,
}

thread_local! {
    static MET: RefCell<Vec<Option<Remembered>>> = const { RefCell::new(Vec::new()) };
}

/// Finds the job of each request of a mount.
pub(super) struct Tagger {
    id: u64,
    how: JobId,
    jobs: Arc<Jobs>,
    runtime: Runtime,
}

impl Tagger {
    pub fn new(how: JobId, jobs: Arc<Jobs>, runtime: Runtime) -> Option<Tagger> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        (how != JobId::Off).then(|| Tagger { id: NEXT.fetch_add(1, Relaxed), how, jobs, runtime })
    }

    /// The job of a request that came at `now`.
    pub fn job(&self, request: &Request, now: Duration) -> Arc<Job> {
        let process = (request.pid(), request.uid());
        MET.with_borrow_mut(|met| {
            met.resize_with(REMEMBERED, || None);
            let place = &mut met[process.0 as usize % REMEMBERED];
            let known = |r: &&mut Remembered| {
                r.tagger == self.id && r.process == process && now.saturating_sub(r.since) < FRESH
            };
            if let Some(known) = place.as_mut().filter(known) {
                return known.job.clone();
            }
            let job = self.jobs.named(&self.name(process), now.as_millis() as u64);
            *place = Some(Remembered { tagger: self.id, process, since: now, job: job.clone() });
            job
        })
    }

    fn name(&self, (pid, uid): (u32, u32)) -> String {
        match &self.how {
            // Pages of a shared mapping that the kernel writes out, and processes of other namespaces.
            _ if pid == 0 && !matches!(self.how, JobId::Fixed(_)) => "-".into(),
            JobId::Fixed(name) => name.clone(),
            JobId::Cgroup => cgroup(&proc_file(pid, "cgroup")),
            JobId::Env(name) => self.variable(pid, name).unwrap_or_else(|| comm_uid(pid, uid)),
            JobId::CommUid | JobId::Off => comm_uid(pid, uid),
        }
    }

    /// Reading an environment may wait for the process's memory, which may wait for us: so another thread does it.
    fn variable(&self, pid: u32, name: &str) -> Option<String> {
        let (told, heard) = mpsc::sync_channel(1);
        let wanted = name.to_string();
        self.runtime.spawn_blocking(move || told.try_send(variable_of(&proc_file(pid, "environ"), &wanted)));
        heard.recv_timeout(ENVIRONMENT_LIMIT).ok().flatten()
    }
}

fn proc_file(pid: u32, name: &str) -> Vec<u8> {
    use std::io::Read;
    let mut text = Vec::new();
    if let Ok(file) = std::fs::File::open(format!("/proc/{pid}/{name}")) {
        // What ended meanwhile has nothing to say.
        let _ = file.take(PROC_MAX as u64).read_to_end(&mut text);
    }
    text
}

fn comm_uid(pid: u32, uid: u32) -> String {
    let comm = proc_file(pid, "comm");
    let comm = String::from_utf8_lossy(&comm);
    let comm = comm.trim_end_matches('\n');
    if comm.is_empty() { format!("-.{uid}") } else { format!("{comm}.{uid}") }
}

fn variable_of(environment: &[u8], name: &str) -> Option<String> {
    let find = |entry: &[u8]| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned())
    };
    environment.split(|byte| *byte == 0).find_map(find)
}

/// The group of the unified hierarchy, or of the first there is.
fn cgroup(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_string);
    let unified = text.lines().find(|line| line.starts_with("0::")).and_then(path);
    unified.or_else(|| text.lines().next().and_then(path)).unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_tell_jobs_apart_are_read() {
        assert_eq!("off".parse(), Ok(JobId::Off));
        assert_eq!("comm.uid".parse(), Ok(JobId::CommUid));
        assert_eq!("cgroup".parse(), Ok(JobId::Cgroup));
        assert_eq!("env:SLURM_JOB_ID".parse(), Ok(JobId::Env("SLURM_JOB_ID".into())));
        assert_eq!("backup-7".parse(), Ok(JobId::Fixed("backup-7".into())));
        for wrong in ["", "env:", "env:A=B", "two words", "x:y", "a\nb"] {
            assert!(wrong.parse::<JobId>().unwrap_err().contains("env:NAME"), "{wrong}");
        }
    }

    #[test]
    fn what_proc_says_is_read_whatever_it_is() {
        assert_eq!(variable_of(b"A=1\0JOB=42\0B=\xff\0", "JOB"), Some("42".into()));
        for (environment, name) in [(&b"JOBS=1\0JOB=\0"[..], "JOB"), (b"", "A"), (b"\0\0=\0A", "A")] {
            assert_eq!(variable_of(environment, name), None);
        }
        assert_eq!(cgroup(b"4:cpu:/old\n0::/user.slice/a\n"), "/user.slice/a");
        assert_eq!(
            (cgroup(b"4:cpu:/old:x\n"), cgroup(b""), cgroup(b"\xff")),
            ("/old:x".into(), "-".into(), "-".into())
        );
        let own = std::process::id();
        assert!(comm_uid(own, 7).ends_with(".7") && comm_uid(own, 7).len() > 2);
        assert_eq!(comm_uid(u32::MAX, 7), "-.7");
    }
}
