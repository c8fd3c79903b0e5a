//! Input that tries to be two things at once: end-of-data look-alikes, commands of other protocols, commands after STARTTLS.

use posthaste_smtp::server::Config;
use posthaste_smtp::{BareNewlines, NulOctets};

use crate::common::Host;
use crate::support::{OPEN, at_every_cut, codes, config};

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
fn octets_behind_starttls_are_never_executed() {
    let config = Config { starttls: true, ..Config::new("mx") };
    let mut host = Host::new(config.clone());
    host.read(b"EHLO c\r\nSTARTTLS\r\nRSET\r\n");
    assert_eq!(codes(&host), ["220", "250", "554"]);
    assert!(host.closed);
    // In a read of its own it belongs to the handshake. Facts from the clear are forgotten.
    let mut host = Host::new(config);
    host.read(b"EHLO c\r\nSTARTTLS\r\n");
    host.read(b"MAIL FROM:<a@b.example>\r\nEHLO c\r\nSTARTTLS\r\n");
    assert_eq!(codes(&host), ["220", "250", "220", "503", "250", "503"]);
    let mut host = Host::new(Config::new("mx"));
    host.read(b"EHLO c\r\nSTARTTLS\r\nAUTH PLAIN AA==\r\nNOOP\r\n");
    assert_eq!(codes(&host), ["220", "250", "502", "502", "250"]);
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
fn commands_end_in_crlf() {
    let wire = b"EHLO c\nNOOP\rQUIT\r\nNOOP\0\r\nNOOP\r\n";
    at_every_cut(&Config::new("mx"), wire, |host, cut| {
        assert_eq!(codes(host), ["220", "500", "500", "500", "250"], "cut at {cut}");
    });
    let lenient = Config { bare_newlines: BareNewlines::Accept, ..Config::new("mx") };
    at_every_cut(&lenient, b"EHLO c\nNOOP\n", |host, _| assert_eq!(codes(host), ["220", "250", "250"]));
}
