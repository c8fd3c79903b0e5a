//! A real server process, a plain SMTP client, and access to Maildirs.
//!
//! The client uses no SMTP library: it sends exactly the octets that a test gives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use posthaste_loadgen::process::PATIENCE;
use posthaste_loadgen::process::Process;
use posthaste_loadgen::server;
use rustix::process::Signal;

/// The configuration most tests use: any user at `example.org`, a free port.
pub const ANYBODY: &str = r#"
host_name = "mx.example.org"
[[listener]]
address = "127.0.0.1:0"
[[domain]]
name = "example.org"
users = "any"
"#;

/// A server process; killed when dropped.
pub struct Server {
    process: Process,
    /// Addresses of its listeners, in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
    /// Output before it was ready.
    pub banner: String,
    dir: PathBuf,
    /// Its log.
    _own: tempfile::TempDir,
}

impl Server {
    /// Starts `posthaste serve` in `dir` with `config` as its posthaste.toml and waits until it is ready.
    pub fn start(dir: &Path, config: &str) -> Self {
        configure(dir, config);
        Self::start_as_it_is(dir)
    }

    /// Starts `posthaste serve` in `dir` and waits until it is ready.
    pub fn start_as_it_is(dir: &Path) -> Self {
        Self::launch(dir, &mut command(dir, &["serve"]))
    }

