//! The report as Markdown tables that are also readable on a terminal.

use std::fmt::Write as _;

use posthaste_loadgen::live::millis;
use posthaste_loadgen::measure::Spread;
use posthaste_loadgen::report::{Table, provenance};
use posthaste_units::count;

use super::{FigureInfo, Kind, Report, Row, RowState, WorkloadReport};
use crate::suite::Unit;

const NO_ERROR: &str = "a String takes everything";

impl Report {
    /// Tables in Markdown, their columns aligned.
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        writeln!(
            text,
            "{}: {} times the published amounts, {} of each side, in turns.\n\n    {}\n",
            provenance(&self.started, &self.host, &self.version),
            self.scale,
            count(self.rounds, "round"),
            self.command.join(" ")
        )
        .expect(NO_ERROR);
        for check in &self.checks {
            let mark = if check.is_serious { "**serious**: " } else { "" };
            writeln!(text, "- {mark}{check}").expect(NO_ERROR);
        }
        if self.was_stopped {
            text.push_str("- **stopped before its end**\n");
        }
        for suite in &self.suites {
            writeln!(text, "\n## {}\n\n{}.", suite.name, suite.about).expect(NO_ERROR);
            suite.workloads.iter().for_each(|workload| workload_table(&mut text, workload));
        }
        text
    }
}

fn workload_table(text: &mut String, workload: &WorkloadReport) {
    writeln!(text, "\n### {}\n\n{}.\n", workload.name, workload.what).expect(NO_ERROR);
    text.push_str(&table(workload).to_markdown());
    for row in &workload.rows {
        for note in remarks(row) {
            writeln!(text, "\n{}: {note}.", row.side).expect(NO_ERROR);
        }
    }
}

/// A row for each side, with a column for each figure that any side has.
pub(super) fn table(workload: &WorkloadReport) -> Table {
    let figures = figures_shown(workload);
    let table = Table::default().words("side");
    let table = figures.iter().fold(table, |table, figure| table.figures(figure.name.as_str()));
    let mut table = table.figures("ours is").words("durable when it says yes");
    workload.rows.iter().for_each(|row| table.row(cells(row, &figures)));
    table
}

pub(super) fn figures_shown(workload: &WorkloadReport) -> Vec<&FigureInfo> {
    let is_known = |figure: &&FigureInfo| workload.rows.iter().any(|row| row.summary.contains_key(&figure.key));
    workload.figures.iter().filter(is_known).collect()
}

fn cells(row: &Row, figures: &[&FigureInfo]) -> Vec<String> {
    let name = match row.kind {
        Kind::Published { .. } => format!("published: {}", row.side),
        _ => row.side.clone(),
    };
    let figure = |figure: &&FigureInfo| match row.summary.get(&figure.key) {
        Some(spread) => shown(spread, figure.unit, row.more_than.contains(&figure.key)),
        None => String::new(),
    };
    let is_more = figures.first().is_some_and(|first| row.more_than.contains(&first.key));
    let ratio = row.ours_is.map(|ratio| if is_more { "> " } else { "" }.to_owned() + &times(ratio)).unwrap_or_default();
    [name].into_iter().chain(figures.iter().map(figure)).chain([ratio, row.durability.clone()]).collect()
}

/// Remarks below the table: source of a figure, reason for a missing one, findings.
pub(super) fn remarks(row: &Row) -> Vec<String> {
    let mut remarks = row.notes.clone();
    if let Kind::Published { url, setting } = &row.kind {
        remarks.push(format!("{setting}; {url}"));
    }
    match &row.state {
        RowState::Measured => {}
        RowState::Absent { why } => remarks.push(format!("not here: {why}")),
        RowState::Failed { why } => remarks.push(format!("failed: {why}")),
    }
    remarks
}

/// The median, with minimum and maximum if they differ. `is_more`: the maximum is only a lower bound.
fn shown(spread: &Spread, unit: Unit, is_more: bool) -> String {
    let one = |value: f64| {
        let mark = if is_more && value >= spread.max { "> " } else { "" };
        mark.to_owned() + &value_text(value, unit)
    };
    let (median, min, max) = (one(spread.median), one(spread.min), one(spread.max));
    if min == max { median } else { format!("{median} ({min} - {max})") }
}

pub(super) fn value_text(value: f64, unit: Unit) -> String {
    match unit {
        Unit::PerSecond if value < 100.0 => format!("{value:.1}"),
        Unit::PerSecond => format!("{value:.0}"),
        Unit::Micros => millis(value),
        Unit::Percent if value == value.round() => format!("{value:.0} %"),
        Unit::Percent => format!("{value:.2} %"),
        Unit::Bytes | Unit::Count => format!("{value:.0}"),
        Unit::Times => times(value),
    }
}

fn times(value: f64) -> String {
    match value {
        value if value < 0.095 => format!("× {value:.4}"),
        value if value < 9.95 => format!("× {value:.2}"),
        value => format!("× {value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Better;

    #[test]
    fn columns_are_aligned_and_remarks_follow() {
        let figure = FigureInfo { key: "p".into(), name: "p50".into(), unit: Unit::Micros, better: Better::Lower };
        let mut ours = Row::of_side("ours", true, "synced");
        ours.summary.insert("p".into(), Spread { median: 1500.0, min: 900.0, max: 2000.0 });
        let absent =
            Row { state: RowState::Absent { why: "no such thing".into() }, ..Row::of_side("a peer", false, "not") };
        let workload =
            WorkloadReport { name: "x".into(), what: "Does x".into(), figures: vec![figure], rows: vec![ours, absent] };
        let mut text = String::new();
        workload_table(&mut text, &workload);
        assert_eq!(
            text,
            "\n### x\n\nDoes x.\n\n\
             | side   |                        p50 | ours is | durable when it says yes |\n\
             | ------ | -------------------------: | ------: | ------------------------ |\n\
             | ours   | 1.50 ms (900 µs - 2.00 ms) |         | synced                   |\n\
             | a peer |                            |         | not                      |\n\
             \na peer: not here: no such thing.\n"
        );
    }

    #[test]
    fn what_was_not_waited_for_is_more_than_its_bound() {
        let check = |median, min, max, text: &str| {
            assert_eq!(shown(&Spread { median, min, max }, Unit::Micros, true), text);
        };
        check(60e6, 60e6, 60e6, "> 60.00 s");
        check(42e3, 40e3, 60e6, "42.0 ms (40.0 ms - > 60.00 s)");
    }

    #[test]
    fn values_are_fit_for_reading() {
        let check = |value: f64, unit: Unit, text: &str| assert_eq!(value_text(value, unit), text);
        check(36.94, Unit::PerSecond, "36.9");
        check(1079.4, Unit::PerSecond, "1079");
        check(99.784, Unit::Percent, "99.78 %");
        check(100.0, Unit::Percent, "100 %");
        check(15.3, Unit::Times, "× 15");
        check(1.304, Unit::Times, "× 1.30");
        check(0.003_07, Unit::Times, "× 0.0031");
    }
}
