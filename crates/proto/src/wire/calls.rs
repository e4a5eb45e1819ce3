//! Every call of [`Mds`] as a message: one table from which the message, the client's side and the server's side are
//! made. The number of a call is its place in the table: new ones go to the end.

use super::held::Held;
use super::link::{After, Ends, Undo};
use super::message::{Encoded, Message, decode, encode};
use super::remote::RemoteMds;
use crate::{
    DatasetInfo, FileCommit, FileMap, HeldLock, LockKind, LockMode, LockOwner, LockRange, Mds, Seek,
    ShareRange,
};
use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tarn_base::posix::{Attr, Cred, DirEntry, NameEntry, NewNode, RenameMode, SetAttr, StatFs, XattrMode};
use tarn_base::{Answer, FsError, Grant, Ino, Request, SegmentId, VdevId};

fn encoded<T: Serialize + Send + 'static>(answer: Answer<T>) -> Encoded {
    match answer {
        Answer::Ready(result) => Encoded::Ready(encode(&result)),
        Answer::Pending(future) => {
            Encoded::Pending(future.map(|result| (encode(&result), Bytes::new())).boxed())
        }
    }
}

fn on<T: DeserializeOwned>(note: impl FnOnce(&mut Held, T) + Send + 'static) -> After {
    Some(Box::new(move |held, result| {
        if let Some(Ok::<T, FsError>(value)) = decode(result) {
            note(held, value);
        }
    }))
}

/// What the client holds once the call has succeeded, and when the call is over.
fn consequences(call: &Call<'_>) -> (After, Ends) {
    let after = match *call {
        Call::Open { ino } => on(move |held, _: Attr| held.open(ino)),
        Call::CreateUnnamed { .. } => on(|held, attr: Attr| held.open(attr.ino)),
        Call::Unlink { .. } | Call::Rmdir { .. } | Call::Rename { .. } => {
            on(|held, gone: Option<Ino>| gone.into_iter().for_each(|ino| held.open(ino)))
        }
        // It may be waited for as long as others like.
        Call::Lock { ino, owner, range, mode, .. } => return locking(ino, owner, range, mode),
        Call::Unlock { ino, owner, range } => on(move |held, ()| held.lock(ino, owner, range, None)),
        _ => None,
    };
    (after, Ends::WithItsAnswer)
}

/// A lock that nobody waits for any more is not to be had either: the owner gets back what it had there before. That is
/// nothing for `flock`, which gives up a lock to get one of the other mode.
fn locking(ino: Ino, owner: LockOwner, range: LockRange, mode: LockMode) -> (After, Ends) {
    let before = Arc::new(Mutex::new(None));
    let seen = before.clone();
    let after = on(move |held, ()| {
        *seen.lock() = Some(held.parts(ino, owner, range));
        held.lock(ino, owner, range, Some(mode));
    });
    let undo: Undo = Box::new(move |held| {
        let parts = before.lock().take().unwrap_or_else(|| held.parts(ino, owner, range));
        let calls = parts.into_iter().map(|(range, had)| {
            let mode = had.filter(|had| owner.kind != LockKind::Bsd || *had == mode);
            held.lock(ino, owner, range, mode);
            match mode {
                Some(mode) => Call::Lock { ino, owner, range, mode, wait: false },
                None => Call::Unlock { ino, owner, range },
            }
        });
        calls.filter_map(|call| postcard::to_stdvec(&Message::Mds(call)).ok().map(Bytes::from)).collect()
    });
    (after, Ends::WithWhoWaits(Some(undo)))
}

/// The answer to a call that was carried out already, by what became of it: the inode that it made or orphaned.
pub(super) fn answer_again(mds: &dyn Mds, call: Call<'_>, ino: Option<Ino>) -> Encoded {
    match (call, ino) {
        (Call::Create { .. }, Some(ino)) => encoded(mds.getattr(ino)),
        (Call::CreateUnnamed { .. }, Some(ino)) => encoded(mds.open(ino)),
        (Call::Link { ino, .. } | Call::Setattr { ino, .. }, _) => encoded(mds.getattr(ino)),
        (Call::Unlink { .. } | Call::Rmdir { .. } | Call::Rename { .. }, ino) => match ino {
            // It is freed already where nobody had it open.
            Some(ino) => encoded(Answer::pending(
                mds.open(ino).wait().map(move |open| Ok(open.is_ok().then_some(ino))),
            )),
            None => encoded(Answer::ok(None::<Ino>)),
        },
        _ => encoded(Answer::ok(())),
    }
}

