//! CREATE, DELETE, RENAME and SUBSCRIBE.

use std::fs;
use std::path::Path;

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_maildir::{Maildir, Subdir};

use super::copies_tests::{World, shown};
use super::tests::check_counters;
use crate::entry::{MailEntry, MailboxFields};
use crate::error::MailstoreError;
use crate::name::{MailboxName, SpecialUse};
use crate::pattern::NamePattern;
use crate::row::{MessageSet, ModSeq, NumberRange};
use crate::store::{ListOptions, MailboxView};

#[path = "first_login_tests.rs"]
mod first_login;
#[path = "missing_tests.rs"]
mod missing;

fn name(name: &str) -> MailboxName {
    MailboxName::parse(name).unwrap()
}

impl World {
    /// Names in a list; one without a mailbox is in brackets.
    async fn names(&self, subscribed: bool) -> Vec<String> {
        let patterns = [NamePattern::new("*")];
        let options = ListOptions { subscribed, ..Default::default() };
        let mut listing = self.account.list(&patterns, options).await.unwrap();
        let mut names = Vec::new();
        while let Some(listed) = listing.next().await.unwrap() {
            names.push(if listed.id.is_some() { listed.name.to_string() } else { format!("({})", listed.name) });
        }
        names
    }

    /// Names with their special uses.
    async fn uses(&self) -> Vec<String> {
        let patterns = [NamePattern::new("*")];
        let mut listing = self.account.list(&patterns, ListOptions::default()).await.unwrap();
        let mut uses = Vec::new();
        while let Some(listed) = listing.next().await.unwrap() {
            uses.extend(listed.special_use.map(|special_use| format!("{} {}", listed.name, special_use.attribute())));
        }
        uses
    }

    async fn create(&self, of: &str) -> Result<(), MailstoreError> {
        self.account.create(&name(of), None).await.map(drop)
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), MailstoreError> {
        self.account.rename(self.id(from).await, &name(to)).await
    }
}

async fn octets(view: &dyn MailboxView) -> Vec<String> {
    shown(view).await.into_iter().map(|(_, _, _, octets)| octets).collect()
}

#[tokio::test]
async fn mailboxes_are_made_with_those_above_them() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.create("a/b.c").await.unwrap();
    let expected = ["INBOX", "a", "a/b.c"];
    assert_eq!(world.names(false).await, expected);
    assert!(mail.path().join("Maildir/.a.b%2Ec/maildirfolder").exists());
    for taken in ["a", "inbox", "a/b.c"] {
        assert_eq!(world.create(taken).await, Err(MailstoreError::Exists));
    }
    assert!(matches!(world.create("x/50%").await, Err(MailstoreError::Cannot(_))));
    assert_eq!(world.names(false).await, expected);
    let view = world.select("a/b.c").await;
    let numbers = (view.id(), view.uid_validity(), view.exists());
    drop((view, world));
    let world = World::open(mail.path(), data.path()).await;
    let view = world.select("a/b.c").await;
    assert_eq!((view.id(), view.uid_validity(), view.exists()), numbers);
}

#[tokio::test]
async fn a_deleted_mailbox_loses_its_mail_and_keeps_its_children() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.create("a/b").await.unwrap();
    fs::write(mail.path().join("Maildir/.a/new/1.x"), "x").unwrap();
    let mut view = world.select("a").await;
    let validity = view.uid_validity();
    assert_eq!(view.exists(), 1);
    world.account.delete(view.id()).await.unwrap();
    assert_eq!(world.names(false).await, ["INBOX", "(a)", "a/b"]);
    view.changed().await;
    assert_eq!(view.advance(true).await, Err(MailstoreError::NoMailbox));
    assert_eq!(view.expunge(None).await, Err(MailstoreError::NoMailbox));
    assert!(!mail.path().join("Maildir/.a").exists());
    let inbox = world.id("INBOX").await;
    assert!(matches!(world.account.delete(inbox).await, Err(MailstoreError::Cannot(_))));
    world.create("a").await.unwrap();
    let again = world.select("a").await;
    assert!(again.uid_validity() > validity && again.id() != view.id());
    assert_eq!(again.exists(), 0);
    let validity = again.uid_validity();
    drop((again, view, world));
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(world.names(false).await, ["INBOX", "a", "a/b"]);
    assert_eq!(world.select("a").await.uid_validity(), validity);
}

