//! The executors, the spool and the Maildirs on a machine that loses power at every sync, and again during recovery.
//!
//! `posthaste_fsops::recording` defines the possible results of a cut. Threads take turns that follow from the seed
//! (`posthaste_turns`), and so does a whole run. `POSTHASTE_CUTS=10000 cargo test --release -p posthaste-delivery
//! --test crash` makes more cuts than the default, and all cuts of the short runs; `.ci/run` makes 700.
//! `POSTHASTE_SEED=1000` begins with other scenarios. A finding prints how to repeat it:
//! `POSTHASTE_REPLAY=local:3/120:s4` is scenario 3 cut before its event 120, with one more cut after it if the recovery
//! was cut; `POSTHASTE_REPLAY=local:3` cuts all of that scenario.

mod engine;
mod life;
mod mail;
mod reader;
mod removed;
mod run;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use mail::Kind;
use posthaste_fsops::recording::{FsEvent, SyncScope};
use posthaste_fsops::{Choice, Cut};
use posthaste_turns::Random;
use run::{Run, Scenario};

/// Pending changes up to which all choices are tried.
const PENDING_ALL: usize = 6;
/// Seeds tried otherwise, right before and after a sync.
const SEEDS: u64 = 8;

/// Cuts of each run: few cuts of many runs find more than many of few.
const CUTS_OF_A_RUN: usize = 25;
/// Cuts in a search for one that finds something.
const CUTS_TO_FIND_ONE: usize = 50;

/// Cuts of all short runs together, if not all of about 5000 are made.
const CUTS_OF_SHORT_RUNS: u64 = 400;
/// Short runs, one on each kind of disk.
const SHORT_RUNS: u64 = 4;

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Every cut of a run within the bounds. Before and after each sync, failed or not, and each acknowledgement: in all
/// orders or by many seeds; elsewhere by one seed.
fn cuts_of(run: &Run) -> Vec<Cut> {
    let events = &run.recording.events;
    let is_special = |at: usize| {
        matches!(events.get(at), Some(FsEvent::Sync(_) | FsEvent::SyncFailed(_) | FsEvent::Acknowledged(_)))
    };
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

/// Cuts a run and each recovery once more, and some of those again, on all processors; returns the number of cuts.
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
                    if run.kind() == Kind::Standalone {
                        continue;
                    }
                    let mut random = Random::new(run.seed ^ cut.position as u64);
                    // Sometimes once more.
                    let mut left = 1 + random.below(4) / 3;
                    while left > 0 || recovery.given_up.is_some() {
                        left = left.saturating_sub(1);
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
        let cuts = sample(cuts_of(&run), CUTS_OF_A_RUN, &mut Random::new(seed));
        done += cut_all(&run, &cuts);
        if done >= wanted {
            break;
        }
    }
    println!("{done} cuts");
}

#[test]
fn delivery_on_several_mounts_survives_any_power_cut() {
    soak(Scenario::Local, 500);
}

#[test]
fn short_runs_lose_nothing_with_cuts_of_all_kinds() {
    let wanted = number("POSTHASTE_CUTS", CUTS_OF_SHORT_RUNS).div_ceil(SHORT_RUNS) as usize;
    for seed in 1..=SHORT_RUNS {
        let run = Run::record(Scenario::Short, seed);
        let cuts = cuts_of(&run);
        let all = cuts.len();
        println!("{all} cuts there are, {} made", cut_all(&run, &sample(cuts, wanted, &mut Random::new(seed))));
    }
}

#[test]
fn delivery_on_several_mounts_survives_a_failed_sync() {
    soak(Scenario::FailingSync, 400);
}

#[test]
fn delivery_on_several_mounts_survives_a_failed_write() {
    soak(Scenario::FailingWrite, 400);
}

#[test]
fn a_standalone_executor_loses_nothing_wherever_the_power_goes() {
    soak(Scenario::Standalone, 500);
}

#[test]
fn without_syncs_mail_is_lost_and_the_token_replays_it() {
    for scenario in [Scenario::LocalWithoutSyncs, Scenario::StandaloneWithoutSyncs] {
        let run = Run::record(scenario, 1);
        let end = run.recording.events.len();
        let found: Vec<(String, String)> = (0..20)
            .filter_map(|seed| {
                let cut = Cut { position: end, choice: Choice::Seed(seed) };
                Some((run.token(cut), run.examine(cut).err()?))
            })
            .collect();
        assert!(found.len() > 10, "{scenario:?}: {}", found.len());
        for (token, what) in &found[..3] {
            assert_eq!(run::again(token).as_ref(), Err(what));
        }
    }
}

/// The file or directory of each sync in a run, by name.
fn synced(run: &Run) -> Vec<Option<&'static str>> {
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let kind = |name: &str| match name {
        "new" => Some("new"),
        _ if name.contains(".rig.example") => Some("message"),
        // Not the spool's list of mounts.
        _ if name.starts_with('m') && !name.starts_with("mounts") => Some("way"),
        _ => None,
    };
    run.recording
        .events
        .iter()
        .map(|event| {
            if let FsEvent::Create { name, node, .. } | FsEvent::Link { name, node, .. } = event {
                names.entry(*node).or_insert_with(|| name.clone());
            }
            match event {
                FsEvent::Sync(SyncScope::FileSystem(_)) => Some("file system"),
                FsEvent::Sync(SyncScope::Node(node)) => kind(names.get(node)?),
                _ => None,
            }
        })
        .collect()
}

#[test]
fn a_build_without_any_one_kind_of_sync_would_be_found_out() {
    // The spool's syncs have their own tests.
    for kind in ["file system", "message", "new", "way"] {
        assert!(is_missed(kind), "{kind}");
    }
}

