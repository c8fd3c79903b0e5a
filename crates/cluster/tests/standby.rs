//! Standbys: they apply the log, become owners, and owners become standbys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use bytes::Bytes;
use posthaste_cluster::memory::{Fault, LogFaults, MemoryLog};
use posthaste_cluster::{
    Appended, Content, Invalid, LogError, LogPosition, LogRecord, OwnerIdentity, SenderEnd, ShardLog,
};
use posthaste_fsops::Machine;
use posthaste_random::Random;
use posthaste_spool::{AppendError, Body, Spool, SpoolAdmin, StreamError, StreamId};

use crate::world::{self, Place, Replicated, append, content, in_file, inline, records, start, text};

/// A second member of the same shard.
fn other(place: &Place) -> Place {
    let mut other = Place::with(Machine::new().unwrap(), place.log.clone());
    (other.config.identity.nonce, other.segments) = (1_000_000, place.segments);
    other
}

fn identity(nonce: u64) -> OwnerIdentity {
    OwnerIdentity { nonce, log: 0x1061d, epoch: None }
}

/// The local id of a stream, once the log has told it.
fn stream_of(spool: &Replicated, name: &str) -> StreamId {
    loop {
        match spool.stream(name) {
            Ok(stream) => return stream,
            Err(StreamError::Unknown(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until a standby has what the owner has.
fn catch_up(standby: &Replicated, owner: &Replicated) {
    while standby.stats().published < owner.stats().published {
        assert_eq!(standby.poisoned(), None);
        std::thread::yield_now();
    }
}

#[test]
fn a_standby_applies_what_the_owner_appends() {
    for faults in [LogFaults::default(), world::faults()] {
        let mut place = Place::new(faults);
        let owner = place.open().unwrap();
        let mut elsewhere = other(&place);
        let standby = elsewhere.follow().unwrap();
        let stream = owner.stream("a").unwrap();
        for n in 0..40 {
            append(&owner, stream, inline(n * 90), &n.to_string());
        }
        append(&owner, stream, in_file(&owner, 1_300_000), "large");
        catch_up(&standby, &owner);
        assert_eq!(content(&standby, stream_of(&standby, "a")), content(&owner, stream));
        assert_eq!(standby.place(), owner.place());
        assert!(standby.place().unwrap().applied <= place.log.end().unwrap());
    }
}

#[test]
fn a_standby_takes_no_batches_and_names_no_streams() {
    let mut place = Place::new(LogFaults::default());
    let owner = place.open().unwrap();
    let mut elsewhere = other(&place);
    let standby = elsewhere.follow().unwrap();
    assert!(matches!(standby.stream("a"), Err(StreamError::Unknown(_))));
    owner.stream("a").unwrap();
    let stream = stream_of(&standby, "a");
    let refused = start(&standby, stream, inline(10), "x").recv().unwrap();
    assert!(matches!(refused, Err(AppendError::NotOwner)), "{refused:?}");
    assert!(standby.forget_stream("a").is_err());
    assert_eq!(standby.poisoned(), None);
}

#[test]
fn a_shard_goes_back_and_forth_a_hundred_times() {
    let mut place = Place::new(LogFaults::default());
    place.segments = 64;
    let first = place.open().unwrap();
    first.stream("a").unwrap();
    let mut elsewhere = other(&place);
    let second = elsewhere.follow().unwrap();
    let mut owner = &first;
    let mut standby = &second;
    let mut all = Vec::new();
    for round in 0..100 {
        let stream = stream_of(owner, "a");
        let lsn = append(owner, stream, inline(round % 7 * 100), &round.to_string());
        all.push((lsn, round.to_string(), text(round % 7 * 100)));
        owner.demote();
        standby.promote(identity(2_000_000 + round as u64)).unwrap();
        (owner, standby) = (standby, owner);
    }
    catch_up(standby, owner);
    for spool in [owner, standby] {
        assert_eq!(content(spool, stream_of(spool, "a")), all);
    }
}

#[test]
fn an_owner_that_was_fenced_becomes_a_standby() {
    let mut place = Place::new(LogFaults::default());
    let first = place.open().unwrap();
    let stream = first.stream("a").unwrap();
    append(&first, stream, inline(10), "before");
    let mut elsewhere = other(&place);
    let second = elsewhere.follow().unwrap();
    second.promote(identity(5)).unwrap();
    let refused = start(&first, stream, inline(10), "too late").recv().unwrap();
    assert!(matches!(refused, Err(AppendError::NotOwner)), "{refused:?}");
    first.demote();
    append(&second, stream_of(&second, "a"), inline(10), "after");
    catch_up(&first, &second);
    assert_eq!(content(&first, stream), content(&second, stream_of(&second, "a")));
    // It can be the owner again.
    second.demote();
    first.promote(identity(6)).unwrap();
    append(&first, stream, Body::None, "again");
    assert_eq!(content(&first, stream).len(), 3);
}

/// The owner steps down while a large body is under way, and the record that commits it is stored all the same.
#[test]
fn a_body_whose_commit_is_undecided_comes_back_by_the_log() {
    let mut place = Place::new(LogFaults::default());
    let first = place.open().unwrap();
    let stream = first.stream("a").unwrap();
    // Then four records may be in flight.
    for _ in 0..6 {
        append(&first, stream, inline(10), "before");
    }
    let end = place.log.end().unwrap().get();
    // Three parts; the answer to the commit is lost, and so is that to the barrier which would decide it.
    place.log.script(&[Fault::None, Fault::None, Fault::None, Fault::UnknownStored]);
    place.log.set_away_at(LogPosition::new(end + 4));
    let told = start(&first, stream, in_file(&first, 1_300_000), "large");
    while place.log.end().is_ok() {
        std::thread::yield_now();
    }
    first.demote();
    place.log.set_away(false);
    assert!(told.recv().unwrap().is_err());
    let mut elsewhere = other(&place);
    let second = elsewhere.follow().unwrap();
    second.promote(identity(5)).unwrap();
    append(&second, stream_of(&second, "a"), inline(10), "after");
    catch_up(&first, &second);
    assert_eq!(content(&first, stream), content(&second, stream_of(&second, "a")));
    assert_eq!(content(&first, stream).len(), 8);
}

/// Owners change at any moment, also with large bodies under way and an engine that fails in every way.
#[test]
fn forced_changes_of_owner_lose_and_double_nothing() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut place = Place::with(Machine::new().unwrap(), MemoryLog::new(seed, world::faults()));
        place.segments = 200;
        let first = place.open().unwrap();
        first.stream("a").unwrap();
        let mut elsewhere = other(&place);
        let second = elsewhere.follow().unwrap();
        let mut owner = &first;
        let mut standby = &second;
        let mut all = Vec::new();
        for round in 0..16 {
            let stream = stream_of(owner, "a");
            for _ in 0..random.below(6) {
                let body = match random.below(5) {
                    0 => in_file(owner, 1_200_000),
                    1 => Body::None,
                    _ => inline(random.below(900) as usize),
                };
                all.push(start(owner, stream, body, &all.len().to_string()));
            }
            // The owner steps down, or learns that it is fenced.
            let is_told = random.one_in(2);
            if is_told {
                owner.demote();
            }
            standby.promote(identity(2_000_000 + round)).unwrap();
            if !is_told {
                owner.demote();
            }
            (owner, standby) = (standby, owner);
        }
        catch_up(standby, owner);
        let stored = content(owner, stream_of(owner, "a"));
        assert!(content(standby, stream_of(standby, "a")) == stored, "seed {seed}: members differ");
        for (nth, told) in all.iter().enumerate() {
            let mut found = stored.iter().filter(|it| it.1 == nth.to_string()).map(|it| it.0);
            let is_at = found.next();
            let is_again = found.next().is_some();
            assert!(!is_again, "seed {seed}: {nth} is there twice");
            match told.recv().unwrap() {
                Ok(lsn) => assert_eq!(is_at, Some(lsn), "seed {seed}: {nth} was acknowledged"),
                Err(AppendError::NotOwner) => assert_eq!(is_at, None, "seed {seed}: {nth} was refused"),
                Err(AppendError::Poisoned(_)) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
}

/// Keeps the answer to an append, and the append from the log.
struct HoldingLog {
    inner: MemoryLog,
    holds: AtomicBool,
    held: Sender<Appended>,
}

impl ShardLog for HoldingLog {
    fn append(&self, after: LogPosition, record: Bytes, then: Appended) {
        if self.holds.swap(false, Ordering::SeqCst) {
            self.held.send(then).unwrap()
        } else {
            self.inner.append(after, record, then)
        }
    }

    fn follow(&self, from: LogPosition, each: &mut dyn FnMut(LogPosition, Bytes) -> bool) -> Result<(), LogError> {
        self.inner.follow(from, each)
    }

    fn first(&self) -> Result<LogPosition, LogError> {
        self.inner.first()
    }

    fn end(&self) -> Result<LogPosition, LogError> {
        self.inner.end()
    }

    fn cut(&self, below: LogPosition) -> Result<(), LogError> {
        self.inner.cut(below)
    }

    fn room(&self) -> Result<(u64, u64), LogError> {
        self.inner.room()
    }

    fn is_current(&self) -> Result<bool, LogError> {
        self.inner.is_current()
    }

    fn check(&self) -> Result<Vec<String>, LogError> {
        self.inner.check()
    }
}

#[test]
fn an_answer_to_an_ownership_before_confirms_nothing() {
    let place = Place::new(LogFaults::default());
    let (held, is_held) = channel();
    let log = Arc::new(HoldingLog { inner: place.log.clone(), holds: AtomicBool::new(false), held });
    let spool = place.open_on(log.clone()).unwrap();
    // `start` and `open` come before it: this one has send number 2, and the next 3.
    let stream = spool.stream("a").unwrap();
    log.holds.store(true, Ordering::SeqCst);
    let told = start(&spool, stream, inline(10), "one");
    let late = is_held.recv().unwrap();
    spool.demote();
    assert!(told.recv().unwrap().is_err());
    spool.promote(identity(5)).unwrap();
    // The `open` has 0.
    append(&spool, stream, Body::None, "note");
    append(&spool, stream, Body::None, "note");
    log.holds.store(true, Ordering::SeqCst);
    let told = start(&spool, stream, inline(10), "two");
    let own = is_held.recv().unwrap();
    late(Ok(place.log.end().unwrap().next()));
    own(Err(LogError::Refused("for no reason".to_owned())));
    let lsn = told.recv().unwrap().unwrap();
    let numbers: u64 = records(&place.log).iter().map(LogRecord::numbers).sum();
    assert!(numbers >= lsn.number(), "{lsn} was acknowledged, and the log has {numbers} numbers");
    let mut elsewhere = other(&place);
    let standby = elsewhere.follow().unwrap();
    catch_up(&standby, &spool);
    let stored = content(&standby, stream_of(&standby, "a"));
    assert_eq!(stored.iter().map(|it| &it.1[..]).collect::<Vec<_>>(), ["note", "note", "two"]);
    assert_eq!(stored[2].0, lsn);
}

/// A node that gives up while it opens the log, with an engine that is away.
#[test]
fn a_promotion_ends_when_the_shard_is_another_nodes() {
    let mut place = Place::new(LogFaults::default());
    drop(place.open().unwrap());
    let spool = Arc::new(place.follow().unwrap());
    place.log.set_away(true);
    let promotion = std::thread::spawn({
        let spool = spool.clone();
        move || spool.promote(identity(5))
    });
    // Until the order is there it has no effect.
    while !promotion.is_finished() {
        spool.demote();
    }
    assert_eq!(promotion.join().unwrap(), Err(SenderEnd::GivenUp));
    place.log.set_away(false);
    spool.promote(identity(6)).unwrap();
    assert!(spool.stream("a").is_ok());
}

/// The owner has the rest of the log only once its ring has room: before, it would do again what the rest says is done.
#[test]
fn a_node_is_the_owner_once_its_spool_has_all_of_the_log() {
    let mut place = Place::new(LogFaults::default());
    place.segments = 64;
    let owner = place.open().unwrap();
    let stream = owner.stream("a").unwrap();
    // More than a ring of 512 KiB holds.
    for n in 0..60 {
        append(&owner, stream, inline(20_000), &n.to_string());
    }
    let last = owner.stats().published;
    drop(owner);
    let mut small = Place::with(Machine::new().unwrap(), place.log.clone());
    (small.config.identity.nonce, small.keeper) = (50, true);
    let spool = small.follow().unwrap();
    spool.promote(identity(5)).unwrap();
    assert!(spool.stats().published > last);
}

#[test]
fn damage_stops_a_standby_and_it_cannot_be_the_owner() {
    let mut place = Place::new(LogFaults::default());
    let owner = place.open().unwrap();
    let stream = owner.stream("a").unwrap();
    append(&owner, stream, inline(10), "one");
    let damaged = place.log.end().unwrap();
    append(&owner, stream, inline(10), "two");
    place.log.flip(damaged, 99);
    let mut elsewhere = other(&place);
    let standby = elsewhere.follow().unwrap();
    while standby.poisoned().is_none() {
        std::thread::yield_now();
    }
    let refused = standby.promote(identity(5));
    assert!(
        matches!(refused, Err(SenderEnd::Invalid(Invalid::Hole { position, .. })) if position == damaged),
        "{refused:?}"
    );
    let later = append(&owner, stream, inline(10), "three");
    assert!(standby.stats().published < later);
}

#[test]
fn members_are_told_of_a_digest_at_the_same_place() {
    let mut place = Place::new(LogFaults::default());
    let owner = place.open().unwrap();
    let mut elsewhere = other(&place);
    let standby = elsewhere.follow().unwrap();
    let told = [&owner, &standby].map(|spool| {
        let (tell, told) = channel();
        spool.on_digest(Some(Box::new(move |position| tell.send(position).unwrap())));
        told
    });
    let stream = owner.stream("a").unwrap();
    append(&owner, stream, inline(10), "before");
    owner.log_digest();
    append(&owner, stream, inline(10), "after");
    let [one, other] = told.map(|told| told.recv().unwrap());
    assert_eq!(one, other);
    let is_digest = |record: &(LogPosition, Bytes)| {
        record.0 == one && LogRecord::decode(&record.1).is_ok_and(|it| it.content == Content::Digest)
    };
    assert!(place.log.records().iter().any(is_digest));
}

#[test]
fn a_spool_keeps_its_id_and_another_has_another() {
    let mut place = Place::new(LogFaults::default());
    let id = place.open().unwrap().id();
    assert_eq!(place.open().unwrap().id(), id);
    assert_ne!(other(&place).follow().unwrap().id(), id);
}
