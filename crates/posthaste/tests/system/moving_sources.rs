//! `posthaste import` and `export`: names of targets, sources of other programs, and files that both leave unchanged.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;

use crate::imap::{Imap, serve};
use crate::mailbox_changes::output;
use crate::moving::{ANN, counts, import, import_until, kill_imports, make_maildir, make_numbered_maildir, subjects};

#[test]
fn however_the_target_is_written_an_import_has_one_record() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let old = dir.path().join("old.EML");
    fs::write(&old, "Date: Fri, 01 Jan 1960 00:00:00 +0000\nSubject: early\n\nbody\n").unwrap();
    assert_eq!(import(dir.path(), "old.EML", ANN, &[]), counts(1, 0, 0, 0));
    for to in ["ann@example.org/INBOX", "ANN@EXAMPLE.ORG/inbox", "Ann@example.org/Inbox/"] {
        assert_eq!(import(dir.path(), "old.EML", to, &[]), counts(0, 1, 0, 0), "{to}");
    }
    let mut imap = Imap::logged_in(address);
    assert!(imap.ok("SELECT INBOX").contains("* 1 EXISTS"));
    let date = imap.ok("FETCH 1 INTERNALDATE");
    assert!(
        date.contains("\" 1-Jan-1970 00:00:00 +0000\"") || date.contains("\"01-Jan-1970 00:00:00 +0000\""),
        "{date}"
    );
    server.stop();
}

#[test]
fn an_export_names_lost_keywords_and_makes_no_missing_mailbox() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    fs::write(dir.path().join("one.eml"), "Subject: many\n\nbody\n").unwrap();
    assert_eq!(import(dir.path(), "one.eml", ANN, &[]), counts(1, 0, 0, 0));
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let keywords: Vec<String> = (0..28).map(|number| format!("kk{number}")).collect();
    imap.ok(&format!("STORE 1 +FLAGS.SILENT ({})", keywords.join(" ")));
    let (code, text, error) = output(dir.path(), &["export", ANN, "--to", "out", "--json"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["left_out"], 0);
    assert_eq!(error.matches("is not written: a Maildir has letters for 26 keywords").count(), 2, "{error}");
    let (code, _, error) = output(dir.path(), &["export", "ann@example.org/None", "--to", "none"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(!dir.path().join("none").exists());
    server.stop();
}

#[test]
fn maildirs_in_directories_come_with_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    for folder in ["at-top", "at-top/Sent", "at-top/Archive/2020", "beside/INBOX", "beside/Lists/Rust"] {
        let folder = dir.path().join(folder);
        make_maildir(&folder);
        fs::write(folder.join("cur/1700000000.M1.h:2,S"), "Subject: x\n\nx\n").unwrap();
    }
    assert_eq!(import(dir.path(), "at-top", "ann@example.org/one", &[]), counts(3, 0, 0, 0));
    assert_eq!(import(dir.path(), "beside", ANN, &[]), counts(2, 0, 0, 0));
    let mut imap = Imap::logged_in(address);
    for name in ["one", "one/Sent", "one/Archive/2020", "INBOX", "Lists/Rust"] {
        assert!(imap.ok(&format!("STATUS {name} (MESSAGES)")).contains("MESSAGES 1"), "{name}");
    }
    // Files of other names are none of it.
    fs::create_dir(dir.path().join("mixed")).unwrap();
    fs::write(dir.path().join("mixed/a.eml"), "Subject: a\n\na\n").unwrap();
    fs::write(dir.path().join("mixed/b.msg"), "no mail").unwrap();
    assert_eq!(import(dir.path(), "mixed", "ann@example.org/mixed", &[]), counts(1, 0, 0, 0));
    server.stop();
}

#[test]
fn an_export_follows_no_link_and_empties_no_file() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (server, _) = serve(dir.path(), "", "imap");
    fs::write(path("one.eml"), "Date: Thu, 01 Jan 2015 00:00:00 +0000\nSubject: 1\n\nbody\n").unwrap();
    assert_eq!(import(dir.path(), "one.eml", "ann@example.org/Sent", &[]), counts(1, 0, 0, 0));
    let export = |from: &str, to: &str| output(dir.path(), &["export", from, "--to", to]);
    // The name of an unfinished message can be foretold from a file of an earlier export.
    assert_eq!(export(ANN, "first").0, Some(0));
    let file = fs::read_dir(path("first/.Sent/cur")).unwrap().next().unwrap().unwrap().file_name();
    let unfinished = file.to_str().unwrap().split(',').next().unwrap().to_owned();
    // Links to files and unfinished files: none is written to, whether the file is there or not.
    fs::write(path("secret"), "secret").unwrap();
    make_maildir(&path("out/.Sent"));
    make_maildir(&path("out"));
    symlink(path("secret"), path("out/.Sent/maildirfolder")).unwrap();
    symlink(path("secret"), path(&format!("out/.Sent/tmp/{unfinished}"))).unwrap();
    symlink(path("made"), path("out/dovecot-keywords")).unwrap();
    symlink(path("secret"), path("sent.mbox.new")).unwrap();
    assert_eq!(export(ANN, "out"), (Some(0), "1 message written to out\n".into(), String::new()));
    assert_eq!(export("ann@example.org/Sent", "sent.mbox").0, Some(0));
    assert_eq!(fs::read(path("secret")).unwrap(), b"secret");
    assert_eq!(path("sent.mbox").metadata().unwrap().permissions().mode() & 0o777, 0o600, "it has mail");
    assert!(!path("made").exists() && path("sent.mbox").symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read_dir(path("out/.Sent/cur")).unwrap().count(), 1);
    // Directories that are links.
    make_maildir(&path("else"));
    for linked in [".Sent", ".Sent/tmp", ".Sent/cur", "cur"] {
        let out = tempfile::tempdir_in(dir.path()).unwrap();
        make_maildir(&out.path().join(".Sent"));
        make_maildir(out.path());
        fs::remove_dir_all(out.path().join(linked)).unwrap();
        symlink(path("else"), out.path().join(linked)).unwrap();
        let (code, _, error) = export(ANN, out.path().to_str().unwrap());
        assert!(code == Some(2) && error.contains(out.path().to_str().unwrap()), "{linked}: {error}");
    }
    for sub in ["cur", "new", "tmp"] {
        assert_eq!(fs::read_dir(path("else").join(sub)).unwrap().count(), 0, "{sub}");
    }
    assert_eq!(fs::read_dir(path("else")).unwrap().count(), 3);
    server.stop();
}

