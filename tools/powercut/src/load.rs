//! The mail to send: every message is derived from the seed and its number, so that it need not be kept to be checked
//! later.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_loadgen::stamp;
use posthaste_random::Random;

/// The mail of a run, generated from a seed.
#[derive(Clone, Debug)]
pub struct Load {
    /// Seed of everything.
    pub seed: u64,
    /// Mailboxes `u0`, `u1`, ...
    pub mailboxes: u64,
    /// One in this many messages is larger than the spool stores itself.
    pub large_one_in: u64,
    /// Limit on a body's octets, except for the large ones.
    pub body_bytes_max: u64,
    /// One in this many messages goes to several mailboxes.
    pub several_one_in: u64,
    /// Number of senders out of 16 that get notices: see [`Asks`].
    pub told_in_16: u64,
}

/// Notices due to the sender of a message, beside its delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// No notice.
    Nothing,
    /// A notification of success for each recipient (NOTIFY=SUCCESS, RFC 3461).
    Success,
    /// A notice of failure: the next hop refuses each recipient permanently.
    Refusal,
}

impl Load {
    /// Mixed sizes of 1 to 100 KiB, one in 40 above 1 MiB, every fifth to several mailboxes.
    pub fn mixed(seed: u64) -> Self {
        Load { seed, mailboxes: 8, large_one_in: 40, body_bytes_max: 100 << 10, several_one_in: 5, told_in_16: 0 }
    }

    /// One message.
    pub fn letter(&self, number: u64) -> Letter {
        let mut rng = Random::of(self.seed, number);
        let recipients = self.recipients_by(&mut rng);
        let bytes = if rng.one_in(self.large_one_in) {
            (1 << 20) + rng.below(1 << 20)
        } else {
            // Small ones are more frequent, as they are in life.
            1024 + rng.below(self.body_bytes_max) * rng.below(100) / 100
        };
        let rest = text(&mut rng, number, bytes as usize);
        let mut octets = stamp::field(stamp::Id { run: self.seed, number }, &rest).into_bytes();
        octets.extend_from_slice(&rest);
        Letter { number, asks: self.asks(number), recipients, octets }
    }

    /// Notice due to its sender.
    pub fn asks(&self, number: u64) -> Asks {
        let drawn = Random::of(!self.seed, number).below(16);
        if drawn < self.told_in_16 {
            if drawn < self.told_in_16.div_ceil(3) { Asks::Refusal } else { Asks::Success }
        } else {
            Asks::Nothing
        }
    }

    /// True if the next hop refuses it permanently.
    pub fn is_refused(&self, number: u64) -> bool {
        self.asks(number) == Asks::Refusal
    }

    /// The addresses of its recipients. A sink refuses those that begin with `permfail`.
    pub fn addresses(&self, number: u64) -> Vec<String> {
        let asks = self.asks(number);
        self.recipients(number).into_iter().map(|mailbox| address(asks, mailbox)).collect()
    }

    /// The mailboxes of one message: numbers, each once, ascending.
    pub fn recipients(&self, number: u64) -> Vec<u64> {
        self.recipients_by(&mut Random::of(self.seed, number))
    }

    /// The entries in mailboxes that a mark promises: see [`mark`].
    pub fn promised(&self, mark: u64) -> Vec<Entry> {
        let message = message_of(mark);
        let mut mailboxes = self.recipients(message);
        if let Some(index) = (mark >> RECIPIENT_SHIFT).checked_sub(1) {
            mailboxes = vec![mailboxes[index as usize]];
        }
        mailboxes.into_iter().map(|mailbox| Entry { message, mailbox }).collect()
    }

    /// Entries in mailboxes that these marks promise.
    pub fn entries(&self, marks: &[u64]) -> u64 {
        marks.iter().map(|&mark| self.promised(mark).len() as u64).sum()
    }

    fn recipients_by(&self, rng: &mut Random) -> Vec<u64> {
        let mut recipients = vec![rng.below(self.mailboxes)];
        if rng.one_in(self.several_one_in) {
            recipients.extend((0..1 + rng.below(3)).map(|_| rng.below(self.mailboxes)));
            recipients.sort_unstable();
            recipients.dedup();
        }
        recipients
    }
}

