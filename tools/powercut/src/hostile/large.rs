//! Huge messages that another program has put into a mailbox, and clients of IMAP and POP3 that ask for them.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

use super::Attack;
use super::readers::{HUGE_PATIENCE, Reader, Reading, beside_a_reader};
use crate::load::DOMAIN;
use crate::rig::RigError;

/// Octets of a huge header.
const HEADER: u64 = 100 << 20;
/// Clients that ask for a message with such a header at the same time.
const HEADER_READERS: usize = 4;
/// Octets of a huge message.
const MESSAGE: u64 = 256 << 20;
/// Clients that read the huge message slowly.
const MESSAGE_READERS: usize = 8;
/// Octets that each of them reads, a piece in its turn.
const READ_SLOWLY: u64 = 8 << 20;
const PIECE: usize = 64 << 10;
/// The most that FETCH may send of a header that is longer.
const HEADER_SENT_MAX: u64 = 1 << 20;
const THE_BODY: &str = "the body\r\n";

/// A message with one line again and again, in the header or in the body.
struct Huge {
    beginning: &'static str,
    line: String,
    lines: u64,
    end: &'static str,
}

impl Huge {
    fn with_header() -> Self {
        let line = "X-Filler: one of very many fields, all of them quite ordinary\r\n".to_owned();
        Self::new("From: a@example.net\r\nSubject: huge\r\n", line, HEADER, "X-Last: yes\r\n\r\nthe body\r\n")
    }

    fn with_body() -> Self {
        let line = format!("{}\r\n", "some words that somebody reads slowly ".repeat(25));
        Self::new("From: a@example.net\r\nSubject: huge\r\n\r\n", line, MESSAGE, "the last line\r\n")
    }

    fn new(beginning: &'static str, line: String, octets: u64, end: &'static str) -> Self {
        Self { beginning, lines: octets / line.len() as u64, line, end }
    }

    fn len(&self) -> u64 {
        self.header_or_all() + self.end.len() as u64
    }

    fn header_or_all(&self) -> u64 {
        self.beginning.len() as u64 + self.lines * self.line.len() as u64
    }

    /// Puts it into a Maildir, and returns its path.
    fn put_into(&self, maildir: &Path) -> io::Result<PathBuf> {
        let (tmp, path) = (maildir.join("tmp/1.huge.host"), maildir.join("new/1.huge.host"));
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&tmp)?);
        file.write_all(self.beginning.as_bytes())?;
        for _ in 0..self.lines {
            file.write_all(self.line.as_bytes())?;
        }
        file.write_all(self.end.as_bytes())?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?;
        fs::rename(&tmp, &path)?;
        Ok(path)
    }

    /// The octet at an offset.
    fn octet(&self, at: u64) -> u8 {
        let (first, last) = (self.beginning.len() as u64, self.header_or_all());
        match at {
            _ if at < first => self.beginning.as_bytes()[at as usize],
            _ if at < last => self.line.as_bytes()[((at - first) % self.line.len() as u64) as usize],
            _ => self.end.as_bytes()[(at - last) as usize],
        }
    }

    /// Reads `octets` of the message from `from` on.
    fn check(&self, from: u64, octets: u64, stream: &mut impl Read) -> io::Result<()> {
        let (mut piece, mut at) = (vec![0; PIECE], from);
        while at < from + octets {
            let wanted = usize::try_from(from + octets - at).unwrap_or(PIECE).min(PIECE);
            stream.read_exact(&mut piece[..wanted])?;
            // Ends and some between: to compare each octet would take longer than to send it.
            for offset in (0..wanted).step_by(61).chain([wanted - 1]) {
                if piece[offset] != self.octet(at + offset as u64) {
                    return Err(io::Error::other(format!("octet {} of the message is another", at + offset as u64)));
                }
            }
            at += wanted as u64;
        }
        Ok(())
    }
}

fn maildir(attack: &Attack) -> PathBuf {
    attack.setup.mail().join(DOMAIN).join("reader/Maildir")
}

/// Waits until a mailbox has so many messages.
fn wait_for_messages(reader: &mut Reader, mailbox: &str, count: usize) -> io::Result<()> {
    let deadline = Instant::now() + HUGE_PATIENCE;
    while reader.messages(mailbox)? < count {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("{mailbox} has fewer than {count} messages")));
        }
    }
    Ok(())
}

/// A header of 100 MiB: everything that needs it is answered, by several sessions at once, and each session goes on.
pub fn header(attack: &Attack) -> Result<Vec<String>, RigError> {
    beside_a_reader(attack, || {
        let huge = Huge::with_header();
        huge.put_into(&maildir(attack))?;
        let mut first = Reader::logged_in(attack, Reading::Imap)?.patient()?;
        wait_for_messages(&mut first, "INBOX", 2)?;
        let together = Barrier::new(HEADER_READERS);
        let (huge, together) = (&huge, &together);
        std::thread::scope(|scope| {
            let of = |number: usize| {
                scope.spawn(move || {
                    together.wait();
                    if number == 0 { retrieve_header(attack, huge) } else { fetch_header(attack, huge) }
                })
            };
            let readers: Vec<_> = (0..HEADER_READERS).map(of).collect();
            let ended = readers.into_iter().map(|reader| reader.join().expect("a reader does not panic"));
            Ok(ended.filter_map(Result::err).map(|error| format!("a reader of a huge header: {error}")).collect())
        })
    })
}

