//! Quotas of accounts without IMAP or POP3, and at LMTP.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use crate::auth::line;
use crate::imap::{Imap, address_of};
use crate::support::{Client, MESSAGE, PATIENCE, Reply, Server};

fn config(quota: &str) -> String {
    format!(
        "host_name = \"mx.example.org\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\nunix = \"lmtp.sock\"\nprotocol = \"lmtp\"\n\
         [[domain]]\nname = \"example.org\"\nusers = [\"ann\", \"bob\"]\n[quota]\n{quota}\n"
    )
}

/// An LMTP client at the socket of the server.
struct Lmtp(BufReader<UnixStream>);

impl Lmtp {
    fn open(dir: &Path) -> Self {
        let stream = UnixStream::connect(dir.join("lmtp.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Self(BufReader::new(stream));
        client.reply();
        client.ask("LHLO client.example");
        client
    }

    /// The last line of a reply.
    fn reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the connection ended");
            if line.as_bytes().get(3) != Some(&b'-') {
                return line.trim_end().to_owned();
            }
        }
    }

    fn ask(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        self.reply()
    }

    /// Replies to RCPT for ann and bob, and to the message for each accepted one.
    fn deliver(&mut self) -> ([String; 2], Vec<String>) {
        assert!(self.ask("MAIL FROM:<>").starts_with("250"));
        let taken = ["ann", "bob"].map(|user| self.ask(&format!("RCPT TO:<{user}@example.org>")));
        let count = taken.iter().filter(|reply| reply.starts_with("250")).count();
        if count == 0 {
            assert!(self.ask("RSET").starts_with("250"));
            return (taken, Vec::new());
        }
        assert!(self.ask("DATA").starts_with("354"));
        self.0.get_mut().write_all(MESSAGE).unwrap();
        self.0.get_mut().write_all(b".\r\n").unwrap();
        (taken, (0..count).map(|_| self.reply()).collect())
    }
}

/// Repeats a request until it is refused: mail is accepted for up to a second before its size is looked up again.
fn until_refused(mut ask: impl FnMut() -> String) -> String {
    let begun = Instant::now();
    loop {
        let reply = ask();
        if !reply.starts_with("250") {
            return reply;
        }
        assert!(begun.elapsed() < PATIENCE, "it is never full");
        std::thread::yield_now();
    }
}

/// Offers a message to ann, and to bob, whose RCPT must be accepted. Returns the reply for ann.
fn offer(smtp: &mut Client) -> Reply {
    smtp.expect("MAIL FROM:<s@example.net>", 250);
    let reply = smtp.command("RCPT TO:<ann@example.org>");
    smtp.expect("RCPT TO:<bob@example.org>", 250);
    smtp.expect("DATA", 354);
    smtp.send(&[MESSAGE, b".\r\n"].concat()).unwrap();
    assert_eq!(smtp.reply().code, 250);
    reply
}

#[test]
fn a_full_account_is_refused_without_a_listener_for_reading() {
    let dir = tempfile::tempdir().unwrap();
    let server =
        Server::start(dir.path(), &config("messages = 3\naccounts = { \"bob@example.org\" = { messages = 0 } }"));
    let mut smtp = server.hello();
    (0..3).for_each(|_| drop(smtp.deliver(&["ann@example.org"], MESSAGE)));
    let mut count = 3;
    let mut ask = || {
        let reply = offer(&mut smtp);
        count += usize::from(reply.code == 250);
        format!("{} {}", reply.code, reply.text)
    };
    assert_eq!(until_refused(&mut ask), "452 4.2.2 The mailbox is full, try again later");
    // Her own mail program has removed all but one: nobody else looks at the directory.
    let mail = server.wait_for_mail("example.org", "ann", count);
    let new = dir.path().join("posthaste-data/mail/example.org/ann/Maildir/new");
    mail[1..].iter().for_each(|stored| fs::remove_file(new.join(&stored.name)).unwrap());
    let begun = Instant::now();
    loop {
        if offer(&mut smtp).code == 250 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", server.log_text());
    }
    server.stop();
}

