//! Every state that the file system went through since it was last known to be durable, and whether one that was found
//! is among them.

use crate::content::Content;
use crate::tree::{Node, Tree};
use std::collections::BTreeMap;
use tarn_base::Timespec;

/// A file system as it was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Inodes with their times, files' too.
    pub tree: Tree,
    /// Files' bytes, by inode.
    pub data: BTreeMap<u64, Vec<u8>>,
}

/// A node whose creation was not answered.
#[derive(Clone, Debug)]
pub struct Unanswered {
    pub op: u64,
    pub dir: u64,
    pub name: Vec<u8>,
    pub node: Node,
}

/// The reference file system with its past.
pub struct History {
    record_size: usize,
    op: u64,
    /// The namespace after each operation that changed it, oldest first; the first is known to be durable.
    trees: Vec<(u64, Tree)>,
    pub files: BTreeMap<u64, Content>,
    pub unanswered: Option<Unanswered>,
}

impl History {
    pub fn new(record_size: usize) -> History {
        let trees = vec![(0, Tree::new())];
        History { record_size, op: 0, trees, files: BTreeMap::new(), unanswered: None }
    }

    /// The number of the next operation.
    pub fn next_op(&mut self) -> u64 {
        self.op += 1;
        self.op
    }

    pub fn tree(&self) -> &Tree {
        &self.trees[self.trees.len() - 1].1
    }

    /// The namespace that stands now, to note what was seen of it.
    pub fn tree_mut(&mut self) -> &mut Tree {
        let last = self.trees.len() - 1;
        &mut self.trees[last].1
    }

    /// The namespace becomes this by operation `op`.
    pub fn push(&mut self, op: u64, tree: Tree) {
        self.trees.push((op, tree));
    }

    pub fn file(&mut self, ino: u64) -> &mut Content {
        let record_size = self.record_size;
        self.files.entry(ino).or_insert_with(|| Content::new(0, record_size, Vec::new()))
    }

    pub fn add_file(&mut self, op: u64, ino: u64) {
        self.files.insert(ino, Content::new(op, self.record_size, Vec::new()));
    }

    /// The namespace is durable as it stands.
    pub fn names_synced(&mut self) {
        self.trees.drain(..self.trees.len() - 1);
    }

    /// Everything is durable as it stands.
    pub fn synced(&mut self) {
        self.names_synced();
        self.files.values_mut().for_each(Content::synced);
    }

    /// Forgets files that neither a name in any state kept nor `open` leads to.
    pub fn forget_gone(&mut self, open: impl Fn(u64) -> bool) {
        let trees = &self.trees;
        let named = |ino: &u64| trees.iter().any(|(_, tree)| tree.nodes.contains_key(ino));
        self.files.retain(|ino, _| named(ino) || open(*ino));
    }

    /// Whether what was found is exactly what stands now; says what is not.
    pub fn is_now(&self, found: &Found) -> Result<(), String> {
        if let Some(difference) = self.tree().difference(&found.tree) {
            return Err(difference);
        }
        for (ino, data) in &found.data {
            let Some(file) = self.files.get(ino) else { return Err(format!("file {ino} has no content")) };
            if file.data() != data {
                let at = data.iter().zip(file.data()).position(|(a, b)| a != b);
                let (is, should) = (data.len(), file.data().len());
                return Err(format!(
                    "file {ino}: differs from byte {at:?}; {is} bytes where {should} should be"
                ));
            }
            let times = found.tree.node(*ino).and_then(|node| node.times);
            if file.times().is_some() && file.times() != times {
                return Err(format!("file {ino}: times {times:?}, not {:?}", file.times()));
            }
        }
        Ok(())
    }

