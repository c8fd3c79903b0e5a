//! Our server, and our sink, as processes of their own on a scratch directory.

use std::net::SocketAddr;
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
        let failed = |source| StartError::Program { program: program.to_owned(), source };
        let config = match config {
            Some(file) => std::path::absolute(file).map_err(failed)?,
            None => {
                let file = dir.join("posthaste.toml");
                std::fs::write(&file, CONFIG).map_err(failed)?;
                file
            }
        };
        let mut command = Command::new(program);
        command.current_dir(dir).arg("serve").arg("--config").arg(config);
        let mut process = Process::start(&mut command, dir.join("server.log")).map_err(failed)?;
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
        Ok(Self { process, address, mail })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

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
