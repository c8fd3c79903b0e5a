//! Maildirs that other programs change at any moment.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{MailboxPath, Maildir};
use proptest::prelude::*;

use std::sync::Arc;

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{Config, FileSpool, OpenError};

use super::mailbox::{MaildirMailbox, lock};
use super::state::Messages;
use super::{MaildirLogins, MaildirStore};
use crate::entry::MailEntry;
use crate::error::MailstoreError;
use crate::ledger::MailLedger;
use crate::name::MailboxName;
use crate::row::Uid;
use crate::snapshot::Source;
use crate::store::{Mailstore, SelectMode};

/// A Maildir whose directories have stood still whenever the test says so.
pub(super) struct Place {
    pub(super) dir: tempfile::TempDir,
    /// `None` between two openings.
    pub(super) mailbox: Option<MaildirMailbox>,
    /// Seconds since 1970, for times of directories: long ago, and each time another.
    clock: u64,
}

pub(super) fn open_ledger(dir: &Path) -> Arc<MailLedger> {
    let ring = posthaste_ring::Config { segment_bytes: 1 << 20, max_segments: 16, ..Default::default() };
    let config = Config { ring, keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() };
    // A thread of the last opening may have its last work to end.
    let spool = loop {
        match FileSpool::open(&dir.join("spool"), config.clone()) {
            Err(OpenError::Locked) => std::thread::yield_now(),
            opened => break Arc::new(opened.unwrap().0),
        }
    };
    Arc::new(MailLedger::open(spool, &[], &dir.join("mailstore"), "mx", 7).unwrap().0)
}

/// The INBOX of the Maildir in `mail`, as the ledger in `data` has it.
pub(super) fn open_mailbox(mail: &Path, data: &Path) -> MaildirMailbox {
    let store = MaildirStore::open(mail, open_ledger(data), Box::new(|_| false)).unwrap();
    let account = store.account(&MailboxPath::parse("Maildir").unwrap());
    let owner = account.load().unwrap();
    let (name, path) = (MailboxName::inbox(), account.inbox.clone());
    let id = account.id_of(&mut lock(&account.mailboxes), owner, name, path);
    MaildirMailbox::clone(&account.mailbox(id).unwrap())
}

impl Place {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Maildir::open_or_create(dir.path().join("Maildir")).unwrap();
        let mailbox = Some(open_mailbox(dir.path(), dir.path()));
        Self { dir, mailbox, clock: 1_000_000_000 }
    }

    pub(super) fn mailbox(&self) -> &MaildirMailbox {
        self.mailbox.as_ref().unwrap()
    }

    /// Another opening of the store.
    pub(super) fn reopen(&mut self) {
        self.mailbox = None;
        self.mailbox = Some(open_mailbox(self.dir.path(), self.dir.path()));
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("Maildir").join(name)
    }

    /// Lets both directories look as if their last change were long ago.
    fn settle(&mut self) {
        self.clock += 1;
        for subdir in ["new", "cur"] {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(self.clock);
            fs::File::open(self.path(subdir)).unwrap().set_modified(at).unwrap();
        }
    }

    pub(super) async fn look(&self) -> Arc<Messages> {
        self.mailbox().look_patiently().await.unwrap()
    }

    pub(super) async fn settled_look(&mut self) -> Arc<Messages> {
        self.settle();
        self.look().await
    }

    pub(super) async fn read(&self, messages: &Messages, uid: u32) -> Result<Vec<u8>, MailstoreError> {
        let body = self.mailbox().body(messages.find(Uid::new(uid).unwrap()).unwrap()).await?;
        let mut octets = Vec::new();
        while octets.len() < body.len() as usize {
            octets.extend(body.read(octets.len() as u64, u64::MAX).await?);
        }
        Ok(octets)
    }

    /// Regular files by key and inode, with their content as it is sent.
    fn files(&self) -> BTreeMap<(String, u64), Vec<u8>> {
        let entries = ["new", "cur"].iter().flat_map(|subdir| fs::read_dir(self.path(subdir)).unwrap());
        let files = entries.map(|entry| entry.unwrap()).filter(|entry| entry.file_type().unwrap().is_file());
        let key = |entry: &fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            (key_of_name(&name).to_owned(), entry.metadata().unwrap().ino())
        };
        files.map(|entry| (key(&entry), fs::read(entry.path()).unwrap())).collect()
    }
}

fn flags(messages: &Messages) -> Vec<u64> {
    messages.messages.iter().map(|message| message.flags.0).collect()
}

