//! `posthaste import` and `export`: mail is imported from and exported to other programs unchanged and exactly once,
//! whatever happens in between.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::corpus::{corpus_dir, messages_in};
use crate::imap::{CONFIG, Imap, serve};
use crate::mailbox_changes::output;
use crate::support::{PATIENCE, command};
use crate::terminal::on_terminal;

pub(crate) const ANN: &str = "ann@example.org";

pub(crate) fn import(dir: &Path, from: &str, to: &str, more: &[&str]) -> Value {
    let (code, text, error) = output(dir, &[&["import", from, "--to", to, "--json"], more].concat());
    let counts: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code:?} {error}"));
    assert_eq!(code, Some(i32::from(counts["left_out"] != 0)), "{error}");
    counts
}

pub(crate) fn counts(added: u64, there: u64, left_out: u64, removed: u64) -> Value {
    json!({ "added": added, "there": there, "left_out": left_out, "removed": removed })
}

pub(crate) fn make_maildir(dir: &Path) {
    ["cur", "new", "tmp"].iter().for_each(|sub| fs::create_dir_all(dir.join(sub)).unwrap());
}

/// Makes a Maildir whose messages have their number as subject.
pub(crate) fn make_numbered_maildir(dir: &Path, messages: u32) {
    make_maildir(dir);
    for number in 0..messages {
        fs::write(dir.join(format!("cur/{number}.x.h:2,S")), format!("Subject: {number}\n\n")).unwrap();
    }
}

/// Files of a Maildir by the path of their folder: the flags and the octets of each.
fn exported(dir: &Path) -> BTreeMap<String, Vec<(String, Vec<u8>)>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![(String::new(), dir.to_owned())];
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with('.') {
            dirs.push((name, entry.path()));
        }
    }
    for (name, dir) in dirs {
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        let table = fs::read_to_string(dir.join("dovecot-keywords")).unwrap_or_default();
        let keyword = |letter: char| {
            let line = format!("{} ", (letter as u8).wrapping_sub(b'a'));
            table.lines().find_map(|text| text.strip_prefix(&line).map(|name| format!(" {name}")))
        };
        for entry in fs::read_dir(dir.join("cur")).unwrap().map(Result::unwrap) {
            let file = entry.file_name().into_string().unwrap();
            let size = |key: &str| -> usize {
                file.split([',', ':']).find_map(|part| part.strip_prefix(key)).unwrap().parse().unwrap()
            };
            let octets = fs::read(entry.path()).unwrap();
            assert_eq!(octets.len(), size("S="), "{file}");
            let wire = if size("S=") == size("W=") { octets } else { lf_to_crlf(&octets) };
            assert_eq!(wire.len(), size("W="), "{file}");
            let letters = file.split_once(":2,").unwrap().1.chars();
            let mut flags: Vec<String> = letters.map(|letter| keyword(letter).unwrap_or(letter.to_string())).collect();
            flags.sort();
            files.push((flags.concat(), wire));
        }
        files.sort();
        found.insert(name, files);
    }
    found
}

fn lf_to_crlf(text: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    for (at, octet) in text.iter().enumerate() {
        if *octet == b'\n' && (at == 0 || text[at - 1] != b'\r') {
            wire.push(b'\r');
        }
        wire.push(*octet);
    }
    wire
}

