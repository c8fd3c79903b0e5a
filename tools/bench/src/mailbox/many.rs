//! Many sessions of one login: IDLE, and clients that come back after a restart.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use posthaste_loadgen::measure::Spread;
use posthaste_loadgen::resources::{Sampler, anonymous_octets};

use super::REST_MAX;
use super::client::Client;
use super::server::{LOGIN, PASSWORD, Servers, Who};
use crate::published;
use crate::run::{sample, wait_until_idle};
use crate::suite::{Better, Figure, Running, Sample, Settings, SideError, Unit, Workload};

const IDLE_FIGURES: &[Figure] = &[
    Figure { key: "last", name: "last session", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99", name: "p99", unit: Unit::Micros, better: Better::Lower },
    // Of servers that are one process.
    Figure { key: "octets_each", name: "bytes each", unit: Unit::Bytes, better: Better::Lower },
];
const LOGIN_FIGURES: &[Figure] = &[
    Figure { key: "time", name: "time", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99", name: "p99 of a login", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "cpu", name: "server CPU", unit: Unit::Micros, better: Better::Lower },
];
const FEW: u64 = 10;
const SESSIONS: u64 = 1000;
const SESSIONS_LEAST: u64 = 100;
/// Messages that idle sessions hear of in a round.
const DELIVERIES: usize = 5;
/// Clients that log in at a time.
const AT_ONCE: u64 = 50;

pub(super) fn workloads(settings: &Settings, servers: &Arc<Servers>) -> Vec<Workload> {
    let sessions = settings.count(SESSIONS, SESSIONS_LEAST).min(SESSIONS);
    let workload = |name: &str, what: String, figures, start: &dyn Fn(Who) -> Box<dyn Running>| Workload {
        name: format!("mailbox-{name}"),
        what,
        figures,
        published: published::about(name),
        writes_octets: 0,
        sides: Who::ALL
            .map(|who| {
                let (servers, running) = (Arc::clone(servers), start(who));
                who.side(Box::new(move |settings: &Settings, dir: &Path| {
                    let mut client = servers.of(who, settings, dir)?;
                    // It may be there.
                    let _ = client.command("CREATE Idle");
                    Ok(running)
                }))
            })
            .into(),
    };
    let idle = |name: &str, sessions: u64| {
        let what = format!("{sessions} sessions in IDLE hear of an APPEND; from its OK on");
        workload(name, what, IDLE_FIGURES, &|who| Box::new(Idling { who, sessions, servers: Arc::clone(servers) }))
    };
    let what = format!("{sessions} clients, {AT_ONCE} at a time, log in after a restart and SELECT; ours by SCRAM");
    let again = workload("reconnect", what, LOGIN_FIGURES, &|who| {
        Box::new(Reconnecting { who, sessions, servers: Arc::clone(servers) })
    });
    vec![idle("idle-10", FEW), idle("idle-1000", sessions), again]
}

struct Idling {
    who: Who,
    sessions: u64,
    servers: Arc<Servers>,
}

impl Running for Idling {
    fn round(&mut self, _: &Settings) -> Result<Sample, SideError> {
        let (address, pid) = (self.servers.address(self.who)?, self.servers.pid(self.who)?);
        let failed = SideError::failed::<std::io::Error>;
        let mut teller = Client::log_in(address, LOGIN, PASSWORD).map_err(failed("login"))?;
        wait_until_idle(&mut Sampler::new(&[pid], Instant::now()), REST_MAX);
        let memory = anonymous_octets(pid).unwrap_or_default();
        let session = || {
            let mut client = Client::log_in_small(address, LOGIN, PASSWORD)?;
            client.command("EXAMINE Idle")?;
            client.idle()?;
            Ok(client)
        };
        let mut sessions: Vec<Client> =
            (0..self.sessions).map(|_| session()).collect::<Result<_, _>>().map_err(failed("IDLE"))?;
        wait_until_idle(&mut Sampler::new(&[pid], Instant::now()), REST_MAX);
        let grown = anonymous_octets(pid).unwrap_or_default().saturating_sub(memory);
        let (mut all, mut last) = (Vec::new(), Vec::new());
        for _ in 0..DELIVERIES {
            teller.command("APPEND Idle {17+}\r\nSubject: x\r\n\r\nx\r\n").map_err(failed("APPEND"))?;
            let told = Instant::now();
            let mut slowest = Duration::ZERO;
            for session in &mut sessions {
                let heard = session.hear().map_err(failed("IDLE"))?.saturating_duration_since(told);
                slowest = slowest.max(heard);
                all.push(heard.as_secs_f64() * 1e6);
            }
            last.push(slowest.as_secs_f64() * 1e6);
        }
        let last = Spread::of(last).map_or(0.0, |spread| spread.median);
        all.sort_by(f64::total_cmp);
        let p99 = all[(all.len() * 99 / 100).min(all.len() - 1)];
        let mut figures = sample([("last", last), ("p99", p99)]);
        if self.who == Who::Ours {
            figures.extend(sample([("octets_each", grown as f64 / self.sessions as f64)]));
        }
        Ok(figures)
    }
}

struct Reconnecting {
    who: Who,
    sessions: u64,
    servers: Arc<Servers>,
}

impl Running for Reconnecting {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        self.servers.stop(self.who);
        self.servers.log_in(self.who, settings)?;
        let (who, address, pid) = (self.who, self.servers.address(self.who)?, self.servers.pid(self.who)?);
        let mut sampler = Sampler::new(&[pid], Instant::now());
        let before = sampler.sample().cpu_s;
        let (begun, next) = (Instant::now(), AtomicU64::new(0));
        let one = |number: u64| -> std::io::Result<(Client, f64)> {
            let begun = Instant::now();
            let mut client = match who {
                Who::Ours | Who::Indexed => {
                    Client::log_in_by_scram(address, LOGIN, PASSWORD, format!("nonce{number}"))?
                }
                Who::Dovecot => Client::log_in_small(address, LOGIN, PASSWORD)?,
            };
            client.command("EXAMINE Idle")?;
            Ok((client, begun.elapsed().as_secs_f64() * 1e6))
        };
        let some = || {
            let numbers =
                std::iter::from_fn(|| Some(next.fetch_add(1, Relaxed)).filter(|number| *number < self.sessions));
            numbers.map(one).collect::<std::io::Result<Vec<_>>>()
        };
        // All stay until the last is there.
        let done = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(some)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a client")).collect::<std::io::Result<Vec<_>>>()
        });
        let done = done.map_err(SideError::failed("login"))?;
        let time = begun.elapsed().as_secs_f64() * 1e6;
        let mut each: Vec<f64> = done.iter().flatten().map(|(_, time)| *time).collect();
        each.sort_by(f64::total_cmp);
        wait_until_idle(&mut sampler, REST_MAX);
        let cpu = (sampler.sample().cpu_s - before) * 1e6;
        let p99 = each[(each.len() * 99 / 100).min(each.len() - 1)];
        Ok(sample([("time", time), ("p99", p99), ("cpu", cpu)]))
    }
}
