//! Blocking work for waiting tasks.

use std::panic::resume_unwind;

/// Runs blocking work. A panic continues in the waiting task.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime is going down, and this with it.
        Err(_) => std::future::pending().await,
    }
}
