//! What an earlier version has acknowledged is read, whatever else is damaged; what it has not never comes back changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, LazyLock};

use posthaste_journal::layout::BLOCK;
use posthaste_journal::storage::{SegmentFile, Storage};
use posthaste_journal::{Damage, KIND_USER, Reader};
use posthaste_old_journal::OldJournal;
use proptest::prelude::*;

const MAIL: u8 = KIND_USER;
const SEGMENT: u64 = 64 * 1024;

/// Segments in memory, of which some sectors cannot be read.
#[derive(Clone, Default)]
struct Disk(BTreeMap<String, Segment>);

#[derive(Clone, Default)]
struct Segment {
    bytes: Vec<u8>,
    bad: BTreeSet<usize>,
}

impl Disk {
    /// What an earlier version leaves that does this.
    fn after(act: impl FnOnce(&mut OldJournal)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        act(&mut OldJournal::create(dir.path(), SEGMENT));
        let names = posthaste_journal::segments(dir.path()).unwrap();
        let segment =
            |name: &String| Segment { bytes: std::fs::read(dir.path().join(name)).unwrap(), ..Segment::default() };
        Disk(names.iter().map(|name| (name.clone(), segment(name))).collect())
    }

    fn first(&mut self) -> &mut Segment {
        self.0.values_mut().next().unwrap()
    }

    /// The same with the first segment changed.
    fn with(&self, edit: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut disk = self.clone();
        edit(&mut disk.first().bytes);
        disk
    }

    /// The same with a bit flipped in each record that begins with `text`.
    fn damaged(&self, text: &str) -> Self {
        let mut disk = self.clone();
        for segment in disk.0.values_mut() {
            if let Some(at) = segment.bytes.windows(text.len()).position(|window| window == text.as_bytes()) {
                segment.bytes[at] ^= 1;
            }
        }
        disk
    }

    fn read(&self) -> Reader {
        Reader::open_on(self).expect("it can be read, however damaged")
    }
}

impl Storage for Disk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::new(self.0[name].clone()))
    }
}

