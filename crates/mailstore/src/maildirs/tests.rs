//! Maildirs that other programs change at any moment.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_maildir::tree::key_of_name;
use posthaste_maildir::{MailboxPath, Maildir};
use posthaste_spool::{Config, FileSpool, OpenError};

use self::takeover::dovecots;
use super::locks::lock;
use super::mailbox::MaildirMailbox;
use super::state::Messages;
use super::verify::{FindingKind, SpoolLook, VerifiedPlaces, verify_mailboxes};
use super::{MaildirLogins, MaildirStore};
use crate::error::MailstoreError;
use crate::ledger::MailLedger;
use crate::name::MailboxName;
use crate::row::Uid;
use crate::snapshot::Source;
use crate::store::{Mailstore, SelectMode};

#[path = "any_changes_tests.rs"]
mod any_changes;
#[path = "takeover_tests.rs"]
mod takeover;

/// A Maildir whose directories look unchanged when the test says so.
pub(super) struct Place {
    pub(super) dir: tempfile::TempDir,
    /// `None` between two openings.
    pub(super) mailbox: Option<MaildirMailbox>,
    /// Seconds since 1970, for times of directories: long ago, and each time another.
    clock: u64,
}

/// Waits for the last opening: a thread of it may have its last work to end.
pub(super) fn open_spool(dir: &Path, config: &Config) -> Arc<FileSpool> {
    loop {
        match FileSpool::open(&dir.join("spool"), config.clone()) {
            Err(OpenError::Locked) => std::thread::yield_now(),
            opened => return Arc::new(opened.unwrap().0),
        }
    }
}

pub(super) fn open_ledger(dir: &Path) -> Arc<MailLedger> {
    let ring = posthaste_ring::Config { segment_bytes: 1 << 20, max_segments: 16, ..Default::default() };
    let config = Config { ring, keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() };
    let spool = open_spool(dir, &config);
    Arc::new(MailLedger::open(spool, &[], &dir.join("mailstore"), "mx", 7).unwrap().0)
}

/// Scenario 21 and an invariant of all cuts: no UID comes twice, and counters, those of quotas too, are sums of rows.
pub(super) fn check_counters(ledger: &MailLedger, mail: &Path, data: &Path) {
    ledger.commit().unwrap();
    let places = VerifiedPlaces { table: &data.join("mailstore"), mail, look: &|| Ok(SpoolLook::default()) };
    let mut findings = verify_mailboxes(&places, None, None).unwrap().unwrap().findings;
    let is_wrong = |kind| matches!(kind, FindingKind::Checksum | FindingKind::Uids | FindingKind::Counters);
    findings.retain(|finding| is_wrong(finding.kind));
    assert_eq!(findings, []);
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
    for message in found.messages.iter() {
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
    let expected =
        if rustix::process::geteuid().is_root() { Ok(b"a".to_vec()) } else { Err(MailstoreError::NoPermission) };
    assert_eq!(place.read(&found, 1).await, expected);
    assert_eq!(place.read(&found, 2).await.unwrap(), b"b");
}

#[tokio::test]
async fn an_unmounted_inbox_does_not_lose_its_mail() {
    let mut place = Place::new();
    fs::write(place.path("new/a"), "a").unwrap();
    place.settled_look().await;
    let away = place.dir.path().join("away");
    fs::rename(place.path(""), &away).unwrap();
    assert!(matches!(place.mailbox().look_patiently().await, Err(MailstoreError::Unavailable(_))));
    fs::rename(away, place.path("")).unwrap();
    assert_eq!(uids(&place.look().await), [1]);
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

fn settle_in(mail: &Path, clock: u64) {
    for subdir in ["new", "cur"] {
        let dir = fs::File::open(mail.join("Maildir").join(subdir)).unwrap();
        dir.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + clock)).unwrap();
    }
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
    store.loaded.used_within(eve_id, 1, 2, MaildirMailbox::unload);
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

/// Scenario 11: while names change, a listing misses some and has others twice.
#[tokio::test]
async fn renames_of_all_files_during_listings_lose_and_double_nothing() {
    const MESSAGES: u32 = 400;
    const ROUNDS: usize = 30;
    let mut place = Place::new();
    for number in 1..=MESSAGES {
        // All of one time: their UIDs follow their names.
        fs::write(place.path(&format!("cur/{number:04}.a:2,")), format!("{number}\n")).unwrap();
        fs::File::open(place.path(&format!("cur/{number:04}.a:2,")))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
    }
    let all: Vec<u32> = (1..=MESSAGES).collect();
    assert_eq!(uids(&place.settled_look().await), all);
    let cur = place.path("cur");
    let other = std::thread::spawn(move || {
        for round in 0..ROUNDS {
            let (from, to) = if round % 2 == 0 { ("", "S") } else { ("S", "") };
            for number in 1..=MESSAGES {
                let name = |flags: &str| cur.join(format!("{number:04}.a:2,{flags}"));
                fs::rename(name(from), name(to)).unwrap();
            }
        }
    });
    while !other.is_finished() {
        let messages = place.look().await;
        assert_eq!((uids(&messages), messages.uid_next), (all.clone(), MESSAGES + 1));
    }
    other.join().unwrap();
    let messages = place.settled_look().await;
    assert_eq!((uids(&messages), messages.uid_next), (all, MESSAGES + 1));
    assert!(flags(&messages).iter().all(|flags| *flags == 0), "the last round takes \\Seen away");
    assert_eq!(place.files().len() as u32, MESSAGES);
    assert_eq!(place.read(&messages, 7).await.unwrap(), b"7\r\n");
}

/// Scenario 27: removed and delivered between two listings. ext4 reuses the inode of a deleted file at once.
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
