//! UIDs of mail that arrives while IMAP is served, with kills in between, and `posthaste mailbox`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;

use crate::imap::{Imap, serve};
use crate::support::{Client, MESSAGE, PATIENCE, command};

/// UIDs of ann's INBOX and her folder Lists by mailbox and subject; a duplicate subject fails the test.
fn uids(address: SocketAddr) -> BTreeMap<String, u32> {
    let mut uids = BTreeMap::new();
    ["INBOX", "Lists"].into_iter().for_each(|mailbox| uids_in(address, mailbox, &mut uids));
    uids
}

fn uids_in(address: SocketAddr, mailbox: &str, uids: &mut BTreeMap<String, u32>) {
    let mut imap = Imap::logged_in(address);
    imap.ok(&format!("SELECT {mailbox}"));
    let told = imap.ok("UID FETCH 1:* (UID BODY.PEEK[HEADER.FIELDS (SUBJECT)])");
    // Mail that comes meanwhile is told by numbers alone.
    for message in told.split("* ").filter(|told| told.contains(" FETCH ")) {
        let number = message.split("UID ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        let subject = message.lines().find_map(|line| line.strip_prefix("Subject: "));
        let (Some(number), Some(subject)) = (number, subject) else { panic!("{message}") };
        let subject = format!("{mailbox} {subject}");
        assert_eq!(uids.insert(subject.clone(), number), None, "{subject} has two UIDs");
    }
}

#[test]
fn mail_is_seen_by_imap_as_soon_as_it_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let mut smtp = server.hello();
    for number in 1..=20 {
        smtp.deliver(&["ann@example.org"], MESSAGE);
        let told = imap.ok("NOOP");
        assert!(told.contains(&format!("* {number} EXISTS")), "{number}: {told}");
        assert!(imap.ok(&format!("UID FETCH {number} BODY.PEEK[]")).contains("Delivered-To"), "{number}");
    }
    // Once all files are there nothing is new.
    server.wait_for_mail("example.org", "ann", 20);
    assert_eq!(imap.ok("NOOP"), "");
    server.stop();
}

/// The second of two recipients: her file is identified by her number in the batch.
#[test]
fn mail_by_lmtp_has_its_uid_before_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let lmtp = "[[listener]]\nunix = \"lmtp.sock\"\nprotocol = \"lmtp\"\n";
    let (server, address) = serve(dir.path(), lmtp, "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let mut stream = UnixStream::connect(dir.path().join("lmtp.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(
            b"LHLO local\r\nMAIL FROM:<>\r\nRCPT TO:<bob@example.org>\r\nRCPT TO:<ann@example.org>\r\n\
              DATA\r\nSubject: two\r\n\r\n.\r\nQUIT\r\n",
        )
        .unwrap();
    let replies: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
    // LHLO, MAIL, two recipients, and an answer for each of them.
    assert_eq!(replies.iter().filter(|reply| reply.starts_with("250 ")).count(), 6, "{replies:?}");
    assert!(imap.ok("NOOP").contains("* 1 EXISTS"));
    let before = imap.ok("UID FETCH 1 BODY.PEEK[]");
    assert!(before.contains("Delivered-To: ann@example.org") && before.contains("Subject: two"), "{before}");
    server.wait_for_mail("example.org", "ann", 1);
    server.wait_for_mail("example.org", "bob", 1);
    assert_eq!(imap.ok("NOOP"), "");
    server.stop();
    // The next start has no body in the spool any more, and finds the file.
    let (server, address) = serve(dir.path(), lmtp, "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    assert_eq!(imap.ok("UID FETCH 1 BODY.PEEK[]"), before);
    server.stop();
}

#[test]
fn each_acknowledged_message_has_one_uid_after_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let acknowledged = Arc::new(Mutex::new(Vec::<String>::new()));
    let mut known = BTreeMap::new();
    let folders = "detail_folders = true\n";
    let (server, address) = serve(dir.path(), folders, "imap");
    Imap::logged_in(address).ok("CREATE Lists");
    server.stop();
    for round in 0..4 {
        let (mut server, address) = serve(dir.path(), folders, "imap");
        let send = |part: &'static str, most: usize| {
            let sender = |sender: u8| {
                let (smtp, acknowledged) = (server.addresses[0], Arc::clone(&acknowledged));
                let name = format!("{round}.{part}{sender}");
                std::thread::spawn(move || send_until_killed(smtp, &name, most, &acknowledged))
            };
            (0..6).map(sender).collect::<Vec<_>>()
        };
        let wait_for = |more: usize| {
            let (begun, enough) = (std::time::Instant::now(), acknowledged.lock().unwrap().len() + more);
            while acknowledged.lock().unwrap().len() < enough {
                assert!(begun.elapsed() < PATIENCE, "{}", server.log_text());
                std::thread::yield_now();
            }
        };
        // A client sees UIDs while mail comes, which has an end: a list of UIDs must not grow faster than it is read.
        let mut senders = send("a", 100);
        wait_for(30 + round * 100);
        known.extend(uids(address));
        senders.extend(send("b", usize::MAX));
        wait_for(30);
        server.signal(Signal::KILL);
        server.wait();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        let (server, address) = serve(dir.path(), folders, "imap");
        let now = uids(address);
        for subject in acknowledged.lock().unwrap().iter() {
            assert!(now.contains_key(subject), "round {round}: {subject} has no UID");
        }
        for (subject, uid) in &known {
            assert_eq!(now.get(subject), Some(uid), "round {round}: {subject}");
        }
        known = now;
        server.stop();
    }
    let (server, address) = serve(dir.path(), folders, "imap");
    server.wait_for_mail("example.org", "ann", known.keys().filter(|key| key.starts_with("INBOX ")).count());
    assert_eq!(uids(address), known);
    server.stop();
}

