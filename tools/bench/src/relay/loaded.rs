//! One domain in a closed loop, at full rate.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_loadgen::load::{
    Arrivals, Injecting, Outcome, Pace, Pipelining, Plan, Pool, Progress, Recipients, Server as Target, fresh_run, run,
};
use posthaste_loadgen::report::Cost;
use posthaste_loadgen::resources::{Sampler, Usage};
use posthaste_loadgen::values::{Address, PerConnection, Protocol, Sizes, TlsStart};

use super::machine::Machine;
use super::outcomes::Counts;
use super::{
    BILLION_A_DAY, DELIVERY_MAX, DESTINATION, End, LOOK, Open, Opened, REST_MAX, SENDER, Shape, Timeline, accounting,
    time,
};
use crate::run::wait_until_idle;
use crate::sink::Connections;
use crate::suite::{Running, Sample, Settings, SideError};

/// A server under load.
pub(super) struct Loaded {
    shape: Shape,
    opened: Opened,
    pool: Arc<Pool>,
    before: Counts,
    acked: u64,
    rates: Vec<f64>,
    timeline: Timeline,
    /// Connections to the sink in the rounds before.
    connections: Connections,
}

/// A generator's plan with kept connections.
pub(crate) fn plan(address: std::net::SocketAddr, connections: usize, pool: &Arc<Pool>, duration: Duration) -> Plan {
    Plan {
        run: fresh_run(),
        servers: vec![Target {
            name: "relay".into(),
            address: Address::Tcp(address),
            protocol: Protocol::Smtp,
            tls: TlsStart::Never,
            tls_name: None,
        }],
        connections,
        threads: 1,
        pace: Pace {
            rate: None,
            arrivals: Arrivals::Even,
            count: None,
            duration: Some(duration),
            warmup: Duration::ZERO,
        },
        rounds: 1,
        per_connection: PerConnection::All,
        pipelining: Pipelining::On,
        bdat: false,
        sender: SENDER.into(),
        recipients: Recipients::Listed(vec![format!("ann@{DESTINATION}")]),
        recipients_per_message: 1,
        helo: "bench.invalid".into(),
        auth: None,
        injecting: Injecting::default(),
        tls: None,
        pool: Arc::clone(pool),
        timeout: Duration::from_secs(60),
        // A message without a reply is of no use: on a slow machine what is due may take long.
        drain: DELIVERY_MAX,
        give_up: Duration::from_secs(10),
        outages: None,
    }
}

/// Distinct bodies.
pub(crate) fn pool(sizes: &Sizes) -> Arc<Pool> {
    Arc::new(Pool::generated(sizes, &[], SENDER, 1))
}

impl Loaded {
    pub fn start(shape: Shape, open: Open, settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        let opened = open(shape, settings, dir)?;
        Ok(Self {
            shape,
            opened,
            pool: pool(&shape.sizes()),
            before: Counts::default(),
            acked: 0,
            rates: Vec::new(),
            timeline: Timeline::default(),
            connections: Connections::default(),
        })
    }

    /// Samples the progress of the server.
    fn look(&mut self, begun: Instant) -> Result<(), SideError> {
        if let End::Events(outcomes) = &mut self.opened.end {
            let now = outcomes.read()?;
            let (received, before) = (now.received - self.before.received, self.before);
            let settled = now.delivered + now.failed - before.delivered - before.failed;
            self.timeline.add(begun.elapsed().as_secs_f64(), received, settled);
        }
        Ok(())
    }

    /// Waits until the outcomes of `acked` more messages than before the round are recorded.
    fn wait_for_outcomes(
        &mut self,
        acked: u64,
        round: Instant,
        sampler: &mut Sampler,
        settings: &Settings,
    ) -> Result<(), SideError> {
        let begun = Instant::now();
        loop {
            self.look(round)?;
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
        let plan = plan(self.opened.address, self.shape.connections as usize, &self.pool, time(settings));
        self.timeline = Timeline::default();
        let mut sampler = Sampler::new(&[self.opened.pid], Instant::now());
        let (begun, machine) = (Instant::now(), Machine::now());
        let mut looked = Ok(());
        let mut watch = |_: &Progress<'_>| {
            sampler.sample();
            if looked.is_ok() {
                looked = self.look(begun);
            }
        };
        let outcome = run(plan, &[], &Arc::clone(&settings.stop).into(), LOOK, &mut watch);
        looked?;
        let outcome = outcome.map_err(SideError::failed("load"))?;
        let (loaded, acked) = (Instant::now(), outcome.ledger.acked());
        self.wait_for_outcomes(acked, begun, &mut sampler, settings)?;
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
            if let Some(wanted) = self.opened.signatures {
                accounting::check_signatures(outcome.ledger.run, file, wanted)?;
            }
        }
        self.acked += acked;
        let mut sample = figures(&outcome, &sampler.finish(), machine, whole, after_load)?;
        if let Some(ring) = self.opened.ring_bytes {
            // Of the bodies alone: headers of records and entries come on top.
            sample.insert("ring_turns".into(), outcome.total.octets as f64 / ring as f64);
            sample.insert("depth_max".into(), self.timeline.depth_max() as f64);
        }
        if let Some(sink) = &mut self.opened.sink {
            let now = sink.connections()?;
            sample.extend(now.since(std::mem::replace(&mut self.connections, now)));
        }
        self.rates.extend(sample.get("machine_cpu_us"));
        Ok(sample)
    }

    fn timeline(&mut self) -> Option<Timeline> {
        Some(std::mem::take(&mut self.timeline)).filter(|timeline| !timeline.at_s.is_empty())
    }

    fn finish(self: Box<Self>, _: &Settings) -> Result<Vec<String>, SideError> {
        let mut notes = self.opened.notes.clone();
        let how = match self.opened.account {
            Some(_) => "each found once and unaltered in the sink",
            None => "each recorded once as delivered; the sink keeps no account",
        };
        if self.acked > 0 {
            let signed = self.opened.signatures.map(|number| format!(", with {number} DKIM signatures"));
            notes.push(format!(
                "{} messages acknowledged in all rounds, {how}{}",
                self.acked,
                signed.unwrap_or_default()
            ));
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

/// Figures of a round. `whole` is the time until all mail of `outcome` was relayed.
pub(super) fn figures(
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
