//! COPY and MOVE between Maildirs.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_maildir::{MailboxPath, Maildir, Subdir};

use super::change_tests::names_written;
use super::tests::{check_counters, open_ledger};
use super::{MaildirLogins, MaildirStore};
use crate::error::MailstoreError;
use crate::flags::{FlagUpdate, FlagUpdateMode, MessageFlags};
use crate::name::MailboxName;
use crate::row::{MailboxId, MessageSet, NumberRange};
use crate::store::{MailAccount, MailboxView, Mailstore, RowOptions, SelectMode};

/// An account whose INBOX is `mail/Maildir`.
pub(super) struct World {
    pub store: Arc<MaildirStore>,
    pub account: Arc<dyn MailAccount>,
}

impl World {
    pub async fn open(mail: &Path, data: &Path) -> Self {
        Self::open_as(mail, data, |logins| logins).await
    }

    pub async fn open_with_usual_folders(mail: &Path, data: &Path) -> Self {
        Self::open_as(mail, data, MaildirLogins::with_usual_folders).await
    }

    async fn open_as(mail: &Path, data: &Path, set: fn(MaildirLogins) -> MaildirLogins) -> Self {
        let store = Arc::new(MaildirStore::open(mail, open_ledger(data), Box::new(|_| false)).unwrap());
        let logins = MaildirLogins::new(Arc::clone(&store), Box::new(|_| MailboxPath::parse("Maildir").ok()));
        let account = set(logins).account("me").await.unwrap();
        Self { store, account }
    }

    pub async fn id(&self, name: &str) -> MailboxId {
        self.account.find(&MailboxName::parse(name).unwrap()).await.unwrap().unwrap()
    }

    pub async fn select(&self, name: &str) -> Box<dyn MailboxView> {
        self.account.select(self.id(name).await, SelectMode::Writable).await.unwrap()
    }

    /// Waits until files are where the ledger has them.
    pub fn settle_files(&self, id: MailboxId) {
        names_written(&self.store.loaded.find(id.0).unwrap());
    }
}

fn settle(mail: &Path, clock: u64) {
    for dir in ["new", "cur", ".Sent/new", ".Sent/cur"] {
        let dir = fs::File::open(mail.join("Maildir").join(dir)).unwrap();
        dir.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + clock)).unwrap();
    }
}

/// UID, flags by name, INTERNALDATE, and octets of each message.
pub(super) async fn shown(view: &dyn MailboxView) -> Vec<(u32, String, SystemTime, String)> {
    let rows = view.rows(&MessageSet::all(), RowOptions { sizes: true }).next().await.unwrap();
    let mut shown = Vec::new();
    for row in rows {
        let body = view.body(row.uid).await.unwrap();
        let mut octets = Vec::new();
        while (octets.len() as u64) < body.len() {
            octets.extend(body.read(octets.len() as u64, u64::MAX).await.unwrap());
        }
        assert_eq!(row.size, Some(body.len()));
        let keywords = view.keywords();
        let flags = keywords.names(row.flags).collect::<Vec<_>>().join(" ");
        shown.push((row.uid.get(), flags, row.internal_date, String::from_utf8_lossy(&octets).into_owned()));
    }
    shown
}

fn uids(first: u32, last: u32) -> MessageSet {
    MessageSet::Uids(vec![NumberRange { first, last }])
}

