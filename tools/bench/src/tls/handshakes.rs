//! Connections that begin TLS and end: the handshakes that a server does in a second.

use std::any::Any;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_loadgen::resources::Sampler;
use posthaste_loadgen::server::ScratchServer;
use rustls::ClientConfig;

use super::server;
use super::start::{Session, client_config, own_pair};
use crate::peers::Postfix;
use crate::published;
use crate::run::{sample, wait_until_idle};
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Unit, Workload};

const FIGURES: &[Figure] = &[
    Figure { key: "rate", name: "handshakes/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "server_cpu_us", name: "server CPU, each", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99", unit: Unit::Micros, better: Better::Lower },
];
const TIME: Duration = Duration::from_secs(10);
const TIME_LEAST: Duration = Duration::from_millis(300);
/// Connections at a time, each from a thread: more than processors, so that the server never waits for the client.
const AT_A_TIME: usize = 16;
const REST_MAX: Duration = Duration::from_secs(20);

pub(super) fn workload(settings: &Settings) -> Workload {
    let time = time(settings);
    Workload {
        name: "tls-handshakes".into(),
        what: format!(
            "{} s, {AT_A_TIME} connections at a time: EHLO, STARTTLS, a full handshake of TLS 1.3 with a key of P-256, EHLO, QUIT",
            time.as_secs_f64()
        ),
        figures: FIGURES,
        published: published::about("tls-handshakes"),
        writes_octets: 0,
        sides: vec![
            Side {
                name: "posthaste",
                is_ours: true,
                durability: ScratchServer::DURABILITY,
                start: Box::new(|settings, dir| Ok(Box::new(Handshakes::ours(settings, dir)?))),
            },
            Side {
                name: "Postfix",
                is_ours: false,
                durability: Postfix::DURABILITY,
                start: Box::new(|settings, dir| Ok(Box::new(Handshakes::postfix(settings, dir)?))),
            },
        ],
    }
}

fn time(settings: &Settings) -> Duration {
    settings.time(TIME, TIME_LEAST).min(settings.round_max)
}

/// A server to shake hands with.
struct Handshakes {
    address: SocketAddr,
    pid: u32,
    config: Arc<ClientConfig>,
    time: Duration,
    _holds: Box<dyn Any>,
}

impl Handshakes {
    fn ours(settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        let server = server(settings, dir)?;
        Self::new(server.address, server.pid(), Box::new(server), settings)
    }

    fn postfix(settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        let postfix = Postfix::start_with_tls(dir, 1, &own_pair(dir)?)?;
        Self::new(postfix.address, postfix.pid(), Box::new(postfix), settings)
    }

    fn new(address: SocketAddr, pid: u32, holds: Box<dyn Any>, settings: &Settings) -> Result<Self, SideError> {
        Ok(Self { address, pid, config: client_config()?, time: time(settings), _holds: holds })
    }
}

/// Connects again and again until the time is up. Returns the time of each, in microseconds.
fn repeat(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    time: Duration,
    settings: &Settings,
) -> Result<Vec<u64>, SideError> {
    let begun = Instant::now();
    let mut took = Vec::new();
    // The first is done whatever the time.
    while took.is_empty() || (begun.elapsed() < time && !settings.is_stopped()) {
        let opened = Instant::now();
        let mut session = Session::open(address, Some(config)).map_err(SideError::failed("STARTTLS"))?;
        took.push(opened.elapsed().as_micros() as u64);
        session.say("QUIT").map_err(SideError::failed("QUIT"))?;
    }
    Ok(took)
}

impl Running for Handshakes {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let mut sampler = Sampler::new(&[self.pid], Instant::now());
        wait_until_idle(&mut sampler, REST_MAX.min(settings.round_max));
        let (before, begun) = (sampler.sample().cpu_s, Instant::now());
        let (address, config, time) = (self.address, &self.config, self.time);
        let mut took = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..AT_A_TIME).map(|_| scope.spawn(|| repeat(address, config, time, settings))).collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("a client does not panic"));
            joined.collect::<Result<Vec<_>, _>>()
        })?
        .concat();
        let seconds = begun.elapsed().as_secs_f64();
        let cpu_s = sampler.sample().cpu_s - before;
        took.sort_unstable();
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize] as f64;
        let count = took.len() as f64;
        Ok(sample([
            ("rate", count / seconds),
            ("server_cpu_us", cpu_s * 1e6 / count),
            ("p50_us", at(0.5)),
            ("p99_us", at(0.99)),
        ]))
    }
}
