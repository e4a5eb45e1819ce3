//! What a node runs for its clients. Today that is the metadata service for clients in the same process.

mod mds;

pub use mds::LocalMds;
