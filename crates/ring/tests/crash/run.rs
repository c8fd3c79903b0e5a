//! Scenarios on a watched machine, and what recovers from their cuts.

use std::sync::Arc;

use posthaste_fsops::recording::{FsEvent, SyncScope};
use posthaste_fsops::{Cut, Machine, Recording, Tree};
use posthaste_ring::layout::FIRST_RECORD;
use posthaste_turns::{Random, in_turns};

use crate::life::{Expectation, Scenario, live, open};

/// A run on record, with all that is needed to judge a cut of it.
#[derive(Clone)]
pub struct Run {
    pub scenario: Scenario,
    pub seed: u64,
    /// If it is a recovery: the cut that it recovers from, and those before.
    pub cuts: Vec<Cut>,
    pub recording: Recording,
    pub known: Expectation,
}

/// Tells how a panic, wherever it came from, can be had again.
struct PrintReplayToken(String);

impl Drop for PrintReplayToken {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again with POSTHASTE_REPLAY={}", self.0);
        }
    }
}

impl Run {
    /// Makes it and puts it on record: two or three lives.
    pub fn record(scenario: Scenario, seed: u64) -> Run {
        let machine = Arc::new(boot(&Tree::default(), seed));
        let mut known = Expectation::default();
        let cuts = Vec::new();
        let mut run = Run { scenario, seed, cuts, recording: machine.recording(), known: Expectation::default() };
        let _told = PrintReplayToken(run.name());
        in_turns(seed, || {
            let mut random = Random::new(seed);
            for _ in 0..2 + random.below(2) {
                let groups = 1 + random.below(5) as usize;
                live(&machine, &mut known, scenario, &mut random, groups);
            }
        });
        nothing_past_the_door(&machine);
        run.recording = machine.recording();
        run.known = known;
        run
    }

    /// The name that repeats it.
    pub fn name(&self) -> String {
        let cuts: String = self.cuts.iter().map(|cut| format!("/{cut}")).collect();
        format!("{:?}:{}{cuts}", self.scenario, self.seed)
    }

    /// Makes a cut and looks at what it has left; `Ok` with the recovery on record, `Err` with what is wrong and how to have it again.
    pub fn examine(&self, cut: Cut) -> Result<Run, String> {
        let machine = Arc::new(boot(&self.recording.cut(cut), self.seed));
        let mut recovery = Run {
            recording: machine.recording(),
            cuts: [&self.cuts[..], &[cut]].concat(),
            known: self.known.at(cut.position),
            ..*self
        };
        let name = recovery.name();
        let _told = PrintReplayToken(name.clone());
        let seed = name.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
        let known = &mut recovery.known;
        let looked_at = in_turns(seed, || recover(&machine, known, self.scenario, seed));
        looked_at.map_err(|what| format!("{what}; again with POSTHASTE_REPLAY={name}"))?;
        nothing_past_the_door(&machine);
        recovery.recording = machine.recording();
        Ok(recovery)
    }

    /// The target of each sync of the run.
    pub fn syncs(&self) -> Vec<Option<&'static str>> {
        let is_opening = |at: usize| self.known.openings.iter().any(|opening| opening.contains(&at));
        let (mut dirs, mut files) = (std::collections::BTreeSet::new(), std::collections::BTreeMap::new());
        let events = self.recording.events.iter().enumerate();
        let kinds = events.map(|(at, event)| {
            match event {
                FsEvent::Create { node, is_dir: true, .. } => drop(dirs.insert(*node)),
                FsEvent::Write { node, offset, bytes } => drop(files.insert(*node, (*offset, bytes.len()))),
                _ => {}
            }
            let FsEvent::Sync(SyncScope::Node(node)) = event else { return None };
            match files.get(node) {
                None if dirs.contains(node) => Some("directory"),
                None => Some("parent"),
                Some((0, FIRST_RECORD)) => Some("header"),
                Some((0, _)) => Some("zeros"),
                Some(_) if is_opening(at) => Some("opening"),
                Some(_) => Some("commit"),
            }
        });
        kinds.collect()
    }
}

/// The ring is opened on what a cut has left, and again, which must change nothing; then it may go on.
fn recover(machine: &Arc<Machine>, known: &mut Expectation, scenario: Scenario, seed: u64) -> Result<(), String> {
    let (mut before, mut random) = (None, Random::new(seed));
    for _ in 0..2 {
        let (ring, recovery) = open(machine, known).map_err(|error| format!("opens not: {error}"))?;
        let found = known.check(&ring, &recovery)?;
        if before.is_some_and(|before| before != found) {
            return Err("a second opening finds something else".into());
        }
        // It was on the disk all the time, whatever becomes of the opening.
        known.opened(0, &found);
        known.prove(machine, &ring, &mut random);
        before = Some(found);
    }
    if random.below(2) == 0 {
        live(machine, known, scenario, &mut random, 2);
        let (ring, recovery) = open(machine, known).map_err(|error| format!("opens not: {error}"))?;
        let found = known.check(&ring, &recovery)?;
        known.opened(machine.position(), &found);
    }
    Ok(())
}

/// Every other disk keeps the order of names.
fn boot(tree: &Tree, seed: u64) -> Machine {
    Machine::boot(tree, true, seed.is_multiple_of(2)).expect("a directory")
}

/// Records the run that a token names, or the recovery.
pub fn recorded(token: &str) -> Result<Run, String> {
    let mut parts = token.split('/');
    let parse = |text: &str| {
        let (name, seed) = text.split_once(':')?;
        let all = [Scenario::Healthy, Scenario::FailingSync, Scenario::FailingWrite];
        let scenario = all.into_iter().find(|scenario| format!("{scenario:?}") == name)?;
        Some((scenario, seed.parse().ok()?))
    };
    let named = parts.next().and_then(parse);
    let (scenario, seed) =
        named.ok_or_else(|| format!("{token:?} is not a scenario with its seed, such as Healthy:3"))?;
    parts.try_fold(Run::record(scenario, seed), |run, cut| run.examine(cut.parse()?))
}

/// The record is complete.
fn nothing_past_the_door(machine: &Machine) {
    assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new(), "past the door");
}
