//! The mail that is sent: every message follows from the seed and its number, so nothing of it need be kept to check it later.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_loadgen::stamp;

use crate::rng::Rng;
use crate::server::DOMAIN;

/// What mail there is.
#[derive(Clone, Debug)]
pub struct Load {
    /// Decides everything.
    pub seed: u64,
    /// Mailboxes `u0`, `u1`, ...
    pub mailboxes: u64,
    /// One in this many messages is larger than what the server keeps in its journal itself.
    pub large_one_in: u64,
    /// A body's octets at most, but for the large ones.
    pub body_bytes_max: u64,
    /// One in this many messages goes to several mailboxes.
    pub several_one_in: u64,
}

impl Load {
    /// Mixed sizes of 1 to 100 KiB, a few above 1 MiB, every fifth to several mailboxes.
    pub fn mixed(seed: u64) -> Self {
        Load { seed, mailboxes: 8, large_one_in: 60, body_bytes_max: 100 << 10, several_one_in: 5 }
    }

    /// One message.
    pub fn letter(&self, number: u64) -> Letter {
        let mut rng = Rng::of(self.seed, number);
        let recipients = self.recipients_by(&mut rng);
        let bytes = match rng.one_in(self.large_one_in) {
            true => (1 << 20) + rng.below(1 << 20),
            // Small ones are more frequent, as they are in life.
            false => 1024 + rng.below(self.body_bytes_max) * rng.below(100) / 100,
        };
        let rest = text(&mut rng, number, bytes as usize);
        let mut octets = stamp::field(stamp::Id { run: self.seed, number }, &rest).into_bytes();
        octets.extend_from_slice(&rest);
        Letter { recipients, octets }
    }

    /// The mailboxes of one message: numbers, each once, ascending.
    pub fn recipients(&self, number: u64) -> Vec<u64> {
        self.recipients_by(&mut Rng::of(self.seed, number))
    }

    /// Entries that so many messages make in mailboxes.
    pub fn entries(&self, numbers: &[u64]) -> u64 {
        numbers.iter().map(|&number| self.recipients(number).len() as u64).sum()
    }

    fn recipients_by(&self, rng: &mut Rng) -> Vec<u64> {
        let mut recipients = vec![rng.below(self.mailboxes)];
        if rng.one_in(self.several_one_in) {
            recipients.extend((0..1 + rng.below(3)).map(|_| rng.below(self.mailboxes)));
            recipients.sort_unstable();
            recipients.dedup();
        }
        recipients
    }
}

/// A message and who gets it.
pub struct Letter {
    /// Numbers of mailboxes, each once, ascending.
    pub recipients: Vec<u64>,
    /// With CRLF line ends.
    pub octets: Vec<u8>,
}

/// The user that mailbox `number` belongs to.
pub fn user(number: u64) -> String {
    format!("u{number}")
}

/// A header and lines of all lengths up to 78, some of which begin with a dot.
fn text(rng: &mut Rng, number: u64, bytes: usize) -> Vec<u8> {
    let mut out = format!("From: rig@{DOMAIN}\r\nSubject: message {number}\r\n\r\n").into_bytes();
    while out.len() < bytes {
        let mut left = rng.below(77);
        if rng.one_in(20) {
            out.push(b'.');
        }
        while left > 0 {
            let word = rng.next().to_le_bytes();
            let n = left.min(8);
            out.extend(word[..n as usize].iter().map(|byte| b' ' + byte % 95));
            left -= n;
        }
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// What became of the messages of a run. One that is neither acknowledged nor refused was never sent as a whole, or its reply never came.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Those whose 250 came.
    pub acknowledged: Vec<u64>,
    /// Those that were refused, with the reply.
    pub refused: Vec<(u64, String)>,
    /// Connections that could not be made or ended before all was sent.
    pub broken: Vec<Broken>,
}

impl Sent {
    /// Adds what another part of the run has led to.
    pub fn add(&mut self, other: Sent) {
        self.acknowledged.extend(other.acknowledged);
        self.refused.extend(other.refused);
        self.broken.extend(other.broken);
    }
}

/// How a connection ended that should have gone on.
#[derive(Clone, Debug)]
pub struct Broken {
    /// What the server said last; empty if there was no connection.
    pub last_reply: String,
    /// What became of the connection.
    pub error: String,
}

/// Sends the messages `numbers` over several connections and calls `acknowledged` as soon as each one's 250 is there. A connection that
/// breaks ends; what it was sending is not sent again. Ends when all are sent or no connection is left.
pub fn send(
    load: &Load,
    address: SocketAddr,
    connections: usize,
    numbers: Range<u64>,
    acknowledged: impl Fn(u64) + Sync,
) -> Sent {
    send_over(Protocol::Smtp, load, address, connections, numbers, acknowledged)
}

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 5321.
    Smtp,
    /// RFC 2033: LHLO, and a reply for each recipient; a message counts as acknowledged when all of them say so.
    Lmtp,
}

/// As [`send`], in either protocol.
pub fn send_over(
    protocol: Protocol,
    load: &Load,
    address: SocketAddr,
    connections: usize,
    numbers: Range<u64>,
    acknowledged: impl Fn(u64) + Sync,
) -> Sent {
    let next = AtomicU64::new(numbers.start);
    let all = Mutex::new(Sent::default());
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let mut sent = Sent::default();
                let numbers = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < numbers.end);
                // Whether the server may be gone is for the caller to judge.
                let ended = match Client::connect_with(protocol, address) {
                    Ok(mut client) => converse(&mut client, load, numbers, &acknowledged, &mut sent)
                        .map_err(|error| Broken { last_reply: client.last_reply, error: error.to_string() }),
                    Err(error) => Err(Broken { last_reply: String::new(), error: error.to_string() }),
                };
                sent.broken.extend(ended.err());
                all.lock().expect("results").add(sent);
            });
        }
    });
    all.into_inner().expect("results")
}

