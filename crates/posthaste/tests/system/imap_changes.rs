//! IMAP clients flag, copy, move, save and delete mail, and all of that survives a kill.

use std::process::Command;

use rustix::process::Signal;

use crate::imap::{run, serve};
use crate::support::MESSAGE;

const SCRIPT: &str = r#"
import imaplib, sys
port, step = int(sys.argv[1]), sys.argv[2]
imap = imaplib.IMAP4("127.0.0.1", port, timeout=60)
imap.login("ann@example.org", "secret")
def ok(answer):
    assert answer[0] == "OK", answer
    return answer[1]
def shown(mailbox):
    count = int(ok(imap.select(mailbox))[0])
    if count == 0:
        return []
    rows = [row[0] if isinstance(row, tuple) else row for row in ok(imap.uid("FETCH", "1:*", "(UID FLAGS BODY.PEEK[])"))]
    return [set(imaplib.ParseFlags(row)) - {rb"\Recent"} for row in rows if row and b"FLAGS" in row]
if step == "change":
    assert int(ok(imap.select("INBOX"))[0]) == 3
    ok(imap.uid("STORE", "1", "+FLAGS", r"(\Flagged $Junk)"))
    ok(imap.create("Work/2026"))
    ok(imap.create("Old"))
    ok(imap.uid("COPY", "1", "Work/2026"))
    ok(imap.uid("MOVE", "2", "Work/2026"))
    ok(imap.append("Work/2026", r"(\Seen)", '"01-Jan-2020 00:00:00 +0000"', b"Subject: saved\r\n\r\nx\r\n"))
    ok(imap.uid("STORE", "3", "+FLAGS", r"(\Deleted)"))
    ok(imap.expunge())
    ok(imap.rename("Work/2026", "Done"))
    ok(imap.delete("Old"))
    ok(imap.subscribe("Later"))
assert shown("INBOX") == [{rb"\Flagged", b"$Junk"}], shown("INBOX")
assert shown("Done") == [{rb"\Flagged", b"$Junk"}, set(), {rb"\Seen"}], shown("Done")
assert b"01-Jan-2020" in ok(imap.uid("FETCH", "3", "(INTERNALDATE)"))[0]
names = {line.split(b' "/" ')[1].strip(b'"') for line in ok(imap.list())}
assert names >= {b"Done", b"INBOX", b"Work"} and not names & {b"Work/2026", b"Old"}, names
assert any(b"Later" in line for line in ok(imap.lsub()))
imap.logout()
"#;

#[test]
fn changes_by_imap_are_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, mut address) = serve(dir.path(), "", "imap");
    let mut smtp = server.hello();
    for _ in 0..3 {
        smtp.deliver(&["ann@example.org"], MESSAGE);
    }
    for step in ["change", "check", "check"] {
        run(Command::new("python3").args(["-", &address.port().to_string(), step]), SCRIPT);
        server.signal(Signal::KILL);
        server.wait();
        (server, address) = serve(dir.path(), "", "imap");
    }
    server.stop();
}

const DATES: &str = r#"
import imaplib, sys
imap = imaplib.IMAP4("127.0.0.1", int(sys.argv[1]), timeout=60)
imap.login("ann@example.org", "secret")
def ok(answer):
    assert answer[0] == "OK", answer
    return answer[1]
if sys.argv[2] == "change":
    ok(imap.create("Work"))
    ok(imap.append("INBOX", None, '"01-Jan-2020 00:00:00 +0000"', b"Subject: saved\r\n\r\nx\r\n"))
    ok(imap.select("INBOX"))
    ok(imap.uid("COPY", "1:*", "Work"))
for box in ["INBOX", "Work"]:
    ok(imap.select(box, readonly=True))
    rows = ok(imap.uid("FETCH", "1:*", "(INTERNALDATE BODY.PEEK[HEADER.FIELDS (SUBJECT)])"))
    print(box, sorted((row[0].split(b'INTERNALDATE "')[1][:26], row[1].strip()) for row in rows if isinstance(row, tuple)))
imap.logout()
"#;

/// The mailstore's directory is removed, so that only the Maildir's files are left.
#[test]
fn internal_dates_stay_without_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, mut address) = serve(dir.path(), "", "imap");
    server.hello().deliver(&["ann@example.org"], MESSAGE);
    let mut shown = Vec::new();
    for step in ["change", "check", "check"] {
        let args = ["-".to_owned(), address.port().to_string(), step.to_owned()];
        shown.push(run(Command::new("python3").args(args), DATES));
        server.stop();
        std::fs::remove_dir_all(dir.path().join("posthaste-data/mailstore")).unwrap();
        (server, address) = serve(dir.path(), "", "imap");
    }
    server.stop();
    assert!(shown[0].matches("01-Jan-2020 00:00:00 +0000").count() == 2, "{}", shown[0]);
    assert_eq!((&shown[1], &shown[2]), (&shown[0], &shown[0]));
}

