//! Early end of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Ends a run early; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    urgent: Arc<AtomicBool>,
}

impl Stop {
    /// Begins no more messages; those in flight may still take [`Plan::drain`](super::Plan::drain).
    pub fn ask(&self) {
        self.asked.store(true, Relaxed);
    }

    /// Begins no more messages, and waits for nothing.
    pub fn urge(&self) {
        self.ask();
        self.urgent.store(true, Relaxed);
    }

    /// True once a stop was asked for, immediate or not.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Relaxed)
    }

    /// True once an immediate stop was asked for.
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Relaxed)
    }
}

/// The flag asks for an orderly stop; it cannot ask for an immediate one.
impl From<Arc<AtomicBool>> for Stop {
    fn from(asked: Arc<AtomicBool>) -> Self {
        Self { asked, urgent: Arc::default() }
    }
}
