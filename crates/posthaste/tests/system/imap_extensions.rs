//! Extensions of IMAP, on the built program.

use rustix::process::Signal;

use crate::imap::{Imap, serve};

/// A literal that the client does not wait with.
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
