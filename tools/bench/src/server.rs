//! Our server, and our sink, as processes of their own on a scratch directory.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Process;
use crate::suite::SideError;

/// A running server; ended in order when dropped.
#[derive(Debug)]
pub struct Server {
    process: Process,
    /// The first TCP address that it listens on.
    pub address: SocketAddr,
    /// Where its mailboxes lie.
    pub mail: PathBuf,
    program: PathBuf,
    dir: PathBuf,
    config: PathBuf,
    starts: u32,
}

/// Why our server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("{program}: {source}")]
    Program { program: PathBuf, source: std::io::Error },
    #[error("the server was not ready in time, or ended: {0}")]
    NotReady(String),
    #[error("the configuration has no SMTP listener on a TCP address")]
    NoAddress,
    #[error("started again it listens on {now} and not on {before}: give its listener a fixed port")]
    Moved { before: SocketAddr, now: SocketAddr },
}

/// Any user at localhost, a free port, room for many connections of one client; the rest, and so the log, as it is by
/// default.
const CONFIG: &str = "host_name = \"localhost\"
[limits]
connections_per_address = 20000
[[listener]]
address = \"127.0.0.1:0\"
";

impl Server {
    /// What is on stable storage when it says 250.
    pub const DURABILITY: &str = "journal synced before 250";

    /// Starts `program serve` in `dir`, with the configuration in `config` or one made there, and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(program: &Path, dir: &Path, config: Option<&Path>) -> Result<Self, StartError> {
        Self::start_on(program, dir, config, "127.0.0.1:0")
    }

    /// As [`Server::start`], but a configuration made there names a port that stays the same when the server is killed and
    /// started again.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_to_kill(program: &Path, dir: &Path, config: Option<&Path>) -> Result<Self, StartError> {
        let address = fixed_address().map_err(|source| StartError::Program { program: program.to_owned(), source })?;
        Self::start_on(program, dir, config, &address.to_string())
    }

    fn start_on(program: &Path, dir: &Path, config: Option<&Path>, address: &str) -> Result<Self, StartError> {
        let failed = |source| StartError::Program { program: program.to_owned(), source };
        let config = match config {
            Some(file) => std::path::absolute(file).map_err(failed)?,
            None => {
                let file = dir.join("posthaste.toml");
                std::fs::write(&file, CONFIG.replace("127.0.0.1:0", address)).map_err(failed)?;
                file
            }
        };
        Self::launch(program, dir, &config, 1)
    }

    /// SIGKILL, which no process can put off. Returns when it has gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts a killed server again as it was started, and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_again(&mut self) -> Result<(), StartError> {
        let again = Self::launch(&self.program, &self.dir, &self.config, self.starts + 1)?;
        if again.address != self.address {
            return Err(StartError::Moved { before: self.address, now: again.address });
        }
        *self = again;
        Ok(())
    }

    fn launch(program: &Path, dir: &Path, config: &Path, starts: u32) -> Result<Self, StartError> {
        let failed = |source| StartError::Program { program: program.to_owned(), source };
        let mut command = Command::new(program);
        command.current_dir(dir).arg("serve").arg("--config").arg(config);
        let log = match starts {
            1 => dir.join("server.log"),
            _ => dir.join(format!("server-{starts}.log")),
        };
        let mut process = Process::start(&mut command, log).map_err(failed)?;
        let banner = process.wait_until(|said| said.contains("\nReady").then(|| said.to_owned()));
        let banner = banner.ok_or_else(|| StartError::NotReady(process.last_words()))?;
        let values = |wanted: &'static str| {
            let value = move |line: &'_ str| {
                line.trim()
                    .split_once(' ')
                    .filter(|(name, _)| *name == wanted)
                    .map(|(_, value)| value.trim().to_owned())
            };
            banner.lines().filter_map(value)
        };
        let address = values("listening").find_map(|value| value.parse().ok()).ok_or(StartError::NoAddress)?;
        let mail = values("mail").next().map_or_else(|| dir.to_owned(), |value| dir.join(value));
        let (program, dir, config) = (program.to_owned(), dir.to_owned(), config.to_owned());
        Ok(Self { process, address, mail, program, dir, config, starts })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// A port of loopback that no outgoing connection is given: a client that tries again and again to reach a server that is
/// away could otherwise be given that very port, and so be connected to itself (RFC 9293 section 3.5).
fn fixed_address() -> std::io::Result<SocketAddr> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first: u16 = range.split_ascii_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(32768);
    let mut last_error = std::io::ErrorKind::AddrNotAvailable.into();
    for _ in 0..100 {
        let port = fastrand::u16(PORT_FIRST.min(first.saturating_sub(1))..first);
        match TcpListener::bind(("127.0.0.1", port)).and_then(|listener| listener.local_addr()) {
            Ok(address) => return Ok(address),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Below are the ports of services.
const PORT_FIRST: u16 = 10_000;

/// A running `posthaste sink`; ended when dropped.
#[derive(Debug)]
pub struct Sink {
    process: Process,
    pub address: SocketAddr,
}

impl Sink {
    pub const DURABILITY: &str = "discards";

    /// Starts `program sink` on a free port.
    ///
    /// # Errors
    /// When it does not come to listen.
    pub fn start(program: &Path, dir: &Path) -> Result<Self, SideError> {
        let mut command = Command::new(program);
        command.args(["sink", "127.0.0.1:0"]);
        let failed = SideError::failed("posthaste sink");
        let mut process = Process::start(&mut command, dir.join("sink.log")).map_err(failed)?;
        let address = process.wait_until(|said| {
            let (_, behind) = said.split_once("sink listens on ")?;
            behind.split_once('\n')?.0.parse().ok()
        });
        let address = address
            .ok_or_else(|| SideError::Failed(format!("posthaste sink does not listen: {}", process.last_words())))?;
        Ok(Self { process, address })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
