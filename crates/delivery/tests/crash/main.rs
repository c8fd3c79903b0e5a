//! The executor, its journal and the Maildirs on a machine whose power goes at every sync, and again while it recovers.
//!
//! What a cut may leave is stated in `posthaste_fsops::recording`. `POSTHASTE_CUTS=10000 cargo test --release -p posthaste-delivery --test crash` makes
//! more cuts than the tests do by themselves. A finding tells the seed of its scenario, which `POSTHASTE_SEED` records anew and cuts everywhere. The
//! executor's threads make each recording a little different, so the very one is kept in a file: `POSTHASTE_REPLAY=FILE,CUT` makes the very cut again.

mod mail;
mod run;

use std::sync::atomic::{AtomicUsize, Ordering};

use mail::{Kind, Random};
use posthaste_fsops::{Choice, Cut};
use run::{Disk, Run};

/// All choices are tried where at most this many changes are pending.
const PENDING_ALL: usize = 6;
/// Otherwise this many seeds right before and after a sync.
const SEEDS: u64 = 8;

/// Cuts of the whole test, recoveries included.
fn cuts_wanted(default: usize) -> usize {
    std::env::var("POSTHASTE_CUTS").map_or(default, |text| text.parse().expect("POSTHASTE_CUTS is a number"))
}

/// Every cut of a run within the bounds: before and after each sync and acknowledgement in all orders or by many seeds, elsewhere by one seed.
fn cuts_of(run: &Run) -> Vec<Cut> {
    let events = &run.recording.events;
    let is_special = |at: usize| events.get(at).is_some_and(|event| event.is_sync());
    let mut cuts = Vec::new();
    for position in 0..=events.len() {
        let mut push = |choice| cuts.push(Cut { position, choice });
        let is_near_a_sync = is_special(position) || position > 0 && is_special(position - 1);
        if !is_near_a_sync {
            push(Choice::Seed(run.seed));
            continue;
        }
        let pending = run.recording.pending_before(position);
        if pending <= PENDING_ALL {
            (0..1 << pending).for_each(|bits| push(Choice::Bits(bits)));
        }
        (0..SEEDS).for_each(|seed| push(Choice::Seed(run.seed + seed)));
    }
    cuts
}

/// Some of them, spread over all.
fn sample(mut cuts: Vec<Cut>, count: usize, random: &mut Random) -> Vec<Cut> {
    while cuts.len() > count {
        cuts.swap_remove(random.below(cuts.len() as u64) as usize);
    }
    cuts
}

/// Cuts a run and each recovery once more, on as many threads as there are processors; says how many cuts that were.
fn cut_all(run: &Run, cuts: &[Cut]) -> usize {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(cut) = cuts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let recovery = run.examine(*cut).unwrap_or_else(|what| found(run, *cut, &what));
                    done.fetch_add(1, Ordering::Relaxed);
                    if run.kind == Kind::Standalone {
                        continue;
                    }
                    let mut random = Random::new(run.seed ^ cut.position as u64);
                    let position = random.below(recovery.recording.events.len() as u64 + 1) as usize;
                    let again = Cut { position, choice: Choice::Seed(random.below(1 << 32)) };
                    recovery.examine(again).map_or_else(|what| found(&recovery, again, &what), drop);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.into_inner()
}

fn found(run: &Run, cut: Cut, what: &str) -> ! {
    let name = format!("posthaste-crash-{:?}-{}-{}.json", run.kind, run.seed, cut.position).to_lowercase();
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, serde_json::to_vec(run).expect("a run has a JSON form")).expect("the run can be kept");
    panic!(
        "{what}; the scenario again with POSTHASTE_SEED={}, this very cut with POSTHASTE_REPLAY={},{cut}",
        run.seed,
        file.display()
    );
}

/// Records runs and cuts them until there are enough cuts; or one run, and cuts it everywhere.
fn soak(default: usize, record: impl Fn(u64) -> Run) {
    if let Ok(seed) = std::env::var("POSTHASTE_SEED") {
        let run = record(seed.parse().expect("POSTHASTE_SEED is a number"));
        println!("{} cuts", cut_all(&run, &cuts_of(&run)));
        return;
    }
    let wanted = cuts_wanted(default);
    let mut done = 0;
    for seed in 1.. {
        let run = record(seed);
        let cuts = sample(cuts_of(&run), (wanted / 8).max(1), &mut Random::new(seed));
        done += cut_all(&run, &cuts);
        if done >= wanted {
            break;
        }
    }
    println!("{done} cuts");
}

#[test]
fn a_journaled_executor_loses_nothing_wherever_the_power_goes() {
    soak(1600, |seed| run::journaled(seed, Disk::of(seed), false));
}

#[test]
fn a_journaled_executor_loses_nothing_after_a_sync_that_failed() {
    soak(800, |seed| run::journaled(seed, Disk::of(seed), true));
}

#[test]
fn a_standalone_executor_loses_nothing_wherever_the_power_goes() {
    soak(2000, |seed| run::standalone(seed, Disk::of(seed), seed % 3 == 0));
}

#[test]
fn without_syncs_mail_is_lost_and_found_to_be() {
    for run in [run::journaled(1, Disk::of(1), false), run::standalone(1, Disk::of(1), false)] {
        let forgetful = Run { recording: run.recording.without_syncs(|_| true), ..run };
        let end = forgetful.recording.events.len();
        let losses =
            (0..20).filter(|&seed| forgetful.examine(Cut { position: end, choice: Choice::Seed(seed) }).is_err());
        assert!(losses.count() > 10, "{:?}", forgetful.kind);
    }
}

#[test]
fn a_finding_can_be_made_again() {
    let Ok(what) = std::env::var("POSTHASTE_REPLAY") else {
        // With nothing to make again: a kept run gives the same disk as the one that it was kept from.
        let run = run::standalone(3, Disk::of(3), false);
        let kept: Run = serde_json::from_slice(&serde_json::to_vec(&run).expect("JSON")).expect("a run");
        let cut: Cut = format!("{}:s5", run.recording.events.len() / 2).parse().expect("a cut");
        assert_eq!(kept.recording.cut(cut), run.recording.cut(cut));
        return;
    };
    let (file, cut) = what.rsplit_once(',').expect("FILE,CUT");
    let run: Run = serde_json::from_slice(&std::fs::read(file).expect("the file")).expect("a run that was kept");
    run.examine(cut.parse().expect("a cut")).map_or_else(|what| panic!("{cut}: {what}"), drop);
}
