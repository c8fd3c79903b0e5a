//! The queue's stream in a spool on a machine that loses power at any call. After the cut the queue matches its durable
//! entries, and every unsettled message has its body and its addresses.
//!
//! `posthaste_fsops::recording` defines the possible results of a cut; threads take turns that follow from the seed.
//! `POSTHASTE_CUTS=N` makes more cuts, `POSTHASTE_SEED` is the first seed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_fsops::{Choice, Cut, FsEvent, Machine, Recording, SyncScope, Tree};
use posthaste_queue::{
    AttemptOutcome, Change, Prefer, Queue, QueueAction, QueueEntry, QueueSnapshot, ReadyId, RecipientKey, RouteSource,
    Schedules, Selection, Status, Take, What,
};
use posthaste_spool::{
    AppendError, Batch, Body, Config, Consumer, Entry, FileSpool, Lsn, Published, Released, Replayed, SnapshotName,
    Spool, StreamId,
};
use posthaste_turns::{Random, in_turns};

use crate::model::Model;
use crate::world::World;
use crate::{SEED, START};

/// Batches handed to the spool, in order, and the published ones with their positions. The recording has the number of
/// each published one.
#[derive(Default, Clone)]
struct Log {
    appended: Vec<Bytes>,
    published: Vec<Lsn>,
    /// For each appended batch, the number that its body was made from.
    numbers: Vec<usize>,
}

/// A recorded run.
struct Run {
    seed: u64,
    log: Log,
    /// Batches published before the recording.
    before: usize,
    recording: Recording,
}

/// Applies durable entries, like the relay.
struct Engine {
    machine: Arc<Machine>,
    queue: Mutex<Queue>,
    log: Mutex<Log>,
}

impl Consumer for Engine {
    fn published(&self, published: Published) {
        {
            let mut log = self.log.lock().unwrap();
            assert_eq!(log.appended[log.published.len()], published.payload, "in the order of appending");
            log.published.push(published.lsn);
            self.machine.acknowledge(log.published.len() as u64 - 1);
        }
        let entry = QueueEntry::decode(&published.payload).expect("an entry");
        self.queue.lock().unwrap().apply(published.lsn, &entry);
    }

    fn advance_wanted(&self, _: Lsn) {}
}

fn config(keeper: bool) -> Config {
    // Large enough to refuse nothing: the log holds all appends in order.
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 16, ..Default::default() };
    let checkpoint_every = Duration::from_secs(5);
    let pack_bytes = 100 << 10;
    Config { ring, keeper, pack_bytes, checkpoint_every, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() }
}

fn place(machine: &Machine) -> PathBuf {
    machine.path().join("spool")
}

/// The body of the batch appended as number `number`.
fn body(number: usize) -> Bytes {
    vec![b'a' + (number % 26) as u8; 100 + number * 37 % 9000].into()
}

/// Opens a spool and its queue.
fn open(machine: &Machine, keeper: bool, replayed: &mut Vec<(Lsn, Bytes)>) -> (FileSpool, StreamId, Queue, Lsn) {
    let (spool, report) = FileSpool::open(&place(machine), config(keeper)).expect("it opens");
    assert_eq!(report.damage, []);
    let stream = spool.stream("queue").expect("a stream");
    let mut queue = match spool.position(stream).1 {
        Some(name) => {
            let snapshot = spool.read_snapshot(&name).expect("a snapshot");
            Queue::restore(snapshot, Schedules::default(), SEED).expect("a snapshot")
        }
        None => Queue::new(Schedules::default(), SEED),
    };
    let through = spool.replay(stream, &mut |entry| {
        let Replayed::Entry { lsn, payload, .. } = entry else { panic!("damaged") };
        queue.apply(lsn, &QueueEntry::decode(payload).expect("an entry"));
        replayed.push((lsn, Bytes::copy_from_slice(payload)));
    });
    (spool, stream, queue, through.expect("it is read"))
}