/// True if some cut of some run detects that one kind of sync is missing.
fn is_missed(kind: &str) -> bool {
    // Where names reach the disk in any order.
    (1..40).step_by(2).any(|seed| {
        let mut run = Run::record(Scenario::Local, seed);
        let kinds = synced(&run);
        run.recording = run.recording.without_syncs(|at| kinds[at] == Some(kind));
        let cuts = sample(cuts_of(&run), CUTS_TO_FIND_ONE, &mut Random::new(seed));
        kinds.contains(&Some(kind)) && cuts.into_iter().any(|cut| run.examine(cut).is_err())
    })
}

#[test]
fn a_run_and_its_recoveries_follow_from_the_seed() {
    for seed in 1..=6 {
        for scenario in DETERMINED {
            let runs = [0, 1].map(|_| Run::record(scenario, seed));
            same(&runs);
            let end = runs[0].recording.events.len();
            for position in [end / 3, end / 2, end] {
                same(&runs.each_ref().map(|run| {
                    run.examine(Cut { position, choice: Choice::Seed(7) }).unwrap_or_else(|what| panic!("{what}"))
                }));
            }
        }
    }
}

const DETERMINED: [Scenario; 4] =
    [Scenario::Local, Scenario::FailingSync, Scenario::FailingWrite, Scenario::Standalone];

fn same([one, other]: &[Run; 2]) {
    let shapes = [one, other].map(|run| run.recording.events.iter().map(shape).collect::<Vec<_>>());
    let differs = shapes[0].iter().zip(&shapes[1]).position(|(one, other)| one != other);
    let around = differs.map(|at| [one, other].map(|run| &run.recording.events[at.saturating_sub(3)..=at]));
    assert!(differs.is_none() && shapes[0].len() == shapes[1].len(), "{}: {differs:?}, {around:#?}", one.name());
    assert_eq!(one.taken, other.taken);
}

/// An event without random values from the kernel: salts in the spool, checksums over them, and random parts of file
/// names.
fn shape(event: &FsEvent) -> (std::mem::Discriminant<FsEvent>, Vec<u64>) {
    let len = |text: &str| text.len() as u64;
    let numbers = match event {
        FsEvent::Create { dir, name, node, is_dir } => vec![*dir, len(name), *node, u64::from(*is_dir)],
        FsEvent::Link { dir, name, node } | FsEvent::Remove { dir, name, node } => vec![*dir, len(name), *node],
        FsEvent::Rename { from, to, node } => vec![from.0, len(&from.1), to.0, len(&to.1), *node],
        FsEvent::Exchange { first, second } => {
            vec![first.0, len(&first.1), first.2, second.0, len(&second.1), second.2]
        }
        FsEvent::Write { node, offset, bytes } => vec![*node, *offset, bytes.len() as u64],
        FsEvent::Truncate { node, .. } => vec![*node],
        FsEvent::Sync(scope) | FsEvent::SyncFailed(scope) => match scope {
            SyncScope::Node(node) => vec![*node],
            SyncScope::FileSystem(mount) => vec![*mount, 1],
        },
        FsEvent::Acknowledged(number) => vec![*number],
    };
    (std::mem::discriminant(event), numbers)
}

#[test]
fn a_finding_can_be_made_again() {
    // Without a run to repeat, a cut that finds nothing.
    let token = std::env::var("POSTHASTE_REPLAY").unwrap_or_else(|_| "local:1/100:s5/10:s6".into());
    if token.contains('/') {
        run::again(&token).unwrap_or_else(|what| panic!("{what}"))
    } else {
        let run = run::recorded(&token).unwrap_or_else(|what| panic!("{what}"));
        println!("{} cuts", cut_all(&run, &cuts_of(&run)));
    }
}

/// Each kind of run has all concurrent operations in flight: a scenario without events proves nothing.
#[test]
fn the_runs_have_what_a_cut_may_hit() {
    for scenario in [Scenario::Local, Scenario::FailingSync, Scenario::FailingWrite] {
        let mut wanted = vec![
            "segment adopted",
            "records copied into a pack",
            "pack removed",
            "large body",
            "large body removed",
            "acknowledged",
        ];
        if scenario == Scenario::FailingSync {
            wanted.extend(["sync failed", "file system given up"]);
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        // Some occur in one of many runs.
        for seed in 1..=RUNS_WITH_ALL {
            let run = Run::record(scenario, seed);
            let events = &run.recording.events;
            for event in events {
                let what = match event {
                    FsEvent::Link { name, .. } if name.ends_with(".pack") => "segment adopted",
                    FsEvent::Create { name, .. } if name.ends_with(".pack") => "records copied into a pack",
                    FsEvent::Remove { name, .. } if name.ends_with(".pack") => "pack removed",
                    FsEvent::Create { name, .. } if name.ends_with(".body") => "large body",
                    FsEvent::Remove { name, .. } if name.ends_with(".body") => "large body removed",
                    FsEvent::SyncFailed(_) => "sync failed",
                    _ => continue,
                };
                *counts.entry(what).or_default() += 1;
            }
            *counts.entry("file system given up").or_default() += usize::from(run.given_up.is_some());
            *counts.entry("acknowledged").or_default() += run.recording.acknowledged_before(events.len()).count();
            if counts["acknowledged"] > 100 {
                wanted.retain(|what| counts.get(what).is_none_or(|count| *count == 0));
            }
            if wanted.is_empty() {
                break;
            }
        }
        println!("{scenario:?}: {counts:?}");
        assert!(wanted.is_empty(), "{scenario:?}: {counts:?} without {wanted:?}");
    }
}

/// Runs in which all wanted events occur: the rarest, a segment adopted where syncs fail, is in one of a hundred. Ends
/// when all were seen.
const RUNS_WITH_ALL: u64 = 2000;