pub(super) fn uids(messages: &Arc<Messages>) -> Vec<u32> {
    messages.messages.iter().map(|message| message.uid).collect()
}

#[tokio::test]
async fn uids_follow_time_and_name_and_survive_renames() {
    let mut place = Place::new();
    for (name, secs) in [("new/c", 5), ("cur/b:2,S", 9), ("new/a", 9)] {
        fs::write(place.path(name), name).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        fs::File::open(place.path(name)).unwrap().set_modified(at).unwrap();
    }
    let first = place.settled_look().await;
    let names: Vec<&str> = first.messages.iter().map(|message| &*message.file.name).collect();
    assert_eq!((uids(&first), names), (vec![1, 2, 3], vec!["c", "a", "b:2,S"]));
    assert_eq!(first.messages.iter().map(|message| message.internal_date).collect::<Vec<_>>(), [5, 9, 9]);
    // From the lowest of `new/` on.
    assert_eq!(place.mailbox().recent_from().load(std::sync::atomic::Ordering::Relaxed), 1);
    fs::rename(place.path("new/a"), place.path("cur/a:2,FS")).unwrap();
    fs::rename(place.path("cur/b:2,S"), place.path("cur/b!2,T")).unwrap();
    fs::rename(place.path("new/c"), place.path("cur/c,S=5;2,")).unwrap();
    // The old names are looked up once more.
    assert_eq!(place.read(&first, 2).await.unwrap(), b"new/a");
    let second = place.settled_look().await;
    assert_eq!(uids(&second), [1, 2, 3]);
    assert_eq!(second.messages.iter().map(|message| message.flags.0).collect::<Vec<_>>(), [0, 0b101, 0b1000]);
    assert!(Arc::ptr_eq(&second, &place.look().await), "nothing changed");
}

#[tokio::test]
async fn a_missing_message_is_gone_once_the_directory_stands_still() {
    let mut place = Place::new();
    for name in ["new/a", "new/b"] {
        fs::write(place.path(name), name).unwrap();
    }
    place.settled_look().await;
    fs::remove_file(place.path("new/a")).unwrap();
    // It was changed just now: a listing may have missed a name.
    assert_eq!(uids(&place.look().await), [1, 2]);
    assert_eq!(uids(&place.settled_look().await), [2]);
    // The same file name again, with another content.
    fs::write(place.path("new/a"), "other").unwrap();
    assert_eq!(uids(&place.settled_look().await), [2, 3]);
}

#[tokio::test]
async fn another_content_is_another_message() {
    let mut place = Place::new();
    fs::write(place.path("cur/a:2,"), "one").unwrap();
    let first = place.settled_look().await;
    fs::write(place.path("cur/a:2,"), "changed").unwrap();
    assert_eq!(place.read(&first, 1).await, Err(MailstoreError::Gone));
    let second = place.settled_look().await;
    assert_eq!(uids(&second), [2]);
    assert_eq!(place.read(&second, 2).await.unwrap(), b"changed");
}

#[tokio::test]
async fn one_key_twice_is_two_messages_unless_it_is_one_file() {
    let mut place = Place::new();
    fs::write(place.path("new/a"), "one").unwrap();
    fs::write(place.path("cur/a:2,S"), "two").unwrap();
    fs::write(place.path("new/b"), "linked").unwrap();
    fs::hard_link(place.path("new/b"), place.path("cur/b:2,F")).unwrap();
    let found = place.settled_look().await;
    let found = if found.messages.len() < 3 { place.settled_look().await } else { found };
    let names: HashSet<&str> = found.messages.iter().map(|message| &*message.file.name).collect();
    assert_eq!((found.messages.len(), names), (3, HashSet::from(["a_1", "a:2,S", "b:2,F"])));
    for _ in 0..2 {
        fs::write(place.path("cur/tick"), "").unwrap();
        fs::remove_file(place.path("cur/tick")).unwrap();
        assert!(Arc::ptr_eq(&found, &place.settled_look().await), "the names do not take turns");
    }
}

