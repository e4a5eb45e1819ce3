//! Handles: open files as their users hold them.

use crate::client::Client;
use crate::table::Pinned;
use crate::zfetch::Stream;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tarn_base::posix::{Attr, Cred, FileKind, NewNode, SetAttr};
use tarn_base::{Answer, FsError, Ino};

/// An open file. The number is what a door gives the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    pub read: bool,
    pub write: bool,
    /// Cut the file to nothing first.
    pub truncate: bool,
    /// The caller wants to go around caches: what is read is first to leave the ARC again.
    pub direct: bool,
}

/// What stands behind a handle.
pub(crate) struct OpenFile {
    pub inode: Pinned,
    pub mode: OpenMode,
    pub stream: Mutex<Stream>,
    /// The inode's failed flights that were reported through this handle.
    pub failures_seen: AtomicU64,
}

/// The handles that read one file.
#[derive(Default)]
pub(crate) struct Readers(Mutex<Vec<Weak<OpenFile>>>);

impl Readers {
    fn add(&self, file: &Arc<OpenFile>) {
        self.0.lock().push(Arc::downgrade(file));
    }

    pub fn remove(&self, file: &OpenFile) {
        self.0.lock().retain(|reader| !std::ptr::eq(reader.as_ptr(), file));
    }

    /// All but this one.
    pub fn others(&self, file: &OpenFile) -> Vec<Arc<OpenFile>> {
        let readers = self.0.lock();
        let others = readers.iter().filter(|reader| !std::ptr::eq(reader.as_ptr(), file));
        others.filter_map(Weak::upgrade).collect()
    }
}

const SHARDS: usize = 16;

#[derive(Default)]
pub(crate) struct Handles {
    shards: [RwLock<HashMap<u64, Arc<OpenFile>>>; SHARDS],
    next: AtomicU64,
}

impl Handles {
    fn shard(&self, handle: Handle) -> &RwLock<HashMap<u64, Arc<OpenFile>>> {
        &self.shards[(handle.0 % SHARDS as u64) as usize]
    }

    pub fn get(&self, handle: Handle) -> Result<Arc<OpenFile>, FsError> {
        self.shard(handle).read().get(&handle.0).cloned().ok_or(FsError::invalid("no such handle"))
    }

    fn add(&self, file: OpenFile) -> Handle {
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        let file = Arc::new(file);
        if file.mode.read {
            file.inode.readers.add(&file);
        }
        self.shard(handle).write().insert(handle.0, file);
        handle
    }

    fn remove(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        self.shard(handle).write().remove(&handle.0)
    }
}

/// One more opening of an inode; takes itself back unless it becomes a handle.
struct Opening {
    client: Arc<Client>,
    inode: Option<Pinned>,
}

impl Opening {
    fn new(client: &Arc<Client>, ino: Ino) -> Opening {
        let inode = client.table.pin(ino);
        inode.state.lock().opens += 1;
        Opening { client: client.clone(), inode: Some(inode) }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(inode) = self.inode.take() {
            inode.state.lock().opens -= 1;
            self.client.drop_if_gone(&inode);
        }
    }
}

impl Client {
    /// Opens a file. Also says whether what the kernel may still hold of its content is right.
    pub fn open(self: &Arc<Self>, ino: Ino, mode: OpenMode) -> Answer<(Handle, Attr, bool)> {
        let refused = if mode.write || mode.truncate { self.check_writable() } else { self.check_fenced() };
        if let Err(e) = refused {
            return Answer::err(e);
        }
        let opening = Opening::new(self, ino);
        let before = self.settled.load(Ordering::Acquire);
        match self.mds.open(ino) {
            Answer::Ready(Ok(attr)) if !mode.truncate => self.opened(opening, attr, mode, before),
            other => {
                let client = self.clone();
                self.answer_to_the_end(async move {
                    let attr = other.wait().await.map_err(|e| client.noted(e))?;
                    let (handle, attr, keep) = client.opened(opening, attr, mode, before).wait().await?;
                    if !mode.truncate {
                        return Ok((handle, attr, keep));
                    }
                    match client.set_size(ino, SetAttr::default(), 0).await {
                        Ok(attr) => Ok((handle, attr, false)),
                        Err(e) => {
                            client.close(handle);
                            Err(e)
                        }
                    }
                })
            }
        }
    }