#[tokio::test]
async fn copies_keep_flags_dates_and_octets() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    Maildir::open_or_create(maildir.join(".Sent")).unwrap();
    fs::write(maildir.join("new/1.a"), "Subject: foreign\n\nx\0y\r\n").unwrap();
    fs::write(maildir.join("cur/5.J1R00000007T0.h,S=6,W=6:2,S"), "a\n\nb\nc").unwrap();
    fs::write(maildir.join("cur/6.J2R00000007T0.h,S=6,W=9:2,"), "a\n\nb\nc").unwrap();
    let world = World::open(mail.path(), data.path()).await;
    let sent = world.id("Sent").await;
    let keywords =
        FlagUpdate { mode: FlagUpdateMode::Add, flags: MessageFlags::FLAGGED, keywords: vec!["$Junk".into()] };
    world.select("INBOX").await.store(&uids(1, 1), &keywords, None).await.unwrap();
    let mut inbox = world.select("INBOX").await;
    let before = shown(&*inbox).await;
    assert_eq!(before.len(), 3);
    let copied = inbox.copy(&MessageSet::all(), sent).await.unwrap().unwrap();
    let numbers = |uids: &[crate::row::Uid]| uids.iter().map(|uid| uid.get()).collect::<Vec<_>>();
    assert_eq!((numbers(&copied.from), numbers(&copied.to)), (vec![1, 2, 3], vec![1, 2, 3]));
    let view = world.select("Sent").await;
    assert_eq!(view.uid_validity(), copied.uid_validity);
    assert_eq!(shown(&*view).await, before);
    // Again, and one that is not there any more.
    let moved = inbox.move_to(&uids(2, 9), sent).await.unwrap().unwrap();
    assert_eq!((numbers(&moved.from), numbers(&moved.to)), (vec![2, 3], vec![4, 5]));
    assert_eq!(inbox.move_to(&uids(2, 9), sent).await, Ok(None));
    assert_eq!(shown(&*inbox).await, before, "it has not been told yet");
    let expunged: Vec<u32> = inbox.advance(true).await.unwrap().expunged.iter().map(|gone| gone.uid.get()).collect();
    assert_eq!(expunged, [3, 2]);
    for id in [inbox.id(), sent] {
        world.settle_files(id);
    }
    // Within one mailbox, too.
    inbox.copy(&MessageSet::all(), inbox.id()).await.unwrap();
    inbox.move_to(&uids(1, 1), inbox.id()).await.unwrap();
    inbox.advance(true).await.unwrap();
    let of = |shown: Vec<(u32, String, SystemTime, String)>| -> Vec<_> {
        shown.into_iter().map(|(_, a, b, c)| (a, b, c)).collect()
    };
    let first = of(before.clone()).swap_remove(0);
    assert_eq!(of(shown(&*inbox).await), [first.clone(), first]);
    assert_eq!(inbox.copy(&MessageSet::all(), MailboxId(999)).await, Err(MailstoreError::NoMailbox));
    world.settle_files(inbox.id());
    let twice: Vec<_> = [of(before.clone()), of(before).split_off(1)].concat();
    drop((inbox, view, world));
    settle(mail.path(), 1);
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(of(shown(&*world.select("Sent").await).await), twice);
    assert_eq!(world.select("INBOX").await.exists(), 2);
    assert_eq!(fs::read_dir(maildir.join(".Sent/cur")).unwrap().count(), 5);
}

/// Another program has removed it since the last listing.
#[tokio::test]
async fn a_message_without_its_file_is_passed_over() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    Maildir::open_or_create(maildir.join(".Sent")).unwrap();
    for name in ["1.a", "2.a", "3.a"] {
        fs::write(maildir.join("new").join(name), name).unwrap();
    }
    let world = World::open(mail.path(), data.path()).await;
    let (inbox, sent) = (world.select("INBOX").await, world.id("Sent").await);
    assert_eq!(inbox.exists(), 3);
    let numbers = |uids: &[crate::row::Uid]| uids.iter().map(|uid| uid.get()).collect::<Vec<_>>();
    fs::remove_file(maildir.join("new/2.a")).unwrap();
    let copied = inbox.copy(&MessageSet::all(), sent).await.unwrap().unwrap();
    assert_eq!((numbers(&copied.from), numbers(&copied.to)), (vec![1, 3], vec![1, 2]));
    let moved = inbox.move_to(&uids(2, 3), sent).await.unwrap().unwrap();
    assert_eq!((numbers(&moved.from), numbers(&moved.to)), (vec![3], vec![3]));
    assert_eq!(inbox.copy(&uids(2, 2), sent).await, Ok(None));
    // A mailbox without its directory is no mailbox without messages.
    fs::rename(&maildir, mail.path().join("away")).unwrap();
    assert!(matches!(
        inbox.copy(&uids(1, 1), inbox.id()).await,
        Err(MailstoreError::Unavailable(_)) | Err(MailstoreError::NoMailbox)
    ));
}

