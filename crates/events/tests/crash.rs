//! An event log on a machine whose power goes at any call, and again while it recovers.
//!
//! `posthaste_fsops::recording` states the effects of a cut; the schedule of threads follows from the seed
//! (`posthaste_turns`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_events::{ArrivalFacts, Config, Event, EventKind, EventLog, EventRecorder, ReceivedEvent};
use posthaste_fsops::{Choice, Cut, Faults, Machine, Recording, SyncScope, Tree};
use posthaste_spool::{Batch, Body, FileSpool, Spool};
use posthaste_turns::{Random, in_turns};
use rustix::io::Errno;

const PATIENCE: Duration = Duration::from_secs(3600);

fn open_spool(machine: &Machine, keeper: bool) -> Arc<FileSpool> {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 5, ..Default::default() };
    let (free_bytes_min, free_inodes_min) = (0, 0);
    let config = posthaste_spool::Config { ring, keeper, free_bytes_min, free_inodes_min, ..Default::default() };
    let (spool, report) = FileSpool::open(&machine.path().join("spool"), config).expect("it opens");
    assert_eq!(report.damage, []);
    Arc::new(spool)
}

/// Every second seed removes old files.
fn config(machine: &Machine, seed: u64) -> Config {
    let files = if seed.is_multiple_of(2) { 1000 } else { 3 };
    Config { file_bytes: 700, files, sync_bytes: 1500, ..Config::new(machine.path().join("events")) }
}

/// Acknowledged events: LSN and number. The recording has the index of each.
type Acknowledged = Arc<Mutex<Vec<(u64, u64)>>>;

fn append(machine: &Arc<Machine>, spool: &FileSpool, recorder: &EventRecorder, number: u64, log: &Acknowledged) {
    let facts = ArrivalFacts { id: number.to_string().into(), ..ArrivalFacts::default() };
    let event = Event { at_us: number, kind: EventKind::Received(ReceivedEvent { facts, ..ReceivedEvent::default() }) };
    let Some(entry) = recorder.entry(&event) else { return };
    let (machine, log) = (machine.clone(), log.clone());
    let then = move |outcome: Result<posthaste_spool::Lsn, _>| {
        if let Ok(lsn) = outcome {
            let mut log = log.lock().unwrap();
            log.push((lsn.get(), number));
            machine.acknowledge(log.len() as u64 - 1);
        }
    };
    spool.append(Batch { entries: vec![entry], body: Body::None }, Box::new(then));
}

/// Opens, records events, and ends. Three times.
fn lives(machine: &Arc<Machine>, seed: u64, log: &Acknowledged) {
    let mut random = Random::new(seed);
    for life in 0..3 {
        machine.set_faults(Faults::default());
        let spool = open_spool(machine, random.below(2) == 0);
        let events = EventLog::open(spool.clone(), config(machine, seed)).unwrap();
        let recorder = events.recorder();
        let (syncs, changes) = machine.counts();
        machine.set_faults(match seed % 4 {
            2 => Faults { fail_syncs: vec![syncs + 5 + random.below(60)], ..Faults::default() },
            3 => {
                let first = changes + 5 + random.below(60);
                let errno = [Errno::NOSPC, Errno::IO][random.below(2) as usize];
                Faults { fail_changes: Some((first..first + 1 + random.below(4), errno)), ..Faults::default() }
            }
            _ => Faults::default(),
        });
        for step in 0..40 {
            match random.below(8) {
                0 => std::thread::sleep(Duration::from_millis(random.below(10_000))),
                1 => drop(spool.checkpoint()),
                _ => append(machine, &spool, &recorder, life * 100 + step, log),
            }
        }
        std::thread::sleep(Duration::from_millis(random.below(300)));
        events.end(PATIENCE);
        drop((events, recorder));
        let spool = Arc::into_inner(spool).expect("the log has let go of it");
        if random.below(2) == 0 {
            spool.abandon();
        }
    }
}

struct Run {
    seed: u64,
    acknowledged: Vec<(u64, u64)>,
    recording: Recording,
}

fn record(seed: u64) -> Run {
    let machine = Arc::new(Machine::boot(&Tree::default(), true, seed.is_multiple_of(3)).unwrap());
    let log = Acknowledged::default();
    in_turns(seed, || lives(&machine, seed, &log));
    assert_eq!(machine.unrecorded().unwrap(), Vec::<std::path::PathBuf>::new(), "past the door");
    let acknowledged = log.lock().unwrap().clone();
    Run { seed, acknowledged, recording: machine.recording() }
}

/// The lines that are there: LSN and number, in the order of the files.
fn lines(dir: &Path) -> Result<Vec<(u64, u64)>, String> {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for file in std::fs::read_dir(dir).map_err(|error| error.to_string())? {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        if name != "lock" {
            let text = String::from_utf8(std::fs::read(file.path()).unwrap());
            files.insert(name.clone(), text.map_err(|_| format!("{name} is not text"))?);
        }
    }
    let mut lines = Vec::new();
    for (name, text) in files {
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(format!("{name} ends with half a line"));
        }
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).map_err(|_| format!("{name}: {line:?}"))?;
            let number = value["received_id"].as_str().and_then(|id| id.parse().ok());
            let (lsn, number) =
                value["lsn"].as_str().and_then(|lsn| lsn.parse().ok()).zip(number).ok_or(format!("{name}: {line}"))?;
            lines.push((lsn, number));
        }
    }
    Ok(lines)
}

