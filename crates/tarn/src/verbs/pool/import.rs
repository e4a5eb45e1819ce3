use crate::context::Context;
use crate::error::usage;
use crate::names;
use crate::node::host;
use crate::state::KnownPool;
use crate::table::{Cell, Style, Table, choose, columns, printable, report};
use crate::wiring::{self, Found, Importable};
use anyhow::{Context as _, Result, bail};
use tarn_base::point::{self, Point};

/// Bring pools that lie in buckets to this host; list them when none is named
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A pool is named by its name or its guid. Without -d, the buckets of pools that were exported from this host are
searched. -d takes a bucket, or a directory that holds bucket directories; name every bucket of the pool.

With -H or -o the list has one line for each pool. Columns: name, guid, state, problem, action, vdevs (how many).

Example:
  tarn pool import -d /disks
  tarn pool import -d /disks -H -o guid,name
  tarn pool import -d s3://b1/tarn -d s3://b2/tarn tank
  tarn pool import -d /disks -N oldtank tank")]
pub struct Args {
    /// A bucket, or a directory of bucket directories, to search
    #[arg(short = 'd', value_name = "BUCKET")]
    search: Vec<String>,
    /// Take a pool that another host seems to use
    #[arg(short = 'f')]
    force: bool,
    /// Import everything that is found
    #[arg(short = 'a', conflicts_with = "words")]
    all: bool,
    /// Give the pool a new name
    #[arg(short = 'N', value_name = "NEWNAME")]
    new_name: Option<String>,
    #[command(flatten)]
    style: Style,
    /// Columns of the list, separated by commas
    #[arg(short = 'o', value_name = "COLUMNS")]
    columns: Option<String>,
    #[arg(value_name = "POOL|GUID [NEWNAME]", num_args = 0..=2)]
    words: Vec<String>,
}

const COLUMNS: &[&[&str]] =
    &[&["name", "pool"], &["guid", "id"], &["state"], &["problem", "status"], &["action"], &["vdevs"]];
const DEFAULT: &[&str] = &["name", "guid", "state", "problem"];

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        let columns = choose(self.columns.as_deref(), DEFAULT, COLUMNS)?;
        let urls = self.urls(context)?;
        let found = context.block_on(wiring::scan(&urls, &context.state.pools()?, &host(&context.state)?))?;
        if let Some(wanted) = self.words.first() {
            let new_name = self.new_name.as_deref().or(self.words.get(1).map(String::as_str));
            import(context, &urls, &found, wanted, new_name, self.force)?;
            return Ok(0);
        }
        if found.pools.is_empty() && !self.style.json {
            bail!("{}", nothing(&found, &urls));
        }
        found.problems.iter().for_each(|problem| context.warn(problem));
        if !self.all {
            context.print(&self.listing(&found.pools, columns)?);
            return Ok(if found.pools.is_empty() { 1 } else { 0 });
        }
        let mut status = 0;
        for pool in found.pools {
            let guid = pool.guid.to_string();
            let found = Found { pools: vec![pool], problems: Vec::new() };
            if let Err(e) = import(context, &urls, &found, &guid, None, self.force) {
                context.warn(&crate::error::one_line(&e));
                status = 1;
            }
        }
        Ok(status)
    }

    /// Every bucket to look into.
    fn urls(&self, context: &Context) -> Result<Vec<String>> {
        if self.search.is_empty() {
            let known: Vec<String> =
                context.state.pools()?.into_iter().filter(|p| p.exported).flat_map(|p| p.urls).collect();
            if known.is_empty() {
                return Err(usage("no buckets to search: name them with -d"));
            }
            return Ok(known);
        }
        names::urls(&self.search)
    }

    /// What could be imported, as zpool lists it, or a line for each pool.
    fn listing(&self, found: &[Importable], columns: Vec<String>) -> Result<String> {
        if self.style.scripted || self.columns.is_some() {
            let mut table = Table::new(columns.clone());
            for pool in found {
                table.row(columns.iter().map(|column| cell(pool, column)).collect());
            }
            return Ok(table.render(&self.style));
        }
        if self.style.json {
            return report(&found);
        }
        Ok(found.iter().map(entry).collect::<Vec<_>>().join("\n"))
    }
}

