//! Flags, keywords and folders, as mail programs beside us see them.

use std::io::{ErrorKind, IoSlice};
use std::time::{Duration, SystemTime};

use posthaste_maildir::{Flags, FolderName, Found, KEYWORDS_MAX, MailRoot, MailboxPath, Maildir, Subdir};

fn place() -> (tempfile::TempDir, MailRoot, MailboxPath) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = MailRoot::open(dir.path()).expect("mail root opens");
    (dir, root, MailboxPath::parse("ann").expect("valid"))
}

fn deliver(maildir: &Maildir, name: &str) -> Found {
    maildir.write_tmp(name, &[IoSlice::new(b"body")]).expect("written");
    maildir.publish(name).expect("published");
    maildir.find(name).expect("scanned").expect("there")
}

fn folder(name: &str) -> FolderName {
    FolderName::parse(name).expect("valid")
}

#[test]
fn flags_change_by_renames_and_meet_other_programs_half_way() {
    let (dir, root, inbox) = place();
    let maildir = root.mailbox(&inbox).expect("opens");
    let new = deliver(&maildir, "1.a.h,S=4,W=4");
    let seen = maildir.change_flags(&new, Flags::SEEN, Flags::NONE).expect("renamed");
    assert_eq!((seen.dir, &*seen.name), (Subdir::Cur, "1.a.h,S=4,W=4:2,S"));
    // Another program sets F; we know only the old name, and keep its F.
    let cur = dir.path().join("ann/cur");
    std::fs::rename(cur.join(&seen.name), cur.join("1.a.h,S=4,W=4:2,FSb")).expect("renamed");
    let replied = maildir.change_flags(&seen, Flags::REPLIED, Flags::SEEN).expect("renamed");
    assert_eq!(replied.name, "1.a.h,S=4,W=4:2,FRb");
    assert_eq!(maildir.set_flags(&replied, Flags::DRAFT).expect("renamed").name, "1.a.h,S=4,W=4:2,D");
    maildir.remove(Subdir::Cur, "1.a.h,S=4,W=4:2,D").expect("removed");
    let gone = maildir.change_flags(&replied, Flags::SEEN, Flags::NONE).expect_err("gone");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[test]
fn keywords_get_letters_and_the_table_is_locked_as_dovecot_does() {
    let (dir, root, inbox) = place();
    let maildir = root.mailbox(&inbox).expect("opens");
    let now = SystemTime::now();
    assert_eq!(maildir.keywords().expect("read").flag("Junk"), None);
    let forwarded = maildir.keyword_flag("$Forwarded", now).expect("added");
    let junk = maildir.keyword_flag("Junk", now).expect("added");
    assert_eq!((forwarded.to_string(), junk.to_string()), ("a".into(), "b".into()));
    assert_eq!(maildir.keyword_flag("JUNK", now).expect("there"), junk);
    let table = std::fs::read_to_string(dir.path().join("ann/dovecot-keywords")).expect("readable");
    assert_eq!(table, "0 $Forwarded\n1 Junk\n");
    assert_eq!(maildir.keyword_flag("two words", now).expect_err("no keyword").kind(), ErrorKind::InvalidInput);
    // Dovecot's lock is respected, and broken once it is old or its process has ended; what somebody left who was killed is not a lock.
    let lock = dir.path().join("ann/dovecot-uidlist.lock");
    std::fs::write(dir.path().join("ann/dovecot-keywords.lock"), b"0 half").expect("written");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for owner in [String::new(), format!("{}:{host}", std::process::id()), "1999999999:elsewhere.example".to_owned()] {
        std::fs::write(&lock, owner).expect("written");
        assert_eq!(maildir.keyword_flag("Todo", now).expect_err("locked").kind(), ErrorKind::WouldBlock);
    }
    let later = now + Duration::from_secs(240);
    assert_eq!(maildir.keyword_flag("Todo", later).expect("added").to_string(), "c");
    // Beyond what a process can have for its number.
    std::fs::write(&lock, format!("1999999999:{host}")).expect("written");
    assert_eq!(maildir.keyword_flag("k3", now).expect("added").to_string(), "d");
    assert!(!lock.exists());
    for n in 3..KEYWORDS_MAX {
        maildir.keyword_flag(&format!("k{n}"), later).expect("added");
    }
    assert_eq!(maildir.keyword_flag("one-more", later).expect_err("full").kind(), ErrorKind::QuotaExceeded);
    assert!(!dir.path().join("ann/dovecot-keywords.lock").exists());
    assert!(!lock.exists());
}

#[test]
fn a_changed_table_keeps_other_lines_and_mode_and_is_newer() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let (dir, root, inbox) = place();
    let maildir = root.mailbox(&inbox).expect("opens");
    let table = dir.path().join("ann/dovecot-keywords");
    std::fs::write(&table, b"0 two words\n1 \xff\n1 b\n").expect("written");
    std::fs::set_permissions(&table, std::fs::Permissions::from_mode(0o640)).expect("set");
    std::fs::write(dir.path().join("ann/cur/1.a.h:2,c"), b"x").expect("written");
    let before = std::fs::metadata(&table).expect("there").mtime();
    assert_eq!(maildir.keyword_flag("todo", SystemTime::UNIX_EPOCH).expect("added").to_string(), "d");
    assert_eq!(std::fs::read(&table).expect("readable"), b"0 two words\n1 b\n3 todo\n");
    let metadata = std::fs::metadata(&table).expect("there");
    assert_eq!((metadata.mode() & 0o777, metadata.mtime()), (0o640, before + 1));
    // A link leads to somebody else's file.
    std::fs::rename(&table, dir.path().join("elsewhere")).expect("renamed");
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &table).expect("linked");
    assert!(maildir.keyword_flag("more", SystemTime::now()).is_err());
    assert!(!dir.path().join("ann/dovecot-uidlist.lock").exists());
}

