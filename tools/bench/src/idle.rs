//! Open and silent connections: the server's memory for each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_loadgen::resources::{Sampler, anonymous_octets};
use posthaste_loadgen::server::ScratchServer;
use rustls::ClientConfig;

use crate::peers::SmtpSink;
use crate::published;
use crate::run::{sample, wait_until_idle};
use crate::sink::Sink;
use crate::suite::{Better, Figure, Running, Sample, Settings, Side, SideError, Suite, Unit, Workload};
use crate::tls::start::{Session, client_config};

pub const SUITE: Suite = Suite {
    name: "idle",
    about: "Connections that are open and silent after EHLO: what each costs the server in memory",
    workloads,
};

const FIGURES: &[Figure] = &[
    Figure { key: "octets_each", name: "bytes each", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "opened_rate", name: "opened/s", unit: Unit::PerSecond, better: Better::Higher },
];
const CONNECTIONS: u64 = 10_000;
// With fewer, what the server freed of its start is enough for them.
const CONNECTIONS_LEAST: u64 = 4000;

fn workloads(settings: &Settings) -> Vec<Workload> {
    let connections = settings.count(CONNECTIONS, CONNECTIONS_LEAST).min(CONNECTIONS);
    let ours = Side {
        name: "posthaste",
        is_ours: true,
        durability: ScratchServer::DURABILITY,
        start: Box::new(move |settings, dir| {
            let server =
                ScratchServer::start(&settings.program, dir, None).map_err(SideError::failed("posthaste serve"))?;
            Ok(Box::new(Rounds { connections, pid: server.pid(), address: server.address, tls: None, _holds: server }))
        }),
    };
    let sink = Side {
        name: "posthaste sink",
        is_ours: true,
        durability: Sink::DURABILITY,
        start: Box::new(move |settings, dir| {
            let sink = Sink::start(&settings.program, dir)?;
            Ok(Box::new(Rounds { connections, pid: sink.pid(), address: sink.address, tls: None, _holds: sink }))
        }),
    };
    let smtp_sink = Side {
        name: "smtp-sink",
        is_ours: false,
        durability: SmtpSink::DURABILITY,
        start: Box::new(move |_, dir| {
            let sink = SmtpSink::start(dir, connections as usize + 1)?;
            Ok(Box::new(Rounds { connections, pid: sink.pid(), address: sink.address, tls: None, _holds: sink }))
        }),
    };
    let encrypted = Side {
        name: "posthaste with TLS",
        is_ours: true,
        durability: ScratchServer::DURABILITY,
        start: Box::new(move |settings, dir| {
            let server = crate::tls::server(settings, dir)?;
            let tls = Some(client_config()?);
            Ok(Box::new(Rounds { connections, pid: server.pid(), address: server.address, tls, _holds: server }))
        }),
    };
    let workload = |name: &str, how: &str, sides| Workload {
        name: name.into(),
        what: format!(
            "{connections} connections{how}, one after the other; growth of the memory that the server asked for over the second half"
        ),
        figures: FIGURES,
        published: published::about(name),
        writes_octets: 0,
        sides,
    };
    vec![
        workload("connections", "", vec![ours, sink, smtp_sink]),
        workload("connections-tls", ", encrypted after STARTTLS", vec![encrypted]),
    ]
}

struct Rounds<S> {
    connections: u64,
    pid: u32,
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    _holds: S,
}

/// Time for a server to finish its start, or a round's connections.
const REST_MAX: Duration = Duration::from_secs(5);

impl<S> Running for Rounds<S> {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        wait_until_idle(&mut Sampler::new(&[self.pid], Instant::now()), REST_MAX);
        let begun = Instant::now();
        let mut held = Vec::new();
        let mut memory = Vec::new();
        // The second half is weighed: an allocator gives back what the start took when it is next at work.
        for until in [self.connections / 2, self.connections] {
            while (held.len() as u64) < until && !settings.is_stopped() {
                let failed = SideError::failed(&format!("connection {}", held.len() + 1));
                held.push(Session::open(self.address, self.tls.as_ref()).map_err(failed)?);
            }
            memory.push((held.len(), memory_octets(self.pid)?));
        }
        let (count, seconds) = (held.len() as f64, begun.elapsed().as_secs_f64());
        let (weighed, growth) = (memory[1].0 - memory[0].0, memory[1].1.saturating_sub(memory[0].1));
        drop(held);
        wait_until_idle(&mut Sampler::new(&[self.pid], Instant::now()), REST_MAX);
        Ok(sample([("octets_each", growth as f64 / weighed.max(1) as f64), ("opened_rate", count / seconds)]))
    }
}

fn memory_octets(pid: u32) -> Result<u64, SideError> {
    anonymous_octets(pid).ok_or_else(|| SideError::Failed(format!("the memory of process {pid} cannot be read")))
}