/// Opens what a cut has left, lets the log end its work, and looks at its files.
fn recover(machine: &Machine, seed: u64) -> Result<Vec<(u64, u64)>, String> {
    let spool = open_spool(machine, false);
    let events = EventLog::open(spool.clone(), config(machine, seed)).map_err(|error| error.to_string())?;
    if !events.end(PATIENCE) {
        return Err("it does not end".into());
    }
    drop(events);
    let found = lines(&machine.path().join("events"))?;
    let stream = spool.stream(posthaste_events::STREAM).map_err(|error| error.to_string())?;
    let mut left = 0;
    spool.replay(stream, &mut |_| left += 1).map_err(|error| error.to_string())?;
    if left > 0 { Err(format!("{left} entries are not written")) } else { Ok(found) }
}

impl Run {
    fn examine(&self, cut: Cut, again: Option<Cut>) -> Result<(), String> {
        let at = |what: String| format!("{what}; seed {}, cut {cut}, then {again:?}", self.seed);
        let ordered = self.seed.is_multiple_of(3);
        let machine = Machine::boot(&self.recording.cut(cut), true, ordered).unwrap();
        let found = in_turns(self.seed, || recover(&machine, self.seed)).map_err(at)?;
        self.check(cut, &found).map_err(at)?;
        let Some(again) = again else { return Ok(()) };
        let recording = machine.recording();
        let position = again.position % (recording.events.len() + 1);
        let machine = Machine::boot(&recording.cut(Cut { position, ..again }), true, ordered).unwrap();
        let found = in_turns(self.seed, || recover(&machine, self.seed)).map_err(at)?;
        self.check(cut, &found).map_err(at)
    }

    /// Each acknowledged event has one line, in order, but for those of files that were removed.
    fn check(&self, cut: Cut, found: &[(u64, u64)]) -> Result<(), String> {
        if !found.is_sorted_by(|one, other| one.0 < other.0) {
            return Err(format!("a line is there twice, or out of order: {found:?}"));
        }
        let first = if self.seed.is_multiple_of(2) { 0 } else { found.first().map_or(0, |(lsn, _)| *lsn) };
        let promised = self.recording.acknowledged_before(cut.position).map(|index| self.acknowledged[index as usize]);
        for line in promised.filter(|(lsn, _)| *lsn >= first) {
            if found.binary_search_by_key(&line.0, |(lsn, _)| *lsn).map(|at| found[at]) != Ok(line) {
                return Err(format!("{line:?} is lost"));
            }
        }
        Ok(())
    }
}

/// Cuts at every so-many-th event, each with its own choice.
fn cut_all(run: &Run, step: usize) -> Result<usize, String> {
    let mut random = Random::new(run.seed);
    let (mut cuts, mut position) = (0, random.below(step as u64) as usize);
    while position <= run.recording.events.len() {
        let mut choice = || Choice::Seed(random.below(1 << 20));
        let (cut, other) = (Cut { position, choice: choice() }, choice());
        let again = (random.below(2) == 0).then(|| Cut { position: random.below(1 << 9) as usize, choice: other });
        run.examine(cut, again)?;
        cuts += 1;
        position += 1 + random.below(2 * step as u64) as usize;
    }
    Ok(cuts)
}

#[test]
fn each_acknowledged_event_has_one_line_after_a_cut_at_any_call() {
    let seeds = std::env::var("POSTHASTE_EVENTS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(8);
    let cut = |seed| cut_all(&record(seed), 6).unwrap_or_else(|what| panic!("{what}"));
    let cuts: usize = (0..seeds).map(cut).sum();
    println!("{cuts} cuts");
    assert!(cuts > 0);
}

#[test]
fn each_kind_of_sync_is_missed_when_it_is_left_out() {
    let missed = |is_kind: &dyn Fn(&str) -> bool| {
        (0..40).filter(|seed| seed % 4 < 2).any(|seed| {
            let run = record(seed);
            let names = names(&run.recording);
            let is_left_out = |index: usize| match &run.recording.events[index] {
                posthaste_fsops::FsEvent::Sync(SyncScope::Node(node)) => {
                    names.get(node).is_some_and(|name| is_kind(name))
                }
                _ => false,
            };
            let recording = run.recording.without_syncs(is_left_out);
            let run = Run { recording, ..run };
            std::panic::catch_unwind(|| cut_all(&run, 8)).is_ok_and(|outcome| outcome.is_err())
        })
    };
    assert!(missed(&|name| name.ends_with(".jsonl")), "of a file");
    assert!(missed(&|name| name == "events"), "of the directory");
}

/// Names of files and directories.
fn names(recording: &Recording) -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    for event in &recording.events {
        if let posthaste_fsops::FsEvent::Create { name, node, .. } = event {
            names.insert(*node, name.clone());
        }
    }
    names
}
