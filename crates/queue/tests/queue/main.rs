//! Laws of the queue over random operations. A crash anywhere and a replay give the result of a plain model, tenants
//! take turns, and the schedule holds for years.

mod crash;
mod fairness;
mod model;
mod world;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use model::Model;
use posthaste_queue::entry::QueuedRecipient;
use posthaste_queue::{
    AttemptOutcome, Change, DueNotice, Prefer, Queue, QueueEntry, QueueId, QueueTally, RecipientKey, RetrySchedule,
    RouteSource, Secs, Selection, Status, SuspendedPart, Take, Waits, What,
};
use posthaste_random::Random;
use posthaste_spool::Lsn;
use world::World;

const START: Secs = 1_000_000;
const SEED: u64 = 11;

/// Runs half of the seeds on a thread of their own.
fn each(seeds: Range<u64>, check: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| seeds.clone().step_by(2).for_each(&check));
        seeds.clone().skip(1).step_by(2).for_each(&check);
    });
}

#[test]
fn a_replay_after_a_crash_anywhere_gives_what_the_model_gives() {
    each(0..20, |seed| {
        let mut world = World::new(seed);
        for _ in 0..8 {
            for _ in 0..world.random.below(400) {
                world.step();
            }
            world.crash();
        }
    });
}

/// Holds after any operation, a restart included.
#[test]
fn each_queue_counts_what_its_recipients_are() {
    each(200..220, |seed| {
        let mut world = World::new(seed);
        for step in 0..1500 {
            world.step();
            if step % 300 == 299 {
                world.crash();
            }
            if step % 7 == 0 {
                assert_counted(&world.queue, seed);
            }
        }
    });
}

fn assert_counted(queue: &Queue, seed: u64) {
    let mut expected: HashMap<QueueId, (QueueTally, u64)> = HashMap::new();
    let mut from = None;
    let all = Selection::default();
    loop {
        let (keys, next, _) = queue.select(&all, from);
        for state in keys.into_iter().filter_map(|key| queue.show(key)) {
            let (tally, suspended) = expected.entry(state.queue).or_default();
            let is = |what: bool| u64::from(what);
            tally.recipients += 1;
            tally.deferred += is(state.attempts > 0);
            tally.held += is(matches!(state.waits, Waits::Held(_)));
            tally.held_deferred += is(matches!(state.waits, Waits::Held(_)) && state.attempts > 0);
            tally.under_way += is(state.waits == Waits::Busy);
            tally.due += is(state.waits == Waits::Due);
            *suspended += is(matches!(state.waits, Waits::Suspended(_)));
            let oldest = queue.tally(state.queue).expect("a queue").oldest;
            assert!(oldest <= state.received, "seed {seed}: {oldest} is a bound from below");
        }
        let Some(next) = next else { break };
        from = Some(next);
    }
    let ids = queue.queues();
    assert_eq!(ids.len(), expected.len(), "seed {seed}");
    for id in ids {
        let (of_recipients, suspended) = expected[&id];
        let counted = QueueTally { oldest: 0, ..queue.tally(id).expect("a queue") };
        let waiting = counted.recipients - counted.held - counted.under_way;
        match queue.suspended_part(id) {
            SuspendedPart::None => assert_eq!((suspended, counted), (0, of_recipients), "seed {seed}"),
            // Suspended ones whose time has come are counted as due.
            part => {
                assert_eq!(QueueTally { due: 0, ..counted }, QueueTally { due: 0, ..of_recipients }, "seed {seed}");
                assert!(part == SuspendedPart::Some || suspended == waiting, "seed {seed}: {suspended} of {waiting}");
            }
        }
    }
}

/// Every body is released once, and none before its recipients are settled and its notices made.
#[test]
fn a_message_is_released_once_all_its_recipients_are_settled() {
    each(100..120, |seed| {
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
                let mut needed = model.recipients.keys().chain(model.owed.keys());
                let is_open = needed.any(|key| key.message == *lsn);
                let times = released.get(lsn).copied().unwrap_or(0);
                assert_eq!(times, usize::from(!is_open), "seed {seed}: {lsn}");
            }
        }
        assert!(released.len() > 20, "seed {seed}: {}", released.len());
    });
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
            let source = RouteSource { name: "a".into(), weight: 1 };
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

