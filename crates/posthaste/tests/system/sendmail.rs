//! `posthaste sendmail` and the pickup directory: from a program's standard output to a mailbox.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::receiving::ROUTED;
use crate::support::*;

const PICKUP: &str = "posthaste-data/pickup";

fn run(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that refuses at once reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn sendmail(dir: &Path, args: &[&str], input: &[u8]) -> Output {
    run(command(dir, &[&["sendmail"], args].concat()), input)
}

#[track_caller]
fn sends(dir: &Path, args: &[&str], input: &[u8]) {
    let output = sendmail(dir, args, input);
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}: {output:?}");
}

/// Names in the pickup directory, without refused files.
fn waiting(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(PICKUP)).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).filter(|name| name != "refused").collect()
}

fn refused(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(PICKUP).join("refused")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Waits until the pickup directory is empty.
fn wait_for_none(server: &Server, dir: &Path) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !waiting(dir).is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}\n{}", waiting(dir), server.log_text());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_message_with_its_recipients_in_the_header_arrives_in_the_mailboxes() {
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
fn what_sendmail_has_taken_is_delivered_however_often_the_server_is_killed() {
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
fn files_that_cannot_be_taken_are_set_aside_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(
        dir.path(),
        &format!(
            "{ROUTED}\n[events]\nenabled = true\n[limits]\nmessage_bytes = 200000\n[relay]\nlocal_users = false\n"
        ),
    );
    let pickup = dir.path().join(PICKUP);
    let put = |name: &str, text: &str| {
        fs::write(pickup.join(format!(".{name}")), text).unwrap();
        fs::rename(pickup.join(format!(".{name}")), pickup.join(name)).unwrap();
    };
    let file = |to: &[&str], text: &str| {
        let to: String = to.iter().map(|to| format!("RCPT TO:<{to}>\n")).collect();
        let behind = format!("MAIL FROM:<a@example.org>\n{to}\n{text}");
        format!("POSTHASTE-PICKUP/1 {} -\n{behind}", behind.len())
    };
    put("torn", &file(&["alice@example.org"], "Subject: torn\r\n\r\nlong\r\n")[..80]);
    put("nonsense", "hello\n");
    put("large", &file(&["alice@example.org"], &"long\r\n".repeat(40_000)));
    put("remote", &file(&["alice@elsewhere.example"], "Subject: remote\r\n\r\n"));
    put("loop", &file(&["alice@example.org"], &("Received: x\r\n".repeat(60) + "\r\n")));
    put("some", &file(&["nobody@example.org", "alice@example.org"], "Subject: some\n\nby hand\n"));
    std::os::unix::fs::symlink("/etc/passwd", pickup.join("link")).unwrap();
    let alice = server.wait_for_mail("example.org", "alice", 1)[0].text();
    assert!(alice.ends_with("\nSubject: some\n\nby hand\n"), "{alice}");
    wait_for_none(&server, dir.path());
    let mut names = refused(dir.path());
    names.sort();
    assert_eq!(names, ["large", "link", "loop", "nonsense", "remote", "some", "torn"]);
    let some = fs::read_to_string(pickup.join("refused/some")).unwrap();
    assert!(some.contains("RCPT TO:<nobody@example.org>") && !some.contains("alice"), "{some}");
    assert!(server.wait_for_log("file=\"torn\"").contains("was not written to its end"));
    assert!(server.wait_for_log("file=\"remote\"").contains("550 5.7.1"));
    // Put back by the operator, it is tried again.
    server.reload(ANYBODY);
    server.wait_for_log("configuration reloaded");
    fs::rename(pickup.join("refused/some"), pickup.join("some")).unwrap();
    server.wait_for_mail("example.org", "nobody", 1);
    server.stop();
    let events = fs::read_to_string(dir.path().join("posthaste-data/events/events-00000001.jsonl")).unwrap();
    for name in ["nonsense", "large", "torn", "link"] {
        let id = format!("\"id\":\"{name}\"");
        assert!(events.lines().any(|line| line.contains("\"refused\"") && line.contains(&id)), "{name}: {events}");
    }
}

