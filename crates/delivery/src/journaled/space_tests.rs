//! A journal that is small for what it is asked to hold.

use bytes::Bytes;
use posthaste_journal::Config;

use super::space::ROOM_PATIENCE;
use super::test_world::{Door, SYNC, Steps};
use super::tests::{Place, mailbox, message};
use crate::{Body, DeliveryError, Journaled, JournaledConfig, LineEnds, Message, Target};

/// As small as the server takes one.
fn small(config: JournaledConfig) -> JournaledConfig {
    let journal = Config { segment_bytes: 4 << 20, max_segments: 4, ..Config::default() };
    JournaledConfig { journal, ..config }
}

fn kilobyte(mailbox: &str) -> Message {
    let target = Target { mailbox: format!("{mailbox}/Maildir").into(), prefix: Bytes::new() };
    let body = Bytes::from_static(&[b'x'; 1024]);
    Message { targets: vec![target], body: Body::Memory(vec![body]), line_ends: LineEnds::AsGiven }
}

#[test]
fn a_small_journal_takes_any_number_of_messages_for_mailboxes_that_can_be_written() {
    let place = Place::new();
    let (journaled, _) = Journaled::open(small(place.config())).expect("opens");
    let deliver = async |task: usize| {
        for number in 0..MESSAGES / TASKS {
            let outcome = journaled.deliver_message(kilobyte(&format!("user{}", task % 8))).await;
            assert!(outcome.is_ok(), "message {number} of task {task}: {outcome:?}");
        }
    };
    place.runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS).map(deliver).collect();
        side_by_side(tasks).await;
    });
    let stats = journaled.stats();
    assert!(stats.journal.segments <= 5, "{stats:?}");
    journaled.checkpoint().expect("a checkpoint");
    drop(journaled);
    let found: usize = (0..8).map(|user| count(&place, &format!("user{user}"))).sum();
    assert_eq!(found, MESSAGES);
}

/// Runs futures side by side on one task.
async fn side_by_side<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).map(Some).collect();
    std::future::poll_fn(|cx| {
        for slot in &mut running {
            if slot.as_mut().is_some_and(|future| future.as_mut().poll(cx).is_ready()) {
                *slot = None;
            }
        }
        match running.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

fn count(place: &Place, user: &str) -> usize {
    let new = place.mail().join(user).join("Maildir/new");
    std::fs::read_dir(new).map_or(0, Iterator::count)
}

#[test]
fn a_journal_full_of_mail_that_waits_refuses_at_once_and_asks_for_one_checkpoint() {
    let steps = Steps::with_all_threads(|config| {
        let journal = Config { segment_bytes: 64 << 10, max_segments: 4, ..Config::default() };
        JournaledConfig { journal, ..config }
    });
    steps.doors.shut("bad/Maildir", Door::Fails);
    let refused = loop {
        match steps.place.deliver(&steps.journaled, kilobyte("bad")) {
            Ok(_) => assert!(steps.journaled.stats().accepted < 1000, "there is no bound"),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, DeliveryError::Full(_)), "{refused}");
    let checkpoints = || steps.journaled.stats().checkpoints;
    let before = checkpoints();
    for _ in 0..50 {
        let outcome = steps.place.deliver(&steps.journaled, kilobyte("bad"));
        assert!(matches!(outcome, Err(DeliveryError::Full(_))), "{outcome:?}");
    }
    assert_eq!(checkpoints(), before, "nothing has changed, so nothing could be freed");
    // What waits gets through, and then there is room again, in far less than the interval between checkpoints.
    steps.doors.open("bad/Maildir");
    let all = steps.waiting();
    steps.pass(2);
    steps.until("the probe", || steps.waiting() < all);
    steps.until("the others", || steps.waiting() == 0);
    steps.deliver(message(&["ann"], "a\r\n"));
    assert_eq!(mailbox(&steps.place.mail(), "bad").len(), all);
}

#[test]
fn whoever_waits_for_room_is_told_when_the_checkpoint_fails() {
    let steps = Steps::with_all_threads(|config| {
        let journal = Config { segment_bytes: 64 << 10, max_segments: 4, ..Config::default() };
        JournaledConfig { journal, checkpoint_bytes: u64::MAX, ..config }
    });
    steps.doors.shut(SYNC, Door::Fails);
    let refused = loop {
        match steps.place.deliver(&steps.journaled, kilobyte("ann")) {
            Ok(_) => assert!(steps.journaled.stats().accepted < 10_000, "there is no bound"),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, DeliveryError::Full(_)), "{refused}");
    assert!(steps.journaled.stats().checkpoints_failed > 0);
}

#[test]
fn whoever_waits_for_room_gives_up_on_a_sync_that_hangs() {
    let steps = Steps::with_all_threads(|config| {
        let journal = Config { segment_bytes: 64 << 10, max_segments: 4, ..Config::default() };
        JournaledConfig { journal, checkpoint_bytes: u64::MAX, ..config }
    });
    steps.doors.shut(SYNC, Door::Hangs);
    let journaled = steps.journaled.clone();
    let fill = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        (0..10_000).find_map(|_| runtime.block_on(journaled.deliver_message(kilobyte("ann"))).err())
    });
    steps.doors.wait_until_held(SYNC);
    steps.until("somebody waits", || steps.core().keeper.space.is_waited_for());
    steps.pass(ROOM_PATIENCE.as_secs());
    let refused = fill.join().expect("no panic");
    steps.doors.open(SYNC);
    assert!(matches!(refused, Some(DeliveryError::Full(_))), "{refused:?}");
}

#[test]
fn room_that_others_take_is_not_waited_for_without_end() {
    let steps = Steps::new(|config| config);
    let (core, runtime) = (steps.core(), &steps.place.runtime);
    let space = &core.keeper.space;
    let before = space.seen();
    let begun = space.checkpoint_begins(0);
    space.checkpoint_ended(begun, u64::MAX, Some(1));
    let deadline = core.now() + ROOM_PATIENCE;
    assert!(runtime.block_on(core.room_is_made(before, deadline)), "a segment was freed");
    steps.pass(ROOM_PATIENCE.as_secs());
    assert!(!runtime.block_on(core.room_is_made(before, deadline)), "tried again until the deadline, and not longer");
}

#[test]
fn checkpoints_are_due_by_what_the_log_uses_and_by_what_it_has_left() {
    let steps = Steps::new(|config| {
        let journal = Config { segment_bytes: 1 << 20, max_segments: 9, ..Config::default() };
        JournaledConfig { journal, checkpoint_bytes: 1 << 30, ..config }
    });
    let wanted = || std::mem::take(&mut steps.core().keeper.state().checkpoint_wanted);
    // Each is a commit by itself, and takes a block of 4 KiB.
    let deliver_until_wanted = || {
        let begun = steps.core().log.bytes_used();
        while !wanted() {
            steps.deliver(message(&["ann"], "a\r\n"));
            assert!(steps.core().log.bytes_used() - begun < 64 << 20, "never wanted");
        }
        steps.core().log.bytes_used() - begun
    };
    let near = |used: u64, expected: u64| assert!(used.abs_diff(expected) <= 64 << 10, "{used} and not {expected}");
    near(deliver_until_wanted(), 4 << 20);
    steps.journaled.checkpoint().expect("a checkpoint");
    assert!(!wanted());
    // One is in service, and one is for checkpoints.
    near(deliver_until_wanted(), 7 << 19);
}

const MESSAGES: usize = 20_000;
const TASKS: usize = 20;
