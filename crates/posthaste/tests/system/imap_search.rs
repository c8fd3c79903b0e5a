//! SEARCH of IMAP by the index of `[search]`.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::imap::{Imap, serve};
use crate::support::{PATIENCE, Server, command};

const MESSAGES: usize = 400;
const INDEX: &str = "posthaste-data/search";
/// Octets of padding in each message, so that reading it shows in the counters.
const PADDING: usize = 8 << 10;

fn mail(n: usize) -> String {
    let words = ["rye bread", "prye breadth", "wheat", "spelt"][n % 4];
    let padding = "padding padding\r\n".repeat(PADDING / 17);
    format!(
        "From: Ann{n} <ann@example.org>\r\nSubject: {words} {n}\r\nX-Tuid: tuid{n}\r\n\r\n{padding}{words} number{n}\r\n"
    )
}

fn append(imap: &mut Imap, numbers: std::ops::Range<usize>) {
    for n in numbers {
        let mail = mail(n);
        imap.ok(&format!("APPEND INBOX {{{}+}}\r\n{mail}", mail.len()));
    }
}

fn until_indexed(dir: &Path, messages: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = command(dir, &["find", "--index", INDEX, "--count", "padding"]).output().unwrap();
        if String::from_utf8_lossy(&output.stdout).trim() == messages.to_string() {
            return;
        }
        assert!(Instant::now() < deadline, "{output:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Octets that the process has read from files and sockets.
fn octets_read(server: &Server) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", server.pid())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

const SEARCHES: [&str; 12] = [
    "SEARCH TEXT number7",
    "SEARCH BODY \"rye bread\"",
    "SEARCH BODY \" rye bread\"",
    "UID SEARCH UNDELETED BODY umber12",
    "SEARCH SUBJECT wheat",
    "SEARCH FROM ann77",
    "SEARCH HEADER X-Tuid tuid39",
    "SEARCH TEXT tuid101",
    "SEARCH NOT TEXT rye",
    "SEARCH OR BODY number8 SUBJECT \"spelt 3\"",
    "SEARCH TEXT nowhere",
    "UID SEARCH 5:300 TEXT \"spelt number3\"",
];

/// Repeats a search that exceeds its time limit on a busy machine.
fn searched(imap: &mut Imap, search: &str) -> String {
    loop {
        let (said, tagged) = imap.command(search);
        if tagged.starts_with("OK") {
            return String::from_utf8_lossy(&said).into_owned();
        }
        assert!(tagged.starts_with("NO [LIMIT] The search takes too long"), "{search}: {tagged}");
    }
}

fn answers(imap: &mut Imap) -> Vec<String> {
    SEARCHES.iter().map(|search| searched(imap, search)).collect()
}

#[test]
fn a_search_says_the_same_with_an_index_and_reads_less() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    append(&mut imap, 0..MESSAGES);
    imap.ok("SELECT INBOX");
    let expected = answers(&mut imap);
    assert_eq!(expected[0].split(' ').count(), 2 + 11, "number7 and number70 to number79: {}", expected[0]);
    assert!(expected[10].trim() == "* SEARCH", "{}", expected[10]);
    server.stop();
    let indexed = "[search]\nindex = true\n";
    // The index is made while these are asked.
    let (server, address) = serve(dir.path(), indexed, "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    for _ in 0..3 {
        assert_eq!(answers(&mut imap), expected);
    }
    until_indexed(dir.path(), MESSAGES);
    imap.ok("SEARCH TEXT nowhere");
    let before = octets_read(&server);
    for search in ["SEARCH TEXT nowhere", "SEARCH TEXT number7", "SEARCH SUBJECT wheat", "SEARCH HEADER X-Tuid tuid39"]
    {
        imap.ok(search);
    }
    let read = octets_read(&server) - before;
    // Without the index each of these reads at least the beginning of each file.
    assert!(read < (MESSAGES * PADDING) as u64 / 2, "{read} octets read");
    assert_eq!(answers(&mut imap), expected);
    // What the index does not have yet is found at once.
    for n in MESSAGES..MESSAGES + 20 {
        append(&mut imap, n..n + 1);
        let said = imap.ok(&format!("SEARCH BODY number{n}"));
        assert!(said.ends_with(&format!("* SEARCH {}\r\n", n + 1)), "{said}");
    }
    // And in another folder only what is there.
    imap.ok("COPY 8 Sent");
    imap.ok("SELECT Sent");
    assert_eq!(imap.ok("SEARCH TEXT number7"), "* SEARCH 1\r\n");
    until_indexed(dir.path(), MESSAGES + 21);
    assert_eq!(imap.ok("SEARCH TEXT number7"), "* SEARCH 1\r\n");
    assert_eq!(imap.ok("SEARCH TEXT number8"), "* SEARCH\r\n");
    server.stop();
}

#[test]
fn lists_of_messages_read_each_header_once() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    append(&mut imap, 0..MESSAGES);
    imap.ok("SELECT INBOX");
    let ask = |imap: &mut Imap| {
        [
            imap.ok("FETCH 1:* ENVELOPE"),
            imap.ok("UID FETCH 1:* (FLAGS BODY.PEEK[HEADER.FIELDS (From Subject Date)])"),
            imap.ok("SEARCH SUBJECT \"wheat 1\""),
            imap.ok("SORT (SUBJECT) UTF-8 FROM ann"),
            imap.ok("THREAD REFERENCES UTF-8 ALL"),
        ]
    };
    let expected = ask(&mut imap);
    assert!(expected[0].contains("\"wheat 2\"") && expected[1].contains("Subject: wheat 2\r\n"), "{}", expected[1]);
    let all_bytes = (MESSAGES * PADDING) as u64;
    let deadline = Instant::now() + PATIENCE;
    // A message whose file is yet to be made is not in the cache.
    loop {
        let before = octets_read(&server);
        assert_eq!(ask(&mut imap), expected);
        let read = octets_read(&server) - before;
        if read < all_bytes / 4 {
            break;
        }
        assert!(Instant::now() < deadline, "{read} octets of {all_bytes}");
    }
    server.stop();
    // Another run of the server has the cache, which a kill leaves in order.
    let again = || {
        let (server, address) = serve(dir.path(), "", "imap");
        let mut imap = Imap::logged_in(address);
        imap.ok("SELECT INBOX");
        let before = octets_read(&server);
        assert_eq!(ask(&mut imap), expected);
        (octets_read(&server) - before, server)
    };
    let (read, mut server) = again();
    assert!(read < all_bytes / 4, "{read} octets of {all_bytes}");
    server.signal(Signal::KILL);
    server.wait();
    let (read, server) = again();
    assert!(read < all_bytes / 4, "{read} octets of {all_bytes}");
    server.stop();
    // Without it all is as it was.
    let cache = dir.path().join("posthaste-data/mailstore/cache.redb");
    std::fs::write(&cache, "damaged").unwrap();
    let (_, server) = again();
    server.stop();
    std::fs::remove_file(cache).unwrap();
    let (_, server) = again();
    server.stop();
}
