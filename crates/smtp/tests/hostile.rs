//! Input that tries to be two things at once: end-of-data look-alikes, refused chunks, endless lines, STARTTLS.

mod common;

use common::Host;
use posthaste_smtp::server::Config;
use posthaste_smtp::{BareNewlines, Limits, LongLines, NulOctets, Protocol};

const OPEN: &str = "EHLO client.example\r\nMAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\n";

/// Each of these has been taken for CRLF.CRLF by some server.
const LOOK_ALIKES: [&[u8]; 20] = [
    b"\n.\n",
    b"\n.\r\n",
    b"\n.\r",
    b"\r.\r",
    b"\r.\r\n",
    b"\r.\n",
    b"\r\n.\n",
    b"\r\n.\r",
    b"\r\n.\r\r\n",
    b"\r\r\n.\r\r\n",
    b"\r\n\r.\r\n",
    b"\r\n.\n\r\n",
    b"\n\n.\n\n",
    b"\r\n\0.\r\n",
    b"\r\n.\0\r\n",
    b"\r\n.\r\0\n",
    b"\r\0\n.\r\n",
    b"\0\r\n\0.\0\r\n",
    b"\r\n..\r\n",
    b"\r\n. \r\n",
];

fn config(bare: BareNewlines, nul: NulOctets) -> Config {
    Config { bare_newlines: bare, nul_octets: nul, ..Config::new("mx.example.org") }
}

/// The replies so far as codes, one for each reply.
fn codes(host: &Host) -> Vec<String> {
    let text = String::from_utf8(host.output.clone()).unwrap();
    text.lines().filter(|line| line.as_bytes()[3] == b' ').map(|line| line[..3].to_owned()).collect()
}

/// Replays `wire` cut at every octet and demands the same result each time.
fn at_every_cut(config: &Config, wire: &[u8], check: impl Fn(&Host, usize)) {
    for cut in 0..=wire.len() {
        let mut host = Host::new(config.clone());
        host.read(&wire[..cut]);
        host.read(&wire[cut..]);
        check(&host, cut);
    }
    let mut host = Host::new(config.clone());
    for octet in wire {
        host.read(&[*octet]);
    }
    check(&host, usize::MAX);
}

#[test]
fn a_look_alike_never_ends_a_message() {
    for bare in [BareNewlines::Reject, BareNewlines::Fix, BareNewlines::Accept] {
        for nul in [NulOctets::Reject, NulOctets::Accept] {
            for fake in LOOK_ALIKES {
                let wire = [
                    format!("{OPEN}DATA\r\n").as_bytes(),
                    b"Subject: first\r\n\r\ntext",
                    fake,
                    b"MAIL FROM:<forged@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\nforged\r\n.\r\nQUIT\r\n",
                ]
                .concat();
                let refused =
                    nul == NulOctets::Reject && fake.contains(&0) || bare == BareNewlines::Reject && has_bare(fake);
                let fate = if refused { "550" } else { "250" };
                at_every_cut(&config(bare, nul), &wire, |host, cut| {
                    let name = fake.escape_ascii();
                    assert_eq!(codes(host), ["220", "250", "250", "250", "354", fate, "221"], "{name} cut at {cut}");
                    assert_eq!(host.messages.len(), 1, "{name} cut at {cut}");
                    let Ok(body) = &host.messages[0].body else { return };
                    assert!(body.ends_with(b"DATA\r\nforged\r\n"), "{name} cut at {cut}");
                    if bare == BareNewlines::Fix {
                        assert!(!has_bare(body), "{name} cut at {cut}: {}", body.escape_ascii());
                    }
                });
            }
        }
    }
}

fn has_bare(bytes: &[u8]) -> bool {
    let crlf = bytes.windows(2).filter(|pair| pair == b"\r\n").count();
    let count = |octet| bytes.iter().filter(|b| **b == octet).count();
    count(b'\r') != crlf || count(b'\n') != crlf
}

