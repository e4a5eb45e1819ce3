//! Where the time of a request goes, by layer.
//!
//! The client asks the metadata target and the pool, and those ask buckets. Each moment of a request belongs to the
//! innermost layer that works for it or waits then: two requests to buckets at once count once, and what nothing below
//! accounts for is the client's. So the layers add up to the whole.
//!
//! A request that is profiled has a [`Stopwatch`], which goes with its errand ([`crate::job::carried`]) as its job does.
//! For others a layer costs one look at the thread's errand.

use crate::{Answer, Clock, SystemClock, job};
use parking_lot::Mutex;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::default);

/// The time that stopwatches go by.
pub(crate) fn now() -> Duration {
    CLOCK.monotonic()
}

/// What a request goes through, the outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    Client,
    Mdt,
    Pool,
    Bucket,
}

impl Layer {
    pub const ALL: [Layer; 4] = [Layer::Client, Layer::Mdt, Layer::Pool, Layer::Bucket];

    pub fn name(self) -> &'static str {
        match self {
            Layer::Client => "client",
            Layer::Mdt => "mdt",
            Layer::Pool => "pool",
            Layer::Bucket => "bucket",
        }
    }
}

/// A time for each layer, as in [`Layer::ALL`].
pub type Layers = [Duration; Layer::ALL.len()];

/// Divides the time among the layers.
struct Shares {
    /// How often each layer is at work now.
    open: [u32; Layer::ALL.len()],
    /// Until when the time is divided.
    upto: Duration,
    times: Layers,
    ended: bool,
}

impl Shares {
    fn new(began: Duration) -> Shares {
        let (open, times) = ([0; Layer::ALL.len()], Layers::default());
        Shares { open, upto: began, times, ended: false }
    }

    /// Gives the time until `now` to the innermost layer that is at work.
    fn divide(&mut self, now: Duration) {
        if self.ended {
            return;
        }
        let innermost = self.open.iter().rposition(|open| *open > 0).unwrap_or(Layer::Client as usize);
        self.times[innermost] += now.saturating_sub(self.upto);
        self.upto = self.upto.max(now);
    }

    fn enter(&mut self, layer: Layer, now: Duration) {
        self.divide(now);
        self.open[layer as usize] += 1;
    }

    fn leave(&mut self, layer: Layer, now: Duration) {
        self.divide(now);
        let open = &mut self.open[layer as usize];
        *open = open.saturating_sub(1);
    }

    /// Nothing counts from now on, whatever is still at work.
    fn end(&mut self, now: Duration) -> Layers {
        self.divide(now);
        self.ended = true;
        self.times
    }
}

/// Takes the time of one request.
pub struct Stopwatch {
    operation: &'static str,
    ino: u64,
    began: Duration,
    shares: Mutex<Shares>,
}

impl Stopwatch {
    /// Starts for a request of that name, about that inode.
    pub fn start(operation: &'static str, ino: u64) -> Arc<Stopwatch> {
        let began = now();
        Arc::new(Stopwatch { operation, ino, began, shares: Mutex::new(Shares::new(began)) })
    }

    pub fn operation(&self) -> &'static str {
        self.operation
    }

    pub fn ino(&self) -> u64 {
        self.ino
    }

    pub(crate) fn began(&self) -> Duration {
        self.began
    }

    /// The request is answered. Gives the time in each layer.
    pub fn end(&self) -> Layers {
        self.shares.lock().end(now())
    }
}

/// A layer at work for a request, until this is dropped, on whatever thread.
#[must_use = "the layer is left at once if nobody holds this"]
pub struct Span {
    stopwatch: Arc<Stopwatch>,
    layer: Layer,
}

impl Drop for Span {
    fn drop(&mut self) {
        let mut shares = self.stopwatch.shares.lock();
        shares.leave(self.layer, now());
    }
}

