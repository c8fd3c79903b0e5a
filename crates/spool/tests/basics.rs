//! The ring's spool, one thing at a time; what every spool promises is in `suite.rs`.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_spool::{
    AppendError, Batch, Body, Config, Consumer, Entry, Events, FileSpool, Lsn, OpenError, Published, ReadError,
    Released, Replayed, SetAside, SnapshotName, Spool, SpoolAdmin, SpoolEvent, StreamId,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn config() -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    Config { ring, keeper: false, ..Config::default() }
}

fn open(dir: &Path, config: Config) -> FileSpool {
    let (spool, report) = FileSpool::open(dir, config).unwrap();
    assert_eq!(report.damage, []);
    spool
}

fn start(spool: &FileSpool, batch: Batch) -> Receiver<Result<Lsn, AppendError>> {
    let (tell, told) = channel();
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told
}

fn append(spool: &FileSpool, streams: &[StreamId], body: &[u8]) -> Result<Lsn, AppendError> {
    let entry = |stream: &StreamId| Entry { stream: *stream, needs_body: true, payload: "for you".into() };
    let entries = streams.iter().map(entry).collect();
    let batch = Batch { entries, body: Body::inline(vec![Bytes::copy_from_slice(body)]) };
    start(spool, batch).recv().unwrap()
}

fn note(spool: &FileSpool, stream: StreamId, payload: &str) -> Result<Lsn, AppendError> {
    let entry = Entry { stream, needs_body: false, payload: Bytes::copy_from_slice(payload.as_bytes()) };
    start(spool, Batch { entries: vec![entry], body: Body::None }).recv().unwrap()
}

fn replayed(spool: &FileSpool, stream: StreamId) -> Vec<u64> {
    let mut seen = Vec::new();
    spool
        .replay(stream, &mut |replayed| match replayed {
            Replayed::Entry { lsn, .. } => seen.push(lsn.get()),
            _ => seen.push(0),
        })
        .unwrap();
    seen
}

fn release_all(spool: &FileSpool, stream: StreamId) {
    let last = spool.stats().published;
    let released = Released { below: Lsn::new(last.get() + 1), also: Vec::new() };
    spool.advance(stream, last, None, released);
}

/// Notes what it is asked.
#[derive(Default)]
struct Keeps {
    wanted: AtomicU64,
}

impl Consumer for Keeps {
    fn published(&self, _: Published) {}

    fn advance_wanted(&self, through: Lsn) {
        self.wanted.store(through.get(), Ordering::Relaxed);
    }
}

fn events() -> (Events, Receiver<SpoolEvent>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    (Events::new(move |event| drop(tell.lock().unwrap().send(event))), told)
}

#[test]
fn a_checkpoint_of_an_empty_ring_brings_no_freed_segment_back() {
    let dir = tempfile::tempdir().unwrap();
    // Segments are used again in each life, so that what is left of the first ones has gaps.
    for _ in 0..6 {
        let spool = open(dir.path(), config());
        let stream = spool.stream("mail").unwrap();
        for _ in 0..30 {
            append(&spool, &[stream], &[1; 5000]).unwrap();
        }
        release_all(&spool, stream);
        spool.checkpoint().unwrap();
    }
    let spool = open(dir.path(), config());
    // The first frees what is sealed; then nothing is in service.
    spool.checkpoint().unwrap();
    spool.checkpoint().unwrap();
    drop(spool);
    let (spool, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!((report.damage, spool.file_stats().ring.segments_in_service), (Vec::new(), 0));
}

#[test]
fn a_too_large_batch_and_a_second_opening_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let stream = spool.stream("a").unwrap();
    assert!(matches!(append(&spool, &[stream], &[0; 70_000]), Err(AppendError::TooLarge { .. })));
    assert!(matches!(FileSpool::open(dir.path(), config()), Err(OpenError::Locked)));
}

