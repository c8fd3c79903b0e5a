//! The server as its clients and its operator meet it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::support::{ANYBODY, Client, PATIENCE, Server, command};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

const ROUTED: &str = r#"
host_name = "mx.example.org"
[[listener]]
address = "127.0.0.1:0"
[[domain]]
name = "example.org"
users = ["alice", "bob"]
aliases = { team = ["alice", "bob"], everybody = ["team", "alice"] }
"#;

const MESSAGE: &[u8] = b"Subject: hello\r\nMessage-ID: <1@example.net>\r\n\r\nbody\r\n";

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
fn names_without_a_domain_are_ours_as_recipients_and_kept_as_senders() {
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

#[test]
fn sigterm_lets_open_transactions_finish() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), ANYBODY);
    let mut idle = server.connect();
    idle.expect("EHLO client.example.net", 250);
    let mut busy = server.connect();
    busy.expect("EHLO client.example.net", 250);
    busy.expect("MAIL FROM:<s@example.net>", 250);
    busy.expect("RCPT TO:<a@example.org>", 250);
    busy.expect("DATA", 354);
    busy.send(b"Subject: half").unwrap();
    server.signal(Signal::TERM);
    let reply = idle.reply();
    assert_eq!((reply.code, &reply.text[..6]), (421, "4.3.2 "));
    busy.send(b" and half\r\n\r\n.\r\n").unwrap();
    assert_eq!(busy.reply().code, 250);
    assert!(server.wait().success());
    assert!(Client::open(server.addresses[0]).is_err(), "nobody listens any more");
    assert_eq!(server.mailbox("example.org", "a")[0].without_trace(), b"Subject: half and half\n\n");
}

#[test]
fn sighup_reloads_and_keeps_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ROUTED);
    let mut session = server.connect();
    session.expect("EHLO client.example.net", 250);
    session.expect("MAIL FROM:<s@example.net>", 250);
    session.expect("RCPT TO:<carol@example.org>", 550);

    let with_carol = ROUTED.replace("\"bob\"]\n", "\"bob\", \"carol\"]\n")
        + "[limits]\nmessage_bytes = 4096\nconnections = 30\n[log]\nformat = \"json\"\n";
    std::fs::write(dir.path().join("posthaste.toml"), &with_carol).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    assert!(server.wait_for_log("need a restart").contains("\"log\""));
    let and_memory = with_carol.replace("connections = 30\n", "connections = 30\nmemory_bytes = 8388608\n");
    std::fs::write(dir.path().join("posthaste.toml"), &and_memory).unwrap();
    server.signal(Signal::HUP);
    let line = server.wait_for_log("limits.memory_bytes");
    assert!(line.contains("\"log, limits.memory_bytes\""), "they still do: {line}");
    session.expect("RCPT TO:<carol@example.org>", 250);
    let mut fresh = server.connect();
    let hello = fresh.expect("EHLO client.example.net", 250);
    assert!(hello.text.lines().any(|line| line == "SIZE 4096"), "{}", hello.text);
    fresh.expect("MAIL FROM:<s@example.net> SIZE=5000", 552);

    std::fs::write(dir.path().join("posthaste.toml"), "[[domain]]\nnam = \"x\"\n").unwrap();
    server.signal(Signal::HUP);
    let line = server.wait_for_log("configuration not reloaded");
    assert!(line.contains("posthaste.toml:2:1") && !line.contains("\\n"), "{line}");
    // A file that is gone, empty, cut short or unreadable does not turn all mail away.
    let file = dir.path().join("posthaste.toml");
    std::fs::remove_file(&file).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("posthaste.toml: cannot be read: No such file");
    std::fs::write(&file, "").unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("there is no [[domain]] any more");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("posthaste.toml: cannot be read: Is a directory");
    let fresh_too = &mut server.connect();
    fresh_too.expect("EHLO client.example.net", 250);
    fresh_too.expect("MAIL FROM:<s@example.net>", 250);
    fresh_too.expect("RCPT TO:<carol@example.org>", 250);
    fresh_too.expect("QUIT", 221);
    session.expect("RCPT TO:<carol@example.org>", 250);
    // Its transaction is open, and the server would wait for it.
    session.expect("QUIT", 221);
    server.stop();
}

