//! Mail received over SMTP: from the first octet of a message to the 250 that promises it.
//!
//! The generator runs in this process, the servers in their own. Each side of a workload has its own directory and a
//! server that is started once. A round ends when the server's processes are at rest and everything is delivered; its
//! CPU time is counted until then. The written data reaches the disk before the next round, so that no side pays for
//! another. At the end all acknowledged mail is looked for in the mailboxes.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use posthaste_loadgen::account::{Account, Ledger, account};
use posthaste_loadgen::load::{
    Arrivals, Injecting, Outcome, Pace, Pipelining, Plan, Pool, Progress, Recipients, Server as Target, fresh_run, run,
};
use posthaste_loadgen::report::{About, Cost, PlanSummary, Report};
use posthaste_loadgen::resources::{Sampler, Usage};
use posthaste_loadgen::scratch::write_back;
use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::{Address, PerConnection, Protocol, Sizes, TlsStart};

use crate::peers::{PROCESSES_MAX, Postfix, SmtpSink};
use crate::published;
use crate::run::wait_until_idle;
use crate::sink::Sink;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Start, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "receive",
    about: "Mail received over SMTP, from the first octet of a message to the 250 that promises it",
    workloads,
};

/// Every size of message with every number of connections.
pub const GRID: Suite = Suite {
    name: "grid",
    about: "Mail received over SMTP in each size, over few and many connections, kept and new: not part of `all`",
    workloads: grid,
};