/// The files are removed, and the kill comes before delivery has recorded that they were visible.
const EXPUNGE: &str = r#"
import imaplib, os, signal, smtplib, sys
pid, smtp_port, imap_port = (int(number) for number in sys.argv[1:4])
imap = imaplib.IMAP4("127.0.0.1", imap_port, timeout=60)
imap.login("ann@example.org", "secret")
imap.create("Work")
imap.select("INBOX")
smtp = smtplib.SMTP("127.0.0.1", smtp_port, timeout=60)
for number in range(4):
    smtp.sendmail("a@example.net", ["ann@example.org"], f"Subject: {number}\r\n\r\nx\r\n")
imap.noop()
def done(answer):
    assert answer[0] == "OK", answer
first = int(imap.uid("SEARCH", "ALL")[1][0].split()[-4])
done(imap.uid("STORE", f"{first}:{first + 1}", "+FLAGS.SILENT", r"(\Deleted)"))
done(imap.uid("EXPUNGE", f"{first}:{first + 1}"))
done(imap.uid("MOVE", f"{first + 2}", "Work"))
while len(os.listdir(sys.argv[4] + "/new")) + len(os.listdir(sys.argv[4] + "/cur")) > int(sys.argv[5]):
    imap.noop()
os.kill(pid, signal.SIGKILL)
"#;

#[test]
fn expunged_mail_does_not_come_back_into_the_maildir() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, mut address) = serve(dir.path(), "", "imap");
    let maildir = dir.path().join("posthaste-data/mail/example.org/ann/Maildir");
    for round in 1..=4 {
        let ports = [server.addresses[0].port().to_string(), address.port().to_string()];
        let args =
            [&[server.pid().to_string()][..], &ports, &[maildir.display().to_string(), round.to_string()]].concat();
        run(Command::new("python3").arg("-").args(args), EXPUNGE);
        server.wait();
        (server, address) = serve(dir.path(), "", "imap");
        // No session has looked yet.
        let dirs = ["new", "cur"].map(|subdir| std::fs::read_dir(maildir.join(subdir)).unwrap());
        let texts = dirs.into_iter().flatten().map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
        let texts: Vec<String> = texts.collect();
        assert!(texts.len() == round && texts.iter().all(|text| text.contains("Subject: 3")), "{round}: {texts:?}");
    }
    server.stop();
}

/// Scenarios 15 and 16: messages arrive in a folder that is renamed, created again and deleted.
const RACE: &str = r#"
import imaplib, sys, threading
port, step = int(sys.argv[1]), sys.argv[2]
def login():
    imap = imaplib.IMAP4("127.0.0.1", port, timeout=60)
    imap.login("ann@example.org", "secret")
    return imap
def ok(answer):
    assert answer[0] == "OK", answer
    return answer[1]
ROUNDS = 5
saved, failures = {box: [] for box in ("Kept", "Gone")}, []
is_over = threading.Event()
def save(box):
    imap, number = login(), 0
    while not is_over.is_set():
        number += 1
        token = f"{box}{number}"
        # Without the folder: NO [TRYCREATE].
        if imap.append(box, None, None, f"Subject: {token}\r\n\r\nx\r\n".encode())[0] == "OK":
            saved[box].append(token)
    imap.logout()
def saver(box):
    try:
        save(box)
    except Exception as error:
        failures.append(repr(error))
def tokens(imap, box):
    if int(ok(imap.select(box, readonly=True))[0]) == 0:
        return []
    rows = ok(imap.uid("FETCH", "1:*", "(BODY.PEEK[HEADER.FIELDS (SUBJECT)])"))
    return [row[1].split()[1].decode() for row in rows if isinstance(row, tuple)]
imap = login()
if step == "change":
    ok(imap.create("Kept"))
    ok(imap.create("Gone"))
    threads = [threading.Thread(target=saver, args=(box,), daemon=True) for box in saved]
    [thread.start() for thread in threads]
    for number in range(ROUNDS):
        before = len(saved["Gone"])
        while not failures and (len(saved["Gone"]) == before or not saved["Kept"]):
            pass
        ok(imap.rename("Kept", f"Kept{number}"))
        ok(imap.create("Kept"))
        ok(imap.delete("Gone"))
        earlier = list(saved["Gone"])
        ok(imap.create("Gone"))
        mixed = set(tokens(imap, "Gone")) & set(earlier)
        assert not mixed, mixed
        # Else the next DELETE ends this session.
        ok(imap.unselect())
    is_over.set()
    [thread.join() for thread in threads]
    assert not failures, failures
    open(sys.argv[3], "w").write("\n".join(saved["Kept"]))
kept = sorted(token for box in ["Kept"] + [f"Kept{number}" for number in range(ROUNDS)] for token in tokens(imap, box))
expected = sorted(open(sys.argv[3]).read().split())
assert kept == expected, set(kept) ^ set(expected)
imap.logout()
"#;

#[test]
fn messages_stay_with_a_folder_that_is_renamed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, mut address) = serve(dir.path(), "", "imap");
    for step in ["change", "check", "check"] {
        let args = [address.port().to_string(), step.to_owned(), dir.path().join("saved").display().to_string()];
        run(Command::new("python3").arg("-").args(args), RACE);
        server.signal(Signal::KILL);
        server.wait();
        (server, address) = serve(dir.path(), "", "imap");
    }
    server.stop();
}
