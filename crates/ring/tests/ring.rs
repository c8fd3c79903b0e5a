//! Behaviour of a ring on a disk without faults.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_ring::{
    Config, Lsn, OnRecord, Ring, RingAppendError, RingCancelled, RingEvent, RingReadError, SegmentReader,
};

const SEGMENT: u64 = 64 << 10;
/// For what would otherwise never happen.
const PATIENCE: Duration = Duration::from_secs(60);

fn config() -> Config {
    Config { segment_bytes: SEGMENT, max_segments: 5, ..Config::default() }
}

fn open(dir: &Path, low: u64) -> Ring {
    let (ring, recovery) = Ring::open(dir, config(), OnRecord { low, ..OnRecord::default() }).expect("ring opens");
    assert_eq!(recovery.damage, []);
    ring
}

type Outcome = Result<Lsn, RingAppendError>;

/// Appends and hands back where the outcome will come.
fn begin(ring: &Ring, head: &str, body: &[u8]) -> Receiver<Outcome> {
    let (tell, told) = channel();
    let body = if body.is_empty() { Vec::new() } else { vec![Bytes::copy_from_slice(body)] };
    ring.append(vec![head.to_owned().into()], body, move |outcome| drop(tell.send(outcome)));
    told
}

fn append(ring: &Ring, head: &str, body: &[u8]) -> Outcome {
    begin(ring, head, body).recv_timeout(PATIENCE).expect("an answer")
}

/// The heads in service, with their LSNs.
fn heads(ring: &Ring, from: Lsn) -> Vec<(Lsn, String)> {
    let mut heads = Vec::new();
    ring.visit(from, &mut |record| {
        heads.push((record.lsn, String::from_utf8(record.head.to_vec()).unwrap()));
        ControlFlow::Continue(())
    })
    .expect("it can be read");
    heads
}

/// Fills the ring with records of this body until it is full; returns their LSNs and the refusal.
fn fill(ring: &Ring, body: &[u8]) -> (Vec<Lsn>, RingAppendError) {
    let mut lsns = Vec::new();
    loop {
        match append(ring, "fill", body) {
            Ok(lsn) => lsns.push(lsn),
            Err(error) => return (lsns, error),
        }
        assert!(lsns.len() < 100_000, "a small ring never filled up");
    }
}

#[test]
fn what_was_appended_is_read_visited_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(dir.path(), 0);
    let bodies: Vec<Vec<u8>> = (0..200).map(|n| vec![n as u8; n * 13 % 900]).collect();
    let told: Vec<_> = bodies.iter().enumerate().map(|(n, body)| begin(&ring, &format!("head {n}"), body)).collect();
    let lsns: Vec<Lsn> = told.iter().map(|told| told.recv_timeout(PATIENCE).unwrap().unwrap()).collect();
    assert!(lsns.windows(2).all(|pair| pair[0].get() + 1 == pair[1].get()), "{lsns:?}");
    assert_eq!(ring.durable_lsn(), lsns[199]);
    let check = |ring: &Ring| {
        for (n, (lsn, body)) in lsns.iter().zip(&bodies).enumerate() {
            assert_eq!(ring.read_head(*lsn).unwrap(), format!("head {n}"));
            assert_eq!(ring.read_body(*lsn, 0..u32::MAX).unwrap(), body);
            let end = body.len().min(9);
            assert_eq!(ring.read_body(*lsn, 3..9).unwrap(), body[end.min(3)..end]);
        }
        let expected: Vec<_> = lsns.iter().enumerate().map(|(n, lsn)| (*lsn, format!("head {n}"))).collect();
        assert_eq!(heads(ring, Lsn::ZERO), expected);
        assert_eq!(heads(ring, lsns[77]), expected[77..]);
        assert!(matches!(ring.read_head(Lsn::new(lsns[0].get() - 1)), Err(RingReadError::NotFound(_))));
    };
    check(&ring);
    drop(ring);
    let ring = open(dir.path(), 0);
    check(&ring);
    let later = append(&ring, "later", b"").unwrap();
    assert!(later.get() > lsns[199].get() + (1 << 20), "each opening skips what a crash may have torn away");
    assert_eq!(ring.segments().iter().map(|info| (info.last, info.is_sealed)).next_back(), Some((later, false)));
    drop(ring);
    let ring =
        Ring::open(dir.path(), config(), OnRecord { known: Lsn::new(1 << 40), ..OnRecord::default() }).unwrap().0;
    assert_eq!(append(&ring, "above", b"").unwrap(), Lsn::new((1 << 40) + 1 + (1 << 20)));
}

