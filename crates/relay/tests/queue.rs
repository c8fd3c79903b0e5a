//! Laws of the queue over random operations: a crash anywhere and a replay give what a plain model gives, tenants take turns, and the schedule holds for years.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use posthaste_random::Random;
use posthaste_relay::queue::entry::{HoldReason, QueuedRecipient};
use posthaste_relay::queue::{
    Action, Change, Key, Notice, Outcome, Prefer, Queue, QueueEntry, Queued, ReadyId, Schedule, Schedules, Scope, Secs,
    Selection, Snapshot, Source, Status, Take, Transaction, Waits, What,
};
use posthaste_spool::Lsn;

const START: Secs = 1_000_000;
const SEED: u64 = 11;

/// What entries say, in the plainest way.
#[derive(Debug, Default)]
struct Model {
    recipients: BTreeMap<Key, Expected>,
    suspended: BTreeMap<Scope, Secs>,
    diverted: BTreeMap<Scope, Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Expected {
    received: Secs,
    domain: String,
    own_expiry: Secs,
    attempts: u8,
    status: Status,
    due: Secs,
    held: Option<HoldReason>,
}

impl Model {
    fn apply(&mut self, lsn: Lsn, entry: &QueueEntry) {
        match entry {
            QueueEntry::Queued(queued) => {
                for recipient in &queued.recipients {
                    let expected = Expected {
                        received: queued.received,
                        domain: recipient.address.split('@').nth(1).unwrap().to_lowercase(),
                        own_expiry: queued.expires,
                        attempts: 0,
                        status: Status::default(),
                        due: queued.received.max(queued.not_before),
                        held: None,
                    };
                    self.recipients.insert(Key { message: lsn, number: recipient.number }, expected);
                }
            }
            QueueEntry::Changes { changes, .. } => changes.iter().for_each(|change| self.change(change)),
            QueueEntry::Replies { .. } => {}
            QueueEntry::Suspended { scope, until, .. } => drop(self.suspended.insert(scope.clone(), *until)),
            QueueEntry::Resumed(scope) => drop(self.suspended.remove(scope)),
            QueueEntry::Diverted { scope, to, .. } => drop(self.diverted.insert(scope.clone(), to.clone())),
            QueueEntry::NotDiverted(scope) => drop(self.diverted.remove(scope)),
        }
    }

