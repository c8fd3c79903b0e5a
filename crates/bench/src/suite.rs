//! What a suite is made of: workloads, the sides that run each, the figures that come of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::published::Published;

/// Workloads that belong together.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// As it is called on the command line.
    pub name: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    /// Its workloads, in the size that the settings ask for.
    pub workloads: fn(&Settings) -> Vec<Workload>,
}

/// One thing that is done by several sides, and what others have published about it.
pub struct Workload {
    /// A word or two, for `--only`.
    pub name: String,
    /// What is done, in a sentence, with the sizes that are really used.
    pub what: String,
    /// What is measured; the first is the one that ratios are made of.
    pub figures: &'static [Figure],
    pub published: Vec<Published>,
    pub sides: Vec<Side>,
}

/// Who runs a workload.
pub struct Side {
    pub name: &'static str,
    /// The first side that is ours is the one that ratios compare with the others.
    pub is_ours: bool,
    /// What is on stable storage when it says yes.
    pub durability: &'static str,
    pub start: Start,
}

/// Makes a side ready for its rounds.
pub type Start = Box<dyn FnOnce(&Settings, &Path) -> Result<Box<dyn Running>, SideError>>;

/// A side that is ready.
pub trait Running {
    /// Runs the workload once.
    ///
    /// # Errors
    /// Why there are no figures; the side has no further rounds then.
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError>;

    /// Ends it and tells what there is to tell of all its rounds, such as an account of the mail.
    ///
    /// # Errors
    /// When what it had promised is not there.
    fn finish(self: Box<Self>, settings: &Settings) -> Result<Vec<String>, SideError> {
        let _ = settings;
        Ok(Vec::new())
    }
}

/// The figures of one round by [`Figure::key`]. One that a side does not have is left out.
pub type Sample = BTreeMap<String, f64>;

/// Why a side has no figures.
#[derive(Debug, thiserror::Error)]
pub enum SideError {
    /// It cannot be had on this machine: the row says so and nothing is amiss.
    #[error("{0}")]
    Absent(String),
    /// It should have worked.
    #[error("{0}")]
    Failed(String),
}

impl SideError {
    /// For `map_err`: what was tried, and the error.
    pub fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Self + use<E> {
        let what = what.to_owned();
        move |error| Self::Failed(format!("{what}: {error}"))
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Its name in JSON.
    pub key: &'static str,
    /// Its name in tables.
    pub name: &'static str,
    pub unit: Unit,
    pub better: Better,
}

/// How a figure is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    #[serde(rename = "1/s")]
    PerSecond,
    #[serde(rename = "us")]
    Micros,
    #[serde(rename = "%")]
    Percent,
    #[serde(rename = "octets")]
    Octets,
    /// How many times something else.
    #[serde(rename = "x")]
    Times,
}

/// Which way a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// How large and how often.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Part of the published amount of messages or time.
    pub scale: f64,
    /// Rounds of each side.
    pub rounds: u32,
    /// One side's round of a workload that ends with a count ends after this time too.
    pub round_max: Duration,
    /// Our own program, which is started as the server.
    pub program: PathBuf,
    /// Workloads whose name holds one of these; empty for all.
    pub only: Vec<String>,
    /// Sides whose name holds one of these; empty for all.
    pub sides: Vec<String>,
    /// A report of each round goes here where the side's tool writes one.
    pub report: Option<PathBuf>,
    /// Ends everything early, with the figures so far.
    pub stop: Arc<AtomicBool>,
}

impl Settings {
    /// As much as was published, three rounds, with `program` as the server.
    pub fn new(program: PathBuf) -> Self {
        Self {
            scale: 1.0,
            rounds: 3,
            round_max: Duration::from_secs(60),
            program,
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

    /// Whether it was told to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    pub(crate) fn wants(list: &[String], name: &str) -> bool {
        list.is_empty() || list.iter().any(|part| name.contains(part.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_scaled_between_what_says_something_and_what_was_published() {
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
    fn a_list_picks_by_parts_of_names_and_nothing_picks_all() {
        let list = ["mail".to_owned()];
        assert!(Settings::wants(&list, "mailrs") && !Settings::wants(&list, "kumomta") && Settings::wants(&[], "x"));
    }
}
