//! Limits of a client: octets of a line and of a message, errors, empty commands, messages, recipients.

use posthaste_smtp::server::Config;

use crate::common::Host;
use crate::support::{OPEN, at_every_cut, codes};

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
    // The limit on messages does not matter: there is none, or it is far away.
    for message_bytes in [0, 1 << 20] {
        for (behind, expected) in [(94, &["354", "550", "250"][..]), (95, &["354", "552"])] {
            let text = format!("a: b\r\n\r\nsome text\n{}\r\n.\r\nNOOP\r\n", "x".repeat(behind));
            let wire = format!("{OPEN}DATA\r\n{text}");
            at_every_cut(&refused(message_bytes), wire.as_bytes(), |host, cut| {
                assert_eq!(codes(host)[4..], *expected, "{behind} octets after, cut at {cut}");
                assert_eq!(host.closed, expected.len() == 2);
            });
        }
        for (size, closed) in [(100, false), (101, true)] {
            // Without any transaction, and after a refused chunk.
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
    // An accepted message resets the count.
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
fn a_limit_with_too_many_digits_is_not_announced() {
    let mut config = Config::new("mx");
    for (recipients, is_announced) in [(999_999, true), (1_000_000, false), (usize::MAX, false)] {
        config.limits.recipients = recipients;
        at_every_cut(&config, OPEN.as_bytes(), |host, _| {
            assert_eq!(String::from_utf8_lossy(&host.output).contains("LIMITS"), is_announced, "{recipients}");
        });
    }
}
