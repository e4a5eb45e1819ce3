//! The doors: each translates one protocol into the client's POSIX operations and back, and does nothing else.
//! Error numbers of a protocol appear here and nowhere below.

pub mod fuse;
