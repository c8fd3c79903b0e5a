//! Extensions of IMAP, on the built program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::process::Signal;

use crate::imap::{CONFIG, Imap, serve};
use crate::support::{MESSAGE, PATIENCE, Server};

/// A non-synchronising literal.
fn literal(text: &str) -> String {
    format!("{{{}+}}\r\n{text}", text.len())
}

#[test]
fn several_messages_of_one_append_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, mut address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    let long = format!("Subject: long\r\n\r\n{}", "0123456789abcd\r\n".repeat(40_000));
    let (one, three) = (literal("Subject: one\r\n\r\n1\r\n"), literal("Subject: three\r\n\r\n3\r\n"));
    let all = format!("APPEND INBOX (\\Seen) {one} ($Junk) {} {three}", literal(&long));
    let (_, tagged) = imap.command(&all);
    assert!(tagged.starts_with("OK [APPENDUID ") && tagged.ends_with(" 1:3] APPEND completed"), "{tagged}");
    // The second one is refused, and so is the first.
    let (_, tagged) = imap.command(&format!("APPEND INBOX {one} {}", literal("a\0b")));
    assert!(tagged.starts_with("NO [UNKNOWN-CTE]"), "{tagged}");
    for _ in 0..2 {
        server.signal(Signal::KILL);
        server.wait();
        (server, address) = serve(dir.path(), "", "imap");
        let mut imap = Imap::logged_in(address);
        assert!(imap.ok("SELECT INBOX").contains("* 3 EXISTS"));
        let said = imap.ok("FETCH 1:* (UID FLAGS RFC822.SIZE)");
        assert!(said.contains("* 1 FETCH (UID 1 FLAGS (\\Seen) RFC822.SIZE 19)"), "{said}");
        assert!(said.contains(&format!("* 2 FETCH (UID 2 FLAGS ($Junk) RFC822.SIZE {})", long.len())), "{said}");
        assert!(said.contains("* 3 FETCH (UID 3 FLAGS () RFC822.SIZE 21)"), "{said}");
        assert!(imap.ok("FETCH 2 BODY.PEEK[]").contains(&long));
    }
    server.stop();
}

#[test]
fn parts_are_fetched_without_their_encoding() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    // Longer than one read of the file: 300,000 octets with NULs among them.
    let octets: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    let encoded = BASE64.encode(&octets);
    let lines: Vec<&str> = encoded.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
    let mail = format!(
        "Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Transfer-Encoding: base64\r\n\r\n{}\r\n\
         --b\r\nContent-Transfer-Encoding: x-new\r\n\r\nx\r\n--b--\r\n",
        lines.join("\r\n")
    );
    imap.ok(&format!("APPEND INBOX {}", literal(&mail)));
    imap.ok("SELECT INBOX");
    let (said, tagged) = imap.command("FETCH 1 (BINARY.SIZE[1] BINARY.PEEK[1] BINARY.PEEK[1]<299000.5000>)");
    let end = &octets[299_000..];
    let expected = [
        b"* 1 FETCH (BINARY.SIZE[1] 300000 BINARY[1] ~{300000}\r\n",
        &octets[..],
        b" BINARY[1]<299000> ~{1000}\r\n",
        end,
        b")\r\n",
    ];
    assert_eq!(tagged, "OK FETCH completed");
    assert!(said == expected.concat(), "{} octets", said.len());
    let (said, tagged) = imap.command("FETCH 1 (BINARY.PEEK[2] UID)");
    assert_eq!(said, b"* 1 FETCH (BINARY[2] NIL UID 1)\r\n");
    assert!(tagged.starts_with("NO [UNKNOWN-CTE]"), "{tagged}");
    server.stop();
}

