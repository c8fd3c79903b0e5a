//! Reads one message for the index: header fields decoded, body parts as text, names of attachments.
//!
//! Nothing that a message holds is an error here. What cannot be decoded is passed over, and [`Extracted::problem`] says so.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mail_parser::decoders::charsets::map::charset_decoder;
use mail_parser::{Encoding, HeaderName, Message, MessageParser, MessagePart, MimeHeaders, PartType};

use crate::text::header::{addresses, date, list_id, one_line, priority, references};
use crate::text::html::html_to_text;
use crate::text::lenient;
use crate::text::nested::{EMPTY_LINE, Parsed, guarded, is_encoded_message, media_type};
use crate::text::prune::prune_into;
use crate::text::tokens::Tokens;

/// Bytes of text that are indexed of one message; the rest of a longer one is passed over and reported.
pub const TEXT_BYTES_MAX: usize = 16 << 20;
/// Bytes of a message's own header that are read, as many as a server takes by default; of a message with a longer one nothing else is.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// How deep parts and enclosed messages may be nested.
const DEPTH_MAX: u32 = 50;
/// Attachments, recipients and references that are looked at in one message.
pub(super) const ITEMS_MAX: usize = 4096;

/// What is searched and shown of one message.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Extracted {
    /// `Name <address>, ...`, decoded.
    pub from: String,
    /// As `from`.
    pub to: String,
    /// As `from`.
    pub cc: String,
    /// As `from`; copies of one's own mail have it.
    pub bcc: String,
    /// Decoded and unfolded.
    pub subject: String,
    /// Seconds since 1970; from `Date`, without one from the newest `Received`.
    pub date: Option<i64>,
    /// Without angle brackets; empty if there is none.
    pub message_id: String,
    /// Ids of `References`, then of `In-Reply-To` where they are not among those: oldest first.
    pub references: Vec<String>,
    /// The identifier of `List-Id` (RFC 2919), such as `users.example.org`; without one the list's name from other list fields.
    pub list: String,
    /// File names of attachments.
    pub files: Vec<String>,
    /// Media types of all leaf parts, in lower case, each once.
    pub mimes: Vec<String>,
    /// Whether `body` also holds what is not worth indexing: armour and encoded data.
    pub is_whole: bool,
    /// All text: plain and HTML parts, text attachments, and enclosed messages with their subjects and senders.
    pub body: String,
    /// What kind of message it is.
    pub traits: Traits,
    /// How urgent the sender says it is.
    pub priority: Priority,
    /// Why the message is not fully indexed.
    pub problem: Option<&'static str>,
}

/// Properties that never change.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Has a part that is no text and has a name, or is marked as attachment.
    pub attachment: bool,
    /// Carries a PGP or S/MIME signature (that it is valid is not checked).
    pub signed: bool,
    /// Carries a PGP or S/MIME encrypted part.
    pub encrypted: bool,
    /// Came through a mailing list.
    pub list: bool,
    /// Carries a calendar part.
    pub calendar: bool,
}

/// `Priority`, `X-Priority`, `Importance` and `Precedence`, in three steps as mu has them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Bulk and list mail, and what says it can wait.
    Low,
    /// Says nothing.
    #[default]
    Normal,
    /// Says that it is urgent.
    High,
}

/// Reads a whole message, line ends LF or CRLF.
pub fn extract(message: &[u8]) -> Extracted {
    read(message, false)
}

/// The same for a reader instead of the index: nothing is left out of the text.
pub fn extract_whole(message: &[u8]) -> Extracted {
    read(message, true)
}

fn read(message: &[u8], is_whole: bool) -> Extracted {
    // The MIME parser is fuzzed here and by others; should it panic all the same, one message loses its body, not the run.
    match catch_unwind(AssertUnwindSafe(|| try_extract(message, is_whole))) {
        Ok(extracted) => extracted,
        Err(_) => {
            Extracted { problem: Some("the MIME parser failed"), body: raw_text(message), ..Extracted::default() }
        }
    }
}

fn parser() -> MessageParser {
    MessageParser::new()
        .with_mime_headers()
        .with_date_headers()
        .with_address_headers()
        .with_message_ids()
        .header_text(HeaderName::Subject)
        .header_text(HeaderName::ListId)
        .header_text(HeaderName::ListPost)
        .header_received(HeaderName::Received)
        .default_header_raw()
}

