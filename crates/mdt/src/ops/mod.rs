//! The operations, one file a family.

mod attr;
mod create;
mod data;
mod grant;
mod lookup;
mod remove;
mod rename;
mod seek;
mod share;
mod truncate;
mod xattr;

pub use data::{FileChange, RecordChange};
pub(crate) use data::{account_new, free_records, replace};
pub(crate) use lookup::End;
pub use share::Share;
pub(crate) use truncate::Truncations;
pub(crate) use xattr::XattrPages;
