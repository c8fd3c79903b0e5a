//! The server's log.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{ANYBODY, Client, MESSAGE, PATIENCE, Server, configure};

#[test]
fn the_log_has_one_line_a_message_and_never_the_body() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[log]\nformat = \"json\"\n"));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    let hostile = b"Message-ID: <a\x1b[31m\"\r\n\t{\"x\":1}@y>\r\nSubject: secret subject\r\n\r\nsecret body\r\n";
    client.deliver(&["\"q\\\",x\"@example.org"], hostile);
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<a@elsewhere.example>", 550);
    client.expect("QUIT", 221);
    server.wait_for_log("message kept");
    server.wait_for_log("recipient refused");
    let log = server.log_text();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let kept: Vec<_> = lines.iter().filter(|line| line["message"] == "message kept").collect();
    assert_eq!(kept.len(), 1, "{log}");
    assert_eq!(kept[0]["from"], "<sender@example.net>");
    assert_eq!(kept[0]["to"], "<\"q\\\",x\"@example.org>");
    assert_eq!(kept[0]["bytes"], hostile.len());
    assert_eq!(kept[0]["message_id"], "<a?[31m\"???{\"x\":1}@y>");
    assert!(!log.contains("secret") && !log.contains('\x1b'), "{log}");
    server.stop();
}

#[test]
fn a_start_that_fails_is_a_line_of_json_where_the_log_is() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("lmtp"), "precious").unwrap();
    let listener = "[[listener]]\nunix = \"lmtp\"\n";
    for (config, args) in [
        (listener.to_owned(), &["serve", "--log-format", "json"][..]),
        (format!("{listener}[log]\nformat = \"json\"\n"), &["serve"]),
    ] {
        std::fs::write(dir.path().join("posthaste.toml"), config).unwrap();
        let refused = crate::support::command(dir.path(), args).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let line: serde_json::Value = serde_json::from_slice(&refused.stderr).unwrap();
        assert_eq!(line["level"], "ERROR");
        assert!(line["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        assert!(line["message"].as_str().unwrap().starts_with("cannot listen on lmtp: "), "{line}");
    }
}

#[test]
fn a_message_that_its_client_gave_up_is_not_logged_as_kept() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{ANYBODY}\n[log]\nformat = \"json\"\n"));
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<a@example.org>", 250);
    client.send(b"BDAT 3\r\nx\r\n").unwrap();
    assert_eq!(client.reply().code, 250);
    client.expect("RSET", 250);
    let line: serde_json::Value = serde_json::from_str(&server.wait_for_log("gave up the message")).unwrap();
    assert_eq!((&line["message"], &line["reply"]), (&"message abandoned".into(), &serde_json::Value::Null));
    client.expect("MAIL FROM:<s@example.net>", 250);
    client.expect("RCPT TO:<a@example.org>", 250);
    client.expect("DATA", 354);
    drop(client);
    let line: serde_json::Value = serde_json::from_str(&server.wait_for_log("connection ended")).unwrap();
    assert_eq!(line["message"], "message abandoned");
    assert!(!server.log_text().contains("message kept"));
    server.stop();
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // One pipe for both, open and never read, as with a pager that nobody pages: it holds 64 KiB, and the server some MiB more.
    let mut server = UnreadServer::start(dir.path());
    let refused = format!("RCPT TO:<{}@{}example>\r\n", "x".repeat(60), "elsewhere.".repeat(17));
    for _ in 0..60 {
        let mut client = Client::open(server.address).unwrap();
        assert_eq!(client.reply().code, 220);
        client.expect("EHLO client.example.net", 250);
        for _ in 0..5 {
            client.expect("MAIL FROM:<s@example.net>", 250);
            // A line each; then a message, so that so many errors are not held against it.
            client.send(refused.repeat(45).as_bytes()).unwrap();
            for _ in 0..45 {
                assert_eq!(client.reply().code, 550);
            }
            client.expect("RSET", 250);
            client.deliver(&["a@example.org"], MESSAGE);
        }
        client.expect("QUIT", 221);
    }
    server.stop();
}

#[test]
fn mail_that_waits_for_a_mailbox_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), ANYBODY);
    let domain = dir.path().join("posthaste-data/mail/example.org");
    std::fs::create_dir_all(&domain).unwrap();
    std::fs::write(domain.join("a"), "in the way of a mailbox").unwrap();
    let mut client = server.connect();
    client.expect("EHLO client.example.net", 250);
    client.deliver(&["a@example.org"], MESSAGE);
    let since = Instant::now();
    let line = server.wait_for_log("mail waits for this mailbox");
    assert!(line.contains("WARN") && line.contains("messages=1 "), "{line}");
    assert!(line.contains("example.org/a/Maildir") && line.contains("error="), "{line}");
    let total = server.wait_for_log("total of waiting mail");
    assert!(total.contains("copies=1 ") && total.contains("mailboxes=1"), "{total}");
    let shown = crate::support::command(dir.path(), &["spool", "inspect", "posthaste-data"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("Not a directory") && !shown.contains("os error"), "{shown}");
    std::fs::remove_file(domain.join("a")).unwrap();
    server.wait_for_mail_that_waits(since, "example.org", "a", 1);
    server.stop();
}

/// A server whose output and log go to one pipe, of which only the banner is read. Killed when dropped.
struct UnreadServer {
    child: Child,
    /// Held open during the life of the server.
    _output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl UnreadServer {
    /// Starts it in `dir` and waits until it is ready.
    fn start(dir: &Path) -> Self {
        configure(dir, ANYBODY);
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(dir).args(["-c", "exec 2>&1; exec \"$0\" serve", env!("CARGO_BIN_EXE_posthaste")]);
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.contains("Ready") {
            assert!(output.read_line(&mut banner).unwrap() > 0, "it ended: {banner}");
        }
        let address = banner.lines().find_map(|line| line.trim().strip_prefix("listening")?.trim().parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address: {banner}"));
        Self { child, _output: output, address }
    }

    /// Stops it as an operator does, and expects success.
    fn stop(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return assert!(status.success(), "{status}");
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for UnreadServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
