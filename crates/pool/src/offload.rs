//! Work that takes long enough to keep others waiting.

use std::num::NonZero;
use std::sync::LazyLock;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;
use tokio::task::JoinError;

/// More of them at a time would not be faster, but take as much more memory.
static HEAVY: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(2, NonZero::get).max(2)));

/// Does work of milliseconds off the threads that do I/O. On a runtime of one thread, which only tests have, it is done
/// at once: when another thread is done is nothing that a seed could decide.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}

/// As [`offload`], for work that may take seconds and much memory: no more of it at a time than there are cores.
pub async fn offload_heavy<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // It is never closed.
    let _turn = HEAVY.acquire().await;
    offload(work).await
}
