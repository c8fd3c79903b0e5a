//! Files of the ring that are removed, cut off or damaged after a kill: no entry is lost without a word.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use posthaste_spool::{
    Batch, Body, ClosedFileSpool, ClosedSpool, Config, Entry, FileSpool, FrontFields, Lsn, OpenError, OpenReport,
    Released, Replayed, SnapshotName, Spool, StreamId,
};

fn config() -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 16, ..Default::default() };
    Config { ring, keeper: false, ..Config::default() }
}

/// In memory where there is such a place: nothing here is meant to last.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn append(spool: &FileSpool, stream: StreamId, body: Option<usize>) -> u64 {
    let (tell, told) = channel();
    let entry = Entry { stream, needs_body: body.is_some(), payload: vec![b'p'; 40].into() };
    let body = body.map_or(Body::None, |len| Body::Inline(FrontFields::default(), vec![vec![7; len].into()]));
    spool.append(Batch { entries: vec![entry], body }, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap().get()
}

/// Messages with a change after each; in the midst the stream writes down what it knows, at the first of these numbers, and a checkpoint is made at the second.
/// Then the process is killed. Returns the batches, with whether each is a message.
fn killed(dir: &Path, snapshot_at: Option<usize>, checkpoint_at: Option<usize>) -> BTreeSet<(u64, bool)> {
    let (spool, _) = FileSpool::open(dir, config()).unwrap();
    let stream = spool.stream("stream").unwrap();
    let mut all = BTreeSet::new();
    for nth in 0..20 {
        all.insert((append(&spool, stream, Some(9000)), true));
        let last = append(&spool, stream, None);
        all.insert((last, false));
        if snapshot_at == Some(nth) {
            let name = SnapshotName::new("known").unwrap();
            let known: String = all.iter().map(|(lsn, _)| format!("{lsn} ")).collect();
            spool.write_snapshot(&name, &mut |out| out.write_all(known.as_bytes())).unwrap();
            spool.advance(stream, Lsn::new(last), Some(name), Released::default());
        }
        if checkpoint_at == Some(nth) {
            spool.checkpoint().unwrap();
        }
    }
    spool.abandon();
    all
}

#[derive(Debug, Default)]
struct Found {
    known: BTreeSet<u64>,
    damaged: BTreeSet<u64>,
    uncertain: u64,
    report: OpenReport,
    was_refused: bool,
}

/// State of the stream after the next start, and after that command if the start was refused.
fn found(dir: &Path) -> (FileSpool, Found) {
    let (mut config, mut found) = (config(), Found::default());
    let (spool, report) = match FileSpool::open(dir, config.clone()) {
        Err(OpenError::Missing(error)) => {
            let closed = ClosedFileSpool::open(dir).unwrap();
            let damage = closed.verify().unwrap().damage;
            assert!(!closed.missing().is_empty() && !damage.is_empty(), "{error}: {:?}", closed.inspect());
            drop(closed);
            found.was_refused = true;
            config.ring.gives_up_missing = true;
            FileSpool::open(dir, config).unwrap()
        }
        opened => opened.unwrap(),
    };
    found.report = report;
    let stream = spool.stream("stream").unwrap();
    let mut known = String::new();
    if let Some(mut from) = spool.restore(stream).unwrap().snapshot {
        from.read_to_string(&mut known).unwrap();
    }
    found.known = known.split_whitespace().map(|word| word.parse().unwrap()).collect();
    spool
        .replay(stream, &mut |replayed| match replayed {
            Replayed::Entry { lsn, .. } => {
                assert!(found.uncertain == 0 || lsn.get() > found.uncertain, "out of order");
                found.known.insert(lsn.get());
            }
            Replayed::Damaged { lsn } => drop(found.damaged.insert(lsn.get())),
            Replayed::Uncertain { through } => {
                assert!(found.known.iter().all(|lsn| *lsn <= through.get()), "out of order");
                found.uncertain = through.get();
            }
        })
        .unwrap();
    (spool, found)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir.join("ring")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> = paths.filter(|path| path.extension().is_some_and(|it| it == "seg")).collect();
    segments.sort();
    segments
}

const HOW: [&str; 6] =
    ["removed", "emptied", "cut off in the midst", "cut off at its header", "first record damaged", "one bit flipped"];

