//! The same work on several threads.

use std::panic::resume_unwind;
use std::thread;

/// Does `work` on `threads` threads at once, of which the caller's is one, and returns what each has made of it. A panic of one goes on
/// here.
pub(crate) fn on_threads<T: Send>(threads: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(&work)).collect();
        let mut done = vec![work()];
        done.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic))));
        done
    })
}
