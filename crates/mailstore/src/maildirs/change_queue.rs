//! The change queue of a mailbox: changes wait until its leader takes them.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::locks::lock;
use super::scratch::Operation;
use crate::error::MailstoreError;
use crate::store::StoredFlags;

/// Maximum changes of one batch.
const CHANGES_MAX: usize = 256;

/// Waiting changes.
#[derive(Debug, Default)]
pub(super) struct ChangeQueue(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<WaitingChange>,
    has_leader: bool,
    last: u64,
}

#[derive(Debug)]
pub(super) struct WaitingChange {
    pub number: u64,
    pub operation: Arc<Operation>,
    pub answer: oneshot::Sender<Outcome>,
}

pub(super) type Outcome = Result<StoredFlags, MailstoreError>;

impl ChangeQueue {
    /// Adds a change. Returns its number, and true if the caller must lead.
    pub fn push(&self, operation: Operation, answer: oneshot::Sender<Outcome>) -> (u64, bool) {
        let mut queue = lock(&self.0);
        queue.last += 1;
        let number = queue.last;
        queue.waiting.push(WaitingChange { number, operation: Arc::new(operation), answer });
        (number, !std::mem::replace(&mut queue.has_leader, true))
    }

    /// True if the change is not in a batch, and will not be.
    pub fn withdraw(&self, number: u64) -> bool {
        let mut queue = lock(&self.0);
        let before = queue.waiting.len();
        queue.waiting.retain(|waiting| waiting.number != number);
        queue.waiting.len() < before
    }

    /// The next changes, which may still be withdrawn, and the number of the last. `None`: nothing waits, and there is no
    /// leader any more.
    pub fn next(&self) -> Option<(Vec<Arc<Operation>>, u64)> {
        let mut queue = lock(&self.0);
        let next = &queue.waiting[..queue.waiting.len().min(CHANGES_MAX)];
        let last = next.last().map(|waiting| waiting.number);
        let next = next.iter().map(|waiting| Arc::clone(&waiting.operation)).collect();
        queue.has_leader = last.is_some();
        Some((next, last?))
    }

    /// Takes changes up to this one. They cannot be withdrawn any more.
    pub fn take(&self, last: u64) -> Vec<WaitingChange> {
        let mut queue = lock(&self.0);
        let count = queue.waiting.partition_point(|waiting| waiting.number <= last);
        queue.waiting.drain(..count).collect()
    }
}

/// Ends the lead of a panicking task: waiting changes are refused, and the next one leads itself.
pub(super) struct Leading<'a>(pub &'a ChangeQueue);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut queue = lock(&self.0.0);
            queue.has_leader = false;
            queue.waiting.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_panics_leaves_its_place() {
        let queue = ChangeQueue::default();
        let (answer, mut outcome) = oneshot::channel();
        lock(&queue.0).has_leader = true;
        lock(&queue.0).waiting.push(WaitingChange { number: 1, operation: Arc::new(Operation::Expunge(None)), answer });
        let leads = || {
            let _leading = Leading(&queue);
            panic!("as a defect would");
        };
        assert!(std::thread::scope(|scope| scope.spawn(leads).join()).is_err());
        assert!(!lock(&queue.0).has_leader, "the next change leads");
        assert!(outcome.try_recv().is_err(), "the waiting one is refused");
    }
}