#[test]
fn folders_are_made_listed_renamed_and_removed() {
    let (dir, root, inbox) = place();
    root.mailbox(&inbox).expect("opens");
    for name in ["Lists", "Lists.Rust", "Lists.Rust.Internals", "Listserv", "Sent"] {
        deliver(&root.folder(&inbox, &folder(name)).expect("made"), "1.a.h");
    }
    assert!(dir.path().join("ann/.Lists.Rust/maildirfolder").exists());
    std::fs::create_dir(dir.path().join("ann/.not-a-maildir")).expect("made");
    let listed = |root: &MailRoot| -> Vec<String> {
        root.folders(&inbox).expect("listed").iter().map(ToString::to_string).collect()
    };
    assert_eq!(listed(&root), ["Lists", "Lists.Rust", "Lists.Rust.Internals", "Listserv", "Sent"]);
    for below in ["", ".Rust", ".Rust.Internals"] {
        let [from, to] = ["Lists", "Archive.Lists"].map(|name| folder(&format!("{name}{below}")));
        root.rename_folder(&inbox, &from, &to).expect("renamed");
    }
    let expected = ["Archive.Lists", "Archive.Lists.Rust", "Archive.Lists.Rust.Internals", "Listserv", "Sent"];
    assert_eq!(listed(&root), expected);
    let rename = |from, to| root.rename_folder(&inbox, &folder(from), &folder(to)).map_err(|e| e.kind());
    assert_eq!(rename("Sent", "Listserv"), Err(ErrorKind::AlreadyExists));
    assert_eq!(rename("None", "Other"), Err(ErrorKind::NotFound));
    root.remove_folder(&inbox, &folder("Archive.Lists.Rust")).expect("removed");
    assert_eq!(listed(&root), ["Archive.Lists", "Archive.Lists.Rust.Internals", "Listserv", "Sent"]);
    std::fs::create_dir(dir.path().join("ann/.Sent/cur/foreign")).expect("made");
    let kept = root.remove_folder(&inbox, &folder("Sent")).expect_err("something foreign in it");
    assert_eq!(kept.kind(), ErrorKind::DirectoryNotEmpty);
}

#[test]
fn a_message_moves_and_replaces_nothing() {
    let (dir, root, inbox) = place();
    let maildir = root.mailbox(&inbox).expect("opens");
    let other = root.mailbox(&MailboxPath::parse("ann/.Archive").expect("valid")).expect("opens");
    let new = deliver(&maildir, "1.a.h,U=7,S=4");
    let moved = maildir.move_to(&new, &other, &mut other.keys().expect("scanned")).expect("moved");
    assert_eq!((moved.dir, &*moved.name), (Subdir::New, "1.a.h,S=4"));
    assert!(maildir.find("1.a.h").expect("scanned").is_none());
    // The key is taken there, under other flags and in the other directory.
    other.change_flags(&moved, Flags::SEEN, Flags::NONE).expect("renamed");
    let mut taken = other.keys().expect("scanned");
    let second = deliver(&maildir, "1.a.h,S=4");
    // Another program has renamed it meanwhile.
    let cur = dir.path().join("ann/cur/1.a.h,S=4:2,F");
    std::fs::rename(dir.path().join("ann/new/1.a.h,S=4"), cur).expect("renamed");
    let moved = maildir.move_to(&second, &other, &mut taken).expect("moved");
    assert_eq!((moved.dir, &*moved.name), (Subdir::Cur, "1.a.h_1,S=4:2,F"));
    assert_eq!(std::fs::read_dir(dir.path().join("ann/.Archive/cur")).expect("listed").count(), 2);
    assert_eq!(maildir.move_to(&second, &other, &mut taken).expect_err("gone").kind(), ErrorKind::NotFound);
    assert_eq!(other.move_to(&moved, &other, &mut taken).expect("there already"), moved);
    // A name that came there after the scan.
    let third = deliver(&maildir, "3.a.h");
    deliver(&other, "3.a.h");
    assert_eq!(maildir.move_to(&third, &other, &mut taken).expect("moved").name, "3.a.h_1");
    std::os::unix::fs::symlink("../cur/x", dir.path().join("ann/new/4.a.h")).expect("linked");
    let link = Found { dir: Subdir::New, name: "4.a.h".to_owned(), size: 8 };
    assert_eq!(maildir.move_to(&link, &other, &mut taken).expect_err("a link").kind(), ErrorKind::Unsupported);
}

#[test]
fn keywords_have_the_other_places_letters_after_a_move() {
    let (_dir, root, inbox) = place();
    let maildir = root.mailbox(&inbox).expect("opens");
    let other = root.mailbox(&MailboxPath::parse("ann/.Archive").expect("valid")).expect("opens");
    let now = SystemTime::now();
    other.keyword_flag("Junk", now).expect("a");
    let forwarded = maildir.keyword_flag("$Forwarded", now).expect("a");
    let at = maildir.change_flags(&deliver(&maildir, "1.a.h"), forwarded.with(Flags::SEEN), Flags::NONE).expect("set");
    assert_eq!(at.name, "1.a.h:2,Sa");
    let moved = maildir.move_to(&at, &other, &mut other.keys().expect("scanned")).expect("moved");
    assert_eq!(moved.name, "1.a.h:2,Sb");
    assert_eq!(other.keywords().expect("read").flag("$forwarded"), Flags::letter('b'));
}