#[tokio::test]
async fn a_hostile_maildir_gives_its_mail() {
    let mut place = Place::new();
    let long = format!("cur/{}", "n".repeat(255));
    for name in ["cur/good:2,S", "cur/two\nlines:2,", &long, "new/\u{7}bell", "new/\u{1f4e7}"] {
        fs::write(place.path(name), "Subject: x\n\ny\n").unwrap();
    }
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("cur/fifo:2,"), rustix::fs::Mode::RUSR).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place.path("cur/link:2,")).unwrap();
    std::os::unix::fs::symlink("good:2,S", place.path("cur/near")).unwrap();
    fs::create_dir(place.path("cur/dir:2,")).unwrap();
    fs::write(place.path("cur/.hidden"), "x").unwrap();
    fs::write(place.path("new/huge"), "x").unwrap();
    fs::File::options().write(true).open(place.path("new/huge")).unwrap().set_len(1 << 33).unwrap();
    let not_utf8 = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"caf\xe9");
    fs::write(place.path("cur").join(not_utf8), "x").unwrap();
    let found = place.settled_look().await;
    assert_eq!(uids(&found), [1, 2, 3, 4, 5, 6]);
    for message in &found.messages {
        let read = place.read(&found, message.uid).await;
        match &*message.file.name {
            "huge" => assert!(matches!(read, Err(MailstoreError::Damaged(_))), "{read:?}"),
            name => assert_eq!(read.unwrap(), b"Subject: x\r\n\r\ny\r\n", "{name:?}"),
        }
    }
    // A FIFO that takes a message's name after the scan: no open waits for its writer.
    fs::remove_file(place.path("cur/good:2,S")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("cur/good:2,S"), rustix::fs::Mode::RUSR).unwrap();
    let good = found.messages.iter().find(|message| &*message.file.name == "good:2,S").unwrap().uid;
    assert_eq!(place.read(&found, good).await, Err(MailstoreError::Gone));
    assert_eq!(uids(&place.settled_look().await).len(), 5);
}

