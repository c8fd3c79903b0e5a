//! Damage costs what it names and nothing else, and damage to what was promised is told.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_ring::layout::{BLOCK, FIRST_RECORD, RECORD_HEADER};
use posthaste_ring::{Config, Lsn, OnRecord, Recovery, Ring, RingDamage, RingOpenError, RingReadError};

const SEGMENT: u64 = 64 << 10;

fn try_open(dir: &Path, low: u64, gives_up_missing: bool) -> Result<(Ring, Recovery), RingOpenError> {
    let config = Config { segment_bytes: SEGMENT, gives_up_missing, ..Config::default() };
    Ring::open(dir, config, OnRecord { low, ..OnRecord::default() })
}

fn open(dir: &Path, low: u64) -> (Ring, Recovery) {
    try_open(dir, low, false).expect("ring opens")
}

/// It is refused, and changes nothing; then it is opened without the segments that are missing.
/// The last of these may be one that was made ahead.
fn open_without(dir: &Path, low: u64, expected: &[u64]) -> (Ring, Recovery, u64) {
    let before = content(dir);
    let refused = try_open(dir, low, false).err().expect("it is refused");
    let RingOpenError::Missing { numbers, .. } = &refused else { panic!("{refused}") };
    assert!(numbers.starts_with(expected), "{refused}");
    assert!(content(dir) == before, "it was changed");
    let examined = posthaste_ring::examine(dir, None, OnRecord { low, ..OnRecord::default() }).unwrap();
    assert!(examined.missing.starts_with(expected) && examined.missing.len() < expected.len() + 3, "{examined:?}");
    let (ring, recovery) = try_open(dir, low, true).expect("ring opens");
    let told = |damage: &[RingDamage]| damage.iter().filter(|damage| damage.promised).cloned().collect::<Vec<_>>();
    assert_eq!(told(&examined.damage), told(&recovery.damage));
    assert!(recovery.lost_through > Lsn::ZERO);
    (ring, recovery, *numbers.last().unwrap())
}

fn content(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn append(ring: &Ring, head: &str, body: &[u8]) -> Lsn {
    let (tell, told) = channel();
    ring.append(vec![head.to_owned().into()], vec![Bytes::copy_from_slice(body)], move |outcome| {
        tell.send(outcome).unwrap();
    });
    told.recv().expect("an answer").expect("durable")
}

/// In memory where there is such a place: nothing here is meant to last.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = scratch();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    to
}

/// Segment files by number.
fn segments(dir: &Path) -> BTreeMap<u64, PathBuf> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let segments = paths.filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    let number = |path: &PathBuf| posthaste_ring::SegmentReader::open(path).ok().map(|segment| segment.header().number);
    segments.filter_map(|path| Some((number(&path)?, path))).collect()
}

