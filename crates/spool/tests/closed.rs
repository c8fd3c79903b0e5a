//! A look at a spool that nobody has open.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_spool::{
    Batch, Body, ClosedFileSpool, ClosedSpool, Config, Entry, FileSpool, Lsn, OpenError, Released, Repaired, Replayed,
    Spool, StreamId,
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

/// One pack that was adopted, one that was copied, batches in the ring, a large body, and some after the checkpoint. Returns the LSNs and the large one.
fn spool(dir: &Path) -> (Vec<Lsn>, Lsn) {
    let (spool, _) = FileSpool::open(dir, config()).unwrap();
    let [one, other] = ["one", "other"].map(|name| spool.stream(name).unwrap());
    let body = |n: u8| Body::inline(vec![Bytes::from(vec![n; 7000])]);
    let lsns: Vec<Lsn> = (0..30).map(|n| append(&spool, &[one, other], body(n))).collect();
    spool.pack_oldest(1).unwrap();
    let released = Released { below: lsns[15], also: Vec::new() };
    spool.advance(one, lsns[29], None, Released { below: Lsn::new(lsns[29].get() + 1), also: Vec::new() });
    spool.advance(other, lsns[11], None, released);
    spool.pack_oldest(1).unwrap();
    let mut upload = spool.upload(0).unwrap();
    upload.write(&[77; 400_000]).unwrap();
    let large = append(&spool, &[one], Body::file(upload.finish().unwrap()));
    spool.checkpoint().unwrap();
    let last = append(&spool, &[other], body(30));
    spool.abandon();
    (lsns.into_iter().chain([last]).collect(), large)
}

