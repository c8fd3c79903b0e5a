//! A spool on a machine whose power goes at any call, and again while it recovers.
//!
//! What a cut may leave is stated in `posthaste_fsops::recording`; threads take turns that follow from the seed (`posthaste_turns`). A finding is made again with
//! `POSTHASTE_SPOOL_REPLAY=SEED/CUT[/CUT]`; `POSTHASTE_SPOOL_SEEDS=N` makes more of them.

mod check;
mod life;

use std::collections::BTreeMap;
use std::sync::Arc;

use check::{Promised, check_end, opened};
use life::{Letter, Log, Mark, Trouble, lives, spool_dir};
use posthaste_fsops::{Choice, Cut, Event, Machine, Recording, Scope, Tree};
use posthaste_turns::{Random, in_turns};

/// A run on record, and what was promised in it.
struct Run {
    seed: u64,
    letters: Vec<Arc<Letter>>,
    marks: Vec<Mark>,
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
    assert_eq!(machine.unrecorded().unwrap(), Vec::<std::path::PathBuf>::new(), "past the door");
    let (letters, marks) = (log.letters.lock().unwrap().clone(), log.marks.lock().unwrap().clone());
    Run { seed, letters, marks, recording: machine.recording() }
}

impl Run {
    /// Opens what a cut leaves, and what another leaves of that opening, if there is one.
    fn examine(&self, cut: Cut, again: Option<Cut>) -> Result<usize, String> {
        let promised = Promised::new(&self.letters, &self.marks, self.recording.acknowledged_before(cut.position));
        let tree = self.recording.cut(cut);
        let (first, events) = self.recover(&tree, &promised, again.is_none());
        let named = |what| match again {
            None => format!("{what}; again with POSTHASTE_SPOOL_REPLAY={}/{cut}", self.seed),
            Some(again) => format!("{what}; again with POSTHASTE_SPOOL_REPLAY={}/{cut}/{again}", self.seed),
        };
        first.map_err(named)?;
        let Some(again) = again else { return Ok(events.events.len()) };
        let again_cut = Cut { position: again.position % (events.events.len() + 1), ..again };
        self.recover(&events.cut(again_cut), &promised, true).0.map_err(named)?;
        Ok(events.events.len())
    }

    fn recover(&self, tree: &Tree, promised: &Promised, to_the_end: bool) -> (Result<(), String>, Recording) {
        let machine = Machine::boot(tree, true, is_ordered(self.seed)).unwrap();
        let dir = spool_dir(&machine);
        let outcome = in_turns(self.seed, || {
            let spool = opened(&dir)?;
            promised.check(&spool)?;
            // Opening again changes nothing, whether the first has ended with a checkpoint or not.
            if self.seed.is_multiple_of(3) {
                drop(spool);
            } else {
                spool.abandon();
            }
            let spool = opened(&dir)?;
            promised.check(&spool)?;
            if to_the_end { check_end(&spool, &dir) } else { Ok(()) }
        });
        (outcome, machine.recording())
    }
}

/// Cuts at every so-many-th event, each with its own choice.
fn cut_all(run: &Run, step: usize) -> Result<usize, String> {
    let mut random = Random::new(run.seed);
    let mut cuts = 0;
    let mut position = random.below(step as u64) as usize;
    while position <= run.recording.events.len() {
        let cut = Cut { position, choice: Choice::Seed(random.below(1 << 20)) };
        let again = (random.below(3) == 0)
            .then(|| Cut { position: random.below(1 << 10) as usize, choice: Choice::Seed(random.below(1 << 20)) });
        run.examine(cut, again)?;
        cuts += 1;
        position += 1 + random.below(2 * step as u64) as usize;
    }
    Ok(cuts)
}

