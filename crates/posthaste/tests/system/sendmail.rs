//! `posthaste sendmail`: from a program's standard output to a mailbox.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::receiving::ROUTED;
use crate::support::*;

pub(crate) const PICKUP: &str = "posthaste-data/pickup";

pub(crate) fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that refuses at once reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn sendmail(dir: &Path, args: &[&str], input: &[u8]) -> Output {
    run(command(dir, &[&["sendmail"], args].concat()), input)
}

#[track_caller]
pub(crate) fn sends(dir: &Path, args: &[&str], input: &[u8]) {
    let output = sendmail(dir, args, input);
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}: {output:?}");
}

/// Names in the pickup directory, without refused files.
pub(crate) fn waiting(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(PICKUP)).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).filter(|name| name != "refused").collect()
}

pub(crate) fn refused(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(PICKUP).join("refused")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Waits until the pickup directory is empty.
pub(crate) fn wait_for_none(server: &Server, dir: &Path) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !waiting(dir).is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}\n{}", waiting(dir), server.log_text());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn recipients_from_the_header_get_the_message() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ROUTED}\n[events]\nenabled = true\n"));
    sends(
        dir.path(),
        &["-t", "-f", "cron@example.org", "-F", "Cron Daemon"],
        b"To: Alice <alice@example.org>\nBcc: bob@example.org\nSubject: caf\xc3\xa9\n\nhello\n.\nnot this\n",
    );
    let alice = server.wait_for_mail("example.org", "alice", 1)[0].text();
    let bob = server.wait_for_mail("example.org", "bob", 1)[0].text();
    let uid = rustix::process::getuid().as_raw();
    let mut lines = alice.lines();
    assert_eq!(lines.next(), Some("Return-Path: <cron@example.org>"));
    assert_eq!(lines.next(), Some("Delivered-To: alice@example.org"));
    let received = format!("Received: by mx.example.org (Posthaste, from userid {uid})");
    assert_eq!(lines.next(), Some(received.as_str()));
    assert!(lines.next().is_some_and(|line| line.starts_with("\tid ") && line.ends_with(" +0000")), "{alice}");
    assert_eq!(lines.next(), Some("To: Alice <alice@example.org>"));
    assert_eq!(lines.next(), Some("Subject: café"));
    assert!(lines.next().is_some_and(|line| line.starts_with("Date: ")), "{alice}");
    assert_eq!(lines.next(), Some("From: Cron Daemon <cron@example.org>"));
    assert!(lines.next().is_some_and(|line| line.starts_with("Message-ID: <") && line.ends_with("@mx.example.org>")));
    assert_eq!(lines.collect::<Vec<_>>(), ["", "hello"]);
    assert!(!bob.contains("Bcc") && bob.ends_with("\n\nhello\n"), "{bob}");
    wait_for_none(&server, dir.path());
    let line = server.wait_for_log("message kept");
    assert!(line.contains(&format!("peer=\"uid {uid}\"")) && line.contains("with=\"local\""), "{line}");
    server.stop();
    let events = fs::read_to_string(dir.path().join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    assert!(events.contains(&format!("\"peer\":\"uid {uid}\"")) && events.contains("\"with\":\"local\""), "{events}");
}