fn exported(closed: &ClosedFileSpool) -> Vec<(Lsn, usize, Vec<u8>)> {
    let mut all = Vec::new();
    closed
        .export(&mut |batch| {
            let body = match batch.body {
                None => Vec::new(),
                Some(Err(what)) => what.into_bytes(),
                Some(Ok(body)) => body.read().unwrap().to_vec(),
            };
            all.push((batch.lsn, batch.entries.len(), body));
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

#[test]
fn a_last_checkpoint_is_made_once() {
    let dir = tempfile::tempdir().unwrap();
    let counter = || ClosedFileSpool::open(dir.path()).unwrap().inspect().unwrap().checkpoint;
    let (spool, _) = FileSpool::open(dir.path(), config()).unwrap();
    let stream = spool.stream("one").unwrap();
    append(&spool, &[stream], Body::inline(vec!["text".into()]));
    drop(spool);
    let before = counter();
    let (spool, _) = FileSpool::open(dir.path(), config()).unwrap();
    append(&spool, &[stream], Body::inline(vec!["text".into()]));
    spool.checkpoint().unwrap();
    drop(spool);
    assert_eq!(counter(), before + 1);
}

#[test]
fn it_shows_what_is_where_and_gives_out_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let (lsns, large) = spool(dir.path());
    let closed = ClosedFileSpool::open(dir.path()).unwrap();
    assert!(matches!(FileSpool::open(dir.path(), config()), Err(OpenError::Locked)));
    let shown = closed.inspect().unwrap();
    assert_eq!(shown.damage, []);
    assert_eq!(shown.streams.iter().map(|stream| stream.name.as_str()).collect::<Vec<_>>(), ["one", "other"]);
    assert_eq!((shown.streams[0].entries, shown.streams[0].bodies), (1, 1));
    // The last one is after the checkpoint.
    assert_eq!((shown.streams[1].entries, shown.streams[1].bodies), (19, 19));
    assert_eq!((shown.last, shown.large.len()), (lsns[30], 1));
    assert!(!shown.packs.is_empty() && !shown.segments.is_empty());
    let needed: u64 = shown.packs.iter().chain(&shown.segments).map(|place| place.needed).sum();
    assert_eq!(needed, 20, "18 that wait, the one after the checkpoint and the large one");
    let all = exported(&closed);
    let expected: Vec<_> = lsns.iter().enumerate().skip(12).map(|(n, lsn)| (*lsn, n)).collect();
    let small: Vec<_> = all.iter().filter(|(lsn, ..)| *lsn != large).collect();
    assert_eq!(small.len(), expected.len());
    for ((lsn, entries, body), (expected, n)) in small.into_iter().zip(expected) {
        assert_eq!((*lsn, *entries, &body[..]), (expected, 1, &[n as u8; 7000][..]));
    }
    assert!(all.iter().any(|(lsn, _, body)| *lsn == large && body[..] == [77; 400_000][..]));
    let verified = closed.verify().unwrap();
    assert!(verified.damage.is_empty() && verified.read >= 20, "{verified:?}");
}

#[test]
fn a_damaged_index_is_found_and_written_anew_from_its_pack() {
    let dir = tempfile::tempdir().unwrap();
    let (lsns, _) = spool(dir.path());
    let before = exported(&ClosedFileSpool::open(dir.path()).unwrap());
    let indexes: Vec<_> = std::fs::read_dir(dir.path().join("packs"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "index"))
        .collect();
    for index in &indexes {
        std::fs::write(index, b"damaged").unwrap();
    }
    let closed = ClosedFileSpool::open(dir.path()).unwrap();
    assert_eq!(closed.verify().unwrap().damage.len(), indexes.len());
    assert!(exported(&closed).len() < before.len());
    let repaired = closed.repair().unwrap();
    assert_eq!((repaired.files.len(), repaired.failed), (indexes.len(), Vec::new()));
    drop(closed);
    let closed = ClosedFileSpool::open(dir.path()).unwrap();
    assert_eq!(closed.verify().unwrap().damage, []);
    assert_eq!(exported(&closed), before);
    assert_eq!(closed.repair().unwrap(), Repaired::default());
    drop(closed);
    let (spool, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!(report.damage, []);
    assert_eq!(spool.read(lsns[15], 0..7000).unwrap(), [15; 7000][..]);
}

#[test]
fn a_head_damaged_in_pack_or_index_is_read_from_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, _) = FileSpool::open(dir.path(), config()).unwrap();
    let [slow, quick] = ["slow", "quick"].map(|name| spool.stream(name).unwrap());
    let body = |n: u8| Body::inline(vec![Bytes::from(vec![n; 7000])]);
    let is_quick = |n: u8| (9..13).contains(&n);
    let stream = |n: u8| if is_quick(n) { quick } else { slow };
    let lsns: Vec<Lsn> = (0..30).map(|n| append(&spool, &[stream(n)], body(n))).collect();
    let below = Lsn::new(lsns[29].get() + 1);
    spool.advance(quick, lsns[29], None, Released { below, also: Vec::new() });
    // One is adopted, the other one copied.
    assert_eq!(spool.pack_oldest(2).unwrap(), 2);
    spool.checkpoint().unwrap();
    spool.abandon();
    let before = exported(&ClosedFileSpool::open(dir.path()).unwrap());
    let packs = files(dir.path(), "packs", ".pack");
    assert_eq!(
        packs.iter().map(|pack| std::fs::metadata(pack).unwrap().len() == 64 << 10).collect::<Vec<_>>(),
        [true, false]
    );
    let index_of = |pack: &Path| pack.with_extension("index");
    let number = |bytes: &[u8], at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    // Of the record that is so many before the last one: the offsets of its head and of the copy. All heads are of one length.
    let places = |pack: &Path, before: usize| {
        let index = std::fs::read(index_of(pack)).unwrap();
        let (nth, block) = (number(&index, 16, 8) - 1 - before, number(&index, 24, 8));
        let entry = block + 32 * nth;
        (number(&index, entry + 8, 8) + 48, number(&index, block + 4064, 8) + nth * number(&index, entry + 16, 4))
    };
    let change = |path: &Path, at: usize| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    // Nothing is lost, and nothing to be repaired.
    let check = || {
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        assert_eq!(exported(&closed), before);
        assert_eq!(closed.verify().unwrap().damage, []);
        assert_eq!(closed.repair().unwrap(), Repaired::default());
    };
    packs.iter().for_each(|pack| change(&index_of(pack), places(pack, 0).1 + 5));
    check();
    packs.iter().for_each(|pack| change(pack, places(pack, 1).0 + 5));
    check();
    let (spool, _) = FileSpool::open(dir.path(), config()).unwrap();
    let mut shown = Vec::new();
    let visit = &mut |replayed: Replayed<'_>| match replayed {
        Replayed::Entry { lsn, .. } => shown.push(lsn),
        other => panic!("{other:?}"),
    };
    spool.replay(slow, visit).unwrap();
    assert_eq!(shown, [&lsns[..9], &lsns[13..]].concat());
    spool.abandon();
    // Both of one, and the body of another with its head: each is told.
    packs.iter().for_each(|pack| change(pack, places(pack, 0).0 + 5));
    packs.iter().for_each(|pack| change(pack, places(pack, 1).0 + 1000));
    let found = ClosedFileSpool::open(dir.path()).unwrap().verify().unwrap().damage;
    let of = |what: &str| found.iter().filter(|damage| damage.what.contains(what)).count();
    assert_eq!((of("head"), of("body"), found.len()), (packs.len(), packs.len(), 2 * packs.len()), "{found:?}");
}

