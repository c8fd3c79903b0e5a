//! The queue's data besides recipients: counts, content, reasons, and times.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::relaying::{list, queue, unused_port, wait_for_queue, wait_until_unreachable};
use crate::support::{Server, command};

const CONFIG: &str = r#"
host_name = "mx.here.example"
[[listener]]
address = "127.0.0.1:0"
[listener.limits]
future_release_secs = 86400
[[domain]]
name = "here.example"
users = ["eve"]
[relay]
networks = ["127.0.0.1"]
port = PORT
unreachable_secs = 600
tenant_header = "X-Tenant"
campaign_header = "X-Campaign"
[relay.schedule.default]
first_secs = 3600
[dns]
servers = ["127.0.0.1:9"]
hosts = { "there.example" = ["127.0.0.1"], "other.example" = ["127.0.0.1"] }
"#;

/// Recipients and held recipients of each name in a summary.
fn counts(dir: &Path, by: &str) -> Vec<(String, u64, u64)> {
    let number = |line: &Value, key: &str| line[key].as_u64().unwrap();
    let (_, text) = queue(dir, &["summary", "--by", by, "--json"]);
    let summary: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let lines = summary["counts"].as_array().expect("a list").iter();
    lines
        .map(|line| (line[by].as_str().unwrap().to_owned(), number(line, "recipients"), number(line, "held")))
        .collect()
}

pub fn config(port: u16) -> String {
    CONFIG.replace("PORT", &port.to_string())
}

pub fn start(dir: &Path, port: u16) -> Server {
    Server::start(dir, &config(port))
}

#[test]
fn mail_is_counted_by_name_and_printed_as_it_goes_out() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let server = start(dir, unused_port());
    let mut client = server.hello();
    let text = b"X-Tenant: acme\r\nX-Campaign: spring\r\nSubject: a\r\n\r\n.dots\r\n\xff\xfe\r\n\r\n";
    client.try_message("eve@here.example", &["ann@there.example", "bob@there.example"], text).unwrap();
    client
        .try_message("eve@here.example", &["ann@other.example"], b"X-Tenant: acme\r\nSubject: b\r\n\r\n\r\n")
        .unwrap();
    client.try_message("eve@here.example", &["ann@other.example"], b"Subject: c\r\n\r\n\r\n").unwrap();
    wait_until_unreachable(&server, dir, 2);
    assert_eq!(queue(dir, &["hold", "--tenant", "acme", "--domain", "other.example"]).0, 0);
    let named = |name: &str, count, held| (name.to_owned(), count, held);
    assert_eq!(counts(dir, "tenant"), [named("acme", 3, 1), named("", 1, 0)]);
    assert_eq!(counts(dir, "campaign"), [named("", 2, 1), named("spring", 2, 0)]);
    assert_eq!(counts(dir, "domain"), [named("other.example", 2, 1), named("there.example", 2, 0)]);
    let sites = counts(dir, "site");
    assert_eq!(sites.iter().map(|(_, count, _)| count).sum::<u64>(), 4, "{sites:?}");
    let (_, table) = queue(dir, &["summary", "--by", "tenant", "--sender", "eve@here.example"]);
    assert!(table.starts_with("tenant ") && table.contains("\nacme "), "{table}");
    let first = list(dir, &["--limit", "1"]);
    assert_eq!((first.len(), list(dir, &["--limit", "0"]).len()), (1, 0));
    let id = first[0]["id"].as_str().unwrap().split('.').next().unwrap().to_owned();
    let printed = command(dir, &["queue", "cat", &id]).output().unwrap();
    let shown = printed.stdout.escape_ascii().to_string();
    assert!(printed.stdout.starts_with(b"Received: from client.example.net"), "{shown}");
    assert!(printed.stdout.ends_with(b"\r\nSubject: a\r\n\r\n.dots\r\n\xff\xfe\r\n\r\n"), "{shown}");
    assert!(!shown.contains("X-Tenant"), "{shown}");
    let (_, header) = queue(dir, &["cat", "--header", &id]);
    assert!(header.starts_with("Received: ") && header.ends_with("\r\nSubject: a\r\n\r\n"), "{header}");
    assert_eq!(queue(dir, &["cat", "999999"]).0, 2);
    server.stop();
}

/// Answers each recipient with 450 and a text of its own.
pub fn deferring(listener: std::net::TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || {
                let mut input = std::io::BufReader::new(stream.try_clone().unwrap());
                let mut out = stream;
                let _ = out.write_all(b"220 there.example\r\n");
                let mut line = String::new();
                while std::io::BufRead::read_line(&mut input, &mut line).is_ok_and(|len| len > 0) {
                    let reply = match line.get(..4).unwrap_or_default() {
                        "RCPT" => format!("450 4.2.0 the mailbox of {} is busy\r\n", line[8..].trim()),
                        "DATA" => "503 no\r\n".to_owned(),
                        "QUIT" => return,
                        _ => "250 ok\r\n".to_owned(),
                    };
                    let _ = out.write_all(reply.as_bytes());
                    line.clear();
                }
            });
        }
    });
}

