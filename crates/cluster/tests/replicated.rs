//! The rules of the owner's spool: when it acknowledges, what it does after a kill, and when it stops.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;

use posthaste_cluster::memory::{Fault, LogFaults, MemoryLog};
use posthaste_cluster::{
    Content, Invalid, LogError, LogPosition, LogRecord, LogRecordHeader, SenderEnd, ShardLog, ShardOpenError,
};
use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{AppendError, Body, Lsn, Released, Spool, SpoolAdmin};

use crate::world::{self, Place, append, content, in_file, inline, records, start, text};

#[test]
fn a_batch_is_acknowledged_when_the_log_and_the_ring_have_it() {
    let mut place = Place::with(Machine::new().unwrap(), MemoryLog::new(1, LogFaults::default()));
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    place.log.set_away(true);
    let told = start(&spool, stream, inline(100), "one");
    // A batch that is in the local spool would be shown.
    assert!(matches!(told.try_recv(), Err(TryRecvError::Empty)));
    assert!(content(&spool, stream).is_empty());
    place.log.set_away(false);
    let lsn = told.recv().unwrap().unwrap();
    assert_eq!(lsn.shard(), 3);
    assert_eq!(content(&spool, stream), [(lsn, "one".to_owned(), text(100))]);
}

#[test]
fn an_undecided_batch_is_told_once_it_is_decided() {
    for fault in [Fault::UnknownStored, Fault::UnknownLost, Fault::UnknownLate(3), Fault::Refused] {
        let mut place = Place::new(LogFaults::default());
        let spool = place.open().unwrap();
        let stream = spool.stream("a").unwrap();
        place.log.script(&[fault, fault]);
        let lsns: Vec<Lsn> = (0..5).map(|n| append(&spool, stream, inline(10), &n.to_string())).collect();
        let all = content(&spool, stream);
        assert_eq!(all.iter().map(|it| it.0).collect::<Vec<_>>(), lsns, "{fault:?}");
        assert_eq!(all.iter().map(|it| it.1.clone()).collect::<String>(), "01234", "{fault:?}");
    }
}

#[test]
fn batches_that_wait_share_a_record() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    place.log.set_away(true);
    let told: Vec<_> = (0..600).map(|_| start(&spool, stream, Body::None, "x")).collect();
    place.log.set_away(false);
    let lsns: Vec<Lsn> = told.iter().map(|told| told.recv().unwrap().unwrap()).collect();
    assert!(lsns.is_sorted_by(|one, other| one.get() + 1 == other.get()));
    let sizes: Vec<usize> = records(&place.log)
        .iter()
        .filter_map(|record| match &record.content {
            Content::Batches(batches) => Some(batches.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes.iter().sum::<usize>(), 600);
    assert!(sizes.iter().all(|size| *size <= 256) && sizes.len() < 20, "{sizes:?}");
}

/// The power fails while bundles and a large body go into the local spool. The next opening finds all of the log, once
/// and in order.
#[test]
fn a_cut_between_log_and_ring_loses_and_doubles_nothing() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    append(&spool, stream, inline(50), "first");
    spool.checkpoint().unwrap();
    let begin = place.machine.recording().events.len();
    let large = in_file(&spool, 1_300_000);
    place.log.set_away(true);
    let mut told: Vec<_> = (0..9).map(|n| start(&spool, stream, inline(n * 700), &format!("{n}"))).collect();
    told.push(start(&spool, stream, large, "large"));
    let small = in_file(&spool, 3_000);
    told.push(start(&spool, stream, small, "in a file"));
    told.extend((0..5).map(|n| start(&spool, stream, Body::None, &format!("note {n}"))));
    place.log.set_away(false);
    for told in &told {
        told.recv().unwrap().unwrap();
    }
    let all = content(&spool, stream);
    assert_eq!(all.len(), 17);
    let recording = place.machine.recording();
    drop(spool);
    let at_end = place.log.records();
    for position in (begin..=recording.events.len()).step_by(3) {
        // The engine has all; of the machine is left what the cut says.
        let log = MemoryLog::new(1, LogFaults::default());
        for (position, record) in &at_end {
            log.append(
                LogPosition::new(position.get() - 1),
                record.clone(),
                Box::new(|stored| assert!(stored.is_ok())),
            );
        }
        let tree = recording.cut(Cut { position, choice: Choice::Seed(position as u64) });
        let mut left = Place::with(Machine::boot(&tree, true, false).unwrap(), log);
        left.config.identity.nonce = 100;
        let spool = left.open().unwrap();
        let stream = spool.stream("a").unwrap();
        assert_eq!(content(&spool, stream), all, "cut at {position}");
    }
}