fn fetch_header(attack: &Attack, huge: &Huge) -> Result<(), RigError> {
    let mut reader = Reader::logged_in(attack, Reading::Imap)?.patient()?;
    reader.command("SELECT INBOX")?;
    let said = reader.ask("FETCH 2 (RFC822.SIZE ENVELOPE)", |_, _| Ok(()))?.concat();
    let wanted = [format!("RFC822.SIZE {}", huge.len()), "\"huge\"".to_owned()];
    if let Some(missing) = wanted.iter().find(|text| !said.contains(&**text)) {
        return Err(io::Error::other(format!("no {missing} in {said}")).into());
    }
    // The text begins where the header is cut off.
    let mut sent = 0;
    reader.ask("FETCH 2 BODY.PEEK[HEADER]", |octets, stream| {
        sent = octets;
        huge.check(0, octets, stream)
    })?;
    if !(1..=HEADER_SENT_MAX).contains(&sent) {
        return Err(io::Error::other(format!("{sent} octets of a huge header")).into());
    }
    reader.ask("FETCH 2 BODY.PEEK[TEXT]<0.100>", |octets, stream| huge.check(sent, octets, stream))?;
    for command in [
        "FETCH 2 BODYSTRUCTURE",
        "FETCH 2 BODY.PEEK[HEADER.FIELDS (SUBJECT X-LAST)]",
        "FETCH 2 BODY.PEEK[HEADER.FIELDS.NOT (SUBJECT)]<0.100>",
        "FETCH 2 BODY.PEEK[1.MIME]<0.100>",
        "SEARCH HEADER X-Filler ordinary",
    ] {
        reader.command(command)?;
    }
    let mut all = 0;
    reader.ask("FETCH 2 BODY.PEEK[]<0.1000000>", |octets, stream| {
        all = octets;
        huge.check(0, octets, stream)
    })?;
    if all != 1_000_000 {
        return Err(io::Error::other(format!("{all} octets of a million")).into());
    }
    Ok(reader.command("NOOP")?)
}

/// By POP3 it is sent whole.
fn retrieve_header(attack: &Attack, huge: &Huge) -> Result<(), RigError> {
    let mut reader = Reader::logged_in(attack, Reading::Pop3)?.patient()?;
    for (command, wanted) in [("TOP 2 0", huge.len() - THE_BODY.len() as u64), ("RETR 2", huge.len())] {
        reader.say(format!("{command}\r\n").as_bytes())?;
        let (line, mut octets) = (reader.line()?, 0);
        if !line.starts_with("+OK") {
            return Err(io::Error::other(format!("{command}: {line}")).into());
        }
        loop {
            match reader.line()?.len() as u64 {
                1 => break,
                line => octets += line + 2,
            }
        }
        if octets != wanted {
            return Err(io::Error::other(format!("{command} sent {octets} octets of {wanted}")).into());
        }
    }
    Ok(reader.command("QUIT")?)
}

/// A message of 256 MiB, and eight clients that read a piece of it each in turn. One of them reads it to its end.
pub fn message(attack: &Attack) -> Result<Vec<String>, RigError> {
    beside_a_reader(attack, || {
        let huge = Huge::with_body();
        let mut first = Reader::logged_in(attack, Reading::Imap)?.patient()?;
        first.command("CREATE Huge")?;
        let path = huge.put_into(&maildir(attack).join(".Huge"))?;
        wait_for_messages(&mut first, "Huge", 1)?;
        // It is read once for its size.
        for command in ["SELECT Huge", "FETCH 1 RFC822.SIZE"] {
            first.command(command)?;
        }
        let mut readers = Vec::new();
        for _ in 0..MESSAGE_READERS {
            let mut stream = Reader::with_small_buffers(attack, Reading::Imap, "Huge")?;
            stream.set_read_timeout(Some(HUGE_PATIENCE))?;
            stream.write_all(b"t FETCH 1 BODY.PEEK[]\r\n")?;
            readers.push(stream);
        }
        let literal = format!("* 1 FETCH (BODY[] {{{}}}\r\n", huge.len());
        for stream in &mut readers {
            let mut line = vec![0; literal.len()];
            stream.read_exact(&mut line)?;
            if line != literal.as_bytes() {
                return Ok(vec![format!("{:?} is not {literal:?}", String::from_utf8_lossy(&line))]);
            }
        }
        for at in (0..READ_SLOWLY).step_by(PIECE) {
            for stream in &mut readers {
                huge.check(at, PIECE as u64, stream)?;
            }
        }
        let mut one = readers.pop().expect("there are several");
        huge.check(READ_SLOWLY, huge.len() - READ_SLOWLY, &mut one)?;
        let mut end = [0; 7];
        one.read_exact(&mut end)?;
        let mut problems = Vec::new();
        if end != *b")\r\nt OK" {
            problems.push(format!("a huge message ends with {:?}", String::from_utf8_lossy(&end)));
        }
        // The others have stood still meanwhile.
        for stream in &mut readers {
            huge.check(READ_SLOWLY, PIECE as u64, stream)?;
        }
        fs::remove_file(path)?;
        Ok(problems)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_message_is_known_octet_by_octet() {
        let dir = tempfile::tempdir().unwrap();
        let huge = Huge::new("A: b\r\n\r\n", "line\r\n".to_owned(), 40, "end\r\n");
        for name in ["tmp", "new"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let octets = fs::read(huge.put_into(dir.path()).unwrap()).unwrap();
        assert_eq!(octets, format!("A: b\r\n\r\n{}end\r\n", "line\r\n".repeat(6)).as_bytes());
        assert_eq!(octets.len() as u64, huge.len());
        assert!((0..huge.len()).all(|at| octets[at as usize] == huge.octet(at)));
        huge.check(3, 20, &mut &octets[3..]).unwrap();
        assert!(huge.check(3, 20, &mut &octets[4..]).is_err());
        assert!(huge.check(0, huge.len(), &mut &octets[1..]).is_err());
    }
}
