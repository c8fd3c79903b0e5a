//! A queue of millions of deferred recipients: its memory, the time of a start, and the rate of other mail meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_loadgen::load::{Outcome, Progress, run};
use posthaste_loadgen::resources::Sampler;
use posthaste_loadgen::server::ScratchServer;
use posthaste_units::count;

use super::loaded::{figures, plan, pool};
use super::machine::Machine;
use super::ours::{self, Ours};
use super::outcomes::{Counts, Outcomes};
use super::{DELIVERY_MAX, DESTINATION, LOOK, REST_MAX, TIME_LEAST, Timeline, accounting, backlog};
use crate::pages::OpenPages;
use crate::published;
use crate::run::wait_until_idle;
use crate::sink::Sink;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Start, Unit, Workload};

const FIGURES: &[Figure] = &[
    Figure { key: "rate", name: "relayed/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "start_us", name: "start", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "first_us", name: "start to first delivery", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "idle_bytes", name: "memory after it, bytes", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "memory_bytes", name: "memory under load, bytes", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "machine_cpu_us", name: "CPU of the machine", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "server_cpu_us", name: "server CPU", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "steal_percent", name: "steal", unit: Unit::Percent, better: Better::Lower },
];

const TIME: Duration = Duration::from_secs(30);
const CONNECTIONS: u32 = 50;
const SIZE: &str = "10k";
/// The server's default.
const RING_SEGMENTS: u64 = 64;
/// Octets on disk of a waiting message.
const WAITING_BYTES: u64 = 500;

pub(super) fn workloads(settings: &Settings) -> Vec<Workload> {
    [("relay-deferred-1m", 1_000_000), ("relay-deferred-10m", 10_000_000)]
        .map(|(name, recipients)| workload(name, settings.count(recipients, 1000), settings))
        .into()
}

fn workload(name: &str, recipients: u64, settings: &Settings) -> Workload {
    let time = time(settings);
    let side = |name, recipients, pages| {
        let start: Start =
            Box::new(move |settings, dir| Ok(Box::new(Deferred::start(recipients, pages, settings, dir)?)));
        Side { name, is_ours: true, durability: ScratchServer::DURABILITY, start }
    };
    Workload {
        name: name.into(),
        what: format!(
            "{} s of {SIZE} over {CONNECTIONS} kept connections to one domain, while {} of one recipient each to {} domains wait, refused once",
            time.as_secs_f64(),
            count(recipients, "message"),
            backlog::DOMAINS.min(recipients),
        ),
        figures: FIGURES,
        published: published::about(name),
        writes_octets: (time.as_secs_f64() * super::FAST_RATE) as u64 * 10_240 + recipients * WAITING_BYTES,
        sides: vec![
            side("posthaste", recipients, false),
            side("posthaste with five pages open", recipients, true),
            side("posthaste with an empty queue", 0, false),
        ],
    }
}

fn time(settings: &Settings) -> Duration {
    settings.time(TIME, TIME_LEAST).min(settings.round_max)
}

/// Each round restarts the server on the same data.
struct Deferred {
    recipients: u64,
    /// True if five browsers have the page open while mail comes.
    pages: bool,
    dir: PathBuf,
    sink: Sink,
    account: PathBuf,
    before: Counts,
    acked: u64,
    timeline: Timeline,
    notes: Vec<String>,
}

impl Deferred {
    fn start(recipients: u64, pages: bool, settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        if recipients > 0 {
            backlog::write(&Ours::spool(dir), recipients, backlog::DOMAINS)?;
        }
        let account = dir.join("sink.jsonl");
        let sink = Sink::start_with_account(&settings.program, dir, &account)?;
        let (before, timeline) = (Counts::default(), Timeline::default());
        let dir = dir.to_owned();
        Ok(Self { recipients, pages, dir, sink, account, before, acked: 0, timeline, notes: Vec::new() })
    }

    /// Waits until `acked` more messages than before are recorded as delivered.
    fn wait(
        &self,
        outcomes: &mut Outcomes,
        acked: u64,
        settings: &Settings,
        each: &mut dyn FnMut(Counts),
    ) -> Result<(), SideError> {
        let begun = Instant::now();
        loop {
            let counts = outcomes.read()?;
            each(counts);
            let missing = acked.saturating_sub(counts.delivered - self.before.delivered);
            if missing == 0 {
                return Ok(());
            }
            if begun.elapsed() > DELIVERY_MAX || settings.is_stopped() {
                return Err(SideError::Failed(format!("{missing} outcomes are not recorded")));
            }
            std::thread::sleep(FIRST_LOOK);
        }
    }

    fn load(
        &mut self,
        ours: &Ours,
        outcomes: &mut Outcomes,
        settings: &Settings,
        duration: Duration,
        first: Option<u64>,
        sampler: &mut Sampler,
    ) -> Result<Outcome, SideError> {
        let mut plan = plan(ours.server.address, CONNECTIONS as usize, &pool(&SIZE.parse().expect("a size")), duration);
        if let Some(count) = first {
            (plan.connections, plan.pace.count, plan.pace.duration) = (1, Some(count), None);
        }
        let begun = Instant::now();
        let (mut looked, before, timeline) = (Ok(()), self.before, &mut self.timeline);
        let mut watch = |_: &Progress<'_>| {
            sampler.sample();
            if looked.is_ok() {
                let look = |now: Counts| {
                    timeline.add(
                        begun.elapsed().as_secs_f64(),
                        now.received - before.received,
                        now.delivered - before.delivered,
                    );
                };
                looked = outcomes.read().map(look);
            }
        };
        let outcome = run(plan, &[], &Arc::clone(&settings.stop).into(), LOOK, &mut watch);
        looked?;
        let outcome = outcome.map_err(SideError::failed("load"))?;
        let acked = outcome.ledger.acked();
        self.wait(outcomes, acked, settings, &mut |_| ())?;
        self.acked += acked;
        Ok(outcome)
    }
}

