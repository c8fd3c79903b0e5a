//! Sites and sources that waiting mail leaves by.

use super::*;

#[test]
fn a_message_keeps_its_source_and_sources_get_their_weights() {
    let mut world = World::new();
    let messages: Vec<Lsn> = (0..3000).map(|_| world.queued("t", &["a@x.example"])).collect();
    let id = world.queue.next_unrouted().expect("a queue");
    let sources = [("one", 1), ("two", 2)].map(|(name, weight)| RouteSource { name: name.into(), weight });
    let ready = world.queue.route(id, "mx", &sources, Secs::MAX);
    let drain = |world: &mut World, ready| {
        let one = |world: &mut World| world.queue.next(ready, TAKE).map(|one| one.message);
        let mut all: Vec<Lsn> = std::iter::from_fn(|| one(world)).collect();
        all.sort_unstable();
        all
    };
    let one = drain(&mut world, ready[0]);
    let two = drain(&mut world, ready[1]);
    assert_eq!(one.len() + two.len(), messages.len());
    assert!((850..1150).contains(&one.len()), "{}", one.len());
    for message in messages {
        world.finish(message, 0, AttemptOutcome::Deferred(status(450)));
    }
    world.queue.tick(START + 400);
    assert_eq!((drain(&mut world, ready[0]), drain(&mut world, ready[1])), (one, two));
}

/// Messages of each source, out of `count`.
fn shared_out(count: usize, weights: &[(&str, u32)]) -> Vec<Vec<Lsn>> {
    let mut world = World::new();
    for _ in 0..count {
        world.queued("t", &["a@x.example"]);
    }
    let id = world.queue.next_unrouted().expect("a queue");
    let sources: Vec<RouteSource> =
        weights.iter().map(|(name, weight)| RouteSource { name: (*name).into(), weight: *weight }).collect();
    let ready = world.queue.route(id, "mx", &sources, Secs::MAX);
    let drain = |ready| std::iter::from_fn(|| world.queue.next(ready, TAKE).map(|one| one.message)).collect();
    ready.into_iter().map(drain).collect()
}

