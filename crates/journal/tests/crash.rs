//! What was acknowledged is there after a cut, a kill, a flipped byte or a second crash; what was not never comes back
//! changed. All on the simulated disk, so every failure is a seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_journal::layout::BLOCK;
use posthaste_journal::sim::{Faults, SimDisk};
use posthaste_journal::{AppendError, CheckpointError, Config, Damage, Journal, KIND_USER, Recovery};
use posthaste_turns::in_turns;
use proptest::prelude::*;

const MAIL: u8 = KIND_USER;
const SEGMENT: u64 = 64 * 1024;

fn config() -> Config {
    Config { segment_bytes: SEGMENT, max_segments: 8, ..Config::default() }
}

fn open(disk: &SimDisk) -> (Journal, Recovery) {
    Journal::open_on(Arc::new(disk.clone()), config()).expect("journal opens")
}

/// Bytes that only this message can have, of a length that differs from message to message.
fn body(tag: &str, n: usize) -> Bytes {
    let unit = format!("{tag}-{n}: every message is its own witness. ");
    unit.bytes().cycle().take(40 + n * 997 % 9000).collect::<Vec<u8>>().into()
}

/// What is live, by id.
fn found(journal: &Journal, recovery: &Recovery) -> BTreeMap<u64, Bytes> {
    recovery.records.iter().map(|record| (record.id, journal.read(record.id).expect("a live record reads").1)).collect()
}

/// Appends messages in groups until the disk fails; returns what was acknowledged and not settled, and all that was sent.
fn run(journal: &Journal, tag: &str, count: usize) -> (BTreeMap<u64, Bytes>, Vec<Bytes>) {
    let (mut acked, mut sent) = (BTreeMap::new(), Vec::new());
    for group in 0..count / 4 {
        let bodies: Vec<Bytes> = (0..4).map(|n| body(tag, group * 4 + n)).collect();
        let appends: Vec<_> =
            bodies.iter().map(|body| journal.append(MAIL, vec![body.slice(..7), body.slice(7..)])).collect();
        sent.extend(bodies.iter().cloned());
        for (append, body) in appends.into_iter().zip(bodies) {
            if let Ok(id) = append.wait() {
                acked.insert(id, body);
            }
        }
        // Half of what there is gets done, and now and then a checkpoint makes that final.
        let done: Vec<u64> = acked.keys().copied().step_by(2).collect();
        if group % 5 == 4 {
            for id in done {
                journal.settle(id);
                acked.remove(&id);
            }
            let _ = journal.checkpoint(|| Ok(()));
        }
    }
    (acked, sent)
}

#[test]
fn acknowledged_records_survive_a_power_cut_at_every_sync() {
    let whole = SimDisk::new(1);
    let (journal, _) = open(&whole);
    run(&journal, "m", 80);
    drop(journal);
    let mut cuts = 0;
    for seed in 0..3 {
        for cut in 1..=whole.syncs() {
            // The journal's threads take turns that follow from the same numbers, so this very cut is made again each time.
            in_turns(seed << 32 | cut, || cuts += cut_at_sync(seed, cut));
        }
    }
    println!("{cuts} cuts");
}

/// Also the recovery is cut, wherever it can be. Says how many cuts that were.
fn cut_at_sync(seed: u64, cut: u64) -> usize {
    let disk = SimDisk::with_faults(seed, Faults { cut_at_sync: Some(cut), ..Faults::default() });
    let Ok((journal, _)) = Journal::open_on(Arc::new(disk.clone()), config()) else { return 1 };
    let (acked, sent) = run(&journal, "m", 80);
    drop(journal);
    let disk = disk.power_cut();
    let again = disk.copy();
    let (journal, recovery) = open(&disk);
    let found = found(&journal, &recovery);
    let cuts = cut_recovery(&again, &found);
    for (id, body) in &acked {
        assert_eq!(found.get(id), Some(body), "seed {seed}, cut at sync {cut}: record {id} lost or changed");
    }
    assert!(found.values().all(|body| sent.contains(body)), "seed {seed}, cut {cut}: a record nobody wrote");
    assert!(recovery.damage.iter().all(|damage| !damage.promised), "seed {seed}, cut {cut}: {recovery:?}");
    // What was torn is no more promised in the next life, which has commits and checkpoints of its own.
    run(&journal, "n", 20 * (cut as usize % 2) + 4);
    drop(journal);
    let (_, recovery) = open(&disk.power_cut());
    assert!(recovery.damage.iter().all(|damage| !damage.promised), "seed {seed}, cut {cut}: {recovery:?}");
    1 + cuts
}

