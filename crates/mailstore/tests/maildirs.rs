//! Maildirs through the traits: names, sessions, and each message of the project's corpus.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use posthaste_maildir::line_ends::crlf_to_lf;
use posthaste_maildir::{Host, MailboxPath, Maildir, UniqueName};
use posthaste_mailstore::ledger::MailLedger;
use posthaste_mailstore::{
    BODIES_BYTES_MAX, ListOptions, MailAccount, MailBody, MailboxName, MailboxView, MaildirLogins, MaildirStore,
    Mailstore, MailstoreError, MessageFlags, MessageSet, NamePattern, RowOptions, SelectMode, SpecialUse, Uid,
};
use posthaste_spool::{Config, FileSpool, OpenError};

struct Place {
    dir: tempfile::TempDir,
    store: MaildirLogins,
}

fn open(mail: &Path, data: &Path) -> MaildirLogins {
    let ring = posthaste_ring::Config { segment_bytes: 4 << 20, ..Default::default() };
    let config = Config { ring, keeper: false, ..Config::default() };
    // A thread of the last opening may have its last work to end.
    let spool = loop {
        match FileSpool::open(&data.join("spool"), config.clone()) {
            Err(OpenError::Locked) => std::thread::yield_now(),
            opened => break Arc::new(opened.unwrap().0),
        }
    };
    let ledger = Arc::new(MailLedger::open(spool, &[], &data.join("mailstore"), "mx", 7).unwrap().0);
    let find = |login: &str| MailboxPath::parse(&format!("{login}/Maildir")).ok().filter(|_| login != "nobody");
    let store = MaildirStore::open_cached(mail, ledger, Box::new(|_| false), &data.join("mailstore")).unwrap();
    MaildirLogins::new(Arc::new(store), Box::new(find))
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), dir.path());
        Self { dir, store }
    }

    fn make(&self, folder: &str) -> PathBuf {
        let path = self.dir.path().join("me/Maildir").join(folder);
        Maildir::open_or_create(&path).unwrap();
        path
    }

    async fn account(&self) -> Arc<dyn MailAccount> {
        self.store.account("me").await.unwrap()
    }
}

async fn names(account: &dyn MailAccount) -> Vec<String> {
    let patterns = [NamePattern::new("*")];
    let mut listing = account.list(&patterns, ListOptions::default()).await.unwrap();
    let mut names = Vec::new();
    while let Some(mailbox) = listing.next().await.unwrap() {
        let special_use = mailbox.special_use.map_or("", SpecialUse::attribute);
        names.push(format!("{}{special_use}{}", mailbox.name, if mailbox.id.is_none() { " none" } else { "" }));
    }
    names
}

async fn select(account: &dyn MailAccount, name: &str) -> Box<dyn MailboxView> {
    let id = account.find(&MailboxName::parse(name).unwrap()).await.unwrap().unwrap();
    account.select(id, SelectMode::Writable).await.unwrap()
}

async fn whole(body: &dyn MailBody) -> Vec<u8> {
    let mut octets = Vec::new();
    while (octets.len() as u64) < body.len() {
        octets.extend(body.read(octets.len() as u64, u64::MAX).await.unwrap());
    }
    octets
}

/// Puts a message there as delivery does.
fn deliver(maildir: &Path, number: usize, wire: &[u8]) {
    let mut stored = Vec::new();
    let sizes = crlf_to_lf(&[wire], &mut stored);
    let unique = format!("J{number:x}R0000002aT0");
    let name = UniqueName::new(1_700_000_000, &unique, &Host::new("mx"), sizes.disk_size, sizes.wire_size);
    fs::write(maildir.join("new").join(name.as_str()), stored).unwrap();
}