/// Scenario 15, without delivery: the tree goes with its UIDs, and the old name is another mailbox.
#[tokio::test]
async fn a_tree_keeps_its_uids_under_another_name() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.create("a/b").await.unwrap();
    world.create("ab").await.unwrap();
    fs::write(mail.path().join("Maildir/.a.b/new/1.x"), "x").unwrap();
    let mut view = world.select("a/b").await;
    let numbers = (view.id(), view.uid_validity(), view.last_uid());
    assert!(matches!(world.rename("a", "a/c").await, Err(MailstoreError::Cannot(_))));
    assert_eq!(world.rename("a", "ab").await, Err(MailstoreError::Exists));
    world.rename("a", "c/d").await.unwrap();
    let expected = ["INBOX", "ab", "c", "c/d", "c/d/b"];
    assert_eq!(world.names(false).await, expected);
    // The session goes on.
    fs::write(mail.path().join("Maildir/.c.d.b/new/2.x"), "y").unwrap();
    assert_eq!(view.advance(true).await.unwrap().exists, Some(2));
    world.create("a/b").await.unwrap();
    let other = world.select("a/b").await;
    assert!(other.exists() == 0 && other.id() != view.id() && other.uid_validity() > view.uid_validity());
    world.account.delete(other.id()).await.unwrap();
    world.account.delete(world.id("a").await).await.unwrap();
    drop((view, other, world));
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(world.names(false).await, expected);
    let view = world.select("c/d/b").await;
    assert_eq!((view.id(), view.uid_validity(), view.exists()), (numbers.0, numbers.1, 2));
    // INBOX stays and gives its mail away.
    fs::write(mail.path().join("Maildir/new/3.x"), "z").unwrap();
    let mut inbox = world.select("INBOX").await;
    world.rename("INBOX", "old").await.unwrap();
    assert_eq!(inbox.advance(true).await.unwrap().expunged.len(), 1);
    assert_eq!(octets(&*world.select("old").await).await, ["z"]);
}

/// Dovecot gives mailboxes that it makes within a second one UIDVALIDITY (decision 2).
#[tokio::test]
async fn a_rename_repeats_no_uidvalidity_of_its_name() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in ["", ".a", ".b", ".c"] {
        let dir = mail.path().join("Maildir").join(folder);
        Maildir::open_or_create(&dir).unwrap();
        fs::write(dir.join("cur/x:2,"), "x").unwrap();
        fs::write(dir.join("dovecot-uidlist"), "3 V77 N2\n1 :x\n").unwrap();
    }
    let world = World::open(mail.path(), data.path()).await;
    let validity = async |world: &World, name: &str| world.select(name).await.uid_validity().get();
    for name in ["a", "b", "c"] {
        assert_eq!(validity(&world, name).await, 77);
    }
    world.rename("a", "free").await.unwrap();
    assert_eq!(validity(&world, "free").await, 77, "no client knows anything of this name");
    world.account.delete(world.id("b").await).await.unwrap();
    world.rename("c", "b").await.unwrap();
    let renewed = validity(&world, "b").await;
    assert!(renewed > 77, "{renewed}");
    // A client that was away has 77 of this name, too, though another mailbox had it since.
    world.create("a").await.unwrap();
    let between = validity(&world, "a").await;
    world.account.delete(world.id("a").await).await.unwrap();
    world.rename("free", "a").await.unwrap();
    let grown = validity(&world, "a").await;
    assert!(grown > between, "{grown} {between}");
    world.rename("a", "free").await.unwrap();
    drop(world);
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!((validity(&world, "free").await, validity(&world, "b").await), (grown, renewed));
    assert_eq!(world.select("b").await.last_uid().map(|uid| uid.get()), Some(1));
}

#[tokio::test]
async fn subscriptions_are_to_names() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.account.subscribe(&name("none"), true).await.unwrap();
    world.create("a").await.unwrap();
    assert_eq!(world.names(true).await, ["INBOX", "(none)"], "a mailbox alone is no subscription");
    world.account.subscribe(&name("a"), true).await.unwrap();
    world.account.subscribe(&name("INBOX"), false).await.unwrap();
    assert_eq!(world.names(true).await, ["a", "(none)"]);
    world.account.delete(world.id("a").await).await.unwrap();
    drop(world);
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(world.names(true).await, ["(a)", "(none)"]);
    world.account.subscribe(&name("a"), false).await.unwrap();
    world.create("a").await.unwrap();
    world.create("none").await.unwrap();
    assert_eq!(world.names(true).await, ["none"]);
}

