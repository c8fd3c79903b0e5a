//! The head of a message's file: length, checksum, envelope.

use std::fmt::Write as _;

use posthaste_smtp::command::{Command, parse};
use posthaste_smtp::{BodyType, MailFrom, RcptTo};

/// Sender and recipients of a message, and the user who submitted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PickupHead {
    /// The sender.
    pub mail: MailFrom,
    /// The recipients, at least one.
    pub recipients: Vec<RcptTo>,
    /// The submitting user, if it is not the owner of the file: set when the server rewrites a file.
    pub uid: Option<u32>,
}

/// Why a head cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// The first line has another format.
    #[error("the first line is not `{MAGIC} LENGTH CRC`")]
    Magic,
    /// The file ends, or 4 MiB are reached, before the empty line.
    #[error("the envelope is incomplete")]
    Endless,
    /// A line cannot be read.
    #[error("line {line} of the envelope: {why}")]
    Line {
        /// Counted from 1, with the first line of the file.
        line: usize,
        /// The mistake.
        why: String,
    },
    /// No sender, or no recipient.
    #[error("the envelope has no {0} line")]
    Missing(&'static str),
}

/// The promises of the first line about all that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promise {
    /// Octets after the first line.
    pub bytes: u64,
    /// Their checksum, if given.
    pub crc: Option<u32>,
}

/// The beginning of every file.
pub(crate) const MAGIC: &str = "POSTHASTE-PICKUP/1";
/// The first line with its end, as written by [`PickupEntry`](crate::PickupEntry).
pub(crate) const FIRST_LINE_BYTES: usize = MAGIC.len() + 1 + 20 + 1 + 8 + 1;
/// A head is not larger: about 60,000 recipients of ordinary length.
pub(crate) const HEAD_BYTES_MAX: usize = 4 << 20;
/// End of a MAIL line for a message with octets above 127.
const EIGHT_BIT: &str = " BODY=8BITMIME";

impl PickupHead {
    /// An envelope from the owner of the file.
    pub fn new(mail: MailFrom, recipients: Vec<RcptTo>) -> Self {
        Self { mail, recipients, uid: None }
    }

    /// The lines after the first, including the empty one. The length does not depend on `mail.body`, which may be
    /// determined later.
    pub(crate) fn lines(&self) -> String {
        let mut text = self.mail.to_string();
        if self.mail.body == BodyType::SevenBit {
            text.extend(std::iter::repeat_n(' ', EIGHT_BIT.len()));
        }
        text.push('\n');
        if let Some(uid) = self.uid {
            let _ = writeln!(text, "UID {uid}");
        }
        for rcpt in &self.recipients {
            let _ = writeln!(text, "{rcpt}");
        }
        text.push('\n');
        text
    }

    /// Parses the lines after the first one, without the empty one.
    pub(crate) fn parse(lines: &[u8]) -> Result<Self, HeadError> {
        let mut mail = None;
        let mut uid = None;
        let mut recipients = Vec::new();
        for (number, line) in lines.split(|&octet| octet == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let bad = |why: String| HeadError::Line { line: number + 2, why };
            if let Some(number) = line.strip_prefix(b"UID ") {
                let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
                uid = Some(number.ok_or_else(|| bad("not a user's number".to_owned()))?);
                continue;
            }
            match parse(line).map_err(|error| bad(error.to_string()))? {
                Command::Mail(found) if mail.is_none() => mail = Some(found),
                Command::Mail(_) => return Err(bad("a second sender".to_owned())),
                Command::Rcpt(rcpt) => recipients.push(rcpt),
                _ => return Err(bad("only MAIL, RCPT and UID stand in an envelope".to_owned())),
            }
        }
        let mail = mail.ok_or(HeadError::Missing("MAIL"))?;
        if recipients.is_empty() {
            return Err(HeadError::Missing("RCPT"));
        }
        Ok(Self { mail, recipients, uid })
    }
}

impl Promise {
    /// The first line, with its end.
    pub fn line(self) -> String {
        let crc = self.crc.map_or_else(|| "-".to_owned(), |crc| format!("{crc:08x}"));
        format!("{MAGIC} {:020} {crc}\n", self.bytes)
    }

