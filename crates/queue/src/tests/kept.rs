//! Memory of messages and replies over restarts, and its size.

use posthaste_intake::notify;

use super::*;

#[test]
fn a_message_at_work_in_three_crashes_is_held() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example"]);
    for crash in 0..3 {
        let ready = world.route()[0];
        let taken = world.queue.next(ready, TAKE).expect("one").recipients[0];
        assert_eq!(taken.crashes, crash);
        let begun = What::Begun { crashes: taken.crashes };
        world.change(Change { key: RecipientKey { message: lsn, number: 0 }, what: begun });
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
fn an_attempt_that_was_given_back_is_no_crash() {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example"]);
    world.queued("t", &["b@x.example"]);
    let key = RecipientKey { message: lsn, number: 0 };
    for _ in 0..4 {
        let ready = world.route()[0];
        let one = world.queue.next(ready, TAKE).expect("one");
        assert_eq!((one.message, one.recipients[0].crashes), (lsn, 0), "it is in front of the other");
        world.change(Change { key, what: What::Begun { crashes: 0 } });
        let given_back = world.queue.finish(key, AttemptOutcome::Untried).expect("a change");
        assert_eq!(world.waits(lsn, 0), Some(Waits::Busy), "until it is recorded");
        world.change(given_back);
        assert_eq!(world.queue.next(ready, TAKE).map(|one| one.message), Some(lsn), "it is in front again");
        world.queue = world.restarted();
        assert_eq!(world.queue.start(START), []);
    }
    // One that was not recorded as begun needs no record.
    let ready = world.route()[0];
    assert_eq!(world.queue.next(ready, TAKE).map(|one| one.message), Some(lsn));
    assert_eq!(world.queue.finish(key, AttemptOutcome::Untried), None);
}

#[test]
fn a_success_here_is_owed_over_restarts_until_it_is_told() {
    let mut world = World::new();
    let mut queued = message(world.queue.now(), "t", &["a@x.example", "b@y.example"]);
    queued.recipients[1].notify = notify::SUCCESS | notify::IN_MAILBOX;
    let mixed = world.log(QueueEntry::Queued(queued.clone()));
    queued.recipients[0].notify = notify::SUCCESS | notify::HANDED_ON;
    let here = world.log(QueueEntry::Queued(Queued { expires: START + 9, ..queued }));
    let mut snapshot = QueueSnapshot::begin(&world.queue);
    let mut whole = Vec::new();
    while snapshot.write(&world.queue, &mut whole) {}
    let mut restored = Queue::restore(&*whole, Schedules::default(), 1).expect("a snapshot");
    world.log.iter().for_each(|(lsn, entry)| restored.apply(*lsn, entry));
    let owed = |queue: &Queue, message| {
        queue.owed(message).into_iter().map(|owed| (owed.number, owed.notice, owed.status.enhanced)).collect::<Vec<_>>()
    };
    for queue in [&world.queue, &world.restarted(), &restored] {
        assert_eq!((queue.recipients(), queue.owed_notices()), (1, 3));
        assert_eq!(owed(queue, mixed), [(1, OwedNotice::Delivered, 1005)]);
        assert_eq!(owed(queue, here), [(0, OwedNotice::Relayed, 0), (1, OwedNotice::Delivered, 1005)]);
        assert!(queue.released().is_empty());
    }
    assert_eq!(world.queue.take_owing(), [mixed, here]);
    for number in 0..2 {
        assert!(world.queue.take_released().is_empty());
        world.change(Change { key: RecipientKey { message: here, number }, what: What::Told });
    }
    assert_eq!(world.queue.take_released(), [here]);
    world.change(Change { key: RecipientKey { message: mixed, number: 1 }, what: What::Told });
    assert_eq!((world.queue.take_released(), world.queue.recipients()), (vec![], 1));
}

/// Removes most of a large queue; the rest keeps its lists, and is found.
#[test]
fn a_sparse_table_is_compacted() {
    let mut world = World::new();
    let messages: Vec<Lsn> = (0..20_000).map(|_| world.queued("t", &["a@x.example", "b@y.example"])).collect();
    let ready = world.route()[0];
    let pages = world.queue.table.pages();
    for (at, message) in messages.iter().enumerate().filter(|(at, _)| at % 100 != 7) {
        for number in 0..2 {
            let key = RecipientKey { message: *message, number };
            let change = world.queue.act(key, QueueAction::Delete).unwrap_or_else(|| panic!("message {at}"));
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
    world.log(QueueEntry::Suspended { scope: MailScope::Tenant("t".into()), until: Secs::MAX, reason: "why".into() });
    let scope = MailScope::Domain("x.example".into());
    world.log(QueueEntry::Diverted { scope: scope.clone(), until: Secs::MAX, to: "a".into(), reason: "why".into() });
    let message_rate = "1/minute".into();
    let reason = "why".into();
    world.log(QueueEntry::Slowed { scope, until: Secs::MAX, message_rate, connections: 2, reason });
    let mut snapshot = QueueSnapshot::begin(&world.queue);
    let mut whole = Vec::new();
    while snapshot.write(&world.queue, &mut whole) {}
    let restore = |bytes: &[u8]| Queue::restore(bytes, Schedules::default(), 1);
    assert_eq!(restore(&whole).expect("a snapshot").recipients(), world.queue.recipients());
    let restored = restore(&whole).expect("a snapshot");
    assert_eq!(restored.suspensions().count(), 1);
    assert!(restored.diversions().eq(world.queue.diversions()) && restored.diversions().count() == 1);
    assert!(restored.slowed().eq(world.queue.slowed()) && restored.slowed().count() == 1);
    for len in 0..whole.len() {
        match restore(&whole[..len]) {
            Err(QueueRestoreError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
            other => panic!("length {len}: {other:?}"),
        }
    }
    for seed in 0..20_000 {
        let mut random = posthaste_random::Random::new(seed);
        let mut bytes = whole.clone();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = random.next() as u8;
        // Unnoticed damage gives a working queue: the spool's checksum finds damage.
        if let Ok(mut queue) = restore(&bytes) {
            queue.start(START);
        }
    }
}
