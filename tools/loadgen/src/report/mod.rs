//! The report of a run: as data, as tables, as a page with plots, and beside other runs.

mod compare;
mod html;
mod over_time;
mod plot;
mod rig;
mod table;
mod text;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use posthaste_units::count;
use serde::{Deserialize, Serialize};

pub use compare::{Comparison, Row};
pub use html::{footer, page};
pub use over_time::{Curve, over_time};
pub use plot::escape;
pub use rig::{RigKind, RigRun};
pub use table::Table;

use crate::account::Account;
use crate::load::{Arrivals, ErrorCount, Kill, Outcome, Pipelining, Plan, Round};
use crate::measure::{Bucket, CurvePoint, Stretch};
use crate::resources::Usage;
use crate::values::{PerConnection, Protocol, TlsStart};

/// The only supported schema.
pub const SCHEMA: &str = "posthaste-load/1";

/// File with the data of a report, in its directory.
const REPORT_FILE: &str = "report.json";

/// A whole report. Its JSON form is described in `docs/load.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: String,
    pub title: Option<String>,
    /// Start of the run, RFC 3339, UTC.
    pub started: String,
    /// Version of the generator.
    pub version: String,
    pub command: Vec<String>,
    /// The run's number in its messages' stamps.
    pub run: String,
    pub host: Host,
    pub plan: PlanSummary,
    pub total: Round,
    pub rounds: Vec<Round>,
    /// Connections that were ready to take messages.
    pub sessions: u64,
    /// Requests of HTTP that were sent again, with the same key.
    #[serde(default)]
    pub repeated: u64,
    pub errors: Vec<ErrorCount>,
    /// Latencies of all measured acknowledged messages.
    pub histogram: Vec<Bucket>,
    pub curve: Vec<CurvePoint>,
    pub timeline: TimelineData,
    pub generator: Cost,
    pub server: Option<Cost>,
    pub account: Option<Account>,
    /// Each kill of the server, if the run made any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kills: Vec<Kill>,
    /// Power cuts and kills by the rig, if its results were included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rig: Vec<RigRun>,
    /// True if it was stopped early.
    #[serde(default)]
    pub was_stopped: bool,
    /// Remarks for the reader: a run cut short, a limit met.
    pub notes: Vec<String>,
}

/// The machine that the generator ran on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub cores: usize,
    pub cpu: String,
    pub kernel: String,
    pub memory_octets: u64,
}

/// Summary of the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    pub targets: Vec<String>,
    pub protocol: String,
    pub connections: usize,
    pub threads: usize,
    /// Messages a second on a schedule; `None` in a closed loop.
    pub rate: Option<f64>,
    /// Distribution of an open loop's messages: `even` or `poisson`.
    #[serde(default)]
    pub arrivals: Option<String>,
    pub count: Option<u64>,
    pub duration_s: Option<f64>,
    pub warmup_s: f64,
    pub rounds: u32,
    pub per_connection: String,
    pub pipelining: String,
    pub transfer: String,
    pub tls: String,
    pub auth: bool,
    pub size: String,
    pub recipients_per_message: usize,
}

/// Figures over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimelineData {
    /// Length of each stretch in seconds.
    pub width_s: f64,
    /// Time of the last event; the last stretch ends here.
    pub end_s: f64,
    pub stretches: Vec<Stretch>,
}

/// Cost of one side, generator or server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time of an acknowledged message, including those of the warm-up.
    pub cpu_us_per_message: f64,
    #[serde(flatten)]
    pub usage: Usage,
}

impl Cost {
    /// Divides `usage` by the number of messages.
    pub fn new(usage: Usage, messages: u64) -> Self {
        let cpu_us_per_message = if messages > 0 { usage.cpu_s * 1e6 / messages as f64 } else { 0.0 };
        Self { cpu_us_per_message, usage }
    }
}

/// Facts about a run from outside of it.
#[derive(Debug)]
pub struct About {
    pub title: Option<String>,
    pub command: Vec<String>,
    pub started: SystemTime,
    pub plan: PlanSummary,
    pub notes: Vec<String>,
}

/// Error in reading or writing a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a report: {text}")]
    NotOurs { path: PathBuf, text: String },
    #[error("{path} was not written by `powercut --json FILE`: {text}")]
    NotOfTheRig { path: PathBuf, text: String },
}

