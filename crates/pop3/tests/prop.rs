//! Laws over generated input, and hostile clients.

use posthaste_pop3::session::{MESSAGES_MAX, Pop3Config, Pop3Event};
use proptest::prelude::*;

use crate::common::{self, Host};

const LOGIN: &str = "USER ann\r\nPASS secret\r\n";
const LOGGED_IN: &str = "+OK The password, please\r\n+OK 4 messages\r\n";

fn host() -> Host {
    Host::new(Pop3Config::new("mail.example.org"), true)
}

fn session(octets: &[u8], cuts: &[usize]) -> (Vec<u8>, bool) {
    let mut host = host();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (octets.len() + 1)).collect();
    cuts.sort_unstable();
    cuts.push(octets.len());
    let mut from = 0;
    for cut in cuts {
        host.read(&octets[from..cut]);
        assert!(host.closed || host.input.len() < 4 << 10, "{} octets wait", host.input.len());
        from = cut;
    }
    (host.output, host.closed)
}

/// A list of all messages has to fit into memory. Numbers are those of the oldest ones, which come first.
#[test]
fn a_session_has_the_oldest_million_messages() {
    let mut host = host();
    let mut asked = |octets: &[u8]| {
        host.input.extend_from_slice(octets);
        loop {
            match host.machine.step(&mut host.input) {
                Pop3Event::Login(_) => host.machine.logged_in(Ok(MESSAGES_MAX + 5)),
                Pop3Event::Rows { first, last, .. } => return Some((first, last)),
                Pop3Event::NeedInput => return None,
                _ => {}
            }
        }
    };
    assert_eq!(asked(LOGIN.as_bytes()), None);
    assert_eq!(asked(b"LIST 1000001\r\n"), None);
    assert_eq!(asked(b"UIDL\r\n"), Some((1, MESSAGES_MAX)));
    let output = String::from_utf8_lossy(host.machine.output()).into_owned();
    assert!(output.contains("+OK 1000000 messages\r\n-ERR"), "{output}");
}

const LINES: &[&[u8]] = &[
    b"USER ann\r\n",
    b"PASS secret\r\n",
    b"PASS wrong\n",
    b"AUTH PLAIN\r\n",
    b"AGFubgBzZWNyZXQ=\r\n",
    b"AUTH LOGIN\r\nYW5u\r\nc2VjcmV0\r\n",
    b"*\r\n",
    b"CAPA\r\n",
    b"STLS\r\n",
    b"STAT\r\n",
    b"LIST\r\n",
    b"UIDL 2\r\n",
    b"RETR 1\r\n",
    b"TOP 1 1\r\n",
    b"DELE 3\r\n",
    b"RSET\r\n",
    b"\r\n",
    b"NOOP \x00\r\n",
    b"QUIT\r\n",
];

/// The client's side of dot-stuffing: lines end with LF, as most clients read them.
fn unstuffed(response: &[u8]) -> (Vec<u8>, &[u8]) {
    let first = response.iter().position(|octet| *octet == b'\n').unwrap() + 1;
    assert!(response.starts_with(b"+OK "));
    let (mut message, mut rest) = (Vec::new(), &response[first..]);
    loop {
        let end = rest.iter().position(|octet| *octet == b'\n').expect("a final dot") + 1;
        let (line, after) = rest.split_at(end);
        rest = after;
        match line {
            b".\r\n" | b".\n" => return (message, rest),
            [b'.', line @ ..] => message.extend_from_slice(line),
            line => message.extend_from_slice(line),
        }
    }
}