#[tokio::test]
async fn an_unreadable_file_is_told_and_the_others_are_read() {
    let mut place = Place::new();
    fs::write(place.path("new/a"), "a").unwrap();
    fs::write(place.path("new/b"), "b").unwrap();
    fs::set_permissions(place.path("new/a"), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    let found = place.settled_look().await;
    let expected = match rustix::process::geteuid().is_root() {
        true => Ok(b"a".to_vec()),
        false => Err(MailstoreError::NoPermission),
    };
    assert_eq!(place.read(&found, 1).await, expected);
    assert_eq!(place.read(&found, 2).await.unwrap(), b"b");
}

#[tokio::test]
async fn an_inbox_that_was_there_does_not_lose_its_mail_with_its_mount() {
    let mut place = Place::new();
    fs::write(place.path("new/a"), "a").unwrap();
    place.settled_look().await;
    let away = place.dir.path().join("away");
    fs::rename(place.path(""), &away).unwrap();
    assert!(matches!(place.mailbox().look_patiently().await, Err(MailstoreError::Unavailable(_))));
    fs::rename(away, place.path("")).unwrap();
    assert_eq!(uids(&place.look().await), [1]);
}

/// A change by another program.
#[derive(Debug, Clone)]
enum Change {
    Deliver(u8, String),
    Flags(usize, &'static str),
    Remove(usize),
    /// Removed, and another file under the same name.
    Replace(usize, String),
    /// Written to in place.
    Edit(usize, String),
    /// Copied under another name of the same key.
    Copy(usize),
    /// A second name of the same file.
    Link(usize),
    Settle,
    Look,
    Reopen,
}

fn change() -> impl Strategy<Value = Change> {
    let text = "[a-z\r\n]{0,6}";
    prop_oneof![
        3 => (0u8..4, text).prop_map(|(key, text)| Change::Deliver(key, text)),
        3 => (any::<usize>(), prop::sample::select(vec!["", ":2,", ":2,S", ";2,FS", ",S=3:2,"]))
            .prop_map(|(at, flags)| Change::Flags(at, flags)),
        2 => any::<usize>().prop_map(Change::Remove),
        1 => (any::<usize>(), text).prop_map(|(at, text)| Change::Replace(at, text)),
        1 => (any::<usize>(), text).prop_map(|(at, text)| Change::Edit(at, text)),
        1 => any::<usize>().prop_map(Change::Copy),
        1 => any::<usize>().prop_map(Change::Link),
        2 => Just(Change::Settle),
        4 => Just(Change::Look),
        1 => Just(Change::Reopen),
    ]
}

/// A file, the so-manieth.
fn pick(place: &Place, at: usize) -> Option<PathBuf> {
    let mut all: Vec<PathBuf> = ["new", "cur"]
        .iter()
        .flat_map(|subdir| fs::read_dir(place.path(subdir)).unwrap().map(|entry| entry.unwrap().path()))
        .collect();
    all.sort();
    let len = all.len();
    (len > 0).then(|| all.swap_remove(at % len))
}

fn other_name(place: &Place, path: &Path, flags: &str) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    place.path("cur").join(format!("{}{flags}", key_of_name(name)))
}

/// Each content has a time of its own, as with programs that are not quick enough to write twice within a tick of the clock.
fn write(place: &mut Place, path: &Path, text: &str) {
    place.clock += 1;
    fs::write(path, text).unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(place.clock);
    fs::File::open(path).unwrap().set_modified(at).unwrap();
}

fn apply(place: &mut Place, change: Change) {
    let picked = |at: usize| pick(place, at);
    match change {
        Change::Deliver(key, text) => {
            let path = place.path("new").join(format!("{key}.m"));
            write(place, &path, &text);
        }
        Change::Flags(at, flags) => drop(picked(at).map(|path| fs::rename(&path, other_name(place, &path, flags)))),
        Change::Remove(at) => drop(picked(at).map(fs::remove_file)),
        Change::Replace(at, text) => {
            let Some(path) = picked(at) else { return };
            fs::remove_file(&path).unwrap();
            write(place, &path, &text);
        }
        Change::Edit(at, text) => {
            let Some(path) = picked(at) else { return };
            write(place, &path, &text);
        }
        Change::Copy(at) => {
            let Some(path) = picked(at) else { return };
            let other = other_name(place, &path, ":2,R");
            if !other.exists() {
                fs::copy(&path, other).unwrap();
            }
        }
        // It may be there already.
        Change::Link(at) => drop(picked(at).map(|path| fs::hard_link(&path, other_name(place, &path, ":2,F")))),
        Change::Settle => place.settle(),
        Change::Look | Change::Reopen => {}
    }
}

/// Reads all messages; each UID has the content that it had when it was read first.
async fn check(place: &Place, messages: &Messages, contents: &mut HashMap<u32, Vec<u8>>) {
    for message in &messages.messages {
        let Ok(octets) = place.read(messages, message.uid).await else { continue };
        let size = place.mailbox().size(message).await.unwrap();
        assert_eq!(octets.len() as u64, size);
        let first = contents.entry(message.uid).or_insert_with(|| octets.clone());
        assert_eq!(*first, octets, "UID {} has another content", message.uid);
    }
}

/// Both names are written to before the mailbox has stood still.
#[tokio::test]
async fn a_file_of_two_names_that_is_edited_gets_another_uid() {
    let (mut place, mut contents) = (Place::new(), HashMap::new());
    apply(&mut place, Change::Deliver(2, "before".into()));
    apply(&mut place, Change::Link(0));
    let messages = place.look().await;
    check(&place, &messages, &mut contents).await;
    apply(&mut place, Change::Deliver(2, "behind".into()));
    for _ in 0..2 {
        let messages = place.settled_look().await;
        check(&place, &messages, &mut contents).await;
    }
    assert_eq!(uids(&place.settled_look().await), [2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_uid_has_two_contents_whatever_others_do(changes in prop::collection::vec(change(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut place = Place::new();
            let (mut contents, mut uid_next, mut modseq) = (HashMap::new(), 1, 1);
            for change in changes {
                let (looks, reopens) = (matches!(change, Change::Look), matches!(change, Change::Reopen));
                apply(&mut place, change);
                if reopens {
                    // All that changed before is known, and all that changes after it is noticed: else another content of the same length would not be.
                    for _ in 0..2 {
                        let messages = place.settled_look().await;
                        check(&place, &messages, &mut contents).await;
                    }
                    let before = place.settled_look().await;
                    place.reopen();
                    let messages = place.settled_look().await;
                    assert_eq!((uids(&messages), flags(&messages)), (uids(&before), flags(&before)));
                    assert!(messages.highest_modseq >= modseq.max(before.highest_modseq), "a MODSEQ went back");
                    modseq = messages.highest_modseq;
                    check(&place, &messages, &mut contents).await;
                    uid_next = uid_next.max(messages.uid_next);
                }
                if looks {
                    let messages = place.look().await;
                    assert!(messages.uid_next >= uid_next && uids(&messages).is_sorted_by(|a, b| a < b));
                    // A new message has a UID that was never given.
                    let new = messages.messages.iter().filter(|message| message.uid >= uid_next);
                    assert!(new.clone().all(|message| !contents.contains_key(&message.uid)));
                    assert!(messages.highest_modseq >= modseq, "a MODSEQ went back");
                    (uid_next, modseq) = (messages.uid_next, messages.highest_modseq);
                    check(&place, &messages, &mut contents).await;
                }
            }
            // Once all stands still, each file is one message. The first look may find that a content is another one.
            for _ in 0..2 {
                let messages = place.settled_look().await;
                check(&place, &messages, &mut contents).await;
            }
            let messages = place.settled_look().await;
            let files = place.files();
            let mut expected: Vec<Vec<u8>> = files.into_values().map(|octets| crlf(&octets)).collect();
            let mut found = Vec::new();
            for uid in uids(&messages) {
                found.push(place.read(&messages, uid).await.unwrap());
            }
            expected.sort();
            found.sort();
            assert_eq!(found, expected);
        });
    }

    #[test]
    fn any_ranges_are_those_of_the_whole(
        pieces in prop::collection::vec(prop_oneof![
            "[a-z]{0,5}".prop_map(String::into_bytes), Just(b"\n".to_vec()), Just(b"\r\n".to_vec()), Just(b"\r".to_vec()),
            Just(vec![0]), Just(vec![b'x'; 32_767]), Just(vec![b'\n'; 9_000]), Just(b"0123456\n".repeat(2_000)),
        ], 0..12),
        name in prop_oneof![Just("1.J1R00T0.h,S={},W={}"), Just("foreign")],
        cuts in prop::collection::vec((any::<u32>(), 0u64..100_000), 1..20),
    ) {
        let octets = pieces.concat();
        let name = name.replace("{}", &octets.len().to_string());
        let is_verbatim = name != "foreign";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut place = Place::new();
            fs::write(place.path("new").join(&name), &octets).unwrap();
            let messages = place.settled_look().await;
            let expected = if is_verbatim { octets } else { crlf(&octets) };
            let message = &messages.messages[0];
            let body = place.mailbox().body(message).await.unwrap();
            assert_eq!(body.len(), expected.len() as u64);
            assert_eq!(place.read(&messages, 1).await.unwrap(), expected);
            for (from, len) in cuts {
                let from = u64::from(from) % (expected.len() as u64 + 2);
                let read = body.read(from, from + len).await.unwrap();
                let rest = &expected[(from as usize).min(expected.len())..];
                assert!(rest.starts_with(&read) && read.len() <= crate::store::BODY_READ_MAX.min(len as usize));
                assert!(!read.is_empty() || len == 0 || rest.is_empty());
            }
            let header = place.mailbox().header(message).await.unwrap();
            let end = expected.windows(4).position(|four| four == b"\r\n\r\n").map_or(expected.len(), |at| at + 4);
            let end = if expected.starts_with(b"\r\n") { 2 } else { end };
            assert_eq!(header, expected[..end.min(crate::store::HEADER_BYTES_MAX)]);
        });
    }
}

/// As a file of another program is sent.
fn crlf(octets: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, octet) in octets.iter().enumerate() {
        match octet {
            b'\n' if at == 0 || octets[at - 1] != b'\r' => out.extend_from_slice(b"\r\n"),
            0 => out.push(0x80),
            octet => out.push(*octet),
        }
    }
    out
}

