//! `Idempotency-Key` through the real server: a repeated request is received once, whatever happens in between.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{CONFIG, page_of, serve, token};
use crate::inject::{JSON, request, status, to, try_ask};
use crate::load::{end, sink};
use crate::relaying::{config, list, queue};
use crate::support::{ANYBODY, PATIENCE, Server, mailbox};

/// A client that repeats one request.
struct Client<'a> {
    address: SocketAddr,
    secret: &'a str,
    key: &'a str,
}

/// Status, true for a repeated answer, and the body.
type Answer = (u16, bool, Value);

impl Client<'_> {
    fn try_ask(&self, mail: &Value) -> std::io::Result<Answer> {
        let fields = format!("{JSON}Idempotency-Key: {}\r\n", self.key);
        let (head, body) = try_ask(self.address, &request(self.secret, &fields, &mail.to_string()))?;
        Ok((status(&head), head.contains("\r\nidempotent-replayed: true"), body))
    }

    fn ask(&self, mail: &Value) -> Answer {
        self.try_ask(mail).unwrap()
    }
}

/// A message for each recipient, in the order of their numbers.
fn mailing(domain: &str, recipients: usize) -> Value {
    let all: Vec<Value> = (0..recipients).map(|n| json!({ "email": format!("u{n}@{domain}") })).collect();
    json!({ "envelope_sender": "shop@example.net", "recipients": all, "content": "Subject: to {{ email }}\n\nx\n" })
}

fn received(dir: &Path, recipients: usize) -> Vec<usize> {
    (0..recipients).map(|n| mailbox(dir, "example.org", &format!("u{n}")).len()).collect()
}

#[test]
fn a_repeated_request_is_received_once() {
    let dir = tempfile::tempdir().unwrap();
    let known = ANYBODY.replace("\"any\"", "[\"ann\", \"bob\"]");
    let mut server = Server::start(dir.path(), &format!("{known}{CONFIG}"));
    let (shop, other) = (token(dir.path(), "shop", "inject"), token(dir.path(), "other", "inject"));
    let client = |server: &Server, key| Client { address: page_of(server), secret: &shop, key };
    let mail = to(&["ann@example.org", "eve@example.org"], "Subject: once\n\nx\n");
    let first = client(&server, "order-1").ask(&mail);
    assert_eq!(
        (first.0, first.1, &first.2["success_count"], &first.2["fail_count"]),
        (200, false, &1.into(), &1.into())
    );
    let again = (200, true, first.2);
    assert_eq!(client(&server, "order-1").ask(&mail), again);
    let another = to(&["ann@example.org"], "Subject: once\n\nx\n");
    let (status, _, answer) = client(&server, "order-1").ask(&another);
    assert!(status == 422 && answer["error"].as_str().unwrap().contains("a different body"), "{answer}");
    let nobody = to(&["eve@example.org"], "Subject: x\n\nx\n");
    let refused = client(&server, "order-2").ask(&nobody);
    assert_eq!((refused.0, refused.1), (400, false), "{refused:?}");
    assert_eq!(client(&server, "order-2").ask(&nobody), (400, true, refused.2.clone()));
    // Of another token it is another key, and without one it is another request.
    let (status, is_replayed, _) = Client { address: page_of(&server), secret: &other, key: "order-1" }.ask(&another);
    assert_eq!((status, is_replayed), (200, false));
    server.wait_for_mail("example.org", "ann", 2);
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir.path());
    assert_eq!(client(&server, "order-1").ask(&mail), again);
    assert_eq!(client(&server, "order-2").ask(&nobody), (400, true, refused.2));
    server.stop();
    let server = Server::start_as_it_is(dir.path());
    assert_eq!(client(&server, "order-1").ask(&mail), again);
    assert_eq!(client(&server, "order-1").ask(&another).0, 422);
    let long = "k".repeat(256);
    for key in ["", "a b", "\u{e9}", &long, "a\r\nIdempotency-Key: b"] {
        assert_eq!(client(&server, key).ask(&mail).0, 400, "{key:?}");
    }
    server.stop();
    assert_eq!(mailbox(dir.path(), "example.org", "ann").len(), 2);
}