/// Each mailbox has its use, whatever its name is, and no two have the same.
#[tokio::test]
async fn special_uses_belong_to_mailboxes() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.account.create(&name("Gesendet"), Some(SpecialUse::Sent)).await.unwrap();
    world.account.create(&name("Junk/x"), Some(SpecialUse::Archive)).await.unwrap();
    let taken = world.account.create(&name("other"), Some(SpecialUse::Sent)).await;
    assert_eq!(taken, Err(MailstoreError::UseTaken));
    world.create("Sent").await.unwrap();
    let expected = ["Gesendet \\Sent", "Junk \\Junk", "Junk/x \\Archive"];
    assert_eq!(world.uses().await, expected);
    // A folder of another program.
    Maildir::open_or_create(mail.path().join("Maildir/.Trash")).unwrap();
    Maildir::open_or_create(mail.path().join("Maildir/.Archive")).unwrap();
    assert_eq!(world.uses().await, [&expected[..], &["Trash \\Trash"]].concat());
    drop((world.select("Trash").await, world.select("Archive").await));
    world.rename("Gesendet", "old").await.unwrap();
    world.rename("Junk", "no junk").await.unwrap();
    drop(world);
    let world = World::open(mail.path(), data.path()).await;
    let expected = ["Trash \\Trash", "no junk \\Junk", "no junk/x \\Archive", "old \\Sent"];
    assert_eq!(world.uses().await, expected);
    world.account.delete(world.id("old").await).await.unwrap();
    world.rename("Trash", "Drafts").await.unwrap();
    world.account.create(&name("new"), Some(SpecialUse::Sent)).await.unwrap();
    assert_eq!(world.uses().await, ["Drafts \\Trash", "new \\Sent", "no junk \\Junk", "no junk/x \\Archive"]);
}

/// A directory that cannot be removed takes no mail that comes later along.
#[tokio::test]
async fn a_name_is_taken_until_its_old_directory_is_gone() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut world = World::open(mail.path(), data.path()).await;
    for of in ["a/b", "c"] {
        world.create(of).await.unwrap();
    }
    let foreign = mail.path().join("Maildir/.a.b/cur/foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(mail.path().join("Maildir/.a.b/new/1.x"), "x").unwrap();
    world.account.delete(world.id("a/b").await).await.unwrap();
    for _ in 0..2 {
        assert_eq!(world.names(false).await, ["INBOX", "a", "c"]);
        assert!(matches!(world.create("a/b").await, Err(MailstoreError::Unavailable(_))));
        assert!(matches!(world.rename("c", "a/b").await, Err(MailstoreError::Unavailable(_))));
        // What is hidden does not go along.
        world.rename("a", "d").await.unwrap();
        assert_eq!(world.names(false).await, ["INBOX", "c", "d"]);
        world.rename("d", "a").await.unwrap();
        drop(world);
        world = World::open(mail.path(), data.path()).await;
    }
    fs::remove_dir(&foreign).unwrap();
    world.create("a/b").await.unwrap();
    let view = world.select("a/b").await;
    assert_eq!(view.exists(), 0);
    fs::write(mail.path().join("Maildir/.a.b/new/2.x"), "y").unwrap();
    drop((view, world));
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(world.names(false).await, ["INBOX", "a", "a/b", "c"]);
    assert_eq!(octets(&*world.select("a/b").await).await, ["y"]);
}

/// A kill came after the batch of a RENAME, before its directory was moved or after that, and another program has made the other one.
#[tokio::test]
async fn a_renamed_mailbox_stays_with_its_files() {
    for is_moved in [false, true] {
        let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let maildir = mail.path().join("Maildir");
        Maildir::open_or_create(&maildir).unwrap();
        Maildir::open_or_create(maildir.join(".Old")).unwrap();
        fs::write(maildir.join(".Old/cur/1.a:2,S"), "mail").unwrap();
        let world = World::open(mail.path(), data.path()).await;
        let before = shown(&*world.select("Old").await).await;
        let (id, ledger) = (world.id("Old").await.0, &world.store.shared.ledger);
        let head = ledger.head(id).unwrap().unwrap();
        let directory = "Maildir/.New".into();
        let (account, uid_validity, name) = (head.account, head.uid_validity, "New".into());
        let fields = MailboxFields { id, account, uid_validity, name, directory, ..MailboxFields::default() };
        ledger.append(&[MailEntry::Mailbox(fields)]).unwrap();
        drop(world);
        if is_moved {
            fs::rename(maildir.join(".Old"), maildir.join(".New")).unwrap();
        }
        let (others, ours) = if is_moved { ("Old", "New") } else { ("New", "Old") };
        Maildir::open_or_create(maildir.join(format!(".{others}"))).unwrap();
        for _ in 0..2 {
            let world = World::open(mail.path(), data.path()).await;
            assert_eq!(world.names(false).await, ["INBOX", "New", "Old"]);
            let view = world.select(ours).await;
            assert_eq!((view.id().0, view.uid_validity().get()), (id, uid_validity), "moved: {is_moved}");
            assert_eq!(shown(&*view).await, before);
            assert_eq!(world.select(others).await.exists(), 0);
        }
    }
}