const FIRST_LOOK: Duration = Duration::from_millis(5);

impl Running for Deferred {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let begun = Instant::now();
        let ours = Ours::start(settings, &self.dir, ours::zone(DESTINATION), self.sink.address.port(), RING_SEGMENTS)?;
        let started = begun.elapsed();
        self.notes.clone_from(&ours.notes);
        let mut sampler = Sampler::new(&[ours.server.pid()], Instant::now());
        // The log of the rounds before is read over.
        let mut outcomes = Outcomes::new(&ours.events);
        self.before = outcomes.read()?;
        let one = self.load(&ours, &mut outcomes, settings, Duration::ZERO, Some(1), &mut sampler)?;
        let first = begun.elapsed();
        accounting::check_when_written(&one.ledger, &self.account)?;
        let idle = sampler.sample().memory_octets;

        let pages = if self.pages { Some(OpenPages::open(&ours.server)?) } else { None };
        (self.before, self.timeline) = (outcomes.read()?, Timeline::default());
        let (begun, machine) = (Instant::now(), Machine::now());
        let mut sampler = Sampler::new(&[ours.server.pid()], Instant::now());
        let outcome = self.load(&ours, &mut outcomes, settings, time(settings), None, &mut sampler)?;
        let (whole, machine) = (begun.elapsed(), Machine::now().since(machine));
        wait_until_idle(&mut sampler, REST_MAX.min(settings.round_max));
        accounting::check_when_written(&outcome.ledger, &self.account)?;
        pages.map(OpenPages::close).transpose()?;
        let mut sample = figures(&outcome, &sampler.finish(), machine, whole, Duration::ZERO)?;
        sample.retain(|key, _| FIGURES.iter().any(|figure| figure.key == key));
        for (key, value) in [
            ("start_us", started.as_secs_f64() * 1e6),
            ("first_us", first.as_secs_f64() * 1e6),
            ("idle_bytes", idle as f64),
        ] {
            sample.insert(key.into(), value);
        }
        Ok(sample)
    }

    fn timeline(&mut self) -> Option<Timeline> {
        Some(std::mem::take(&mut self.timeline)).filter(|timeline| !timeline.at_s.is_empty())
    }

    fn finish(self: Box<Self>, _: &Settings) -> Result<Vec<String>, SideError> {
        // The server of the last round has ended in order.
        let waits = if self.recipients > 0 { backlog::count(&Ours::spool(&self.dir))? } else { 0 };
        if waits != self.recipients {
            return Err(SideError::Failed(format!("{waits} recipients wait instead of {}", self.recipients)));
        }
        let mut notes = self.notes;
        notes.push(format!(
            "{} messages acknowledged in all rounds, each found once and unaltered in the sink; {waits} recipients still wait",
            self.acked
        ));
        Ok(notes)
    }
}