/// Refused before anything is linked.
#[tokio::test]
async fn a_copy_of_too_many_messages_links_nothing() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    Maildir::open_or_create(maildir.join(".Sent")).unwrap();
    for number in 0..600 {
        fs::write(maildir.join(format!("cur/{number}.a:2,")), "x").unwrap();
    }
    let world = World::open(mail.path(), data.path()).await;
    let (inbox, sent) = (world.select("INBOX").await, world.id("Sent").await);
    let tmp = fs::File::open(maildir.join(".Sent/tmp")).unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    tmp.set_modified(at).unwrap();
    for moves in [false, true] {
        let refused = if moves {
            inbox.move_to(&MessageSet::all(), sent).await
        } else {
            inbox.copy(&MessageSet::all(), sent).await
        };
        assert_eq!(refused, Err(MailstoreError::Limit));
    }
    assert_eq!(tmp.metadata().unwrap().modified().unwrap(), at);
    // Several of the groups that are synced together.
    let some = inbox.copy(&uids(1, 300), sent).await.unwrap().unwrap();
    assert_eq!(some.to.len(), 300);
}

/// A copy of a copy, and a copy of a message that was found, after another opening as well.
#[tokio::test]
async fn copies_keep_the_email_id() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    Maildir::open_or_create(maildir.join(".Sent")).unwrap();
    let world = World::open(mail.path(), data.path()).await;
    let (inbox, sent) = (world.select("INBOX").await, world.select("Sent").await);
    for name in ["new/1.a", "new/2.a", "new/5.J1R00000007T0.h,S=1,W=1"] {
        fs::write(maildir.join(name), "x").unwrap();
    }
    let ids = |world: &World, id: MailboxId| {
        let core = Arc::clone(world.store.loaded.find(id.0).unwrap().core());
        core.now().unwrap().messages.iter().map(|message| message.email_id).collect::<Vec<_>>()
    };
    let mut inbox = inbox;
    inbox.advance(true).await.unwrap();
    let found = ids(&world, inbox.id());
    assert!(found.len() == 3 && found.is_sorted_by(|one, next| one.0 == next.0 && one.1 < next.1), "{found:?}");
    inbox.copy(&MessageSet::all(), sent.id()).await.unwrap();
    let mut sent = sent;
    sent.advance(true).await.unwrap();
    assert_eq!(ids(&world, sent.id()), found);
    inbox.move_to(&uids(1, 1), sent.id()).await.unwrap();
    sent.advance(true).await.unwrap();
    sent.copy(&uids(2, 4), inbox.id()).await.unwrap();
    let expected =
        (vec![found[1], found[2], found[1], found[2], found[0]], vec![found[0], found[1], found[2], found[0]]);
    assert_eq!((ids(&world, inbox.id()), ids(&world, sent.id())), expected);
    drop((inbox, sent, world));
    let world = World::open(mail.path(), data.path()).await;
    let (inbox, sent) = (world.select("INBOX").await, world.select("Sent").await);
    assert_eq!((ids(&world, inbox.id()), ids(&world, sent.id())), expected);
}

