//! One recorded run, and any number of cuts of it, each cut again during its recovery.

use posthaste_random::Random;
use serde::Serialize;

use crate::account::Account;
use crate::image::Image;
use crate::load::messages;
use crate::log::{Cutter, Event, Recording, Unflushed};
use crate::mailboxes;
use crate::mount::FileSystem;
use crate::recorded::{Plan, Recorded, RecoveryError, Waiting};
use crate::relay;
use crate::relay::known::Known;
use crate::rig::{Environment, Rig, RigError};

/// A finding after a cut.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Position of the cut in the recording.
    pub position: usize,
    /// Seed that chose the unflushed writes that survived.
    pub seed: u64,
    /// Position of a second cut in the recording of the recovery, if there was one.
    pub again: Option<usize>,
    /// Description of the finding.
    pub what: String,
    /// True if fjall refuses a journal for a hole in its last entry that this cut made.
    pub is_of_a_hole: bool,
    /// The recovery before a second cut, with its own recording.
    #[serde(skip)]
    pub recovery: Option<Recovery>,
}

/// A recovery that was cut, as a run: its beginning marks everything acknowledged and taken before.
#[derive(Clone)]
pub struct Recovery {
    pub recording: Recording,
    /// Position of the cut in it.
    pub position: usize,
}

impl std::fmt::Debug for Recovery {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Recovery {{ {} events, position: {} }}", self.recording.events.len(), self.position)
    }
}

impl Recovery {
    fn new(mut recording: Recording, again: usize, marks: Vec<Event>) -> Self {
        let position = marks.len() + again;
        recording.events.splice(0..0, marks);
        Recovery { recording, position }
    }
}

/// Place of a cut.
#[derive(Clone, Copy, Debug)]
struct CutAt {
    position: usize,
    seed: u64,
    /// Position in the recording of the recovery, for a second cut.
    again: Option<usize>,
}

impl CutAt {
    /// Position in the recording that is cut.
    fn place(self) -> usize {
        self.again.unwrap_or(self.position)
    }
}

/// The outcome of a campaign: a line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the mail system.
    pub system: String,
    pub file_system: FileSystem,
    /// Bytes that the disk writes atomically.
    pub sector: usize,
    /// Recordings cut.
    pub cuts: u64,
    /// Recoveries cut again.
    pub cuts_in_recovery: u64,
    /// Messages of the recorded run that were acknowledged.
    pub acknowledged: u64,
    /// Disks, of both kinds of cuts, on which the server started and its mail could be accounted for.
    pub accounted: u64,
    /// Entries of acknowledged messages expected on those disks; the counts below are of entries, too.
    pub looked_for: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub half: u64,
    /// For a relaying server: extra copies of mail whose record may have been lost.
    pub sent_again: u64,
    /// The most flushes between the first of such copies and the cut.
    pub sent_again_flushes_max: u64,
    /// Cuts after which the file system could not be mounted, so that they say nothing about the server.
    pub unmountable: u64,
    /// Cuts after which the server did not start or stop, or a second recovery changed something.
    pub broken: u64,
    /// Requests to the disk.
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    /// Files waiting in the spool at the time of a cut.
    pub waiting: Waiting,
    pub findings: Vec<Finding>,
}

/// Runs the server under load on a fresh file system and records all requests to the disk.
///
/// # Errors
/// See [`RigError`].
pub fn record(rig: &Rig, plan: &Plan, environment: &Environment) -> Result<Recorded, RigError> {
    if plan.is_relayed {
        relay::cuts::record(rig, plan, environment)
    } else {
        mailboxes::record(rig, plan, environment)
    }
}

/// Starts the machine with this disk, and checks for all mail that was promised.
///
/// # Errors
/// The reason why the machine did not start.
pub fn recover(
    rig: &Rig,
    recorded: &Recorded,
    image: Image,
    known: &Known,
) -> Result<(Recording, Account), RecoveryError> {
    if recorded.is_relayed {
        relay::cuts::recover(rig, &recorded.load, image, known)
    } else {
        mailboxes::recover(rig, &recorded.load, image, &known.acknowledged)
    }
}

/// Makes the cuts. `progress` is called after each. An interrupted campaign returns the outcome of the cuts so far.
pub fn cut(
    rig: &Rig,
    plan: &Plan,
    recorded: &Recorded,
    environment: &Environment,
    mut progress: impl FnMut(&Outcome),
) -> Outcome {
    cut_at(rig, plan, recorded, environment, &positions(&recorded.recording, plan), &mut progress)
}