/// Cuts an opening of `disk`, and the end after it, at each sync and at each write; what is found then is what was found without.
fn cut_recovery(disk: &SimDisk, expected: &BTreeMap<u64, Bytes>) -> usize {
    let whole = disk.copy();
    drop(open(&whole));
    let syncs = (disk.syncs() + 1..=whole.syncs()).map(|at| Faults { cut_at_sync: Some(at), ..Faults::default() });
    let writes = (disk.writes() + 1..=whole.writes()).map(|at| Faults { cut_at_write: Some(at), ..Faults::default() });
    let mut cuts = 0;
    for faults in syncs.chain(writes) {
        let disk = disk.copy();
        disk.set_faults(faults);
        drop(Journal::open_on(Arc::new(disk.clone()), config()));
        let (journal, recovery) = open(&disk.power_cut());
        assert_eq!(found(&journal, &recovery), *expected, "{faults:?}");
        assert!(recovery.damage.iter().all(|damage| !damage.promised), "{faults:?}: {recovery:?}");
        cuts += 1;
    }
    cuts
}

#[test]
fn the_simulated_disk_finds_a_journal_that_does_not_sync() {
    let lost = (0..20).any(|seed| {
        let disk = SimDisk::with_faults(seed, Faults { sync_lies: true, ..Faults::default() });
        let (journal, _) = open(&disk);
        let (acked, _) = run(&journal, "m", 20);
        drop(journal);
        let (journal, recovery) = open(&disk.power_cut());
        let found = found(&journal, &recovery);
        acked.keys().any(|id| !found.contains_key(id))
    });
    assert!(lost, "with every sync a lie, some cut must lose something, or these tests prove nothing");
}

#[test]
fn a_crash_a_short_write_and_a_second_crash_bring_nothing_back() {
    let whole = SimDisk::new(3);
    let (journal, _) = open(&whole);
    run(&journal, "a", 40);
    drop(journal);
    for cut in 1..=whole.writes() {
        in_turns(cut, || cut_at_write_and_again(cut));
    }
}

fn cut_at_write_and_again(cut: u64) {
    let disk = SimDisk::with_faults(cut, Faults { cut_at_write: Some(cut), ..Faults::default() });
    let Ok((journal, _)) = Journal::open_on(Arc::new(disk.clone()), config()) else { return };
    let (acked, _) = run(&journal, "a", 40);
    drop(journal);
    let disk = disk.power_cut();
    let (journal, first) = open(&disk);
    let before = found(&journal, &first);
    assert!(acked.iter().all(|(id, body)| before.get(id) == Some(body)), "write {cut}: lost");
    // A short second life, cut off in the midst of one of its first writes: segments' headers, or the record.
    disk.set_faults(Faults { cut_at_write: Some(disk.writes() + 1 + cut % 4), ..Faults::default() });
    let _ = journal.append(MAIL, vec![body("b", 1)]).wait();
    drop(journal);
    let (journal, second) = open(&disk.power_cut());
    let mut after = found(&journal, &second);
    // The one whose write was cut off may be whole; everything else is of the first life, written or torn.
    after.retain(|_, found| *found != body("b", 1));
    assert!(after == before, "write {cut}: the second recovery sees another past than the first");
}

#[test]
fn a_failed_sync_is_final() {
    let disk = SimDisk::new(4);
    let (journal, _) = open(&disk);
    // Spare segments are synced as well and a failure there harms nobody, so the first may go by.
    let mut acked = BTreeMap::new();
    let failed = (0..100).find_map(|n| {
        disk.set_faults(Faults { fail_sync: Some(disk.syncs() + 1), ..Faults::default() });
        match journal.append(MAIL, vec![body("kept", n)]).wait() {
            Ok(id) => {
                acked.insert(id, body("kept", n));
                None
            }
            // It was a spare segment that the writer was waiting for: nothing was written.
            Err(AppendError::Full(_)) => None,
            Err(error) => Some(error),
        }
    });
    assert!(matches!(failed, Some(AppendError::Poisoned(_))), "{failed:?}");
    let after = journal.append(MAIL, vec![body("later", 1)]).wait();
    assert!(matches!(after, Err(AppendError::Poisoned(_))), "the disk is healthy again, but nobody may believe it");
    drop(journal);
    let (journal, recovery) = open(&disk.power_cut());
    assert_eq!(found(&journal, &recovery), acked);
    journal.append(MAIL, vec![body("again", 1)]).wait().expect("reopened");
}

