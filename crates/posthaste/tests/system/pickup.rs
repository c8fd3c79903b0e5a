//! The pickup directory: files that cannot be taken, recipients that are refused later, and other users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::receiving::ROUTED;
use crate::sendmail::{PICKUP, refused, run, sends, wait_for_none, waiting};
use crate::support::*;

#[test]
fn unusable_files_are_set_aside_and_others_go_on() {
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
    assert!(server.wait_for_log("file=\"torn\"").contains("is truncated or incomplete"));
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
fn a_deferred_recipient_gets_it_later_and_others_once() {
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
fn users_may_write_into_an_open_directory_and_read_nothing() {
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
fn refusals_after_sendmail_are_told_to_the_sender_once() {
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
