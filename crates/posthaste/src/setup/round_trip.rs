//! A test message to oneself: login, signature, delivery, mailbox.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posthaste_dkim::{DkimResult, Verifier};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::queue::AnyError;

/// The account that sends a message to itself.
pub struct RoundTrip<'a> {
    pub host: &'a str,
    pub address: &'a str,
    pub password: &'a str,
    pub submissions: u16,
    pub imaps: u16,
    /// Names and texts of the keys' DNS records.
    pub keys: &'a [(String, String)],
}

impl RoundTrip<'_> {
    /// Sends a message, reads it, verifies its signatures, deletes it. Returns the time from login to the octets. Blocks.
    ///
    /// # Errors
    /// The step that failed, with the server's reply.
    pub fn run(&self) -> Result<Duration, AnyError> {
        let begun = Instant::now();
        let id = format!("{:x}.setup@{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos(), self.host);
        self.send(&id)?;
        let message = self.read(&id)?;
        let took = begun.elapsed();
        self.verify(&message)?;
        Ok(took)
    }

    fn send(&self, id: &str) -> Result<(), AnyError> {
        let Self { address, password, .. } = self;
        let mut smtp = Line::open(self.host, self.submissions)?;
        smtp.expect_code("220")?;
        smtp.say(&format!("EHLO {}\r\n", self.host))?;
        smtp.expect_code("250")?;
        smtp.say(&format!("AUTH PLAIN {}\r\n", STANDARD.encode(format!("\0{address}\0{password}"))))?;
        smtp.expect_code("235")?;
        for (line, code) in [
            (format!("MAIL FROM:<{address}>"), "250"),
            (format!("RCPT TO:<{address}>"), "250"),
            ("DATA".to_owned(), "354"),
        ] {
            smtp.say(&format!("{line}\r\n"))?;
            smtp.expect_code(code)?;
        }
        smtp.say(&format!(
            "From: <{address}>\r\nTo: <{address}>\r\nSubject: A message from setup to itself\r\nMessage-ID: <{id}>\r\n\r\n\
             Setup reads this and deletes it.\r\n.\r\n"
        ))?;
        smtp.expect_code("250")?;
        smtp.say("QUIT\r\n")
    }

    /// The message read by IMAP.
    fn read(&self, id: &str) -> Result<Vec<u8>, AnyError> {
        let mut imap = Line::open(self.host, self.imaps)?;
        imap.line()?;
        imap.command(&format!("LOGIN {} {}", quoted(self.address), quoted(self.password)))?;
        imap.command("SELECT INBOX")?;
        let deadline = Instant::now() + PATIENCE;
        let uid = loop {
            let (lines, _) = imap.command(&format!("UID SEARCH HEADER Message-ID {}", quoted(id)))?;
            let found =
                lines.iter().find_map(|line| line.strip_prefix("* SEARCH ")?.split(' ').next().map(str::to_owned));
            if let Some(uid) = found {
                break uid;
            }
            if Instant::now() > deadline {
                return Err("the message does not arrive in the mailbox".into());
            }
            std::thread::sleep(LOOK);
            imap.command("NOOP")?;
        };
        let (_, message) = imap.command(&format!("UID FETCH {uid} BODY.PEEK[]"))?;
        imap.command(&format!("UID STORE {uid} +FLAGS.SILENT (\\Deleted)"))?;
        imap.command(&format!("UID EXPUNGE {uid}"))?;
        imap.command("LOGOUT")?;
        Ok(message)
    }

    /// Checks that each key has signed, and verifies each signature with its DNS record.
    fn verify(&self, message: &[u8]) -> Result<(), AnyError> {
        let domain = self.address.rsplit('@').next();
        let mut verifier = Verifier::default();
        let (fields, body) = fields_of(message);
        fields.iter().for_each(|field| verifier.field(field));
        verifier.begin_body(domain);
        verifier.body(body);
        let mut passed = Vec::new();
        for claim in verifier.finish(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs()) {
            let name = claim.key_name().unwrap_or_default();
            let texts: Vec<String> =
                self.keys.iter().filter(|(key, _)| *key == name).map(|(_, text)| text.clone()).collect();
            let verified = claim.verify(Some(&texts));
            if verified.result != DkimResult::Pass {
                return Err(format!("a signature of the message does not verify: {}", verified.why).into());
            }
            passed.push(name);
        }
        match self.keys.iter().find(|(name, _)| !passed.contains(name)) {
            Some((name, _)) => Err(format!("the message is not signed with the key of {name}").into()),
            None => Ok(()),
        }
    }
}

