//! A queue and its log: attempts, holds and suspensions, actions of an operator.

mod digest;
mod held;
mod kept;
mod pending;
mod routes;

use std::sync::Arc;

use posthaste_shaping::{DomainOrSite, Label, MailScope};
use posthaste_spool::Lsn;

use super::entry::HoldReason;
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

    fn finish(&mut self, message: Lsn, number: u16, outcome: AttemptOutcome) {
        let change = self.queue.finish(RecipientKey { message, number }, outcome).expect("a change");
        self.change(change);
    }

    /// Routes every queue to the site of its domain's last label.
    fn route(&mut self) -> Vec<ReadyId> {
        let mut all = Vec::new();
        while let Some(id) = self.queue.next_unrouted() {
            let domain = self.queue.queue(id).expect("it has recipients").0.domain;
            let site = domain.rsplit('.').next().unwrap_or_default().to_owned();
            let source = RouteSource { name: "a".into(), weight: 1 };
            all.extend(self.queue.route(id, &site, &[source], Secs::MAX));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    fn waits(&self, message: Lsn, number: u16) -> Option<Waits> {
        self.queue.show(RecipientKey { message, number }).map(|state| state.waits)
    }

    fn restarted(&self) -> Queue {
        let mut queue = Queue::new(Schedules::default(), 1);
        self.log.iter().for_each(|(lsn, entry)| queue.apply(*lsn, entry));
        queue
    }
}

fn message(received: Secs, tenant: &str, addresses: &[&str]) -> Queued {
    let addresses = addresses.iter().copied();
    Queued { tenant: tenant.into(), ..Queued::plain(received, "s@example.org", addresses) }
}

const TAKE: Take = Take { prefer: Prefer::First, recipients_max: 100, across_domains: true };

#[test]
fn a_deferred_recipient_returns_and_a_settled_message_goes() {
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
    world.finish(lsn, 0, AttemptOutcome::Delivered(status(250)));
    world.finish(lsn, 1, AttemptOutcome::Deferred(status(450)));
    let Some(Waits::Until(next)) = world.waits(lsn, 1) else { panic!("{:?}", world.waits(lsn, 1)) };
    assert!((START + 300..=START + 360).contains(&next), "{next}");
    world.queue.tick(next - 1);
    assert_eq!(world.queue.next(ready[0], TAKE), None);
    world.queue.tick(next);
    let again = world.queue.next(ready[0], TAKE).expect("it is due");
    assert_eq!((again.recipients.len(), again.recipients[0].number, again.recipients[0].attempts), (1, 1, 1));
    world.finish(lsn, 1, AttemptOutcome::Failed(status(550)));
    assert_eq!(world.queue.take_released(), []);
    world.queue.next(ready[1], TAKE).expect("the other site");
    world.finish(lsn, 2, AttemptOutcome::Suppressed);
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
        assert_eq!(world.queue.finish(RecipientKey { message: lsn, number: 0 }, AttemptOutcome::Untried), None);
    }
    let scopes = [
        MailScope::Tenant("t".into()),
        MailScope::Domain("x.example".into()),
        MailScope::Site("example".into()),
        MailScope::Campaign("".into()),
        MailScope::At(Label::Tenant("t".into()), DomainOrSite::Site("example".into())),
        MailScope::At(Label::Tenant("t".into()), DomainOrSite::Domain("x.example".into())),
        MailScope::At(Label::Campaign("".into()), DomainOrSite::Site("example".into())),
    ];
    let others = [
        MailScope::At(Label::Tenant("u".into()), DomainOrSite::Site("example".into())),
        MailScope::At(Label::Tenant("t".into()), DomainOrSite::Site("other".into())),
        MailScope::At(Label::Tenant("".into()), DomainOrSite::Domain("x.example".into())),
        MailScope::At(Label::Campaign("c".into()), DomainOrSite::Domain("x.example".into())),
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
        world.queue.finish(RecipientKey { message: lsn, number: 0 }, AttemptOutcome::Untried);
        while world.queue.next_woken().is_some() {}
        world.log(QueueEntry::Suspended { scope: scope.clone(), until: Secs::MAX, reason: "".into() });
        assert_eq!(world.queue.next(ready, TAKE), None);
        world.log(QueueEntry::Resumed(scope.clone()));
        world.queue.next(ready, TAKE).expect("resumed");
        world.queue.finish(RecipientKey { message: lsn, number: 0 }, AttemptOutcome::Untried);
        while world.queue.next_woken().is_some() {}
    }
}

#[test]
fn suspended_mail_expires_and_held_mail_does_not() {
    let mut world = World::new();
    let held = world.queued("t", &["a@x.example"]);
    let suspended = world.queued("t", &["a@y.example"]);
    let change = world.queue.act(RecipientKey { message: held, number: 0 }, QueueAction::Hold(None)).expect("a change");
    world.change(change);
    world.log(QueueEntry::Suspended { scope: MailScope::Tenant("t".into()), until: Secs::MAX, reason: "".into() });
    let age = 5 * 86_400;
    world.queue.tick(START + 4 * 3600 + 60);
    let key = RecipientKey { message: suspended, number: 0 };
    assert_eq!(world.queue.take_notices(), [DueNotice::Delayed(key)]);
    world.queue.tick(START + 4 * 3600 + 200);
    assert_eq!(world.queue.take_notices(), [], "once");
    world.change(Change { key, what: What::DelayTold });
    world.queue.tick(START + age - 1);
    assert_eq!(world.queue.take_notices(), []);
    world.queue.tick(START + age + 60);
    assert_eq!(world.queue.take_notices(), [DueNotice::Expired(key)]);
    world.change(Change { key, what: What::Failed(status(0)) });
    world.queue.tick(START + 100 * age);
    assert_eq!((world.queue.take_notices(), world.waits(held, 0)), (vec![], Some(Waits::Held(HoldReason::Operator))));
    let change = world.queue.act(RecipientKey { message: held, number: 0 }, QueueAction::Release).expect("a change");
    world.change(change);
    world.queue.tick(START + 100 * age + 600);
    assert!(
        world.queue.take_notices().iter().all(|notice| matches!(notice, DueNotice::Delayed(_))),
        "a whole age more"
    );
}

