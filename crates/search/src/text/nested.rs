//! Parsed messages that enclose others to any depth.

use std::borrow::Cow;
use std::cell::LazyCell;
use std::ops::{Deref, Range};
use std::sync::LazyLock;

use mail_parser::{ContentType, HeaderName, Message, MessageParser, MessagePart, MimeHeaders, PartType};
use regex::bytes::Regex;

/// A parsed message that is taken apart level by level when it is dropped.
///
/// The parser follows enclosed messages that are not encoded to any depth, and each is a value inside the one around it. Dropped as they are, a hundred
/// thousand levels (3 MB of mail) would overflow the stack, which nothing can catch.
pub(super) struct Parsed<'a>(Message<'a>);

impl<'a> Parsed<'a> {
    /// `bytes` as [`guarded`] gives them. `None` if there is nothing in it that could be a message.
    pub fn new(parser: &MessageParser, bytes: &'a [u8]) -> Option<Self> {
        parser.parse(bytes).map(Self)
    }
}

impl<'a> Deref for Parsed<'a> {
    type Target = Message<'a>;

    fn deref(&self) -> &Message<'a> {
        &self.0
    }
}

impl Drop for Parsed<'_> {
    fn drop(&mut self) {
        let mut levels = vec![std::mem::take(&mut self.0.parts)];
        while let Some(parts) = levels.pop() {
            for part in parts {
                if let PartType::Message(mut enclosed) = part.body {
                    levels.push(std::mem::take(&mut enclosed.parts));
                }
            }
        }
    }
}

/// The message for the parser: each octet in its place, but for the type of enclosed messages that are encoded.
///
/// The parser decodes those (though RFC 2046 section 5.2.1 forbids them) and copies what they enclose, level by level and on the stack: a few
/// kilobytes could end the process. With another type they are decoded and nothing more, and are parsed by whoever finds them
/// ([`is_encoded_message`]).
pub(super) fn guarded(message: &[u8]) -> Cow<'_, [u8]> {
    let mut guarded = Cow::Borrowed(message);
    if !ENCLOSES.is_match(message) || !has_parts(message) {
        return guarded;
    }
    let is_digest = LazyCell::new(|| is_digest(message));
    for block in blocks(message) {
        let text = &message[block.clone()];
        if !ENCODING.is_match(text) || !ENCODED.is_match(text) {
            continue;
        }
        let fields: Vec<usize> = TYPE.find_iter(text).map(|name| name.start()).take(FIELDS_MAX + 1).collect();
        let types: Vec<Option<String>> = fields.iter().map(|&start| type_of(&text[start..])).collect();
        for (start, _) in fields.iter().zip(&types).filter(|(_, kind)| kind.as_deref().is_some_and(is_encoded_message))
        {
            for word in WORD.find_iter(&text[*start..]) {
                guarded.to_mut()[block.start + start + word.end() - 1] = b'x';
            }
        }
        // A part of a digest is a message unless it says what else: such a one is taken as it stands.
        let part = text.windows(2).rposition(|pair| pair == b"--").unwrap_or(0);
        let may_be_untyped = types.contains(&None) || fields.last().is_none_or(|&last| last < part);
        if fields.len() > FIELDS_MAX || may_be_untyped && *is_digest {
            for name in ENCODING.find_iter(text) {
                guarded.to_mut()[block.start + name.start()] = b'X';
            }
        }
    }
    guarded
}

/// More fields with a type are in no header.
const FIELDS_MAX: usize = 16;

/// Whether the parser goes beyond the message's own header. Most mail is one text, in which those words may well stand.
fn has_parts(message: &[u8]) -> bool {
    let header = TYPES.parse_headers(message);
    let Some(root) = header.as_ref().and_then(|header| header.parts.first()) else { return true };
    let mut kinds = root.headers.iter().filter_map(|field| field.value.as_content_type());
    kinds.any(|kind| ["multipart", "message"].iter().any(|main| kind.ctype().eq_ignore_ascii_case(main)))
}

/// Whether there may be parts that are messages without saying so (RFC 2046 section 5.1.5).
fn is_digest(message: &[u8]) -> bool {
    let mut blocks = blocks(message).map(|block| &message[block]).filter(|text| DIGEST.is_match(text));
    blocks.any(|text| {
        let mut fields = TYPE.find_iter(text).enumerate();
        fields
            .any(|(at, name)| at == FIELDS_MAX || type_of(&text[name.start()..]).as_deref() == Some("multipart/digest"))
    })
}

/// What the parser takes from a field that begins here; `None` if it understands nothing.
fn type_of(field: &[u8]) -> Option<String> {
    let header = TYPES.parse_headers(field)?;
    let kind = header.parts.first()?.headers.first()?.value.as_content_type()?;
    Some(name_of(kind))
}

/// What lies between empty lines: a header is in one of them as a whole.
fn blocks(message: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let ends = EMPTY_LINE.find_iter(message).map(|line| line.end()).chain([message.len()]);
    ends.scan(0, |start, end| Some(std::mem::replace(start, end)..end))
}

fn expression(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid expression")
}

