//! BODY and BODYSTRUCTURE (RFC 3501 section 7.4.2).

use posthaste_message::mime::{Header, Kind, Part, main_value, raw_parameters, unfold};

use crate::answer::Answer;
use crate::envelope;

/// Writes the structure of a part; `extended` for BODYSTRUCTURE. The parser bounds the recursion.
pub(crate) fn write(out: &mut Answer<'_>, part: Part<'_, '_>, extended: bool) {
    let header = part.header();
    let content_type = part.content_type();
    let media_type = part.media_type();
    let (kind, subtype) = media_type.split_once('/').unwrap_or((&media_type, ""));
    out.raw(b"(");
    // One without parts is a leaf to the parser, but no body to a client.
    if part.kind() == Kind::Multipart || kind == "multipart" {
        let mut any = false;
        for child in part.children() {
            write(out, child, extended);
            any = true;
        }
        if !any {
            // At least one part has to be there.
            out.raw(EMPTY_TEXT);
            out.raw(if extended { b" NIL NIL NIL NIL)" } else { b")" });
        }
        out.raw(b" ");
        out.string(or(subtype, "mixed"));
        if extended {
            out.raw(b" ");
            parameters(out, content_type);
            disposition_language_location(out, &header);
        }
        out.raw(b")");
        return;
    }
    let is_message = part.kind() == Kind::Message;
    // A message with another encoding or too deep within others is not taken apart, and without an envelope it is not a MESSAGE/RFC822.
    let opaque = kind == "message" && subtype == "rfc822" && !is_message;
    let (kind, subtype) = match () {
        () if opaque => ("application", "octet-stream"),
        () if kind.is_empty() => ("text", "plain"),
        () => (kind, subtype),
    };
    out.string(kind.as_bytes());
    out.raw(b" ");
    out.string(or(subtype, if kind == "text" { "plain" } else { "octet-stream" }));
    out.raw(b" ");
    match content_type {
        Some(_) => parameters(out, content_type),
        None if kind == "text" => out.raw(b"(\"charset\" \"us-ascii\")"),
        None => out.raw(b"NIL"),
    }
    for name in ["Content-ID", "Content-Description"] {
        out.raw(b" ");
        field(out, &header, name);
    }
    out.raw(b" ");
    let encoding = header.first("Content-Transfer-Encoding").map(|field| main_value(field.value));
    out.string(encoding.as_deref().filter(|encoding| !encoding.is_empty()).unwrap_or("7bit").as_bytes());
    out.raw(b" ");
    out.number(part.body_range().len());
    if is_message
        && subtype == "rfc822"
        && let Some(enclosed) = part.children().next()
    {
        out.raw(b" ");
        envelope::write(out, &enclosed.header());
        out.raw(b" ");
        write(out, enclosed, extended);
    }
    if kind == "text" || is_message && subtype == "rfc822" {
        out.raw(b" ");
        out.number(part.lines());
    }
    if extended {
        out.raw(b" ");
        field(out, &header, "Content-MD5");
        disposition_language_location(out, &header);
    }
    out.raw(b")");
}

const EMPTY_TEXT: &[u8] = b"(\"text\" \"plain\" (\"charset\" \"us-ascii\") NIL NIL \"7bit\" 0 0";

fn or<'a>(subtype: &'a str, otherwise: &'a str) -> &'a [u8] {
    if subtype.is_empty() { otherwise } else { subtype }.as_bytes()
}

fn field(out: &mut Answer<'_>, header: &Header<'_>, name: &str) {
    let value = header.first(name).map(|field| unfold(field.value));
    out.nstring(value.as_deref().map(<[u8]>::trim_ascii).filter(|value| !value.is_empty()));
}

/// Writes parameters unchanged: clients join the pieces of RFC 2231 themselves.
fn parameters(out: &mut Answer<'_>, value: Option<&[u8]>) {
    let mut any = false;
    for (name, value) in value.into_iter().flat_map(raw_parameters) {
        if out.is_full() {
            break;
        }
        out.raw(if any { b" " } else { b"(" });
        any = true;
        out.string(name);
        out.raw(b" ");
        out.string(&value);
    }
    out.raw(if any { b")" } else { b"NIL" });
}

fn disposition_language_location(out: &mut Answer<'_>, header: &Header<'_>) {
    out.raw(b" ");
    let disposition = header.first("Content-Disposition").map(|field| (main_value(field.value), field.value));
    match disposition.filter(|(word, _)| !word.is_empty()) {
        Some((word, value)) => {
            out.raw(b"(");
            out.string(word.as_bytes());
            out.raw(b" ");
            parameters(out, Some(value));
            out.raw(b")");
        }
        None => out.raw(b"NIL"),
    }
    out.raw(b" ");
    languages(out, header);
    out.raw(b" ");
    field(out, header, "Content-Location");
}

