//! Acknowledged mail that cannot be delivered: bounded for each mailbox, listed, and delivered once that is possible.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ANYBODY, PATIENCE, Server, command};

/// A configuration with more keys of `[storage]`. Delivered mail stays listed until a checkpoint, so one comes each
/// second.
fn config(more: &str) -> String {
    format!("{ANYBODY}\n[storage]\ncheckpoint_secs = 1\n{more}")
}

/// Puts an obstacle in place of a mailbox, so that deliveries to it fail.
fn obstruct(dir: &Path, user: &str) {
    let user = dir.join("posthaste-data/mail/example.org").join(user);
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("Maildir"), "in the way").unwrap();
}

fn clear(dir: &Path, user: &str) {
    std::fs::remove_file(dir.join("posthaste-data/mail/example.org").join(user).join("Maildir")).unwrap();
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Damages each copy of `text` in the spool's ring, also copies left when a server stopped. Returns their places.
fn flip_octets_of(dir: &Path, text: &[u8]) -> Vec<(String, usize)> {
    let mut places = Vec::new();
    for entry in std::fs::read_dir(dir.join("posthaste-data/spool/ring")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".seg") {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            while let Some(at) = bytes.windows(text.len()).position(|part| part == text) {
                bytes[at] ^= 1;
                places.push((name.clone(), at));
            }
            std::fs::write(entry.path(), bytes).unwrap();
        }
    }
    places
}

fn undelivered(dir: &Path) -> Vec<Value> {
    let output = command(dir, &["spool", "inspect", "posthaste-data", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["undelivered"].as_array().expect("a list").clone()
}

#[test]
fn mail_that_waits_for_a_mailbox_is_bounded_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    obstruct(dir.path(), "bad");
    let server = Server::start(dir.path(), &config("mailbox_pending_bytes = 1000\n"));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let body = format!("Subject: x\r\n\r\n{}\r\n", "a line of text ".repeat(100));
    client.deliver(&["bad@example.org", "good@example.org"], body.as_bytes());
    let since = Instant::now();
    // Accepted once; then the bound is reached, for this mailbox alone.
    until("the bound is reached", || {
        client.expect("MAIL FROM:<s@example.net>", 250);
        let reply = client.command("RCPT TO:<bad@example.org>");
        client.expect("RSET", 250);
        assert!(reply.code == 250 || reply.text.starts_with("4.2.2 "), "{reply:?}");
        reply.code == 452
    });
    client.deliver(&["good@example.org"], body.as_bytes());
    server.wait_for_mail("example.org", "good", 2);

    // What has been delivered is listed, too, until the spool knows.
    until("it alone is listed, with why it waits", || match &undelivered(dir.path())[..] {
        [message] => !message["mailboxes"][0]["error"].is_null(),
        _ => false,
    });
    let message = &undelivered(dir.path())[0];
    assert!(message["bytes"].as_u64() > Some(1500), "{message}");
    let [to] = &message["mailboxes"].as_array().unwrap()[..] else { panic!("the other mailbox has it: {message}") };
    assert_eq!(to["mailbox"], "example.org/bad/Maildir");
    assert!(to["attempts"].as_u64() >= Some(1) && to["next_try"].as_u64() >= message["received"].as_u64(), "{to}");
    let inspect = |options: &[&str]| {
        let arguments = [&["spool", "inspect", "posthaste-data/spool"], options].concat();
        String::from_utf8(command(dir.path(), &arguments).output().unwrap().stdout).unwrap()
    };
    let text = inspect(&[]);
    let total = text.lines().find(|line| line.starts_with("waiting ")).unwrap();
    assert!(
        total.starts_with("waiting example.org/bad/Maildir  1 message, ") && text.contains("\n    failed "),
        "{text}"
    );
    assert!(
        !text.contains("undelivered ") && inspect(&["--messages"]).contains("\n  example.org/bad/Maildir\n"),
        "{text}"
    );
    let line = server.wait_for_log("WARN mail waits for this mailbox");
    assert!(line.contains(" WARN ") && line.contains("mailbox=\"example.org/bad/Maildir\""), "{line}");
    // Refused again and again, it is told once and then counted.
    let mut refused = server.connect();
    refused.expect("EHLO client.example.net", 250);
    refused.expect("MAIL FROM:<s@example.net>", 250);
    for _ in 0..100 {
        refused.expect("RCPT TO:<bad@example.org>", 452);
    }
    let line = server.wait_for_log("too much mail waits for a mailbox: still happening");
    assert!(line.contains(" WARN ") && line.contains("about=\"example.org/bad/Maildir\""), "{line}");
    let refused = server.log_text().lines().filter(|line| line.contains("recipient refused")).count();
    assert!((1..5).contains(&refused), "{}", server.log_text());

    clear(dir.path(), "bad");
    server.wait_for_mail_that_waits(since, "example.org", "bad", 1);
    until("nothing waits", || undelivered(dir.path()).is_empty());
    let line = server.wait_for_log("waiting mail has been delivered");
    assert!(line.contains("mailbox=\"example.org/bad/Maildir\"") && line.contains("messages=1"), "{line}");
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<bad@example.org>", 250);
    server.stop();
}

#[test]
fn a_start_tells_of_mail_that_still_waits_and_of_damage() {
    let dir = tempfile::tempdir().unwrap();
    obstruct(dir.path(), "bad");
    let server = Server::start(dir.path(), &config(""));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["bad@example.org"], b"Subject: one\r\n\r\nthe first of two\r\n");
    client.deliver(&["bad@example.org"], b"Subject: two\r\n\r\nthe other\r\n");
    server.signal(rustix::process::Signal::TERM);
    let mut server = server;
    assert!(server.wait().success());
    let line = server.wait_for_log("mail still waits for its mailboxes");
    assert!(line.contains("messages=2") && line.contains("mailboxes=1"), "{line}");
    let server = Server::start_as_it_is(dir.path());
    let expected = "  restored   nothing; 2 messages in the spool, 2 mailbox entries cannot be written yet\n";
    assert!(server.banner.contains(expected), "{}", server.banner);
    server.stop();

    let damaged = flip_octets_of(dir.path(), b"the first of two");
    let verify = || {
        let verified = command(dir.path(), &["spool", "verify", "posthaste-data/spool"]).output().unwrap();
        (verified.status.code(), String::from_utf8(verified.stdout).unwrap())
    };
    let (status, text) = verify();
    let named = |(segment, _): &(String, usize)| text.contains(&format!("DAMAGED: {segment}: batch "));
    assert!(status == Some(1) && damaged.iter().any(named), "{status:?}: {damaged:?} in {text}");
    let since = Instant::now();
    let server = Server::start_as_it_is(dir.path());
    clear(dir.path(), "bad");
    // It is given up with a word and a copy, and keeps nothing else from its mailbox.
    server.wait_for_mail_that_waits(since, "example.org", "bad", 1);
    let line = server.wait_for_log("MAIL LOST");
    assert!(line.contains("ERROR") && line.contains("mailbox=\"example.org/bad/Maildir\""), "{line}");
    until("nothing waits", || undelivered(dir.path()).is_empty());
    assert_eq!(server.mailbox("example.org", "bad").len(), 1);
    server.stop();
    assert_eq!(verify().0, Some(0));
    let kept: Vec<_> = std::fs::read_dir(dir.path().join("posthaste-data/spool/kept")).unwrap().collect();
    assert_eq!(kept.len(), 1);
    let bytes = std::fs::read(kept[0].as_ref().unwrap().path()).unwrap();
    // One octet is another.
    assert!(bytes.ends_with(b"he first of two\r\n") && !bytes.ends_with(b"the first of two\r\n"));
}