#[test]
fn what_a_failed_sync_left_in_the_cache_is_durable_once_it_was_handed_out() {
    let mut came_back = 0;
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let (journal, _) = open(&disk);
        journal.append(MAIL, vec![body("kept", 1)]).wait().expect("a healthy disk");
        disk.set_faults(Faults { fail_sync: Some(disk.syncs() + 1 + seed % 2), ..Faults::default() });
        let _ =
            (journal.append(MAIL, vec![body("torn", 2)]).wait(), journal.append(MAIL, vec![body("torn", 3)]).wait());
        drop(journal);
        let disk = disk.kill();
        let (journal, recovery) = open(&disk);
        let handed_out = found(&journal, &recovery);
        came_back += handed_out.len() - 1;
        drop(journal);
        let (journal, recovery) = open(&disk.power_cut());
        assert_eq!(found(&journal, &recovery), handed_out, "seed {seed}");
    }
    assert!(came_back > 0, "the cache never held a record that was refused");
}

#[test]
fn a_full_journal_refuses_whole_messages_and_takes_mail_again_after_a_checkpoint() {
    let disk = SimDisk::new(5);
    let (journal, _) = open(&disk);
    let mut ids = Vec::new();
    let refused = loop {
        match journal.append(MAIL, vec![body("full", ids.len())]).wait() {
            Ok(id) => ids.push(id),
            Err(error) => break error,
        }
        assert!(ids.len() < 10_000, "a journal of eight small segments never filled up");
    };
    assert!(matches!(refused, AppendError::Full(_)), "{refused:?}");
    for _ in 0..5 {
        assert!(journal.append(MAIL, vec![body("full", 0)]).wait().is_err());
    }
    ids.iter().for_each(|&id| journal.settle(id));
    let stats = journal.checkpoint(|| Ok(())).expect("a checkpoint finds room when mail does not");
    assert!(stats.recycled > 3, "{stats:?}");
    for n in 0..20 {
        journal.append(MAIL, vec![body("flow", n)]).wait().expect("mail flows again");
    }
    drop(journal);
    let (journal, recovery) = open(&disk.power_cut());
    assert_eq!(found(&journal, &recovery).len(), 20);
}

/// Appends until the journal refuses; returns the ids.
fn fill(journal: &Journal) -> Vec<u64> {
    let mut ids = Vec::new();
    loop {
        match journal.append(MAIL, vec![vec![ids.len() as u8; 5000].into()]).wait() {
            Ok(id) => ids.push(id),
            Err(AppendError::Full(_)) => return ids,
            Err(error) => panic!("{error}"),
        }
        assert!(ids.len() < 10_000, "a journal of eight small segments never filled up");
    }
}

#[test]
fn a_full_journal_opens_however_often_and_empties() {
    let disk = SimDisk::new(11);
    let (journal, _) = open(&disk);
    let count = fill(&journal).len();
    drop(journal);
    for _ in 0..5 {
        let (journal, recovery) = open(&disk);
        assert_eq!(recovery.records.len(), count);
        assert_eq!(fill(&journal), [], "a new opening is no new room");
        assert!(journal.flush().is_ok(), "waiting needs no room");
    }
    let (journal, recovery) = open(&disk.power_cut());
    recovery.records.iter().for_each(|record| journal.settle(record.id));
    assert!(journal.checkpoint(|| Ok(())).expect("there is room for it").recycled > 5);
    assert!(!fill(&journal).is_empty(), "mail flows again");
    drop(journal);
    assert!(disk.files().len() <= config().max_segments, "{:?}", disk.files());
}

#[test]
fn a_full_journal_with_much_that_lives_empties_step_by_step() {
    for (live, seed) in (0..9).zip(20..) {
        let disk = SimDisk::new(seed);
        let (journal, _) = open(&disk);
        let ids = fill(&journal);
        let (kept, done): (Vec<_>, Vec<_>) = ids.iter().enumerate().partition(|(n, _)| n % 9 < live);
        done.iter().for_each(|(_, id)| journal.settle(**id));
        let mut recycled = 0;
        for _ in 0..4 {
            recycled += journal.checkpoint(|| Ok(())).unwrap_or_else(|error| panic!("{live}/9 live: {error}")).recycled;
        }
        assert!(recycled > 0, "{live}/9 live: copies would have fitted");
        let room = fill(&journal);
        drop(journal);
        let (journal, recovery) = open(&disk.power_cut());
        let kept: Vec<u64> = kept.iter().map(|(_, id)| **id).chain(room).collect();
        assert_eq!(found(&journal, &recovery).into_keys().collect::<Vec<_>>(), kept, "{live}/9 live");
        kept.iter().for_each(|id| journal.settle(*id));
        journal.checkpoint(|| Ok(())).expect("everything is finished");
        assert!(!fill(&journal).is_empty());
    }
}

