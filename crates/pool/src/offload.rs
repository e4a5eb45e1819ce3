//! Work that takes long enough to keep others waiting.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinError;

/// Does work of milliseconds off the threads that do I/O. On a runtime of one thread, which only tests have, it is done
/// at once: when another thread is done is nothing that a seed could decide.
pub async fn offload<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}