#[test]
fn a_stuck_stream_holds_its_own_and_the_ring_goes_round() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { keeper: true, ..config() };
    let spool = open(dir.path(), config.clone());
    let (stuck, quick) = (spool.stream("stuck").unwrap(), spool.stream("quick").unwrap());
    let mut held = Vec::new();
    let mut full = 0;
    // Several times the ring's size.
    for n in 0u32..400 {
        let body = n.to_le_bytes().repeat(2000);
        let streams = if n % 8 == 0 { &[stuck, quick][..] } else { &[quick] };
        let lsn = loop {
            match append(&spool, streams, &body) {
                Ok(lsn) => break lsn,
                // The keeper has been called; how long it takes is its own business.
                Err(AppendError::Full(_)) => full += 1,
                Err(error) => panic!("{error}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        if n % 8 == 0 {
            held.push((lsn, body));
        }
        release_all(&spool, quick);
    }
    println!("refused {full} times");
    assert!(spool.file_stats().packs > 0);
    drop(spool);
    let spool = open(dir.path(), config);
    assert_eq!(replayed(&spool, stuck), held.iter().map(|(lsn, _)| lsn.get()).collect::<Vec<_>>());
    for (lsn, body) in held {
        assert_eq!(spool.read(lsn, 0..body.len() as u64).unwrap(), body);
    }
    assert!(replayed(&spool, quick).is_empty());
}

#[test]
fn a_stuck_stream_that_needs_no_bodies_keeps_none() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let (mail, log) = (spool.stream("mail").unwrap(), spool.stream("log").unwrap());
    let mut appended = Vec::new();
    for _ in 0..100 {
        let entry = |stream, needs_body| Entry { stream, needs_body, payload: "for you".into() };
        let entries = vec![entry(mail, true), entry(log, false)];
        let batch = Batch { entries, body: Body::inline(vec![Bytes::from(vec![7; 4000])]) };
        let lsn = start(&spool, batch).recv().unwrap().unwrap();
        spool.advance(mail, lsn, None, Released { below: Lsn::new(lsn.get() + 1), also: Vec::new() });
        appended.push(lsn.get());
        spool.pack_oldest(2).unwrap();
        spool.checkpoint().unwrap();
    }
    let stats = spool.file_stats();
    assert!(stats.packs > 0 && stats.pack_bytes < 100 * 1000, "{stats:?}");
    assert_eq!(replayed(&spool, log), appended);
}

#[test]
fn laggards_are_asked_before_their_entries_are_packed() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), Config { keeper: true, ..config() });
    let stream = spool.stream("slow").unwrap();
    let keeps = Arc::new(Keeps::default());
    spool.attach(stream, Lsn::ZERO, keeps.clone()).unwrap();
    let mut sent = 0;
    while keeps.wanted.load(Ordering::Relaxed) == 0 {
        match append(&spool, &[stream], &[1; 20_000]) {
            Ok(_) => sent += 1,
            Err(AppendError::Full(_)) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(sent >= 6, "not before half of the ring is in use: {sent}");
}

#[test]
fn a_full_spool_takes_notes_and_a_checkpoint_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let stream = spool.stream("a").unwrap();
    while append(&spool, &[stream], &[1; 30_000]).is_ok() {}
    assert!(matches!(append(&spool, &[stream], &[1; 30_000]), Err(AppendError::Full(_))));
    note(&spool, stream, "done").unwrap();
    release_all(&spool, stream);
    spool.checkpoint().unwrap();
    append(&spool, &[stream], &[1; 30_000]).unwrap();
}

#[test]
fn a_segment_that_is_needed_becomes_a_pack_as_it_is() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let stream = spool.stream("a").unwrap();
    let lsns: Vec<Lsn> = (0..40).map(|n| append(&spool, &[stream], &[n; 7000]).unwrap()).collect();
    let inodes = |of: &str| -> Vec<u64> {
        let files = std::fs::read_dir(dir.path().join(of)).unwrap().map(|entry| entry.unwrap());
        files
            .filter(|entry| entry.path().extension().is_some_and(|e| e != "index"))
            .map(|e| e.metadata().unwrap().ino())
            .collect()
    };
    let before = inodes("ring");
    assert!(spool.pack_oldest(2).unwrap() == 2);
    spool.checkpoint().unwrap();
    let packs = inodes("packs");
    assert!(packs.len() == 2 && packs.iter().all(|inode| before.contains(inode)), "{packs:?} of {before:?}");
    assert!(inodes("ring").iter().all(|inode| !packs.contains(inode)), "the ring has let go of them");
    drop(spool);
    let spool = open(dir.path(), config());
    for (n, lsn) in lsns.iter().enumerate() {
        assert_eq!(spool.read(*lsn, 0..7000).unwrap(), [n as u8; 7000][..]);
    }
    assert_eq!(replayed(&spool, stream).len(), 40);
}

