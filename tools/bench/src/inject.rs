//! Mail injected by HTTP, durable when it is answered, beside the same mail by SMTP.

use posthaste_loadgen::load::Injecting;
use posthaste_loadgen::server::{ScratchServer, StartOptions};
use posthaste_loadgen::values::PerConnection;

use crate::published;
use crate::receive::loaded::{Door, Opened, side};
use crate::receive::shape::{Amount, Shape, shape};
use crate::suite::{Better, Figure, Settings, SideError, Suite, Unit, Workload};

pub const SUITE: Suite = Suite {
    name: "inject",
    about: "Mail injected by HTTP, one and a thousand recipients a request, beside the same mail by SMTP",
    workloads,
};

const FIGURES: &[Figure] = &[
    Figure { key: "recipient_rate", name: "recipients/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "rate", name: "requests/s", unit: Unit::PerSecond, better: Better::Higher },
    Figure { key: "acked_percent", name: "acked", unit: Unit::Percent, better: Better::Higher },
    Figure { key: "p50_us", name: "p50", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p99_us", name: "p99", unit: Unit::Micros, better: Better::Lower },
    Figure { key: "p999_us", name: "p99.9", unit: Unit::Micros, better: Better::Lower },
    Figure {
        key: "recipient_cpu_us",
        name: "server CPU to rest, each recipient",
        unit: Unit::Micros,
        better: Better::Lower,
    },
    Figure { key: "generator_cpu_us", name: "generator CPU, each request", unit: Unit::Micros, better: Better::Lower },
];

const CONNECTIONS: u32 = 50;
/// Requests with one recipient each.
const SINGLE: u64 = 100_000;
/// Recipients of the largest requests, each with a mailbox of its own.
const MANY: u64 = 1000;
const MANY_LEAST: u64 = 20;

fn workloads(settings: &Settings) -> Vec<Workload> {
    let single = shape("inject-10k", "10k", CONNECTIONS, PerConnection::All, Amount::Count(SINGLE), 20);
    let recipients = settings.count(MANY, MANY_LEAST).min(MANY);
    let many = Shape {
        // As many recipients in all.
        amount: Amount::Count(SINGLE / MANY),
        mailboxes: recipients,
        recipients: recipients as usize,
        ..single.clone()
    };
    vec![Workload {
        name: single.name.clone(),
        what: format!("{}; the last side has {recipients} recipients in each request", single.what(settings)),
        figures: FIGURES,
        published: published::about(&single.name),
        writes_octets: single.octets(settings),
        sides: vec![
            side("posthaste by HTTP", true, ScratchServer::DURABILITY, &single, by_http),
            side("posthaste by SMTP", true, ScratchServer::DURABILITY, &single, by_smtp),
            side("posthaste by HTTP, many recipients", true, ScratchServer::DURABILITY, &many, by_http),
        ],
    }]
}

fn by_http(_: &Shape, settings: &Settings, dir: &std::path::Path) -> Result<Opened, SideError> {
    let options = StartOptions { has_http: true, ..StartOptions::default() };
    let server = ScratchServer::start_with(&settings.program, dir, None, options);
    let server = server.map_err(SideError::failed("posthaste serve"))?;
    let address = server.http.ok_or_else(|| SideError::Failed("it has no HTTP listener".into()))?;
    let token = server.token("load", "inject").map_err(SideError::failed("posthaste token"))?;
    let door = Door::Http(Injecting { token: Some(token), repeats: false });
    Ok(Opened { address, door, ..Opened::ours(server) })
}

fn by_smtp(_: &Shape, settings: &Settings, dir: &std::path::Path) -> Result<Opened, SideError> {
    let server = ScratchServer::start(&settings.program, dir, None);
    Ok(Opened::ours(server.map_err(SideError::failed("posthaste serve"))?))
}
