use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

use bytes::Bytes;
use posthaste_random::Random;

use super::super::{ControlKind, ControlTable};
use super::*;
use crate::memory::{Fault, LogFaults, MemoryLog};

/// Keeps all that it is told, as a disk does.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<(ControlTable, Vec<ControlEntry>, bool)>>);

impl ControlFollower for Disk {
    fn apply(&mut self, place: ControlPlace, entries: &[ControlEntry]) -> Result<(), String> {
        let mut state = self.0.lock().unwrap();
        if state.2 {
            return Err("the disk is full".to_owned());
        }
        entries.iter().for_each(|entry| state.0.apply(entry));
        state.0.place = place;
        state.1.extend(entries.iter().cloned());
        Ok(())
    }

    fn replace(&mut self, table: &ControlTable) -> Result<(), String> {
        let mut state = self.0.lock().unwrap();
        if state.2 {
            return Err("the disk is full".to_owned());
        }
        state.0 = table.clone();
        Ok(())
    }

    fn trouble(&mut self, _: Option<&str>) {}

    fn tick(&mut self) {}
}

impl Disk {
    fn place(&self) -> ControlPlace {
        self.0.lock().unwrap().0.place
    }

    fn applied(&self) -> Vec<ControlEntry> {
        self.0.lock().unwrap().1.clone()
    }

    fn set_full(&self, is_full: bool) {
        self.0.lock().unwrap().2 = is_full;
    }
}

fn start(log: &MemoryLog, seed: u64, disk: &Disk) -> ControlShard {
    start_with(Arc::new(LastStays), log, seed, disk)
}

fn start_with(rules: Arc<dyn ControlRules>, log: &MemoryLog, seed: u64, disk: &Disk) -> ControlShard {
    let parts = (Arc::new(log.clone()) as Arc<dyn ShardLog>, rules);
    ControlShard::start(parts, disk.place(), seed, Box::new(disk.clone())).unwrap()
}

/// The last value of a key is its value.
struct LastStays;

impl ControlRules for LastStays {
    fn stays(&self, _: ControlKind, _: &Bytes, _: &Bytes) -> bool {
        false
    }

    fn restated(&self, _: ControlKind, value: &Bytes) -> Option<Bytes> {
        Some(value.clone())
    }
}

fn entry(key: &str) -> ControlEntry {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let value = Some(Bytes::from("it"));
    ControlEntry { kind: ControlKind::Suppression, key, value }
}

/// For changes that succeed.
const LONG: Duration = Duration::from_secs(60);

/// Waits until a node has applied the whole log.
fn meet(log: &MemoryLog, shard: &ControlShard) {
    let until = Instant::now() + LONG;
    while shard.place().position < log.end().unwrap() {
        assert!(Instant::now() < until, "{:?}", shard.trouble());
        shard.shared.wait_past(shard.place().position, until);
    }
}

#[test]
fn all_nodes_change_it_and_each_change_is_stored_once() {
    for seed in 0..6 {
        let log = MemoryLog::new(seed, LogFaults { held: 0, ..LogFaults::all() });
        let disks = [(); 3].map(|()| Disk::default());
        let disks_of = &disks;
        let begin = &Barrier::new(3);
        std::thread::scope(|scope| {
            for node in 0..3 {
                let log = &log;
                scope.spawn(move || {
                    let shard = start(log, 10 * seed + node, &disks_of[node as usize]);
                    begin.wait();
                    for number in 0..15 {
                        shard.put(&[entry(&format!("{node}.{number}"))], LONG).unwrap();
                    }
                    begin.wait();
                    meet(log, &shard);
                });
            }
        });
        let applied = disks[0].applied();
        assert!(disks.iter().all(|disk| disk.applied() == applied), "seed {seed}");
        let mut keys: Vec<Bytes> = applied.into_iter().map(|it| it.key).collect();
        keys.sort();
        let mut wanted: Vec<String> =
            (0..3).flat_map(|node| (0..15).map(move |number| format!("{node}.{number}"))).collect();
        wanted.sort();
        assert_eq!(keys, wanted, "seed {seed}");
    }
}