/// One life of a process: messages arrive, are tried, settled and held; snapshots, checkpoints and packs are made; it
/// ends in order or not.
fn live(machine: &Arc<Machine>, log: Log, random: &mut Random, steps: usize) -> Log {
    let (spool, stream, mut queue, through) = open(machine, random.one_in(2), &mut Vec::new());
    let now = queue.recorded().max(START);
    let held = queue.start(now);
    let engine = Arc::new(Engine { machine: machine.clone(), queue: Mutex::new(queue), log: Mutex::new(log) });
    spool.attach(stream, through, engine.clone()).expect("attached");
    let append = |entry: QueueEntry| {
        let payload = Bytes::from(entry.encode());
        let number = {
            let mut log = engine.log.lock().unwrap();
            log.appended.push(payload.clone());
            let number = log.appended.len() - 1;
            log.numbers.push(number);
            number
        };
        let needs_body = matches!(entry, QueueEntry::Queued(_));
        let body = if needs_body { Body::inline(vec![body(number)]) } else { Body::None };
        let entries = vec![Entry { stream, needs_body, payload }];
        spool.append(
            Batch { entries, body },
            Box::new(|outcome| {
                let is_taken = matches!(outcome, Ok(_) | Err(AppendError::Closed));
                assert!(is_taken, "{outcome:?}");
            }),
        );
    };
    let record = |changes: Vec<Change>, now| {
        if !changes.is_empty() {
            append(QueueEntry::Changes { at: now, changes });
        }
    };
    record(held, now);
    // Messages whose notice is being made in this life.
    let mut told = BTreeSet::new();
    let mut letters = World::new(random.below(u64::MAX));
    let mut ready: Vec<ReadyId> = Vec::new();
    for _ in 0..steps {
        let now = engine.queue.lock().unwrap().now();
        match random.below(17) {
            0..6 => {
                letters.queue.tick(now);
                append(QueueEntry::Queued(letters.message()));
            }
            6..10 => {
                let changes = attempt(&mut engine.queue.lock().unwrap(), &mut ready, random);
                record(changes, now);
            }
            10 => {
                let mut queue = engine.queue.lock().unwrap();
                let (keys, ..) = queue.select(&Selection::default(), None);
                let action =
                    [QueueAction::Hold(None), QueueAction::Release, QueueAction::Delete][random.below(3) as usize];
                let changes: Vec<Change> = keys.into_iter().take(5).filter_map(|key| queue.act(key, action)).collect();
                drop(queue);
                record(changes, now);
            }
            15 if random.one_in(2) => {
                let mut queue = engine.queue.lock().unwrap();
                let mut changes = Vec::new();
                for message in queue.take_owing() {
                    let keys = queue.owed(message).into_iter().map(|of| RecipientKey { message, number: of.number });
                    let new = keys.filter(|key| told.insert(*key));
                    changes.extend(new.map(|key| Change { key, what: What::Told }));
                }
                drop(queue);
                record(changes, now);
            }
            11 => {
                let mut queue = engine.queue.lock().unwrap();
                queue.tick(now + 1 + random.below(9000) as u32);
                let _ = queue.take_notices();
            }
            12..14 => advance(&spool, stream, &engine),
            14 => spool.checkpoint().expect("nothing fails"),
            _ if random.one_in(2) => drop(spool.pack_oldest(1 + random.below(2) as usize)),
            _ => std::thread::sleep(Duration::from_millis(random.below(300))),
        }
    }
    if random.one_in(2) {
        spool.abandon();
    } else {
        spool.detach(stream);
        drop(spool);
    }
    engine.log.lock().unwrap().clone()
}

