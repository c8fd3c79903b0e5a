//! Limits on what one client can make the server hold, and their effect on others.

use std::io::BufRead;
use std::path::Path;

use crate::relay_events::wait_for;
use crate::support::{ANYBODY, Client, PATIENCE, Server};

const MESSAGE: &[u8] = b"Subject: hello\r\n\r\nbody\r\n";

/// A client whose message has begun.
fn begun(server: &Server) -> Client {
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<a@example.org>", 250);
    client
}

#[test]
fn clients_that_stall_keep_nobody_from_sending() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}{LEAST_BUDGET}"));
    let mut stalled = Vec::new();
    for octets in [0, 100, 48 << 10] {
        // More than there is room for in memory, and more than may be written to files at a time.
        for _ in 0..80 {
            let mut client = begun(&server);
            // Answered at once, whatever the others hold.
            client.expect("DATA", 354);
            client.send(&vec![b'x'; octets]).unwrap();
            stalled.push(client);
        }
        let mut client = server.connect();
        client.expect("EHLO client.example.net", 250);
        client.deliver(&["b@example.org"], MESSAGE);
    }
    assert_eq!(server.wait_for_mail("example.org", "b", 3).len(), 3);
}

#[test]
fn a_message_in_single_octets_costs_its_size() {
    const OCTETS: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let mut client = begun(&server);
    client.send(b"BDAT 14\r\nSubject: x\r\n\r\n").unwrap();
    assert_eq!(client.reply().code, 250);
    let before = server.memory_bytes();
    for _ in 0..OCTETS {
        // Each in a packet and a read of its own.
        client.send(b"BDAT 1\r\nx").unwrap();
        assert_eq!(client.reply().code, 250);
    }
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{OCTETS} octets cost {grown}");
    client.expect("BDAT 0 LAST", 250);
    let body = server.wait_for_mail("example.org", "a", 1)[0].without_trace().lines().nth(2).unwrap().unwrap();
    assert_eq!(body.len(), OCTETS);
}

#[test]
fn a_message_that_cannot_fit_is_refused_before_it_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[limits]\nmessage_bytes = 0\n"));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let reply = client.expect("MAIL FROM:<s@example.net> SIZE=9000000000000000000", 452);
    assert!(reply.text.starts_with("4.3.1 "), "{reply:?}");
    client.expect("MAIL FROM:<s@example.net> SIZE=2000000", 250);
    let spool = std::fs::read_dir(dir.path().join("posthaste-data/spool/bodies")).unwrap();
    assert_eq!(spool.count(), 0, "asking leaves no file behind");
    client.expect("RCPT TO:<a@example.org>", 250);
    client.expect("QUIT", 221);
    server.stop();
}

#[test]
fn space_announced_by_stalled_uploads_is_free_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let limits = "\n[limits]\nmessage_bytes = 0\nspool_per_address = \"100%\"\n";
    let server = Server::start(dir.path(), &format!("{ANYBODY}{limits}"));
    let space = rustix::fs::statvfs(dir.path()).unwrap();
    let third = space.f_bavail * space.f_frsize / 3;
    let chunk = [b"Subject: x\r\n\r\n".to_vec(), vec![b'x'; 1_200_000]].concat();
    let begin = |announced: &str| {
        let mut client = server.connect();
        client.expect("EHLO client.example.net", 250);
        client.expect(&format!("MAIL FROM:<s@example.net>{announced}"), 250);
        client.expect("RCPT TO:<a@example.org>", 250);
        // So much goes to a file, and then nothing more comes.
        send_chunk(&mut client, &chunk);
        client
    };
    let stalled: Vec<Client> = (0..12).map(|_| begin(&format!(" SIZE={third}"))).collect();
    begin("").expect("BDAT 0 LAST", 250);
    begin(" SIZE=2000000").expect("BDAT 0 LAST", 250);
    server.wait_for_mail("example.org", "a", 2);
    drop(stalled);
}

