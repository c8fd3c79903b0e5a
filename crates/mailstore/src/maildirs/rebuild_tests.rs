//! A mailbox is verified, and made anew from its files.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_maildir::{Maildir, Subdir};

use super::copies_tests::{World, shown};
use super::verify::{FindingKind, SpoolLook, VerifiedPlaces, verify_mailboxes};
use crate::error::MailstoreError;
use crate::flags::{FlagUpdate, FlagUpdateMode, MessageFlags};
use crate::row::{MessageSet, NumberRange, UniqueIds};
use crate::store::{MailboxView, ViewChanges};

fn one(uid: u32) -> MessageSet {
    MessageSet::Uids(vec![NumberRange { first: uid, last: uid }])
}

static CLOCK: AtomicU64 = AtomicU64::new(1_000_000_000);

/// As if the last change of the directories were long ago, and another one than before.
fn settle(mail: &Path) {
    let secs = CLOCK.fetch_add(1, Ordering::Relaxed);
    for dir in ["new", "cur"] {
        let dir = fs::File::open(mail.join("Maildir").join(dir)).unwrap();
        dir.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(secs)).unwrap();
    }
}

/// A look that finds something, however slow the machine is.
async fn changes(view: &mut Box<dyn MailboxView>) -> Result<ViewChanges, MailstoreError> {
    let begun = Instant::now();
    loop {
        let changes = view.advance(true).await;
        if changes.as_ref().is_ok_and(ViewChanges::is_empty) && begun.elapsed() < Duration::from_secs(60) {
            continue;
        }
        return changes;
    }
}

fn uids(shown: &[(u32, String, SystemTime, String)]) -> Vec<u32> {
    shown.iter().map(|(uid, ..)| *uid).collect()
}

/// Findings of `verify`; the table has everything.
fn findings(mail: &Path, data: &Path) -> Vec<(FindingKind, Option<u32>)> {
    let look = || Ok::<_, io::Error>(SpoolLook::default());
    let places = VerifiedPlaces { table: &data.join("mailstore"), mail, look: &look };
    let verified = verify_mailboxes(&places, None, None).unwrap().unwrap();
    verified.findings.into_iter().map(|finding| (finding.kind, finding.uid)).collect()
}

/// Three messages, the second of which is expunged; the first has flags of both kinds.
async fn fill(mail: &Path, world: &World) -> Box<dyn MailboxView> {
    let mut inbox = world.select("INBOX").await;
    let set = |flags, keyword: &str| FlagUpdate {
        mode: FlagUpdateMode::Add,
        flags,
        keywords: if keyword.is_empty() { Vec::new() } else { vec![keyword.to_owned()] },
    };
    inbox.store(&one(1), &set(MessageFlags::FLAGGED, "$Junk"), None).await.unwrap();
    inbox.store(&one(2), &set(MessageFlags::DELETED, ""), None).await.unwrap();
    inbox.expunge(None).await.unwrap();
    inbox.advance(true).await.unwrap();
    world.settle_files(inbox.id());
    settle(mail);
    inbox
}

fn make_mail(mail: &Path) {
    let inbox = Maildir::open_or_create(mail.join("Maildir")).unwrap();
    for key in ["1.a", "2.b", "3.c"] {
        inbox.write_tmp(key, &[io::IoSlice::new(format!("{key}\n").as_bytes())]).unwrap();
        inbox.publish(key).unwrap();
        inbox.sync_message(Subdir::New, key).unwrap();
    }
}

/// Clients of POP3 know messages by them.
#[tokio::test]
async fn a_rebuilt_mailbox_keeps_unique_ids_with_its_uids() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_mail(mail.path());
    let list = "3 V7 N9\n1 Pone :1.a\n2 :2.b\n3 Pthree :3.c\n";
    fs::write(mail.path().join("Maildir/dovecot-uidlist"), list).unwrap();
    settle(mail.path());
    let world = World::open(mail.path(), data.path()).await;
    let given = UniqueIds::from([(1, "one".into()), (3, "three".into())]);
    let view = world.select("INBOX").await;
    assert_eq!(*view.unique_ids().await.unwrap(), given);
    drop(view);
    for (renews, expected) in [(false, given), (true, UniqueIds::new())] {
        let id = world.select("INBOX").await.id();
        world.account.rebuild(id, renews).await.unwrap();
        let view = world.select("INBOX").await;
        assert_eq!(*view.unique_ids().await.unwrap(), expected);
    }
}

