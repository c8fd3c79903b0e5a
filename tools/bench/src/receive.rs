//! Mail received over SMTP: from the first octet of a message to the 250 that promises it.
//!
//! The generator runs in this process, the servers in their own. Each side of a workload has its own directory and a
//! server that is started once. A round ends when the server's processes are at rest and everything is delivered; its
//! CPU time is counted until then. The written data reaches the disk before the next round, so that no side pays for
//! another. At the end all acknowledged mail is looked for in the mailboxes.

pub(crate) mod checked;
pub(crate) mod loaded;
pub(crate) mod shape;

use std::time::Duration;

use posthaste_loadgen::server::{ScratchServer, StartOptions};
use posthaste_loadgen::values::PerConnection;

use self::loaded::{Opened, side};
use self::shape::{Amount, ONE, Shape, shape};
use crate::peers::{PROCESSES_MAX, Postfix, SmtpSink};
use crate::published;
use crate::sink::Sink;
use crate::suite::{Better, Figure, Settings, Side, SideError, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "receive",
    about: "Mail received over SMTP, from the first octet of a message to the 250 that promises it",
    workloads,
};

/// Every size of message with every number of connections.
pub const GRID: Suite = Suite {
    name: "grid",
    about: "Mail received over SMTP in each size, over few and many connections, kept and new: not part of `all`",
    workloads: grid,
};

