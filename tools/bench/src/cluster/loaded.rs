//! A closed loop to one node, until the sink has all mail.

use std::any::Any;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_loadgen::load::{Pool, run};
use posthaste_loadgen::report::Cost;
use posthaste_loadgen::resources::Sampler;
use posthaste_loadgen::server::ScratchServer;

use super::nodes::{CONNECTIONS, Cluster, configuration};
use super::{LOOK, RATE, wait_for};
use crate::relay::accounting::check_when_written;
use crate::relay::loaded::{plan, pool};
use crate::sink::Sink;
use crate::suite::{Better, Figure, Running, Sample, Settings, SideError, Unit};

pub(super) const FIGURES: &[Figure] = &[
    RATE,
    Figure { key: "p50_us", name: "p50 of receiving", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99 of receiving", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "cpu_us", name: "CPU of all servers", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "written", name: "written", unit: Unit::Times, better: Better::Lower },
    Figure { key: "memory_bytes", name: "memory of all servers", unit: Unit::Bytes, better: Better::Lower },
];

#[derive(Clone, Copy)]
pub(super) struct ClusterShape {
    pub name: &'static str,
    pub size: &'static str,
    pub connections: usize,
}

pub(super) const SHAPES: [ClusterShape; 4] = [
    ClusterShape { name: "cluster-10k-1", size: "10k", connections: 1 },
    ClusterShape { name: "cluster-10k-50", size: "10k", connections: 50 },
    ClusterShape { name: "cluster-10k-500", size: "10k", connections: 500 },
    ClusterShape { name: "cluster-100k-50", size: "100k", connections: 50 },
];

pub(super) fn time(settings: &Settings) -> Duration {
    settings.time(Duration::from_secs(30), Duration::from_secs(1)).min(settings.round_max)
}

/// A side under load.
pub(super) struct ShardRounds {
    shape: ClusterShape,
    pool: Arc<Pool>,
    address: SocketAddr,
    pids: Vec<u32>,
    account: PathBuf,
    acked: u64,
    /// The servers, ended when dropped.
    _servers: Box<dyn Any>,
    sink: Sink,
}

impl ShardRounds {
    /// A node of three.
    ///
    /// # Errors
    /// Something does not start.
    pub fn replicated(shape: ClusterShape, settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        let (sink, account) = sink(settings, dir)?;
        let cluster = Cluster::start(settings, dir, [sink.address.port(); 3])?;
        let (address, pids) = (cluster.nodes[0].address(), cluster.pids());
        Ok(Self { shape, pool: bodies(shape), address, pids, account, acked: 0, _servers: Box::new(cluster), sink })
    }

    /// The same server without a cluster.
    ///
    /// # Errors
    /// Something does not start.
    pub fn alone(shape: ClusterShape, settings: &Settings, dir: &Path) -> Result<Self, SideError> {
        let (sink, account) = sink(settings, dir)?;
        let config = dir.join("posthaste.toml");
        std::fs::write(&config, configuration("n1", sink.address.port(), CONNECTIONS))
            .map_err(SideError::failed("configuration"))?;
        let server = ScratchServer::start(&settings.program, dir, Some(&config));
        let server = server.map_err(SideError::failed("posthaste serve"))?;
        let (address, pids) = (server.address, vec![server.pid()]);
        Ok(Self { shape, pool: bodies(shape), address, pids, account, acked: 0, _servers: Box::new(server), sink })
    }
}

fn sink(settings: &Settings, dir: &Path) -> Result<(Sink, PathBuf), SideError> {
    let account = dir.join("sink.jsonl");
    Ok((Sink::start_with_account(&settings.program, dir, &account)?, account))
}

fn bodies(shape: ClusterShape) -> Arc<Pool> {
    pool(&shape.size.parse().expect("sizes in the table are right"))
}

impl Running for ShardRounds {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let plan = plan(self.address, self.shape.connections, &self.pool, time(settings));
        let before = self.sink.accepted();
        let mut sampler = Sampler::new(&self.pids, Instant::now());
        let begun = Instant::now();
        let outcome = run(plan, &[], &Arc::clone(&settings.stop).into(), LOOK, &mut |_| {
            sampler.sample();
        });
        let outcome = outcome.map_err(SideError::failed("load"))?;
        let acked = outcome.ledger.acked();
        wait_for("acknowledged mail is not in the sink", || {
            sampler.sample();
            self.sink.accepted() >= before + acked
        })?;
        let whole = begun.elapsed();
        let usage = sampler.finish();
        check_when_written(&outcome.ledger, &self.account)?;
        self.acked += acked;
        let cost = Cost::new(usage.clone(), acked);
        Ok(crate::run::sample([
            ("rate", acked as f64 / whole.as_secs_f64()),
            ("p50_us", outcome.total.latency.p50_us as f64),
            ("p99_us", outcome.total.latency.p99_us as f64),
            ("cpu_us", cost.cpu_us_per_message),
            ("written", usage.written_octets as f64 / outcome.total.octets.max(1) as f64),
            ("memory_bytes", usage.memory_octets_max as f64),
        ]))
    }

    fn finish(self: Box<Self>, _: &Settings) -> Result<Vec<String>, SideError> {
        let acked = self.acked;
        Ok(vec![format!("{acked} messages acknowledged in all rounds, each found once and unaltered in the sink")])
    }
}