/// No message is enclosed without one of these words.
static ENCLOSES: LazyLock<Regex> = LazyLock::new(|| expression("(?i-u)rfc822|global|digest"));
static WORD: LazyLock<Regex> = LazyLock::new(|| expression("(?i-u)rfc822|global"));
static DIGEST: LazyLock<Regex> = LazyLock::new(|| expression("(?i-u)digest"));
static ENCODING: LazyLock<Regex> = LazyLock::new(|| expression("(?i-u)content-transfer-encoding"));
/// The parser also takes RFC 2047's words.
static ENCODED: LazyLock<Regex> = LazyLock::new(|| expression(r"(?i-u)base64|quoted-printable|=\?"));
static TYPE: LazyLock<Regex> = LazyLock::new(|| expression("(?i-u)content-type"));
pub(super) static EMPTY_LINE: LazyLock<Regex> = LazyLock::new(|| expression(r"(?-u)\n\r?\n"));
static TYPES: LazyLock<MessageParser> =
    LazyLock::new(|| MessageParser::new().header_content_type(HeaderName::ContentType).default_header_ignore());

/// Whether a decoded part of this type is a message: see [`guarded`].
pub(super) fn is_encoded_message(media_type: &str) -> bool {
    matches!(media_type, "message/rfc822" | "message/global")
}

/// What a part says it is, in lower case; without that, what the parser took it for.
pub(super) fn media_type(part: &MessagePart<'_>) -> String {
    let media_type = declared_type(part);
    match media_type.as_str() {
        "message/rfc82x" => "message/rfc822".to_owned(),
        "message/globax" => "message/global".to_owned(),
        _ => media_type,
    }
}

fn declared_type(part: &MessagePart<'_>) -> String {
    part.content_type().map(name_of).unwrap_or_else(|| {
        let default = if matches!(part.body, PartType::Message(_)) { "message/rfc822" } else { "text/plain" };
        default.to_owned()
    })
}

fn name_of(kind: &ContentType<'_>) -> String {
    match kind.subtype() {
        Some(subtype) => format!("{}/{subtype}", kind.ctype()).to_ascii_lowercase(),
        None => kind.ctype().to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::guarded;
    use crate::text::{extract, parts};

    /// On a stack of the size that threads get.
    fn on_a_thread(work: impl FnOnce() + Send + 'static) {
        std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap();
    }

    #[test]
    fn messages_enclosed_to_any_depth_cost_no_stack() {
        let mail = "Content-Type: message/rfc822\n\n".repeat(200_000) + "Subject: core\n\nx\n";
        on_a_thread(move || {
            assert_eq!(extract(mail.as_bytes()).problem, Some("nested too deeply"));
            assert!(parts(mail.as_bytes()).len() > 50);
        });
    }

    #[test]
    fn only_what_may_have_parts_is_guarded() {
        let check = |head: &str| {
            let text = "Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n";
            let mail = format!("Subject: x\n{head}\n--b\n{text}\neA==\n--b--\n");
            matches!(guarded(mail.as_bytes()), Cow::Owned(_))
        };
        for head in ["", "Content-Type: text/plain\n", "Content-Type: text/plain; name=multipart\n", "Content-Type:\n"]
        {
            assert!(!check(head), "{head}");
        }
        for head in [
            "Content-Type: multipart/mixed; boundary=b\n",
            "content-type: MULTIPART / digest; boundary=b\n",
            "Content-Type: text/plain\nContent-Type: multipart/mixed; boundary=b\n",
            "Content-Type: message/rfc822\n",
        ] {
            assert!(check(head), "{head}");
        }
    }

    /// Quoted-printable that encodes nothing but what it must.
    fn quoted(mail: &str) -> String {
        format!("Content-Transfer-Encoding: quoted-printable\n\n{}", mail.replace('=', "=3D"))
    }

    #[test]
    fn messages_enclosed_in_an_encoded_one_cost_no_stack_and_little_memory() {
        let inner = "Content-Type: message/rfc822\n\n".repeat(20_000) + "Subject: core\n\nx\n";
        let digest = |head: &str| {
            format!("Content-Type: multipart/digest; boundary=b\n\n--b\n{head}{}\n--b--\n", quoted(&inner))
        };
        let part = |head: &str| format!("{head}{}", quoted(&inner));
        for mail in [
            part("Content-Type: message/rfc822\n"),
            part("content-type: Message / RFC822 (x)\n"),
            part("Content-Type: message/global\n"),
            digest(""),
            digest("Content-Type:\n"),
            digest("Content-Type: text/plain\n--b\n"),
            part("Content-Type: (content-type) message/rfc822\n"),
            digest("Content-Type: message/rfc822\n"),
        ] {
            on_a_thread(move || {
                extract(mail.as_bytes());
                parts(mail.as_bytes());
            });
        }
    }

    #[test]
    fn a_message_enclosed_and_encoded_is_read() {
        let core = format!("Subject: core\nContent-Type: text/plain; name=rfc822.txt\n{}", quoted("g=x of rfc822"));
        let mail = format!("Subject: outer\nContent-Type: message/rfc822\n{}", quoted(&core));
        let found = extract(mail.as_bytes());
        assert!(found.body.contains("core") && found.body.contains("g=x of rfc822"), "{}", found.body);
        assert!(found.mimes.contains(&"message/rfc822".to_owned()), "{:?}", found.mimes);
        let all = parts(mail.as_bytes());
        let shape: Vec<_> = all.iter().map(|part| (part.media_type.as_str(), part.name.as_deref())).collect();
        assert_eq!(shape, [("message/rfc822", None), ("text/plain", Some("rfc822.txt"))]);
        assert_eq!((&*all[0].content, &*all[1].content), (core.as_bytes(), &b"g=x of rfc822"[..]));
    }

    #[test]
    fn multiparts_enclosed_to_any_depth_cost_no_stack() {
        let level = |n: u32| format!("Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n");
        let mail = (0..10_000).map(level).collect::<String>() + "\ncore\n";
        on_a_thread(move || {
            assert_eq!(extract(mail.as_bytes()).problem, Some("nested too deeply"));
            parts(mail.as_bytes());
        });
    }
}
