use crate::address::PORT;
use crate::context::Context;
use crate::control::{Certificates, Reply, Request, ServeRequest};
use crate::names;
use crate::node::start;
use crate::table::{Cell, Style, Table, choose};
use crate::telemetry;
use crate::verbs::mount::memory;
use anyhow::{Context as _, Result, bail};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Serve the datasets of a pool to clients on other hosts
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Clients mount with 'tarn mount HOST:/POOL/DATASET DIR'. One client at a time has a dataset, and keeps it while it is
away: when this host or its process ends, it waits, and goes on when the pool is served again. Another may have the
dataset once the first has unmounted it, has been away for a minute, or was given up.

Without --listen only this host is served. Clients need no credentials for the buckets: their data goes through here.

Example:
  tarn serve --listen 10.0.0.1:8276 --cert server.pem --key server.key --client-ca clients.pem tank
  tarn serve --list tank
  tarn serve --stop tank")]
pub struct Args {
    /// Stay in the foreground, and log to standard error
    #[arg(short = 'f', conflicts_with_all = ["stop", "list", "give_up"])]
    pub foreground: bool,
    /// Address and port to listen at [default: 127.0.0.1:8276]
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = listen)]
    listen: Option<SocketAddr>,
    /// The server's certificate, in PEM form: clients are served over TLS
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key to the certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Let only clients in whose certificate is signed by one of these
    #[arg(long, value_name = "FILE", requires = "cert")]
    client_ca: Option<PathBuf>,
    /// Where Prometheus gets metrics, on the loopback unless an address is given
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    metrics: Option<String>,
    /// Memory for caches and data not yet written, as in 4G
    #[arg(long, value_name = "SIZE", value_parser = memory, env = "TARN_MEMORY")]
    memory: Option<u64>,
    /// Stop serving; clients wait until the pool is served again
    #[arg(long, conflicts_with_all = ["list", "give_up"])]
    stop: bool,
    /// List who has what
    #[arg(long, conflicts_with = "give_up")]
    list: bool,
    /// Take a dataset away from its client, whose data that is not yet durable is lost
    #[arg(long, value_name = "DATASET")]
    give_up: Option<String>,
    #[command(flatten)]
    style: Style,
    /// Columns of the list, separated by commas: dataset, client, at, tls
    #[arg(short = 'o', value_name = "COLUMNS", requires = "list")]
    columns: Option<String>,
    #[arg(required_unless_present = "give_up")]
    pool: Option<String>,
}

/// Reads where to listen.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = text.parse().ok().or_else(|| Some(SocketAddr::new(bare.parse::<IpAddr>().ok()?, PORT)));
    address.ok_or_else(|| "write an address, as in 10.0.0.1 or 10.0.0.1:8276".into())
}

/// A file by a name that holds wherever a process works.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        if let Some(dataset) = &self.give_up {
            context.ask(names::pool_of(dataset)?, Request::GiveUpClient { dataset: dataset.clone() })?;
            return Ok(0);
        }
        let pool = self.pool.as_deref().unwrap_or_default();
        names::check_pool(pool)?;
        if self.list {
            return list(context, pool, self.columns.as_deref(), &self.style);
        }
        if self.stop {
            return match start::ask_running(context, pool, Request::StopServing)? {
                Some(_) => Ok(0),
                None => bail!("'{pool}' is not served"),
            };
        }
        let metrics = self.metrics.as_deref().map(telemetry::address).transpose()?;
        let file = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let certificates =
            Certificates { ca: file(&self.client_ca)?, cert: file(&self.cert)?, key: file(&self.key)? };
        let listen = self.listen.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
        let request = Request::Serve(ServeRequest { listen, certificates, metrics });
        if self.foreground {
            return start::foreground(context, pool, Some(request), self.memory);
        }
        match start::ask_daemon(context, pool, request, self.memory)? {
            Reply::Serving { at, cautions } => {
                cautions.iter().for_each(|caution| context.warn(caution));
                context.print(&format!("serving '{pool}' at {at}\n"));
                Ok(0)
            }
            other => bail!("the node of pool '{pool}' answered something else: {other:?}"),
        }
    }
}

const COLUMNS: &[&[&str]] = &[&["dataset"], &["client"], &["at"], &["tls"]];

fn list(context: &Context, pool: &str, columns: Option<&str>, style: &Style) -> Result<u8> {
    let columns = choose(columns, &["dataset", "client", "at", "tls"], COLUMNS)?;
    let door = match start::ask_running(context, pool, Request::Door)? {
        Some(Reply::Door(Some(door))) => door,
        _ => bail!("'{pool}' is not served"),
    };
    let mut table = Table::new(columns.clone());
    for visitor in &door.visitors {
        let cell = |column: &String| match column.as_str() {
            "dataset" => Cell::text(&visitor.dataset),
            "client" => Cell::text(if visitor.connected { "connected" } else { "away" }),
            "at" => Cell::text(door.at.to_string()),
            _ => Cell::text(if door.tls { "on" } else { "off" }),
        };
        table.row(columns.iter().map(cell).collect());
    }
    context.print(&table.render(style));
    Ok(0)
}