#[test]
fn stalled_large_uploads_of_one_address_leave_room() {
    let dir = tempfile::tempdir().unwrap();
    let limits = "\n[limits]\nmessage_bytes = \"2M\"\nspool_per_address = \"4M\"\n";
    let server = Server::start(dir.path(), &format!("{ANYBODY}{limits}"));
    let chunk = [b"Subject: x\r\n\r\n".to_vec(), vec![b'x'; 1_200_000]].concat();
    let connect = |last: u8| {
        let from = std::net::Ipv4Addr::new(127, 0, 0, last);
        let mut client = Client::open_from(from, server.addresses[0]).unwrap();
        assert_eq!(client.reply().code, 220);
        client.expect("EHLO client.example.net", 250);
        client
    };
    let envelope = |last: u8| {
        let mut client = connect(last);
        client.expect("MAIL FROM:<s@example.net>", 250);
        client.expect("RCPT TO:<a@example.org>", 250);
        client
    };
    let begin = |last: u8| {
        let mut client = envelope(last);
        send_chunk(&mut client, &chunk);
        client
    };
    let stalled: Vec<Client> = (0..3).map(|_| begin(1)).collect();
    let mut refused = envelope(1);
    refused.send(format!("BDAT {}\r\n", chunk.len()).as_bytes()).unwrap();
    refused.send(&chunk).unwrap();
    // Refused as soon as that is known: with this chunk, or with the next.
    assert!([250, 452].contains(&refused.reply().code));
    let reply = refused.expect("BDAT 0 LAST", 452);
    assert!(reply.text.starts_with("4.3.1 Too much of your mail is under way"), "{reply:?}");
    let why = "other large messages under way from 127.0.0.1 hold 3840 KiB of the spool";
    let line = server.wait_for_log("message refused");
    assert!(line.contains(why) && line.contains("above 4 MiB (limits.spool_per_address)"), "{line}");
    connect(1).expect("MAIL FROM:<s@example.net> SIZE=1500000", 452);
    assert!(server.wait_for_log("no room for a large message").contains(why));
    // Small ones take nothing of the spool.
    connect(1).deliver(&["b@example.org"], MESSAGE);
    for _ in 0..4 {
        begin(2).expect("BDAT 0 LAST", 250);
    }
    drop(stalled);
    let deadline = std::time::Instant::now() + PATIENCE;
    let mut client = connect(1);
    while client.command("MAIL FROM:<s@example.net> SIZE=1500000").code != 250 {
        assert!(std::time::Instant::now() < deadline, "what the clients that left had is not given back");
        client = connect(1);
    }
}

#[test]
fn a_hello_name_is_kept_up_to_255_octets() {
    let dir = tempfile::tempdir().unwrap();
    let lenient = "[[network]]\ncidr = [\"127.0.0.2\"]\npolicy.lenient_commands = true\n[events]\nenabled = true\n";
    let server = Server::start(dir.path(), &format!("{ANYBODY}{lenient}"));
    let longest = "x".repeat(255);
    let mut client = server.connect();
    for (hello, code) in [("HELO", 501), ("EHLO", 501), ("LHLO", 501)] {
        client.expect(&format!("{hello} {longest}x"), code);
        client.expect(&format!("{hello} [{longest}]"), code);
        client.expect(&format!("{hello} {}", longest.repeat(40)), 500);
    }
    client.expect("MAIL FROM:<s@example.net>", 503);
    client.expect(&format!("EHLO {longest}"), 250);
    client.deliver(&["a@example.org"], MESSAGE);
    // A device whose name is mended.
    let mut device = Client::open_from([127, 0, 0, 2].into(), server.addresses[0]).unwrap();
    assert_eq!(device.reply().code, 220);
    device.expect(&format!("HELO {}", "x y ".repeat(100)), 250);
    device.deliver(&["b@example.org"], MESSAGE);
    for (user, name) in [("a", &*longest), ("b", &"x-y-".repeat(64)[..255])] {
        let received = wait_for(dir.path(), "received", "helo", name);
        assert_eq!(received[0]["to"][0], format!("<{user}@example.org>"), "{received:?}");
    }
    server.stop();
}

