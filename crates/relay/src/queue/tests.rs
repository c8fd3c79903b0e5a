use super::entry::{HoldReason, QueuedRecipient};
use super::*;

const START: Secs = 1_000_000;

fn status(code: u16) -> Status {
    Status { code, enhanced: 0 }
}

/// A queue and its log: each entry is applied as soon as it is written.
struct World {
    queue: Queue,
    lsn: u64,
    log: Vec<(Lsn, QueueEntry)>,
}

impl World {
    fn new() -> Self {
        let mut queue = Queue::new(Schedules::default(), 1);
        queue.start(START);
        World { queue, lsn: 0, log: Vec::new() }
    }

    fn log(&mut self, entry: QueueEntry) -> Lsn {
        self.lsn += 1;
        let lsn = Lsn::new(self.lsn);
        self.queue.apply(lsn, &entry);
        self.log.push((lsn, entry));
        lsn
    }

    fn change(&mut self, change: Change) {
        let at = self.queue.now();
        self.log(QueueEntry::Changes { at, changes: vec![change] });
    }

    fn queued(&mut self, tenant: &str, addresses: &[&str]) -> Lsn {
        let entry = message(self.queue.now(), tenant, addresses);
        self.log(QueueEntry::Queued(entry))
    }

    fn finish(&mut self, message: Lsn, number: u16, outcome: Outcome) {
        let change = self.queue.finish(Key { message, number }, outcome).expect("a change");
        self.change(change);
    }

    /// Routes every queue to the site of its domain's last label.
    fn route(&mut self) -> Vec<ReadyId> {
        let mut all = Vec::new();
        while let Some(id) = self.queue.next_unrouted() {
            let domain = self.queue.queue(id).expect("it has recipients").0.domain;
            let site = domain.rsplit('.').next().unwrap_or_default().to_owned();
            let source = Source { name: "a".into(), weight: 1 };
            all.extend(self.queue.route(id, &site, &[source], Secs::MAX));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    fn waits(&self, message: Lsn, number: u16) -> Option<Waits> {
        self.queue.show(Key { message, number }).map(|state| state.waits)
    }

    fn restarted(&self) -> Queue {
        let mut queue = Queue::new(Schedules::default(), 1);
        self.log.iter().for_each(|(lsn, entry)| queue.apply(*lsn, entry));
        queue
    }
}

fn message(received: Secs, tenant: &str, addresses: &[&str]) -> Queued {
    let recipient = |(number, address): (u16, &&str)| QueuedRecipient {
        number,
        address: (*address).into(),
        orcpt: "".into(),
        notify: 0,
    };
    Queued {
        received,
        not_before: 0,
        expires: 0,
        sender: "s@example.org".into(),
        forwarded: None,
        is_8bit: false,
        smtputf8: false,
        require_tls: false,
        ret: None,
        envid: "".into(),
        tenant: tenant.into(),
        campaign: "".into(),
        pool: "".into(),
        recipients: (0..).zip(addresses).map(recipient).collect(),
    }
}

const TAKE: Take = Take { prefer: Prefer::First, recipients_max: 100, across_domains: true };

#[test]
fn a_deferred_recipient_comes_again_and_a_settled_message_is_released() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@X.example", "b@y.example", "c@z.other"]);
    let ready = world.route();
    assert_eq!(ready.len(), 2);
    let one = world.queue.next(ready[0], TAKE).expect("one");
    assert_eq!(
        one.recipients.iter().map(|taken| taken.number).collect::<Vec<_>>(),
        [0, 1],
        "of two domains behind a site"
    );
    assert_eq!(world.queue.next(ready[0], TAKE), None, "it is at work");
    world.finish(lsn, 0, Outcome::Delivered(status(250)));
    world.finish(lsn, 1, Outcome::Deferred(status(450)));
    let Some(Waits::Until(next)) = world.waits(lsn, 1) else { panic!("{:?}", world.waits(lsn, 1)) };
    assert!((START + 300..=START + 360).contains(&next), "{next}");
    world.queue.tick(next - 1);
    assert_eq!(world.queue.next(ready[0], TAKE), None);
    world.queue.tick(next);
    let again = world.queue.next(ready[0], TAKE).expect("it is due");
    assert_eq!((again.recipients.len(), again.recipients[0].number, again.recipients[0].attempts), (1, 1, 1));
    world.finish(lsn, 1, Outcome::Failed(status(550)));
    assert_eq!(world.queue.take_released(), []);
    world.queue.next(ready[1], TAKE).expect("the other site");
    world.finish(lsn, 2, Outcome::Suppressed);
    assert_eq!((world.queue.take_released(), world.queue.recipients()), (vec![lsn], 0));
    assert_eq!(world.queue.queues(), []);
}

#[test]
fn limits_and_suspensions_count_no_attempt() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example"]);
    let ready = world.route()[0];
    for _ in 0..5 {
        world.queue.next(ready, TAKE).expect("it waits");
        assert_eq!(world.queue.finish(Key { message: lsn, number: 0 }, Outcome::Untried), None);
    }
    let scopes = [
        Scope::Tenant("t".into()),
        Scope::Domain("x.example".into()),
        Scope::Site("example".into()),
        Scope::Campaign("".into()),
        Scope::At(Label::Tenant("t".into()), Place::Site("example".into())),
        Scope::At(Label::Tenant("t".into()), Place::Domain("x.example".into())),
        Scope::At(Label::Campaign("".into()), Place::Site("example".into())),
    ];
    let others = [
        Scope::At(Label::Tenant("u".into()), Place::Site("example".into())),
        Scope::At(Label::Tenant("t".into()), Place::Site("other".into())),
        Scope::At(Label::Tenant("".into()), Place::Domain("x.example".into())),
        Scope::At(Label::Campaign("c".into()), Place::Domain("x.example".into())),
    ];
    for scope in others {
        world.log(QueueEntry::Suspended { scope, until: Secs::MAX, reason: "".into() });
    }
    for scope in scopes {
        let until = world.queue.now() + 100;
        world.log(QueueEntry::Suspended { scope: scope.clone(), until, reason: "test".into() });
        assert_eq!(
            (world.queue.next(ready, TAKE), world.waits(lsn, 0)),
            (None, Some(Waits::Suspended(until))),
            "{scope:?}"
        );
        world.queue.tick(until - 1);
        assert_eq!(world.queue.next(ready, TAKE), None, "{scope:?}");
        world.queue.tick(until);
        assert_eq!(world.queue.next_woken(), Some(ready), "{scope:?}");
        assert_eq!(world.queue.next(ready, TAKE).expect("its turn").recipients[0].attempts, 0, "{scope:?}");
        world.queue.finish(Key { message: lsn, number: 0 }, Outcome::Untried);
        while world.queue.next_woken().is_some() {}
        world.log(QueueEntry::Suspended { scope: scope.clone(), until: Secs::MAX, reason: "".into() });
        assert_eq!(world.queue.next(ready, TAKE), None);
        world.log(QueueEntry::Resumed(scope.clone()));
        world.queue.next(ready, TAKE).expect("resumed");
        world.queue.finish(Key { message: lsn, number: 0 }, Outcome::Untried);
        while world.queue.next_woken().is_some() {}
    }
}