    fn change(&mut self, change: &Change) {
        let Some(recipient) = self.recipients.get_mut(&change.key) else { return };
        match change.what {
            What::Delivered(_) | What::Failed(_) | What::Suppressed | What::Deleted => {
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
            What::Begun { .. } | What::DelayTold => {}
        }
    }

    fn assert_same(&self, queue: &Queue, seed: u64) {
        let mut keys = Vec::new();
        let mut from = None;
        loop {
            let (some, next) = queue.select(&Selection::default(), from);
            keys.extend(some);
            from = next;
            if from.is_none() {
                break;
            }
        }
        let first = keys.iter().zip(self.recipients.keys()).find(|(found, expected)| found != expected);
        assert_eq!((first, keys.len()), (None, self.recipients.len()), "seed {seed}");
        assert_eq!(queue.recipients(), keys.len() as u64, "seed {seed}");
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
                        Scope::Tenant(tenant) => *tenant == name.tenant,
                        Scope::Domain(domain) => *domain == name.domain,
                        Scope::Campaign(_) | Scope::Site(_) => false,
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

/// A queue with a log that is written some time after each decision, and cut by crashes.
struct World {
    random: Random,
    seed: u64,
    queue: Queue,
    /// Decided, not durable.
    appending: VecDeque<QueueEntry>,
    log: Vec<(Lsn, QueueEntry)>,
    snapshot: Option<(Snapshot, Vec<u8>)>,
    restorable: Option<(Lsn, Vec<u8>)>,
    ready: Vec<ReadyId>,
    at_work: Vec<Transaction>,
}

impl World {
    fn new(seed: u64) -> Self {
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
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..15 => {
                let queued = self.message();
                self.appending.push_back(QueueEntry::Queued(queued));
            }
            15..45 => self.publish(),
            45..55 => {
                let secs = [1, 60, 3600, 86_400][self.random.below(4) as usize];
                self.queue.tick(self.queue.now() + self.random.below(secs) as Secs);
                let notices = self.queue.take_notices();
                self.record(notices.into_iter().map(|notice| match notice {
                    Notice::Expired(key) => Change { key, what: What::Failed(Status::default()) },
                    Notice::Delayed(key) => Change { key, what: What::DelayTold },
                }));
            }
            55..65 => self.take(),
            65..80 => self.finish(),
            80..88 => self.act(),
            88..90 => self.suspend(),
            90..98 => self.write_snapshot(),
            _ => {
                let actions = self.queue.take_actions();
                self.record(actions);
            }
        }
    }

    fn message(&mut self) -> Queued {
        let count = if self.random.one_in(12) { 700 } else { 1 + self.random.below(5) };
        let mut number = 0;
        let recipients = (0..count).map(|_| {
            number += 1 + self.random.below(2) as u16;
            let address = format!("a@Domain{}.example", self.random.below(6)).into();
            QueuedRecipient { number, address, orcpt: "".into(), notify: 0 }
        });
        let recipients = recipients.collect();
        let now = self.queue.now();
        Queued {
            received: now,
            not_before: if self.random.one_in(5) { now + self.random.below(90_000) as Secs } else { 0 },
            expires: if self.random.one_in(5) { now + self.random.below(900_000) as Secs } else { 0 },
            sender: "".into(),
            is_8bit: false,
            smtputf8: false,
            require_tls: false,
            ret: None,
            envid: "".into(),
            tenant: format!("t{}", self.random.below(3)).into(),
            campaign: "".into(),
            recipients,
        }
    }

    fn record(&mut self, changes: impl IntoIterator<Item = Change>) {
        let (at, changes) = (self.queue.now(), changes.into_iter().collect::<Vec<_>>());
        if !changes.is_empty() {
            self.appending.push_back(QueueEntry::Changes { at, changes });
        }
    }

    fn next_lsn(&mut self) -> Lsn {
        let last = self.log.last().map_or(0, |(lsn, _)| lsn.get());
        Lsn::new(last + 1 + self.random.below(3))
    }

    fn publish(&mut self) {
        for _ in 0..self.random.below(6) {
            let Some(entry) = self.appending.pop_front() else { return };
            let lsn = self.next_lsn();
            self.queue.apply(lsn, &entry);
            self.log.push((lsn, entry));
        }
    }

    fn take(&mut self) {
        while let Some(id) = self.queue.next_unrouted() {
            let domain = self.queue.queue(id).expect("it has recipients").0.domain;
            let site = if domain.contains(['0', '1', '2']) { "low" } else { "high" };
            let source = |name: &str| Source { name: name.into(), weight: 1 };
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
                key: Key { message: one.message, number: taken.number },
                what: What::Begun { crashes: taken.crashes },
            });
            let begun: Vec<Change> = begun.collect();
            self.record(begun);
            self.at_work.push(one);
        }
    }

    fn finish(&mut self) {
        if self.at_work.is_empty() {
            return;
        }
        let at = self.random.below(self.at_work.len() as u64) as usize;
        let one = self.at_work.swap_remove(at);
        let mut changes = Vec::new();
        for taken in one.recipients {
            let status = Status { code: 450, enhanced: 7 };
            let outcome = match self.random.below(10) {
                0..3 => Outcome::Delivered(status),
                3 => Outcome::Failed(status),
                4..8 => Outcome::Deferred(status),
                8 => Outcome::Suppressed,
                _ => Outcome::Untried,
            };
            changes.extend(self.queue.finish(Key { message: one.message, number: taken.number }, outcome));
        }
        self.record(changes);
    }

