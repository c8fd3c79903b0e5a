//! A spool on a machine whose power goes at any call, and again while it recovers.
//!
//! `posthaste_fsops::recording` states the effects of a cut; the schedule of threads follows from the seed
//! (`posthaste_turns`). A finding is made again with `POSTHASTE_SPOOL_REPLAY=SEED/CUT[/CUT]...`; `POSTHASTE_CUTS=N`
//! makes more of them, `POSTHASTE_SEED` is the first seed.

mod check;
mod life;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use check::{Promised, check_end, check_packs, opened};
use life::{Letter, Log, Mark, STEPS_AFTER_CUT, Trouble, live, lives, spool_dir};
use posthaste_fsops::{Choice, Cut, Faults, FsEvent, Machine, Recording, SyncScope, Tree};
use posthaste_spool::FileSpool;
use posthaste_turns::{Random, in_turns};
use rustix::io::Errno;

/// A run on record, or what came after a cut of one, and what was promised in it.
#[derive(Clone)]
struct Run {
    seed: u64,
    /// Cuts after which it was opened again.
    cuts: Vec<Cut>,
    letters: Vec<Arc<Letter>>,
    marks: Vec<Mark>,
    /// So many of the marks are of the time before the recording.
    marks_before: usize,
    recording: Recording,
}

