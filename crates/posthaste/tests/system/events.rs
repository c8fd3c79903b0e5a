//! The event log, through the server.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{PATIENCE, Server};

const LOGGED: &str = r#"
host_name = "mx.example.org"
[events]
enabled = true
[[listener]]
address = "127.0.0.1:0"
[[domain]]
name = "example.org"
users = ["ann", "bob"]
"#;

const MESSAGE: &[u8] = b"Subject: hello\r\nMessage-ID: <1@example.net>\r\n\r\nbody\r\n";

fn lines(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("posthaste-data/events/events-00000001.jsonl")).unwrap_or_default();
    // Not half a line that is being written.
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    whole.map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn wait_for_lines(dir: &Path, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let lines = lines(dir);
        if lines.len() >= count {
            assert_eq!(lines.len(), count, "{lines:#?}");
            return lines;
        }
        assert!(Instant::now() < deadline, "{count} lines expected: {lines:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn events(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["event"].as_str().expect("a kind")).collect()
}

#[test]
fn each_message_and_refusal_has_its_lines_across_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), LOGGED);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@example.org", "bob@example.org"], MESSAGE);
    let received = wait_for_lines(dir.path(), 3);
    assert_eq!(events(&received), ["received", "delivered", "delivered"]);
    let first = &received[0];
    assert_eq!((&first["message"], &first["recipients"]), (&first["lsn"], &2.into()));
    assert_eq!(first["mailboxes"], serde_json::json!(["example.org/ann/Maildir", "example.org/bob/Maildir"]));
    assert_eq!(first["message_id"], "<1@example.net>");
    assert_eq!((&first["from"], &first["helo"]), (&"<sender@example.net>".into(), &"client.example.net".into()));
    let mut mailboxes: Vec<&str> = received[1..].iter().map(|line| line["mailbox"].as_str().unwrap()).collect();
    mailboxes.sort_unstable();
    assert_eq!(mailboxes, ["example.org/ann/Maildir", "example.org/bob/Maildir"]);
    assert!(received[1..].iter().all(|line| line["message"] == first["message"]));

    client.expect("MAIL FROM:<sender@example.net>", 250);
    client.expect("RCPT TO:<nobody@example.org>", 550);
    client.expect("RSET", 250);
    let refused = &wait_for_lines(dir.path(), 4)[3];
    assert_eq!((&refused["event"], &refused["stage"]), (&"refused".into(), &"recipient".into()));
    assert_eq!(refused["to"], serde_json::json!(["<nobody@example.org>"]));
    let looping = ["Received: x\r\n".repeat(50), "\r\nbody\r\n".to_owned()].concat().into_bytes();
    let reply = client.try_message("s@example.net", &["ann@example.org"], &looping).unwrap();
    assert_eq!(reply.code, 554);
    let refused = &wait_for_lines(dir.path(), 5)[4];
    assert_eq!((&refused["stage"], &refused["why"]), (&"message".into(), &"50 hops".into()));

    let before = std::fs::read(dir.path().join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    server.signal(Signal::KILL);
    server.wait();
    let server = Server::start_as_it_is(dir.path());
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "ann", 2);
    server.stop();
    let all = lines(dir.path());
    assert_eq!(events(&all)[5..], ["received", "delivered"]);
    assert!(all.is_sorted_by_key(|line| line["lsn"].as_str().unwrap().parse::<u64>().unwrap()));
    let after = std::fs::read(dir.path().join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    assert!(after.starts_with(&before), "what was written stays");
}

#[test]
fn an_unwritable_event_log_holds_up_no_mail() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("posthaste-data")).unwrap();
    let obstacle = dir.path().join("posthaste-data/events");
    std::fs::write(&obstacle, "in the way").unwrap();
    let config = LOGGED.replace("enabled = true", "enabled = true\ndir = \"posthaste-data/events/log\"");
    let server = Server::start(dir.path(), &config);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "ann", 1);
    server.wait_for_log("the event log cannot be written");
    server.stop();
    let off = config.replace("enabled = true", "enabled = false");
    let server = Server::start(dir.path(), &off);
    server.wait_for_log("the event log is off");
    server.stop();
    let server = Server::start(dir.path(), &off);
    assert!(!server.log_text().contains("the event log"), "{}", server.log_text());
    server.stop();
}

#[test]
fn a_mailbox_that_cannot_be_written_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let user = dir.path().join("posthaste-data/mail/example.org/ann");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("Maildir"), "in the way").unwrap();
    let server = Server::start(dir.path(), LOGGED);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@example.org"], MESSAGE);
    let waiting = wait_for_lines(dir.path(), 2);
    assert_eq!(events(&waiting), ["received", "waiting"]);
    assert_eq!(waiting[1]["message"], waiting[0]["message"]);
    assert!(!waiting[1]["error"].as_str().unwrap().is_empty());
    std::fs::remove_file(user.join("Maildir")).unwrap();
    let since = Instant::now();
    server.wait_for_mail_that_waits(since, "example.org", "ann", 1);
    server.stop();
    assert_eq!(events(&lines(dir.path())), ["received", "waiting", "delivered"]);
}
