//! Turns `sendmail`'s input into a message in the directory.

use std::collections::HashSet;
use std::io::{self, BufRead};

use posthaste_message::DateTime;
use posthaste_message::address::AddressError;
use posthaste_smtp::command::Hold;
use posthaste_smtp::{BodyType, MailFrom, Notify, RcptTo, Ret, ReversePath};

use crate::address::{listed, recipient, sender};
use crate::compose::{Missing, begins_field, completed, recipients};
use crate::directory::PickupDirectory;
use crate::entry::{EntryError, PickupEntry};
use crate::head::PickupHead;
use crate::lines::Lines;

/// A message as `sendmail`'s command line describes it.
#[derive(Debug, Clone, Default)]
pub struct Submission {
    /// The sender, as given: with or without brackets or a domain.
    pub sender: String,
    /// The name for From, if that is missing.
    pub full_name: Option<String>,
    /// Recipients, as given.
    pub recipients: Vec<String>,
    /// True if addresses in the header are recipients, too.
    pub from_header: bool,
    /// True if a line with a single dot is text, not the end.
    pub dot_is_text: bool,
    /// True if octets above 127 were announced, even if there are none.
    pub is_8bit: bool,
    /// Notices that the sender asks for, for all recipients.
    pub notify: Option<Notify>,
    /// The part of the message that a notification returns.
    pub ret: Option<Ret>,
    /// The message's name in notifications: xtext.
    pub envid: Option<String>,
    /// Earliest time at which it may leave for other hosts, in seconds since 1970.
    pub not_before: Option<i64>,
    /// Time of expiry, in seconds since 1970.
    pub expires: Option<i64>,
}

/// Facts for all messages.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Default domain of addresses, and of a new Message-ID.
    pub origin: String,
    /// Octets of a header.
    pub header_bytes_max: u64,
    /// Maximum octets of a message; `None`: unlimited.
    pub message_bytes_max: Option<u64>,
    /// Seconds since 1970, for a missing Date.
    pub unix_secs: i64,
    /// The unique part of a new Message-ID: a dot-atom.
    pub unique: String,
}

/// A message with a parsed and completed header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Sender and recipients.
    pub head: PickupHead,
    /// The outgoing header, with the empty line.
    pub header: Vec<u8>,
}

/// Why a message is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The message has no recipients.
    #[error("no recipient: name one on the command line, or use -t and a field To")]
    NoRecipients,
    /// An invalid address.
    #[error("`{address}` is not an address: {why}")]
    Address {
        /// The address, as given.
        address: String,
        /// The mistake.
        why: AddressError,
    },
    /// Text other than an address in To, Cc or Bcc.
    #[error("`{0}` in the header is not an address")]
    NotAnAddress(String),
    /// The header exceeds the server's limit.
    #[error("the header is larger than {limit} bytes")]
    HeaderTooLarge {
        /// The server's limit, in octets.
        limit: u64,
    },
    /// The input cannot be read.
    #[error("cannot read the message: {0}")]
    Input(io::Error),
    /// The message cannot be stored.
    #[error(transparent)]
    Entry(#[from] EntryError),
}

/// A message while it is read: header first, then the body.
#[derive(Debug)]
pub struct Reading<R> {
    input: R,
    lines: Lines,
    /// A line that ended the header and belongs to the body.
    pending: Vec<u8>,
}

