//! Answering one request: progress lines while it is worked on, a sign of life where there is none, one last line.

use crate::control::{Message, Reply, wire};
use crate::progress::{Progress, Sink};
use anyhow::Result;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::sync::watch;

/// Without progress to tell, a line goes out this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// At most so often progress is told.
const PROGRESS: Duration = Duration::from_millis(200);

/// Keeps the newest progress, for whoever sends it on.
pub struct Latest {
    newest: watch::Sender<Option<Progress>>,
    waits: AtomicBool,
}

impl Default for Latest {
    fn default() -> Self {
        Latest { newest: watch::Sender::new(None), waits: AtomicBool::new(false) }
    }
}

impl Sink for Latest {
    fn progress(&self, progress: Progress) {
        self.newest.send_replace(Some(progress));
    }

    fn waits(&self, for_its_turn: bool) {
        self.waits.store(for_its_turn, SeqCst);
    }
}

impl Latest {
    pub fn newest(&self) -> Option<Progress> {
        self.newest.borrow().clone()
    }
}

/// Runs `work`, writes its progress to `to` as it goes, and its result at the end. A reader that goes away does not
/// stop the work, but work that still waits for its turn then is not done any more. Gives whether the work succeeded.
pub async fn answer(
    to: &mut (impl AsyncWrite + Unpin),
    latest: &Latest,
    work: impl Future<Output = Result<Reply>>,
) -> bool {
    let mut work = pin!(work);
    let mut news = latest.newest.subscribe();
    let mut heard = true;
    let mut quiet = tokio::time::interval(PROGRESS);
    let mut since_line = tokio::time::Instant::now();
    let result = loop {
        tokio::select! {
            biased;
            result = &mut work => break result,
            _ = quiet.tick() => {}
        }
        if !heard && latest.waits.load(SeqCst) {
            tracing::info!("whoever asked went away before it was begun");
            return false;
        }
        let message = match news.has_changed() {
            Ok(true) => news.borrow_and_update().clone().map(Message::Progress),
            _ if since_line.elapsed() >= SIGN_OF_LIFE => Some(Message::Working),
            _ => None,
        };
        if let Some(message) = message
            && heard
        {
            heard = wire::write(to, &message).await.is_ok();
            since_line = tokio::time::Instant::now();
        }
    };
    let succeeded = result.is_ok();
    if let Err(e) = &result {
        tracing::info!("refused: {}", crate::error::one_line(e));
    }
    if heard {
        let _ = wire::write(to, &Message::from_result(result)).await;
    }
    succeeded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::follow;
    use crate::progress::{Silent, Unit};
    use tokio::io::BufReader;

    #[tokio::test(start_paused = true)]
    async fn long_work_shows_signs_of_life() {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let latest = Latest::default();
        let work = async {
            tokio::time::sleep(Duration::from_secs(120)).await;
            Ok(Reply::Ok)
        };
        let mut reader = BufReader::new(theirs);
        let (done, reply) = tokio::join!(answer(&mut ours, &latest, work), follow(&mut reader, &Silent));
        assert!(done && matches!(reply, Ok(Some(Reply::Ok))));
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_its_turn_is_dropped_when_nobody_listens() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        drop(theirs);
        let latest = Latest::default();
        let work = async {
            latest.waits(true);
            std::future::pending::<()>().await;
            Ok(Reply::Ok)
        };
        let limited = tokio::time::timeout(2 * SIGN_OF_LIFE, answer(&mut ours, &latest, work));
        assert!(!limited.await.expect("it is dropped"));
    }

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_when_nobody_listens() {
        let (mut ours, theirs) = tokio::io::duplex(64);
        drop(theirs);
        let latest = Latest::default();
        let work = async {
            for done in 0..100 {
                latest.progress(Progress { what: "x".into(), done, total: 0, unit: Unit::Items });
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            Ok(Reply::Ok)
        };
        assert!(answer(&mut ours, &latest, work).await);
    }
}