fn is_ordered(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

fn trouble(seed: u64) -> Trouble {
    [Trouble::None, Trouble::None, Trouble::Syncs, Trouble::Writes][seed as usize % 4]
}

fn record(seed: u64) -> Run {
    let machine = Arc::new(Machine::boot(&Tree::default(), true, is_ordered(seed)).unwrap());
    let log = Arc::new(Log::default());
    in_turns(seed, || lives(&machine, &log, seed, trouble(seed)));
    Run::of(&machine, &log, (seed, Vec::new()), 0)
}

impl Run {
    fn of(machine: &Machine, log: &Log, (seed, cuts): (u64, Vec<Cut>), marks_before: usize) -> Self {
        assert_eq!(machine.unrecorded().unwrap(), Vec::<std::path::PathBuf>::new(), "past the door");
        let (letters, marks) = (log.letters(), log.marks());
        Run { seed, cuts, letters, marks, marks_before, recording: machine.recording() }
    }

    /// Command line that repeats it.
    fn token(&self) -> String {
        self.cuts.iter().fold(self.seed.to_string(), |token, cut| format!("{token}/{cut}"))
    }

    /// Opens what a cut leaves, twice; every second time goes on working then. The result is a run that can be cut in turn.
    ///
    /// # Errors
    /// Says what is not as it was promised, and how to have it again.
    fn examine(&self, cut: Cut) -> Result<Run, String> {
        let marks_before = self.marks_before + self.recording.acknowledged_before(cut.position).count();
        let log = Arc::new(Log::of(&self.letters, &self.marks[..marks_before]));
        let machine = Arc::new(Machine::boot(&self.recording.cut(cut), true, is_ordered(self.seed)).unwrap());
        let cuts = [&self.cuts[..], &[cut]].concat();
        let mut after = Run::of(&machine, &log, (self.seed, cuts), marks_before);
        let token = after.token();
        let mut random = Random::new(digest(&token));
        let again = |what| format!("{what}; again with POSTHASTE_SPOOL_REPLAY={token}");
        in_turns(random.below(u64::MAX), || after.recover(&machine, &log, &mut random)).map_err(again)?;
        Ok(after)
    }

    fn recover(&mut self, machine: &Arc<Machine>, log: &Arc<Log>, random: &mut Random) -> Result<(), String> {
        let dir = spool_dir(machine);
        if random.below(4) == 0 {
            // An opening is killed, or its disk is full or fails: the next finds what this one has left.
            let (syncs, changes) = machine.counts();
            let at = 1 + random.below(40);
            machine.set_faults(match random.below(3) {
                0 => Faults { kill_before: Some(syncs + changes + at), ..Faults::default() },
                1 => Faults { fail_syncs: vec![syncs + at], ..Faults::default() },
                _ => Faults { fail_changes: Some((changes + at..changes + at + 2, Errno::NOSPC)), ..Faults::default() },
            });
            drop(opened(&dir).map(FileSpool::abandon));
            machine.set_faults(Faults::default());
            machine.go_on();
        }
        let promised = Promised::new(&log.letters(), &log.marks());
        let spool = opened(&dir)?;
        promised.check(&spool)?;
        // Opening again changes nothing, whether the first has ended with a checkpoint or not.
        if random.below(3) == 0 {
            drop(spool);
        } else {
            spool.abandon();
        }
        let spool = opened(&dir)?;
        let shown = promised.check(&spool)?;
        let lives_on = random.below(2) == 0;
        if lives_on {
            log.recovered(machine, &spool, &shown);
            let trouble = [Trouble::None, Trouble::Syncs, Trouble::Writes][random.below(3) as usize];
            live(machine, log, random, spool, trouble, STEPS_AFTER_CUT);
            machine.set_faults(Faults::default());
        } else {
            spool.abandon();
        }
        *self = Run::of(machine, log, (self.seed, std::mem::take(&mut self.cuts)), self.marks_before);
        // What comes now is not for the next cut.
        let spool = opened(&dir)?;
        let promised = Promised::new(&log.letters(), &log.marks());
        promised.check(&spool)?;
        promised.check_older(&spool, &dir)?;
        check_packs(&spool, &dir)?;
        check_end(&spool, &dir)
    }
}

/// FNV-1a: another seed for each text.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Cuts at every `step`-th event, each with its own choice. A third of the recoveries are cut again, and some of
/// those once more. Returns the number of cuts.
fn cut_all(run: &Run, step: usize) -> Result<usize, String> {
    let mut random = Random::new(run.seed);
    let mut cuts = 0;
    let mut position = random.below(step as u64) as usize;
    while position <= run.recording.events.len() {
        let mut after = run.examine(Cut { position, choice: Choice::Seed(random.below(1 << 20)) })?;
        cuts += 1;
        while random.below(3) == 0 {
            let position = random.below(after.recording.events.len() as u64 + 1) as usize;
            after = after.examine(Cut { position, choice: Choice::Seed(random.below(1 << 20)) })?;
            cuts += 1;
        }
        position += 1 + random.below(2 * step as u64) as usize;
    }
    Ok(cuts)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn what_was_promised_survives_a_cut_at_any_call() {
    let (first, wanted) = (number("POSTHASTE_SEED", 0), number("POSTHASTE_CUTS", 600) as usize);
    let (next, done) = (AtomicU64::new(first), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < wanted {
                    let run = record(next.fetch_add(1, Ordering::Relaxed));
                    done.fetch_add(cut_all(&run, STEP).unwrap_or_else(|what| panic!("{what}")), Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} cuts of the seeds {first} to {}", done.into_inner(), next.into_inner() - 1);
}

/// Of a run one event in about so many is cut at, rather than many of few runs.
const STEP: usize = 5;

#[test]
fn a_finding_can_be_made_again() {
    let token = std::env::var("POSTHASTE_SPOOL_REPLAY").unwrap_or_else(|_| "1/100:s5/10:s6".into());
    let mut parts = token.split('/');
    let seed = parts.next().unwrap().parse().unwrap();
    let examine = |run: Run, cut: &str| run.examine(cut.parse()?);
    parts.try_fold(record(seed), examine).unwrap_or_else(|what| panic!("{what}"));
}

/// Purpose of the file or directory of each sync.
fn synced(recording: &Recording) -> Vec<Option<String>> {
    // Those that were renamed have their last name.
    let mut names: BTreeMap<u64, (u64, &str)> = BTreeMap::new();
    for event in &recording.events {
        match event {
            FsEvent::Create { dir, name, node, .. } => drop(names.insert(*node, (*dir, name))),
            FsEvent::Rename { to: (dir, name), node, .. } => drop(names.insert(*node, (*dir, name))),
            _ => {}
        }
    }
    let kind = |node: &u64| {
        let Some((dir, name)) = names.get(node) else { return "what the spool lies in".to_owned() };
        match names.get(dir).map_or("", |(_, name)| name) {
            "ring" | "live" | "bodies" | "snapshots" => format!("a file in {}", names[dir].1),
            "packs" if name.ends_with(".index") => "an index".to_owned(),
            "packs" => "a pack".to_owned(),
            _ => name.split('.').next().unwrap_or_default().to_owned(),
        }
    };
    let of = |event: &FsEvent| if let FsEvent::Sync(SyncScope::Node(node)) = event { Some(kind(node)) } else { None };
    recording.events.iter().map(of).collect()
}

#[test]
fn each_kind_of_sync_is_missed_when_it_is_left_out() {
    let mut missed: BTreeMap<String, bool> = BTreeMap::new();
    for seed in [1, 0, 5, 4, 9, 8] {
        if missed.len() == KINDS && missed.values().all(|is_missed| *is_missed) {
            break;
        }
        let whole = record(seed);
        let kinds = synced(&whole.recording);
        // Only a rebuild needs the names of the streams once more: `names.rs` cuts the power while they are written.
        let left_out = kinds.iter().flatten().filter(|kind| *kind != "streams").collect::<BTreeSet<_>>();
        for left_out in left_out {
            if missed.get(left_out) == Some(&true) {
                continue;
            }
            let recording = whole.recording.without_syncs(|index| kinds[index].as_ref() == Some(left_out));
            let run = |nth: u64| Run { seed: seed + 4 * nth * 1000, recording: recording.clone(), ..whole.clone() };
            missed.insert(left_out.clone(), (0..4).any(|nth| cut_all(&run(nth), 12).is_err()));
        }
    }
    let unnoticed: Vec<_> = missed.iter().filter(|(_, is_missed)| !**is_missed).collect();
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
    assert_eq!(missed.len(), KINDS, "{missed:?}");
}

/// Files of ring, packs (two), live, bodies and snapshots, the directory of each, the checkpoints, the spool's directory and what that is in.
const KINDS: usize = 15;

/// Concurrent activities that some runs must have in progress.
#[test]
fn the_runs_have_what_a_cut_may_hit() {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..12 {
        let run = record(seed);
        let mut links = BTreeSet::new();
        for event in &run.recording.events {
            let what = match event {
                FsEvent::Link { name, node, .. } if name.ends_with(".pack") => {
                    links.insert(*node);
                    "segment adopted"
                }
                FsEvent::Create { name, .. } if name.ends_with(".pack") => "records copied into a pack",
                FsEvent::Remove { name, .. } if name.ends_with(".pack") => "pack removed",
                FsEvent::Create { name, .. } if name.ends_with(".body") => "large body",
                FsEvent::Remove { name, .. } if name.ends_with(".body") => "large body removed",
                FsEvent::Remove { node, .. } if links.contains(node) => "name of an adopted segment removed",
                FsEvent::SyncFailed(_) => "sync failed",
                _ => continue,
            };
            *counts.entry(what).or_default() += 1;
        }
        for mark in &run.marks {
            let what = match mark {
                Mark::Durable { .. } => "checkpoint",
                Mark::Cancelled { .. } => "written and cancelled",
                Mark::Advanced { snapshot: Some(_), .. } => "snapshot",
                _ => continue,
            };
            *counts.entry(what).or_default() += 1;
        }
        let stuck = |letter: &Arc<Letter>| letter.entries.iter().any(|entry| entry.0 == life::STUCK);
        *counts.entry("batch of a stream that is stuck").or_default() +=
            run.letters.iter().filter(|letter| stuck(letter)).count();
    }
    println!("{counts:?}");
    assert_eq!(counts.len(), 11, "{counts:?}");
}

#[test]
fn a_run_follows_from_its_seed() {
    // Without what the kernel has chosen past the C library.
    let shape = |event: &FsEvent| match event {
        FsEvent::Create { dir, node, .. } | FsEvent::Link { dir, node, .. } | FsEvent::Remove { dir, node, .. } => {
            (1, *dir, *node)
        }
        FsEvent::Rename { node, .. } => (2, 0, *node),
        FsEvent::Exchange { .. } => (3, 0, 0),
        FsEvent::Truncate { node, .. } => (4, 0, *node),
        FsEvent::Write { node, offset, bytes } => (5 + bytes.len(), *offset, *node),
        FsEvent::Sync(SyncScope::Node(node)) => (1, 1, *node),
        FsEvent::SyncFailed(SyncScope::Node(node)) => (1, 2, *node),
        FsEvent::Sync(_) | FsEvent::SyncFailed(_) => (1, 3, 0),
        FsEvent::Acknowledged(number) => (1, 4, *number),
    };
    for seed in 0..4 {
        let [one, other] = [(); 2].map(|()| record(seed).recording.events.iter().map(shape).collect::<Vec<_>>());
        let differs = one.iter().zip(&other).position(|(one, other)| one != other);
        assert!(differs.is_none() && one.len() == other.len(), "seed {seed}: {differs:?} of {}", one.len());
    }
}
