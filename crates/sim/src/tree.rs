//! The reference namespace: what POSIX says of names and attributes, in the plainest way.
//!
//! A tree is a value: copying one copies pointers, so that every state that the file system went through can be
//! kept. Content and times of regular files are not here but in [`crate::content`], because write-back lets them
//! survive a crash apart from the names.

use std::collections::BTreeMap;
use std::sync::Arc;
use tarn_base::posix::{FileKind, LINK_MAX, RenameMode};
use tarn_base::{FsError, Timespec};

/// The root's inode number.
pub const ROOT: u64 = 1;

/// One inode as everybody must see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub nlink: u32,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub entries: BTreeMap<Vec<u8>, u64>,
    /// A directory's parent; 0 for others.
    pub parent: u64,
    /// Modification and change time of what is no regular file; `None` where a call was cut off and nobody saw them.
    pub times: Option<(Timespec, Timespec)>,
}

impl Node {
    pub fn new(kind: FileKind, mode: u32) -> Node {
        let nlink = if kind == FileKind::Directory { 2 } else { 1 };
        Node {
            kind,
            mode,
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            parent: 0,
            times: None,
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub fn is_file(&self) -> bool {
        self.kind == FileKind::Regular
    }
}

/// The names and attributes of a file system at one moment, by inode number. Inodes without names that are open are in
/// it too.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub nodes: BTreeMap<u64, Arc<Node>>,
}

type Done<T> = Result<T, FsError>;

impl Tree {
    pub fn new() -> Tree {
        let mut root = Node::new(FileKind::Directory, 0o755);
        root.parent = ROOT;
        Tree { nodes: BTreeMap::from([(ROOT, Arc::new(root))]) }
    }

    pub fn node(&self, ino: u64) -> Option<&Node> {
        self.nodes.get(&ino).map(|node| &**node)
    }

    /// The inode, to be changed; inodes are never asked for that are not there.
    pub fn change(&mut self, ino: u64) -> &mut Node {
        Arc::make_mut(self.nodes.entry(ino).or_insert_with(|| Arc::new(Node::new(FileKind::Regular, 0))))
    }

    fn dir(&self, ino: u64) -> Done<&Node> {
        let node = self.node(ino).ok_or(FsError::Stale)?;
        if !node.is_dir() {
            return Err(FsError::NotDirectory);
        }
        if node.nlink == 0 { Err(FsError::NotFound) } else { Ok(node) }
    }

    pub fn lookup(&self, dir: u64, name: &[u8]) -> Done<u64> {
        self.dir(dir)?.entries.get(name).copied().ok_or(FsError::NotFound)
    }

    /// Whether a node of that name could be made now.
    pub fn may_add(&self, dir: u64, name: &[u8]) -> Done<()> {
        if self.dir(dir)?.entries.contains_key(name) { Err(FsError::Exists) } else { Ok(()) }
    }

    /// Enters a new inode under a name.
    pub fn add(&mut self, dir: u64, name: &[u8], ino: u64, mut node: Node) {
        if node.is_dir() {
            node.parent = dir;
            self.change(dir).nlink += 1;
        }
        self.nodes.insert(ino, Arc::new(node));
        self.change(dir).entries.insert(name.to_vec(), ino);
    }

    pub fn link(&mut self, ino: u64, dir: u64, name: &[u8]) -> Done<()> {
        self.may_add(dir, name)?;
        let node = self.node(ino).ok_or(FsError::Stale)?;
        if node.is_dir() {
            return Err(FsError::NotPermitted);
        }
        if node.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        self.change(ino).nlink += 1;
        self.change(dir).entries.insert(name.to_vec(), ino);
        Ok(())
    }

    /// Removes a name, a directory's if `directory`. Gives the inode and whether it has no name any more.
    pub fn remove(&mut self, dir: u64, name: &[u8], directory: bool) -> Done<(u64, bool)> {
        let ino = self.lookup(dir, name)?;
        let node = self.node(ino).ok_or(FsError::Stale)?;
        match (directory, node.is_dir()) {
            (true, false) => return Err(FsError::NotDirectory),
            (false, true) => return Err(FsError::IsDirectory),
            (true, true) if !node.entries.is_empty() => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.change(dir).entries.remove(name);
        Ok((ino, self.drop_link(ino, dir)))
    }

    fn drop_link(&mut self, ino: u64, dir: u64) -> bool {
        let node = self.change(ino);
        if node.is_dir() {
            node.nlink = 0;
            self.change(dir).nlink -= 1;
            return true;
        }
        node.nlink -= 1;
        node.nlink == 0
    }

    fn is_below(&self, mut at: u64, top: u64) -> bool {
        while at != ROOT {
            if at == top {
                return true;
            }
            at = self.node(at).map_or(ROOT, |node| node.parent);
        }
        false
    }

    /// Renames. Gives the inode that has no name any more.
    pub fn rename(&mut self, old: (u64, &[u8]), new: (u64, &[u8]), mode: RenameMode) -> Done<Option<u64>> {
        self.dir(old.0)?;
        self.dir(new.0)?;
        let source = self.lookup(old.0, old.1)?;
        let target = self.lookup(new.0, new.1).ok();
        let moves_dir = self.node(source).is_some_and(Node::is_dir);
        let below = FsError::invalid("a directory cannot move below itself");
        if moves_dir && old.0 != new.0 && self.is_below(new.0, source) {
            return Err(below);
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (RenameMode::Replace, Some(target)) if target == source => return Ok(None),
            (RenameMode::Exchange, Some(target)) => {
                let back = self.node(target).is_some_and(Node::is_dir);
                if back && old.0 != new.0 && self.is_below(old.0, target) {
                    return Err(below);
                }
                self.place(target, new.0, old);
                self.place(source, old.0, new);
                return Ok(None);
            }
            _ => {}
        }
        let mut gone = None;
        if let Some(target) = target {
            let node = self.node(target).ok_or(FsError::Stale)?;
            match (moves_dir, node.is_dir()) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if !node.entries.is_empty() => return Err(FsError::NotEmpty),
                _ => {}
            }
            gone = self.drop_link(target, new.0).then_some(target);
        }
        self.change(old.0).entries.remove(old.1);
        self.place(source, old.0, new);
        Ok(gone)
    }