/// Takes due recipients, and decides their outcomes.
fn attempt(queue: &mut Queue, ready: &mut Vec<ReadyId>, random: &mut Random) -> Vec<Change> {
    queue.take_diversions();
    while let Some(id) = queue.next_unrouted() {
        let source = RouteSource { name: "a".into(), weight: 1 };
        ready.extend(queue.route(id, "mx", &[source], u32::MAX));
    }
    ready.sort_unstable();
    ready.dedup();
    let take = Take { prefer: Prefer::First, recipients_max: 50, across_domains: true };
    let Some(one) = ready.iter().find_map(|ready| queue.next(*ready, take)) else { return Vec::new() };
    let status = Status { code: 450, enhanced: 7 };
    let mut changes = Vec::new();
    for taken in one.recipients {
        let outcome = match random.below(4) {
            0 | 1 => AttemptOutcome::Delivered(status),
            2 => AttemptOutcome::Deferred(status),
            _ => AttemptOutcome::Failed(status),
        };
        let change = queue.finish(RecipientKey { message: one.message, number: taken.number }, outcome);
        changes.extend(change.map(|change| if random.one_in(2) { change.with_notice() } else { change }));
    }
    changes
}

/// Advances like the relay: writes a snapshot in parts, with other work in between, and releases bodies no longer
/// needed.
fn advance(spool: &FileSpool, stream: StreamId, engine: &Engine) {
    let (mut snapshot, settled, first) = {
        let mut queue = engine.queue.lock().unwrap();
        (QueueSnapshot::begin(&queue), queue.take_released(), queue.first_message())
    };
    let position = snapshot.position();
    if position == spool.position(stream).0 && settled.is_empty() {
        return;
    }
    let name = SnapshotName::new(&format!("queue-{position}")).expect("a name");
    let written = spool.write_snapshot(&name, &mut |out| {
        let mut part = Vec::new();
        while snapshot.write(&engine.queue.lock().unwrap(), &mut part) {
            out.write_all(&part)?;
            part.clear();
            std::thread::yield_now();
        }
        Ok(())
    });
    written.expect("nothing fails");
    let behind = Lsn::new(position.get() + 1);
    let below = first.map_or(behind, |first| first.min(behind));
    let also = settled.into_iter().filter(|message| *message >= below).collect();
    spool.advance(stream, position, Some(name), Released { below, also });
}

fn record(seed: u64) -> Run {
    let machine = Arc::new(Machine::boot(&Tree::default(), true, seed.is_multiple_of(2)).unwrap());
    let mut random = Random::new(seed);
    let log = in_turns(seed, || live(&machine, Log::default(), &mut random, STEPS));
    Run { seed, log, before: 0, recording: machine.recording() }
}

impl Run {
    /// Cuts the power and examines the recovery; sometimes continues for another run to cut.
    fn examine(&self, cut: Cut) -> Result<Option<Run>, String> {
        let mut log = self.log.clone();
        let last = self.recording.acknowledged_before(cut.position).max();
        let before = last.map_or(0, |last| last as usize + 1).max(self.before);
        log.published.truncate(before);
        let machine = Arc::new(Machine::boot(&self.recording.cut(cut), true, self.seed.is_multiple_of(2)).unwrap());
        let mut random = Random::new(self.seed ^ cut.position as u64);
        let lives_on = random.one_in(3);
        let log = in_turns(random.below(u64::MAX), || {
            let log = recovered(&machine, log)?;
            Ok(if lives_on { live(&machine, log, &mut random, STEPS / 2) } else { log })
        });
        let log = log.map_err(|what: String| format!("seed {}, cut {cut}: {what}", self.seed))?;
        Ok(lives_on.then(|| Run { seed: self.seed + 1_000_000, log, before, recording: machine.recording() }))
    }
}