fn cell(pool: &Importable, column: &str) -> Cell {
    match column {
        "name" => Cell::text(&pool.name),
        "guid" => Cell::text(pool.guid.to_string()),
        "state" => Cell::text(&pool.state),
        "problem" => pool.problem.as_deref().map_or(Cell::None, |problem| Cell::text(printable(problem))),
        "action" => Cell::text(printable(&pool.action)),
        "vdevs" => Cell::Count(pool.vdevs.len() as u64),
        _ => Cell::None,
    }
}

fn entry(pool: &Importable) -> String {
    let mut text = format!("  pool: {}\n    id: {}\n state: {}\n", pool.name, pool.guid, pool.state);
    if let Some(problem) = &pool.problem {
        text += &format!("status: {problem}\n");
    }
    text += &format!("action: {}\nconfig:\n\n", pool.action);
    let mut lines = vec![vec![pool.name.clone(), pool.state.clone()]];
    lines.extend(pool.vdevs.iter().map(|(name, state)| vec![format!("  {name}"), state.clone()]));
    for line in columns(&lines, &[false, false]).lines() {
        text += &format!("\t{line}\n");
    }
    text
}

fn import(
    context: &Context,
    urls: &[String],
    found: &Found,
    wanted: &str,
    new_name: Option<&str>,
    force: bool,
) -> Result<()> {
    let matching: Vec<&Importable> =
        found.pools.iter().filter(|p| p.name == wanted || p.guid.to_string() == wanted).collect();
    let pool = match matching.as_slice() {
        [pool] => pool,
        [] => return Err(absent(context, found, urls, wanted)?),
        _ => bail!("cannot import '{wanted}': more than one pool has this name: import by guid"),
    };
    let name = new_name.unwrap_or(&pool.name);
    names::check_pool(name)?;
    let known = context.state.pools()?;
    if known.iter().any(|p| p.name == name && p.guid != pool.guid && !p.exported) {
        bail!("cannot import '{wanted}': this host has a pool '{name}': give it a new name with -N");
    }
    let Some(_lock) = context.state.try_lock(name)? else {
        bail!("cannot import '{wanted}': it is in use on this host");
    };
    let host = host(&context.state)?;
    let new_name = Some(name).filter(|n| *n != pool.name);
    let imported = context.block_on(wiring::import(urls, pool.guid, host, force, new_name, &context.command));
    let urls = imported.with_context(|| format!("cannot import '{}'", pool.name))?;
    point::pass(Point::ImportLabelled);
    context.state.remember(KnownPool { name: name.into(), guid: pool.guid, urls, exported: false })
}

/// Why a pool is not among those that were found.
fn absent(context: &Context, found: &Found, urls: &[String], wanted: &str) -> Result<anyhow::Error> {
    let here = |p: &KnownPool| !p.exported && (p.name == wanted || p.guid.to_string() == wanted);
    if context.state.pools()?.iter().any(here) {
        return Ok(anyhow::anyhow!("cannot import '{wanted}': this host has imported it already"));
    }
    let others: Vec<&str> = found.pools.iter().map(|p| p.name.as_str()).collect();
    Ok(match others.is_empty() {
        true => anyhow::anyhow!("cannot import '{wanted}': {}", nothing(found, urls)),
        false => anyhow::anyhow!(
            "cannot import '{wanted}': no such pool in the buckets searched; there is: {}",
            others.join(", ")
        ),
    })
}

/// Why a search found no pool.
fn nothing(found: &Found, urls: &[String]) -> String {
    match found.problems.as_slice() {
        [] => format!("no pool to import in {}: name every bucket of the pool with -d", urls.join(", ")),
        [problem] => problem.clone(),
        [problem, others @ ..] => format!("{problem} (and {} more cannot be used)", others.len()),
    }
}
