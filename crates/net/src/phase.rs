//! Phases of a shutdown, and their announcement to tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Stage of a server's life, shared by all listeners and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    Running,
    /// No new connections, no new transactions; open transactions go on.
    Draining,
    /// No more input is read.
    Ending,
    /// Remaining connections are dropped.
    Gone,
}

/// The current phase. Every connection reads it on every wait, so it costs a load and no lock. The task that polls a
/// connection wakes it when the phase changes.
#[derive(Debug)]
pub struct CurrentPhase(AtomicU8);

/// Serving: for a connection without [`Listeners`](crate::Listeners).
impl Default for CurrentPhase {
    fn default() -> Self {
        Self(AtomicU8::new(Phase::Running as u8))
    }
}

impl CurrentPhase {
    /// True if `phase` or a later one has begun.
    pub fn reached(&self, phase: Phase) -> bool {
        self.0.load(Ordering::Acquire) >= phase as u8
    }
}

/// A task's subscription to phases. Each task keeps one, so a shutdown knows when all have ended.
pub(crate) type PhaseWatch = watch::Receiver<Phase>;

/// Announces the phases.
#[derive(Debug, Clone)]
pub(crate) struct Phases {
    sender: Arc<watch::Sender<Phase>>,
    now: Arc<CurrentPhase>,
}

impl Phases {
    pub fn new() -> Self {
        Self { sender: Arc::new(watch::Sender::new(Phase::Running)), now: Arc::default() }
    }

    pub fn watch(&self) -> PhaseWatch {
        self.sender.subscribe()
    }

    pub fn now(&self) -> &Arc<CurrentPhase> {
        &self.now
    }

    pub fn enter(&self, phase: Phase) {
        // In this order: whom the second wakes finds the first.
        self.now.0.store(phase as u8, Ordering::Release);
        self.sender.send_replace(phase);
    }

    /// Waits until all tasks have ended, at most `grace`, then goes through the remaining phases. True if all ended
    /// within `grace`.
    pub async fn end(&self, grace: Duration) -> bool {
        const LAST_WORDS: Duration = Duration::from_secs(1);
        let in_time = timeout(grace, self.sender.closed()).await.is_ok();
        if !in_time {
            self.enter(Phase::Ending);
            let _ = timeout(LAST_WORDS, self.sender.closed()).await;
            self.enter(Phase::Gone);
            self.sender.closed().await;
        }
        in_time
    }
}

/// `now + wait`, limited to thirty years, so that it cannot overflow.
pub fn after(now: Instant, wait: Duration) -> Instant {
    const THIRTY_YEARS: Duration = Duration::from_secs(30 * 365 * 86_400);
    now + wait.min(THIRTY_YEARS)
}