/// The promise of a 250 as one number: a message to all of its recipients, or to the one with this index. LMTP replies
/// for each recipient (RFC 2033 section 4.2).
pub fn mark(message: u64, recipient: Option<usize>) -> u64 {
    message | recipient.map_or(0, |index| (index as u64 + 1) << RECIPIENT_SHIFT)
}

/// The message of a mark.
pub fn message_of(mark: u64) -> u64 {
    mark & ((1 << RECIPIENT_SHIFT) - 1)
}

/// Number of messages that these marks are for.
pub fn messages(marks: impl IntoIterator<Item = u64>) -> u64 {
    marks.into_iter().map(message_of).collect::<HashSet<u64>>().len() as u64
}

fn address(asks: Asks, mailbox: u64) -> String {
    let refused = if asks == Asks::Refusal { "permfail-" } else { "" };
    format!("{refused}{}@{DOMAIN}", user(mailbox))
}

/// A message and its recipients.
pub struct Letter {
    number: u64,
    asks: Asks,
    /// Numbers of mailboxes, each once, ascending.
    pub recipients: Vec<u64>,
    /// The message, with CRLF line ends.
    pub octets: Vec<u8>,
}

/// A message in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The message.
    pub message: u64,
    /// The mailbox.
    pub mailbox: u64,
}

/// All mail goes to users of this domain.
pub const DOMAIN: &str = "rig.example";
/// A domain that a relaying server serves itself: the senders that get notices are its user [`SENDER`].
pub const HERE: &str = "here.example";
/// See [`HERE`].
pub const SENDER: &str = "rig";

/// The user that owns mailbox `number`.
pub fn user(number: u64) -> String {
    format!("u{number}")
}

/// The Message-ID of a message.
fn message_id(number: u64) -> String {
    format!("<{number}@{DOMAIN}>")
}

/// Number of the message with this Message-ID; `None` if it is not from a [`Load`].
pub fn number_of(message_id: &str) -> Option<u64> {
    message_id.strip_prefix('<')?.strip_suffix('>')?.strip_suffix(DOMAIN)?.strip_suffix('@')?.parse().ok()
}

/// A header and lines of all lengths up to 78, some of which begin with a dot.
fn text(rng: &mut Random, number: u64, bytes: usize) -> Vec<u8> {
    let id = message_id(number);
    let mut out = format!("From: rig@{DOMAIN}\r\nMessage-ID: {id}\r\nSubject: message {number}\r\n\r\n").into_bytes();
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

/// Outcomes of the messages of a run. A message in neither list was not sent whole, or its reply never came.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// A [`mark`] for each 250 received.
    pub acknowledged: Vec<u64>,
    /// Refused messages, with the reply.
    pub refused: Vec<(u64, String)>,
    /// Connections that could not be made or ended before everything was sent.
    pub broken: Vec<Broken>,
}

impl Sent {
    /// Adds the outcomes of another part of the run.
    pub fn add(&mut self, other: Sent) {
        self.acknowledged.extend(other.acknowledged);
        self.refused.extend(other.refused);
        self.broken.extend(other.broken);
    }
}

/// An unexpected end of a connection.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The server's last reply; empty if there was no connection.
    pub last_reply: String,
    /// The error that ended the connection.
    pub error: String,
}

/// Sends the messages `numbers` over several connections and calls `acknowledged` with a [`mark`] as soon as each 250
/// arrives. A broken connection ends, and its current message is not sent again. Returns when all are sent or no
/// connection is left.
pub fn send(
    load: &Load,
    address: SocketAddr,
    connections: usize,
    numbers: Range<u64>,
    acknowledged: impl Fn(u64) + Sync,
) -> Sent {
    send_over(&[(Protocol::Smtp, address)], load, connections, numbers, acknowledged)
}

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 5321, with DATA.
    Smtp,
    /// RFC 5321 with BDAT in chunks (RFC 3030).
    Chunking,
    /// RFC 2033: LHLO, and a reply for each recipient, each of which is a promise of its own.
    Lmtp,
}

