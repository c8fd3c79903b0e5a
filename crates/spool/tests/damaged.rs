//! A body that nobody can read any more is kept aside as it is, and let go.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use bytes::Bytes;
use posthaste_spool::{
    Batch, Body, ClosedFileSpool, ClosedSpool, Config, Entry, FileSpool, Lsn, ReadError, Released, Replayed, SetAside,
    Spool, SpoolAdmin, StreamId,
};

fn config() -> Config {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    Config { ring, keeper: false, ..Config::default() }
}

fn open(dir: &Path) -> FileSpool {
    FileSpool::open(dir, config()).unwrap().0
}

fn append(spool: &FileSpool, streams: &[StreamId], body: Body) -> Lsn {
    let (tell, told) = channel();
    let entry = |stream: &StreamId| Entry { stream: *stream, needs_body: true, payload: "for you".into() };
    let batch = Batch { entries: streams.iter().map(entry).collect(), body };
    spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap()
}

const BYTE: u8 = 0xa7;
const LEN: usize = 7000;
const LEN_LARGE: usize = 600_000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Where {
    Ring,
    Pack,
    Large,
}

/// A spool with a body full of `BYTE` among others, which two streams need.
fn spool(dir: &Path, place: Where) -> (FileSpool, [StreamId; 2], Lsn) {
    let spool = open(dir);
    let streams = ["one", "other"].map(|name| spool.stream(name).unwrap());
    let inline = |byte: u8| Body::inline(vec![Bytes::from(vec![byte; LEN])]);
    append(&spool, &streams, inline(1));
    let lsn = match place {
        Where::Large => {
            let mut upload = spool.upload(0).unwrap();
            upload.write(&vec![BYTE; LEN_LARGE]).unwrap();
            append(&spool, &streams, Body::file(upload.finish().unwrap()))
        }
        _ => append(&spool, &streams, inline(BYTE)),
    };
    for n in 0..30 {
        append(&spool, &streams, inline(n));
    }
    if place == Where::Pack {
        assert_eq!(spool.pack_oldest(1).unwrap(), 1);
    }
    spool.checkpoint().unwrap();
    (spool, streams, lsn)
}

/// Where in the file of the body its first byte is.
fn find(dir: &Path, place: Where) -> (PathBuf, u64) {
    let dir = dir.join(match place {
        Where::Ring => "ring",
        Where::Pack => "packs",
        Where::Large => "bodies",
    });
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    // A segment that is being made has no body, and gets another name meanwhile.
    for path in paths.filter(|path| path.extension().is_none_or(|extension| extension != "new")) {
        let bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(100).position(|window| window == [BYTE; 100]) {
            return (path, at as u64);
        }
    }
    panic!("no body in {place:?}");
}

fn flip(dir: &Path, place: Where) {
    let (path, at) = find(dir, place);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[BYTE ^ 1], at + 77).unwrap();
}

fn len_of(place: Where) -> usize {
    if place == Where::Large { LEN_LARGE } else { LEN }
}

#[test]
fn a_damaged_body_is_set_aside_once_as_it_is() {
    for place in [Where::Ring, Where::Pack, Where::Large] {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _, lsn) = spool(dir.path(), place);
        assert_eq!(spool.set_aside(lsn).unwrap(), SetAside::Whole, "{place:?}");
        flip(dir.path(), place);
        let len = len_of(place) as u64;
        assert!(matches!(spool.read(lsn, 0..len), Err(ReadError::Damaged { .. })), "{place:?}");
        let SetAside::Kept(path) = spool.set_aside(lsn).unwrap() else { panic!("{place:?}: not kept") };
        let mut expected = vec![BYTE; len as usize];
        expected[77] ^= 1;
        assert_eq!(std::fs::read(&path).unwrap(), expected, "{place:?}");
        assert_eq!(spool.set_aside(lsn).unwrap(), SetAside::Kept(path.clone()));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "{place:?}");
    }
}

#[test]
fn what_may_come_back_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (large, _, lsn) = spool(dir.path(), Where::Large);
    let (path, _) = find(dir.path(), Where::Large);
    std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
    assert!(matches!(large.read(lsn, 0..100), Err(ReadError::Unreachable { .. })));
    assert!(matches!(large.set_aside(lsn).unwrap(), SetAside::Gone { .. }));
    std::fs::rename(dir.path().join("elsewhere"), path).unwrap();
    assert_eq!(large.read(lsn, 0..100).unwrap(), [BYTE; 100][..]);
    // `repair` makes an index again.
    let dir = tempfile::tempdir().unwrap();
    let (packed, _, lsn) = spool(dir.path(), Where::Pack);
    drop(packed);
    let index = std::fs::read_dir(dir.path().join("packs")).unwrap().map(|entry| entry.unwrap().path());
    let index = index.into_iter().find(|path| path.extension().is_some_and(|end| end == "index")).unwrap();
    let whole = std::fs::read(&index).unwrap();
    std::fs::write(&index, vec![0; whole.len()]).unwrap();
    let reopened = open(dir.path());
    assert!(matches!(reopened.read(lsn, 0..100), Err(ReadError::Unreachable { .. })));
}