#[test]
fn segments_are_used_in_order_and_recycled_from_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(dir.path(), 0);
    let mut all = Vec::new();
    for round in 0..40 {
        all.push(append(&ring, "turn", &[round; 20_000]).unwrap());
        let segments = ring.segments();
        let numbers: Vec<u64> = segments.iter().map(|info| info.number).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        assert!(segments.iter().all(|info| info.is_sealed == (info.number != numbers[numbers.len() - 1])));
        if let [.., before, _] = numbers[..] {
            ring.free_below(before);
            assert_eq!(ring.segments()[0].number, before);
        }
    }
    assert!(ring.stats().segments <= config().max_segments, "{:?}", ring.stats());
    ring.free_below(u64::MAX);
    let [current] = ring.segments()[..] else { panic!("{:?}", ring.segments()) };
    assert_eq!(ring.read_head(current.first).unwrap(), "turn", "what is written to is never freed");
    assert!(matches!(ring.read_head(all[0]), Err(RingReadError::NotFound(_))));
    drop(ring);
    let ring = open(dir.path(), current.number);
    assert_eq!(heads(&ring, Lsn::ZERO).len(), heads(&ring, current.first).len());
    // All of it is needed no more: the next segment follows on it even so.
    ring.free_below(current.number + 1);
    assert_eq!(ring.segments(), []);
    drop(ring);
    let ring = open(dir.path(), current.number + 1);
    append(&ring, "next", b"").unwrap();
    assert_eq!(ring.segments()[0].number, current.number + 1);
}

#[test]
fn a_full_ring_takes_completions_and_mail_once_space_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let told = events.clone();
    let config = Config { events: Arc::new(move |event| told.lock().unwrap().push(event)), ..config() };
    let (ring, _) = Ring::open(dir.path(), config, OnRecord::default()).unwrap();
    let (lsns, refused) = fill(&ring, &[7; 5000]);
    assert!(matches!(refused, RingAppendError::Full(_)), "{refused:?}");
    assert_eq!(ring.segments().len(), 4, "one segment is left");
    assert!(events.lock().unwrap().iter().any(|event| matches!(event, RingEvent::RoomWanted)));
    // Both together: one is refused and the other is not.
    let both = (begin(&ring, "mail", &[1; 5000]), begin(&ring, "done", b""));
    assert!(matches!(both.0.recv_timeout(PATIENCE).unwrap(), Err(RingAppendError::Full(_))));
    both.1.recv_timeout(PATIENCE).unwrap().expect("what is done needs no body");
    assert!(ring.flush().is_ok(), "waiting needs no room");
    for freed in 1..=3 {
        ring.free_below(freed + 1);
        append(&ring, "mail", &[2; 5000]).unwrap_or_else(|error| panic!("freed {freed}: {error}"));
        let (more, refused) = fill(&ring, &[3; 5000]);
        assert!(more.len() > 3 && matches!(refused, RingAppendError::Full(_)), "{more:?}, {refused}");
    }
    // When the last segment is full, too, the first one that is freed takes its place.
    while append(&ring, &"done ".repeat(300), b"").is_ok() {}
    assert_eq!(ring.segments().len(), 5);
    ring.free_below(5);
    append(&ring, "done", b"").expect("in the segment that was freed");
    assert!(matches!(append(&ring, "mail", &[2; 5000]), Err(RingAppendError::Full(_))));
    ring.free_below(6);
    append(&ring, "mail", &[2; 5000]).expect("the next one that is freed is for mail");
    assert!(matches!(ring.read_head(lsns[0]), Err(RingReadError::NotFound(_))));
    assert!(ring.stats().segments <= 5);
}

#[test]
fn a_full_ring_opens_however_often_and_is_no_fuller() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(dir.path(), 0);
    let lsns = fill(&ring, &[7; 5000]).0;
    for _ in 0..4 {
        let again = Ring::open(dir.path(), config(), OnRecord::default());
        assert!(matches!(again, Err(posthaste_ring::RingOpenError::Locked { dir: named }) if named == dir.path()));
    }
    drop(ring);
    for _ in 0..4 {
        let ring = open(dir.path(), 0);
        assert_eq!(heads(&ring, Lsn::ZERO).len(), lsns.len());
        assert_eq!(fill(&ring, &[7; 5000]).0, [], "a new opening is no new room");
        assert_eq!(ring.segments().len(), 4);
    }
}

