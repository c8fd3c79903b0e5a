//! Several reports side by side.

use serde::Serialize;

use super::text::octets;
use super::{Report, Table};
use crate::live::{millis, thousands};
use crate::measure::LatencySummary;

/// Reports side by side: each figure of each report, and its ratio to the first report's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The reports' files or directories, as named.
    pub names: Vec<String>,
    /// The reports' titles.
    pub titles: Vec<String>,
    pub rows: Vec<Row>,
    /// Differences between the plans, which may make figures incomparable.
    pub differences: Vec<String>,
}

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub name: String,
    /// `None` where a report does not have it.
    pub values: Vec<Option<f64>>,
    /// Ratio to the first report's value; `None` where either is missing or the first is 0.
    pub ratios: Vec<Option<f64>>,
    #[serde(skip)]
    unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Count,
    Micros,
    Octets,
    Plain,
}

fn latency(report: &Report, figure: fn(&LatencySummary) -> f64) -> Option<f64> {
    let latency = &report.total.latency;
    (latency.count > 0).then(|| figure(latency))
}

type Figure = (&'static str, Unit, fn(&Report) -> Option<f64>);

const FIGURES: &[Figure] = &[
    ("messages a second", Unit::Count, |report| Some(report.total.rate)),
    ("acknowledged", Unit::Count, |report| Some(report.total.acked as f64)),
    ("failed", Unit::Count, |report| Some(report.total.failed as f64)),
    ("due and never sent", Unit::Count, |report| Some(report.total.missed as f64)),
    ("octets a second", Unit::Octets, |report| Some(report.total.octets as f64 / report.total.elapsed_s.max(1e-9))),
    ("latency mean", Unit::Micros, |report| latency(report, |latency| latency.mean_us)),
    ("latency p50", Unit::Micros, |report| latency(report, |latency| latency.p50_us as f64)),
    ("latency p90", Unit::Micros, |report| latency(report, |latency| latency.p90_us as f64)),
    ("latency p99", Unit::Micros, |report| latency(report, |latency| latency.p99_us as f64)),
    ("latency p99.9", Unit::Micros, |report| latency(report, |latency| latency.p999_us as f64)),
    ("latency max", Unit::Micros, |report| latency(report, |latency| latency.max_us as f64)),
    ("server CPU µs a message", Unit::Plain, |report| report.server.as_ref().map(|cost| cost.cpu_us_per_message)),
    ("server memory at most", Unit::Octets, |report| {
        report.server.as_ref().map(|cost| cost.usage.memory_octets_max as f64)
    }),
    ("server octets written", Unit::Octets, |report| {
        report.server.as_ref().map(|cost| cost.usage.written_octets as f64)
    }),
    ("server context switches", Unit::Count, |report| {
        report.server.as_ref().map(|cost| cost.usage.context_switches as f64)
    }),
    ("generator CPU µs a message", Unit::Plain, |report| Some(report.generator.cpu_us_per_message)),
    ("lost", Unit::Count, |report| report.account.as_ref().map(|account| account.lost.len() as f64)),
    ("duplicated", Unit::Count, |report| report.account.as_ref().map(|account| account.duplicated.len() as f64)),
    ("altered", Unit::Count, |report| report.account.as_ref().map(|account| account.altered.len() as f64)),
];

impl Comparison {
    /// Puts `reports` side by side, each under its name. Without reports there are no rows.
    pub fn new(named: &[(String, Report)]) -> Self {
        let (names, reports): (Vec<&String>, Vec<&Report>) = named.iter().map(|(name, report)| (name, report)).unzip();
        let row = |(name, unit, figure): &Figure| {
            let values: Vec<Option<f64>> = reports.iter().map(|report| figure(report)).collect();
            let first = values.first().copied().flatten().filter(|first| *first > 0.0);
            let ratios = values.iter().map(|value| Some((*value)? / first?)).collect();
            values.iter().any(Option::is_some).then(|| Row { name: (*name).into(), values, ratios, unit: *unit })
        };
        Self {
            names: names.into_iter().cloned().collect(),
            titles: reports.iter().map(|report| report.name()).collect(),
            rows: FIGURES.iter().filter_map(row).collect(),
            differences: differences(named),
        }
    }

    /// A table for a terminal.
    pub fn to_text(&self) -> String {
        let letter = |index: usize| char::from(b'A' + (index % 26) as u8).to_string();
        let mut out = String::new();
        for (index, (name, title)) in self.names.iter().zip(&self.titles).enumerate() {
            out.push_str(&format!("{}: {name}: {title}\n", letter(index)));
        }
        out.push('\n');
        let columns = |table: Table, index: usize| match index {
            0 => table.figures(letter(0)),
            _ => table.figures(letter(index)).figures(format!("{}/A", letter(index))),
        };
        let mut table = (0..self.names.len()).fold(Table::default().words(""), columns);
        self.rows.iter().for_each(|row| table.row(std::iter::once(row.name.clone()).chain(row.cells())));
        out.push_str(&table.to_text());
        for difference in &self.differences {
            out.push_str(&format!("\nnot alike: {difference}"));
        }
        if !self.differences.is_empty() {
            out.push('\n');
        }
        out
    }

    /// All of it as JSON.
    pub fn to_json(&self) -> String {
        super::to_json(self)
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let value = |value: &Option<f64>| match (value, self.unit) {
            (None, _) => "-".into(),
            (Some(value), Unit::Count) => thousands(value.round() as u64),
            (Some(value), Unit::Micros) => millis(*value),
            (Some(value), Unit::Octets) => octets(*value),
            (Some(value), Unit::Plain) => format!("{value:.1}"),
        };
        let ratio = |ratio: &Option<f64>| ratio.map_or("-".into(), |ratio| format!("× {ratio:.2}"));
        let pairs = self.values.iter().zip(&self.ratios).enumerate();
        pairs.flat_map(|(index, (v, r))| if index == 0 { vec![value(v)] } else { vec![value(v), ratio(r)] }).collect()
    }
}

fn differences(named: &[(String, Report)]) -> Vec<String> {
    let Some(((first_name, first), others)) = named.split_first() else { return Vec::new() };
    let fields = |report: &Report| match serde_json::to_value(&report.plan).expect("plain data can be written") {
        serde_json::Value::Object(fields) => fields,
        other => unreachable!("a plan is an object, not {other}"),
    };
    let (of_first, mut differences) = (fields(first), Vec::new());
    for (other_name, other) in others {
        let of_other = fields(other);
        for (name, value) in of_first.iter().filter(|(name, _)| *name != "targets") {
            if of_other.get(name) != Some(value) {
                let said = |value: Option<&serde_json::Value>| match value {
                    None | Some(serde_json::Value::Null) => "not set".to_owned(),
                    Some(value) => value.to_string(),
                };
                let (ours, theirs) = (said(Some(value)), said(of_other.get(name)));
                differences.push(format!("{name} is {ours} in {first_name}, {theirs} in {other_name}"));
            }
        }
    }
    if others.iter().any(|(_, other)| other.host != first.host) {
        differences.push("the machines differ".into());
    }
    differences
}
