//! Laws of the MIME reader over generated messages.

use posthaste_message::DateTime;
use posthaste_message::mime::{
    AddressList, Charset, Encoding, Header, Kind, Message, Part, ScanLimits, base64, decode_body, decode_text,
    in_reply_to, message_id, parameter, quoted_printable, references, unflow,
};
use proptest::prelude::*;

/// A message to write.
#[derive(Debug, Clone)]
enum Written {
    Leaf { encoding: Encoding, body: Vec<u8> },
    Multipart(Vec<Written>),
    Enclosed(Box<Written>),
}

fn written() -> impl Strategy<Value = Written> {
    let encoding = prop_oneof![Just(Encoding::Identity), Just(Encoding::Base64), Just(Encoding::QuotedPrintable)];
    let leaf = (encoding, prop::collection::vec(any::<u8>(), 0..200))
        .prop_map(|(encoding, body)| Written::Leaf { encoding, body });
    leaf.prop_recursive(6, 30, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Written::Multipart),
            inner.prop_map(|inner| Written::Enclosed(Box::new(inner))),
        ]
    })
}

/// Writes a message; first makes bodies in `Identity` harmless, since nothing protects them.
fn write(message: &mut Written, level: &mut usize, line_end: &str, closes: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("X-Level: {level}{line_end}").as_bytes());
    match message {
        Written::Leaf { encoding, body } => {
            let (name, text) = match encoding {
                Encoding::Base64 => ("base64", encode_base64(body, line_end)),
                Encoding::QuotedPrintable => ("quoted-printable", encode_quoted(body, line_end)),
                _ => {
                    body.iter_mut().for_each(|byte| *byte = b'a' + *byte % 26);
                    ("binary", body.clone())
                }
            };
            out.extend_from_slice(
                format!("Content-Type: application/octet-stream{line_end}Content-Transfer-Encoding: {name}{line_end}{line_end}").as_bytes(),
            );
            out.extend_from_slice(&text);
        }
        Written::Multipart(parts) => {
            *level += 1;
            let boundary = format!("level{level}");
            out.extend_from_slice(
                format!("Content-Type: multipart/mixed;{line_end} boundary=\"{boundary}\"{line_end}{line_end}")
                    .as_bytes(),
            );
            for part in parts {
                out.extend_from_slice(format!("{line_end}--{boundary}{line_end}").as_bytes());
                write(part, level, line_end, closes, out);
            }
            if closes {
                out.extend_from_slice(format!("{line_end}--{boundary}--").as_bytes());
            }
        }
        Written::Enclosed(inner) => {
            out.extend_from_slice(format!("Content-Type: message/rfc822{line_end}{line_end}").as_bytes());
            write(inner, level, line_end, closes, out);
        }
    }
}

fn encode_base64(octets: &[u8], line_end: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::new();
    for (at, group) in octets.chunks(3).enumerate() {
        if at > 0 && at % 19 == 0 {
            text.extend_from_slice(line_end.as_bytes());
        }
        let word = group.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let value = word >> (18 - 6 * digit) & 63;
            text.push(if digit > group.len() { b'=' } else { alphabet[value as usize] });
        }
    }
    text
}

fn encode_quoted(octets: &[u8], line_end: &str) -> Vec<u8> {
    let mut text = Vec::new();
    for (at, byte) in octets.iter().enumerate() {
        if at > 0 && at % 20 == 0 {
            text.extend_from_slice(format!("={line_end}").as_bytes());
        }
        match byte {
            b'!'..=b'<' | b'>'..=b'~' if at % 20 != 0 => text.push(*byte),
            _ => text.extend_from_slice(format!("={byte:02X}").as_bytes()),
        }
    }
    text
}

fn check(written: &Written, part: Part<'_, '_>) {
    match written {
        Written::Leaf { body, .. } => {
            assert_eq!(part.kind(), Kind::Leaf);
            assert_eq!(part.decoded().escape_ascii().to_string(), body.escape_ascii().to_string());
        }
        Written::Multipart(parts) => {
            let found: Vec<_> = part.children().collect();
            assert_eq!((part.kind(), found.len()), (Kind::Multipart, parts.len()));
            parts.iter().zip(found).for_each(|(written, part)| check(written, part));
        }
        Written::Enclosed(inner) => {
            assert_eq!((part.kind(), part.children().count()), (Kind::Message, 1));
            check(inner, part.children().next().unwrap());
        }
    }
}

/// Checks the invariants of parts for any octets.
fn check_places(bytes: &[u8], message: &Message<'_>, limits: &ScanLimits) {
    assert_eq!(message.root().range(), 0..bytes.len());
    assert!(message.parts().count() <= limits.parts);
    for part in message.parts() {
        let (all, header, body) = (part.range(), part.header_range(), part.body_range());
        assert!(
            all.start == header.start
                && header.end == body.start
                && body.start <= body.end
                && body.end == all.end
                && all.end <= bytes.len()
        );
        let mut at = body.start;
        for child in part.children() {
            assert_eq!(child.parent().map(|parent| parent.index()), Some(part.index()));
            assert!(at <= child.range().start && child.range().end <= body.end, "{child:?} in {part:?}");
            at = child.range().end;
        }
        for field in part.header().fields() {
            assert!(header.start <= field.start && field.end <= header.end);
            assert!(bytes[field.start..field.end].starts_with(field.name));
        }
    }
}

