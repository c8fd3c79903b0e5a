//! Completes the header of a program's message: finds recipients, removes private fields, adds missing ones.

use std::fmt::Write as _;

use posthaste_message::DateTime;
use posthaste_message::mime::{DecodedAddress, Field, Header};

/// Fields that are added to a header without them.
#[derive(Debug, Clone)]
pub(crate) struct Missing<'a> {
    /// The address for From.
    pub sender: &'a str,
    /// The name for From.
    pub full_name: Option<&'a str>,
    /// Value for Date.
    pub date: DateTime,
    /// Value for Message-ID, without brackets.
    pub message_id: &'a str,
}

/// Fields that must not leave the machine: blind copies, and fields of final delivery.
const REMOVED: [&str; 4] = ["Bcc", "Resent-Bcc", "Content-Length", "Return-Path"];

/// True if `line`, without its end, begins a field (RFC 5322 section 2.2).
pub(crate) fn begins_field(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|&b| b == b':') else { return false };
    let name = line[..colon].trim_ascii_end();
    !name.is_empty() && name.iter().all(u8::is_ascii_graphic)
}

/// The addresses in To, Cc and Bcc; where the message is sent again, those in Resent-To, Resent-Cc and Resent-Bcc alone (RFC 5322 section 3.6.6).
///
/// # Errors
/// Describes the text in place of an address.
pub(crate) fn recipients(header: &[u8]) -> Result<Vec<String>, String> {
    let header = Header::new(header);
    let names = if is_resent(&header) { ["Resent-To", "Resent-Cc", "Resent-Bcc"] } else { ["To", "Cc", "Bcc"] };
    let mut found = Vec::new();
    for field in header.fields().filter(|field| names.iter().any(|name| field.is(name))) {
        for address in field.addresses(None) {
            match address {
                DecodedAddress::Mailbox { address: Some(address), .. } => found.push(address),
                DecodedAddress::Mailbox { name, address: None } => return Err(name.unwrap_or_default()),
                DecodedAddress::Group(_) | DecodedAddress::GroupEnd => {}
            }
        }
    }
    Ok(found)
}

/// The completed header: without private fields, with the missing ones added, and without the empty line.
pub(crate) fn completed(header: &[u8], missing: &Missing<'_>) -> Vec<u8> {
    let parsed = Header::new(header);
    let mut out = Vec::with_capacity(header.len() + 200);
    let mut at = 0;
    for Field { start, end, name, .. } in parsed.fields() {
        if REMOVED.iter().any(|removed| name.eq_ignore_ascii_case(removed.as_bytes())) {
            out.extend_from_slice(&header[at..start]);
            at = end;
        }
    }
    out.extend_from_slice(&header[at..]);
    let prefix = if is_resent(&parsed) { "Resent-" } else { "" };
    let mut more = String::new();
    let lacks = |name: &str| parsed.first(&format!("{prefix}{name}")).is_none();
    if lacks("Date") {
        let _ = write!(more, "{prefix}Date: {}\r\n", missing.date);
    }
    if lacks("From") {
        let _ = write!(more, "{prefix}From: {}\r\n", from(missing));
    }
    if lacks("Message-ID") {
        let _ = write!(more, "{prefix}Message-ID: <{}>\r\n", missing.message_id);
    }
    out.extend_from_slice(more.as_bytes());
    out
}

fn is_resent(header: &Header<'_>) -> bool {
    const NAMES: [&str; 7] = ["From", "Sender", "To", "Cc", "Bcc", "Date", "Message-ID"];
    header.fields().any(|field| {
        let rest = field.name.split_at_checked(7).filter(|(begin, _)| begin.eq_ignore_ascii_case(b"Resent-"));
        rest.is_some_and(|(_, rest)| NAMES.iter().any(|name| rest.eq_ignore_ascii_case(name.as_bytes())))
    })
}

/// An address with its name, if there is one.
fn from(missing: &Missing<'_>) -> String {
    let sender = missing.sender;
    match missing.full_name.map(phrase).filter(|phrase| !phrase.is_empty()) {
        Some(phrase) => format!("{phrase} <{sender}>"),
        None => sender.to_owned(),
    }
}