/// Dot-stuffing by the letter of RFC 1939: only CRLF ends a line.
fn unstuffed_by_crlf(response: &[u8]) -> Vec<u8> {
    let text = response.iter().map(|octet| char::from(*octet)).collect::<String>();
    let body = text.split_once("\r\n").unwrap().1;
    let lines = body.split_inclusive("\r\n").take_while(|line| *line != ".\r\n");
    lines.flat_map(|line| line.strip_prefix('.').unwrap_or(line).chars().map(|octet| octet as u8)).collect()
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\r\n".to_vec()),
        Just(b".".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\r\n.\r\n".to_vec()),
        Just(b"\r\n\r\n".to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn with_message(message: &[u8], piece: usize) -> Host {
    let mut host = host();
    (host.inbox, host.piece) = (vec![Ok(message.to_vec())], piece);
    host.read(LOGIN.as_bytes());
    host.output.clear();
    host
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_answers(
        lines in prop::collection::vec((0..LINES.len(), prop::collection::vec(any::<u8>(), 0..3)), 1..20),
        logged_in in any::<bool>(),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let mut octets = if logged_in { LOGIN.as_bytes().to_vec() } else { Vec::new() };
        for (line, noise) in lines {
            octets.extend_from_slice(LINES[line]);
            if noise.len() == 2 {
                octets.extend_from_slice(&noise);
            }
        }
        prop_assert_eq!(session(&octets, &[]), session(&octets, &cuts));
    }

    #[test]
    fn any_octets_are_answered_without_a_panic(octets in prop::collection::vec(any::<u8>(), 0..300)) {
        session(&[LOGIN.as_bytes(), &octets[..], b"\r\n"].concat(), &[]);
        session(&octets, &[7, 50]);
    }

    #[test]
    fn retr_gives_the_octets_of_the_message(message in message(), piece in 1usize..50) {
        let mut host = with_message(&message, piece);
        host.read(b"RETR 1\r\nNOOP\r\n");
        let mut expected = message.clone();
        if !message.is_empty() && !message.ends_with(b"\r\n") {
            expected.extend_from_slice(b"\r\n");
        }
        let (got, rest) = unstuffed(&host.output);
        prop_assert_eq!(got, expected.clone());
        prop_assert_eq!(rest, b"+OK\r\n");
        let has_bare_lf = message.iter().enumerate().any(|(at, octet)| *octet == b'\n' && (at == 0 || message[at - 1] != b'\r'));
        if !has_bare_lf {
            prop_assert_eq!(unstuffed_by_crlf(&host.output), expected);
        }
    }

    #[test]
    fn top_gives_the_beginning_of_the_message(message in message(), lines in 0u64..5, piece in 1usize..50) {
        let mut host = with_message(&message, piece);
        host.read(format!("TOP 1 {lines}\r\nNOOP\r\n").as_bytes());
        let (got, rest) = unstuffed(&host.output);
        prop_assert_eq!(rest, b"+OK\r\n");
        // By lines: the header, the empty line, so many more.
        let mut all = message.split_inclusive(|octet| *octet == b'\n');
        let mut expected: Vec<u8> = Vec::new();
        for line in all.by_ref() {
            expected.extend_from_slice(line);
            if matches!(line, b"\r\n" | b"\n") {
                expected.extend(all.by_ref().take(lines as usize).flatten());
                break;
            }
        }
        if !expected.is_empty() && !expected.ends_with(b"\r\n") {
            expected.extend_from_slice(b"\r\n");
        }
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn hostile_lines_are_answered() {
    let long = "x".repeat(100_000);
    let number = "9".repeat(2000);
    for (octets, expected) in [
        (format!("{long}\r\n"), "-ERR That line is too long\r\n"),
        (format!("RETR {number}\r\n"), "-ERR No such message\r\n"),
        (format!("TOP {number} {number}\r\n"), "-ERR No such message\r\n"),
        (format!("TOP 1 {number}\r\n"), "+OK Header"),
        (format!("LIST {}\r\n", "1 ".repeat(2000)), "-ERR That command takes one message number\r\n"),
        ("DELE -1\r\n".into(), "-ERR That is not a number\r\n"),
        ("DELE 4294967297\r\n".into(), "-ERR No such message\r\n"),
        ("\0\0\0\r\n".into(), "-ERR Unknown command\r\n"),
        ("USER x\r\n".into(), "-ERR You are logged in\r\n"),
    ] {
        let (output, _) = session(format!("{LOGIN}{octets}").as_bytes(), &[]);
        let output = String::from_utf8(output).unwrap();
        let answer = output.strip_prefix(LOGGED_IN).unwrap();
        assert!(answer.starts_with(expected), "{}: {answer}", &octets[..octets.len().min(40)]);
    }
}

#[test]
fn a_long_line_forgets_the_login_that_it_was_part_of() {
    let long = "x".repeat(5000);
    let (output, closed) = session(format!("AUTH LOGIN\r\n{long}\r\nQUIT\r\n").as_bytes(), &[]);
    let expected = "+ VXNlcm5hbWU6\r\n-ERR That line is too long\r\n+OK Bye\r\n";
    assert_eq!((String::from_utf8(output).unwrap().as_str(), closed), (expected, true));
    let (output, _) = session(format!("USER ann\r\n{long}\r\nPASS secret\r\n").as_bytes(), &[]);
    assert!(output.ends_with(b"-ERR USER comes before PASS\r\n"), "{}", output.escape_ascii());
}

#[test]
fn a_line_without_an_end_is_cut_off() {
    let (output, closed) = session(&vec![b'x'; 2 << 20], &[]);
    assert_eq!((&output[..], closed), (&b"-ERR That line is too long\r\n"[..], true));
}

#[test]
fn a_flood_of_commands_is_answered_in_pieces() {
    let mut machine = posthaste_pop3::session::Pop3Machine::new(Pop3Config::new("mail.example.org").into(), true);
    machine.greet();
    let mut input = bytes::BytesMut::from("CAPA\r\n".repeat(100_000).as_bytes());
    let mut flushes = 0;
    loop {
        match machine.step(&mut input) {
            posthaste_pop3::session::Pop3Event::Flush => {
                assert!(machine.output().len() < 32 << 10, "{} octets wait", machine.output().len());
                machine.output_mut().clear();
                flushes += 1;
            }
            event => break assert_eq!(event, posthaste_pop3::session::Pop3Event::NeedInput),
        }
    }
    assert!(flushes > 500, "{flushes}");
}

#[test]
fn octets_after_stls_end_the_session() {
    let mut config = Pop3Config::new("mail.example.org");
    config.stls = true;
    let mut host = Host::new(config, false);
    host.read(b"STLS\r\nUSER ann\r\nPASS secret\r\n");
    assert_eq!(host.output, b"-ERR Octets after STLS\r\n");
    assert!(host.closed);
}

#[test]
fn a_message_that_breaks_off_ends_without_a_dot() {
    let mut host = with_message(common::SIMPLE.as_bytes(), 5);
    host.breaks_off = Some(20);
    host.read(b"RETR 1\r\nNOOP\r\n");
    let output = String::from_utf8(host.output).unwrap();
    assert_eq!(output, format!("+OK 46 octets\r\n{}", &common::SIMPLE[..20]));
    assert!(host.closed);
}