#[test]
fn suspended_mail_expires_and_held_mail_does_not() {
    let mut world = World::new();
    let held = world.queued("t", &["a@x.example"]);
    let suspended = world.queued("t", &["a@y.example"]);
    let change = world.queue.act(Key { message: held, number: 0 }, Action::Hold).expect("a change");
    world.change(change);
    world.log(QueueEntry::Suspended { scope: Scope::Tenant("t".into()), until: Secs::MAX, reason: "".into() });
    let age = 5 * 86_400;
    world.queue.tick(START + 4 * 3600 + 60);
    let key = Key { message: suspended, number: 0 };
    assert_eq!(world.queue.take_notices(), [Notice::Delayed(key)]);
    world.queue.tick(START + 4 * 3600 + 200);
    assert_eq!(world.queue.take_notices(), [], "once");
    world.change(Change { key, what: What::DelayTold });
    world.queue.tick(START + age - 1);
    assert_eq!(world.queue.take_notices(), []);
    world.queue.tick(START + age + 60);
    assert_eq!(world.queue.take_notices(), [Notice::Expired(key)]);
    world.change(Change { key, what: What::Failed(status(0)) });
    world.queue.tick(START + 100 * age);
    assert_eq!((world.queue.take_notices(), world.waits(held, 0)), (vec![], Some(Waits::Held(HoldReason::Operator))));
    let change = world.queue.act(Key { message: held, number: 0 }, Action::Release).expect("a change");
    world.change(change);
    world.queue.tick(START + 100 * age + 600);
    assert!(world.queue.take_notices().iter().all(|notice| matches!(notice, Notice::Delayed(_))), "a whole age more");
}