#[test]
fn the_reason_of_a_wait_survives_kills_and_orderly_ends() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = start(dir, listener.local_addr().unwrap().port());
    deferring(listener);
    let mut client = server.hello();
    client
        .try_message("eve@here.example", &["ann@there.example", "bob@there.example"], b"Subject: a\r\n\r\n\r\n")
        .unwrap();
    wait_for_queue(dir, "each is tried", |waiting| {
        waiting.len() == 2 && waiting.iter().all(|line| line["attempts"] != 0)
    });
    let check = |at: &str| {
        let waiting = list(dir, &[]);
        for (name, line) in ["ann", "bob"].iter().zip(&waiting) {
            let why = line["why"].as_str().unwrap_or_default();
            assert!(why.contains(&format!("the mailbox of <{name}@there.example> is busy")), "{at}: {waiting:?}");
        }
    };
    check("live");
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir);
    check("after a kill");
    server.stop();
    let server = Server::start_as_it_is(dir);
    check("after an end, which wrote a snapshot");
    server.stop();
}

#[test]
fn mail_that_is_to_leave_later_waits_and_what_expires_is_told() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let server = start(dir, unused_port());
    let mut client = server.connect();
    let hello = client.expect("EHLO client.example.net", 250);
    let offered = hello.text.lines().find_map(|line| line.strip_prefix("FUTURERELEASE 86400 "));
    let latest = offered.unwrap_or_else(|| panic!("{hello:?}")).to_owned();
    for (line, code) in [
        ("MAIL FROM:<eve@here.example> HOLDFOR=86401", 501),
        ("MAIL FROM:<eve@here.example> HOLDUNTIL=2100-01-01T00:00:00Z", 501),
        (&format!("MAIL FROM:<eve@here.example> HOLDUNTIL={latest}"), 250),
        ("RSET", 250),
        ("MAIL FROM:<eve@here.example> HOLDFOR=1 HOLDUNTIL=2027-01-01T00:00:00Z", 501),
        ("MAIL FROM:<eve@here.example> XEXPIRES=2000-01-01T00:00:00Z", 501),
        ("MAIL FROM:<eve@here.example> HOLDFOR=3600", 250),
        ("RCPT TO:<eve@here.example>", 550),
        ("RCPT TO:<ann@there.example>", 250),
        ("DATA", 354),
        ("Subject: later\r\n\r\n.", 250),
    ] {
        client.expect(line, code);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let waiting = list(dir, &[]);
    let until = waiting[0]["until"].as_i64().unwrap() - now;
    assert!(waiting[0]["state"] == "scheduled" && (3500..=3600).contains(&until), "{waiting:?}");
    let age = waiting[0]["expires"].as_i64().unwrap() - now - until;
    assert_eq!(age, 5 * 86_400, "its age counts from its release on");
    let mut sendmail = command(
        dir,
        &[
            "sendmail",
            "-C",
            "posthaste.toml",
            "-f",
            "eve@here.example",
            "--not-before",
            "2h",
            "--expires",
            "3h",
            "bob@other.example",
        ],
    )
    .stdin(Stdio::piped())
    .spawn()
    .unwrap();
    sendmail.stdin.take().unwrap().write_all(b"Subject: later still\n\nx\n").unwrap();
    assert!(sendmail.wait().unwrap().success());
    wait_for_queue(dir, "sendmail's is there", |waiting| waiting.len() == 2);
    let found = list(dir, &["--recipient", "bob@other.example"]);
    let (until, expires) = (found[0]["until"].as_i64().unwrap() - now, found[0]["expires"].as_i64().unwrap() - now);
    assert!((7100..=7300).contains(&until) && (10_700..=10_900).contains(&expires), "{found:?}");
    // Neither a reload nor an operator has it leave earlier.
    let times = || list(dir, &[]).iter().map(|line| (line["state"].clone(), line["until"].clone())).collect::<Vec<_>>();
    let before = times();
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    assert_eq!(times(), before, "after a reload");
    for (action, count) in [("flush", 0), ("requeue", 0), ("hold", 2), ("release", 2)] {
        let (status, said) = queue(dir, &[action, "--all"]);
        assert!(status == i32::from(count == 0) && said.starts_with(&format!("{count} ")), "{action}: {said}");
        // An action is applied after its answer.
        wait_for_queue(dir, "none is under way", |waiting| waiting.iter().all(|line| line["state"] != "under way"));
    }
    assert_eq!(times(), before, "after what an operator did");
    server.stop();
}

#[test]
fn a_reload_keeps_the_next_attempt_and_a_flush_does_not() {
    let here = tempfile::tempdir().unwrap();
    let dir = here.path();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = start(dir, listener.local_addr().unwrap().port());
    deferring(listener);
    server.hello().try_message("eve@here.example", &["ann@there.example"], b"Subject: a\r\n\r\n\r\n").unwrap();
    wait_for_queue(dir, "it is tried", |waiting| waiting.iter().any(|line| line["state"] == "scheduled"));
    let attempts = || list(dir, &[])[0]["attempts"].as_u64().unwrap();
    let (before, until) = (attempts(), list(dir, &[])[0]["until"].clone());
    server.signal(Signal::HUP);
    server.wait_for_log("configuration reloaded");
    assert_eq!((attempts(), &list(dir, &[])[0]["until"]), (before, &until), "no attempt at a reload");
    assert_eq!(queue(dir, &["flush", "--all"]).0, 0);
    wait_for_queue(dir, "it is tried again, once", |waiting| {
        let attempts = waiting[0]["attempts"].as_u64().unwrap();
        assert!(attempts <= before + 1, "one attempt at the reload, another by the flush");
        attempts == before + 1
    });
    server.stop();
}