#[tokio::test]
async fn folders_come_and_go_and_keep_their_uids() {
    let place = Place::new();
    let account = place.account().await;
    assert!(matches!(place.store.account("nobody").await.map(drop), Err(MailstoreError::NoMailbox)));
    assert_eq!(names(&*account).await, ["INBOX"], "before the first mail");
    assert_eq!(select(&*account, "inbox").await.exists(), 0);
    place.make("");
    let folder = place.make(".Sent.2024");
    place.make(".Trash");
    fs::write(folder.join("cur/1:2,S"), "Subject: sent\n\n").unwrap();
    assert_eq!(names(&*account).await, ["INBOX", "Sent none", "Sent/2024", "Trash\\Trash"]);
    let mut view = select(&*account, "Sent/2024").await;
    assert_eq!((view.exists(), view.recent(), view.first_unseen(), view.uid_next().get()), (1, 0, None, 2));
    fs::rename(&folder, place.dir.path().join("away")).unwrap();
    assert_eq!(account.find(&MailboxName::parse("Sent/2024").unwrap()).await, Ok(None));
    view.changed().await;
    assert_eq!(view.advance(true).await, Err(MailstoreError::NoMailbox));
    fs::rename(place.dir.path().join("away"), &folder).unwrap();
    fs::write(folder.join("new/2"), "Subject: more\n\n").unwrap();
    let view = select(&*account, "Sent/2024").await;
    assert_eq!(account.status(view.id()).await.unwrap().bytes, Some(34));
    let rows = view.rows(&MessageSet::all(), RowOptions { sizes: true }).next().await.unwrap();
    let rows: Vec<_> = rows.iter().map(|row| (row.uid.get(), row.size, row.recent)).collect();
    assert_eq!(rows, [(1, Some(17), false), (2, Some(17), true)]);
}

#[tokio::test]
async fn an_idle_session_hears_of_mail_flags_and_removal() {
    let place = Place::new();
    let maildir = place.make("");
    let account = place.account().await;
    let mut view = select(&*account, "INBOX").await;
    deliver(&maildir, 1, b"Subject: one\r\n\r\n");
    let arrival = async {
        view.changed().await;
        view.advance(false).await.unwrap()
    };
    let changes = tokio::time::timeout(Duration::from_secs(60), arrival).await.expect("it looks by itself");
    assert_eq!((changes.exists, changes.recent), (Some(1), Some(1)));
    let file = fs::read_dir(maildir.join("new")).unwrap().next().unwrap().unwrap().path();
    let seen = maildir.join("cur").join(format!("{}:2,S", file.file_name().unwrap().to_str().unwrap()));
    fs::rename(file, &seen).unwrap();
    let mut flags = Vec::new();
    while flags.is_empty() {
        flags = view.advance(false).await.unwrap().flags;
    }
    assert!(flags[0].row.has(MessageFlags::SEEN) && flags[0].row.uid == Uid::new(1).unwrap());
    fs::remove_file(&seen).unwrap();
    let expunged = loop {
        view.changed().await;
        let changes = view.advance(true).await.unwrap();
        if !changes.expunged.is_empty() {
            break changes.expunged;
        }
    };
    assert_eq!((expunged[0].number, view.exists()), (1, 0));
}

#[tokio::test]
async fn the_next_start_has_the_same_uids() {
    let mut place = Place::new();
    let (maildir, folder) = (place.make(""), place.make(".Sent"));
    deliver(&maildir, 1, b"Subject: one\r\n\r\n");
    fs::write(folder.join("cur/1:2,S"), "Subject: sent\n\n").unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let account = place.account().await;
        let (inbox, sent) = (select(&*account, "INBOX").await, select(&*account, "Sent").await);
        let numbers = |view: &dyn MailboxView| (view.uid_validity(), view.last_uid(), view.exists(), view.id());
        seen.push((numbers(&*inbox), numbers(&*sent)));
        drop((inbox, sent, account));
        let (mail, data) = (place.dir.path().to_owned(), place.dir.path().to_owned());
        // The spool has one owner at a time.
        place.store = open(tempfile::tempdir().unwrap().path(), tempfile::tempdir().unwrap().path());
        place.store = open(&mail, &data);
    }
    assert!(seen.iter().all(|numbers| *numbers == seen[0]), "{seen:?}");
    let ((inbox, last, exists, _), (sent, ..)) = seen[0];
    assert!(sent > inbox && exists == 1 && last.is_some_and(|uid| uid.get() == 1), "{seen:?}");
}

