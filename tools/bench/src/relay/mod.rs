//! Mail received and sent on: generator, server and sink are a process each, over TCP on loopback.
//!
//! The generator runs in this process. Bodies are distinct, each message has one recipient, the event log is on, mail
//! hosts are looked up at a DNS server of this process. The clock stops when the last outcome is recorded: our event
//! log has it, which is in the batch of the record; Postfix's queue is empty.

mod accounting;
mod machine;
mod outcomes;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_dns::{Server as Dns, Zone};
use posthaste_loadgen::load::{
    Arrivals, Outcome, Pace, Pipelining, Plan, Pool, Progress, Recipients, Server as Target, fresh_run, run,
};
use posthaste_loadgen::report::Cost;
use posthaste_loadgen::resources::{Sampler, Usage};
use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::{Address, PerConnection, Sizes, TlsStart};
use posthaste_smtp::Protocol;

use crate::peers::{PROCESSES_MAX, Postfix, SmtpSink};
use crate::published;
use crate::run::wait_until_idle;
use crate::sink::Sink;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Start, Suite, Unit, Workload};
use machine::Machine;
use outcomes::{Counts, Outcomes};

pub const SUITE: Suite = Suite {
    name: "relay",
    about: "Mail received, stored and sent on to another host, until the last outcome is recorded: not part of `all`",
    workloads,
};

const FIGURES: &[Figure] = &[
    Figure { key: "rate", name: "received and sent on/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "of_a_billion", name: "of a billion a day", unit: Unit::Times, better: Better::Higher },
    Figure { key: "millions_an_hour", name: "millions an hour", unit: Unit::Count, better: Better::Higher },
    Figure { key: "machine_cpu_us", name: "CPU of the machine", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "cpu_s_a_million", name: "CPU seconds a million", unit: Unit::Count, better: Better::Lower },
    Figure { key: "server_cpu_us", name: "server CPU", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "generator_cpu_us", name: "generator CPU", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p50_us", name: "p50 of receiving", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99 of receiving", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "after_load_us", name: "after the load", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "memory_bytes", name: "server memory, bytes", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "steal_percent", name: "steal", unit: Unit::Percent, better: Better::Lower },
];

/// A thousand million messages a day, in messages a second.
const BILLION_A_DAY: f64 = 1e9 / 86_400.0;
const TIME: Duration = Duration::from_secs(60);
const TIME_LEAST: Duration = Duration::from_secs(1);
/// Messages a second that nobody here has exceeded.
const FAST_RATE: f64 = 20_000.0;
/// How long a side may go on sending what it has acknowledged.
const DELIVERY_MAX: Duration = Duration::from_secs(300);
/// How long its processes may go on working after that.
const REST_MAX: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);
const DESTINATION: &str = "there.example";

/// What is sent.
#[derive(Debug, Clone, Copy)]
struct Shape {
    name: &'static str,
    size: &'static str,
    connections: u32,
}

const SHAPES: [Shape; 5] = [
    Shape { name: "relay-1k", size: "1k", connections: 50 },
    Shape { name: "relay-10k", size: "10k", connections: 50 },
    Shape { name: "relay-100k", size: "100k", connections: 50 },
    Shape { name: "relay-10k-2000", size: "10k", connections: 2000 },
    Shape { name: "relay-100k-2000", size: "100k", connections: 2000 },
];

impl Shape {
    fn sizes(self) -> Sizes {
        self.size.parse().expect("sizes in the table are right")
    }
}

fn workloads(settings: &Settings) -> Vec<Workload> {
    SHAPES.map(|shape| workload(shape, settings)).into()
}

fn time(settings: &Settings) -> Duration {
    settings.time(TIME, TIME_LEAST).min(settings.round_max)
}

fn workload(shape: Shape, settings: &Settings) -> Workload {
    let time = time(settings);
    let largest = shape.sizes().classes.iter().map(|class| class.1).max().unwrap_or(0);
    let side = |name, is_ours, durability, open: Open| {
        let start: Start = Box::new(move |settings, dir| Ok(Box::new(Loaded::start(shape, open, settings, dir)?)));
        Side { name, is_ours, durability, start }
    };
    Workload {
        name: shape.name.into(),
        what: format!(
            "{} s of {} bytes over {} kept connections, one recipient each, to one domain with an MX record",
            time.as_secs_f64(),
            shape.sizes(),
            shape.connections
        ),
        figures: FIGURES,
        published: published::about(shape.name),
        writes_octets: ((time.as_secs_f64() * FAST_RATE) as u64).saturating_mul(largest as u64),
        sides: vec![
            side("posthaste", true, ScratchServer::DURABILITY, |_, settings, dir| {
                let account = dir.join("sink.jsonl");
                let sink = Sink::start_with_account(&settings.program, dir, &account)?;
                let opened = ours(settings, dir, sink.address, sink)?;
                Ok(Opened { account: Some(account), ..opened })
            }),
            side("posthaste to smtp-sink", true, ScratchServer::DURABILITY, |_, settings, dir| {
                let sink = SmtpSink::start(dir, 256)?;
                ours(settings, dir, sink.address, sink)
            }),
            side("Postfix", false, Postfix::DURABILITY, |shape, settings, dir| {
                let account = dir.join("sink.jsonl");
                let sink = Sink::start_with_account(&settings.program, dir, &account)?;
                let postfix = Postfix::start_as_relay(dir, sink.address)?;
                let is_narrow = shape.connections as usize > PROCESSES_MAX;
                let note = || format!("{PROCESSES_MAX} of the {} connections are served at a time", shape.connections);
                Ok(Opened {
                    address: postfix.address,
                    pid: postfix.pid(),
                    end: End::Queue(postfix),
                    account: Some(account),
                    notes: is_narrow.then(note).into_iter().collect(),
                    _holds: Box::new(sink),
                })
            }),
        ],
    }
}

