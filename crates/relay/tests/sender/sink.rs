//! A mail server on loopback whose replies follow from the recipient's name.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

/// A message that it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub sender: String,
    pub recipients: Vec<String>,
    pub body: Vec<u8>,
    /// The user of the login; empty for none.
    pub logged_in: String,
    /// Where the connection came from.
    pub from: IpAddr,
    /// The name in EHLO.
    pub hello: String,
    /// Commands in order: MAIL, accepted RCPT, and DATA or BDAT.
    pub commands: Vec<String>,
}

#[derive(Default)]
struct Seen {
    taken: Vec<Taken>,
    connections: usize,
    quits: usize,
    open: usize,
    /// The most connections that were open at a time.
    open_max: usize,
    /// Times of connections, and of MAIL.
    connected: Vec<Instant>,
    mails: Vec<(Instant, IpAddr)>,
    logins: usize,
    /// Messages to `slow…` that have arrived and wait for their reply; and the release of the replies.
    slow: usize,
    is_released: bool,
    /// Recipients `hang…`, and `laterhang…` at their second attempt, that wait for the release of their reply.
    hanging: usize,
    /// RCPT commands, by address.
    rcpts: HashMap<String, usize>,
    /// RCPT commands in order, with the address of the client.
    asked: Vec<(String, IpAddr)>,
}

/// Ends with the process.
#[derive(Clone)]
pub struct Sink {
    address: SocketAddr,
    /// Its reply to EHLO, with its name in front.
    hello: Arc<str>,
    seen: Arc<(Mutex<Seen>, Condvar)>,
}

impl Sink {
    /// Any port of loopback.
    pub fn start() -> Sink {
        Sink::at("127.0.0.1:0".parse().unwrap())
    }

    /// Starts with other extensions than usual.
    pub fn offering(extensions: &[&str]) -> Sink {
        Sink::with("127.0.0.1:0".parse().unwrap(), extensions)
    }

    /// At another address of loopback, so that several hosts have one port.
    pub fn at(address: SocketAddr) -> Sink {
        Sink::with(address, &["PIPELINING", "AUTH PLAIN", "8BITMIME"])
    }