#[test]
fn an_action_on_a_recipient_in_flight_applies_after_the_reply() {
    for outcome in [Outcome::Deferred(status(450)), Outcome::Untried, Outcome::Delivered(status(250))] {
        let mut world = World::new();
        let lsn = world.queued("t", &["a@x.example"]);
        let ready = world.route()[0];
        world.queue.next(ready, TAKE).expect("one");
        let key = Key { message: lsn, number: 0 };
        assert_eq!(world.queue.act(key, Action::Delete), None);
        assert_eq!((world.queue.take_actions(), world.waits(lsn, 0)), (vec![], Some(Waits::Busy)));
        if let Some(change) = world.queue.finish(key, outcome) {
            world.change(change);
        }
        let expected = match outcome {
            Outcome::Delivered(_) => vec![],
            _ => vec![Change { key, what: What::Deleted }],
        };
        assert_eq!(
            (world.queue.take_actions(), world.queue.next(ready, TAKE)),
            (expected.clone(), None),
            "{outcome:?}"
        );
        expected.into_iter().for_each(|change| world.change(change));
        assert_eq!(world.queue.take_released(), [lsn]);
    }
}

#[test]
fn a_message_at_work_in_three_crashes_is_held() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example"]);
    for crash in 0..3 {
        let ready = world.route()[0];
        let taken = world.queue.next(ready, TAKE).expect("one").recipients[0];
        assert_eq!(taken.crashes, crash);
        let begun = What::Begun { crashes: taken.crashes };
        world.change(Change { key: Key { message: lsn, number: 0 }, what: begun });
        // A second start without an attempt in between counts nothing.
        for _ in 0..2 {
            world.queue = world.restarted();
            let held = world.queue.start(START);
            assert_eq!(held.len(), usize::from(crash == 2));
            held.into_iter().for_each(|change| {
                world.queue.apply(Lsn::new(world.lsn), &QueueEntry::Changes { at: START, changes: vec![change] })
            });
        }
    }
    assert_eq!(world.waits(lsn, 0), Some(Waits::Held(HoldReason::Quarantine)));
}

#[test]
fn a_message_keeps_its_source_and_sources_get_their_weights() {
    let mut world = World::new();
    let messages: Vec<Lsn> = (0..3000).map(|_| world.queued("t", &["a@x.example"])).collect();
    let id = world.queue.next_unrouted().expect("a queue");
    let sources = [("one", 1), ("two", 2)].map(|(name, weight)| Source { name: name.into(), weight });
    let ready = world.queue.route(id, "mx", &sources, Secs::MAX);
    let drain = |world: &mut World, ready| {
        let one = |world: &mut World| world.queue.next(ready, TAKE).map(|one| one.message);
        let mut all: Vec<Lsn> = std::iter::from_fn(|| one(world)).collect();
        all.sort_unstable();
        all
    };
    let (one, two) = (drain(&mut world, ready[0]), drain(&mut world, ready[1]));
    assert_eq!(one.len() + two.len(), messages.len());
    assert!((850..1150).contains(&one.len()), "{}", one.len());
    for message in messages {
        world.finish(message, 0, Outcome::Deferred(status(450)));
    }
    world.queue.tick(START + 400);
    assert_eq!((drain(&mut world, ready[0]), drain(&mut world, ready[1])), (one, two));
}

/// How many of so many messages each source gets, and which.
fn shared_out(count: usize, weights: &[(&str, u32)]) -> Vec<Vec<Lsn>> {
    let mut world = World::new();
    for _ in 0..count {
        world.queued("t", &["a@x.example"]);
    }
    let id = world.queue.next_unrouted().expect("a queue");
    let sources: Vec<Source> =
        weights.iter().map(|(name, weight)| Source { name: (*name).into(), weight: *weight }).collect();
    let ready = world.queue.route(id, "mx", &sources, Secs::MAX);
    let drain = |ready| std::iter::from_fn(|| world.queue.next(ready, TAKE).map(|one| one.message)).collect();
    ready.into_iter().map(drain).collect()
}

