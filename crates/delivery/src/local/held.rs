//! A message's body in memory.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use posthaste_intake::BudgetShare;

/// A body in memory, with its share of what all of them may take.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub parts: Arc<[Bytes]>,
    share: Mutex<Option<BudgetShare>>,
}

impl HeldBody {
    pub fn new(parts: Arc<[Bytes]>, share: BudgetShare) -> Self {
        HeldBody { parts, share: Mutex::new(Some(share)) }
    }

    /// Gives its share back although a thread that hangs may still hold it: others must not wait for that.
    pub fn let_go(&self) {
        drop(self.share.lock().expect("a share").take());
    }
}