    /// Like [`start`](Self::start), from a shell that runs `before` first.
    pub fn start_behind(before: &str, dir: &Path, config: &str) -> Self {
        configure(dir, config);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{before}; exec \"$0\" serve"), env!("CARGO_BIN_EXE_posthaste")]);
        Self::launch(dir, shell.current_dir(dir))
    }

    /// Like [`start_as_it_is`](Self::start_as_it_is); if it does not start, returns its output as the error.
    pub fn try_start(dir: &Path) -> Result<Self, String> {
        Self::try_launch(dir, &mut command(dir, &["serve"]))
    }

    /// Starts the server in `dir` by `command` and waits until it is ready.
    pub fn launch(dir: &Path, command: &mut Command) -> Self {
        Self::try_launch(dir, command).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_launch(dir: &Path, command: &mut Command) -> Result<Self, String> {
        let own = tempfile::tempdir().expect("a directory for its log");
        let started = server::Server::launch(command, &own.path().join("server"));
        let server::Server { process, banner, addresses, .. } = started.map_err(|error| error.to_string())?;
        Ok(Self { process, addresses, banner, dir: dir.to_owned(), _own: own })
    }

    /// A client that has read the greeting.
    pub fn connect(&self) -> Client {
        let mut client = Client::open(self.addresses[0]).expect("connect");
        let greeting = client.reply();
        assert_eq!(greeting.code, 220, "{greeting:?}");
        client
    }

    /// A client that has said EHLO.
    pub fn hello(&self) -> Client {
        let mut client = self.connect();
        client.expect("EHLO client.example.net", 250);
        client
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Replaces its configuration and asks it to read that.
    pub fn reload(&self, config: &str) {
        configure(&self.dir, config);
        self.signal(Signal::HUP);
    }

    /// Waits for the process to end.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap_or_else(|error| panic!("the server does not end: {error}"))
    }

    /// Stops the server as an operator does and expects success.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}\n{}", self.log_text());
    }

    /// The complete lines of the log so far.
    pub fn log_text(&self) -> String {
        let mut log = self.process.log();
        log.truncate(log.rfind('\n').map_or(0, |at| at + 1));
        log
    }

    /// Waits until a line of the log holds `text` and returns it.
    pub fn wait_for_log(&self, text: &str) -> String {
        self.wait_for_log_again(text, 1)
    }

    /// Waits until this many lines of the log contain `text` and returns the last of them.
    pub fn wait_for_log_again(&self, text: &str, times: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = self.log_text();
            if let Some(line) = log.lines().filter(|line| line.contains(text)).nth(times - 1) {
                return line.to_owned();
            }
            assert!(Instant::now() < deadline, "the log does not tell of {text:?}:\n{log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Anonymous memory of the process, in octets.
    pub fn memory_bytes(&self) -> usize {
        let octets = posthaste_loadgen::resources::anonymous_octets(self.pid()).expect("read smaps");
        usize::try_from(octets).expect("it fits into memory")
    }

    /// Messages in the mailbox `domain/user`, by file name.
    pub fn mailbox(&self, domain: &str, user: &str) -> Vec<Stored> {
        mailbox(&self.dir, domain, user)
    }

    /// Waits until the mailbox holds `count` messages, and no more than that.
    pub fn wait_for_mail(&self, domain: &str, user: &str, count: usize) -> Vec<Stored> {
        self.wait_for_mail_until(Instant::now() + PATIENCE, domain, user, count)
    }

    /// Like [`wait_for_mail`](Self::wait_for_mail), for mail that has waited for its mailbox since `since`. Attempts
    /// follow after 1 s, 2 s, 4 s and so on, so it may wait for as long again.
    pub fn wait_for_mail_that_waits(&self, since: Instant, domain: &str, user: &str, count: usize) -> Vec<Stored> {
        self.wait_for_mail_until(Instant::now() + since.elapsed() + PATIENCE, domain, user, count)
    }

    fn wait_for_mail_until(&self, deadline: Instant, domain: &str, user: &str, count: usize) -> Vec<Stored> {
        loop {
            let found = self.mailbox(domain, user);
            assert!(found.len() <= count, "{} messages instead of {count}", found.len());
            if found.len() == count {
                return found;
            }
            assert!(Instant::now() < deadline, "{} messages, {count} expected\n{}", found.len(), self.log_text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Writes `config` as the posthaste.toml of a server in `dir`.
///
/// Sets small segments unless `config` has a size. A server fills three with zeros for its first message, 192 MiB by
/// default, and tests that run in parallel would wait for the disk.
pub fn configure(dir: &Path, config: &str) {
    let mut config = config.to_owned();
    if !config.contains("segment_bytes") {
        let small = "[storage]\nspool_segment_bytes = 4194304\n";
        match config.find("[storage]\n") {
            Some(at) => config.replace_range(at..at + "[storage]\n".len(), small),
            None => config = format!("{config}\n{small}"),
        }
    }
    std::fs::write(dir.join("posthaste.toml"), config).expect("write the configuration");
}

/// The binary under test, in `dir`.
pub fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.current_dir(dir).args(args);
    command
}

/// A message in a mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The file's name in `new/`.
    pub name: String,
    /// All octets of the file.
    pub bytes: Vec<u8>,
}

impl Stored {
    /// The message without the trace fields that the server put in front: one line of Return-Path, one of Delivered-To,
    /// three of Received.
    #[track_caller]
    pub fn without_trace(&self) -> &[u8] {
        let mut rest = self.bytes.as_slice();
        for begin in ["Return-Path: <", "Delivered-To: ", "Received: from ", "\tby mx.example.org with ", "\t"] {
            assert!(rest.starts_with(begin.as_bytes()), "{begin:?} expected in {}", self.text());
            let end = rest.iter().position(|&b| b == b'\n').expect("a trace field ends");
            rest = &rest[end + 1..];
        }
        rest
    }

    /// The file as text, for messages of failed tests.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Messages in `new/` of the mailbox `domain/user` of the server in `dir`, by file name.
pub fn mailbox(dir: &Path, domain: &str, user: &str) -> Vec<Stored> {
    let new = dir.join("posthaste-data/mail").join(domain).join(user).join("Maildir/new");
    let Ok(entries) = std::fs::read_dir(new) else { return Vec::new() };
    let mut found: Vec<Stored> = entries
        .map(|entry| entry.expect("read new/"))
        .map(|entry| Stored {
            name: entry.file_name().into_string().expect("Maildir names are ASCII"),
            bytes: std::fs::read(entry.path()).expect("read a message"),
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// An SMTP client that sends exactly the given octets.
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
    tcp: TcpStream,
}

/// Octets in both directions, encrypted or not.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// A whole reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The code of its last line.
    pub code: u16,
    /// The texts of all lines, joined by line feeds.
    pub text: String,
}

impl Client {
    /// Connects without reading the greeting.
    pub fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Self::over(stream)
    }

    fn over(tcp: TcpStream) -> std::io::Result<Self> {
        Ok(Self { stream: BufReader::new(Box::new(tcp.try_clone()?)), tcp })
    }

    /// Does the client's side of a TLS handshake with `localhost`; all that follows is encrypted.
    pub fn encrypt(&mut self, config: &Arc<rustls::ClientConfig>) -> std::io::Result<()> {
        let name = "localhost".try_into().expect("a name");
        let mut session = rustls::ClientConnection::new(Arc::clone(config), name).expect("a session");
        let mut tcp = self.tcp.try_clone()?;
        while session.is_handshaking() {
            session.complete_io(&mut tcp)?;
        }
        self.stream = BufReader::new(Box::new(rustls::StreamOwned::new(session, tcp)));
        Ok(())
    }

    /// As [`Client::open`], from that address of this machine.
    pub fn open_from(from: std::net::Ipv4Addr, to: SocketAddr) -> std::io::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
        // A server of another test would keep it open, and with it the session that this test has ended.
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddr::from((from, 0)))?;
        connect(&socket, &to)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        Self::over(stream)
    }

    /// Sends octets as they are.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads a reply; an error if the connection has ended.
    pub fn try_reply(&mut self) -> std::io::Result<Reply> {
        let mut texts = Vec::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.strip_suffix("\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
            let code = line.get(..3).and_then(|code| code.parse().ok()).ok_or(std::io::ErrorKind::InvalidData)?;
            texts.push(line.get(4..).unwrap_or_default().to_owned());
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok(Reply { code, text: texts.join("\n") });
            }
        }
    }

    /// Reads a reply.
    pub fn reply(&mut self) -> Reply {
        self.try_reply().expect("a reply")
    }

    /// Sends a command line and reads the reply.
    pub fn command(&mut self, line: &str) -> Reply {
        self.send(line.as_bytes()).and_then(|()| self.send(b"\r\n")).expect("send a command");
        self.reply()
    }

    /// Sends a command that must be answered with `code`.
    #[track_caller]
    pub fn expect(&mut self, line: &str, code: u16) -> Reply {
        let reply = self.command(line);
        assert_eq!(reply.code, code, "{line}: {reply:?}");
        reply
    }

    /// Sends one message whose lines end in CRLF. Returns the reply to its final dot.
    pub fn try_message(&mut self, from: &str, to: &[&str], message: &[u8]) -> std::io::Result<Reply> {
        let mut commands = format!("MAIL FROM:<{from}>\r\n");
        for to in to {
            commands.push_str(&format!("RCPT TO:<{to}>\r\n"));
        }
        commands.push_str("DATA\r\n");
        self.send(commands.as_bytes())?;
        for expected in std::iter::repeat_n(250, to.len() + 1).chain([354]) {
            let reply = self.try_reply()?;
            if reply.code != expected {
                return Ok(reply);
            }
        }
        self.send(&stuffed(message))?;
        self.try_reply()
    }

    /// Sends one message that must be accepted.
    #[track_caller]
    pub fn deliver(&mut self, to: &[&str], message: &[u8]) -> Reply {
        let reply = self.try_message("sender@example.net", to, message).expect("the session lives");
        assert_eq!(reply.code, 250, "{reply:?}");
        reply
    }
}

/// `message` as it goes over the wire after DATA: dots doubled, a last CRLF where it has none, the final dot.
fn stuffed(message: &[u8]) -> Vec<u8> {
    let mut wire = Vec::with_capacity(message.len() + 8);
    // A dot begins a line only after CRLF; after a bare LF it is text (RFC 5321 section 2.3.8).
    let mut line_start = true;
    for (at, &octet) in message.iter().enumerate() {
        if line_start && octet == b'.' {
            wire.push(b'.');
        }
        wire.push(octet);
        line_start = octet == b'\n' && at > 0 && message[at - 1] == b'\r';
    }
    if !line_start {
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b".\r\n");
    wire
}

/// A small message.
pub const MESSAGE: &[u8] = b"Subject: hello\r\nMessage-ID: <1@example.net>\r\n\r\nbody\r\n";
