//! Mail received and relayed: generator, server and sink are a process each, over TCP on loopback.
//!
//! The generator runs in this process. Bodies are distinct, each message has one recipient, the event log is on, mail
//! hosts are looked up at a DNS server of this process. The clock stops when the last outcome is recorded: our event
//! log has it, which is in the batch of the record; Postfix's queue is empty.

pub(crate) mod accounting;
pub(crate) mod backlog;
mod deferred;
mod destinations;
mod domains;
pub(crate) mod loaded;
mod machine;
pub(crate) mod ours;
mod outcomes;
pub(crate) mod signed;
mod silent;
pub(crate) mod timeline;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::Sizes;

use crate::peers::{PROCESSES_MAX, Postfix, SmtpSink};
use crate::published;
use crate::sink::Sink;
use crate::suite::{Better, Figure, Settings, Side, SideError, Start, Suite, Unit, Workload};
use loaded::Loaded;
use ours::{Ours, RING_SEGMENT_BYTES};
use outcomes::Outcomes;

pub use timeline::Timeline;

pub const SUITE: Suite = Suite {
    name: "relay",
    about: "Mail received, stored and sent on to another host, until the last outcome is recorded: not part of `all`",
    workloads,
};

const FIGURES: &[Figure] = &[
    Figure { key: "rate", name: "relayed/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "of_a_billion", name: "of a billion a day", unit: Unit::Times, better: Better::Higher },
    Figure { key: "millions_an_hour", name: "millions an hour", unit: Unit::Count, better: Better::Higher },
    Figure { key: "machine_cpu_us", name: "CPU of the machine", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "cpu_s_a_million", name: "CPU seconds a million", unit: Unit::Count, better: Better::Lower },
    Figure { key: "server_cpu_us", name: "server CPU", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "generator_cpu_us", name: "generator CPU", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p50_us", name: "p50 of receiving", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99 of receiving", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "after_load_us", name: "after the load", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "depth_max", name: "most in the queue", unit: Unit::Count, better: Better::Lower },
    SINK_MOST,
    SINK_OPENED,
    Figure { key: "ring_turns", name: "turns of the ring", unit: Unit::Times, better: Better::Neither },
    Figure { key: "memory_bytes", name: "server memory, bytes", unit: Unit::Bytes, better: Better::Lower },
    Figure { key: "steal_percent", name: "steal", unit: Unit::Percent, better: Better::Lower },
];

/// Figure of [`Connections::since`](crate::sink::Connections::since).
const SINK_MOST: Figure =
    Figure { key: "sink_most", name: "connections to the sink at a time", unit: Unit::Count, better: Better::Neither };
const SINK_OPENED: Figure =
    Figure { key: "sink_opened", name: "opened in the round", unit: Unit::Count, better: Better::Neither };

/// A thousand million messages a day, in messages a second.
const BILLION_A_DAY: f64 = 1e9 / 86_400.0;
const TIME: Duration = Duration::from_secs(60);
const TIME_LEAST: Duration = Duration::from_secs(1);
/// A rate in messages a second that no server has exceeded here.
const FAST_RATE: f64 = 20_000.0;
/// Time limit for relaying acknowledged mail.
const DELIVERY_MAX: Duration = Duration::from_secs(300);
/// Time limit for its processes to become idle after that.
const REST_MAX: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);
const DESTINATION: &str = "there.example";
const SENDER: &str = "bench@here.example";

/// Shape of the load.
#[derive(Debug, Clone, Copy)]
struct Shape {
    name: &'static str,
    size: &'static str,
    connections: u32,
    /// Log files of our spool: few enough that a whole run wraps the ring at least three times.
    ring_segments: u64,
}

const SHAPES: [Shape; 6] = [
    Shape { name: "relay-1k", size: "1k", connections: 50, ring_segments: 4 },
    Shape { name: "relay-10k", size: "10k", connections: 50, ring_segments: 24 },
    Shape { name: "relay-100k", size: "100k", connections: 50, ring_segments: 48 },
    Shape { name: "relay-1k-2000", size: "1k", connections: 2000, ring_segments: 4 },
    Shape { name: "relay-10k-2000", size: "10k", connections: 2000, ring_segments: 24 },
    Shape { name: "relay-100k-2000", size: "100k", connections: 2000, ring_segments: 48 },
];

impl Shape {
    fn sizes(self) -> Sizes {
        self.size.parse().expect("sizes in the table are right")
    }

    fn ring_bytes(self) -> u64 {
        self.ring_segments * RING_SEGMENT_BYTES
    }
}

fn workloads(settings: &Settings) -> Vec<Workload> {
    let shapes = SHAPES.map(|shape| workload(shape, settings));
    shapes.into_iter().chain([domains::workload(settings)]).chain(deferred::workloads(settings)).collect()
}

fn time(settings: &Settings) -> Duration {
    settings.time(TIME, TIME_LEAST).min(settings.round_max)
}