fn spoil(path: &Path, how: &str) {
    let cut = |len| std::fs::File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    match how {
        "removed" => std::fs::remove_file(path).unwrap(),
        "emptied" => cut(0),
        "cut off in the midst" => cut(32 << 10),
        "cut off at its header" => cut(8 << 10),
        "first record damaged" => {
            let mut bytes = std::fs::read(path).unwrap();
            bytes[posthaste_ring::layout::FIRST_RECORD + 9] ^= 4;
            std::fs::write(path, bytes).unwrap();
        }
        _ => {
            let mut bytes = std::fs::read(path).unwrap();
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            bytes[used / 2] ^= 4;
            std::fs::write(path, bytes).unwrap();
        }
    }
}

#[test]
fn any_lost_file_of_the_ring_is_told_with_what_it_cost() {
    let mut refused = 0;
    for (snapshot_at, checkpoint_at) in [(None, None), (Some(9), Some(9)), (Some(3), Some(19)), (None, Some(6))] {
        let dir = scratch();
        let all = killed(dir.path(), snapshot_at, checkpoint_at);
        let paths = segments(dir.path());
        let each = (0..paths.len()).map(|nth| nth..nth + 1);
        for which in each.chain([0..paths.len(), 1..paths.len(), paths.len() - 3..paths.len()]) {
            for how in HOW {
                let tried = scratch();
                copy(dir.path(), tried.path());
                for path in &paths[which.clone()] {
                    spoil(&tried.path().join("ring").join(path.file_name().unwrap()), how);
                }
                let (spool, found) = found(tried.path());
                let what = format!("{snapshot_at:?} {checkpoint_at:?} {which:?} {how}: {found:?}");
                refused += usize::from(found.was_refused);
                let lost = all.iter().filter(|(lsn, _)| !found.known.contains(lsn));
                for (lsn, _) in lost {
                    assert!(found.damaged.contains(lsn) || *lsn <= found.uncertain, "{lsn} is lost: {what}");
                    assert!(!found.report.damage.is_empty(), "{what}");
                }
                let stream = spool.stream("stream").unwrap();
                let next = append(&spool, stream, None);
                assert!(next > found.uncertain && all.iter().all(|(lsn, _)| *lsn < next), "used twice: {what}");
                // It stays so until the stream has written down that it knows.
                spool.checkpoint().unwrap();
                spool.abandon();
                let (spool, again) = self::found(tried.path());
                assert_eq!((again.uncertain, &again.damaged), (found.uncertain, &found.damaged), "{what}");
                assert!(!again.was_refused && again.known.contains(&next), "{what}");
                let name = SnapshotName::new("later").unwrap();
                spool.write_snapshot(&name, &mut |out| out.write_all(b"1")).unwrap();
                spool.advance(stream, Lsn::new(next), Some(name), Released { below: Lsn::new(next), also: vec![] });
                spool.checkpoint().unwrap();
                spool.abandon();
                let (spool, last) = self::found(tried.path());
                assert_eq!((last.uncertain, last.damaged.len()), (0, 0), "{what}");
                drop(spool);
                let closed = ClosedFileSpool::open(tried.path()).unwrap();
                assert_eq!(closed.verify().unwrap().damage, [], "nobody needs anything that is lost: {what}");
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn a_ring_that_is_gone_with_its_directory_is_missed() {
    for (snapshot_at, checkpoint_at) in [(None, None), (Some(3), Some(9))] {
        let dir = scratch();
        let all = killed(dir.path(), snapshot_at, checkpoint_at);
        std::fs::remove_dir_all(dir.path().join("ring")).unwrap();
        // Before a start has made the directory again.
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        assert!(!closed.missing().is_empty() && !closed.verify().unwrap().damage.is_empty());
        drop(closed);
        let (_spool, found) = found(dir.path());
        assert!(found.was_refused);
        assert!(all.iter().all(|(lsn, _)| *lsn <= found.uncertain || found.damaged.contains(lsn)), "{found:?}");
    }
}

/// Of a segment that was cut off nothing tells once the next one has a record.
#[test]
fn a_loss_stays_known_after_a_kill_that_follows_an_append() {
    for how in HOW {
        let dir = scratch();
        killed(dir.path(), Some(3), Some(3));
        // The last one with a record; those after it are only ready.
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        let segments = closed.inspect().unwrap().segments;
        let name = segments.iter().rfind(|segment| segment.records > 0).unwrap().name.clone();
        drop(closed);
        spoil(&dir.path().join("ring").join(name), how);
        let (spool, first) = found(dir.path());
        let next = append(&spool, spool.stream("stream").unwrap(), None);
        spool.abandon();
        let (_spool, again) = found(dir.path());
        assert_eq!((again.uncertain, &again.damaged), (first.uncertain, &first.damaged), "{how}: {again:?}");
        assert!(!again.was_refused && again.known.contains(&next), "{how}: {again:?}");
    }
}