#[tokio::test]
async fn a_rename_that_fails_changes_nothing() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.create("a/b").await.unwrap();
    fs::write(mail.path().join("Maildir/.a.b/new/1.x"), "x").unwrap();
    let view = world.select("a/b").await;
    // No Maildir, so it is no mailbox.
    fs::create_dir_all(mail.path().join("Maildir/.c.b/foreign")).unwrap();
    assert_eq!(world.rename("a", "c").await, Err(MailstoreError::Exists));
    let expected = ["INBOX", "a", "a/b"];
    assert_eq!(world.names(false).await, expected);
    assert_eq!(world.id("a/b").await, view.id());
    world.rename("a/b", "a/e").await.unwrap();
    world.rename("a/e", "a/b").await.unwrap();
    let numbers = (view.id(), view.uid_validity());
    drop((view, world));
    for _ in 0..2 {
        let world = World::open(mail.path(), data.path()).await;
        assert_eq!(world.names(false).await, expected);
        let view = world.select("a/b").await;
        assert_eq!((view.id(), view.uid_validity()), numbers);
        assert_eq!(octets(&*view).await, ["x"]);
    }
}

/// Neither a listing nor a session sees a directory under a name that it does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn others_see_one_mailbox_while_it_is_renamed() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.create("a").await.unwrap();
    fs::write(mail.path().join("Maildir/.a/new/1.x"), "x").unwrap();
    let view = world.select("a").await;
    let (id, is_over) = (view.id(), std::sync::atomic::AtomicBool::new(false));
    let change = async {
        for _ in 0..40 {
            world.rename("a", "b").await.unwrap();
            world.rename("b", "a").await.unwrap();
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let ask = async {
        while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
            for of in ["a", "b"] {
                let found = world.account.find(&name(of)).await.unwrap();
                assert!(found.is_none_or(|found| found == id), "{of}: {found:?}");
            }
            let names = world.names(false).await;
            assert!(names.iter().all(|name| ["INBOX", "a", "b", "(a)", "(b)"].contains(&&**name)), "{names:?}");
            assert_eq!(world.account.status(id).await.unwrap().exists, 1);
        }
    };
    tokio::join!(change, ask);
}

fn settle(mail: &Path) {
    for subdir in ["new", "cur"] {
        let dir = fs::File::open(mail.join("Maildir").join(subdir)).unwrap();
        dir.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    }
}