    fn act(&mut self) {
        let last = self.log.last().map_or(0, |(lsn, _)| lsn.get());
        let from = Key { message: Lsn::new(self.random.below(last + 1)), number: 0 };
        let (keys, _) = self.queue.select(&Selection::default(), Some(from));
        let count = if self.random.one_in(10) { 500 } else { 5 };
        let mut changes = Vec::new();
        for key in keys.into_iter().take(count) {
            let action = match self.random.below(8) {
                0 | 1 => Action::Hold,
                2 | 3 => Action::Release,
                4 => Action::Flush,
                5 => Action::Requeue,
                6 => Action::Delete,
                _ => Action::Bounce(Status::default()),
            };
            let change = self.queue.act(key, action);
            match change {
                // The append was refused.
                Some(change) if self.random.one_in(10) => self.queue.abandon(change.key),
                _ => changes.extend(change),
            }
        }
        self.record(changes);
    }

    fn suspend(&mut self) {
        let scope = match self.random.below(2) {
            0 => Scope::Tenant(format!("t{}", self.random.below(3)).into()),
            _ => Scope::Domain(format!("domain{}.example", self.random.below(6)).into()),
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

    /// One more part, with other operations in between.
    fn write_snapshot(&mut self) {
        let (mut snapshot, mut out) =
            self.snapshot.take().unwrap_or_else(|| (Snapshot::begin(&self.queue), Vec::new()));
        match snapshot.write(&self.queue, &mut out) {
            true => self.snapshot = Some((snapshot, out)),
            false => self.restorable = Some((snapshot.position(), out)),
        }
    }

    /// Everything in memory is lost; of what was being appended a part is durable.
    fn crash(&mut self) {
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
            // The bytes are what is there after a crash.
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
    }
}

#[test]
fn a_replay_after_a_crash_anywhere_gives_what_the_model_gives() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        for _ in 0..8 {
            for _ in 0..world.random.below(400) {
                world.step();
            }
            world.crash();
        }
    }
}

/// Every body is released once, and none before its recipients are settled.
#[test]
fn a_message_is_released_once_all_its_recipients_are_settled() {
    for seed in 100..120 {
        let mut world = World::new(seed);
        let mut released: HashMap<Lsn, usize> = HashMap::new();
        for _ in 0..1500 {
            world.step();
            for message in world.queue.take_released() {
                *released.entry(message).or_default() += 1;
            }
        }
        let mut model = Model::default();
        world.log.iter().for_each(|(lsn, entry)| model.apply(*lsn, entry));
        for (lsn, entry) in &world.log {
            if matches!(entry, QueueEntry::Queued(_)) {
                let is_open = model.recipients.keys().any(|key| key.message == *lsn);
                let times = released.get(lsn).copied().unwrap_or(0);
                assert_eq!(times, usize::from(!is_open), "seed {seed}: {lsn}");
            }
        }
        assert!(released.len() > 20, "seed {seed}: {}", released.len());
    }
}

#[test]
fn no_tenant_waits_longer_than_its_turn() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let mut world = World::new(seed);
        let tenants = 2 + random.below(6);
        let mut waiting: HashMap<Arc<str>, u64> = HashMap::new();
        for lsn in 1..400 {
            // The first tenant has most of the mail, to many domains.
            let tenant: Arc<str> =
                if random.one_in(3) { format!("t{}", random.below(tenants)) } else { "t0".to_owned() }.into();
            let address = format!("a@d{}.example", random.below(20)).into();
            let mut queued = world.message();
            (queued.tenant, queued.not_before) = (tenant.clone(), 0);
            queued.recipients = vec![QueuedRecipient { number: 0, address, orcpt: "".into(), notify: 0 }];
            world.queue.apply(Lsn::new(lsn), &QueueEntry::Queued(queued));
            *waiting.entry(tenant).or_default() += 1;
        }
        let mut ready = None;
        while let Some(id) = world.queue.next_unrouted() {
            let source = Source { name: "a".into(), weight: 1 };
            ready = world.queue.route(id, "mx", &[source], Secs::MAX).first().copied();
        }
        let take = Take { prefer: Prefer::First, recipients_max: 1, across_domains: true };
        let mut since: HashMap<Arc<str>, usize> = HashMap::new();
        while let Some(one) = world.queue.next(ready.expect("a ready queue"), take) {
            let tenant = world.queue.queue(one.recipients[0].queue).expect("a queue").0.tenant;
            let left = waiting.get_mut(&tenant).expect("it has mail");
            *left -= 1;
            waiting.retain(|_, left| *left > 0);
            since.remove(&tenant);
            for other in waiting.keys().filter(|other| **other != tenant) {
                let turns = since.entry(other.clone()).or_default();
                *turns += 1;
                assert!(*turns < tenants as usize, "seed {seed}: {other} has waited for {turns} turns");
            }
        }
        assert!(waiting.is_empty(), "seed {seed}: {waiting:?}");
    }
}

