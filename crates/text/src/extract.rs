//! Reads one message for the index: header fields decoded, body parts as text, names of attachments.
//!
//! A malformed message is never an error here. Undecodable parts are skipped, and [`Extracted::problem`] says so.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use posthaste_message::mime::{Kind, Message, Part, ScanLimits, ScanProblem, unflow};

use crate::alternatives::says_more;
use crate::extracted::{Extracted, ITEMS_MAX};
use crate::header::{Head, one_line, take_headers};
use crate::header_names::HeaderNames;
use crate::html::html_to_text;
use crate::prune::prune_into;

/// Maximum bytes of text indexed of one message; the rest of a longer one is skipped and reported.
pub const TEXT_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of a message's own header, a common default of servers. If it is longer, nothing else of the message
/// is read.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// Maximum depth and number of parts and enclosed messages.
pub(super) const LIMITS: ScanLimits = ScanLimits { depth: 100, parts: 10_000 };
/// Maximum depth of encoded enclosed messages, since their content is copied.
pub(super) const ENCODED_DEPTH_MAX: u32 = 2;
/// Reads a whole message, line ends LF or CRLF.
pub fn extract(message: &[u8]) -> Extracted {
    read(message, false, &HeaderNames::default())
}

/// Like [`extract`], with all values of these header fields.
pub fn extract_with(message: &[u8], headers: &HeaderNames) -> Extracted {
    read(message, false, headers)
}

/// Like [`extract`], for a reader instead of the index: the text is complete.
pub fn extract_whole(message: &[u8]) -> Extracted {
    read(message, true, &HeaderNames::default())
}

fn read(message: &[u8], is_whole: bool, headers: &HeaderNames) -> Extracted {
    // A bug in the parser must cost one message its body, not stop the run.
    match catch_unwind(AssertUnwindSafe(|| try_extract(message, is_whole, headers))) {
        Ok(extracted) => extracted,
        Err(_) => {
            Extracted { problem: Some("the MIME reader failed"), body: raw_text(message), ..Extracted::default() }
        }
    }
}

fn try_extract(bytes: &[u8], is_whole: bool, headers: &HeaderNames) -> Extracted {
    let mut out = Extracted { is_whole, ..Extracted::default() };
    let bytes = match header_cut_short(bytes) {
        // A reader of one message wants to see its whole body.
        Some(part) if !is_whole => {
            out.problem = Some("a header longer than 1 MiB");
            part
        }
        _ => bytes,
    };
    let bytes = &*with_line_feeds(bytes);
    let message = Message::parse_within(bytes, &LIMITS);
    match message.problem() {
        Some(ScanProblem::NoHeader) => {
            out.body = raw_text(bytes);
            out.problem = out.problem.or(Some("no header"));
            return out;
        }
        Some(ScanProblem::TooDeep) => out.problem = Some("nested too deeply"),
        Some(ScanProblem::TooManyParts) => out.problem = Some("more than 10,000 parts"),
        None => {}
    }
    let head = Head::read(&message);
    (out.from, out.to, out.cc, out.bcc) = (head.from.text, head.to.text, head.cc.text, head.bcc.text);
    if [head.from.count, head.to.count, head.cc.count, head.bcc.count].into_iter().any(|count| count > ITEMS_MAX) {
        out.problem = out.problem.or(Some("more than 4096 addresses in a field"));
    }
    (out.subject, out.date, out.message_id, out.references) =
        (head.subject, head.date, head.message_id, head.references);
    out.list = head.list;
    out.traits.list = !out.list.is_empty();
    out.priority = head.priority;
    if !headers.is_empty() && !take_headers(&message, headers, &mut out) {
        out.problem = out.problem.or(Some("an indexed header of more than 64 KiB"));
    }
    part(message.root(), &mut out, 0);
    out
}

/// The start of a header that is too long to be real.
pub(super) fn header_cut_short(message: &[u8]) -> Option<&[u8]> {
    let beginning = message.get(..HEADER_BYTES_MAX)?;
    let mut lines = beginning.split_inclusive(|&octet| octet == b'\n');
    if lines.any(|line| matches!(line, b"\n" | b"\r\n")) {
        return None;
    }
    // Without the field that the cut goes through.
    Some(&beginning[..beginning.iter().rposition(|&octet| octet == b'\n').map_or(HEADER_BYTES_MAX, |at| at + 1)])
}

/// Converts a message in which all lines end in CR, as old Macs stored mail, to LF. Every octet keeps its place.
pub(super) fn with_line_feeds(message: &[u8]) -> Cow<'_, [u8]> {
    if message.contains(&b'\n') || !message.contains(&b'\r') {
        return Cow::Borrowed(message);
    }
    Cow::Owned(message.iter().map(|&octet| if octet == b'\r' { b'\n' } else { octet }).collect())
}

/// The text of a message without structure.
fn raw_text(bytes: &[u8]) -> String {
    let mut body = String::new();
    prune_into(&String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]), &mut body);
    body
}

