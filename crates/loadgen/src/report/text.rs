//! The report as tables: for a terminal, and as Markdown.

use std::fmt::Write as _;

use super::{Cost, Report};
use crate::live::{millis, thousands};
use crate::load::Round;

/// One line of the table of figures: what it is, and its value in each column.
pub(super) type TableRow = (&'static str, Vec<String>);

const NO_ERROR: &str = "a String takes everything";

/// Octets with a fitting unit.
pub(super) fn octets(octets: f64) -> String {
    match octets {
        octets if octets < 10_240.0 => format!("{octets:.0} B"),
        octets if octets < 10_240.0 * 1024.0 => format!("{:.1} KiB", octets / 1024.0),
        octets if octets < 10_240.0 * 1_048_576.0 => format!("{:.1} MiB", octets / 1_048_576.0),
        octets => format!("{:.2} GiB", octets / 1_073_741_824.0),
    }
}

/// The figures of some rounds side by side.
pub(super) fn round_rows(rounds: &[&Round]) -> Vec<TableRow> {
    let row = |name, value: &dyn Fn(&Round) -> String| -> TableRow {
        (name, rounds.iter().map(|round| value(round)).collect())
    };
    let us = |us: u64| millis(us as f64);
    let mut rows = vec![
        row("messages a second", &|round| thousands(round.rate.round() as u64)),
        row("acknowledged", &|round| thousands(round.acked)),
        row("failed", &|round| thousands(round.failed)),
        row("due and never sent", &|round| thousands(round.missed)),
        row("seconds", &|round| format!("{:.2}", round.elapsed_s)),
        row("throughput", &|round| format!("{}/s", octets(round.octets as f64 / round.elapsed_s.max(1e-9)))),
        row("latency p50", &|round| us(round.latency.p50_us)),
        row("latency p90", &|round| us(round.latency.p90_us)),
        row("latency p99", &|round| us(round.latency.p99_us)),
        row("latency p99.9", &|round| us(round.latency.p999_us)),
        row("latency max", &|round| us(round.latency.max_us)),
    ];
    if rounds.iter().any(|round| round.copies != round.acked) {
        rows.insert(2, row("acknowledged copies", &|round| thousands(round.copies)));
    }
    rows.retain(|(name, values)| *name != "due and never sent" || values.iter().any(|value| value != "0"));
    rows
}

/// What both sides have cost.
pub(super) fn cost_rows(costs: &[&Cost]) -> Vec<TableRow> {
    let row = |name, value: &dyn Fn(&Cost) -> String| (name, costs.iter().map(|cost| value(cost)).collect());
    vec![
        row("CPU seconds", &|cost| format!("{:.2}", cost.usage.cpu_s)),
        row("CPU µs a message", &|cost| format!("{:.1}", cost.cpu_us_per_message)),
        row("memory at most", &|cost| octets(cost.usage.memory_octets_max as f64)),
        row("written to devices", &|cost| octets(cost.usage.written_octets as f64)),
        row("write calls", &|cost| thousands(cost.usage.write_calls)),
        row("context switches", &|cost| thousands(cost.usage.context_switches)),
    ]
}

impl Report {
    /// What was done, in a sentence.
    pub fn plan_text(&self) -> String {
        let plan = &self.plan;
        let mut text = format!("{} to {}, {} connections", plan.protocol, plan.targets.join(", "), plan.connections);
        match plan.rate {
            Some(rate) if plan.arrivals.as_deref() == Some("poisson") => {
                write!(text, ", open loop at {rate} messages a second on average (Poisson)")
            }
            Some(rate) => write!(text, ", open loop at {rate} messages a second"),
            None => write!(text, ", closed loop"),
        }
        .expect(NO_ERROR);
        write!(text, ", {} octets", plan.size).expect(NO_ERROR);
        match plan.per_connection.as_str() {
            "all" => write!(text, ", connections kept"),
            count => write!(text, ", {count} a connection"),
        }
        .expect(NO_ERROR);
        write!(text, ", {}, pipelining {}", plan.transfer, plan.pipelining).expect(NO_ERROR);
        if plan.recipients_per_message > 1 {
            write!(text, ", {} recipients each", plan.recipients_per_message).expect(NO_ERROR);
        }
        if plan.tls != "none" {
            write!(text, ", TLS {}", plan.tls).expect(NO_ERROR);
        }
        if plan.auth {
            text.push_str(", with AUTH");
        }
        text
    }

    /// The names of the columns of rounds and the rounds: the whole run last where there are several.
    pub(super) fn columns(&self) -> (Vec<String>, Vec<&Round>) {
        if self.rounds.len() < 2 {
            return (vec!["run".into()], vec![&self.total]);
        }
        let names = (1..=self.rounds.len()).map(|round| format!("round {round}")).chain(["all".into()]).collect();
        (names, self.rounds.iter().chain([&self.total]).collect())
    }

    /// The names of the sides that were watched and what they have cost.
    pub(super) fn sides(&self) -> (Vec<String>, Vec<&Cost>) {
        let mut names = vec!["generator".to_owned()];
        names.extend(self.server.iter().map(|_| "server".to_owned()));
        (names, std::iter::once(&self.generator).chain(&self.server).collect())
    }

    /// For a terminal; at most `list_max` findings of each kind.
    pub fn to_text(&self, list_max: usize) -> String {
        let mut text = format!("{}\n\n", self.plan_text());
        let (names, rounds) = self.columns();
        let header = if names.len() > 1 { names } else { Vec::new() };
        table(&mut text, &header, &round_rows(&rounds));
        let (names, costs) = self.sides();
        text.push('\n');
        table(&mut text, &names, &cost_rows(&costs));
        if self.server.is_some() {
            writeln!(text, "  device flushes {} (of all processes)", thousands(self.generator.usage.device_flushes))
                .expect(NO_ERROR);
        }
        if !self.errors.is_empty() {
            text.push_str("\nerrors\n");
        }
        for error in &self.errors {
            writeln!(text, "  {:>8}  {:<20} {}", thousands(error.count), error.class, error.example).expect(NO_ERROR);
        }
        if let Some(account) = &self.account {
            write!(text, "\n{}", account.to_text(list_max)).expect(NO_ERROR);
        }
        self.notes.iter().for_each(|note| writeln!(text, "\nnote: {note}").expect(NO_ERROR));
        text
    }

    /// Tables in Markdown.
    pub fn to_markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}.\n\n", self.name(), self.plan_text());
        let host = &self.host;
        writeln!(
            text,
            "{}, {} cores ({}), {} of memory, Linux {}. Posthaste {}:\n\n    {}\n",
            self.started,
            host.cores,
            host.cpu,
            octets(host.memory_octets as f64),
            host.kernel,
            self.version,
            self.command.join(" ")
        )
        .expect(NO_ERROR);
        let (names, rounds) = self.columns();
        markdown_table(&mut text, &names, &round_rows(&rounds));
        let (names, costs) = self.sides();
        markdown_table(&mut text, &names, &cost_rows(&costs));
        if !self.errors.is_empty() {
            text.push_str("| error | count | first seen |\n| --- | ---: | --- |\n");
            for error in &self.errors {
                let example = error.example.replace('|', "\\|");
                writeln!(text, "| {} | {} | {example} |", error.class, error.count).expect(NO_ERROR);
            }
            text.push('\n');
        }
        if let Some(account) = &self.account {
            writeln!(text, "```\n{}```\n", account.to_text(20)).expect(NO_ERROR);
        }
        self.notes.iter().for_each(|note| writeln!(text, "Note: {note}.\n").expect(NO_ERROR));
        text
    }
}