#[test]
fn a_segment_full_of_what_lives_keeps_none_behind_it() {
    let disk = SimDisk::new(21);
    let (journal, _) = open(&disk);
    let one_segment =
        |byte: u8, len: usize| journal.append(MAIL, vec![vec![byte; len].into()]).wait().expect("there is room");
    let stuck = one_segment(0, 58_000);
    let thin = one_segment(1, 5_000);
    (2..7).for_each(|byte| journal.settle(one_segment(byte, 55_000)));
    assert!(journal.append(MAIL, vec![vec![0; 55_000].into()]).wait().is_err(), "the journal is full");
    let stats = journal.checkpoint(|| Ok(())).expect("checkpoint");
    assert!(stats.recycled >= 5, "{stats:?}");
    assert_eq!(stats.copied, 1, "{stats:?}");
    // Of the segments that were used again some are overwritten and some are not: neither is damage.
    let later: Vec<u64> = (0..3).map(|n| one_segment(10 + n, 50_000)).collect();
    let kept: Vec<u64> = [stuck, thin].into_iter().chain(later).collect();
    for after in [disk.copy().kill(), disk.power_cut()] {
        let (journal, recovery) = open(&after);
        assert_eq!(found(&journal, &recovery).into_keys().collect::<Vec<_>>(), kept);
        assert_eq!(recovery.damage, []);
        assert!(journal.append(MAIL, vec![body("more", 1)]).wait().is_ok());
    }
}

#[test]
fn what_was_freed_from_the_middle_of_the_log_is_not_missing_when_something_else_is() {
    let disk = SimDisk::new(25);
    let (journal, _) = open(&disk);
    let one_segment =
        |text: &str| journal.append(MAIL, vec![text.repeat(57_000 / text.len()).into()]).wait().expect("there is room");
    let stuck = one_segment("stuck");
    let name = disk.files()[0].0.clone();
    (0..6).for_each(|_| journal.settle(one_segment("done")));
    assert!(journal.checkpoint(|| Ok(())).expect("checkpoint").recycled >= 5);
    // These lie in segments that were used before, so the log has holes.
    let later: Vec<u64> = (0..3).map(|_| one_segment("later")).collect();
    journal.settle(later[1]);
    journal.checkpoint(|| Ok(())).expect("checkpoint");
    drop(journal);
    assert_eq!(open(&disk.copy()).1.damage, []);

    let flipped = |at: usize| {
        let disk = disk.copy();
        disk.edit(&name, |bytes| bytes[at] ^= 1);
        let (journal, recovery) = open(&disk);
        assert_eq!(found(&journal, &recovery).into_keys().collect::<Vec<_>>(), [later[0], later[2]]);
        let told = |damage: Damage| (damage.segment, damage.seqs, damage.promised);
        recovery.damage.into_iter().map(told).collect::<Vec<_>>()
    };
    let seqs = Some((stuck, stuck));
    assert_eq!(flipped(3 * BLOCK), [(name.clone(), seqs, true)], "a byte of the payload");
    assert_eq!(flipped(BLOCK + 20), [(name.clone(), None, true), (String::new(), seqs, true)], "a byte of the header");
}

#[test]
fn a_failed_checkpoint_brings_back_what_was_settled_while_it_ran_wherever_it_was_copied() {
    let disk = SimDisk::new(12);
    let (journal, _) = Journal::open_on(Arc::new(disk.clone()), Config { max_segments: 12, ..config() }).unwrap();
    let turn = |count: usize| {
        for n in 0..count {
            journal.settle(journal.append(MAIL, vec![body("turn", n)]).wait().unwrap());
        }
    };
    let first = journal.append(MAIL, vec![body("first", 7)]).wait().unwrap();
    turn(60);
    // Copied out of its segment by the very checkpoint during which it is settled; then that segment is used again.
    let settles = journal.clone();
    let stats = journal.checkpoint(move || {
        settles.settle(first);
        Ok(())
    });
    assert!(matches!(stats, Ok(stats) if stats.copied == 1 && stats.recycled > 0), "{stats:?}");
    turn(60);
    let late = journal.append(MAIL, vec![body("late", 1)]).wait().unwrap();
    let settles = journal.clone();
    let failed = journal.checkpoint(move || {
        settles.settle(late);
        Err(std::io::ErrorKind::Other.into())
    });
    let Err(CheckpointError::MakeDurable { records, .. }) = failed else { panic!("{failed:?}") };
    assert!(records.contains(&first) && records.contains(&late), "{records:?}");
    assert_eq!(journal.read(first).unwrap().1, body("first", 7));
    records.iter().for_each(|id| journal.settle(*id));
    journal.checkpoint(|| Ok(())).expect("the disk is well again");
}