fn try_extract(bytes: &[u8], is_whole: bool) -> Extracted {
    let mut out = Extracted { is_whole, ..Extracted::default() };
    let bytes = match header_cut_short(bytes) {
        // Who reads one message wants to see its body.
        Some(part) if !is_whole => {
            out.problem = Some("a header longer than 1 MiB");
            part
        }
        _ => bytes,
    };
    let guarded = guarded(bytes);
    let Some(message) = Parsed::new(&parser(), &guarded) else {
        out.body = raw_text(bytes);
        out.problem = Some("no header");
        return out;
    };
    out.from = addresses(message.from());
    out.to = addresses(message.to());
    out.cc = addresses(message.cc());
    out.bcc = addresses(message.bcc());
    out.subject = one_line(message.subject().unwrap_or(""));
    out.date = date(&message);
    out.message_id = message.message_id().map(one_line).unwrap_or_default();
    out.references = references(&message);
    out.list = list_id(&message);
    out.traits.list = !out.list.is_empty();
    out.priority = priority(&message, out.traits.list);
    parts_of(&message, &mut out, 0);
    out
}

/// The beginning of a header that is too long: the parser would take many times its size in memory.
fn header_cut_short(message: &[u8]) -> Option<&[u8]> {
    let beginning = message.get(..HEADER_BYTES_MAX)?;
    if EMPTY_LINE.is_match(beginning) || message.starts_with(b"\n") || message.starts_with(b"\r\n") {
        return None;
    }
    // Without the field that the cut goes through.
    Some(&beginning[..beginning.iter().rposition(|&octet| octet == b'\n').map_or(HEADER_BYTES_MAX, |at| at + 1)])
}

/// A message without structure: its text as it stands.
fn raw_text(bytes: &[u8]) -> String {
    let mut body = String::new();
    prune_into(&String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]), &mut body);
    body
}

fn parts_of(message: &Message<'_>, out: &mut Extracted, depth: u32) {
    if depth > DEPTH_MAX {
        out.problem = Some("nested too deeply");
        return;
    }
    part(message, 0, out, depth);
}

fn part(message: &Message<'_>, id: u32, out: &mut Extracted, depth: u32) {
    let Some(this) = message.part(id) else { return };
    if depth > DEPTH_MAX {
        out.problem = Some("nested too deeply");
        return;
    }
    let media_type = media_type(this);
    match &this.body {
        PartType::Multipart(children) => {
            note_type(out, &media_type);
            // A part cannot enclose itself or an earlier one; a parser's bug must not become a loop.
            let children = children.iter().filter(|&&child| child > id);
            if media_type == "multipart/alternative" {
                alternatives(message, children.copied().collect(), out, depth);
            } else {
                children.for_each(|&child| part(message, child, out, depth + 1));
            }
        }
        _ => leaf(message, this, &media_type, out, depth),
    }
}

/// The plain text says it all, usually. The HTML beside it is indexed too if it says something else.
fn alternatives(message: &Message<'_>, children: Vec<u32>, out: &mut Extracted, depth: u32) {
    let is_html = |id: &u32| message.part(*id).is_some_and(|part| matches!(part.body, PartType::Html(_)));
    let (html, others): (Vec<u32>, Vec<u32>) = children.into_iter().partition(is_html);
    let before = out.body.len();
    others.into_iter().for_each(|id| part(message, id, out, depth + 1));
    for id in html {
        let Some(this) = message.part(id) else { continue };
        let PartType::Html(text) = &this.body else { continue };
        note_type(out, &media_type(this));
        let text = html_to_text(text);
        if before == out.body.len() || says_more(&text, &out.body[before..]) {
            append(&text, out);
        }
    }
}

/// One word in this many may be new before an HTML alternative counts as saying something else.
const NEW_WORDS_SHARE: usize = 20;

fn says_more(html: &str, plain: &str) -> bool {
    let mut token = String::new();
    let mut known = HashSet::new();
    let mut words = Tokens::new(plain);
    while words.next_into(&mut token).is_some() {
        known.insert(xxhash_rust::xxh3::xxh3_64(token.as_bytes()));
    }
    let (mut all, mut new) = (0, 0);
    let mut words = Tokens::new(html);
    while words.next_into(&mut token).is_some() {
        all += 1;
        new += usize::from(!known.contains(&xxhash_rust::xxh3::xxh3_64(token.as_bytes())));
    }
    new * NEW_WORDS_SHARE > all
}

