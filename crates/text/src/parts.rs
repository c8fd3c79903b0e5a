//! A message's parts as files, to view and save attachments.

use std::borrow::Cow;

use posthaste_message::mime::{Kind, Message};

use super::extract::{ENCODED_DEPTH_MAX, LIMITS, is_marked, is_message, with_line_feeds};

/// A leaf part, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPart<'a> {
    /// File name as written by the sender: may be empty, a path, or anything else. See [`safe_file_name`].
    pub name: Option<String>,
    /// Lower case, such as `image/png`.
    pub media_type: String,
    /// True if it is marked as attachment, or has a name.
    pub is_attachment: bool,
    /// The octets of the file: transfer encoding decoded, a text's charset kept. Borrowed if there is no transfer
    /// encoding.
    pub content: Cow<'a, [u8]>,
}

/// All leaf parts in the order of the message, including those of enclosed messages. An enclosed message is itself a
/// part, before its own.
pub fn parts(message: &[u8]) -> Vec<TextPart<'_>> {
    let mut all = Vec::new();
    match with_line_feeds(message) {
        Cow::Borrowed(message) => collect(message, &mut all, 0),
        Cow::Owned(message) => {
            let mut found = Vec::new();
            collect(&message, &mut found, 0);
            all.extend(found.into_iter().map(TextPart::into_owned));
        }
    }
    all
}

impl TextPart<'_> {
    fn into_owned<'a>(self) -> TextPart<'a> {
        TextPart { content: Cow::Owned(self.content.into_owned()), ..self }
    }
}

/// `encoded`: number of encoded messages around it.
fn collect<'a>(bytes: &'a [u8], all: &mut Vec<TextPart<'a>>, encoded: u32) {
    for part in Message::parse_within(bytes, &LIMITS).parts().filter(|part| part.kind() != Kind::Multipart) {
        let media_type = part.media_type();
        let content = part.decoded();
        let encloses = part.kind() == Kind::Leaf && is_message(&media_type) && encoded < ENCODED_DEPTH_MAX;
        let mut within = Vec::new();
        if encloses {
            collect(&content, &mut within, encoded + 1);
        }
        let within: Vec<TextPart<'a>> = within.into_iter().map(TextPart::into_owned).collect();
        let name = part.file_name();
        let is_attachment = is_marked(part) || name.is_some();
        all.push(TextPart { name, media_type: media_type.into_owned(), is_attachment, content });
        all.extend(within);
    }
}

/// All HTML parts unchanged, but in UTF-8; including those of enclosed messages.
pub fn html_parts(message: &[u8]) -> String {
    let mut html = String::new();
    collect_html(&with_line_feeds(message), &mut html, 0);
    html
}

/// `encoded`: as in [`collect`].
fn collect_html(bytes: &[u8], html: &mut String, encoded: u32) {
    for part in Message::parse_within(bytes, &LIMITS).parts().filter(|part| part.kind() == Kind::Leaf) {
        let media_type = part.media_type();
        if media_type == "text/html" {
            html.push_str(&part.text());
        } else if is_message(&media_type) && encoded < ENCODED_DEPTH_MAX {
            collect_html(&part.decoded(), html, encoded + 1);
        }
    }
}

/// Turns a sender's file name into one that is safe to create. It has no path, no control or invisible characters, no
/// leading dot, and at most 200 bytes. Returns `fallback` if nothing is left.
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
    fn a_text_that_is_a_file_keeps_its_octets() {
        let check = |media_type: &str, encoding: &str, body: &str, expected: &[u8]| {
            let mail = format!(
                "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: {media_type}\n\
                 Content-Disposition: attachment; filename=f\nContent-Transfer-Encoding: {encoding}\n\n{body}\n--b--\n"
            );
            let found = parts(mail.as_bytes());
            assert_eq!(*found[0].content, *expected, "{media_type}: {}", found[0].content.escape_ascii());
        };
        check(
            "text/plain; charset=us-ascii",
            "base64",
            "iVBORw0KGgoAAAANSUhEUv/+gIE=",
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xfe\x80\x81",
        );
        check("text/csv; charset=windows-1252", "quoted-printable", "Gr=F6=DFe;=80=0D=0A", b"Gr\xf6\xdfe;\x80\r\n");
        check("text/html; charset=utf-8", "base64", "77u/PHA+", b"\xef\xbb\xbf<p>");
        check("text/plain; charset=utf-16", "base64", "//5NAPYA", b"\xff\xfeM\0\xf6\0");
        check("text/x-patch", "8bit", "-a\u{fc}", "-a\u{fc}".as_bytes());
        check("text/calendar; charset=iso-2022-jp", "base64", "GyRCRnwbKEI=", b"\x1b$BF|\x1b(B");
        let latin1 = b"Content-Type: text/xml; charset=iso-8859-1\n\n<a>\xe9</a>\n";
        assert_eq!(&*parts(latin1)[0].content, b"<a>\xe9</a>\n");
    }

    #[test]
    fn html_for_a_reader_is_utf_8() {
        let mail = b"Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/html; charset=iso-8859-1\n\n<p>\xe9\n\
                     --b\nContent-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n\
                     Q29udGVudC1UeXBlOiB0ZXh0L2h0bWwKCjxiPg==\n--b\n\nplain\n--b--\n";
        assert_eq!(html_parts(mail), "<p>\u{e9}<b>");
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