#[test]
fn a_repair_of_an_index_drops_no_record_that_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let ring = posthaste_ring::Config { segment_bytes: 1 << 20, max_segments: 8, ..Default::default() };
    let config = Config { ring, ..config() };
    let (spool, _) = FileSpool::open(dir.path(), config.clone()).unwrap();
    let stream = spool.stream("one").unwrap();
    for n in 0..260 {
        append(&spool, &[stream], Body::inline(vec![Bytes::from(vec![n as u8; 3000])]));
    }
    assert_eq!(spool.pack_oldest(1).unwrap(), 1);
    spool.checkpoint().unwrap();
    spool.abandon();
    let before = exported(&ClosedFileSpool::open(dir.path()).unwrap());
    let pack = &files(dir.path(), "packs", ".pack")[0];
    let index = pack.with_extension("index");
    let bytes = std::fs::read(&index).unwrap();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    assert!(number(16) > 127, "two blocks");
    // The header of a record of the first block, which nobody reads; and the second block.
    damage(pack, number(number(24) + 32 + 8) + 5);
    damage(&index, number(24) + 4096 + 9);
    // While it is not known what is needed, the index stays as it is.
    let live = &files(dir.path(), "live", "")[0];
    let list = std::fs::read(live).unwrap();
    std::fs::write(live, b"damaged").unwrap();
    let failed = ClosedFileSpool::open(dir.path()).unwrap().repair().unwrap().failed;
    assert!(failed.len() == 1 && failed[0].1.contains("start the server once"), "{failed:?}");
    std::fs::write(live, list).unwrap();
    let repaired = ClosedFileSpool::open(dir.path()).unwrap().repair().unwrap();
    assert_eq!((repaired.files.len(), repaired.failed), (1, Vec::new()));
    let closed = ClosedFileSpool::open(dir.path()).unwrap();
    assert_eq!((exported(&closed), closed.verify().unwrap().damage), (before, Vec::new()));
}

#[test]
fn a_directory_without_a_spool_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let opened = ClosedFileSpool::open(dir.path());
    assert!(matches!(opened, Err(OpenError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound));
}

/// Turns some bits of a file over.
fn damage(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x55;
    std::fs::write(path, bytes).unwrap();
}

/// The files of a spool's directory whose names end so, in order.
fn files(dir: &Path, below: &str, ending: &str) -> Vec<PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(dir.join(below)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_str().unwrap().ends_with(ending));
    paths.sort();
    paths
}

/// The segments of the ring with batches in them.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let shown = ClosedFileSpool::open(dir).unwrap().inspect().unwrap();
    let names = shown.segments.iter().filter(|place| place.needed > 0).map(|place| place.name.clone());
    names.map(|name| dir.join("ring").join(name)).collect()
}