/// `encoded`: number of encoded messages around this part. [`LIMITS`] bounds every other depth.
fn part(this: Part<'_, '_>, out: &mut Extracted, encoded: u32) {
    let media_type = this.media_type();
    note_type(out, &media_type);
    match this.kind() {
        Kind::Multipart if media_type == "multipart/alternative" => alternatives(this, out, encoded),
        Kind::Multipart => this.children().for_each(|child| part(child, out, encoded)),
        Kind::Message => {
            note_file(this, &media_type, out);
            this.children().for_each(|message| enclosed(message, out, encoded));
        }
        Kind::Leaf => leaf(this, &media_type, out, encoded),
    }
}

/// Usually the plain text is complete. The HTML beside it is indexed too if it says something else.
fn alternatives(this: Part<'_, '_>, out: &mut Extracted, encoded: u32) {
    let is_html = |part: &Part<'_, '_>| part.kind() == Kind::Leaf && part.media_type() == "text/html";
    let before = out.body.len();
    this.children().filter(|child| !is_html(child)).for_each(|child| part(child, out, encoded));
    for html in this.children().filter(is_html) {
        note_type(out, "text/html");
        let text = html_to_text(&html.text());
        if before == out.body.len() || says_more(&text, &out.body[before..]) {
            append(&text, out);
        }
    }
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

fn leaf(this: Part<'_, '_>, media_type: &str, out: &mut Extracted, encoded: u32) {
    note_file(this, media_type, out);
    if is_text(this, media_type) {
        let (text, footer) = this.text_and_footer();
        match media_type {
            "text/html" => append(&html_to_text(&text), out),
            _ => append(&unflowed(this, media_type, text), out),
        }
        footer.iter().for_each(|footer| append(footer, out));
    } else if is_message(media_type) {
        if encoded >= ENCODED_DEPTH_MAX {
            out.problem = Some("nested too deeply");
            return;
        }
        let octets = this.decoded();
        let message = Message::parse_within(&octets, &LIMITS);
        if message.problem() == Some(ScanProblem::TooDeep) {
            out.problem = Some("nested too deeply");
        }
        enclosed(message.root(), out, encoded + 1);
    }
}

/// True if a leaf is read as text: a text type, or a multipart without a single boundary.
pub(super) fn is_text(part: Part<'_, '_>, media_type: &str) -> bool {
    part.kind() == Kind::Leaf && ["text/", "multipart/"].iter().any(|kind| media_type.starts_with(kind))
}

/// True for types of an enclosed message, which has to be decoded first.
pub(super) fn is_message(media_type: &str) -> bool {
    matches!(media_type, "message/rfc822" | "message/global")
}

/// Joins the paragraphs of format=flowed text (RFC 3676).
fn unflowed<'a>(part: Part<'_, 'a>, media_type: &str, text: Cow<'a, str>) -> Cow<'a, str> {
    let is_flowed = media_type == "text/plain"
        && part.type_parameter("format").is_some_and(|format| format.eq_ignore_ascii_case("flowed"));
    if !is_flowed {
        return text;
    }
    Cow::Owned(unflow(&text, part.type_parameter("delsp").is_some_and(|delsp| delsp.eq_ignore_ascii_case("yes"))))
}

fn note_file(this: Part<'_, '_>, media_type: &str, out: &mut Extracted) {
    let name = this.file_name().map(|name| one_line(&name)).filter(|name| !name.is_empty());
    let is_signature = matches!(media_type, "application/pgp-signature" | "application/pkcs7-signature");
    if !is_signature && (is_marked(this) || name.is_some() && !is_text(this, media_type)) {
        out.traits.attachment = true;
    }
    if let Some(name) = name.filter(|_| out.files.len() < ITEMS_MAX) {
        out.files.push(name);
    }
}

/// True if the sender marked it as attachment.
pub(super) fn is_marked(part: Part<'_, '_>) -> bool {
    part.disposition().is_some_and(|disposition| disposition == "attachment")
}

