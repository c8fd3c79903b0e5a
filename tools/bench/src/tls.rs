//! Mail received over TLS: handshakes, and messages over kept and new connections.

mod handshakes;
pub(crate) mod start;

use std::path::Path;

use posthaste_loadgen::server::ScratchServer;
use posthaste_loadgen::values::PerConnection;

use self::start::{client_config, own_pair};
use crate::peers::{PROCESSES_MAX, Postfix};
use crate::published;
use crate::receive;
use crate::receive::loaded::{Door, Opened, side};
use crate::receive::shape::{Amount, ONE, Shape, shape};
use crate::suite::{Settings, SideError, Suite, Workload};

pub const SUITE: Suite = Suite {
    name: "tls",
    about: "Mail received over TLS: handshakes, and messages over kept and new connections",
    workloads,
};

const CONNECTIONS: u32 = 50;
const KEPT: u64 = 100_000;
const NEW: u64 = 20_000;

fn workloads(settings: &Settings) -> Vec<Workload> {
    let kept = shape("tls-10k", "10k", CONNECTIONS, PerConnection::All, Amount::Count(KEPT), 20);
    let new = shape("tls-10k-new", "10k", CONNECTIONS, ONE, Amount::Count(NEW), 20);
    let messages = [kept, new].map(|shape| Workload {
        name: shape.name.clone(),
        what: format!("{}; encrypted after STARTTLS, a full handshake each", shape.what(settings)),
        figures: receive::FIGURES,
        published: published::about(&shape.name),
        writes_octets: shape.octets(settings),
        sides: vec![
            side("posthaste", true, ScratchServer::DURABILITY, &shape, ours),
            side("posthaste without TLS", true, ScratchServer::DURABILITY, &shape, in_the_clear),
            side("Postfix", false, Postfix::DURABILITY, &shape, postfix),
        ],
    });
    [handshakes::workload(settings)].into_iter().chain(messages).collect()
}

/// Our server with STARTTLS and its self-made certificate, which has a key of P-256.
pub(crate) fn server(settings: &Settings, dir: &Path) -> Result<ScratchServer, SideError> {
    let config = dir.join("posthaste.toml");
    std::fs::write(&config, CONFIG).map_err(SideError::failed("configuration"))?;
    ScratchServer::start(&settings.program, dir, Some(&config)).map_err(SideError::failed("posthaste serve"))
}

const CONFIG: &str = "host_name = \"localhost\"
[limits]
connections_per_address = 20000
[[listener]]
address = \"127.0.0.1:0\"
tls = \"starttls\"
";

fn ours(_: &Shape, settings: &Settings, dir: &Path) -> Result<Opened, SideError> {
    let opened = Opened::ours(server(settings, dir)?);
    Ok(Opened { door: Door::StartTls(client_config()?), ..opened })
}

fn in_the_clear(_: &Shape, settings: &Settings, dir: &Path) -> Result<Opened, SideError> {
    server(settings, dir).map(Opened::ours)
}

fn postfix(shape: &Shape, _: &Settings, dir: &Path) -> Result<Opened, SideError> {
    let postfix = Postfix::start_with_tls(dir, shape.mailboxes, &own_pair(dir)?)?;
    let notes = vec![format!("its certificate has a key of P-256, as ours; at most {PROCESSES_MAX} processes")];
    Ok(Opened { door: Door::StartTls(client_config()?), notes, ..Opened::postfix(postfix) })
}