impl SegmentFile for Segment {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset as usize..offset as usize + buf.len();
        if self.bad.range(range.clone()).next().is_some() {
            return Err(rustix::io::Errno::IO.into());
        }
        buf.copy_from_slice(self.bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Bytes that only this message can have, of a length that differs from message to message.
fn body(tag: &str, n: usize) -> Vec<u8> {
    let unit = format!("{tag}-{n}: every message is its own witness. ");
    unit.bytes().cycle().take(40 + n * 997 % 9000).collect()
}

type Found = BTreeMap<u64, Vec<u8>>;

fn found(reader: &Reader) -> Found {
    let read = |id: u64| reader.read(id).expect("a live record reads");
    reader.records().into_iter().map(|record| (record.id, read(record.id))).collect()
}

fn is_told(reader: &Reader) -> bool {
    reader.damage().iter().any(|damage| damage.promised)
}

/// A journal of one message of each of some sizes, everything acknowledged, and a mark after it.
fn sample() -> &'static (Disk, Found) {
    &SAMPLE
}

static SAMPLE: LazyLock<(Disk, Found)> = LazyLock::new(|| {
    let mut acked = Found::new();
    let mut disk = Disk::after(|journal| {
        acked.extend((0..8).map(|n| (journal.append(MAIL, &body("s", n)), body("s", n))));
        // The next life says what it has found of the one before.
        journal.start_again();
        journal.note(MAIL, b"a mark");
    });
    // All in the first segment, so that an offset in it can hit any of them.
    assert!(disk.first().bytes[SEGMENT as usize - BLOCK..].iter().all(|&byte| byte == 0));
    assert_eq!((found(&disk.read()), disk.read().damage()), (acked.clone(), &[][..]));
    (disk, acked)
});

#[test]
fn what_is_settled_replaced_and_noted_is_read_as_the_last_checkpoint_has_it() {
    let mut ids = Vec::new();
    let disk = Disk::after(|journal| {
        ids = (0..4).map(|n| journal.append(MAIL, &body("m", n))).collect();
        journal.note(MAIL + 4, b"forgotten");
        journal.settle(ids[0]);
        journal.checkpoint();
        journal.settle(ids[1]);
        journal.replace(ids[2], MAIL + 1, b"a new version");
        journal.note(MAIL + 4, b"kept");
    });
    let reader = disk.read();
    let records: Vec<_> = reader.records().iter().map(|record| (record.id, record.kind, record.len)).collect();
    let len = |n| body("m", n).len() as u32;
    assert_eq!(records, [(ids[1], MAIL, len(1)), (ids[2], MAIL + 1, 13), (ids[3], MAIL, len(3))]);
    let expected =
        BTreeMap::from([(ids[1], body("m", 1)), (ids[2], b"a new version".to_vec()), (ids[3], body("m", 3))]);
    assert_eq!(found(&reader), expected);
    let notes: Vec<_> = reader.notes().iter().map(|note| (note.kind, &note.payload[..])).collect();
    assert_eq!((notes, reader.damage()), (vec![(MAIL + 4, &b"kept"[..])], &[][..]));
    assert_eq!(reader.last(), ids[3] + 4, "a note, a checkpoint, a version, a note");
    assert!(reader.read(ids[0]).is_err());
}

#[test]
fn what_a_life_has_found_was_promised_and_what_was_torn_before_it_was_not() {
    let appended = |journal: &mut OldJournal| {
        for pair in [["first", "kept"], ["torn", "whole"]] {
            let [one, other] = pair.map(|tag| body(tag, 1));
            journal.append_together(MAIL, &[&one, &other]);
        }
    };
    // As if the power had gone while the second pair was written.
    let disk = Disk::after(appended).damaged("torn-1");
    let reader = disk.read();
    assert_eq!((reader.records().len(), reader.damage().len(), is_told(&reader)), (3, 1, false));
    // Nothing of the second pair says that it was durable; what came before it, it does.
    assert!(is_told(&disk.damaged("kept-1").read()), "it was acknowledged");
    let later = Disk::after(|journal| {
        appended(journal);
        journal.start_again();
        journal.append(MAIL, &body("next", 1));
    });
    assert!(is_told(&later.damaged("torn-1").read()), "the next life had found it");
    let listed = Disk::after(|journal| {
        appended(journal);
        journal.start_again();
        journal.checkpoint();
    });
    assert!(is_told(&listed.damaged("whole-1").read()), "a checkpoint lists it");
}

#[test]
fn what_was_freed_from_the_middle_of_the_log_is_not_missing_when_something_else_is() {
    let (mut stuck, mut later) = (0, Vec::new());
    let disk = Disk::after(|journal| {
        let one_segment =
            |journal: &mut OldJournal, text: &str| journal.append(MAIL, text.repeat(57_000 / text.len()).as_bytes());
        stuck = one_segment(journal, "stuck");
        for _ in 0..6 {
            let id = one_segment(journal, "done");
            journal.settle(id);
        }
        journal.checkpoint();
        // These lie in segments that were used before, so the log has holes.
        later = (0..3).map(|_| one_segment(journal, "later")).collect();
        journal.settle(later[1]);
        journal.checkpoint();
    });
    let name = disk.0.keys().next().unwrap().clone();
    assert_eq!((disk.read().records().len(), disk.read().damage()), (3, &[][..]));
    let flipped = |at: usize| {
        let reader = disk.with(|bytes| bytes[at] ^= 1).read();
        assert_eq!(found(&reader).into_keys().collect::<Vec<_>>(), [later[0], later[2]]);
        let told = |damage: &Damage| (damage.segment.clone(), damage.seqs, damage.promised);
        reader.damage().iter().map(told).collect::<Vec<_>>()
    };
    let seqs = Some((stuck, stuck));
    assert_eq!(flipped(3 * BLOCK), [(name.clone(), seqs, true)], "a byte of the payload");
    assert_eq!(flipped(BLOCK + 20), [(name.clone(), None, true), (String::new(), seqs, true)], "a byte of the header");
}

#[test]
fn a_sector_that_cannot_be_read_loses_what_lies_in_it_and_no_more() {
    let (disk, acked) = sample();
    let whole = disk.clone().first().bytes.clone();
    for block in 0..SEGMENT as usize / BLOCK {
        let mut disk = disk.clone();
        disk.first().bad.insert(block * BLOCK + 700);
        let reader = disk.read();
        let found = found(&reader);
        match block {
            0 => assert!(found.is_empty() && is_told(&reader), "without a header nothing is believed"),
            _ if whole[block * BLOCK..(block + 1) * BLOCK].iter().any(|&byte| byte != 0) => {
                assert!(found.len() == acked.len() - 1 && is_told(&reader), "block {block}: {:?}", reader.damage());
            }
            _ => assert!(found.len() == acked.len() && !reader.damage().is_empty(), "block {block}"),
        }
        assert!(found.iter().all(|(id, body)| acked.get(id) == Some(body)), "block {block}: a wrong record");
    }
}

#[test]
fn a_segment_that_is_too_short_or_has_lost_its_header_is_damage() {
    let (disk, _) = sample();
    for len in [0, 100, BLOCK - 1, BLOCK, 3 * BLOCK] {
        let reader = disk.with(|bytes| bytes.truncate(len)).read();
        assert!(is_told(&reader), "{len}: {:?}", reader.damage());
    }
    // Zeros where the header was, and a record after it.
    assert!(is_told(&disk.with(|bytes| bytes[..3 * BLOCK].fill(0)).read()));
}

#[test]
fn while_it_is_open_nobody_else_reads_it_and_where_there_is_none_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let kind = || Reader::open(dir.path()).err().map(|error| error.kind());
    assert_eq!(kind(), Some(io::ErrorKind::NotFound));
    let mut journal = OldJournal::create(dir.path(), SEGMENT);
    let id = journal.append(MAIL, b"one");
    assert_eq!(kind(), Some(io::ErrorKind::WouldBlock));
    drop(journal);
    assert_eq!(Reader::open(dir.path()).unwrap().read(id).unwrap(), b"one");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_byte_loses_at_most_its_own_record(at in 0usize..SEGMENT as usize, bit in 0u32..8) {
        let (disk, acked) = sample();
        let reader = disk.with(|bytes| bytes[at] ^= 1 << bit).read();
        let found = found(&reader);
        prop_assert!(found.iter().all(|(id, body)| acked.get(id) == Some(body)), "a wrong record");
        prop_assert!(acked.len() - found.len() <= 1, "byte {} cost {} records", at, acked.len() - found.len());
        prop_assert!(found.len() == acked.len() || is_told(&reader), "byte {}: {:?}", at, reader.damage());
    }

    #[test]
    fn any_truncation_yields_a_prefix_and_never_a_wrong_record(len in 0usize..SEGMENT as usize) {
        let (disk, acked) = sample();
        let reader = disk.with(|bytes| bytes.truncate(len)).read();
        let found = found(&reader);
        prop_assert!(found.len() == acked.len() || is_told(&reader), "length {}: {:?}", len, reader.damage());
        let prefix: Found = acked.clone().into_iter().take(found.len()).collect();
        prop_assert!(found == prefix, "length {}: {:?} is no prefix", len, found.keys());
    }

    #[test]
    fn hostile_segments_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..3 * BLOCK), at in 0usize..60_000) {
        let (disk, acked) = sample();
        let reader = disk
            .with(|file| {
                let end = (at + bytes.len()).min(file.len());
                file[at..end].copy_from_slice(&bytes[..end - at]);
            })
            .read();
        prop_assert!(found(&reader).iter().all(|(id, body)| acked.get(id) == Some(body)), "a wrong record");
    }
}
