//! Attacks on IMAP and POP3. Beside each an honest client reads mail by both, and its waits have the limit of every crowd.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cases::write_until_stopped;
use super::{Attack, HONEST_PACE, PATIENCE};
use crate::load::DOMAIN;
use crate::rig::RigError;
use crate::server::Setup;

const PASSWORD: &str = "secret";
/// Octets of an attacker's piece.
const PIECE: usize = 64 << 10;
/// Octets of a line, and of a literal, that have no end.
const ENDLESS: usize = 64 << 20;
/// Octets of the message that slow clients read.
const LARGE: usize = 16 << 20;
/// Clients that read slowly.
const SLOW: usize = 200;
/// Clients that send commands and read nothing, by each protocol.
const DEAF: usize = 4;
/// Size of a socket's buffers where little is to fit between.
const SMALL_BUFFER: usize = 4096;
/// Time that slow clients stay, at most: one that takes no octet for two minutes may be cut off.
const SLOW_STAY: Duration = Duration::from_secs(60);
pub(super) const SHOWN_MAX: usize = 5;

fn login() -> String {
    format!("reader@{DOMAIN}")
}

/// Writes the file of passwords.
pub fn write_passwords(setup: &Setup) -> Result<(), RigError> {
    let Some(file) = &setup.passwords else { return Ok(()) };
    let mut command = Command::new(&setup.program);
    let mut child = command.args(["password", &login()]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(format!("{PASSWORD}\n").as_bytes())?;
    }
    Ok(std::fs::write(file, child.wait_with_output()?.stdout)?)
}

/// A protocol for reading mail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    Imap,
    Pop3,
}

impl Reading {
    pub(super) const BOTH: [Self; 2] = [Self::Imap, Self::Pop3];

    fn connect(self, attack: &Attack) -> Result<TcpStream, RigError> {
        self.connect_to(attack, false)
    }

    /// `has_tls`: a handshake comes first.
    pub(super) fn connect_to(self, attack: &Attack, has_tls: bool) -> Result<TcpStream, RigError> {
        let readers = attack.server.readers.ok_or_else(|| io::Error::other("no listener for readers"))?;
        let stream = TcpStream::connect(readers[usize::from(self == Self::Pop3) * 2 + usize::from(has_tls)])?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

/// A client that reads mail.
pub(super) struct Reader {
    stream: BufReader<TcpStream>,
    reading: Reading,
}

impl Reader {
    pub(super) fn connect(attack: &Attack, reading: Reading) -> Result<Self, RigError> {
        let mut reader = Self { stream: BufReader::new(reading.connect(attack)?), reading };
        reader.line()?;
        Ok(reader)
    }

    pub(super) fn logged_in(attack: &Attack, reading: Reading) -> Result<Self, RigError> {
        let mut reader = Self::connect(attack, reading)?;
        match reading {
            Reading::Imap => reader.command(&format!("LOGIN {} {PASSWORD}", login()))?,
            Reading::Pop3 => {
                reader.command(&format!("USER {}", login()))?;
                reader.command(&format!("PASS {PASSWORD}"))?;
            }
        }
        Ok(reader)
    }

    /// With a mailbox, and with small buffers.
    fn with_small_buffers(attack: &Attack, reading: Reading) -> Result<TcpStream, RigError> {
        let mut reader = Self::logged_in(attack, reading)?;
        if reading == Reading::Imap {
            reader.command("SELECT INBOX")?;
        }
        // All that was sent was read: nothing is left in the reader's own buffer.
        let stream = reader.stream.into_inner();
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, SMALL_BUFFER).map_err(io::Error::from)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SMALL_BUFFER).map_err(io::Error::from)?;
        Ok(stream)
    }

    pub(super) fn say(&mut self, octets: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(octets)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        match self.stream.read_until(b'\n', &mut line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
        }
    }

