//! Reports of the suites: as data, as Markdown, as a page.

mod html;
mod markdown;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use posthaste_loadgen::measure::Spread;
use posthaste_loadgen::report::{Host, ReportError, rfc3339, to_json, write_files};
use serde::{Deserialize, Serialize};

use crate::checks::Check;
use crate::published::Published;
use crate::relay::timeline::Timeline;
use crate::suite::{Better, Figure, Sample, Settings, Unit, fits};

/// Schema of the JSON form.
pub const SCHEMA: &str = "posthaste-bench/1";

/// A whole report. Its JSON form is described in `docs/bench.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    /// When the run began, RFC 3339, UTC.
    pub started: String,
    pub version: String,
    pub command: Vec<String>,
    pub host: Host,
    /// Settings of the machine that could be better.
    pub checks: Vec<Check>,
    /// Share of the published amounts that was run.
    pub scale: f64,
    /// Rounds of each side.
    pub rounds: u32,
    /// True if the run was stopped early.
    pub was_stopped: bool,
    pub suites: Vec<SuiteReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteReport {
    pub name: String,
    pub about: String,
    pub workloads: Vec<WorkloadReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadReport {
    pub name: String,
    pub what: String,
    /// Figures; ratios are computed from the first.
    pub figures: Vec<FigureInfo>,
    /// Our sides, then peers, then published rows.
    pub rows: Vec<Row>,
}

/// Description of a figure for readers of the data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigureInfo {
    pub key: String,
    pub name: String,
    pub unit: Unit,
    pub better: Better,
}

