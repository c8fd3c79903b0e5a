//! A message's parts as files: for looking at and saving attachments.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mail_parser::{Message, MessageParser, MimeHeaders, PartType};

use super::nested::{Parsed, media_type};

/// Enclosed messages are looked into this deep.
const DEPTH_MAX: u32 = 50;

/// A leaf part, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// As the sender wrote it: may be empty, a path, or anything else. See [`safe_file_name`].
    pub name: Option<String>,
    /// Lower case, such as `image/png`.
    pub media_type: String,
    /// Whether it is marked as attachment, or has a name.
    pub is_attachment: bool,
    /// Decoded. Text is UTF-8, whatever it was.
    pub content: Vec<u8>,
}

/// All leaf parts in the order of the message, those of enclosed messages too. An enclosed message is itself a part, before its own.
pub fn parts(message: &[u8]) -> Vec<Part> {
    let read = || {
        let mut all = Vec::new();
        if let Some(message) = Parsed::new(&MessageParser::default(), message) {
            collect(&message, &mut all, 0);
        }
        all
    };
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_default()
}

fn collect(message: &Message<'_>, all: &mut Vec<Part>, depth: u32) {
    for part in &message.parts {
        let content = match &part.body {
            PartType::Multipart(_) => continue,
            PartType::Text(text) | PartType::Html(text) => text.as_bytes().to_vec(),
            PartType::Binary(bytes) | PartType::InlineBinary(bytes) => bytes.to_vec(),
            PartType::Message(enclosed) => enclosed.raw_message().to_vec(),
        };
        let name = part.attachment_name().map(str::to_owned);
        let media_type = media_type(part);
        let marked = part.content_disposition().is_some_and(|disposition| disposition.is_attachment());
        all.push(Part { is_attachment: marked || name.is_some(), name, media_type, content });
        if let PartType::Message(enclosed) = &part.body
            && depth < DEPTH_MAX
        {
            collect(enclosed, all, depth + 1);
        }
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
    let safe = safe.trim().trim_start_matches('.').trim();
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
        assert_eq!((found[1].name.as_deref(), found[1].content.as_slice()), (Some("a.bin"), &b"hello"[..]));
    }
}
