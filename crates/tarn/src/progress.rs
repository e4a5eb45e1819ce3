//! Progress of long work: a bar on a terminal, a line every few seconds elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// What `done` and `total` count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    Bytes,
    Items,
}

/// How far a piece of work has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done: `flushing tank/home`.
    pub what: String,
    pub done: u64,
    /// 0 when it is not known.
    pub total: u64,
    pub unit: Unit,
}

/// Takes progress; must not wait.
pub trait Sink: Send + Sync {
    fn progress(&self, progress: Progress);

    /// The work waits for its turn and has not begun, or has its turn now: until then it may be dropped.
    fn waits(&self, _for_its_turn: bool) {}
}

/// Nobody looks.
pub struct Silent;

impl Sink for Silent {
    fn progress(&self, _: Progress) {}
}

/// Shows progress on standard error.
pub struct Screen {
    terminal: bool,
    shown: Mutex<Shown>,
}

#[derive(Default)]
struct Shown {
    bar: Option<(String, ProgressBar)>,
    line: Option<Instant>,
    started: Option<(String, Instant)>,
}

/// Work shorter than this shows nothing.
const QUIET: Duration = Duration::from_millis(300);
/// Time between plain lines.
const LINES: Duration = Duration::from_secs(5);

impl Default for Screen {
    fn default() -> Self {
        Screen { terminal: std::io::stderr().is_terminal(), shown: Mutex::default() }
    }
}

impl Sink for Screen {
    fn progress(&self, progress: Progress) {
        let mut shown = self.shown.lock();
        let now = Instant::now();
        let started = match &shown.started {
            Some((what, at)) if *what == progress.what => *at,
            _ => {
                shown.started = Some((progress.what.clone(), now));
                now
            }
        };
        if now - started < QUIET {
            return;
        }
        if self.terminal {
            draw(&mut shown, &progress);
        } else if shown.line.is_none_or(|last| now - last >= LINES) {
            shown.line = Some(now);
            eprintln!("{}", line(&progress, now - started));
        }
    }
}

impl Screen {
    /// Takes the bar off the screen, before other text is printed.
    pub fn clear(&self) {
        let mut shown = self.shown.lock();
        if let Some((_, bar)) = shown.bar.take() {
            bar.finish_and_clear();
        }
        shown.started = None;
    }
}

fn draw(shown: &mut Shown, progress: &Progress) {
    if shown.bar.as_ref().is_none_or(|(what, _)| *what != progress.what) {
        if let Some((_, bar)) = shown.bar.take() {
            bar.finish_and_clear();
        }
        let bar = ProgressBar::with_draw_target(Some(progress.total), ProgressDrawTarget::stderr());
        bar.set_style(style(progress));
        bar.set_message(progress.what.clone());
        shown.bar = Some((progress.what.clone(), bar));
    }
    if let Some((_, bar)) = &shown.bar {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    }
}

fn style(progress: &Progress) -> ProgressStyle {
    let template = match (progress.unit, progress.total) {
        (Unit::Bytes, 0) => "{msg}  {bytes}  {bytes_per_sec}",
        (Unit::Bytes, _) => "{msg}  {wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}",
        (Unit::Items, 0) => "{msg}  {human_pos}  {per_sec}",
        (Unit::Items, _) => "{msg}  {wide_bar} {human_pos}/{human_len}  {per_sec}  {eta}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A plain line: what, how much of how much, rate, time left.
fn line(progress: &Progress, elapsed: Duration) -> String {
    let show = |n: u64| match progress.unit {
        Unit::Bytes => crate::size::bytes(n),
        Unit::Items => crate::size::count(n),
    };
    let rate = progress.done as f64 / elapsed.as_secs_f64().max(0.001);
    let mut text = format!("{}: {}", progress.what, show(progress.done));
    if progress.total > 0 {
        text += &format!(" of {}", show(progress.total));
    }
    text += &format!(", {}/s", show(rate as u64));
    if progress.total > progress.done && rate >= 1.0 {
        text += &format!(", {} s left", ((progress.total - progress.done) as f64 / rate).ceil());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_tell_rate_and_time_left() {
        let progress =
            Progress { what: "flushing tank".into(), done: 512 << 20, total: 1 << 30, unit: Unit::Bytes };
        assert_eq!(line(&progress, Duration::from_secs(4)), "flushing tank: 512M of 1G, 128M/s, 4 s left");
        let items = Progress { what: "checking".into(), done: 7, total: 0, unit: Unit::Items };
        assert_eq!(line(&items, Duration::from_secs(1)), "checking: 7, 7/s");
    }
}
