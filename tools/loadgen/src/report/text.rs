//! The report as tables: for a terminal, and as Markdown.

use std::fmt::Write as _;

use super::{Cost, PlanSummary, Report, Table, provenance, rig};
use crate::live::{millis, thousands};
use crate::load::Round;
use crate::values::Sizes;

/// One line of the table of figures: its name, and its value in each column.
type Line = (&'static str, Vec<String>);

const NO_ERROR: &str = "a String takes everything";

/// Octets in a suitable unit.
pub(super) fn octets(octets: f64) -> String {
    match octets {
        octets if octets < 10_240.0 => format!("{octets:.0} B"),
        octets if octets < 1_048_576.0 => format!("{:.1} KiB", octets / 1024.0),
        octets if octets < 1_073_741_824.0 => format!("{:.1} MiB", octets / 1_048_576.0),
        octets => format!("{:.2} GiB", octets / 1_073_741_824.0),
    }
}

/// Microseconds of a round's latency; a dash if nothing was acknowledged.
pub(super) fn latency(round: &Round, us: u64) -> String {
    if round.latency.count == 0 { "-".into() } else { millis(us as f64) }
}

/// The figures of some rounds side by side.
fn round_lines(rounds: &[&Round]) -> Vec<Line> {
    let row =
        |name, value: &dyn Fn(&Round) -> String| -> Line { (name, rounds.iter().map(|round| value(round)).collect()) };
    let mut rows = vec![
        row("messages a second", &|round| thousands(round.rate.round() as u64)),
        row("acknowledged", &|round| thousands(round.acked)),
        row("failed", &|round| thousands(round.failed)),
        row("broken by a kill", &|round| thousands(round.broken)),
        row("due and never sent", &|round| thousands(round.missed)),
        row("seconds", &|round| format!("{:.2}", round.elapsed_s)),
        row("throughput", &|round| format!("{}/s", octets(round.octets as f64 / round.elapsed_s.max(1e-9)))),
        row("latency p50", &|round| latency(round, round.latency.p50_us)),
        row("latency p90", &|round| latency(round, round.latency.p90_us)),
        row("latency p99", &|round| latency(round, round.latency.p99_us)),
        row("latency p99.9", &|round| latency(round, round.latency.p999_us)),
        row("latency max", &|round| latency(round, round.latency.max_us)),
    ];
    if rounds.iter().any(|round| round.copies != round.acked) {
        rows.insert(2, row("acknowledged copies", &|round| thousands(round.copies)));
    }
    let is_rare = |name: &str| ["due and never sent", "broken by a kill"].contains(&name);
    rows.retain(|(name, values)| !is_rare(name) || values.iter().any(|value| value != "0"));
    rows
}

/// Rows of the costs of both sides.
fn cost_lines(costs: &[&Cost]) -> Vec<Line> {
    let row = |name, value: &dyn Fn(&Cost) -> String| (name, costs.iter().map(|cost| value(cost)).collect());
    vec![
        row("CPU seconds", &|cost| format!("{:.2}", cost.usage.cpu_s)),
        row("CPU µs a message", &|cost| format!("{:.1}", cost.cpu_us_per_message)),
        row("memory at most", &|cost| octets(cost.usage.memory_octets_max as f64)),
        row("written to devices", &|cost| octets(cost.usage.written_octets as f64)),
        row("write calls", &|cost| thousands(cost.usage.write_calls)),
        row("context switches", &|cost| thousands(cost.usage.context_switches)),
        row("device flushes meanwhile, of all processes", &|cost| thousands(cost.usage.device_flushes)),
    ]
}

/// A size as the user asked for it.
fn size(octets: usize) -> String {
    match octets {
        0 => "0 octets".to_owned(),
        _ if octets.is_multiple_of(1 << 20) => format!("{} MiB", octets >> 20),
        _ if octets.is_multiple_of(1 << 10) => format!("{} KiB", octets >> 10),
        _ => format!("{octets} octets"),
    }
}

impl PlanSummary {
    /// Heading for a run against `target`.
    pub fn title(&self, target: &str) -> String {
        let what = match self.size.parse::<Sizes>().map(|sizes| sizes.classes) {
            Ok(classes) if classes.len() > 1 => "messages of mixed sizes".to_owned(),
            Ok(classes) if classes[0].0 < classes[0].1 => {
                format!("messages of {} to {}", size(classes[0].0), size(classes[0].1))
            }
            Ok(classes) => format!("messages of {}", size(classes[0].0)),
            // In words: where they come from.
            Err(_) => self.size.clone(),
        };
        let pace = match (self.rate, self.connections) {
            (Some(rate), _) => format!("{rate} {what} a second"),
            (None, 1) => format!("{what} over one connection"),
            (None, connections) => format!("{what} over {} connections", thousands(connections as u64)),
        };
        let mut title = format!("{pace} to {target}");
        if let Some(first) = title.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        title
    }

    /// Names of its servers for people.
    pub(super) fn target_names(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for target in &self.targets {
            let name = target.strip_prefix("smtp://").unwrap_or(target);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.len() > 3 { format!("{} servers", names.len()) } else { names.join(", ") }
    }
}

impl Report {
    /// Describes the plan in a sentence.
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
        // Sizes, or in words where the messages come from.
        let octets = if plan.size.starts_with(|first: char| first.is_ascii_digit()) { " octets" } else { "" };
        write!(text, ", {}{octets}", plan.size).expect(NO_ERROR);
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

    /// Each round's figures, and those of the whole run last if there are several rounds.
    pub(super) fn figures_table(&self) -> Table {
        let (names, rounds): (Vec<String>, Vec<&Round>) = match self.rounds.len() {
            0 | 1 => (vec!["run".into()], vec![&self.total]),
            several => {
                let names = (1..=several).map(|round| format!("round {round}")).chain(["all".into()]);
                (names.collect(), self.rounds.iter().chain([&self.total]).collect())
            }
        };
        table(names, round_lines(&rounds))
    }

    /// Costs of the observed sides.
    pub(super) fn cost_table(&self) -> Table {
        let costs: Vec<&Cost> = std::iter::once(&self.generator).chain(&self.server).collect();
        let names = ["generator", "server"].into_iter().take(costs.len()).map(str::to_owned);
        table(names.collect(), cost_lines(&costs))
    }

    /// Each class of errors; `None` without any.
    pub(super) fn error_table(&self) -> Option<Table> {
        let mut table = Table::default().words("error").figures("count").verbatim("first seen");
        self.errors.iter().for_each(|error| {
            table.row([error.class.clone(), thousands(error.count), error.example.clone()]);
        });
        (!self.errors.is_empty()).then_some(table)
    }

    /// Each kill of the server; `None` without any.
    pub(super) fn kill_table(&self) -> Option<Table> {
        let mut table = Table::default().figures("kill").figures("at").figures("ready again after");
        table = table.figures("first acknowledged after").figures("connections broken").figures("messages under way");
        let seconds = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |seconds| millis(seconds * 1e6));
        for (index, kill) in self.kills.iter().enumerate() {
            let (down, first) = (seconds(kill.down_s), seconds(kill.first_ack_s));
            let (number, at) = ((index + 1).to_string(), format!("{:.2} s", kill.at_s));
            table.row([number, at, down, first, thousands(kill.connections), thousands(kill.messages)]);
        }
        (!self.kills.is_empty()).then_some(table)
    }

    /// The report for a terminal; at most `list_max` findings of each kind.
    pub fn to_text(&self, list_max: usize) -> String {
        let mut text = format!("{}\n\n", self.plan_text());
        text += &self.figures_table().to_text();
        text.push('\n');
        text += &self.cost_table().to_text();
        for table in [self.kill_table(), self.error_table(), rig::table(&self.rig)].iter().flatten() {
            write!(text, "\n{}", table.to_text()).expect(NO_ERROR);
        }
        if let Some(account) = &self.account {
            write!(text, "\n{}", account.to_text(list_max)).expect(NO_ERROR);
        }
        self.notes.iter().for_each(|note| writeln!(text, "\nnote: {note}").expect(NO_ERROR));
        text
    }

    /// The report as tables in Markdown.
    pub fn to_markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}.\n\n", self.name(), self.plan_text());
        let provenance = provenance(&self.started, &self.host, &self.version);
        writeln!(text, "{provenance}:\n\n    {}\n", self.command.join(" ")).expect(NO_ERROR);
        let (figures, cost) = (Some(self.figures_table()), Some(self.cost_table()));
        let (kills, errors, rig) = (self.kill_table(), self.error_table(), rig::table(&self.rig));
        for table in [figures, cost, kills, errors, rig].iter().flatten() {
            writeln!(text, "{}", table.to_markdown()).expect(NO_ERROR);
        }
        if let Some(account) = &self.account {
            writeln!(text, "```\n{}```\n", account.to_text(20)).expect(NO_ERROR);
        }
        self.notes.iter().for_each(|note| writeln!(text, "Note: {note}.\n").expect(NO_ERROR));
        text
    }
}

fn table(names: Vec<String>, lines: Vec<Line>) -> Table {
    let mut table = names.into_iter().fold(Table::default().words(""), Table::figures);
    lines.into_iter().for_each(|(name, values)| table.row(std::iter::once(name.to_owned()).chain(values)));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_have_a_fitting_unit() {
        let check = |value: f64, text: &str| assert_eq!(octets(value), text);
        check(500.0, "500 B");
        check(10_240.0, "10.0 KiB");
        check(1_048_575.0, "1024.0 KiB");
        check(9_460_000.0, "9.0 MiB");
        check(104_857_600.0, "100.0 MiB");
        check(1_610_612_736.0, "1.50 GiB");
        check(12_884_901_888.0, "12.00 GiB");
    }
}
