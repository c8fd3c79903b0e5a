//! The corpus comes in by each door and goes out by each command, with equal octets.

use std::process::Command;

use crate::corpus::{corpus_dir, messages_in, to_crlf, to_wire};
use crate::imap::{Imap, address_of, run, serve};
use crate::support::Client;

#[test]
fn every_message_of_the_corpus_is_fetched_as_it_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut smtp = server.hello();
    let mut accepted = 0;
    for file in messages_in(&corpus_dir()) {
        let octets = to_wire(std::fs::read(file).unwrap());
        accepted += usize::from(smtp.try_message("s@example.net", &["ann@example.org"], &octets).unwrap().code == 250);
    }
    let stored = server.wait_for_mail("example.org", "ann", accepted);
    let mut imap = Imap::logged_in(address);
    assert!(imap.ok("SELECT INBOX").contains(&format!("* {accepted} EXISTS")));
    let mut wanted: Vec<Vec<u8>> = stored.iter().map(|stored| to_crlf(&stored.bytes)).collect();
    for number in 1..=accepted {
        let (said, tagged) = imap.command(&format!("FETCH {number} (BODY.PEEK[])"));
        assert!(tagged.starts_with("OK"), "{tagged}");
        let end = said.windows(3).position(|three| three == b"}\r\n").unwrap() + 3;
        let body = &said[end..said.len() - b")\r\n".len()];
        let at = wanted.iter().position(|wanted| wanted == body);
        wanted.swap_remove(
            at.unwrap_or_else(|| panic!("message {number} is no file: {}", String::from_utf8_lossy(body))),
        );
    }
    // Once from the messages, and then from what is kept of them.
    for items in ["ENVELOPE", "BODYSTRUCTURE", "RFC822.SIZE", "(BODYSTRUCTURE ENVELOPE)", "BODYSTRUCTURE"] {
        let told = imap.ok(&format!("FETCH 1:* {items}"));
        assert_eq!(imap.ok(&format!("FETCH 1:* {items}")), told);
    }
    server.stop();
}

/// Messages by SMTP, then the same by LMTP, and by APPEND in another mailbox. Decoders of parts are those of Python.
const DOORS: &str = r#"
import base64, binascii, imaplib, poplib, re, sys
poplib._MAXLINE = 1 << 20
imap_port, pop3_port, directory, count = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
imap = imaplib.IMAP4("127.0.0.1", imap_port, timeout=60)
imap.login("ann@example.org", "secret")
wires = [open(f"{directory}/{number}", "rb").read() for number in range(count)]
def get(uid, item):
    status, data = imap.uid("FETCH", str(uid), f"({item})")
    if status == "NO":
        assert b"UNKNOWN-CTE" in data[0], (uid, item, data)
        # Else the next command would have it.
        imap.response("FETCH")
        return None
    assert status == "OK", (uid, item, data)
    if isinstance(data[0], tuple):
        return data[0][1]
    return None if data[0].endswith(b" NIL)") else b""
def decoded(mime, body):
    """Without the encoding; `None`: it is not clear what that is."""
    kind = re.search(rb"(?im)^content-type:\s*(\w+)/", mime)
    name = re.search(rb"(?im)^content-transfer-encoding:[ \t]*([^\s;(]*)", mime)
    name = name.group(1).lower() if name else b"7bit"
    if name in (b"7bit", b"8bit", b"binary"):
        return body
    if kind and kind.group(1).lower() == b"multipart":
        return None
    try:
        if name == b"base64":
            return base64.b64decode(re.sub(rb"[\r\n\t ]", b"", body), validate=True)
    except binascii.Error:
        return None
    if name == b"quoted-printable" and not re.search(rb"[ \t](\r\n|$)|=(?![0-9A-F]{2}|\r\n)", body):
        return binascii.a2b_qp(body)
    return None
def parts(uid, whole, above, depth):
    number = 0
    while depth < 8:
        number += 1
        path = f"{above}{number}"
        body = get(uid, f"BODY.PEEK[{path}]")
        if body is None:
            return number - 1
        mime = get(uid, f"BODY.PEEK[{path}.MIME]")
        assert mime + body in whole, (uid, path)
        assert get(uid, f"BODY.PEEK[{path}]<1.7>") == body[1:8], (uid, path)
        if parts(uid, whole, f"{path}.", depth + 1) == 0:
            expected, found = decoded(mime, body), get(uid, f"BINARY.PEEK[{path}]")
            assert expected is None or found == expected, (uid, path, mime, found)
            checked["parts"] += 1
            checked["decoded"] += expected is not None and expected != body
    return number
checked = {"parts": 0, "decoded": 0}
for door, mailbox, first in [("SMTP", "INBOX", 1), ("LMTP", "INBOX", count + 1), ("APPEND", "Archive", 1)]:
    if door == "APPEND":
        for wire in wires:
            status, told = imap.append(mailbox, None, None, wire)
            assert status == "OK", told
    imap.select(mailbox, readonly=True)
    for uid, wire in enumerate(wires, first):
        whole = get(uid, "BODY.PEEK[]")
        assert whole == wire if door == "APPEND" else whole.endswith(wire) and whole.startswith(b"Return-Path: <"), (door, uid)
        header = get(uid, "BODY.PEEK[HEADER]")
        assert header + get(uid, "BODY.PEEK[TEXT]") == whole, (door, uid)
        fields = get(uid, "BODY.PEEK[HEADER.FIELDS (SUBJECT FROM RECEIVED)]")
        assert all(line in header for line in fields.splitlines(True) if line != b"\r\n"), (door, uid, fields)
        if door == "APPEND":
            assert parts(uid, whole, "", 0) > 0, uid
assert checked["parts"] > count and checked["decoded"] > 10, checked
pop3 = poplib.POP3("127.0.0.1", pop3_port, timeout=60)
pop3.user("ann@example.org")
pop3.pass_("secret")
imap.select("INBOX", readonly=True)
assert pop3.stat()[0] == 2 * count
for number in range(1, 2 * count + 1):
    lines = pop3.retr(number)[1]
    assert b"".join(line + b"\r\n" for line in lines) == get(number, "BODY.PEEK[]"), number
pop3.quit()
imap.logout()
"#;

#[test]
fn the_corpus_has_equal_octets_by_each_door_and_command() {
    let dir = tempfile::tempdir().unwrap();
    let lmtp = "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"lmtp\"\n";
    let (server, address) = serve(dir.path(), lmtp, "imap");
    let wires = dir.path().join("wires");
    std::fs::create_dir(&wires).unwrap();
    let mut smtp = server.hello();
    let mut count = 0;
    for file in messages_in(&corpus_dir()) {
        let octets = to_wire(std::fs::read(file).unwrap());
        // An APPEND of nothing is a cancelled one.
        if octets.is_empty() {
            continue;
        }
        let reply = smtp.try_message("s@example.net", &["ann@example.org"], &octets).unwrap();
        if reply.code == 250 {
            std::fs::write(wires.join(count.to_string()), octets).unwrap();
            count += 1;
        }
    }
    let mut lmtp = Client::open(server.addresses[1]).unwrap();
    assert_eq!(lmtp.reply().code, 220);
    lmtp.expect("LHLO local", 250);
    for number in 0..count {
        lmtp.deliver(&["ann@example.org"], &std::fs::read(wires.join(number.to_string())).unwrap());
    }
    let ports = [address.port(), address_of(&server, "pop3").port()].map(|port| port.to_string());
    let mut python = Command::new("python3");
    python.arg("-").args(ports).arg(&wires).arg(count.to_string());
    run(&mut python, DOORS);
    server.stop();
}