#[test]
fn mail_that_cannot_be_read_is_given_up_by_the_operator_by_name() {
    let dir = tempfile::tempdir().unwrap();
    obstruct(dir.path(), "bad");
    let server = Server::start(dir.path(), &config(""));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let large = format!("Subject: large\r\n\r\n{}", "a line of a large body\r\n".repeat(100_000));
    client.deliver(&["bad@example.org"], large.as_bytes());
    client.deliver(&["bad@example.org"], b"Subject: one\r\n\r\nthe small one\r\n");
    // A damaged record is told from a torn one by a later one.
    client.deliver(&["good@example.org"], b"Subject: two\r\n\r\nanother\r\n");
    server.stop();
    for body in std::fs::read_dir(dir.path().join("posthaste-data/spool/bodies")).unwrap() {
        std::fs::remove_file(body.unwrap().path()).unwrap();
    }
    flip_octets_of(dir.path(), b"the small one");
    let repair = |more: &[&str]| {
        let args = [&["spool", "repair", "posthaste-data"], more].concat();
        let output = command(dir.path(), &args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, text) = repair(&[]);
    assert!(status == Some(1) && text.contains("with `--give-up-damaged`"), "{text}");
    let (status, text) = repair(&["--give-up-damaged"]);
    assert_eq!(status, Some(0), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("GIVEN UP: batch ")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines.iter().all(|line| line.contains("not delivered to example.org/bad/Maildir")), "{text}");
    assert!(lines[0].contains("its file is missing; ") && lines[0].ends_with("nothing is left of it"), "{text}");
    let kept = lines[1].rsplit_once("what is left of it: ").unwrap().1;
    assert!(dir.path().join(kept).exists(), "{text}");
    let (status, again) = repair(&["--give-up-damaged", "--json"]);
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!((status, &again["given_up"], &again["sound"]), (Some(0), &json!([]), &true.into()));
    clear(dir.path(), "bad");
    let server = Server::start_as_it_is(dir.path());
    server.wait_for_log("MAIL LOST");
    until("nothing waits", || undelivered(dir.path()).is_empty());
    assert_eq!(server.mailbox("example.org", "bad").len(), 0);
    server.stop();
}

#[test]
fn waiting_mail_may_exceed_the_ring_and_blocks_no_other() {
    let dir = tempfile::tempdir().unwrap();
    obstruct(dir.path(), "bad");
    let small = "spool_segment_bytes = 4194304\nspool_segments = 4\nmailbox_pending_bytes = \"24MiB\"\n";
    let server = Server::start(dir.path(), &config(small));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let body = format!("Subject: x\r\n\r\n{}", "a line of text, and another one, and one more\r\n".repeat(18_000));
    let since = Instant::now();
    let mut accepted = 0;
    let refused = loop {
        let reply = client.try_message("s@example.net", &["bad@example.org"], body.as_bytes()).unwrap();
        if reply.code != 250 {
            break reply;
        }
        accepted += 1;
        assert!(accepted < 100, "the mailbox's bound was never reached");
    };
    assert!(refused.code == 452 && refused.text.starts_with("4.2.2 "), "{refused:?}");
    assert!(accepted * body.len() > 20 << 20, "{accepted} messages, and the ring has 16 MiB");
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    for _ in 0..30 {
        client.deliver(&["good@example.org"], body.as_bytes());
    }
    clear(dir.path(), "bad");
    server.wait_for_mail_that_waits(since, "example.org", "bad", accepted);
    server.stop();
    let inspected = command(dir.path(), &["spool", "inspect", "posthaste-data", "--json"]).output().unwrap();
    let inspected: Value = serde_json::from_slice(&inspected.stdout).expect("JSON");
    let stream = &inspected["streams"][0];
    let left = (&stream["entries"], &stream["bodies"], &inspected["packs"]);
    assert_eq!(left, (&json!(0), &json!(0), &json!([])), "{inspected}");
}

#[test]
fn accounting_finds_mail_that_waits_in_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    obstruct(dir.path(), "user1");
    let server = Server::start(dir.path(), &config(""));
    let target = server.addresses[0].to_string();
    // Some bodies are in the ring, those above 1 MiB in files of their own.
    let options = ["-d", "example.org", "-u", "2", "-m", "20", "-n", "2", "-s", "2", "-l", "2k:9,1100k:1", "-q"];
    let load = [&["load", &target], &options[..], &["--acked", "acked.json"]].concat();
    let output = command(dir.path(), &load).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let account = |stores: &[&str], settle: &str| -> (Option<i32>, Value) {
        let arguments = [&["load", "account", "acked.json"], stores, &["--json", "--settle", settle]].concat();
        let output = command(dir.path(), &arguments).output().unwrap();
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}")))
    };
    let data = ["posthaste-data"];
    until("the other mailbox has all", || server.mailbox("example.org", "user2").len() == 20);
    for named in
        [&data[..], &["posthaste-data/mail", "posthaste-data/spool"], &["posthaste-data", "posthaste-data/mail"]]
    {
        let (code, account) = account(named, "0s");
        assert_eq!((code, &account["lost"], &account["duplicated"]), (Some(0), &json!([]), &json!([])), "{account}");
        assert_eq!(account["found"], 20, "{named:?}: {account}");
        let waiting = &account["waiting"][0];
        assert_eq!((&waiting["mailbox"], &waiting["copies"]), (&json!("example.org/user1/Maildir"), &json!(20)));
        assert!(waiting["why"].is_string(), "{account}");
    }
    let (code, without) = account(&["posthaste-data/mail"], "0s");
    assert_eq!((code, without["lost"].as_array().unwrap().len()), (Some(1), 20), "nobody looked into the spool");
    // Also of a server that has ended; and what arrives within the time to settle is there.
    server.stop();
    assert_eq!(account(&data, "0s").1["waiting"][0]["copies"], 20);
    clear(dir.path(), "user1");
    let server = Server::start_as_it_is(dir.path());
    let (code, account) = account(&data, "10m");
    assert_eq!((code, &account["found"], &account["waiting"]), (Some(0), &json!(40), &json!([])), "{account}");
    server.stop();
}