/// Like [`send`]; the connections use these protocols and addresses in turn.
pub fn send_over(
    ways: &[(Protocol, SocketAddr)],
    load: &Load,
    connections: usize,
    numbers: Range<u64>,
    acknowledged: impl Fn(u64) + Sync,
) -> Sent {
    let next = AtomicU64::new(numbers.start);
    let all = Mutex::new(Sent::default());
    std::thread::scope(|scope| {
        for &(protocol, address) in ways.iter().cycle().take(connections) {
            let (next, all, numbers, acknowledged) = (&next, &all, &numbers, &acknowledged);
            scope.spawn(move || {
                let mut sent = Sent::default();
                let numbers = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < numbers.end);
                // Whether the server may be gone is for the caller to judge.
                let ended = match Client::connect_with(protocol, address) {
                    Ok(mut client) => converse(&mut client, load, numbers, acknowledged, &mut sent)
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
        let reply = client.send_each(&letter, |recipient| {
            acknowledged(mark(number, recipient));
            sent.acknowledged.push(mark(number, recipient));
        })?;
        if !reply.starts_with('2') {
            sent.refused.push((number, reply));
        }
    }
    client.command("QUIT").map(drop)
}

/// The simplest SMTP client (RFC 5321): one command, one reply.
pub struct Client {
    reader: BufReader<TcpStream>,
    protocol: Protocol,
    offers_size: bool,
    last_reply: String,
}

impl Client {
    /// Connects and sends EHLO.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::connect_with(Protocol::Smtp, address)
    }

    fn connect_with(protocol: Protocol, address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_PATIENCE))?;
        stream.set_write_timeout(Some(REPLY_PATIENCE))?;
        let mut client =
            Client { reader: BufReader::new(stream), protocol, offers_size: false, last_reply: String::new() };
        client.reply()?;
        client.hello()?;
        Ok(client)
    }

    fn hello(&mut self) -> io::Result<()> {
        let hello = if self.protocol == Protocol::Lmtp { "LHLO" } else { "EHLO" };
        self.reader.get_mut().write_all(format!("{hello} rig.example\r\n").as_bytes())?;
        while {
            let line = self.line()?;
            self.offers_size |= line.get(4..8) == Some("SIZE");
            line.as_bytes().get(3) == Some(&b'-')
        } {}
        Ok(())
    }

    /// Sends one message. Returns the last reply: that to its body or an earlier refusal.
    ///
    /// # Errors
    /// Errors of the connection; then the fate of the message is unknown.
    pub fn send(&mut self, letter: &Letter) -> io::Result<String> {
        self.send_each(letter, |_| ())
    }

    /// Like [`Client::send`]; calls `promised` for each 250 to the body, with the recipient's index if the server
    /// replies for each. The result is then the first refusal, if there is one.
    fn send_each(&mut self, letter: &Letter, mut promised: impl FnMut(Option<usize>)) -> io::Result<String> {
        // Room is kept for the largest message where its size is not announced, and the rig's disks are small.
        let size = if self.offers_size { format!(" SIZE={}", letter.octets.len()) } else { String::new() };
        let mail = match letter.asks {
            Asks::Nothing => format!("MAIL FROM:<rig@{DOMAIN}>{size}"),
            // With its number in what the sender is told.
            _ => format!("MAIL FROM:<{SENDER}@{HERE}>{size} RET=HDRS ENVID={}", letter.number),
        };
        let reply = self.command(&mail)?;
        if !reply.starts_with('2') {
            return Ok(reply);
        }
        let notify = if letter.asks == Asks::Success { " NOTIFY=SUCCESS,FAILURE" } else { "" };
        for recipient in &letter.recipients {
            let reply = self.command(&format!("RCPT TO:<{}>{notify}", address(letter.asks, *recipient)))?;
            if !reply.starts_with('2') {
                self.command("RSET")?;
                return Ok(reply);
            }
        }
        let refused = match self.protocol {
            Protocol::Smtp | Protocol::Lmtp => self.data(letter)?,
            Protocol::Chunking => self.chunks(letter)?,
        };
        if let Some(reply) = refused {
            return Ok(reply);
        }
        let replies = if self.protocol == Protocol::Lmtp { letter.recipients.len() } else { 1 };
        let mut worst = String::new();
        for index in 0..replies {
            let reply = self.reply()?;
            if reply.starts_with('2') {
                promised((replies > 1).then_some(index));
            }
            if worst.is_empty() || worst.starts_with('2') {
                worst = reply;
            }
        }
        Ok(worst)
    }

    /// Sends the body up to where its replies are due, or returns the refusal to begin.
    fn data(&mut self, letter: &Letter) -> io::Result<Option<String>> {
        let reply = self.command("DATA")?;
        if !reply.starts_with('3') {
            return Ok(Some(reply));
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
        Ok(None)
    }

    /// Sends the body in chunks up to where the reply to the last is due, or returns the refusal of an earlier one.
    fn chunks(&mut self, letter: &Letter) -> io::Result<Option<String>> {
        let mut chunks = letter.octets.chunks(CHUNK_BYTES).peekable();
        while let Some(chunk) = chunks.next() {
            let last = if chunks.peek().is_none() { " LAST" } else { "" };
            let mut wire = format!("BDAT {}{last}\r\n", chunk.len()).into_bytes();
            wire.extend_from_slice(chunk);
            self.reader.get_mut().write_all(&wire)?;
            if !last.is_empty() {
                break;
            }
            let reply = self.reply()?;
            if !reply.starts_with('2') {
                self.command("RSET")?;
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn command(&mut self, command: &str) -> io::Result<String> {
        self.reader.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<String> {
        loop {
            let line = self.line()?;
            if line.as_bytes().get(3) != Some(&b'-') {
                line.trim_end().clone_into(&mut self.last_reply);
                return Ok(self.last_reply.clone());
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line)
    }
}

/// Time limit for a reply.
const REPLY_PATIENCE: Duration = Duration::from_secs(40);
/// Position of the recipient in a [`mark`]. There are always fewer messages.
const RECIPIENT_SHIFT: u32 = 56;
/// Small, so that many messages have several chunks, and odd, so that chunks end anywhere.
const CHUNK_BYTES: usize = 9973;

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

    /// Greets, answers EHLO, MAIL and the first RCPT, replies `last` to the next command, and closes.
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

    /// Sends the first line at once and each further one after a line of input; returns its input.
    fn server_that_says(lines: &'static [&'static str]) -> (SocketAddr, std::thread::JoinHandle<Vec<u8>>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let told = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut told = Vec::new();
            for line in lines {
                write!(stream, "{line}\r\n").unwrap();
                if line.contains("body") {
                    while !told.ends_with(b"\r\n.\r\n") {
                        reader.read_until(b'\n', &mut told).unwrap();
                    }
                } else {
                    reader.read_until(b'\n', &mut told).unwrap();
                }
            }
            told
        });
        (address, told)
    }

    #[test]
    fn each_recipient_accepted_by_lmtp_is_promised_alone() {
        let load = Load { large_one_in: u64::MAX, body_bytes_max: 1, ..Load::mixed(7) };
        let number = (0..).find(|number| load.recipients(*number).len() == 3).unwrap();
        let lines = &[
            "220 hi",
            "250-me\r\n250 SIZE 1000000",
            "250 ok",
            "250 ok",
            "250 ok",
            "250 ok",
            "354 body",
            "250 a\r\n452 b\r\n250 c",
        ];
        let (address, told) = server_that_says(lines);
        let sent = send_over(&[(Protocol::Lmtp, address)], &load, 1, number..number + 1, |_| ());
        assert_eq!(sent.acknowledged, [mark(number, Some(0)), mark(number, Some(2))]);
        assert_eq!(sent.refused, [(number, "452 b".to_owned())]);
        let told = String::from_utf8(told.join().unwrap()).unwrap();
        assert!(told.starts_with("LHLO") && told.contains("> SIZE="), "{told}");
        let recipients = load.recipients(number);
        let entry = |index: usize| Entry { message: number, mailbox: recipients[index] };
        assert_eq!(load.promised(sent.acknowledged[1]), [entry(2)]);
        assert_eq!(load.promised(mark(number, None)), [entry(0), entry(1), entry(2)]);
        assert_eq!((load.entries(&sent.acknowledged), messages(sent.acknowledged)), (2, 1));
    }
}