#[test]
fn kills_between_the_appends_of_a_request_double_nothing() {
    const RECIPIENTS: usize = 120;
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    server.stop();
    let mut cut_short = 0;
    // Each round is another request; it is killed once so many messages more were kept.
    for (round, kept) in [1, 2, 30, 60, 90, 119].into_iter().enumerate() {
        let mut server = Server::start_as_it_is(dir.path());
        let (key, mail) = (format!("mailing-{round}"), mailing("example.org", RECIPIENTS));
        let client = Client { address: page_of(&server), secret: &secret, key: &key };
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| client.try_ask(&mail));
            server.wait_for_log_again("message kept", kept);
            server.signal(Signal::KILL);
            server.wait();
            cut_short += usize::from(asking.join().unwrap().is_err());
        });
        let server = Server::start_as_it_is(dir.path());
        let client = Client { address: page_of(&server), ..client };
        let (status, _, answer) = client.ask(&mail);
        assert_eq!((status, &answer["success_count"]), (200, &RECIPIENTS.into()), "{answer}");
        assert_eq!(client.ask(&mail), (200, true, answer));
        for n in 0..RECIPIENTS {
            server.wait_for_mail("example.org", &format!("u{n}"), round + 1);
        }
        server.stop();
        assert_eq!(received(dir.path(), RECIPIENTS), [round + 1; RECIPIENTS], "round {round}");
    }
    assert!(cut_short > 0, "no request was cut short");
}

/// Recipients of a request that is killed repeatedly. `POSTHASTE_KILL_RECIPIENTS=10000` is the full form, which takes
/// minutes.
fn kill_recipients() -> usize {
    std::env::var("POSTHASTE_KILL_RECIPIENTS").map_or(30, |text| text.parse().unwrap())
}

/// Repeats a request until it is answered, and kills the server whenever it has kept a message more. Returns the number
/// of kills, and the server that runs now.
fn inject_through_kills(dir: &Path, secret: &str, mail: &Value) -> (usize, Server) {
    let recipients = mail["recipients"].as_array().unwrap().len();
    let client = |server: &Server| Client { address: page_of(server), secret, key: "mailing" };
    let mut kills = 0;
    // Each time at least one message more was kept, so this ends.
    loop {
        let mut server = Server::start_as_it_is(dir);
        let client = client(&server);
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(|| client.try_ask(mail));
            while !asking.is_finished() && !server.log_text().contains("message kept") {
                std::thread::sleep(Duration::from_millis(5));
            }
            server.signal(Signal::KILL);
            server.wait();
            asking.join().unwrap()
        });
        match answer {
            Ok((status, _, answer)) => {
                assert_eq!((status, &answer["success_count"]), (200, &recipients.into()), "{answer}");
                break;
            }
            Err(_) => kills += 1,
        }
        assert!(kills <= recipients, "no kill lets the request go on");
    }
    println!("{kills} kills for {recipients} recipients");
    let server = Server::start_as_it_is(dir);
    let (status, is_replayed, answer) = client(&server).ask(mail);
    assert_eq!((status, is_replayed, &answer["success_count"]), (200, true, &recipients.into()), "{answer}");
    (kills, server)
}

#[test]
fn a_request_killed_after_each_append_is_received_once() {
    let recipients = kill_recipients();
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    server.stop();
    let (kills, server) = inject_through_kills(dir.path(), &secret, &mailing("example.org", recipients));
    for n in 0..recipients {
        server.wait_for_mail("example.org", &format!("u{n}"), 1);
    }
    server.stop();
    let all = received(dir.path(), recipients);
    let wrong: Vec<_> = all.iter().enumerate().filter(|(_, count)| **count != 1).take(20).collect();
    assert!(wrong.is_empty() && kills > 0, "after {kills} kills, recipients with so many messages: {wrong:?}");
}

