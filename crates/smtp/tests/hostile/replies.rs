//! Replies, and the recipients that they are for.

use posthaste_smtp::server::Config;
use posthaste_smtp::{Limits, LongLines, Protocol};

use crate::common::Host;
use crate::support::{OPEN, at_every_cut, codes};

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
    // The test's judge refuses DATA after SIZE=4. The next transaction is not disturbed, though the client sends no
    // RSET.
    host.read(b"MAIL FROM:<a@example.org> SIZE=4\r\nRCPT TO:<b@example.org>\r\nDATA\r\nDATA\r\n");
    assert_eq!(codes(&host), ["250", "250", "451", "503"]);
    host.output.clear();
    host.read(b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nDATA\r\nx: y\r\n\r\n.\r\n");
    assert_eq!(codes(&host), ["250", "250", "354", "250"]);
    assert_eq!(host.messages.len(), 1);
    host.output.clear();
    // A hello that cuts a body off: first the event of the body's end, then the question.
    host.read(b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.org>\r\nBDAT 2\r\nxxEHLO unwelcome.example\r\n");
    assert_eq!(codes(&host), ["250", "250", "250", "550"]);
    assert!(host.messages[1].body.is_err());
}