/// Each OK holds after a cut at any call, and no mail is lost on the way.
#[tokio::test]
async fn folder_changes_hold_after_a_cut_at_any_call() {
    let machine = Machine::new().unwrap();
    let mail = machine.path().join("mail");
    Maildir::open_or_create(mail.join("Maildir")).unwrap();
    for dir in ["", "mail", "mail/Maildir"] {
        posthaste_fsops::fsync(fs::File::open(machine.path().join(dir)).unwrap()).unwrap();
    }
    let world = World::open(&mail, machine.path()).await;
    let mut validities = Vec::new();
    for step in 1..=4 {
        match step {
            1 => {
                world.create("a").await.unwrap();
                let folder = Maildir::open(mail.join("Maildir/.a")).unwrap();
                folder.write_tmp("1.x", &[std::io::IoSlice::new(b"x\n")]).unwrap();
                folder.publish("1.x").unwrap();
                folder.sync_message(Subdir::New, "1.x").unwrap();
                validities.push(world.select("a").await.uid_validity());
            }
            2 => world.rename("a", "b").await.unwrap(),
            3 => world.create("a").await.unwrap(),
            _ => world.account.delete(world.id("b").await).await.unwrap(),
        }
        machine.acknowledge(step);
    }
    world.store.ledger().commit().unwrap();
    drop(world);
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        let Some(last) = recording.acknowledged_before(position).last() else { continue };
        let choice = Choice::Seed(position as u64 * 13);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let mail = machine.path().join("mail");
        settle(&mail);
        for opening in 0..2 {
            let world = World::open(&mail, machine.path()).await;
            let names = world.names(false).await;
            let expected: &[&[&str]] = match last {
                1 => &[&["INBOX", "a"], &["INBOX", "b"]],
                2 => &[&["INBOX", "b"], &["INBOX", "a", "b"]],
                3 => &[&["INBOX", "a", "b"], &["INBOX", "a"]],
                _ => &[&["INBOX", "a"]],
            };
            assert!(
                expected.iter().any(|expected| names == *expected),
                "{position}, {opening}: {names:?} after {last}"
            );
            let with_mail = if last == 1 { names[1].as_str() } else { "b" };
            if names.iter().any(|name| name == with_mail) {
                let view = world.select(with_mail).await;
                assert_eq!(octets(&*view).await, ["x\r\n"], "{position}");
                assert_eq!(view.uid_validity(), validities[0], "{position}");
            }
            if last > 1 && names.iter().any(|name| name == "a") {
                assert_eq!(world.select("a").await.exists(), 0, "{position}");
            }
            check_counters(world.store.ledger(), &mail, machine.path());
        }
    }
}

/// VANISHED for a returning client (RFC 7162 section 3.2): before and after a commit, after a restart, and for a
/// forgotten state.
#[tokio::test]
async fn uids_that_vanished_since_are_known() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.create("a").await.unwrap();
    for number in 1..=6 {
        fs::write(mail.path().join(format!("Maildir/.a/new/{number}.x")), "x").unwrap();
    }
    let mut view = world.select("a").await;
    let remove = |first, last| MessageSet::Uids(vec![NumberRange { first, last }]);
    let vanished = async |view: &dyn MailboxView, since| {
        let ranges = view.vanished(since).await.unwrap();
        ranges.iter().map(|range| format!("{}:{}", range.first, range.last)).collect::<Vec<_>>().join(",")
    };
    let begun = view.highest_modseq();
    assert_eq!(vanished(&*view, begun).await, "");
    view.remove(&remove(2, 3)).await.unwrap();
    // Until the session has told it, the message is there.
    assert_eq!(vanished(&*view, begun).await, "");
    view.advance(true).await.unwrap();
    let middle = view.highest_modseq();
    assert!(middle > begun);
    assert_eq!((vanished(&*view, begun).await.as_str(), vanished(&*view, middle).await.as_str()), ("2:3", ""));
    world.store.ledger().commit().unwrap();
    view.remove(&remove(4, 4)).await.unwrap();
    view.remove(&remove(6, 6)).await.unwrap();
    view.advance(true).await.unwrap();
    let end = view.highest_modseq();
    let expected = [(begun, "2:4,6:6"), (middle, "4:4,6:6"), (end, ""), (ModSeq(0), "2:4,6:6"), (ModSeq(u64::MAX), "")];
    for (since, expected) in expected {
        assert_eq!(vanished(&*view, since).await, expected, "{since:?}");
    }
    drop((view, world));
    let world = World::open(mail.path(), data.path()).await;
    let view = world.select("a").await;
    assert!(view.highest_modseq() >= end);
    for (since, expected) in expected {
        assert_eq!(vanished(&*view, since).await, expected, "{since:?} after a restart");
    }
}

/// Each question about a name once applied all entries that make mailboxes and that the table lacks.
#[tokio::test]
async fn a_mailbox_costs_the_same_however_many_there_are() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Maildir::open_or_create(mail.path().join("Maildir")).unwrap();
    let world = World::open(mail.path(), data.path()).await;
    let mut applied = Vec::new();
    for number in 0..60 {
        let before = world.store.ledger().applied_entries();
        world.create(&format!("m{number}")).await.unwrap();
        world.account.subscribe(&name(&format!("m{number}")), true).await.unwrap();
        applied.push(world.store.ledger().applied_entries() - before);
    }
    assert!(applied[59] <= applied[9], "{applied:?}");
    assert_eq!(world.names(true).await.len(), 61);
    world.store.ledger().commit().unwrap();
    assert_eq!(world.names(true).await.len(), 61);
}