/// Our server, which sends to `next_hop`; `sink` is what listens there.
fn ours(
    settings: &Settings,
    dir: &Path,
    next_hop: SocketAddr,
    sink: impl Sized + 'static,
) -> Result<Opened, SideError> {
    let zone = Zone::default().mx(DESTINATION, 10, "mx.there.example").a("mx.there.example", Ipv4Addr::LOCALHOST);
    let dns = Dns::start(zone);
    let (file, events) = (dir.join("posthaste.toml"), dir.join("events"));
    std::fs::write(&file, config(&events, next_hop, dns.address())).map_err(SideError::failed("configuration"))?;
    let server = ScratchServer::start(&settings.program, dir, Some(&file));
    let server = server.map_err(SideError::failed("posthaste serve"))?;
    Ok(Opened {
        address: server.address,
        pid: server.pid(),
        end: End::Events(Outcomes::new(&events)),
        account: None,
        notes: Vec::new(),
        _holds: Box::new((server, sink, dns)),
    })
}

/// The event log stays in one file, which is read while it grows.
fn config(events: &Path, next_hop: SocketAddr, dns: SocketAddr) -> String {
    format!(
        "host_name = \"relay.example\"
[[listener]]
address = \"127.0.0.1:0\"
[[domain]]
name = \"here.example\"
[log]
level = \"warn\"
[limits]
connections = 5000
connections_per_address = 5000
[events]
enabled = true
dir = {events:?}
file_bytes = \"64 GiB\"
[relay]
networks = [\"127.0.0.1\"]
port = {}
tls = false
[dns]
servers = [\"{dns}\"]
",
        next_hop.port()
    )
}

/// Starts a side.
type Open = fn(Shape, &Settings, &Path) -> Result<Opened, SideError>;

/// A server that listens, and what it sends to.
struct Opened {
    address: SocketAddr,
    /// The process that all the server's others descend from.
    pid: u32,
    end: End,
    /// The sink's account.
    account: Option<PathBuf>,
    notes: Vec<String>,
    /// Ends them when dropped.
    _holds: Box<dyn std::any::Any>,
}

/// How it is seen that every outcome is recorded.
enum End {
    Events(Outcomes),
    Queue(Postfix),
}

/// A server under load.
struct Loaded {
    shape: Shape,
    opened: Opened,
    pool: Arc<Pool>,
    before: Counts,
    acked: u64,
    rates: Vec<f64>,
}

const SENDER: &str = "bench@here.example";

impl Loaded {
    fn start(shape: Shape, open: Open, settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        let opened = open(shape, settings, dir)?;
        let pool = Arc::new(Pool::generated(&shape.sizes(), &[], SENDER, 1));
        Ok(Self { shape, opened, pool, before: Counts::default(), acked: 0, rates: Vec::new() })
    }

    fn plan(&self, settings: &Settings) -> Plan {
        let duration = Some(time(settings));
        Plan {
            run: fresh_run(),
            servers: vec![Target {
                name: "relay".into(),
                address: Address::Tcp(self.opened.address),
                protocol: Protocol::Smtp,
                tls: TlsStart::Never,
                tls_name: None,
            }],
            connections: self.shape.connections as usize,
            threads: 1,
            pace: Pace { rate: None, arrivals: Arrivals::Even, count: None, duration, warmup: Duration::ZERO },
            rounds: 1,
            per_connection: PerConnection::All,
            pipelining: Pipelining::On,
            bdat: false,
            sender: SENDER.into(),
            recipients: Recipients::Listed(vec![format!("ann@{DESTINATION}")]),
            recipients_per_message: 1,
            helo: "bench.invalid".into(),
            auth: None,
            tls: None,
            pool: Arc::clone(&self.pool),
            timeout: Duration::from_secs(60),
            drain: Duration::from_secs(10),
            give_up: Duration::from_secs(10),
            outages: None,
        }
    }

    /// Waits until the outcomes of `acked` messages more than before the round are recorded.
    fn wait_for_outcomes(&mut self, acked: u64, sampler: &mut Sampler, settings: &Settings) -> Result<(), SideError> {
        let begun = Instant::now();
        loop {
            let missing = match &mut self.opened.end {
                End::Events(outcomes) => {
                    let counts = outcomes.read()?;
                    if counts.left_out > self.before.left_out {
                        return Err(SideError::Failed("the event log has left out events".into()));
                    }
                    acked.saturating_sub(counts.delivered - self.before.delivered)
                }
                End::Queue(postfix) => u64::from(!postfix.queue_is_empty()),
            };
            if missing == 0 {
                return Ok(());
            }
            if begun.elapsed() > DELIVERY_MAX || settings.is_stopped() {
                let seconds = begun.elapsed().as_secs();
                return Err(SideError::Failed(match self.opened.end {
                    End::Events(_) => format!("{missing} outcomes are not recorded {seconds} s after the load"),
                    End::Queue(_) => format!("the queue is not empty {seconds} s after the load"),
                }));
            }
            std::thread::sleep(LOOK);
            sampler.sample();
        }
    }
}

impl Running for Loaded {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let plan = self.plan(settings);
        let mut sampler = Sampler::new(&[self.opened.pid], Instant::now());
        let mut watch = |_: &Progress<'_>| {
            sampler.sample();
        };
        let (begun, machine) = (Instant::now(), Machine::now());
        let outcome = run(plan, &[], &Arc::clone(&settings.stop).into(), LOOK, &mut watch);
        let outcome = outcome.map_err(SideError::failed("load"))?;
        let (loaded, acked) = (Instant::now(), outcome.ledger.acked());
        self.wait_for_outcomes(acked, &mut sampler, settings)?;
        let (whole, machine) = (begun.elapsed(), Machine::now().since(machine));
        let after_load = loaded.elapsed();
        wait_until_idle(&mut sampler, REST_MAX.min(settings.round_max));
        if let End::Events(outcomes) = &mut self.opened.end {
            let now = outcomes.read()?;
            let delivered = now.delivered - self.before.delivered;
            if outcome.ledger.iter().all(|(_, expected)| expected.uncertain == 0) && delivered != acked {
                return Err(SideError::Failed(format!("{acked} acknowledged, {delivered} recorded as delivered")));
            }
            self.before = now;
        }
        if let Some(file) = &self.opened.account {
            accounting::check_when_written(&outcome.ledger, file)?;
        }
        self.acked += acked;
        let sample = figures(&outcome, &sampler.finish(), machine, whole, after_load)?;
        self.rates.extend(sample.get("machine_cpu_us"));
        Ok(sample)
    }

    fn finish(self: Box<Self>, _: &Settings) -> Result<Vec<String>, SideError> {
        let mut notes = self.opened.notes.clone();
        let how = match self.opened.account {
            Some(_) => "each found once and unaltered in the sink",
            None => "each recorded once as delivered; the sink keeps no account",
        };
        if self.acked > 0 {
            notes.push(format!("{} messages acknowledged in all rounds, {how}", self.acked));
        }
        if let Some(least) = self.rates.iter().copied().reduce(f64::min) {
            notes.push(format!(
                "by extrapolation, not measured: {:.0} a second for each core, generator and sink included",
                1e6 / least
            ));
        }
        Ok(notes)
    }
}

