//! Signals that end a command that leaves something behind unless it tidies up.

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

/// Comes when the command is told to end: by the keyboard, by whoever started it, or because its terminal is gone.
pub async fn told() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed?,
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}