#[test]
fn a_record_that_cannot_be_read_pins_its_segment_and_hinders_no_checkpoint() {
    let disk = SimDisk::new(13);
    let (journal, _) = open(&disk);
    let settle = |n| journal.settle(journal.append(MAIL, vec![body("before", n)]).wait().unwrap());
    (0..30).for_each(settle);
    let rotten = journal.append(MAIL, vec![body("rotten", 3)]).wait().unwrap();
    (30..60).for_each(settle);
    damage(&disk, b"rotten-3");
    let in_service = journal.stats().segments_in_service;
    let stats = journal.checkpoint(|| Ok(())).expect("it goes as far as it can");
    // All but its own and the one that is being written.
    assert_eq!((stats.unreadable, stats.recycled), (1, in_service - 2), "{stats:?}");
    assert!(journal.read(rotten).is_err());
    journal.settle(rotten);
    let stats = journal.checkpoint(|| Ok(())).expect("nobody needs it any more");
    assert!(stats.recycled > 0 && stats.unreadable == 0, "{stats:?}");
}

#[test]
fn a_sector_that_cannot_be_read_loses_what_lies_in_it_and_no_more() {
    let (disk, acked) = sample();
    let name = disk.files()[0].0.clone();
    let whole = disk.read(&name);
    for block in 0..SEGMENT as usize / BLOCK {
        let range = block * BLOCK..(block + 1) * BLOCK;
        let disk = disk.copy();
        disk.spoil(&name, range.start + 700);
        let (journal, recovery) = open(&disk);
        let found = found(&journal, &recovery);
        let is_told = recovery.damage.iter().any(|damage| damage.promised);
        match block {
            0 => assert!(found.is_empty() && is_told, "without a header nothing is believed"),
            _ if whole[range].iter().any(|&byte| byte != 0) => {
                assert!(found.len() == acked.len() - 1 && is_told, "block {block}: {:?}", recovery.damage);
            }
            _ => assert!(found.len() == acked.len() && !recovery.damage.is_empty(), "block {block}"),
        }
        assert!(found.iter().all(|(id, body)| acked.get(id) == Some(body)), "block {block}: a wrong record");
        // And it goes on from there.
        journal.append(MAIL, vec![body("more", 1)]).wait().expect("the rest of the disk is well");
        recovery.records.iter().for_each(|record| journal.settle(record.id));
        journal.checkpoint(|| Ok(())).expect("what could not be read is not needed any more");
    }
}

#[test]
fn a_segment_that_is_too_short_or_empty_is_damage_and_stays() {
    for len in [0, 100, BLOCK - 1, BLOCK, 3 * BLOCK] {
        let (disk, _) = sample();
        let name = disk.files()[0].0.clone();
        disk.edit(&name, |bytes| bytes.truncate(len));
        let (_, recovery) = open(&disk);
        assert!(recovery.damage.iter().any(|damage| damage.promised), "{len}: {:?}", recovery.damage);
        // All that is left of one is a header that says what is known anyway.
        assert!(len == BLOCK || disk.files().iter().any(|(file, _)| *file == name), "{len}: it was removed");
    }
    // Zeros where the header was, and a record behind it.
    let (disk, _) = sample();
    let name = disk.files()[0].0.clone();
    disk.edit(&name, |bytes| bytes[..3 * BLOCK].fill(0));
    let (_, recovery) = open(&disk);
    assert!(recovery.damage.iter().any(|damage| damage.promised), "{:?}", recovery.damage);
}

/// Flips a bit of each copy of the record that begins with `text`.
fn damage(disk: &SimDisk, text: &[u8]) {
    for (name, _) in disk.files() {
        disk.edit(&name, |bytes| {
            if let Some(at) = bytes.windows(text.len()).position(|window| window == text) {
                bytes[at] ^= 1;
            }
        });
    }
}