#[test]
fn a_reload_applies_what_it_can_beside_changed_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (kept, other) = (port(), port());
    let listener =
        |port: u16, limits: &str| format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\nlimits = {{ {limits} }}\n");
    let rest = "[[domain]]\nname = \"example.org\"\nusers = \"any\"\n";
    let server = Server::start(dir.path(), &(listener(kept, "message_bytes = 1000") + rest));
    let new = listener(other, "") + &listener(kept, "message_bytes = 2000, hops = 2") + rest;
    std::fs::write(dir.path().join("posthaste.toml"), new).unwrap();
    server.signal(Signal::HUP);
    let line = server.wait_for_log("need a restart");
    assert!(line.contains(&format!("changes=\"listener 127.0.0.1:{other} (added)\"")), "{line}");
    let mut client = server.connect();
    let hello = client.expect("EHLO client.example.net", 250);
    assert!(hello.text.lines().any(|line| line == "SIZE 2000"), "{}", hello.text);
    let hops = |number| [b"Received: from x by y; z\r\n".repeat(number), b"\r\n".to_vec()].concat();
    client.deliver(&["a@example.org"], &hops(1));
    let looping = client.try_message("s@example.net", &["a@example.org"], &hops(2)).unwrap();
    assert_eq!(looping.code, 554, "the listener's own limit of hops: {looping:?}");
    client.expect("QUIT", 221);
    server.stop();
}

#[test]
fn a_second_server_on_the_same_data_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let second = command(dir.path(), &["serve"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2), "{second:?}");
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.starts_with("posthaste: posthaste-data/spool: the spool is in use"), "{said}");
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org"], MESSAGE);
    server.stop();
}

#[test]
fn an_address_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = ANYBODY.replace("127.0.0.1:0", &address);
    std::fs::write(dir.path().join("posthaste.toml"), config).unwrap();
    let refused = command(dir.path(), &["serve"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains(&format!("posthaste: cannot listen on {address}: ")), "{said}");
    assert!(!dir.path().join("posthaste-data").exists(), "a start that fails leaves nothing");
}

#[test]
fn the_socket_that_cannot_be_made_is_named_alone_and_no_other_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let said = |path: &str| {
        std::fs::write(dir.path().join("posthaste.toml"), format!("{ANYBODY}[[listener]]\nunix = \"{path}\"\n"))
            .unwrap();
        let refused = command(dir.path(), &["serve"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        String::from_utf8(refused.stderr).unwrap()
    };
    assert!(said("missing/lmtp.sock").starts_with("posthaste: cannot listen on missing/lmtp.sock: No such file"));
    std::fs::write(dir.path().join("precious.txt"), "years of work").unwrap();
    assert!(said("precious.txt").contains("cannot listen on precious.txt: a file that is not a socket has this name"));
    assert_eq!(std::fs::read_to_string(dir.path().join("precious.txt")).unwrap(), "years of work");
    assert!(!dir.path().join("posthaste-data").exists());
}

#[test]
fn the_log_has_one_line_a_message_and_never_the_body() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[log]\nformat = \"json\"\n"));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let hostile = b"Message-ID: <a\x1b[31m\"\r\n\t{\"x\":1}@y>\r\nSubject: secret subject\r\n\r\nsecret body\r\n";
    client.deliver(&["\"q\\\",x\"@example.org"], hostile);
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<a@elsewhere.example>", 550);
    client.expect("QUIT", 221);
    server.wait_for_log("message kept");
    server.wait_for_log("recipient refused");
    let log = server.log_text();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let kept: Vec<_> = lines.iter().filter(|line| line["message"] == "message kept").collect();
    assert_eq!(kept.len(), 1, "{log}");
    assert_eq!(kept[0]["from"], "<sender@example.net>");
    assert_eq!(kept[0]["to"], "<\"q\\\",x\"@example.org>");
    assert_eq!(kept[0]["bytes"], hostile.len());
    assert_eq!(kept[0]["message_id"], "<a?[31m\"???{\"x\":1}@y>");
    assert!(!log.contains("secret") && !log.contains('\x1b'), "{log}");
    server.stop();
}

