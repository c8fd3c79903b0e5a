//! The ring on a machine whose power goes at every call that changes the disk, and again while it recovers.
//!
//! `posthaste_fsops::recording` states the effects of a cut. The schedule of threads follows from the seed
//! (`posthaste_turns`), and so does the whole run. Variables of `cargo test --release -p posthaste-ring --test crash`:
//!
//! - `POSTHASTE_CUTS=10000` makes more cuts than the tests do by themselves.
//! - `POSTHASTE_SEED=1000` begins with other scenarios.
//! - `POSTHASTE_REPLAY=Healthy:3/120:s4`, as a finding prints it, cuts scenario 3 before its event 120. One more cut
//!   follows it where the recovery was cut.
//! - `POSTHASTE_REPLAY=Healthy:3` cuts scenario 3 everywhere.

mod life;
mod run;

use std::sync::atomic::{AtomicUsize, Ordering};

use life::Scenario;
use posthaste_fsops::{Choice, Cut};
use posthaste_turns::Random;
use run::{Run, recorded};

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// All choices are tried where at most this many changes are pending.
const PENDING_ALL: usize = 3;
/// Otherwise this many seeds.
const SEEDS: u64 = 4;

/// Cuts before every event of a run and at its end.
fn cuts_of(run: &Run) -> Vec<Cut> {
    let mut cuts = Vec::new();
    for position in 0..=run.recording.events.len() {
        let pending = run.recording.pending_before(position);
        let mut push = |choice| cuts.push(Cut { position, choice });
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

/// Cuts a run and each recovery once more, some of those again, on as many threads as there are processors; says how many cuts that were.
fn cut_all(run: &Run, cuts: &[Cut]) -> usize {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(cut) = cuts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let examine = |run: &Run, cut| {
                        let recovery = run.examine(cut).unwrap_or_else(|what| panic!("{what}"));
                        done.fetch_add(1, Ordering::Relaxed);
                        recovery
                    };
                    let mut recovery = examine(run, *cut);
                    let mut random = Random::new(run.seed ^ cut.position as u64);
                    // Now and then once more still.
                    for _ in 0..1 + random.below(4) / 3 {
                        let position = random.below(recovery.recording.events.len() as u64 + 1) as usize;
                        let choice = Choice::Seed(random.below(1 << 32));
                        recovery = examine(&recovery, Cut { position, choice });
                    }
                }
            });
        }
    });
    done.into_inner()
}

/// Records runs and cuts them until there are enough cuts, recoveries included.
fn soak(scenario: Scenario, default: u64) {
    let wanted = number("POSTHASTE_CUTS", default) as usize;
    let mut done = 0;
    for seed in number("POSTHASTE_SEED", 1).. {
        let run = Run::record(scenario, seed);
        let cuts = sample(cuts_of(&run), 150, &mut Random::new(seed));
        done += cut_all(&run, &cuts);
        if done >= wanted {
            break;
        }
    }
    println!("{done} cuts");
}

#[test]
fn nothing_is_lost_wherever_the_power_goes() {
    soak(Scenario::Healthy, 700);
}

#[test]
fn nothing_is_lost_after_a_sync_that_failed() {
    soak(Scenario::FailingSync, 500);
}

#[test]
fn nothing_is_lost_after_a_write_that_failed() {
    soak(Scenario::FailingWrite, 500);
}

#[test]
fn a_run_loses_nothing_with_any_of_all_cuts() {
    let runs = (1..30).map(|seed| Run::record(Scenario::Healthy, seed));
    let run = runs.min_by_key(|run| run.recording.events.len()).expect("there are some");
    println!("{} cuts", cut_all(&run, &cuts_of(&run)));
}

#[test]
fn a_build_without_any_one_kind_of_sync_would_be_found_out() {
    for kind in ["zeros", "directory", "parent", "header", "commit", "opening"] {
        // Where names reach the disk in any order.
        let is_found = (1..200).step_by(2).any(|seed| {
            let mut run = Run::record(Scenario::Healthy, seed);
            let kinds = run.syncs();
            run.recording = run.recording.without_syncs(|at| kinds[at] == Some(kind));
            let cuts = sample(cuts_of(&run), 150, &mut Random::new(seed));
            kinds.contains(&Some(kind)) && cuts.into_iter().any(|cut| run.examine(cut).is_err())
        });
        assert!(is_found, "{kind}");
    }
}

#[test]
fn a_finding_can_be_made_again() {
    // With nothing to make again, a cut in which there is nothing to be found.
    let token = std::env::var("POSTHASTE_REPLAY").unwrap_or_else(|_| "Healthy:1/50:s5/10:s6".into());
    let run = recorded(&token).unwrap_or_else(|what| panic!("{what}"));
    if !token.contains('/') {
        println!("{} cuts", cut_all(&run, &cuts_of(&run)));
    }
}
