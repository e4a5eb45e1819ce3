pub(crate) mod world;
