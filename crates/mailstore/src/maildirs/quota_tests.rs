//! Quotas of accounts: what counts, and what is refused.

use std::collections::HashMap;
use std::fs;

use posthaste_maildir::Maildir;

use super::copies_tests::World;
use crate::error::MailstoreError;
use crate::flags::{FlagUpdate, FlagUpdateMode, MessageFlags};
use crate::name::MailboxName;
use crate::row::{MessageSet, NumberRange};
use crate::store::{QuotaLimits, QuotaTable, QuotaUse};

fn limits(bytes: u64, messages: u64) -> QuotaLimits {
    QuotaLimits { bytes: Some(bytes), messages: Some(messages) }
}

fn one(uid: u32) -> MessageSet {
    MessageSet::Uids(vec![NumberRange { first: uid, last: uid }])
}

#[tokio::test]
async fn a_recreated_mailbox_counts_what_is_in_it() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fat = mail.path().join("Maildir/.Fat");
    Maildir::open_or_create(mail.path().join("Maildir")).unwrap();
    Maildir::open_or_create(&fat).unwrap();
    fs::write(fat.join("new/1.a"), "1234567890\n").unwrap();
    let world = World::open(mail.path(), data.path()).await;
    world.store.limit(QuotaTable { default: limits(1000, 100), ..Default::default() });
    drop(world.select("Fat").await);
    world.store.ledger().commit().unwrap();
    let messages = async || world.account.quota().await.unwrap().unwrap().messages;
    assert_eq!(messages().await, 1);
    world.account.delete(world.id("Fat").await).await.unwrap();
    world.account.create(&MailboxName::parse("Fat").unwrap(), None).await.unwrap();
    assert_eq!(messages().await, 0);
    world.store.ledger().commit().unwrap();
    assert_eq!(messages().await, 0);
}

#[tokio::test]
async fn copies_count_and_moves_do_not() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    Maildir::open_or_create(&maildir).unwrap();
    Maildir::open_or_create(maildir.join(".Sent")).unwrap();
    for name in ["1.a", "2.b", "3.c"] {
        // 5 octets more on the wire.
        fs::write(maildir.join("new").join(name), "1234567890\n".repeat(5)).unwrap();
    }
    let world = World::open(mail.path(), data.path()).await;
    let (mut inbox, sent) = (world.select("INBOX").await, world.id("Sent").await);
    assert_eq!(world.account.quota().await, Ok(None));
    let table = |default| QuotaTable { default, ..Default::default() };
    world.store.limit(table(limits(240, 100)));
    let state = |bytes, messages, limits| Ok(Some(QuotaUse { bytes, messages, limits }));
    assert_eq!(world.account.quota().await, state(180, 3, limits(240, 100)));
    inbox.copy(&one(1), sent).await.unwrap();
    assert_eq!(world.account.quota().await, state(240, 4, limits(240, 100)));
    assert_eq!(inbox.copy(&one(1), sent).await, Err(MailstoreError::OverQuota));
    inbox.move_to(&one(2), sent).await.unwrap();
    assert!(!world.store.has_room("Maildir", 1) && !world.store.has_room("Maildir/.Sent", 1));
    // What is expunged counts no more, at once.
    let deleted = FlagUpdate { mode: FlagUpdateMode::Add, flags: MessageFlags::DELETED, keywords: Vec::new() };
    inbox.store(&one(3), &deleted, None).await.unwrap();
    inbox.expunge(None).await.unwrap();
    inbox.advance(true).await.unwrap();
    assert_eq!(world.account.quota().await, state(180, 3, limits(240, 100)));
    inbox.copy(&one(1), sent).await.unwrap();
    world.store.ledger().commit().unwrap();
    assert_eq!(world.account.quota().await, state(240, 4, limits(240, 100)));
    world.store.limit(table(limits(10_000, 4)));
    assert_eq!(inbox.copy(&one(1), sent).await, Err(MailstoreError::OverQuota));
    // Its own limits come first.
    let by_inbox = HashMap::from([("Maildir".to_owned(), QuotaLimits { bytes: None, messages: Some(5) })]);
    let by_directory = HashMap::from([("other".to_owned(), limits(1, 2))]);
    world.store.limit(QuotaTable { default: limits(1, 1), by_directory, by_inbox });
    inbox.copy(&one(1), sent).await.unwrap();
    assert!(!world.store.has_room("Maildir/.Sent", 1));
    assert!(!world.store.has_room("other/ann/Maildir", 2) && world.store.has_room("other/ann/Maildir", 1));
    let table = world.store.limits_of("other/ann/Maildir/.Sent");
    assert_eq!((table, world.store.limits_of("else/ann/Maildir")), (limits(1, 2), limits(1, 1)));
}