/// A layer begins to work for the request that this thread works for, if that is profiled.
pub fn enter(layer: Layer) -> Option<Span> {
    let stopwatch = job::stopwatch()?;
    stopwatch.shares.lock().enter(layer, now());
    Some(Span { stopwatch, layer })
}

/// Makes a call that is a layer's work until it is answered.
pub fn during<T: Send + 'static>(layer: Layer, call: impl FnOnce() -> Answer<T>) -> Answer<T> {
    let Some(span) = enter(layer) else { return call() };
    match call() {
        Answer::Pending(future) => Answer::pending(async move {
            let _span = span;
            future.await
        }),
        ready => ready,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Errand, carried, set_current};
    use futures::FutureExt;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_moment_belongs_to_the_innermost_layer() {
        let mut shares = Shares::new(ms(100));
        shares.enter(Layer::Mdt, ms(110));
        shares.enter(Layer::Bucket, ms(120));
        shares.leave(Layer::Bucket, ms(150));
        shares.leave(Layer::Mdt, ms(155));
        shares.enter(Layer::Pool, ms(160));
        shares.enter(Layer::Bucket, ms(161));
        shares.leave(Layer::Bucket, ms(170));
        shares.leave(Layer::Pool, ms(172));
        assert_eq!(shares.end(ms(180)), [ms(23), ms(15), ms(3), ms(39)]);
    }

    #[test]
    fn what_goes_on_at_once_counts_once() {
        let mut shares = Shares::new(ms(0));
        shares.enter(Layer::Pool, ms(0));
        shares.enter(Layer::Bucket, ms(10));
        shares.enter(Layer::Bucket, ms(15));
        shares.leave(Layer::Bucket, ms(20));
        // The pool has ended before what it asked for.
        shares.leave(Layer::Pool, ms(25));
        shares.leave(Layer::Bucket, ms(30));
        assert_eq!(shares.end(ms(31)), [ms(1), ms(0), ms(10), ms(20)]);
    }

    #[test]
    fn what_outlives_the_answer_is_cut_off() {
        let mut shares = Shares::new(ms(0));
        shares.enter(Layer::Bucket, ms(4));
        assert_eq!(shares.end(ms(10)), [ms(4), ms(0), ms(0), ms(6)]);
        shares.leave(Layer::Bucket, ms(500));
        shares.enter(Layer::Mdt, ms(600));
        assert_eq!(shares.end(ms(700)), [ms(4), ms(0), ms(0), ms(6)]);
    }

    #[test]
    fn layers_add_up_whatever_happens() {
        let mut shares = Shares::new(ms(0));
        for step in 0..1000 {
            let layer = Layer::ALL[(step * step / 3 % 4) as usize];
            // The time of one thread may come after that of another.
            let now = ms(step - step % 3);
            if step % 5 < 3 { shares.enter(layer, now) } else { shares.leave(layer, now) }
        }
        assert_eq!(shares.end(ms(1234)).iter().sum::<Duration>(), ms(1234));
    }

    #[test]
    fn a_stopwatch_goes_with_what_works_for_its_request() {
        assert!(enter(Layer::Mdt).is_none());
        let stopwatch = Stopwatch::start("read", 7);
        set_current(Errand { job: None, stopwatch: Some(stopwatch.clone()) });
        let mut later = Box::pin(carried(async {
            let _span = enter(Layer::Bucket);
            futures::pending!();
        }));
        let waits = during(Layer::Mdt, || Answer::pending(async { Ok(()) }));
        assert!(matches!(during(Layer::Mdt, || Answer::ok(5)), Answer::Ready(Ok(5))));
        set_current(Errand::default());
        assert!(enter(Layer::Mdt).is_none());
        assert!(later.as_mut().now_or_never().is_none());
        assert_eq!(stopwatch.shares.lock().open, [0, 1, 0, 1]);
        assert_eq!(waits.wait().now_or_never(), Some(Ok(())));
        drop(later);
        assert_eq!(stopwatch.shares.lock().open, [0; 4]);
    }
}