/// Two years: each attempt is at its time, each recipient ends in time.
#[test]
fn the_schedule_holds_for_years() {
    let schedule = Schedule::default();
    let mut world = World::new(5);
    let mut random = Random::new(5);
    let (mut lsn, mut next_at, mut attempts, mut expired) = (0, HashMap::<Key, (Secs, u8)>::new(), 0u64, 0);
    let end = START + 2 * 365 * 86_400;
    let mut received = HashMap::new();
    while world.queue.now() < end || world.queue.recipients() > 0 {
        let step = 1 + random.below(900) as Secs;
        world.queue.tick(world.queue.now() + step);
        let now = world.queue.now();
        if now < end && random.one_in(400) {
            lsn += 1;
            let mut queued = world.message();
            (queued.not_before, queued.expires) = (0, 0);
            queued.recipients.truncate(3);
            let numbers = queued.recipients.iter().map(|recipient| recipient.number);
            numbers.for_each(|number| {
                let key = Key { message: Lsn::new(lsn), number };
                next_at.insert(key, (now, 0));
                received.insert(key, now);
            });
            world.queue.apply(Lsn::new(lsn), &QueueEntry::Queued(queued));
        }
        let mut changes = Vec::new();
        while let Some(id) = world.queue.next_unrouted() {
            while let Some(one) = world.queue.take(id, 10) {
                for taken in one.recipients {
                    let key = Key { message: one.message, number: taken.number };
                    let (due, before) = next_at[&key];
                    assert!(now >= due && now - due <= step, "{key:?}: due at {due}, tried at {now}");
                    let change = world.queue.finish(key, Outcome::Deferred(Status::default())).expect("a change");
                    let What::Deferred { attempts: number, next, .. } = change.what else { panic!("{change:?}") };
                    assert_eq!((number, next), (before + 1, now + schedule.pause(number, key, SEED)));
                    next_at.insert(key, (next, number));
                    attempts += 1;
                    changes.push(change);
                }
            }
        }
        for notice in world.queue.take_notices() {
            let Notice::Expired(key) = notice else { continue };
            let age = now - received[&key];
            assert!((5 * 86_400..=5 * 86_400 + 60 + 2 * 900).contains(&age), "{key:?}: {age}");
            changes.push(Change { key, what: What::Failed(Status::default()) });
            expired += 1;
        }
        lsn += 1;
        world.queue.apply(Lsn::new(lsn), &QueueEntry::Changes { at: now, changes });
    }
    assert_eq!(expired, received.len());
    // Seven pauses grow to four hours; then there are about 26 a recipient of 4 to 4.8 hours each.
    let each = attempts as f64 / expired as f64;
    assert!(expired > 500 && (30.0..37.0).contains(&each), "{expired} recipients, {each} attempts each");
}
