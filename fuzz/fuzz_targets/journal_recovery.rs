//! A journal of several segments and lives is damaged wherever the input says, and opened: only what was acknowledged is found (what was settled comes back
//! only with a checkpoint that is damaged), each octet of it as it was, no more records are lost than octets are damaged (but for a segment both of whose headers are), a loss is told as long as a
//! later life tells what there was, and a second opening finds the same.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use posthaste_journal::layout::BLOCK;
use posthaste_journal::sim::SimDisk;
use posthaste_journal::{Config, Journal, KIND_USER, Recovery};

struct Sample {
    disk: SimDisk,
    live: BTreeMap<u64, Bytes>,
    /// A checkpoint says that they are settled.
    settled: BTreeMap<u64, Bytes>,
    /// The files that say what the last life has left.
    marks: Vec<String>,
}

/// Some segments full of records, of several lives; some records are settled and some segments put to new use.
static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let (disk, mut live, mut settled) = (SimDisk::new(1), BTreeMap::new(), BTreeMap::new());
    for life in 0..3_usize {
        let (journal, _) = open(&disk);
        for number in 0..16 {
            let body: Bytes = format!("life {life}, number {number}. ").repeat(1 + number * 97 % 300).into();
            let id = journal.append(KIND_USER, vec![body.clone()]).wait().expect("a healthy disk");
            live.insert(id, body);
        }
        if life < 2 {
            for id in live.keys().copied().step_by(3).collect::<Vec<_>>() {
                journal.settle(id);
                settled.extend(live.remove_entry(&id));
            }
            journal.checkpoint(|| Ok(())).expect("a healthy disk");
        }
    }
    // The next life says what it has found of the one before.
    let before: BTreeMap<String, Vec<u8>> = contents(&disk).collect();
    open(&disk).0.append_note_durably(KIND_USER, vec!["a mark".into()]).wait().expect("a healthy disk");
    let (journal, recovery) = open(&disk.copy());
    assert_eq!(found(&journal, &recovery), live);
    let marks = contents(&disk).filter(|(name, octets)| before.get(name) != Some(octets)).map(|(name, _)| name);
    let marks: Vec<String> = marks.collect();
    assert!(!marks.is_empty());
    Sample { disk, live, settled, marks }
});

fuzz_target!(|data: &[u8]| {
    let Sample { disk, live, settled, marks } = &*SAMPLE;
    let disk = disk.copy();
    let files: Vec<String> = contents(&disk).map(|(name, _)| name).collect();
    let (mut damaged, mut in_headers, mut is_marked) = (0, vec![0; files.len()], true);
    // Each damage is four octets: in which file, where (two), and what is put there.
    for damage in data.as_chunks::<4>().0.iter().filter(|damage| damage[3] != 0) {
        let file = usize::from(damage[0]) % files.len();
        let at = usize::from(u16::from_le_bytes([damage[1], damage[2]]));
        disk.edit(&files[file], |octets| octets[at] ^= damage[3]);
        damaged += 1;
        in_headers[file] += usize::from(at < BLOCK);
        is_marked &= !marks.contains(&files[file]);
    }
    // A segment has its header twice. Whose both are damaged loses all that is in it.
    let has_headers = in_headers.iter().all(|&octets| octets < 2);
    let (journal, recovery) = open(&disk);
    let first = found(&journal, &recovery);
    let (still_live, back): (Vec<_>, Vec<_>) = first.iter().partition(|(id, _)| live.contains_key(id));
    assert!(still_live.iter().all(|(id, body)| live.get(id) == Some(body)), "a record that is another");
    assert!(back.iter().all(|(id, body)| settled.get(id) == Some(body)), "a record that was never acknowledged");
    assert!(back.is_empty() || !recovery.damage.is_empty(), "settled records without any damage");
    let lost = live.len() - still_live.len();
    assert!(lost <= damaged || !has_headers, "{damaged} octets have cost {lost} records: {:?}", recovery.damage);
    // Without a mark, the last record might as well be one that was being written when the power went.
    let is_told = recovery.damage.iter().any(|damage| damage.promised);
    assert!(lost == 0 || !is_marked || is_told, "{lost} lost, and not told: {:?}", recovery.damage);
    drop(journal);
    let (journal, recovery) = open(&disk);
    assert_eq!(found(&journal, &recovery), first, "a second opening finds something else");
});

/// The segments.
fn contents(disk: &SimDisk) -> impl Iterator<Item = (String, Vec<u8>)> {
    disk.files()
        .into_iter()
        .filter(|(name, _)| name.ends_with(".seg"))
        .map(|(name, _)| (name.clone(), disk.read(&name)))
}

fn open(disk: &SimDisk) -> (Journal, Recovery) {
    let config = Config { segment_bytes: 64 << 10, max_segments: 8, ..Config::default() };
    Journal::open_on(Arc::new(disk.clone()), config).expect("a journal opens, however damaged")
}

fn found(journal: &Journal, recovery: &Recovery) -> BTreeMap<u64, Bytes> {
    recovery.records.iter().filter_map(|record| Some((record.id, journal.read(record.id).ok()?.1))).collect()
}