fn seeds() -> u64 {
    std::env::var("POSTHASTE_SPOOL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(6)
}

#[test]
fn what_was_promised_survives_a_cut_at_any_call() {
    let seeds: Vec<u64> = (0..seeds()).collect();
    let threads = 2;
    let cuts: usize = std::thread::scope(|scope| {
        let share = |nth: usize| {
            let seeds = seeds.iter().copied().skip(nth).step_by(threads).collect::<Vec<_>>();
            move || {
                let cut = |seed| cut_all(&record(seed), 5).unwrap_or_else(|what| panic!("{what}"));
                seeds.into_iter().map(cut).sum::<usize>()
            }
        };
        let running: Vec<_> = (0..threads).map(|nth| scope.spawn(share(nth))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum()
    });
    println!("{cuts} cuts");
    assert!(cuts > 0);
}

#[test]
fn a_finding_can_be_made_again() {
    let token = std::env::var("POSTHASTE_SPOOL_REPLAY").unwrap_or_else(|_| "1/100:s5/10:s6".into());
    let mut parts = token.split('/');
    let seed = parts.next().unwrap().parse().unwrap();
    let cut = parts.next().unwrap().parse().unwrap();
    let again = parts.next().map(|again| again.parse().unwrap());
    record(seed).examine(cut, again).unwrap_or_else(|what| panic!("{what}"));
}

/// What the file or directory of a sync is for.
fn kind_of(names: &BTreeMap<u64, String>, node: u64) -> &'static str {
    let name = names.get(&node).map_or("", |name| name.as_str());
    let kinds = ["checkpoint", ".seg", ".pack", ".index", ".body", "live", "packs", "bodies", "ring", "spool"];
    match kinds.iter().find(|kind| name.contains(**kind)) {
        Some(kind) => kind,
        // A live file's name is two numbers.
        None if name.contains('.') => "live file",
        None => "other",
    }
}

/// Names of files and directories; those that were renamed have their last.
fn names(recording: &Recording) -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    for event in &recording.events {
        match event {
            Event::Create { name, node, .. } => drop(names.insert(*node, name.clone())),
            Event::Rename { to, node, .. } => drop(names.insert(*node, to.1.clone())),
            _ => {}
        }
    }
    names
}

#[test]
fn each_kind_of_sync_is_missed_when_it_is_left_out() {
    let mut missed: BTreeMap<&str, bool> = BTreeMap::new();
    for seed in [0, 1, 4, 5, 8, 9] {
        let whole = record(seed);
        let names = names(&whole.recording);
        let kind = |index: usize| match whole.recording.events[index] {
            Event::Sync(Scope::Node(node)) => kind_of(&names, node),
            _ => "none",
        };
        for left_out in ["checkpoint", ".seg", ".pack", ".index", ".body", "live file", "live", "packs", "bodies"] {
            if missed.get(left_out) == Some(&true) {
                continue;
            }
            let recording = whole.recording.without_syncs(|index| kind(index) == left_out);
            let run = Run { recording, letters: whole.letters.clone(), marks: whole.marks.clone(), ..whole };
            let is_missed = (0..4).any(|nth| cut_all(&Run { seed: seed + 4 * nth * 1000, ..clone(&run) }, 12).is_err());
            missed.insert(left_out, is_missed);
        }
    }
    let unnoticed: Vec<_> = missed.into_iter().filter(|(_, is_missed)| !is_missed).collect();
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

fn clone(run: &Run) -> Run {
    Run { recording: run.recording.clone(), letters: run.letters.clone(), marks: run.marks.clone(), ..*run }
}

#[test]
fn a_run_follows_from_its_seed() {
    // Without what the kernel has chosen past the C library.
    let shape = |event: &Event| match event {
        Event::Create { dir, node, .. } | Event::Link { dir, node, .. } | Event::Remove { dir, node, .. } => {
            (1, *dir, *node)
        }
        Event::Rename { node, .. } => (2, 0, *node),
        Event::Exchange { .. } => (3, 0, 0),
        Event::Truncate { node } => (4, 0, *node),
        Event::Write { node, offset, bytes } => (5 + bytes.len(), *offset, *node),
        Event::Sync(Scope::Node(node)) => (1, 1, *node),
        Event::SyncFailed(Scope::Node(node)) => (1, 2, *node),
        Event::Sync(_) | Event::SyncFailed(_) => (1, 3, 0),
        Event::Acknowledged(number) => (1, 4, *number),
    };
    for seed in 0..4 {
        let [one, other] = [(); 2].map(|()| record(seed).recording.events.iter().map(shape).collect::<Vec<_>>());
        let differs = one.iter().zip(&other).position(|(one, other)| one != other);
        assert!(differs.is_none() && one.len() == other.len(), "seed {seed}: {differs:?} of {}", one.len());
    }
}