#[test]
fn who_is_refused_for_now_gets_the_message_later_and_the_others_once() {
    let dir = tempfile::tempdir().unwrap();
    let moving = format!(
        "{ROUTED}[[domain]]\nname = \"example.net\"\naliases = {{ bob = {{ refuse = \"450 4.2.1 Moving\" }} }}\n"
    );
    let server = Server::start(dir.path(), &moving);
    sends(dir.path(), &["-i", "alice@example.org", "bob@example.net"], b"Subject: x\n\n.\n");
    server.wait_for_mail("example.org", "alice", 1);
    let rest =
        || waiting(dir.path()).first().map(|name| fs::read(dir.path().join(PICKUP).join(name)).unwrap_or_default());
    let deadline = std::time::Instant::now() + PATIENCE;
    while rest().is_none_or(|file| String::from_utf8_lossy(&file).contains("alice@")) {
        assert!(std::time::Instant::now() < deadline, "{}", server.log_text());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.stop();
    let server = Server::start(dir.path(), &moving.replace("{ refuse = \"450 4.2.1 Moving\" }", "\"bob@example.org\""));
    let bob = server.wait_for_mail("example.org", "bob", 1)[0].text();
    let uid = rustix::process::getuid().as_raw();
    assert!(bob.contains(&format!("from userid {uid})")) && bob.ends_with("\n\n.\n"), "{bob}");
    wait_for_none(&server, dir.path());
    server.wait_for_mail("example.org", "alice", 1);
    server.stop();
}

#[test]
fn what_the_page_tells_a_script_to_write_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let page = include_str!("../../../../docs/sendmail.md");
    let script = page.rsplit("```sh\n").next().and_then(|rest| rest.split("```").next()).unwrap();
    let mut shell = Command::new("sh");
    shell.current_dir(dir.path()).args(["-ec", &script.replace("/var/spool/posthaste", PICKUP)]);
    let output = run(shell, b"");
    assert!(output.status.success(), "{output:?}");
    assert!(server.wait_for_mail("example.org", "alice", 1)[0].text().ends_with("\nSubject: backup\n\ndone\n"));
    server.stop();
}

#[test]
fn config_check_knows_what_is_wrong_with_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("open")).unwrap();
    fs::write(dir.path().join("posthaste.toml"), "[pickup]\ndirectory = \"open\"\n").unwrap();
    let check = |mode: u32, expected: Option<&str>| {
        fs::set_permissions(dir.path().join("open"), fs::Permissions::from_mode(mode)).unwrap();
        let output = command(dir.path(), &["config", "check"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.contains("pickup.directory = open: it "), expected.is_some(), "{mode:o}: {said}");
        assert!(said.contains(expected.unwrap_or_default()), "{mode:o}: {said}");
    };
    check(0o700, None);
    check(0o3733, None);
    check(0o3730, None);
    check(0o2733, Some("lets users remove the mail of others"));
    check(0o1777, Some("does not let the server read"));
}

#[test]
fn more_recipients_than_one_transaction_takes_all_get_the_message() {
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
fn other_users_may_write_into_a_directory_that_is_open_to_them_and_read_nothing_there() {
    if !rustix::process::geteuid().is_root() {
        println!("not root: nothing is tested");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let pickup = dir.path().join("open");
    let (server_uid, user_uid) = (65_533, 65_532);
    // Everybody may run it. Another process copies it: children of other tests could inherit our descriptor, and what is open for
    // writing cannot be run (ETXTBSY).
    let program = dir.path().join("posthaste");
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_posthaste")).arg(&program).status().unwrap().success());
    fs::create_dir(&pickup).unwrap();
    std::os::unix::fs::chown(&pickup, Some(server_uid), Some(server_uid)).unwrap();
    fs::set_permissions(&pickup, fs::Permissions::from_mode(0o3733)).unwrap();
    let config = format!(
        "user = {server_uid}\ngroup = {server_uid}\n[storage]\ndata = {:?}\n[pickup]\ndirectory = {pickup:?}\n{ANYBODY}",
        dir.path().join("posthaste-data")
    );
    // Top-level keys stand in front of tables.
    let (tables, top) = (config.replace("\nhost_name = \"mx.example.org\"\n", ""), "host_name = \"mx.example.org\"\n");
    configure(dir.path(), &format!("{top}{tables}"));
    let as_user = |args: &[&str], input: &[u8]| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&program);
        command.current_dir(dir.path()).uid(user_uid).gid(user_uid).arg("sendmail").args(args);
        run(command, input)
    };
    let sent = as_user(&["-f", "user@example.org", "alice@example.org"], b"Subject: waits\n\n");
    assert!(sent.status.success(), "{sent:?}");
    let name = fs::read_dir(&pickup).unwrap().next().unwrap().unwrap();
    let found = name.metadata().unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (user_uid, server_uid, 0o640));
    let sent = run(command(dir.path(), &["sendmail", "bob@example.org"]), b"Subject: from root\n\n");
    assert!(sent.status.success(), "{sent:?}");
    let server = Server::start_as_it_is(dir.path());
    let mail = server.wait_for_mail("example.org", "alice", 1)[0].text();
    assert!(mail.contains(&format!("(Posthaste, from userid {user_uid})")), "{mail}");
    let mail = server.wait_for_mail("example.org", "bob", 1)[0].text();
    assert!(mail.contains("(Posthaste, from userid 0)"), "{mail}");
    // Not open any more.
    fs::set_permissions(&pickup, fs::Permissions::from_mode(0o700)).unwrap();
    let sent = as_user(&["alice@example.org"], b"");
    assert_eq!(sent.status.code(), Some(77), "{sent:?}");
    fs::set_permissions(&pickup, fs::Permissions::from_mode(0o1733)).unwrap();
    let sent = as_user(&["alice@example.org"], b"");
    assert_eq!(sent.status.code(), Some(77), "{sent:?}");
    assert!(String::from_utf8_lossy(&sent.stderr).contains("mode 3733"), "{sent:?}");
    server.stop();
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

