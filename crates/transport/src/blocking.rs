//! Work that blocks, beside the tasks that wait for it.

use std::panic::resume_unwind;

/// Runs what blocks. A panic goes on in the waiting task.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime is going down, and this with it.
        Err(_) => std::future::pending().await,
    }
}
