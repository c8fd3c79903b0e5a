//! kill -9 under load, restart, account for every 250. Each acknowledged message is there exactly once, byte for byte;
//! each other one at most once.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{ANYBODY, Client, PATIENCE, Server, command, mailbox};
use rustix::process::Signal;

const ROUNDS: usize = 6;
const CLIENTS: usize = 8;
const USERS: [&str; 3] = ["ann", "ben", "cyn"];

#[test]
fn every_acknowledged_message_survives_kill_9_exactly_once() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Arc::new(Ledger::default());
    for round in 0..ROUNDS {
        let mut server = Server::start(dir.path(), ANYBODY);
        assert_all_there(dir.path(), &ledger);
        let before = ledger.acknowledged.lock().unwrap().len();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (ledger, address) = (Arc::clone(&ledger), server.addresses[0]);
                std::thread::spawn(move || send_until_killed(address, round * CLIENTS + client, &ledger))
            })
            .collect();
        // A different moment each time: in the first commits, and later when batches are full.
        wait_until_more_than(before + round * round * 20, &ledger);
        server.signal(Signal::KILL);
        server.wait();
        for client in clients {
            client.join().unwrap();
        }
    }
    let server = Server::start(dir.path(), ANYBODY);
    assert_all_there(dir.path(), &ledger);
    server.stop();
    assert_exactly_once(dir.path(), &ledger);
    let verified = command(dir.path(), &["spool", "verify", "posthaste-data/spool"]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    println!("{} messages accounted for", ledger.acknowledged.lock().unwrap().len());
}

/// Messages answered with 250.
#[derive(Default)]
struct Ledger {
    acknowledged: Mutex<HashSet<(usize, usize)>>,
}

fn send_until_killed(address: SocketAddr, sender: usize, ledger: &Ledger) {
    let Ok(mut client) = Client::open(address) else { return };
    if client.try_reply().is_err()
        || client.send(b"EHLO client.example.net\r\n").is_err()
        || client.try_reply().is_err()
    {
        return;
    }
    for number in 0.. {
        let to: Vec<String> = users_of(number).iter().map(|user| format!("{user}@example.org")).collect();
        let to: Vec<&str> = to.iter().map(String::as_str).collect();
        match client.try_message("sender@example.net", &to, &message(sender, number)) {
            Ok(reply) => {
                assert_eq!(reply.code, 250, "{reply:?}");
                ledger.acknowledged.lock().unwrap().insert((sender, number));
            }
            Err(_) => return,
        }
    }
}

/// Every fifth message goes to two mailboxes.
fn users_of(number: usize) -> &'static [&'static str] {
    if number % 5 == 4 { &USERS[1..] } else { &USERS[..1] }
}

/// A message of 100 octets to some hundred thousand, sometimes larger than the memory for bodies. Its content is
/// derived from its numbers.
fn message(sender: usize, number: usize) -> Vec<u8> {
    let lines = match number % 23 {
        22 => 20_000,
        11 => 4_000,
        n => n * 12,
    };
    let mut text = format!("Subject: {sender} {number}\r\nMessage-ID: <{sender}.{number}@example.net>\r\n\r\n");
    for line in 0..lines {
        text.push_str(&format!(
            "{}{line} {sender} {number} abcdefghijklmnopqrstuvwxyz 0123456789\r\n",
            &"."[..line % 2]
        ));
    }
    text.into_bytes()
}

/// Copies of each message in each mailbox. A message that differs from its original fails the test.
fn found(dir: &Path) -> HashMap<(&'static str, usize, usize), usize> {
    let mut found = HashMap::new();
    for user in USERS {
        for stored in mailbox(dir, "example.org", user) {
            let text = std::str::from_utf8(stored.without_trace()).expect("only text was sent");
            let mut names = text.lines().next().unwrap_or_default().split(' ').skip(1);
            let mut number = || names.next().and_then(|name| name.parse::<usize>().ok()).expect("two numbers");
            let (sender, number) = (number(), number());
            let sent = String::from_utf8(message(sender, number)).unwrap().replace("\r\n", "\n");
            assert!(text == sent, "message {sender} {number} of {user} is not as it was sent: {}", stored.name);
            *found.entry((user, sender, number)).or_default() += 1;
        }
    }
    found
}

/// Waits, as recovery may continue after the server is ready; duplicates are detected at the end.
fn assert_all_there(dir: &Path, ledger: &Ledger) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = found(dir);
        let missing: Vec<_> = expected(ledger).into_iter().filter(|entry| !found.contains_key(entry)).collect();
        if missing.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "acknowledged and not there: {missing:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn assert_exactly_once(dir: &Path, ledger: &Ledger) {
    let found = found(dir);
    let twice: Vec<_> = found.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "more than once: {twice:?}");
    for entry in expected(ledger) {
        assert_eq!(found.get(&entry), Some(&1), "{entry:?}");
    }
}

fn expected(ledger: &Ledger) -> Vec<(&'static str, usize, usize)> {
    let acknowledged = ledger.acknowledged.lock().unwrap();
    let entries = acknowledged
        .iter()
        .flat_map(|&(sender, number)| users_of(number).iter().map(move |&user| (user, sender, number)));
    entries.collect()
}

/// Waits however slow the machine is, as long as messages are acknowledged.
fn wait_until_more_than(count: usize, ledger: &Ledger) {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let acknowledged = ledger.acknowledged.lock().unwrap().len();
        if acknowledged > count {
            return;
        }
        if acknowledged > last {
            (last, since) = (acknowledged, Instant::now());
        }
        assert!(since.elapsed() < PATIENCE, "{acknowledged} acknowledged, and no more");
        std::thread::sleep(Duration::from_millis(1));
    }
}
