//! A stream is removed for good, also when the power goes in between.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{
    Batch, Body, ClosedFileSpool, Config, Entry, FileSpool, Lsn, Released, Replayed, Spool, SpoolAdmin, StreamError,
    StreamId,
};

fn config() -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    Config { ring, keeper: false, ..Config::default() }
}

fn append(spool: &FileSpool, streams: &[StreamId], body: Body) -> Lsn {
    let (tell, told) = channel();
    let entry = |stream: &StreamId| Entry { stream: *stream, needs_body: true, payload: "for you".into() };
    let batch = Batch { entries: streams.iter().map(entry).collect(), body };
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap()
}

fn large(spool: &FileSpool, byte: u8) -> Body {
    let mut upload = spool.upload(0).unwrap();
    upload.write(&vec![byte; 70_000]).unwrap();
    Body::file(upload.finish().unwrap())
}

/// Batches of the forgotten stream, of the remaining one, and of both; some in packs, some with a large body.
struct Had {
    goes: BTreeSet<Lsn>,
    stays: BTreeSet<Lsn>,
}

fn fill(spool: &FileSpool) -> Had {
    let [goes, stays] = ["goes", "stays"].map(|name| spool.stream(name).unwrap());
    let body = |n: u8| Body::inline(vec![Bytes::from(vec![n; 3000])]);
    let mut had = Had { goes: BTreeSet::new(), stays: BTreeSet::new() };
    let sets = [vec![goes], vec![stays], vec![goes, stays]];
    for n in 0..40 {
        let (streams, is_large) = (&sets[n % 3], n % 7 == 0);
        let lsn = append(spool, streams, if is_large { large(spool, n as u8) } else { body(n as u8) });
        had.goes.extend(streams.contains(&goes).then_some(lsn));
        had.stays.extend(streams.contains(&stays).then_some(lsn));
    }
    spool.pack_oldest(1).unwrap();
    // The stream that stays is up to date but for the last of its batches.
    let last = *had.stays.last().unwrap();
    let before = Lsn::new(last.get() - 1);
    spool.advance(stays, before, None, Released { below: last, also: Vec::new() });
    had.stays = [last].into();
    spool.checkpoint().unwrap();
    had
}

fn shown(spool: &FileSpool, name: &str) -> Option<BTreeSet<Lsn>> {
    let id = spool.streams().into_iter().find(|stream| stream.name == name)?.id;
    let mut lsns = BTreeSet::new();
    let show = &mut |replayed: Replayed<'_>| match replayed {
        Replayed::Entry { lsn, body_len, .. } => {
            assert_eq!(spool.read(lsn, 0..body_len).unwrap().len() as u64, body_len);
            lsns.insert(lsn);
        }
        // After a rebuild.
        Replayed::Uncertain { .. } => {}
        other => panic!("{other:?}"),
    };
    spool.replay(id, show).unwrap();
    Some(lsns)
}

fn bodies(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("bodies")).unwrap().count()
}

#[test]
fn a_forgotten_stream_frees_its_data_and_its_id_is_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = FileSpool::open(dir.path(), config()).unwrap();
    let had = fill(&spool);
    let id = spool.streams()[0].id;
    assert!(matches!(spool.forget_stream("nobody"), Err(StreamError::Unknown(_))));
    let stats = spool.forget_stream("goes").unwrap();
    assert_eq!((stats.id, stats.entries), (id, had.goes.len() as u64));
    assert_eq!(shown(&spool, "goes"), None);
    assert_eq!(shown(&spool, "stays").as_ref(), Some(&had.stays));
    assert_ne!(spool.stream("goes").unwrap(), id, "its old entries are not shown to one of the same name");
    assert_eq!(shown(&spool, "goes"), Some(BTreeSet::new()));
    drop(spool);
    let (spool, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!(report.damage, []);
    assert_eq!(shown(&spool, "stays"), Some(had.stays));
    assert!(bodies(dir.path()) <= 1, "{}", bodies(dir.path()));
    spool.clean_packs().unwrap();
    drop(spool);
    // Nor is it shown to anybody after both checkpoint files were lost.
    (0..2).for_each(|n| std::fs::remove_file(dir.path().join(format!("checkpoint.{n}"))).unwrap());
    let to = dir.path().join("rebuilt");
    let rebuilt = ClosedFileSpool::rebuild(dir.path(), &to).unwrap();
    assert_eq!(rebuilt.damage, []);
    assert!(!rebuilt.left_out.is_empty(), "large bodies that nobody needs any more are gone");
    let (spool, _) = FileSpool::open(&to, config()).unwrap();
    assert_eq!(shown(&spool, "goes"), Some(BTreeSet::new()));
}

#[test]
fn a_cut_leaves_a_stream_whole_or_forgotten() {
    let machine = Machine::new().unwrap();
    let (spool, _) = FileSpool::open(machine.path(), config()).unwrap();
    let had = fill(&spool);
    let begun = machine.recording().events.len();
    spool.forget_stream("goes").unwrap();
    machine.acknowledge(1);
    spool.abandon();
    let recording = machine.recording();
    let (mut whole, mut gone) = (0, 0);
    for position in begun..=recording.events.len() {
        let is_forgotten = recording.acknowledged_before(position).count() > 0;
        for seed in 0..8 {
            let tree = recording.cut(Cut { position, choice: Choice::Seed(seed) });
            let left = Machine::boot(&tree, true, false).unwrap();
            let (spool, report) = FileSpool::open(left.path(), config()).unwrap();
            assert_eq!(report.damage, [], "{position}:s{seed}");
            assert_eq!(shown(&spool, "stays").as_ref(), Some(&had.stays), "{position}:s{seed}");
            let of_it = shown(&spool, "goes");
            assert!(of_it.is_none() || of_it.as_ref() == Some(&had.goes) && !is_forgotten, "{position}:s{seed}");
            *(if of_it.is_none() { &mut gone } else { &mut whole }) += 1;
            if of_it.is_none() {
                assert!(bodies(left.path()) <= 1, "{position}:s{seed}: a body file is left");
            }
        }
    }
    assert!(whole > 0 && gone > 0);
}