/// UIDs by key, as a session saw them.
fn shown(messages: &Messages) -> BTreeMap<String, u32> {
    let key = |name: &str| key_of_name(name).to_owned();
    messages.messages.iter().map(|message| (key(&message.file.name), message.uid)).collect()
}

const UID_LIST: &str = "3 V77 N20 Gabc\n3 :a\n4 W9 :b,S=1\n9 :gone\n12 :c\n";

/// A Maildir of Dovecot: four files, three of which are in its list of UIDs.
fn dovecots(mail: &Path) {
    Maildir::open_or_create(mail.join("Maildir")).unwrap();
    for name in ["cur/c:2,Sa", "cur/a:2,", "new/b,S=1", "new/0"] {
        fs::write(mail.join("Maildir").join(name), "x").unwrap();
    }
    fs::write(mail.join("Maildir/dovecot-uidlist"), UID_LIST).unwrap();
    fs::write(mail.join("Maildir/dovecot-keywords"), "0 $Junk\n").unwrap();
}

fn settle_in(mail: &Path, clock: u64) {
    for subdir in ["new", "cur"] {
        let dir = fs::File::open(mail.join("Maildir").join(subdir)).unwrap();
        dir.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + clock)).unwrap();
    }
}

#[tokio::test]
async fn uids_and_keywords_of_dovecot_are_taken_over() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dovecots(mail.path());
    let expected: BTreeMap<String, u32> = [("a", 3), ("b", 4), ("c", 12), ("0", 20)].map(|(k, u)| (k.into(), u)).into();
    for _ in 0..3 {
        let mailbox = open_mailbox(mail.path(), data.path());
        let messages = mailbox.look_patiently().await.unwrap();
        assert_eq!((shown(&messages), messages.uid_next), (expected.clone(), 21));
        assert_eq!(mailbox.uid_validity().get(), 77);
        let last = messages.find(Uid::new(12).unwrap()).unwrap();
        assert_eq!(messages.keywords.names(last.flags).collect::<Vec<_>>(), ["\\Seen", "$Junk"]);
    }
    // Dovecot runs beside us.
    let mailbox = open_mailbox(mail.path(), data.path());
    mailbox.look_patiently().await.unwrap();
    fs::write(mail.path().join("Maildir/dovecot-uidlist"), UID_LIST.replace("N20", "N21")).unwrap();
    assert!(matches!(mailbox.look_patiently().await, Err(MailstoreError::Unavailable(_))));
}

