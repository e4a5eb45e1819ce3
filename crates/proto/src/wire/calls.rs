//! Every call of [`Mds`] as a message: one table from which the message, the client's side and the server's side are
//! made. The number of a call is its place in the table: new ones go to the end.

use super::client::RemoteMds;
use super::message::{Encoded, encode};
use crate::{
    DatasetInfo, FileCommit, FileMap, HeldLock, LockMode, LockOwner, LockRange, Mds, Seek, ShareRange,
};
use bytes::Bytes;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use tarn_base::posix::{Attr, Cred, DirEntry, NameEntry, NewNode, RenameMode, SetAttr, StatFs, XattrMode};
use tarn_base::{Answer, FsError, Grant, Ino, VdevId};

fn encoded<T: Serialize + Send + 'static>(answer: Answer<T>) -> Encoded {
    match answer {
        Answer::Ready(result) => Encoded::Ready(encode(&result)),
        Answer::Pending(future) => {
            Encoded::Pending(future.map(|result| (encode(&result), Bytes::new())).boxed())
        }
    }
}

macro_rules! calls {
    ($($call:ident = $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        /// A call, with its arguments.
        #[derive(Debug, Serialize, Deserialize)]
        pub(super) enum Call<'a> {
            $($call { $($arg: $type),* },)*
            /// The one that has no answer to wait for.
            Close { ino: Ino },
        }

        /// Makes a call that came in.
        pub(super) fn make(mds: &dyn Mds, call: Call<'_>) -> Encoded {
            match call {
                $(Call::$call { $($arg),* } => encoded(mds.$method($($arg),*)),)*
                Call::Close { ino } => {
                    mds.close(ino);
                    Encoded::Ready(encode(&Ok::<_, FsError>(())))
                }
            }
        }

        #[allow(clippy::extra_unused_lifetimes)]
        impl Mds for RemoteMds {
            $(fn $method<'a>(&self, $($arg: $type),*) -> Answer<$answer> {
                self.call(Call::$call { $($arg),* })
            })*

            fn info(&self) -> DatasetInfo {
                self.known_info()
            }

            fn close(&self, ino: Ino) {
                self.tell(Call::Close { ino });
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
