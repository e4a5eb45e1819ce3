//! What a word on a command line means that names something mounted or in use.

use crate::address::Address;
use crate::context::Context;
use crate::error::usage;
use crate::mounts_table::{self, KernelMount};
use crate::names;
use anyhow::{Result, bail};
use std::path::Path;

/// A pool, a dataset, or a dataset that another host serves.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// The name of the node that has it: the pool's, or what stands for another host's dataset.
    pub node: String,
    /// As people call it.
    pub name: String,
    /// One dataset of a pool of this host.
    pub dataset: Option<String>,
    /// Another host serves it.
    pub far: bool,
}

impl Target {
    /// A pool, a dataset or an address by its name; else a directory, whose mounted dataset is meant.
    pub fn parse(context: &Context, word: &str) -> Result<Target> {
        if word.starts_with(['/', '.']) {
            return Self::at(context, word);
        }
        if let Some(address) = Address::parse(word) {
            let address = address?;
            return Ok(Target::served(&address));
        }
        let known = names::pool_of(word).and_then(|pool| context.state.pool(pool));
        match known {
            Ok(pool) => {
                let dataset = (pool.name != word).then(|| word.to_string());
                Ok(Target { node: pool.name, name: word.into(), dataset, far: false })
            }
            Err(_) if Path::new(word).is_dir() => Self::at(context, word),
            Err(e) => Err(e),
        }
    }

    /// What is mounted at a directory is one dataset, even if it is the pool's first.
    fn at(context: &Context, dir: &str) -> Result<Target> {
        let mount = mount_of(Path::new(dir))?;
        if let Some(address) = Address::parse(&mount.dataset) {
            return Ok(Target::served(&address?));
        }
        let node = names::pool_of(&mount.dataset)?.to_string();
        context.state.pool(&node)?;
        Ok(Target { node, name: mount.dataset.clone(), dataset: Some(mount.dataset), far: false })
    }

    /// The node of another host's dataset has nothing else.
    fn served(address: &Address) -> Target {
        Target { node: address.key(), name: address.to_string(), dataset: None, far: true }
    }

    /// Fails when it is a dataset that its pool, as far as that can be asked, does not have.
    pub fn check_there(&self, context: &Context) -> Result<()> {
        let Some(name) = &self.dataset else { return Ok(()) };
        let Ok(datasets) = context.datasets(&self.node, false) else { return Ok(()) };
        if datasets.iter().all(|dataset| dataset.config.name != *name) {
            bail!("no dataset '{name}': 'tarn fs list -r {}' shows those there are", self.node);
        }
        Ok(())
    }
}

/// The mount that a directory is in.
pub fn mount_of(dir: &Path) -> Result<KernelMount> {
    let instead = "name one in a mounted dataset";
    let path = dir.canonicalize().map_err(|e| usage(format!("{}: {e}: {instead}", dir.display())))?;
    if !path.is_dir() {
        return Err(usage(format!("{} is no directory: {instead}", dir.display())));
    }
    nearest(mounts_table::mounted()?, &path).ok_or_else(|| {
        usage(format!("{} is in no mounted dataset: 'tarn fs mount' lists those there are", dir.display()))
    })
}

/// Of mounts the one that an absolute path is in.
pub fn nearest(mounts: Vec<KernelMount>, path: &Path) -> Option<KernelMount> {
    let above = mounts.into_iter().filter(|mount| path.starts_with(&mount.dir));
    above.max_by_key(|mount| mount.dir.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{KnownPool, StateDir};

    #[test]
    fn pools_come_before_directories() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path().join("state")).unwrap();
        let pool = KnownPool { name: "tank".into(), guid: 1, urls: vec![], exported: false };
        state.remember(pool).unwrap();
        let context = Context::new(state, String::new()).unwrap();
        let parse = |word: &str| Target::parse(&context, word).map_err(|e| e.to_string());
        let target = |node: &str, name: &str, dataset: Option<&str>, far| Target {
            node: node.into(),
            name: name.into(),
            dataset: dataset.map(String::from),
            far,
        };
        assert_eq!(parse("tank"), Ok(target("tank", "tank", None, false)));
        assert_eq!(parse("tank/a"), Ok(target("tank", "tank/a", Some("tank/a"), false)));
        assert_eq!(parse("h:9:/tank/a"), Ok(target("@h:9:tank:a", "h:9:/tank/a", None, true)));
        assert!(parse("nopool/a").unwrap_err().contains("no pool 'nopool'"));
        // The tests' own working directory has this one.
        assert!(parse("src").unwrap_err().contains("src is in no mounted dataset"));
        assert!(parse("./nowhere").unwrap_err().contains("name one in"));
    }

    #[test]
    fn the_innermost_mount_counts() {
        let mount = |dataset: &str, dir: &str| KernelMount { dataset: dataset.into(), dir: dir.into() };
        let all = vec![mount("tank", "/mnt"), mount("h:/far/x", "/mnt/far"), mount("other", "/mnt2")];
        let of = |path: &str| nearest(all.clone(), Path::new(path)).map(|mount| mount.dataset);
        assert_eq!(of("/mnt/far/deep").as_deref(), Some("h:/far/x"));
        assert_eq!(of("/mnt/farther").as_deref(), Some("tank"));
        assert_eq!(of("/elsewhere"), None);
    }
}
