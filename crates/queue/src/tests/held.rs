//! Recipients that an operator holds until a time.

use super::*;

fn hold(world: &mut World, key: RecipientKey, until: Option<Secs>) -> bool {
    let change = world.queue.act(key, QueueAction::Hold(until));
    let is_changed = change.is_some();
    change.into_iter().for_each(|change| world.change(change));
    is_changed
}

fn end_holds(world: &mut World) -> Vec<Change> {
    let changes = world.queue.end_holds(100);
    changes.iter().for_each(|change| world.change(*change));
    changes
}

#[test]
fn a_hold_ends_by_itself_and_expired_mail_gets_its_age_again() {
    let mut world = World::new();
    let age = 5 * 86_400;
    for (until, expires) in [(START + 7200, 0), (START + 2 * age, START + 3 * age)] {
        let key = RecipientKey { message: world.queued("t", &["a@x.example"]), number: 0 };
        let received = world.queue.now();
        assert!(hold(&mut world, key, Some(until)));
        world.queue.tick(until - 1);
        assert_eq!((end_holds(&mut world), world.queue.take_notices()), (vec![], vec![]));
        let state = world.queue.show(key).expect("it waits");
        assert_eq!((state.waits, state.expires), (Waits::Held(HoldReason::Until(until)), None));
        world.queue.tick(until);
        let released = What::Released { next: until, expires };
        assert_eq!(end_holds(&mut world), [Change { key, what: released }]);
        let state = world.queue.show(key).expect("it waits");
        let expected = if expires == 0 { received + age } else { expires };
        assert_eq!((state.waits, state.expires), (Waits::Due, Some(expected)));
        world.queue.tick(until + 3600);
        assert_eq!((end_holds(&mut world), world.waits(key.message, 0)), (vec![], Some(Waits::Due)), "once");
        let change = world.queue.act(key, QueueAction::Delete).expect("a change");
        world.change(change);
    }
}

#[test]
fn the_end_of_a_hold_is_there_behind_a_replay_and_in_a_snapshot() {
    let mut world = World::new();
    let key = RecipientKey { message: world.queued("t", &["a@x.example"]), number: 0 };
    let until = START + 7200;
    hold(&mut world, key, Some(until));
    let mut snapshot = QueueSnapshot::begin(&world.queue);
    let mut whole = Vec::new();
    while snapshot.write(&world.queue, &mut whole) {}
    let restored = || Queue::restore(&whole[..], Schedules::default(), 1).expect("a snapshot");
    for (from, mut queue) in [("the log", world.restarted()), ("a snapshot", restored())] {
        queue.start(until - 1);
        let waits = queue.show(key).map(|state| state.waits);
        assert_eq!((waits, queue.end_holds(9)), (Some(Waits::Held(HoldReason::Until(until))), vec![]), "{from}");
        queue.tick(until);
        assert_eq!(queue.end_holds(9), [Change { key, what: What::Released { next: until, expires: 0 } }], "{from}");
        // It was over before the start, and the record of it was lost.
        let mut late = if from == "the log" { world.restarted() } else { restored() };
        late.start(until + 60);
        let released = What::Released { next: until + 60, expires: 0 };
        assert_eq!(late.end_holds(9), [Change { key, what: released }], "{from}");
    }
}

#[test]
fn an_operator_changes_the_end_of_their_own_hold_alone() {
    let mut world = World::new();
    let message = world.queued("t", &["a@x.example", "b@x.example"]);
    let [key, other] = [0, 1].map(|number| RecipientKey { message, number });
    world.change(Change { key: other, what: What::Held(HoldReason::Quarantine) });
    assert!(!hold(&mut world, other, Some(START + 5)), "its release is no matter of time");
    assert!(!hold(&mut world, key, Some(START)), "it would be over at once");
    assert!(hold(&mut world, key, Some(START + 100)));
    assert!(!hold(&mut world, key, Some(START + 100)), "nothing new");
    assert!(hold(&mut world, key, Some(START + 200)));
    world.queue.tick(START + 150);
    assert_eq!(end_holds(&mut world), []);
    assert!(hold(&mut world, key, None));
    world.queue.tick(START + 9000);
    assert_eq!((end_holds(&mut world), world.waits(message, 0)), (vec![], Some(Waits::Held(HoldReason::Operator))));
    assert!(!hold(&mut world, key, Some(START + 9100)), "a hold without an end is ended by a release");
    let change = world.queue.act(key, QueueAction::Release).expect("an operator may be earlier");
    world.change(change);
    world.queue.tick(START + 10_000);
    assert_eq!((end_holds(&mut world), world.waits(message, 0)), (vec![], Some(Waits::Due)));
}

#[test]
fn holds_that_end_together_are_released_in_parts_on_time() {
    let mut world = World::new();
    let not_before = START + 3600;
    let queued = Queued { not_before, ..message(START, "t", &["a@x.example"]) };
    let later = RecipientKey { message: world.log(QueueEntry::Queued(queued)), number: 0 };
    let mut keys: Vec<RecipientKey> =
        (0..5).map(|_| RecipientKey { message: world.queued("t", &["a@x.example"]), number: 0 }).collect();
    keys.insert(0, later);
    keys.iter().for_each(|key| assert!(hold(&mut world, *key, Some(START + 60))));
    world.queue.tick(START + 60);
    // A change that the spool has refused comes again.
    let refused = world.queue.end_holds(1);
    world.queue.abandon(refused[0].key);
    let mut found = Vec::new();
    for count in [2, 2, 2, 0] {
        let part = world.queue.end_holds(2);
        assert_eq!(part.len(), count);
        part.iter().for_each(|change| world.change(*change));
        found.extend(part.into_iter().map(|change| change.key));
    }
    found.sort_unstable();
    assert_eq!(found, keys);
    assert_eq!(world.waits(later.message, 0), Some(Waits::Until(not_before)));
    assert_eq!(world.waits(keys[1].message, 0), Some(Waits::Due));
}

#[test]
fn a_hold_of_a_recipient_in_flight_follows_unless_over() {
    for (until, held) in [(START + 100, true), (START + 10, false)] {
        let mut world = World::new();
        let message = world.queued("t", &["a@x.example"]);
        let ready = world.route()[0];
        world.queue.next(ready, TAKE).expect("one");
        assert!(!hold(&mut world, RecipientKey { message, number: 0 }, Some(until)));
        world.queue.tick(START + 50);
        world.finish(message, 0, AttemptOutcome::Deferred(status(450)));
        world.queue.take_actions().into_iter().for_each(|change| world.change(change));
        let waits = world.waits(message, 0).expect("it waits");
        if held {
            assert_eq!(waits, Waits::Held(HoldReason::Until(until)))
        } else {
            assert!(matches!(waits, Waits::Until(_)), "its next attempt stays: {waits:?}")
        }
    }
}
