//! The digest of members that have applied the same entries is equal, and that of others is not.

use posthaste_random::Random;

use super::*;

fn some_change(random: &mut Random, now: Secs) -> What {
    let at = now + random.below(5000) as Secs;
    let attempts = random.below(20) as u8;
    match random.below(10) {
        0 => What::Delivered(status(250)),
        1 => What::Deleted,
        2 | 3 => What::Deferred { attempts, next: at, status: status(450 + random.below(9) as u16) },
        4 => What::Rescheduled { attempts, next: at },
        5 => What::Held(if random.one_in(2) { HoldReason::Operator } else { HoldReason::Until(at) }),
        6 => What::Released { next: at, expires: 0 },
        7 => What::DelayTold,
        8 if random.one_in(2) => What::GivenBack,
        _ => What::Begun { crashes: random.below(4) as u8 },
    }
}

/// A member that starts again, goes on from a snapshot, or only applies: all have the same digest after each entry.
#[test]
fn starts_and_snapshots_change_no_digest() {
    for seed in 0..1000 {
        let mut random = Random::new(seed);
        let mut world = World::new();
        let mut standby = Queue::new(Schedules::default(), 2);
        let mut applied = 0;
        for _ in 0..40 {
            let now = world.queue.now();
            match random.below(9) {
                0 | 1 => drop(world.queued("t", &["a@x.example", "b@y.example"])),
                // An attempt that does not come about.
                2 if random.one_in(2) => {
                    let taken = world.route().first().and_then(|ready| world.queue.next(*ready, TAKE));
                    for key in taken.iter().flat_map(|it| it.recipients.iter().map(|one| (it.message, one.number))) {
                        let (message, number) = key;
                        let change = world.queue.finish(RecipientKey { message, number }, AttemptOutcome::Untried);
                        change.into_iter().for_each(|change| world.change(change));
                    }
                }
                2 => {
                    world.queue = world.restarted();
                    let held = world.queue.start(now);
                    held.into_iter().for_each(|change| world.change(change));
                }
                3 => world.queue.tick(now + random.below(600) as Secs),
                4 => {
                    let mut snapshot = QueueSnapshot::begin(&world.queue);
                    let mut whole = Vec::new();
                    while snapshot.write(&world.queue, &mut whole) {}
                    let restored = Queue::restore(&whole[..], Schedules::default(), 3).expect("a snapshot");
                    assert_eq!(restored.digest(), world.queue.digest(), "seed {seed}: a snapshot");
                }
                _ if world.lsn == 0 => {}
                _ => {
                    let message = Lsn::new(1 + random.below(world.lsn));
                    let key = RecipientKey { message, number: random.below(2) as u16 };
                    let what = some_change(&mut random, now);
                    world.change(Change { key, what });
                }
            }
            for (lsn, entry) in &world.log[applied..] {
                standby.apply(*lsn, entry);
            }
            applied = world.log.len();
            assert_eq!(standby.digest(), world.queue.digest(), "seed {seed}");
        }
    }
}

#[test]
fn a_member_that_lacks_a_change_has_another_digest() {
    let queue_of = |changes: &[(u64, u16, What)]| {
        let mut world = World::new();
        let lsns = [world.queued("t", &["a@x.example", "b@y.example"]), world.queued("t", &["c@x.example"])];
        for (nth, number, what) in changes {
            world.change(Change { key: RecipientKey { message: lsns[*nth as usize], number: *number }, what: *what });
        }
        world.queue.digest()
    };
    let deferred = |next| What::Deferred { attempts: 1, next, status: status(451) };
    let all = [
        queue_of(&[]),
        queue_of(&[(0, 0, deferred(START + 60))]),
        queue_of(&[(0, 1, deferred(START + 60))]),
        queue_of(&[(0, 0, deferred(START + 61))]),
        queue_of(&[(1, 0, deferred(START + 60))]),
        queue_of(&[(0, 0, What::DelayTold)]),
        queue_of(&[(0, 0, What::Held(HoldReason::Operator))]),
        queue_of(&[(0, 0, What::Delivered(status(250)))]),
        queue_of(&[(0, 1, What::Delivered(status(250)))]),
    ];
    let different: std::collections::HashSet<u64> = all.into_iter().collect();
    assert_eq!(different.len(), all.len());
    let none = queue_of(&[(0, 0, What::Deleted), (0, 1, What::Deleted), (1, 0, What::Deleted)]);
    assert_eq!(none, 0, "an empty queue");
}