/// Makes cuts at given positions, in order, with the seeds of an earlier campaign.
pub fn cut_at(
    rig: &Rig,
    plan: &Plan,
    recorded: &Recorded,
    environment: &Environment,
    positions: &[(usize, u64)],
    progress: &mut impl FnMut(&Outcome),
) -> Outcome {
    let mut outcome = Outcome::of(plan, recorded, environment.system(plan.is_relayed));
    let mut cutter = Cutter::new(&recorded.recording).sectors_of(plan.sector);
    for &(position, seed) in positions {
        if environment.go_on().is_err() {
            break;
        }
        outcome.cuts += 1;
        let mut known = Known::after(&recorded.load, &recorded.recording.events[..position]);
        let cut = CutAt { position, seed, again: None };
        if let Some(recovery) = examine(rig, recorded, &mut cutter, &known, cut, &mut outcome) {
            outcome.cuts_in_recovery += 1;
            let again = Random::of(seed, 1).below(recovery.events.len() as u64 + 1) as usize;
            let mut cutter = Cutter::new(&recovery).sectors_of(plan.sector);
            let cut = CutAt { again: Some(again), ..cut };
            let before = known.events(&recorded.load);
            known.go_on(&recorded.load, &recovery.events[..again]);
            let is_clean = examine(rig, recorded, &mut cutter, &known, cut, &mut outcome).is_some();
            let kept = outcome.findings.iter().filter(|finding| finding.recovery.is_some()).count();
            if let Some(finding) = outcome.findings.last_mut().filter(|_| !is_clean && kept < RECOVERIES_KEPT) {
                finding.recovery = Some(Recovery::new(recovery, again, before));
            }
        }
        progress(&outcome);
    }
    outcome
}

/// Positions of the cuts, in order: a third anywhere, a third right after an acknowledgement, a third just before or
/// after a flush.
pub fn positions(recording: &Recording, plan: &Plan) -> Vec<(usize, u64)> {
    let places = |wanted: fn(&Event) -> bool| -> Vec<usize> {
        let events = recording.events.iter().enumerate();
        events.filter(|(_, event)| wanted(event)).map(|(index, _)| index).collect()
    };
    let marks = places(|event| matches!(event, Event::Mark(_)));
    let flushes = places(|event| matches!(event, Event::Flush));
    let mut rng = Random::new(plan.seed);
    let mut pick = |from: &[usize]| if from.is_empty() { 0 } else { from[rng.below(from.len() as u64) as usize] };
    let anywhere: Vec<usize> = (0..=recording.events.len()).collect();
    let mut all: Vec<(usize, u64)> = (0..plan.cuts)
        .map(|index| match index % 6 {
            0 | 3 => (pick(&anywhere), index),
            1 | 4 => (pick(&marks) + 1, index),
            2 => (pick(&flushes), index),
            _ => (pick(&flushes) + 1, index),
        })
        .map(|(position, index)| (position.min(recording.events.len()), plan.seed.wrapping_add(index)))
        .collect();
    all.sort_unstable();
    all
}

/// Mounts the disk left by a cut, lets the server recover, and accounts. Returns the recording of the recovery if that
/// succeeded.
fn examine(
    rig: &Rig,
    recorded: &Recorded,
    cutter: &mut Cutter<'_>,
    known: &Known,
    cut: CutAt,
    outcome: &mut Outcome,
) -> Option<Recording> {
    let recovered = recover(rig, recorded, cutter.cut(cut.place(), cut.seed), known);
    if let Ok((_, found)) = &recovered {
        outcome.add(found, recorded.load.entries(&known.acknowledged));
    }
    let what = match recovered {
        Ok((recovery, found)) if found.is_clean() => return Some(recovery),
        Ok((_, found)) => {
            outcome.broken += u64::from(!found.misplaced.is_empty() || !found.fronts.is_empty());
            found.to_string()
        }
        Err(RecoveryError::Unmountable(why)) => {
            outcome.unmountable += 1;
            format!("not mounted: {why}")
        }
        Err(RecoveryError::Server(why)) => {
            outcome.broken += 1;
            why
        }
    };
    let is_of_a_hole = what.contains(REFUSED_JOURNAL) && makes_the_hole(rig, recorded, cutter, known, cut);
    let CutAt { position, seed, again } = cut;
    outcome.findings.push(Finding { position, seed, again, what, is_of_a_hole, recovery: None });
    None
}

/// True if the unflushed writes of a cut are why fjall refuses its journal: on the same disk without them the server
/// starts, and all mail is there.
fn makes_the_hole(rig: &Rig, recorded: &Recorded, cutter: &mut Cutter<'_>, known: &Known, cut: CutAt) -> bool {
    let flushed = cutter.cut_with(cut.place(), Unflushed::Dropped, &mut Random::new(cut.seed));
    recover(rig, recorded, flushed, known).is_ok_and(|(_, found)| found.is_clean())
}

impl Outcome {
    pub(crate) fn of(plan: &Plan, recorded: &Recorded, system: String) -> Self {
        let count = |wanted: fn(&Event) -> bool| recorded.recording.events.iter().filter(|e| wanted(e)).count() as u64;
        Outcome {
            system,
            file_system: plan.file_system,
            sector: plan.sector,
            cuts: 0,
            cuts_in_recovery: 0,
            acknowledged: messages(recorded.recording.marked_before(recorded.recording.events.len())),
            accounted: 0,
            looked_for: 0,
            lost: 0,
            duplicated: 0,
            half: 0,
            sent_again: 0,
            sent_again_flushes_max: 0,
            unmountable: 0,
            broken: 0,
            writes: count(|event| matches!(event, Event::Write { .. })),
            flushes: count(|event| matches!(event, Event::Flush)),
            discards: count(|event| matches!(event, Event::Discard { .. })),
            waiting: recorded.waiting,
            findings: Vec::new(),
        }
    }

