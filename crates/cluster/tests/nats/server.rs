//! A NATS server on this machine.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use posthaste_cluster::nats::NatsConfig;
use tempfile::TempDir;

pub const SYNCED: &str = "sync_interval: always";
pub const UNSYNCED: &str = "sync_interval: 2m";

struct Settings {
    disk: &'static str,
    cluster: String,
}

pub struct Server {
    process: Child,
    dir: TempDir,
    settings: Settings,
    address: String,
    monitor: String,
}

impl Server {
    /// `None` if there is no program, and none is required.
    pub fn start(disk: &'static str) -> Option<Self> {
        Self::start_with(Settings { disk, cluster: String::new() })
    }

    fn start_with(settings: Settings) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let any = "127.0.0.1:-1";
        match run(&dir, &settings, any, any) {
            Ok((process, address, monitor)) => Some(Server { process, dir, settings, address, monitor }),
            Err(error) if error.kind() == ErrorKind::NotFound && std::env::var_os("CI_REQUIRE_NATS").is_none() => {
                eprintln!("skipped: there is no nats-server");
                None
            }
            Err(error) => panic!("nats-server: {error}"),
        }
    }

    /// `host:port` for clients.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Kills it, and starts it at the same addresses with the same disk.
    pub fn kill_and_start(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = run(&self.dir, &self.settings, &self.address, &self.monitor).unwrap().0;
    }
}

/// Three servers that keep three replicas.
pub fn three() -> Option<Vec<Server>> {
    // Each must know the ports of all before it starts.
    let ports = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = ports.map(|listener| listener.local_addr().unwrap().port());
    let routes = ports.map(|port| format!("\"nats://127.0.0.1:{port}\"")).join(", ");
    let cluster = |number: usize| {
        let listen = format!("listen: \"127.0.0.1:{}\", routes: [{routes}]", ports[number]);
        format!("server_name: n{number}\ncluster {{ name: test, {listen} }}\n")
    };
    (0..3).map(|number| Server::start_with(Settings { disk: SYNCED, cluster: cluster(number) })).collect()
}

/// A server that all share who need one at the same time.
pub fn shared() -> Option<Arc<Server>> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap();
    if let Some(server) = shared.upgrade() {
        return Some(server);
    }
    let server = Arc::new(Server::start(SYNCED)?);
    *shared = Arc::downgrade(&server);
    Some(server)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process and its addresses, once it is ready.
fn run(dir: &TempDir, settings: &Settings, address: &str, monitor: &str) -> std::io::Result<(Child, String, String)> {
    let store = dir.path().join("store");
    let Settings { disk, cluster } = settings;
    let text = format!(
        "listen: \"{address}\"\nhttp: \"{monitor}\"\nmax_payload: 8388608\n\
         jetstream {{ store_dir: \"{}\", max_file_store: 1000000000000, {disk} }}\n{cluster}",
        store.display()
    );
    let file = dir.path().join("nats.conf");
    std::fs::write(&file, text)?;
    let program = std::env::var_os("NATS_SERVER").unwrap_or("nats-server".into());
    let mut process = Command::new(program).arg("-c").arg(&file).stderr(Stdio::piped()).spawn()?;
    let mut log = BufReader::new(process.stderr.take().expect("it was asked for"));
    let found = wait(&mut log);
    // Nobody else reads it, and a full pipe would hold the server up.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    Ok((process, found.0, found.1))
}

/// Its addresses.
fn wait(log: &mut BufReader<ChildStderr>) -> (String, String) {
    let (mut address, mut monitor, mut all) = (String::new(), String::new(), String::new());
    let mut line = String::new();
    while log.read_line(&mut line).unwrap() > 0 {
        let last = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        if line.contains("Listening for client connections on") {
            address = last;
        } else if line.contains("Starting http monitor on") {
            monitor = last;
        } else if line.contains("Server is ready") {
            return (address, monitor);
        }
        all.push_str(&std::mem::take(&mut line));
    }
    panic!("the server has ended: {all}");
}

pub fn config(server: &Server) -> NatsConfig {
    config_of(std::slice::from_ref(server))
}

/// As many replicas as there are servers.
pub fn config_of(servers: &[Server]) -> NatsConfig {
    NatsConfig {
        servers: servers.iter().map(|server| server.address.clone()).collect(),
        monitors: servers.iter().map(|server| server.monitor.clone()).collect(),
        tls: None,
        login: None,
        prefix: "test".to_owned(),
        replicas: servers.len() as u64,
        log_bytes_max: 1 << 30,
        timeout: Duration::from_secs(1),
    }
}
