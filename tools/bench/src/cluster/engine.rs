//! The engine: three servers of NATS on loopback with three replicas, each write synced.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use posthaste_loadgen::process::{Process, find_program};
use posthaste_loadgen::server::fixed_address;
use serde_json::Value;

use crate::suite::SideError;

/// Three servers; killed when dropped.
pub(super) struct Engine(Vec<EngineServer>);

struct EngineServer {
    program: PathBuf,
    dir: PathBuf,
    process: Process,
    addresses: Addresses,
}

#[derive(Clone, Copy)]
struct Addresses {
    clients: SocketAddr,
    monitor: SocketAddr,
    routes: SocketAddr,
}

impl Engine {
    /// Starts them in `dir`, and waits until they have a leader.
    ///
    /// # Errors
    /// [`SideError::Absent`] without the program.
    pub fn start(dir: &Path) -> Result<Self, SideError> {
        let named = std::env::var_os("NATS_SERVER").map(PathBuf::from);
        let program = named.or_else(|| find_program("nats-server"));
        let program = program.ok_or_else(|| SideError::Absent("nats-server is not installed".to_owned()))?;
        let mut all = Vec::new();
        for _ in 0..SERVERS {
            let address = || fixed_address().map_err(SideError::failed("a free port"));
            all.push(Addresses { clients: address()?, monitor: address()?, routes: address()? });
        }
        let start = |number: usize| EngineServer::start(&program, &dir.join(format!("e{number}")), &all, number);
        let engine = Self((0..SERVERS).map(start).collect::<Result<_, _>>()?);
        crate::cluster::wait_for("the engine has no leader", || engine.has_leader())?;
        Ok(engine)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.0.iter().map(|server| server.process.pid()).collect()
    }

    /// Addresses for clients.
    pub fn servers(&self) -> Vec<String> {
        self.0.iter().map(|server| server.addresses.clients.to_string()).collect()
    }

    /// Addresses of HTTP monitoring.
    pub fn monitors(&self) -> Vec<String> {
        self.0.iter().map(|server| server.addresses.monitor.to_string()).collect()
    }

    /// The server that leads the log of a shard, if it is known.
    pub fn leader(&self, shard: u16) -> Option<usize> {
        let asked = get(self.0[0].addresses.monitor, "/jsz?streams=true&accounts=true")?;
        let streams = asked["account_details"].as_array()?.iter().flat_map(|of| of["stream_detail"].as_array());
        let log = format!("posthaste-log-{shard}");
        let stream = streams.flatten().find(|stream| stream["name"] == log.as_str())?;
        stream["cluster"]["leader"].as_str()?.strip_prefix('e')?.parse().ok()
    }

    /// Sends SIGKILL to a server.
    pub fn kill(&mut self, server: usize) {
        self.0[server].process.kill();
    }

    /// Starts a killed server again, on its old disk.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_again(&mut self, server: usize) -> Result<(), SideError> {
        let EngineServer { program, dir, process, .. } = &mut self.0[server];
        *process = launch(program, dir)?;
        Ok(())
    }

    fn has_leader(&self) -> bool {
        let knows = |server: &EngineServer| {
            let asked = get(server.addresses.monitor, "/jsz");
            asked.is_some_and(|told| told["meta_cluster"]["leader"].as_str().is_some_and(|name| !name.is_empty()))
        };
        self.0.iter().all(knows)
    }
}

impl EngineServer {
    fn start(program: &Path, dir: &Path, all: &[Addresses], number: usize) -> Result<Self, SideError> {
        std::fs::create_dir_all(dir).map_err(SideError::failed("directory of a server of the engine"))?;
        let addresses = all[number];
        let routes: Vec<String> = all.iter().map(|other| format!("\"nats://{}\"", other.routes)).collect();
        let text = format!(
            "server_name: e{number}\nlisten: \"{}\"\nhttp: \"{}\"\nmax_payload: 8388608\n\
             jetstream {{ store_dir: \"{}\", max_file_store: 1000000000000, sync_interval: always }}\n\
             cluster {{ name: bench, listen: \"{}\", no_advertise: true, routes: [{}] }}\n",
            addresses.clients,
            addresses.monitor,
            dir.join("store").display(),
            addresses.routes,
            routes.join(", ")
        );
        std::fs::write(dir.join(CONFIG), text).map_err(SideError::failed("configuration of the engine"))?;
        Ok(Self { program: program.to_owned(), dir: dir.to_owned(), process: launch(program, dir)?, addresses })
    }
}

fn launch(program: &Path, dir: &Path) -> Result<Process, SideError> {
    let mut command = Command::new(program);
    command.arg("-c").arg(dir.join(CONFIG));
    Process::start(&mut command, &dir.join("nats")).map_err(SideError::failed("nats-server"))
}

/// An answer of HTTP monitoring.
fn get(address: SocketAddr, path: &str) -> Option<Value> {
    let mut connection = TcpStream::connect_timeout(&address, HTTP_TIMEOUT).ok()?;
    connection.set_read_timeout(Some(HTTP_TIMEOUT)).ok()?;
    write!(connection, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

const SERVERS: usize = 3;
const CONFIG: &str = "nats.conf";
const HTTP_TIMEOUT: Duration = Duration::from_secs(2);
