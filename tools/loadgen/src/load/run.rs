//! A run from its first connection to its last verdict: starts the threads and collects their reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::outages::{Kill, Outages};
use super::plan::Plan;
use super::schedule::Schedule;
use super::stop::Stop;
use super::worker::{Record, Tick, Worker};
use crate::account::Ledger;
use crate::measure::{Latencies, LatencySummary, Timeline};
use crate::resources::{Sampler, Usage};

/// Error of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The system has no event queue, timer or thread left.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// The figures of one round, or of all together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Time of its beginning, warm-up included, in seconds since the run began.
    #[serde(default)]
    pub start_s: f64,
    /// Measured messages acknowledged for at least one recipient.
    pub acked: u64,
    /// Measured messages that were not acknowledged for any recipient.
    pub failed: u64,
    /// Measured messages whose connection broke in a deliberate kill of the server: neither acknowledged nor failed.
    #[serde(default)]
    pub broken: u64,
    /// Acknowledged copies: recipients of acknowledged messages.
    pub copies: u64,
    /// Octets of acknowledged messages, each message once.
    pub octets: u64,
    /// Messages that were due in an open loop and never sent.
    pub missed: u64,
    /// Sent in the warm-up, not measured.
    pub warmup: u64,
    /// From the end of the warm-up to the last verdict.
    pub elapsed_s: f64,
    /// Acknowledged messages a second.
    pub rate: f64,
    pub latency: LatencySummary,
}

/// Count of one class of error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorCount {
    pub class: String,
    pub count: u64,
    /// The first text of that class: a reply, or the system's message.
    pub example: String,
}

/// All results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// When it began.
    pub begun: Instant,
    pub rounds: Vec<Round>,
    pub total: Round,
    pub latencies: Latencies,
    pub timeline: Timeline,
    /// Most frequent first.
    pub errors: Vec<ErrorCount>,
    /// Connections that were ready to take messages.
    pub sessions: u64,
    /// Requests of HTTP that were sent again, with the same key.
    pub repeated: u64,
    pub ledger: Ledger,
    pub generator: Usage,
    /// Usage of the server's processes, if they were named.
    pub server: Option<Usage>,
    /// Each deliberate kill of the server.
    pub kills: Vec<Kill>,
    /// True if the run ended early because the server stopped answering.
    pub gave_up: bool,
    /// True if the run was stopped early.
    pub was_stopped: bool,
}

/// State of a running measurement.
#[derive(Debug)]
pub struct Progress<'a> {
    pub elapsed: Duration,
    /// From 1.
    pub round: u32,
    pub acked: u64,
    pub failed: u64,
    pub in_flight: usize,
    /// Messages due and not sent (open loop).
    pub behind: u64,
    /// Messages acknowledged since the last look, a second.
    pub rate: f64,
    /// Since the last look.
    pub recent: &'a LatencySummary,
    /// Errors so far by class.
    pub errors: &'a BTreeMap<String, (u64, String)>,
    /// Number of deliberate kills of the server.
    pub kills: usize,
}

