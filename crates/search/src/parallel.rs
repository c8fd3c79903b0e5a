//! Runs one closure on several threads.

use std::panic::resume_unwind;
use std::thread;

/// Runs `work` on `threads` threads, one of which is the caller's, and returns their results. Resumes the panic of a
/// thread that panicked.
pub(crate) fn on_threads<T: Send>(threads: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(&work)).collect();
        let mut done = vec![work()];
        done.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic))));
        done
    })
}