#[test]
fn a_chunk_whose_size_cannot_be_read_ends_the_session() {
    let long = format!("BDAT {:0>600}\r\n", 60);
    let lines: [(&[u8], &str); 11] = [
        (b"BDAT 60\n", "500"),
        (b"bdat 60 LAST\n", "500"),
        (b"BDAT 60 LAST \x08\r\n", "500"),
        (b"BDAT 60 LAST \xff\r\n", "500"),
        (b"BDAT\0 60\r\n", "500"),
        (b"BDAT\x0b60\r\n", "500"),
        (b"BDAT\r\n", "501"),
        (b"BDAT 6O LAST\r\n", "501"),
        (b"BDAT -1\r\n", "501"),
        (b"BDAT 99999999999999999999\r\n", "501"),
        (long.as_bytes(), "500"),
    ];
    for (line, code) in lines {
        // With a transaction, within a chunked message, and without either.
        for (before, replies) in [(OPEN, 3), (&*format!("{OPEN}BDAT 3\r\nx\r\n"), 4), ("EHLO client.example\r\n", 1)] {
            let smuggled =
                b"RSET\r\nMAIL FROM:<forged@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\nforged\r\n.\r\n";
            let wire = [before.as_bytes(), line, smuggled].concat();
            at_every_cut(&config(BareNewlines::Reject, NulOctets::Reject), &wire, |host, cut| {
                let name = line.escape_ascii();
                let mut expected = vec!["220"];
                expected.extend(vec!["250"; replies]);
                expected.push(code);
                assert_eq!(codes(host), expected, "{name} cut at {cut}");
                assert!(host.closed, "{name} cut at {cut}");
                assert!(host.messages.iter().all(|message| message.body.is_err()), "{name} cut at {cut}");
            });
        }
    }
    // What only looks alike is a command like any other.
    let mut host = Host::new(Config::new("mx.example.org"));
    host.read(b"BDATA 5\r\nBDA\r\nQUIT\r\n");
    assert_eq!(codes(&host), ["220", "500", "500", "221"]);
}

#[test]
fn a_look_alike_in_a_chunk_is_only_text() {
    for fake in LOOK_ALIKES {
        let body = [b"Subject: first\r\n\r\ntext", fake, b"MAIL FROM:<forged@example.org>\r\n"].concat();
        for first in 0..=body.len() {
            let (one, two) = body.split_at(first);
            let head = format!("{OPEN}BDAT {}\r\n", one.len());
            let middle = format!("BDAT {} LAST\r\n", two.len());
            let wire = [head.as_bytes(), one, middle.as_bytes(), two, b"QUIT\r\n"].concat();
            let mut host = Host::new(config(BareNewlines::Accept, NulOctets::Accept));
            host.read(&wire);
            assert_eq!(codes(&host), ["220", "250", "250", "250", "250", "250", "221"]);
            assert_eq!(host.messages[0].body.as_deref(), Ok(&body[..]), "chunks are not unstuffed");
            if has_bare(&body) {
                let mut host = Host::new(config(BareNewlines::Reject, NulOctets::Accept));
                host.read(&wire);
                assert_eq!(codes(&host)[5], "550", "{} first chunk {first}", fake.escape_ascii());
                assert_eq!(host.messages.len(), 1);
                assert_eq!(codes(&host).last().unwrap(), "221");
            }
        }
    }
}

#[test]
fn refusals_name_their_reason() {
    let check = |config: Config, body: &[u8], expected: &str| {
        let wire = [format!("{OPEN}DATA\r\n").as_bytes(), body, b"\r\n.\r\n"].concat();
        at_every_cut(&config, &wire, |host, cut| {
            let output = String::from_utf8_lossy(&host.output);
            let last = output.lines().last().unwrap();
            assert!(last.starts_with(expected), "{last} cut at {cut}");
        });
    };
    let limits = |change: fn(&mut Limits)| {
        let mut config = Config { long_lines: LongLines::Reject, ..Config::new("mx") };
        change(&mut config.limits);
        config
    };
    check(Config::new("mx"), b"a: b\r\n\r\nbare\nline", "550 5.6.11");
    check(Config::new("mx"), b"a: b\r\n\r\nbare\rline", "550 5.6.11");
    check(Config::new("mx"), b"a: b\r\n\r\nnul\0", "550 5.6.0");
    check(limits(|l| l.message_bytes = 20), b"a: b\r\n\r\n1234567890", "250");
    check(limits(|l| l.message_bytes = 20), b"a: b\r\n\r\n12345678901", "552 5.3.4");
    check(limits(|l| l.header_bytes = 8), b"a: b\r\n\r\nbody", "250");
    check(limits(|l| l.header_bytes = 8), b"a: bc\r\n\r\nbody", "552 5.3.4");
    check(limits(|l| l.text_line_bytes = 10), b"a: b\r\n\r\n.2345678901\r\n1234567890", "250");
    check(limits(|l| l.text_line_bytes = 10), b"a: b\r\n\r\n12345678901", "554 5.6.0");
    // Both at once: the same answer however it was split.
    check(limits(|l| l.message_bytes = 12), b"a: b\r\n\r\nbare\nline and more", "552 5.3.4");
}