#[tokio::test]
async fn a_rebuilt_mailbox_has_its_uids_flags_and_dates() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_mail(mail.path());
    let world = World::open(mail.path(), data.path()).await;
    let mut old = fill(mail.path(), &world).await;
    let before = shown(&*old).await;
    let (validity, modseq) = (old.uid_validity(), old.highest_modseq());
    let rebuilt = world.account.rebuild(old.id(), false).await.unwrap();
    assert_eq!((rebuilt.uid_validity, rebuilt.messages, rebuilt.keeps_uids), (validity, 2, true));
    assert_eq!(old.advance(true).await, Err(MailstoreError::NoMailbox));
    let mut view = world.select("INBOX").await;
    assert_eq!((shown(&*view).await, view.uid_next().get(), view.uid_validity()), (before.clone(), 4, validity));
    assert!(view.highest_modseq() > modseq);
    assert!(view.id() != old.id());
    // What comes now is above all that were given.
    fs::write(mail.path().join("Maildir/new/4.d"), "4.d\n").unwrap();
    settle(mail.path());
    changes(&mut view).await.unwrap();
    assert_eq!(uids(&shown(&*view).await), [1, 3, 4]);
    world.store.ledger().commit().unwrap();
    assert_eq!(findings(mail.path(), data.path()), []);
    // New UIDs, if they are asked for: flags stay.
    settle(mail.path());
    let rebuilt = world.account.rebuild(view.id(), true).await.unwrap();
    assert!(rebuilt.uid_validity > validity && !rebuilt.keeps_uids);
    drop(view);
    let view = world.select("INBOX").await;
    let after = shown(&*view).await;
    assert_eq!((uids(&after), view.uid_next().get()), (vec![1, 2, 3], 4));
    assert_eq!((&after[0].1, &after[1].3), (&before[0].1, &before[1].3));
    // The next opening has the same.
    drop((old, view, world));
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(shown(&*world.select("INBOX").await).await, after);
    assert_eq!(world.store.ledger().names(1).unwrap().1.len(), 1);
}

/// A kill leaves the mailbox as it was, or as it is after.
#[test]
fn a_cut_of_a_rebuild_leaves_the_old_mailbox_or_the_new_one() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for renews in [false, true] {
        let machine = Machine::new().unwrap();
        let mail = machine.path().join("mail");
        let (validity, before) = runtime.block_on(async {
            posthaste_fsops::make_dir(&mail).unwrap();
            make_mail(&mail);
            for dir in ["", "mail", "mail/Maildir"] {
                posthaste_fsops::fsync(fs::File::open(machine.path().join(dir)).unwrap()).unwrap();
            }
            let world = World::open(&mail, machine.path()).await;
            let inbox = fill(&mail, &world).await;
            world.store.ledger().commit().unwrap();
            let before = shown(&*inbox).await;
            machine.acknowledge(1);
            world.account.rebuild(inbox.id(), renews).await.unwrap();
            machine.acknowledge(2);
            world.store.ledger().commit().unwrap();
            (inbox.uid_validity(), before)
        });
        let recording = machine.recording();
        for position in 0..=recording.events.len() {
            let Some(last) = recording.acknowledged_before(position).last() else { continue };
            let choice = Choice::Seed(position as u64 * 7);
            let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
            let mail = machine.path().join("mail");
            settle(&mail);
            runtime.block_on(async {
                let world = World::open(&mail, machine.path()).await;
                let view = world.select("INBOX").await;
                let now = shown(&*view).await;
                let is_old = view.uid_validity() == validity;
                assert_eq!(now.len(), 2, "{position}: {now:?}");
                if is_old {
                    assert_eq!(now, before, "{position}")
                } else {
                    assert_eq!(uids(&now), [1, 2], "{position}")
                }
                assert!(is_old || renews, "{position}");
                assert!(!is_old || !renews || last < 2, "{position}: it was acknowledged");
                world.settle_files(view.id());
                world.store.ledger().commit().unwrap();
                assert_eq!(findings(&mail, machine.path()), [], "{position}");
            });
        }
    }
}

/// Flips a bit of the table's file where it has these octets for the last time.
fn damage(data: &Path, octets: &[u8]) {
    let path = data.join("mailstore/meta.redb");
    let mut bytes = fs::read(&path).unwrap();
    let places: Vec<usize> =
        bytes.windows(octets.len()).enumerate().filter(|(_, found)| *found == octets).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| bytes[at] ^= 1);
    fs::write(&path, bytes).unwrap();
}

