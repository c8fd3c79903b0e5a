//! Classes of replies, the suppression list, and incoming reports, with running servers.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::relaying::{self, ANYWHERE, EVENTS, next_hop, wait_for_queue};
use crate::support::{Client, PATIENCE, Server, command};

fn config(port: u16, more: &str) -> String {
    relaying::config(port, &format!("{more}{EVENTS}"))
}

/// Runs a command. Returns its exit status and output.
fn run(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = command(dir, args).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

fn suppressed(dir: &Path, more: &[&str]) -> Vec<Value> {
    let (_, text) = run(dir, &[&["suppression", "list", "--json"], more].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Lines of one kind in the event log of a stopped server.
fn events(dir: &Path, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["event"] == kind).collect()
}

fn send(server: &Server, from: &str, to: &[&str]) {
    let mut client = server.hello();
    let reply = client.try_message(from, to, b"Subject: x\r\nMessage-ID: <1@here.example>\r\n\r\nx\r\n").unwrap();
    assert_eq!(reply.code, 250, "{reply:?}");
}

#[test]
fn what_bounces_as_a_bad_address_is_not_sent_to_again() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let next = next_hop(there.path(), ANYWHERE);
    let config = config(next.addresses[0].port(), "[relay.bounces]\nsuppress_bounces = true\n");
    let mut server = Server::start(dir, &config);
    assert_eq!(run(dir, &["suppression", "list"]), (1, "nothing is suppressed\n".to_owned()));
    send(&server, "eve@here.example", &["nobody@there.example", "ann@there.example"]);
    server.wait_for_mail("here.example", "eve", 1);
    let found = suppressed(dir, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((&found[0]["address"], &found[0]["source"]), (&"nobody@there.example".into(), &"bounce".into()));
    assert!(found[0]["reason"].as_str().unwrap().starts_with("bad-address: 550 5.1.1"), "{found:?}");
    // It is durable: the list command has made it so.
    server.signal(Signal::KILL);
    server.wait();
    // Nobody would answer a connection.
    next.stop();
    let server = Server::start_as_it_is(dir);
    send(&server, "eve@here.example", &["nobody@there.example"]);
    server.wait_for_log("on a suppression list: given up");
    assert_eq!(server.mailbox("here.example", "eve").len(), 1, "no notification");
    wait_for_queue(dir, "nothing waits", |waiting| waiting.is_empty());
    let removed = run(dir, &["suppression", "remove", "NOBODY@there.example"]);
    assert_eq!(removed, (0, "1 removed\n".to_owned()));
    server.stop();
    let bounced = events(dir, "bounced");
    assert_eq!((bounced.len(), &bounced[0]["class"]), (1, &"bad-address".into()), "{bounced:?}");
    let told = events(dir, "suppressed");
    assert_eq!((told.len(), &told[0]["recipient"]), (1, &"nobody@there.example".into()), "{told:?}");
}

#[test]
fn the_list_is_changed_by_commands_and_survives_a_kill() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let mut server = Server::start(dir, &config(1, ""));
    let add = ["suppression", "add", "ann@there.example", "--tenant", "news", "--reason", "her wish", "--for", "90d"];
    assert_eq!(run(dir, &add), (0, "1 suppressed, 1 of them new\n".to_owned()));
    assert_eq!(run(dir, &add), (0, "1 suppressed, 0 of them new\n".to_owned()));
    let (status, text) = run(dir, &["suppression", "add", "no address"]);
    assert!(status == 2 && text.contains("`no address` is not an address"), "{text}");
    let many: String = (0..3000).map(|number| format!("user{number}@there.example\n")).collect();
    std::fs::write(dir.join("list"), format!("# those who left\n\n{many}")).unwrap();
    let (status, text) = run(dir, &["suppression", "import", "list", "--source", "complaint"]);
    assert_eq!((status, &*text), (0, "3000 suppressed, 3000 of them new\n"));
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir);
    assert_eq!(suppressed(dir, &["--source", "complaint"]).len(), 3000);
    let of_ann = suppressed(dir, &["--tenant", "news"]);
    assert_eq!((of_ann.len(), &of_ann[0]["reason"]), (1, &"her wish".into()));
    let (_, table) = run(dir, &["suppression", "list", "--address", "Ann@There.example"]);
    assert!(table.starts_with("address") && table.contains("her wish") && !table.contains("user1"), "{table}");
    // The text of the whole list makes it anew.
    let (_, exported) = run(dir, &["suppression", "export"]);
    assert_eq!(exported.lines().count(), 3001);
    std::fs::write(dir.join("exported"), &exported).unwrap();
    server.stop();
    for name in ["suppression.redb", "suppression.redb.made"] {
        std::fs::remove_file(dir.join("posthaste-data").join(name)).unwrap();
    }
    let server = Server::start_as_it_is(dir);
    assert_eq!(run(dir, &["suppression", "export"]).1, "");
    assert_eq!(run(dir, &["suppression", "import", "exported"]).0, 0);
    assert_eq!(run(dir, &["suppression", "export"]).1, exported);
    let (status, text) = run(dir, &["suppression", "import", "posthaste.toml"]);
    assert!(status == 2 && text.contains("is not an address"), "{text}");
    server.stop();
}

