use super::mount::directory;
use crate::address::Address;
use crate::context::Context;
use crate::control::{self, Request, Unmount};
use crate::mounts_table::{self, KernelMount};
use crate::names;
use crate::node::{start, takeover};
use anyhow::{Result, bail};

/// Unmount a directory or a dataset
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes what is not yet in the buckets, shows how much is left, and returns when everything is durable. What is
mounted below it goes too. If the buckets cannot be written, it stays mounted, unless -f.

Example:
  tarn umount /mnt
  tarn umount tank/home")]
pub struct Args {
    /// Unmount even while it is in use, and give up on data that cannot be written
    #[arg(short = 'f')]
    force: bool,
    /// Called by umount(8)
    #[arg(long, hide = true)]
    helper: bool,
    #[arg(value_name = "DIR|DATASET")]
    target: String,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<u8> {
        unmount_target(context, &self.target, self.force, self.helper)
    }
}

/// Unmounts a dataset, one that another host serves, or what is mounted at a directory. `helper`: umount(8) asks for it.
pub fn unmount_target(context: &Context, target: &str, force: bool, helper: bool) -> Result<u8> {
    if let Some(address) = Address::parse(target) {
        let address = address?;
        return match leave(context, &address.key(), Unmount::Dataset(address.to_string()), force)? {
            Some(status) => Ok(status),
            None => bail!("'{address}' is not mounted here: 'tarn fs mount' lists what is"),
        };
    }
    // A dataset of a pool that is known here, else a directory.
    let pool = names::pool_of(target).and_then(|pool| context.state.pool(pool));
    if let Ok(pool) = &pool {
        return unmount(context, &pool.name, Unmount::Dataset(target.into()), force);
    }
    let dir = match (directory(target.as_ref()), pool) {
        (Ok(dir), _) => dir,
        // A word that can be a dataset, and is no directory.
        (Err(_), Err(e)) if names::pool_of(target).is_ok() => return Err(e),
        (Err(e), _) => return Err(e.context("nothing to unmount: 'tarn fs mount' lists what is")),
    };
    let Some(mount) = mounts_table::at(&dir)? else {
        bail!("{} is no mountpoint of Tarn's: 'tarn fs mount' lists those there are", dir.display());
    };
    if takeover::is_dead(&mount.dir) {
        return take_down_dead(context, &mount);
    }
    let (node, known) = match Address::parse(&mount.dataset) {
        Some(address) => (address?.key(), true),
        None => {
            let pool = names::pool_of(&mount.dataset)?.to_string();
            let known = context.state.pool(&pool).is_ok();
            (pool, known)
        }
    };
    if known && let Some(status) = leave(context, &node, Unmount::Dir(dir.clone()), force)? {
        return Ok(status);
    }
    if helper {
        // Of another state directory: its own process flushes when the kernel says that it is gone.
        takeover::kernel_unmount(&dir, force)?;
        return Ok(0);
    }
    bail!(
        "'{}' at {} was mounted with another state directory: unmount it with that one (TARN_STATE_DIR), or with umount(8)",
        mount.dataset,
        dir.display()
    )
}

fn take_down_dead(context: &Context, mount: &KernelMount) -> Result<u8> {
    takeover::detach(&mount.dir)?;
    context.warn(&format!("took down what an ended process had left at {}", mount.dir.display()));
    Ok(0)
}

/// Has the node of this name flush and unmount, and waits until it has ended if that was its last mount. `None`: no such
/// node runs.
pub fn leave(context: &Context, node: &str, what: Unmount, force: bool) -> Result<Option<u8>> {
    match start::ask_running(context, node, Request::Unmount { what, force })? {
        Some(_) => released(context, node).map(Some),
        None => Ok(None),
    }
}

/// Has the pool's process flush and unmount, and waits until it has let go of the pool if that was its last mount.
fn unmount(context: &Context, pool: &str, what: Unmount, force: bool) -> Result<u8> {
    context.ask(pool, Request::Unmount { what, force })?;
    released(context, pool)
}

/// Waits until the process has ended, if that was its last mount.
fn released(context: &Context, pool: &str) -> Result<u8> {
    let released = context.block_on(control::wait_released(&context.state, pool, &context.screen));
    context.screen.clear();
    released?;
    Ok(0)
}
