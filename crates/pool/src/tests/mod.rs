//! Tests of the pool as a whole.

mod admin;
mod authority;
mod data;
mod guest;
mod l2arc;
mod outage;
pub(crate) mod world;