/// Of files of ours as well, whose names have the time of acceptance: APPEND may have given another date.
#[tokio::test]
async fn internal_dates_are_those_of_the_files() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(mail.path().join("Maildir")).unwrap();
    for (name, secs) in [("new/1700000000.J1R00000007T0.h,S=1,W=1", 7), ("cur/1.b:2,S", 1 << 33), ("new/1.c", 9)] {
        let file = mail.path().join("Maildir").join(name);
        fs::write(&file, "x").unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        fs::File::options().write(true).open(&file).unwrap().set_modified(at).unwrap();
    }
    // The second time it is taken over once more.
    for _ in 0..2 {
        let mailbox = open_mailbox(mail.path(), data.path());
        let messages = mailbox.look_patiently().await.unwrap();
        let dates: Vec<u32> = messages.messages.iter().map(|message| message.internal_date).collect();
        assert_eq!(dates, [7, 9, u32::MAX]);
        drop((messages, mailbox));
        fs::remove_dir_all(data.path().join("mailstore")).unwrap();
    }
}

/// Sessions are told of the keyword with a MODSEQ.
#[tokio::test]
async fn a_keyword_of_another_program_keeps_its_modseq() {
    let mut place = Place::new();
    let before = place.settled_look().await.highest_modseq;
    fs::write(place.path("dovecot-keywords"), "0 $Junk\n").unwrap();
    let told = place.settled_look().await.highest_modseq;
    assert!(told > before);
    place.reopen();
    assert_eq!(place.settled_look().await.highest_modseq, told);
}

/// Fewer are left than a loss would leave out.
#[tokio::test]
async fn a_list_with_its_uids_used_up_is_not_gone_on_with() {
    for next in ["4294967295", "4293918720", "4293918719"] {
        let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        dovecots(mail.path());
        fs::write(mail.path().join("Maildir/dovecot-uidlist"), UID_LIST.replace("N20", &format!("N{next}"))).unwrap();
        let mailbox = open_mailbox(mail.path(), data.path());
        let messages = mailbox.look_patiently().await.unwrap();
        let is_kept = mailbox.uid_validity().get() == 77;
        assert_eq!(is_kept, next == "4293918719");
        let mut expected = shown(&messages);
        assert_eq!(expected.len(), 4, "all have UIDs");
        assert_eq!(messages.uid_next, if is_kept { 4_293_918_720 } else { 5 });
        fs::write(mail.path().join("Maildir/new/later"), "x").unwrap();
        expected.insert("later".into(), messages.uid_next);
        assert_eq!(shown(&mailbox.look_patiently().await.unwrap()), expected);
    }
}

/// The table is lost, and with it the UIDs from Dovecot's next one on.
#[tokio::test]
async fn a_second_takeover_gives_no_uid_of_the_first() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dovecots(mail.path());
    let mailbox = open_mailbox(mail.path(), data.path());
    assert_eq!(shown(&mailbox.look_patiently().await.unwrap())["0"], 20);
    drop(mailbox);
    fs::remove_dir_all(data.path().join("mailstore")).unwrap();
    let mailbox = open_mailbox(mail.path(), data.path());
    let messages = mailbox.look_patiently().await.unwrap();
    let expected = [("a", 3), ("b", 4), ("c", 12), ("0", 20 + (1 << 20))].map(|(key, uid)| (key.into(), uid));
    assert_eq!((shown(&messages), mailbox.uid_validity().get()), (expected.into(), 77));
}