#[test]
fn mail_for_a_removed_mailbox_skips_a_later_one_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let forget = |mailbox: &str| {
        let output =
            command(path, &["spool", "forget-mailbox", "posthaste-data", mailbox, "--discard"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.starts_with("forgotten: "), "{text} {:?}", output.stderr);
    };
    ["ann", "bob", "carol"].iter().for_each(|user| obstruct(path, user));
    let server = Server::start(path, &config(""));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let all = ["ann@example.org", "bob@example.org", "carol@example.org"];
    client.deliver(&all, b"Subject: for the old ones\r\n\r\nold\r\n");
    forget("example.org/ann");
    server.wait_for_log("mail accepted so far for a removed mailbox will not be delivered");
    clear(path, "ann");
    client.deliver(&["ann@example.org"], b"Subject: for the new one\r\n\r\nnew\r\n");
    server.wait_for_mail("example.org", "ann", 1);
    server.stop();
    forget("example.org/bob");
    ["bob", "carol"].iter().for_each(|user| clear(path, user));
    let server = Server::start_as_it_is(path);
    server.wait_for_mail("example.org", "carol", 1);
    until("nothing waits", || undelivered(path).is_empty());
    let mail = |user: &str| server.mailbox("example.org", user);
    assert_eq!((mail("ann").len(), mail("bob").len()), (1, 0));
    assert!(mail("ann")[0].text().contains("for the new one"), "{}", mail("ann")[0].text());
}
