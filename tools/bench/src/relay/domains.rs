//! Many domains, with bounces, deferrals, slow and dead hosts among them: the effect of bad destinations on good ones.
//!
//! An open loop brings equally many good recipients a second to the sides with and without bad ones, so that only the
//! bad ones differ. A third side has good ones in place of the bad, to separate the cost of more mail from the cost of
//! bad mail. Each round has a server of its own, as deferred mail stays in the queue.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_loadgen::account::Ledger;
use posthaste_loadgen::load::{Plan, Progress, Recipients, run};
use posthaste_loadgen::measure::Latencies;
use posthaste_loadgen::resources::Sampler;
use posthaste_loadgen::scratch::subdirectory;
use posthaste_loadgen::server::ScratchServer;

use super::destinations::{self, DOMAINS, KINDS, Kind, SILENT, SINK_RULES, kind_of};
use super::loaded::{plan, pool};
use super::machine::Machine;
use super::ours::Ours;
use super::outcomes::{Line, Outcomes, elapsed_us};
use super::silent::Silent;
use super::{DELIVERY_MAX, LOOK, SINK_MOST, SINK_OPENED, Timeline, accounting, time};
use crate::published;
use crate::sink::{Connections, Sink};
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Start, Unit, Workload};

const FIGURES: &[Figure] = &[
    Figure { key: "good_p99_us", name: "p99 to good ones", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "good_p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "good_p999_us", name: "p99.9", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "good_rate", name: "good ones/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "bad_rate", name: "others/s", unit: Unit::PerSecond, better: Better::Neither },
    Figure { key: "slow_p50_us", name: "p50 to slow ones", unit: Unit::Micros, better: Better::Neither },
    Figure { key: "machine_cpu_us", name: "CPU of the machine", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "depth_max", name: "most in the queue", unit: Unit::Count, better: Better::Lower },
    SINK_MOST,
    SINK_OPENED,
    Figure { key: "memory_bytes", name: "server memory, bytes", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "steal_percent", name: "steal", unit: Unit::Percent, better: Better::Lower },
];

/// Good recipients a second: far below the machine's limit, since a p99 at the limit measures the backlog.
const GOOD_RATE: f64 = 1000.0;
const CONNECTIONS: u32 = 50;
const SIZE: &str = "10k";
/// The server's default.
const RING_SEGMENTS: u64 = 64;
/// Shortest round with silent hosts: a shorter one would only wait for connections to time out.
const SILENT_MIN: Duration = Duration::from_secs(10);

pub(super) fn workload(settings: &Settings) -> Workload {
    let time = time(settings);
    let rate = GOOD_RATE / good_share(&destinations::recipients(true));
    let side = |name, with_bad, rate| {
        let start: Start = Box::new(move |_, dir| Ok(Box::new(Domains::new(with_bad, rate, dir)?)));
        Side { name, is_ours: true, durability: ScratchServer::DURABILITY, start }
    };
    Workload {
        name: "relay-domains".into(),
        what: format!(
            "{} s of {SIZE}, {GOOD_RATE} good recipients a second to {DOMAINS} domains with a mail host each and skewed weights, open loop; \
             in the first row others on top: 5 % are refused for good, 10 % for now, one domain in 50 is slow, one dead; in the third as many more, all good; times are from reception to the record of the delivery",
            time.as_secs_f64(),
        ),
        figures: FIGURES,
        published: published::about("relay-domains"),
        writes_octets: (time.as_secs_f64() * GOOD_RATE * 2.0) as u64 * 10_240,
        sides: vec![
            side("posthaste", true, rate),
            side("posthaste without the bad ones", false, GOOD_RATE),
            side("posthaste with good ones in their place", false, rate),
        ],
    }
}

struct Domains {
    dir: PathBuf,
    recipients: Vec<String>,
    /// Recipients a second, of all fates.
    rate: f64,
    rounds: u32,
    accounted: [u64; KINDS.len()],
    timeline: Timeline,
    notes: Vec<String>,
}

impl Domains {
    fn new(with_bad: bool, rate: f64, dir: &Path) -> Result<Self, SideError> {
        let recipients = destinations::recipients(with_bad);
        let (dir, accounted, timeline) = (dir.to_owned(), Default::default(), Timeline::default());
        Ok(Self { dir, recipients, rate, rounds: 0, accounted, timeline, notes: Vec::new() })
    }

    fn kind(&self, number: u64) -> Kind {
        kind_of(&self.recipients[number as usize % self.recipients.len()]).expect("an address of ours")
    }