fn side(shape: Shape, name: &'static str, is_ours: bool, durability: &'static str, open: Open) -> Side {
    let start: Start = Box::new(move |settings, dir| Ok(Box::new(Loaded::start(shape, open, settings, dir)?)));
    Side { name, is_ours, durability, start }
}

fn workload_of(shape: Shape, settings: &Settings, sides: Vec<Side>) -> Workload {
    let time = time(settings);
    let largest = shape.sizes().classes.iter().map(|class| class.1).max().unwrap_or(0);
    Workload {
        name: shape.name.into(),
        what: format!(
            "{} s of {} bytes over {} kept connections, one recipient each, to one domain with an MX record; the ring of our spool has {} MiB",
            time.as_secs_f64(),
            shape.sizes(),
            shape.connections,
            shape.ring_bytes() >> 20
        ),
        figures: FIGURES,
        published: published::about(shape.name),
        writes_octets: ((time.as_secs_f64() * FAST_RATE) as u64).saturating_mul(largest as u64),
        sides,
    }
}

fn workload(shape: Shape, settings: &Settings) -> Workload {
    let sides = vec![
        side(shape, "posthaste", true, ScratchServer::DURABILITY, ours_to_sink),
        side(shape, "posthaste to smtp-sink", true, ScratchServer::DURABILITY, |shape, settings, dir| {
            let sink = SmtpSink::start(dir, 256)?;
            ours(shape, settings, dir, sink.address, sink)
        }),
        side(shape, "Postfix", false, Postfix::DURABILITY, postfix_to_sink),
    ];
    workload_of(shape, settings, sides)
}

/// Postfix, which relays to our sink.
fn postfix_to_sink(shape: Shape, settings: &Settings, dir: &Path) -> Result<Opened, SideError> {
    postfix(shape, settings, dir, |next_hop| Ok((Postfix::start_as_relay(dir, next_hop)?, Box::new(()))))
}

/// Postfix as `start` makes it for a next hop, with what it needs.
fn postfix(
    shape: Shape,
    settings: &Settings,
    dir: &Path,
    start: impl FnOnce(SocketAddr) -> Result<(Postfix, Box<dyn std::any::Any>), SideError>,
) -> Result<Opened, SideError> {
    let account = dir.join("sink.jsonl");
    let sink = Sink::start_with_account(&settings.program, dir, &account)?;
    let (postfix, holds) = start(sink.address)?;
    let is_narrow = shape.connections as usize > PROCESSES_MAX;
    let note = || format!("{PROCESSES_MAX} of the {} connections are served at a time", shape.connections);
    Ok(Opened {
        address: postfix.address,
        pid: postfix.pid(),
        end: End::Queue(postfix),
        account: Some(account),
        ring_bytes: None,
        notes: is_narrow.then(note).into_iter().collect(),
        signatures: None,
        _holds: holds,
        sink: Some(sink),
    })
}

/// Our server, which relays to our sink.
fn ours_to_sink(shape: Shape, settings: &Settings, dir: &Path) -> Result<Opened, SideError> {
    let account = dir.join("sink.jsonl");
    let sink = Sink::start_with_account(&settings.program, dir, &account)?;
    let opened = ours(shape, settings, dir, sink.address, ())?;
    Ok(Opened { account: Some(account), sink: Some(sink), ..opened })
}

/// Our server, which relays to `next_hop`; `sink` is the listener there.
fn ours(
    shape: Shape,
    settings: &Settings,
    dir: &Path,
    next_hop: SocketAddr,
    sink: impl Sized + 'static,
) -> Result<Opened, SideError> {
    let zone = ours::zone(DESTINATION);
    let ours = Ours::start(settings, dir, zone, next_hop.port(), shape.ring_segments)?;
    Ok(Opened {
        address: ours.server.address,
        pid: ours.server.pid(),
        end: End::Events(Outcomes::new(&ours.events)),
        account: None,
        ring_bytes: Some(shape.ring_bytes()),
        notes: ours.notes.clone(),
        signatures: None,
        _holds: Box::new((ours, sink)),
        sink: None,
    })
}

/// Starts the server of a side.
type Open = fn(Shape, &Settings, &Path) -> Result<Opened, SideError>;

/// A listening server and its next hop.
struct Opened {
    address: SocketAddr,
    /// Process id of its main process, the ancestor of all others.
    pid: u32,
    end: End,
    /// The sink's account.
    account: Option<PathBuf>,
    /// Capacity of the spool's log in octets, after which it is overwritten.
    ring_bytes: Option<u64>,
    notes: Vec<String>,
    /// DKIM signatures of each message in the account; others fail the side.
    signatures: Option<u32>,
    /// Other processes of the side, stopped when dropped: before the sink.
    _holds: Box<dyn std::any::Any>,
    /// The sink, if it reports its connections.
    sink: Option<Sink>,
}

/// The way to detect that every outcome is recorded.
enum End {
    Events(Outcomes),
    Queue(Postfix),
}