#[test]
fn a_linked_segment_keeps_its_bytes_when_it_is_freed() {
    let dir = tempfile::tempdir().unwrap();
    let (ring_dir, pack) = (dir.path().join("ring"), dir.path().join("1.pack"));
    let ring = open(&ring_dir, 0);
    let lsns = fill(&ring, &[7; 5000]).0;
    assert!(ring.link(4, &pack).is_err(), "it is written to");
    ring.link(1, &pack).unwrap();
    let files = ring.stats().segments;
    ring.free_below(2);
    assert_eq!(ring.stats().segments, files - 1, "it is not recycled");
    fill(&ring, &[8; 5000]);
    drop(ring);
    let check = || {
        let (pack, mut found) = (SegmentReader::open(&pack).unwrap(), Vec::new());
        let gaps = pack.scan(&mut |record| {
            assert_eq!(pack.record(record.offset).unwrap(), Some(record.header));
            assert_eq!(pack.head(record.offset, &record.header).unwrap(), "fill");
            assert_eq!(pack.body(record.offset, &record.header, 0..u32::MAX).unwrap(), [7; 5000][..]);
            found.push(record.header.lsn);
            ControlFlow::Continue(())
        });
        assert_eq!((gaps.unwrap(), &found[..]), (Vec::new(), &lsns[..found.len()]));
        assert!(found.len() > 5);
    };
    check();
    // A cut may have left both names: the ring's is taken away, not the file.
    std::fs::hard_link(&pack, ring_dir.join("0000000000000000.seg")).unwrap();
    let ring = open(&ring_dir, 2);
    assert!(!ring_dir.join("0000000000000000.seg").exists());
    ring.free_below(u64::MAX);
    fill(&ring, &[9; 5000]);
    check();
}

#[test]
fn a_timely_cancel_gets_no_answer_and_may_skip_the_write() {
    let dir = tempfile::tempdir().unwrap();
    let (tell, events) = channel();
    let tell = Mutex::new(tell);
    let config = Config { events: Arc::new(move |event| drop(tell.lock().unwrap().send(event))), ..config() };
    let (ring, _) = Ring::open(dir.path(), config, OnRecord::default()).unwrap();
    // The writer is held while it answers the first, so that the others wait.
    let ((hold, held), (tell, told)) = (channel::<()>(), channel());
    let answer = |name: &'static str| {
        let tell = tell.clone();
        move |outcome: Outcome| tell.send((name, outcome.map(drop).map_err(drop))).unwrap()
    };
    let (entered, enters) = channel();
    let first = ring.append(vec!["first".into()], vec![], move |_| {
        entered.send(()).unwrap();
        held.recv().unwrap();
    });
    enters.recv_timeout(PATIENCE).unwrap();
    assert_eq!(first.cancel(), RingCancelled::TooLate);
    // This one holds the writer between the sync and the answers of its commit.
    let (hold_second, held_second) = channel::<()>();
    let (entered, enters) = channel();
    ring.append(vec!["second".into()], vec![], move |_| {
        entered.send(()).unwrap();
        held_second.recv().unwrap();
    });
    let written = ring.append(vec!["written".into()], vec![], answer("written"));
    ring.append(vec!["kept".into()], vec![], answer("kept"));
    let waiting = ring.append(vec!["waiting".into()], vec![], answer("waiting"));
    assert_eq!(waiting.cancel(), RingCancelled::NotWritten);
    hold.send(()).unwrap();
    enters.recv_timeout(PATIENCE).unwrap();
    let RingCancelled::Written(lsn) = written.cancel() else { panic!("it was written and not published") };
    assert_eq!(written.cancel(), RingCancelled::Written(lsn));
    hold_second.send(()).unwrap();
    ring.flush().unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [("kept", Ok(()))]);
    let events: Vec<_> = events.try_iter().collect();
    assert!(matches!(events[..], [RingEvent::Cancelled(cancelled)] if cancelled == lsn), "{events:?}");
    assert_eq!(ring.stats().cancelled, 1);
    let heads: Vec<String> = heads(&ring, Lsn::ZERO).into_iter().map(|(_, head)| head).collect();
    assert_eq!(heads, ["first", "second", "written", "kept"]);
    assert_eq!(waiting.cancel(), RingCancelled::NotWritten);
}

#[test]
fn what_is_too_long_or_too_much_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (ring, _) =
        Ring::open(dir.path(), Config { max_pending_bytes: 1000, ..config() }, OnRecord::default()).unwrap();
    let limit = ring.max_record_bytes();
    append(&ring, "", &vec![1; limit]).expect("as long as it may be");
    let refused = append(&ring, "x", &vec![1; limit]);
    assert!(
        matches!(refused, Err(RingAppendError::TooLarge { bytes, limit: told }) if bytes == limit + 1 && told == limit)
    );
    let ((hold, held), (entered, enters)) = (channel::<()>(), channel());
    ring.append(vec!["first".into()], vec![], move |_| {
        entered.send(()).unwrap();
        held.recv().unwrap();
    });
    enters.recv_timeout(PATIENCE).unwrap();
    let waits = begin(&ring, "", &[1; 900]);
    assert!(matches!(append(&ring, "", &[1; 101]), Err(RingAppendError::Busy)));
    hold.send(()).unwrap();
    assert!(waits.recv_timeout(PATIENCE).unwrap().is_ok());
}