    /// Whether a crash may leave what was found. What it says otherwise is what the newest states lack.
    pub fn may_survive(&self, found: &Found) -> Result<(), String> {
        let mut states: Vec<(u64, Tree)> = self.trees.clone();
        if let Some(cut) = &self.unanswered
            && let Some(ino) = found.tree.node(cut.dir).and_then(|dir| dir.entries.get(&cut.name))
        {
            let mut tree = self.tree().clone();
            tree.add(cut.dir, &cut.name, *ino, cut.node.clone());
            tree.change(cut.dir).times = None;
            states.push((cut.op, tree));
        }
        let mut wrong = Vec::new();
        for (at, (shown, tree)) in states.iter().enumerate().rev() {
            let next = states.get(at + 1).map_or(u64::MAX, |(op, _)| *op);
            match self.is_state(found, tree, *shown, next) {
                Ok(()) => return Ok(()),
                Err(why) => wrong.push(format!("after operation {shown}: {why}")),
            }
        }
        wrong.truncate(12);
        Err(format!("none of {} states: {}", states.len(), wrong.join("\n    ")))
    }

    fn is_state(&self, found: &Found, tree: &Tree, shown: u64, next: u64) -> Result<(), String> {
        if let Some(difference) = tree.difference(&found.tree) {
            return Err(difference);
        }
        let nothing = Content::new(0, self.record_size, Vec::new());
        for (ino, data) in &found.data {
            let times = found.tree.node(*ino).and_then(|node| node.times).unwrap_or_default();
            let made_now = self.unanswered.as_ref().is_some_and(|cut| cut.op == shown);
            let file = match self.files.get(ino) {
                Some(file) => file,
                None if made_now => &nothing,
                None => return Err(format!("file {ino} has no content")),
            };
            file.may_survive(data, times, shown, next).map_err(|why| format!("file {ino}: {why}"))?;
        }
        Ok(())
    }

    /// What was found is what stands now, and durable.
    pub fn adopt(&mut self, found: Found) {
        let op = self.next_op();
        self.unanswered = None;
        self.files.clear();
        for (ino, data) in found.data {
            let mut content = Content::new(op, self.record_size, data);
            if let Some(times) = found.tree.node(ino).and_then(|node| node.times) {
                content.adopt(times);
            }
            self.files.insert(ino, content);
        }
        self.trees = vec![(op, found.tree)];
    }

    /// The times that were seen of an inode after the last operation on it.
    pub fn adopt_times(&mut self, ino: u64, times: (Timespec, Timespec)) {
        if self.tree().node(ino).is_some_and(|node| !node.is_file()) {
            self.tree_mut().change(ino).times = Some(times);
        } else {
            self.file(ino).adopt(times);
        }
    }

    /// The times last seen of an inode.
    pub fn times(&self, ino: u64) -> Option<(Timespec, Timespec)> {
        let node = self.tree().node(ino)?;
        if node.is_file() { self.files.get(&ino)?.times() } else { node.times }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::ROOT;
    use tarn_base::posix::FileKind;

    #[test]
    fn a_state_is_a_prefix_that_holds_all_that_was_acknowledged() {
        let mut history = History::new(4);
        let now = (Timespec::default(), Timespec::default());
        let found = |tree: &Tree| Found { tree: tree.clone(), data: BTreeMap::new() };
        for n in 2..5 {
            let op = history.next_op();
            let mut tree = history.tree().clone();
            tree.add(ROOT, &[n as u8], n, Node::new(FileKind::Fifo, 0o600));
            history.push(op, tree);
            history.adopt_times(n, now);
        }
        let trees: Vec<Tree> = history.trees.iter().map(|(_, tree)| tree.clone()).collect();
        assert!(trees.iter().all(|tree| history.may_survive(&found(tree)).is_ok()));
        let mut skipped = trees[3].clone();
        skipped.remove(ROOT, &[3], false).expect("is there");
        assert!(history.may_survive(&found(&skipped)).is_err(), "an operation is missing in the middle");
        history.names_synced();
        assert!(history.may_survive(&found(&trees[3])).is_ok());
        assert!(history.may_survive(&found(&trees[2])).is_err(), "what was acknowledged is missing");
        assert!(history.is_now(&found(&trees[3])).is_ok() && history.is_now(&found(&trees[2])).is_err());
    }
}
