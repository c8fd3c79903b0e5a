//! Front fields are read in front of a body wherever it lies, go with it, and cost no message when they are damaged.

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use posthaste_spool::{
    Batch, Body, ClosedFileSpool, ClosedSpool, Config, Entry, Events, FileSpool, FrontFields, Lsn, ReadError, Released,
    Replayed, Spool, SpoolAdmin, SpoolEvent, StreamId,
};

const FRONT: &[u8] = b"Received: from the place where it was\r\n by the place where it is\r\n";

/// Where the message with front fields lies, and what of it is in a file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Where {
    Ring,
    /// In a pack that was a segment.
    Adopted,
    /// In a pack into which it was copied.
    Copied,
}

const PLACES: [(Where, bool); 6] = [
    (Where::Ring, false),
    (Where::Adopted, false),
    (Where::Copied, false),
    (Where::Ring, true),
    (Where::Adopted, true),
    (Where::Copied, true),
];

fn open(dir: &Path) -> (FileSpool, Receiver<SpoolEvent>) {
    let (tell, told) = channel();
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    let events = Events::new(move |event| drop(tell.send(event)));
    (FileSpool::open(dir, Config { ring, keeper: false, events, ..Config::default() }).unwrap().0, told)
}

fn append(spool: &FileSpool, stream: StreamId, body: Body) -> Lsn {
    let (tell, told) = channel();
    let entry = Entry { stream, needs_body: true, payload: "for you".into() };
    spool.append(Batch { entries: vec![entry], body }, Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().unwrap().unwrap()
}

fn text(is_large: bool) -> Vec<u8> {
    let len = if is_large { 600_000 } else { 7000 };
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A spool with one such message, among others. Returns all that a reader gets of it.
fn spool(dir: &Path, (place, is_large): (Where, bool)) -> (FileSpool, Receiver<SpoolEvent>, Lsn, Vec<u8>) {
    let (spool, told) = open(dir);
    let stream = spool.stream("one").unwrap();
    let (front, text) = (FrontFields::new(FRONT).unwrap(), text(is_large));
    let other = || Body::inline(vec![Bytes::from(vec![1; 7000])]);
    append(&spool, stream, other());
    let lsn = if is_large {
        let mut upload = spool.upload(0).unwrap();
        upload.write(&text).unwrap();
        append(&spool, stream, Body::File(front, upload.finish().unwrap()))
    } else {
        append(&spool, stream, Body::Inline(front, vec![text.clone().into()]))
    };
    let others: Vec<Lsn> = (0..30).map(|_| append(&spool, stream, other())).collect();
    if place == Where::Copied {
        spool.advance(stream, others[29], None, Released { below: Lsn::ZERO, also: others });
    }
    if place != Where::Ring {
        assert_eq!(spool.pack_oldest(1).unwrap(), 1);
    }
    spool.checkpoint().unwrap();
    (spool, told, lsn, [FRONT, &text].concat())
}

/// Changes one octet of the front fields on the disk; false: they are in no file there.
fn damage(dir: &Path) -> bool {
    for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        if let Some(at) = bytes.windows(FRONT.len()).position(|window| window == FRONT) {
            std::fs::File::options().write(true).open(path).unwrap().write_all_at(b"!", at as u64 + 12).unwrap();
            return true;
        }
    }
    false
}

fn damage_anywhere(dir: &Path) {
    // A segment that was adopted has two names, and one that was copied is still there.
    assert!(damage(&dir.join("packs")) | damage(&dir.join("ring")));
}

fn exported(dir: &Path, lsn: Lsn) -> Bytes {
    let closed = ClosedFileSpool::open(dir).unwrap();
    let mut found = None;
    closed
        .export(&mut |batch| {
            if batch.lsn == lsn {
                found = Some(batch.body.expect("a body").expect("whole").read().unwrap());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    found.expect("it is exported")
}

#[test]
fn front_fields_are_read_in_front_of_the_body() {
    for place in PLACES {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _told, lsn, whole) = spool(dir.path(), place);
        drop(spool);
        let (spool, _told) = open(dir.path());
        let len = whole.len() as u64;
        assert!(spool.read(lsn, 0..len).unwrap() == whole, "{place:?}");
        let edge = FRONT.len() as u64;
        for (from, to) in [(0, edge), (edge, len), (edge - 3, edge + 3), (0, 1), (edge, edge), (len - 1, len)] {
            let part = &whole[from as usize..to as usize];
            assert!(spool.read(lsn, from..to).unwrap() == part, "{place:?}: {from}-{to}");
        }
        match spool.read(lsn, len..len + 1) {
            Err(ReadError::OutOfRange { len: told, .. }) => assert_eq!(told, len, "{place:?}"),
            read => panic!("{place:?}: {read:?}"),
        }
        let mut shown = None;
        spool
            .replay(spool.stream("one").unwrap(), &mut |replayed| {
                if let Replayed::Entry { lsn: this, body_len, .. } = replayed
                    && this == lsn
                {
                    shown = Some(body_len);
                }
            })
            .unwrap();
        // The stream has passed it where it was copied.
        assert_eq!(shown, (place.0 != Where::Copied).then_some(len), "{place:?}");
        drop(spool);
        assert!(exported(dir.path(), lsn) == whole, "{place:?}");
    }
}

#[test]
fn damaged_front_fields_cost_no_message() {
    for place in PLACES {
        let dir = tempfile::tempdir().unwrap();
        let (spool, told, lsn, whole) = spool(dir.path(), place);
        damage_anywhere(dir.path());
        let check = |read: Bytes| {
            assert_eq!(read.len(), whole.len(), "{place:?}");
            let (front, body) = read.split_at(FRONT.len());
            assert!(body == &whole[FRONT.len()..], "{place:?}");
            assert!(front.starts_with(b"X-Lost:") && FrontFields::new(front.to_vec()).unwrap().lines() == 2);
        };
        (0..2).for_each(|_| check(spool.read(lsn, 0..whole.len() as u64).unwrap()));
        assert!(spool.read(lsn, FRONT.len() as u64..whole.len() as u64).unwrap() == whole[FRONT.len()..]);
        let is_told = |event: SpoolEvent| matches!(event, SpoolEvent::Damage(damage) if damage.lsn == Some(lsn));
        assert_eq!(told.try_iter().filter(|event| is_told(event.clone())).count(), 1, "{place:?}: once");
        let scrubbed = spool.scrub(&mut |_| ControlFlow::Continue(())).unwrap().damage;
        assert!(scrubbed.iter().any(|found| found.lsn == Some(lsn) && found.what.contains("is whole")), "{scrubbed:?}");
        // It is never copied without what is left of its fields.
        spool.pack_oldest(1).unwrap();
        spool.clean_packs().unwrap();
        spool.checkpoint().unwrap();
        check(spool.read(lsn, 0..whole.len() as u64).unwrap());
        drop(spool);
        check(exported(dir.path(), lsn));
        let verified = ClosedFileSpool::open(dir.path()).unwrap().verify().unwrap().damage;
        assert!(verified.iter().any(|found| found.lsn == Some(lsn) && found.what.contains("is whole")), "{verified:?}");
    }
}

#[test]
fn front_fields_go_with_their_body() {
    for is_large in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _told, lsn, _) = spool(dir.path(), (Where::Copied, is_large));
        assert!(damage(&dir.path().join("packs")), "they were copied");
        // Another stream still needs the entry.
        let stream = spool.stream("one").unwrap();
        spool.advance(stream, lsn, None, Released { below: Lsn::new(lsn.get() + 1), also: Vec::new() });
        spool.checkpoint().unwrap();
        spool.clean_packs().unwrap();
        spool.checkpoint().unwrap();
        assert!(!damage(&dir.path().join("packs")));
        assert!(matches!(spool.read(lsn, 0..1), Err(ReadError::NotFound(_))));
    }
}

#[test]
fn a_rebuilt_spool_keeps_a_message_with_lost_fields() {
    for place in PLACES {
        let dir = tempfile::tempdir().unwrap();
        let (spool, _told, lsn, whole) = spool(dir.path(), place);
        drop(spool);
        damage_anywhere(dir.path());
        for name in ["checkpoint.0", "checkpoint.1"] {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        let new = tempfile::tempdir().unwrap();
        let to = new.path().join("spool");
        let rebuilt = ClosedFileSpool::rebuild(dir.path(), &to).unwrap();
        assert!(rebuilt.damage.iter().any(|found| found.lsn == Some(lsn)), "{place:?}: {rebuilt:?}");
        let (spool, told) = open(&to);
        let read = spool.read(lsn, 0..whole.len() as u64).unwrap();
        assert!(read.starts_with(b"X-Lost:") && read[FRONT.len()..] == whole[FRONT.len()..], "{place:?}");
        assert!(!told.try_iter().any(|event| matches!(event, SpoolEvent::Damage(_))), "{place:?}: it is whole now");
    }
}