#[test]
fn a_refused_chunk_is_read_over_to_its_last_octet() {
    let wire = b"EHLO c\r\nBDAT 12 LAST\r\nQUIT\r\nQUIT\r\nNOOP\r\nMAIL FROM:<a@b.example>\r\nBDAT 6\r\nQUIT\r\n\
        RCPT TO:<unknown@example.org>\r\nBDAT 6 LAST\r\nQUIT\r\nRSET\r\nBDAT 0 LAST\r\nQUIT\r\n";
    at_every_cut(&Config::new("mx"), wire, |host, cut| {
        let expected = ["220", "250", "503", "250", "250", "503", "550", "554", "250", "503", "221"];
        assert_eq!(codes(host), expected, "cut at {cut}");
        assert!(host.messages.is_empty());
    });
}

#[test]
fn chunks_make_one_message() {
    let wire = format!(
        "{OPEN}BDAT 3\r\na: BDAT 0\r\nBDAT 5\r\nb\r\n\r\nDATA\r\nRCPT TO:<c@d.example>\r\nBDAT 0 LAST\r\nBDAT 1\r\nx"
    );
    at_every_cut(&Config::new("mx"), wire.as_bytes(), |host, cut| {
        let expected = ["220", "250", "250", "250", "250", "250", "250", "503", "503", "250", "503"];
        assert_eq!(codes(host), expected, "cut at {cut}");
        assert_eq!(host.messages.len(), 1);
        assert_eq!(host.messages[0].body.as_deref(), Ok(&b"a: b\r\n\r\n"[..]));
    });
}

#[test]
fn a_failed_chunk_fails_those_behind_it() {
    let mut config = Config::new("mx");
    config.limits.message_bytes = 4;
    let wire = format!("{OPEN}BDAT 5\r\n12345BDAT 2\r\n12BDAT 1 LAST\r\n1{}", &OPEN[21..]);
    at_every_cut(&config, wire.as_bytes(), |host, cut| {
        let expected = ["220", "250", "250", "250", "552", "552", "552", "250", "250"];
        assert_eq!(codes(host), expected, "cut at {cut}");
    });
}

#[test]
fn a_chunk_that_cannot_be_measured_ends_the_session() {
    for bad in ["BDAT", "BDAT x", "BDAT -1", "BDAT 1 FIRST", "BDAT 99999999999999999999"] {
        let wire = format!("{OPEN}{bad}\r\nQUIT\r\n");
        at_every_cut(&Config::new("mx"), wire.as_bytes(), |host, cut| {
            assert_eq!(codes(host), ["220", "250", "250", "250", "501"], "{bad} cut at {cut}");
            assert!(host.closed);
        });
    }
    let mut host = Host::new(Config::new("mx"));
    host.read(format!("{OPEN}BDAT 18446744073709551615\r\n").as_bytes());
    assert_eq!(codes(&host).last().unwrap(), "552");
    assert!(host.closed, "nobody reads over that many octets");
}