    fn with(address: SocketAddr, extensions: &[&str]) -> Sink {
        let listener = TcpListener::bind(address).unwrap();
        let lines: String = extensions.iter().map(|line| format!("250-{line}\r\n")).collect();
        let hello = format!("250-sink\r\n{lines}250 HELP\r\n").into();
        let sink = Sink { address: listener.local_addr().unwrap(), hello, seen: Arc::default() };
        let serving = sink.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sink = serving.clone();
                std::thread::spawn(move || {
                    let has_quit = Cell::new(false);
                    let _ = sink.serve(stream, &has_quit);
                    if !has_quit.get() {
                        sink.note(|seen| seen.open -= 1);
                    }
                });
            }
        });
        sink
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.seen.0.lock().unwrap().taken.clone()
    }

    pub fn connections(&self) -> usize {
        self.seen.0.lock().unwrap().connections
    }

    /// The most connections that were open at a time.
    pub fn open_max(&self) -> usize {
        self.seen.0.lock().unwrap().open_max
    }

    /// Times of connections.
    pub fn connected(&self) -> Vec<Instant> {
        self.seen.0.lock().unwrap().connected.clone()
    }

    /// Times of MAIL.
    pub fn mails(&self) -> Vec<Instant> {
        self.seen.0.lock().unwrap().mails.iter().map(|(time, _)| *time).collect()
    }

    /// Times of MAIL from an address.
    pub fn mails_from(&self, address: IpAddr) -> Vec<Instant> {
        let seen = self.seen.0.lock().unwrap();
        seen.mails.iter().filter(|(_, from)| *from == address).map(|(time, _)| *time).collect()
    }

    pub fn logins(&self) -> usize {
        self.seen.0.lock().unwrap().logins
    }

    /// RCPT commands with the client's address.
    pub fn asked(&self) -> Vec<(String, IpAddr)> {
        self.seen.0.lock().unwrap().asked.clone()
    }

    pub fn rcpts(&self, address: &str) -> usize {
        self.seen.0.lock().unwrap().rcpts.get(address).copied().unwrap_or(0)
    }

    /// Waits until it has taken `count` messages, a minute at most.
    pub fn wait_taken(&self, count: usize) -> Vec<Taken> {
        self.wait(|seen| seen.taken.len() >= count, "messages");
        self.taken()
    }

    /// Waits until it was asked for a recipient `count` times.
    pub fn wait_rcpts(&self, address: &str, count: usize) {
        self.wait(|seen| seen.rcpts.get(address).is_some_and(|rcpts| *rcpts >= count), "recipients");
    }

    /// Waits until `count` messages to `slow…` have arrived and wait for their reply.
    pub fn wait_slow(&self, count: usize) {
        self.wait(|seen| seen.slow >= count, "slow messages");
    }

    /// Waits until `count` recipients `hang…` wait for their reply.
    pub fn wait_hanging(&self, count: usize) {
        self.wait(|seen| seen.hanging >= count, "recipients that hang");
    }

    /// Waits until `count` sessions were ended in order.
    pub fn wait_quits(&self, count: usize) {
        self.wait(|seen| seen.quits >= count, "ends of sessions");
    }

    /// Releases the replies of messages to `slow…` and recipients `hang…` from now on.
    pub fn release(&self) {
        self.note(|seen| seen.is_released = true);
    }

    fn wait(&self, holds: impl Fn(&Seen) -> bool, what: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        let mut seen = self.seen.0.lock().unwrap();
        while !holds(&seen) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} do not come; {} taken, asked {:?}", seen.taken.len(), seen.rcpts);
            seen = self.seen.1.wait_timeout(seen, left).unwrap().0;
        }
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.0.lock().unwrap());
        self.seen.1.notify_all();
    }

    fn serve(&self, mut stream: TcpStream, has_quit: &Cell<bool>) -> std::io::Result<()> {
        let from = stream.peer_addr()?.ip();
        self.note(|seen| {
            seen.connections += 1;
            seen.open += 1;
            seen.open_max = seen.open_max.max(seen.open);
            seen.connected.push(Instant::now());
        });
        stream.set_nodelay(true)?;
        let mut input = BufReader::new(stream.try_clone()?);
        stream.write_all(b"220 sink\r\n")?;
        let mut sender = String::new();
        let mut recipients = Vec::<String>::new();
        let mut commands = Vec::new();
        let mut is_lmtp = false;
        let mut logged_in = String::new();
        let mut hello = String::new();
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let path = || line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map_or("", |(path, _)| path);
            let word = line.get(..4).unwrap_or("").to_ascii_uppercase();
            match word.as_str() {
                "EHLO" | "LHLO" => {
                    is_lmtp = word == "LHLO";
                    hello = line[4..].trim().to_owned();
                    stream.write_all(self.hello.as_bytes())?;
                }
                "AUTH" => {
                    let response = line.trim_end().rsplit(' ').next().unwrap_or("");
                    let plain = String::from_utf8(BASE64.decode(response).unwrap()).unwrap();
                    logged_in = plain.split('\0').nth(1).unwrap_or("").to_owned();
                    self.note(|seen| seen.logins += 1);
                    stream.write_all(b"235 2.7.0 ok\r\n")?;
                }
                "MAIL" => {
                    self.note(|seen| seen.mails.push((Instant::now(), from)));
                    (sender, recipients) = (path().to_owned(), Vec::new());
                    commands = vec![line.trim_end().to_owned()];
                    stream.write_all(b"250 2.1.0 ok\r\n")?;
                }
                "RCPT" => {
                    let to = path().to_owned();
                    let mut count = 0;
                    self.note(|seen| {
                        let rcpts = seen.rcpts.entry(to.clone()).or_default();
                        *rcpts += 1;
                        count = *rcpts;
                        seen.asked.push((to.clone(), from));
                    });
                    if to.starts_with("hang") || to.starts_with("laterhang") && count > 1 {
                        self.note(|seen| seen.hanging += 1);
                        self.wait(|seen| seen.is_released, "the release");
                    }
                    let reply: &[u8] = match to.split('@').next().unwrap_or("") {
                        local if local.starts_with("no") => b"550 5.1.1 no such user\r\n",
                        local if local.starts_with("later") && count == 1 => b"451 4.2.0 later\r\n",
                        local if local.starts_with("never") => b"451 4.2.0 never now\r\n",
                        local if local.starts_with("few") && !recipients.is_empty() => b"452 4.5.3 too many\r\n",
                        local if local.starts_with("cut") => return Ok(()),
                        local if local.starts_with("once") && count == 1 => return Ok(()),
                        _ => {
                            recipients.push(to);
                            commands.push(line.trim_end().to_owned());
                            b"250 2.1.5 ok\r\n"
                        }
                    };
                    stream.write_all(reply)?;
                }
                "DATA" if recipients.is_empty() => stream.write_all(b"554 5.5.1 no recipients\r\n")?,
                "DATA" | "BDAT" => {
                    commands.push(line.trim_end().to_owned());
                    let body = match line.split_whitespace().nth(1) {
                        Some(octets) => {
                            assert!(line.ends_with(" LAST\r\n"), "{line}");
                            let mut body = vec![0; octets.parse().unwrap()];
                            input.read_exact(&mut body)?;
                            body
                        }
                        None => {
                            stream.write_all(b"354 go\r\n")?;
                            let Some(body) = dotted(&mut input)? else { return Ok(()) };
                            body
                        }
                    };
                    if recipients.iter().any(|to| to.starts_with("vanish")) {
                        return Ok(());
                    }
                    if recipients.iter().any(|to| to.starts_with("slow")) {
                        self.note(|seen| seen.slow += 1);
                        self.wait(|seen| seen.is_released, "the release");
                    }
                    let sender = sender.clone();
                    let recipients = std::mem::take(&mut recipients);
                    let replies = if is_lmtp { recipients.len() } else { 1 };
                    let logged_in = logged_in.clone();
                    let hello = hello.clone();
                    let commands = std::mem::take(&mut commands);
                    self.note(|seen| {
                        seen.taken.push(Taken { sender, recipients, body, logged_in, from, hello, commands })
                    });
                    stream.write_all(&b"250 2.0.0 taken\r\n".repeat(replies))?;
                }
                "QUIT" => {
                    // Before the reply: a client may connect again once it has that.
                    has_quit.set(true);
                    self.note(|seen| (seen.quits, seen.open) = (seen.quits + 1, seen.open - 1));
                    return stream.write_all(b"221 bye\r\n");
                }
                _ => stream.write_all(b"250 ok\r\n")?,
            }
        }
    }
}

/// A message up to its dot; `None` if the connection ends before.
fn dotted(input: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line == b".\r\n" {
            return Ok(Some(body));
        }
        body.extend_from_slice(line.strip_prefix(b".").unwrap_or(&line));
    }
}