impl Submission {
    /// Reads and completes the header.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub fn read_header<R: BufRead>(&self, input: R, facts: &Facts) -> Result<(Completed, Reading<R>), SubmitError> {
        let (header, reading) = Reading::begin(input, !self.dot_is_text, facts.header_bytes_max)?;
        let in_header =
            if self.from_header { recipients(&header).map_err(SubmitError::NotAnAddress)? } else { Vec::new() };
        let bad = |address: &str, why| SubmitError::Address { address: address.to_owned(), why };
        let mut all = Vec::new();
        for word in &self.recipients {
            all.extend(listed(word, &facts.origin).map_err(|why| bad(word, why))?);
        }
        for address in &in_header {
            all.push(recipient(address, &facts.origin).map_err(|why| bad(address, why))?);
        }
        let mut seen = HashSet::new();
        let paths: Vec<_> = all.into_iter().filter(|path| seen.insert(path.to_string())).collect();
        if paths.is_empty() {
            return Err(SubmitError::NoRecipients);
        }
        let reverse_path = sender(&self.sender, &facts.origin)
            .map_err(|why| SubmitError::Address { address: self.sender.clone(), why })?;
        let smtputf8 = !reverse_path.is_ascii() || paths.iter().any(|path| !path.is_ascii());
        let header = complete_header(&header, &reverse_path, self.full_name.as_deref(), facts);
        let mut mail = MailFrom::new(reverse_path);
        (mail.smtputf8, mail.ret, mail.envid) = (smtputf8, self.ret, self.envid.clone());
        (mail.hold, mail.expires) = (self.not_before.map(Hold::Until), self.expires);
        if self.is_8bit {
            mail.body = BodyType::EightBitMime;
        }
        let rcpt = |path| RcptTo { notify: self.notify, ..RcptTo::new(path) };
        let head = PickupHead::new(mail, paths.into_iter().map(rcpt).collect());
        Ok((Completed { head, header }, reading))
    }
}

/// The outgoing header with its empty line: without blind copies, with Date, From and Message-ID.
pub fn complete_header(header: &[u8], sender: &ReversePath, full_name: Option<&str>, facts: &Facts) -> Vec<u8> {
    let from = match sender.address() {
        Some(address) => address.to_string(),
        // Somebody has to be named, and nobody is to be answered (RFC 5322 section 3.6.2).
        None => format!("MAILER-DAEMON@{}", facts.origin),
    };
    let missing = Missing {
        sender: &from,
        full_name,
        date: DateTime::from_unix(facts.unix_secs),
        message_id: &format!("{}@{}", facts.unique, facts.origin),
    };
    let mut header = completed(header, &missing);
    header.extend_from_slice(b"\r\n");
    header
}

impl<R: BufRead> Reading<R> {
    /// Reads the header of a message. `dot_ends`: a line with a single dot ends the input.
    ///
    /// # Errors
    /// [`SubmitError::HeaderTooLarge`] and [`SubmitError::Input`].
    pub fn begin(input: R, dot_ends: bool, header_bytes_max: u64) -> Result<(Vec<u8>, Self), SubmitError> {
        let mut reading = Self { input, lines: Lines::new(dot_ends), pending: Vec::new() };
        let header = reading.header(header_bytes_max)?;
        Ok((header, reading))
    }

    /// The input after the header.
    ///
    /// # Errors
    /// The header has ended with a line that belongs to the body.
    pub fn into_rest(self) -> Result<R, Self> {
        if self.pending.is_empty() { Ok(self.input) } else { Err(self) }
    }

    /// Stores the message durably in the directory, and returns its file name.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is left in the directory.
    pub fn store(
        mut self,
        completed: Completed,
        directory: &PickupDirectory,
        facts: &Facts,
    ) -> Result<String, SubmitError> {
        let mut entry = PickupEntry::begin(directory, completed.head, facts.message_bytes_max)?;
        entry.write(&completed.header)?;
        while let Some(piece) = self.piece()? {
            entry.write(&piece)?;
        }
        Ok(entry.finish()?)
    }

    /// The next piece of the body with CRLF line ends: as much as is available. `None` at the end.
    ///
    /// # Errors
    /// [`SubmitError::Input`].
    pub fn piece(&mut self) -> Result<Option<Vec<u8>>, SubmitError> {
        let mut piece = std::mem::take(&mut self.pending);
        while piece.is_empty() {
            if self.lines.is_over() {
                return Ok(None);
            }
            self.read(&mut piece)?;
        }
        Ok(Some(piece))
    }

    /// Appends available octets of the message to `out`.
    fn read(&mut self, out: &mut Vec<u8>) -> Result<(), SubmitError> {
        let chunk = filled(&mut self.input)?;
        if chunk.is_empty() {
            self.lines.finish(out);
            return Ok(());
        }
        let mut at = 0;
        while at < chunk.len() && !self.lines.is_over() {
            at += self.lines.take(&chunk[at..], out).0;
        }
        self.input.consume(at);
        Ok(())
    }