#[test]
fn a_killed_request_is_one_message_each_in_the_sink() {
    let recipients = kill_recipients();
    let dir = tempfile::tempdir().unwrap();
    let (sink, address) = sink(dir.path(), &["--store", "dir:kept"]);
    let port = address.parse::<SocketAddr>().unwrap().port();
    let server = Server::start(dir.path(), &format!("{}{CONFIG}", config(port, "")));
    let secret = token(dir.path(), "shop", "inject");
    server.stop();
    let (kills, server) = inject_through_kills(dir.path(), &secret, &mailing("there.example", recipients));
    let deadline = Instant::now() + PATIENCE + Duration::from_millis(20) * u32::try_from(recipients).unwrap();
    while queue(dir.path(), &["list", "--limit", "1"]).0 == 0 {
        // Mail that was under way in several kills is held, since it could be their cause.
        queue(dir.path(), &["release", "--all"]);
        assert!(Instant::now() < deadline, "mail still waits: {:?}", list(dir.path(), &["--limit", "10"]));
        std::thread::sleep(Duration::from_millis(20));
    }
    server.stop();
    end(sink);
    // A kill between the sink's 250 and its record sends the same message again, with its Message-ID. Another message
    // for the same recipient has another.
    let (mut copies, mut messages) = (0, BTreeMap::<String, BTreeSet<String>>::new());
    for file in std::fs::read_dir(dir.path().join("kept")).unwrap().flatten() {
        if file.path().extension().is_some_and(|ending| ending == "eml") {
            let text = std::fs::read_to_string(file.path()).unwrap();
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).expect(name).to_owned();
            messages.entry(field("Subject: to ")).or_default().insert(field("Message-ID: "));
            copies += 1;
        }
    }
    let expected: BTreeSet<String> = (0..recipients).map(|n| format!("u{n}@there.example")).collect();
    let lost: Vec<_> = expected.iter().filter(|recipient| !messages.contains_key(*recipient)).take(20).collect();
    let doubled: Vec<_> = messages.iter().filter(|(_, ids)| ids.len() != 1).take(20).collect();
    println!("{copies} copies of {} messages", messages.len());
    assert!(lost.is_empty() && doubled.is_empty(), "after {kills} kills, lost: {lost:?}, doubled: {doubled:?}");
    assert!(messages.len() == recipients && kills > 0, "{kills} kills, {} messages", messages.len());
}

#[test]
fn a_repeated_request_goes_on_with_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let quota = "[auth]\nrecipient_rate = \"3/day\"\n";
    let full = "[storage]\nfree_bytes_min = 9000000000000000\n";
    let start = |more: &str| Server::start(dir.path(), &format!("{ANYBODY}{CONFIG}{more}"));
    let server = start(quota);
    let secret = token(dir.path(), "shop", "inject");
    let (mail, larger) = (mailing("example.org", 5), to(&["u0@example.org"], "Subject: x\n\nx\n"));
    let client = |server: &Server, key| Client { address: page_of(server), secret: &secret, key };
    let (status, _, answer) = client(&server, "1").ask(&mail);
    assert_eq!((status, &answer["success_count"], &answer["fail_count"]), (200, &3.into(), &2.into()), "{answer}");
    let (status, is_replayed, answer) = client(&server, "1").ask(&mail);
    assert_eq!((status, is_replayed, &answer["fail_count"]), (200, false, &2.into()), "{answer}");
    server.stop();
    let server = start(full);
    let (status, is_replayed, answer) = client(&server, "1").ask(&mail);
    assert_eq!((status, is_replayed, &answer["success_count"]), (200, false, &3.into()), "{answer}");
    let (status, is_replayed, _) = client(&server, "2").ask(&larger);
    assert_eq!((status, is_replayed), (503, false));
    server.stop();
    let server = start("");
    let (status, is_replayed, answer) = client(&server, "1").ask(&mail);
    assert_eq!((status, is_replayed, &answer["success_count"]), (200, false, &5.into()), "{answer}");
    assert_eq!(client(&server, "1").ask(&mail), (200, true, answer));
    assert_eq!(client(&server, "2").ask(&larger).0, 200);
    server.wait_for_mail("example.org", "u0", 2);
    server.stop();
    assert_eq!(received(dir.path(), 5), [2, 1, 1, 1, 1]);
}

#[test]
fn keys_outlive_the_log_that_brought_them() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path());
    let secret = token(dir.path(), "shop", "inject");
    let mail = to(&["ann@example.org"], "Subject: once\n\nx\n");
    let client = |address, key| Client { address, secret: &secret, key };
    assert_eq!(client(address, "old").ask(&mail).0, 200);
    // The keys go to a snapshot within seconds.
    let snapshots = dir.path().join("posthaste-data/spool/snapshots");
    let has_snapshot = || {
        let names = std::fs::read_dir(&snapshots).into_iter().flatten().flatten();
        names.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("inject-"))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_snapshot() {
        assert!(Instant::now() < deadline, "no snapshot in {}", snapshots.display());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client(address, "new").ask(&mail).0, 200);
    server.stop();
    // Without a listener of HTTP the stream goes on, too.
    let server = Server::start(dir.path(), ANYBODY);
    server.stop();
    let server = Server::start(dir.path(), &format!("{ANYBODY}{CONFIG}"));
    for key in ["old", "new"] {
        assert!(client(page_of(&server), key).ask(&mail).1, "{key}");
    }
    server.stop();
    assert_eq!(mailbox(dir.path(), "example.org", "ann").len(), 2);
}