#[test]
fn a_message_that_its_client_gave_up_is_not_logged_as_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[log]\nformat = \"json\"\n"));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<a@example.org>", 250);
    client.send(b"BDAT 3\r\nx\r\n").unwrap();
    assert_eq!(client.reply().code, 250);
    client.expect("RSET", 250);
    let line: serde_json::Value = serde_json::from_str(&server.wait_for_log("gave up the message")).unwrap();
    assert_eq!((&line["message"], &line["reply"]), (&"message abandoned".into(), &"".into()));
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<a@example.org>", 250);
    client.expect("DATA", 354);
    drop(client);
    let line: serde_json::Value = serde_json::from_str(&server.wait_for_log("connection ended")).unwrap();
    assert_eq!(line["message"], "message abandoned");
    assert!(!server.log_text().contains("message kept"));
    server.stop();
}

#[test]
fn a_second_signal_waits_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &format!("{ANYBODY}\n[limits]\nshutdown_secs = 3600\n"));
    let mut busy = server.connect();
    busy.expect("EHLO client.example.net", 250);
    busy.deliver(&["a@example.org"], MESSAGE);
    busy.expect("MAIL FROM:<s@example.net>", 250);
    server.signal(Signal::TERM);
    server.wait_for_log("stopping");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(1), "unfinished, and it says so");
    let server = Server::start_as_it_is(dir.path());
    assert_eq!(server.wait_for_mail("example.org", "a", 1).len(), 1);
    server.stop();
}

/// A server that cannot get beyond its start until the returned pipe is read, and its log: a pipe in the place of the spool's lock cannot be
/// opened for writing before somebody reads it. It has had one SIGTERM.
fn stopping_during_its_start(dir: &Path) -> (Child, PathBuf, BufReader<ChildStderr>) {
    let pipe = dir.join("posthaste-data/spool/lock");
    std::fs::create_dir_all(pipe.parent().unwrap()).unwrap();
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    std::fs::write(dir.join("posthaste.toml"), ANYBODY).unwrap();
    let mut server =
        command(dir, &["serve"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the server");
    let status = format!("/proc/{}/status", server.id());
    let listens = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask of signals").trim();
        u64::from_str_radix(caught, 16).unwrap() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    };
    while !listens() {
        assert!(server.try_wait().unwrap().is_none(), "it did not wait for the spool");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    assert!(line.contains("stopping once the spool is replayed"), "{line}");
    (server, pipe, log)
}

#[test]
fn a_signal_before_the_server_is_ready_stops_it_after_the_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, pipe, mut log) = stopping_during_its_start(dir.path());
    let reader = std::fs::File::open(&pipe).unwrap();
    let status = server.wait().unwrap();
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert!(status.success() && rest.contains("stopped"), "{status}\n{rest}");
    let mut banner = String::new();
    server.stdout.take().unwrap().read_to_string(&mut banner).unwrap();
    assert_eq!(banner, "", "it was never ready");
    drop(reader);
}

#[test]
fn a_second_signal_does_not_wait_for_the_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, _, _log) = stopping_during_its_start(dir.path());
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(1));
}

#[test]
fn as_many_files_as_are_allowed_may_be_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Raw::start(dir.path(), "ulimit -Sn 100; ulimit -Hn 200", Stdio::null());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit on open files");
    assert_eq!(files.split_whitespace().take(2).collect::<Vec<_>>(), ["200", "200"]);
    assert!(server.banner.contains("note       200 files may be open"), "{}", server.banner);
    assert!(server.end().success());
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // One pipe for both, open and never read, as with a pager that nobody pages: it holds 64 KiB, and the server some MiB more.
    let mut server = Raw::start(dir.path(), "exec 2>&1", Stdio::null());
    let refused = format!("RCPT TO:<{}@{}example>\r\n", "x".repeat(60), "elsewhere.".repeat(17));
    for _ in 0..60 {
        let mut client = Client::open(server.address).unwrap();
        assert_eq!(client.reply().code, 220);
        client.expect("EHLO client.example.net", 250);
        for _ in 0..5 {
            client.expect("MAIL FROM:<s@example.net>", 250);
            // A line each; then a message, so that so many errors are not held against it.
            client.send(refused.repeat(45).as_bytes()).unwrap();
            for _ in 0..45 {
                assert_eq!(client.reply().code, 550);
            }
            client.expect("RSET", 250);
            client.deliver(&["a@example.org"], MESSAGE);
        }
        client.expect("QUIT", 221);
    }
    assert!(server.end().success());
}

