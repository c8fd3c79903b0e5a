//! Senders against the engine in memory: each load is in the log once and in order, and the sender knows it.

use std::sync::{Arc, Mutex};

use posthaste_random::Random;

use super::*;
use crate::ShardLog;
use crate::memory::{Fault, LogFaults, MemoryLog};
use crate::reader::ReaderRules;

type Answer = (u64, Result<LogPosition, LogError>);

/// A sender, the engine's answers to it, and its decisions.
struct Node {
    sender: Sender<u64>,
    log: MemoryLog,
    answers: Arc<Mutex<Vec<Answer>>>,
    /// Positions and loads of valid records, as they were told.
    valid: Vec<(LogPosition, Option<u64>)>,
    end: Option<SenderEnd>,
    not_stored: Vec<u64>,
    undecided: Vec<u64>,
}

impl Node {
    fn new(log: &MemoryLog, nonce: u64, rules: (ReaderRules, SenderRules)) -> Self {
        let (reader, sender) = rules;
        let identity = OwnerIdentity { nonce, log: 0xfeed + nonce, epoch: None };
        Node {
            sender: Sender::new(LogReader::new(1).with_rules(reader), identity, sender),
            log: log.clone(),
            answers: Arc::default(),
            valid: Vec::new(),
            end: None,
            not_stored: Vec::new(),
            undecided: Vec::new(),
        }
    }

    /// Does all that the sender asks for.
    fn act(&mut self) {
        loop {
            for (send, outcome) in std::mem::take(&mut *self.answers.lock().unwrap()) {
                self.sender.answer(send, outcome);
            }
            let Some(effect) = self.sender.effect() else { return };
            match effect {
                Effect::Append { after, record, send } => {
                    let answers = self.answers.clone();
                    let then = move |outcome| answers.lock().unwrap().push((send, outcome));
                    self.log.append(after, record, Box::new(then));
                }
                Effect::Read { from } => self.read(from),
                Effect::Valid { history, load, .. } => self.valid.push((history.position, load)),
                Effect::Ended { end, undecided, unsent } => {
                    (self.end, self.undecided) = (Some(end), undecided);
                    self.not_stored.extend(unsent);
                }
            }
        }
    }

    fn read(&mut self, from: LogPosition) {
        let end = self.log.end().unwrap();
        if from <= end {
            let sender = &mut self.sender;
            let read = self.log.follow(from, &mut |position, bytes| {
                sender.read(position, &bytes);
                position < end
            });
            read.unwrap();
        }
        self.sender.read_to_end();
    }

    fn push(&mut self, load: u64) {
        let batch = Bytes::from(load.to_le_bytes().to_vec());
        self.sender.push(Content::Batches(vec![batch]), load);
    }

    fn loads(&self) -> Vec<u64> {
        self.valid.iter().filter_map(|(_, load)| *load).collect()
    }
}

/// The valid loads of a log, as a reader finds them.
fn stored(log: &MemoryLog, rules: ReaderRules) -> Result<Vec<u64>, String> {
    let mut reader = LogReader::new(1).with_rules(rules);
    let mut loads = Vec::new();
    for (position, bytes) in log.records() {
        match reader.read(position, &bytes).map_err(|invalid| invalid.to_string())? {
            Read::Valid(LogRecord { content: Content::Batches(batches), .. }) => {
                loads.extend(batches.iter().map(|batch| u64::from_le_bytes(batch[..].try_into().unwrap())));
            }
            Read::Valid(_) | Read::Skipped(_) => {}
        }
    }
    Ok(loads)
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, one: &T, other: &T) -> Result<(), String> {
    if one == other { Ok(()) } else { Err(format!("{what}: {one:?} {other:?}")) }
}