/// A mailbox without a list of UIDs has another UIDVALIDITY then, also where the clock has not gone on.
#[tokio::test]
async fn a_lost_table_changes_uidvalidity() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(mail.path().join("Maildir")).unwrap();
    let mut validities = Vec::new();
    for _ in 0..3 {
        let mailbox = open_mailbox(mail.path(), data.path());
        mailbox.look_patiently().await.unwrap();
        validities.push(mailbox.uid_validity().get());
        drop(mailbox);
        fs::remove_dir_all(data.path().join("mailstore")).unwrap();
    }
    assert!(validities.is_sorted_by(|one, next| one + 1000 < *next), "{validities:?}");
}

/// The first batch of a takeover is durable, and the second finds no room.
#[tokio::test]
async fn a_takeover_that_failed_is_made_with_another_id() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    let name = |number: usize| format!("{number:02}.{}", "x".repeat(100));
    for number in 0..70 {
        fs::write(maildir.join("cur").join(format!("{}:2,", name(number))), "x").unwrap();
    }
    settle_in(mail.path(), 0);
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 3, ..Default::default() };
    let config = Config { ring, keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() };
    let spool = Arc::new(FileSpool::open(&data.path().join("spool"), config).unwrap().0);
    let ledger = Arc::new(MailLedger::open(spool.clone(), &[], &data.path().join("mailstore"), "mx", 7).unwrap().0);
    // A batch of the takeover takes two blocks of the ring, and one of these takes one.
    let filler = [MailEntry::Keyword { mailbox: 99, bit: 8, name: vec![b'x'; 900].into() }];
    let mut blocks = 0;
    while ledger.append(&filler).is_ok() {
        blocks += 1;
    }
    ledger.commit().unwrap();
    spool.checkpoint().unwrap();
    let store = Arc::new(MaildirStore::open(mail.path(), Arc::clone(&ledger), Box::new(|_| false)).unwrap());
    let logins = MaildirLogins::new(store, Box::new(|_| MailboxPath::parse("Maildir").ok()));
    let account = logins.account("me").await.unwrap();
    let mut refused = 0;
    // The room that is left goes down by a block with each attempt, so that one stops between the batches.
    for left in (2..blocks).rev() {
        let id = account.find(&MailboxName::inbox()).await.unwrap().unwrap();
        for _ in 0..left {
            let _ = ledger.append(&filler);
        }
        match account.select(id, SelectMode::Writable).await {
            Err(_) => refused += 1,
            Ok(view) => {
                assert_eq!(view.exists(), 70);
                assert_eq!(view.last_uid().unwrap().get(), 70);
                break;
            }
        }
        ledger.commit().unwrap();
        spool.checkpoint().unwrap();
    }
    assert!(refused > 0);
}

/// A session keeps its mailbox in memory; others are read again when they are used.
#[tokio::test]
async fn mailboxes_without_a_session_leave_memory() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for login in ["ann", "bob", "eve"] {
        Maildir::open_or_create(mail.path().join(login)).unwrap();
        fs::write(mail.path().join(login).join("new/1"), "x").unwrap();
    }
    let store = Arc::new(MaildirStore::open(mail.path(), open_ledger(data.path()), Box::new(|_| false)).unwrap());
    let logins = MaildirLogins::new(Arc::clone(&store), Box::new(|login| MailboxPath::parse(login).ok()));
    let select = async |login: &str| {
        let account = logins.account(login).await.unwrap();
        let id = account.find(&MailboxName::inbox()).await.unwrap().unwrap();
        (account.select(id, SelectMode::Writable).await.unwrap(), id.0)
    };
    let (ann, ann_id) = select("ann").await;
    let (bob, bob_id) = select("bob").await;
    drop(bob);
    let (_, eve_id) = select("eve").await;
    store.shared.loaded.used_within(eve_id, 1, 2);
    let is_loaded = |id| store.ledger().take_tail(id).is_some();
    assert_eq!([ann_id, bob_id, eve_id].map(is_loaded), [true, false, true]);
    let (bob, _) = select("bob").await;
    assert_eq!((bob.exists(), bob.last_uid().unwrap().get(), ann.exists()), (1, 1, 1));
    assert!(is_loaded(bob_id));
}

/// No part of such a name stays while flags change.
#[tokio::test]
async fn a_name_without_a_key_is_no_message() {
    let mut place = Place::new();
    for name in ["cur/:2,S", "new/,S=1", "new/1.a"] {
        fs::write(place.path(name), "x").unwrap();
    }
    for _ in 0..2 {
        let messages = place.settled_look().await;
        assert_eq!((uids(&messages), messages.uid_next), (vec![1], 2));
        place.reopen();
    }
}