#[test]
fn a_server_of_lmtp_alone_names_no_smtp_command_to_try() {
    let dir = tempfile::tempdir().unwrap();
    let lmtp = "address = \"127.0.0.1:0\"\nprotocol = \"lmtp\"\n";
    let server = Server::start(dir.path(), &ANYBODY.replace("address = \"127.0.0.1:0\"\n", lmtp));
    assert!(!server.banner.contains("curl"), "{}", server.banner);
    let both = format!("{lmtp}[[listener]]\naddress = \"127.0.0.1:0\"\n");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &ANYBODY.replace("address = \"127.0.0.1:0\"\n", &both));
    let smtp = server.addresses[1];
    assert!(server.banner.contains(&format!("curl smtp://{smtp} ")), "{}", server.banner);
}

/// A server that a shell starts behind `before`, its log wherever the test wants it. Killed when dropped.
struct Raw {
    child: Child,
    /// Open as long as the server lives.
    _stdout: BufReader<ChildStdout>,
    banner: String,
    address: SocketAddr,
}

impl Raw {
    fn start(dir: &Path, before: &str, stderr: Stdio) -> Self {
        std::fs::write(dir.join("posthaste.toml"), ANYBODY).unwrap();
        let script = format!("{before}; exec '{}' serve", env!("CARGO_BIN_EXE_posthaste"));
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(dir).args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = shell.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Ready") {
            assert!(stdout.read_line(&mut banner).unwrap() > 0, "it ended: {banner}");
        }
        let address = banner.lines().find_map(|line| line.trim().strip_prefix("listening")?.trim().parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address: {banner}"));
        Self { child, _stdout: stdout, banner, address }
    }

    /// Ends it as an operator does; never waits for ever.
    fn end(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn mail_that_waits_for_a_mailbox_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let domain = dir.path().join("posthaste-data/mail/example.org");
    std::fs::create_dir_all(&domain).unwrap();
    std::fs::write(domain.join("a"), "in the way of a mailbox").unwrap();
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org"], MESSAGE);
    let since = Instant::now();
    let line = server.wait_for_log("mail waits: ");
    assert!(line.contains("WARN") && line.contains("messages=1 "), "{line}");
    assert!(line.contains("example.org/a/Maildir") && line.contains("error="), "{line}");
    std::fs::remove_file(domain.join("a")).unwrap();
    server.wait_for_mail_that_waits(since, "example.org", "a", 1);
    server.stop();
}

#[test]
fn what_the_banner_says_to_try_works() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    assert!(server.banner.contains("receiving  example.org"), "{}", server.banner);
    assert!(server.banner.contains("nothing to restore"), "{}", server.banner);
    let line = server.banner.lines().find(|line| line.contains("curl")).expect("a line to try").trim();
    let address = server.addresses[0].to_string();
    assert!(
        line.contains(&format!("curl smtp://{address} --mail-from you@example.org --mail-rcpt me@example.org -T -"))
    );
    server.stop();
}

#[test]
fn a_start_after_a_crash_tells_what_it_restored() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), ANYBODY);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org", "b@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "a", 1);
    server.wait_for_mail("example.org", "b", 1);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir.path());
    assert!(server.banner.contains("nothing; 1 message in the spool, all in their mailboxes"), "{}", server.banner);
    server.stop();
    let server = Server::start_as_it_is(dir.path());
    assert!(server.banner.contains("nothing to restore"), "{}", server.banner);
    server.stop();
}