    /// Reads up to the empty line, or to the first line that is not a header's.
    fn header(&mut self, bytes_max: u64) -> Result<Vec<u8>, SubmitError> {
        let mut header = Vec::new();
        let mut line = Vec::new();
        let mut is_first = true;
        loop {
            let is_line = self.line(&mut line, bytes_max)?;
            let text = line.strip_suffix(b"\r\n").unwrap_or(&line);
            let is_mailbox_line = is_first && (text.starts_with(b"From ") || text.starts_with(b">From "));
            is_first = false;
            if !is_line || text.is_empty() {
                break;
            }
            let goes_on = !header.is_empty() && matches!(text.first(), Some(b' ' | b'\t'));
            if !is_mailbox_line {
                if !goes_on && !begins_field(text) {
                    self.pending = line;
                    break;
                }
                header.extend_from_slice(&line);
            }
            if header.len() as u64 > bytes_max {
                return Err(SubmitError::HeaderTooLarge { limit: bytes_max });
            }
            line.clear();
        }
        self.lines.enter_body();
        Ok(header)
    }

    /// Reads one line; false at the end of the message.
    fn line(&mut self, line: &mut Vec<u8>, bytes_max: u64) -> Result<bool, SubmitError> {
        loop {
            if self.lines.is_over() {
                return Ok(false);
            }
            let chunk = filled(&mut self.input)?;
            if chunk.is_empty() {
                return Ok(self.lines.finish(line));
            }
            let (taken, is_line) = self.lines.take(chunk, line);
            self.input.consume(taken);
            if is_line {
                return Ok(true);
            }
            if line.len() as u64 > bytes_max {
                return Err(SubmitError::HeaderTooLarge { limit: bytes_max });
            }
        }
    }
}