#[tokio::test]
async fn a_list_that_is_not_understood_gives_no_uids() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dovecots(mail.path());
    fs::write(mail.path().join("Maildir/dovecot-uidlist"), UID_LIST.replace("9 :gone", "2 :gone")).unwrap();
    let mailbox = open_mailbox(mail.path(), data.path());
    let Err(MailstoreError::Unavailable(why)) = mailbox.look_patiently().await else { panic!("it was served") };
    assert!(why.contains("line 4"), "{why}");
    // It is mended, and tried again.
    fs::write(mail.path().join("Maildir/dovecot-uidlist"), UID_LIST).unwrap();
    assert_eq!(mailbox.look_patiently().await.unwrap().uid_next, 21);
}

/// A takeover, a delivery, flags and a removal by others, with the power cut at each call: a UID that was shown stays, and is no other message's.
#[tokio::test]
async fn shown_uids_stay_after_a_cut_at_any_call() {
    let mail = tempfile::tempdir().unwrap();
    let machine = Machine::new().unwrap();
    dovecots(mail.path());
    settle_in(mail.path(), 0);
    let maildir = mail.path().join("Maildir");
    let mut steps: Vec<BTreeMap<String, u32>> = vec![BTreeMap::new()];
    let mailbox = open_mailbox(mail.path(), machine.path());
    for step in 1..=4 {
        match step {
            2 => fs::write(maildir.join("new/2"), "y").unwrap(),
            3 => fs::rename(maildir.join("cur/a:2,"), maildir.join("cur/a:2,T")).unwrap(),
            4 => fs::remove_file(maildir.join("new/0")).unwrap(),
            _ => {}
        }
        settle_in(mail.path(), step);
        steps.push(shown(&mailbox.look_patiently().await.unwrap()));
        machine.acknowledge(step);
    }
    drop(mailbox);
    // Older than all others, so it would be first if anything were numbered anew.
    fs::write(maildir.join("cur/older:2,"), "z").unwrap();
    fs::File::open(maildir.join("cur/older:2,")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    settle_in(mail.path(), 9);
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        let acknowledged = recording.acknowledged_before(position).last().unwrap_or(0) as usize;
        let choice = Choice::Seed(position as u64 * 5);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let mailbox = open_mailbox(mail.path(), machine.path());
        let messages = mailbox.look_patiently().await.unwrap();
        assert_eq!(mailbox.uid_validity().get(), 77, "{position}");
        let now = shown(&messages);
        for (key, uid) in steps[..=acknowledged].iter().flatten() {
            let same = now.get(key).is_none_or(|now| now == uid);
            let other = now.iter().any(|(other, now)| now == uid && other != key);
            assert!(same && !other && messages.uid_next > *uid, "{position}: {key} was {uid}: {now:?}");
        }
        assert_eq!(now.len(), 5, "{position}: {now:?}");
    }
}

/// ext4 reuses the inode of a deleted file at once.
#[tokio::test]
async fn a_reused_inode_is_another_message() {
    let mut place = Place::new();
    fs::write(place.path("new/1.a"), "one").unwrap();
    assert_eq!(uids(&place.settled_look().await), [1]);
    let inode = fs::metadata(place.path("new/1.a")).unwrap().ino();
    fs::remove_file(place.path("new/1.a")).unwrap();
    for number in 2..100 {
        fs::write(place.path(&format!("new/{number}.a")), "one").unwrap();
        if fs::metadata(place.path(&format!("new/{number}.a"))).unwrap().ino() == inode {
            break;
        }
    }
    let found = place.settled_look().await;
    assert!(!uids(&found).contains(&1) && uids(&found).starts_with(&[2]), "{:?}", uids(&found));
}

/// A copy gets a key that no other file has, whatever the flags of that are: one look is enough for any number of them.
#[tokio::test]
async fn copies_get_keys_of_their_own_in_one_look() {
    let mut place = Place::new();
    for name in ["new/2.m", "cur/2.m:2,R", "cur/2.m:2,S", "cur/2.m_1:2,F", "cur/2.m_2:2,", "new/2.m_2_1"] {
        fs::write(place.path(name), name).unwrap();
    }
    place.settled_look().await;
    let messages = place.settled_look().await;
    assert_eq!(uids(&messages).len(), 6, "{messages:?}");
    assert_eq!(place.files().into_keys().map(|(key, _)| key).collect::<HashSet<_>>().len(), 6);
}