#[test]
fn the_corpus_goes_in_and_out_with_equal_octets() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let corpus = dir.path().join("corpus");
    fs::create_dir(&corpus).unwrap();
    let mut expected = Vec::new();
    for (number, file) in messages_in(&corpus_dir()).iter().enumerate() {
        let octets = fs::read(file).unwrap();
        fs::write(corpus.join(format!("{number}.eml")), &octets).unwrap();
        let wire: Vec<u8> = lf_to_crlf(&octets).iter().map(|octet| if *octet == 0 { 0x80 } else { *octet }).collect();
        expected.extend((!wire.is_empty()).then_some(wire));
    }
    let empty = fs::read_dir(&corpus).unwrap().count() - expected.len();
    expected.sort();
    let (all, empty) = (expected.len() as u64, empty as u64);
    assert_eq!(import(dir.path(), "corpus", "ann@example.org/Corpus", &[]), counts(all, 0, empty, 0));
    // The flags of some, two of them keywords.
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT Corpus");
    imap.ok("UID STORE 1:10 +FLAGS.SILENT (\\Seen \\Answered $Junk)");
    imap.ok("UID STORE 5:15 +FLAGS.SILENT (\\Flagged \\Draft $Forwarded blue)");
    let octets = |files: &[(String, Vec<u8>)]| files.iter().map(|(_, octets)| octets.clone()).collect::<Vec<_>>();
    let export = |from: &str, to: &str| {
        let (code, text, error) = output(dir.path(), &["export", from, "--to", to, "--json"]);
        assert_eq!(code, Some(0), "{error}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert_eq!(export("ann@example.org/Corpus", "out"), json!({ "written": all, "there": 0, "left_out": 0 }));
    let first = exported(&dir.path().join("out"));
    let mut out = octets(&first[""]);
    out.sort();
    assert!(out == expected, "the octets differ");
    // Flags that changed since come with a repeated export, which writes nothing else.
    imap.ok("UID STORE 1 -FLAGS.SILENT (\\Seen)");
    assert_eq!(export("ann@example.org/Corpus", "out"), json!({ "written": 0, "there": all, "left_out": 0 }));
    let second = exported(&dir.path().join("out"));
    assert_ne!(first, second);
    assert_eq!(import(dir.path(), "out", "ann@example.org/Again", &[]), counts(all, 0, 0, 0));
    export("ann@example.org/Again", "again");
    assert!(exported(&dir.path().join("again")) == second, "octets or flags differ");
    // By mbox, where a last line always has an end.
    assert_eq!(export("ann@example.org/Corpus", "out.mbox")["written"], json!(all));
    assert_eq!(import(dir.path(), "out.mbox", "ann@example.org/Mbox", &[]), counts(all, 0, 0, 0));
    export("ann@example.org/Mbox", "mbox-again");
    let ended = |files: &[(String, Vec<u8>)]| {
        let mut files: Vec<(String, Vec<u8>)> = files.to_vec();
        for (_, octets) in &mut files {
            if !octets.ends_with(b"\n") {
                octets.extend_from_slice(b"\r\n");
            }
        }
        files.sort();
        files
    };
    let (by_mbox, by_files) = (exported(&dir.path().join("mbox-again")), ended(&second[""]));
    // A bare CR at the very end becomes part of that line end.
    let differ = by_mbox[""].iter().filter(|file| !by_files.contains(file)).count();
    let bare = by_files.iter().filter(|(_, octets)| octets.ends_with(b"\r\r\n")).count();
    assert!(differ <= bare, "{differ} differ");
    server.stop();
}

#[test]
fn a_maildir_comes_with_folders_flags_keywords_and_dates() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("Maildir");
    for folder in ["", ".Sent", ".Lists.Rust", ".Entw&APw-rfe"] {
        make_maildir(&source.join(folder));
        fs::write(source.join(folder).join("cur/1000000000.M1.host,S=11:2,RSa"), "Subject: 1\n").unwrap();
    }
    fs::write(source.join("dovecot-keywords"), "0 $Junk\n").unwrap();
    fs::write(source.join(".Sent/dovecot-keywords"), "0 blue\n").unwrap();
    let new = source.join("new/999999999.M2.host");
    fs::write(&new, "Subject: 2\r\n\r\nx").unwrap();
    let file = fs::File::options().write(true).open(&new).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    assert_eq!(import(dir.path(), "Maildir", ANN, &[]), counts(5, 0, 0, 0));
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let told = imap.ok("FETCH 1:* (FLAGS INTERNALDATE RFC822.SIZE)");
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].contains("9-Sep-2001 01:46:40 +0000") && lines[0].contains("RFC822.SIZE 15"), "{told}");
    assert!(lines[1].contains("\\Answered") && lines[1].contains("\\Seen") && lines[1].contains("$Junk"), "{told}");
    imap.ok("SELECT Sent");
    assert!(imap.ok("FETCH 1 FLAGS").contains("blue"));
    let subscribed = imap.ok("LIST (SUBSCRIBED) \"\" *");
    for name in ["Lists/Rust", "Entw&APw-rfe"] {
        assert!(imap.ok(&format!("STATUS {name} (MESSAGES)")).contains("MESSAGES 1"));
        assert!(subscribed.contains(name), "{subscribed}");
    }
    // Another program has read one, and new mail has come: the rest is known. Then the files go.
    fs::rename(&new, source.join("cur/999999999.M2.host:2,S")).unwrap();
    fs::write(source.join("new/1000000001.M3.host"), "Subject: 3\n").unwrap();
    assert_eq!(import(dir.path(), "Maildir", ANN, &["--move"]), counts(1, 5, 0, 6));
    assert_eq!(fs::read_dir(source.join("cur")).unwrap().count(), 0);
    assert_eq!(import(dir.path(), "Maildir", ANN, &["--move"]), counts(0, 0, 0, 0));
    server.stop();
}

