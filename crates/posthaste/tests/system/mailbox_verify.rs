//! `posthaste mailbox verify`, `rebuild` and `compact`.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::Value;

use crate::imap::{Imap, serve};
use crate::support::{Client, MESSAGE, command};

fn output(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = command(dir, args).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// Runs `mailbox verify`. Returns its exit status and JSON.
pub(crate) fn verify(dir: &Path) -> (Option<i32>, Value) {
    let (code, text, error) = output(dir, &["mailbox", "verify", "--json"]);
    (code, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{error}")))
}

#[test]
fn mailboxes_are_verified_beside_a_server_that_receives() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let smtp = server.addresses[0];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::open(smtp).unwrap();
            client.reply();
            client.expect("EHLO client.example", 250);
            while !is_over.load(Ordering::Relaxed) {
                client.deliver(&["ann@example.org"], MESSAGE);
            }
        });
        for _ in 0..5 {
            let (code, found) = verify(dir.path());
            assert_eq!((code, &found["damage"]), (Some(0), &0.into()), "{found}");
            imap.ok("NOOP");
            imap.ok("UID STORE 1:* +FLAGS.SILENT (\\Flagged)");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // A table that lags behind the spool.
    server.signal(Signal::KILL);
    server.wait();
    let (code, found) = verify(dir.path());
    assert_eq!((code, &found["damage"]), (Some(0), &0.into()), "{found}");
    assert!(found["messages"].as_u64().unwrap() > 0 && found["mailboxes"] == 6, "{found}");
}

#[test]
fn a_table_is_compacted_while_no_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    Imap::logged_in(address).ok("SELECT INBOX");
    let (code, _, error) = output(dir.path(), &["mailbox", "compact"]);
    assert!(code == Some(2) && error.contains("stop the server first"), "{error}");
    server.stop();
    let table = dir.path().join("posthaste-data/mailstore/meta.redb");
    let (before, listed) =
        (fs::metadata(&table).unwrap().len(), output(dir.path(), &["mailbox", "list", "ann@example.org"]));
    let (code, text, error) = output(dir.path(), &["mailbox", "compact", "--json"]);
    assert_eq!(code, Some(0), "{error}");
    let done: Value = serde_json::from_str(&text).unwrap();
    let after = fs::metadata(&table).unwrap().len();
    assert_eq!(done, serde_json::json!({ "table_file_bytes": after, "table_file_bytes_before": before }));
    assert!(after <= before, "{after} {before}");
    assert_eq!(output(dir.path(), &["mailbox", "list", "ann@example.org"]), listed);
    assert_eq!(verify(dir.path()).0, Some(0));
}

#[test]
fn a_missing_file_is_found_and_a_mailbox_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    let mut smtp = server.hello();
    (0..3).for_each(|_| drop(smtp.deliver(&["ann@example.org"], MESSAGE)));
    server.wait_for_mail("example.org", "ann", 3);
    imap.ok("SELECT INBOX");
    imap.ok("UID STORE 2 +FLAGS.SILENT ($Junk)");
    let (code, text, _) = output(dir.path(), &["mailbox", "verify", "ann@example.org", "INBOX"]);
    assert_eq!((code, &*text), (Some(0), "1 mailbox with 3 messages: no damage\n"));
    assert_eq!(output(dir.path(), &["mailbox", "verify", "ann@example.org", "None"]).0, Some(1));
    let (code, _, error) = output(dir.path(), &["mailbox", "rebuild", "ann@example.org", "INBOX"]);
    assert!(code == Some(2) && error.contains("nothing is rebuilt without --yes"), "{error}");

    let rebuild = ["mailbox", "rebuild", "ann@example.org", "INBOX", "--yes", "--json"];
    let (code, text, error) = output(dir.path(), &rebuild);
    assert_eq!(code, Some(0), "{error}");
    let first: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&first["messages"], &first["keeps_uids"], &first["uid_next"]), (&3.into(), &true.into(), &4.into()));
    // The session ends, another one has the same UIDs and flags.
    assert!(imap.ends_with_bye());
    let mut imap = Imap::logged_in(address);
    let told = imap.ok("SELECT INBOX");
    assert!(told.contains("* 3 EXISTS") && told.contains("UIDNEXT 4"), "{told}");
    assert!(imap.ok("UID FETCH 2 FLAGS").contains("$Junk"));
    // New mail is seen at once.
    smtp.deliver(&["ann@example.org"], MESSAGE);
    assert!(imap.ok("NOOP").contains("* 4 EXISTS"));
    assert!(imap.ok("UID FETCH 4 BODY.PEEK[]").contains("Subject: hello"));
    server.wait_for_mail("example.org", "ann", 3);
    server.stop();

    // Without a server: a file is lost, which the next look takes out; then all get new UIDs.
    let new = dir.path().join("posthaste-data/mail/example.org/ann/Maildir/new");
    fs::remove_file(fs::read_dir(new).unwrap().next().unwrap().unwrap().path()).unwrap();
    let (code, found) = verify(dir.path());
    assert_eq!(
        (code, &found["damage"], &found["findings"][0]["kind"]),
        (Some(1), &1.into(), &"missing".into()),
        "{found}"
    );
    let (code, text, _) = output(dir.path(), &["mailbox", "verify", "ann@example.org"]);
    assert!(code == Some(1) && text.contains("damage: example.org/ann/Maildir INBOX: UID "), "{text}");
    let renew = ["mailbox", "rebuild", "ann@example.org", "INBOX", "--yes", "--json", "--new-uids"];
    let (code, text, error) = output(dir.path(), &renew);
    assert_eq!(code, Some(0), "{error}");
    let second: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&second["messages"], &second["keeps_uids"]), (&3.into(), &false.into()));
    assert!(second["uid_validity"].as_u64() > first["uid_validity"].as_u64());
    assert_eq!(verify(dir.path()).0, Some(0));
}

/// Numbers of a new spool begin above those of the table; otherwise UIDs would be assigned twice.
#[test]
fn a_new_spool_is_not_begun_beside_a_table_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path(), "", "imap");
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    server.wait_for_mail("example.org", "ann", 1);
    server.stop();
    let data = dir.path().join("posthaste-data");
    let table = data.join("mailstore/meta.redb");
    fs::remove_dir_all(data.join("spool")).unwrap();
    fs::write(&table, vec![7; 8192]).unwrap();
    let (code, _, error) = output(dir.path(), &["serve"]);
    assert!(code != Some(0) && error.contains("the spool is new, and its numbers must begin above"), "{error}");
    assert!(!data.join("spool/ring").exists());
    fs::remove_file(&table).unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    assert!(Imap::logged_in(address).ok("STATUS INBOX (MESSAGES)").contains("MESSAGES 1"));
    server.stop();
}