/// A kill between the batch and the rename leaves them in `tmp/`, where they are removed when they are old.
#[tokio::test]
async fn copies_in_tmp_are_placed_without_a_session() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    Maildir::open_or_create(maildir.join(".Sent")).unwrap();
    fs::write(maildir.join("new/1.a"), "x").unwrap();
    let world = World::open(mail.path(), data.path()).await;
    let (inbox, sent) = (world.select("INBOX").await, world.id("Sent").await);
    let core = Arc::clone(world.store.loaded.find(sent.0).unwrap().core());
    // The table does not hear that it was placed.
    core.is_writing_names.store(true, std::sync::atomic::Ordering::Release);
    inbox.move_to(&MessageSet::all(), sent).await.unwrap();
    drop((inbox, core, world));
    let names = |subdir: &str| -> Vec<String> {
        let entries = fs::read_dir(maildir.join(".Sent").join(subdir)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let placed = names("cur").remove(0);
    let name = placed.strip_suffix(":2,").unwrap();
    fs::rename(maildir.join(".Sent/cur").join(&placed), maildir.join(".Sent/tmp").join(name)).unwrap();
    fs::write(maildir.join(".Sent/tmp/unfinished"), "y").unwrap();
    let store = MaildirStore::open(mail.path(), open_ledger(data.path()), Box::new(|_| false)).unwrap();
    for path in ["Maildir", "Maildir/.Sent", "Maildir/.Sent/.none", "none"] {
        store.place_copies(&MailboxPath::parse(path).unwrap()).unwrap();
    }
    assert_eq!((names("tmp"), names("new").len() + names("cur").len()), (vec!["unfinished".to_owned()], 1));
    drop(store);
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(shown(&*world.select("Sent").await).await.len(), 1);
    assert_eq!(world.select("INBOX").await.exists(), 0);
}

/// Scenario 14.
#[tokio::test]
async fn moves_in_opposite_directions_do_not_wait_for_each_other() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    Maildir::open_or_create(maildir.join(".Sent")).unwrap();
    for number in 0..10 {
        fs::write(maildir.join(format!("new/{number}.a")), number.to_string()).unwrap();
        fs::write(maildir.join(format!(".Sent/cur/{number}.b:2,S")), number.to_string()).unwrap();
    }
    let world = World::open(mail.path(), data.path()).await;
    let ids = [world.id("INBOX").await, world.id("Sent").await];
    let back_and_forth = async |from: &str, to: MailboxId| {
        for _ in 0..5 {
            world.select(from).await.move_to(&MessageSet::all(), to).await.unwrap();
        }
    };
    let all = async { tokio::join!(back_and_forth("INBOX", ids[1]), back_and_forth("Sent", ids[0])) };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("nobody waits for ever");
    let mut left = Vec::new();
    for name in ["INBOX", "Sent"] {
        left.extend(shown(&*world.select(name).await).await.into_iter().map(|(_, flags, _, octets)| (octets, flags)));
    }
    left.sort();
    let each = (0..10).flat_map(|number| [(number.to_string(), String::new()), (number.to_string(), "\\Seen".into())]);
    assert_eq!(left, each.collect::<Vec<_>>());
}