    /// Lets a name stand for an inode that had its name in `from`; link counts of directories follow.
    fn place(&mut self, ino: u64, from: u64, to: (u64, &[u8])) {
        self.change(to.0).entries.insert(to.1.to_vec(), ino);
        if self.node(ino).is_some_and(Node::is_dir) {
            self.change(from).nlink -= 1;
            self.change(to.0).nlink += 1;
            self.change(ino).parent = to.0;
        }
    }

    /// Inodes that a name leads to.
    pub fn reachable(&self) -> Vec<u64> {
        let named = self.nodes.iter().filter(|(_, node)| node.nlink > 0);
        named.map(|(ino, _)| *ino).collect()
    }

    /// The first thing in which a tree that was found differs from this one, in words.
    pub fn difference(&self, found: &Tree) -> Option<String> {
        for ino in self.reachable() {
            let Some(node) = found.node(ino) else {
                return Some(format!("inode {ino} is not there: {:?}", self.node(ino)));
            };
            if let Some(what) = self.node(ino).and_then(|own| own.difference(node)) {
                return Some(format!("inode {ino}: {what}"));
            }
        }
        let extra = found.nodes.keys().find(|ino| self.node(**ino).is_none_or(|node| node.nlink == 0));
        extra.map(|ino| format!("inode {ino} should not be there: {:?}", found.node(*ino)))
    }
}

impl Node {
    fn difference(&self, found: &Node) -> Option<String> {
        let times = self.is_file() || self.times.is_none() || self.times == found.times;
        let alike = Node { times: found.times, ..self.clone() };
        if alike == *found && times {
            return None;
        }
        Some(format!("{found:?} is found where {self:?} should be"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::new();
        tree.add(ROOT, b"d", 2, Node::new(FileKind::Directory, 0o755));
        tree.add(2, b"e", 3, Node::new(FileKind::Directory, 0o755));
        tree.add(2, b"f", 4, Node::new(FileKind::Regular, 0o644));
        tree
    }

    #[test]
    fn link_counts_follow_directories() {
        let mut tree = tree();
        assert_eq!((tree.nodes[&ROOT].nlink, tree.nodes[&2].nlink), (3, 3));
        assert_eq!(tree.rename((2, b"e"), (ROOT, b"e"), RenameMode::NoReplace), Ok(None));
        assert_eq!((tree.nodes[&ROOT].nlink, tree.nodes[&2].nlink), (4, 2));
        assert_eq!(tree.rename((2, b"f"), (ROOT, b"e"), RenameMode::Exchange), Ok(None));
        assert_eq!((tree.nodes[&ROOT].nlink, tree.nodes[&2].nlink, tree.nodes[&3].parent), (3, 3, 2));
        assert_eq!(tree.remove(2, b"f", true), Ok((3, true)));
        assert_eq!(tree.nodes[&2].nlink, 2);
    }

    #[test]
    fn what_posix_refuses_changes_nothing() {
        let mut tree = tree();
        let before = tree.clone();
        assert_eq!(tree.remove(ROOT, b"d", true), Err(FsError::NotEmpty));
        assert_eq!(tree.link(3, ROOT, b"x"), Err(FsError::NotPermitted));
        assert!(tree.rename((ROOT, b"d"), (3, b"x"), RenameMode::Replace).is_err());
        assert_eq!(tree.rename((2, b"f"), (2, b"e"), RenameMode::Replace), Err(FsError::IsDirectory));
        assert_eq!(before.difference(&tree), None);
    }

    #[test]
    fn every_difference_is_found() {
        let tree = tree();
        let mut other = tree.clone();
        other.change(4).mode = 0o600;
        assert!(tree.difference(&other).is_some());
        let mut other = tree.clone();
        other.nodes.remove(&4);
        assert!(tree.difference(&other).is_some() && other.difference(&tree).is_some());
    }
}
