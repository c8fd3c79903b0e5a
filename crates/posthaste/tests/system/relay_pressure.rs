//! Back pressure: bodies leave memory first, then intake is refused; what waits for one host is in nobody's way, and leaves while nothing comes in.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::relaying::{self, queue, unused_port, wait_for_queue};
use crate::support::{PATIENCE, Server, command};

const MESSAGES: usize = 100;
const OCTETS: usize = 900_000;
/// Less than all of them, more than the budgets below with what the allocator keeps.
const MEMORY_MAX: usize = 56 << 20;

/// No disk has so much room: nothing is taken any more.
const SHORT: &str = "free_bytes_min = 9000000000000000\n";

/// Receives for both domains.
fn next_hop(dir: &Path) -> Server {
    let domain = |name: &str| format!("[[domain]]\nname = \"{name}\"\nusers = [\"ann\"]\n");
    let domains = domain("slow.example") + &domain("there.example");
    Server::start(dir, &format!("host_name = \"mx.there.example\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n{domains}"))
}

/// `slow` is the address of the host of slow.example.
fn config(port: u16, slow: &str, storage: &str) -> String {
    let more = format!("memory_bytes = \"2 MiB\"\n[storage]\n{storage}[limits]\nmemory_bytes = \"18 MiB\"\n");
    let hosts = ("\"open.example\" = [\"127.0.0.1\"]", format!("\"slow.example\" = [\"{slow}\"]"));
    relaying::config(port, &more).replace(hosts.0, &hosts.1)
}

#[test]
fn waiting_mail_leaves_memory_and_is_sent_under_pressure() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = next_hop(there.path());
    let port = next.addresses[0].port();
    // Nobody listens at the address of its host.
    let server = Server::start(here.path(), &config(port, "127.0.0.77", ""));
    let before = server.memory_bytes();
    let mut client = server.hello();
    let line = [b"x".repeat(98).as_slice(), b"\r\n"].concat();
    let message = [b"Subject: waits\r\n\r\n".to_vec(), line.repeat(OCTETS / 100)].concat();
    for _ in 0..MESSAGES {
        client.deliver(&["ann@slow.example"], &message);
    }
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{MESSAGES} messages that wait cost {grown}");
    client.deliver(&["ann@there.example"], b"Subject: passes\r\n\r\nx\r\n");
    next.wait_for_mail("there.example", "ann", 1);
    assert!(next.mailbox("slow.example", "ann").is_empty());
    drop(client);
    server.stop();
    // What waits can be sent now.
    let server = Server::start(here.path(), &config(port, "127.0.0.1", SHORT));
    let mut client = server.hello();
    let refused = client.try_message("a@here.example", &["ann@there.example"], b"Subject: no\r\n\r\nx\r\n").unwrap();
    assert!(refused.code == 452 && refused.text.contains("4.3.1"), "{refused:?}");
    next.wait_for_mail("slow.example", "ann", MESSAGES);
    drop(client);
    wait_for_queue(here.path(), "all is recorded", |waiting| waiting.is_empty());
    server.stop();
    next.stop();
}

const BOUNCES: usize = 2000;
/// Notices that are made and wait cost 70 KB each.
const BOUNCES_MEMORY_MAX: usize = 40 << 20;

/// A sink at a port of loopback.
fn sink(dir: &Path, port: u16) -> Child {
    let mut sink = command(dir, &["sink", &format!("127.0.0.1:{port}")]);
    let mut sink = sink.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(sink.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("posthaste: sink listens on "), "{line}");
    sink
}

fn wait_for_summary(dir: &Path, what: &str, holds: impl Fn(&str) -> bool) {
    // Thousands take longer on a loaded machine.
    let deadline = Instant::now() + 3 * PATIENCE;
    loop {
        let text = queue(dir, &["summary"]).1;
        if holds(&text) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn thousands_of_bounces_cost_little_while_the_spool_is_short() {
    let here = tempfile::tempdir().unwrap();
    let (dir, port) = (here.path(), unused_port());
    let config = |storage: &str| relaying::config(port, &format!("[storage]\n{storage}"));
    let server = Server::start(dir, &config(""));
    let mut client = server.hello();
    for number in 0..BOUNCES {
        let text = format!("Subject: bounce {number}\r\n\r\n{}", "a line of text\r\n".repeat(200));
        let reply = client.try_message("eve@here.example", &["permfail@there.example"], text.as_bytes());
        assert_eq!(reply.unwrap().code, 250);
    }
    drop(client);
    server.stop();

    let server = Server::start(dir, &config(SHORT));
    server.wait_for_log("mail waits for these hosts");
    let (begun, before) = (Instant::now(), server.memory_bytes());
    let mut host = sink(dir, port);
    let owed = format!("{BOUNCES} notices to senders are still to be made\n");
    wait_for_summary(dir, "all are owed", |text| text.contains(&owed));
    wait_for_queue(dir, "each refusal is recorded", |waiting| waiting.is_empty());
    server.wait_for_log("cannot be notified yet");
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < BOUNCES_MEMORY_MAX, "{BOUNCES} notices that wait cost {grown}");
    let (lines, minutes) =
        (server.log_text().matches("cannot be notified yet").count(), begun.elapsed().as_secs() / 60);
    assert!(lines as u64 <= minutes + 1, "{lines} lines in {minutes} minutes");
    assert!(server.mailbox("here.example", "eve").is_empty());
    server.stop();
    // Nobody answers a second attempt.
    host.kill().unwrap();
    host.wait().unwrap();

    let server = Server::start(dir, &config(""));
    let notices = server.wait_for_mail_that_waits(begun, "here.example", "eve", BOUNCES);
    let of = |text: String| text.lines().find(|line| line.starts_with("Subject: bounce ")).map(str::to_owned);
    let told: HashSet<String> = notices.iter().filter_map(|notice| of(notice.text())).collect();
    assert_eq!(told.len(), BOUNCES, "each sender is told once");
    wait_for_queue(dir, "nothing is tried again", |waiting| waiting.is_empty());
    wait_for_summary(dir, "none is owed", |text| !text.contains("still to be made"));
    server.stop();
}
