//! Our server as a relay on a scratch directory, and the DNS server that it asks.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use posthaste_dns_stub::{Server as Dns, Zone};
use posthaste_loadgen::server::ScratchServer;

use crate::suite::{Settings, SideError};

/// The server's default; the number of segments decides the length of the ring.
pub const RING_SEGMENT_BYTES: u64 = 64 << 20;
/// Limit on recipients in the queue: more than [ten million](super::deferred), the default limit.
const QUEUE_RECIPIENTS: u64 = 20_000_000;

/// A relaying server; stopped when dropped.
pub struct Ours {
    pub server: ScratchServer,
    /// Path of its event log.
    pub events: PathBuf,
    pub config: PathBuf,
    /// Deviations from the documented measurement.
    pub notes: Vec<String>,
    _dns: Dns,
}

impl Ours {
    /// Starts it in `dir`. It looks up mail hosts in `zone`, all of which listen on `port`.
    ///
    /// # Errors
    /// When it does not start to listen.
    pub fn start(settings: &Settings, dir: &Path, zone: Zone, port: u16, segments: u64) -> Result<Self, SideError> {
        let dns = Dns::start(zone);
        let (config, events) = (dir.join("posthaste.toml"), dir.join("events"));
        let mut text = configuration(&events, segments);
        writeln!(text, "[dns]\nservers = [\"{}\"]", dns.address()).expect("a String takes everything");
        // The last table: what is added begins with more of its keys.
        let relay = format!(
            "[relay]\nnetworks = [\"127.0.0.1\"]\nport = {port}\ntls = false\nqueue_recipients = {QUEUE_RECIPIENTS}\n"
        );
        text += &relay;
        let mut notes = Vec::new();
        if let Some(more) = &settings.config {
            text += &std::fs::read_to_string(more).map_err(SideError::failed("--config"))?;
            notes.push(format!("with the configuration in {}", more.display()));
        }
        std::fs::write(&config, text).map_err(SideError::failed("configuration"))?;
        let server = ScratchServer::start(&settings.program, dir, Some(&config));
        let server = server.map_err(SideError::failed("posthaste serve"))?;
        Ok(Self { server, events, config, notes, _dns: dns })
    }

    /// The directory of the spool of a server in `dir`.
    pub fn spool(dir: &Path) -> PathBuf {
        dir.join("data/spool")
    }
}

/// A zone with one domain whose mail host is on loopback.
pub fn zone(domain: &str) -> Zone {
    let host = format!("mx.{domain}");
    Zone::default().mx(domain, 10, &host).a(&host, Ipv4Addr::LOCALHOST)
}

/// The configuration. The event log stays in one file, which is read while it grows.
fn configuration(events: &Path, segments: u64) -> String {
    format!(
        "host_name = \"relay.example\"
[[listener]]
address = \"127.0.0.1:0\"
[[listener]]
address = \"127.0.0.1:0\"
protocol = \"http\"
[[domain]]
name = \"here.example\"
[storage]
data = \"data\"
spool_segments = {segments}
[log]
level = \"warn\"
[limits]
connections = 5000
connections_per_address = 5000
[events]
enabled = true
dir = {events:?}
file_bytes = \"64 GiB\"
"
    )
}