/// `POSTHASTE_CORPUS`, else the larger corpus beside the repository, else the project's own.
fn corpus() -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var_os("POSTHASTE_CORPUS").filter(|value| !value.is_empty()).map(PathBuf::from);
    let beside = Some(repository.join("../shared/corpus")).filter(|beside| beside.is_dir());
    let mut dirs = vec![named.or(beside).unwrap_or_else(|| repository.join("tests/corpus"))];
    let mut files = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "eml") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn the_corpus_is_read_as_it_was_delivered() {
    let place = Place::new();
    let maildir = place.make("");
    let files = corpus();
    assert!(files.len() >= 40, "only {}", files.len());
    let wires: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    for (number, wire) in wires.iter().enumerate() {
        deliver(&maildir, number, wire);
    }
    let view = select(&*place.account().await, "INBOX").await;
    assert_eq!(view.exists() as usize, files.len());
    let mut left: Vec<&Vec<u8>> = wires.iter().collect();
    let set = MessageSet::all();
    let mut rows = view.rows(&set, RowOptions { sizes: true });
    loop {
        let step = rows.next().await.unwrap();
        if step.is_empty() {
            break;
        }
        for row in step {
            let octets = whole(&*view.body(row.uid).await.unwrap()).await;
            assert_eq!(row.size, Some(octets.len() as u64));
            let header = view.header(row.uid).await.unwrap();
            assert!(octets.starts_with(&header));
            assert_eq!(view.body(row.uid).await.unwrap().header().await.unwrap(), header);
            let at = left.iter().position(|wire| **wire == octets);
            left.swap_remove(at.unwrap_or_else(|| panic!("UID {} is none of those left", row.uid)));
        }
    }
    assert!(left.is_empty());
}

/// A client that loads a mailbox: few questions, in little memory, and one that was answered needs no file.
#[tokio::test]
async fn short_messages_are_read_together() {
    let place = Place::new();
    let maildir = place.make("");
    let text = |n: usize| match n {
        100 | 101 => format!("Subject: {n}\r\n\r\n{}", "0123456789abcde\r\n".repeat(20_000)).into_bytes(),
        n => format!("Subject: {n}\r\n\r\n{}", "short\r\n".repeat(n)).into_bytes(),
    };
    (0..200).for_each(|n| deliver(&maildir, n, &text(n)));
    let view = select(&*place.account().await, "INBOX").await;
    let uids: Vec<Uid> = (1..=200).map(|uid| Uid::new(uid).unwrap()).collect();
    let (mut found, mut questions) = (Vec::new(), 0);
    while found.len() < uids.len() {
        let step: Vec<_> = view.bodies(&uids[found.len()..]).await.unwrap();
        let step: Vec<_> = step.into_iter().map(Result::unwrap).collect();
        let before_last: u64 = step[..step.len() - 1].iter().map(|body| body.len()).sum();
        assert!(before_last < BODIES_BYTES_MAX as u64);
        (found, questions) = (found.into_iter().chain(step).collect(), questions + 1);
    }
    assert!(questions < 8, "{questions} questions");
    for entry in fs::read_dir(maildir.join("new")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let mut read = Vec::new();
    for body in &found {
        read.push(whole(&**body).await);
    }
    let mut expected: Vec<_> = (0..200).map(text).collect();
    expected.sort();
    read.sort();
    assert!(read == expected);
    assert!(matches!(view.bodies(&uids[..1]).await.unwrap()[..], [Err(MailstoreError::Gone)]));
}

/// Another program gives every file another name, over and over, while the directory is listed (ext4 may show a file twice or not at all then).
#[tokio::test]
async fn files_that_are_all_renamed_meanwhile_keep_their_uids() {
    const FILES: u32 = 400;
    let place = Place::new();
    let cur = place.make("").join("cur");
    (0..FILES).for_each(|n| fs::write(cur.join(format!("{n}.a.h:2,")), format!("Subject: {n}\n\n")).unwrap());
    let account = place.account().await;
    let mut view = select(&*account, "INBOX").await;
    let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let renames = std::thread::spawn({
        let (is_over, rounds) = (Arc::clone(&is_over), Arc::clone(&rounds));
        move || {
            let (mut old, mut new) = ("", "S");
            while !is_over.load(Relaxed) {
                for n in 0..FILES {
                    let name = |flags: &str| cur.join(format!("{n}.a.h:2,{flags}"));
                    fs::rename(name(old), name(new)).unwrap();
                }
                std::mem::swap(&mut old, &mut new);
                rounds.fetch_add(1, Relaxed);
            }
        }
    });
    let mut looks = 0;
    while looks < 30 || rounds.load(Relaxed) < 10 {
        let changes = view.advance(true).await.unwrap();
        assert!(changes.expunged.is_empty() && changes.exists.is_none(), "look {looks}: {changes:?}");
        looks += 1;
    }
    is_over.store(true, Relaxed);
    renames.join().unwrap();
    let changes = view.advance(true).await.unwrap();
    assert!(changes.expunged.is_empty() && changes.exists.is_none(), "{changes:?}");
    assert_eq!((view.exists(), view.uid_next().get()), (FILES, FILES + 1));
    for uid in [1, FILES] {
        assert!(view.header(Uid::new(uid).unwrap()).await.is_ok_and(|header| header.starts_with(b"Subject: ")));
    }
}

#[tokio::test]
async fn an_account_has_ten_thousand_mailboxes_at_most() {
    let place = Place::new();
    place.make("");
    // With INBOX so many that one more may have nine others above it.
    for number in 0..9_989 {
        fs::create_dir_all(place.dir.path().join(format!("me/Maildir/.m{number}/new"))).unwrap();
    }
    let account = place.account().await;
    let (last, further) = (MailboxName::parse("last").unwrap(), MailboxName::parse("further").unwrap());
    account.create(&last, None).await.unwrap();
    assert_eq!(account.create(&further, None).await, Err(MailstoreError::Limit));
    account.delete(account.find(&last).await.unwrap().unwrap()).await.unwrap();
    account.create(&further, None).await.unwrap();
}

#[tokio::test]
async fn long_headers_are_given_a_few_at_a_time() {
    let place = Place::new();
    let dir = place.make("");
    let long = format!("Subject: {}\n\n", "x".repeat(100_000));
    (1..=9).for_each(|n| fs::write(dir.join(format!("cur/{n}.a.h:2,S")), &long).unwrap());
    // Later, and after the others if they have the same time.
    (1..=40).for_each(|n| fs::write(dir.join(format!("cur/z{n}.b.h:2,S")), &long[90_000..]).unwrap());
    let account = place.account().await;
    let view = select(&*account, "INBOX").await;
    let uids: Vec<Uid> = (1..=9).map(|uid| Uid::new(uid).unwrap()).collect();
    for found in [view.fields(&uids).await.unwrap(), view.headers(&uids).await.unwrap()] {
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|header| header.as_ref().is_ok_and(|header| header.len() == long.len() + 2)));
    }
    // Two threads: what the first half has no room for is not followed by the second.
    let uids: Vec<Uid> = (1..=49).map(|uid| Uid::new(uid).unwrap()).collect();
    assert_eq!(view.fields(&uids).await.unwrap().len(), 3);
    let found = view.fields(&uids[9..]).await.unwrap();
    assert!(found.len() == 40 && found.iter().all(Result::is_ok));
    let gone = Uid::new(50).unwrap();
    let found = view.headers(&[gone, uids[8]]).await.unwrap();
    assert!(matches!(&found[..], [Err(MailstoreError::Gone), Ok(header)] if header.len() == long.len() + 2));
}

