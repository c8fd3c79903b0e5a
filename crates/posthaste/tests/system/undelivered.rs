//! Mail that is acknowledged and cannot be delivered: bounded for each mailbox, listed, and delivered when it can be.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{ANYBODY, PATIENCE, Server, command};

/// Something in the place of a mailbox, so that nothing can be put into it.
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

fn undelivered(dir: &Path) -> Vec<Value> {
    let output = command(dir, &["journal", "inspect", "posthaste-data/journal", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report["undelivered"].as_array().expect("a list").clone()
}

#[test]
fn mail_that_waits_for_a_mailbox_is_bounded_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    obstruct(dir.path(), "bad");
    let config = format!("{ANYBODY}\n[storage]\nmailbox_pending_bytes = 1000\n");
    let server = Server::start(dir.path(), &config);
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let body = format!("Subject: x\r\n\r\n{}\r\n", "a line of text ".repeat(100));
    client.deliver(&["bad@example.org", "good@example.org"], body.as_bytes());
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

    until("it is listed with why it waits", || match &undelivered(dir.path())[..] {
        [message] => !message["mailboxes"][0]["error"].is_null(),
        other => panic!("one message waits: {other:?}"),
    });
    let message = &undelivered(dir.path())[0];
    assert!(message["bytes"].as_u64() > Some(1500), "{message}");
    let [to] = &message["mailboxes"].as_array().unwrap()[..] else { panic!("the other mailbox has it: {message}") };
    assert_eq!(to["mailbox"], "example.org/bad/Maildir");
    assert!(to["attempts"].as_u64() >= Some(1) && to["next_try"].as_u64() >= message["received"].as_u64(), "{to}");
    let text = command(dir.path(), &["journal", "inspect", "posthaste-data/journal"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("\n  example.org/bad/Maildir  tried in vain "), "{text}");

    clear(dir.path(), "bad");
    server.wait_for_mail("example.org", "bad", 1);
    until("nothing waits", || undelivered(dir.path()).is_empty());
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<bad@example.org>", 250);
    server.stop();
}

#[test]
fn a_journal_full_of_mail_that_waits_refuses_more_and_takes_mail_again_when_it_is_delivered() {
    let dir = tempfile::tempdir().unwrap();
    obstruct(dir.path(), "bad");
    let small = "journal_segment_bytes = 4194304\njournal_segments = 4\ncheckpoint_secs = 1\n";
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[storage]\n{small}"));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let body = format!("Subject: x\r\n\r\n{}", "a line of text, and another one, and one more\r\n".repeat(18_000));
    let mut accepted = 0;
    let refused = loop {
        let reply = client.try_message("s@example.net", &["bad@example.org"], body.as_bytes()).unwrap();
        if reply.code != 250 {
            break reply;
        }
        accepted += 1;
        assert!(accepted < 100, "16 MiB never filled up");
    };
    assert!(refused.code == 452 && refused.text.starts_with("4.3.1 "), "{refused:?}");
    assert!(accepted >= 10, "{accepted} of 800 KiB found room in 16 MiB");
    clear(dir.path(), "bad");
    server.wait_for_mail("example.org", "bad", accepted);
    // Its space comes back with the next checkpoint.
    until("mail is taken again", || {
        let mut client = server.connect();
        client.expect("EHLO client.example.net", 250);
        client.try_message("s@example.net", &["good@example.org"], body.as_bytes()).unwrap().code == 250
    });
    server.stop();
}