/// Scenario 13, of COPY and of MOVE: all copies or none, and no message is in neither mailbox.
#[tokio::test]
async fn copies_are_whole_after_a_cut_at_any_call() {
    for moves in [false, true] {
        let machine = Machine::new().unwrap();
        let mail = machine.path().join("mail");
        let inbox = Maildir::open_or_create(mail.join("Maildir")).unwrap();
        Maildir::open_or_create(mail.join("Maildir/.Sent")).unwrap();
        for key in ["1.a", "2.b"] {
            inbox.write_tmp(key, &[std::io::IoSlice::new(format!("{key}\n").as_bytes())]).unwrap();
            inbox.publish(key).unwrap();
            inbox.sync_message(Subdir::New, key).unwrap();
        }
        for dir in ["", "mail", "mail/Maildir", "mail/Maildir/.Sent"] {
            posthaste_fsops::fsync(fs::File::open(machine.path().join(dir)).unwrap()).unwrap();
        }
        let world = World::open(&mail, machine.path()).await;
        settle(&mail, 1);
        let (inbox, sent) = (world.select("INBOX").await, world.select("Sent").await.id());
        machine.acknowledge(0);
        if moves {
            inbox.move_to(&MessageSet::all(), sent).await.unwrap()
        } else {
            inbox.copy(&MessageSet::all(), sent).await.unwrap()
        };
        machine.acknowledge(1);
        for id in [inbox.id(), sent] {
            world.settle_files(id);
        }
        world.store.ledger().commit().unwrap();
        drop((inbox, world));
        let recording = machine.recording();
        for position in 0..=recording.events.len() {
            let Some(last) = recording.acknowledged_before(position).last() else { continue };
            let choice = Choice::Seed(position as u64 * 11);
            let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
            let mail = machine.path().join("mail");
            settle(&mail, 50);
            let world = World::open(&mail, machine.path()).await;
            for look in 0..2 {
                let mut found = Vec::new();
                for name in ["INBOX", "Sent"] {
                    let view = world.select(name).await;
                    found.push(
                        shown(&*view).await.into_iter().map(|(uid, _, _, octets)| (uid, octets)).collect::<Vec<_>>(),
                    );
                    world.settle_files(view.id());
                }
                let both = vec![(1, "1.a\r\n".to_owned()), (2, "2.b\r\n".to_owned())];
                let none = Vec::new();
                let done = if moves { [none.clone(), both.clone()] } else { [both.clone(), both.clone()] };
                let is_done = found == done;
                assert!(is_done || last == 0 && found == [both, none], "{position}, look {look}: {found:?}");
                settle(&mail, 60 + look);
            }
            check_counters(world.store.ledger(), &mail, machine.path());
        }
    }
}

/// A session's own change is taken in without a listing, which takes long in a large mailbox.
#[tokio::test]
async fn own_changes_need_no_look_at_the_directories() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    Maildir::open_or_create(maildir.join(".Sent")).unwrap();
    fs::write(maildir.join("new/1.a"), "1").unwrap();
    let world = World::open(mail.path(), data.path()).await;
    let (mut inbox, mut sent) = (world.select("INBOX").await, world.select("Sent").await);
    // By another program.
    fs::write(maildir.join("new/2.b"), "2").unwrap();
    inbox.copy(&MessageSet::all(), sent.id()).await.unwrap();
    inbox.copy(&MessageSet::all(), inbox.id()).await.unwrap();
    assert_eq!(inbox.catch_up(true).await.unwrap().exists, Some(2));
    assert_eq!(sent.catch_up(true).await.unwrap().exists, Some(1));
    assert_eq!(inbox.advance(true).await.unwrap().exists, Some(3));
    let removed = world.account.delete(sent.id()).await;
    assert_eq!((removed, sent.catch_up(true).await), (Ok(()), Err(MailstoreError::NoMailbox)));
}

/// A mailbox whose directory hangs: whoever asks for it waits, as a RENAME there does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_hangs_holds_up_no_change_of_another_mailbox() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    for folder in ["", ".Hung", ".Sent", ".Later"] {
        Maildir::open_or_create(maildir.join(folder)).unwrap();
        (1..=2).for_each(|number| fs::write(maildir.join(folder).join(format!("new/{number}.a")), "1\n").unwrap());
    }
    let world = World::open(mail.path(), data.path()).await;
    let (inbox, hung) = (world.select("INBOX").await, world.select("Hung").await);
    // The ledger knows it, and memory does not.
    let sent = world.select("Sent").await.id();
    world.store.loaded.find(sent.0).unwrap().unload();
    let find = |id: MailboxId| Arc::clone(world.store.loaded.find(id.0).unwrap().core());
    let (core, owner) = (find(hung.id()), Arc::clone(&find(hung.id()).owner));
    let (held, is_held) = std::sync::mpsc::channel();
    let (go_on, hold) = std::sync::mpsc::channel::<()>();
    let disk = std::thread::spawn(move || {
        let (_path, _making) = (super::locks::lock(&core.path), super::locks::lock(&owner.making));
        held.send(()).unwrap();
        let _ = hold.recv();
    });
    is_held.recv().unwrap();
    let (from_hung, to_hung) = (inbox.id(), hung.id());
    let copies = async {
        // A message that has moved away could not be copied.
        let (copied, moved) = (uids(1, 1), uids(2, 2));
        tokio::join!(hung.copy(&copied, from_hung), inbox.copy(&copied, to_hung), hung.move_to(&moved, sent))
    };
    let seen = FlagUpdate { mode: FlagUpdateMode::Add, flags: MessageFlags::SEEN, keywords: vec!["new".into()] };
    let others = async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
            inbox.store(&MessageSet::all(), &seen, None).await.unwrap();
            world.select("Sent").await.store(&MessageSet::all(), &seen, None).await.unwrap();
        }
        world.account.status(sent).await.unwrap();
        drop(go_on);
    };
    let (copied, ()) = tokio::join!(copies, async { tokio::time::timeout(PATIENCE, others).await.unwrap() });
    disk.join().unwrap();
    assert!(copied.0.unwrap().is_some() && copied.1.unwrap().is_some() && copied.2.unwrap().is_some());
}