#[test]
fn a_member_without_anything_applies_the_whole_log() {
    let mut place = Place::new(world::faults());
    let spool = place.open().unwrap();
    let a = spool.stream("a").unwrap();
    let b = spool.stream("b").unwrap();
    append(&spool, b, in_file(&spool, 2_000_000), "large");
    for n in 0..20 {
        append(&spool, a, inline(n * 100), &n.to_string());
    }
    spool.forget_stream("b").unwrap();
    let goes = spool.stream("b").unwrap();
    assert_ne!(goes, b);
    append(&spool, goes, Body::None, "of another");
    let of_a = content(&spool, a);
    let of_b = content(&spool, goes);
    drop(spool);
    // The numbers of the cluster are the same, whatever the local ones are.
    let mut other = Place::with(Machine::new().unwrap(), place.log.clone());
    other.config.identity.nonce = 50;
    let spool = other.open().unwrap();
    assert_eq!(content(&spool, spool.stream("a").unwrap()), of_a);
    assert_eq!(content(&spool, spool.stream("b").unwrap()), of_b);
}

#[test]
fn a_member_with_a_full_ring_resumes_in_order() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    let mut all = Vec::new();
    for n in 0..60 {
        let (body, len) = if n % 3 == 0 { (Body::None, 0) } else { (inline(20_000 + n), 20_000 + n) };
        let lsn = append(&spool, stream, body, &n.to_string());
        all.push((lsn, n.to_string(), text(len)));
        spool.advance(stream, lsn, None, Released { below: Lsn::new(lsn.get() + 1), also: vec![] });
        spool.checkpoint().unwrap();
    }
    drop(spool);
    // Its ring has 512 KiB, and nobody releases anything: the keeper has to pack.
    let mut other = Place::with(Machine::new().unwrap(), place.log.clone());
    (other.config.identity.nonce, other.keeper) = (50, true);
    let spool = other.open().unwrap();
    let last = all.last().unwrap().0;
    while spool.stats().published < last {
        // The log is open, and the rest waits for room.
        std::thread::yield_now();
    }
    assert_eq!(content(&spool, spool.stream("a").unwrap()), all);
}

#[test]
fn a_second_owner_fences_the_first() {
    let mut place = Place::new(LogFaults::default());
    let first = place.open().unwrap();
    let stream = first.stream("a").unwrap();
    let before = append(&first, stream, inline(10), "before");
    let mut other = Place::with(Machine::new().unwrap(), place.log.clone());
    other.config.identity.nonce = 50;
    let second = other.open().unwrap();
    let outcome = start(&first, stream, inline(10), "too late").recv().unwrap();
    assert!(matches!(outcome, Err(AppendError::NotOwner)), "{outcome:?}");
    let again = start(&first, stream, inline(10), "too late").recv().unwrap();
    assert!(matches!(again, Err(AppendError::NotOwner)), "{again:?}");
    assert!(first.poisoned().is_some_and(|why| why.contains("another owner")));
    let at_second = second.stream("a").unwrap();
    assert_eq!(content(&second, at_second), [(before, "before".to_owned(), text(10))]);
    assert!(append(&second, at_second, inline(10), "after") > before);
}

#[test]
fn a_log_that_lacks_what_the_member_has_stops_it() {
    let written = || {
        let mut place = Place::new(LogFaults::default());
        let spool = place.open().unwrap();
        let stream = spool.stream("a").unwrap();
        for n in 0..9 {
            append(&spool, stream, inline(10), &n.to_string());
        }
        drop(spool);
        place
    };
    let refused = |mut place: Place| place.open().err().expect("it is refused");
    let place = written();
    place.log.roll_back(5);
    assert!(matches!(refused(place), ShardOpenError::RolledBack { .. }));
    let place = written();
    place.log.delete();
    assert!(matches!(refused(place), ShardOpenError::RolledBack { .. }));
    let place = written();
    place.log.roll_back(1);
    let end = place.log.end().unwrap();
    let header = LogRecordHeader { shard: 3, log: 5, epoch: 1, send: 0, first: 9, previous: 8 };
    place.log.append(end, LogRecord::encode(&header, &Content::Digest).0, Box::new(|_| ()));
    assert!(matches!(refused(place), ShardOpenError::Invalid(Invalid::OtherHistory { .. })));
    // Others have written meanwhile, and the log was cut.
    let place = written();
    let mut other = Place::with(Machine::new().unwrap(), place.log.clone());
    other.config.identity.nonce = 50;
    let spool = other.open().unwrap();
    let stream = spool.stream("a").unwrap();
    append(&spool, stream, inline(10), "more");
    drop(spool);
    place.log.cut(place.log.end().unwrap()).unwrap();
    assert!(matches!(refused(place), ShardOpenError::Invalid(Invalid::Cut { .. })));
}