#[test]
fn mail_belongs_to_the_owner_of_its_domain_or_account_before_and_after_a_kill() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let own_group = rustix::process::getgroups().unwrap().last().map_or(0, |group| group.as_raw());
    let (own, someone) = (rustix::process::geteuid().as_raw(), if is_root { 65_533 } else { 0 });
    let config = |of_domain: &str, of_account: &str| {
        format!(
            "[[domain]]\nname = \"example.org\"\nusers = \"any\"\nowner = \"{of_domain}\"\nmode = \"0640\"\n\
             [domain.accounts.ann]\nowner = \"{of_account}\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n"
        )
    };
    let refused = |text: &str| {
        std::fs::write(dir.path().join("posthaste.toml"), text).unwrap();
        let refused = command(dir.path(), &["serve"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        String::from_utf8(refused.stderr).unwrap()
    };
    if !is_root {
        let said = refused(&config(":0", &format!("{someone}:0")));
        assert!(said.contains("mail of `example.org` has another owner"), "{said}");
    }
    let said = refused(&format!("user = 65534\ngroup = 65534\n{}", config("65533:65533", "65532:65534")));
    assert!(
        said.contains("the server drops root for this user, but mail of `example.org` has another owner"),
        "{said}"
    );
    assert!(!dir.path().join("posthaste-data").exists());

    // What everybody may do: give files to a group of their own.
    let to_group = format!(":{own_group}");
    let text = if is_root { config("65533:65534", "65532:65534") } else { config(&to_group, &to_group) };
    let mut server = Server::start(dir.path(), &text);
    let deliver = |server: &Server, recipients: &[&str]| {
        let mut client = server.connect();
        client.expect("EHLO client.example.net", 250);
        client.deliver(recipients, MESSAGE);
    };
    deliver(&server, &["carl@example.org"]);
    server.wait_for_mail("example.org", "carl", 1);
    // Mail that only the spool has when the server is killed.
    let mail = dir.path().join("posthaste-data/mail");
    let in_the_way = ["ann", "bob"].map(|user| mail.join("example.org").join(user));
    in_the_way.iter().for_each(|path| std::fs::write(path, "").unwrap());
    deliver(&server, &["ann@example.org", "bob@example.org"]);
    server.signal(Signal::KILL);
    server.wait();
    in_the_way.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    let server = Server::start_as_it_is(dir.path());
    for user in ["ann", "bob"] {
        server.wait_for_mail("example.org", user, 1);
    }
    deliver(&server, &["ann@example.org", "bob@example.org"]);
    for user in ["ann", "bob"] {
        server.wait_for_mail("example.org", user, 2);
        let owner = match (is_root, user) {
            (true, "ann") => (65_532, 65_534),
            (true, _) => (65_533, 65_534),
            _ => (own, own_group),
        };
        let maildir = mail.join("example.org").join(user).join("Maildir");
        for sub in ["..", ".", "tmp", "new", "cur"] {
            let metadata = std::fs::metadata(maildir.join(sub)).unwrap();
            assert_eq!((metadata.mode() & 0o777, (metadata.uid(), metadata.gid())), (0o750, owner), "{user} {sub}");
        }
        for entry in std::fs::read_dir(maildir.join("new")).unwrap() {
            let metadata = entry.unwrap().metadata().unwrap();
            assert_eq!((metadata.mode() & 0o777, (metadata.uid(), metadata.gid())), (0o640, owner), "{user}");
        }
    }
    let bits = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((bits(&mail), bits(&mail.join("example.org"))), (0o711, 0o751), "owners can get through");
    assert_eq!(bits(&dir.path().join("posthaste-data/spool")), 0o700);
    server.stop();
}

#[test]
fn a_server_started_as_root_becomes_its_user_in_every_thread() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    // Relative paths lead through it, and so does the user.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = format!("user = 65534\ngroup = 65534\n{ANYBODY}");
    if !rustix::process::geteuid().is_root() {
        std::fs::write(dir.path().join("posthaste.toml"), config).unwrap();
        let refused = command(dir.path(), &["serve"]).output().unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.starts_with("posthaste: only root can become `65534`"), "{said}");
        return;
    }
    let server = Server::start(dir.path(), &config);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "a", 1);
    let mut threads = 0;
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().map_while(Result::ok) {
        // One may end meanwhile.
        let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else { continue };
        for key in ["Uid:", "Gid:"] {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            assert!(line.split_whitespace().all(|id| id == "65534"), "{status}");
        }
        threads += 1;
    }
    assert!(threads > 3, "{threads}");
    let new = dir.path().join("posthaste-data/mail/example.org/a/Maildir/new");
    let file = std::fs::read_dir(new).unwrap().next().unwrap().unwrap().metadata().unwrap();
    assert_eq!((file.uid(), file.mode() & 0o777), (65534, 0o600));
    server.stop();

    // What root has left there is named.
    std::os::unix::fs::chown(dir.path().join("posthaste-data/spool/lock"), Some(0), Some(0)).unwrap();
    let refused = command(dir.path(), &["serve"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("posthaste-data/spool/lock belongs to uid 0") && said.contains("chown -R 65534: "), "{said}");
}

