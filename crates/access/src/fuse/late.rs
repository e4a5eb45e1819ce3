//! Calls that end after the process that made them.
//!
//! A dying process is let go, its call goes on, and the kernel keeps what it believed until then: that a name is there or is
//! not, attributes, pages. It keeps that for long, so it is told to ask again for what such a call has touched.

use fuser::{INodeNo, Notifier};
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle as Runtime;

/// What tells the kernel, once the session has begun.
#[derive(Clone)]
pub(super) struct Late {
    kernel: Arc<OnceLock<Notifier>>,
    runtime: Runtime,
}

/// What a call touches.
#[derive(Clone, Copy)]
pub(super) enum Touch<'a> {
    /// A name, and the listing and attributes of the directory that it is in.
    Name(INodeNo, &'a OsStr),
    Attributes(INodeNo),
    /// Attributes and pages.
    Data(INodeNo),
}

/// What a call that waits has touched when it is done.
pub(super) struct Touched {
    late: Late,
    names: Vec<(INodeNo, OsString)>,
    /// With where pages are dropped from; before the beginning, none are.
    inodes: Vec<(INodeNo, i64)>,
}

impl Late {
    pub fn new(runtime: Runtime) -> Late {
        Late { kernel: Arc::default(), runtime }
    }

    pub fn begin(&self, kernel: Notifier) {
        // A session begins once.
        let _ = self.kernel.set(kernel);
    }

    /// The kernel asks for the file's attributes again; when this returns, it will. Takes no lock that waits for an answer.
    pub fn attributes_changed(&self, file: INodeNo) {
        if let Some(kernel) = self.kernel.get()
            && let Err(error) = kernel.inval_inode(file, -1, 0)
        {
            tracing::debug!(%error, "the kernel was not told of attributes that changed");
        }
    }

    pub fn touched(&self, touches: &[Touch]) -> Touched {
        let mut touched = Touched { late: self.clone(), names: Vec::new(), inodes: Vec::new() };
        for touch in touches {
            match *touch {
                Touch::Name(dir, name) => {
                    touched.inodes.push((dir, 0));
                    touched.names.push((dir, name.to_owned()));
                }
                Touch::Attributes(file) => touched.inodes.push((file, -1)),
                Touch::Data(file) => touched.inodes.push((file, 0)),
            }
        }
        touched
    }
}

impl Touched {
    /// The kernel forgets what it believes of all that. It may take locks for that whose holders wait for an answer, so no
    /// thread that answers waits for it.
    pub fn ask_again(self) {
        let runtime = self.late.runtime.clone();
        runtime.spawn_blocking(move || {
            let Some(kernel) = self.late.kernel.get() else { return };
            let inodes = self.inodes.iter().map(|(ino, from)| kernel.inval_inode(*ino, *from, 0));
            let names = self.names.iter().map(|(dir, name)| kernel.inval_entry(*dir, name));
            for error in inodes.chain(names).filter_map(Result::err) {
                tracing::debug!(%error, "the kernel was not told of a call that ended late");
            }
        });
    }
}