#[test]
fn damage_after_what_the_member_has_stops_it_and_is_named() {
    let mut place = Place::new(LogFaults::default());
    drop(place.open().unwrap());
    let at = place.log.end().unwrap().next();
    let mut other = Place::with(Machine::new().unwrap(), place.log.clone());
    other.config.identity.nonce = 50;
    let spool = other.open().unwrap();
    let stream = spool.stream("a").unwrap();
    append(&spool, stream, inline(1000), "more");
    drop(spool);
    place.log.flip(at, 99);
    let found = place.open().err().expect("it is refused");
    assert!(
        matches!(&found, ShardOpenError::End(SenderEnd::Invalid(Invalid::Hole { position, .. })) if *position == at),
        "{found}"
    );
    place.log.lose(at);
    let found = place.open().err().expect("it is refused");
    assert!(
        matches!(&found, ShardOpenError::End(SenderEnd::Invalid(Invalid::Hole { position, .. })) if *position == at),
        "{found}"
    );
    assert_eq!(place.log.follow(at, &mut |_, _| true), Err(LogError::Gap(at)));
}

#[test]
fn a_full_ring_refuses_before_the_log_has_the_message() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    let mut acknowledged = Vec::new();
    let refused = loop {
        match start(&spool, stream, inline(20_000), "x").recv().unwrap() {
            Ok(lsn) => acknowledged.push(lsn),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::Full(_)) && !acknowledged.is_empty(), "{refused}");
    let batches = |log: &MemoryLog| records(log).iter().filter(|it| matches!(it.content, Content::Batches(_))).count();
    assert_eq!(batches(&place.log), acknowledged.len());
    // A note finds the room that is kept for such.
    append(&spool, stream, Body::None, "note");
    let last = spool.stats().published;
    spool.advance(stream, last, None, Released { below: Lsn::new(last.get() + 1), also: vec![] });
    spool.checkpoint().unwrap();
    append(&spool, stream, inline(20_000), "again");
}

#[test]
fn a_batch_over_the_members_limit_never_reaches_the_log() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    let end = place.log.end().unwrap();
    let refused = start(&spool, stream, inline(50 << 10), "x").recv().unwrap();
    assert!(matches!(refused, Err(AppendError::TooLarge { .. })), "{refused:?}");
    assert_eq!(place.log.end(), Ok(end));
}

#[test]
fn an_advance_of_a_stream_of_the_owner_is_in_the_log() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let own = spool.stream("of the owner").unwrap();
    let all = spool.stream("a").unwrap();
    let lsns: Vec<Lsn> = (0..4).map(|_| append(&spool, own, inline(10), "x")).collect();
    append(&spool, all, inline(10), "y");
    for stream in [own, all] {
        spool.advance(stream, lsns[2], None, Released { below: lsns[1], also: vec![lsns[2]] });
    }
    append(&spool, all, inline(10), "after");
    let advances: Vec<Content> = records(&place.log)
        .into_iter()
        .map(|it| it.content)
        .filter(|it| matches!(it, Content::Advance { .. }))
        .collect();
    let [Content::Advance { position, below, also, .. }] = &advances[..] else { panic!("{advances:?}") };
    assert_eq!((*position, *below, &also[..]), (lsns[2].number(), lsns[1].number(), &[lsns[2].number()][..]));
    drop(spool);
    let mut other = Place::with(Machine::new().unwrap(), place.log.clone());
    other.config.identity.nonce = 50;
    let spool = other.open().unwrap();
    let own = spool.stream("of the owner").unwrap();
    let all = spool.stream("a").unwrap();
    assert_eq!(spool.position(own).0, lsns[2]);
    assert_eq!(content(&spool, own).iter().map(|it| it.0).collect::<Vec<_>>(), [lsns[3]]);
    assert!(!spool.needs_body(own, lsns[0]) && spool.needs_body(own, lsns[1]) && !spool.needs_body(own, lsns[2]));
    assert_eq!(content(&spool, all).len(), 2);
}

#[test]
fn a_close_answers_everybody() {
    let mut place = Place::with(Machine::new().unwrap(), MemoryLog::new(1, LogFaults::default()));
    let spool = Arc::new(place.open().unwrap());
    let stream = spool.stream("a").unwrap();
    place.log.script(&[Fault::UnknownLost; 1]);
    let told: Vec<_> = (0..50).map(|n| start(&*spool, stream, inline(10), &n.to_string())).collect();
    drop(spool);
    let told: Vec<_> = told.into_iter().map(|told| told.recv().unwrap()).collect();
    let spool = place.open().unwrap();
    let stored = content(&spool, spool.stream("a").unwrap());
    for (nth, outcome) in told.iter().enumerate() {
        let is_there = stored.iter().any(|it| it.1 == nth.to_string());
        match outcome {
            Ok(lsn) => assert!(stored.iter().any(|it| it.0 == *lsn && it.1 == nth.to_string())),
            Err(AppendError::Closed) => assert!(!is_there, "{nth} was refused"),
            Err(AppendError::Poisoned(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_engine_with_wrong_settings_is_refused_before_a_write() {
    let mut place = Place::new(LogFaults::default());
    place.log.set_wrong(vec!["sync_interval is 2m".to_owned()]);
    let refused = place.open().err().expect("it is refused");
    assert!(matches!(&refused, ShardOpenError::Settings(wrong) if wrong.len() == 1), "{refused}");
    assert_eq!(place.log.end(), Ok(LogPosition::START));
}