const FIGURES: &[Figure] = &[
    Figure { key: "rate", name: "messages/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "acked_percent", name: "acked", unit: Unit::Percent, better: Better::Higher },
    Figure { key: "p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p999_us", name: "p99.9", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "longest_us", name: "longest", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "disk_rate", name: "delivered and on disk/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "server_cpu_us", name: "server CPU to rest", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "generator_cpu_us", name: "generator CPU", unit: Unit::Micros, better: Better::Lower },
];

/// Shape of the load, in the published size.
struct Shape {
    name: String,
    size: &'static str,
    connections: u32,
    per_connection: PerConnection,
    /// Messages to send, or time.
    amount: Amount,
    /// Messages a second, in an open loop.
    rate: Option<f64>,
    mailboxes: u64,
}

enum Amount {
    Count(u64),
    Time(Duration),
}

const ONE: PerConnection = PerConnection::Count(NonZeroU64::MIN);
const SUSTAINED: Duration = Duration::from_secs(30);
const CELL: Duration = Duration::from_secs(10);

/// The published shapes, then two with kept connections, which none of the published ones has.
fn published_shapes() -> Vec<Shape> {
    let all = PerConnection::All;
    vec![
        shape("prixfixe-10k", "10k", 20, ONE, Amount::Count(2000), 20),
        shape("prixfixe-1k", "1k", 50, ONE, Amount::Count(5000), 20),
        shape("prixfixe-100k", "100k", 50, ONE, Amount::Count(500), 20),
        Shape { rate: Some(50.0), ..shape("prixfixe-sustained", "10k", 20, ONE, Amount::Time(SUSTAINED), 20) },
        shape("mailrs", "1200", 32, ONE, Amount::Time(SUSTAINED), 1),
        shape("kumomta", "100k", 2000, all, Amount::Count(100_000), 100),
        shape("kept-10k", "10k", 50, all, Amount::Count(100_000), 20),
        shape("kept-100k", "100k", 50, all, Amount::Count(20_000), 20),
    ]
}

/// Each size with each number of connections, kept and new. Nobody has published these.
fn grid_shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for size in ["1k", "10k", "100k"] {
        for connections in [1, 50, 500] {
            for (per_connection, ending) in [(PerConnection::All, ""), (ONE, "-new")] {
                let name = format!("{size}-{connections}{ending}");
                shapes.push(shape(&name, size, connections, per_connection, Amount::Time(CELL), 20));
            }
        }
    }
    shapes
}

fn shape(
    name: &str,
    size: &'static str,
    connections: u32,
    per_connection: PerConnection,
    amount: Amount,
    mailboxes: u64,
) -> Shape {
    let name = name.to_owned();
    Shape { name, size, connections, per_connection, amount, rate: None, mailboxes }
}

/// Minimum of a scaled round, so that percentiles are meaningful.
const COUNT_LEAST: u64 = 500;
const TIME_LEAST: Duration = Duration::from_secs(1);
const WARMUP: Duration = Duration::from_millis(500);
/// A rate in messages a second that no server has exceeded here.
const FAST_RATE: f64 = 20_000.0;

fn workloads(settings: &Settings) -> Vec<Workload> {
    published_shapes().into_iter().map(|shape| workload(shape, settings)).collect()
}

fn grid(settings: &Settings) -> Vec<Workload> {
    grid_shapes().into_iter().map(|shape| workload(shape, settings)).collect()
}

fn workload(shape: Shape, settings: &Settings) -> Workload {
    let shape = Arc::new(shape);
    let pace = shape.pace(settings);
    let amount = match (pace.count, pace.duration) {
        (Some(count), Some(most)) => format!("{count} messages, at most {} s", most.as_secs_f64()),
        (_, time) => format!("{} s", time.unwrap_or_default().as_secs_f64()),
    };
    let order = shape.rate.map(|rate| format!(" at {rate} a second (open loop)")).unwrap_or_default();
    let kept = if shape.per_connection == ONE { "a new one for each message" } else { "kept" };
    let mailboxes = if shape.mailboxes == 1 { "one mailbox".into() } else { format!("{} mailboxes", shape.mailboxes) };
    let what = format!(
        "{amount} of {} bytes{order} over {} connections, {kept}, to {mailboxes}",
        shape.sizes(),
        shape.connections
    );
    let side = |name, is_ours, durability, open: Open| {
        let shape = Arc::clone(&shape);
        let start: Start =
            Box::new(move |settings, dir| Ok(Box::new(Loaded::start(shape, name, is_ours, open, settings, dir)?)));
        Side { name, is_ours, durability, start }
    };
    Workload {
        name: shape.name.clone(),
        what,
        figures: FIGURES,
        published: published::about(&shape.name),
        writes_octets: shape.octets(settings),
        sides: vec![
            side("posthaste", true, ScratchServer::DURABILITY, |_, settings, dir| {
                let server =
                    ScratchServer::start(&settings.program, dir, None).map_err(SideError::failed("posthaste serve"))?;
                Ok(Opened { mail: Some(server.mail.clone()), ..Opened::new(server.address, server.pid(), server) })
            }),
            side("posthaste sink", true, Sink::DURABILITY, |_, settings, dir| {
                let sink = Sink::start(&settings.program, dir)?;
                Ok(Opened::new(sink.address, sink.pid(), sink))
            }),
            side("smtp-sink", false, SmtpSink::DURABILITY, |shape, _, dir| {
                let sink = SmtpSink::start(dir, shape.connections as usize)?;
                Ok(Opened::new(sink.address, sink.pid(), sink))
            }),
            side("Postfix", false, Postfix::DURABILITY, |shape, _, dir| {
                let postfix = Postfix::start(dir, shape.mailboxes)?;
                let is_narrow = shape.connections as usize > PROCESSES_MAX;
                let note = || format!("{PROCESSES_MAX} of the {} connections are served at a time", shape.connections);
                Ok(Opened {
                    mail: Some(postfix.mail.clone()),
                    notes: is_narrow.then(note).into_iter().collect(),
                    ..Opened::new(postfix.address, postfix.pid(), postfix)
                })
            }),
        ],
    }
}

impl Shape {
    fn sizes(&self) -> Sizes {
        self.size.parse().expect("sizes in the table are right")
    }

    /// Octets that a round writes, about; for a round limited by time, those of a fast server.
    fn octets(&self, settings: &Settings) -> u64 {
        let pace = self.pace(settings);
        let seconds = pace.duration.unwrap_or_default().as_secs_f64();
        let messages = pace.count.unwrap_or((pace.rate.unwrap_or(FAST_RATE) * seconds) as u64);
        let largest = self.sizes().classes.iter().map(|class| class.1).max().unwrap_or(0);
        messages.saturating_mul(largest as u64)
    }

    /// The pace in the size that the settings ask for. A count is limited in time too, because of the slower sides.
    fn pace(&self, settings: &Settings) -> Pace {
        let (count, duration) = match self.amount {
            Amount::Count(count) => (Some(settings.count(count, COUNT_LEAST)), settings.round_max),
            Amount::Time(time) => (None, settings.time(time, TIME_LEAST).min(settings.round_max)),
        };
        Pace {
            rate: self.rate,
            arrivals: Arrivals::Even,
            count,
            duration: Some(duration),
            warmup: WARMUP.min(duration / 2),
        }
    }
}

/// Starts the server of a side.
type Open = fn(&Shape, &Settings, &Path) -> Result<Opened, SideError>;

/// A server that listens.
struct Opened {
    address: SocketAddr,
    /// Process id of its main process, the ancestor of all others.
    pid: u32,
    /// Directory in which acknowledged mail can be found, if there is one.
    mail: Option<PathBuf>,
    /// Remarks for the reader.
    notes: Vec<String>,
    /// Stops the server when dropped.
    holds: Box<dyn Serving>,
}

impl Opened {
    fn new(address: SocketAddr, pid: u32, holds: impl Serving + 'static) -> Self {
        Self { address, pid, mail: None, notes: Vec::new(), holds: Box::new(holds) }
    }
}

/// A running server.
trait Serving {
    /// True if no acknowledged message waits for delivery, as far as that can be seen from outside.
    fn has_delivered(&self) -> bool {
        true
    }
}

impl Serving for ScratchServer {}
impl Serving for Sink {}
impl Serving for SmtpSink {}
impl Serving for Postfix {
    fn has_delivered(&self) -> bool {
        self.queue_is_empty()
    }
}

/// A server under load.
struct Loaded {
    shape: Arc<Shape>,
    side: &'static str,
    is_ours: bool,
    server: Opened,
    dir: PathBuf,
    pool: Arc<Pool>,
    ledgers: Vec<Ledger>,
    /// Rounds after which it was still busy at the time limit.
    rounds_without_rest: u32,
}

/// Timeout for the delivery of acknowledged mail.
const DELIVERY_MAX: Duration = Duration::from_secs(120);
/// Time limit for its processes to become idle after that.
const REST_MAX: Duration = Duration::from_secs(20);
/// Time after which missing acknowledged mail counts as lost.
const SETTLE_MAX: Duration = Duration::from_secs(60);
/// `SETTLE_MAX` for a run that was stopped.
const SETTLE_MAX_STOPPED: Duration = Duration::from_secs(10);
/// Interval between reads of the server's counters.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

impl Loaded {
    fn start(
        shape: Arc<Shape>,
        side: &'static str,
        is_ours: bool,
        open: Open,
        settings: &Settings,
        dir: &Path,
    ) -> Result<Self, SideError> {
        let server = open(&shape, settings, dir)?;
        let pool = Arc::new(Pool::generated(&shape.sizes(), &[], SENDER, 1));
        Ok(Self {
            shape,
            side,
            is_ours,
            server,
            dir: dir.to_owned(),
            pool,
            ledgers: Vec::new(),
            rounds_without_rest: 0,
        })
    }

    fn plan(&self, settings: &Settings) -> Plan {
        let domains = vec!["localhost".parse().expect("a domain")];
        Plan {
            run: fresh_run(),
            servers: vec![Target {
                name: self.side.into(),
                address: Address::Tcp(self.server.address),
                protocol: Protocol::Smtp,
                tls: TlsStart::Never,
                tls_name: None,
            }],
            connections: self.shape.connections as usize,
            threads: 1,
            pace: self.shape.pace(settings),
            rounds: 1,
            per_connection: self.shape.per_connection,
            pipelining: Pipelining::On,
            bdat: false,
            sender: SENDER.into(),
            recipients: Recipients::Made { users: self.shape.mailboxes, domains },
            recipients_per_message: 1,
            helo: "bench.invalid".into(),
            auth: None,
            injecting: Injecting::default(),
            tls: None,
            pool: Arc::clone(&self.pool),
            timeout: Duration::from_secs(60),
            drain: Duration::from_secs(10),
            give_up: Duration::from_secs(10),
            outages: None,
        }
    }

    /// Waits until everything is delivered and the processes are idle. Returns the start of the idle time, `None` at
    /// the time limit.
    fn rest(&self, sampler: &mut Sampler, settings: &Settings) -> Option<Instant> {
        let begun = Instant::now();
        while !self.server.holds.has_delivered() {
            if begun.elapsed() > DELIVERY_MAX.min(settings.round_max * 4) || settings.is_stopped() {
                return None;
            }
            std::thread::sleep(SAMPLE_EVERY);
            sampler.sample();
        }
        wait_until_idle(sampler, REST_MAX.min(settings.round_max))
    }

    /// The load tool's own report of a round, with its course in time.
    fn write_report(&self, about: About, outcome: &Outcome, dir: &Path) -> Result<(), SideError> {
        let name = format!("{}-{}-{}", self.shape.name, self.side.replace(' ', "-"), self.ledgers.len());
        Report::new(about, outcome, None).write_to(&dir.join(name)).map_err(SideError::failed("report"))
    }
}

const SENDER: &str = "bench@localhost";

impl Running for Loaded {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let plan = self.plan(settings);
        let about = About {
            title: Some(format!("{}: {}", self.shape.name, self.side)),
            command: settings.command.clone(),
            started: SystemTime::now(),
            plan: PlanSummary::new(&plan, self.shape.sizes().to_string()),
            notes: vec!["the server's cost is counted until it has come to rest".into()],
        };
        let mut sampler = Sampler::new(&[self.server.pid], Instant::now());
        let mut watch = |_: &Progress<'_>| {
            sampler.sample();
        };
        let mut outcome = run(plan, &[], &Arc::clone(&settings.stop).into(), SAMPLE_EVERY, &mut watch)
            .map_err(SideError::failed("load"))?;
        let rested = self.rest(&mut sampler, settings);
        self.rounds_without_rest += u32::from(rested.is_none());
        // What lies in the page cache yet, of whatever side, is a debt of the round.
        let synced = Instant::now();
        write_back(&self.dir);
        let on_disk = rested.map(|rested| rested.saturating_duration_since(outcome.begun) + synced.elapsed());
        outcome.server = Some(sampler.finish());
        // Whatever else comes of the round, its mail is owed.
        self.ledgers.push(outcome.ledger.clone());
        if let Some(dir) = &settings.report {
            self.write_report(about, &outcome, dir)?;
        }
        figures(&outcome, on_disk)
    }

    fn finish(self: Box<Self>, settings: &Settings) -> Result<Vec<String>, SideError> {
        let mut notes = self.server.notes.clone();
        if self.rounds_without_rest > 0 {
            let (some, all) = (self.rounds_without_rest, self.ledgers.len());
            notes.push(format!("still at work when time to rest was up, after {some} of {all} rounds"));
        }
        let Some(mail) = &self.server.mail else { return Ok(notes) };
        let (mut acked, mut faults) = (0, Vec::new());
        for ledger in &self.ledgers {
            let account = look_for(ledger, mail, settings)?;
            acked += account.acked;
            if !account.is_clean() {
                faults.push(account.to_text(3).trim_end().replace('\n', "; "));
            }
        }
        // The server goes only now: what it has promised had to come to its mailbox.
        drop(self.server.holds);
        if faults.is_empty() {
            let found =
                format!("{acked} messages acknowledged in all rounds, each found once and unaltered in its mailbox");
            // None was, where the run was stopped before.
            notes.extend((acked > 0).then_some(found));
            return Ok(notes);
        }
        let verdict = format!("of what was acknowledged: {}", faults.join("; "));
        // Ours has failed then; of a peer it is told.
        if self.is_ours { Err(SideError::Failed(verdict)) } else { Ok([notes, vec![verdict]].concat()) }
    }
}

