//! `posthaste mailbox create`, `rename` and `delete`, beside a running server and without one.

use std::path::Path;

use crate::imap::{Imap, serve};
use crate::support::{MESSAGE, command};

/// Exit status, standard output, standard error.
pub(crate) fn output(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = command(dir, args).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

const ANN: &str = "ann@example.org";

fn listed(imap: &mut Imap) -> Vec<String> {
    let told = imap.ok("LIST \"\" *");
    let name = |line: &str| line.trim_end().rsplit_once("\"/\" ").map(|(_, name)| name.trim_matches('"').to_owned());
    told.lines().filter_map(name).collect()
}

#[test]
fn mailboxes_are_changed_through_the_running_server() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| output(dir.path(), args);
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    assert_eq!(run(&["mailbox", "create", ANN, "Work/2026/"]), (Some(0), "Work/2026/ is made\n".into(), "".into()));
    assert!(listed(&mut imap).iter().any(|name| name == "Work/2026"), "{:?}", listed(&mut imap));
    assert!(listed(&mut imap).iter().any(|name| name == "Work"));
    // By the rules of IMAP.
    for (args, expected) in [
        (["create", "Work"], "the mailbox already exists"),
        (["create", "a//b"], "this cannot be the name of a mailbox"),
        (["create", "a*"], "This cannot be the name of a folder here"),
        (["delete", "INBOX"], "INBOX cannot be deleted"),
        (["delete", "None"], "no such mailbox"),
    ] {
        let (code, text, error) = run(&["mailbox", args[0], ANN, args[1]]);
        assert!(code == Some(1) && text.is_empty() && error.contains(expected), "{args:?}: {error}");
    }
    let message = "Subject: x\r\n\r\nx\r\n";
    imap.ok(&format!("APPEND Work/2026 {{{}+}}\r\n{message}", message.len()));
    assert_eq!(run(&["mailbox", "rename", ANN, "Work", "Old", "--json"]).1, "{\"renamed\":\"Work\",\"to\":\"Old\"}\n");
    assert!(imap.ok("STATUS Old/2026 (MESSAGES)").contains("MESSAGES 1"));
    let (code, _, error) = run(&["mailbox", "delete", ANN, "Old/2026"]);
    assert!(code == Some(2) && error.contains("Old/2026 has 1 message; nothing is deleted without --yes"), "{error}");
    let deleted = run(&["mailbox", "delete", ANN, "Old/2026", "--yes", "--json"]);
    assert_eq!(deleted.1, "{\"deleted\":\"Old/2026\",\"messages\":1}\n");
    assert_eq!(run(&["mailbox", "delete", ANN, "Old"]).1, "Old is deleted, with 0 messages\n");
    assert!(!listed(&mut imap).iter().any(|name| name.starts_with("Old")));
    let (code, _, error) = run(&["mailbox", "create", "eve@else.example", "x"]);
    assert!(code == Some(2) && error.contains("there is no such login"), "{error}");
    server.wait_for_log("the operator deletes a mailbox");
    server.stop();
}

#[test]
fn mailboxes_are_changed_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| output(dir.path(), args);
    let (server, _) = serve(dir.path(), "", "imap");
    server.hello().deliver(&[ANN], MESSAGE);
    server.stop();
    let (code, text, error) = run(&["mailbox", "create", ANN, "Entwürfe.alt"]);
    assert_eq!((code, &*text), (Some(0), "Entwürfe.alt is made\n"), "{error}");
    assert!(error.contains("no server runs: opening the spool in "), "{error}");
    assert_eq!(run(&["mailbox", "rename", ANN, "INBOX", "Before"]).0, Some(0));
    assert_eq!(run(&["mailbox", "count", ANN, "Before"]).1, "1\n");
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    assert!(imap.ok("STATUS Before (MESSAGES)").contains("MESSAGES 1"));
    assert!(imap.ok("STATUS INBOX (MESSAGES)").contains("MESSAGES 0"));
    assert!(listed(&mut imap).iter().any(|name| name == "Entw&APw-rfe.alt"), "{:?}", listed(&mut imap));
    server.stop();
}
