//! Batches of outcomes, observed by the calls to the spool: no clock is needed.

use std::sync::mpsc::{Receiver, Sender, channel};

use posthaste_hooked_spool::{HookedSpool, Hooks};
use posthaste_spool::{AppendError, FileSpool, Lsn, Then};

use super::*;
use posthaste_queue::{Status, What};

/// Keeps the recorder's appends, and the result of each until the test passes it on.
struct Held {
    appended: Mutex<Sender<Vec<QueueEntry>>>,
    results: Mutex<Sender<(Then, Result<Lsn, AppendError>)>>,
}

impl Hooks for Held {
    fn append(&self, batch: &Batch) -> Result<(), AppendError> {
        let entries = batch.entries.iter().map(|entry| QueueEntry::decode(&entry.payload).unwrap()).collect();
        self.appended.lock().unwrap().send(entries).unwrap();
        Ok(())
    }

    fn then(&self, then: Then) -> Then {
        let results = self.results.lock().unwrap().clone();
        Box::new(move |result| results.send((then, result)).unwrap())
    }
}

struct World {
    recorder: Arc<OutcomeRecorder>,
    appended: Receiver<Vec<QueueEntry>>,
    results: Receiver<(Then, Result<Lsn, AppendError>)>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _) = FileSpool::open(dir.path(), posthaste_spool::Config::default()).unwrap();
        let stream = spool.stream("queue").unwrap();
        let (appends, appended) = channel();
        let (tell, results) = channel();
        let held = Held { appended: Mutex::new(appends), results: Mutex::new(tell) };
        let spool = Arc::new(HookedSpool::new(spool, held));
        let recorder = Arc::new(OutcomeRecorder::new(spool, stream, None, &Watch::default()));
        World { recorder, appended, results, _dir: dir }
    }

    fn record(&self, numbers: std::ops::Range<u16>) {
        let changes = numbers.map(|number| (delivered(number), None)).collect();
        self.recorder.record(changes, NOW);
    }

    /// Entries appended since the last call, by batch.
    fn appended(&self) -> Vec<Vec<QueueEntry>> {
        self.appended.try_iter().collect()
    }

    /// Makes the batch in flight durable, and tells the recorder.
    fn durable(&self) {
        let (then, result) = self.results.recv_timeout(PATIENCE).unwrap();
        then(result);
    }

    /// Refuses the batch in flight.
    fn refused(&self) {
        self.results.recv_timeout(PATIENCE).unwrap().0(Err(AppendError::Full("no room".into())));
    }
}

fn delivered(number: u16) -> Change {
    Change { key: key(number), what: What::Delivered(Status::default()) }
}

fn key(number: u16) -> RecipientKey {
    RecipientKey { message: Lsn::new(1), number }
}

fn changes(numbers: std::ops::Range<u16>) -> QueueEntry {
    QueueEntry::Changes { at: NOW, changes: numbers.map(delivered).collect() }
}

const NOW: Secs = 1_000_000;

#[test]
fn an_outcome_is_appended_at_once_or_with_the_next_batch() {
    let world = World::new();
    world.record(0..1);
    assert_eq!(world.appended(), [[changes(0..1)]], "nothing is under way: at once, by the call itself");
    for number in 1..100 {
        world.record(number..number + 1);
    }
    let said: Arc<str> = "451 later".into();
    world.recorder.reply(key(7), said.clone());
    assert_eq!(world.appended(), Vec::<Vec<QueueEntry>>::new(), "one batch at a time");
    world.durable();
    let next = vec![changes(1..100), QueueEntry::Replies { text: said.into(), keys: vec![key(7)] }];
    assert_eq!(world.appended(), [next], "all that came meanwhile, by the call that ends the batch before");
    world.durable();
    assert_eq!(world.appended(), Vec::<Vec<QueueEntry>>::new(), "nothing is left");
    world.record(100..101);
    assert_eq!(world.appended(), [[changes(100..101)]], "at once again");
}

#[test]
fn outcomes_beyond_one_batch_follow_in_the_next() {
    let world = World::new();
    world.record(0..1);
    world.record(1..2501);
    world.durable();
    world.durable();
    world.durable();
    let batches = [[changes(0..1)], [changes(1..1001)], [changes(1001..2001)], [changes(2001..2501)]];
    assert_eq!(world.appended(), batches);
}

#[test]
fn a_refused_batch_comes_first_again_and_nothing_overtakes_it() {
    let world = World::new();
    world.record(0..3);
    world.record(3..5);
    world.refused();
    assert_eq!(world.appended(), [[changes(0..3)]], "not at once: the spool has no room");
    world.recorder.retry(NOW);
    world.durable();
    assert_eq!(world.appended(), [[changes(0..3)], [changes(3..5)]]);
}

#[test]
fn replies_alone_begin_a_batch_and_too_many_drop_the_oldest() {
    let world = World::new();
    let said: Arc<str> = "421 slow down".into();
    world.recorder.reply(key(1), said.clone());
    world.record(0..0);
    assert_eq!(world.appended(), [[QueueEntry::Replies { text: said.into(), keys: vec![key(1)] }]]);
    let all = 0..REPLIES_MAX as u16 + 2;
    all.clone().for_each(|number| world.recorder.reply(key(number), "450 later".into()));
    let mut kept = Vec::new();
    while kept.len() < REPLIES_MAX {
        world.durable();
        for entry in world.appended().concat() {
            let QueueEntry::Replies { keys, .. } = entry else { panic!("{entry:?}") };
            kept.extend(keys);
        }
    }
    assert_eq!(kept, all.skip(2).map(key).collect::<Vec<_>>());
}