/// Reads an enclosed message: its sender and subject are part of the text.
fn enclosed(root: Part<'_, '_>, out: &mut Extracted, encoded: u32) {
    let charset = root.charset();
    let header = root.header();
    let mut from = crate::header::AddressText::default();
    if let Some(field) = header.first("From") {
        from.add(field.addresses(charset));
    }
    let subject = header.first("Subject").map(|field| one_line(&field.text(charset))).unwrap_or_default();
    append(&from.text, out);
    append(&subject, out);
    part(root, out, encoded);
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
    use crate::Priority;

    #[test]
    fn of_a_header_without_end_the_beginning_is_read() {
        let to = |count: usize| "To: somebody <somebody@example.org>\r\n".repeat(count);
        let mail = |count| format!("Subject: endless\r\n{}\r\nbody\r\n", to(count));
        let found = extract(mail(10).as_bytes());
        assert_eq!((found.body.trim(), found.problem), ("body", None));
        let found = extract(mail(50_000).as_bytes());
        assert_eq!((&*found.subject, found.problem), ("endless", Some("a header longer than 1 MiB")));
        assert!(found.to.starts_with("somebody <somebody@example.org>") && found.body.is_empty());
        assert_eq!(extract_whole(mail(50_000).as_bytes()).body.trim(), "body");
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
    fn attachments_are_found_by_name_and_texts_by_content() {
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
    fn damaged_transfer_encodings_are_read() {
        let found = extract(
            b"Subject: x\nContent-Transfer-Encoding: base64\n\naGVsbG8g\nd29y!bGQ=\n_____________\nlist footer\n",
        );
        assert_eq!(found.body.trim(), "hello world\n_____________\nlist footer");
        let cut = b"Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/html\nContent-Transfer-Encoding: quoted-printable\n\n\
                    <p>gr=C3=BCn</p>\n--b\nContent-Type: image/png; name=a.png\nContent-Transfer-Encoding: base64\n\niVBORw";
        let found = extract(cut);
        assert_eq!((found.body.trim(), &found.files[..]), ("gr\u{fc}n", &["a.png".to_owned()][..]));
    }

    #[test]
    fn flowed_text_is_joined_before_it_is_indexed() {
        let found = extract(
            "Content-Type: text/plain; format=flowed; delsp=yes\n\n日本語の長い文章を \n折り返す。\n".as_bytes(),
        );
        assert_eq!(found.body.trim(), "日本語の長い文章を折り返す。");
    }

    #[test]
    fn all_repeated_recipients_count() {
        let found = extract(b"To: a@x.example\nCc: b@x.example\nTo: C <c@x.example>\nCc: d@x.example, e@x.example\nFrom: f@x.example\nFrom: g@x.example\n\n");
        assert_eq!((&*found.to, &*found.cc), ("a@x.example, C <c@x.example>", "b@x.example, d@x.example, e@x.example"));
        assert_eq!(found.from, "f@x.example");
        let found = extract(("Cc: a@x.example\n".repeat(100_000) + "\n").as_bytes());
        assert_eq!(found.problem, Some("a header longer than 1 MiB"));
        let found = extract(("Cc: a@x.example\n".repeat(5_000) + "\n").as_bytes());
        assert_eq!(found.problem, Some("more than 4096 addresses in a field"));
    }

    #[test]
    fn names_alone_and_groups_can_be_found() {
        let found = extract(b"From: John Doe\nTo: undisclosed-recipients:;\nCc: The Team: ann@x.example, B <b@x.example>;, c@x.example\n\n");
        assert_eq!((&*found.from, &*found.to), ("John Doe", "undisclosed-recipients:;"));
        assert_eq!(found.cc, "The Team: ann@x.example, B <b@x.example>;, c@x.example");
    }

    #[test]
    fn a_bad_date_swallows_nothing() {
        for zone in ["UT", "Z", "PM", "A", "x"] {
            let mail =
                format!("Date: Tue, 4 Mar 2025 10:40:00 {zone}\nFrom: ann@x.example\n\nfirst paragraph\n\nsecond\n");
            let found = extract(mail.as_bytes());
            assert_eq!((&*found.from, found.date.is_some()), ("ann@x.example", true), "{zone}");
            assert_eq!(found.body, "first paragraph\n\nsecond\n");
            let found = extract(
                format!("Received: from a by b; Tue, 4 Mar 2025 10:40:00 +0000\nDate: nonsense {zone}\n\nbody\n")
                    .as_bytes(),
            );
            assert_eq!((found.date, found.body.trim()), (Some(1_741_084_800), "body"));
        }
    }

    #[test]
    fn bare_octets_in_a_header_are_of_the_charset_of_the_body() {
        let found = extract(b"From: \xd0\xc5\xd4\xd2 <p@x.example>\nSubject: J\xfcrgen\nContent-Type: text/plain; charset=koi8r\n\n\xd0\xc5\xd4\xd2\n");
        assert_eq!((&*found.from, found.body.trim()), ("петр <p@x.example>", "петр"));
        assert_eq!(extract(b"Subject: J\xfcrgen\n\nx\n").subject, "Jürgen");
        assert_eq!(
            extract("Subject: Jürgen\nContent-Type: text/plain; charset=koi8-r\n\nx\n".as_bytes()).subject,
            "Jürgen"
        );
    }

    #[test]
    fn lines_may_all_end_in_cr() {
        let mail = b"Subject: mac\rContent-Type: text/plain; name=a.txt\r\rone\rtwo\r";
        let found = extract(mail);
        assert_eq!((&*found.subject, &*found.body), ("mac", "one\ntwo\n"));
        assert_eq!(&*crate::parts(mail)[0].content, b"one\ntwo\n");
    }

    #[test]
    fn nested_multiparts_that_made_a_parser_panic_are_read() {
        let found = extract(include_bytes!("../../../fuzz/corpus/search_extract/mime_parser_panics"));
        assert_eq!(found.problem, None);
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