#[test]
fn one_of_two_copies_is_repaired_and_costs_nothing() {
    for (is_checkpoint, name, at) in
        [(true, "checkpoint.0", 30), (true, "checkpoint.1", 30), (false, "first", 9), (false, "second", 4096 + 9)]
    {
        let dir = tempfile::tempdir().unwrap();
        spool(dir.path());
        let before = exported(&ClosedFileSpool::open(dir.path()).unwrap());
        let file = if is_checkpoint { dir.path().join(name) } else { segments(dir.path())[0].clone() };
        damage(&file, at);
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        let shown = closed.inspect().unwrap();
        assert_eq!(shown.spare.len(), 1, "{}: {:?}", file.display(), shown.spare);
        let repaired = closed.repair().unwrap();
        assert_eq!((repaired.files.len(), &repaired.failed[..]), (1, &[][..]), "{}", file.display());
        drop(closed);
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        assert_eq!(closed.inspect().unwrap().spare, []);
        assert_eq!(exported(&closed), before, "{}", file.display());
        assert_eq!(closed.verify().unwrap().damage, []);
        drop(closed);
        assert_eq!(FileSpool::open(dir.path(), config()).unwrap().1.damage, []);
    }
}

#[test]
fn every_kind_of_damage_is_named() {
    type Hurt = fn(&Path);
    let kinds: [(&str, Hurt); 7] = [
        ("a body in the ring", |dir| {
            // Not the last one: that may be torn, and then it was never promised.
            let needed = [20, 24, 28].map(|n| [n; 50]);
            let found = segments(dir).into_iter().find_map(|path| {
                let bytes = std::fs::read(&path).unwrap();
                let at = needed.iter().find_map(|body| bytes.windows(50).position(|part| part == body))?;
                Some((path, at))
            });
            let (path, at) = found.unwrap();
            damage(&path, at);
        }),
        ("both copies of a segment's header", |dir| {
            let path = segments(dir).remove(0);
            [9, 4096 + 9].into_iter().for_each(|at| damage(&path, at));
        }),
        ("a missing segment", |dir| std::fs::remove_file(&segments(dir)[0]).unwrap()),
        ("a body in a pack", |dir| {
            let (spool, _) = FileSpool::open(dir, config()).unwrap();
            spool.pack_oldest(2).unwrap();
            drop(spool);
            let needed = [15, 16, 17, 18, 19, 20].map(|n| [n; 50]);
            let found = files(dir, "packs", ".pack").into_iter().find_map(|path| {
                let bytes = std::fs::read(&path).unwrap();
                let at = needed.iter().find_map(|body| bytes.windows(50).position(|part| part == body))?;
                Some((path, at))
            });
            let (path, at) = found.unwrap();
            damage(&path, at);
        }),
        ("a missing pack", |dir| std::fs::remove_file(files(dir, "packs", ".pack").pop().unwrap()).unwrap()),
        ("a large body", |dir| damage(&files(dir, "bodies", ".body")[0], 300_000)),
        ("a live file", |dir| damage(&files(dir, "live", "").pop().unwrap(), 40)),
    ];
    for (what, hurt) in kinds {
        let dir = tempfile::tempdir().unwrap();
        spool(dir.path());
        hurt(dir.path());
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        let verified = closed.verify().unwrap();
        assert!(!verified.damage.is_empty(), "{what}");
        // What is not damaged is given out all the same.
        assert!(!exported(&closed).is_empty(), "{what}");
        let missing = closed.missing().to_vec();
        drop(closed);
        // And it opens, whatever is lost; without a segment when somebody has said so.
        let mut config = config();
        match FileSpool::open(dir.path(), config.clone()) {
            Err(OpenError::Missing(_)) => assert!(!missing.is_empty(), "{what}"),
            opened => assert!(opened.is_ok() && missing.is_empty(), "{what}: {missing:?}"),
        }
        config.ring.gives_up_missing = true;
        FileSpool::open(dir.path(), config).unwrap();
    }
}