#[test]
fn weights_are_exact_and_the_end_of_a_source_moves_its_messages_alone() {
    let all = shared_out(60_000, &[("a", 1), ("b", 2), ("c", 3)]);
    for (messages, part) in all.iter().zip([10_000.0, 20_000.0, 30_000.0]) {
        // Five standard deviations.
        let allowed = 5.0 * f64::sqrt(part * (1.0 - part / 60_000.0));
        assert!((messages.len() as f64 - part).abs() < allowed, "{} of {part}", messages.len());
    }
    let without = shared_out(60_000, &[("a", 1), ("c", 3)]);
    for (with, without) in [(&all[0], &without[0]), (&all[2], &without[1])] {
        let kept = without.iter().collect::<std::collections::HashSet<_>>();
        assert!(with.iter().all(|message| kept.contains(message)), "a message has changed its source without need");
    }
    let moved = (without[0].len() - all[0].len()) as f64 / all[1].len() as f64;
    assert!((moved - 0.25).abs() < 0.02, "the others take it over by their weights: {moved}");
}

#[test]
fn the_nearest_diversion_comes_first_and_ends_in_time() {
    let mut world = World::new();
    let scopes = [Scope::Tenant("t".into()), Scope::Domain("x.example".into()), Scope::Campaign("c".into())];
    for (scope, secs) in scopes.iter().zip([300, 100, 200]) {
        let (scope, until) = (scope.clone(), START + secs);
        world.log(QueueEntry::Diverted { scope, until, to: format!("h{secs}").into(), reason: "".into() });
    }
    assert!(world.queue.have_diversions_changed());
    world.queue.take_diversions();
    let to = |world: &World| world.queue.diversions().map(|diversion| diversion.to.to_string()).collect::<Vec<_>>();
    assert_eq!(to(&world), ["h100", "h200", "h300"]);
    let name = |tenant: &str, domain: &str| QueueName {
        tenant: tenant.into(),
        campaign: "".into(),
        pool: "".into(),
        domain: domain.into(),
    };
    let fits =
        |name: QueueName| world.queue.diversions().find(|diversion| diversion.is_for(&name)).map(|found| &*found.to);
    assert_eq!(fits(name("t", "x.example")), Some("h100"));
    assert_eq!((fits(name("t", "y.example")), fits(name("u", "y.example"))), (Some("h300"), None));
    world.queue.tick(START + 99);
    assert!(!world.queue.have_diversions_changed());
    world.queue.tick(START + 100);
    assert!(world.queue.have_diversions_changed());
    world.queue.take_diversions();
    assert_eq!(to(&world), ["h200", "h300"]);
    world.log(QueueEntry::NotDiverted(scopes[2].clone()));
    world.log(QueueEntry::NotDiverted(scopes[2].clone()));
    assert!(world.queue.have_diversions_changed());
    assert_eq!((to(&world), world.restarted().diversions().count()), (vec!["h300".to_owned()], 2));
}

#[test]
fn all_routes_can_end_before_their_time() {
    let mut world = World::new();
    let (one, two) = (world.queued("t", &["a@x.example"]), world.queued("t", &["a@y.example"]));
    let ready = world.route();
    world.queue.reroute_all();
    assert_eq!(world.queue.next(ready[0], TAKE), None, "not by the old route");
    let place = |world: &World, message| world.queue.route_of(Key { message, number: 0 });
    assert_eq!(place(&world, one), Some(("a".into(), "example".into())), "until it has another");
    let again = world.route();
    assert_eq!(again, ready);
    let taken = [world.queue.next(again[0], TAKE), world.queue.next(again[0], TAKE)];
    let mut taken = taken.map(|one| one.expect("one").message);
    taken.sort_unstable();
    assert_eq!(taken, [one, two]);
    // What becomes due while a route is too old asks for another, whether the site takes anything or not.
    world.queue.reroute_site("elsewhere");
    assert_eq!(world.queue.next_unrouted(), None);
    world.queue.reroute_site("example");
    assert_eq!(world.queue.next_unrouted(), None, "nothing is due");
    world.finish(one, 0, Outcome::Deferred(status(450)));
    world.queue.tick(START + 400);
    assert!(world.queue.next_unrouted().is_some());
}

