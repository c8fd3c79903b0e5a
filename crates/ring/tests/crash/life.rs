//! The life of a ring between an opening and an end or a kill, and the facts that somebody was told meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use posthaste_fsops::{Faults, Machine};
use posthaste_ring::{Config, Lsn, OnRecord, Proof, Recovery, Ring, RingAppendError, RingCancelled, RingEvent};
use posthaste_turns::Random;
use rustix::io::Errno;

/// The fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Healthy,
    /// In each life some syncs fail.
    FailingSync,
    /// In each life some changes fail, of bytes or names, as on a full disk or a bad one.
    FailingWrite,
}

/// A fact that is known from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Somebody was told that this record is durable.
    Promised { record: u64, lsn: Lsn },
    /// An opening did not find it, so none ever may.
    Gone { record: u64 },
    /// It is durable elsewhere that the ring is needed from this segment and record on.
    Freed { low: u64, first: Lsn },
    /// It is durable elsewhere what the ring has said of itself.
    Proved(Proof),
}

/// The facts, each with the number of events that there were, and what is never to be found.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    pub facts: Vec<(usize, Fact)>,
    /// Records so far.
    pub records: u64,
    /// Cancelled before they were written.
    pub never: BTreeSet<u64>,
    /// During which events a ring was being opened.
    pub openings: Vec<std::ops::Range<usize>>,
}

impl Expectation {
    /// The facts known after so many events, as if from the beginning.
    pub fn at(&self, position: usize) -> Self {
        let facts = self.facts.iter().filter(|(since, _)| *since <= position).map(|(_, fact)| (0, *fact)).collect();
        Expectation { facts, openings: Vec::new(), ..self.clone() }
    }

    fn low(&self) -> (u64, Lsn) {
        let freed = self.facts.iter().filter_map(|(_, fact)| match fact {
            Fact::Freed { low, first } => Some((*low, *first)),
            _ => None,
        });
        freed.max().unwrap_or_default()
    }

    /// Facts for an opening.
    fn on_record(&self) -> OnRecord {
        let proved = self.facts.iter().rev().find_map(|(_, fact)| match fact {
            Fact::Proved(proof) => Some(*proof),
            _ => None,
        });
        let (low, first) = self.low();
        let freed = Lsn::new(first.get().saturating_sub(1));
        OnRecord { low, proof: proved.unwrap_or_default(), freed, ..OnRecord::default() }
    }

    /// Keeps what the ring says of itself, now and then, as a checkpoint does.
    pub fn prove(&mut self, machine: &Machine, ring: &Ring, random: &mut Random) {
        if random.below(2) == 0 {
            self.facts.push((machine.position(), Fact::Proved(ring.proof())));
        }
    }