/// Fills the input's buffer, and returns it; empty at the end.
fn filled<R: BufRead>(input: &mut R) -> Result<&[u8], SubmitError> {
    loop {
        match input.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(SubmitError::Input(error)),
        }
    }
    input.fill_buf().map_err(SubmitError::Input)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::PickupMessage;

    fn facts() -> Facts {
        Facts {
            origin: "x.example".to_owned(),
            header_bytes_max: 1 << 16,
            message_bytes_max: Some(1 << 20),
            unix_secs: 0,
            unique: "1".to_owned(),
        }
    }

    fn from_header() -> Submission {
        Submission { sender: "ann".to_owned(), from_header: true, ..Submission::default() }
    }

    /// The file of a message, read: envelope and text.
    fn stored(submission: &Submission, input: &[u8]) -> Result<(PickupHead, String), SubmitError> {
        let place = tempfile::tempdir().unwrap();
        let directory = PickupDirectory::open(place.path()).unwrap();
        let read = submission.read_header(input, &facts());
        let name = read.and_then(|(completed, reading)| reading.store(completed, &directory, &facts()));
        let left = std::fs::read_dir(place.path()).unwrap().count();
        assert_eq!(left, usize::from(name.is_ok()), "what is not taken leaves nothing behind");
        let mut message = PickupMessage::open(&directory, name?.as_ref()).unwrap();
        let mut text = Vec::new();
        while let Some(piece) = message.read().unwrap() {
            text.extend_from_slice(&piece);
        }
        assert_eq!(text.len() as u64, message.bytes());
        Ok((message.head().clone(), String::from_utf8_lossy(&text).into_owned()))
    }

    const ADDED: &str = "Date: Thu, 01 Jan 1970 00:00:00 +0000\r\nFrom: ann@x.example\r\nMessage-ID: <1@x.example>\r\n";

    #[test]
    fn a_message_of_a_program_becomes_one_of_the_internet() {
        let (head, text) = stored(&from_header(), b"To: root\nBcc: b@y.example\n\nhello\n.\nlost\n").unwrap();
        let paths: Vec<String> = head.recipients.iter().map(ToString::to_string).collect();
        assert_eq!(head.mail.to_string(), "MAIL FROM:<ann@x.example>");
        assert_eq!(paths, ["RCPT TO:<root@x.example>", "RCPT TO:<b@y.example>"]);
        assert_eq!(text, format!("To: root\r\n{ADDED}\r\nhello\r\n"));
    }

    #[test]
    fn odd_messages() {
        let to_bob = Submission { recipients: vec!["bob".into(), "<bob@x.example>".into()], ..Submission::default() };
        let check = |input: &[u8], expected: &str| {
            let (head, text) = stored(&to_bob, input).unwrap();
            assert_eq!(head.recipients.len(), 1, "the same recipient once");
            let added = ADDED.replace("ann@", "MAILER-DAEMON@");
            assert_eq!(text, expected.replace("ADDED\r\n", &added), "{}", input.escape_ascii());
        };
        check(b"", "ADDED\r\n\r\n");
        check(b"\n", "ADDED\r\n\r\n");
        check(b".\n", "ADDED\r\n\r\n");
        check(b"no header\nX: y\n", "ADDED\r\n\r\nno header\r\nX: y\r\n");
        check(b"From ann Mon Jan\nX: y\n\nbody", "X: y\r\nADDED\r\n\r\nbody\r\n");
        check(b"X: y\r\n", "X: y\r\nADDED\r\n\r\n");
        check(b" folded\nX: y\n", "ADDED\r\n\r\n folded\r\nX: y\r\n");
        check(b"X: y\n folded\nnone\n", "X: y\r\n folded\r\nADDED\r\n\r\nnone\r\n");
    }

    #[test]
    fn octets_above_127_are_announced() {
        let body = |input: &[u8]| stored(&from_header(), input).unwrap().0.mail.body;
        assert_eq!(body(b"To: a\n\nx\n"), BodyType::SevenBit);
        assert_eq!(body(b"To: a\n\n\xe9\n"), BodyType::EightBitMime);
        assert_eq!(body("To: a\nX: \u{e9}\n\n".as_bytes()), BodyType::EightBitMime);
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let why = |submission: &Submission, input: &[u8]| stored(submission, input).unwrap_err().to_string();
        assert!(why(&from_header(), b"Subject: x\n\n").starts_with("no recipient"));
        assert!(why(&from_header(), b"To: a@@x\n\n").starts_with("`a@@x` is not an address"));
        assert_eq!(why(&from_header(), b"To: John Doe\n\n"), "`John Doe` in the header is not an address");
        assert_eq!(why(&from_header(), &[b'x'; 1 << 17]), "the header is larger than 65536 bytes");
        assert_eq!(why(&from_header(), &b"To: a\n".repeat(1 << 15)), "the header is larger than 65536 bytes");
        let large = [b"To: a\n\n".as_slice(), &b"x\n".repeat(1 << 20)].concat();
        assert_eq!(why(&from_header(), &large), "the message is larger than 1048576 bytes");
    }

    proptest! {
        #[test]
        fn no_input_adds_a_recipient_or_a_bare_line_end(
            input in proptest::collection::vec(
                prop_oneof![
                    Just(b"Bcc:".to_vec()), Just(b"To: a@x".to_vec()), Just(b"Resent-To:".to_vec()), Just(b"\r".to_vec()),
                    Just(b"\n".to_vec()), Just(b"\n ".to_vec()), Just(b"<".to_vec()), Just(b"RCPT TO:<x@y>".to_vec()),
                    Just(b"\n.\n".to_vec()), any::<u8>().prop_map(|octet| vec![octet])
                ],
                0..40,
            ).prop_map(|parts| parts.concat()),
        ) {
            // Without -t the header says nothing about who gets it.
            let to_bob = Submission { recipients: vec!["bob".into()], ..Submission::default() };
            let (head, text) = stored(&to_bob, &input).unwrap();
            prop_assert_eq!(head.recipients.len(), 1);
            prop_assert!(!text.replace("\r\n", "").contains(['\r', '\n']));
            let header = text.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
            let has_bcc = header.lines().any(|line| line.starts_with("bcc:") || line.starts_with("resent-bcc:"));
            prop_assert!(!has_bcc, "{}", header);
            // With -t whatever stands there is an address in one line of the envelope, or nothing is sent.
            if let Ok((head, text)) = stored(&from_header(), &input) {
                for rcpt in &head.recipients {
                    prop_assert!(!rcpt.to_string().contains(char::is_control), "{}", rcpt);
                }
                prop_assert!(!text.replace("\r\n", "").contains(['\r', '\n', '\0']));
            }
        }
    }
}
