//! A message's body in memory.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use posthaste_intake::BudgetShare;

/// A body in memory, with its share of the memory for all bodies.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub parts: Arc<[Bytes]>,
    share: Mutex<Option<BudgetShare>>,
}

impl HeldBody {
    pub fn new(parts: Arc<[Bytes]>, share: BudgetShare) -> Self {
        HeldBody { parts, share: Mutex::new(Some(share)) }
    }

    /// Releases the share of memory even if a hanging thread still holds the body, so that others need not wait.
    pub fn let_go(&self) {
        drop(self.share.lock().expect("a share").take());
    }
}