fn figures(
    outcome: &Outcome,
    server: &Usage,
    machine: Machine,
    whole: Duration,
    after_load: Duration,
) -> Result<Sample, SideError> {
    let messages = outcome.ledger.acked();
    if messages == 0 {
        let error = outcome.errors.first().map(|error| format!("{} ({})", error.class, error.example));
        return Err(SideError::Failed(format!("nothing was acknowledged: {}", error.unwrap_or_default())));
    }
    let rate = messages as f64 / whole.as_secs_f64();
    let cpu_us = |usage: &Usage| Cost::new(usage.clone(), messages).cpu_us_per_message;
    let machine_us = machine.busy_us / messages as f64;
    Ok(crate::run::sample([
        ("rate", rate),
        ("of_a_billion", rate / BILLION_A_DAY),
        ("millions_an_hour", rate * 3600.0 / 1e6),
        ("machine_cpu_us", machine_us),
        // A microsecond each is a second for a million.
        ("cpu_s_a_million", machine_us),
        ("server_cpu_us", cpu_us(server)),
        ("generator_cpu_us", cpu_us(&outcome.generator)),
        ("p50_us", outcome.total.latency.p50_us as f64),
        ("p99_us", outcome.total.latency.p99_us as f64),
        ("after_load_us", after_load.as_secs_f64() * 1e6),
        ("memory_bytes", server.memory_octets_max as f64),
        ("steal_percent", machine.steal_us * 100.0 / machine.all_us.max(1.0)),
    ]))
}