#[test]
fn mail_waits_for_a_server_that_is_down_or_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), ANYBODY);
    server.signal(Signal::KILL);
    server.wait();
    for number in 0..20 {
        sends(dir.path(), &["-i", "alice@example.org"], format!("Subject: {number}\n\n.\n").as_bytes());
    }
    assert_eq!(waiting(dir.path()).len(), 20);
    // What a program has left that was killed, and what is none of ours.
    fs::write(dir.path().join(PICKUP).join(".half"), "POSTHASTE").unwrap();
    let server = Server::start_as_it_is(dir.path());
    let stored = server.wait_for_mail("example.org", "alice", 20);
    let mut subjects: Vec<String> = stored
        .iter()
        .flat_map(|mail| {
            mail.text().lines().filter(|line| line.starts_with("Subject: ")).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    subjects.sort();
    subjects.dedup();
    assert_eq!(subjects.len(), 20);
    let deadline = std::time::Instant::now() + PATIENCE;
    while waiting(dir.path()) != [".half"] {
        assert!(std::time::Instant::now() < deadline, "{:?}", waiting(dir.path()));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.stop();
}

#[test]
fn mail_taken_by_sendmail_is_delivered_across_kills() {
    const MESSAGES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), ANYBODY);
    let mut kills = 0;
    for number in 0..MESSAGES {
        sends(
            dir.path(),
            &["alice@example.org"],
            format!("Subject: s{number}.\n\n{}", "text\n".repeat(2000)).as_bytes(),
        );
        if number % 16 == 15 {
            server.signal(Signal::KILL);
            server.wait();
            kills += 1;
            server = Server::start_as_it_is(dir.path());
        }
    }
    wait_for_none(&server, dir.path());
    assert!(refused(dir.path()).is_empty(), "{:?}", refused(dir.path()));
    // What was accepted is in the spool; it becomes visible before the server ends.
    server.stop();
    let texts: Vec<String> = mailbox(dir.path(), "example.org", "alice").iter().map(Stored::text).collect();
    for number in 0..MESSAGES {
        let subject = format!("\nSubject: s{number}.\n");
        let copies =
            texts.iter().filter(|text| text.contains(&subject) && text.ends_with(&"text\n".repeat(2000))).count();
        assert!((1..=1 + kills).contains(&copies), "{number}: {copies} copies");
    }
    // Only what was at work at a kill can come twice: 16 at most.
    assert!(texts.len() <= MESSAGES + 16 * kills, "{}", texts.len());
}

#[test]
fn what_cannot_be_sent_is_told_by_the_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(
        dir.path(),
        &format!("{ROUTED}\n[limits]\nmessage_bytes = 10000\n[relay]\nlocal_users = false\n"),
    );
    let check = |args: &[&str], input: &str, status: i32, told: &str| {
        let output = sendmail(dir.path(), args, input.as_bytes());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.starts_with("sendmail: ") && said.contains(told) && said.lines().count() == 1, "{args:?}: {said}");
    };
    check(&[], "", 64, "no recipient");
    check(&["-t"], "Subject: x\n\n", 64, "no recipient");
    check(&["--bad"], "", 64, "there is no option");
    check(&["alice@@example.org"], "", 65, "is not an address");
    check(&["-t"], "To: John Doe\n\n", 65, "is not an address");
    check(&["alice@example.org", "nobody@example.org"], "", 67, "<nobody@example.org>: 550 5.1.1 ");
    check(&["alice@elsewhere.example"], "", 69, "550 5.7.1 ");
    check(&["alice@example.org"], &"long\n".repeat(5000), 69, "larger than 10000 bytes");
    check(&["-C", "nowhere.toml", "alice@example.org"], "", 78, "nowhere.toml");
    check(&["-bd"], "", 64, "posthaste serve");
    std::fs::write(dir.path().join("bad.toml"), "host_name = 3\n").unwrap();
    let output = sendmail(dir.path(), &["-C", "bad.toml", "alice@example.org"], b"");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(78) && said.lines().count() > 1 && !said.contains('\u{fffd}'), "{said}");
    assert!(waiting(dir.path()).is_empty(), "nothing is left behind");
    assert!(sendmail(dir.path(), &["-q"], b"").status.success());
    assert!(sendmail(dir.path(), &["-bi"], b"").status.success());
    server.stop();
    check(&["-bp"], "", 69, "no server runs");
    check(&["-q"], "", 69, "no server runs");
    fs::remove_dir_all(dir.path().join(PICKUP)).unwrap();
    check(&["alice@example.org"], "", 69, "posthaste-data/pickup");
    fs::write(dir.path().join("posthaste.toml"), "[pickup]\nenabled = false\n").unwrap();
    check(&["alice@localhost"], "", 69, "pickup.enabled = false");
}