/// A name as a phrase on one line: plain, quoted, or encoded (RFC 2047).
fn phrase(name: &str) -> String {
    let name: String = name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect();
    let name = name.trim();
    if !name.is_ascii() {
        return encoded(name);
    }
    if name.bytes().all(|b| b.is_ascii_alphanumeric() || b" !#$%&'*+-/=?^_`{|}~".contains(&b)) && !name.contains("=?") {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Encoded words of at most 75 octets, each of whole characters.
fn encoded(name: &str) -> String {
    const OPEN: &str = "=?utf-8?q?";
    let mut out = String::from(OPEN);
    let mut len = OPEN.len();
    for c in name.chars() {
        let mut buffer = [0; 4];
        let octets = c.encode_utf8(&mut buffer).bytes();
        let text: String = match c {
            ' ' => "_".to_owned(),
            c if c.is_ascii_alphanumeric() => c.to_string(),
            _ => octets.map(|octet| format!("={octet:02X}")).collect(),
        };
        if len + text.len() + 2 > 75 {
            out.push_str("?=\r\n ");
            out.push_str(OPEN);
            len = OPEN.len();
        }
        out.push_str(&text);
        len += text.len();
    }
    out + "?="
}

/// Longer than any name.
const NAME_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn missing<'a>() -> Missing<'a> {
        Missing { sender: "ann@x.example", full_name: None, date: DateTime::from_unix(0), message_id: "1@x.example" }
    }

    fn complete(header: &str) -> String {
        String::from_utf8(completed(header.as_bytes(), &missing())).unwrap()
    }

    #[test]
    fn all_lines_of_bcc_go_and_missing_fields_are_added() {
        assert_eq!(
            complete(
                "To: a@x\r\nBcc: b@x,\r\n c@x\r\nSubject: s\r\nbcc : d@x\r\nReturn-Path: <e@x>\r\nContent-Length: 5\r\n"
            ),
            "To: a@x\r\nSubject: s\r\nDate: Thu, 01 Jan 1970 00:00:00 +0000\r\nFrom: ann@x.example\r\nMessage-ID: <1@x.example>\r\n"
        );
        let whole = "Message-Id: <9@y>\r\nFROM: b@y\r\nDate: x\r\n";
        assert_eq!(complete(whole), whole);
        assert!(complete("Resent-To: a@x\r\nFrom: b@y\r\nDate: x\r\nMessage-ID: <9@y>\r\n").ends_with(
            "<9@y>\r\nResent-Date: Thu, 01 Jan 1970 00:00:00 +0000\r\nResent-From: ann@x.example\r\nResent-Message-ID: <1@x.example>\r\n"
        ));
    }

    #[test]
    fn recipients_stand_in_to_cc_and_bcc() {
        let check = |header: &str, expected: &[&str]| {
            assert_eq!(recipients(header.as_bytes()).unwrap(), expected, "{header}");
        };
        check(
            "To: Ann <a@x>, \"b, c\"@x,\r\n  (comment) root\r\nCC: list:d@x,e@x;\r\nbcc: f@x\r\nReply-To: no@x\r\n",
            &["a@x", "\"b, c\"@x", "root", "d@x", "e@x", "f@x"],
        );
        check("To: undisclosed-recipients:;\r\n", &[]);
        check("To: old@x\r\nResent-To: new@x\r\nResent-Bcc: b@x\r\n", &["new@x", "b@x"]);
        check("Subject: To: a@x\r\n To: b@x\r\n", &[]);
        assert_eq!(recipients(b"To: John Doe\r\n"), Err("John Doe".to_owned()));
    }

    #[test]
    fn a_name_is_a_phrase_and_nothing_else() {
        let check = |name: &str, expected: &str| {
            let from = from(&Missing { full_name: Some(name), ..missing() });
            assert_eq!(from, format!("{expected}ann@x.example{}", if expected.is_empty() { "" } else { ">" }));
        };
        check("Ann Lee", "Ann Lee <");
        check("Lee, Ann \"A\"", "\"Lee, Ann \\\"A\\\"\" <");
        check("Jürgen M", "=?utf-8?q?J=C3=BCrgen_M?= <");
        check("x\r\nBcc: all@x", "\"xBcc: all@x\" <");
        check("", "");
        check("\n", "");
        check("=?utf-8?q?x?=", "\"=?utf-8?q?x?=\" <");
        let long = encoded(&"ü".repeat(100));
        assert!(long.lines().all(|line| line.trim().len() <= 75), "{long}");
    }

    #[test]
    fn what_begins_a_field() {
        for (line, expected) in
            [("A: b", true), ("A :", true), (":", false), ("A b: c", false), ("a", false), ("\u{e9}: x", false)]
        {
            assert_eq!(begins_field(line.as_bytes()), expected, "{line}");
        }
    }
}