#[test]
fn a_full_account_gets_no_more_mail() {
    let dir = tempfile::tempdir().unwrap();
    let quota = "[quota]\nbytes = 2000\n[quota.accounts]\n\"bob@example.org\" = { bytes = 0 }\n";
    let (server, address) = serve(dir.path(), quota, "imap");
    let mut smtp = server.hello();
    let mail = format!("Subject: large\r\n\r\n{}", "0123456789abcd\r\n".repeat(40));
    // What comes within a second of the last look is not counted yet.
    let reached = Instant::now();
    loop {
        smtp.expect("MAIL FROM:<a@example.net> SIZE=700", 250);
        let reply = smtp.command("RCPT TO:<ann@example.org>");
        if reply.code == 452 {
            assert!(reply.text.contains("4.2.2 The mailbox is full"), "{reply:?}");
            break;
        }
        assert!(reached.elapsed() < PATIENCE);
        smtp.expect("DATA", 354);
        smtp.send(mail.as_bytes()).and_then(|()| smtp.send(b".\r\n")).unwrap();
        assert_eq!(smtp.reply().code, 250);
    }
    smtp.expect("RCPT TO:<bob@example.org>", 250);
    smtp.expect("RSET", 250);
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let said = imap.ok("GETQUOTAROOT INBOX");
    assert!(said.starts_with("* QUOTAROOT \"INBOX\" \"\"\r\n* QUOTA \"\" (STORAGE "), "{said}");
    for command in ["APPEND INBOX {700}", "COPY 1:* Sent"] {
        let (_, tagged) = imap.command(command);
        assert_eq!(tagged, "NO [OVERQUOTA] The quota is used up", "{command}");
    }
    imap.ok("MOVE 1 Trash");
    imap.ok("STORE 1:* +FLAGS (\\Deleted)");
    imap.ok("EXPUNGE");
    imap.ok(&format!("APPEND INBOX {}", literal("Subject: small\r\n\r\n")));
    let is_taken = |smtp: &mut crate::support::Client| {
        smtp.expect("MAIL FROM:<a@example.net> SIZE=700", 250);
        let code = smtp.command("RCPT TO:<ann@example.org>").code;
        smtp.expect("RSET", 250);
        code == 250
    };
    let emptied = Instant::now();
    // A session has so many commands without a message.
    while !is_taken(&mut server.hello()) {
        assert!(emptied.elapsed() < PATIENCE);
    }
    // A reload sets another quota.
    server.reload(&format!("{CONFIG}[quota]\nbytes = 10\npermanent = true\n"));
    server.wait_for_log("configuration reloaded");
    smtp.expect("MAIL FROM:<a@example.net>", 250);
    let reply = smtp.command("RCPT TO:<ann@example.org>");
    assert!(reply.code == 552 && reply.text.contains("5.2.2"), "{reply:?}");
    // The end waits for a transaction.
    smtp.expect("RSET", 250);
    server.stop();
}

#[test]
fn a_client_of_rev2_has_its_names_and_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    assert_eq!(imap.ok("ENABLE IMAP4rev2"), "* ENABLED IMAP4rev2\r\n");
    imap.ok("CREATE \"Entw\u{fc}rfe & mehr\"");
    let append = imap.command(&format!("APPEND \"Entw\u{fc}rfe & mehr\" {}", literal("Subject: one\r\n\r\n1\r\n")));
    assert!(append.1.starts_with("OK [APPENDUID "), "{append:?}");
    let selected = imap.ok("SELECT \"Entw\u{fc}rfe & mehr\"");
    assert!(
        selected.contains("* LIST () \"/\" \"Entw\u{fc}rfe & mehr\"\r\n") && !selected.contains("RECENT"),
        "{selected}"
    );
    let found = imap.ok("SEARCH ALL");
    assert!(found.starts_with("* ESEARCH (TAG \"") && found.ends_with(") ALL 1\r\n"), "{found}");
    assert_eq!(imap.ok("UID SEARCH RETURN (SAVE) UNSEEN"), "");
    assert_eq!(imap.ok("STORE $ +FLAGS (\\Seen)"), "* 1 FETCH (FLAGS (\\Seen))\r\n");
    // Another session has IMAP4rev1.
    let mut other = Imap::logged_in(address);
    assert!(other.ok("LIST \"\" Entw*").contains("\"Entw&APw-rfe &- mehr\""));
    assert!(other.ok("SELECT \"Entw&APw-rfe &- mehr\"").contains("* 0 RECENT"));
    assert_eq!(other.ok("SEARCH SEEN"), "* SEARCH 1\r\n");
    server.stop();
}