#[test]
fn recipients_may_be_a_list_or_have_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ROUTED);
    sends(dir.path(), &["alice@example.org,bob@example.org"], b"Subject: a\n\nx\n");
    sends(dir.path(), &["Foo <alice@example.org>"], b"Subject: b\n\nx\n");
    server.wait_for_mail("example.org", "alice", 2);
    server.wait_for_mail("example.org", "bob", 1);
    server.stop();
}

#[test]
fn mailq_lists_what_no_server_has_taken() {
    let dir = tempfile::tempdir().unwrap();
    Server::start(dir.path(), ROUTED).stop();
    let listed = |expected: &str| {
        let output = sendmail(dir.path(), &["-bp"], b"");
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.code() == Some(69) && err.contains("no server runs"), "{err}");
        assert!(out.contains(expected), "{out}");
    };
    listed("Nothing waits in posthaste-data/pickup for the server\n");
    sends(dir.path(), &["alice@example.org"], b"Subject: a\n\nx\n");
    let name = waiting(dir.path())[0].clone();
    listed(&format!("\n{name}  "));
}

#[test]
fn a_flush_tries_what_waits_for_other_hosts() {
    let (here_dir, there_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = crate::relaying::next_hop(there_dir.path(), crate::relaying::ANYWHERE);
    let dir = here_dir.path();
    let server = Server::start(dir, &crate::relaying::config(next.addresses[0].port(), ""));
    server.hello().try_message("eve@here.example", &["slow@there.example"], b"Subject: a\r\n\r\nx\r\n").unwrap();
    server.wait_for_log_again("not delivered yet", 1);
    assert!(sendmail(dir, &["-q"], b"").status.success());
    server.wait_for_log_again("not delivered yet", 2);
    server.stop();
    next.stop();
}

#[test]
fn the_program_is_sendmail_if_it_is_called_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let called = |name: &str| {
        let link = dir.path().join(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_posthaste"), &link).unwrap();
        let mut command = Command::new(link);
        command.current_dir(dir.path()).env("POSTHASTE_CONFIG", "posthaste.toml");
        command
    };
    let mut command = called("sendmail");
    command.args(["-oi", "-odb", "-oem", "-fann@example.org", "--", "alice@example.org"]);
    let output = run(command, b"Subject: x\n\nhello\n.\nmore\n");
    assert!(output.status.success(), "{output:?}");
    assert!(server.wait_for_mail("example.org", "alice", 1)[0].text().ends_with("\n\nhello\n.\nmore\n"));
    let newaliases = run(called("newaliases"), b"");
    assert!(newaliases.status.success() && newaliases.stderr.starts_with(b"newaliases: "), "{newaliases:?}");
    let mailq = run(called("mailq"), b"");
    assert_eq!((mailq.status.code(), &*mailq.stdout), (Some(0), &b"Mail queue is empty\n"[..]), "{mailq:?}");
    server.stop();
}

#[test]
fn smtp_on_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ROUTED);
    let output = sendmail(
        dir.path(),
        &["-bs"],
        b"EHLO x\r\nMAIL FROM:<s@example.net>\r\nRCPT TO:<nobody@example.org>\r\nRCPT TO:<bob@example.org>\r\nDATA\r\n\
          Subject: x\r\n\r\n..dot\r\n.\r\nQUIT\r\n",
    );
    let said = String::from_utf8(output.stdout).unwrap();
    let codes: Vec<&str> = said.lines().map(|line| &line[..4]).filter(|code| code.ends_with(' ')).collect();
    assert_eq!(codes, ["220 ", "250 ", "250 ", "550 ", "250 ", "354 ", "250 ", "221 "], "{said}");
    assert!(server.wait_for_mail("example.org", "bob", 1)[0].text().ends_with("\nSubject: x\n\n.dot\n"));
    server.stop();
}