impl PlanSummary {
    /// Summarises `plan`, with the sizes as written on the command line.
    pub fn new(plan: &Plan, size: String) -> Self {
        let names = |name: fn(&crate::load::Server) -> &'static str| {
            let mut names: Vec<_> = plan.servers.iter().map(name).collect();
            names.dedup();
            names.join(", ")
        };
        Self {
            targets: plan.servers.iter().map(|server| server.name.clone()).collect(),
            protocol: names(|server| match server.protocol {
                Protocol::Smtp => "SMTP",
                Protocol::Lmtp => "LMTP",
                Protocol::Http => "HTTP",
            }),
            connections: plan.connections,
            threads: plan.threads,
            rate: plan.pace.rate,
            arrivals: plan.pace.rate.map(|_| match plan.pace.arrivals {
                Arrivals::Even => "even".into(),
                Arrivals::Poisson { .. } => "poisson".into(),
            }),
            count: plan.pace.count,
            duration_s: plan.pace.duration.map(|duration| duration.as_secs_f64()),
            warmup_s: plan.pace.warmup.as_secs_f64(),
            rounds: plan.rounds,
            per_connection: match plan.per_connection {
                PerConnection::All => "all".into(),
                PerConnection::Count(count) => count.to_string(),
            },
            pipelining: match plan.pipelining {
                Pipelining::Off => "off",
                Pipelining::On => "on",
                Pipelining::Ahead => "ahead",
            }
            .into(),
            transfer: transfer(plan).into(),
            tls: names(|server| match server.tls {
                TlsStart::Never => "none",
                TlsStart::AtOnce => "implicit",
                TlsStart::StartTls => "STARTTLS",
            }),
            auth: plan.auth.is_some() || plan.injecting.token.is_some(),
            size,
            recipients_per_message: plan.recipients_per_message,
        }
    }
}

/// Form in which the octets of a message are sent.
fn transfer(plan: &Plan) -> &'static str {
    match (plan.servers.iter().any(|server| server.protocol == Protocol::Http), plan.injecting.repeats, plan.bdat) {
        (true, true, _) => "inject with Idempotency-Key",
        (true, false, _) => "inject",
        (false, _, true) => "BDAT",
        (false, _, false) => "DATA",
    }
}

impl Report {
    /// Combines a run's figures.
    pub fn new(about: About, outcome: &Outcome, account: Option<Account>) -> Self {
        let cost = |usage: &Usage| Cost::new(usage.clone(), outcome.ledger.acked());
        let mut notes = about.notes;
        let mut note = |applies: bool, text: &str| applies.then(|| notes.push(text.to_owned()));
        let was_never_there = outcome.gave_up && outcome.sessions == 0;
        note(was_never_there, "the run ended early: no server could be reached");
        note(outcome.gave_up && !was_never_there, "the run ended early: no server could be reached any more");
        note(outcome.was_stopped, "the run was stopped before its end");
        let repeated = format!("{} sent again with the same key", count(outcome.repeated as usize, "request"));
        note(outcome.repeated > 0, &repeated);
        note(outcome.ledger.is_full(), "a run has 2^28 messages at most");
        let server_ended = outcome.server.as_ref().is_some_and(|usage| usage.has_ended);
        note(server_ended, "the server's process ended during the run; its figures stop there");
        Self {
            schema: SCHEMA.into(),
            title: about.title,
            started: rfc3339(about.started),
            version: env!("CARGO_PKG_VERSION").into(),
            command: about.command,
            run: format!("{:016x}", outcome.ledger.run),
            host: Host::read(),
            plan: about.plan,
            total: outcome.total.clone(),
            rounds: outcome.rounds.clone(),
            sessions: outcome.sessions,
            repeated: outcome.repeated,
            errors: outcome.errors.clone(),
            histogram: outcome.latencies.buckets(),
            curve: outcome.latencies.curve(),
            timeline: TimelineData {
                width_s: outcome.timeline.width_s(),
                end_s: outcome.timeline.end_s(),
                stretches: outcome.timeline.stretches(),
            },
            generator: cost(&outcome.generator),
            server: outcome.server.as_ref().map(cost),
            account,
            kills: outcome.kills.clone(),
            rig: Vec::new(),
            was_stopped: outcome.was_stopped,
            notes,
        }
    }