    /// Counts the findings on one disk on which `looked_for` entries were expected.
    pub(crate) fn add(&mut self, found: &Account, looked_for: u64) {
        self.accounted += 1;
        self.looked_for += looked_for;
        self.lost += found.lost.len() as u64;
        self.duplicated += found.duplicated.len() as u64;
        self.half += found.half.len() as u64;
        self.sent_again += found.sent_again.len() as u64;
        self.sent_again_flushes_max = found.sent_again.iter().copied().fold(self.sent_again_flushes_max, u64::max);
    }

    /// True if some mail was expected, and none is lost, duplicated, half or misplaced, and nothing is broken. A file
    /// system that does not survive torn sectors below the atomic size of real disks is no fault of the server. Nor is a
    /// journal that fjall refuses for a hole in its last entry, if the cut [made the hole](Finding::is_of_a_hole): docs/spool.md says so.
    pub fn is_clean(&self) -> bool {
        let of_file_system = if self.sector < 4096 { self.unmountable } else { 0 };
        let unexplained = self.findings.iter().filter(|finding| !finding.is_of_a_hole).count() as u64;
        self.looked_for > 0 && unexplained == of_file_system
    }
}

/// In the last words of a server.
const REFUSED_JOURNAL: &str = "FjallError: JournalRecovery(";
/// Limit on kept recordings of recoveries: each holds its writes in memory.
const RECOVERIES_KEPT: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Entry;

    #[test]
    fn clean_is_who_was_looked_at_and_kept_everything() {
        let recorded = Recorded::of(Recording { base: Image::zeros(0), events: vec![Event::Mark(0)] }, 1);
        let plan = Plan {
            file_system: FileSystem::Ext4,
            messages: 1,
            connections: 1,
            cuts: 1,
            seed: 1,
            sector: 4096,
            is_relayed: false,
        };
        let of_entries = |entries: u64, sector: usize, unmountable: u64, found: &[Account]| {
            let mut outcome = Outcome::of(&Plan { sector, ..plan.clone() }, &recorded, "Posthaste".to_owned());
            found.iter().for_each(|found| outcome.add(found, entries));
            outcome.unmountable = unmountable;
            let wrong = unmountable + found.iter().filter(|found| !found.is_clean()).count() as u64;
            outcome.findings = (0..wrong)
                .map(|seed| Finding {
                    position: 0,
                    seed,
                    again: None,
                    what: "not mounted".to_owned(),
                    is_of_a_hole: false,
                    recovery: None,
                })
                .collect();
            outcome
        };
        let of = |sector, unmountable, found: &[Account]| of_entries(2, sector, unmountable, found);
        let whole = Account::default();
        let loss = Account { lost: vec![Entry { message: 0, mailbox: 0 }], ..Account::default() };
        assert!(of(4096, 0, std::slice::from_ref(&whole)).is_clean());
        assert!(of(512, 1, std::slice::from_ref(&whole)).is_clean());
        assert!(!of(4096, 1, std::slice::from_ref(&whole)).is_clean());
        assert!(!of(512, 200, &[]).is_clean(), "nothing was looked at");
        assert!(!of(4096, 0, &[]).is_clean(), "nothing was looked at");
        assert!(!of_entries(0, 4096, 0, std::slice::from_ref(&whole)).is_clean(), "nothing was looked for");
        assert!(!of(512, 1, &[whole.clone(), loss.clone()]).is_clean());
        let mut refused = of(4096, 1, std::slice::from_ref(&whole));
        refused.findings[0].what = format!("the server ended: {REFUSED_JOURNAL}ChecksumMismatch)");
        assert!(!refused.is_clean(), "nothing says that the cut made a hole");
        refused.findings[0].is_of_a_hole = true;
        assert!(refused.is_clean());
        let lossy = of(4096, 0, &[loss]);
        assert_eq!((lossy.looked_for, lossy.lost, lossy.accounted), (2, 1, 1));
    }

    #[test]
    fn a_kept_recording_replays_the_cut_and_its_promises() {
        let write = |offset: u64| Event::Write { offset, data: [7; 4096][..].into() };
        let events = vec![write(0), Event::Flush, write(4096), write(8192)];
        let recording = Recording { base: Image::zeros(16384), events };
        for seed in 0..20 {
            let whole = |recording: &Recording, position| {
                let image = Cutter::new(recording).sectors_of(4096).cut(position, seed);
                let mut octets = vec![0; 16384];
                image.read(0, &mut octets);
                octets
            };
            let kept = Recovery::new(recording.clone(), 4, vec![Event::Mark(5), Event::Mark(6)]);
            assert_eq!(whole(&recording, 4), whole(&kept.recording, kept.position));
            assert_eq!(kept.recording.marked_before(kept.position).collect::<Vec<_>>(), [5, 6]);
        }
    }
}