#[test]
fn a_spool_without_checkpoint_is_rebuilt_elsewhere_untouched() {
    for has_names in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (lsns, large) = spool(dir.path());
        let to = dir.path().join("rebuilt");
        let refused = ClosedFileSpool::rebuild(dir.path(), &to);
        assert!(matches!(refused, Err(OpenError::Io(error)) if error.kind() == std::io::ErrorKind::AlreadyExists));
        damage(&dir.path().join("checkpoint.0"), 20);
        std::fs::remove_file(dir.path().join("checkpoint.1")).unwrap();
        if !has_names {
            damage(&dir.path().join("streams"), 12);
        }
        assert!(matches!(ClosedFileSpool::open(dir.path()), Err(OpenError::NoCheckpoint)));
        assert!(matches!(FileSpool::open(dir.path(), config()), Err(OpenError::NoCheckpoint)));
        let rebuilt = ClosedFileSpool::rebuild(dir.path(), &to).unwrap();
        assert_eq!(rebuilt.damage.len(), usize::from(!has_names), "{:?}", rebuilt.damage);
        let names = if has_names { ["one", "other"] } else { ["unnamed-1", "unnamed-2"] };
        assert_eq!(rebuilt.streams, names);
        assert!(matches!(ClosedFileSpool::open(dir.path()), Err(OpenError::NoCheckpoint)), "the original is as it was");
        let (spool, report) = FileSpool::open(&to, config()).unwrap();
        assert_eq!(report.damage, []);
        let [one, other] = names.map(|name| spool.stream(name).unwrap());
        for (stream, name) in [(one, "one"), (other, "other")] {
            let (mut shown, mut uncertain, last) = (Vec::new(), false, spool.stats().published);
            spool
                .replay(stream, &mut |replayed| match replayed {
                    Replayed::Entry { lsn, payload, .. } => {
                        assert_eq!(payload, &Bytes::from("for you"));
                        shown.push(lsn);
                    }
                    Replayed::Uncertain { through } => {
                        assert_eq!((through, uncertain), (last, false));
                        uncertain = true;
                    }
                    other => panic!("{other:?}"),
                })
                .unwrap();
            assert!(uncertain, "what it has passed and released is not known");
            assert_eq!(shown.contains(&large), name == "one");
            // Of what the other stream has not released nothing is missing.
            assert!(lsns[12..30].iter().all(|lsn| shown.contains(lsn)), "{name}");
        }
        for (n, lsn) in lsns.iter().enumerate().skip(15) {
            assert_eq!(spool.read(*lsn, 0..7000).unwrap(), [n as u8; 7000][..]);
        }
        assert_eq!(spool.read(large, 0..400_000).unwrap(), [77; 400_000][..]);
        let next = append(&spool, &[one], Body::None);
        assert!(next > large && next > lsns[30], "no LSN is used twice");
    }
}

#[test]
fn a_rebuild_takes_no_hole_in_a_pack_for_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let (spool, _) = FileSpool::open(&from, config()).unwrap();
    let stream = spool.stream("one").unwrap();
    let lsns: Vec<Lsn> =
        (0..40).map(|_| append(&spool, &[stream], Body::inline(vec![Bytes::from(vec![1; 3000])]))).collect();
    let also = lsns.iter().copied().step_by(2).collect();
    spool.advance(stream, lsns[39], None, Released { below: Lsn::ZERO, also });
    assert_eq!(spool.pack_oldest(1).unwrap(), 1);
    spool.checkpoint().unwrap();
    spool.abandon();
    ["checkpoint.0", "checkpoint.1"].iter().for_each(|name| std::fs::remove_file(from.join(name)).unwrap());
    let rebuilt = ClosedFileSpool::rebuild(&from, &to).unwrap();
    assert_eq!(rebuilt.damage, []);
    assert!((20..=40).contains(&rebuilt.batches), "{}", rebuilt.batches);
}
