//! Our server in a process of its own.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Process, WaitError};

/// A running `posthaste serve`; killed when dropped.
#[derive(Debug)]
pub struct Server {
    /// Its process.
    pub process: Process,
    /// Output before it was ready.
    pub banner: String,
    /// The TCP addresses of its listeners, in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
    /// Addresses of its listeners for HTTP without TLS.
    pub http: Vec<SocketAddr>,
    /// Addresses of its listeners for IMAP, then of those for POP3.
    pub readers: Vec<SocketAddr>,
    /// Directory of its mailboxes, from its banner.
    pub mail: PathBuf,
}

/// The reason for a failed start.
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
    /// Starts a `posthaste serve` and waits until it is ready. Its output goes to the files `place` with `.out` and
    /// `.log` appended.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn launch(command: &mut Command, place: &Path) -> Result<Self, StartError> {
        let failed = |source, command: &Command| StartError::Program { program: command.get_program().into(), source };
        let mut process = Process::start(command, place).map_err(|source| failed(source, command))?;
        let is_ready = |said: &str| said.lines().any(|line| line.starts_with("Ready") || line.starts_with('{'));
        let banner = process.wait_until(|process| Some(process.output()).filter(|said| is_ready(said)));
        let banner = banner.map_err(StartError::NotReady)?;
        let Told { addresses, http, readers, mail } = read_banner(&banner);
        Ok(Self { process, banner, addresses, http, readers, mail })
    }
}

/// The part of the server's banner that we need.
#[derive(Debug, PartialEq)]
struct Told {
    addresses: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    readers: Vec<SocketAddr>,
    mail: PathBuf,
}

/// Reads either form of the banner: lines for people, or a line of JSON.
fn read_banner(banner: &str) -> Told {
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
    let page = |url: &String| url.strip_prefix("http://")?.strip_suffix('/')?.parse().ok();
    let http = [values("page"), values("http")].concat().iter().filter_map(page).collect();
    let readers = [values("imap"), values("pop3")].concat();
    let readers = readers.iter().filter_map(|value| value.parse().ok()).collect();
    Told { addresses, http, readers, mail: values("mail").into_iter().next().unwrap_or_default().into() }
}

/// A server on a scratch directory, stopped in order when dropped. Unless it is given a configuration, it serves any
/// user at localhost. It can be killed and started again.
#[derive(Debug)]
pub struct ScratchServer {
    server: Server,
    /// Address of its first TCP listener.
    pub address: SocketAddr,
    /// Address of its HTTP listener for mail.
    pub http: Option<SocketAddr>,
    /// Directory of its mailboxes.
    pub mail: PathBuf,
    program: PathBuf,
    dir: PathBuf,
    config: PathBuf,
    starts: u32,
}

/// Any user at localhost, a free port, room for many connections of one client; all else, and so the log, has its
/// default.
const CONFIG: &str = "host_name = \"localhost\"
[limits]
connections_per_address = 20000
[[listener]]
address = \"127.0.0.1:0\"
";

/// Configuration of an additional HTTP listener.
const HTTP: &str = "[[listener]]
protocol = \"http\"
address = \"127.0.0.1:0\"
";

/// Options of the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct StartOptions {
    /// Keeps the ports when it is killed and started again.
    pub is_killed: bool,
    /// Adds a listener that takes mail by HTTP.
    pub has_http: bool,
    /// `storage.kind`, if it is not the default.
    pub spool_kind: Option<&'static str>,
}

impl ScratchServer {
    /// Durability of a message acknowledged with 250, for reports.
    pub const DURABILITY: &str = "spool synced before 250";

