//! Logging, and what becomes of a panic.

use crate::cli::Verb;
use tracing_subscriber::EnvFilter;

/// Sends log lines to standard error: of a process that serves mounts from `info`, of others from `error` (they
/// print their errors themselves). `TARN_LOG` chooses otherwise, in the syntax of `RUST_LOG`.
pub fn begin(verb: &Verb) {
    let serves = verb.serves();
    let default = if serves {
        // What becomes of caches is told where it is known which one it is.
        "info,slatedb=warn,object_store=warn,foyer=off"
    } else {
        "error,slatedb=off,rustls_platform_verifier=off"
    };
    let filter = EnvFilter::try_from_env("TARN_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // The journal has times of its own.
    let begun = match serves && to_journal() {
        true => builder.without_time().try_init(),
        false => builder.try_init(),
    };
    if let Err(e) = begun {
        eprintln!("tarn: no log: {e}");
    }
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
        tracing::error!("internal error at {place}: {text}");
    }));
}

/// Standard error goes to the journal: systemd says which file that is.
pub fn to_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(stat) = nix::sys::stat::fstat(std::io::stderr()) else { return false };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}