/// Runs `plan`. `server` names processes to watch; `watch` is called about every `every` on the calling thread. `stop`
/// ends the run early, with all its figures.
///
/// # Errors
/// See [`RunError`]. Errors of servers are part of the outcome.
pub fn run(
    plan: Plan,
    server: &[u32],
    stop: &Stop,
    every: Duration,
    watch: &mut dyn FnMut(&Progress<'_>),
) -> Result<Outcome, RunError> {
    let plan = Arc::new(plan);
    let mut gathered = Gathered::new(&plan, server);
    let mut first = 0;
    for round in 1..=plan.rounds {
        if stop.is_asked() || gathered.gave_up {
            break;
        }
        let schedule = Arc::new(Schedule::new(plan.pace, Instant::now(), first, stop.clone()));
        gathered.begin_round(round, schedule.start);
        run_round(&plan, &schedule, &mut gathered, every, watch)?;
        first += schedule.claimed();
        gathered.end_round(schedule.behind(Instant::now()));
    }
    Ok(gathered.finish(stop.is_asked()))
}

fn run_round(
    plan: &Arc<Plan>,
    schedule: &Arc<Schedule>,
    gathered: &mut Gathered,
    every: Duration,
    watch: &mut dyn FnMut(&Progress<'_>),
) -> Result<(), RunError> {
    let (sender, ticks) = channel();
    let mut threads = Vec::new();
    for index in 0..plan.threads {
        let worker = Worker::new(index, Arc::clone(plan), Arc::clone(schedule), sender.clone())?;
        threads.push(std::thread::Builder::new().name(format!("load-{index}")).spawn(|| worker.run())?);
    }
    drop(sender);
    let mut next_look = Instant::now() + every;
    let mut next_sample = Instant::now();
    loop {
        let now = Instant::now();
        if now >= next_sample {
            gathered.sample();
            next_sample = now + SAMPLE_EVERY;
        }
        if now >= next_look {
            gathered.look(schedule.behind(now), watch);
            next_look = now + every;
        }
        let wait = next_look.min(next_sample).saturating_duration_since(Instant::now());
        match ticks.recv_timeout(wait) {
            Ok(tick) => gathered.take(tick),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    for thread in threads {
        // A worker's panic is our bug and is shown as one.
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    Ok(())
}

const SAMPLE_EVERY: Duration = Duration::from_millis(250);

struct Gathered {
    begun: Instant,
    warmup: Duration,
    round_start: Instant,
    round: u32,
    current: Round,
    current_latencies: Latencies,
    last_done: Duration,
    rounds: Vec<Round>,
    latencies: Latencies,
    timeline: Timeline,
    errors: BTreeMap<String, (u64, String)>,
    /// For each worker: connections made in this round, messages in flight.
    workers: Vec<(u64, usize)>,
    sessions_before: u64,
    repeated: u64,
    ledger: Ledger,
    gave_up: bool,
    generator: Sampler,
    server: Option<Sampler>,
    outages: Option<Arc<Outages>>,
    seen: Seen,
}

/// State at the last look, to compute rates.
struct Seen {
    at: Instant,
    acked: u64,
    acked_in_all: u64,
    failed_in_all: u64,
    latencies: Latencies,
}

impl Gathered {
    fn new(plan: &Plan, server: &[u32]) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            warmup: plan.pace.warmup,
            round_start: begun,
            round: 0,
            current: Round::default(),
            current_latencies: Latencies::default(),
            last_done: Duration::ZERO,
            rounds: Vec::new(),
            latencies: Latencies::default(),
            timeline: Timeline::default(),
            errors: BTreeMap::new(),
            workers: vec![(0, 0); plan.threads],
            sessions_before: 0,
            repeated: 0,
            ledger: Ledger::new(plan.run),
            gave_up: false,
            generator: Sampler::of_ourselves(begun),
            server: (!server.is_empty()).then(|| Sampler::new(server, begun)),
            outages: plan.outages.clone(),
            seen: Seen { at: begun, acked: 0, acked_in_all: 0, failed_in_all: 0, latencies: Latencies::default() },
        }
    }

    fn begin_round(&mut self, round: u32, start: Instant) {
        self.round = round;
        self.round_start = start;
        self.current = Round::default();
        self.current_latencies = Latencies::default();
        self.last_done = self.warmup;
        self.workers.fill((0, 0));
    }

    fn take(&mut self, tick: Tick) {
        self.workers[tick.worker] = (tick.sessions, tick.in_flight);
        self.gave_up |= tick.gave_up;
        self.repeated += tick.repeated;
        let now = self.begun.elapsed();
        for (class, (count, example)) in tick.failures {
            let class = class.to_string();
            self.timeline.errors(now, &class, count);
            self.errors.entry(class).or_insert((0, example)).0 += count;
        }
        tick.records.iter().for_each(|record| self.record(record));
    }

    fn record(&mut self, record: &Record) {
        self.ledger.set(record.number, record.acked, record.uncertain);
        let at = record.done + self.round_start.saturating_duration_since(self.begun);
        if record.is_broken {
            // Neither a success nor a failure of the server.
        } else if record.is_failed {
            self.timeline.failed(at);
            self.seen.failed_in_all += 1;
        } else {
            self.timeline.acked(at, record.latency, record.octets);
            self.seen.latencies.record(record.latency);
            self.seen.acked += 1;
            self.seen.acked_in_all += 1;
        }
        if !record.is_measured {
            self.current.warmup += 1;
        } else if record.is_broken {
            self.current.broken += 1;
            self.last_done = self.last_done.max(record.done);
        } else if record.is_failed {
            self.current.failed += 1;
            self.last_done = self.last_done.max(record.done);
        } else {
            self.current.acked += 1;
            self.current.copies += u64::from(record.acked);
            self.current.octets += record.octets;
            self.current_latencies.record(record.latency);
            self.latencies.record(record.latency);
            self.last_done = self.last_done.max(record.done);
        }
    }

    fn sample(&mut self) {
        self.generator.sample();
        if let Some(server) = &mut self.server {
            if let Some(pid) = self.outages.as_ref().and_then(|outages| outages.pid()) {
                server.follow(pid);
            }
            server.sample();
        }
    }

    fn look(&mut self, behind: u64, watch: &mut dyn FnMut(&Progress<'_>)) {
        let since = self.seen.at.elapsed().as_secs_f64();
        watch(&Progress {
            elapsed: self.begun.elapsed(),
            round: self.round,
            acked: self.seen.acked_in_all,
            failed: self.seen.failed_in_all,
            in_flight: self.workers.iter().map(|(_, in_flight)| in_flight).sum(),
            behind,
            rate: self.seen.acked as f64 / since.max(1e-3),
            recent: &self.seen.latencies.summary(),
            errors: &self.errors,
            kills: self.outages.as_ref().map_or(0, |outages| outages.count()),
        });
        self.seen.at = Instant::now();
        self.seen.acked = 0;
        self.seen.latencies = Latencies::default();
    }

    fn end_round(&mut self, missed: u64) {
        self.sample();
        let elapsed_s = self.last_done.saturating_sub(self.warmup).as_secs_f64();
        let mut round = std::mem::take(&mut self.current);
        round.start_s = self.round_start.saturating_duration_since(self.begun).as_secs_f64();
        round.missed = missed;
        round.elapsed_s = elapsed_s;
        round.rate = rate(round.acked, elapsed_s);
        round.latency = self.current_latencies.summary();
        self.rounds.push(round);
        self.sessions_before += self.workers.iter().map(|(sessions, _)| sessions).sum::<u64>();
    }

    fn finish(mut self, was_stopped: bool) -> Outcome {
        // The last look is at the newest process.
        self.sample();
        let is_away = self.outages.as_ref().is_some_and(|outages| outages.state().0);
        let mut total = Round { latency: self.latencies.summary(), ..Round::default() };
        for round in &self.rounds {
            total.acked += round.acked;
            total.failed += round.failed;
            total.broken += round.broken;
            total.copies += round.copies;
            total.octets += round.octets;
            total.missed += round.missed;
            total.warmup += round.warmup;
            total.elapsed_s += round.elapsed_s;
        }
        total.rate = rate(total.acked, total.elapsed_s);
        let error = |(class, (count, example))| ErrorCount { class, count, example };
        let mut errors: Vec<_> = self.errors.into_iter().map(error).collect();
        errors.sort_by_key(|error| std::cmp::Reverse(error.count));
        Outcome {
            begun: self.begun,
            rounds: self.rounds,
            total,
            latencies: self.latencies,
            timeline: self.timeline,
            errors,
            sessions: self.sessions_before,
            repeated: self.repeated,
            ledger: self.ledger,
            generator: self.generator.finish(),
            // One that is away on purpose has not ended.
            server: self
                .server
                .map(Sampler::finish)
                .map(|usage| Usage { has_ended: usage.has_ended && !is_away, ..usage }),
            kills: self.outages.map(|outages| outages.kills(self.begun)).unwrap_or_default(),
            gave_up: self.gave_up,
            was_stopped,
        }
    }
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// A random number for a run.
pub fn fresh_run() -> u64 {
    fastrand::u64(..)
}