#[tokio::test]
async fn listed_fields_are_read_once_and_follow_the_file() {
    let place = Place::new();
    let file = place.make("").join("cur/1.a.h:2,S");
    let mail = |word: &str| format!("X-Other: b\nSubject: {word}\n\nbody\n");
    fs::write(&file, mail("one")).unwrap();
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    let account = place.account().await;
    let view = select(&*account, "INBOX").await;
    let uids = [Uid::new(1).unwrap(), Uid::new(2).unwrap()];
    let fields = || async {
        let found = view.fields(&uids).await.unwrap();
        assert_eq!(found[1], Err(MailstoreError::Gone), "there is no such message");
        found[0].clone().map(|fields| String::from_utf8(fields.to_vec()).unwrap())
    };
    assert_eq!(fields().await, Ok("Subject: one\r\n\r\n".to_owned()));
    // By its times it is the same file: it is not opened.
    fs::write(&file, mail("two")).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_modified(written).unwrap();
    assert_eq!(fields().await, Ok("Subject: one\r\n\r\n".to_owned()));
    assert!(view.header(uids[0]).await.unwrap().starts_with(b"X-Other: b\r\nSubject: two\r\n"));
    // Another content is no longer what the UID was given to.
    let later = written + Duration::from_secs(1);
    fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
    assert_eq!(fields().await, Err(MailstoreError::Gone));
}
