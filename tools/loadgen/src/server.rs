//! Our server as a process of its own.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Process, WaitError};

/// A running `posthaste serve`; killed when dropped.
#[derive(Debug)]
pub struct Server {
    /// Its process.
    pub process: Process,
    /// What it has printed.
    pub banner: String,
    /// The TCP addresses that it listens on, in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
    /// Where its mailboxes lie, as it says it.
    pub mail: PathBuf,
}

/// Why our server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("{program}: {source}")]
    Program { program: PathBuf, source: std::io::Error },
    #[error("the server was not ready: {0}")]
    NotReady(#[source] WaitError),
    #[error("the configuration has no listener on a TCP address")]
    NoAddress,
    #[error("after the restart it listens on {now} instead of {before}: give its listener a fixed port")]
    Moved { before: SocketAddr, now: SocketAddr },
}

impl Server {
    /// Starts a `posthaste serve` and waits until it is ready. What it writes goes to the files `place` with `.out` and `.log` at the end.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn launch(command: &mut Command, place: &Path) -> Result<Self, StartError> {
        let failed = |source, command: &Command| StartError::Program { program: command.get_program().into(), source };
        let mut process = Process::start(command, place).map_err(|source| failed(source, command))?;
        let is_ready = |said: &str| said.lines().any(|line| line.starts_with("Ready") || line.starts_with('{'));
        let banner = process.wait_until(|process| Some(process.output()).filter(|said| is_ready(said)));
        let banner = banner.map_err(StartError::NotReady)?;
        let (addresses, mail) = read_banner(&banner);
        Ok(Self { process, banner, addresses, mail })
    }
}

/// The addresses and the directory of the mail in what the server prints when it is ready: lines for people, or a line of JSON.
fn read_banner(banner: &str) -> (Vec<SocketAddr>, PathBuf) {
    let json: Option<serde_json::Value> = banner.lines().find_map(|line| serde_json::from_str(line).ok());
    let values = |name: &str| -> Vec<String> {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        match json.as_ref().map(|json| &json[name]) {
            Some(serde_json::Value::Array(values)) => values.iter().filter_map(text).collect(),
            Some(value) => text(value).into_iter().collect(),
            None => {
                let lines = banner.lines().filter_map(|line| line.trim().split_once(' '));
                lines.filter(|(key, _)| *key == name).map(|(_, value)| value.trim().to_owned()).collect()
            }
        }
    };
    // Addresses of UNIX sockets are among them.
    let addresses = values("listening").iter().filter_map(|value| value.parse().ok()).collect();
    (addresses, values("mail").into_iter().next().unwrap_or_default().into())
}

/// A server on a scratch directory, with any user at localhost unless it has a configuration of its own; ended in order when dropped. It can be
/// killed and started again.
#[derive(Debug)]
pub struct ScratchServer {
    server: Server,
    /// The first TCP address that it listens on.
    pub address: SocketAddr,
    /// Where its mailboxes lie.
    pub mail: PathBuf,
    program: PathBuf,
    dir: PathBuf,
    config: PathBuf,
    starts: u32,
}

/// Any user at localhost, a free port, room for many connections of one client; the rest, and so the log, as it is by
/// default.
const CONFIG: &str = "host_name = \"localhost\"
[limits]
connections_per_address = 20000
[[listener]]
address = \"127.0.0.1:0\"
";

impl ScratchServer {
    /// What is on stable storage when it says 250.
    pub const DURABILITY: &str = "spool synced before 250";

    /// Starts `program serve` in `dir`, with the configuration in `config` or one made there, and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(program: &Path, dir: &Path, config: Option<&Path>) -> Result<Self, StartError> {
        Self::start_on(program, dir, config, "127.0.0.1:0")
    }

    /// Like [`start`](Self::start), but a configuration made there names a port that stays the same when the server is killed and
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
        self.server.process.kill();
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
        let mut command = Command::new(program);
        command.current_dir(dir).arg("serve").arg("--config").arg(config);
        let server = Server::launch(&mut command, &dir.join(format!("server-{starts}")))?;
        let address = *server.addresses.first().ok_or(StartError::NoAddress)?;
        let mail = dir.join(&server.mail);
        let (program, dir, config) = (program.to_owned(), dir.to_owned(), config.to_owned());
        Ok(Self { server, address, mail, program, dir, config, starts })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.server.process.pid()
    }
}

impl Drop for ScratchServer {
    fn drop(&mut self) {
        // One that does not end is killed with its process.
        let _ = self.server.process.stop();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_it_listens_and_keeps_mail_is_read_from_either_banner() {
        let expected = (vec!["127.0.0.1:4711".parse().unwrap(), "[::1]:4712".parse().unwrap()], "data/my mail".into());
        let lines = "Posthaste 1 as mx\n  listening  127.0.0.1:4711\n  listening  [::1]:4712\n  listening  /run/lmtp\n  \
                     mail       data/my mail\nReady; Ctrl-C or SIGTERM ends it.\n";
        assert_eq!(read_banner(lines), expected);
        let json = "{\"listening\":[\"127.0.0.1:4711\",\"[::1]:4712\",\"/run/lmtp\"],\"mail\":\"data/my mail\"}\n";
        assert_eq!(read_banner(json), expected);
    }

    #[test]
    fn a_server_that_ends_instead_is_told_from_a_program_that_cannot_be_started() {
        let dir = tempfile::tempdir().unwrap();
        let launch = |command: &mut Command| Server::launch(command, &dir.path().join("server")).unwrap_err();
        let ended = launch(Command::new("sh").args(["-c", "echo no such disk >&2; exit 3"]));
        assert!(matches!(&ended, StartError::NotReady(WaitError::Ended { said, .. }) if said == "no such disk"));
        assert!(matches!(launch(&mut Command::new("/absent")), StartError::Program { .. }));
    }
}
