//! Changes through the traits, on mailboxes in memory.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use posthaste_mailstore::{
    AppendRequest, CopiedMessages, FakeMessage, FakeStore, FlagUpdate, FlagUpdateMode, ListOptions, MailAccount,
    MailboxId, MailboxName, MailboxView, Mailstore, MailstoreError, MessageFlags, MessageSet, ModSeq, NamePattern,
    NumberRange, RowOptions, SelectMode, SpecialUse, StoredFlags, Uid,
};

async fn account(store: &FakeStore) -> Arc<dyn MailAccount> {
    store.account("me").await.unwrap()
}

fn name(text: &str) -> MailboxName {
    MailboxName::parse(text).unwrap()
}

async fn id(account: &dyn MailAccount, text: &str) -> MailboxId {
    account.find(&name(text)).await.unwrap().unwrap()
}

async fn select(account: &dyn MailAccount, text: &str, mode: SelectMode) -> Box<dyn MailboxView> {
    account.select(id(account, text).await, mode).await.unwrap()
}

fn store(messages: usize) -> FakeStore {
    let store = FakeStore::new("me");
    for n in 0..messages {
        store.add("INBOX", FakeMessage::new(format!("Subject: {n}\r\n\r\n")));
    }
    store
}

fn uids(uids: &[u32]) -> MessageSet {
    MessageSet::Uids(uids.iter().map(|&uid| NumberRange { first: uid, last: uid }).collect())
}

fn update(mode: FlagUpdateMode, flags: MessageFlags, keywords: &[&str]) -> FlagUpdate {
    FlagUpdate { mode, flags, keywords: keywords.iter().map(|&keyword| keyword.to_owned()).collect() }
}

/// UIDs with the names of their flags.
async fn rows(view: &dyn MailboxView) -> Vec<(u32, String)> {
    let rows = view.rows(&MessageSet::all(), RowOptions::default()).next().await.unwrap();
    let keywords = view.keywords();
    rows.iter().map(|row| (row.uid.get(), keywords.names(row.flags).collect::<Vec<_>>().join(" "))).collect()
}

fn listed(rows: &[(u32, &str)]) -> Vec<(u32, String)> {
    rows.iter().map(|&(uid, flags)| (uid, flags.to_owned())).collect()
}