/// Looks for acknowledged mail until nothing is missing or time is up.
fn look_for(ledger: &Ledger, mail: &Path, settings: &Settings) -> Result<Account, SideError> {
    let begun = Instant::now();
    loop {
        let looked = Instant::now();
        let account = account(ledger, &[mail.to_owned()], &[], None).map_err(SideError::failed("account"))?;
        let patience = if settings.is_stopped() { SETTLE_MAX_STOPPED } else { SETTLE_MAX };
        if account.lost.is_empty() || begun.elapsed() > patience {
            return Ok(account);
        }
        // The server shall have as much time for delivery as looking takes from it.
        std::thread::sleep(looked.elapsed().max(Duration::from_millis(200)));
    }
}

/// Figures of a round. `on_disk`: time from the first message until all were delivered and written to the disk.
fn figures(outcome: &Outcome, on_disk: Option<Duration>) -> Result<Sample, SideError> {
    let total = &outcome.total;
    if total.acked == 0 {
        let error = outcome.errors.first().map(|error| format!("{} ({})", error.class, error.example));
        return Err(SideError::Failed(format!("nothing was acknowledged: {}", error.unwrap_or_default())));
    }
    let messages = outcome.ledger.acked();
    let cpu_us = |usage: &Usage| Cost::new(usage.clone(), messages).cpu_us_per_message;
    let mut sample = crate::run::sample([
        ("rate", total.rate),
        ("acked_percent", total.acked as f64 * 100.0 / (total.acked + total.failed + total.missed) as f64),
        ("p50_us", total.latency.p50_us as f64),
        ("p99_us", total.latency.p99_us as f64),
        ("p999_us", total.latency.p999_us as f64),
        ("longest_us", total.latency.max_us as f64),
        ("generator_cpu_us", cpu_us(&outcome.generator)),
    ]);
    sample.extend(on_disk.map(|time| ("disk_rate".into(), messages as f64 / time.as_secs_f64())));
    if let Some(server) = &outcome.server {
        sample.insert("server_cpu_us".into(), cpu_us(server));
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_row_belongs_to_a_workload_and_shows_figures_that_are_measured() {
        let settings = Settings::new("posthaste".into());
        let all: Vec<Workload> =
            crate::SUITES.iter().chain(crate::LONG_SUITES).flat_map(|suite| (suite.workloads)(&settings)).collect();
        for row in published::ROWS {
            let workload = all.iter().find(|workload| workload.name == row.workload);
            let workload = workload.unwrap_or_else(|| panic!("{row:?} is of no workload"));
            assert!(crate::suite::fits(row, workload.figures), "{row:?}");
        }
        let mut names: Vec<_> = all.iter().map(|workload| workload.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len(), "a name is given once: {names:?}");
    }

    #[test]
    fn a_scaled_workload_says_what_is_really_sent() {
        let mut settings = Settings::new("posthaste".into());
        let what = |settings: &Settings, name: &str| {
            workloads(settings).into_iter().find(|workload| workload.name == name).unwrap().what
        };
        assert_eq!(
            what(&settings, "kumomta"),
            "100000 messages, at most 60 s of 100k bytes over 2000 connections, kept, to 100 mailboxes"
        );
        settings.scale = 0.05;
        settings.round_max = Duration::from_secs(4);
        assert_eq!(
            what(&settings, "kumomta"),
            "5000 messages, at most 4 s of 100k bytes over 2000 connections, kept, to 100 mailboxes"
        );
        assert_eq!(
            what(&settings, "prixfixe-sustained"),
            "1.5 s of 10k bytes at 50 a second (open loop) over 20 connections, a new one for each message, to 20 mailboxes"
        );
    }
}
