//! Three nodes on loopback, each the home of a shard and a standby of the others.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use posthaste_loadgen::server::ScratchServer;
use serde_json::Value;

use super::engine::Engine;
use super::wait_for;
use crate::suite::{Settings, SideError};

/// Engine and nodes.
pub(super) struct Cluster {
    // Nodes hand their shards over at their end.
    pub nodes: Vec<Node>,
    pub engine: Engine,
}

pub(super) struct Node {
    pub server: ScratchServer,
    program: PathBuf,
    config: PathBuf,
}

/// The first shard as a node knows it.
pub(super) struct Shard(Value);

impl Cluster {
    /// Starts all in `dir`, and waits until all members of the first shard are in sync. Mail goes to these ports of loopback, one for each node.
    ///
    /// # Errors
    /// [`SideError::Absent`] without a server of the engine.
    pub fn start(settings: &Settings, dir: &Path, next_hops: [u16; 3]) -> Result<Self, SideError> {
        let engine = Engine::start(dir)?;
        let mut nodes = Vec::new();
        for (number, port) in (1..).zip(next_hops) {
            let text = configuration(&format!("n{number}"), port, CONNECTIONS * 3) + &section(number, &engine);
            nodes.push(Node::start(settings, &dir.join(format!("n{number}")), &text)?);
        }
        let cluster = Self { nodes, engine };
        wait_for("members of the first shard are not in sync", || cluster.is_well())?;
        Ok(cluster)
    }

    /// The process ids of all.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.server.pid()).chain(self.engine.pids()).collect()
    }

    /// True if the first node owns the first shard, and all members are in sync.
    pub fn is_well(&self) -> bool {
        self.nodes[0].shard().is_some_and(|shard| shard.owner() == Some("n1") && shard.in_sync() == self.nodes.len())
    }

    /// Ends all without a hand-over.
    pub fn kill(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.server.kill());
    }
}

impl Node {
    /// Starts it; it waits for an engine that elects its leaders.
    fn start(settings: &Settings, dir: &Path, text: &str) -> Result<Self, SideError> {
        std::fs::create_dir_all(dir).map_err(SideError::failed("directory of a node"))?;
        let config = dir.join("posthaste.toml");
        std::fs::write(&config, text).map_err(SideError::failed("configuration"))?;
        let server = ScratchServer::start(&settings.program, dir, Some(&config));
        let server = server.map_err(SideError::failed("posthaste serve"))?;
        Ok(Self { server, program: settings.program.clone(), config })
    }

    /// `None` if it does not answer.
    pub fn shard(&self) -> Option<Shard> {
        let mut command = Command::new(&self.program);
        command.args(["cluster", "status", "--json", "--config"]).arg(&self.config);
        command.current_dir(self.config.parent()?);
        let told: Value = serde_json::from_slice(&command.output().ok()?.stdout).ok()?;
        let shards = told["shards"].as_array()?;
        shards.iter().find(|shard| shard["shard"] == 1).cloned().map(Shard)
    }

    /// Starts a planned hand-over of the first shard.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn hand_over(&self, to: &str) -> Result<std::process::Child, SideError> {
        let mut command = Command::new(&self.program);
        command.args(["cluster", "move", "1", "--to", to, "--config"]).arg(&self.config);
        command.current_dir(self.config.parent().expect("it has one")).stdout(std::process::Stdio::null());
        command.spawn().map_err(SideError::failed("cluster move"))
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address
    }
}

impl Shard {
    pub fn owner(&self) -> Option<&str> {
        self.0["owner"].as_str()
    }

    /// Recipients that wait, as this member knows it.
    pub fn queued(&self) -> u64 {
        self.0["queued"].as_u64().unwrap_or(0)
    }

    fn in_sync(&self) -> usize {
        self.0["in_sync"].as_array().map_or(0, Vec::len)
    }
}

/// A server that takes mail on loopback and sends it to a port of it.
pub(super) fn configuration(name: &str, next_hop: u16, site_connections: u64) -> String {
    format!(
        "host_name = \"{name}.here.example\"
[[listener]]
address = \"127.0.0.1:0\"
[[domain]]
name = \"here.example\"
aliases = {{ postmaster = \"ops@there.example\" }}
[storage]
data = \"data\"
spool_segments = 24
[log]
level = \"warn\"
[limits]
connections = 5000
connections_per_address = 5000
[relay]
networks = [\"127.0.0.1\"]
tls = false
queue_recipients = 20000000
connections_per_site = {site_connections}
unreachable_secs = 1
[[relay.route]]
host = \"[127.0.0.1]\"
port = {next_hop}
[relay.schedule.default]
first_secs = 2
longest_secs = 4
"
    )
}

fn section(number: usize, engine: &Engine) -> String {
    let mut text = format!(
        "[cluster]\nnode = \"n{number}\"\nservers = {:?}\nmonitors = {:?}\nlog_bytes = \"4G\"\n",
        engine.servers(),
        engine.monitors()
    );
    for shard in 1..=3 {
        let (first, second) = (shard % 3 + 1, (shard + 1) % 3 + 1);
        text += &format!(
            "[[cluster.shard]]\nnumber = {shard}\nhome = \"n{shard}\"\nstandbys = [\"n{first}\", \"n{second}\"]\n"
        );
    }
    text
}

/// Connections to the sink: limits are divided among the shards.
pub(super) const CONNECTIONS: u64 = 20;
