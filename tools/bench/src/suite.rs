//! The parts of a suite: workloads, the sides that run each, and their figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::published::Published;
use crate::relay::timeline::Timeline;

/// A group of workloads.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// Name on the command line.
    pub name: &'static str,
    /// Purpose in one line.
    pub about: &'static str,
    /// Its workloads, in the size that the settings ask for.
    pub workloads: fn(&Settings) -> Vec<Workload>,
}

/// One task run by several sides, and the published figures for it.
pub struct Workload {
    /// Name for `--only`, a word or two.
    pub name: String,
    /// Description in a sentence, with the sizes really used.
    pub what: String,
    /// Measured figures; ratios are computed from the first.
    pub figures: &'static [Figure],
    pub published: Vec<Published>,
    /// Octets that a round writes, about: as much memory is touched before each, see [`Settings::warms_memory`].
    pub writes_octets: u64,
    pub sides: Vec<Side>,
}

/// A program that runs a workload.
pub struct Side {
    pub name: &'static str,
    /// True for our own sides; ratios compare the first of them with all others.
    pub is_ours: bool,
    /// Durability at the moment it reports success.
    pub durability: &'static str,
    pub start: Start,
}

/// Makes a side ready for its rounds.
pub type Start = Box<dyn FnOnce(&Settings, &Path) -> Result<Box<dyn Running>, SideError>>;

/// A side ready for its rounds.
pub trait Running {
    /// Runs the workload once, and waits until the side has finished all work for it, so that no side slows another.
    ///
    /// # Errors
    /// The reason for missing figures; the side has no further rounds then, but is finished all the same.
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError>;

    /// Keys of figures at whose time limit the last round was stopped: the sample holds the time until then, a lower
    /// bound. The side has no further rounds then.
    fn cut_short(&self) -> &[&'static str] {
        &[]
    }

    /// Events of the last round over time, for a plot; taken once.
    fn timeline(&mut self) -> Option<Timeline> {
        None
    }

    /// Stops the side and returns remarks about all its rounds, such as an account of the mail.
    ///
    /// # Errors
    /// When mail that it acknowledged is missing.
    fn finish(self: Box<Self>, settings: &Settings) -> Result<Vec<String>, SideError> {
        let _ = settings;
        Ok(Vec::new())
    }
}

/// The figures of one round by [`Figure::key`]. A figure that a side lacks is left out.
pub type Sample = BTreeMap<String, f64>;

/// The reason for a side without figures.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SideError {
    /// It cannot run on this machine: the row says so, and it is no failure.
    #[error("{0}")]
    Absent(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

impl SideError {
    /// For `map_err`: the failed operation, and the error.
    pub fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Self + use<E> {
        let what = what.to_owned();
        move |error| Self::Failed(format!("{what}: {error}"))
    }
}

/// A measured quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Key in JSON.
    pub key: &'static str,
    /// Name in tables.
    pub name: &'static str,
    pub unit: Unit,
    pub better: Better,
}

/// True if every key of a workload's rows is one of its figures.
pub(crate) fn fits(row: &Published, figures: &[Figure]) -> bool {
    row.figures.iter().all(|(key, _)| figures.iter().any(|figure| figure.key == *key))
}

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    #[serde(rename = "1/s")]
    PerSecond,
    #[serde(rename = "us")]
    Micros,
    #[serde(rename = "%")]
    Percent,
    #[serde(rename = "bytes", alias = "octets")]
    Bytes,
    /// A multiple of another figure.
    #[serde(rename = "x")]
    Times,
    /// A count.
    #[serde(rename = "1")]
    Count,
}

/// Direction in which a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
    /// Neither: the figure explains the others.
    Neither,
}

/// Size and number of the rounds, and the choice of workloads and sides.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Share of the published amount of messages or time.
    pub scale: f64,
    /// Rounds of each side.
    pub rounds: u32,
    /// Time limit of one side's round.
    pub round_max: Duration,
    /// Before each side's round as much free memory is touched as the round may need, the same for every side. A virtual
    /// machine's host takes back what was not used for a while, and its first user then pays several times the price.
    pub warms_memory: bool,
    /// Path of our own program, which is started as the server.
    pub program: PathBuf,
    /// Additional configuration of our server, for suites that relay.
    pub config: Option<PathBuf>,
    /// The command of this run, for reports.
    pub command: Vec<String>,
    /// Workloads by name, with `*` for any characters; empty for all.
    pub only: Vec<String>,
    /// Sides by name, likewise.
    pub sides: Vec<String>,
    /// Directory for a report of each round, if the side's tool writes one.
    pub report: Option<PathBuf>,
    /// Stops the run early when set, with the figures so far.
    pub stop: Arc<AtomicBool>,
}