#[test]
fn weights_are_exact_and_a_lost_source_moves_its_mail_alone() {
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
    let scopes =
        [MailScope::Tenant("t".into()), MailScope::Domain("x.example".into()), MailScope::Campaign("c".into())];
    for (scope, secs) in scopes.iter().zip([300, 100, 200]) {
        let scope = scope.clone();
        let until = START + secs;
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
    let one = world.queued("t", &["a@x.example"]);
    let two = world.queued("t", &["a@y.example"]);
    let ready = world.route();
    world.queue.reroute_all();
    assert_eq!(world.queue.next(ready[0], TAKE), None, "not by the old route");
    let place = |world: &World, message| world.queue.route_of(RecipientKey { message, number: 0 });
    assert_eq!(place(&world, one), Some(("a".into(), "example".into())), "until it has another");
    let again = world.route();
    assert_eq!(again, ready);
    let taken = [world.queue.next(again[0], TAKE), world.queue.next(again[0], TAKE)];
    let mut taken = taken.map(|one| one.expect("one").message);
    taken.sort_unstable();
    assert_eq!(taken, [one, two]);
    // Mail that becomes due under an expired route asks for another, whether the site takes anything or not.
    world.queue.reroute_site("elsewhere");
    assert_eq!(world.queue.next_unrouted(), None);
    world.queue.reroute_site("example");
    assert_eq!(world.queue.next_unrouted(), None, "nothing is due");
    world.finish(one, 0, AttemptOutcome::Deferred(status(450)));
    world.queue.tick(START + 400);
    assert!(world.queue.next_unrouted().is_some());
}

#[test]
fn nothing_leaves_by_a_route_that_is_older_than_a_diversion() {
    let mut world = World::new();
    world.queued("t", &["a@x.example"]);
    let ready = world.route()[0];
    let late = world.queue.queues()[0];
    let scope = MailScope::Domain("x.example".into());
    world.log(QueueEntry::Diverted { scope: scope.clone(), until: Secs::MAX, to: "h".into(), reason: "".into() });
    assert_eq!(world.queue.next(ready, TAKE), None, "the route that it has");
    let source = RouteSource { name: "a".into(), weight: 1 };
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
fn a_ready_queue_goes_with_the_last_route_to_it() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example"]);
    let id = world.queue.next_unrouted().expect("a queue");
    let source = RouteSource { name: "a".into(), weight: 1 };
    let old = world.queue.route(id, "old", std::slice::from_ref(&source), START + 10)[0];
    world.queue.tick(START + 10);
    assert_eq!((world.queue.next(old, TAKE), world.queue.next_unrouted()), (None, Some(id)), "the route is too old");
    let new = world.queue.route(id, "new", &[source], Secs::MAX)[0];
    assert_eq!((world.queue.ready(old), world.queue.next(old, TAKE)), (None, None));
    assert_eq!(world.queue.ready(new), Some(("a".into(), "new".into())));
    assert_eq!(world.queue.next_woken(), Some(new));
    assert_eq!(world.queue.next(new, TAKE).expect("one").message, lsn);
    world.finish(lsn, 0, AttemptOutcome::Delivered(status(250)));
    assert_eq!(world.queue.ready(new), None, "nothing is left");
}

/// A site that is not served holds up no other, whatever waits for it.
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

#[test]
fn recipients_with_some_attempts_wait_for_another_site() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example", "b@x.example"]);
    let id = world.queue.next_unrouted().expect("it has no route");
    let source = |name: &str| [RouteSource { name: name.into(), weight: 1 }];
    let one = source("one");
    let two = source("two");
    let late = |site| LateHop { after: 1, hop: Hop { site, sources: &two } };
    let route = |world: &mut World, late: Option<LateHop<'_>>| {
        world.queue.route_with(id, Hop { site: "usual", sources: &one }, late, Secs::MAX - 1)
    };
    let ready = route(&mut world, Some(late("late")));
    assert_eq!(world.queue.sites(id), ["usual".into(), "late".into()] as [Arc<str>; 2]);
    let taken = world.queue.next(ready[0], Take { recipients_max: 1, ..TAKE }).expect("a first attempt");
    let key = RecipientKey { message: lsn, number: taken.recipients[0].number };
    let change = world.queue.finish(key, AttemptOutcome::Deferred(status(450))).expect("a change");
    world.change(change);
    world.queue.tick(world.queue.now() + 4000);
    let site =
        |world: &World, number| world.queue.route_of(RecipientKey { message: lsn, number }).map(|(_, site)| site);
    assert_eq!((site(&world, 0), site(&world, 1)), (Some("late".into()), Some("usual".into())));
    // A suspension of the usual site does not suspend the other.
    let scope = MailScope::Site("usual".into());
    world.log(QueueEntry::Suspended { scope: scope.clone(), until: Secs::MAX, reason: "".into() });
    assert_eq!((world.waits(lsn, 0), world.waits(lsn, 1)), (Some(Waits::Due), Some(Waits::Suspended(Secs::MAX))));
    assert_eq!(world.queue.next(ready[0], TAKE), None);
    let late_one = world.queue.next(ready[1], TAKE).expect("its turn");
    assert_eq!((late_one.recipients.len(), late_one.recipients[0].attempts), (1, 1), "the other has another site");
    world.queue.finish(RecipientKey { message: lsn, number: 0 }, AttemptOutcome::Untried);
    world.log(QueueEntry::Resumed(scope));
    // Another route for the late ones moves their mail.
    let other = route(&mut world, Some(late("elsewhere")));
    assert!(world.queue.next(ready[1], TAKE).is_none() && world.queue.next(other[1], TAKE).is_some());
    world.queue.finish(RecipientKey { message: lsn, number: 0 }, AttemptOutcome::Untried);
    let alone = route(&mut world, None);
    assert_eq!((alone.len(), world.queue.sites(id).len()), (1, 1));
    assert_eq!(world.queue.next(alone[0], TAKE).expect("both").recipients.len(), 2);
}
