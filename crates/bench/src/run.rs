//! Rounds in alternation, gathered into a report.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::report::{Report, Row, RowState, SuiteReport, WorkloadReport};
use crate::scratch::{subdirectory, write_back};
use crate::suite::{Running, Sample, Settings, Side, SideError, Suite, Workload};

/// What a run tells while it goes on.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    pub suite: &'a str,
    pub workload: &'a str,
    pub side: &'a str,
    /// From 1; 0 while the side is started.
    pub round: u32,
    pub rounds: u32,
}

/// Runs `suites` in `scratch` and puts their figures together; `tell` is called before each step.
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
        reports.push(SuiteReport { name: suite.name.into(), about: suite.about.into(), workloads });
    }
    reports
}

/// A side on its way through the rounds.
struct Entrant {
    row: Row,
    running: Option<Box<dyn Running>>,
}

fn run_workload(
    workload: Workload,
    settings: &Settings,
    scratch: &Path,
    tell: &mut dyn FnMut(&str, &str, u32),
) -> WorkloadReport {
    let Workload { name, what, figures, published, sides } = workload;
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
            if entrants[at].running.is_some() {
                tell(&entrants[at].row.side, &name, round);
                write_back(scratch);
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
        Ok(running) => Entrant { row, running: Some(running) },
        Err(error) => {
            row.state = state(error);
            Entrant { row, running: None }
        }
    }
}

impl Entrant {
    fn round(&mut self, settings: &Settings) {
        let Some(running) = &mut self.running else { return };
        match running.round(settings) {
            Ok(sample) => self.row.rounds.push(sample),
            Err(error) => {
                self.row.state = state(error);
                self.running = None;
            }
        }
    }

    fn finish(mut self, settings: &Settings) -> Row {
        match self.running.map(|running| running.finish(settings)) {
            Some(Ok(notes)) => self.row.notes = notes,
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

/// Waits until the processes have nothing to do, at most `patience`: what one side still works on would be paid for by
/// the next.
pub(crate) fn wait_until_idle(pids: &[u32], patience: Duration) {
    const LOOK: Duration = Duration::from_millis(200);
    /// Of one processor.
    const BUSY_SHARE: f64 = 0.05;
    let begun = Instant::now();
    while begun.elapsed() < patience {
        let mut sampler = posthaste_loadgen::resources::Sampler::new(pids, Instant::now());
        std::thread::sleep(LOOK);
        sampler.sample();
        if sampler.finish().cpu_s < LOOK.as_secs_f64() * BUSY_SHARE {
            return;
        }
    }
}

/// A sample from pairs.
pub(crate) fn sample<const N: usize>(figures: [(&str, f64); N]) -> Sample {
    figures.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Everything that a report needs to know of the run itself.
pub fn report(
    suites: Vec<SuiteReport>,
    settings: &Settings,
    started: SystemTime,
    command: Vec<String>,
    checks: Vec<crate::checks::Check>,
) -> Report {
    Report::new(suites, settings, started, command, checks)
}