    /// Reads a `report.json`, or the one in the directory `path`.
    ///
    /// # Errors
    /// When it cannot be read or has another schema.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let within = path.join(REPORT_FILE);
        let path = if path.is_dir() { &within } else { path };
        let not_ours = |text: String| ReportError::NotOurs { path: path.to_owned(), text };
        let text = fs::read_to_string(path).map_err(|source| ReportError::Io { path: path.to_owned(), source })?;
        let report: Self = serde_json::from_str(&text).map_err(|error| {
            not_ours(match error.classify() {
                serde_json::error::Category::Data => error.to_string(),
                _ => format!("it is not JSON; name a directory or its {REPORT_FILE}"),
            })
        })?;
        if report.schema == SCHEMA {
            Ok(report)
        } else {
            Err(not_ours(format!("its schema is {}, not {SCHEMA}", report.schema)))
        }
    }

    /// Writes `report.json`, `report.md` and `report.html` into `dir`, which is made if need be.
    ///
    /// # Errors
    /// When one of them cannot be written.
    pub fn write_to(&self, dir: &Path) -> Result<(), ReportError> {
        write_files(dir, "report", &self.to_json(), &self.to_markdown(), &self.to_html())
    }

    /// All of it as JSON.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// True if everything asked for was sent, acknowledged and, if stores were checked, found.
    pub fn is_good(&self) -> bool {
        let total = &self.total;
        let is_served = total.failed == 0 && total.missed == 0 && self.errors.is_empty() && !self.was_stopped;
        let has_acked = total.acked > 0 || total.warmup > 0;
        has_acked && is_served && self.account.as_ref().is_none_or(Account::is_clean)
    }

    /// The report's title, else one made from its plan.
    pub fn name(&self) -> String {
        self.title.clone().unwrap_or_else(|| self.plan.title(&self.plan.target_names()))
    }
}

/// Writes `NAME.json`, `NAME.md` and `NAME.html` into `dir`, which is made if need be.
///
/// # Errors
/// When one of them cannot be written.
pub fn write_files(dir: &Path, name: &str, json: &str, markdown: &str, html: &str) -> Result<(), ReportError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ReportError::Io { path, source }
    };
    fs::create_dir_all(dir).map_err(failed(dir))?;
    for (extension, text) in [("json", json), ("md", markdown), ("html", html)] {
        let path = dir.join(format!("{name}.{extension}"));
        fs::write(&path, text).map_err(failed(&path))?;
    }
    Ok(())
}

/// Formats data as readable JSON.
pub fn to_json(data: &impl Serialize) -> String {
    serde_json::to_string_pretty(data).expect("plain data has a JSON form") + "\n"
}

/// Time and place of a run, and the version, in one line.
pub fn provenance(started: &str, host: &Host, version: &str) -> String {
    let memory = text::octets(host.memory_octets as f64);
    let Host { cores, cpu, kernel, .. } = host;
    format!("{started}, {cores} cores ({cpu}), {memory} of memory, Linux {kernel}, Posthaste {version}")
}

impl Host {
    /// Reads the facts about this machine; unknown ones are empty or 0.
    pub fn read() -> Self {
        let line = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            value.trim_start_matches([':', ' ', '\t']).trim().to_owned()
        };
        let kib = line("/proc/meminfo", "MemTotal:").split(' ').next().and_then(|kib| kib.parse::<u64>().ok());
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: line("/proc/cpuinfo", "model name"),
            kernel: line("/proc/sys/kernel/osrelease", ""),
            memory_octets: kib.unwrap_or(0) * 1024,
        }
    }
}

/// `2026-03-01T12:00:00Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let secs = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let shown = posthaste_message::DateTime::from_unix(i64::try_from(secs).unwrap_or(i64::MAX)).to_string();
    // `Sun, 01 Mar 2026 12:00:00 +0000`
    let parts: Vec<&str> = shown.split([' ', ',']).filter(|part| !part.is_empty()).collect();
    let month = MONTHS.iter().position(|month| *month == parts[2]).map_or(0, |index| index + 1);
    format!("{}-{month:02}-{}T{}Z", parts[3], parts[1], parts[4])
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
