//! Our server, and our sink, as processes of their own on a scratch directory.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Process, free_address};
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
    #[error("the server ended before it was ready: {0}")]
    NotReady(String),
    #[error("the configuration has no SMTP listener on a TCP address")]
    NoAddress,
}

/// Any user at localhost, a free port, room for many connections of one client, and a log without a line a message.
const CONFIG: &str = "host_name = \"localhost\"
[log]
level = \"warn\"
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
        command.current_dir(dir).arg("serve").arg("--config").arg(config).stdout(Stdio::piped());
        let mut process = Process::start(&mut command, dir.join("server.log")).map_err(failed)?;
        let banner = BufReader::new(process.stdout().expect("stdout is piped"));
        let (mut address, mut mail, mut is_ready) = (None, dir.to_owned(), false);
        for line in banner.lines().map_while(Result::ok) {
            match line.trim().split_once(' ').map(|(name, value)| (name, value.trim())) {
                Some(("listening", value)) => address = address.or_else(|| value.parse().ok()),
                Some(("mail", value)) => mail = dir.join(value),
                _ => {}
            }
            if line.starts_with("Ready") {
                is_ready = true;
                break;
            }
        }
        if !is_ready {
            return Err(StartError::NotReady(process.last_words()));
        }
        Ok(Self { process, address: address.ok_or(StartError::NoAddress)?, mail })
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
        let address = free_address().map_err(SideError::failed("a free port"))?;
        let mut command = Command::new(program);
        command.arg("sink").arg(address.to_string()).stdout(Stdio::null());
        let failed = SideError::failed("posthaste sink");
        let mut process = Process::start(&mut command, dir.join("sink.log")).map_err(failed)?;
        process.wait_for(address)?;
        Ok(Self { process, address })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
