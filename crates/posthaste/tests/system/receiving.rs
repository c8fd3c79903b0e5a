//! The server as clients see it: recipients, bodies, limits, LMTP.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use crate::support::{ANYBODY, Client, MESSAGE, Server};

/// Users and aliases at `example.org`.
pub const ROUTED: &str = r#"
host_name = "mx.example.org"
[[listener]]
address = "127.0.0.1:0"
[[domain]]
name = "example.org"
users = ["alice", "bob"]
aliases = { team = ["alice", "bob"], everybody = ["team", "alice"] }
"#;

#[test]
fn trace_fields_stand_in_front() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["Alice+tag@Example.ORG"], MESSAGE);
    let stored = &server.wait_for_mail("example.org", "alice", 1)[0];
    let text = stored.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Return-Path: <sender@example.net>");
    assert_eq!(lines[1], "Delivered-To: Alice+tag@example.org");
    assert_eq!(lines[2], "Received: from client.example.net ([127.0.0.1])");
    assert!(lines[3].starts_with("\tby mx.example.org with ESMTP id "), "{text}");
    assert!(lines[4].starts_with("\tfor <Alice+tag@Example.ORG>; "), "{text}");
    assert!(lines[4].ends_with(" +0000"), "{text}");
    assert_eq!(lines[5..], ["Subject: hello", "Message-ID: <1@example.net>", "", "body"]);
    client.deliver(&["alice@example.org", "bob@example.org"], MESSAGE);
    let text = server.wait_for_mail("example.org", "bob", 1)[0].text();
    assert!(!text.contains("alice"), "blind copies must not show each other: {text}");
    server.stop();
}

#[test]
fn recipients_are_routed_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ROUTED);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<sender@example.net>", 250);
    let mut check = |to: &str, expected: &str| {
        let reply = client.command(&format!("RCPT TO:<{to}>"));
        let line = format!("{} {}", reply.code, reply.text);
        assert!(line.starts_with(expected), "{to}: {line}");
    };
    check("alice@example.org", "250 ");
    check("nobody@example.org", "550 5.1.1 ");
    check("alice@elsewhere.example", "550 5.7.1 ");
    check("alice@[127.0.0.1]", "550 5.7.1 ");
    check("alice%elsewhere.example@example.org", "550 5.1.1 ");
    check("\"../../etc/passwd\"@example.org", "550 5.1.1 ");
    check("team@EXAMPLE.org", "250 ");
    check("everybody@example.org", "250 ");
    check("bob+lists@example.org", "250 ");
    check("Postmaster", "250 ");
    client.expect("DATA", 354);
    client.send(b"Subject: once\r\n\r\n.\r\n").unwrap();
    assert_eq!(client.reply().code, 250);
    for user in ["alice", "bob", "postmaster"] {
        server.wait_for_mail("example.org", user, 1);
    }
    server.stop();
}

#[test]
fn names_without_domain_are_ours_as_recipients_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ROUTED);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<a> SIZE=1", 250);
    client.expect("RCPT TO:<nobody>", 550);
    client.expect("RCPT TO:<Bob+lists>", 250);
    client.expect("DATA", 354);
    client.send(b"Subject: x\r\n\r\n.\r\n").unwrap();
    assert_eq!(client.reply().code, 250);
    let text = server.wait_for_mail("example.org", "bob", 1)[0].text();
    assert!(text.starts_with("Return-Path: <a>\nDelivered-To: Bob+lists@example.org\nReceived: "), "{text}");
    assert!(!text.contains("\tfor "), "what stands there has a domain: {text}");
    let line = server.wait_for_log("message kept");
    assert!(line.contains("from=\"<a>\" to=\"<Bob+lists>\""), "{line}");
    server.stop();
}