fn send_until_killed(address: SocketAddr, name: &str, most: usize, acknowledged: &Mutex<Vec<String>>) {
    let Ok(mut client) = Client::open(address) else { return };
    if client.try_reply().is_err() || client.send(b"EHLO client.example\r\n").is_err() || client.try_reply().is_err() {
        return;
    }
    for number in 0..most {
        let subject = format!("{name}.{number}");
        let message = format!("Subject: {subject}\r\n\r\n{}\r\n", "text ".repeat(number % 50));
        // To INBOX, to a folder, and to both.
        let to = [&["ann@example.org"][..], &["ann+lists@example.org"], &["ann@example.org", "ann+lists@example.org"]];
        match client.try_message("s@example.net", to[number % 3], message.as_bytes()) {
            Ok(reply) if reply.code == 250 => acknowledged.lock().unwrap().extend(
                to[number % 3]
                    .iter()
                    .map(|to| format!("{} {subject}", if to.contains('+') { "Lists" } else { "INBOX" })),
            ),
            _ => return,
        }
    }
}

#[test]
fn the_mailbox_command_shows_an_account() {
    let dir = tempfile::tempdir().unwrap();
    let output = |args: &[&str]| {
        let output = command(dir.path(), args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (server, address) = serve(dir.path(), "", "imap");
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    Imap::logged_in(address).ok("SELECT INBOX");
    server.stop();
    let (code, listed, errors) = output(&["mailbox", "list", "ann@example.org"]);
    assert_eq!(code, Some(0), "{errors}");
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..3], ["INBOX", "2", "2"], "{listed}");
    assert_eq!(output(&["mailbox", "count", "ann@example.org", "inbox"]).1, "2\n");
    assert_eq!(output(&["mailbox", "count", "ann@example.org", "--json"]).1, "{\"messages\":2}\n");
    let (_, info, _) = output(&["mailbox", "info", "ann@example.org", "--json"]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["mailboxes"][0]["uid_next"], &info["messages"]), (&3.into(), &2.into()), "{info}");
    assert!(output(&["mailbox", "info", "ann@example.org"]).1.contains("next UID 3"));
    assert_eq!(output(&["mailbox", "count", "ann@example.org", "None"]).0, Some(1));
    assert_eq!(output(&["mailbox", "list", "bob@example.org"]).0, Some(1));
}
