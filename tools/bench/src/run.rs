//! Rounds in alternation, gathered into a report.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::report::{Row, RowState, SuiteReport, WorkloadReport};
use posthaste_loadgen::resources::Sampler;
use posthaste_loadgen::scratch::{subdirectory, write_back};

use crate::memory;
use crate::suite::{Running, Sample, Settings, Side, SideError, Suite, Workload};

/// Progress of a run.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    pub suite: &'a str,
    pub workload: &'a str,
    pub side: &'a str,
    /// Number of the round from 1; 0 while the side starts.
    pub round: u32,
    pub rounds: u32,
}

/// Runs `suites` in `scratch` and returns their figures; `tell` is called before each step.
pub fn run(suites: &[&Suite], settings: &Settings, scratch: &Path, tell: &mut dyn FnMut(Step<'_>)) -> Vec<SuiteReport> {
    let mut reports = Vec::new();
    for suite in suites {
        let mut workloads = Vec::new();
        for workload in (suite.workloads)(settings) {
            if settings.is_stopped() {
                break;
            }
            if Settings::wants(&settings.only, &workload.name) {
                let told = &mut |side: &str, name: &str, round| {
                    tell(Step { suite: suite.name, workload: name, side, round, rounds: settings.rounds });
                };
                workloads.push(run_workload(workload, settings, scratch, told));
            }
        }
        if !workloads.is_empty() {
            reports.push(SuiteReport { name: suite.name.into(), about: suite.about.into(), workloads });
        }
    }
    reports
}

/// A side in the course of its rounds.
struct Entrant {
    row: Row,
    running: Option<Box<dyn Running>>,
    /// True after a round failed or was stopped at its limit: there are no more rounds.
    is_out: bool,
}

fn run_workload(
    workload: Workload,
    settings: &Settings,
    scratch: &Path,
    tell: &mut dyn FnMut(&str, &str, u32),
) -> WorkloadReport {
    let Workload { name, what, figures, published, writes_octets, sides } = workload;
    let mut entrants: Vec<Entrant> = sides
        .into_iter()
        .filter(|side| Settings::wants(&settings.sides, side.name))
        .map(|side| {
            tell(side.name, &name, 0);
            start(side, settings, scratch, &name)
        })
        .collect();
    for round in 1..=settings.rounds {
        // A side's turn comes first in one round and last in another, so that none always follows the same neighbour.
        for index in 0..entrants.len() {
            let at = (index + round as usize - 1) % entrants.len();
            if settings.is_stopped() {
                break;
            }
            if entrants[at].running.is_some() && !entrants[at].is_out {
                tell(&entrants[at].row.side, &name, round);
                // The side before has come to rest; what it wrote goes to the disk before the clock starts.
                write_back(scratch);
                if settings.warms_memory {
                    memory::warm(writes_octets);
                }
                entrants[at].round(settings);
            }
        }
    }
    let mut rows: Vec<Row> = entrants.into_iter().map(|entrant| entrant.finish(settings)).collect();
    rows.extend(published.iter().map(|published| Row::published(published, figures)));
    WorkloadReport::new(name, what, figures, rows)
}

fn start(side: Side, settings: &Settings, scratch: &Path, workload: &str) -> Entrant {
    let mut row = Row::of_side(side.name, side.is_ours, side.durability);
    let dir =
        subdirectory(scratch, &format!("{workload}-{}", side.name)).map_err(SideError::failed("scratch directory"));
    match dir.and_then(|dir| (side.start)(settings, &dir)) {
        Ok(running) => Entrant { row, running: Some(running), is_out: false },
        Err(error) => {
            row.state = state(error);
            Entrant { row, running: None, is_out: true }
        }
    }
}

impl Entrant {
    fn round(&mut self, settings: &Settings) {
        let Some(running) = &mut self.running else { return };
        match running.round(settings) {
            Ok(sample) => {
                self.row.rounds.push(sample);
                self.row.timeline = running.timeline();
                self.row.more_than = running.cut_short().iter().map(|key| (*key).to_owned()).collect();
                self.is_out = !self.row.more_than.is_empty();
            }
            Err(error) => {
                self.row.state = state(error);
                self.is_out = true;
            }
        }
    }

    fn finish(mut self, settings: &Settings) -> Row {
        match self.running.map(|running| running.finish(settings)) {
            Some(Ok(notes)) => self.row.notes = notes,
            // Both are told: what a round failed of, and what is missing of the rounds before it.
            Some(Err(error)) if self.is_out => self.row.notes.push(error.to_string()),
            Some(Err(error)) => self.row.state = state(error),
            None => {}
        }
        self.row
    }
}

fn state(error: SideError) -> RowState {
    match error {
        SideError::Absent(why) => RowState::Absent { why },
        SideError::Failed(why) => RowState::Failed { why },
    }
}

/// Waits until `sampler`'s processes are idle, at most `patience`: the work of one side would otherwise slow the next.
/// Returns the start of the idle time, to 200 ms; `None` if they stay busy.
pub(crate) fn wait_until_idle(sampler: &mut Sampler, patience: Duration) -> Option<Instant> {
    const LOOK: Duration = Duration::from_millis(200);
    /// Share of one processor above which a process counts as busy.
    const BUSY_SHARE: f64 = 0.05;
    let begun = Instant::now();
    let mut before = sampler.sample();
    while begun.elapsed() < patience {
        let looked = Instant::now();
        std::thread::sleep(LOOK);
        let now = sampler.sample();
        if now.cpu_s - before.cpu_s < LOOK.as_secs_f64() * BUSY_SHARE {
            return Some(looked);
        }
        before = now;
    }
    None
}

/// A sample from pairs of key and value.
pub(crate) fn sample<const N: usize>(figures: [(&str, f64); N]) -> Sample {
    figures.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Better, Figure, Unit};

    const RATE: Figure = Figure { key: "rate", name: "rate", unit: Unit::PerSecond, better: Better::Higher };
    const TIME: Figure = Figure { key: "time", name: "time", unit: Unit::Micros, better: Better::Lower };

    /// Fails in its second round, and misses what its first had promised.
    struct Forgetful(u32);

    impl Running for Forgetful {
        fn round(&mut self, _: &Settings) -> Result<Sample, SideError> {
            self.0 += 1;
            if self.0 == 1 { Ok(sample([("rate", 1.0)])) } else { Err(SideError::Failed("it fell over".into())) }
        }

        fn finish(self: Box<Self>, _: &Settings) -> Result<Vec<String>, SideError> {
            Err(SideError::Failed("1 message is lost".into()))
        }
    }

    /// Takes longer each time, and too long from its second round on.
    struct Slow(u32);

    impl Running for Slow {
        fn round(&mut self, _: &Settings) -> Result<Sample, SideError> {
            self.0 += 1;
            Ok(sample([("time", f64::from(self.0) * 30e6)]))
        }

        fn cut_short(&self) -> &[&'static str] {
            if self.0 < 2 { &[] } else { &["time"] }
        }
    }

    /// The only row of a workload after three rounds of `running`.
    fn row_of(running: impl Running + 'static, figures: &'static [Figure]) -> Row {
        let dir = tempfile::tempdir().unwrap();
        let start = Box::new(|_: &Settings, _: &Path| Ok(Box::new(running) as Box<dyn Running>));
        let workload = Workload {
            name: "x".into(),
            what: "does x".into(),
            figures,
            published: Vec::new(),
            writes_octets: 0,
            sides: vec![Side { name: "it", is_ours: false, durability: "none", start }],
        };
        let report = run_workload(workload, &Settings::new("p".into()), dir.path(), &mut |_, _, _| {});
        report.rows.into_iter().next().unwrap()
    }

    #[test]
    fn a_side_whose_round_was_cut_short_has_no_more() {
        let row = row_of(Slow(0), &[TIME]);
        assert_eq!((row.rounds.len(), &row.state), (2, &RowState::Measured));
        assert_eq!((&row.more_than[..], row.summary["time"].max), (&["time".to_owned()][..], 60e6));
    }

    #[test]
    fn a_failed_side_still_accounts_for_its_earlier_rounds() {
        let row = row_of(Forgetful(0), &[RATE]);
        assert_eq!((row.rounds.len(), &row.notes[..]), (1, &["1 message is lost".to_owned()][..]));
        assert_eq!(row.state, RowState::Failed { why: "it fell over".into() });
    }

    #[test]
    fn a_process_that_works_is_not_at_rest() {
        let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut sampler = Sampler::new(&[busy.id()], Instant::now());
        // On a machine that is busy with others it may get nothing done for a while.
        let is_seen = (0..100).any(|_| wait_until_idle(&mut sampler, Duration::from_millis(250)).is_none());
        busy.kill().unwrap();
        busy.wait().unwrap();
        assert!(is_seen);
        assert!(wait_until_idle(&mut sampler, Duration::from_secs(30)).is_some(), "one that is gone has nothing to do");
    }
}