    fn plan(&self, address: std::net::SocketAddr, settings: &Settings) -> Plan {
        let pool = pool(&SIZE.parse().expect("a size"));
        let mut plan = plan(address, CONNECTIONS as usize, &pool, time(settings));
        plan.pace.rate = Some(self.rate);
        plan.recipients = Recipients::Listed(self.recipients.clone());
        plan
    }
}

fn good_share(recipients: &[String]) -> f64 {
    let good = recipients.iter().filter(|address| kind_of(address) == Some(Kind::Good)).count();
    good as f64 / recipients.len() as f64
}

/// A message, which has one recipient.
struct Message {
    kind: Kind,
    /// Time of receipt in microseconds since midnight.
    received: u64,
    is_deferred: bool,
}

/// Counts from the event log for the recipients of each kind.
#[derive(Default)]
struct Tally {
    /// Messages by number.
    messages: HashMap<u64, Message>,
    received: u64,
    delivered: [u64; KINDS.len()],
    deferred: [u64; KINDS.len()],
    given_up: [u64; KINDS.len()],
    good: Latencies,
    slow: Latencies,
}

impl Tally {
    fn line(&mut self, line: Line<'_>) {
        let (Some(message), Some(at)) = (line.message(), line.time_us()) else { return };
        if line.event() == "received" {
            if let Some(kind) = line.first_recipient().and_then(kind_of) {
                self.messages.insert(message, Message { kind, received: at, is_deferred: false });
                self.received += 1;
            }
            return;
        }
        let Some(Message { kind, received, is_deferred }) = self.messages.get_mut(&message) else { return };
        let counts = match line.event() {
            "delivered" => &mut self.delivered,
            // Once, however many attempts there are.
            "deferred" if !std::mem::replace(is_deferred, true) => &mut self.deferred,
            "bounced" | "expired" | "suppressed" => &mut self.given_up,
            _ => return,
        };
        counts[*kind as usize] += 1;
        let latency = Duration::from_micros(elapsed_us(*received, at));
        match (line.event(), kind) {
            ("delivered", Kind::Good) => self.good.record(latency),
            ("delivered", Kind::Slow) => self.slow.record(latency),
            _ => {}
        }
    }

    /// Recipients whose outcome is not recorded yet, as far as one is to come.
    fn missing(&self, acked: &[u64; KINDS.len()]) -> u64 {
        let of = |kind: Kind, counts: &[u64]| acked[kind as usize].saturating_sub(counts[kind as usize]);
        of(Kind::Good, &self.delivered)
            + of(Kind::Slow, &self.delivered)
            + of(Kind::Bounced, &self.given_up)
            + of(Kind::Deferred, &self.deferred)
    }

    fn settled(&self) -> u64 {
        self.delivered.iter().chain(&self.given_up).sum()
    }

    /// Describes an impossible record.
    fn mistake(&self, acked: &[u64; KINDS.len()]) -> Option<String> {
        KINDS.iter().find_map(|kind| {
            let at = *kind as usize;
            let (delivered, given_up) = (self.delivered[at], self.given_up[at]);
            let expected = match kind {
                Kind::Good | Kind::Slow => (acked[at], 0),
                Kind::Bounced => (0, acked[at]),
                Kind::Deferred | Kind::Dead => (0, 0),
            };
            let found = (delivered, given_up);
            (found != expected).then(|| format!("{kind:?}: {found:?} delivered and given up instead of {expected:?}"))
        })
    }
}

impl Running for Domains {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        self.rounds += 1;
        let dir = subdirectory(&self.dir, &format!("round-{}", self.rounds)).map_err(SideError::failed("directory"))?;
        let (account, rules) = (dir.join("sink.jsonl"), dir.join("sink.toml"));
        std::fs::write(&rules, SINK_RULES).map_err(SideError::failed("rules of the sink"))?;
        let mut sink = Sink::start_with_rules(&settings.program, &dir, &account, &rules)?;
        let is_short = time(settings) < SILENT_MIN;
        let _silent = (!is_short).then(|| Silent::start((SILENT, sink.address.port()).into())).transpose()?;
        let ours = Ours::start(settings, &dir, destinations::zone(), sink.address.port(), RING_SEGMENTS)?;
        self.notes.clone_from(&ours.notes);
        if is_short {
            self.notes.push(
                "all dead hosts refuse connections: the round is too short for those that never answer".to_owned(),
            );
        }

