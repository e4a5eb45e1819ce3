//! What a node knows of itself: gathered in one place ([`Sample`], by `Node::sample`), and shown to whoever wants it:
//! to Prometheus ([`exposition`], over HTTP by [`Endpoint`]), and to `tarn stats` and `tarn cost` over the control socket.
//!
//! Whatever counts does so with atomic additions where it happens; a sample reads the counters and asks nobody.

mod endpoint;
mod exposition;
mod sample;

pub use endpoint::{Endpoint, address};
pub use exposition::{CONTENT_TYPE, exposition};
pub use sample::{DatasetSample, LinkSample, MemorySample, Sample, TargetSample};