#[test]
fn an_mbox_comes_with_flags_and_dates_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path(), "", "imap");
    server.stop();
    let begin = "From x@y Sun Nov  6 08:49:37 1994\n";
    let same = format!("{begin}Subject: same\n\n>From me\n\n");
    let text = format!(
        "{begin}X-IMAP: 1 2\nSubject: FOLDER INTERNAL DATA\n\n\n{same}{same}{begin}Status: RO\nX-Status: AF\nX-Keywords: $Junk wr{{ong\n\
         Subject: x\n\nx\n\n"
    );
    fs::write(dir.path().join("mail"), &text).unwrap();
    assert_eq!(import(dir.path(), "mail", "ann@example.org/Old/Mail", &[]), counts(3, 0, 0, 0));
    // One before them has gone, one is new.
    let begin_later = "From x@y Sun Nov  6 08:49:38 1994\n";
    fs::write(dir.path().join("mail"), format!("{}{begin_later}Subject: new\n\n", text.replacen(&same, "", 1)))
        .unwrap();
    assert_eq!(import(dir.path(), "mail", "ann@example.org/Old/Mail", &[]), counts(1, 2, 0, 0));
    let (server, address) = serve(dir.path(), "", "imap");
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT Old/Mail");
    let told = imap.ok("FETCH 1:* (FLAGS INTERNALDATE BODY.PEEK[])");
    assert_eq!(told.matches("\r\n\r\nFrom me\r\n").count(), 2, "{told}");
    assert_eq!(told.matches("6-Nov-1994 08:49:37 +0000").count(), 3, "{told}");
    assert!(told.contains("\\Answered \\Flagged \\Seen $Junk") && !told.contains("X-Status"), "{told}");
    server.stop();
}

#[test]
fn hostile_files_are_left_out_and_the_rest_is_imported() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("Maildir");
    make_maildir(&source);
    make_maildir(&dir.path().join("else"));
    fs::write(dir.path().join("secret"), "Subject: secret\n").unwrap();
    fs::write(dir.path().join("else/cur/1.a.b"), "Subject: secret\n").unwrap();
    let cur = |name: &str| source.join("cur").join(name);
    std::os::unix::fs::symlink(dir.path().join("secret"), cur("1.link.h:2,S")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("else"), source.join(".Else")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret"), source.join("dovecot-keywords")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, cur("2.pipe.h"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::create_dir(cur("3.dir.h")).unwrap();
    fs::write(cur("4.empty.h:2,S"), "").unwrap();
    fs::write(cur(".hidden"), "Subject: secret\n").unwrap();
    fs::write(cur("5.nul.h"), "Subject: nul\0\n\n").unwrap();
    let long = [b"Subject: long\n\n".to_vec(), vec![b'x'; 20 << 20]].concat();
    fs::write(cur("6.long.h"), &long).unwrap();
    make_maildir(&source.join(".a*b"));
    fs::write(source.join(".a*b/cur/1.x.h"), "Subject: unnamed\n").unwrap();
    let unnamed = std::os::unix::ffi::OsStrExt::from_bytes(b"7.\xff.h");
    fs::write(source.join("cur").join::<&std::ffi::OsStr>(unnamed), "Subject: not UTF-8\n").unwrap();
    let limits = "[limits]\nmessage_bytes = \"64 MiB\"\n";
    let (server, address) = serve(dir.path(), limits, "imap");
    let before = server.memory_bytes();
    let counted = import(dir.path(), "Maildir", ANN, &[]);
    // A link, a pipe, a directory, an empty file, a folder that is a link, one without a name, and a table that is a link.
    assert_eq!(counted, counts(3, 0, 7, 0));
    assert!(server.memory_bytes() < before + (16 << 20), "{} {before}", server.memory_bytes());
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let told = imap.ok("FETCH 1:* (RFC822.SIZE BODY.PEEK[HEADER.FIELDS (SUBJECT)])");
    assert!(!told.contains("secret") && told.contains(&format!("RFC822.SIZE {}", long.len() + 2)), "{told}");
    for (path, expected) in [
        ("none", "none: No such file or directory"),
        ("secret", "it does not begin with a line `From …`"),
        ("posthaste-data/spool", "there is no mail in it"),
    ] {
        let (code, _, error) = output(dir.path(), &["import", path, "--to", ANN]);
        assert!(code == Some(2) && error.contains(expected), "{error}");
    }
    server.stop();
}

