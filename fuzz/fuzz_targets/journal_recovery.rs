//! A journal of several segments and lives is damaged wherever the input says, and read: only what was acknowledged is found (what was settled comes back
//! only with a checkpoint that is damaged), each octet of it as it was, no more records are lost than octets are damaged (but for a segment both of whose headers are), and a loss is told as long
//! as a later life tells what there was.
#![no_main]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use posthaste_journal::layout::BLOCK;
use posthaste_journal::storage::{SegmentFile, Storage};
use posthaste_journal::{KIND_USER, Reader};
use posthaste_old_journal::OldJournal;

type Bodies = BTreeMap<u64, Vec<u8>>;

struct Sample {
    segments: Segments,
    live: Bodies,
    /// A checkpoint says that they are settled.
    settled: Bodies,
    /// Which segments say what the last life has left.
    marks: Vec<String>,
}

/// In memory, by name.
#[derive(Clone)]
struct Segments(BTreeMap<String, Vec<u8>>);

/// Some segments full of records, of several lives; some records are settled and some segments put to new use.
static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut live, mut settled) = (Bodies::new(), Bodies::new());
    let mut journal = OldJournal::create(dir.path(), 64 << 10);
    for life in 0..3_usize {
        for number in 0..16 {
            let body = format!("life {life}, number {number}. ").repeat(1 + number * 97 % 300).into_bytes();
            live.insert(journal.append(KIND_USER, &body), body);
        }
        if life < 2 {
            for id in live.keys().copied().step_by(3).collect::<Vec<_>>() {
                journal.settle(id);
                settled.extend(live.remove_entry(&id));
            }
            journal.checkpoint();
        }
        journal.start_again();
    }
    let contents = || -> BTreeMap<String, Vec<u8>> {
        let names = posthaste_journal::segments(dir.path()).expect("a directory");
        let read = |name: String| (name.clone(), std::fs::read(dir.path().join(name)).expect("a segment"));
        names.into_iter().map(read).collect()
    };
    // The next life says what it has found of the one before.
    let before = contents();
    journal.note(KIND_USER, b"a mark");
    let segments = contents();
    let marks = segments.iter().filter(|(name, octets)| before.get(*name) != Some(octets));
    let marks: Vec<String> = marks.map(|(name, _)| name.clone()).collect();
    assert!(!marks.is_empty());
    let segments = Segments(segments);
    assert_eq!(found(&segments.read()), live);
    Sample { segments, live, settled, marks }
});

fuzz_target!(|data: &[u8]| {
    let Sample { segments, live, settled, marks } = &*SAMPLE;
    let mut segments = segments.clone();
    let files: Vec<String> = segments.0.keys().cloned().collect();
    let (mut damaged, mut in_headers, mut is_marked) = (0, vec![0; files.len()], true);
    // Each damage is four octets: in which file, where (two), and what is put there.
    for damage in data.as_chunks::<4>().0.iter().filter(|damage| damage[3] != 0) {
        let file = usize::from(damage[0]) % files.len();
        let at = usize::from(u16::from_le_bytes([damage[1], damage[2]]));
        segments.0.get_mut(&files[file]).expect("its name")[at] ^= damage[3];
        damaged += 1;
        in_headers[file] += usize::from(at < BLOCK);
        is_marked &= !marks.contains(&files[file]);
    }
    // A segment has its header twice. Whose both are damaged loses all that is in it.
    let has_headers = in_headers.iter().all(|&octets| octets < 2);
    let reader = segments.read();
    let found = found(&reader);
    let (still_live, back): (Vec<_>, Vec<_>) = found.iter().partition(|(id, _)| live.contains_key(id));
    assert!(still_live.iter().all(|(id, body)| live.get(id) == Some(body)), "a record that is another");
    assert!(back.iter().all(|(id, body)| settled.get(id) == Some(body)), "a record that was never acknowledged");
    assert!(back.is_empty() || !reader.damage().is_empty(), "settled records without any damage");
    let lost = live.len() - still_live.len();
    assert!(lost <= damaged || !has_headers, "{damaged} octets have cost {lost} records: {:?}", reader.damage());
    // Without a mark, the last record might as well be one that was being written when the power went.
    let is_told = reader.damage().iter().any(|damage| damage.promised);
    assert!(lost == 0 || !is_marked || is_told, "{lost} lost, and not told: {:?}", reader.damage());
});

impl Segments {
    fn read(&self) -> Reader {
        Reader::open_on(self).expect("a journal is read, however damaged")
    }
}

impl Storage for Segments {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        Ok(Arc::new(Segment(self.0[name].clone())))
    }
}

struct Segment(Vec<u8>);

impl SegmentFile for Segment {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset as usize..offset as usize + buf.len();
        buf.copy_from_slice(self.0.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn found(reader: &Reader) -> Bodies {
    reader.records().iter().filter_map(|record| Some((record.id, reader.read(record.id).ok()?))).collect()
}