    fn opened(
        self: &Arc<Self>,
        mut opening: Opening,
        attr: Attr,
        mode: OpenMode,
        before: u64,
    ) -> Answer<(Handle, Attr, bool)> {
        let Some(inode) = opening.inode.take() else { return Answer::err(FsError::Stale) };
        let known = inode.state.lock().loaded;
        let keep = known || self.versions.get(&attr.ino) == Some(attr.data_version);
        self.versions.insert(attr.ino, attr.data_version);
        inode.load(&attr);
        let failures = inode.state.lock().failures;
        let file =
            OpenFile { inode, mode, stream: Mutex::default(), failures_seen: AtomicU64::new(failures) };
        let handle = self.handles.add(file);
        match self.merged(attr, before) {
            Answer::Ready(Ok(attr)) => Answer::ok((handle, attr, keep)),
            other => {
                let client = self.clone();
                self.answer_to_the_end(async move {
                    match other.wait().await {
                        Ok(attr) => Ok((handle, attr, keep)),
                        Err(e) => {
                            client.close(handle);
                            Err(e)
                        }
                    }
                })
            }
        }
    }

    /// Creates a regular file and opens it.
    pub fn create_open(
        self: &Arc<Self>,
        cred: Cred,
        parent: Ino,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenMode,
    ) -> Answer<(Attr, Handle)> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        let node = NewNode { kind: FileKind::Regular, mode, umask, rdev: 0, target: Vec::new() };
        let created = self.mds.create(cred, parent, name, node);
        let client = self.clone();
        self.answer_to_the_end(async move {
            let attr = created.wait().await.map_err(|e| client.noted(e))?;
            client.siblings.found(parent, &attr);
            let flags = OpenMode { truncate: false, ..flags };
            let (handle, attr, _) = client.open(attr.ino, flags).wait().await?;
            Ok((attr, handle))
        })
    }

    /// Creates a regular file without a name and opens it; `mode` is what remains after the umask. It is gone
    /// when it is closed, unless [`Client::link`] gave it a name.
    pub fn create_unnamed(self: &Arc<Self>, cred: Cred, parent: Ino, mode: u32) -> Answer<(Attr, Handle)> {
        if let Err(e) = self.check_writable() {
            return Answer::err(e);
        }
        let flags = OpenMode { read: true, write: true, ..OpenMode::default() };
        let before = self.settled.load(Ordering::Acquire);
        let created = self.mds.create_unnamed(cred, parent, mode);
        let client = self.clone();
        self.answer_to_the_end(async move {
            let attr = created.wait().await.map_err(|e| client.noted(e))?;
            let opening = Opening::new(&client, attr.ino);
            if let Some(inode) = &opening.inode {
                inode.state.lock().unlinked = true;
            }
            let (handle, attr, _) = client.opened(opening, attr, flags, before).wait().await?;
            Ok((attr, handle))
        })
    }

    /// What `close(2)` of one descriptor asks: a write error that this handle has not heard of. Flushes
    /// nothing.
    pub fn take_write_error(self: &Arc<Self>, handle: Handle) -> Result<(), FsError> {
        self.handles.get(handle).and_then(|file| file.unseen_error())
    }

    /// Gives a handle back. Data stays dirty as long as it likes; it goes out with the next segment.
    pub fn close(self: &Arc<Self>, handle: Handle) {
        let Some(file) = self.handles.remove(handle) else { return };
        let inode = &file.inode;
        self.note_whole(inode, &file.stream.lock());
        self.end_stream(&file);
        let (last, unlinked) = {
            let mut state = inode.state.lock();
            state.opens -= 1;
            (state.opens == 0, state.unlinked)
        };
        if last && unlinked {
            self.drop_if_gone(inode);
        } else if last {
            self.queue_closed(inode);
            self.flush_atime(inode);
        }
        self.mds.close(inode.ino);
    }
}

impl OpenFile {
    /// The inode's write error, once for each handle, while what it concerns is still dirty.
    pub fn unseen_error(&self) -> Result<(), FsError> {
        let mut state = self.inode.state.lock();
        if let Some(lost) = state.lost.take() {
            return Err(lost);
        }
        match &state.error {
            Some(error) if self.failures_seen.swap(state.failures, Ordering::AcqRel) < state.failures => {
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }
}