#[test]
fn rules_for_classes_are_read_again_on_a_reload() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let next = next_hop(there.path(), ANYWHERE);
    let rules = |name: &str| {
        let text = format!("[[class]]\nname = '{name}'\npatterns = ['^550 5.1.1 ']\n");
        std::fs::write(dir.join("classes.toml"), text).unwrap();
    };
    rules("first");
    let config = config(next.addresses[0].port(), "[relay.bounces]\nclasses_file = \"classes.toml\"\n");
    let server = Server::start(dir, &config);
    let class = |class: &str| {
        send(&server, "eve@here.example", &["nobody@there.example"]);
        server.wait_for_log(&format!("class=\"{class}\""));
    };
    class("first");
    rules("second");
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    class("second");
    std::fs::write(dir.join("classes.toml"), "[[class]]\nname = 'a b'\npatterns = ['x']\n").unwrap();
    server.signal(Signal::HUP);
    server.wait_for_log("cannot load the bounce rules; keeping the old ones");
    server.stop();
    next.stop();
    std::fs::remove_file(dir.join("classes.toml")).unwrap();
    let (status, text) = run(dir, &["serve"]);
    assert!(status == 2 && text.contains("relay.bounces.classes_file"), "{text}");
}

/// A report of a failure, with its cause.
fn report(to: &str, kind: &str) -> Vec<u8> {
    let part = match kind {
        "abuse" => {
            "Content-Type: message/feedback-report\r\n\r\nFeedback-Type: abuse\r\nUser-Agent: x\r\nVersion: 1\r\n"
                .to_owned()
        }
        status => format!(
            "Content-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.far.example\r\n\r\n\
             Final-Recipient: rfc822; ann@there.example\r\nAction: failed\r\nStatus: {status}\r\nDiagnostic-Code: smtp; 550 {status} no such user\r\n"
        ),
    };
    let report_type = if kind == "abuse" { "feedback-report" } else { "delivery-status" };
    format!(
        "To: <{to}>\r\nSubject: report {kind}\r\nMIME-Version: 1.0\r\nContent-Type: multipart/report; report-type={report_type}; boundary=b\r\n\r\n\
         --b\r\n\r\nwords\r\n--b\r\n{part}\r\n--b\r\nContent-Type: text/rfc822-headers\r\n\r\nMessage-ID: <1@here.example>\r\n\r\n--b--\r\n"
    )
    .into_bytes()
}