/// Opens the spool and compares it with the published batches. Batches that were durable without it are published now.
fn recovered(machine: &Arc<Machine>, mut log: Log) -> Result<Log, String> {
    let mut replayed = Vec::new();
    let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| open(machine, false, &mut replayed)));
    let (spool, stream, mut queue, _) = opened.map_err(|_| "it does not open".to_owned())?;
    for (lsn, payload) in replayed {
        match log.published.binary_search(&lsn) {
            Ok(at) if log.appended[at] != payload => return Err(format!("{lsn} says something else")),
            Ok(_) => {}
            Err(at) if at < log.published.len() => return Err(format!("{lsn} was never published")),
            Err(at) => {
                // Of a commit that the cut hit, the ring keeps each whole record, even after a torn one: none of it was
                // acknowledged.
                let Some(torn) = log.appended[at..].iter().position(|appended| *appended == payload) else {
                    return Err(format!("{lsn} was not appended after what was published"));
                };
                log.appended.drain(at..at + torn);
                log.numbers.drain(at..at + torn);
                log.published.push(lsn);
            }
        }
    }
    let mut model = Model::default();
    for (lsn, payload) in log.published.iter().zip(&log.appended) {
        model.apply(*lsn, &QueueEntry::decode(payload).expect("an entry"));
    }
    queue.start(queue.recorded().max(START));
    let same = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.assert_same(&queue, 0)));
    same.map_err(|why| why.downcast_ref::<String>().cloned().unwrap_or_default())?;
    no_notice_twice(&log)?;
    let mut messages: Vec<Lsn> = model.recipients.keys().chain(model.owed.keys()).map(|key| key.message).collect();
    messages.sort_unstable();
    messages.dedup();
    for message in messages {
        let at = log.published.binary_search(&message).expect("a message was published");
        let body = body(log.numbers[at]);
        let read = spool.read(message, 0..body.len() as u64).map_err(|error| format!("body of {message}: {error}"))?;
        let said = spool.entries(stream, message).map_err(|error| format!("addresses of {message}: {error}"))?;
        if read != body || said != [log.appended[at].clone()] {
            return Err(format!("{message} has another body, or other addresses"));
        }
    }
    // Later batches are gone for good.
    log.appended.truncate(log.published.len());
    log.numbers.truncate(log.published.len());
    (0..log.published.len() as u64).for_each(|number| machine.acknowledge(number));
    spool.abandon();
    Ok(log)
}

/// Each owed notice is still owed, as the model knows, or was made once.
fn no_notice_twice(log: &Log) -> Result<(), String> {
    let mut told = BTreeSet::new();
    for payload in &log.appended[..log.published.len()] {
        let Ok(QueueEntry::Changes { changes, .. }) = QueueEntry::decode(payload) else { continue };
        for change in changes.into_iter().filter(|change| change.what == What::Told) {
            if !told.insert(change.key) {
                return Err(format!("the sender of {:?} is told twice", change.key));
            }
        }
    }
    Ok(())
}

/// Cuts at one event in about `step`, and cuts the resulting runs once more. Returns the number of cuts.
fn cut_all(run: &Run, step: u64) -> Result<usize, String> {
    let mut random = Random::new(run.seed);
    let mut cuts = 0;
    let mut position = random.below(step) as usize;
    while position <= run.recording.events.len() {
        let mut next = run.examine(Cut { position, choice: Choice::Seed(random.below(1 << 20)) })?;
        cuts += 1;
        while let Some(run) = next {
            let position = random.below(run.recording.events.len() as u64 + 1) as usize;
            next = run.examine(Cut { position, choice: Choice::Seed(random.below(1 << 20)) })?;
            cuts += 1;
        }
        position += 1 + random.below(2 * step) as usize;
    }
    Ok(cuts)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn after_any_cut_the_queue_is_what_was_durable() {
    let mut seed = number("POSTHASTE_SEED", 0);
    let wanted = number("POSTHASTE_CUTS", 150);
    let mut cuts = 0;
    while cuts < wanted {
        cuts += cut_all(&record(seed), STEP).unwrap_or_else(|what| panic!("{what}")) as u64;
        seed += 1;
    }
    println!("{cuts} cuts of {seed} seeds");
}

/// The examination detects it.
#[test]
fn a_sync_that_is_left_out_is_missed() {
    let missed = (0..10).any(|seed| {
        let whole = record(seed);
        let is_sync = |event: &FsEvent| matches!(event, FsEvent::Sync(SyncScope::Node(_)));
        let syncs = whole.recording.events.iter().filter(|event| is_sync(event)).count();
        assert!(syncs > 20, "{syncs} syncs");
        let recording = whole.recording.without_syncs(|_| true);
        cut_all(&Run { recording, ..whole }, STEP).is_err()
    });
    assert!(missed);
}

/// Steps of a life.
const STEPS: usize = 60;
/// One event in about this many is cut at.
const STEP: u64 = 12;
