//! CREATE, DELETE, RENAME and SUBSCRIBE.

use std::fs;
use std::path::Path;

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_maildir::{Maildir, Subdir};

use super::copies_tests::{World, shown};
use crate::error::MailstoreError;
use crate::name::MailboxName;
use crate::pattern::NamePattern;
use crate::store::{ListOptions, MailboxView};

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
async fn a_deleted_mailbox_takes_its_mail_along_and_leaves_its_children() {
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

#[tokio::test]
async fn subscriptions_are_to_names() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    world.account.subscribe(&name("none"), true).await.unwrap();
    world.create("a").await.unwrap();
    assert_eq!(world.names(true).await, ["INBOX", "a", "(none)"]);
    world.account.subscribe(&name("a"), false).await.unwrap();
    assert_eq!(
        (world.names(true).await, world.names(false).await),
        (vec!["INBOX".into(), "(none)".into()], vec!["INBOX".to_owned(), "a".into()])
    );
    drop(world);
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(world.names(true).await, ["INBOX", "(none)"]);
    world.account.subscribe(&name("none"), false).await.unwrap();
    world.create("none").await.unwrap();
    assert_eq!(world.names(true).await, ["INBOX"], "the name was not subscribed to");
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
                assert!(last < 2 || view.uid_validity() == validities[0], "{position}");
            }
            if last > 1 && names.iter().any(|name| name == "a") {
                assert_eq!(world.select("a").await.exists(), 0, "{position}");
            }
        }
    }
}
