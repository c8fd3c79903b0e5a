//! A mail directory other than the one of earlier deliveries. Exchanged directories stand for disks.

use std::path::Path;

use serde_json::Value;

use crate::support::{ANYBODY, Server, command};

fn accept(dir: &Path, stream: &str) -> (i32, String, String) {
    let output = command(dir, &["spool", "accept-mount", "posthaste-data", stream]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

fn deliver(server: &Server, subject: &str) {
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["ann@example.org"], format!("Subject: {subject}\r\n\r\n").as_bytes());
}

#[test]
fn mail_waits_for_its_disk_and_a_command_accepts_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let (mail, away) = (dir.path().join("posthaste-data/mail"), dir.path().join("away"));
    let server = Server::start(dir.path(), ANYBODY);
    deliver(&server, "before");
    server.wait_for_mail("example.org", "ann", 1);
    let (code, _, error) = accept(dir.path(), "local:");
    assert!(code == 2 && error.contains("the spool is in use; stop the server first"), "{error}");
    server.stop();

    // The disk is not mounted: its mount point is empty.
    std::fs::rename(&mail, &away).unwrap();
    std::fs::create_dir(&mail).unwrap();
    let server = Server::start_as_it_is(dir.path());
    deliver(&server, "waits");
    let line = server.wait_for_log("a mail mount does not work");
    let expected = format!("run `posthaste spool accept-mount {}", Path::new("posthaste-data/spool").display());
    assert!(line.contains(" ERROR ") && line.contains("found none") && line.contains(&expected), "{line}");
    assert!(is_empty(&mail));
    let output = command(dir.path(), &["spool", "inspect", "posthaste-data", "--json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(shown["undelivered"].as_array().unwrap().len(), 1, "{shown}");
    assert!(line.contains(shown["mounts"][0]["id"].as_str().unwrap()), "{line} {shown}");
    // It is mounted.
    std::fs::remove_dir(&mail).unwrap();
    std::fs::rename(&away, &mail).unwrap();
    server.wait_for_mail("example.org", "ann", 2);
    server.wait_for_log("the mail mount works again");
    server.stop();

    // A new disk takes its place.
    std::fs::rename(&mail, &away).unwrap();
    let server = Server::start_as_it_is(dir.path());
    deliver(&server, "for the new disk");
    server.wait_for_log("a mail mount does not work");
    assert!(!mail.exists(), "it is not made where a disk was");
    server.stop();
    std::fs::create_dir(&mail).unwrap();
    let (code, _, error) = accept(dir.path(), "local:other");
    assert!(code == 2 && error.contains("streams that are: local:\n"), "{error}");
    let (code, text, _) = accept(dir.path(), "local:");
    assert!(code == 0 && text.starts_with("accepted: "), "{text}");
    let server = Server::start_as_it_is(dir.path());
    server.wait_for_mail("example.org", "ann", 1);
    assert!(mail.join(".posthaste-mount").is_file());
    server.stop();
}