fn converse(
    client: &mut Client,
    load: &Load,
    next: impl Fn() -> Option<u64>,
    acknowledged: &(impl Fn(u64) + Sync),
    sent: &mut Sent,
) -> io::Result<()> {
    while let Some(number) = next() {
        let letter = load.letter(number);
        let reply = client.send(&letter)?;
        if reply.starts_with('2') {
            acknowledged(number);
            sent.acknowledged.push(number);
        } else {
            sent.refused.push((number, reply));
        }
    }
    client.command("QUIT").map(drop)
}

/// The plainest of SMTP clients (RFC 5321): one command, one reply.
pub struct Client {
    reader: BufReader<TcpStream>,
    protocol: Protocol,
    last_reply: String,
}

impl Client {
    /// Connects and says EHLO.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_with(Protocol::Smtp, address)
    }

    fn connect_with(protocol: Protocol, address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_PATIENCE))?;
        stream.set_write_timeout(Some(REPLY_PATIENCE))?;
        let mut client = Client { reader: BufReader::new(stream), protocol, last_reply: String::new() };
        client.reply()?;
        client.command(if protocol == Protocol::Lmtp { "LHLO rig.example" } else { "EHLO rig.example" })?;
        Ok(client)
    }

    /// Sends one message; the last reply is the result, be it that to DATA or an earlier refusal.
    ///
    /// # Errors
    /// Those of the connection, then nothing is known of the message.
    pub fn send(&mut self, letter: &Letter) -> io::Result<String> {
        // Room is kept for the largest message where its size is not announced, and the rig's disks are small.
        let size = match self.protocol {
            Protocol::Smtp => format!(" SIZE={}", letter.octets.len()),
            Protocol::Lmtp => String::new(),
        };
        let reply = self.command(&format!("MAIL FROM:<rig@{DOMAIN}>{size}"))?;
        if !reply.starts_with('2') {
            return Ok(reply);
        }
        for recipient in &letter.recipients {
            let reply = self.command(&format!("RCPT TO:<{}@{DOMAIN}>", user(*recipient)))?;
            if !reply.starts_with('2') {
                self.command("RSET")?;
                return Ok(reply);
            }
        }
        let reply = self.command("DATA")?;
        if !reply.starts_with('3') {
            return Ok(reply);
        }
        let mut wire = Vec::with_capacity(letter.octets.len() + 1024);
        for line in letter.octets.split_inclusive(|octet| *octet == b'\n') {
            if line.starts_with(b".") {
                wire.push(b'.');
            }
            wire.extend_from_slice(line);
        }
        wire.extend_from_slice(b".\r\n");
        self.reader.get_mut().write_all(&wire)?;
        let replies = if self.protocol == Protocol::Lmtp { letter.recipients.len() } else { 1 };
        let mut worst = self.reply()?;
        for _ in 1..replies {
            let reply = self.reply()?;
            if worst.starts_with('2') {
                worst = reply;
            }
        }
        Ok(worst)
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn command(&mut self, command: &str) -> io::Result<String> {
        self.reader.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<String> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line.as_bytes().get(3) != Some(&b'-') {
                line.trim_end().clone_into(&mut self.last_reply);
                return Ok(self.last_reply.clone());
            }
        }
    }
}

/// A reply that takes longer than this does not come.
const REPLY_PATIENCE: Duration = Duration::from_secs(40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_follows_from_its_number_and_carries_its_stamp() {
        let load = Load::mixed(7);
        let mut large = 0;
        for number in 0..200 {
            let letter = load.letter(number);
            assert_eq!(letter.octets, load.letter(number).octets);
            assert!(letter.recipients.is_sorted() && !letter.recipients.is_empty());
            assert_eq!(letter.recipients, load.recipients(number));
            let found = stamp::find(&letter.octets).expect("a stamp");
            assert!(found.is_intact && found.id == stamp::Id { run: 7, number }, "{found:?}");
            large += usize::from(letter.octets.len() > 1 << 20);
        }
        assert!((1..20).contains(&large), "{large} large ones");
    }

    /// Greets, answers EHLO, MAIL and the first RCPT, says `last` to what comes next, and closes.
    fn server_that_ends_with(last: &'static str) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            drop(listener);
            let mut commands = BufReader::new(stream.try_clone().unwrap());
            for reply in ["220 hello", "250 EHLO", "250 MAIL", "250 RCPT", last] {
                write!(stream, "{reply}\r\n").unwrap();
                commands.read_line(&mut String::new()).unwrap();
            }
        });
        address
    }

    #[test]
    fn a_server_that_breaks_off_or_is_gone_is_told() {
        let load = Load { several_one_in: u64::MAX, ..Load::mixed(7) };
        let address = server_that_ends_with("421 4.7.0 enough");
        let sent = send(&load, address, 1, 0..10, |_| ());
        let broken: Vec<&str> = sent.broken.iter().map(|broken| broken.last_reply.as_str()).collect();
        assert_eq!((sent.acknowledged.len(), broken), (0, vec!["421 4.7.0 enough"]));
        // Its listener is closed by now.
        let sent = send(&load, address, 3, 0..10, |_| ());
        assert_eq!((sent.acknowledged.len(), sent.refused.len(), sent.broken.len()), (0, 0, 3));
    }
}