#[test]
fn nothing_leaves_by_a_route_that_is_older_than_a_diversion() {
    let mut world = World::new();
    world.queued("t", &["a@x.example"]);
    let ready = world.route()[0];
    let late = world.queue.queues()[0];
    let scope = Scope::Domain("x.example".into());
    world.log(QueueEntry::Diverted { scope: scope.clone(), until: Secs::MAX, to: "h".into(), reason: "".into() });
    assert_eq!(world.queue.next(ready, TAKE), None, "the route that it has");
    let source = Source { name: "a".into(), weight: 1 };
    assert_eq!(world.queue.route(late, "example", std::slice::from_ref(&source), Secs::MAX), [], "one under way");
    assert_eq!(world.queue.next_unrouted(), None, "no new one");
    world.queue.take_diversions();
    let ready = world.route()[0];
    assert!(world.queue.next(ready, TAKE).is_some());
    world.queued("t", &["b@x.example"]);
    world.log(QueueEntry::NotDiverted(scope));
    assert_eq!((world.queue.next(ready, TAKE), world.queue.next_unrouted()), (None, None));
}

#[test]
fn first_and_later_attempts_are_taken_as_preferred() {
    let mut world = World::new();
    let old = world.queued("t", &["a@x.example"]);
    let ready = world.route()[0];
    world.queue.next(ready, TAKE).expect("one");
    world.finish(old, 0, Outcome::Deferred(status(450)));
    world.queue.tick(START + 400);
    let new = world.queued("t", &["a@x.example"]);
    let later = Take { prefer: Prefer::Later, ..TAKE };
    for (take, first, second) in [(TAKE, new, old), (later, old, new)] {
        let taken = [world.queue.next(ready, take), world.queue.next(ready, take)].map(|one| one.expect("one").message);
        assert_eq!(taken, [first, second]);
        for message in taken {
            assert_eq!(world.queue.finish(Key { message, number: 0 }, Outcome::Untried), None);
        }
    }
}

#[test]
fn a_ready_queue_goes_with_the_last_route_to_it() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example"]);
    let id = world.queue.next_unrouted().expect("a queue");
    let source = Source { name: "a".into(), weight: 1 };
    let old = world.queue.route(id, "old", std::slice::from_ref(&source), START + 10)[0];
    world.queue.tick(START + 10);
    assert_eq!((world.queue.next(old, TAKE), world.queue.next_unrouted()), (None, Some(id)), "the route is too old");
    let new = world.queue.route(id, "new", &[source], Secs::MAX)[0];
    assert_eq!((world.queue.ready(old), world.queue.next(old, TAKE)), (None, None));
    assert_eq!(world.queue.ready(new), Some(("a".into(), "new".into())));
    assert_eq!(world.queue.next_woken(), Some(new));
    assert_eq!(world.queue.next(new, TAKE).expect("one").message, lsn);
    world.finish(lsn, 0, Outcome::Delivered(status(250)));
    assert_eq!(world.queue.ready(new), None, "nothing is left");
}

/// A site that is not served holds up no other, however much waits for it.
#[test]
fn what_waits_for_one_site_is_in_the_way_of_no_other() {
    let mut world = World::new();
    for _ in 0..5000 {
        world.queued("t", &["a@stuck.slow"]);
    }
    let ready = world.route();
    assert_eq!(ready.len(), 1);
    let lsn = world.queued("t", &["a@x.quick"]);
    let other = world.route()[0];
    assert_eq!(world.queue.next(other, TAKE).expect("its turn").message, lsn);
}

/// Most of a large queue is removed; what is left keeps its lists, and is found.
#[test]
fn a_sparse_table_is_compacted() {
    let mut world = World::new();
    let messages: Vec<Lsn> = (0..20_000).map(|_| world.queued("t", &["a@x.example", "b@y.example"])).collect();
    let ready = world.route()[0];
    let pages = world.queue.table.pages();
    for (at, message) in messages.iter().enumerate().filter(|(at, _)| at % 100 != 7) {
        for number in 0..2 {
            let key = Key { message: *message, number };
            let change = world.queue.act(key, Action::Delete).unwrap_or_else(|| panic!("message {at}"));
            world.change(change);
        }
    }
    assert!(world.queue.table.pages() * 10 < pages, "{} of {pages} pages", world.queue.table.pages());
    let left: Vec<Lsn> = messages.iter().enumerate().filter(|(at, _)| at % 100 == 7).map(|(_, lsn)| *lsn).collect();
    let taken: Vec<Lsn> = std::iter::from_fn(|| world.queue.next(ready, TAKE)).map(|one| one.message).collect();
    assert_eq!(taken, left);
    assert_eq!(world.queue.take_released().len(), messages.len() - left.len());
}