#[test]
fn what_means_to_be_bdat_never_lets_its_octets_be_commands() {
    for before in [" ", "\t", "  ", "\x01", " \x7f"] {
        let wire = format!("{OPEN}{before}BDAT 17 LAST\r\nRSET\r\nNOOP\r\nQUIT\r\n");
        at_every_cut(&Config::new("mx"), wire.as_bytes(), |host, cut| {
            assert_eq!(codes(host), ["220", "250", "250", "250", "500"], "{before:?} cut at {cut}");
            assert!(host.closed);
        });
    }
    let wire = format!("{OPEN}BDAT17 LAST\r\nRSET\r\n");
    at_every_cut(&Config::new("mx"), wire.as_bytes(), |host, _| assert!(host.closed));
}

#[test]
fn a_web_page_cannot_send_mail() {
    let long = "x".repeat(5000);
    let first =
        ["GET / HTTP/1.1", "post / HTTP/1.1", "PRI * HTTP/2.0", "Host: x", "X-A:b", &format!("PUT /{long} HTTP/1.1")]
            .map(String::from);
    for (index, line) in first.iter().enumerate() {
        for end in ["\r\n", "\n"] {
            let wire = format!("{line}{end}\r\n{OPEN}DATA\r\nforged\r\n.\r\n");
            let check = |host: &Host, cut: usize| {
                assert_eq!(codes(host), ["220", "502"], "{line:?} cut at {cut}");
                assert!(host.closed && host.messages.is_empty());
            };
            if index < 5 {
                at_every_cut(&Config::new("mx"), wire.as_bytes(), check);
            }
            let mut host = Host::new(Config::new("mx"));
            host.read(wire.as_bytes());
            check(&host, 0);
            let mut host = Host::new(Config::new("mx"));
            wire.as_bytes().chunks(700).for_each(|piece| host.read(piece));
            check(&host, 700);
        }
    }
    // Between the chunks of a message it ends the message as well.
    let mut host = Host::new(Config::new("mx"));
    host.read(format!("{OPEN}BDAT 3\r\nabcGET / HTTP/1.1\r\nBDAT 1 LAST\r\nx").as_bytes());
    assert_eq!(codes(&host), ["220", "250", "250", "250", "250", "502"]);
    assert!(host.messages.iter().all(|message| message.body.is_err()) && host.closed);
}

#[test]
fn long_auth_lines_are_kept_only_where_auth_is_offered() {
    let line = format!("AUTH PLAIN {}", "A".repeat(8000));
    let longest = |config: Config| {
        let mut host = Host::new(config);
        host.read(b"EHLO c\r\n");
        let mut longest = 0;
        for piece in line.as_bytes().chunks(100) {
            host.read(piece);
            longest = longest.max(host.input.len());
        }
        host.read(b"\r\n");
        (longest, codes(&host).last().unwrap().clone())
    };
    let (kept, code) = longest(Config::new("mx"));
    assert!(kept <= 612 && code == "500", "{kept} {code}");
    // Before TLS it is not offered either.
    let tls = Config { starttls: true, auth_mechanisms: vec!["PLAIN".into()], ..Config::new("mx") };
    let (kept, code) = longest(tls.clone());
    assert!(kept <= 612 && code == "500", "{kept} {code}");
    assert_eq!(longest(Config { auth_needs_tls: false, ..tls }), (line.len(), "501".into()));
}

#[test]
fn reset_between_chunks_gives_the_message_up() {
    let wire = format!("{OPEN}BDAT 3\r\nabcRSET\r\n{}BDAT 2 LAST\r\nok", &OPEN[21..]);
    at_every_cut(&Config::new("mx"), wire.as_bytes(), |host, cut| {
        assert_eq!(codes(host), ["220", "250", "250", "250", "250", "250", "250", "250", "250"], "cut at {cut}");
        assert_eq!(host.messages.len(), 2);
        assert_eq!(host.messages[0].body, Err(()));
        assert_eq!(host.messages[1].body.as_deref(), Ok(&b"ok"[..]));
    });
}