/// What the server says to a client that a proxy passes on.
fn passed_on(port: u16, from: &str) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "PROXY TCP4 {from} 127.0.0.1 1 25\r\n").unwrap();
    // Who is turned away need not take more.
    let _ = stream.write_all(b"EHLO client.example\r\nQUIT\r\n");
    let mut heard = String::new();
    let _ = stream.read_to_string(&mut heard);
    heard
}

#[test]
fn it_says_when_it_is_ready_and_a_reload_changes_who_may_connect() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let configure = |allow: &str| {
        let text = format!(
            "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:{port}\"\nproxy_protocol = true\n\
             proxies = \"127.0.0.1\"\nallow = \"{allow}\"\n[[network]]\ncidr = \"192.0.2.0/24\"\n\
             limits = {{ message_bytes = 12345 }}\n"
        );
        std::fs::write(dir.path().join("posthaste.toml"), text).unwrap();
    };
    configure("192.0.2.0/24");
    let mut shell = std::process::Command::new("sh");
    shell.current_dir(dir.path()).args(["-c", "exec 3>&1; exec \"$0\" serve --ready-fd 3 >banner 2>log"]);
    let mut child = shell.arg(env!("CARGO_BIN_EXE_posthaste")).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{:?}", std::fs::read_to_string(dir.path().join("log")));
    assert!(passed_on(port, "192.0.2.7").contains("SIZE 12345\r\n"));
    assert!(passed_on(port, "198.51.100.7").starts_with("554 5.7.1 "));
    configure("198.51.100.0/24");
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::HUP).unwrap();
    let begun = Instant::now();
    while !passed_on(port, "198.51.100.7").starts_with("220 ") {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert!(passed_on(port, "192.0.2.7").starts_with("554 5.7.1 "));
    kill_process(pid, Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let refused = command(dir.path(), &["serve", "--ready-fd", "99"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--ready-fd 99: "), "{refused:?}");
}

#[test]
fn readiness_is_told_to_a_socket_and_to_systemd() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("posthaste.toml"), ANYBODY).unwrap();
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut state = [0; 100];
        let bytes = notify.recv(&mut state).expect("a datagram");
        String::from_utf8_lossy(&state[..bytes]).into_owned()
    };
    let (ours, theirs) = UnixStream::pair().unwrap();
    let shell = |redirect: &str, input: Stdio| {
        let mut shell = std::process::Command::new("sh");
        let script = format!("exec {redirect} </dev/null; exec \"$0\" serve --ready-fd 3");
        shell.current_dir(dir.path()).args(["-c", &script, env!("CARGO_BIN_EXE_posthaste")]);
        shell.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped()).env("NOTIFY_SOCKET", dir.path().join("notify"));
        shell
    };
    let mut server = shell("3<&0", Stdio::from(std::os::fd::OwnedFd::from(theirs))).spawn().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut line = String::new();
    BufReader::new(&ours).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), hear().as_str()), ("ready\n", "READY=1"));
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(hear(), "STOPPING=1");
    assert!(server.wait().unwrap().success());

    let refused = shell("3</dev/null", Stdio::null()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("open for reading only"), "{refused:?}");
}
