//! One shard of a cluster on loopback: three servers of NATS, three nodes, all on one disk. Mail beside a server without a cluster; take-over; an engine that loses its leader.

mod engine;
mod leader;
mod loaded;
mod nodes;
mod taken;

use std::time::{Duration, Instant};

use posthaste_loadgen::server::ScratchServer;

use crate::published;
use crate::suite::{Better, Figure, Settings, Side, SideError, Start, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "cluster",
    about: "A shard replicated by three servers of NATS and three nodes, beside one server: mail, take-over, loss of the engine's leader",
    workloads,
};

const DURABILITY: &str = "synced by two of three servers of the engine, and by the owner";

fn workloads(settings: &Settings) -> Vec<Workload> {
    let shapes = loaded::SHAPES.into_iter().map(|shape| loaded_workload(shape, settings));
    shapes
        .chain([taken_workload(taken::End::Killed, settings), taken_workload(taken::End::Moved, settings)])
        .chain([leader_workload(settings)])
        .collect()
}

fn side(name: &'static str, is_ours: bool, durability: &'static str, start: Start) -> Side {
    Side { name, is_ours, durability, start }
}

fn loaded_workload(shape: loaded::ClusterShape, settings: &Settings) -> Workload {
    let time = loaded::time(settings);
    let replicated: Start =
        Box::new(move |settings, dir| Ok(Box::new(loaded::ShardRounds::replicated(shape, settings, dir)?)));
    let alone: Start = Box::new(move |settings, dir| Ok(Box::new(loaded::ShardRounds::alone(shape, settings, dir)?)));
    Workload {
        name: shape.name.to_owned(),
        what: format!(
            "{} s of {} bytes over {} kept connections to one node, which sends all on",
            time.as_secs_f64(),
            shape.size,
            shape.connections
        ),
        figures: loaded::FIGURES,
        published: published::about(shape.name),
        writes_octets: (time.as_secs_f64() * 5e8) as u64,
        sides: vec![
            side("replicated", true, DURABILITY, replicated),
            side("one server", false, ScratchServer::DURABILITY, alone),
        ],
    }
}

fn taken_workload(end: taken::End, settings: &Settings) -> Workload {
    let recipients = taken::recipients(settings);
    let start: Start = Box::new(move |_, dir| Ok(Box::new(taken::TakeOver::new(end, dir))));
    Workload {
        name: end.name().to_owned(),
        what: format!("{recipients} recipients wait in a shard; {}", end.about()),
        figures: taken::FIGURES,
        published: published::about(end.name()),
        writes_octets: recipients * 2_000,
        sides: vec![side("replicated", true, DURABILITY, start)],
    }
}

fn leader_workload(settings: &Settings) -> Workload {
    let time = leader::time(settings);
    let start: Start = Box::new(move |settings, dir| Ok(Box::new(leader::LostLeader::start(settings, dir)?)));
    Workload {
        name: leader::NAME.to_owned(),
        what: format!(
            "{} s of 10 KiB, {} a second over {} connections; after {} s the server that leads the shard's log is killed",
            time.as_secs_f64(),
            leader::RATE,
            leader::CONNECTIONS,
            leader::KILLED_AFTER.as_secs()
        ),
        figures: leader::FIGURES,
        published: published::about(leader::NAME),
        writes_octets: 1 << 30,
        sides: vec![side("replicated", true, DURABILITY, start)],
    }
}

const RATE: Figure = Figure { key: "rate", name: "relayed/s", unit: Unit::PerSecond, better: Better::Higher };

/// Waits for what must come by itself.
fn wait_for(missing: &str, mut look: impl FnMut() -> bool) -> Result<(), SideError> {
    let begun = Instant::now();
    while !look() {
        if begun.elapsed() > PATIENCE {
            return Err(SideError::Failed(format!("{missing} after {} s", PATIENCE.as_secs())));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

const LOOK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(300);
