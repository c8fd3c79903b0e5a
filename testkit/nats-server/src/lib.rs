//! A NATS server with JetStream, in a process on loopback. The environment's `NATS_SERVER` names its program, `nats-server` by default.
//!
//! Without the program nothing is started, and tests pass with a line that says so; with `CI_REQUIRE_NATS` they fail.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;

/// Settings of its storage: each message is synced before it is acknowledged.
pub const SYNCED: &str = "sync_interval: always";
/// Settings of its storage: acknowledged messages may be lost in a power cut.
pub const UNSYNCED: &str = "sync_interval: 2m";

struct Settings {
    disk: &'static str,
    cluster: String,
}

/// A server. Dropping it kills it, and its data are gone.
pub struct NatsServer {
    process: Child,
    dir: TempDir,
    settings: Settings,
    address: String,
    monitor: String,
}

impl NatsServer {
    /// Starts one, with [`SYNCED`] or [`UNSYNCED`] storage, and waits until it is ready. `None` if there is no program, and none is required.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(disk: &'static str) -> Option<Self> {
        Self::start_with(Settings { disk, cluster: String::new() })
    }

    fn start_with(settings: Settings) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let any = "127.0.0.1:-1";
        match run(&dir, &settings, any, any) {
            Ok((process, address, monitor)) => Some(NatsServer { process, dir, settings, address, monitor }),
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

    /// `host:port` of its HTTP monitoring.
    pub fn monitor(&self) -> &str {
        &self.monitor
    }

    /// The number of its process, for signals.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Kills it, and starts it at the same addresses with the same disk.
    ///
    /// # Panics
    /// If it does not start.
    pub fn kill_and_start(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = run(&self.dir, &self.settings, &self.address, &self.monitor).unwrap().0;
    }
}

/// Three servers that keep three replicas. `None` as for one.
///
/// # Panics
/// If one does not start.
pub fn three() -> Option<Vec<NatsServer>> {
    // Each must know the ports of all before it starts.
    let ports = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = ports.map(|listener| listener.local_addr().unwrap().port());
    let routes = ports.map(|port| format!("\"nats://127.0.0.1:{port}\"")).join(", ");
    let cluster = |number: usize| {
        let listen = format!("listen: \"127.0.0.1:{}\", routes: [{routes}]", ports[number]);
        format!("server_name: n{number}\ncluster {{ name: test, {listen} }}\n")
    };
    (0..3).map(|number| NatsServer::start_with(Settings { disk: SYNCED, cluster: cluster(number) })).collect()
}

/// A server that all share who need one at the same time. `None` as for one.
///
/// # Panics
/// If it does not start.
pub fn shared() -> Option<Arc<NatsServer>> {
    static SHARED: Mutex<Weak<NatsServer>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap();
    if let Some(server) = shared.upgrade() {
        return Some(server);
    }
    let server = Arc::new(NatsServer::start(SYNCED)?);
    *shared = Arc::downgrade(&server);
    Some(server)
}

impl Drop for NatsServer {
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