#[test]
fn a_poisoned_ring_takes_nothing_and_refuses_what_is_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let (tell, events) = channel();
    let tell = Mutex::new(tell);
    let config = Config { events: Arc::new(move |event| drop(tell.lock().unwrap().send(event))), ..config() };
    let (ring, _) = Ring::open(dir.path(), config, OnRecord::default()).unwrap();
    let kept = append(&ring, "kept", b"body").unwrap();
    let ((hold, held), (entered, enters)) = (channel::<()>(), channel());
    ring.append(vec!["first".into()], vec![], move |_| {
        entered.send(()).unwrap();
        held.recv().unwrap();
    });
    enters.recv_timeout(PATIENCE).unwrap();
    let waits = begin(&ring, "waits", b"");
    ring.poison("somebody's syncfs failed".into());
    ring.poison("later".into());
    hold.send(()).unwrap();
    let refused = waits.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(&refused, Err(RingAppendError::Poisoned(why)) if &**why == "somebody's syncfs failed"),
        "{refused:?}"
    );
    assert!(matches!(append(&ring, "later", b""), Err(RingAppendError::Poisoned(_))));
    assert!(matches!(ring.flush(), Err(RingAppendError::Poisoned(_))));
    assert_eq!(ring.poisoned().as_deref(), Some("somebody's syncfs failed"));
    let told = events.try_iter().filter(|event| matches!(event, RingEvent::Poisoned(_))).count();
    assert_eq!(told, 1);
    assert_eq!(ring.read_body(kept, 0..4).unwrap(), "body", "what there is can be read");
    drop(ring);
    append(&open(dir.path(), 0), "again", b"").expect("reopened");
}

#[test]
fn nobody_waits_for_a_writer_that_has_panicked() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(dir.path(), 0);
    let ((hold, held), (entered, enters)) = (channel::<()>(), channel());
    ring.append(vec!["first".into()], vec![], move |_| {
        entered.send(()).unwrap();
        held.recv().unwrap();
        panic!("as a test of what a panic does");
    });
    enters.recv_timeout(PATIENCE).unwrap();
    let second = begin(&ring, "second", b"");
    hold.send(()).unwrap();
    let second = second.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(second, Err(RingAppendError::Poisoned(_) | RingAppendError::Closed)), "{second:?}");
    assert!(append(&ring, "third", b"").is_err());
    assert!(ring.poisoned().is_some());
}

#[test]
fn the_last_handle_may_go_on_the_thread_that_writes() {
    let dir = tempfile::tempdir().unwrap();
    let ring = open(dir.path(), 0);
    let ((hold, held), (tell, told)) = (channel::<()>(), channel());
    let last = ring.clone();
    ring.append(vec!["first".into()], vec![], move |_| {
        held.recv().unwrap();
        drop(last);
        tell.send(()).unwrap();
    });
    drop(ring);
    hold.send(()).unwrap();
    told.recv_timeout(PATIENCE).expect("it does not wait for itself");
}

#[test]
fn what_a_callback_appends_first_is_part_of_the_next_write() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { max_pending_bytes: 110, max_batch: 2, ..config() };
    let (ring, _) = Ring::open(dir.path(), config, OnRecord::default()).unwrap();
    let ((hold, held), (enter, entered)) = (channel::<()>(), channel());
    let (writer, (tell, told)) = (ring.clone(), channel());
    ring.append(vec!["first".into()], vec![], move |_| {
        enter.send(()).unwrap();
        held.recv().unwrap();
        writer.append_first("owed".into(), move |outcome: Outcome| tell.send(outcome).unwrap());
    });
    entered.recv_timeout(PATIENCE).unwrap();
    for nth in ["second", "third", "fourth"] {
        ring.append(vec![nth.into()], vec![vec![7; 30].into()], |outcome: Outcome| assert!(outcome.is_ok()));
    }
    let refused = append(&ring, "too much", b"");
    assert!(matches!(refused, Err(RingAppendError::Busy)), "{refused:?}");
    hold.send(()).unwrap();
    ring.flush().unwrap();
    let lsn = told.recv_timeout(PATIENCE).unwrap().unwrap();
    let heads = heads(&ring, Lsn::ZERO);
    assert_eq!(
        heads.iter().map(|(_, head)| &**head).collect::<Vec<_>>(),
        ["first", "owed", "second", "third", "fourth"]
    );
    assert_eq!(heads[1].0, lsn);
    assert_eq!(ring.stats().commits, 3, "two in each after the first");
    let (tell, told) = channel();
    ring.append_first(vec![0; SEGMENT as usize].into(), move |outcome: Outcome| tell.send(outcome).unwrap());
    assert!(matches!(told.recv_timeout(PATIENCE).unwrap(), Err(RingAppendError::TooLarge { .. })));
}