/// One owner sends `count` loads through an engine with faults.
fn one_owner(seed: u64, rules: (ReaderRules, SenderRules), count: u64) -> Result<(), String> {
    let mut random = Random::of(seed, 1);
    let log = MemoryLog::by_steps(seed, LogFaults::all());
    let mut node = Node::new(&log, 1, rules);
    let mut next = 0;
    for _ in 0..count * 1000 {
        node.act();
        if let Some(end) = &node.end {
            return Err(format!("ended: {end}"));
        }
        if next < count && node.sender.is_ready() && !random.one_in(4) {
            node.push(next);
            next += 1;
        }
        node.act();
        if !random.one_in(3) {
            log.step();
        }
        if next == count && node.sender.is_idle() {
            break;
        }
    }
    // What is late comes now.
    log.set_faults(LogFaults::default());
    while log.step() {}
    let all: Vec<u64> = (0..count).collect();
    equal("told", &node.loads(), &all)?;
    if !node.valid.is_sorted_by(|one, other| one.0 < other.0) {
        return Err("decisions are not in the order of the log".to_owned());
    }
    equal("stored", &stored(&log, rules.0)?, &all)
}

/// A second owner opens while the first one sends.
fn two_owners(seed: u64, rules: (ReaderRules, SenderRules)) -> Result<(), String> {
    let mut random = Random::of(seed, 2);
    let log = MemoryLog::by_steps(seed, LogFaults::all());
    let mut one = Node::new(&log, 1, rules);
    let mut other = None::<Node>;
    let mut next = 0;
    let mut of_other = 0;
    for _ in 0..30_000 {
        one.act();
        if one.end.is_none() && one.sender.is_ready() {
            one.push(next);
            next += 1;
        }
        one.act();
        if one.loads().len() > 5 && random.one_in(9) && other.is_none() {
            other = Some(Node::new(&log, 2, rules));
        }
        if let Some(other) = &mut other {
            other.act();
            if other.end.is_none() && other.sender.is_ready() && of_other < 60 {
                other.push(1_000_000 + of_other);
                of_other += 1;
            }
            other.act();
        }
        if !random.one_in(3) {
            log.step();
        }
        if one.end.is_some() && other.as_ref().is_some_and(|it| it.sender.is_idle() && it.loads().len() > 20) {
            break;
        }
    }
    let mut other = other.expect("it has opened");
    log.set_faults(LogFaults::default());
    while log.step() {
        other.act();
    }
    other.act();
    match &one.end {
        Some(SenderEnd::Fenced { .. }) => {}
        end => return Err(format!("the first owner: {end:?}")),
    }
    equal("the second owner", &other.end, &None)?;
    equal("fenced and undecided", &one.undecided, &Vec::new())?;
    let told: Vec<u64> = one.loads().into_iter().chain(other.loads()).collect();
    equal("stored", &stored(&log, rules.0)?, &told)
}

fn seeds() -> u64 {
    std::env::var("POSTHASTE_CLUSTER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200)
}

/// No seed fails with all rules, and some seed does without one of them.
fn check(run: impl Fn(u64, (ReaderRules, SenderRules)) -> Result<(), String>, broken: &[(ReaderRules, SenderRules)]) {
    for seed in 0..seeds() {
        run(seed, Default::default()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    for rules in broken {
        // Without its rule a sender may also panic; that is noticed, too.
        let fails = |seed| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, *rules))).map_or(true, |it| it.is_err())
        };
        assert!((0..200).any(fails), "no seed notices {rules:?}");
    }
}

#[test]
fn each_load_is_stored_once_and_told() {
    let all = ReaderRules::default();
    let sender = SenderRules::default();
    let broken = [
        (all, SenderRules { barrier: false, ..sender }),
        (all, SenderRules { refused_is_no_fence: false, ..sender }),
        (all, SenderRules { in_order: false, ..sender }),
        (all, SenderRules { alone: false, ..sender }),
        (ReaderRules { barriers: false, ..all }, sender),
    ];
    check(|seed, rules| one_owner(seed, rules, 60), &broken);
}

#[test]
fn a_second_owner_fences_the_first() {
    let all = ReaderRules::default();
    check(two_owners, &[(ReaderRules { old_epochs: false, ..all }, SenderRules::default())]);
}