/// The fields of a header with their continuation lines, and the body.
fn fields_of(message: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let (mut fields, mut begin, mut at): (Vec<&[u8]>, usize, usize) = (Vec::new(), 0, 0);
    for line in message.split_inclusive(|octet| *octet == b'\n') {
        let is_folded = matches!(line.first(), Some(b' ' | b'\t'));
        if at > begin && !is_folded {
            fields.push(&message[begin..at]);
            begin = at;
        }
        at += line.len();
        if line == b"\r\n" {
            return (fields, &message[at..]);
        }
    }
    fields.extend((at > begin).then(|| &message[begin..at]));
    (fields, &[])
}

/// A connection to this machine's server, whose certificate is self-signed for now.
struct Line(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl Line {
    fn open(host: &str, port: u16) -> Result<Self, AnyError> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let config = posthaste_net::tls::client_config(&posthaste_net::tls::TlsTrust::Anything)?;
        let connection = ClientConnection::new(Arc::clone(&config), ServerName::try_from(host.to_owned())?)?;
        Ok(Self(BufReader::new(StreamOwned::new(connection, stream))))
    }

    fn say(&mut self, text: &str) -> Result<(), AnyError> {
        self.0.get_mut().write_all(text.as_bytes())?;
        Ok(self.0.get_mut().flush()?)
    }

    /// A line without its end.
    fn line(&mut self) -> Result<String, AnyError> {
        let mut line = Vec::new();
        (&mut self.0).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None => Err("the server ends the session".into()),
        }
    }

    /// Reads a whole SMTP reply.
    fn expect_code(&mut self, code: &str) -> Result<(), AnyError> {
        loop {
            let line = self.line()?;
            if !line.starts_with(code) {
                return Err(format!("the server says: {line}").into());
            }
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok(());
            }
        }
    }

    /// Runs an IMAP command: its untagged lines, and the last literal in them.
    fn command(&mut self, command: &str) -> Result<(Vec<String>, Vec<u8>), AnyError> {
        self.say(&format!("a {command}\r\n"))?;
        let mut lines = Vec::new();
        let mut literal = Vec::new();
        loop {
            let line = self.line()?;
            if let Some(done) = line.strip_prefix("a ") {
                return if done.starts_with("OK") {
                    Ok((lines, literal))
                } else {
                    Err(format!("the server says: {done}").into())
                };
            }
            if let Some(bytes) = line.strip_suffix('}').and_then(|line| line.rsplit_once('{')?.1.parse::<u64>().ok()) {
                literal.clear();
                (&mut self.0).take(bytes.min(MESSAGE_BYTES_MAX)).read_to_end(&mut literal)?;
            }
            lines.push(line);
        }
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
const LINE_BYTES_MAX: u64 = 64 << 10;
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_folded_lines_and_the_body_is_the_rest() {
        let (fields, body) = fields_of(b"A: x\r\n y\r\nB: z\r\n\r\nbody\r\n\r\n");
        assert_eq!((fields, body), (vec![&b"A: x\r\n y\r\n"[..], b"B: z\r\n"], &b"body\r\n\r\n"[..]));
        assert_eq!(fields_of(b"\r\nx"), (vec![], &b"x"[..]));
        assert_eq!(fields_of(b"A: x\r\n").0, vec![b"A: x\r\n"]);
    }
}