#[test]
fn octets_behind_starttls_are_never_executed() {
    let config = Config { starttls: true, ..Config::new("mx") };
    let mut host = Host::new(config.clone());
    host.read(b"EHLO c\r\nSTARTTLS\r\nRSET\r\n");
    assert_eq!(codes(&host), ["220", "250", "554"]);
    assert!(host.closed);
    // In a read of its own it belongs to the handshake. What was said in the clear is forgotten.
    let mut host = Host::new(config);
    host.read(b"EHLO c\r\nSTARTTLS\r\n");
    host.read(b"MAIL FROM:<a@b.example>\r\nEHLO c\r\nSTARTTLS\r\n");
    assert_eq!(codes(&host), ["220", "250", "220", "503", "250", "503"]);
    let mut host = Host::new(Config::new("mx"));
    host.read(b"EHLO c\r\nSTARTTLS\r\nAUTH PLAIN AA==\r\nNOOP\r\n");
    assert_eq!(codes(&host), ["220", "250", "502", "502", "250"]);
}

#[test]
fn auth_waits_for_tls() {
    let config = Config { starttls: true, auth_mechanisms: vec!["PLAIN".into()], ..Config::new("mx") };
    let mut host = Host::new(config);
    host.read(b"EHLO c\r\nAUTH PLAIN AA==\r\n");
    assert_eq!(codes(&host), ["220", "250", "538"]);
    assert!(!String::from_utf8_lossy(&host.output).contains("AUTH PLAIN"));
    host.read(b"STARTTLS\r\n");
    host.read(b"EHLO c\r\nAUTH FOO\r\nAUTH plain AGEAYg==\r\n");
    assert!(String::from_utf8_lossy(&host.output).contains("AUTH PLAIN"));
    assert_eq!(codes(&host)[3..], ["220", "250", "504", "535"]);
}

#[test]
fn an_endless_line_costs_no_memory() {
    let mut host = Host::new(Config::new("mx"));
    for _ in 0..10_000 {
        host.read(&[b'x'; 1000]);
        assert!(host.input.len() <= 512);
    }
    assert!(host.input.capacity() < 64 << 10, "{}", host.input.capacity());
    host.read(b"\r\nNOOP\r\n");
    assert_eq!(codes(&host), ["220", "500", "250"]);
}

#[test]
fn an_endless_message_costs_no_memory_and_ends() {
    let mut config = Config::new("mx");
    config.limits.message_bytes = 1 << 20;
    config.limits.discard_bytes = 8 << 20;
    let mut host = Host::new(config);
    host.read(format!("{OPEN}DATA\r\n").as_bytes());
    for _ in 0..20_000 {
        host.read(&[b'x'; 1000]);
        assert!(host.input.is_empty());
    }
    assert!(host.closed);
    assert_eq!(codes(&host), ["220", "250", "250", "250", "354", "552"]);
}

#[test]
fn what_comes_behind_a_refusal_is_bounded() {
    let refused = |message_bytes: u64| {
        let mut config = Config::new("mx");
        config.limits.message_bytes = message_bytes;
        config.limits.discard_bytes = 100;
        config
    };
    // The limit on messages has nothing to do with it: there is none, or it is far away.
    for message_bytes in [0, 1 << 20] {
        for (behind, expected) in [(94, &["354", "550", "250"][..]), (95, &["354", "552"])] {
            let text = format!("a: b\r\n\r\nsome text\n{}\r\n.\r\nNOOP\r\n", "x".repeat(behind));
            let wire = format!("{OPEN}DATA\r\n{text}");
            at_every_cut(&refused(message_bytes), wire.as_bytes(), |host, cut| {
                assert_eq!(codes(host)[4..], *expected, "{behind} octets behind, cut at {cut}");
                assert_eq!(host.closed, expected.len() == 2);
            });
        }
        for (size, closed) in [(100, false), (101, true)] {
            // Nobody asked for it at all, and behind a chunk that was refused.
            for before in ["EHLO client.example\r\n".to_owned(), format!("{OPEN}BDAT 1\r\n\n")] {
                let size = if before.contains("BDAT") { size - 1 } else { size };
                let wire = format!("{before}BDAT {size}\r\n");
                at_every_cut(&refused(message_bytes), wire.as_bytes(), |host, cut| {
                    assert_eq!(host.closed, closed, "{wire:?} cut at {cut}");
                });
            }
        }
    }
}