#[test]
fn an_action_on_a_recipient_in_flight_applies_after_the_reply() {
    for outcome in
        [AttemptOutcome::Deferred(status(450)), AttemptOutcome::Untried, AttemptOutcome::Delivered(status(250))]
    {
        let mut world = World::new();
        let lsn = world.queued("t", &["a@x.example"]);
        let ready = world.route()[0];
        world.queue.next(ready, TAKE).expect("one");
        let key = RecipientKey { message: lsn, number: 0 };
        assert_eq!(world.queue.act(key, QueueAction::Delete), None);
        assert_eq!((world.queue.take_actions(), world.waits(lsn, 0)), (vec![], Some(Waits::Busy)));
        if let Some(change) = world.queue.finish(key, outcome) {
            world.change(change);
        }
        let expected = match outcome {
            AttemptOutcome::Delivered(_) => vec![],
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
fn no_action_has_a_message_leave_before_its_time() {
    let mut world = World::new();
    let not_before = START + 3600;
    let queued = Queued { not_before, ..message(START, "t", &["a@x.example"]) };
    let lsn = world.log(QueueEntry::Queued(queued));
    let key = RecipientKey { message: lsn, number: 0 };
    for (action, changes) in [
        (QueueAction::Flush, false),
        (QueueAction::Requeue, false),
        (QueueAction::Hold(None), true),
        (QueueAction::Release, true),
    ] {
        let change = world.queue.act(key, action);
        assert_eq!(change.is_some(), changes, "{action:?}: what stays as it is does not count");
        change.into_iter().for_each(|change| world.change(change));
        if action != QueueAction::Hold(None) {
            assert_eq!(world.waits(lsn, 0), Some(Waits::Until(not_before)), "{action:?}");
        }
    }
    let mut again = world.restarted();
    again.start(START);
    assert_eq!(again.show(key).map(|state| state.waits), Some(Waits::Until(not_before)), "in a replay");
    world.queue.tick(not_before);
    assert_eq!(world.waits(lsn, 0), Some(Waits::Due));
    // From then on they are like any message.
    let ready = world.route()[0];
    world.queue.next(ready, TAKE).expect("one");
    world.finish(lsn, 0, AttemptOutcome::Deferred(status(450)));
    let change = world.queue.act(key, QueueAction::Flush).expect("a change");
    world.change(change);
    assert_eq!(world.waits(lsn, 0), Some(Waits::Due));
}

#[test]
fn a_flush_changes_what_is_tried_earlier_and_nothing_else() {
    let mut world = World::new();
    let message = world.queued("t", &["due@x.example", "later@x.example", "held@x.example"]);
    let [due, later, held] = [0, 1, 2].map(|number| RecipientKey { message, number });
    let hold = world.queue.act(held, QueueAction::Hold(None)).expect("a change");
    world.change(hold);
    let ready = world.route()[0];
    world.queue.next(ready, TAKE).expect("both");
    assert_eq!(world.queue.finish(due, AttemptOutcome::Untried), None);
    world.finish(message, 1, AttemptOutcome::Deferred(status(450)));
    let flushed = |world: &mut World| {
        let changes = [due, later, held].map(|key| world.queue.act(key, QueueAction::Flush));
        changes.into_iter().flatten().for_each(|change| world.queue.abandon(change.key));
        changes.map(|change| change.is_some())
    };
    assert_eq!(flushed(&mut world), [true, true, false]);
    let scope = MailScope::Domain("x.example".into());
    world.log(QueueEntry::Suspended { scope: scope.clone(), until: Secs::MAX, reason: "".into() });
    assert_eq!(flushed(&mut world), [false, true, false], "what is due waits for the end of the suspension alone");
    let requeued = [due, later, held].map(|key| world.queue.act(key, QueueAction::Requeue).is_some());
    assert_eq!(requeued, [false, true, false], "its attempts count anew");
    world.queue.abandon(later);
    world.log(QueueEntry::Resumed(scope));
    assert_eq!(flushed(&mut world), [true, true, false]);
}

#[test]
fn first_and_later_attempts_are_taken_as_preferred() {
    let mut world = World::new();
    let old = world.queued("t", &["a@x.example"]);
    let ready = world.route()[0];
    world.queue.next(ready, TAKE).expect("one");
    world.finish(old, 0, AttemptOutcome::Deferred(status(450)));
    world.queue.tick(START + 400);
    let new = world.queued("t", &["a@x.example"]);
    let later = Take { prefer: Prefer::Later, ..TAKE };
    for (take, first, second) in [(TAKE, new, old), (later, old, new)] {
        let taken = [world.queue.next(ready, take), world.queue.next(ready, take)].map(|one| one.expect("one").message);
        assert_eq!(taken, [first, second]);
        for message in taken {
            assert_eq!(world.queue.finish(RecipientKey { message, number: 0 }, AttemptOutcome::Untried), None);
        }
    }
}