/// Flags that change while files are being copied are those of the copy.
#[tokio::test]
async fn messages_that_go_while_they_are_copied_are_passed_over() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    for folder in ["", ".Sent"] {
        Maildir::open_or_create(maildir.join(folder)).unwrap();
    }
    (1..=3).for_each(|number| fs::write(maildir.join(format!("new/{number}.a")), "1\n").unwrap());
    let world = World::open(mail.path(), data.path()).await;
    let (inbox, sent) = (world.select("INBOX").await, world.id("Sent").await);
    let find = |id: MailboxId| Arc::clone(world.store.loaded.find(id.0).unwrap().core());
    world.select("Sent").await;
    let (from, to) = (find(inbox.id()), find(sent));
    let copying = super::copies::Copying::open(&from, &to).unwrap();
    let now = from.now().unwrap();
    let (mut copies, work) = (Vec::new(), super::copies::CopyWork::patient());
    copying.make_some(&now.messages.iter().collect::<Vec<_>>(), &mut copies, &work).unwrap();
    let deleted = FlagUpdate { mode: FlagUpdateMode::Add, flags: MessageFlags::DELETED, keywords: Vec::new() };
    inbox.store(&uids(2, 2), &deleted, None).await.unwrap();
    inbox.expunge(None).await.unwrap();
    let junk = FlagUpdate { mode: FlagUpdateMode::Add, flags: MessageFlags::SEEN, keywords: vec!["$Junk".into()] };
    inbox.store(&uids(3, 3), &junk, None).await.unwrap();
    let copied = copying.finish(copies, true, &work).unwrap().unwrap();
    assert_eq!(copied.from.iter().map(|uid| uid.get()).collect::<Vec<_>>(), [1, 3]);
    let flags: Vec<String> =
        shown(&*world.select("Sent").await).await.into_iter().map(|(_, flags, ..)| flags).collect();
    assert_eq!(flags, ["", "\\Seen $Junk"]);
    assert_eq!(fs::read_dir(maildir.join(".Sent/tmp")).unwrap().count(), 0);
}

/// Large messages on another disk take minutes, and a COPY that was withdrawn makes no more of them.
#[tokio::test]
async fn each_message_of_a_copy_is_progress() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    (1..=3).for_each(|number| fs::write(maildir.join(format!("new/{number}.a")), "1\n").unwrap());
    let world = World::open(mail.path(), data.path()).await;
    let inbox = Arc::clone(world.store.loaded.find(world.select("INBOX").await.id().0).unwrap().core());
    let copying = super::copies::Copying::open(&inbox, &inbox).unwrap();
    let now = inbox.now().unwrap();
    let (messages, work) = (now.messages.iter().collect::<Vec<_>>(), super::copies::CopyWork::patient());
    let mut copies = Vec::new();
    copying.make_some(&messages, &mut copies, &work).unwrap();
    assert!(!work.withdraw(), "it has made progress");
    assert!(work.withdraw(), "it has made none since");
    assert!(copying.make_some(&messages, &mut copies, &work).is_err());
    assert_eq!(copies.len(), 3);
}