#[test]
fn the_sender_is_told_once_of_what_is_refused_after_sendmail_has_returned() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("{ROUTED}\n[relay]\nlocal_users = false\nreturned_bytes = 1000\n");
    let server = Server::start(dir.path(), &config);
    let pickup = dir.path().join(PICKUP);
    // A sendmail that may read the configuration refuses these by itself.
    let put = |name: &str, envelope: &str, text: &str| {
        let behind = format!("{envelope}\n{text}");
        fs::write(pickup.join(format!(".{name}")), format!("POSTHASTE-PICKUP/1 {} -\n{behind}", behind.len())).unwrap();
        fs::rename(pickup.join(format!(".{name}")), pickup.join(name)).unwrap();
        let deadline = std::time::Instant::now() + PATIENCE;
        while !refused(dir.path()).iter().any(|refused| refused == name) {
            assert!(std::time::Instant::now() < deadline, "{name}: {}", server.log_text());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let (alice, no) = ("MAIL FROM:<alice@example.org>", "RCPT TO:<nobody@example.org>");
    let others = "RCPT TO:<bob@example.org>\nRCPT TO:<noone@example.org> NOTIFY=SUCCESS,FAILURE\n";
    put("some", &format!("{alice} ENVID=e1\n{no}\n{others}"), "Subject: some\r\n\r\nthe text\r\n");
    server.wait_for_mail("example.org", "bob", 1);
    let told = server.wait_for_mail("example.org", "alice", 1)[0].text();
    assert!(told.starts_with("Return-Path: <>\n") && told.contains("\nAuto-Submitted: auto-replied\n"), "{told}");
    for recipient in ["nobody", "noone"] {
        let group = format!("\nFinal-Recipient: rfc822; {recipient}@example.org\nAction: failed\nStatus: 5.1.1\n");
        assert!(told.contains(&group), "{told}");
    }
    assert!(told.contains("\nOriginal-Envelope-Id: e1\n") && !told.contains("rfc822; bob@"), "{told}");
    assert!(told.contains("\nSubject: some\n\nthe text\n"), "{told}");
    // Of these nobody wants to know, or nobody is told.
    put("null", &format!("MAIL FROM:<>\n{no}\n"), "Subject: null\r\n\r\n");
    put("never", &format!("{alice}\n{no} NOTIFY=NEVER\n"), "Subject: never\r\n\r\n");
    put("success", &format!("{alice}\n{no} NOTIFY=SUCCESS\n"), "Subject: success\r\n\r\n");
    put("remote", &format!("MAIL FROM:<ann@there.example>\n{no}\n"), "Subject: remote\r\n\r\n");
    put("long", &format!("{alice}\n{no}\n"), &format!("Subject: long\r\n\r\n{}", "line\r\n".repeat(1000)));
    put("header", &format!("{alice} RET=HDRS\n{no}\n"), "Subject: header\r\n\r\nline\r\n");
    let all = server.wait_for_mail("example.org", "alice", 3);
    for subject in ["long", "header"] {
        let told = all.iter().map(|told| told.text()).find(|text| text.contains(&format!("\nSubject: {subject}\n")));
        assert!(told.is_some_and(|text| !text.contains("\nline\n")), "{subject}: {all:?}");
    }
    server.stop();
    assert_eq!(all.len(), 3);
}