#[test]
fn a_bounce_to_a_signed_return_path_goes_to_the_sender() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = here.path();
    let next = next_hop(there.path(), ANYWHERE);
    std::fs::write(dir.join("secret"), "a secret for tests\n").unwrap();
    let more = "[relay.bounces]\nsuppress_bounces = true\nsuppress_complaints = true\n\
                [relay.return_path]\ndomain = \"bounces.here.example\"\nsecret_file = \"secret\"\n";
    let server = Server::start(dir, &config(next.addresses[0].port(), more));
    send(&server, "eve@here.example", &["ann@there.example", "bob@there.example", "carol@there.example"]);
    let sender_of = |user: &str| {
        let text = next.wait_for_mail("there.example", user, 1)[0].text();
        let sender = text.strip_prefix("Return-Path: <").and_then(|rest| rest.split_once('>')).expect("a sender").0;
        assert!(sender.starts_with("bounce+") && sender.ends_with("@bounces.here.example"), "{sender}");
        sender.to_owned()
    };
    let (of_ann, of_bob, of_carol) = (sender_of("ann"), sender_of("bob"), sender_of("carol"));
    assert_ne!(of_ann, of_bob, "each recipient has its own");
    // From anybody, as reports come from anywhere.
    let mut other = Client::open_from(std::net::Ipv4Addr::new(127, 0, 0, 2), server.addresses[0]).unwrap();
    other.reply();
    other.expect("EHLO mx.far.example", 250);
    other.expect("MAIL FROM:<>", 250);
    let forged = of_ann.replacen("bounce+", "bounce+a", 1).replacen("aa", "a", 1);
    let altered = if forged == of_ann { of_ann.replace("bounce+a", "bounce+b") } else { forged };
    for bad in [&*altered, "ann@there.example", "nobody@here.example"] {
        other.expect(&format!("RCPT TO:<{bad}>"), 550);
    }
    other.expect("RSET", 250);
    let mut back = |to: &str, text: &[u8]| assert_eq!(other.try_message("", &[to], text).unwrap().code, 250);
    back(&of_ann, &report(&of_ann, "5.1.1"));
    back(&of_bob, &report(&of_bob, "abuse"));
    back(&of_bob.to_uppercase(), b"Subject: I am away\r\n\r\nuntil Monday\r\n");
    // To the address that was agreed upon with a provider.
    let complaint = String::from_utf8(report(&of_carol, "abuse")).unwrap();
    let complaint = complaint.replace("Feedback-Type", &format!("Original-Mail-From: <{of_carol}>\r\nFeedback-Type"));
    back("eve@here.example", complaint.as_bytes());
    back("eve@here.example", complaint.replace("bounce+", "bounce+a").as_bytes());
    let told = server.wait_for_mail("here.example", "eve", 5);
    assert!(told.iter().any(|told| told.text().contains("Subject: report 5.1.1")), "{told:?}");
    let found = suppressed(dir, &[]);
    let found: Vec<_> =
        found.iter().map(|one| (one["address"].as_str().unwrap(), one["source"].as_str().unwrap())).collect();
    let expected =
        [("ann@there.example", "bounce"), ("bob@there.example", "complaint"), ("carol@there.example", "complaint")];
    assert_eq!(found, expected);
    drop(other);
    server.stop();
    next.stop();
    let told = events(dir, "feedback");
    let told: Vec<_> =
        told.iter().map(|one| (one["kind"].as_str(), one["recipient"].as_str(), one["from"].as_str())).collect();
    let eve = Some("eve@here.example");
    let expected = [
        (Some("failed"), Some("ann@there.example"), eve),
        (Some("abuse"), Some("bob@there.example"), eve),
        (Some("other"), Some("bob@there.example"), eve),
        (Some("abuse"), Some("carol@there.example"), eve),
    ];
    assert_eq!(told, expected);
}

/// A mail host that reports each MAIL and never answers it.
fn silent_host() -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                stream.write_all(b"220 silent\r\n").unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    match line.get(..4) {
                        Some("EHLO") => stream.write_all(b"250 silent\r\n").unwrap(),
                        Some("MAIL") => drop(tell.send(line)),
                        _ => {}
                    }
                }
            });
        }
    });
    (port, told)
}

#[test]
fn a_message_at_work_in_three_crashes_is_held() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let (port, told) = silent_host();
    let mut server = Server::start(dir, &config(port, ""));
    send(&server, "eve@here.example", &["ann@there.example"]);
    // The first crash is in a run that notes nothing.
    for crash in 0..4 {
        let line = told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("crash {crash}: it is not tried"));
        assert!(line.contains("eve@here.example"), "{line}");
        server.signal(Signal::KILL);
        server.wait();
        server = Server::start_as_it_is(dir);
    }
    server.wait_for_log("held: these recipients were in flight in three crashes");
    // The queue holds it once that is durable.
    wait_for_queue(dir, "it is in quarantine", |waiting| {
        waiting.len() == 1 && (&waiting[0]["state"], &waiting[0]["held_by"]) == (&"held".into(), &"quarantine".into())
    });
    // Others are sent as before, and an operator has the last word.
    send(&server, "joe@here.example", &["bob@there.example"]);
    assert!(told.recv_timeout(PATIENCE).unwrap().contains("joe@here.example"));
    assert_eq!(run(dir, &["queue", "release", "--recipient", "ann@there.example"]).1, "1 released\n");
    assert!(told.recv_timeout(PATIENCE).unwrap().contains("eve@here.example"));
    server.signal(Signal::KILL);
    server.wait();
}