/// Aligned columns, names left and figures right.
pub(super) fn table(out: &mut String, header: &[String], rows: &[(impl AsRef<str>, Vec<String>)]) {
    let width = |text: &str| text.chars().count();
    let first = rows.iter().map(|(name, _)| width(name.as_ref())).max().unwrap_or(0);
    let column = |index: usize| {
        let values = rows.iter().filter_map(|(_, values)| values.get(index)).chain(header.get(index));
        values.map(|value| width(value)).max().unwrap_or(0)
    };
    let mut line = |name: &str, values: &[String]| {
        write!(out, "  {name:<first$}").expect(NO_ERROR);
        for (index, value) in values.iter().enumerate() {
            write!(out, "  {value:>width$}", width = column(index)).expect(NO_ERROR);
        }
        out.push('\n');
    };
    if !header.is_empty() {
        line("", header);
    }
    rows.iter().for_each(|(name, values)| line(name.as_ref(), values));
}

fn markdown_table(out: &mut String, header: &[String], rows: &[TableRow]) {
    writeln!(out, "| | {} |\n| --- |{}", header.join(" | "), " ---: |".repeat(header.len())).expect(NO_ERROR);
    rows.iter().for_each(|(name, values)| writeln!(out, "| {name} | {} |", values.join(" | ")).expect(NO_ERROR));
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_have_a_fitting_unit() {
        let check = |value: f64, text: &str| assert_eq!(octets(value), text);
        check(500.0, "500 B");
        check(10_240.0, "10.0 KiB");
        check(104_857_600.0, "100.0 MiB");
        check(12_884_901_888.0, "12.00 GiB");
    }

    #[test]
    fn columns_are_aligned() {
        let mut out = String::new();
        table(&mut out, &["a".into(), "b".into()], &[("x", vec!["1".into(), "22".into()]), ("yy", vec!["333".into()])]);
        assert_eq!(out, "        a   b\n  x     1  22\n  yy  333\n");
    }
}
