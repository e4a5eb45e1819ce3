//! Finding the name of an inode: the way back, which no operation needs and no row holds. For messages.

use crate::key::{self, table};
use crate::phys::{self, DirentPhys};
use crate::{Mdt, Stop};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tarn_base::{FsError, Ino};

/// Rows of directories that are looked at together.
const PAGE: usize = 4096;
/// Deeper than any path that can be named.
const DEPTH: usize = 4096;

impl Mdt {
    /// A path from the dataset's root for each inode that has a name. Reads every directory: for rare questions.
    pub async fn paths(self: &Arc<Self>, wanted: &HashSet<Ino>) -> Result<HashMap<Ino, Vec<u8>>, FsError> {
        let mut found = HashMap::new();
        let (mut from, end) = key::whole_table(table::DIRENT);
        while found.len() < wanted.len() {
            let rows = self.scan(&from, &end, PAGE).await?;
            let Some((last, _)) = rows.last() else { break };
            from = last.clone();
            from.push(0);
            for (key, row) in &rows {
                let Some(dir) = key::ino_of(key) else { continue };
                for entry in names_of(row)?.entries {
                    if wanted.contains(&entry.ino) {
                        found.entry(entry.ino).or_insert((dir, entry.name));
                    }
                }
            }
        }
        let mut paths = HashMap::new();
        for (ino, (dir, name)) in found {
            let mut path = self.path_of_directory(dir).await?;
            path.push(b'/');
            path.extend_from_slice(&name);
            paths.insert(ino, path);
        }
        Ok(paths)
    }

    /// `/a/b` for a directory; nothing for the root.
    async fn path_of_directory(self: &Arc<Self>, dir: Ino) -> Result<Vec<u8>, FsError> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = dir;
        while at != Ino::ROOT && names.len() < DEPTH {
            let parent = self.parent(at).wait().await?;
            let (start, end) = key::of_inode(table::DIRENT, parent);
            let mut name = None;
            for (_, row) in self.scan(&start, &end, usize::MAX).await? {
                name =
                    names_of(&row)?.entries.into_iter().find(|entry| entry.ino == at).map(|entry| entry.name);
                if name.is_some() {
                    break;
                }
            }
            names.push(name.ok_or(FsError::NotFound)?);
            at = parent;
        }
        Ok(names.iter().rev().flat_map(|name| [b"/", name.as_slice()].concat()).collect())
    }
}

fn names_of(row: &[u8]) -> Result<DirentPhys, FsError> {
    match phys::decode("directory", row) {
        Ok(names) => Ok(names),
        Err(Stop::Fail(error)) => Err(error),
        Err(Stop::Missing(_)) => Ok(DirentPhys { entries: Vec::new() }),
    }
}