fn note_type(out: &mut Extracted, media_type: &str) {
    match media_type {
        "application/pgp-signature"
        | "application/pkcs7-signature"
        | "application/x-pkcs7-signature"
        | "multipart/signed" => {
            out.traits.signed = true;
        }
        "multipart/encrypted" | "application/pgp-encrypted" | "application/pkcs7-mime" | "application/x-pkcs7-mime" => {
            out.traits.encrypted = true;
        }
        "text/calendar" => out.traits.calendar = true,
        _ => {}
    }
    if !media_type.starts_with("multipart/")
        && out.mimes.len() < ITEMS_MAX
        && !out.mimes.iter().any(|known| known == media_type)
    {
        out.mimes.push(media_type.to_owned());
    }
}

fn leaf(message: &Message<'_>, part: &MessagePart<'_>, media_type: &str, out: &mut Extracted, depth: u32) {
    note_type(out, media_type);
    let name = part.attachment_name().map(one_line).filter(|name| !name.is_empty());
    let marked = part.content_disposition().is_some_and(|disposition| disposition.is_attachment());
    let is_text = matches!(part.body, PartType::Text(_) | PartType::Html(_));
    let is_signature = matches!(media_type, "application/pgp-signature" | "application/pkcs7-signature");
    if !is_signature && (marked || name.is_some() && !is_text) {
        out.traits.attachment = true;
    }
    if let Some(name) = name.filter(|_| out.files.len() < ITEMS_MAX) {
        out.files.push(name);
    }
    match &part.body {
        PartType::Text(_) if part.is_encoding_problem && part.encoding == Encoding::Base64 => {
            append(&dirty_base64(message, part), out);
        }
        PartType::Text(text) => append(text, out),
        PartType::Html(html) => append(&html_to_text(html), out),
        PartType::Message(message) => enclosed(message, out, depth),
        PartType::Binary(bytes) if is_encoded_message(media_type) => {
            if let Some(message) = Parsed::new(&parser(), &guarded(bytes)) {
                enclosed(&message, out, depth);
            }
        }
        PartType::Binary(_) | PartType::InlineBinary(_) | PartType::Multipart(_) => {}
    }
}

fn enclosed(message: &Message<'_>, out: &mut Extracted, depth: u32) {
    for field in [addresses(message.from()), one_line(message.subject().unwrap_or(""))] {
        append(&field, out);
    }
    parts_of(message, out, depth + 1);
}