#[test]
fn a_lost_answer_is_decided_by_the_log() {
    let log = MemoryLog::new(1, LogFaults::default());
    let disk = Disk::default();
    let shard = start(&log, 1, &disk);
    log.script(&[Fault::UnknownStored, Fault::UnknownLost, Fault::Refused, Fault::None, Fault::UnknownLate(2)]);
    for key in ["a", "b", "c"] {
        shard.put(&[entry(key)], LONG).unwrap();
    }
    assert_eq!(disk.applied(), ["a", "b", "c"].map(entry));
}

#[test]
fn an_engine_that_is_away_is_named_and_nothing_is_lost() {
    let log = MemoryLog::new(1, LogFaults::default());
    let disk = Disk::default();
    let shard = start(&log, 1, &disk);
    shard.put(&[entry("a")], LONG).unwrap();
    log.set_away(true);
    assert!(shard.put(&[entry("b")], Duration::from_millis(50)).is_err());
    log.set_away(false);
    shard.put(&[entry("b")], LONG).unwrap();
    drop(shard);
    // The next process goes on from the disk.
    let shard = start(&log, 2, &disk);
    shard.put(&[entry("c")], LONG).unwrap();
    // The change without an answer was stored, too.
    let mut applied = disk.applied();
    applied.dedup();
    assert_eq!(applied, ["a", "b", "c"].map(entry));
}

#[test]
fn a_change_waits_for_others_no_longer_than_it_was_told() {
    let log = MemoryLog::new(1, LogFaults::default());
    let disk = Disk::default();
    let shard = start(&log, 1, &disk);
    let held = shard.shared.begin_write(Instant::now() + LONG).unwrap();
    let why = shard.put(&[entry("a")], Duration::from_millis(20)).unwrap_err();
    assert!(matches!(why, ControlShardError::Offline(_)), "{why}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| shard.put(&[entry("b")], LONG));
        drop(held);
        assert_eq!(waiting.join().unwrap(), Ok(LogPosition::new(1)));
    });
    assert_eq!(disk.applied(), [entry("b")]);
}