#[test]
fn what_a_life_has_found_was_promised_and_what_was_torn_before_it_was_not() {
    let disk = SimDisk::new(22);
    let pairs = Config { max_batch: 2, max_wait: std::time::Duration::from_secs(3600), ..config() };
    let (journal, _) = Journal::open_on(Arc::new(disk.clone()), pairs).expect("journal opens");
    let pairs = ["first", "kept", "torn", "whole"].map(|tag| journal.append(MAIL, vec![body(tag, 1)]));
    assert!(pairs.into_iter().all(|append| append.wait().is_ok()));
    drop(journal);
    // As if the power had gone while the second pair was written.
    damage(&disk, b"torn-1");
    let (journal, recovery) = open(&disk);
    assert_eq!((recovery.records.len(), recovery.damage.len()), (3, 1), "{recovery:?}");
    assert!(!recovery.damage[0].promised, "{recovery:?}");
    journal.append(MAIL, vec![body("next", 1)]).wait().unwrap();
    drop(journal);
    let again = open(&disk.copy()).1;
    assert!(again.damage.iter().all(|damage| !damage.promised), "nobody was told: {again:?}");

    // Nothing of its own life says that it was durable, only what the next one has found.
    let disk_of = disk.copy();
    damage(&disk_of, b"kept-1");
    assert!(open(&disk_of).1.damage.iter().any(|damage| damage.promised), "it was acknowledged");
    // It came to light behind the torn one, and a checkpoint lists it.
    open(&disk).0.checkpoint(|| Ok(())).unwrap();
    assert_eq!(open(&disk.copy()).1.damage, [], "a checkpoint forgets what was torn");
    damage(&disk, b"whole-1");
    assert!(open(&disk).1.damage.iter().any(|damage| damage.promised), "it was handed out, and is listed");
}

#[test]
fn sizes_that_cannot_be_are_rounded() {
    let odd = Config { segment_bytes: SEGMENT + 1000, max_batch: 0, ..config() };
    let disk = SimDisk::new(23);
    let (journal, _) = Journal::open_on(Arc::new(disk.clone()), odd).unwrap();
    let largest = journal.max_record_bytes();
    for n in [largest, 1, largest, largest - 1] {
        journal.append(MAIL, vec![vec![7; n].into()]).wait().expect("it fits, padding and all");
    }
    assert!(disk.files().iter().all(|(_, bytes)| *bytes as u64 == SEGMENT), "{:?}", disk.files());
    let tiny = Config { segment_bytes: 1, ..config() };
    let (journal, _) = Journal::open_on(Arc::new(SimDisk::new(24)), tiny).unwrap();
    journal.append(MAIL, vec![body("m", 1)]).wait().expect("there is a least size");
}

#[test]
fn a_full_batch_does_not_wait_for_its_time() {
    let patient = Config { max_batch: 4, max_wait: std::time::Duration::from_secs(3600), ..config() };
    let (journal, _) = Journal::open_on(Arc::new(SimDisk::new(14)), patient).unwrap();
    let appends: Vec<_> = (0..4).map(|n| journal.append(MAIL, vec![body("n", n)])).collect();
    assert!(appends.into_iter().all(|append| append.wait().is_ok()));
}

#[test]
fn a_segment_whose_only_record_is_damaged_is_not_used_again_and_the_record_is_set_aside_whole() {
    let disk = SimDisk::new(15);
    let (journal, _) = open(&disk);
    journal.append(MAIL, vec![vec![b'x'; 20_000].into()]).wait().unwrap();
    drop(journal);
    let name = disk.files()[0].0.clone();
    disk.edit(&name, |bytes| bytes[BLOCK + 20] ^= 1);
    let (journal, recovery) = open(&disk);
    assert_eq!(recovery.damage.len(), 1, "{recovery:?}");
    assert_eq!(journal.stats().segments_in_service, 1);
    let aside = disk.files().into_iter().find(|(name, _)| name.ends_with(".damaged"));
    assert!(aside.as_ref().is_some_and(|(_, bytes)| *bytes > 20_000), "{aside:?}");
}

#[test]
fn a_disk_without_space_is_full_and_not_poisoned() {
    let disk = SimDisk::with_faults(6, Faults { files_max: Some(3), ..Faults::default() });
    let (journal, _) = open(&disk);
    let mut count = 0;
    while journal.append(MAIL, vec![body("n", count)]).wait().is_ok() {
        count += 1;
        assert!(count < 10_000);
    }
    disk.set_faults(Faults::default());
    journal.append(MAIL, vec![body("n", count)]).wait().expect("space has returned");
}