#[tokio::test]
async fn damage_is_found_and_a_rebuild_ends_it() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_mail(mail.path());
    let world = World::open(mail.path(), data.path()).await;
    let inbox = fill(mail.path(), &world).await;
    let before = shown(&*inbox).await;
    world.store.ledger().commit().unwrap();
    assert_eq!(findings(mail.path(), data.path()), []);
    world.store.write_uid_lists();
    let list = fs::read_to_string(mail.path().join("Maildir/posthaste-uids")).unwrap();
    assert_eq!(list, format!("1 V{} N4\n1 1.a\n3 3.c\n", inbox.uid_validity().get()));
    drop((inbox, world));
    // The name of a file is in a row of its own. Without it nobody but the list knows its UID.
    damage(data.path(), b"3.c");
    let found = findings(mail.path(), data.path());
    assert!(found.iter().any(|(kind, _)| *kind == FindingKind::Checksum), "{found:?}");
    let world = World::open(mail.path(), data.path()).await;
    let view = world.select("INBOX").await;
    settle(mail.path());
    let rebuilt = world.account.rebuild(view.id(), false).await.unwrap();
    assert_eq!(rebuilt.messages, 2);
    world.store.ledger().commit().unwrap();
    assert_eq!(findings(mail.path(), data.path()), []);
    let after = shown(&*world.select("INBOX").await).await;
    assert_eq!(after[0], before[0]);
    assert_eq!(after[1].3, before[1].3);
}

#[tokio::test]
async fn files_that_differ_from_their_rows_are_found() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_mail(mail.path());
    let world = World::open(mail.path(), data.path()).await;
    fill(mail.path(), &world).await;
    world.store.ledger().commit().unwrap();
    let maildir = mail.path().join("Maildir");
    let name = |key: &str| {
        let entries = fs::read_dir(maildir.join("cur")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names = entries.map(|name| name.into_string().unwrap());
        names.find(|name| name.starts_with(key)).map(|name| maildir.join("cur").join(name))
    };
    // Other flags, another size, a new file, and a missing one.
    let first = name("1.a").unwrap();
    fs::rename(&first, maildir.join("cur/1.a:2,S")).unwrap();
    fs::write(maildir.join("new/3.c"), "longer than before\n").unwrap();
    fs::write(maildir.join("new/9.z"), "x").unwrap();
    let mut found = findings(mail.path(), data.path());
    found.sort();
    assert_eq!(found, [(FindingKind::Size, Some(3)), (FindingKind::New, None), (FindingKind::Flags, Some(1))]);
    fs::remove_file(maildir.join("cur/1.a:2,S")).unwrap();
    assert!(findings(mail.path(), data.path()).contains(&(FindingKind::Missing, Some(1))));
    let look = || Ok::<_, io::Error>(SpoolLook::default());
    let places = VerifiedPlaces { table: &data.path().join("mailstore"), mail: mail.path(), look: &look };
    assert_eq!(verify_mailboxes(&places, Some("nobody"), None).unwrap(), None);
    assert_eq!(verify_mailboxes(&places, Some("Maildir"), Some("None")).unwrap(), None);
    assert_eq!(verify_mailboxes(&places, Some("Maildir"), Some("inbox")).unwrap().unwrap().messages, 2);
}

/// 2^32 UIDs are given at last, or were left out after many losses.
#[tokio::test]
async fn a_mailbox_whose_uids_are_used_up_gets_another_uidvalidity() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_mail(mail.path());
    let world = World::open(mail.path(), data.path()).await;
    let old = fill(mail.path(), &world).await;
    let (before, validity) = (shown(&*old).await, old.uid_validity());
    // All but two were given.
    let last = u32::MAX - 3;
    let set = vec![NumberRange { first: last, last }];
    let reason = crate::entry::GoneReason::Missing;
    world
        .store
        .ledger()
        .append(&[crate::entry::MailEntry::Gone { mailbox: old.id().0, set, reason, when: 0 }])
        .unwrap();
    drop((old, world));
    let world = World::open(mail.path(), data.path()).await;
    let mut view = world.select("INBOX").await;
    assert_eq!((view.uid_validity(), view.uid_next().get()), (validity, u32::MAX - 2));
    // Three files, and UIDs for two.
    for name in ["4.d", "5.e", "6.f"] {
        fs::write(mail.path().join("Maildir/new").join(name), format!("{name}\n")).unwrap();
    }
    settle(mail.path());
    assert_eq!(changes(&mut view).await, Err(MailstoreError::NoMailbox), "its sessions end");
    let mut view = world.select("INBOX").await;
    assert!(view.uid_validity() > validity);
    let now = shown(&*view).await;
    assert_eq!((uids(&now), view.uid_next().get()), (vec![1, 2, 3, 4, 5], 6));
    assert_eq!((&now[0].1, &now[0].3, &now[1].3), (&before[0].1, &before[0].3, &before[1].3));
    fs::write(mail.path().join("Maildir/new/7.g"), "7.g\n").unwrap();
    settle(mail.path());
    changes(&mut view).await.unwrap();
    assert_eq!(view.last_uid().unwrap().get(), 6);
    world.store.ledger().commit().unwrap();
    assert_eq!(findings(mail.path(), data.path()), []);
}