#[test]
fn an_entry_is_readable_as_long_as_its_body_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let (stream, other) = (spool.stream("a").unwrap(), spool.stream("b").unwrap());
    let lsn = append(&spool, &[stream, other, stream], b"x").unwrap();
    let passed = |released| {
        let last = spool.stats().published;
        for stream in [stream, other] {
            spool.advance(stream, last, None, Released { below: released, also: vec![] });
        }
        spool.checkpoint().unwrap();
    };
    passed(Lsn::ZERO);
    for place in ["ring", "pack"] {
        assert!(!replayed(&spool, stream).contains(&lsn.get()), "{place}");
        assert_eq!(spool.entries(stream, lsn).unwrap(), ["for you", "for you"], "{place}");
        assert_eq!(spool.entries(other, lsn).unwrap(), ["for you"], "{place}");
        while spool.pack_oldest(1).unwrap() == 0 {
            note(&spool, stream, &"-".repeat(8 << 10)).unwrap();
        }
    }
    passed(Lsn::new(spool.stats().published.get() + 1));
    assert!(matches!(spool.entries(stream, lsn), Err(ReadError::NotFound(gone)) if gone == lsn));
}

#[test]
fn a_snapshot_goes_with_the_next_checkpoint_but_one() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let stream = spool.stream("a").unwrap();
    let lsn = append(&spool, &[stream], b"x").unwrap();
    let names = ["s.1", "s.2", "s.3"].map(|name| SnapshotName::new(name).unwrap());
    for name in &names[..2] {
        spool.write_snapshot(name, &mut |out| out.write_all(name.as_str().as_bytes())).unwrap();
        spool.advance(stream, lsn, Some(name.clone()), Released::default());
        spool.checkpoint().unwrap();
    }
    // Not yet in a checkpoint: after a kill the one before counts.
    spool.write_snapshot(&names[2], &mut |out| out.write_all(b"too late")).unwrap();
    spool.advance(stream, lsn, Some(names[2].clone()), Released::default());
    spool.abandon();
    let spool = open(dir.path(), config());
    assert_eq!(spool.position(stream), (lsn, Some(names[1].clone())));
    assert_eq!(std::io::read_to_string(spool.read_snapshot(&names[1]).unwrap()).unwrap(), "s.2");
    let left = |dir: &Path| {
        let names = std::fs::read_dir(dir.join("snapshots")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(left(dir.path()), ["s.1", "s.2"], "the one before stays until the next checkpoint but one");
    spool.write_snapshot(&names[2], &mut |out| out.write_all(b"s.3")).unwrap();
    spool.advance(stream, lsn, Some(names[2].clone()), Released::default());
    spool.checkpoint().unwrap();
    assert_eq!(left(dir.path()), ["s.2", "s.3"]);
    spool.advance(stream, lsn, None, Released::default());
    spool.checkpoint().unwrap();
    assert_eq!(left(dir.path()), [""; 0]);
}

#[test]
fn without_a_checkpoint_that_can_be_read_nothing_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), config()));
    std::fs::write(dir.path().join("checkpoint.0"), b"torn").unwrap();
    // Opens with the other one, and ends with a new one in its place.
    drop(open(dir.path(), config()));
    ["checkpoint.0", "checkpoint.1"].iter().for_each(|name| std::fs::write(dir.path().join(name), b"torn").unwrap());
    assert!(matches!(FileSpool::open(dir.path(), config()), Err(OpenError::NoCheckpoint)));
    std::fs::remove_file(dir.path().join("checkpoint.0")).unwrap();
    std::fs::remove_file(dir.path().join("checkpoint.1")).unwrap();
    assert!(matches!(FileSpool::open(dir.path(), config()), Err(OpenError::NoCheckpoint)));
}

/// Changes a byte in the middle of what holds these bytes, in any file of a directory; says in which.
fn damage(dir: &Path, holding: &[u8]) -> PathBuf {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        // A segment in the making changes its name.
        let Ok(bytes) = std::fs::read(&path) else { continue };
        if let Some(at) = bytes.windows(holding.len()).position(|window| window == holding) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            let at = at + holding.len() / 2;
            file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            return path;
        }
    }
    panic!("nothing in {} holds it", dir.display());
}

fn upload(spool: &FileSpool, stream: StreamId, bytes: &[u8]) -> Lsn {
    let mut upload = spool.upload(0).unwrap();
    upload.write(bytes).unwrap();
    let body = Body::file(upload.finish().unwrap());
    let entry = Entry { stream, needs_body: true, payload: "large".into() };
    start(spool, Batch { entries: vec![entry], body }).recv().unwrap().unwrap()
}

