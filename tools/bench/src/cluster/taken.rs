//! Take-over of a shard with a long queue: from the kill of its owner, or from the command that moves it, to the first delivery by another node.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use posthaste_loadgen::load::{Pace, Plan, Recipients, run};
use posthaste_loadgen::process::free_address;
use posthaste_loadgen::resources::Sampler;
use posthaste_loadgen::scratch::subdirectory;
use posthaste_loadgen::values::WeightedDomain;

use super::nodes::Cluster;
use super::{LOOK, wait_for};
use crate::relay::loaded::{plan, pool};
use crate::sink::Sink;
use crate::suite::{Better, Figure, Running, Sample, Settings, SideError, Unit};

pub(super) const FIGURES: &[Figure] = &[
    Figure { key: "first_us", name: "to the first delivery", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "queued", name: "recipients in the queue", unit: Unit::Count, better: Better::Neither },
    Figure { key: "filled_us", name: "time to fill it", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "owner_bytes", name: "memory of the owner", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "standby_bytes", name: "memory of a standby", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "standby_each", name: "for each recipient", unit: Unit::Bytes, better: Better::Lower },
];

/// The end of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Killed,
    Moved,
}

impl End {
    pub fn name(self) -> &'static str {
        match self {
            Self::Killed => "cluster-killed",
            Self::Moved => "cluster-moved",
        }
    }

    pub fn about(self) -> &'static str {
        match self {
            Self::Killed => "its owner is killed, and another node delivers",
            Self::Moved => "it is moved to another node, which delivers",
        }
    }
}

pub(super) fn recipients(settings: &Settings) -> u64 {
    settings.count(1_000_000, OF_MESSAGE)
}

/// A side whose rounds start anew.
pub(super) struct TakeOver {
    end: End,
    dir: PathBuf,
}

impl TakeOver {
    pub fn new(end: End, dir: &Path) -> Self {
        Self { end, dir: dir.to_owned() }
    }
}

impl Running for TakeOver {
    fn round(&mut self, settings: &Settings) -> Result<Sample, SideError> {
        let dir = subdirectory(&self.dir, "round").map_err(SideError::failed("directory"))?;
        let sample = self.measure(settings, &dir);
        // A million recipients take gigabytes.
        let _ = std::fs::remove_dir_all(&dir);
        sample
    }
}

impl TakeOver {
    fn measure(&self, settings: &Settings, dir: &Path) -> Result<Sample, SideError> {
        let sink = Sink::start_telling(&settings.program, dir, "10ms")?;
        // Nothing listens where the first node sends to: so its queue fills, and each delivery is another node's.
        let nowhere = free_address().map_err(SideError::failed("a free port"))?.port();
        let mut cluster = Cluster::start(settings, dir, [nowhere, sink.address.port(), sink.address.port()])?;
        let empty = memory(&cluster, 1);
        let (begun, count) = (Instant::now(), recipients(settings) / OF_MESSAGE);
        fill(&cluster, count, settings)?;
        let queued = count * OF_MESSAGE;
        let knows = |node: usize| cluster.nodes[node].shard().is_some_and(|shard| shard.queued() == queued);
        wait_for("the queue is not the same on all members", || (0..3).all(knows))?;
        wait_for("members are not in sync", || cluster.is_well())?;
        let (filled, owner, standby) = (begun.elapsed(), memory(&cluster, 0), memory(&cluster, 1));
        let begun = Instant::now();
        let moved = match self.end {
            End::Killed => {
                cluster.nodes[0].server.kill();
                None
            }
            End::Moved => Some(cluster.nodes[0].hand_over("n2")?),
        };
        wait_for("no other node delivers", || sink.accepted() > 0)?;
        let first = begun.elapsed();
        if let Some(mut command) = moved {
            let _ = command.wait();
        }
        cluster.kill();
        Ok(crate::run::sample([
            ("first_us", first.as_secs_f64() * 1e6),
            ("queued", queued as f64),
            ("filled_us", filled.as_secs_f64() * 1e6),
            ("owner_bytes", owner as f64),
            ("standby_bytes", standby as f64),
            ("standby_each", standby.saturating_sub(empty) as f64 / queued as f64),
        ]))
    }
}

/// Resident memory of a node, in bytes.
fn memory(cluster: &Cluster, node: usize) -> u64 {
    Sampler::new(&[cluster.nodes[node].server.pid()], Instant::now()).sample().memory_octets
}

/// Sends so many messages to the first node.
fn fill(cluster: &Cluster, count: u64, settings: &Settings) -> Result<(), SideError> {
    let pool = pool(&"1k".parse().expect("it is a size"));
    let plan = plan(cluster.nodes[0].address(), 50, &pool, Duration::ZERO);
    let domains = vec![WeightedDomain { name: "there.example".to_owned(), weight: 1 }];
    let plan = Plan {
        pace: Pace { count: Some(count), duration: None, ..plan.pace },
        recipients: Recipients::Made { users: OF_MESSAGE, domains },
        recipients_per_message: OF_MESSAGE as usize,
        ..plan
    };
    let outcome = run(plan, &[], &std::sync::Arc::clone(&settings.stop).into(), LOOK, &mut |_| {});
    let outcome = outcome.map_err(SideError::failed("load"))?;
    match outcome.ledger.acked() {
        acked if acked == count => Ok(()),
        acked => Err(SideError::Failed(format!("{acked} of {count} messages were acknowledged"))),
    }
}

/// Recipients of a message.
const OF_MESSAGE: u64 = 100;