#[test]
fn a_damaged_snapshot_is_an_error() {
    let mut world = World::new();
    for at in 0..30 {
        world.queued("t", &["a@x.example", "b@y.example"][..1 + at % 2]);
    }
    world.log(QueueEntry::Suspended { scope: Scope::Tenant("t".into()), until: Secs::MAX, reason: "why".into() });
    let scope = Scope::Domain("x.example".into());
    world.log(QueueEntry::Diverted { scope: scope.clone(), until: Secs::MAX, to: "a".into(), reason: "why".into() });
    let (message_rate, reason) = ("1/minute".into(), "why".into());
    world.log(QueueEntry::Slowed { scope, until: Secs::MAX, message_rate, connections: 2, reason });
    let (mut snapshot, mut whole) = (Snapshot::begin(&world.queue), Vec::new());
    while snapshot.write(&world.queue, &mut whole) {}
    let restore = |bytes: &[u8]| Queue::restore(bytes, Schedules::default(), 1);
    assert_eq!(restore(&whole).expect("a snapshot").recipients(), world.queue.recipients());
    let restored = restore(&whole).expect("a snapshot");
    assert_eq!(restored.suspensions().count(), 1);
    assert!(restored.diversions().eq(world.queue.diversions()) && restored.diversions().count() == 1);
    assert!(restored.slowed().eq(world.queue.slowed()) && restored.slowed().count() == 1);
    for len in 0..whole.len() {
        match restore(&whole[..len]) {
            Err(RestoreError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
            other => panic!("length {len}: {other:?}"),
        }
    }
    for seed in 0..20_000 {
        let mut random = posthaste_random::Random::new(seed);
        let mut bytes = whole.clone();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = random.next() as u8;
        // What is not noticed gives a queue that works: the spool's checksum is what finds damage.
        if let Ok(mut queue) = restore(&bytes) {
            queue.start(START);
        }
    }
}

#[test]
fn recipients_with_some_attempts_wait_for_another_site() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example", "b@x.example"]);
    let id = world.queue.next_unrouted().expect("it has no route");
    let source = |name: &str| [Source { name: name.into(), weight: 1 }];
    let (one, two) = (source("one"), source("two"));
    let late = |site| LateHop { after: 1, hop: Hop { site, sources: &two } };
    let route = |world: &mut World, late: Option<LateHop<'_>>| {
        world.queue.route_with(id, Hop { site: "usual", sources: &one }, late, Secs::MAX - 1)
    };
    let ready = route(&mut world, Some(late("late")));
    assert_eq!(world.queue.sites(id), ["usual".into(), "late".into()] as [Arc<str>; 2]);
    let taken = world.queue.next(ready[0], Take { recipients_max: 1, ..TAKE }).expect("a first attempt");
    let key = Key { message: lsn, number: taken.recipients[0].number };
    let change = world.queue.finish(key, Outcome::Deferred(status(450))).expect("a change");
    world.change(change);
    world.queue.tick(world.queue.now() + 4000);
    let site = |world: &World, number| world.queue.route_of(Key { message: lsn, number }).map(|(_, site)| site);
    assert_eq!((site(&world, 0), site(&world, 1)), (Some("late".into()), Some("usual".into())));
    // A suspension of the usual site is none of the other.
    let scope = Scope::Site("usual".into());
    world.log(QueueEntry::Suspended { scope: scope.clone(), until: Secs::MAX, reason: "".into() });
    assert_eq!((world.waits(lsn, 0), world.waits(lsn, 1)), (Some(Waits::Due), Some(Waits::Suspended(Secs::MAX))));
    assert_eq!(world.queue.next(ready[0], TAKE), None);
    let late_one = world.queue.next(ready[1], TAKE).expect("its turn");
    assert_eq!((late_one.recipients.len(), late_one.recipients[0].attempts), (1, 1), "the other has another site");
    world.queue.finish(Key { message: lsn, number: 0 }, Outcome::Untried);
    world.log(QueueEntry::Resumed(scope));
    // Another route for the late ones moves what waits.
    let other = route(&mut world, Some(late("elsewhere")));
    assert!(world.queue.next(ready[1], TAKE).is_none() && world.queue.next(other[1], TAKE).is_some());
    world.queue.finish(Key { message: lsn, number: 0 }, Outcome::Untried);
    let alone = route(&mut world, None);
    assert_eq!((alone.len(), world.queue.sites(id).len()), (1, 1));
    assert_eq!(world.queue.next(alone[0], TAKE).expect("both").recipients.len(), 2);
}
