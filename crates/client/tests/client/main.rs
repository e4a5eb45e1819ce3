//! The client over a metadata server and a store of records that live in memory, are slow, reorder, fill up and
//! fail on purpose. Most tests run on a clock of their own: waiting costs nothing and a seed repeats a run.

mod behaviour;
mod crash;
mod faults;
mod mds;
mod model;
mod patches;
mod pool;
mod random;
mod store;
mod threads;
mod world;