/// Octets that often look like a message.
fn mail_like() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just("\n"),
        Just("\r\n"),
        Just(" "),
        Just("--"),
        Just("b"),
        Just("i"),
        Just("--b\n"),
        Just("\n--i\n"),
        Just("--b--\n"),
        Just("--i--"),
        Just("Content-Type: multipart/mixed; boundary=b\n"),
        Just("Content-Type: multipart/digest; boundary=\"i\"\n\n"),
        Just("Content-Type: message/rfc822\n\n"),
        Just("Content-Type: text/plain; charset=iso-2022-jp"),
        Just(";"),
        Just("name*0*=utf-8''a%"),
        Just("Content-Transfer-Encoding: base64\n"),
        Just("Content-Transfer-Encoding: x-uuencode\n\nbegin 644 x\n"),
        Just("YWJj"),
        Just("="),
        Just("=?utf-8?Q?=C3?="),
        Just("=?utf-8?B?qQ==?="),
        Just("<"),
        Just(">"),
        Just("("),
        Just(")"),
        Just("\""),
        Just("\\"),
        Just(","),
        Just(":"),
        Just("@"),
        Just("\u{1b}$B"),
        Just("+AGE"),
        Just("~{"),
        Just("\u{e9}"),
        Just("From: "),
        Just("Date: 1 Jan 2020"),
        Just("> "),
    ];
    let piece =
        prop_oneof![6 => word.prop_map(|word| word.as_bytes().to_vec()), 1 => prop::collection::vec(any::<u8>(), 1..4)];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_was_written_is_read_octet_for_octet(written in written(), crlf: bool, closes: bool) {
        let mut written = written;
        let mut mail = Vec::new();
        write(&mut written, &mut 0, if crlf { "\r\n" } else { "\n" }, closes, &mut mail);
        let message = Message::parse(&mail);
        prop_assert_eq!(message.problem(), None);
        check(&written, message.root());
        check_places(&mail, &message, &ScanLimits::default());
    }

    #[test]
    fn parts_of_any_octets_lie_within_each_other(bytes in mail_like(), depth in 0usize..5, parts in 1usize..9) {
        for limits in [ScanLimits::default(), ScanLimits { depth, parts }] {
            check_places(&bytes, &Message::parse_within(&bytes, &limits), &limits);
        }
        let message = Message::parse(&bytes);
        let charset = message.header_charset();
        for part in message.parts() {
            part.text();
            part.file_name();
            for field in part.header().fields() {
                field.text(charset);
                field.addresses(charset).count();
                field.date();
            }
        }
    }

    #[test]
    fn any_octets_have_some_meaning_everywhere(bytes in mail_like(), label in "[a-z0-9-]{0,12}") {
        decode_text(&bytes, Some(Charset::UTF_8));
        prop_assert!(AddressList::new(&bytes, None).count() <= bytes.len() + 2);
        parameter(&bytes, "name", None);
        message_id(&bytes);
        references(&bytes);
        in_reply_to(&bytes);
        DateTime::parse(&bytes);
        let (octets, end) = base64(&bytes);
        prop_assert!(octets.len() <= bytes.len() && end <= bytes.len());
        prop_assert!(quoted_printable(&bytes).len() <= bytes.len());
        for label in [label.as_bytes(), b"utf-7", b"iso-2022-kr", b"hz-gb-2312", b"utf-16", b"utf-32", b"cp437", b"gb2312"] {
            unflow(&decode_body(&bytes, Some(label), true), true);
        }
    }

    #[test]
    fn any_folding_of_a_field_has_the_same_value(words in prop::collection::vec("[!-~]{1,9}", 1..12), folds in prop::collection::vec(0u8..4, 12)) {
        let mut field = b"Subject:".to_vec();
        for (word, fold) in words.iter().zip(folds) {
            field.extend_from_slice([&b" "[..], b"\n ", b"\r\n ", b"\r\n "][usize::from(fold)]);
            field.extend_from_slice(word.as_bytes());
        }
        let plain = format!("Subject: {}", words.join(" "));
        let value = |header: &[u8]| Header::new(header).first("subject").unwrap().text(None).into_owned();
        prop_assert_eq!(value(&field), value(plain.as_bytes()));
        let addresses = |header: &[u8]| Header::new(header).first("subject").unwrap().addresses(None).collect::<Vec<_>>();
        prop_assert_eq!(addresses(&field), addresses(plain.as_bytes()));
    }

    #[test]
    fn text_in_encoded_words_of_any_cut_is_read(text in "[ -~\u{e0}-\u{ff}\u{4e00}-\u{4e80}]{1,40}", cuts in prop::collection::vec(1usize..9, 40)) {
        let mut octets = text.as_bytes();
        let mut value = String::new();
        for cut in cuts {
            let (word, rest) = octets.split_at(cut.min(octets.len()));
            octets = rest;
            if cut % 2 == 0 {
                let quoted: String = word.iter().map(|byte| format!("={byte:02X}")).collect();
                value += &format!("=?utf-8?Q?{quoted}?=\r\n ");
            } else {
                value += &format!("=?UTF-8?B?{}?= ", String::from_utf8(encode_base64(word, "")).unwrap());
            }
        }
        value += &format!("=?utf-8?B?{}?=", String::from_utf8(encode_base64(octets, "")).unwrap());
        prop_assert_eq!(decode_text(value.as_bytes(), None), text);
    }
}