#[test]
fn hostile_names_stay_in_the_mail_directory() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["\"../../../escape\"@example.org"], MESSAGE);
    client.deliver(&["\"a/b\"@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "%2e.%2f..%2f..%2fescape", 1);
    server.wait_for_mail("example.org", "a%2fb", 1);
    let mut names: Vec<_> = std::fs::read_dir(dir.path().join("posthaste-data/mail"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    assert_eq!(names, ["example.org"]);
    server.stop();
}

#[test]
fn a_loop_ends_at_50_hops() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let message = |hops: usize| ["Received: x\r\n".repeat(hops), "\r\nbody\r\n".to_owned()].concat().into_bytes();
    client.deliver(&["a@example.org"], &message(49));
    let reply = client.try_message("s@example.net", &["a@example.org"], &message(50)).unwrap();
    assert_eq!((reply.code, &reply.text[..6]), (554, "5.4.6 "));
    // The session goes on.
    client.deliver(&["a@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "a", 2);
    server.stop();
}

#[test]
fn one_connection_too_many_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[limits]\nconnections = 2\n"));
    let (first, _second) = (server.connect(), server.connect());
    let mut third = Client::open(server.addresses[0]).unwrap();
    let reply = third.reply();
    assert_eq!((reply.code, &reply.text[..6]), (421, "4.3.2 "));
    assert!(server.wait_for_log("turned away").contains("clients=1"));
    drop(first);
    // The place comes free when the server has seen the end of the first connection.
    let mut tries = 0;
    while Client::open(server.addresses[0]).unwrap().reply().code != 220 {
        tries += 1;
        assert!(tries < 10_000, "the place never comes free");
    }
    server.stop();
}

#[test]
fn large_bodies_come_out_whole() {
    let dir = tempfile::tempdir().unwrap();
    // Room for one megabyte in memory, while four clients send three each: most of it takes the way through files.
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[limits]\nmemory_bytes = 1048576\n"));
    let body = |client: usize| {
        let line = format!("{client} {}\r\n", "x".repeat(70));
        format!("Subject: {client}\r\n\r\n{}", line.repeat(40_000)).into_bytes()
    };
    std::thread::scope(|scope| {
        for client in 0..4 {
            let server = &server;
            scope.spawn(move || {
                let mut connection = server.connect();
                connection.expect("EHLO client.example.net", 250);
                for _ in 0..3 {
                    connection.deliver(&[&format!("u{client}@example.org")], &body(client));
                }
            });
        }
    });
    for client in 0..4 {
        let expected = String::from_utf8(body(client)).unwrap().replace("\r\n", "\n");
        for stored in server.wait_for_mail("example.org", &format!("u{client}"), 3) {
            assert!(stored.without_trace() == expected.as_bytes(), "{}", stored.name);
        }
    }
    let spool = dir.path().join("posthaste-data/spool/bodies");
    server.stop();
    let left = std::fs::read_dir(spool).map(|entries| entries.count()).unwrap_or(0);
    assert_eq!(left, 0, "bodies that are delivered leave no file behind");
}

#[test]
fn chunks_arrive_as_one_message() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<s@example.net> BODY=8BITMIME", 250);
    client.expect("RCPT TO:<a@example.org>", 250);
    client.send(b"BDAT 14\r\nSubject: x\r\n\r\nBDAT 9 LAST\r\n.\r\n..\r\n\r\n").unwrap();
    assert_eq!([client.reply().code, client.reply().code], [250, 250]);
    assert_eq!(server.wait_for_mail("example.org", "a", 1)[0].without_trace(), b"Subject: x\n\n.\n..\n\n");
    server.stop();
}

#[test]
fn lmtp_answers_for_each_recipient() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("{ROUTED}\n[[listener]]\nunix = \"lmtp.sock\"\nmode = \"0606\"\nprotocol = \"lmtp\"\n");
    let server = Server::start(dir.path(), &config);
    let mode = std::fs::metadata(dir.path().join("lmtp.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o606, "{mode:o}");
    let mut stream = UnixStream::connect(dir.path().join("lmtp.sock")).unwrap();
    stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    stream
        .write_all(
            b"LHLO local\r\nMAIL FROM:<>\r\nRCPT TO:<alice@example.org>\r\nRCPT TO:<x@example.org>\r\n\
              RCPT TO:<bob@example.org>\r\nDATA\r\nSubject: x\r\n\r\n.\r\nQUIT\r\n",
        )
        .unwrap();
    let lines: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
    let finals: Vec<&str> = lines.iter().filter(|line| line.as_bytes()[3] == b' ').map(|line| &line[..3]).collect();
    assert_eq!(finals, ["220", "250", "250", "250", "550", "250", "354", "250", "250", "221"], "{lines:?}");
    let text = server.wait_for_mail("example.org", "bob", 1)[0].text();
    assert!(text.starts_with("Return-Path: <>\n"), "{text}");
    assert!(text.contains("\nReceived: from local\n\tby mx.example.org with LMTP id "), "{text}");
    server.stop();
}