#[test]
fn compressed_and_encrypted_files_stay_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path(), "", "imap");
    let magic: [&[u8]; 6] = [
        b"\x1f\x8b\x08\0",
        b"BZh91AY&SY",
        b"\xfd7zXZ\0",
        b"\x28\xb5\x2f\xfd",
        b"Dovecot-LZ4\r*\x9b\xc5",
        b"CRYPTED\x03\x07",
    ];
    make_maildir(&dir.path().join("Maildir"));
    fs::create_dir(dir.path().join("files")).unwrap();
    for (number, magic) in magic.iter().enumerate() {
        let octets = [*magic, &b"more\nof it"[..]].concat();
        fs::write(dir.path().join(format!("Maildir/cur/{number}.x.h:2,S")), &octets).unwrap();
        fs::write(dir.path().join(format!("files/{number}.eml")), &octets).unwrap();
    }
    for source in ["Maildir/cur/7.x.h:2,S", "files/7.eml"] {
        fs::write(dir.path().join(source), "Subject: mail\n\nBZh\n").unwrap();
    }
    for (source, sub) in [("Maildir", "cur"), ("files", ".")] {
        assert_eq!(import(dir.path(), source, ANN, &["--move"]), counts(1, 0, 6, 1), "{source}");
        assert_eq!(fs::read_dir(dir.path().join(source).join(sub)).unwrap().count(), 6, "{source}");
    }
    let (_, _, error) = output(dir.path(), &["import", "Maildir", "--to", ANN]);
    assert!(error.contains("it is compressed (gzip)") && error.contains("it is encrypted (mail_crypt)"), "{error}");
    server.stop();
}

#[test]
fn an_import_comes_again_once_its_mailbox_was_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    make_maildir(&dir.path().join("Maildir"));
    make_maildir(&dir.path().join("Maildir/.Sent"));
    for file in ["cur/1.x.h", "cur/2.x.h", ".Sent/cur/3.x.h"] {
        fs::write(dir.path().join("Maildir").join(file), "Subject: x\n\n").unwrap();
    }
    let begin = "From x@y Sun Nov  6 08:49:37 1994\nSubject: x\n\n";
    fs::write(dir.path().join("old.mbox"), begin.repeat(3)).unwrap();
    for source in ["Maildir", "old.mbox"] {
        assert_eq!(import(dir.path(), source, "ann@example.org/trial", &[]), counts(3, 0, 0, 0), "{source}");
        assert_eq!(import(dir.path(), source, "ann@example.org/trial", &[]), counts(0, 3, 0, 0), "{source}");
    }
    let mut imap = Imap::logged_in(address);
    imap.ok("DELETE trial");
    // One of two mailboxes is there still.
    assert_eq!(import(dir.path(), "Maildir", "ann@example.org/trial", &[]), counts(2, 1, 0, 0));
    for (source, expected) in [("Maildir", counts(0, 3, 0, 0)), ("old.mbox", counts(3, 0, 0, 0))] {
        assert_eq!(import(dir.path(), source, "ann@example.org/trial", &[]), expected, "{source}");
    }
    assert!(imap.ok("STATUS trial (MESSAGES)").contains("MESSAGES 5"));
    server.stop();
}

