//! `posthaste trace`, with the log of a stopped server.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::relay_events::wait_for;
use crate::relaying::{ANYWHERE, EVENTS, config, next_hop};
use crate::support::{Client, Server, command};

/// Runs a trace. Returns its exit status and output.
pub fn trace(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = command(dir, &[&["trace"], args].concat()).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

/// A trace that follows a running server, killed when dropped.
pub struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
    seen: Vec<Value>,
}

impl Watching {
    /// Starts a trace and waits until the server knows it, which a session of its own shows.
    pub fn start(dir: &Path, server: &Server, args: &[&str]) -> Self {
        let mut child =
            command(dir, &[&["trace", "--live", "--json"], args].concat()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut watching = Self { child, lines, seen: Vec::new() };
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_knocking, address) = (stop.clone(), server.addresses[0]);
        let knocking = std::thread::spawn(move || {
            while !stop_knocking.load(Ordering::Relaxed) {
                let mut client = Client::open(address).unwrap();
                client.reply();
                client.expect("EHLO knock.example.net", 250);
                client.expect("MAIL FROM:<>", 250);
                client.command("RCPT TO:<ann@there.example>");
                client.expect("QUIT", 221);
            }
        });
        watching.until("in", "EHLO knock.example.net");
        stop.store(true, Ordering::Relaxed);
        knocking.join().unwrap();
        watching
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Lines of a session from its beginning up to one with this text.
    pub fn until(&mut self, direction: &str, text: &str) -> Vec<Value> {
        let is_it = |line: &Value| line["direction"] == direction && line["line"].as_str().unwrap().contains(text);
        while !self.seen.iter().any(is_it) {
            let line = self.next();
            self.seen.push(line);
        }
        let at = self.seen.iter().position(is_it).unwrap();
        let session = &self.seen[at]["session"];
        self.seen[..=at].iter().filter(|line| line["session"] == *session).cloned().collect()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dialogue(said: &[Value]) -> Vec<String> {
    let side = |line: &Value| if line["said_by"] == "client" { "C" } else { "S" };
    said.iter().map(|line| format!("{}: {}", side(line), line["line"].as_str().unwrap())).collect()
}

#[test]
fn dialogues_both_ways_are_shown_live_without_messages() {
    let (here_dir, there_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there_dir.path(), ANYWHERE);
    let dir = here_dir.path();
    let server = Server::start(dir, &config(next.addresses[0].port(), EVENTS));
    let mut watching = Watching::start(dir, &server, &["--peer", "127.0.0.0/8", "--recipient", "Ann@There.example"]);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.try_message("eve@here.example", &["ann@there.example"], b"Subject: unseen\r\n\r\nunseen\r\n").unwrap();
    let inbound = watching.until("in", "250 2.0.0");
    assert_eq!((&inbound[0]["direction"], dialogue(&inbound)[0].starts_with("S: 220 ")), (&"in".into(), true));
    let said = dialogue(&inbound);
    let commands: Vec<&str> = said.iter().filter_map(|line| line.strip_prefix("C: ")).collect();
    assert_eq!(
        commands,
        ["EHLO client.example.net", "MAIL FROM:<eve@here.example>", "RCPT TO:<ann@there.example>", "DATA"]
    );
    let outbound = watching.until("out", "250 2.0.0");
    let said = dialogue(&outbound);
    assert_eq!((&outbound[0]["direction"], &outbound[0]["peer"]), (&"out".into(), &"there.example (127.0.0.1)".into()));
    assert!(said.contains(&"C: RCPT TO:<ann@there.example>".to_owned()) && said[0].starts_with("S: 220 "), "{said:?}");
    assert!(!said.iter().any(|line| line.contains("unseen")), "{said:?}");
    drop(watching);
    let (code, text) = trace(dir, &["--live", "--peer", "nowhere"]);
    assert!(code == 2 && text.contains("`nowhere` is not an address or network"), "{code} {text}");
    client.expect("QUIT", 221);
    server.stop();
    next.stop();
    let (code, text) = trace(dir, &["--live"]);
    assert!(code == 2 && text.contains("no server runs"), "{code} {text}");
}

#[test]
fn the_story_of_a_message_is_told_also_from_compressed_files() {
    let (here_dir, there_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there_dir.path(), ANYWHERE);
    let dir = here_dir.path();
    let server = Server::start(dir, &config(next.addresses[0].port(), EVENTS));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let message = b"Message-ID: <story@here.example>\r\nSubject: a\r\n\r\nx\r\n";
    let to = ["ann@there.example", "slow@there.example", "eve@here.example"];
    client.try_message("eve@here.example", &to, message).unwrap();
    client.try_message("joe@here.example", &["eve@here.example"], b"Subject: other\r\n\r\n\r\n").unwrap();
    wait_for(dir, "delivered", "recipient", "ann@there.example");
    wait_for(dir, "deferred", "recipient", "slow@there.example");
    let running = trace(dir, &["<STORY@here.example>"]).1;
    assert!(running.contains("  received ") && running.contains("450 4.2.1 Come back"), "{running}");
    server.stop();
    next.stop();

    let (code, by_recipient) = trace(dir, &["ann@there.example"]);
    assert_eq!(code, 0, "{by_recipient}");
    let kinds: Vec<&str> = by_recipient.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2)).collect();
    // Its own mailbox lines have no recipient.
    assert!(kinds.starts_with(&["received"]) && !kinds.contains(&"deferred"), "{by_recipient}");
    assert!(by_recipient.starts_with("message ") && by_recipient.contains("<story@here.example>"), "{by_recipient}");
    assert!(by_recipient.contains("delivered   ann@there.example, host there.example, 250 "), "{by_recipient}");

    // As the server does it once the file is closed.
    let events = dir.join("posthaste-data/events");
    let file = events.join("events-00000001.jsonl");
    let text = std::fs::read(&file).unwrap();
    let mut gzip = Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = gzip.stdin.take().unwrap();
    let writing = std::thread::spawn(move || input.write_all(&text).unwrap());
    let packed = gzip.wait_with_output().unwrap().stdout;
    writing.join().unwrap();
    std::fs::write(events.join("events-00000001.jsonl.gz"), packed).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(trace(dir, &["ann@there.example"]).1, by_recipient);

    let json: Value = serde_json::from_str(&trace(dir, &["story@here.example", "--json"]).1).unwrap();
    let kinds: Vec<&str> = json[0]["events"].as_array().unwrap().iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!((json.as_array().unwrap().len(), kinds[0]), (1, "received"));
    assert!(kinds.contains(&"deferred") && kinds.iter().filter(|kind| **kind == "delivered").count() == 2, "{kinds:?}");
    let number = json[0]["message"].as_str().unwrap();
    assert_eq!(trace(dir, &[number]), trace(dir, &["Story@here.example"]));
    let (_, by_sender) = trace(dir, &["joe@here.example"]);
    assert!(by_sender.contains("from <joe@here.example>") && !by_sender.contains("story"), "{by_sender}");

    let (code, text) = trace(dir, &["nobody@there.example"]);
    assert!(code == 1 && text.contains("nothing about nobody@there.example in the event log in "), "{text}");
    assert_eq!(trace(dir, &["ann@there.example", "--until", "2h"]).0, 1);
    assert_eq!(trace(dir, &["ann@there.example", "--since", "2h"]).0, 0);
    assert_eq!(trace(dir, &["ann@there.example", "--since", "soon"]).0, 2);
}

#[test]
fn a_recipient_is_found_behind_an_alias() {
    let dir = tempfile::tempdir().unwrap();
    let config = "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[domain]]\n\
                  name = \"example.org\"\nusers = [\"ann\", \"anna\"]\n\
                  aliases = { team = [\"ann\"], all = [\"anna\"], root = \"admin@there.example\" }\n\
                  [[relay.route]]\nhost = \"[127.0.0.1]\"\nport = 1\n";
    let server = Server::start(dir.path(), config);
    let mut client = server.hello();
    for to in ["team@example.org", "all@example.org", "root@example.org"] {
        let message = format!("Message-ID: <{to}>\r\n\r\n");
        client.deliver(&[to], message.as_bytes());
    }
    server.stop();
    for (address, message_id) in
        [("ANN@example.org", "team"), ("anna@example.org", "all"), ("admin@there.example", "root")]
    {
        let (code, found) = trace(dir.path(), &[address]);
        assert!(code == 0 && found.contains("  received "), "{address}: {found}");
        assert!(found.starts_with("message ") && found.contains(&format!("<{message_id}@example.org>")), "{found}");
        assert_eq!(found.matches("message ").count(), 1, "{address}: {found}");
    }
}