#[test]
fn a_flipped_byte_is_found_by_a_scrub_and_never_read_as_mail() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let stream = spool.stream("a").unwrap();
    let copied = append(&spool, &[stream], &[0xC0; 999]).unwrap();
    let gone = append(&spool, &[stream], &[0xC1; 999]).unwrap();
    // The rest of the segment nobody needs, so what is needed is copied.
    while spool.file_stats().ring.segments_in_service < 2 {
        append(&spool, &[stream], &[1; 7000]).unwrap();
    }
    let last = spool.stats().published;
    let also = (copied.get() + 2..=last.get()).map(Lsn::new).collect();
    spool.advance(stream, last, None, Released { below: Lsn::ZERO, also });
    assert_eq!(spool.pack_oldest(1).unwrap(), 1);
    spool.checkpoint().unwrap();
    let in_ring = append(&spool, &[stream], &[0xC2; 999]).unwrap();
    let large = upload(&spool, stream, &[0xC3; 300_000]);
    let sound = spool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert!(sound.damage.is_empty() && sound.read >= 4, "{sound:?}");
    for (dir_of, byte) in [("packs", 0xC0), ("packs", 0xC1), ("ring", 0xC2), ("bodies", 0xC3)] {
        damage(&dir.path().join(dir_of), &[byte; 999]);
    }
    for lsn in [copied, gone, in_ring, large] {
        let read = spool.read(lsn, 0..10);
        assert!(matches!(read, Err(ReadError::Damaged { .. })), "{lsn}: {read:?}");
    }
    spool.advance(stream, last, None, Released { below: Lsn::ZERO, also: vec![gone] });
    let found = spool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    let lsns: Vec<_> = found.damage.iter().map(|damage| damage.lsn.unwrap()).collect();
    assert_eq!(lsns, [copied, in_ring, large], "nobody needs the other one");
}

/// Batches reported as damaged, in order.
fn damaged(told: &Receiver<SpoolEvent>) -> Vec<Lsn> {
    let of = |event| match event {
        SpoolEvent::Damage(damage) => damage.lsn,
        _ => None,
    };
    told.try_iter().filter_map(of).collect()
}

