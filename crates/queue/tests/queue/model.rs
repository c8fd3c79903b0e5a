//! A model of entries in the simplest form: the queue must agree with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use posthaste_queue::entry::HoldReason;
use posthaste_queue::{Change, OwedNotice, Queue, QueueEntry, RecipientKey, Secs, Selection, Status, Waits, What};
use posthaste_shaping::{DomainOrSite, Label, MailScope};
use posthaste_spool::Lsn;

/// The state by the entries, in the simplest form.
#[derive(Debug, Default)]
pub struct Model {
    pub recipients: BTreeMap<RecipientKey, Expected>,
    pub owed: BTreeMap<RecipientKey, (OwedNotice, Status)>,
    suspended: BTreeMap<MailScope, Secs>,
    diverted: BTreeMap<MailScope, Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    received: Secs,
    domain: String,
    own_expiry: Secs,
    attempts: u8,
    status: Status,
    due: Secs,
    held: Option<HoldReason>,
}

impl Model {
    pub fn apply(&mut self, lsn: Lsn, entry: &QueueEntry) {
        match entry {
            QueueEntry::Queued(queued) => {
                for recipient in &queued.recipients {
                    let expected = Expected {
                        received: queued.received.max(queued.not_before),
                        domain: recipient.address.split('@').nth(1).unwrap().to_lowercase(),
                        own_expiry: queued.expires,
                        attempts: 0,
                        status: Status::default(),
                        due: queued.received.max(queued.not_before),
                        held: None,
                    };
                    self.recipients.insert(RecipientKey { message: lsn, number: recipient.number }, expected);
                }
            }
            QueueEntry::Imported(imported) => {
                self.apply(lsn, &QueueEntry::Queued(imported.queued.clone()));
                for (recipient, state) in imported.queued.recipients.iter().zip(&imported.states) {
                    let key = RecipientKey { message: lsn, number: recipient.number };
                    let expected = self.recipients.get_mut(&key).expect("it has just come");
                    (expected.attempts, expected.status) = (state.attempts, state.status);
                    (expected.due, expected.held) = (state.next, state.held);
                }
            }
            QueueEntry::Changes { changes, .. } => changes.iter().for_each(|change| self.change(change)),
            QueueEntry::Replies { .. } | QueueEntry::WhyHeld { .. } | QueueEntry::ImportNoted(_) => {}
            QueueEntry::Suspended { scope, until, .. } => drop(self.suspended.insert(scope.clone(), *until)),
            QueueEntry::Resumed(scope) => drop(self.suspended.remove(scope)),
            QueueEntry::Diverted { scope, to, .. } => drop(self.diverted.insert(scope.clone(), to.clone())),
            QueueEntry::NotDiverted(scope) => drop(self.diverted.remove(scope)),
            QueueEntry::Slowed { .. } => {}
        }
    }

    pub fn change(&mut self, change: &Change) {
        match change.what {
            What::Owed(notice, status) => drop(self.owed.insert(change.key, (notice, status))),
            What::Told => drop(self.owed.remove(&change.key)),
            _ => {}
        }
        let Some(recipient) = self.recipients.get_mut(&change.key) else { return };
        match change.what {
            What::Delivered(_) | What::Failed(_) | What::Owed(..) | What::Suppressed | What::Deleted => {
                self.recipients.remove(&change.key);
            }
            What::Deferred { attempts, next, status } => {
                (recipient.attempts, recipient.due, recipient.status) = (attempts, next, status);
            }
            What::Rescheduled { attempts, next } => (recipient.attempts, recipient.due) = (attempts, next),
            What::Held(reason) => recipient.held = Some(reason),
            What::Released { next, expires } => {
                (recipient.held, recipient.due) = (None, next);
                if expires != 0 {
                    let message = change.key.message;
                    let all = self.recipients.iter_mut().filter(|(key, _)| key.message == message);
                    all.for_each(|(_, recipient)| recipient.own_expiry = expires);
                }
            }
            What::Begun { .. } | What::GivenBack | What::DelayTold | What::Told => {}
        }
    }

    pub fn assert_same(&self, queue: &Queue, seed: u64) {
        let mut keys = Vec::new();
        let mut from = None;
        loop {
            let (some, next, _) = queue.select(&Selection::default(), from);
            keys.extend(some);
            from = next;
            if from.is_none() {
                break;
            }
        }
        let first = keys.iter().zip(self.recipients.keys()).find(|(found, expected)| found != expected);
        assert_eq!((first, keys.len()), (None, self.recipients.len()), "seed {seed}");
        assert_eq!(queue.recipients(), keys.len() as u64, "seed {seed}");
        let owed = |message: Lsn| {
            let key = move |number| RecipientKey { message, number };
            queue.owed(message).into_iter().map(move |of| (key(of.number), (of.notice, of.status)))
        };
        let mut messages: Vec<Lsn> = self.owed.keys().map(|key| key.message).collect();
        messages.dedup();
        let owed: BTreeMap<_, _> = messages.into_iter().flat_map(owed).collect();
        assert_eq!((&owed, queue.owed_notices()), (&self.owed, owed.len() as u64), "seed {seed}");
        let mut of_tenants: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for (name, recipients) in queue.queues().into_iter().filter_map(|id| queue.queue(id)) {
            *of_tenants.entry(name.tenant).or_default() += u64::from(recipients);
        }
        for (tenant, recipients) in of_tenants {
            assert_eq!(queue.recipients_of_tenant(&tenant), recipients, "seed {seed}: {tenant}");
        }
        let diverted: Vec<_> = queue.diversions().map(|found| (found.scope.clone(), found.to.clone())).collect();
        let expected = self.diverted.iter().rev().map(|(scope, to)| (scope.clone(), to.clone()));
        assert_eq!(diverted, expected.collect::<Vec<_>>(), "seed {seed}");
        for (key, expected) in &self.recipients {
            let state = queue.show(*key).expect("it is open");
            let (name, _) = queue.queue(state.queue).expect("it has recipients");
            let expires = match (expected.held, expected.own_expiry) {
                (Some(_), _) => None,
                (None, 0) => Some(expected.received + 5 * 86_400),
                (None, own) => Some(own),
            };
            let suspended = self.suspended.iter().filter(|(scope, until)| {
                **until > queue.now()
                    && match scope {
                        MailScope::Tenant(tenant) => *tenant == name.tenant,
                        MailScope::Domain(domain) => *domain == name.domain,
                        MailScope::At(Label::Tenant(tenant), DomainOrSite::Domain(domain)) => {
                            *tenant == name.tenant && *domain == name.domain
                        }
                        _ => false,
                    }
            });
            let waits = match (expected.held, suspended.map(|(_, until)| *until).max()) {
                (Some(reason), _) => Waits::Held(reason),
                (None, Some(until)) => Waits::Suspended(until),
                (None, None) if expected.due <= queue.now() => Waits::Due,
                (None, None) => Waits::Until(expected.due),
            };
            let found = (&*name.domain, state.received, expires, state.attempts, state.status, state.waits);
            let expected = (&*expected.domain, expected.received, expires, expected.attempts, expected.status, waits);
            assert_eq!(found, expected, "seed {seed}: {key:?}");
            assert_eq!(state.expires, expires, "seed {seed}: {key:?}");
        }
    }
}