#[test]
fn a_failed_checkpoint_frees_nothing() {
    let disk = SimDisk::new(7);
    let (journal, _) = open(&disk);
    let ids: Vec<u64> = (0..40).map(|n| journal.append(MAIL, vec![body("c", n)]).wait().unwrap()).collect();
    ids.iter().for_each(|&id| journal.settle(id));
    let failed = journal.checkpoint(|| Err(std::io::ErrorKind::Other.into()));
    let Err(CheckpointError::MakeDurable { records, .. }) = failed else { panic!("{failed:?}") };
    assert_eq!(records, ids, "what was settled is live again");
    drop(journal);
    let (journal, recovery) = open(&disk.power_cut());
    assert_eq!(found(&journal, &recovery).into_keys().collect::<Vec<_>>(), ids);
}

#[test]
fn what_was_settled_while_a_checkpoint_failed_is_live_again_too() {
    let disk = SimDisk::new(8);
    let (journal, _) = open(&disk);
    let ids: Vec<u64> = (0..3).map(|n| journal.append(MAIL, vec![body("m", n)]).wait().unwrap()).collect();
    journal.settle(ids[0]);
    let failed = journal.checkpoint(|| {
        // Written before the sync failed, so the sync may have dropped it, and no later sync would say so.
        journal.settle(ids[1]);
        Err(std::io::Error::other("syncfs failed"))
    });
    let Err(CheckpointError::MakeDurable { records, .. }) = failed else { panic!("{failed:?}") };
    assert_eq!(records, ids[..2]);
    journal.checkpoint(|| Ok(())).unwrap();
    assert!(ids.iter().all(|&id| journal.read(id).is_ok()), "a record was forgotten");
}

#[test]
fn live_records_are_copied_forward_and_keep_their_ids() {
    let disk = SimDisk::new(8);
    let (journal, _) = open(&disk);
    let stuck = journal.append(MAIL, vec![body("stuck", 3)]).wait().unwrap();
    let mut copied = 0;
    for n in 0..400 {
        let id = journal.append(MAIL, vec![body("flow", n)]).wait().unwrap();
        journal.settle(id);
        if n % 20 == 19 {
            copied += journal.checkpoint(|| Ok(())).unwrap().copied;
        }
    }
    assert!(copied > 0, "the log turned over many times, so the old record must have moved");
    assert_eq!(journal.read(stuck).unwrap(), (MAIL, body("stuck", 3)));
    assert_eq!(journal.replace(stuck, MAIL + 1, vec![body("less", 1)]).wait(), Ok(stuck));
    drop(journal);
    let (journal, recovery) = open(&disk.power_cut());
    assert_eq!(recovery.records.len(), 1, "{recovery:?}");
    assert_eq!(journal.read(stuck).unwrap(), (MAIL + 1, body("less", 1)));
    assert!(disk.files().len() <= 8);
}

#[test]
fn notes_outlive_a_kill_until_the_next_checkpoint() {
    let disk = SimDisk::new(9);
    let (journal, _) = open(&disk);
    journal.append_note(MAIL + 4, vec!["first".into()]);
    journal.append(MAIL, vec!["wakes".into()]).wait().unwrap();
    let (journal, recovery) = {
        drop(journal);
        open(&disk.kill())
    };
    assert_eq!(
        recovery.notes.iter().map(|note| (note.kind, &note.payload[..])).collect::<Vec<_>>(),
        [(MAIL + 4, &b"first"[..])]
    );
    journal.checkpoint(|| Ok(())).unwrap();
    drop(journal);
}

/// The notes that a kill leaves, as text.
fn notes_after_a_kill(disk: &SimDisk) -> Vec<String> {
    let (_, recovery) = open(&disk.kill());
    recovery.notes.into_iter().map(|note| String::from_utf8(note.payload).expect("a text")).collect()
}

#[test]
fn a_full_journal_has_room_for_notes_and_they_leave_room_for_checkpoints() {
    let disk = SimDisk::new(17);
    let (journal, _) = open(&disk);
    let ids = fill(&journal);
    journal.append_note(MAIL + 4, vec!["aside".into()]);
    journal.append_note_durably(MAIL + 5, vec!["durable".into()]).wait().expect("it may take a checkpoint's room");
    assert_eq!(notes_after_a_kill(&disk.copy().power_cut()), ["aside", "durable"]);
    // Far more than fit.
    for round in 0..100 {
        for _ in 0..10 {
            journal.append_note(MAIL + 4, vec![vec![round; 200].into()]);
        }
        journal.flush().expect("waiting needs no room");
    }
    assert_eq!(fill(&journal), [], "mail finds none all the while");
    journal.append_note_durably(MAIL + 5, vec!["another".into()]).wait().expect("notes have left room");
    ids.iter().for_each(|&id| journal.settle(id));
    assert!(journal.checkpoint(|| Ok(())).expect("notes have left room").recycled > 5);
    // Room again, so notes are no longer held short.
    journal.append_note(MAIL + 4, vec!["later".into()]);
    journal.flush().expect("written");
    assert_eq!(notes_after_a_kill(&disk.copy()), ["later"]);
    assert!(!fill(&journal).is_empty(), "mail flows again");
}