/// The least budget there can be is taken for 18 MiB; allocators keep some of what they get back.
const LEAST_BUDGET: &str = "\n[limits]\nmemory_bytes = 1048576\n";
const LEAST_BUDGET_COSTS: usize = 56 << 20;

/// A server with the least budget, clients whose messages have begun, and the server's memory now.
fn crowded(dir: &Path, clients: usize) -> (Server, Vec<Client>, usize) {
    let server = Server::start(dir, &format!("{ANYBODY}{LEAST_BUDGET}"));
    let crowd = (0..clients).map(|_| begun(&server)).collect();
    let before = server.memory_bytes();
    (server, crowd, before)
}

/// Sends a chunk other than the last. Once it is answered, all of it has been read.
fn send_chunk(client: &mut Client, octets: &[u8]) {
    client.send(format!("BDAT {}\r\n", octets.len()).as_bytes()).unwrap();
    client.send(octets).unwrap();
    assert_eq!(client.reply().code, 250);
}

#[test]
fn a_crowd_of_unfinished_headers_stays_within_the_budget() {
    const CLIENTS: usize = 60;
    let dir = tempfile::tempdir().unwrap();
    let (server, mut crowd, before) = crowded(dir.path(), CLIENTS);
    // Just below what a header may have, and no blank line; all of it in one field that has to be looked at.
    let line = [b" ", "x".repeat(997).as_bytes(), b"\r\n"].concat();
    let header = [b"Message-ID:\r\n".to_vec(), line.repeat(1040)].concat();
    for client in &mut crowd {
        send_chunk(client, &header);
    }
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < LEAST_BUDGET_COSTS, "{CLIENTS} headers without an end cost {grown}");
    for client in &mut crowd {
        client.expect("BDAT 0 LAST", 250);
    }
}

#[test]
fn uploads_that_stall_keep_no_buffers() {
    const CLIENTS: usize = 250;
    let dir = tempfile::tempdir().unwrap();
    let (server, mut crowd, before) = crowded(dir.path(), CLIENTS);
    let text = [
        b"Subject: x\r\n\r\n".to_vec(),
        b"a line of sixty-four octets, its line end among them, as is usual\r\n".repeat(5000),
    ];
    let text = text.concat();
    for client in &mut crowd {
        // The first chunk is large enough to go to a file when there is no room; then nothing more comes.
        send_chunk(client, &text);
        client.send(b"BDAT 1000000 LAST\r\nbegun").unwrap();
    }
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < LEAST_BUDGET_COSTS, "{CLIENTS} uploads that stall cost {grown}");
}

#[test]
fn commands_that_stall_keep_no_buffers() {
    const CLIENTS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let (server, mut crowd, before) = crowded(dir.path(), CLIENTS);
    let begin = [b"Subject: x\r\n\r\n".to_vec(), vec![b'x'; 99_984]].concat();
    // Its end is refused, so that no mail is made of it.
    let rest = [vec![b'x'; 250_000], b"\n".to_vec()].concat();
    for client in &mut crowd {
        send_chunk(client, &begin);
        // Behind the message, in the same buffer, a command begins and does not end.
        let last = [format!("BDAT {} LAST\r\n", rest.len()).as_bytes(), &rest, b"NOOP ", &[b'x'; 90]].concat();
        client.send(&last).unwrap();
        assert_eq!(client.reply().code, 550);
    }
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < LEAST_BUDGET_COSTS, "{CLIENTS} commands that stall cost {grown}");
    for client in &mut crowd {
        client.send(b"\r\n").unwrap();
        assert_eq!(client.reply().code, 250, "nothing of the command is lost");
    }
}