/// The text of a part whose base64 has something else in it.
fn dirty_base64(message: &Message<'_>, part: &MessagePart<'_>) -> String {
    let raw = message.raw_message.get(part.offset_body as usize..part.offset_end as usize).unwrap_or_default();
    let bytes = lenient::base64(raw);
    let charset = part.content_type().and_then(|kind| kind.attribute("charset"));
    match charset.and_then(|charset| charset_decoder(charset.as_bytes())) {
        Some(decode) => decode(&bytes),
        None => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

fn append(text: &str, out: &mut Extracted) {
    let room = TEXT_BYTES_MAX.saturating_sub(out.body.len());
    let mut end = text.len().min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if end < text.len() {
        out.problem = Some("longer than 16 MiB of text");
    }
    if !out.body.is_empty() && !out.body.ends_with('\n') {
        out.body.push('\n');
    }
    if out.is_whole {
        out.body.push_str(&text[..end]);
    } else {
        prune_into(&text[..end], &mut out.body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_header_without_end_the_beginning_is_read() {
        let to = |count: usize| "To: somebody <somebody@example.org>\r\n".repeat(count);
        let mail = |count| format!("Subject: endless\r\n{}\r\nbody\r\n", to(count));
        let found = extract(mail(10).as_bytes());
        assert_eq!((found.body.trim(), found.problem), ("body", None));
        let found = extract(mail(1_000_000).as_bytes());
        assert_eq!((&*found.subject, found.problem), ("endless", Some("a header longer than 1 MiB")));
        assert!(found.to.starts_with("somebody <somebody@example.org>") && found.body.is_empty());
        assert_eq!(extract_whole(mail(1_000_000).as_bytes()).body.trim(), "body");
        // One line, and none that ends.
        assert_eq!(extract(&b"x".repeat(2 << 20)).problem, Some("a header longer than 1 MiB"));
    }

    #[test]
    fn header_fields_are_decoded_and_unfolded() {
        let found = extract(
            b"From: =?utf-8?Q?J=C3=BCrgen?= <j@example.org>\r\nTo: \"Doe, A\" <a@example.org>, b@example.org\r\n\
              Subject: =?iso-8859-1?Q?Gr=FC=DFe?=\r\n aus Wien\r\nDate: Tue, 04 Mar 2025 10:40:00 +0100\r\n\
              Message-ID: <1@example.org>\r\nReferences: <a@x>\r\n <b@x>\r\nIn-Reply-To: <c@x>\r\n\
              List-Id: Users <users.example.org>\r\nX-Priority: 1 (Highest)\r\n\r\nHallo\r\n",
        );
        assert_eq!(found.from, "Jürgen <j@example.org>");
        assert_eq!(found.to, "\"Doe, A\" <a@example.org>, b@example.org");
        assert_eq!(found.subject, "Grüße aus Wien");
        assert_eq!(found.date, Some(1_741_081_200));
        assert_eq!(found.message_id, "1@example.org");
        assert_eq!(found.references, ["a@x", "b@x", "c@x"]);
        assert_eq!(found.list, "users.example.org");
        assert_eq!(found.priority, Priority::High);
        assert_eq!(found.body.trim(), "Hallo");
        assert_eq!(found.mimes, ["text/plain"]);
        assert!(found.traits.list && !found.traits.attachment && found.problem.is_none());
    }

    #[test]
    fn html_counts_where_it_says_something_else() {
        let message = |plain: &str, html: &str| {
            let text = format!(
                "Content-Type: multipart/alternative; boundary=b\n\n--b\n\n{plain}\n--b\nContent-Type: text/html\n\n{html}\n--b--\n"
            );
            extract(text.as_bytes()).body
        };
        assert_eq!(message("same words", "<p>same <b>words</b></p>").trim(), "same words");
        let both = message("your program shows no HTML", "<p>the offer</p>");
        assert!(both.contains("program") && both.contains("offer"), "{both}");
        assert_eq!(message("", "<p>alone</p>").trim(), "alone");
    }

    #[test]
    fn attachments_are_found_by_name_and_text_attachments_by_content() {
        let found = extract(
            b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\nhi\n--b\nContent-Type: image/png; name=cat.png\n\
              Content-Transfer-Encoding: base64\n\niVBORw==\n--b\nContent-Type: text/x-patch; charset=utf-8\n\
              Content-Disposition: attachment; filename=\"fix.patch\"\n\ndiff needle\n--b\nContent-Type: message/rfc822\n\n\
              Subject: enclosed\nFrom: x@example.org\n\ninner text\n--b--\n",
        );
        assert_eq!(found.files, ["cat.png", "fix.patch"]);
        assert!(found.traits.attachment);
        for word in ["hi", "needle", "enclosed", "x@example.org", "inner text"] {
            assert!(found.body.contains(word), "{word} in {}", found.body);
        }
        assert!(found.mimes.contains(&"image/png".to_owned()) && found.mimes.contains(&"message/rfc822".to_owned()));
    }

    #[test]
    fn no_control_character_is_left_on_a_line() {
        for (shown, expected) in [("a\u{95}b", "a b"), ("a\r\n b", "a b"), ("plain", "plain"), ("\u{7f}", "")] {
            assert_eq!(one_line(shown), expected);
        }
    }

    #[test]
    fn a_message_that_the_mime_parser_panics_on_is_read_as_plain_text() {
        let found = extract(include_bytes!("../../../../fuzz/corpus/search_extract/mime_parser_panics"));
        // A sum overflows, which only a build that looks sees.
        assert_eq!(found.problem == Some("the MIME parser failed"), cfg!(debug_assertions));
        assert!(!found.body.is_empty());
    }

    #[test]
    fn nothing_is_too_broken() {
        for bytes in [&b""[..], b"\n", b"\0", b"no header at all", b"Content-Type: multipart/mixed\n\nx", &[0xff; 300]]
        {
            let _ = extract(bytes);
        }
        assert!(extract(b"").problem.is_some());
    }
}
