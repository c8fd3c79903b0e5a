//! BDAT: refused, unreadable and immeasurable chunks are never taken for commands.

use posthaste_smtp::server::Config;
use posthaste_smtp::{BareNewlines, NulOctets};

use crate::common::Host;
use crate::support::{OPEN, at_every_cut, codes, config};

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
    // A line that only looks alike is an ordinary command.
    let mut host = Host::new(Config::new("mx.example.org"));
    host.read(b"BDATA 5\r\nBDA\r\nQUIT\r\n");
    assert_eq!(codes(&host), ["220", "500", "500", "221"]);
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
fn reset_between_chunks_gives_the_message_up() {
    let wire = format!("{OPEN}BDAT 3\r\nabcRSET\r\n{}BDAT 2 LAST\r\nok", &OPEN[21..]);
    at_every_cut(&Config::new("mx"), wire.as_bytes(), |host, cut| {
        assert_eq!(codes(host), ["220", "250", "250", "250", "250", "250", "250", "250", "250"], "cut at {cut}");
        assert_eq!(host.messages.len(), 2);
        assert_eq!(host.messages[0].body, Err(()));
        assert_eq!(host.messages[1].body.as_deref(), Ok(&b"ok"[..]));
    });
}