    /// Starts `program serve` in `dir` and waits until it is ready. The configuration is `config`, or one made there.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(program: &Path, dir: &Path, config: Option<&Path>) -> Result<Self, StartError> {
        Self::start_with(program, dir, config, StartOptions::default())
    }

    /// Like [`start`](Self::start); `options` apply to a configuration made there.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(
        program: &Path,
        dir: &Path,
        config: Option<&Path>,
        options: StartOptions,
    ) -> Result<Self, StartError> {
        let failed = |source| StartError::Program { program: program.to_owned(), source };
        let config = match config {
            Some(file) => std::path::absolute(file).map_err(failed)?,
            None => {
                let file = dir.join("posthaste.toml");
                let mut made = String::new();
                for section in [CONFIG, if options.has_http { HTTP } else { "" }] {
                    let fixed = if options.is_killed { Some(fixed_address().map_err(failed)?) } else { None };
                    let address = fixed.map_or("127.0.0.1:0".to_owned(), |fixed| fixed.to_string());
                    made += &section.replace("127.0.0.1:0", &address);
                }
                if let Some(kind) = options.spool_kind {
                    made += &format!("[storage]\nkind = \"{kind}\"\n");
                }
                std::fs::write(&file, made).map_err(failed)?;
                file
            }
        };
        Self::launch(program, dir, &config, 1)
    }

    /// Sends SIGKILL and returns when the process is gone.
    pub fn kill(&mut self) {
        self.server.process.kill();
    }

    /// Starts a killed server again as it was started, and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_again(&mut self) -> Result<(), StartError> {
        let again = Self::launch(&self.program, &self.dir, &self.config, self.starts + 1)?;
        let doors = [(Some(self.address), Some(again.address)), (self.http, again.http)];
        if let Some((Some(before), Some(now))) = doors.into_iter().find(|(before, now)| before != now) {
            return Err(StartError::Moved { before, now });
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
        let http = server.http.first().copied();
        let (program, dir, config) = (program.to_owned(), dir.to_owned(), config.to_owned());
        Ok(Self { server, address, http, mail, program, dir, config, starts })
    }

    /// Creates a token `name` with these scopes, separated by commas, and returns its secret.
    ///
    /// # Errors
    /// [`StartError::Program`] when the program does not create one.
    pub fn token(&self, name: &str, scopes: &str) -> Result<String, StartError> {
        let failed = |source| StartError::Program { program: self.program.clone(), source };
        let file = self.dir.join(format!("{name}.token"));
        let mut command = Command::new(&self.program);
        command.current_dir(&self.dir).args(["token", "add", name, "--scope", scopes, "--config"]);
        let made = command.arg(&self.config).arg("--output").arg(&file).output().map_err(failed)?;
        if !made.status.success() {
            return Err(failed(std::io::Error::other(String::from_utf8_lossy(&made.stderr).trim_end().to_owned())));
        }
        std::fs::read_to_string(file).map(|secret| secret.trim_end().to_owned()).map_err(failed)
    }

    /// Process id of the server.
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

/// A port of loopback outside the range for outgoing connections. A client that keeps trying to reach a dead server
/// could otherwise be given that very port, and connect to itself (RFC 9293 section 3.5).
///
/// # Errors
/// When there is none.
pub fn fixed_address() -> std::io::Result<SocketAddr> {
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

/// First port to use: those below belong to services.
const PORT_FIRST: u16 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_it_listens_and_keeps_mail_is_read_from_either_banner() {
        let expected = || Told {
            addresses: vec!["127.0.0.1:4711".parse().unwrap(), "[::1]:4712".parse().unwrap()],
            http: vec!["127.0.0.1:8025".parse().unwrap()],
            readers: vec!["127.0.0.1:1143".parse().unwrap(), "127.0.0.1:1110".parse().unwrap()],
            mail: "data/my mail".into(),
        };
        let lines = "Posthaste 1 as mx\n  listening  127.0.0.1:4711\n  listening  [::1]:4712\n  listening  /run/lmtp\n  \
                     page       http://127.0.0.1:8025/\n  \
                     imap       127.0.0.1:1143\n  pop3       127.0.0.1:1110\n  \
                     mail       data/my mail\nReady; Ctrl-C or SIGTERM ends it.\n";
        assert_eq!(read_banner(lines), expected());
        let json = "{\"listening\":[\"127.0.0.1:4711\",\"[::1]:4712\",\"/run/lmtp\"],\"http\":[\"http://127.0.0.1:8025/\"],\"imap\":[\"127.0.0.1:1143\"],\"pop3\":[\"127.0.0.1:1110\"],\"mail\":\"data/my mail\"}\n";
        assert_eq!(read_banner(json), expected());
    }

    #[test]
    fn a_server_that_ends_differs_from_one_that_cannot_start() {
        let dir = tempfile::tempdir().unwrap();
        let launch = |command: &mut Command| Server::launch(command, &dir.path().join("server")).unwrap_err();
        let ended = launch(Command::new("sh").args(["-c", "echo no such disk >&2; exit 3"]));
        assert!(matches!(&ended, StartError::NotReady(WaitError::Ended { said, .. }) if said == "no such disk"));
        assert!(matches!(launch(&mut Command::new("/absent")), StartError::Program { .. }));
    }
}