/// One side of a workload, or one published row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub side: String,
    pub kind: Kind,
    /// Durability at the moment it reports success.
    pub durability: String,
    pub state: RowState,
    /// Each round's figures by key.
    pub rounds: Vec<Sample>,
    pub summary: BTreeMap<String, Spread>,
    /// Keys of figures at whose time limit the last round was stopped. The true figure exceeds that of the round, and
    /// the maximum in the summary is only a lower bound.
    #[serde(default)]
    pub more_than: Vec<String>,
    /// Ratio of our first side to this row in the first figure: above 1 is in our favour. It is a lower bound where
    /// `more_than` names that figure.
    pub ours_is: Option<f64>,
    /// Events of the last round over time, where a suite keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Ours,
    Peer,
    /// A published figure, from other hardware.
    Published {
        url: String,
        setting: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowState {
    Measured,
    /// The side cannot run on this machine.
    Absent {
        why: String,
    },
    /// The side failed.
    Failed {
        why: String,
    },
}

impl Row {
    /// A row of a side without figures so far.
    pub(crate) fn of_side(name: &str, is_ours: bool, durability: &str) -> Self {
        Self {
            side: name.into(),
            kind: if is_ours { Kind::Ours } else { Kind::Peer },
            durability: durability.into(),
            state: RowState::Measured,
            rounds: Vec::new(),
            summary: BTreeMap::new(),
            more_than: Vec::new(),
            ours_is: None,
            timeline: None,
            notes: Vec::new(),
        }
    }

    pub(crate) fn published(published: &Published, figures: &[Figure]) -> Self {
        assert!(fits(published, figures), "{published:?} has a figure that its workload lacks");
        Self {
            kind: Kind::Published { url: published.url.into(), setting: published.setting.into() },
            rounds: vec![published.sample()],
            ..Self::of_side(published.source, false, published.durability)
        }
    }

    fn summarise(&mut self, figures: &[Figure]) {
        let values = |key: &'static str| self.rounds.iter().filter_map(move |round| round.get(key).copied());
        let spread = |figure: &Figure| Some((figure.key.to_owned(), Spread::of(values(figure.key))?));
        self.summary = figures.iter().filter_map(spread).collect();
    }
}

impl WorkloadReport {
    /// Summarises the rounds and compares the rows.
    pub(crate) fn new(name: String, what: String, figures: &[Figure], mut rows: Vec<Row>) -> Self {
        rows.iter_mut().for_each(|row| row.summarise(figures));
        if let Some(first) = figures.first() {
            let is_whole = |row: &&Row| !row.more_than.iter().any(|key| key == first.key);
            let ours = rows.iter().find(|row| row.kind == Kind::Ours).filter(is_whole);
            let ours = ours.and_then(|row| row.summary.get(first.key)).map(|spread| spread.median);
            let mut is_first = true;
            for row in &mut rows {
                if row.kind == Kind::Ours && std::mem::take(&mut is_first) {
                    continue;
                }
                row.ours_is = ours
                    .zip(row.summary.get(first.key))
                    .and_then(|(ours, theirs)| ratio(ours, theirs.median, first.better));
            }
        }
        let info = |figure: &Figure| FigureInfo {
            key: figure.key.into(),
            name: figure.name.into(),
            unit: figure.unit,
            better: figure.better,
        };
        Self { name, what, figures: figures.iter().map(info).collect(), rows }
    }
}

/// Ratio in favour of `ours`: above 1 is better. `None` if one of them is zero or the figure has no better direction.
fn ratio(ours: f64, theirs: f64, better: Better) -> Option<f64> {
    let (over, under) = match better {
        Better::Higher => (ours, theirs),
        Better::Lower => (theirs, ours),
        Better::Neither => return None,
    };
    (over > 0.0 && under > 0.0).then(|| over / under)
}

impl Report {
    /// The report of a run, with its `checks` and a description of the machine, which it gathers now.
    pub fn new(suites: Vec<SuiteReport>, settings: &Settings, started: SystemTime, checks: Vec<Check>) -> Self {
        Self {
            schema: SCHEMA.into(),
            started: rfc3339(started),
            version: env!("CARGO_PKG_VERSION").into(),
            command: settings.command.clone(),
            host: Host::read(),
            checks,
            scale: settings.scale,
            rounds: settings.rounds,
            was_stopped: settings.is_stopped(),
            suites,
        }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// True if everything asked for has run, and no present side has failed.
    pub fn is_good(&self) -> bool {
        let rows = || self.suites.iter().flat_map(|suite| &suite.workloads).flat_map(|workload| &workload.rows);
        let has_failed = rows().any(|row| matches!(row.state, RowState::Failed { .. }));
        let is_measured = |row: &Row| row.state == RowState::Measured && !matches!(row.kind, Kind::Published { .. });
        !self.was_stopped && !has_failed && rows().any(is_measured)
    }

    /// Writes `bench.json`, `bench.md` and `bench.html` into `dir`, which is made if need be.
    ///
    /// # Errors
    /// When one of them cannot be written.
    pub fn write_to(&self, dir: &Path) -> Result<(), ReportError> {
        write_files(dir, "bench", &self.to_json(), &self.to_markdown(), &self.to_html())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Figure = Figure { key: "rate", name: "messages/s", unit: Unit::PerSecond, better: Better::Higher };
    const P50: Figure = Figure { key: "p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower };

    fn row(name: &str, is_ours: bool, rates: &[f64]) -> Row {
        let sample = |rate: &f64| Sample::from([("rate".to_owned(), *rate)]);
        Row { rounds: rates.iter().map(sample).collect(), ..Row::of_side(name, is_ours, "synced") }
    }

    fn published() -> Published {
        Published {
            workload: "x",
            source: "them",
            url: "https://example.org",
            setting: "there",
            durability: "not said",
            figures: &[("rate", 50.0)],
        }
    }

    fn workload(figures: &[Figure], rows: Vec<Row>) -> WorkloadReport {
        WorkloadReport::new("x".into(), "does x".into(), figures, rows)
    }

    #[test]
    fn each_row_is_compared_with_our_first_by_medians() {
        let rows = vec![
            row("ours", true, &[100.0, 300.0, 200.0]),
            row("ours, other", true, &[100.0]),
            row("peer", false, &[400.0, 40.0, 80.0]),
            row("peer without figures", false, &[]),
            Row::published(&published(), &[RATE]),
        ];
        let report = workload(&[RATE, P50], rows);
        assert_eq!(report.rows[0].summary["rate"], Spread { median: 200.0, min: 100.0, max: 300.0 });
        let ratios: Vec<_> = report.rows.iter().map(|row| row.ours_is).collect();
        assert_eq!(ratios, [None, Some(2.0), Some(2.5), None, Some(4.0)]);
        assert!(!report.rows[0].summary.contains_key("p50_us"), "a figure that nobody measured is not there");
    }

    #[test]
    fn where_less_is_better_the_ratio_is_turned_round() {
        assert_eq!(ratio(2.0, 10.0, Better::Lower), Some(5.0));
        assert_eq!(ratio(10.0, 2.0, Better::Higher), Some(5.0));
        assert_eq!((ratio(0.0, 1.0, Better::Higher), ratio(1.0, 0.0, Better::Lower)), (None, None));
    }

    #[test]
    #[should_panic(expected = "its workload lacks")]
    fn a_published_figure_that_nobody_measures_is_our_mistake() {
        Row::published(&published(), &[P50]);
    }

    #[test]
    fn json_has_its_schema_and_reads_back_the_same() {
        let suites = vec![SuiteReport {
            name: "receive".into(),
            about: "x".into(),
            workloads: vec![workload(
                &[RATE],
                vec![row("ours", true, &[1.0 / 3.0]), Row::published(&published(), &[RATE])],
            )],
        }];
        let settings = Settings::new("posthaste".into());
        let report = Report::new(suites, &settings, SystemTime::UNIX_EPOCH, Vec::new());
        let value: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!((&value["schema"], &value["started"]), (&SCHEMA.into(), &"1970-01-01T00:00:00Z".into()));
        let rows = &value["suites"][0]["workloads"][0]["rows"];
        assert_eq!((&rows[0]["kind"], &rows[0]["state"]), (&"ours".into(), &"measured".into()));
        assert_eq!(rows[1]["kind"]["published"]["url"], "https://example.org");
        assert_eq!(value["suites"][0]["workloads"][0]["figures"][0]["unit"], "1/s");
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
        assert!(report.is_good());
    }

    #[test]
    fn a_failed_side_is_no_good_run_and_an_absent_one_is() {
        let report = |state: RowState| {
            let peer = Row { state, ..row("peer", false, &[]) };
            let workloads = vec![workload(&[RATE], vec![row("ours", true, &[1.0]), peer])];
            let suites = vec![SuiteReport { name: "s".into(), about: String::new(), workloads }];
            Report::new(suites, &Settings::new("p".into()), SystemTime::UNIX_EPOCH, Vec::new())
        };
        assert!(report(RowState::Absent { why: "not installed".into() }).is_good());
        assert!(!report(RowState::Failed { why: "it fell over".into() }).is_good());
        let alone = |row: Row| {
            let suites = vec![SuiteReport {
                name: "s".into(),
                about: String::new(),
                workloads: vec![workload(&[RATE], vec![row, Row::published(&published(), &[RATE])])],
            }];
            Report::new(suites, &Settings::new("p".into()), SystemTime::UNIX_EPOCH, Vec::new())
        };
        assert!(alone(row("peer", false, &[1.0])).is_good(), "somebody asked for a peer alone");
        let absent = Row { state: RowState::Absent { why: "not installed".into() }, ..row("peer", false, &[]) };
        assert!(!alone(absent).is_good(), "nothing was measured");
    }
}
