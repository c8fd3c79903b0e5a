//! Reports to an observer, and their place in the batch of the *visible* entry.

use std::sync::{Arc, Mutex};

use posthaste_spool::{Entry, Lsn, Replayed, Spool, StreamId};

use super::observer::{DeliveryObserver, MailboxTargetId};
use super::test_world::{Door, Place, World, message};

/// Appends the names of mailboxes to a stream of its own.
#[derive(Debug, Default)]
struct Log {
    stream: Mutex<Option<StreamId>>,
    waits: Mutex<Vec<MailboxTargetId>>,
    lost: Mutex<u64>,
    given_up: Mutex<Vec<MailboxTargetId>>,
}

impl DeliveryObserver for Log {
    fn visible(&self, targets: Vec<MailboxTargetId>) -> Option<Entry> {
        let stream = self.stream.lock().unwrap().expect("the test has registered it");
        let names: Vec<&str> = targets.iter().map(|target| &*target.mailbox).collect();
        Some(Entry { stream, needs_body: false, payload: names.join(" ").into() })
    }

    fn lost(&self, targets: u64) {
        *self.lost.lock().unwrap() += targets;
    }

    fn waits(&self, target: MailboxTargetId, error: Arc<str>) {
        assert!(!error.is_empty());
        self.waits.lock().unwrap().push(target);
    }

    fn given_up(&self, target: MailboxTargetId, error: Arc<str>) {
        assert!(!error.is_empty());
        self.given_up.lock().unwrap().push(target);
    }
}

fn world(log: &Arc<Log>) -> World {
    let place = Place::new(&[]);
    let stream = place.spool().stream("log").expect("a stream");
    *log.stream.lock().unwrap() = Some(stream);
    let observer = log.clone();
    World::opened(place, Arc::default(), |mut config| {
        config.observer = Some(observer);
        config
    })
}

/// Entries of the log's stream: batch and names.
fn entries(spool: &dyn Spool, log: &Log) -> Vec<(Lsn, String)> {
    let stream = log.stream.lock().unwrap().expect("registered");
    let mut entries = Vec::new();
    let mut keep = |replayed: Replayed<'_>| {
        let Replayed::Entry { lsn, payload, .. } = replayed else { panic!("damaged") };
        entries.push((lsn, String::from_utf8(payload.to_vec()).expect("names")));
    };
    spool.replay(stream, &mut keep).expect("replayed");
    entries
}

fn names(entries: &[(Lsn, String)]) -> Vec<&str> {
    entries.iter().flat_map(|(_, names)| names.split(' ')).collect()
}

#[test]
fn each_target_is_told_of_once_in_the_batch_that_notes_it() {
    let log = Arc::new(Log::default());
    let world = world(&log);
    let stream = log.stream.lock().unwrap().expect("registered");
    let also = vec![Entry { stream, needs_body: false, payload: "received".into() }];
    let mut first = message(&["ann", "bob"], "text");
    first.also = also;
    let received = world.place.runtime.block_on(world.delivery.deliver_message(first)).expect("accepted");
    world.deliver(message(&["ann"], "more"));
    world.sync();
    let before = entries(&*world.spool, &log);
    assert_eq!(before[0], (Lsn::new(received.id), "received".to_owned()), "in the batch of the message");
    let mut told = names(&before[1..]);
    told.sort_unstable();
    assert_eq!(told, ["ann/Maildir", "ann/Maildir", "bob/Maildir"]);
    let place = world.end();
    // Another life finds all of it there, and reports nothing again.
    let spool = place.spool();
    assert_eq!(entries(&spool, &log), before);
    assert_eq!(*log.lost.lock().unwrap(), 0);
}

#[test]
fn a_waiting_target_is_reported_once() {
    let log = Arc::new(Log::default());
    let world = world(&log);
    world.doors.shut("ann/Maildir", Door::Fails);
    world.deliver(message(&["ann"], "text"));
    world.until("it was tried again", || {
        world.pass(10);
        world.delivery.stats().failed_attempts >= 4
    });
    world.until("the observer is told", || !log.waits.lock().unwrap().is_empty());
    world.doors.open("ann/Maildir");
    world.until_in_time("delivered", || world.waiting() == 0);
    world.sync();
    assert_eq!(names(&entries(&*world.spool, &log)), ["ann/Maildir"]);
    let waits = log.waits.lock().unwrap();
    assert!(
        matches!(&waits[..], [MailboxTargetId { number: 0, mailbox, .. }] if &**mailbox == "ann/Maildir"),
        "{waits:?}"
    );
}

#[test]
fn what_the_spool_has_no_room_for_is_counted() {
    let log = Arc::new(Log::default());
    let world = world(&log);
    world.doors.shut("ann/Maildir", Door::Hangs);
    world.deliver(message(&["ann"], "text"));
    world.doors.wait_until_held("ann/Maildir");
    world.spool.hooks.refuse_entries(true);
    world.doors.open("ann/Maildir");
    world.until("counted", || *log.lost.lock().unwrap() == 1);
    world.spool.hooks.refuse_entries(false);
    assert_eq!(entries(&*world.spool, &log), []);
}

#[test]
fn what_is_given_up_is_told() {
    let log = Arc::new(Log::default());
    let world = world(&log);
    world.doors.shut("ann/Maildir", Door::Fails);
    world.deliver(message(&["bob", "ann"], "BAD"));
    world.until("it waits", || world.waiting() == 1);
    super::losses_tests::flip(&world.place, "ring", "BAD");
    world.doors.open("ann/Maildir");
    world.until_in_time("it is given up", || world.delivery.stats().given_up == 1);
    let given_up = log.given_up.lock().unwrap();
    let [MailboxTargetId { number: 1, mailbox, .. }] = &given_up[..] else { panic!("{given_up:?}") };
    assert_eq!(&**mailbox, "ann/Maildir");
}