    /// Sends a command and reads its answer to the end.
    pub(super) fn command(&mut self, command: &str) -> io::Result<()> {
        let refused = |line: String| Err(io::Error::other(format!("{command}: {line}")));
        match self.reading {
            Reading::Imap => {
                self.say(format!("t {command}\r\n").as_bytes())?;
                loop {
                    let line = self.line()?;
                    if let Some(outcome) = line.strip_prefix("t ") {
                        return if outcome.starts_with("OK") { Ok(()) } else { refused(line) };
                    }
                    if let Some(octets) = line.rsplit_once('{').and_then(|(_, end)| end.strip_suffix('}')?.parse().ok())
                    {
                        io::copy(&mut self.stream.by_ref().take(octets), &mut io::sink())?;
                    }
                }
            }
            Reading::Pop3 => {
                self.say(format!("{command}\r\n").as_bytes())?;
                let line = self.line()?;
                if !line.starts_with("+OK") {
                    return refused(line);
                }
                while command.starts_with("RETR") && self.line()? != "." {}
                Ok(())
            }
        }
    }

    /// The number of messages in a mailbox.
    pub(super) fn messages(&mut self, mailbox: &str) -> io::Result<usize> {
        self.say(format!("t STATUS {mailbox} (MESSAGES)\r\n").as_bytes())?;
        let mut found = None;
        loop {
            let line = self.line()?;
            if line.starts_with("t ") {
                return found.ok_or_else(|| io::Error::other(format!("STATUS: {line}")));
            }
            let number = line.rsplit_once("(MESSAGES ").and_then(|(_, number)| number.strip_suffix(')')?.parse().ok());
            found = found.or(number);
        }
    }

    /// Sends octets without an end. False: the server has ended the connection, which is its right.
    fn pour(&mut self, piece: &[u8]) -> io::Result<bool> {
        for _ in 0..ENDLESS / piece.len() {
            match self.say(piece) {
                Err(error) if is_cut(&error) => return Ok(false),
                said => said?,
            }
        }
        Ok(true)
    }

    /// The reply to nonsense. `None`: the server has ended the connection, and its last words are lost with it.
    fn verdict(&mut self) -> io::Result<Option<String>> {
        match self.line() {
            Err(error) if is_cut(&error) => Ok(None),
            line => line.map(Some),
        }
    }
}

fn is_cut(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof)
}

/// Describes a reply that is not a refusal.
fn refusal(what: &str, reading: Reading, reply: Option<&str>) -> Option<String> {
    let is_refusal = reply.is_none_or(|reply| match reading {
        Reading::Imap => ["BAD", "NO", "BYE"].into_iter().any(|word| reply.split(' ').nth(1) == Some(word)),
        Reading::Pop3 => reply.starts_with("-ERR"),
    });
    (!is_refusal).then(|| format!("{what} was answered {reply:?}"))
}

/// Puts a message into INBOX.
fn append(attack: &Attack, octets: usize) -> Result<(), RigError> {
    let mut message = b"Subject: to be read\r\n\r\n".to_vec();
    let line = b"One of the lines of a message that somebody wants to read\r\n";
    while message.len() < octets {
        message.extend_from_slice(line);
    }
    let mut reader = Reader::logged_in(attack, Reading::Imap)?;
    reader.say(format!("a APPEND INBOX {{{}+}}\r\n", message.len()).as_bytes())?;
    reader.say(&message)?;
    // The end of the command, and another one, whose answer follows.
    reader.say(b"\r\n")?;
    Ok(reader.command("NOOP")?)
}

/// Logs in by both protocols and reads the first message. Gives the longer of both times.
fn read_mail(attack: &Attack) -> Result<Duration, RigError> {
    let mut longest = Duration::ZERO;
    for reading in Reading::BOTH {
        let begun = Instant::now();
        let mut reader = Reader::logged_in(attack, reading)?;
        let commands = match reading {
            Reading::Imap => ["SELECT INBOX", "FETCH 1 (FLAGS BODY.PEEK[])", "LOGOUT"],
            Reading::Pop3 => ["STAT", "RETR 1", "QUIT"],
        };
        for command in commands {
            reader.command(command)?;
        }
        longest = longest.max(begun.elapsed());
    }
    Ok(longest)
}

