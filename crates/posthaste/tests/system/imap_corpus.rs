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
            at.unwrap_or_else(|| panic!("message {number} is not a file: {}", String::from_utf8_lossy(body))),
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
def get(uid, *items):
    """Values in the order of the items."""
    status, data = imap.uid("FETCH", str(uid), f"({' '.join(items)})")
    if status == "NO":
        assert b"UNKNOWN-CTE" in data[0], (uid, items, data)
        data = imap.response("FETCH")[1]
    else:
        assert status == "OK", (uid, items, data)
    literals = iter([piece[1] for piece in data if isinstance(piece, tuple)])
    text = b"".join(piece[0] + b"\n" if isinstance(piece, tuple) else piece for piece in data)
    values = re.findall(rb'\](?:<\d+>)? (~?\{\d+\}\n|NIL|"")', text)
    assert len(values) == len(items), (uid, items, text)
    return [None if value == b"NIL" else b"" if value == b'""' else next(literals) for value in values]
def bodies(mailbox):
    imap.select(mailbox, readonly=True)
    status, data = imap.uid("FETCH", "1:*", "(BODY.PEEK[])")
    assert status == "OK", data
    return [piece[1] for piece in data if isinstance(piece, tuple)]
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
        names = f"BODY.PEEK[{path}]", f"BODY.PEEK[{path}.MIME]", f"BODY.PEEK[{path}]<1.7>", f"BINARY.PEEK[{path}]"
        body, mime, piece, binary = get(uid, *names)
        if body is None:
            return number - 1
        assert mime + body in whole, (uid, path)
        assert piece == body[1:8], (uid, path)
        if parts(uid, whole, f"{path}.", depth + 1) == 0:
            expected = decoded(mime, body)
            assert expected is None or binary == expected, (uid, path, mime, binary)
            checked["parts"] += 1
            checked["decoded"] += expected is not None and expected != body
    return number
checked = {"parts": 0, "decoded": 0}
for wire in wires:
    status, told = imap.append("Archive", None, None, wire)
    assert status == "OK", told
inbox = bodies("INBOX")
assert len(inbox) == 2 * count
for number, whole in enumerate(inbox):
    assert whole.endswith(wires[number % count]) and whole.startswith(b"Return-Path: <"), number
assert bodies("Archive") == wires
for uid, wire in enumerate(wires, 1):
    header, text, fields = get(uid, "BODY.PEEK[HEADER]", "BODY.PEEK[TEXT]", "BODY.PEEK[HEADER.FIELDS (SUBJECT FROM RECEIVED)]")
    assert header + text == wire, uid
    assert all(line in header for line in fields.splitlines(True) if line != b"\r\n"), (uid, fields)
    assert parts(uid, wire, "", 0) > 0, uid
# Few of the messages that every clone has are coded.
assert checked["parts"] > count and checked["decoded"] > (10 if count > 100 else 1), checked
pop3 = poplib.POP3("127.0.0.1", pop3_port, timeout=60)
pop3.user("ann@example.org")
pop3.pass_("secret")
assert pop3.stat()[0] == 2 * count
for number, whole in enumerate(inbox, 1):
    lines = pop3.retr(number)[1]
    assert b"".join(line + b"\r\n" for line in lines) == whole, number
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
    // Of a large corpus a fourth: each message comes in three times, and goes out part by part.
    let files = messages_in(&corpus_dir());
    for file in files.iter().step_by(if files.len() > 200 { 4 } else { 1 }) {
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
