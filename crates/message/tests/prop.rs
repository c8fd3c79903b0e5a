//! Laws over generated input.

use posthaste_message::{DateTime, Encryption, HeaderScan, Received, Summary, write_delivered_to, write_return_path};
use proptest::prelude::*;

/// Any text, often with characters that end lines.
fn hostile() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        prop_oneof![Just('\r'), Just('\n'), Just('\0'), Just('\u{85}'), Just('<'), Just('('), Just(' '), any::<char>()],
        0..40,
    )
    .prop_flat_map(|chars| (Just(chars), prop_oneof![8 => Just(1_usize), 1 => Just(60)]))
    .prop_map(|(chars, times)| chars.into_iter().collect::<String>().repeat(times))
}

/// Every line ends in CRLF, holds no other CR or LF, is not too long, and only the first begins a field.
fn assert_one_field(written: &[u8], lines: usize) {
    let text = std::str::from_utf8(written).expect("UTF-8 in, UTF-8 out");
    let found: Vec<&str> = text.strip_suffix("\r\n").expect("ends in CRLF").split("\r\n").collect();
    assert_eq!(found.len(), lines, "{text:?}");
    for (at, line) in found.iter().enumerate() {
        assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
        assert!(line.len() <= 998, "{} octets", line.len());
        assert_eq!(line.starts_with('\t'), at > 0, "{line:?}");
    }
    assert_eq!(fields(written).len(), 1);
}

/// The header's fields, name and folded value, by a plain reading of the whole message, line by line.
fn fields(message: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    let mut at = 0;
    for line in message.split_inclusive(|&octet| octet == b'\n') {
        if matches!(line, b"\n" | b"\r\n") {
            break;
        }
        let end = at + line.len();
        match ranges.last_mut() {
            Some(field) if matches!(line[0], b' ' | b'\t') => field.1 = end,
            _ => ranges.push((at, end)),
        }
        at = end;
    }
    let field = |(from, to)| {
        let field: &[u8] = &message[from..to];
        let colon = field.iter().position(|&octet| octet == b':')?;
        let name = field[..colon].trim_ascii_end();
        let is_name = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
        is_name.then(|| (name, field[colon + 1..].trim_ascii()))
    };
    ranges.into_iter().filter_map(field).collect()
}

#[test]
fn the_plain_way_knows_folds_junk_and_the_end() {
    let message = b" leading fold: x\r\njunk line\r\n: nameless\nA : 1\r\n\t2 \r\nB:\r\n\r\nC: body\r\n";
    assert_eq!(fields(message), [(&b"A"[..], &b"1\r\n\t2"[..]), (b"B", b"")]);
}

/// The expected result of a scan in pieces.
fn summary(message: &[u8]) -> Summary {
    let fields = fields(message);
    let named = |name: &'static str| fields.iter().filter(move |field| field.0.eq_ignore_ascii_case(name.as_bytes()));
    let visible = |&octet: &u8| if octet.is_ascii_graphic() { char::from(octet) } else { '?' };
    let message_id = named("Message-ID").next().map(|(_, id)| id.iter().map(visible).take(250).collect());
    let mut header =
        message.split_inclusive(|&octet| octet == b'\n').take_while(|line| !matches!(line, [b'\n'] | [b'\r', b'\n']));
    let is_ascii = header.all(|line| line.is_ascii());
    Summary { message_id, hops: named("Received").count(), own_hops: 0, is_ascii }
}

fn scanned(message: &[u8], piece: usize) -> Summary {
    let mut scan = HeaderScan::default();
    message.chunks(piece).for_each(|chunk| scan.push(chunk));
    scan.finish()
}

proptest! {
    #[test]
    fn no_input_adds_a_line_to_received(
        helo in hostile(), by in hostile(), id in hostile(), recipient in proptest::option::of(hostile()),
        secs in any::<i64>(), address in any::<u128>(), utf8 in any::<bool>(),
        tls in proptest::option::of((hostile(), hostile())),
    ) {
        let mut out = Vec::new();
        Received {
            helo: &helo, peer: Some(std::net::Ipv6Addr::from_bits(address).into()), by: &by,
            with: if utf8 { "UTF8SMTP" } else { &helo }, id: &id,
            recipient: recipient.as_deref(), date: DateTime::from_unix(secs),
            tls: tls.as_ref().map(|(cipher, version)| Encryption { cipher, version }),
        }.write_to(&mut out);
        assert_one_field(&out, 3);
    }

    #[test]
    fn no_input_adds_a_line_to_return_path_or_delivered_to(path in hostile()) {
        let mut out = Vec::new();
        write_return_path(&mut out, &path);
        assert_one_field(&out, 1);
        out.clear();
        write_delivered_to(&mut out, &path);
        assert_one_field(&out, 1);
    }

    #[test]
    fn any_bytes_can_be_scanned(
        message in proptest::collection::vec(
            prop_oneof![Just(b'\r'), Just(b'\n'), Just(b':'), Just(b' '), Just(b'R'), any::<u8>()], 0..200),
        piece in 1_usize..20,
    ) {
        let found = scanned(&message, piece);
        prop_assert_eq!(&found, &summary(&message));
        let traced = [b"Received: by one more\r\n", &message[..]].concat();
        prop_assert_eq!(scanned(&traced, piece), Summary { hops: found.hops + 1, ..found });
    }

    #[test]
    fn a_header_in_pieces_is_the_same_header(
        tokens in proptest::collection::vec(prop_oneof![
            Just("Received"), Just("MESSAGE-id"), Just(":"), Just(" "), Just("\r\n"), Just("\n"),
            Just("\r"), Just("\t"), Just("<a@b>"), Just("ü"), Just("\x0c")], 0..60),
        piece in 1_usize..20,
    ) {
        let message = tokens.concat().into_bytes();
        prop_assert_eq!(scanned(&message, piece), summary(&message));
    }

    #[test]
    fn days_follow_each_other(day in -700_000i64..2_900_000) {
        // The weekday advances by one each day, in every month.
        let weekday = |day: i64| DateTime::from_unix(day * 86_400).to_string()[..3].to_owned();
        let week: Vec<String> = (0..7).map(|n| weekday(day + n)).collect();
        let mut unique = week.clone();
        unique.sort();
        unique.dedup();
        prop_assert_eq!(unique.len(), 7);
        prop_assert_eq!(weekday(day + 7), week[0].clone());
    }
}
