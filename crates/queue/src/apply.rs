//! Applies entries to the queue, live and in a replay.

use posthaste_shaping::MailScope;
use posthaste_spool::Lsn;

use super::destinations::domain_of;
use super::entry::{Change, HoldReason, QueueEntry, Queued, RecipientKey, What};
use super::imported::ImportedState;
use super::queue::Queue;
use super::recipient::{BEGUN, BUSY, DUE, HELD, Id, Recipient};
use super::temporary::{Diversion, Slow};

impl Queue {
    /// Applies a durable entry. Entries come in the order of their LSNs; content that a [`QueueSnapshot`](super::QueueSnapshot)
    /// already has takes no effect.
    pub fn apply(&mut self, lsn: Lsn, entry: &QueueEntry) {
        self.seen = self.seen.max(lsn);
        match entry {
            QueueEntry::Queued(queued) => self.queued(lsn, queued, &[]),
            QueueEntry::Imported(imported) => {
                self.recorded = self.recorded.max(imported.at);
                self.queued(lsn, &imported.queued, &imported.states);
            }
            QueueEntry::ImportNoted(noted) => {
                self.recorded = self.recorded.max(noted.at);
                self.imports.note(noted);
            }
            QueueEntry::Changes { at, changes } => {
                self.recorded = self.recorded.max(*at);
                changes.iter().for_each(|change| self.change(change));
            }
            QueueEntry::Replies { .. } | QueueEntry::WhyHeld { .. } => {}
            QueueEntry::Suspended { scope, until, reason } => {
                self.suspended.insert(scope.clone(), (*until, reason.clone()));
            }
            QueueEntry::Resumed(scope) => {
                self.slowed.remove(scope);
                self.resume(scope);
            }
            QueueEntry::Diverted { scope, until, to, reason } => {
                let scope = scope.clone();
                let to = to.clone();
                let reason = reason.clone();
                self.diverted.insert(scope.clone(), Diversion { scope, until: *until, to, reason });
                self.reroute_all();
            }
            QueueEntry::NotDiverted(scope) => {
                self.diverted.remove(scope);
                self.reroute_all();
            }
            QueueEntry::Slowed { scope, until, message_rate, connections, reason } => {
                let message_rate = message_rate.clone();
                let reason = reason.clone();
                let slow = Slow { until: *until, message_rate, connections: *connections, reason };
                self.slowed.insert(scope.clone(), slow);
            }
        }
    }

    /// `states`: the state of its recipients, if it was imported.
    fn queued(&mut self, lsn: Lsn, queued: &Queued, states: &[ImportedState]) {
        if lsn <= self.last_message {
            // A snapshot contains it, or it was settled while the snapshot was written: then it may not have been
            // released.
            if !self.table.has(lsn) && !self.owed.has(lsn) {
                self.released.push(lsn);
            }
            return;
        }
        self.last_message = lsn;
        self.recorded = self.recorded.max(queued.received);
        if queued.expires != 0 {
            self.expires.insert(lsn, queued.expires);
        }
        let due = queued.not_before.max(queued.received);
        let recipients: Vec<Recipient> = queued
            .recipients
            .iter()
            .enumerate()
            .filter(|(_, recipient)| recipient.owed().is_none())
            .map(|(at, recipient)| {
                let domain = domain_of(&recipient.address);
                let names = [&*queued.tenant, &*queued.campaign, &*domain, &*queued.pool];
                let queue = self.destinations.take(&mut self.names, &self.schedules, names);
                let mut new = Recipient::new(recipient.number, queue, due);
                states.get(at).into_iter().for_each(|state| state.put_into(&mut new));
                new
            })
            .collect();
        for recipient in &queued.recipients {
            let Some((notice, status)) = recipient.owed() else { continue };
            self.owed.insert(RecipientKey { message: lsn, number: recipient.number }, notice, status);
            self.owed.note(lsn);
        }
        if recipients.is_empty() {
            self.expires.remove(&lsn);
            if !self.owed.has(lsn) {
                self.released.push(lsn);
            }
        }
        let mut ids = Vec::new();
        // Its age counts from its release.
        self.table.push(lsn, due, &recipients, |_, id| ids.push(id));
        ids.into_iter().for_each(|id| self.settle_in(id));
    }

