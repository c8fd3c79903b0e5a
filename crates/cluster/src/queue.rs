//! Inputs of a shard's thread: waiting batches, orders, progress of the local spool. Callers also wake it for answers
//! of the engine.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use posthaste_spool::{Batch, Cancel, Cancelled, Then};

use crate::sender::{OwnerIdentity, SenderEnd};

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct QueueState {
    pub items: VecDeque<Item>,
    /// Bytes of waiting batches.
    pub bytes: u64,
    pub ending: Ending,
    pub orders: VecDeque<Order>,
    /// Called once nothing waits or is in progress.
    pub drains: Vec<Told>,
    /// This node is the owner and accepts items. Changed together with the waiting items, so none waits at a standby.
    pub is_owner: bool,
    /// The local spool may have room again.
    pub has_made_room: bool,
    is_new: bool,
}

/// How the writer ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    #[default]
    Not,
    /// Tries to decide the records in flight, if the engine answers.
    Closing,
    /// At once, like a kill.
    Killed,
}

/// Called once, on the shard's thread: must not block. Dropped if the spool ends first.
pub(crate) type Told = Box<dyn FnOnce() + Send>;

/// A change of this node's role.
pub(crate) enum Order {
    Promote(OwnerIdentity, Promoted),
    /// Called once it is done.
    Demote(Told),
}

/// Callers that wait for the opening of the log.
pub(crate) struct Promoted {
    /// Called once the log is open, or with the reason of the failure. See [`Told`].
    pub tell: Box<dyn FnOnce(Result<(), SenderEnd>) + Send>,
    /// True: opening waits until the local spool has all of the log, even if it has no room now.
    pub waits_for_room: bool,
}

pub(crate) enum Item {
    Batch(Arc<Pending>),
    /// `tell` is called once the record is in the local spool, and dropped if it never will be.
    Stream {
        number: u16,
        name: Option<String>,
        tell: Box<dyn FnOnce() + Send>,
    },
    /// Members compare their digests there.
    Digest,
    Advance {
        stream: u16,
        position: u64,
        below: u64,
        also: Vec<u64>,
    },
}

impl Queue {
    pub fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().expect("nothing panics while it is held")
    }

    pub fn is_owner(&self) -> bool {
        self.state().is_owner
    }

    /// Changes the state, and wakes the writer.
    pub fn put(&self, change: impl FnOnce(&mut QueueState)) {
        let mut state = self.state();
        change(&mut state);
        state.is_new = true;
        self.changed.notify_all();
    }

    /// Waits for any news, up to `timeout` if there is one.
    pub fn wait(&self, timeout: Option<Duration>) -> MutexGuard<'_, QueueState> {
        let is_old = |state: &mut QueueState| !state.is_new;
        let mut state = match timeout {
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(self.state(), timeout, is_old);
                waited.expect("nothing panics while it is held").0
            }
            None => self.changed.wait_while(self.state(), is_old).expect("nothing panics while it is held"),
        };
        state.is_new = false;
        state
    }

    /// Waits at most `timeout` for an ending or an order and returns true if one came. Other news stays queued.
    pub fn pause(&self, timeout: Duration) -> bool {
        let is_going_on = |state: &mut QueueState| state.ending == Ending::Not && state.orders.is_empty();
        let waited = self.changed.wait_timeout_while(self.state(), timeout, is_going_on);
        !is_going_on(&mut waited.expect("nothing panics while it is held").0)
    }
}

/// A batch that waits to be sent; its ticket.
pub(crate) struct Pending {
    batch: Mutex<Option<(Batch, Then)>>,
    bytes: u64,
    queue: Arc<Queue>,
}

impl Pending {
    pub fn new(batch: Batch, then: Then, bytes: u64, queue: Arc<Queue>) -> Self {
        Pending { batch: Mutex::new(Some((batch, then))), bytes, queue }
    }

    /// Takes the item; `None` if it was cancelled.
    pub fn take(&self) -> Option<(Batch, Then)> {
        let taken = self.batch.lock().expect("nothing panics while it is held").take();
        if taken.is_some() {
            self.queue.state().bytes -= self.bytes;
        }
        taken
    }
}

impl Cancel for Pending {
    fn cancel(&self) -> Cancelled {
        match self.take() {
            Some(_) => Cancelled::NotWritten,
            None => Cancelled::TooLate,
        }
    }
}
