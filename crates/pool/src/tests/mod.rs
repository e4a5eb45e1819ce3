//! Tests of the pool as a whole.

mod admin;
mod authority;
mod data;
pub(crate) mod world;