    fn change(&mut self, change: &Change) {
        let found = self.table.find(change.key);
        match change.what {
            // Even if a snapshot has it as settled: that may have been written before this was applied.
            What::Owed(notice, status) => {
                self.owed.insert(change.key, notice, status);
                self.owed.note(change.key.message);
            }
            What::Told => return self.told(change.key),
            _ => {}
        }
        let Some(id) = found else { return };
        match change.what {
            What::Delivered(_) | What::Failed(_) | What::Owed(..) | What::Suppressed | What::Deleted => {
                return self.settle(id, change);
            }
            What::Told => return,
            What::DelayTold => _ = self.delays.remove(&change.key),
            What::Released { expires, .. } if expires != 0 => {
                self.expires.insert(change.key.message, expires);
            }
            _ => {}
        }
        let goes_on = self.table.change(id, |recipient| recipient.apply(change.what));
        if !goes_on {
            self.free(id);
        }
        if change.what == What::GivenBack {
            self.put_in_front(id);
        }
    }

    /// Handles missing entries up to here. `is_needed`: true if a message had an unsettled recipient then. Recipients
    /// known from an old snapshot or from the messages may have been delivered: they are held. Returns how many.
    pub fn make_uncertain(&mut self, is_needed: impl Fn(Lsn) -> bool) -> u64 {
        assert!(!self.is_running, "in a replay");
        let mut from = RecipientKey::FIRST;
        while let Some((ids, next)) = self.table.open_from(from) {
            let keys: Vec<RecipientKey> = ids.into_iter().map(|id| self.table.key(id)).collect();
            for key in keys {
                // Settled recipients change ids.
                let Some(id) = self.table.find(key) else { continue };
                if is_needed(key.message) {
                    self.table.change(id, |recipient| {
                        recipient.set(HELD, true);
                        recipient.set(BEGUN, false);
                        recipient.due = HoldReason::Uncertain.number();
                    });
                } else {
                    self.settle(id, &Change { key, what: What::Deleted });
                }
            }
            from = next;
        }
        // For other kinds the notice may have been made or not: better twice than never.
        self.owed.retain(is_needed);
        self.table.open()
    }

    /// Ends the work on a recipient, unless an operator's action waits for it.
    pub(super) fn free(&mut self, id: Id) {
        let key = self.table.key(id);
        let is_pending = self.pending.contains_key(&key);
        self.table.change(id, |recipient| recipient.set(BUSY, is_pending));
        self.pending_due.extend(is_pending.then_some(key));
        self.settle_in(id);
    }

    /// Puts a waiting recipient at the front of its queue.
    fn put_in_front(&mut self, id: Id) {
        if self.is_running && self.table.get(id).is(DUE) {
            self.table.unlink(id);
            self.enqueue(id, true);
        }
    }

    fn settle(&mut self, id: Id, change: &Change) {
        self.pending.remove(&change.key);
        self.delays.remove(&change.key);
        self.table.unlink(id);
        let place = self.table.change(id, |recipient| {
            recipient.set(DUE, false);
            recipient.queue
        });
        self.table.settle(id);
        let message = change.key.message;
        if !self.table.has(message) {
            self.expires.remove(&message);
            if self.owed.has(message) { self.owed.note(message) } else { self.released.push(message) }
        }
        if self.destinations.uncount(place) == 0 {
            let destination = self.destinations.remove(&mut self.names, place);
            self.drop_lanes(destination.lanes);
        }
    }

    fn told(&mut self, key: RecipientKey) {
        if self.owed.remove(key) && !self.owed.has(key.message) && !self.table.has(key.message) {
            self.released.push(key.message);
        }
    }

    fn resume(&mut self, scope: &MailScope) {
        if self.suspended.remove(scope).is_some() {
            self.wake_all();
        }
    }

    pub(super) fn end_suspensions(&mut self) {
        let before = self.suspended.len();
        let now = self.now;
        self.suspended.retain(|_, (until, _)| *until > now);
        if self.suspended.len() < before {
            self.wake_all();
        }
    }
}