#[test]
fn an_empty_line_ends_the_header_whatever_ends_the_line() {
    for (bare, reply) in [(BareNewlines::Accept, "250"), (BareNewlines::Fix, "250"), (BareNewlines::Reject, "552")] {
        for end in ["\n\n", "\r\n\n"] {
            let mut config = config(bare, NulOctets::Reject);
            config.limits.header_bytes = 20;
            let wire = format!("{OPEN}DATA\r\na: b{end}a body of more octets than that\r\n.\r\n");
            at_every_cut(&config, wire.as_bytes(), |host, cut| {
                assert_eq!(codes(host).last().unwrap(), reply, "{bare:?} {end:?} cut at {cut}");
            });
        }
    }
}

#[test]
fn chunks_of_nothing_are_counted() {
    let mut config = Config::new("mx");
    config.limits.idle_commands = 5;
    let wire = format!("{OPEN}BDAT 1\r\nx{}BDAT 1\r\ny", "BDAT 0\r\n".repeat(4));
    at_every_cut(&config, wire.as_bytes(), |host, cut| {
        let expected = ["220", "250", "250", "250", "250", "250", "250", "250", "421"];
        assert_eq!(codes(host), expected, "cut at {cut}");
        assert!(host.closed && host.messages.iter().all(|message| message.body.is_err()));
    });
}

#[test]
fn command_line_limits_are_inclusive_and_per_line() {
    let line = |verb: &str, bytes: usize| format!("{verb}{}\r\n", "x".repeat(bytes - verb.len() - 2));
    let cases = [
        (line("NOOP ", 512), "250"),
        (line("NOOP ", 513), "500"),
        (format!("MAIL FROM:<a@b.example> ENVID={}\r\n", "x".repeat(100)), "250"),
        (line("AUTH PLAIN ", 512), "502"),
        (line("AUTH PLAIN ", 513), "500"),
    ];
    for (line, code) in cases {
        let wire = format!("EHLO c\r\n{line}RSET\r\n");
        at_every_cut(&Config { dsn: true, ..Config::new("mx") }, wire.as_bytes(), |host, cut| {
            assert_eq!(codes(host), ["220", "250", code, "250"], "{} octets cut at {cut}", line.len());
        });
    }
    let offers = Config { auth_mechanisms: vec!["PLAIN".into()], auth_needs_tls: false, ..Config::new("mx") };
    for (bytes, code) in [(12_288, "501"), (12_289, "500")] {
        let wire = format!("EHLO c\r\n{}RSET\r\n", line("AUTH PLAIN ", bytes));
        at_every_cut(&offers, wire.as_bytes(), |host, cut| {
            assert_eq!(codes(host), ["220", "250", code, "250"], "{bytes} octets cut at {cut}");
        });
    }
    // Many short lines in one read are not one long line.
    let mut host = Host::new(Config::new("mx"));
    host.read("NOOP\r\n".repeat(150).as_bytes());
    assert!(codes(&host)[1..].iter().all(|code| code == "250"));
}

#[test]
fn commands_end_in_crlf() {
    let wire = b"EHLO c\nNOOP\rQUIT\r\nNOOP\0\r\nNOOP\r\n";
    at_every_cut(&Config::new("mx"), wire, |host, cut| {
        assert_eq!(codes(host), ["220", "500", "500", "500", "250"], "cut at {cut}");
    });
    let lenient = Config { bare_newlines: BareNewlines::Accept, ..Config::new("mx") };
    at_every_cut(&lenient, b"EHLO c\nNOOP\n", |host, _| assert_eq!(codes(host), ["220", "250", "250"]));
}

#[test]
fn a_session_of_errors_ends() {
    let mut config = Config::new("mx");
    config.limits.errors = 3;
    at_every_cut(&config, b"x\r\nx\r\nx\r\nx\r\nNOOP\r\n", |host, _| {
        assert_eq!(codes(host), ["220", "500", "500", "500", "500", "421"]);
        assert!(host.closed);
    });
}