#[test]
fn lmtp_refuses_each_full_recipient() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config("accounts = { \"ann@example.org\" = { bytes = \"1 KiB\" } }"));
    let mut lmtp = Lmtp::open(dir.path());
    let refused = until_refused(|| {
        let (taken, done) = lmtp.deliver();
        assert!(taken[1].starts_with("250") && done.iter().all(|reply| reply.starts_with("250")), "{taken:?} {done:?}");
        taken[0].clone()
    });
    assert_eq!(refused, "452 4.2.2 The mailbox is full, try again later");
    server.reload(&config("permanent = true\naccounts = { \"ann@example.org\" = { bytes = \"1 KiB\" } }"));
    server.wait_for_log("configuration reloaded");
    let (taken, done) = lmtp.deliver();
    assert_eq!((&*taken[0], done.len()), ("552 5.2.2 The mailbox is full", 1));
    // The size that a client announces counts.
    server.reload(&config("accounts = { \"ann@example.org\" = { bytes = \"1 MiB\" } }"));
    let begun = Instant::now();
    loop {
        assert!(lmtp.ask("MAIL FROM:<> SIZE=1048576").starts_with("250"));
        let reply = lmtp.ask("RCPT TO:<ann@example.org>");
        assert!(lmtp.ask("RSET").starts_with("250"));
        if reply == "452 4.2.2 The mailbox is full, try again later" {
            break;
        }
        assert!(reply.starts_with("552") && begun.elapsed() < PATIENCE, "{reply}");
    }
    assert!(lmtp.deliver().0[0].starts_with("250"));
    server.stop();
}

const TWO_DOMAINS: &str = "host_name = \"mx.example.org\"\n[auth]\nfile = \"passwords\"\n[quota]\nmessages = 1000\n\
    [[listener]]\naddress = \"127.0.0.1:0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"imap\"\n\
    [[domain]]\nname = \"example.org\"\nusers = [\"ann\"]\n[[domain]]\nname = \"small.example\"\nusers = \"any\"\n";

#[test]
fn a_domain_has_a_quota_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let lines = ["ann@example.org", "bob@small.example"].map(|name| line(dir.path(), name, "secret"));
    fs::write(dir.path().join("passwords"), lines.concat()).unwrap();
    let server = Server::start(dir.path(), &format!("{TWO_DOMAINS}quota = {{ messages = 2 }}\n"));
    let mut smtp = server.hello();
    let mut rcpt = |user: &str| {
        smtp.expect("MAIL FROM:<s@example.net>", 250);
        let reply = smtp.command(&format!("RCPT TO:<{user}>"));
        if reply.code == 250 {
            smtp.expect("DATA", 354);
            smtp.send(&[MESSAGE, b".\r\n"].concat()).unwrap();
            assert_eq!(smtp.reply().code, 250);
        } else {
            smtp.expect("RSET", 250);
        }
        format!("{} {}", reply.code, reply.text)
    };
    let mut sent = 0;
    let refused = until_refused(|| {
        assert!(rcpt("ann@example.org").starts_with("250"));
        sent += 1;
        rcpt("bob@small.example")
    });
    assert_eq!(refused, "452 4.2.2 The mailbox is full, try again later");
    let address = address_of(&server, "imap");
    let quota = |login: &str| Imap::logged_in_as(address, login).ok("GETQUOTA \"\"");
    assert_eq!(quota("ann@example.org"), format!("* QUOTA \"\" (MESSAGE {sent} 1000)\r\n"));
    assert_eq!(quota("bob@small.example"), format!("* QUOTA \"\" (MESSAGE {} 2)\r\n", sent - 1));
    server.reload(&format!("{TWO_DOMAINS}quota = {{ messages = 2000 }}\n"));
    server.wait_for_log("configuration reloaded");
    assert!(rcpt("bob@small.example").starts_with("250"));
    assert_eq!(quota("bob@small.example"), format!("* QUOTA \"\" (MESSAGE {sent} 2000)\r\n"));
    server.stop();
}

#[test]
fn a_quota_set_later_needs_a_restart_where_nobody_counts() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(""));
    server.reload(&config("messages = 3"));
    let said = server.wait_for_log("these changes need a restart");
    assert!(said.contains("changes=\"quota\""), "{said}");
    server.stop();
}
