//! Counts of each queue's recipients, updated with each change.

use super::clock::Secs;
use super::recipient::{BUSY, DUE, HELD, Recipient};

/// Recipients of a queue, by the reason of their wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueTally {
    /// All recipients.
    pub recipients: u64,
    /// Recipients with an attempt.
    pub deferred: u64,
    /// Recipients on hold.
    pub held: u64,
    /// Recipients on hold that had an attempt.
    pub held_deferred: u64,
    /// Recipients in flight.
    pub under_way: u64,
    /// Due recipients, suspended ones included.
    pub due: u64,
    /// A lower bound of their times of reception.
    pub oldest: Secs,
}

/// The suspended part of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspendedPart {
    /// Not suspended.
    None,
    /// All except held recipients and those in flight, until this time at least.
    All(Secs),
    /// The mail of some of its sources.
    Some,
}

/// Tallies by the place of the queue.
#[derive(Debug, Default)]
pub(super) struct Tallies(Vec<QueueTally>);

impl QueueTally {
    fn of(recipient: &Recipient) -> Self {
        let is = |what: bool| u64::from(what);
        let is_busy = recipient.is(BUSY);
        let is_held = recipient.is(HELD);
        let is_tried = recipient.attempts > 0;
        Self {
            recipients: 1,
            deferred: is(is_tried),
            held: is(is_held && !is_busy),
            held_deferred: is(is_held && !is_busy && is_tried),
            under_way: is(is_busy),
            due: is(recipient.is(DUE) && !is_busy && !is_held),
            oldest: 0,
        }
    }

    fn each(&mut self, other: Self, change: fn(u64, u64) -> u64) {
        let Self { recipients, deferred, held, held_deferred, under_way, due, oldest: _ } = other;
        self.recipients = change(self.recipients, recipients);
        self.deferred = change(self.deferred, deferred);
        self.held = change(self.held, held);
        self.held_deferred = change(self.held_deferred, held_deferred);
        self.under_way = change(self.under_way, under_way);
        self.due = change(self.due, due);
    }
}

impl Tallies {
    /// Counts a new recipient whose message was received then.
    pub fn push(&mut self, recipient: &Recipient, received: Secs) {
        let place = recipient.queue as usize;
        if self.0.len() <= place {
            self.0.resize(place + 1, QueueTally::default());
        }
        let tally = &mut self.0[place];
        tally.oldest = if tally.recipients == 0 { received } else { tally.oldest.min(received) };
        self.add(recipient);
    }

    fn add(&mut self, recipient: &Recipient) {
        self.0[recipient.queue as usize].each(QueueTally::of(recipient), |all, one| all + one);
    }

    pub fn remove(&mut self, recipient: &Recipient) {
        self.0[recipient.queue as usize].each(QueueTally::of(recipient), |all, one| all - one);
    }

    /// Updates the counts: `before` became `after`, in the same queue.
    pub fn change(&mut self, before: &Recipient, after: &Recipient) {
        if before.bits != after.bits || (before.attempts > 0) != (after.attempts > 0) {
            self.remove(before);
            self.add(after);
        }
    }

    pub fn at(&self, place: u32) -> QueueTally {
        self.0.get(place as usize).copied().unwrap_or_default()
    }
}