/// Language tags (RFC 3282), comments left out.
fn languages(out: &mut Answer<'_>, header: &Header<'_>) {
    let value = header.first("Content-Language").map_or(&b""[..], |field| field.value);
    let tags = value.split(|octet| *octet == b',').map(<[u8]>::trim_ascii);
    let is_tag =
        |tag: &&[u8]| !tag.is_empty() && tag.iter().all(|octet| octet.is_ascii_alphanumeric() || *octet == b'-');
    let mut any = false;
    for tag in tags.filter(is_tag) {
        if out.is_full() {
            break;
        }
        out.raw(if any { b" " } else { b"(" });
        any = true;
        out.string(tag);
    }
    out.raw(if any { b")" } else { b"NIL" });
}

#[cfg(test)]
mod tests {
    use posthaste_message::mime::Message;

    use super::*;

    fn structure(mail: &[u8], extended: bool) -> String {
        let mut out = Vec::new();
        write(&mut Answer::new(&mut out), Message::parse(mail).root(), extended);
        String::from_utf8(out).unwrap()
    }

    fn check(mail: &str, expected: &str) {
        assert_eq!(structure(mail.replace('\n', "\r\n").as_bytes(), true), expected, "{mail}");
    }

    #[test]
    fn single_parts_have_their_defaults() {
        check(
            "Subject: x\n\none\ntwo\n",
            "(\"text\" \"plain\" (\"charset\" \"us-ascii\") NIL NIL \"7bit\" 10 2 NIL NIL NIL NIL)",
        );
        check(
            "Content-Type: TEXT/HTML; charset=\"utf-8\"\nContent-Transfer-Encoding: 8BIT\nContent-ID: <a@b>\nContent-Description: d\n\
             Content-Disposition: inline; filename=x\nContent-Language: de, en\nContent-Location: http://x/\nContent-MD5: abc\n\nx",
            "(\"text\" \"html\" (\"charset\" \"utf-8\") \"<a@b>\" \"d\" \"8bit\" 1 1 \"abc\" (\"inline\" (\"filename\" \"x\")) (\"de\" \"en\") \"http://x/\")",
        );
        check("Content-Type: image/png\n\n", "(\"image\" \"png\" NIL NIL NIL \"7bit\" 0 NIL NIL NIL NIL)");
        check("Content-Type: /;;\n\n", "(\"text\" \"plain\" NIL NIL NIL \"7bit\" 0 0 NIL NIL NIL NIL)");
    }

    #[test]
    fn multiparts_and_messages_are_nested() {
        let mail = "Content-Type: multipart/mixed; boundary=b\n\n--b\n\none\n--b\nContent-Type: message/rfc822\n\nSubject: in\n\nx\n--b--\n";
        check(
            mail,
            "((\"text\" \"plain\" (\"charset\" \"us-ascii\") NIL NIL \"7bit\" 3 1 NIL NIL NIL NIL)\
             (\"message\" \"rfc822\" NIL NIL NIL \"7bit\" 16 (NIL \"in\" NIL NIL NIL NIL NIL NIL NIL NIL) \
             (\"text\" \"plain\" (\"charset\" \"us-ascii\") NIL NIL \"7bit\" 1 1 NIL NIL NIL NIL) 3 NIL NIL NIL NIL) \
             \"mixed\" (\"boundary\" \"b\") NIL NIL NIL)",
        );
        let short = structure(mail.replace('\n', "\r\n").as_bytes(), false);
        assert!(short.ends_with(" 3) \"mixed\")"), "{short}");
        check(
            "Content-Type: multipart/mixed; boundary=b\n\nnothing\n",
            &format!(
                "({} NIL NIL NIL NIL) \"mixed\" (\"boundary\" \"b\") NIL NIL NIL)",
                std::str::from_utf8(EMPTY_TEXT).unwrap()
            ),
        );
        check(
            "Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\nAAAA",
            "(\"application\" \"octet-stream\" NIL NIL NIL \"base64\" 4 NIL NIL NIL NIL)",
        );
    }

    #[test]
    fn hostile_nesting_and_parameters_are_bounded() {
        let nested = "Content-Type: message/rfc822\r\n\r\n".repeat(1000);
        assert!(structure(nested.as_bytes(), true).len() < 100_000);
        let wide = format!("Content-Type: a/b; {}\r\n\r\n", "x=y; ".repeat(1_000_000));
        let shown = structure(wide.as_bytes(), true);
        assert!(shown.len() < (1 << 20) + 1000 && shown.ends_with(" NIL NIL NIL)"));
        let parts = format!("Content-Type: multipart/mixed; boundary=b\r\n\r\n{}", "--b\r\n\r\n".repeat(100_000));
        assert!(structure(parts.as_bytes(), true).len() < 2 << 20);
    }
}