impl Settings {
    /// The published amounts, three rounds, with `program` as the server.
    pub fn new(program: PathBuf) -> Self {
        Self {
            scale: 1.0,
            rounds: 3,
            round_max: Duration::from_secs(60),
            warms_memory: true,
            program,
            config: None,
            command: Vec::new(),
            only: Vec::new(),
            sides: Vec::new(),
            report: None,
            stop: Arc::default(),
        }
    }

    /// The published number of messages, scaled, but not below `least`.
    pub fn count(&self, published: u64, least: u64) -> u64 {
        ((published as f64 * self.scale).round() as u64).max(least.min(published))
    }

    /// The published time, scaled, but not below `least`.
    pub fn time(&self, published: Duration, least: Duration) -> Duration {
        published.mul_f64(self.scale).max(least.min(published))
    }

    /// True if the run is to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// True if `name` is in `list`, or the list is empty.
    pub(crate) fn wants(list: &[String], name: &str) -> bool {
        list.is_empty() || list.iter().any(|pattern| is_like(pattern, name))
    }

    /// Checks that all names in [`Settings::only`] and [`Settings::sides`] occur in `suites`.
    ///
    /// # Errors
    /// The unknown name, and the names that there are.
    pub fn check_names(&self, suites: &[&Suite]) -> Result<(), String> {
        let workloads: Vec<Workload> = suites.iter().flat_map(|suite| (suite.workloads)(self)).collect();
        let names: Vec<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
        all_are_known("--only", &self.only, &names)?;
        let wanted = workloads.iter().filter(|workload| Self::wants(&self.only, &workload.name));
        let mut names: Vec<&str> = Vec::new();
        for side in wanted.flat_map(|workload| &workload.sides) {
            if !names.contains(&side.name) {
                names.push(side.name);
            }
        }
        all_are_known("--side", &self.sides, &names)
    }
}

fn all_are_known(option: &str, patterns: &[String], names: &[&str]) -> Result<(), String> {
    match patterns.iter().find(|pattern| !names.iter().any(|name| is_like(pattern, name))) {
        Some(unknown) => Err(format!("{option} {unknown}: there is no such name; known are: {}", names.join(", "))),
        None => Ok(()),
    }
}

/// Matches `name` with `pattern`, in which each `*` stands for any characters; ignores case.
fn is_like(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase(), name.to_ascii_lowercase());
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(head) else { return false };
    let mut starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.any(|at| is_like(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_scaled_from_the_least_useful_to_the_published() {
        let settings = Settings { scale: 0.01, ..Settings::new(PathBuf::new()) };
        assert_eq!(
            (settings.count(100_000, 200), settings.count(500, 200), settings.count(100, 200)),
            (1000, 200, 100)
        );
        let seconds = Duration::from_secs;
        assert_eq!(settings.time(seconds(300), seconds(1)), seconds(3));
        assert_eq!(settings.time(seconds(30), seconds(1)), seconds(1));
        let double = Settings { scale: 2.0, ..settings };
        assert_eq!((double.count(500, 200), double.time(seconds(30), seconds(1))), (1000, seconds(60)));
    }

    #[test]
    fn names_are_picked_whole_or_by_pattern() {
        let check = |list: &[&str], name: &str| {
            Settings::wants(&list.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>(), name)
        };
        assert!(check(&["posthaste"], "posthaste") && !check(&["posthaste"], "posthaste sink") && check(&[], "x"));
        assert!(check(&["postfix"], "Postfix") && check(&["mu", "posthaste*"], "posthaste sink"));
        assert!(check(&["*-10k"], "kept-10k") && !check(&["*-10k"], "kept-100k") && check(&["k*t*0k"], "kept-10k"));
        assert!(check(&["*"], "") && !check(&["*x"], "y"));
    }

    #[test]
    fn a_name_that_is_not_there_is_told_with_those_that_are() {
        let settings = |only: &str, side: &str| Settings {
            only: vec![only.into()],
            sides: vec![side.into()],
            ..Settings::new(PathBuf::new())
        };
        let check = |only, side| settings(only, side).check_names(&[&crate::spool::SUITE, &crate::idle::SUITE]);
        assert_eq!(check("callers-*", "posthaste spool"), Ok(()));
        assert!(check("callers", "*").is_err_and(|error| error.contains("callers-16, ")));
        // A side of another workload than those that are picked.
        assert!(
            check("connections", "posthaste spool").is_err_and(|error| error.contains("posthaste sink, smtp-sink"))
        );
    }
}
