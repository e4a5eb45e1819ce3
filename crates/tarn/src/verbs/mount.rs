use crate::address::Address;
use crate::context::Context;
use crate::control::Request;
use crate::node::start;
use crate::{names, options, size};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};

/// Mount a pool or a dataset at a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Returns when it is mounted; a process of its own goes on in the background and logs to the state directory, or to
the journal under systemd. Datasets below, whose mountpoint is inherited, are mounted below DIR.

Options (-o): ro, allow_other, noatime, relatime, strictatime, dev, nodev, suid, nosuid, exec, noexec,
read_ahead=SIZE, memory=SIZE, arc=SIZE|off (records kept in it), prefetch=SIZE|off (fetched ahead of readers),
hybrid_io=SIZE|off, awake=auto|on|off (processors, while it is busy),
metrics=[ADDRESS:]PORT (for Prometheus; on the loopback unless an address is given),
jobid=off|comm.uid|env:NAME|cgroup|TEXT (how tarn stats --jobs tells jobs apart; off if not given), nonempty.
What fstab adds for others (defaults, _netdev, nofail, x-...) is passed over.

HOST:/DATASET (HOST:PORT:/DATASET) is a dataset that 'tarn serve' serves on another host. With ca=FILE it is reached over
TLS, and the server must have a certificate that is signed by one of these; cert=FILE and key=FILE are ours. Buckets on the
network that this host has credentials for are read and written without the server (buckets=own); buckets=server lets
all bytes go by way of it. While the server is away calls wait, and go on when it is back.

Example:
  tarn mount tank /mnt
  tarn mount -o ro,read_ahead=8M tank/home /home
  tarn mount -o ca=/etc/tarn/ca.pem server:/tank/home /home
  tarn mount -o metrics=9123 tank /mnt            then http://127.0.0.1:9123/metrics")]
pub struct Args {
    /// Stay in the foreground, and log to standard error
    #[arg(short = 'f')]
    pub foreground: bool,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTION")]
    options: Vec<String>,
    /// Memory for caches and data not yet written, as in 4G
    #[arg(long, value_name = "SIZE", value_parser = memory, env = "TARN_MEMORY")]
    memory: Option<u64>,
    /// Pass over unknown options
    #[arg(long, hide = true)]
    sloppy: bool,
    /// POOL or POOL/DATASET; of another host, which serves it, HOST:/POOL/DATASET
    #[arg(value_name = "[HOST:/]DATASET")]
    dataset: String,
    dir: PathBuf,
}

/// Reads a size for clap.
pub fn memory(text: &str) -> Result<u64, String> {
    size::parse(text).filter(|n| *n >= options::SIZE_MIN).ok_or_else(|| "use a size such as 4G".into())
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let (pool, dataset) = match Address::parse(&self.dataset) {
            Some(address) => {
                let address = address?;
                (address.key(), address.to_string())
            }
            None => (names::pool_of(&self.dataset)?.to_string(), self.dataset),
        };
        let mut options = options::parse(&self.options, self.sloppy)?;
        options.memory = options.memory.or(self.memory);
        let dir = directory(&self.dir).context("nowhere to mount: name a directory that is there")?;
        let memory = options.memory;
        let request = Request::Mount { dataset, dir, options };
        if self.foreground {
            return start::foreground(context, &pool, Some(request), memory);
        }
        start::ask_daemon(context, &pool, request, memory)?;
        Ok(0)
    }
}

/// The directory by its true name. One that a killed process left dead has no attributes, so only what is above it
/// can be looked at.
pub fn directory(dir: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(dir).with_context(|| dir.display().to_string())?;
    match absolute.canonicalize() {
        Ok(path) => Ok(path),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) || e.raw_os_error() == Some(libc::EIO) => {
            let (Some(above), Some(name)) = (absolute.parent(), absolute.file_name()) else {
                return Ok(absolute);
            };
            Ok(above.canonicalize().with_context(|| above.display().to_string())?.join(name))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!("{}: no such directory", absolute.display())
        }
        Err(e) => Err(e).with_context(|| absolute.display().to_string()),
    }
}