#[test]
fn a_new_version_of_a_record_that_was_settled_meanwhile_does_not_outlive_it() {
    let disk = SimDisk::new(18);
    let slow = Config { max_batch: 2, max_wait: std::time::Duration::from_secs(3600), ..config() };
    let (journal, _) = Journal::open_on(Arc::new(disk.clone()), slow).expect("journal opens");
    // Nothing is written until there are two.
    let pair = [journal.append(MAIL, vec!["settled".into()]), journal.append(MAIL, vec!["stays".into()])];
    let [settled, stays] = pair.map(|append| append.wait().expect("durable"));
    let replaced = journal.replace(settled, MAIL, vec!["a new version".into()]);
    journal.settle(settled);
    // Its record is the second: so the new version lies behind all that the checkpoint knows of.
    journal.checkpoint(|| Ok(())).expect("checkpoint");
    replaced.wait().expect("written");
    for after in [disk.copy().kill(), disk.power_cut()] {
        let (_, recovery) = open(&after);
        assert_eq!(recovery.records.iter().map(|record| record.id).collect::<Vec<_>>(), [stays]);
    }
}

/// A journal of one message of each of some sizes, everything acknowledged, and a mark behind it.
fn sample() -> (SimDisk, BTreeMap<u64, Bytes>) {
    let disk = SimDisk::new(10);
    let (journal, _) = open(&disk);
    let acked: BTreeMap<u64, Bytes> = (0..8)
        .map(|n| {
            let body = body("s", n);
            (journal.append(MAIL, vec![body.clone()]).wait().unwrap(), body)
        })
        .collect();
    drop(journal);
    // The next life says what it has found of the one before.
    open(&disk).0.append_note_durably(MAIL, vec!["a mark".into()]).wait().unwrap();
    // All in the first segment, so that an offset in it can hit any of them.
    let first = disk.read(&disk.files()[0].0);
    assert!(first[SEGMENT as usize - BLOCK..].iter().all(|&byte| byte == 0));
    (disk, acked)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_byte_loses_at_most_its_own_record(at in 0usize..SEGMENT as usize, bit in 0u32..8) {
        let (disk, acked) = sample();
        let name = disk.files()[0].0.clone();
        disk.edit(&name, |bytes| bytes[at] ^= 1 << bit);
        let (journal, recovery) = open(&disk);
        let found = found(&journal, &recovery);
        prop_assert!(found.iter().all(|(id, body)| acked.get(id) == Some(body)), "a wrong record");
        prop_assert!(acked.len() - found.len() <= 1, "byte {} cost {} records", at, acked.len() - found.len());
        let is_told = recovery.damage.iter().any(|damage| damage.promised);
        prop_assert!(found.len() == acked.len() || is_told, "byte {}: {:?}", at, recovery.damage);
    }

    #[test]
    fn any_truncation_yields_a_prefix_and_never_a_wrong_record(len in 0usize..SEGMENT as usize) {
        let (disk, acked) = sample();
        let name = disk.files()[0].0.clone();
        disk.edit(&name, |bytes| bytes.truncate(len));
        let (journal, recovery) = open(&disk);
        let found = found(&journal, &recovery);
        let is_told = recovery.damage.iter().any(|damage| damage.promised);
        prop_assert!(found.len() == acked.len() || is_told, "length {}: {:?}", len, recovery.damage);
        let prefix: BTreeMap<_, _> = acked.into_iter().take(found.len()).collect();
        prop_assert!(found == prefix, "length {}: {:?} is no prefix", len, found.keys());
    }

    #[test]
    fn hostile_segments_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..3 * BLOCK), at in 0usize..60_000) {
        let (disk, acked) = sample();
        let name = disk.files()[0].0.clone();
        disk.edit(&name, |file| {
            let end = (at + bytes.len()).min(file.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
        });
        let (journal, recovery) = open(&disk);
        let found = found(&journal, &recovery);
        prop_assert!(found.iter().all(|(id, body)| acked.get(id) == Some(body)), "a wrong record");
    }
}