#[test]
fn a_damaged_record_keeps_its_octets_when_its_segment_is_packed() {
    // Of a body, and of the head of its batch.
    for holding in [vec![0xC0; 999], b"entry of it".to_vec()] {
        let is_body = holding[0] == 0xC0;
        let dir = tempfile::tempdir().unwrap();
        let (events, told) = events();
        let spool = open(dir.path(), Config { events, ..config() });
        let stream = spool.stream("a").unwrap();
        let (mut needed, mut lsn) = (Vec::new(), Lsn::ZERO);
        // Of each of four segments a few are needed, so they are copied.
        while spool.file_stats().ring.segments_in_service < 5 {
            if lsn == Lsn::ZERO && spool.file_stats().ring.segments_in_service == 3 {
                let entry = Entry { stream, needs_body: true, payload: "entry of it".into() };
                let batch = Batch { entries: vec![entry], body: Body::inline(vec![vec![0xC0; 999].into()]) };
                lsn = start(&spool, batch).recv().unwrap().unwrap();
            }
            needed.push(append(&spool, &[stream], &[4; 999]).unwrap());
            for _ in 0..4 {
                append(&spool, &[stream], &[1; 7000]).unwrap();
            }
        }
        damage(&dir.path().join("ring"), &holding);
        let last = spool.stats().published;
        let also = (needed[0].get()..=last.get()).map(Lsn::new);
        let also = also.filter(|other| *other != lsn && !needed.contains(other)).collect();
        spool.advance(stream, last, None, Released { below: Lsn::ZERO, also });
        assert_eq!(spool.pack_oldest(4).unwrap(), 4);
        spool.checkpoint().unwrap();
        assert_eq!(spool.file_stats().packs, 3, "two segments, the damaged one as it is, and the last");
        assert_eq!(damaged(&told), [lsn]);
        let read = spool.read(lsn, 0..999);
        if is_body {
            assert!(matches!(read, Err(ReadError::Damaged { .. })), "{read:?}")
        } else {
            assert!(matches!(read, Err(ReadError::Unreachable { .. })), "{read:?}")
        }
        needed.iter().for_each(|lsn| assert_eq!(spool.read(*lsn, 0..999).unwrap(), [4; 999][..]));
        let scrubbed = spool.scrub(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        assert_eq!(scrubbed.damage.iter().map(|damage| damage.lsn).collect::<Vec<_>>(), [Some(lsn)]);
        if is_body {
            let SetAside::Kept(kept) = spool.set_aside(lsn).unwrap() else { panic!("nothing is kept") };
            assert_eq!(std::fs::read(kept).unwrap().iter().filter(|byte| **byte == 0xC0).count(), 998);
        }
        // A disk that reads right again gives the mail back.
        let mut altered = holding.clone();
        altered[holding.len() / 2] ^= 1;
        damage(&dir.path().join("packs"), &altered);
        assert_eq!(spool.read(lsn, 0..999).unwrap(), [0xC0; 999][..]);
        assert_eq!(&spool.entries(stream, lsn).unwrap()[0][..], b"entry of it");
    }
}

#[test]
fn a_damaged_pack_is_merged_only_once_unneeded() {
    let dir = tempfile::tempdir().unwrap();
    let (events, told) = events();
    let spool = open(dir.path(), Config { events, ..config() });
    let stream = spool.stream("a").unwrap();
    let mut lsns = Vec::new();
    while spool.file_stats().ring.segments_in_service < 5 {
        lsns.push(append(&spool, &[stream], &[lsns.len() as u8; 7000]).unwrap());
    }
    assert_eq!(spool.pack_oldest(4).unwrap(), 4);
    spool.checkpoint().unwrap();
    assert_eq!(spool.file_stats().packs, 4);
    // In the second; one in eight stays needed.
    let bad = lsns.len() / 3;
    damage(&dir.path().join("packs"), &[bad as u8; 7000]);
    let stays = |at: &usize| at % 8 == bad % 8;
    let also = (0..lsns.len()).filter(|at| !stays(at)).map(|at| lsns[at]).collect();
    spool.advance(stream, lsns[lsns.len() - 1], None, Released { below: Lsn::ZERO, also });
    for _ in 0..2 {
        spool.clean_packs().unwrap();
        spool.checkpoint().unwrap();
        assert_eq!(spool.file_stats().packs, 3, "the first, the damaged one, and the two after it as one");
    }
    assert_eq!(damaged(&told), [lsns[bad]]);
    for at in (0..lsns.len()).filter(stays) {
        let read = spool.read(lsns[at], 0..7000);
        if at == bad {
            assert!(matches!(read, Err(ReadError::Damaged { .. })), "{read:?}")
        } else {
            assert_eq!(read.unwrap(), [at as u8; 7000][..])
        }
    }
    spool.advance(stream, lsns[lsns.len() - 1], None, Released { below: Lsn::ZERO, also: vec![lsns[bad]] });
    spool.clean_packs().unwrap();
    assert!(spool.file_stats().packs < 3, "{}", spool.file_stats().packs);
}

#[test]
fn a_lost_live_file_is_rebuilt_and_nothing_needed_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let (one, other) = (spool.stream("one").unwrap(), spool.stream("other").unwrap());
    let lsns: Vec<Lsn> = (0..30).map(|n| append(&spool, &[one, other], &[n; 5000]).unwrap()).collect();
    let large = upload(&spool, one, &[7; 9000]);
    let also = vec![lsns[2], lsns[5]];
    spool.advance(one, lsns[10], None, Released { below: Lsn::ZERO, also });
    spool.pack_oldest(1).unwrap();
    let unnamed = dir.path().join("bodies/00000000000000aa.body");
    drop(spool);
    std::fs::write(&unnamed, b"of a batch that may be the lost one").unwrap();
    let live: Vec<_> = std::fs::read_dir(dir.path().join("live")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(live.len(), 1);
    std::fs::write(&live[0], b"damaged").unwrap();
    let (spool, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!((report.damage, report.mended.len()), (vec![], 1), "{:?}", report.mended);
    assert_eq!(report.unnamed_bodies, ["00000000000000aa.body"]);
    let behind = |from: usize| lsns[from..].iter().map(|lsn| lsn.get());
    assert_eq!(replayed(&spool, one), behind(11).chain([large.get()]).collect::<Vec<_>>());
    assert_eq!(replayed(&spool, other), behind(0).collect::<Vec<_>>());
    for (n, lsn) in lsns.iter().enumerate() {
        assert_eq!(spool.read(*lsn, 0..5000).unwrap(), [n as u8; 5000][..]);
    }
    assert_eq!(spool.read(large, 0..9000).unwrap(), [7; 9000][..]);
    drop(spool);
    let (_, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!(report.damage, []);
    assert!(!unnamed.exists(), "now it is certain that nobody needs it");
}

#[test]
fn below_the_floors_bodies_are_refused_and_notes_get_through() {
    let dir = tempfile::tempdir().unwrap();
    let (events, told) = events();
    let bytes = Config { free_bytes_min: u64::MAX, events, ..config() };
    let spool = open(dir.path(), bytes);
    let stream = spool.stream("a").unwrap();
    assert!(matches!(append(&spool, &[stream], b"x"), Err(AppendError::Full(_))));
    note(&spool, stream, "done").unwrap();
    assert!(told.try_iter().any(|event| matches!(event, SpoolEvent::ShortOfSpace { is_short: true, .. })));
    drop(spool);
    let spool = open(dir.path(), Config { free_inodes_min: u64::MAX - 1, ..config() });
    let has_inodes = rustix::fs::statvfs(dir.path()).unwrap().f_files > 0;
    assert_eq!(append(&spool, &[stream], b"x").is_err(), has_inodes);
}

#[test]
fn the_keeper_checkpoints_by_bytes_and_time_and_names_slow_ones() {
    for by_time in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (events, told) = events();
        let far = Duration::from_secs(3600);
        let config = Config {
            keeper: true,
            checkpoint_every: if by_time { Duration::from_millis(10) } else { far },
            checkpoint_bytes: if by_time { u64::MAX } else { 1000 },
            checkpoint_slow: Duration::ZERO,
            events,
            ..config()
        };
        let spool = open(dir.path(), config);
        let stream = spool.stream("a").unwrap();
        let before = spool.stats().checkpoints;
        append(&spool, &[stream], &[1; 5000]).unwrap();
        // It is counted before it is told.
        let is_slow = |event: SpoolEvent| matches!(event, SpoolEvent::CheckpointSlow { .. });
        while !is_slow(told.recv_timeout(PATIENCE).expect("told")) || spool.stats().checkpoints == before {}
    }
}

#[test]
fn a_batch_reads_the_same_while_it_moves() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Arc::new(open(dir.path(), Config { pack_bytes: 400 << 10, ..config() }));
    let [held, passing] = ["held", "passing"].map(|name| spool.stream(name).unwrap());
    let known: Arc<Mutex<Vec<(Lsn, u8)>>> = Arc::default();
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|nth: usize| {
            let (spool, known, is_over) = (spool.clone(), known.clone(), is_over.clone());
            std::thread::spawn(move || {
                let mut reads = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let all = known.lock().unwrap().clone();
                    for (lsn, byte) in all.into_iter().skip(nth).step_by(2) {
                        let read = spool.read(lsn, 100..900).unwrap_or_else(|error| panic!("{error}"));
                        assert_eq!(read, [byte; 800][..], "{lsn}");
                        reads += 1;
                    }
                    std::thread::yield_now();
                }
                reads
            })
        })
        .collect();
    for round in 0u8..25 {
        let mut also = Vec::new();
        for n in 0..12 {
            let to: &[StreamId] = if n % 6 == 0 { &[held, passing] } else { &[passing] };
            let lsn = append(&spool, to, &[round; 6000]).unwrap();
            if n % 6 == 0 {
                known.lock().unwrap().push((lsn, round));
            } else {
                also.push(lsn);
            }
        }
        release_all(&spool, passing);
        spool.advance(held, spool.stats().published, None, Released { below: Lsn::ZERO, also });
        spool.pack_oldest(3).unwrap();
        spool.clean_packs().unwrap();
        spool.checkpoint().unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    let reads: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(reads > 0 && spool.file_stats().packs > 0, "{reads} reads");
    assert!(spool.file_stats().packs < 20, "they were merged: {}", spool.file_stats().packs);
}

#[test]
fn of_a_damaged_entry_its_stream_hears_and_all_others_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let spool = open(dir.path(), config());
    let stream = spool.stream("a").unwrap();
    let lsns: Vec<u64> =
        (0..40).map(|n| note(&spool, stream, &format!("this is entry {n:03}")).unwrap().get()).collect();
    spool.checkpoint().unwrap();
    damage(&dir.path().join("ring"), b"this is entry 017");
    let expected: Vec<u64> = lsns.iter().enumerate().map(|(n, lsn)| if n == 17 { 0 } else { *lsn }).collect();
    assert_eq!(replayed(&spool, stream), expected);
    spool.abandon();
    let (spool, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert!(report.damage.iter().any(|damage| damage.lsn == Some(Lsn::new(lsns[17]))), "{:?}", report.damage);
    assert_eq!(replayed(&spool, stream), expected, "it stays known that there was one");
}
