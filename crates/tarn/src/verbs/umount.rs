use super::mount::directory;
use crate::address::Address;
use crate::context::Context;
use crate::control::{self, Request, Unmount};
use crate::mounts_table::{self, KernelMount};
use crate::names;
use crate::node::{start, takeover};
use anyhow::{Context as _, Result, bail};

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
        if let Some(address) = Address::parse(&self.target) {
            let address = address?;
            return leave(context, &address.key(), Unmount::Dataset(address.to_string()), self.force);
        }
        if let Some(pool) = self.dataset(context) {
            let what = Unmount::Dataset(self.target.clone());
            return unmount(context, &pool, what, self.force);
        }
        let dir =
            directory(self.target.as_ref()).context("nothing to unmount: 'tarn fs mount' lists what is")?;
        let Some(mount) = mounts_table::at(&dir)? else {
            bail!("{} is no mountpoint of Tarn's: 'tarn fs mount' lists those there are", dir.display());
        };
        if takeover::is_dead(&mount.dir) {
            return self.take_down_dead(context, &mount);
        }
        if let Some(address) = Address::parse(&mount.dataset) {
            return leave(context, &address?.key(), Unmount::Dir(dir), self.force);
        }
        let pool = names::pool_of(&mount.dataset)?;
        if self.helper && context.state.pool(pool).is_err() {
            // The pool of another state directory: its own process flushes when the kernel says that it is gone.
            takeover::kernel_unmount(&dir, self.force)?;
            return Ok(0);
        }
        unmount(context, pool, Unmount::Dir(dir), self.force)
    }

    /// The pool, if the target names a dataset of a pool that is known here.
    fn dataset(&self, context: &Context) -> Option<String> {
        let pool = names::pool_of(&self.target).ok()?;
        context.state.pool(pool).ok().map(|_| pool.to_string())
    }

    fn take_down_dead(&self, context: &Context, mount: &KernelMount) -> Result<u8> {
        takeover::detach(&mount.dir)?;
        context.warn(&format!("took down what an ended process had left at {}", mount.dir.display()));
        Ok(0)
    }
}

/// Has the process that has another host's dataset flush, unmount and leave.
fn leave(context: &Context, key: &str, what: Unmount, force: bool) -> Result<u8> {
    if start::ask_running(context, key, Request::Unmount { what, force })?.is_none() {
        bail!("it is not mounted here");
    }
    released(context, key)
}

/// Has the pool's process flush and unmount, and waits until it has let go of the pool if that was its last mount.
pub fn unmount(context: &Context, pool: &str, what: Unmount, force: bool) -> Result<u8> {
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