pub(crate) const FIGURES: &[Figure] = &[
    Figure { key: "rate", name: "messages/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "acked_percent", name: "acked", unit: Unit::Percent, better: Better::Higher },
    Figure { key: "p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p999_us", name: "p99.9", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "longest_us", name: "longest", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "disk_rate", name: "delivered and on disk/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "server_cpu_us", name: "server CPU to rest", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "generator_cpu_us", name: "generator CPU", unit: Unit::Micros, better: Better::Lower },
    // Bytes that the server has caused to be written, for each byte of mail.
    Figure { key: "written", name: "written", unit: Unit::Times, better: Better::Lower },
];

const SUSTAINED: Duration = Duration::from_secs(30);
const CELL: Duration = Duration::from_secs(10);

/// The published shapes, then two with kept connections, which none of the published ones has.
fn published_shapes() -> Vec<Shape> {
    let all = PerConnection::All;
    vec![
        shape("prixfixe-10k", "10k", 20, ONE, Amount::Count(2000), 20),
        shape("prixfixe-1k", "1k", 50, ONE, Amount::Count(5000), 20),
        shape("prixfixe-100k", "100k", 50, ONE, Amount::Count(500), 20),
        Shape { rate: Some(50.0), ..shape("prixfixe-sustained", "10k", 20, ONE, Amount::Time(SUSTAINED), 20) },
        shape("mailrs", "1200", 32, ONE, Amount::Time(SUSTAINED), 1),
        shape("kumomta", "100k", 2000, all, Amount::Count(100_000), 100),
        shape("kept-10k", "10k", 50, all, Amount::Count(100_000), 20),
        shape("kept-100k", "100k", 50, all, Amount::Count(20_000), 20),
    ]
}

/// Each size with each number of connections, kept and new. Nobody has published these.
fn grid_shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for size in ["1k", "10k", "100k"] {
        for connections in [1, 50, 500] {
            for (per_connection, ending) in [(PerConnection::All, ""), (ONE, "-new")] {
                let name = format!("{size}-{connections}{ending}");
                shapes.push(shape(&name, size, connections, per_connection, Amount::Time(CELL), 20));
            }
        }
    }
    shapes
}

fn workloads(settings: &Settings) -> Vec<Workload> {
    published_shapes().into_iter().map(|shape| workload(shape, settings)).collect()
}

fn grid(settings: &Settings) -> Vec<Workload> {
    grid_shapes().into_iter().map(|shape| workload(shape, settings)).collect()
}

/// The sizes and connections of the [kinds of spools](crate::kinds) under a server.
fn kind_shapes() -> Vec<Shape> {
    let cell = |size, connections| {
        let name = format!("kinds-smtp-{size}-{connections}");
        shape(&name, size, connections, PerConnection::All, Amount::Time(CELL), 20)
    };
    ["10k", "100k"].into_iter().flat_map(|size| [1, 50, 2000].map(|connections| cell(size, connections))).collect()
}

/// A server with each kind of spool, under the same load.
pub(crate) fn with_kinds(kinds: &[&'static str], settings: &Settings) -> Vec<Workload> {
    let of_shape = |shape: Shape| {
        let side_of = |kind: &&'static str| {
            let spool_kind = Some(*kind);
            // The default: ratios compare it with the others.
            let is_ours = *kind == kinds[0];
            side(kind, is_ours, ScratchServer::DURABILITY, &shape, move |_, settings, dir| {
                let options = StartOptions { spool_kind, ..StartOptions::default() };
                let server = ScratchServer::start_with(&settings.program, dir, None, options);
                Ok(Opened::ours(server.map_err(SideError::failed("posthaste serve"))?))
            })
        };
        of_sides(&shape, settings, kinds.iter().map(side_of).collect())
    };
    kind_shapes().into_iter().map(of_shape).collect()
}

fn workload(shape: Shape, settings: &Settings) -> Workload {
    let sides = vec![
        side("posthaste", true, ScratchServer::DURABILITY, &shape, |_, settings, dir| {
            let server = ScratchServer::start(&settings.program, dir, None);
            Ok(Opened::ours(server.map_err(SideError::failed("posthaste serve"))?))
        }),
        side("posthaste sink", true, Sink::DURABILITY, &shape, |_, settings, dir| {
            let sink = Sink::start(&settings.program, dir)?;
            Ok(Opened::new(sink.address, sink.pid(), sink))
        }),
        side("smtp-sink", false, SmtpSink::DURABILITY, &shape, |shape, _, dir| {
            let sink = SmtpSink::start(dir, shape.connections as usize)?;
            Ok(Opened::new(sink.address, sink.pid(), sink))
        }),
        side("Postfix", false, Postfix::DURABILITY, &shape, |shape, _, dir| {
            let postfix = Postfix::start(dir, shape.mailboxes)?;
            let is_narrow = shape.connections as usize > PROCESSES_MAX;
            let note = || format!("{PROCESSES_MAX} of the {} connections are served at a time", shape.connections);
            Ok(Opened { notes: is_narrow.then(note).into_iter().collect(), ..Opened::postfix(postfix) })
        }),
    ];
    of_sides(&shape, settings, sides)
}

fn of_sides(shape: &Shape, settings: &Settings, sides: Vec<Side>) -> Workload {
    Workload {
        name: shape.name.clone(),
        what: shape.what(settings),
        figures: FIGURES,
        published: published::about(&shape.name),
        writes_octets: shape.octets(settings),
        sides,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_row_has_a_workload_and_measured_figures() {
        let settings = Settings::new("posthaste".into());
        let all: Vec<Workload> =
            crate::SUITES.iter().chain(crate::LONG_SUITES).flat_map(|suite| (suite.workloads)(&settings)).collect();
        for row in published::ROWS {
            let workload = all.iter().find(|workload| workload.name == row.workload);
            let workload = workload.unwrap_or_else(|| panic!("{row:?} is of no workload"));
            assert!(crate::suite::fits(row, workload.figures), "{row:?}");
        }
        let mut names: Vec<_> = all.iter().map(|workload| workload.name.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len(), "a name is given once: {names:?}");
    }

    #[test]
    fn a_scaled_workload_says_what_is_really_sent() {
        let mut settings = Settings::new("posthaste".into());
        let what = |settings: &Settings, name: &str| {
            workloads(settings).into_iter().find(|workload| workload.name == name).unwrap().what
        };
        assert_eq!(
            what(&settings, "kumomta"),
            "100000 messages, at most 60 s of 100k bytes over 2000 connections, kept, to 100 mailboxes"
        );
        settings.scale = 0.05;
        settings.round_max = Duration::from_secs(4);
        assert_eq!(
            what(&settings, "kumomta"),
            "5000 messages, at most 4 s of 100k bytes over 2000 connections, kept, to 100 mailboxes"
        );
        assert_eq!(
            what(&settings, "prixfixe-sustained"),
            "1.5 s of 10k bytes at 50 a second (open loop) over 20 connections, a new one for each message, to 20 mailboxes"
        );
    }
}
