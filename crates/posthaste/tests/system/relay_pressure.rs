//! Back pressure: bodies leave memory first, then intake is refused; what waits for one host is in nobody's way, and leaves while nothing comes in.

use crate::relaying::{self, wait_for_queue};
use crate::support::Server;

const MESSAGES: usize = 100;
const OCTETS: usize = 900_000;
/// Less than all of them, more than the budgets below with what the allocator keeps.
const MEMORY_MAX: usize = 56 << 20;

/// Receives for both domains.
fn next_hop(dir: &std::path::Path) -> Server {
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
fn what_waits_leaves_memory_blocks_nobody_and_is_sent_while_intake_is_refused() {
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
    // No disk has so much room: nothing is taken any more, and what waits can be sent now.
    let server = Server::start(here.path(), &config(port, "127.0.0.1", "free_bytes_min = 9000000000000000\n"));
    let mut client = server.hello();
    let refused = client.try_message("a@here.example", &["ann@there.example"], b"Subject: no\r\n\r\nx\r\n").unwrap();
    assert!(refused.code == 452 && refused.text.contains("4.3.1"), "{refused:?}");
    next.wait_for_mail("slow.example", "ann", MESSAGES);
    drop(client);
    wait_for_queue(here.path(), "all is recorded", |waiting| waiting.is_empty());
    server.stop();
    next.stop();
}