        let (mut outcomes, mut tally) = (Outcomes::new(&ours.events), Tally::default());
        self.timeline = Timeline::default();
        let plan = self.plan(ours.server.address, settings);
        let mut sampler = Sampler::new(&[ours.server.pid()], Instant::now());
        let (begun, machine) = (Instant::now(), Machine::now());
        let mut looked = Ok(());
        let mut watch = |_: &Progress<'_>| {
            sampler.sample();
            if looked.is_ok() {
                looked = outcomes.read_each(&mut |line| tally.line(line)).map(drop);
                self.timeline.add(begun.elapsed().as_secs_f64(), tally.received, tally.settled());
            }
        };

        let outcome = run(plan, &[], &Arc::clone(&settings.stop).into(), LOOK, &mut watch);
        looked?;
        let outcome = outcome.map_err(SideError::failed("load"))?;
        let loaded = begun.elapsed();

        let mut acked = [0; KINDS.len()];
        let mut arrives = Ledger::new(outcome.ledger.run);
        for (number, expected) in outcome.ledger.iter() {
            let kind = self.kind(number);
            acked[kind as usize] += u64::from(expected.acked);
            if expected.uncertain > 0 {
                return Err(SideError::Failed(format!("message {number} has no reply")));
            }
            if matches!(kind, Kind::Good | Kind::Slow) {
                arrives.set(number, expected.acked, 0);
            }
        }
        let waited = Instant::now();
        loop {
            let counts = outcomes.read_each(&mut |line| tally.line(line))?;
            self.timeline.add(begun.elapsed().as_secs_f64(), tally.received, tally.settled());
            let missing = tally.missing(&acked);
            if counts.left_out > 0 {
                return Err(SideError::Failed("the event log has left out events".into()));
            }
            if missing == 0 {
                break;
            }
            if waited.elapsed() > DELIVERY_MAX || settings.is_stopped() {
                let seconds = waited.elapsed().as_secs();
                return Err(SideError::Failed(format!(
                    "{missing} outcomes are not recorded {seconds} s after the load"
                )));
            }
            std::thread::sleep(LOOK);
            sampler.sample();
        }
        let machine = Machine::now().since(machine);
        if let Some(mistake) = tally.mistake(&acked) {
            return Err(SideError::Failed(mistake));
        }
        accounting::check_when_written(&arrives, &account)?;
        let stays = acked[Kind::Deferred as usize] + acked[Kind::Dead as usize];
        let waits = waiting(&settings.program, &ours.config, &dir)?;
        if waits != stays {
            return Err(SideError::Failed(format!("{waits} recipients are in the queue instead of {stays}")));
        }
        acked.iter().zip(&mut self.accounted).for_each(|(acked, all)| *all += acked);

        let usage = sampler.finish();
        let (all, good) = (acked.iter().sum::<u64>(), acked[Kind::Good as usize]);
        let mut sample = crate::run::sample([
            ("good_p99_us", tally.good.percentile_us(0.99) as f64),
            ("good_p50_us", tally.good.percentile_us(0.5) as f64),
            ("good_p999_us", tally.good.percentile_us(0.999) as f64),
            ("good_rate", good as f64 / loaded.as_secs_f64()),
            ("bad_rate", (all - good) as f64 / loaded.as_secs_f64()),
            ("machine_cpu_us", machine.busy_us / all.max(1) as f64),
            ("depth_max", self.timeline.depth_max() as f64),
            ("memory_bytes", usage.memory_octets_max as f64),
            ("steal_percent", machine.steal_us * 100.0 / machine.all_us.max(1.0)),
        ]);
        sample.extend(sink.connections()?.since(Connections::default()));
        if tally.slow.count() > 0 {
            sample.insert("slow_p50_us".into(), tally.slow.percentile_us(0.5) as f64);
        }
        Ok(sample)
    }

    fn timeline(&mut self) -> Option<Timeline> {
        Some(std::mem::take(&mut self.timeline)).filter(|timeline| !timeline.at_s.is_empty())
    }

    fn finish(self: Box<Self>, _: &Settings) -> Result<Vec<String>, SideError> {
        let mut notes = self.notes;
        let [good, bounced, deferred, slow, dead] = self.accounted;
        if good > 0 {
            notes.push(format!(
                "acknowledged in all rounds: {good} good and {slow} slow ones, each found once and unaltered in the sink; {bounced} given up; {deferred} refused for now and {dead} to dead hosts, all in the queue"
            ));
        }
        Ok(notes)
    }
}

/// Recipients in the queue of a running server.
fn waiting(program: &Path, config: &Path, dir: &Path) -> Result<u64, SideError> {
    let mut command = Command::new(program);
    command.current_dir(dir).args(["queue", "summary", "--json", "--config"]).arg(config);
    let output = command.output().map_err(SideError::failed("posthaste queue summary"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let summary: serde_json::Value =
        serde_json::from_str(text.trim()).map_err(SideError::failed("posthaste queue summary"))?;
    let rows = summary["counts"].as_array().into_iter().flatten();
    Ok(rows.filter_map(|row| row["recipients"].as_u64()).sum())
}