#[test]
fn recipients_beyond_one_transaction_all_get_the_message() {
    let dir = tempfile::tempdir().unwrap();
    let config = "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[limits]\nrecipients = 7\n[[domain]]\n\
                  name = \"example.org\"\nusers = [\"alice\"]\n[[domain.pattern]]\nmatch = \"u[0-9]+\"\nto = \"alice\"\n";
    let mut server = Server::start(dir.path(), config);
    let pickup = dir.path().join(PICKUP);
    let known: String = (0..10_000).map(|number| format!("RCPT TO:<u{number}@example.org>\n")).collect();
    let unknown: String = (0..100).map(|number| format!("RCPT TO:<x{number}@example.org>\n")).collect();
    let behind = format!("MAIL FROM:<a@example.org>\n{unknown}{known}\nSubject: x\r\n\r\n");
    fs::write(pickup.join(".x"), format!("POSTHASTE-PICKUP/1 {} -\n{behind}", behind.len())).unwrap();
    fs::rename(pickup.join(".x"), pickup.join("x")).unwrap();
    let set_aside = || fs::read_to_string(pickup.join("refused/x")).unwrap_or_default();
    let deadline = std::time::Instant::now() + PATIENCE;
    while set_aside().matches("RCPT TO").count() < 100 || !waiting(dir.path()).is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}\n{}", waiting(dir.path()), server.log_text());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(!set_aside().contains("TO:<u"), "{}", set_aside());
    // The log is whole once the server has ended, and so are the mailboxes.
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "{}", server.log_text());
    // Each transaction gives the one mailbox a copy.
    let transactions = server.log_text().lines().filter(|line| line.contains("message kept")).count();
    assert!(transactions > 1, "{}", server.log_text());
    assert_eq!(server.mailbox("example.org", "alice").len(), transactions);
}

#[test]
fn programs_that_call_sendmail() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let sendmail = dir.path().join("sendmail");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_posthaste"), &sendmail).unwrap();
    let program = |name: &str, args: &[&OsStr]| {
        let mut command = Command::new(name);
        command.current_dir(dir.path()).env("POSTHASTE_CONFIG", dir.path().join("posthaste.toml")).args(args);
        command.env("HOME", dir.path()).env("GIT_CONFIG_NOSYSTEM", "1");
        for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"] {
            command.env(name, "Ann").env(name.replace("NAME", "EMAIL"), "ann@example.org");
        }
        match command.stdin(Stdio::null()).output() {
            Ok(output) => {
                assert!(output.status.success(), "{name}: {output:?}");
                true
            }
            Err(_) => {
                println!("{name} is not installed: nothing is tested");
                false
            }
        }
    };
    let python = format!(
        "import subprocess, email.message\nm = email.message.EmailMessage()\nm['To'] = 'python@example.org'\nm['Subject'] = 'x'\n\
         m.set_content('hello\\n.\\n')\nsubprocess.run([{sendmail:?}, '-t', '-oi'], input=m.as_bytes(), check=True)"
    );
    if program("python3", &["-c".as_ref(), python.as_ref()]) {
        assert!(server.wait_for_mail("example.org", "python", 1)[0].text().ends_with("\nhello\n.\n"));
    }
    let pipe = format!("{} -bs", sendmail.display());
    let swaks = ["--pipe", &pipe, "--from", "ann@example.org", "--to", "swaks@example.org", "--h-Subject", "x"];
    if program("swaks", &swaks.map(OsStr::new)) {
        assert!(server.wait_for_mail("example.org", "swaks", 1)[0].text().contains("\nSubject: x\n"));
    }
    let patch = "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\nFrom: Ann <ann@example.org>\n\
                 Date: Mon, 1 Jan 2024 00:00:00 +0000\nSubject: [PATCH] x\n\n---\n x | 1 +\n-- \n2.0\n";
    fs::write(dir.path().join("0001-x.patch"), patch).unwrap();
    let command = format!("--sendmail-cmd={} -i", sendmail.display());
    let has_send_email = Command::new("git").args(["send-email", "-h"]).output();
    if has_send_email.is_ok_and(|output| !String::from_utf8_lossy(&output.stderr).contains("is not a git command")) {
        let args = [
            "send-email",
            &command,
            "--to=git@example.org",
            "--from=ann@example.org",
            "--confirm=never",
            "0001-x.patch",
        ];
        let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        if program("git", &args) {
            assert!(server.wait_for_mail("example.org", "git", 1)[0].text().contains("\nSubject: [PATCH] x\n"));
        }
    }
    server.stop();
}
