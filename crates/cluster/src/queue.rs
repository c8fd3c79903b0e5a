//! The inputs of the writer's thread: batches that wait, answers of the engine, progress of the local spool.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use posthaste_spool::{Batch, Cancel, Cancelled, Then};

use crate::{LogError, Position};

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct QueueState {
    pub items: VecDeque<Item>,
    pub answers: Vec<(u64, Result<Position, LogError>)>,
    /// Bytes of batches that wait.
    pub bytes: u64,
    pub ending: Ending,
    /// The local spool may have room again.
    pub has_made_room: bool,
    is_new: bool,
}

/// How the writer ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    #[default]
    Not,
    /// Decides the records in flight, if the engine answers.
    Closing,
    /// At once, as a kill does.
    Killed,
}

pub(crate) enum Item {
    Batch(Arc<Pending>),
    /// `tell` is called once the record is in the local spool, and dropped if it never will be.
    Stream {
        number: u16,
        name: Option<String>,
        tell: Box<dyn FnOnce() + Send>,
    },
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

    /// Changes it, and wakes the writer.
    pub fn put(&self, change: impl FnOnce(&mut QueueState)) {
        let mut state = self.state();
        change(&mut state);
        state.is_new = true;
        self.changed.notify_all();
    }

    /// Waits for anything new, but not for longer than `timeout`, if there is one.
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

    /// Waits for an ending, but not for longer. What is new stays.
    pub fn pause(&self, timeout: Duration) -> Ending {
        let is_going_on = |state: &mut QueueState| state.ending == Ending::Not;
        let waited = self.changed.wait_timeout_while(self.state(), timeout, is_going_on);
        waited.expect("nothing panics while it is held").0.ending
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

    /// Once; `None` if it was cancelled.
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