/// Runs an attack while an honest client reads a short message again and again.
pub(super) fn beside_a_reader(
    attack: &Attack,
    run: impl FnOnce() -> Result<Vec<String>, RigError>,
) -> Result<Vec<String>, RigError> {
    append(attack, 1 << 10)?;
    // The first login computes the hash of the password, later ones do not.
    read_mail(attack)?;
    let done = AtomicBool::new(false);
    let read = || {
        let mut problems = Vec::new();
        while problems.len() < SHOWN_MAX {
            match read_mail(attack) {
                Ok(wait) => attack.waited(wait),
                Err(error) => problems.push(format!("the honest reader: {error}")),
            }
            if done.load(Ordering::Acquire) {
                break;
            }
            std::thread::sleep(HONEST_PACE);
        }
        problems
    };
    std::thread::scope(|scope| {
        let honest = scope.spawn(read);
        let outcome = run();
        done.store(true, Ordering::Release);
        let mut problems = honest.join().expect("the honest reader does not panic");
        problems.extend(outcome?);
        problems.truncate(SHOWN_MAX);
        Ok(problems)
    })
}

pub fn slow(attack: &Attack) -> Result<Vec<String>, RigError> {
    beside_a_reader(attack, || {
        append(attack, LARGE)?;
        let mut crowd = Vec::new();
        for reading in Reading::BOTH.into_iter().cycle().take(SLOW.min(attack.size.crowd)) {
            let mut stream = Reader::with_small_buffers(attack, reading)?;
            let command = if reading == Reading::Imap { "t FETCH 2 BODY.PEEK[]\r\n" } else { "RETR 2\r\n" };
            stream.write_all(command.repeat(10).as_bytes())?;
            crowd.push((stream, reading));
        }
        let (begun, mut second) = (Instant::now(), 0);
        let mut problems = Vec::new();
        while begun.elapsed() < attack.size.stay.min(SLOW_STAY) && problems.is_empty() {
            for (stream, reading) in &mut crowd {
                let read = stream.read(&mut [0]).map_err(|error| error.kind());
                if read != Ok(1) {
                    problems.push(format!("a slow reader by {reading:?} was cut off: {read:?}"));
                }
            }
            second += 1;
            std::thread::sleep((begun + Duration::from_secs(second)).saturating_duration_since(Instant::now()));
        }
        Ok(problems)
    })
}

pub fn endless_line(attack: &Attack) -> Result<Vec<String>, RigError> {
    beside_a_reader(attack, || {
        let piece = vec![b'A'; PIECE];
        let mut problems = Vec::new();
        for reading in Reading::BOTH {
            for is_logged_in in [false, true] {
                let begin = if is_logged_in { Reader::logged_in } else { Reader::connect };
                let mut reader = begin(attack, reading)?;
                reader.say(b"a ")?;
                let verdict = if reader.pour(&piece)? {
                    // It may be cut off now.
                    let _ = reader.say(b"\r\n");
                    reader.verdict()?
                } else {
                    None
                };
                problems.extend(refusal("a line of 64 MiB", reading, verdict.as_deref()));
            }
        }
        Ok(problems)
    })
}

pub fn literals(attack: &Attack) -> Result<Vec<String>, RigError> {
    let before = ["{4294967296}", "{18446744073709551616}", "{-1}", "{4294967296+}", "{9000+}"];
    let many = "{1+}\r\nx ".repeat(10_000);
    beside_a_reader(attack, || {
        let mut problems = Vec::new();
        for literal in before.into_iter().chain([&*many]) {
            let mut reader = Reader::connect(attack, Reading::Imap)?;
            let said = reader.say(format!("a LOGIN {literal}\r\n").as_bytes());
            let is_poured = said.is_ok() && literal.ends_with("+}") && reader.pour(&[b'x'; PIECE])?;
            if is_poured {
                let _ = reader.say(b"\r\n");
            }
            let what = format!("LOGIN {}", &literal[..literal.len().min(40)]);
            problems.extend(refusal(&what, Reading::Imap, reader.verdict()?.as_deref()));
        }
        for command in ["APPEND INBOX {10737418240}", "SEARCH TEXT {10737418240}", "STATUS {1000000}"] {
            let mut reader = Reader::logged_in(attack, Reading::Imap)?;
            reader.say(format!("a {command}\r\n").as_bytes())?;
            problems.extend(refusal(command, Reading::Imap, reader.verdict()?.as_deref()));
        }
        Ok(problems)
    })
}