/// Before a session has opened them, folders are told by the table's numbers, or by a listing where another program has changed them.
#[test]
fn folders_have_the_same_numbers_after_a_restart() {
    const NUMBERS: &str = "LIST \"\" * RETURN (STATUS (MESSAGES UNSEEN UIDNEXT UIDVALIDITY HIGHESTMODSEQ SIZE))";
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut smtp = server.hello();
    for _ in 0..3 {
        smtp.deliver(&["ann@example.org"], MESSAGE);
    }
    let mut imap = Imap::logged_in(address);
    for command in ["SELECT INBOX", "STORE 1 +FLAGS.SILENT (\\Seen)", "COPY 1:2 Archive", "UNSELECT"] {
        imap.ok(command);
    }
    let told = imap.ok(NUMBERS);
    assert!(told.contains("* STATUS \"INBOX\" (MESSAGES 3 UNSEEN 2 "), "{told}");
    assert!(told.contains("* STATUS \"Archive\" (MESSAGES 2 UNSEEN 1 "), "{told}");
    server.stop();
    let (server, address) = serve(dir.path(), "", "imap");
    assert_eq!(Imap::logged_in(address).ok(NUMBERS), told);
    server.stop();
    let maildir = dir.path().join("posthaste-data/mail/example.org/ann/Maildir");
    std::fs::write(maildir.join("new/1.other"), "Subject: x\n\nx\n").unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let changed = Imap::logged_in(address).ok(NUMBERS);
    assert!(changed.contains("* STATUS \"INBOX\" (MESSAGES 4 UNSEEN 3 UIDNEXT 5 "), "{changed}");
    let of = |told: &str| told.lines().find(|line| line.contains("STATUS \"Archive\"")).map(str::to_owned);
    assert_eq!(of(&changed), of(&told));
    server.stop();
}

#[test]
fn mailbox_names_have_the_form_that_clients_know() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("CREATE Work/2026");
    server.reload(&format!("{CONFIG}[imap]\nnames = \"INBOX.\"\n"));
    server.wait_for_log("configuration reloaded");
    let mut dotted = Imap::logged_in(address);
    assert_eq!(dotted.ok("LIST \"\" INBOX.Work.*"), "* LIST (\\HasNoChildren) \".\" \"INBOX.Work.2026\"\r\n");
    assert!(dotted.ok("SELECT INBOX.Work.2026").contains("* 0 EXISTS"));
    // A session keeps its form.
    assert!(imap.ok("LIST \"\" Work/%").contains("\"Work/2026\""));
    server.stop();
}

/// Threads of the process.
fn threads(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count()
}

/// A thread that has read messages keeps half a MiB and more, and without a bound there were 130 of them.
#[test]
fn clients_that_read_nothing_cost_few_threads() {
    const CLIENTS: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let cur = dir.path().join("posthaste-data/mail/example.org/ann/Maildir/cur");
    std::fs::create_dir_all(&cur).unwrap();
    std::fs::create_dir(cur.with_file_name("new")).unwrap();
    std::fs::create_dir(cur.with_file_name("tmp")).unwrap();
    for number in 0..300 {
        let message = format!("Subject: {number}\n\n{}", "0123456789abcde\n".repeat(500));
        std::fs::write(cur.join(format!("{number}.a:2,")), message).unwrap();
    }
    let (server, address) = serve(dir.path(), "[imap]\nconnections_per_login = 0\n", "imap");
    let open = || {
        let mut client = BufReader::new(TcpStream::connect(address).unwrap());
        client.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        client.get_mut().write_all(b"a LOGIN ann@example.org secret\r\nb SELECT INBOX\r\n").unwrap();
        let selected = client.by_ref().lines().find(|line| line.as_ref().unwrap().starts_with("b "));
        assert!(selected.unwrap().unwrap().starts_with("b OK"));
        client
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| open()).collect();
    let (threads_before, memory_before) = (threads(&server), server.memory_bytes());
    // More than buffers hold.
    let fetch = "c FETCH 1:* BODY.PEEK[]\r\n".repeat(4);
    clients.iter_mut().for_each(|client| client.get_mut().write_all(fetch.as_bytes()).unwrap());
    for client in &mut clients {
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        assert!(line.starts_with("* 1 FETCH"), "{line}");
    }
    let mut reader = Imap::logged_in(address);
    reader.ok("SELECT INBOX");
    assert!(reader.ok("FETCH 1:* BODY.PEEK[]").contains("* 300 FETCH"));
    let (threads, memory) = (threads(&server), server.memory_bytes());
    assert!(threads < threads_before + 50, "{threads_before} {threads}");
    assert!(memory < memory_before + (60 << 20), "{memory_before} {memory}");
}