#[tokio::test]
async fn flags_are_replaced_added_and_removed() {
    let store = store(3);
    let account = account(&store).await;
    let mut view = select(&*account, "INBOX", SelectMode::Writable).await;
    let seen = update(FlagUpdateMode::Add, MessageFlags::SEEN, &["$Junk"]);
    assert_eq!(view.store(&uids(&[1, 3, 9]), &seen, None).await, Ok(StoredFlags::default()));
    view.advance(false).await.unwrap();
    assert_eq!(rows(&*view).await, listed(&[(1, "\\Seen $Junk"), (2, ""), (3, "\\Seen $Junk")]));
    let gone = update(FlagUpdateMode::Remove, MessageFlags::SEEN, &["$JUNK", "unknown"]);
    view.store(&uids(&[1]), &gone, None).await.unwrap();
    let other = update(FlagUpdateMode::Replace, MessageFlags::FLAGGED, &["later"]);
    view.store(&uids(&[3]), &other, None).await.unwrap();
    let changes = view.advance(false).await.unwrap();
    assert_eq!(changes.flags.iter().map(|changed| changed.before.0 & 1).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(rows(&*view).await, listed(&[(1, ""), (2, ""), (3, "\\Flagged later")]));
    assert_eq!(view.keywords().flag("unknown"), None, "a keyword that is removed is not made");
}

#[tokio::test]
async fn changes_since_a_modseq_are_kept_and_told() {
    let store = store(2);
    let account = account(&store).await;
    let mut view = select(&*account, "INBOX", SelectMode::Writable).await;
    let since = view.highest_modseq();
    store.set_flags("INBOX", Uid::new(2).unwrap(), MessageFlags::DELETED);
    let seen = update(FlagUpdateMode::Add, MessageFlags::SEEN, &[]);
    let stored = view.store(&MessageSet::all(), &seen, Some(since)).await.unwrap();
    assert_eq!(stored, StoredFlags { modified: vec![Uid::new(2).unwrap()], gone: false });
    view.advance(false).await.unwrap();
    assert_eq!(rows(&*view).await, listed(&[(1, "\\Seen"), (2, "\\Deleted")]));
    store.expunge("INBOX", Uid::new(2).unwrap());
    assert!(view.store(&MessageSet::all(), &seen, Some(ModSeq(u64::MAX))).await.unwrap().gone);
}

#[tokio::test]
async fn deleted_messages_are_expunged_also_by_uid() {
    let store = store(4);
    let account = account(&store).await;
    let view = select(&*account, "INBOX", SelectMode::Writable).await;
    let deleted = update(FlagUpdateMode::Add, MessageFlags::DELETED, &[]);
    view.store(&uids(&[1, 2, 4]), &deleted, None).await.unwrap();
    view.expunge(Some(vec![NumberRange { first: 2, last: 3 }])).await.unwrap();
    let status = account.status(view.id()).await.unwrap();
    assert_eq!((status.exists, status.deleted, status.unseen, status.bytes), (3, 2, 3, Some(3 * 14)));
    view.expunge(None).await.unwrap();
    view.remove(&uids(&[3, 4])).await.unwrap();
    assert_eq!(account.status(view.id()).await.unwrap().exists, 0);
}

#[tokio::test]
async fn a_view_may_be_read_only_or_leave_recent_alone() {
    let store = store(1);
    let account = account(&store).await;
    let view = select(&*account, "INBOX", SelectMode::ReadOnly).await;
    assert!(view.read_only());
    let seen = update(FlagUpdateMode::Add, MessageFlags::SEEN, &[]);
    assert_eq!(view.store(&MessageSet::all(), &seen, None).await, Err(MailstoreError::ReadOnly));
    assert_eq!(view.expunge(None).await, Err(MailstoreError::ReadOnly));
    assert_eq!(view.remove(&MessageSet::all()).await, Err(MailstoreError::ReadOnly));
    assert_eq!(view.move_to(&MessageSet::all(), view.id()).await, Err(MailstoreError::ReadOnly));
    assert!(view.copy(&MessageSet::all(), view.id()).await.unwrap().is_some());
    let view = select(&*account, "INBOX", SelectMode::KeepsRecent).await;
    assert!(!view.read_only());
    assert_eq!(account.status(view.id()).await.unwrap().recent, 2);
    store.refuse_changes(Some(MailstoreError::ReadOnly));
    assert!(view.read_only());
}

#[tokio::test]
async fn copies_keep_flags_and_dates_and_moves_leave_nothing() {
    let store = store(3);
    store.create("Sent");
    let account = account(&store).await;
    let view = select(&*account, "INBOX", SelectMode::Writable).await;
    let junk = update(FlagUpdateMode::Add, MessageFlags::SEEN, &["other", "$Junk"]);
    view.store(&uids(&[3]), &junk, None).await.unwrap();
    view.store(&uids(&[3]), &update(FlagUpdateMode::Remove, MessageFlags::NONE, &["other"]), None).await.unwrap();
    let sent = id(&*account, "Sent").await;
    let uid = |uid| Uid::new(uid).unwrap();
    let copied = view.copy(&uids(&[1, 3, 8]), sent).await.unwrap().unwrap();
    let uid_validity = account.status(sent).await.unwrap().uid_validity;
    assert_eq!(copied, CopiedMessages { uid_validity, from: vec![uid(1), uid(3)], to: vec![uid(1), uid(2)] });
    let moved = view.move_to(&uids(&[2]), sent).await.unwrap().unwrap();
    assert_eq!((moved.from, moved.to), (vec![uid(2)], vec![uid(3)]));
    assert_eq!(view.move_to(&uids(&[2]), sent).await, Ok(None));
    assert_eq!(view.copy(&uids(&[1]), MailboxId(99)).await, Err(MailstoreError::NoMailbox));
    assert_eq!(account.status(view.id()).await.unwrap().exists, 2);
    let there = select(&*account, "Sent", SelectMode::Writable).await;
    assert_eq!(rows(&*there).await, listed(&[(1, ""), (2, "\\Seen $Junk"), (3, "")]));
}

#[tokio::test]
async fn an_appended_message_is_whole_or_not_there() {
    let store = store(0);
    let account = account(&store).await;
    let inbox = id(&*account, "INBOX").await;
    let request = AppendRequest {
        flags: MessageFlags::DRAFT,
        keywords: vec!["$MDNSent".into()],
        internal_date: Some(UNIX_EPOCH + Duration::from_secs(77)),
        octets: 10,
    };
    let mut writer = account.append(inbox, request.clone()).await.unwrap();
    writer.write("Subject: ".into()).await.unwrap();
    drop(writer);
    assert_eq!(account.status(inbox).await.unwrap().exists, 0);
    let mut writer = account.append(inbox, request.clone()).await.unwrap();
    writer.write("\r\n".into()).await.unwrap();
    writer.write("12345678".into()).await.unwrap();
    let appended = writer.finish().await.unwrap();
    let view = select(&*account, "INBOX", SelectMode::Writable).await;
    assert_eq!((appended.uid_validity, appended.uid), (view.uid_validity(), Uid::new(1).unwrap()));
    assert_eq!(rows(&*view).await, listed(&[(1, "\\Draft $MDNSent")]));
    assert_eq!(&*view.body(appended.uid).await.unwrap().read(0, 99).await.unwrap(), b"\r\n12345678");
    let row = view.rows(&MessageSet::all(), RowOptions { sizes: true }).next().await.unwrap()[0];
    assert_eq!((row.size, row.internal_date), (Some(10), UNIX_EPOCH + Duration::from_secs(77)));
    let mut writer = account.append(inbox, request.clone()).await.unwrap();
    writer.write("one".into()).await.unwrap();
    writer.next(request.clone()).await.unwrap();
    writer.write("two".into()).await.unwrap();
    let both = writer.finish().await.unwrap();
    assert_eq!((both.uid.get(), both.count, account.status(inbox).await.unwrap().exists), (2, 2, 3));
    store.refuse_changes(Some(MailstoreError::NoSpace));
    assert!(matches!(account.append(inbox, request).await.map(drop), Err(MailstoreError::NoSpace)));
}

async fn names(account: &dyn MailAccount, subscribed: bool) -> String {
    let patterns = [NamePattern::new("*")];
    let mut listing = account.list(&patterns, ListOptions { subscribed, ..ListOptions::default() }).await.unwrap();
    let mut names = Vec::new();
    while let Some(mailbox) = listing.next().await.unwrap() {
        names.push(format!("{}{}", mailbox.name, if mailbox.id.is_none() { "?" } else { "" }));
    }
    names.join(" ")
}

#[tokio::test]
async fn mailboxes_are_made_renamed_and_removed() {
    let store = store(2);
    let account = account(&store).await;
    let made = account.create(&name("a/b/c"), Some(SpecialUse::Junk)).await.unwrap();
    assert_eq!(names(&*account, false).await, "INBOX a a/b a/b/c");
    assert_eq!(account.create(&name("a/b"), None).await, Err(MailstoreError::Exists));
    assert_eq!(account.create(&name("x"), Some(SpecialUse::Junk)).await, Err(MailstoreError::UseTaken));
    let a = id(&*account, "a").await;
    assert!(matches!(account.rename(a, &name("a/d")).await, Err(MailstoreError::Cannot(_))));
    assert_eq!(account.rename(a, &name("a/b")).await, Err(MailstoreError::Exists));
    account.rename(a, &name("z/y")).await.unwrap();
    assert_eq!(names(&*account, false).await, "INBOX z z/y z/y/b z/y/b/c");
    assert_eq!(account.find(&name("z/y/b/c")).await.unwrap(), Some(made));
    account.delete(id(&*account, "z/y/b").await).await.unwrap();
    assert_eq!(names(&*account, false).await, "INBOX z z/y z/y/b? z/y/b/c");
    assert_eq!(account.delete(MailboxId(99)).await, Err(MailstoreError::NoMailbox));
    let inbox = id(&*account, "INBOX").await;
    assert!(matches!(account.delete(inbox).await, Err(MailstoreError::Cannot(_))));
    account.rename(inbox, &name("old")).await.unwrap();
    let exists = async |text| account.status(id(&*account, text).await).await.unwrap().exists;
    assert_eq!((exists("INBOX").await, exists("old").await), (0, 2));
}

#[tokio::test]
async fn subscriptions_belong_to_names() {
    let store = store(0);
    store.create("Sent");
    let account = account(&store).await;
    account.subscribe(&name("nowhere/x"), true).await.unwrap();
    account.subscribe(&name("Sent"), false).await.unwrap();
    assert_eq!(names(&*account, true).await, "INBOX nowhere/x?");
    assert_eq!(names(&*account, false).await, "INBOX Sent");
    let recursive = ListOptions { subscribed: true, recursive: true, status: false };
    let patterns = [NamePattern::new("%")];
    let mut listing = account.list(&patterns, recursive).await.unwrap();
    let mut above = Vec::new();
    while let Some(mailbox) = listing.next().await.unwrap() {
        above.push((mailbox.name.to_string(), mailbox.subscribed, mailbox.subscribed_below));
    }
    assert_eq!(above, [("INBOX".to_owned(), true, false), ("nowhere".to_owned(), false, true)]);
    account.subscribe(&name("nowhere/x"), false).await.unwrap();
    assert_eq!(names(&*account, true).await, "INBOX");
}
