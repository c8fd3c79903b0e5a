//! A message's parts as files: for looking at and saving attachments.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mail_parser::{Message, MessageParser, MimeHeaders, PartType};

use super::nested::{Parsed, guarded, is_encoded_message, media_type};

/// Enclosed messages are looked into this deep.
const DEPTH_MAX: u32 = 50;
/// An encoded one counts as so many levels: what it encloses is copied.
const ENCODED_LEVELS: u32 = 44;

/// A leaf part, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part<'a> {
    /// As the sender wrote it: may be empty, a path, or anything else. See [`safe_file_name`].
    pub name: Option<String>,
    /// Lower case, such as `image/png`.
    pub media_type: String,
    /// Whether it is marked as attachment, or has a name.
    pub is_attachment: bool,
    /// Decoded. Text is UTF-8, whatever it was. What stands in the message as it is, is not copied.
    pub content: Cow<'a, [u8]>,
}

/// All leaf parts in the order of the message, those of enclosed messages too. An enclosed message is itself a part, before its own.
pub fn parts(message: &[u8]) -> Vec<Part<'_>> {
    let read = || {
        let mut all = Vec::new();
        collect_from(message, &mut all, 0);
        all
    };
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_default()
}

fn collect_from<'a>(bytes: &'a [u8], all: &mut Vec<Part<'a>>, depth: u32) {
    let guarded = guarded(bytes);
    let mut found = Vec::new();
    if let Some(message) = Parsed::new(&MessageParser::default(), &guarded) {
        collect(&message, &mut found, depth);
    }
    all.extend(found.into_iter().map(|part| Part { content: original(bytes, &guarded, part.content), ..part }));
}

/// The same octets of the message itself.
fn original<'a>(bytes: &'a [u8], guarded: &[u8], content: Cow<'_, [u8]>) -> Cow<'a, [u8]> {
    match content {
        Cow::Owned(content) => Cow::Owned(content),
        Cow::Borrowed(content) => {
            let start = content.as_ptr().addr().wrapping_sub(guarded.as_ptr().addr());
            let same = start.checked_add(content.len()).and_then(|end| bytes.get(start..end));
            same.map_or_else(|| Cow::Owned(content.to_vec()), Cow::Borrowed)
        }
    }
}

fn collect<'a>(message: &Message<'a>, all: &mut Vec<Part<'a>>, depth: u32) {
    for part in &message.parts {
        let content = match &part.body {
            PartType::Multipart(_) => continue,
            PartType::Text(Cow::Borrowed(text)) | PartType::Html(Cow::Borrowed(text)) => Cow::Borrowed(text.as_bytes()),
            PartType::Text(text) | PartType::Html(text) => Cow::Owned(text.as_bytes().to_vec()),
            PartType::Binary(bytes) | PartType::InlineBinary(bytes) => bytes.clone(),
            PartType::Message(enclosed) => raw(enclosed),
        };
        let name = part.attachment_name().map(str::to_owned);
        let media_type = media_type(part);
        let marked = part.content_disposition().is_some_and(|disposition| disposition.is_attachment());
        let is_encoded_message = is_encoded_message(&media_type);
        all.push(Part { is_attachment: marked || name.is_some(), name, media_type, content });
        match &part.body {
            PartType::Message(enclosed) if depth < DEPTH_MAX => collect(enclosed, all, depth + 1),
            PartType::Binary(bytes) if is_encoded_message && depth + ENCODED_LEVELS <= DEPTH_MAX => {
                let mut enclosed = Vec::new();
                collect_from(bytes, &mut enclosed, depth + ENCODED_LEVELS);
                let owned = |part: Part<'_>| Part { content: Cow::Owned(part.content.into_owned()), ..part };
                all.extend(enclosed.into_iter().map(owned));
            }
            _ => {}
        }
    }
}

/// The octets of an enclosed message. One within the other they would be copied as often as they are nested.
fn raw<'a>(enclosed: &Message<'a>) -> Cow<'a, [u8]> {
    match &enclosed.raw_message {
        Cow::Borrowed(all) => {
            let range = enclosed.parts.first().map(|root| root.offset_header as usize..root.offset_end as usize);
            Cow::Borrowed(range.and_then(|range| all.get(range)).unwrap_or_default())
        }
        Cow::Owned(_) => Cow::Owned(enclosed.raw_message().to_vec()),
    }
}

/// A name that can be used for a file in a directory of one's own: no path, no control or invisible characters, no leading dot, at
/// most 200 bytes. `fallback` if nothing is left.
pub fn safe_file_name(name: &str, fallback: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or("");
    let is_bad = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let mut safe: String = last
        .chars()
        .map(|c| if is_bad(c) || matches!(c, '"' | '*' | ':' | '<' | '>' | '?' | '|') { '_' } else { c })
        .collect();
    while safe.len() > 200 {
        safe.pop();
    }
    // Blanks and dots may take turns in front.
    let safe = safe.trim_start_matches(|c: char| c == '.' || c.is_whitespace()).trim_end();
    if safe.is_empty() { fallback.to_owned() } else { safe.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_directory() {
        for (name, safe) in [
            ("../../etc/passwd", "passwd"),
            ("C:\\x\\evil.exe", "evil.exe"),
            ("..", "part"),
            (".bashrc", "bashrc"),
            (". .bashrc", "bashrc"),
            (". ..", "part"),
            ("", "part"),
            ("a\nb\0c", "a_b_c"),
            ("photo\u{202e}gpj.exe", "photo_gpj.exe"),
            ("Größe 1.pdf", "Größe 1.pdf"),
        ] {
            assert_eq!(safe_file_name(name, "part"), safe, "{name:?}");
        }
        assert!(safe_file_name(&"é".repeat(300), "part").len() <= 200);
    }

    #[test]
    fn parts_come_decoded() {
        let found = parts(
            b"Content-Type: multipart/mixed; boundary=b\n\n--b\n\nhi\n--b\nContent-Type: application/x-y; name=\"a.bin\"\n\
              Content-Transfer-Encoding: base64\n\naGVsbG8=\n--b--\n",
        );
        let shape: Vec<_> = found.iter().map(|part| (part.media_type.as_str(), part.is_attachment)).collect();
        assert_eq!(shape, [("text/plain", false), ("application/x-y", true)]);
        assert_eq!((found[1].name.as_deref(), &*found[1].content), (Some("a.bin"), &b"hello"[..]));
    }

    #[test]
    fn enclosed_messages_are_not_copied() {
        let mail = b"Subject: a\nContent-Type: message/rfc822\n\nSubject: b\nContent-Type: message/rfc822\n\nSubject: c\n\nx\n";
        let found = parts(mail);
        let contents: Vec<&str> = found.iter().map(|part| std::str::from_utf8(&part.content).unwrap()).collect();
        assert_eq!(contents[1..], ["Subject: c\n\nx\n", "x\n"]);
        assert!(contents[0].starts_with("Subject: b\n"), "{contents:?}");
        assert!(found.iter().all(|part| matches!(part.content, Cow::Borrowed(_))));
    }
}