    /// Compares what an opening has found with what is known; hands back the records with their LSNs.
    pub fn check(&self, ring: &Ring, recovery: &Recovery) -> Result<BTreeMap<u64, Lsn>, String> {
        if let Some(damage) = recovery.damage.iter().find(|damage| damage.promised) {
            return Err(format!("promised records are damaged: {damage:?}"));
        }
        let (mut found, mut last) = (BTreeMap::new(), BTreeMap::new());
        let mut wrong = None;
        ring.visit(Lsn::ZERO, &mut |shown| {
            let text = String::from_utf8_lossy(&shown.head);
            let record = text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(u64::MAX);
            let is_right = record < self.records
                && shown.head == head(record)
                && ring.read_body(shown.lsn, 0..u32::MAX).is_ok_and(|found| found == body(record));
            if !is_right {
                wrong = Some(format!("a record that nobody wrote: {shown:?}"));
            } else if found.insert(record, shown.lsn).is_some() {
                wrong = Some(format!("record {record} is there twice"));
            } else if last.insert(record % APPENDERS, record).is_some_and(|before| before > record) {
                wrong = Some(format!("record {record} lies after a later one of its appender"));
            } else if self.never.contains(&record) {
                wrong = Some(format!("record {record} was cancelled before it was written"));
            }
            if wrong.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .map_err(|error| error.to_string())?;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let (_, first) = self.low();
        for (_, fact) in &self.facts {
            match fact {
                Fact::Promised { record, lsn } if *lsn >= first && found.get(record) != Some(lsn) => {
                    return Err(format!("record {record}, promised as {lsn}, is at {:?}", found.get(record)));
                }
                Fact::Gone { record } if found.contains_key(record) => {
                    return Err(format!("record {record} was gone and has come back"));
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Records that an opening has handed out are as good as promised, and records that it has not found are gone.
    pub fn opened(&mut self, position: usize, found: &BTreeMap<u64, Lsn>) {
        for record in 0..self.records {
            let fact = match found.get(&record) {
                Some(lsn) => Fact::Promised { record, lsn: *lsn },
                None => Fact::Gone { record },
            };
            self.facts.push((position, fact));
        }
    }
}

/// Each appends its records in order.
const APPENDERS: u64 = 3;
const SEGMENT: u64 = 64 << 10;

/// Bytes that only this record can have.
pub fn head(record: u64) -> String {
    format!("{record} is its number; {}", "x".repeat((record * 37 % 200) as usize))
}

/// Of a length that differs from record to record; every fifth has none.
pub fn body(record: u64) -> Bytes {
    if record % 5 == 4 {
        return Bytes::new();
    }
    let unit = format!("{record}: every record is its own witness. ");
    unit.bytes().cycle().take((record * 997 % 14_000) as usize + 1).collect::<Vec<u8>>().into()
}

fn config(events: impl Fn(RingEvent) + Send + Sync + 'static) -> Config {
    Config { segment_bytes: SEGMENT, max_segments: 5, events: Arc::new(events), ..Config::default() }
}

/// Opens the ring as it is known to be needed.
pub fn open(machine: &Machine, known: &Expectation) -> Result<(Ring, Recovery), posthaste_ring::RingOpenError> {
    Ring::open(&machine.path().join("ring"), config(|_| ()), known.on_record())
}

/// An answer, and to which record.
type Answers = Arc<Mutex<Vec<(usize, u64, Result<Lsn, RingAppendError>)>>>;

/// A life of the ring: records in so many groups, some cancelled, segments freed, and whatever fails.
pub fn live(machine: &Arc<Machine>, known: &mut Expectation, scenario: Scenario, random: &mut Random, groups: usize) {
    let faults = faults(machine, scenario, random);
    machine.set_faults(faults.clone());
    let cancelled: Arc<Mutex<Vec<Lsn>>> = Arc::default();
    let told = cancelled.clone();
    let config = config(move |event| {
        if let RingEvent::Cancelled(lsn) = event {
            told.lock().unwrap().push(lsn);
        }
    });
    let begun = machine.position();
    match Ring::open(&machine.path().join("ring"), config, known.on_record()) {
        Err(error) => assert!(faults != Faults::default(), "opens not where nothing fails: {error}"),
        Ok((ring, recovery)) => {
            known.openings.push(begun..machine.position());
            let found = known.check(&ring, &recovery).unwrap_or_else(|what| panic!("{what}"));
            known.opened(machine.position(), &found);
            known.prove(machine, &ring, random);
            for _ in 0..groups {
                append_and_cancel(machine, known, &ring, &cancelled, random);
                known.prove(machine, &ring, random);
                if random.below(2) == 0 {
                    free(machine, known, &ring, random);
                }
            }
            if random.below(2) == 0 {
                machine.kill();
            }
            drop(ring);
        }
    }
    machine.set_faults(Faults::default());
    machine.go_on();
}

fn append_and_cancel(
    machine: &Arc<Machine>,
    known: &mut Expectation,
    ring: &Ring,
    cancelled: &Mutex<Vec<Lsn>>,
    random: &mut Random,
) {
    let rounds = 1 + random.below(4);
    let first = known.records;
    known.records += rounds * APPENDERS;
    let answers: Answers = Arc::default();
    let taken_back: Mutex<BTreeMap<u64, RingCancelled>> = Mutex::default();
    std::thread::scope(|scope| {
        for appender in 0..APPENDERS {
            let records = (first..known.records).filter(move |record| record % APPENDERS == appender);
            let (answers, taken_back) = (&answers, &taken_back);
            let mut random = Random::new(random.below(u64::MAX));
            scope.spawn(move || {
                for record in records {
                    let (tell, told) = channel::<()>();
                    let (answers, machine) = (answers.clone(), machine.clone());
                    let parts = head(record).into_bytes();
                    let middle = parts.len() / 2;
                    let head = vec![Bytes::copy_from_slice(&parts[..middle]), parts[middle..].to_vec().into()];
                    let ticket = ring.append(head, vec![body(record)], move |outcome| {
                        answers.lock().unwrap().push((machine.position(), record, outcome));
                        drop(tell);
                    });
                    match random.below(6) {
                        0 => drop(taken_back.lock().unwrap().insert(record, ticket.cancel())),
                        1 => {
                            (0..random.below(8)).for_each(|_| std::thread::yield_now());
                            taken_back.lock().unwrap().insert(record, ticket.cancel());
                        }
                        // Until it is told, or dropped untold.
                        2..5 => drop(told.recv()),
                        _ => {}
                    }
                }
            });
        }
    });
    let flushed = ring.flush();
    let (answers, taken_back) = (std::mem::take(&mut *answers.lock().unwrap()), taken_back.into_inner().unwrap());
    let cancelled = std::mem::take(&mut *cancelled.lock().unwrap());
    let lsns: Vec<Lsn> = answers.iter().filter_map(|(_, _, outcome)| outcome.as_ref().ok().copied()).collect();
    assert!(lsns.is_sorted(), "told in another order than that of the log: {lsns:?}");
    for record in first..known.records {
        let told = answers.iter().filter(|(_, other, _)| *other == record).count();
        match taken_back.get(&record) {
            Some(RingCancelled::TooLate) | None => assert_eq!(told, 1, "record {record}"),
            Some(RingCancelled::NotWritten) => {
                assert_eq!(told, 0, "record {record} was cancelled");
                known.never.insert(record);
            }
            Some(RingCancelled::Written(lsn)) => {
                assert_eq!(told, 0, "record {record} was cancelled");
                assert!(flushed.is_err() || cancelled.contains(lsn), "nobody was told of {lsn}");
            }
        }
    }
    for (position, record, outcome) in answers {
        match outcome {
            Ok(lsn) => known.facts.push((position, Fact::Promised { record, lsn })),
            // Nothing of it is to be found, now or later.
            Err(RingAppendError::Full(_) | RingAppendError::Local(_)) => drop(known.never.insert(record)),
            Err(_) => {}
        }
    }
}

/// Frees some of the oldest segments, as if a checkpoint had said so.
fn free(machine: &Machine, known: &mut Expectation, ring: &Ring, random: &mut Random) {
    let segments = ring.segments();
    if segments.len() < 2 {
        return;
    }
    let segment = &segments[1 + random.below(segments.len() as u64 - 1) as usize];
    if segment.first > Lsn::ZERO {
        let fact = Fact::Freed { low: segment.number, first: segment.first };
        known.facts.push((machine.position(), fact));
        ring.free_below(segment.number);
    }
}

/// The next faults.
fn faults(machine: &Machine, scenario: Scenario, random: &mut Random) -> Faults {
    let mut faults = Faults::default();
    let (syncs, changes) = machine.counts();
    match scenario {
        Scenario::Healthy => {}
        Scenario::FailingSync => {
            let first = syncs + 1 + random.below(25);
            faults.fail_syncs = (0..1 + random.below(3)).map(|_| first + random.below(6)).collect();
        }
        Scenario::FailingWrite => {
            let errno = [Errno::IO, Errno::NOSPC, Errno::MFILE][random.below(3) as usize];
            let first = changes + 1 + random.below(40);
            faults.fail_changes = Some((first..first + 1 + random.below(6), errno));
        }
    }
    if random.below(3) == 0 {
        faults.kill_before = Some(syncs + changes + 1 + random.below(100));
    }
    faults
}