/// Segments that a call makes part of files.
pub(super) fn segments(call: &Call<'_>) -> Vec<SegmentId> {
    let Call::Commit { files } = call else { return Vec::new() };
    let records = files.iter().flat_map(|file| &file.records);
    let mut segments: Vec<_> = records.filter_map(|record| record.ptr.map(|ptr| ptr.segment)).collect();
    segments.sort_unstable();
    segments.dedup();
    segments
}

macro_rules! calls {
    ($($call:ident = $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        /// A call, with its arguments.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(super) enum Call<'a> {
            $($call { $($arg: $type),* },)*
            /// The one that has no answer to wait for.
            Close { ino: Ino },
        }

        /// Makes a call that came in, in the name of its request.
        pub(super) fn make(mds: &dyn Mds, request: &Arc<Request>, call: Call<'_>) -> Encoded {
            match call {
                $(Call::$call { $($arg),* } => encoded(request.run(|| mds.$method($($arg),*))),)*
                Call::Close { ino } => {
                    mds.close(ino);
                    Encoded::Ready(encode(&Ok::<_, FsError>(())))
                }
            }
        }

        #[allow(clippy::extra_unused_lifetimes)]
        impl Mds for RemoteMds {
            $(fn $method<'a>(&self, $($arg: $type),*) -> Answer<$answer> {
                let call = Call::$call { $($arg),* };
                let (after, ends) = consequences(&call);
                self.call(call, after, ends)
            })*

            fn info(&self) -> DatasetInfo {
                self.known_info()
            }

            fn close(&self, ino: Ino) {
                self.tell_closed(ino);
            }
        }
    };
}

calls! {
    Statfs = statfs() -> StatFs;
    Lookup = lookup(parent: Ino, name: &'a [u8]) -> Attr;
    Create = create(cred: Cred, parent: Ino, name: &'a [u8], node: NewNode) -> Attr;
    CreateUnnamed = create_unnamed(cred: Cred, parent: Ino, mode: u32) -> Attr;
    Link = link(ino: Ino, parent: Ino, name: &'a [u8]) -> Attr;
    Unlink = unlink(parent: Ino, name: &'a [u8]) -> Option<Ino>;
    Rmdir = rmdir(parent: Ino, name: &'a [u8]) -> Option<Ino>;
    Rename = rename(from: Ino, name: &'a [u8], to: Ino, new_name: &'a [u8], mode: RenameMode) -> Option<Ino>;
    Readlink = readlink(ino: Ino) -> Vec<u8>;
    Readdir = readdir(dir: Ino, cookie: u64, max: usize) -> Vec<DirEntry>;
    Names = names(dir: Ino, cookie: u64, max: usize) -> Vec<NameEntry>;
    Parent = parent(dir: Ino) -> Ino;
    Getattr = getattr(ino: Ino) -> Attr;
    Setattr = setattr(ino: Ino, set: SetAttr) -> Attr;
    Getxattr = getxattr(ino: Ino, name: &'a [u8]) -> Vec<u8>;
    Setxattr = setxattr(ino: Ino, name: &'a [u8], value: &'a [u8], mode: XattrMode) -> ();
    Listxattr = listxattr(ino: Ino) -> Vec<Vec<u8>>;
    Removexattr = removexattr(ino: Ino, name: &'a [u8]) -> ();
    Open = open(ino: Ino) -> Attr;
    Map = map(ino: Ino, first: u64, count: u32) -> FileMap;
    Commit = commit(files: Vec<FileCommit>) -> ();
    Punch = punch(ino: Ino, first: u64, count: u64) -> ();
    Share = share(range: ShareRange) -> ();
    Seek = seek(ino: Ino, offset: u64, what: Seek) -> u64;
    Grants = grants(vdevs: Vec<VdevId>) -> Vec<Grant>;
    Sync = sync() -> ();
    Lock = lock(ino: Ino, owner: LockOwner, range: LockRange, mode: LockMode, wait: bool) -> ();
    Unlock = unlock(ino: Ino, owner: LockOwner, range: LockRange) -> ();
    LockTest = lock_test(ino: Ino, owner: LockOwner, range: LockRange, mode: LockMode) -> Option<HeldLock>;
}
