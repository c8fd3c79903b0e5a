//! The owner's spool when its ring, its disk or the engine fails.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;

use posthaste_cluster::memory::{Fault, LogFaults};
use posthaste_cluster::{LogPosition, ReplicatedSpool, SenderEnd, ShardLog, ShardOpenError, WriterRules};
use posthaste_fsops::{Faults as DiskFaults, Machine};
use posthaste_spool::{AppendError, Body, Lsn, Spool};
use rustix::io::Errno;

use crate::world::{Place, append, content, in_file, inline, records, start};

/// The ring fails when the log has the batch.
fn told_by_a_ring_that_fails(rules: WriterRules) -> Result<Lsn, AppendError> {
    let mut place = Place::new(LogFaults::default());
    place.config.writer_rules = rules;
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    let before = append(&spool, stream, inline(10), "before");
    let (syncs, _) = place.machine.counts();
    place.machine.set_faults(DiskFaults { fail_syncs: (syncs..syncs + 100).collect(), ..DiskFaults::default() });
    let told = start(&spool, stream, inline(10), "one").recv().unwrap();
    if told.is_err() {
        let later = start(&spool, stream, inline(10), "later").recv().unwrap();
        assert!(matches!(later, Err(AppendError::Poisoned(_))), "{later:?}");
        assert!(spool.poisoned().is_some());
    }
    spool.abandon().abandon();
    place.machine.set_faults(DiskFaults::default());
    // The log has it, so the next opening has it.
    let spool = place.open().unwrap();
    let found = content(&spool, stream);
    assert_eq!(found.iter().map(|it| &it.1[..]).collect::<Vec<_>>(), ["before", "one"]);
    assert_eq!(found[0].0, before);
    told
}

#[test]
fn a_250_needs_the_ring_of_a_member() {
    let told = told_by_a_ring_that_fails(WriterRules::default());
    assert!(matches!(told, Err(AppendError::Poisoned(_))), "{told:?}");
    assert!(told_by_a_ring_that_fails(WriterRules { after_local: false, ..WriterRules::default() }).is_ok());
}

#[test]
fn a_log_that_is_nearly_full_takes_notes_and_no_bodies() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    append(&spool, stream, inline(100), "first");
    let (used, _) = place.log.room().unwrap();
    // Four fifths.
    place.log.set_limit(used * 5 / 4);
    while spool.engine_refusal().is_none() {
        std::thread::yield_now();
    }
    let refused = start(&spool, stream, inline(10), "x").recv().unwrap();
    assert!(matches!(&refused, Err(AppendError::Full(why)) if why.contains("log")), "{refused:?}");
    append(&spool, stream, Body::None, "note");
    place.log.set_limit(1 << 30);
    while spool.engine_refusal().is_some() {
        std::thread::yield_now();
    }
    append(&spool, stream, inline(10), "again");
    assert_eq!(content(&spool, stream).len(), 3);
}

#[test]
fn settings_that_change_while_it_runs_keep_bodies_out() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    place.log.set_wrong(vec!["sync_interval is 2m".to_owned()]);
    while spool.engine_refusal().is_none() {
        std::thread::yield_now();
    }
    let refused = start(&spool, stream, inline(10), "x").recv().unwrap();
    assert!(matches!(&refused, Err(AppendError::Local(why)) if why.to_string().contains("2m")), "{refused:?}");
    append(&spool, stream, Body::None, "note");
    place.log.set_wrong(Vec::new());
    while spool.engine_refusal().is_some() {
        std::thread::yield_now();
    }
    append(&spool, stream, inline(10), "again");
}

/// The disk of a member fails while it writes the file of a body that the log has.
#[test]
fn an_error_of_the_local_disk_is_no_hole_in_the_log() {
    let mut place = Place::new(LogFaults::default());
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    let file = in_file(&spool, 30_000);
    start(&spool, stream, file, "in a file").recv().unwrap().unwrap();
    let all = content(&spool, stream);
    drop(spool);
    let mut of_the_disk = 0;
    for nth in 0..40 {
        let mut other = Place::with(Machine::new().unwrap(), place.log.clone());
        other.config.identity.nonce = 50;
        let local = other.local();
        let (_, changes) = other.machine.counts();
        let fail_changes = Some((changes + nth..changes + nth + 1, Errno::IO));
        other.machine.set_faults(DiskFaults { fail_changes, ..DiskFaults::default() });
        let opened = ReplicatedSpool::open(local, Arc::new(place.log.clone()), other.config.clone());
        match &opened {
            Err(ShardOpenError::End(SenderEnd::Local { .. })) => of_the_disk += 1,
            Err(ShardOpenError::End(_) | ShardOpenError::Invalid(_)) => panic!("change {nth}: {:?}", opened.err()),
            _ => {}
        }
        drop(opened);
        other.machine.set_faults(DiskFaults::default());
        let spool = other.open().unwrap();
        let stream = spool.stream("a").unwrap();
        assert_eq!(content(&spool, stream), all, "change {nth}");
    }
    assert!(of_the_disk > 0, "some change is one of the body's file");
}

/// The owner is killed when the log has a large body, and the local spool has some parts of it alone.
fn opened_between_parts(rules: WriterRules) -> Result<usize, ShardOpenError> {
    let mut place = Place::new(LogFaults::default());
    place.config.writer_rules = rules;
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    // Then four records may be in flight.
    let last = (0..6).map(|_| append(&spool, stream, Body::None, "note")).last().unwrap();
    let end = place.log.end().unwrap().get();
    // Three parts and the commit; nobody answers the barrier that would decide the last two.
    place.log.script(&[Fault::None, Fault::None, Fault::UnknownStored, Fault::UnknownStored]);
    place.log.set_away_at(LogPosition::new(end + 4));
    let told = start(&spool, stream, in_file(&spool, 1_300_000), "large");
    while spool.stats().published.get() < last.get() + 2 {
        std::thread::yield_now();
    }
    spool.abandon().abandon();
    assert!(told.recv().is_err(), "nobody was told");
    place.log.set_away(false);
    let spool = place.open()?;
    Ok(content(&spool, spool.stream("a").unwrap()).len())
}

#[test]
fn an_opening_between_two_parts_has_the_whole_body() {
    assert_eq!(opened_between_parts(WriterRules::default()).unwrap(), 7);
    let broken = opened_between_parts(WriterRules { resume_at_parts: false, ..WriterRules::default() });
    assert!(matches!(broken, Err(ShardOpenError::End(SenderEnd::Invalid(_)))), "{broken:?}");
}

/// True if the log gets more than the ring can hold.
fn overfills(rules: WriterRules) -> bool {
    let mut place = Place::new(LogFaults::default());
    place.config.writer_rules = rules;
    let spool = place.open().unwrap();
    let stream = spool.stream("a").unwrap();
    // 800 KB; the ring has 512 KiB.
    let mut waiting: Vec<_> = (0..40).map(|_| start(&spool, stream, inline(20_000), "x")).collect();
    loop {
        waiting.retain(|told| matches!(told.try_recv(), Err(TryRecvError::Empty)));
        let in_log: usize = records(&place.log).iter().map(|it| it.numbers() as usize).sum();
        if in_log >= 40 || waiting.is_empty() {
            return in_log >= 40;
        }
        std::thread::yield_now();
    }
}

#[test]
fn room_is_asked_for_before_the_log_has_a_batch() {
    assert!(!overfills(WriterRules::default()));
    assert!(overfills(WriterRules { room_first: false, ..WriterRules::default() }));
}
