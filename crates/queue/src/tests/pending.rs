//! Commands of operators for recipients in flight.

use super::*;

const ALL: [QueueAction; 7] = [
    QueueAction::Delete,
    QueueAction::Bounce(Status { code: 554, enhanced: 0 }),
    QueueAction::Hold(None),
    QueueAction::Hold(Some(START + 1000)),
    QueueAction::Release,
    QueueAction::Flush,
    QueueAction::Requeue,
];

fn rank(action: QueueAction) -> u8 {
    match action {
        QueueAction::Delete => 3,
        QueueAction::Bounce(_) => 2,
        QueueAction::Hold(_) => 1,
        _ => 0,
    }
}

/// Changes by commands on a recipient in flight whose attempt then fails. The last command comes before that, or after
/// it while the first is still undecided.
fn changed_by(commands: &[QueueAction], is_last_late: bool) -> Vec<What> {
    let mut world = World::new();
    let lsn = world.queued("t", &["a@x.example"]);
    let ready = world.route()[0];
    world.queue.next(ready, TAKE).expect("one");
    let key = RecipientKey { message: lsn, number: 0 };
    let (last, first) = commands.split_last().expect("a command");
    for action in first {
        assert_eq!(world.queue.act(key, *action), None);
    }
    let before = world.queue.pending(key);
    if is_last_late {
        world.finish(lsn, 0, AttemptOutcome::Deferred(status(450)));
        assert_eq!(world.waits(lsn, 0), Some(Waits::Busy), "an action is to be decided");
    }
    assert_eq!(world.queue.act(key, *last), None);
    let counts = before.is_none_or(|before| rank(*last) >= rank(before));
    assert_eq!(world.queue.pending(key), if counts { Some(*last) } else { before }, "{commands:?}");
    if !is_last_late {
        world.finish(lsn, 0, AttemptOutcome::Deferred(status(450)));
    }
    let changes = world.queue.take_actions();
    assert_eq!((world.queue.pending(key), world.queue.take_actions()), (None, vec![]));
    changes.iter().for_each(|change| world.change(*change));
    let is_gone = changes.iter().any(|change| matches!(change.what, What::Deleted | What::Failed(_)));
    assert_eq!(world.queue.recipients(), u64::from(!is_gone), "{commands:?}");
    assert_ne!(world.waits(lsn, 0), Some(Waits::Busy), "{commands:?}");
    changes.into_iter().map(|change| change.what).collect()
}

#[test]
fn of_commands_in_flight_the_highest_counts_then_the_last() {
    for first in ALL {
        for second in ALL {
            for third in ALL {
                let commands = [first, second, third];
                // The last of the highest rank.
                let wins = commands.into_iter().max_by_key(|action| rank(*action)).unwrap();
                for is_last_late in [false, true] {
                    assert_eq!(changed_by(&commands, is_last_late), changed_by(&[wins], false), "{commands:?}");
                }
            }
        }
    }
}