/// Beginnings of commands, each of which is followed by an octet a second.
const HALVES: [(Reading, &str); 10] = [
    (Reading::Imap, ""),
    (Reading::Imap, "a LOGIN "),
    (Reading::Imap, "a LOGIN {100}\r\n"),
    (Reading::Imap, "a LOGIN {100+}\r\nreader"),
    (Reading::Imap, "a NOOP ((((((((((((((((((((((((((((((("),
    (Reading::Imap, "a AUTHENTICATE PLAIN\r\n"),
    (Reading::Pop3, ""),
    (Reading::Pop3, "USER "),
    (Reading::Pop3, "USER reader\r\nPASS "),
    (Reading::Pop3, "AUTH PLAIN\r\n"),
];

/// Sessions that stop in the middle of a command. The server may end each that has not logged in within its time.
pub fn halves(attack: &Attack) -> Result<Vec<String>, RigError> {
    beside_a_reader(attack, || {
        let mut crowd = Vec::with_capacity(attack.size.crowd);
        for (reading, beginning) in HALVES.into_iter().cycle().take(attack.size.crowd) {
            let mut stream = reading.connect(attack)?;
            stream.write_all(beginning.as_bytes())?;
            stream.set_nonblocking(true)?;
            crowd.push(stream);
        }
        let (begun, mut second) = (Instant::now(), 0);
        while begun.elapsed() < attack.size.stay {
            for stream in &mut crowd {
                let _ = stream.write(b"A");
            }
            second += 1;
            std::thread::sleep((begun + Duration::from_secs(second)).saturating_duration_since(Instant::now()));
        }
        Ok(Vec::new())
    })
}

/// Commands without end from clients that read no answer: the server must stop reading.
pub fn pipelines(attack: &Attack) -> Result<Vec<String>, RigError> {
    beside_a_reader(attack, || {
        let mut problems = Vec::new();
        for reading in Reading::BOTH {
            let commands = match reading {
                Reading::Imap => "t STATUS INBOX (MESSAGES UNSEEN)\r\nt UID FETCH 1:* (FLAGS BODY.PEEK[])\r\n",
                Reading::Pop3 => "UIDL\r\nRETR 1\r\n",
            };
            let mut crowd = Vec::new();
            for _ in 0..DEAF {
                let stream = Reader::with_small_buffers(attack, reading)?;
                stream.set_nonblocking(true)?;
                crowd.push((stream, 0));
            }
            problems.extend(write_until_stopped(&mut crowd, commands.repeat(100).as_bytes()));
        }
        Ok(problems)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_known_by_its_word() {
        for (reading, reply) in [
            (Reading::Imap, "a BAD no"),
            (Reading::Imap, "* BYE [TOOBIG] x"),
            (Reading::Imap, "a NO [LIMIT]"),
            (Reading::Pop3, "-ERR no"),
        ] {
            assert_eq!(refusal("x", reading, Some(reply)), None, "{reply}");
        }
        for (reading, reply) in
            [(Reading::Imap, "+ go on"), (Reading::Imap, "a OK done"), (Reading::Pop3, "+OK"), (Reading::Imap, "")]
        {
            assert!(refusal("x", reading, Some(reply)).is_some(), "{reply}");
        }
        assert_eq!(refusal("x", Reading::Imap, None), None, "it has ended the connection");
    }
}