#[test]
fn a_change_that_is_stored_lets_the_next_one_begin() {
    let log = MemoryLog::new(1, LogFaults::default());
    let disk = Disk::default();
    let shard = start(&log, 1, &disk);
    disk.set_full(true);
    std::thread::scope(|scope| {
        // It waits for the disk.
        let first = scope.spawn(|| shard.put(&[entry("a")], LONG));
        let until = Instant::now() + LONG;
        while log.end().unwrap() < LogPosition::new(1) {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        assert!(shard.shared.begin_write(until).is_some());
        disk.set_full(false);
        assert_eq!(first.join().unwrap(), Ok(LogPosition::new(1)));
    });
}

#[test]
fn a_disk_that_refuses_gets_the_entries_again() {
    let log = MemoryLog::new(1, LogFaults::default());
    let disk = Disk::default();
    let shard = start(&log, 1, &disk);
    disk.set_full(true);
    // It is stored: other nodes have it.
    let position = shard.put(&[entry("a")], Duration::from_millis(600)).unwrap();
    assert_eq!((position, shard.trouble()), (LogPosition::new(1), Some("the disk is full".to_owned())));
    disk.set_full(false);
    meet(&log, &shard);
    assert_eq!(disk.applied(), [entry("a")]);
}

#[test]
fn another_history_is_not_applied() {
    let log = MemoryLog::new(1, LogFaults::default());
    let other = MemoryLog::new(2, LogFaults::default());
    let disk = Disk::default();
    let fresh = Disk::default();
    let shard = start(&log, 1, &disk);
    shard.put(&[entry("a")], LONG).unwrap();
    drop(shard);
    let shard = start(&other, 2, &fresh);
    shard.put(&[entry("x")], LONG).unwrap();
    shard.put(&[entry("y")], LONG).unwrap();
    // The engine's data were lost and made anew: this node has applied position 1 of another log.
    let shard = start(&other, 3, &disk);
    let why = shard.put(&[entry("b")], Duration::from_millis(600)).unwrap_err().to_string();
    assert!(why.contains("another history"), "{why}");
    assert_eq!(disk.applied(), [entry("a")]);
    // Shorter than what was applied.
    let shard = start(&MemoryLog::new(3, LogFaults::default()), 4, &disk);
    let why = shard.put(&[entry("b")], Duration::from_millis(600)).unwrap_err().to_string();
    assert!(why.contains("ends at 0"), "{why}");
}

/// Makes and removes values of a few keys.
fn change(shard: &ControlShard, random: &mut Random, count: u64) {
    for _ in 0..count {
        let value = (random.below(3) > 0).then(|| Bytes::copy_from_slice(&random.next().to_le_bytes()));
        let key = format!("key {}", random.below(12));
        shard.put(&[ControlEntry { value, ..entry(&key) }], LONG).unwrap();
    }
}

fn restate(shard: &ControlShard) {
    shard.restate(LONG).unwrap();
}

impl Disk {
    /// The values, with their place in the log.
    fn table(&self) -> ControlTable {
        self.0.lock().unwrap().0.clone()
    }
}

#[test]
fn a_node_that_was_away_has_the_values_of_the_others() {
    for seed in 0..4 {
        let log = MemoryLog::new(seed, LogFaults { held: 0, ..LogFaults::all() });
        let [here, there, away, behind, fresh] = [(); 5].map(|()| Disk::default());
        let random = &mut Random::of(seed, 1);
        let shard = start(&log, 10 * seed, &here);
        let other = start(&log, 10 * seed + 1, &there);
        change(&shard, random, 8);
        // One is away for a while, another is off the list.
        for disk in [&away, &behind] {
            let shard = start(&log, 10 * seed + 2, disk);
            meet(&log, &shard);
        }
        let lowest = away.place().position;
        change(&shard, random, 20);
        // Others change values meanwhile.
        std::thread::scope(|scope| {
            scope.spawn(|| change(&other, &mut Random::of(seed, 2), 10));
            restate(&shard);
        });
        meet(&log, &shard);
        assert_eq!(shard.cut(lowest), Ok(false), "seed {seed}: one lacks what is before it");
        let reader = start(&log, 10 * seed + 3, &away);
        meet(&log, &reader);
        change(&other, random, 5);
        meet(&log, &reader);
        meet(&log, &shard);
        assert_eq!(shard.cut(away.place().position), Ok(true), "seed {seed}");
        assert!(log.first().unwrap() > lowest, "seed {seed}");
        let back = start(&log, 10 * seed + 4, &behind);
        let new = start(&log, 10 * seed + 5, &fresh);
        for node in [&shard, &other, &reader, &back, &new] {
            meet(&log, node);
        }
        // Those that go on need what is to come alone.
        change(&back, random, 5);
        change(&new, random, 5);
        for node in [&shard, &other, &reader, &back, &new] {
            meet(&log, node);
        }
        drop((shard, other, reader, back, new));
        for disk in [&there, &away, &behind, &fresh] {
            assert_eq!(disk.table(), here.table(), "seed {seed}");
        }
    }
}

#[test]
fn a_restatement_of_many_values_has_several_records() {
    let log = MemoryLog::new(1, LogFaults::default());
    let (disk, fresh) = (Disk::default(), Disk::default());
    let shard = start(&log, 1, &disk);
    let keys: Vec<ControlEntry> = (0..3 * ENTRIES_MAX).map(|number| entry(&format!("{number:04}"))).collect();
    for part in keys.chunks(ENTRIES_MAX) {
        shard.put(part, LONG).unwrap();
    }
    restate(&shard);
    meet(&log, &shard);
    assert_eq!(log.end().unwrap(), LogPosition::new(7), "marks take room, too");
    assert_eq!(shard.cut(shard.place().position), Ok(true));
    assert_eq!((log.first().unwrap(), shard.cut(shard.place().position)), (LogPosition::new(4), Ok(false)));
    meet(&log, &start(&log, 2, &fresh));
    assert_eq!(fresh.table(), disk.table());
}

/// Some values expire after they were restated in a record.
struct Expiring(AtomicUsize);

impl ControlRules for Expiring {
    fn stays(&self, _: ControlKind, _: &Bytes, _: &Bytes) -> bool {
        false
    }

    fn restated(&self, _: ControlKind, value: &Bytes) -> Option<Bytes> {
        let is_valid = value != SHORT || self.0.fetch_add(1, Ordering::SeqCst) < ENTRIES_MAX;
        is_valid.then(|| value.clone())
    }
}

const SHORT: &str = "short";

#[test]
fn a_restatement_knows_which_attempt_was_stored() {
    let log = MemoryLog::new(1, LogFaults::default());
    let (disk, fresh) = (Disk::default(), Disk::default());
    let shard = start_with(Arc::new(Expiring(AtomicUsize::new(0))), &log, 1, &disk);
    let short = |number| ControlEntry { value: Some(Bytes::from(SHORT)), ..entry(&format!("{number:04}")) };
    let early: Vec<ControlEntry> = (0..ENTRIES_MAX).map(short).collect();
    let lasting: Vec<ControlEntry> =
        (ENTRIES_MAX..3 * ENTRIES_MAX).map(|number| entry(&format!("{number:04}"))).collect();
    for part in [&early[..]].into_iter().chain(lasting.chunks(ENTRIES_MAX)) {
        shard.put(part, LONG).unwrap();
    }
    // The first attempt is stored after others, which were made of what is valid later.
    log.script(&[Fault::UnknownLate(8)]);
    log.script(&[Fault::UnknownLost; 8]);
    restate(&shard);
    meet(&log, &shard);
    assert_eq!(shard.cut(shard.place().position), Ok(true));
    meet(&log, &start(&log, 2, &fresh));
    let table = fresh.table();
    let lost: Vec<_> = lasting.iter().filter(|it| table.value(it.kind, &it.key).is_none()).collect();
    assert_eq!(lost, Vec::<&ControlEntry>::new());
}

#[test]
fn a_restatement_without_its_end_cuts_nothing() {
    let log = MemoryLog::new(1, LogFaults::default());
    let (disk, fresh) = (Disk::default(), Disk::default());
    let shard = start(&log, 1, &disk);
    let keys: Vec<ControlEntry> = (0..2 * ENTRIES_MAX).map(|number| entry(&format!("{number:04}"))).collect();
    for part in keys.chunks(ENTRIES_MAX) {
        shard.put(part, LONG).unwrap();
    }
    // The engine goes away after the first record of it.
    log.set_away_at(LogPosition::new(4));
    assert!(shard.restate(Duration::from_millis(50)).is_err());
    log.set_away(false);
    meet(&log, &shard);
    assert!(log.end().unwrap() > LogPosition::new(2), "it has begun");
    assert_eq!(shard.cut(shard.place().position), Ok(false));
    // The next one is whole.
    restate(&shard);
    meet(&log, &shard);
    assert_eq!(shard.cut(shard.place().position), Ok(true));
    meet(&log, &start(&log, 2, &fresh));
    assert_eq!(fresh.table(), disk.table());
}

#[test]
fn a_log_that_begins_in_the_middle_is_not_applied() {
    let log = MemoryLog::new(1, LogFaults::default());
    let (disk, fresh) = (Disk::default(), Disk::default());
    let shard = start(&log, 1, &disk);
    for key in ["a", "b", "c"] {
        shard.put(&[entry(key)], LONG).unwrap();
    }
    log.cut(LogPosition::new(2)).unwrap();
    let new = start(&log, 2, &fresh);
    let why = new.put(&[entry("d")], Duration::from_millis(600)).unwrap_err().to_string();
    assert!(why.contains("another history"), "{why}");
    assert_eq!(fresh.applied(), []);
}