#[test]
fn fields_that_mail_programs_write_make_no_other_message() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let begin = "From x@y Sun Nov  6 08:49:37 1994\n";
    let mbox = |fields: &str, inner: &str| {
        let same = format!("{begin}Subject: same\n{fields}\nbody\n\n");
        let text = format!("{same}{same}{begin}{fields}Subject: x\n\nLines: {inner}\n\n");
        fs::write(dir.path().join("mail"), text).unwrap();
        import(dir.path(), "mail", "ann@example.org/mail", &[])
    };
    assert_eq!(mbox("", "3"), counts(3, 0, 0, 0));
    let written = "Content-Length: 5\nLines: 3\nX-UID: 7\nX-IMAPbase: 1 2\n\tblue\nSTATUS: RO\n";
    assert_eq!(mbox(written, "3"), counts(0, 3, 0, 0));
    let mozilla = "X-Mozilla-Status: 0001\nX-Mozilla-Status2: 00000000\nX-Mozilla-Keys:    \n";
    assert_eq!(mbox(mozilla, "3"), counts(0, 3, 0, 0));
    // The body makes another message, and so does another field.
    assert_eq!(mbox(mozilla, "4"), counts(1, 2, 0, 0));
    assert_eq!(mbox("X-Mozilla: 1\n", "4"), counts(3, 0, 0, 0));
    let mut imap = Imap::logged_in(address);
    assert!(imap.ok("STATUS mail (MESSAGES)").contains("MESSAGES 7"));
    server.stop();
}

fn inodes(dir: &Path) -> BTreeSet<u64> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().ino()).collect()
}

#[test]
fn a_move_within_a_file_system_copies_no_file() {
    const MESSAGES: u64 = 150;
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let source = dir.path().join("old");
    make_maildir(&source);
    for number in 0..MESSAGES {
        let text = format!("Subject: {number}\n\n{}\0\n", "x".repeat(number as usize));
        let secs = 1_700_000_000 + number;
        let file = source.join(format!("cur/{secs}.M{number}.h:2,FS"));
        fs::write(&file, text).unwrap();
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(secs)).unwrap();
    }
    // What has another name may be another user's: it is copied. So is a file whose name says how it is sent.
    fs::hard_link(source.join("cur/1700000007.M7.h:2,FS"), dir.path().join("other")).unwrap();
    fs::write(source.join("cur/1.J1fRabT0.h,S=2,W=2:2,"), "a\n").unwrap();
    let before = inodes(&source.join("cur"));
    assert_eq!(import(dir.path(), "old", "ann@example.org/Old", &["--move"]), counts(MESSAGES + 1, 0, 0, MESSAGES + 1));
    let mailbox = dir.path().join("posthaste-data/mail/example.org/ann/Maildir/.Old");
    let moved = inodes(&mailbox.join("cur"));
    assert_eq!(moved.len() as u64, MESSAGES + 1);
    assert_eq!(moved.intersection(&before).count() as u64, MESSAGES - 1, "the files themselves");
    assert_eq!((inodes(&mailbox.join("tmp")).len(), inodes(&source.join("cur")).len()), (0, 0));
    let mut imap = Imap::logged_in(address);
    assert!(imap.ok("SELECT Old").contains("* 151 EXISTS"));
    let text = imap.ok("FETCH 5 (FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[])");
    let octets = "BODY[] {20}\r\nSubject: 3\r\n\r\nxxx\u{fffd}\r\n";
    for expected in ["\\Flagged", "\\Seen", "14-Nov-2023 22:13:23 +0000", "RFC822.SIZE 20 ", octets] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    server.stop();
}

#[test]
fn a_move_that_is_killed_has_each_message_in_one_place() {
    const MESSAGES: u32 = 1500;
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("Maildir");
    make_numbered_maildir(&source, MESSAGES);
    let (mut server, _) = serve(dir.path(), "", "imap");
    kill_imports(dir.path(), &[1, 2, 3], &["--move"]);
    let mut child = import_until(dir.path(), 5, &["--move"]);
    server.signal(Signal::KILL);
    server.wait();
    child.wait().unwrap();
    let (server, _) = serve(dir.path(), "", "imap");
    assert_eq!(import(dir.path(), "Maildir", "ann@example.org/In", &["--move"])["left_out"], 0);
    assert_eq!(inodes(&source.join("cur")).len(), 0);
    assert_eq!(output(dir.path(), &["export", "ann@example.org/In", "--to", "out"]).0, Some(0));
    assert_eq!(subjects(&dir.path().join("out")), (0..MESSAGES).collect::<Vec<_>>());
    server.stop();
}
