//! An IMAP client that reads responses as fast as they come and keeps none of them.

use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_smtp::sasl::scram::ScramClient;

/// A session.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    tags: u32,
    line: Vec<u8>,
}

/// The answer to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// Time from the first octet of the command to the end of its tagged response.
    pub took: Duration,
    /// Messages in it: FETCH responses, or numbers in a SEARCH or SORT response.
    pub messages: u64,
    /// The number in `* N EXISTS`, if the server sent one.
    pub exists: Option<u64>,
}

/// Size of the read buffer.
const BUFFER_OCTETS: usize = 256 << 10;
/// Size of the read buffer of each of a thousand sessions that receive little.
const SMALL_BUFFER_OCTETS: usize = 4 << 10;
/// Read timeout: a search that reads all mail takes long.
const PATIENCE: Duration = Duration::from_secs(600);

impl Client {
    /// Connects and logs in.
    pub fn log_in(address: SocketAddr, name: &str, password: &str) -> io::Result<Self> {
        Self::connect(address, BUFFER_OCTETS)?.logged_in(name, password)
    }

    /// Like [`log_in`](Self::log_in), for one of many sessions.
    pub fn log_in_small(address: SocketAddr, name: &str, password: &str) -> io::Result<Self> {
        Self::connect(address, SMALL_BUFFER_OCTETS)?.logged_in(name, password)
    }

    /// Connects as one of many sessions, and logs in by SCRAM-SHA-256 (RFC 7677).
    pub fn log_in_by_scram(address: SocketAddr, name: &str, password: &str, nonce: String) -> io::Result<Self> {
        let mut client = Self::connect(address, SMALL_BUFFER_OCTETS)?;
        let mut scram = ScramClient::new(name, password, None, nonce);
        let first = STANDARD.encode(scram.first());
        client.say(&format!("s AUTHENTICATE SCRAM-SHA-256 {first}"))?;
        let last = scram.last(&client.challenge()?).map_err(io::Error::other)?;
        client.say(&STANDARD.encode(last))?;
        let shown = client.challenge()?;
        if !scram.is_shown(&shown) {
            return Err(io::Error::other("the server does not have the keys"));
        }
        client.say("")?;
        client.read_line()?;
        if client.line.starts_with(b"s OK") {
            Ok(client)
        } else {
            Err(io::Error::other(String::from_utf8_lossy(&client.line).trim().to_owned()))
        }
    }

    fn connect(address: SocketAddr, buffer_octets: usize) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = Self { stream: BufReader::with_capacity(buffer_octets, stream), tags: 0, line: Vec::new() };
        client.read_line()?;
        Ok(client)
    }

    fn logged_in(mut self, name: &str, password: &str) -> io::Result<Self> {
        self.command(&format!("LOGIN {name} {password}"))?;
        Ok(self)
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        self.stream.get_mut().write_all(format!("{line}\r\n").as_bytes())
    }

    fn challenge(&mut self) -> io::Result<String> {
        self.read_line()?;
        let text = self.line.strip_prefix(b"+ ").and_then(|base64| STANDARD.decode(base64.trim_ascii_end()).ok());
        let text = text.and_then(|text| String::from_utf8(text).ok());
        text.ok_or_else(|| io::Error::other(String::from_utf8_lossy(&self.line).trim().to_owned()))
    }

    /// Begins IDLE (RFC 2177); [`hear`](Self::hear) reads the responses.
    pub fn idle(&mut self) -> io::Result<()> {
        self.say("i IDLE")?;
        self.read_line()?;
        if self.line.starts_with(b"+") {
            Ok(())
        } else {
            Err(io::Error::other(String::from_utf8_lossy(&self.line).trim().to_owned()))
        }
    }

    /// Waits in IDLE for a message.
    pub fn hear(&mut self) -> io::Result<Instant> {
        loop {
            self.read_line()?;
            if existing(&self.line).is_some() {
                return Ok(Instant::now());
            }
        }
    }

    /// # Errors
    /// Errors of the connection; an answer other than OK.
    pub fn command(&mut self, command: &str) -> io::Result<Answer> {
        self.tags += 1;
        let tag = format!("t{} ", self.tags);
        let begun = Instant::now();
        self.stream.get_mut().write_all(format!("{tag}{command}\r\n").as_bytes())?;
        let (mut messages, mut exists) = (0, None);
        loop {
            self.read_line()?;
            if let Some(rest) = self.line.strip_prefix(tag.as_bytes()) {
                if rest.starts_with(b"OK") {
                    return Ok(Answer { took: begun.elapsed(), messages, exists });
                }
                return Err(io::Error::other(format!("{command}: {}", String::from_utf8_lossy(rest).trim())));
            }
            messages += messages_in(&self.line);
            exists = exists.or_else(|| existing(&self.line));
            while let Some(octets) = literal(&self.line) {
                io::copy(&mut self.stream.by_ref().take(octets), &mut io::sink())?;
                self.read_line()?;
            }
        }
    }

    fn read_line(&mut self) -> io::Result<()> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        if self.line.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

/// The length of the literal that follows a line (RFC 9051 section 4.3).
fn literal(line: &[u8]) -> Option<u64> {
    let line = line.trim_ascii_end().strip_suffix(b"}")?;
    let digits = &line[line.iter().rposition(|octet| *octet == b'{')? + 1..];
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn messages_in(line: &[u8]) -> u64 {
    if let Some(numbers) = line.strip_prefix(b"* SEARCH").or_else(|| line.strip_prefix(b"* SORT")) {
        return numbers.split(u8::is_ascii_whitespace).filter(|number| !number.is_empty()).count() as u64;
    }
    let mut words = line.splitn(4, |octet| *octet == b' ');
    u64::from(words.next() == Some(b"*") && words.nth(1) == Some(b"FETCH"))
}

fn existing(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(b"* ")?.trim_ascii_end().strip_suffix(b" EXISTS")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted() {
        assert_eq!(literal(b"* 1 FETCH (BODY[] {12}\r\n"), Some(12));
        assert_eq!(
            (literal(b"* 1 FETCH (FLAGS ())\r\n"), literal(b"* OK }\r\n"), literal(b"{x}\r\n")),
            (None, None, None)
        );
        assert_eq!(messages_in(b"* 17 FETCH (FLAGS (\\Seen))\r\n"), 1);
        assert_eq!(messages_in(b"* SEARCH 2 3 7\r\n"), 3);
        assert_eq!((messages_in(b"* SEARCH\r\n"), messages_in(b"* OK FETCH\r\n"), messages_in(b"\r\n")), (0, 0, 0));
        assert_eq!((existing(b"* 172 EXISTS\r\n"), existing(b"* 172 RECENT\r\n")), (Some(172), None));
    }
}