    /// Parses a first line, without its end.
    pub fn parse(line: &[u8]) -> Result<Self, HeadError> {
        let text = std::str::from_utf8(line).map_err(|_| HeadError::Magic)?;
        let rest = text.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')).ok_or(HeadError::Magic)?;
        let (bytes, crc) = rest.split_once(' ').ok_or(HeadError::Magic)?;
        let is_number = (1..=20).contains(&bytes.len()) && bytes.bytes().all(|b| b.is_ascii_digit());
        let bytes = bytes.parse().ok().filter(|_| is_number).ok_or(HeadError::Magic)?;
        let is_hex = crc.len() == 8 && crc.bytes().all(|b| b.is_ascii_hexdigit());
        let crc = match crc {
            "-" => None,
            crc if is_hex => Some(u32::from_str_radix(crc, 16).map_err(|_| HeadError::Magic)?),
            _ => return Err(HeadError::Magic),
        };
        Ok(Self { bytes, crc })
    }
}

#[cfg(test)]
mod tests {
    use posthaste_smtp::{ForwardPath, ReversePath};

    use super::*;

    fn head() -> PickupHead {
        let rcpt = |path: &str| RcptTo::new(ForwardPath::parse(path).unwrap());
        let mail = MailFrom::new(ReversePath::parse("<a@example.org>").unwrap());
        PickupHead::new(mail, vec![rcpt("<b@example.org>"), rcpt("<\"c d\"@example.org>")])
    }

    #[test]
    fn a_head_reads_back_and_its_length_ignores_the_body() {
        let (mut head, mut lens) = (head(), Vec::new());
        for body in [BodyType::SevenBit, BodyType::EightBitMime] {
            head.mail.body = body;
            lens.push(head.lines().len());
            assert_eq!(PickupHead::parse(head.lines().as_bytes()), Ok(head.clone()));
        }
        assert_eq!(lens[0], lens[1]);
        head.uid = Some(1000);
        assert_eq!(PickupHead::parse(head.lines().as_bytes()), Ok(head));
    }

    #[test]
    fn what_is_no_envelope_is_said_with_its_line() {
        let check = |lines: &str, expected: &str| {
            let error = PickupHead::parse(lines.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{lines:?}: {error}");
        };
        check("", "the envelope has no MAIL line");
        check("MAIL FROM:<a@b>\n", "the envelope has no RCPT line");
        check("MAIL FROM:<a@b>\nMAIL FROM:<a@b>\n", "line 3 of the envelope: a second sender");
        check("MAIL FROM:<a@b>\nDATA\n", "line 3 of the envelope: only MAIL");
        check("MAIL FROM:<a@b>\nRCPT TO:<\0>\n", "line 3 of the envelope: command line has bad characters");
        check("MAIL FROM:<a@b>\r\nRCPT TO:<a@b>\n", "line 2 of the envelope: command line has bad characters");
        check("UID -1\n", "line 2 of the envelope: not a user's number");
    }

    #[test]
    fn the_first_line_is_strict() {
        let promise = Promise { bytes: 7, crc: Some(0xab) };
        assert_eq!(promise.line(), "POSTHASTE-PICKUP/1 00000000000000000007 000000ab\n");
        assert_eq!(promise.line().len(), FIRST_LINE_BYTES);
        assert_eq!(Promise::parse(promise.line().trim_end().as_bytes()), Ok(promise));
        assert_eq!(Promise::parse(b"POSTHASTE-PICKUP/1 7 -"), Ok(Promise { bytes: 7, crc: None }));
        for bad in
            ["", "POSTHASTE-PICKUP/1", "POSTHASTE-PICKUP/1 7", "POSTHASTE-PICKUP/2 7 -", "POSTHASTE-PICKUP/1 +7 -"]
        {
            assert_eq!(Promise::parse(bad.as_bytes()), Err(HeadError::Magic), "{bad}");
        }
        for bad in ["7 ab", "7 +00000ab", "x -", " 7 -", "99999999999999999999999 -", "99999999999999999999 -"] {
            assert_eq!(Promise::parse(format!("{MAGIC} {bad}").as_bytes()), Err(HeadError::Magic), "{bad}");
        }
    }
}