/// The records found: heads, and bodies where they are whole.
fn found(ring: &Ring) -> BTreeMap<Lsn, (Bytes, Option<Bytes>)> {
    let mut all = BTreeMap::new();
    ring.visit(Lsn::ZERO, &mut |record| {
        let body = match ring.read_body(record.lsn, 0..u32::MAX) {
            Ok(body) => Some(body),
            Err(RingReadError::BodyDamaged(lsn)) if lsn == record.lsn => None,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(ring.read_head(record.lsn).expect("it was shown"), record.head);
        all.insert(record.lsn, (record.head, body));
        ControlFlow::Continue(())
    })
    .expect("what was found can be shown");
    all
}

/// Two lives with a few records each, in two segments; a short third proves what they promised.
fn sample() -> (tempfile::TempDir, BTreeMap<Lsn, (Bytes, Option<Bytes>)>) {
    let dir = scratch();
    for life in 0..3 {
        let (ring, recovery) = open(dir.path(), 0);
        assert_eq!(recovery.damage, []);
        for n in 0..[3, 2, 1][life] {
            append(&ring, &format!("life {life}, record {n}"), &[n as u8 + 1; 70][..30 + 20 * n]);
        }
    }
    let all = found(&open(dir.path(), 0).0);
    assert_eq!(all.len(), 6);
    (dir, all)
}

#[test]
fn any_flipped_byte_costs_what_it_names_and_nothing_else() {
    let (dir, all) = sample();
    let last = *all.keys().next_back().unwrap();
    let mut costs = BTreeMap::<&str, usize>::new();
    for (number, path) in segments(dir.path()).into_iter().filter(|(number, _)| *number <= 3) {
        let whole = std::fs::read(&path).unwrap();
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        // Each byte of one record, some of each other and of the headers, of what fills their blocks, and of the free space after.
        let is_tried = |at: &usize| match (number, at / BLOCK, at % BLOCK) {
            (1, 3, 0..150) => true,
            (_, _, 0..150) => at % 7 == number as usize,
            _ => at.is_multiple_of(1021),
        };
        for at in (0..used).filter(is_tried).chain([used + 1, used + 5000, whole.len() - 1]) {
            let damaged = copy(dir.path());
            let mut bytes = whole.clone();
            bytes[at] ^= if at.is_multiple_of(2) { 0x40 } else { 1 };
            std::fs::write(damaged.path().join(path.file_name().unwrap()), bytes).unwrap();
            let (ring, recovery) = open(damaged.path(), 0);
            let left = found(&ring);
            let context = || format!("segment {number}, byte {at}: {:?}", recovery.damage);
            let lost: BTreeSet<Lsn> = all.keys().filter(|lsn| !left.contains_key(lsn)).copied().collect();
            let bodiless: Vec<Lsn> = left.iter().filter(|(_, found)| found.1.is_none()).map(|(lsn, _)| *lsn).collect();
            assert!(
                left.iter().all(|(lsn, (head, body))| {
                    let (whole_head, whole_body) = &all[lsn];
                    head == whole_head && (body == whole_body || body.is_none())
                }),
                "{}",
                context()
            );
            // At most one record, or one body.
            assert!(lost.len() + bodiless.len() <= 1, "{}, lost {lost:?}", context());
            let named: BTreeSet<Lsn> = recovery
                .damage
                .iter()
                .filter_map(|damage| damage.lsns)
                .flat_map(|(first, last)| (first.get()..=last.get()).map(Lsn::new))
                .filter(|lsn| all.contains_key(lsn))
                .collect();
            let cost = match (lost.first(), bodiless.first()) {
                (Some(lsn), _) => {
                    // The very last record is promised, and nothing after it says so.
                    let told = recovery.damage.iter().find(|damage| damage.promised == (*lsn != last));
                    assert!(told.is_some(), "{}", context());
                    // What is at the beginning of all has nothing before it that would tell its name.
                    let is_first = *lsn == *all.keys().next().unwrap() || *lsn == last;
                    assert!(named.contains(lsn) || is_first || recovery.damage[0].lsns.is_none(), "{}", context());
                    "record"
                }
                (_, Some(_)) => {
                    assert_eq!(recovery.damage, [], "bodies are read when they are needed");
                    "body"
                }
                _ if at < FIRST_RECORD && at % BLOCK < 48 => {
                    assert!(recovery.damage.iter().all(|damage| !damage.promised), "{}", context());
                    assert_eq!(recovery.damage.len(), 1, "an operator hears of it: {}", context());
                    "copy of a segment header"
                }
                _ => {
                    assert_eq!(recovery.damage, [], "{}", context());
                    "nothing"
                }
            };
            *costs.entry(cost).or_default() += 1;
            assert_eq!(ring.stats().segments_in_service, 3, "{}", context());
            drop(ring);
            // It is seen the same way again.
            let (ring, again) = open(damaged.path(), 0);
            assert_eq!((&recovery.damage, &left), (&again.damage, &found(&ring)), "byte {at}");
        }
    }
    println!("{costs:?}");
    assert_eq!(costs.len(), 4, "{costs:?}");
}

#[test]
fn a_first_block_full_of_garbage_costs_nothing() {
    let (dir, all) = sample();
    for block in [0, 1] {
        let damaged = copy(dir.path());
        for path in segments(damaged.path()).values() {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[block * BLOCK..(block + 1) * BLOCK].fill(0xA5);
            std::fs::write(path, bytes).unwrap();
        }
        let (ring, recovery) = open(damaged.path(), 0);
        assert_eq!(found(&ring), all, "block {block}");
        assert!(recovery.damage.iter().all(|damage| !damage.promised), "{:?}", recovery.damage);
        append(&ring, "and it goes on", b"");
    }
}

#[test]
fn without_any_header_a_segment_is_named_and_left_alone() {
    let (dir, all) = sample();
    let paths = segments(dir.path());
    for number in 1..=3 {
        let damaged = copy(dir.path());
        let path = damaged.path().join(paths[&number].file_name().unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[..FIRST_RECORD].fill(0xA5);
        std::fs::write(&path, &bytes).unwrap();
        let (ring, recovery, _) = open_without(damaged.path(), 1, &[number]);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            recovery.damage.iter().any(|damage| damage.promised && damage.segment == name),
            "{:?}",
            recovery.damage
        );
        let left = found(&ring);
        assert_eq!(all.len() - left.len(), [3, 2, 1][number as usize - 1]);
        // Nothing is written over it, and no other segment gets a number that may be its own.
        let later = append(&ring, "later", b"");
        assert_eq!(ring.segments().last().map(|info| (info.number, info.first)), Some((4, later)));
        drop(ring);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn a_segment_that_is_missing_is_told() {
    let (dir, all) = sample();
    let paths = segments(dir.path());
    let lsns: Vec<Lsn> = all.keys().copied().collect();
    let lost = [vec![1], vec![2], vec![3], vec![2, 3], vec![1, 2, 3]];
    for numbers in lost {
        for how in ["removed", "emptied", "cut off at its header"] {
            let damaged = copy(dir.path());
            // The last ones are ready, and hold nothing.
            let goes = paths.iter().filter(|(number, _)| numbers.contains(number) || numbers.len() == 3);
            for path in goes.map(|(_, path)| damaged.path().join(path.file_name().unwrap())) {
                match how {
                    "removed" => std::fs::remove_file(path).unwrap(),
                    "emptied" => std::fs::write(path, "").unwrap(),
                    _ => std::fs::File::options().write(true).open(path).unwrap().set_len(9000).unwrap(),
                }
            }
            let (ring, recovery, last) = open_without(damaged.path(), 1, &numbers);
            let left = found(&ring);
            let gone: Vec<Lsn> = lsns.iter().filter(|lsn| !left.contains_key(lsn)).copied().collect();
            let told: Vec<_> = recovery.damage.iter().filter_map(|damage| damage.lsns).collect();
            let is_told = |lsn: &Lsn| told.iter().any(|(first, last)| (first..=last).contains(&lsn));
            assert!(gone.iter().all(is_told), "{numbers:?} {how}: {:?}", recovery.damage);
            assert!(left.keys().all(|lsn| !is_told(lsn)), "{numbers:?} {how}: {:?}", recovery.damage);
            assert!(gone.iter().all(|lsn| *lsn <= recovery.lost_through));
            let later = append(&ring, "later", b"");
            assert!(later > recovery.lost_through, "no LSN is used twice");
            // A missing segment may have had any length, and was full of the shortest records.
            let records_max = u64::from(u32::MAX) / RECORD_HEADER as u64;
            assert!(later.get() > numbers.len() as u64 * records_max, "{numbers:?} {how}: {later}");
            drop(ring);
            // It was given up, once and for all.
            let (ring, again) = open(damaged.path(), 1);
            assert_eq!((again.lost_through, found(&ring).len()), (recovery.lost_through, left.len() + 1));
            drop(ring);
            // What is not needed any more is not missing.
            let (_, recovery) = open(damaged.path(), last + 1);
            let promised: Vec<_> = recovery.damage.iter().filter(|damage| damage.promised).collect();
            assert!(promised.is_empty(), "{numbers:?} {how}: {promised:?}");
        }
    }
}

#[test]
fn without_the_roster_a_ring_is_opened_and_writes_a_new_one() {
    let (dir, all) = sample();
    let roster = dir.path().join("roster");
    for how in ["removed", "emptied", "cut off", "damaged"] {
        let damaged = copy(dir.path());
        let path = damaged.path().join("roster");
        match how {
            "removed" => std::fs::remove_file(&path).unwrap(),
            "emptied" => std::fs::write(&path, "").unwrap(),
            "cut off" => std::fs::File::options().write(true).open(&path).unwrap().set_len(20).unwrap(),
            _ => std::fs::write(&path, [0xA5; 2 * BLOCK]).unwrap(),
        }
        let (ring, recovery) = open(damaged.path(), 0);
        assert_eq!((recovery.damage, found(&ring) == all), (vec![], true), "{how}");
        append(&ring, "later", b"");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), std::fs::metadata(&roster).unwrap().len(), "{how}");
        drop(ring);
        let last = segments(damaged.path()).into_iter().next_back().unwrap();
        std::fs::remove_file(last.1).unwrap();
        assert!(matches!(try_open(damaged.path(), 0, false), Err(RingOpenError::Missing { .. })), "{how}");
    }
}

#[test]
fn a_torn_end_is_reported_and_a_ready_segment_costs_nothing() {
    let (dir, all) = sample();
    let lsns: Vec<Lsn> = all.keys().copied().collect();
    for (number, path) in segments(dir.path()) {
        let damaged = copy(dir.path());
        let path = damaged.path().join(path.file_name().unwrap());
        std::fs::File::options().write(true).open(path).unwrap().set_len(SEGMENT / 2).unwrap();
        let (ring, recovery) = open(damaged.path(), 1);
        assert_eq!(found(&ring), all, "nothing was in the other half");
        // Only of the last one nobody knows that.
        let promised: Vec<_> = recovery.damage.iter().map(|damage| (damage.promised, damage.lsns.unwrap().0)).collect();
        let expected = (number == 3).then(|| (true, Lsn::new(lsns[5].get() + 1)));
        assert_eq!(promised, expected.into_iter().collect::<Vec<_>>(), "segment {number}");
    }
}

#[test]
fn a_lost_middle_is_named_and_the_rest_is_read_by_lsn() {
    let dir = scratch();
    let (ring, _) = open(dir.path(), 0);
    let lsns: Vec<Lsn> = (0..300).map(|n| append(&ring, &format!("record {n}"), &[n as u8; 100])).collect();
    let whole = found(&ring);
    let mut places = BTreeMap::new();
    ring.visit(Lsn::ZERO, &mut |record| {
        places.insert(record.lsn, (record.segment, record.offset as usize));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(ring.segments().len() > 20);
    drop(ring);
    let paths = segments(dir.path());
    // The first of a segment, two in its midst, one after the other, and the last.
    let first_of_third = lsns.iter().position(|lsn| places[lsn].0 == 3).unwrap();
    let last_of_third = lsns.iter().rposition(|lsn| places[lsn].0 == 3).unwrap();
    let hits = [first_of_third, first_of_third + 5, first_of_third + 6, last_of_third, 200];
    for nth in hits {
        let (segment, offset) = places[&lsns[nth]];
        let mut bytes = std::fs::read(&paths[&segment]).unwrap();
        // In turns its header and its head.
        bytes[offset + if nth.is_multiple_of(2) { 20 } else { RECORD_HEADER + 3 }] ^= 0x10;
        std::fs::write(&paths[&segment], bytes).unwrap();
    }
    let (ring, recovery) = open(dir.path(), 0);
    let named: Vec<Lsn> = recovery
        .damage
        .iter()
        .flat_map(|damage| {
            assert!(damage.promised, "{damage:?}");
            let (first, last) = damage.lsns.expect("all have names");
            (first.get()..=last.get()).map(Lsn::new)
        })
        .collect();
    assert_eq!(named, hits.map(|nth| lsns[nth]));
    let left = found(&ring);
    assert_eq!(left.len(), lsns.len() - hits.len());
    assert!(left.iter().all(|(lsn, record)| whole[lsn] == *record));
    for nth in hits {
        let outcome = ring.read_head(lsns[nth]);
        assert!(matches!(outcome, Err(RingReadError::HeadDamaged(_) | RingReadError::NotFound(_))), "{outcome:?}");
    }
    let aside = std::fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "damaged"));
    assert!(aside.count() >= 4, "copies for a person to look at");
    // Damage that comes while the ring is open is not passed over in silence.
    let (segment, offset) = places[&lsns[100]];
    let mut bytes = std::fs::read(&paths[&segment]).unwrap();
    bytes[offset + RECORD_HEADER] ^= 1;
    std::fs::write(&paths[&segment], bytes).unwrap();
    let mut shown = 0;
    let visited = ring.visit(Lsn::ZERO, &mut |_| {
        shown += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((visited.unwrap_err().kind(), shown), (std::io::ErrorKind::InvalidData, left.len() - 1));
    assert!(matches!(ring.read_head(lsns[100]), Err(RingReadError::HeadDamaged(_))));
}