pub(crate) fn subjects(dir: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for files in exported(dir).values() {
        for (_, octets) in files {
            let text = String::from_utf8_lossy(octets);
            found.push(text.split("Subject: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap());
        }
    }
    found.sort_unstable();
    found
}

fn record(dir: &Path) -> Option<PathBuf> {
    fs::read_dir(dir.join("posthaste-data/imports")).ok()?.next().map(|entry| entry.unwrap().path())
}

/// Begins an import and waits until its record has a number of lines.
pub(crate) fn import_until(dir: &Path, lines: usize, more: &[&str]) -> Child {
    let arguments = [&["import", "Maildir", "--to", "ann@example.org/In", "--json"], more].concat();
    let child = command(dir, &arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let written = || record(dir).and_then(|path| fs::read(path).ok()).unwrap_or_default();
    while written().iter().filter(|octet| **octet == b'\n').count() < lines {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    child
}

/// Begins an import and kills it, once for each of these numbers of lines.
pub(crate) fn kill_imports(dir: &Path, lines: &[usize], more: &[&str]) {
    for lines in lines {
        let mut child = import_until(dir, *lines, more);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Scenario 19.
#[test]
fn an_import_that_is_killed_goes_on_where_it_was() {
    // More than the runs that are killed add.
    const MESSAGES: u32 = 4000;
    let dir = tempfile::tempdir().unwrap();
    make_numbered_maildir(&dir.path().join("Maildir"), MESSAGES);
    let (mut server, _) = serve(dir.path(), "", "imap");
    // The client is killed: between batches, and within them.
    kill_imports(dir.path(), &[1, 2, 5, 8], &[]);
    // The server is killed: the client says so, and it can be repeated.
    let mut child = import_until(dir.path(), 12, &[]);
    server.signal(Signal::KILL);
    server.wait();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    // Without a server, and killed again.
    kill_imports(dir.path(), &[15], &[]);
    let (server, _) = serve(dir.path(), "", "imap");
    let last = import(dir.path(), "Maildir", "ann@example.org/In", &[]);
    assert_eq!(last["added"].as_u64().unwrap() + last["there"].as_u64().unwrap(), u64::from(MESSAGES), "{last}");
    assert_eq!(import(dir.path(), "Maildir", "ann@example.org/In", &[]), counts(0, MESSAGES.into(), 0, 0));
    assert_eq!(output(dir.path(), &["export", "ann@example.org/In", "--to", "out"]).0, Some(0));
    assert_eq!(subjects(&dir.path().join("out")), (0..MESSAGES).collect::<Vec<_>>());
    server.stop();
}

/// Once, each message of a refused batch was sent again before any answer was read. About 300 answers filled one side's
/// socket, and what the client went on to send filled the other's.
#[test]
fn a_refused_message_leaves_out_no_other_of_its_batch() {
    // Batches of 64, 256 and 640: the empty one is in the middle of the last.
    const MESSAGES: u32 = 960;
    const EMPTY: u32 = 704;
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("Maildir");
    make_maildir(&source);
    let body = "A line of a message.\n".repeat(200);
    for number in 0..MESSAGES {
        let text = if number == EMPTY { String::new() } else { format!("Subject: {number}\n\n{body}") };
        fs::write(source.join(format!("cur/{number}.x.h:2,S")), text).unwrap();
    }
    let (server, address) = serve(dir.path(), "", "imap");
    assert_eq!(import(dir.path(), "Maildir", ANN, &[]), counts(u64::from(MESSAGES) - 1, 0, 1, 0));
    let mut imap = Imap::logged_in(address);
    imap.ok("SELECT INBOX");
    let told = imap.ok("FETCH 1:* BODY.PEEK[HEADER.FIELDS (SUBJECT)]");
    let number = |text: &str| text.lines().next().unwrap().parse::<u32>().unwrap();
    let order: Vec<u32> = told.split("Subject: ").skip(1).map(number).collect();
    assert_eq!(order, (0..MESSAGES).filter(|number| *number != EMPTY).collect::<Vec<_>>());
    assert_eq!(import(dir.path(), "Maildir", ANN, &[]), counts(0, u64::from(MESSAGES) - 1, 1, 0));
    server.stop();
}

#[test]
fn progress_is_shown_on_a_terminal_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path(), "", "imap");
    make_maildir(&dir.path().join("Maildir"));
    for number in 0..100 {
        fs::write(dir.path().join(format!("Maildir/cur/{number}.x.h")), format!("Subject: {number}\n\n")).unwrap();
    }
    let piped = output(dir.path(), &["import", "Maildir", "--to", "ann@example.org/a"]);
    assert_eq!(piped, (Some(0), "100 messages imported for ann@example.org\n".into(), String::new()));
    let (shown, code) = on_terminal(dir.path(), 100, &["import", "Maildir", "--to", "ann@example.org/b"]);
    assert!(code == 0 && shown.contains("importing"), "{shown}");
    let (shown, code) = on_terminal(dir.path(), 100, &["export", "ann@example.org/b", "--to", "out"]);
    assert!(code == 0 && shown.contains("exporting"), "{shown}");
    assert_eq!(output(dir.path(), &["export", "ann@example.org/a", "--to", "piped"]).2, "");
    server.stop();
}

#[test]
fn exports_name_what_they_cannot_do() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = serve(dir.path(), "", "imap");
    fs::write(dir.path().join("old.mbox"), "kept").unwrap();
    for (from, to, expected) in [
        (ANN, "new.mbox", "an mbox file has one mailbox: name it"),
        ("ann@example.org/None", "new.mbox", "None: no such mailbox"),
        ("ann@example.org/None", "new", "there is no mailbox None"),
        ("ann@example.org/INBOX", "old.mbox", "old.mbox already exists"),
        ("eve@else.example", "new", "there is no such login"),
    ] {
        let (code, _, error) = output(dir.path(), &["export", from, "--to", to]);
        assert!(code == Some(2) && error.contains(expected), "{from} {to}: {error}");
    }
    assert!(!dir.path().join("new.mbox.new").exists());
    assert_eq!(fs::read(dir.path().join("old.mbox")).unwrap(), b"kept");
    server.stop();
}

#[test]
fn an_import_stops_at_the_quota_and_goes_on_later() {
    let dir = tempfile::tempdir().unwrap();
    make_maildir(&dir.path().join("Maildir"));
    for number in 0..100 {
        fs::write(dir.path().join(format!("Maildir/cur/{number}.x.h")), format!("Subject: {number}\n\n")).unwrap();
    }
    let (server, address) = serve(dir.path(), "[quota]\nmessages = 70\n", "imap");
    let (code, _, error) = output(dir.path(), &["import", "Maildir", "--to", "ann@example.org/In"]);
    assert!(code == Some(2) && error.contains("the account's quota is used up"), "{error}");
    assert!(error.contains("70 messages imported for ann@example.org; repeat the command to continue"), "{error}");
    let record = fs::read_to_string(record(dir.path()).unwrap()).unwrap();
    let last = record.lines().last().unwrap();
    assert!(last.contains("{\"batch\"") && last.contains("\"from\":71"), "the next run looks for the rest: {last}");
    // The user makes room. Messages that were imported do not come again.
    let mut imap = Imap::logged_in(address);
    imap.ok("CREATE Kept");
    imap.ok("SELECT In");
    imap.ok("MOVE 31:70 Kept");
    imap.ok("STORE 1:30 +FLAGS.SILENT (\\Deleted)");
    imap.ok("EXPUNGE");
    server.stop();
    let (server, _) = serve(dir.path(), "", "imap");
    assert_eq!(import(dir.path(), "Maildir", "ann@example.org/In", &[]), counts(30, 70, 0, 0));
    server.stop();
}

#[test]
fn a_reload_changes_the_longest_message_for_later_sessions() {
    let dir = tempfile::tempdir().unwrap();
    make_maildir(&dir.path().join("Maildir"));
    fs::write(dir.path().join("Maildir/cur/1.x.h"), format!("Subject: long\n\n{}\n", "x".repeat(900))).unwrap();
    let (server, address) = serve(dir.path(), "", "imap");
    let mut before = Imap::logged_in(address);
    server.reload(&format!("{CONFIG}[limits]\nmessage_bytes = 500\n"));
    server.wait_for_log("configuration reloaded");
    let mut after = Imap::logged_in(address);
    for (imap, limit) in [(&mut before, 50 << 20), (&mut after, 500)] {
        let offered = imap.ok("CAPABILITY");
        assert!(offered.split_whitespace().any(|name| name == format!("APPENDLIMIT={limit}")), "{offered}");
    }
    let (_, refused) = after.command("APPEND INBOX {501}");
    assert!(refused.starts_with("NO [TOOBIG]"), "{refused}");
    assert_eq!(import(dir.path(), "Maildir", ANN, &[]), counts(0, 0, 1, 0));
    server.stop();
}
