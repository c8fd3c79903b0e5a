//! A real server process, a plain SMTP client, and a look into Maildirs.
//!
//! The client knows no SMTP library: what it sends is what the test says, octet for octet.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Nothing here takes longer unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

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
    child: Child,
    /// Where it listens, in the order of the configuration.
    pub addresses: Vec<SocketAddr>,
    /// What it printed before it was ready.
    pub banner: String,
    log: Arc<Lines>,
    dir: PathBuf,
}

#[derive(Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Server {
    /// Starts `posthaste serve` in `dir` with `config` as its posthaste.toml and waits until it is ready.
    pub fn start(dir: &Path, config: &str) -> Self {
        std::fs::write(dir.join("posthaste.toml"), config).expect("write the configuration");
        Self::start_as_it_is(dir)
    }

    /// Starts `posthaste serve` in `dir` and waits until it is ready.
    pub fn start_as_it_is(dir: &Path) -> Self {
        let mut child = command(dir, &["serve"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the server");
        let log = Arc::new(Lines::default());
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let writer = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                writer.lines.lock().unwrap().push(line);
                writer.more.notify_all();
            }
        });
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut server = Self { child, addresses: Vec::new(), banner: String::new(), log, dir: dir.to_owned() };
        let mut line = String::new();
        while stdout.read_line(&mut line).expect("read the banner") > 0 {
            server.banner.push_str(&line);
            if let Some(("listening", on)) = line.trim().split_once(' ')
                && let Some(address) = on.split_whitespace().last().and_then(|last| last.parse().ok())
            {
                server.addresses.push(address);
            }
            if let Ok(ready) = serde_json::from_str::<serde_json::Value>(&line) {
                let listening = ready["listening"].as_array().expect("a list").iter();
                server.addresses.extend(listening.filter_map(|place| place.as_str()?.parse::<SocketAddr>().ok()));
            }
            if line.starts_with("Ready") || line.starts_with('{') {
                std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
                return server;
            }
            line.clear();
        }
        let status = server.child.wait().expect("wait for the server");
        panic!("the server ended with {status} before it was ready\n{}\n{}", server.banner, server.log_text());
    }

    /// A client that has read the greeting.
    pub fn connect(&self) -> Client {
        let mut client = Client::open(self.addresses[0]).expect("connect");
        let greeting = client.reply();
        assert_eq!(greeting.code, 220, "{greeting:?}");
        client
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal the server");
    }

    /// Waits for the process to end.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait for the server") {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end\n{}", self.log_text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the server as an operator does and expects that it ends well.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}\n{}", self.log_text());
    }

    /// The log so far.
    pub fn log_text(&self) -> String {
        self.log.lines.lock().unwrap().join("\n")
    }

    /// Waits until a line of the log holds `text` and returns it.
    pub fn wait_for_log(&self, text: &str) -> String {
        let lines = self.log.lines.lock().unwrap();
        let found = |lines: &Vec<String>| lines.iter().find(|line| line.contains(text)).cloned();
        let (lines, _) = self.log.more.wait_timeout_while(lines, PATIENCE, |lines| found(lines).is_none()).unwrap();
        found(&lines).unwrap_or_else(|| panic!("the log does not tell of {text:?}:\n{}", lines.join("\n")))
    }

    /// Memory that the process asked for.
    pub fn memory_bytes(&self) -> usize {
        let octets = posthaste_loadgen::resources::anonymous_octets(self.child.id()).expect("read smaps");
        usize::try_from(octets).expect("it fits into memory")
    }

    /// What lies in the mailbox `domain/user`, by file name.
    pub fn mailbox(&self, domain: &str, user: &str) -> Vec<Stored> {
        mailbox(&self.dir, domain, user)
    }

    /// Waits until the mailbox holds `count` messages, and no more than that.
    pub fn wait_for_mail(&self, domain: &str, user: &str, count: usize) -> Vec<Stored> {
        self.wait_for_mail_until(Instant::now() + PATIENCE, domain, user, count)
    }

    /// The same for mail that has waited for its mailbox since `since`: tried after 1 s, 2 s, 4 s and so on, it may wait for as
    /// long again.
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

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

/// What lies in `new/` of the mailbox `domain/user` of the server in `dir`, by file name.
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

/// An SMTP client that does as it is told.
pub struct Client {
    stream: BufReader<TcpStream>,
}

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
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// As [`Client::open`], from that address of this machine.
    pub fn open_from(from: std::net::Ipv4Addr, to: SocketAddr) -> std::io::Result<Self> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::from((from, 0)))?;
        connect(&socket, &to)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends octets as they are.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads a reply, or tells that the connection ended.
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

    /// Sends one message whose lines end in CRLF; the reply to its last dot.
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
    // A dot begins a line only behind CRLF; behind a bare LF it is text (RFC 5321 section 2.3.8).
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