#[test]
fn a_session_of_nothing_ends() {
    let mut config = Config::new("mx");
    config.limits.idle_commands = 3;
    at_every_cut(&config, b"NOOP\r\nRSET\r\nHELP\r\nNOOP\r\nNOOP\r\n", |host, _| {
        assert_eq!(codes(host), ["220", "250", "250", "214", "421"]);
    });
    // Mail makes up for it.
    let wire = format!("{OPEN}DATA\r\n.\r\nNOOP\r\nNOOP\r\nNOOP\r\nNOOP\r\n");
    at_every_cut(&config, wire.as_bytes(), |host, _| {
        assert_eq!(codes(host)[5..], ["250", "250", "250", "250", "421"]);
    });
}

#[test]
fn messages_and_recipients_are_counted() {
    let mut config = Config::new("mx");
    config.limits.messages = Some(1);
    config.limits.recipients = 2;
    let more = "RCPT TO:<c@example.org>\r\nRCPT TO:<d@example.org>\r\n";
    let wire = format!("{OPEN}{more}DATA\r\n.\r\nMAIL FROM:<>\r\nNOOP\r\n");
    at_every_cut(&config, wire.as_bytes(), |host, _| {
        assert_eq!(codes(host), ["220", "250", "250", "250", "250", "452", "354", "250", "421"]);
        assert_eq!(host.messages[0].envelope.recipients.len(), 2);
        assert!(String::from_utf8_lossy(&host.output).contains("250 LIMITS MAILMAX=1 RCPTMAX=2\r\n"));
    });
}

#[test]
fn lmtp_answers_for_each_recipient() {
    let config = Config { protocol: Protocol::Lmtp, ..Config::new("mx") };
    let rcpts = "RCPT TO:<broken@example.org>\r\nRCPT TO:<unknown@example.org>\r\nRCPT TO:<b@example.org>\r\n";
    let wire = format!(
        "EHLO c\r\nLHLO c\r\nMAIL FROM:<>\r\n{rcpts}DATA\r\nx\r\n.\r\nMAIL FROM:<>\r\n{rcpts}BDAT 1\r\nxBDAT 1 LAST\r\n\n"
    );
    at_every_cut(&config, wire.as_bytes(), |host, _| {
        let first = ["220", "500", "250", "250", "250", "550", "250", "354", "451", "250"];
        assert_eq!(codes(host)[..10], first);
        assert_eq!(codes(host)[10..], ["250", "250", "550", "250", "250", "550", "550"]);
    });
}

#[test]
fn smtp_says_250_if_anybody_has_it() {
    let mut host = Host::new(Config::new("mx"));
    host.read(format!("{OPEN}RCPT TO:<broken@example.org>\r\nDATA\r\n.\r\n").as_bytes());
    host.read(b"MAIL FROM:<>\r\nRCPT TO:<broken@example.org>\r\nDATA\r\n.\r\n");
    assert_eq!(codes(&host), ["220", "250", "250", "250", "250", "354", "250", "250", "250", "354", "451"]);
}

#[test]
fn hello_and_data_are_asked_about_where_the_owner_wants_to_be() {
    let asking = Config { asks_hello: true, asks_data: true, ..Config::new("mx.example.org") };
    let mut host = Host::new(asking);
    host.read(b"EHLO unwelcome.example\r\nMAIL FROM:<a@example.org>\r\nEHLO client.example\r\n");
    assert_eq!(codes(&host), ["220", "550", "503", "250"]);
    host.output.clear();
    // The test's judge refuses DATA behind SIZE=4. The next transaction is not disturbed, though the client says no RSET.
    host.read(b"MAIL FROM:<a@example.org> SIZE=4\r\nRCPT TO:<b@example.org>\r\nDATA\r\nDATA\r\n");
    assert_eq!(codes(&host), ["250", "250", "451", "503"]);
    host.output.clear();
    host.read(b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\nx: y\r\n\r\n.\r\n");
    assert_eq!(codes(&host), ["250", "250", "354", "250"]);
    assert_eq!(host.messages.len(), 1);
    host.output.clear();
    // A hello that cuts a body off: first the body's end is told, then the question comes.
    host.read(b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nBDAT 2\r\nxxEHLO unwelcome.example\r\n");
    assert_eq!(codes(&host), ["250", "250", "250", "550"]);
    assert!(host.messages[1].body.is_err());
}
