//! How a run is told to end before its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Ends a run early; clones are one.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    urgent: Arc<AtomicBool>,
}

impl Stop {
    /// No message is begun any more; those under way may still take [`Plan::drain`](super::Plan::drain).
    pub fn ask(&self) {
        self.asked.store(true, Relaxed);
    }

    /// No message is begun, and nothing is waited for any more.
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
