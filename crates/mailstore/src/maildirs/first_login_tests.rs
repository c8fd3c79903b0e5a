//! Folders that the first login finds or makes.

use std::collections::HashMap;
use std::sync::Arc;

use posthaste_maildir::MailboxPath;

use super::super::tests::open_ledger;
use super::super::{MaildirLogins, MaildirStore};
use super::*;
use crate::name::{FolderTable, UsualFolders};
use crate::store::Mailstore;

/// Logs in for the first time, and returns all names and those that are subscribed to.
async fn first_login(mail: &Path, data: &Path) -> (Vec<String>, Vec<String>) {
    let world = World::open_with_usual_folders(mail, data).await;
    (world.names(false).await, world.names(true).await)
}

const USUAL: [&str; 6] = ["INBOX", "Archive", "Drafts", "Junk", "Sent", "Trash"];

#[tokio::test]
async fn the_first_login_makes_the_usual_folders() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (names, subscribed) = first_login(mail.path(), data.path()).await;
    assert_eq!((names, subscribed), (USUAL.map(String::from).into(), USUAL.map(String::from).into()));
    let world = World::open_with_usual_folders(mail.path(), data.path()).await;
    let uses = USUAL[1..].iter().map(|name| format!("{name} \\{name}")).collect::<Vec<_>>();
    assert_eq!(world.uses().await, uses);
    // A folder that its user deletes does not come back.
    world.account.delete(world.id("Archive").await).await.unwrap();
    drop(world);
    let (names, subscribed) = first_login(mail.path(), data.path()).await;
    assert_eq!(names, ["INBOX", "Drafts", "Junk", "Sent", "Trash"]);
    assert_eq!(subscribed, ["INBOX", "(Archive)", "Drafts", "Junk", "Sent", "Trash"]);
}

/// Decision 24: configured names, with the uses of the usual ones.
#[tokio::test]
async fn the_first_login_makes_folders_with_configured_names() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = Arc::new(MaildirStore::open(mail.path(), open_ledger(data.path()), Box::new(|_| false)).unwrap());
    let names = |special_use: SpecialUse| {
        if special_use == SpecialUse::Sent { "Gesendet" } else { &special_use.attribute()[1..] }
    };
    let own = Arc::new(UsualFolders::new(names).unwrap());
    let by_inbox = HashMap::from([("Maildir".to_owned(), own)]);
    store.name_usual_folders(FolderTable { by_inbox, ..Default::default() });
    let find = Box::new(|_: &str| MailboxPath::parse("Maildir").ok());
    let logins = MaildirLogins::new(Arc::clone(&store), find).with_usual_folders();
    let world = World { account: logins.account("me").await.unwrap(), store };
    let subscribed = world.names(true).await;
    assert_eq!(subscribed, ["INBOX", "Archive", "Drafts", "Gesendet", "Junk", "Trash"]);
    assert_eq!(
        world.uses().await,
        ["Archive \\Archive", "Drafts \\Drafts", "Gesendet \\Sent", "Junk \\Junk", "Trash \\Trash"]
    );
    // Not by its name any more.
    world.account.create(&MailboxName::parse("Sent").unwrap(), None).await.unwrap();
    assert!(!world.uses().await.contains(&"Sent \\Sent".to_owned()));
    // Other names later: the folders stay.
    world.store.name_usual_folders(FolderTable::default());
    let account = logins.account("me").await.unwrap();
    let world = World { account, store: Arc::clone(&world.store) };
    assert_eq!(world.names(false).await.len(), 7);
    assert!(world.uses().await.contains(&"Gesendet \\Sent".to_owned()));
}

#[tokio::test]
async fn a_maildir_with_folders_keeps_them_and_their_subscriptions() {
    for (list, subscribed) in [
        (None, vec!["INBOX", "Sent", "a/b.c", "\u{fc}"]),
        (Some("Sent\na.b%2Ec\nnone\n.\n\n"), vec!["INBOX", "Sent", "a/b.c", "(none)"]),
        (Some("V\t2\n\na\tb.c\n&APw-\n"), vec!["INBOX", "a/b.c", "\u{fc}"]),
        (Some("INBOX\n"), vec!["INBOX"]),
        (Some(""), vec!["INBOX"]),
    ] {
        let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in ["", ".Sent", ".a.b%2Ec", ".&APw-"] {
            Maildir::open_or_create(mail.path().join("Maildir").join(folder)).unwrap();
        }
        fs::write(mail.path().join("Maildir/dovecot-keywords"), "").unwrap();
        if let Some(list) = list {
            fs::write(mail.path().join("Maildir/subscriptions"), list).unwrap();
        }
        for _ in 0..2 {
            let (names, found) = first_login(mail.path(), data.path()).await;
            assert_eq!(names, ["INBOX", "Sent", "(a)", "a/b.c", "\u{fc}"], "{list:?}");
            assert_eq!(found, subscribed, "{list:?}");
        }
    }
}

/// A cut leaves no account with a part of its folders for ever, and none twice.
#[tokio::test]
async fn the_usual_folders_are_there_after_a_cut_at_any_call() {
    let machine = Machine::new().unwrap();
    let mail = machine.path().join("mail");
    // Of somebody else, as the machine knows only what is made through it.
    Maildir::open_or_create(mail.join("bob")).unwrap();
    for dir in [machine.path(), &mail] {
        posthaste_fsops::fsync(fs::File::open(dir).unwrap()).unwrap();
    }
    first_login(&mail, machine.path()).await;
    let recording = machine.recording();
    for position in (0..=recording.events.len()).step_by(2) {
        let choice = Choice::Seed(position as u64 * 7);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let mail = machine.path().join("mail");
        fs::create_dir_all(&mail).unwrap();
        for opening in 0..2 {
            let (names, subscribed) = first_login(&mail, machine.path()).await;
            assert_eq!(
                (names, subscribed),
                (USUAL.map(String::from).into(), USUAL.map(String::from).into()),
                "{position}, {opening}"
            );
        }
    }
}

/// Mail for a new user asks what is pending.
#[tokio::test]
async fn an_account_costs_the_same_however_many_there_are() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = World::open(mail.path(), data.path()).await;
    let mut applied = Vec::new();
    for number in 0..60 {
        let (store, before) = (Arc::clone(&world.store), world.store.ledger().applied_entries());
        let inbox = MailboxPath::parse(&format!("user{number}/Maildir")).unwrap();
        assert!(tokio::task::spawn_blocking(move || store.make_inbox(&inbox)).await.unwrap().is_some());
        applied.push(world.store.ledger().applied_entries() - before);
    }
    assert!(applied[59] <= applied[9], "{applied:?}");
}
