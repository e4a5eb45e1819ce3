//! What this host has mounted: datasets of its own pools, and of other hosts'.

use crate::context::Context;
use crate::control::report::MountReport;
use crate::control::{Reply, Request};
use crate::error;
use crate::node::start::ask_running;
use anyhow::{Result, bail};

/// What one node has mounted.
pub struct Mounted {
    /// Its name: a pool's, or what stands for another host's dataset.
    pub node: String,
    pub mounts: Vec<MountReport>,
}

impl Mounted {
    /// How deep in the tree its deepest mount is.
    pub fn depth(&self) -> usize {
        self.mounts.iter().map(|mount| mount.dir.components().count()).max().unwrap_or(0)
    }
}

/// Every node that runs, those of pools first, and the command's status: one that does not answer is warned of.
pub fn mounted(context: &Context) -> Result<(Vec<Mounted>, u8)> {
    let (mut found, mut status) = (Vec::new(), 0);
    let nodes = context.pool_names(&[])?.into_iter().chain(context.state.visits()?);
    for node in nodes {
        match mounts(context, &node) {
            Ok(Some(mounts)) => found.push(Mounted { node, mounts }),
            Ok(None) => {}
            Err(e) => {
                status = 1;
                context.warn(&error::one_line(&e.context(format!("'{node}'"))));
            }
        }
    }
    Ok((found, status))
}

fn mounts(context: &Context, node: &str) -> Result<Option<Vec<MountReport>>> {
    match ask_running(context, node, Request::Mounts)? {
        Some(Reply::Mounts(mounts)) => Ok(Some(mounts)),
        Some(_) => bail!("its node answered something else"),
        None => Ok(None),
    }
}
