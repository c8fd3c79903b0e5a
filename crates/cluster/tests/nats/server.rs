//! A NATS server on this machine.

use std::io::{BufRead, BufReader, ErrorKind};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use posthaste_cluster::nats::NatsConfig;
use tempfile::TempDir;

pub const SYNCED: &str = "sync_interval: always";
pub const UNSYNCED: &str = "sync_interval: 2m";

pub struct Server {
    process: Child,
    dir: TempDir,
    /// Settings of its disk.
    settings: String,
    address: String,
    monitor: String,
}

impl Server {
    /// `None` if there is no program, and none is required.
    pub fn start(settings: &str) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let any = "127.0.0.1:-1";
        match run(&dir, settings, any, any) {
            Ok((process, address, monitor)) => {
                Some(Server { process, dir, settings: settings.to_owned(), address, monitor })
            }
            Err(error) if error.kind() == ErrorKind::NotFound && std::env::var_os("CI_REQUIRE_NATS").is_none() => {
                eprintln!("skipped: there is no nats-server");
                None
            }
            Err(error) => panic!("nats-server: {error}"),
        }
    }

    /// Kills it, and starts it at the same addresses with the same disk.
    pub fn kill_and_start(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = run(&self.dir, &self.settings, &self.address, &self.monitor).unwrap().0;
    }
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
fn run(dir: &TempDir, settings: &str, address: &str, monitor: &str) -> std::io::Result<(Child, String, String)> {
    let store = dir.path().join("store");
    let text = format!(
        "listen: \"{address}\"\nhttp: \"{monitor}\"\nmax_payload: 8388608\n\
         jetstream {{ store_dir: \"{}\", max_file_store: 1000000000000, {settings} }}\n",
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
    NatsConfig {
        servers: vec![server.address.clone()],
        monitors: vec![server.monitor.clone()],
        tls: None,
        login: None,
        prefix: "test".to_owned(),
        replicas: 1,
        log_bytes_max: 1 << 30,
        timeout: Duration::from_secs(1),
    }
}
