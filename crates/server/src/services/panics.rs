//! Detects panics of threads of local delivery, the spool or the ring: these belong to libraries without handles to
//! wait for.

use std::sync::{Mutex, PoisonError};

use crate::lifecycle::{Alive, Ended};

/// Ready once one of these threads has panicked. Needs [`install`].
pub(crate) fn of_delivery() -> Ended {
    let (alive, ended) = Ended::new();
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.retain(|alive| !alive.is_closed());
    waiting.push(alive);
    ended
}

/// Observes each panic of this process from now on, in addition to the usual handling.
pub(crate) fn install() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        let thread = std::thread::current();
        let Some(thread) = thread.name().filter(|name| is_of_delivery(name)) else { return };
        tracing::error!(thread, panic = panic.to_string(), "a thread of the delivery has panicked, which is a bug");
        WAITING.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }));
}

fn is_of_delivery(thread: &str) -> bool {
    THREADS.iter().any(|begin| thread.starts_with(begin))
}

/// Name prefixes of these threads.
pub(crate) const THREADS: [&str; 4] = ["deliver", "mail-sync", "spool-", "ring-"];

static WAITING: Mutex<Vec<Alive>> = Mutex::new(Vec::new());