/// Over three days: the delay of each recipient is noticed once, four hours after its reception, even if its record is
/// slow.
#[test]
fn a_delay_is_noticed_once_after_four_hours() {
    let mut world = World::new(7);
    let mut random = Random::new(7);
    let mut lsn = 0;
    let mut received = HashMap::<RecipientKey, Secs>::new();
    let mut noticed = HashMap::<RecipientKey, Secs>::new();
    let end = START + 3 * 86_400;
    while world.queue.now() < end {
        let step = 1 + random.below(30) as Secs;
        world.queue.tick(world.queue.now() + step);
        let now = world.queue.now();
        if now < end - 86_400 && random.one_in(200) {
            lsn += 1;
            let mut queued = world.message();
            (queued.not_before, queued.expires) = (0, 0);
            queued.recipients.truncate(3);
            for recipient in &queued.recipients {
                received.insert(RecipientKey { message: Lsn::new(lsn), number: recipient.number }, now);
            }
            world.queue.apply(Lsn::new(lsn), &QueueEntry::Queued(queued));
        }
        let mut changes = Vec::new();
        while let Some(id) = world.queue.next_unrouted() {
            while let Some(one) = world.queue.take(id, 10) {
                let keys =
                    one.recipients.iter().map(|taken| RecipientKey { message: one.message, number: taken.number });
                let outcome = AttemptOutcome::Deferred(Status::default());
                changes.extend(keys.filter_map(|key| world.queue.finish(key, outcome)));
            }
        }
        for notice in world.queue.take_notices() {
            match notice {
                DueNotice::Expired(key) => changes.push(Change { key, what: What::Failed(Status::default()) }),
                DueNotice::Delayed(key) => {
                    assert_eq!(noticed.insert(key, now), None, "{key:?} for the second time");
                    let age = now - received[&key];
                    assert!((4 * 3600..=4 * 3600 + 120).contains(&age), "{key:?}: {age}");
                    // Its record is slow.
                    if !random.one_in(4) {
                        changes.push(Change { key, what: What::DelayTold });
                    }
                }
            }
        }
        lsn += 1;
        world.queue.apply(Lsn::new(lsn), &QueueEntry::Changes { at: now, changes });
    }
    assert!(received.len() > 100 && noticed.len() == received.len(), "{} of {}", noticed.len(), received.len());
}

/// Over two years: each attempt is at its time, each recipient ends in time.
#[test]
fn the_schedule_holds_for_years() {
    let schedule = RetrySchedule::default();
    let mut world = World::new(5);
    let mut random = Random::new(5);
    let mut lsn = 0;
    let mut next_at = HashMap::<RecipientKey, (Secs, u8)>::new();
    let mut attempts = 0u64;
    let mut expired = 0;
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
                let key = RecipientKey { message: Lsn::new(lsn), number };
                next_at.insert(key, (now, 0));
                received.insert(key, now);
            });
            world.queue.apply(Lsn::new(lsn), &QueueEntry::Queued(queued));
        }
        let mut changes = Vec::new();
        while let Some(id) = world.queue.next_unrouted() {
            while let Some(one) = world.queue.take(id, 10) {
                for taken in one.recipients {
                    let key = RecipientKey { message: one.message, number: taken.number };
                    let (due, before) = next_at[&key];
                    assert!(now >= due && now - due <= step, "{key:?}: due at {due}, tried at {now}");
                    let change =
                        world.queue.finish(key, AttemptOutcome::Deferred(Status::default())).expect("a change");
                    let What::Deferred { attempts: number, next, .. } = change.what else { panic!("{change:?}") };
                    assert_eq!((number, next), (before + 1, now + schedule.pause(number, key, SEED)));
                    next_at.insert(key, (next, number));
                    attempts += 1;
                    changes.push(change);
                }
            }
        }
        for notice in world.queue.take_notices() {
            let DueNotice::Expired(key) = notice else { continue };
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