#[test]
fn a_body_given_up_is_damaged_no_more_and_keeps_its_entries() {
    for (place, is_missing) in [(Where::Ring, false), (Where::Pack, false), (Where::Large, false), (Where::Large, true)]
    {
        let what = format!("{place:?}, missing: {is_missing}");
        let dir = tempfile::tempdir().unwrap();
        let (before, [one, other], lsn) = spool(dir.path(), place);
        drop(before);
        if is_missing {
            std::fs::remove_file(find(dir.path(), place).0).unwrap()
        } else {
            flip(dir.path(), place)
        }
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        let unreadable = closed.unreadable_bodies().unwrap();
        assert_eq!(unreadable.iter().map(|(lsn, _)| *lsn).collect::<Vec<_>>(), [lsn], "{what}");
        assert_eq!(closed.verify().unwrap().damage.len(), 1, "{what}");
        drop(closed);
        let given_up = open(dir.path());
        assert_eq!(matches!(given_up.set_aside(lsn).unwrap(), SetAside::Gone { .. }), is_missing, "{what}");
        given_up.give_up_bodies(&[lsn]).unwrap();
        // As a kill would.
        given_up.abandon();
        let closed = ClosedFileSpool::open(dir.path()).unwrap();
        assert_eq!(closed.unreadable_bodies().unwrap(), [], "{what}");
        assert_eq!(closed.verify().unwrap().damage, [], "{what}");
        drop(closed);
        let again = open(dir.path());
        for stream in [one, other] {
            let mut shown = Vec::new();
            let visit = &mut |replayed: Replayed<'_>| match replayed {
                Replayed::Entry { lsn, .. } => shown.push(lsn),
                other => panic!("{what}: {other:?}"),
            };
            again.replay(stream, visit).unwrap();
            assert_eq!((shown.len(), shown[1]), (32, lsn), "{what}");
        }
        assert!(matches!(again.read(lsn, 0..10), Err(ReadError::NotFound(_))), "{what}");
        let last = again.stats().published;
        let all = Released { below: Lsn::new(last.get() + 1), also: Vec::new() };
        [one, other].iter().for_each(|stream| again.advance(*stream, last, None, all.clone()));
        // An unwanted body file goes with the checkpoint after the one that says so.
        (0..2).for_each(|_| again.checkpoint().unwrap());
        assert_eq!(std::fs::read_dir(dir.path().join("bodies")).unwrap().count(), 0, "{what}");
    }
}

#[test]
fn what_a_checkpoint_covers_is_no_torn_tail() {
    // As the last record of the log, of which no later one says that it was durable.
    let filled = |with_checkpoint: bool| {
        let dir = tempfile::tempdir().unwrap();
        let spool = open(dir.path());
        let stream = spool.stream("one").unwrap();
        append(&spool, &[stream], Body::inline(vec![Bytes::from(vec![1; LEN])]));
        let lsn = append(&spool, &[stream], Body::inline(vec![Bytes::from(vec![BYTE; LEN])]));
        if with_checkpoint {
            spool.checkpoint().unwrap();
        }
        spool.abandon();
        (dir, stream, lsn)
    };
    let entries = |spool: &FileSpool, stream: StreamId| {
        let (mut entries, mut damaged) = (0, 0);
        let visit = &mut |replayed: Replayed<'_>| match replayed {
            Replayed::Entry { .. } => entries += 1,
            _ => damaged += 1,
        };
        spool.replay(stream, visit).unwrap();
        (entries, damaged)
    };
    let (dir, stream, lsn) = filled(true);
    flip(dir.path(), Where::Ring);
    let closed = ClosedFileSpool::open(dir.path()).unwrap();
    assert_eq!(closed.unreadable_bodies().unwrap().len(), 1);
    drop(closed);
    let (spool, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!((report.damage, report.cut_off), (Vec::new(), Vec::new()));
    assert_eq!(entries(&spool, stream), (2, 0));
    assert!(matches!(spool.set_aside(lsn).unwrap(), SetAside::Kept(_)));

    // Behind the checkpoint nobody was told of it, for all that is known.
    let (dir, stream, lsn) = filled(false);
    flip(dir.path(), Where::Ring);
    let (spool, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!(report.damage, []);
    assert_eq!(report.cut_off.iter().map(|damage| damage.lsn).collect::<Vec<_>>(), [Some(lsn)]);
    assert_eq!(entries(&spool, stream), (1, 0));

    // A damaged header hides a record: that is told as what it costs.
    let (dir, _, lsn) = filled(true);
    let (path, at) = find(dir.path(), Where::Ring);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[0x55; 60], at - 80).unwrap();
    let (_, report) = FileSpool::open(dir.path(), config()).unwrap();
    assert_eq!(report.damage.iter().map(|damage| damage.lsn).collect::<Vec<_>>(), [Some(lsn)]);
    assert_eq!(report.cut_off, []);
}
