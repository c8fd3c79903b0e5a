//! `posthaste account`: logins are added, changed and deleted, and a running server applies it at once.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use crate::imap::{CONFIG, Imap, address_of, serve};
use crate::mailbox_changes::output;
use crate::support::{MESSAGE, PATIENCE, Server, command};

fn with_password(dir: &Path, args: &[&str], password: &str) -> (Option<i32>, String, String) {
    let mut child = command(dir, args);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may end without asking.
    let _ = child.stdin.take().unwrap().write_all(format!("{password}\n").as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_login_counts_as_soon_as_the_command_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let passwords = dir.path().join("passwords");
    fs::write(&passwords, "# ours\n").unwrap();
    fs::set_permissions(&passwords, fs::Permissions::from_mode(0o640)).unwrap();
    let server = Server::start(dir.path(), CONFIG);
    let address = address_of(&server, "imap");
    let added = with_password(dir.path(), &["account", "add", "ann@example.org", "--senders", "any"], "secret");
    assert_eq!(added, (Some(0), "ann@example.org may log in\n".into(), String::new()));
    Imap::logged_in(address).ok("NOOP");
    let again = with_password(dir.path(), &["account", "add", "ANN@example.org"], "other");
    assert_eq!((again.0, again.1.as_str()), (Some(1), ""), "{}", again.2);
    assert!(again.2.contains("login ann@example.org already exists"), "{}", again.2);
    let added = with_password(dir.path(), &["account", "add", "bob@example.org", "--scram", "--json"], "first");
    assert_eq!(added.1, "{\"added\":\"bob@example.org\",\"reloaded\":true}\n");
    let changed = with_password(dir.path(), &["account", "passwd", "bob@example.org"], "secret");
    assert_eq!(changed.1, "bob@example.org has a new password\n", "{}", changed.2);
    Imap::logged_in_as(address, "bob@example.org").ok("CAPABILITY");
    let text = fs::read_to_string(&passwords).unwrap();
    assert!(text.starts_with("# ours\nann@example.org:$argon2id$") && text.contains(":senders=any\n"), "{text}");
    assert!(text.lines().nth(2).unwrap().contains(":scram=SCRAM-SHA-256$"), "{text}");
    assert_eq!(fs::metadata(&passwords).unwrap().permissions().mode() & 0o777, 0o640);
    // SCRAM is offered to all once one has keys.
    with_password(dir.path(), &["account", "add", "carol@example.org"], "third");
    let (_, listed, _) = output(dir.path(), &["account", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["words"][0], "senders=any", "{listed}");
    assert_eq!([0, 1, 2].map(|at| listed[at]["scram"].as_bool()), [Some(false), Some(true), Some(true)], "{listed}");
    let (code, _, error) = with_password(dir.path(), &["account", "passwd", "eve@example.org"], "x");
    assert!(code == Some(1) && error.contains("there is no login eve@example.org"), "{error}");
    server.stop();
}

#[test]
fn mail_of_a_deleted_login_stays_unless_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    with_password(dir.path(), &["account", "add", "bob@example.org"], "secret");
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    server.hello().deliver(&["bob@example.org"], MESSAGE);
    let mut imap = Imap::logged_in(address);
    imap.ok("CREATE a/b");
    imap.ok("SELECT INBOX");
    imap.ok("COPY 1 a/b");
    Imap::logged_in_as(address, "bob@example.org").ok("SELECT INBOX");
    let (code, _, error) = output(dir.path(), &["account", "delete", "bob@example.org"]);
    assert!(code == Some(2) && error.contains("nothing is deleted without --yes"), "{error}");
    assert!(error.contains("Its mail stays in ") && error.contains("example.org/bob/Maildir"), "{error}");
    let (code, text, error) = output(dir.path(), &["account", "delete", "bob@example.org", "--yes"]);
    assert!(code == Some(0) && text.contains("bob@example.org is deleted; its mail stays in "), "{text} {error}");
    assert!(error.contains("mail for bob@example.org is still accepted"), "{error}");
    server.wait_for_mail("example.org", "bob", 1);
    let (code, text, error) = output(dir.path(), &["account", "delete", "ann@example.org", "--yes", "--mail"]);
    assert_eq!((code, &*text), (Some(0), "ann@example.org is deleted, with 2 messages\n"), "{error}");
    // The files follow within a second.
    let begun = Instant::now();
    while !server.mailbox("example.org", "ann").is_empty() && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(server.mailbox("example.org", "ann"), []);
    assert_eq!(output(dir.path(), &["account", "list"]), (Some(1), "no logins\n".into(), String::new()));
    let (_, listed, _) = output(dir.path(), &["export", "bob@example.org", "--to", "out", "--json"]);
    assert!(listed.contains("\"written\":1"), "{listed}");
    server.stop();
}

#[test]
fn an_account_needs_a_file_of_passwords() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("posthaste.toml"), "").unwrap();
    let (code, _, error) = output(dir.path(), &["account", "list"]);
    assert!(code == Some(2) && error.contains("the configuration names no file of passwords"), "{error}");
    fs::write(dir.path().join("posthaste.toml"), "[auth]\nfile = \"passwords\"\n").unwrap();
    // The file is made, and no server is running yet.
    let (code, text, error) = with_password(dir.path(), &["account", "add", "me"], "x");
    assert_eq!((code, &*text), (Some(0), "me@localhost may log in; no server runs\n"), "{error}");
    assert_eq!(fs::metadata(dir.path().join("passwords")).unwrap().permissions().mode() & 0o777, 0o600);
}