/// A node that has sent one load per fate, after its opening.
fn scripted(fates: &[Fault]) -> (Node, MemoryLog) {
    let log = MemoryLog::by_steps(1, LogFaults::default());
    let mut node = Node::new(&log, 1, Default::default());
    settle(&mut node, &log);
    assert!(node.sender.is_ready());
    // Past the places of an owner before.
    while node.sender.places() < IN_FLIGHT_MAX {
        node.sender.push(Content::Digest, 77);
        settle(&mut node, &log);
    }
    node.valid.clear();
    log.script(fates);
    (0..4).for_each(|load| node.push(load));
    (node, log)
}

fn settle(node: &mut Node, log: &MemoryLog) {
    node.act();
    while log.step() {
        node.act();
    }
    node.act();
}

#[test]
fn the_second_answer_of_four_is_lost() {
    for fate in [Fault::UnknownStored, Fault::UnknownLost, Fault::UnknownLate(2), Fault::UnknownLate(9), Fault::Refused]
    {
        let (mut node, log) = scripted(&[Fault::None, fate]);
        settle(&mut node, &log);
        assert_eq!((node.loads(), &node.end), (vec![0, 1, 2, 3], &None), "{fate:?}");
        assert_eq!(stored(&log, ReaderRules::default()), Ok(vec![0, 1, 2, 3]), "{fate:?}");
    }
}

#[test]
fn nothing_is_told_while_a_record_before_it_is_undecided() {
    let (mut node, log) = scripted(&[Fault::UnknownStored]);
    node.act();
    // The first is stored without an answer, the second and third with one.
    for _ in 0..3 {
        log.step();
    }
    let mut answers = std::mem::take(&mut *node.answers.lock().unwrap());
    while let Some((send, outcome)) = answers.pop() {
        assert_eq!(outcome.is_err(), answers.is_empty());
        node.sender.answer(send, outcome);
        node.act();
        assert_eq!(node.loads(), [0; 0]);
    }
    settle(&mut node, &log);
    assert_eq!(node.loads(), [0, 1, 2, 3]);
}

#[test]
fn at_most_four_records_are_in_flight() {
    let (mut node, log) = scripted(&[]);
    (4..20).for_each(|load| node.push(load));
    node.act();
    assert_eq!((log.in_flight(), node.sender.is_ready()), (IN_FLIGHT_MAX, false));
    while log.step() {
        assert!(log.in_flight() <= IN_FLIGHT_MAX);
        node.act();
    }
    assert_eq!(node.loads(), (0..20).collect::<Vec<_>>());
}

#[test]
fn an_epoch_from_the_cell_that_the_log_has_passed_is_fenced() {
    let (mut node, log) = scripted(&[]);
    settle(&mut node, &log);
    let mut late = Node::new(&log, 2, Default::default());
    late.sender.identity.epoch = Some(1);
    settle(&mut late, &log);
    assert_eq!(late.end, Some(SenderEnd::Fenced { epoch: 1 }));
    let mut next = Node::new(&log, 3, Default::default());
    next.sender.identity.epoch = Some(7);
    settle(&mut next, &log);
    assert!(next.sender.is_open() && next.sender.epoch == 7);
}

#[test]
fn a_copy_of_the_owner_stops_both() {
    let (mut node, log) = scripted(&[]);
    settle(&mut node, &log);
    // The same memory, on another machine.
    let records = log.records();
    let history = *node.sender.history().unwrap();
    let header =
        LogRecordHeader { shard: 1, log: history.log, epoch: 1, send: 99, first: history.next, previous: history.crc };
    let (record, _) = LogRecord::encode(&header, &Content::Digest);
    log.append(records.last().unwrap().0, record, Box::new(|_| ()));
    node.push(9);
    settle(&mut node, &log);
    assert_eq!((&node.end, &node.undecided), (&Some(SenderEnd::Foreign { epoch: 1 }), &vec![9]));
}
