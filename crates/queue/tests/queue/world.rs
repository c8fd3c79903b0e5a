//! Random operations on a queue whose log is in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use posthaste_queue::entry::{HoldReason, QueuedRecipient};
use posthaste_queue::{
    AttemptOutcome, Change, DueNotice, Imported, ImportedState, Origin, Prefer, Queue, QueueAction, QueueEntry,
    QueueSnapshot, Queued, ReadyId, RecipientKey, RouteSource, Schedules, Secs, Selection, Status, Take, Transaction,
    What,
};
use posthaste_random::Random;
use posthaste_shaping::{DomainOrSite, Label, MailScope};
use posthaste_spool::Lsn;

use crate::model::Model;
use crate::{SEED, START};

/// A queue with a log that is written some time after each decision, and cut by crashes.
pub struct World {
    pub random: Random,
    pub seed: u64,
    pub queue: Queue,
    /// Decided, not durable yet.
    appending: VecDeque<QueueEntry>,
    pub log: Vec<(Lsn, QueueEntry)>,
    snapshot: Option<(QueueSnapshot, Vec<u8>)>,
    restorable: Option<(Lsn, Vec<u8>)>,
    ready: Vec<ReadyId>,
    at_work: Vec<Transaction>,
    owing: Vec<Lsn>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut queue = Queue::new(Schedules::default(), SEED);
        queue.start(START);
        World {
            random: Random::new(seed),
            seed,
            queue,
            appending: VecDeque::new(),
            log: Vec::new(),
            snapshot: None,
            restorable: None,
            ready: Vec::new(),
            at_work: Vec::new(),
            owing: Vec::new(),
        }
    }

    pub fn step(&mut self) {
        match self.random.below(100) {
            0..15 => {
                let queued = self.message();
                let entry = if self.random.one_in(4) { self.imported(queued) } else { QueueEntry::Queued(queued) };
                self.appending.push_back(entry);
            }
            15..45 => self.publish(),
            45..55 => {
                let secs = [1, 60, 3600, 86_400][self.random.below(4) as usize];
                self.queue.tick(self.queue.now() + self.random.below(secs) as Secs);
                let notices = self.queue.take_notices();
                let changes = notices.into_iter().map(|notice| match notice {
                    DueNotice::Expired(key) => Change { key, what: What::Failed(Status::default()) },
                    DueNotice::Delayed(key) => Change { key, what: What::DelayTold },
                });
                let changes = changes.collect();
                self.record_owing(changes);
            }
            55..65 => self.take(),
            65..80 => self.finish(),
            80..86 => self.act(),
            86..88 => self.tell(),
            88..90 => self.suspend(),
            90..98 => self.write_snapshot(),
            _ => {
                let mut actions = self.queue.take_actions();
                actions.extend(self.queue.end_holds(5));
                self.record(actions);
            }
        }
    }

    pub fn message(&mut self) -> Queued {
        let count = if self.random.one_in(12) { 700 } else { 1 + self.random.below(5) };
        let mut number = 0;
        let recipients = (0..count).map(|_| {
            number += 1 + self.random.below(2) as u16;
            QueuedRecipient::plain(number, format!("a@Domain{}.example", self.random.below(6)))
        });
        let recipients = recipients.collect();
        let now = self.queue.now();
        Queued {
            not_before: if self.random.one_in(5) { now + self.random.below(90_000) as Secs } else { 0 },
            expires: if self.random.one_in(5) { now + self.random.below(900_000) as Secs } else { 0 },
            tenant: format!("t{}", self.random.below(3)).into(),
            pool: if self.random.one_in(4) { "p".into() } else { "".into() },
            recipients,
            ..Queued::plain(now, "", [""; 0])
        }
    }

    fn imported(&mut self, queued: Queued) -> QueueEntry {
        let at = self.queue.now();
        let states = queued.recipients.iter().map(|_| ImportedState {
            attempts: self.random.below(9) as u8,
            next: at + self.random.below(9000) as Secs,
            status: Status { code: 450, enhanced: self.random.below(5) as u16 },
            held: match self.random.below(10) {
                0 => Some(HoldReason::Policy),
                1 => Some(HoldReason::Until(at + self.random.below(90_000) as Secs)),
                _ => None,
            },
            ..ImportedState::default()
        });
        let states = states.collect();
        let origin = Origin::of(Lsn::new(self.random.next()), b"", b"");
        QueueEntry::Imported(Box::new(Imported { origin, at, queued, states }))
    }

    pub fn record(&mut self, changes: impl IntoIterator<Item = Change>) {
        let at = self.queue.now();
        let changes = changes.into_iter().collect::<Vec<_>>();
        if !changes.is_empty() {
            self.appending.push_back(QueueEntry::Changes { at, changes });
        }
    }

    /// Records changes, some of them with an owed notice.
    fn record_owing(&mut self, changes: Vec<Change>) {
        let owing = |change: Change| if self.random.one_in(2) { change.with_notice() } else { change };
        let changes: Vec<Change> = changes.into_iter().map(owing).collect();
        self.record(changes);
    }

    /// Makes some of the owed notices; others later.
    fn tell(&mut self) {
        self.owing.extend(self.queue.take_owing());
        let count = self.random.below(self.owing.len() as u64 + 1) as usize;
        let mut told = Vec::new();
        for message in self.owing.split_off(self.owing.len() - count) {
            let key = |number| RecipientKey { message, number };
            told.extend(
                self.queue.owed(message).into_iter().map(|of| Change { key: key(of.number), what: What::Told }),
            );
        }
        self.record(told);
    }

    pub fn next_lsn(&mut self) -> Lsn {
        let last = self.log.last().map_or(0, |(lsn, _)| lsn.get());
        Lsn::new(last + 1 + self.random.below(3))
    }

    pub fn publish(&mut self) {
        for _ in 0..self.random.below(6) {
            let Some(entry) = self.appending.pop_front() else { return };
            let lsn = self.next_lsn();
            self.queue.apply(lsn, &entry);
            self.log.push((lsn, entry));
        }
    }

    pub fn take(&mut self) {
        self.queue.take_diversions();
        while let Some(id) = self.queue.next_unrouted() {
            let domain = self.queue.queue(id).expect("it has recipients").0.domain;
            let site = if domain.contains(['0', '1', '2']) { "low" } else { "high" };
            let source = |name: &str| RouteSource { name: name.into(), weight: 1 };
            let until = self.queue.now() + 1 + self.random.below(7200) as Secs;
            let ready = self.queue.route(id, site, &[source("a"), source("b")], until);
            self.ready.extend(ready);
        }
        self.ready.sort_unstable();
        self.ready.dedup();
        for ready in self.ready.clone() {
            let take = Take {
                prefer: if self.random.one_in(2) { Prefer::First } else { Prefer::Later },
                recipients_max: 1 + self.random.below(50) as usize,
                across_domains: self.random.one_in(2),
            };
            let Some(one) = self.queue.next(ready, take) else { continue };
            assert!((1..=take.recipients_max).contains(&one.recipients.len()), "seed {}", self.seed);
            let taken = one.recipients.iter();
            let begun = taken.map(|taken| Change {
                key: RecipientKey { message: one.message, number: taken.number },
                what: What::Begun { crashes: taken.crashes },
            });
            let begun: Vec<Change> = begun.collect();
            self.record(begun);
            self.at_work.push(one);
        }
    }

    pub fn finish(&mut self) {
        if self.at_work.is_empty() {
            return;
        }
        let at = self.random.below(self.at_work.len() as u64) as usize;
        let one = self.at_work.swap_remove(at);
        let mut changes = Vec::new();
        for taken in one.recipients {
            let status = Status { code: 450, enhanced: 7 };
            let outcome = match self.random.below(10) {
                0..3 => AttemptOutcome::Delivered(status),
                3 => AttemptOutcome::Failed(status),
                4..8 => AttemptOutcome::Deferred(status),
                8 => AttemptOutcome::Suppressed,
                _ => AttemptOutcome::Untried,
            };
            changes.extend(self.queue.finish(RecipientKey { message: one.message, number: taken.number }, outcome));
        }
        self.record_owing(changes);
    }

    pub fn act(&mut self) {
        let last = self.log.last().map_or(0, |(lsn, _)| lsn.get());
        let from = RecipientKey { message: Lsn::new(self.random.below(last + 1)), number: 0 };
        let (keys, ..) = self.queue.select(&Selection::default(), Some(from));
        let count = if self.random.one_in(10) { 500 } else { 5 };
        let mut changes = Vec::new();
        for key in keys.into_iter().take(count) {
            let action = match self.random.below(8) {
                0 => QueueAction::Hold(None),
                1 => QueueAction::Hold(Some(self.queue.now() + self.random.below(90_000) as Secs)),
                2 | 3 => QueueAction::Release,
                4 => QueueAction::Flush,
                5 => QueueAction::Requeue,
                6 => QueueAction::Delete,
                _ => QueueAction::Bounce(Status::default()),
            };
            let change = self.queue.act(key, action);
            match change {
                // The append was refused.
                Some(change) if self.random.one_in(10) => self.queue.abandon(change.key),
                _ => changes.extend(change),
            }
        }
        self.record_owing(changes);
    }

    pub fn suspend(&mut self) {
        let tenant = Arc::<str>::from(format!("t{}", self.random.below(3)));
        let domain = Arc::<str>::from(format!("domain{}.example", self.random.below(6)));
        let scope = match self.random.below(3) {
            0 => MailScope::Tenant(tenant),
            1 => MailScope::Domain(domain),
            _ => MailScope::At(Label::Tenant(tenant), DomainOrSite::Domain(domain)),
        };
        let until = self.queue.now() + self.random.below(100_000) as Secs;
        let entry = match self.random.below(4) {
            0 => QueueEntry::Suspended { scope, until, reason: "why".into() },
            1 => QueueEntry::Resumed(scope),
            2 => {
                let to = format!("host{}.example", self.random.below(9)).into();
                QueueEntry::Diverted { scope, until: Secs::MAX, to, reason: "why".into() }
            }
            _ => QueueEntry::NotDiverted(scope),
        };
        self.appending.push_back(entry);
    }

    /// Writes one more part, with other operations in between.
    pub fn write_snapshot(&mut self) {
        let (mut snapshot, mut out) =
            self.snapshot.take().unwrap_or_else(|| (QueueSnapshot::begin(&self.queue), Vec::new()));
        if snapshot.write(&self.queue, &mut out) {
            self.snapshot = Some((snapshot, out))
        } else {
            self.restorable = Some((snapshot.position(), out))
        }
    }

    /// Loses all memory; a part of the appends in flight is durable.
    pub fn crash(&mut self) {
        for _ in 0..self.random.below(self.appending.len() as u64 + 1) {
            let entry = self.appending.pop_front().expect("so many");
            let lsn = self.next_lsn();
            self.log.push((lsn, entry));
        }
        self.appending.clear();
        let mut model = Model::default();
        self.log.iter().for_each(|(lsn, entry)| model.apply(*lsn, entry));
        let now = self.queue.now() + self.random.below(10_000) as Secs;
        let (position, mut queue) = match &self.restorable {
            Some((position, bytes)) => {
                (*position, Queue::restore(&bytes[..], Schedules::default(), SEED).expect("a snapshot"))
            }
            None => (Lsn::ZERO, Queue::new(Schedules::default(), SEED)),
        };
        for (lsn, entry) in self.log.iter().filter(|(lsn, _)| *lsn > position) {
            // After a crash only the bytes remain.
            queue.apply(*lsn, &QueueEntry::decode(&entry.encode()).expect("an entry"));
        }
        assert!(queue.recorded() <= now, "seed {}", self.seed);
        let held = queue.start(now);
        let entry = QueueEntry::Changes { at: now, changes: held };
        let lsn = self.next_lsn();
        queue.apply(lsn, &entry);
        model.apply(lsn, &entry);
        self.log.push((lsn, entry));
        model.assert_same(&queue, self.seed);
        self.queue = queue;
        (self.snapshot, self.ready, self.at_work) = (None, Vec::new(), Vec::new());
        self.owing.clear();
    }
}
