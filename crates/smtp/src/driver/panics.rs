//! Panics of a handler: each costs only its own session, and a line in the log.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::Reply;

/// The reply in place of the greeting, or without a command.
pub(super) fn internal_end() -> Reply {
    Reply::new(421, "4.3.0", "Internal error, closing")
}

/// The reply to a command, or to a message, whose handler has panicked.
pub(super) fn internal_error() -> Reply {
    Reply::new(451, "4.3.0", "Internal error, closing")
}

/// Runs the handler's `work`. `None`: it panicked, which is logged.
pub(super) async fn sheltered<T>(id: u64, method: &'static str, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let worked = std::future::poll_fn(|cx| {
        // State left half done belongs to the handler; the session ends.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
            Err(payload) => Poll::Ready(Err(payload)),
        }
    });
    worked.await.map_err(|payload| log_panic(id, method, &*payload)).ok()
}

/// Runs the handler's non-blocking `work`. False: it panicked, which is logged. `id` is 0 before a session.
pub(super) fn sheltered_now(id: u64, method: &'static str, work: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| log_panic(id, method, &*payload)).is_ok()
}

fn log_panic(id: u64, method: &'static str, payload: &(dyn std::any::Any + Send)) {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
    tracing::error!(session = id, method, panic = text, "the mail handler panicked");
}
