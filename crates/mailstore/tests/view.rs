//! Changes that a view tells, and when, on mailboxes in memory.

use posthaste_mailstore::{
    ChangedFlags, FakeMessage, FakeStore, KeywordTable, ListOptions, MailAccount, MailboxName, MailboxView, Mailstore,
    MailstoreError, MessageFlags, MessageSet, ModSeq, NamePattern, NumberRange, RowOptions, SelectMode, Uid,
    ViewChanges,
};
use proptest::prelude::*;
use std::sync::Arc;

async fn account(store: &FakeStore) -> Arc<dyn MailAccount> {
    store.account("me").await.unwrap()
}

async fn select(store: &FakeStore, name: &str, mode: SelectMode) -> Box<dyn MailboxView> {
    let account = account(store).await;
    let id = account.find(&MailboxName::parse(name).unwrap()).await.unwrap().unwrap();
    account.select(id, mode).await.unwrap()
}

fn store(messages: usize) -> (FakeStore, Vec<Uid>) {
    let store = FakeStore::new("me");
    let uids = (0..messages).map(|n| store.add("INBOX", FakeMessage::new(format!("Subject: {n}\r\n\r\n{n}\r\n"))));
    let uids = uids.collect();
    (store, uids)
}

/// Numbers and UIDs.
type Told = Vec<(u32, u32)>;

fn told(changes: &ViewChanges) -> (Told, Option<u32>, Told) {
    let expunged = changes.expunged.iter().map(|gone| (gone.number, gone.uid.get())).collect();
    (
        expunged,
        changes.exists,
        changes.flags.iter().map(|changed| (changed.row.number, changed.row.uid.get())).collect(),
    )
}

#[tokio::test]
async fn expunges_wait_until_they_may_be_told() {
    let (store, uids) = store(4);
    let mut view = select(&store, "INBOX", SelectMode::Writable).await;
    let before = view.highest_modseq();
    store.expunge("INBOX", uids[0]);
    store.expunge("INBOX", uids[2]);
    store.set_flags("INBOX", uids[3], MessageFlags::SEEN);
    store.add("INBOX", FakeMessage::new("\r\nnew"));
    view.changed().await;
    assert_eq!(told(&view.advance(false).await.unwrap()), (vec![], Some(5), vec![(4, 4)]));
    assert_eq!(&*view.body(uids[0]).await.unwrap().read(0, 7).await.unwrap(), b"Subject", "a ghost is readable");
    // A client that saved a higher one would never hear of the expunges (RFC 7162 section 3.2.5).
    assert_eq!(view.highest_modseq(), before);
    // It has something to say as long as a ghost is there.
    view.changed().await;
    assert_eq!(told(&view.advance(true).await.unwrap()), (vec![(3, 3), (1, 1)], None, vec![]));
    assert!(view.highest_modseq() > before);
    assert!(view.advance(true).await.unwrap().is_empty());
    assert!(matches!(view.header(uids[0]).await, Err(MailstoreError::Gone)));
    let rows = view.rows(&MessageSet::all(), RowOptions { sizes: true }).next().await.unwrap();
    let rows: Vec<_> = rows.iter().map(|row| (row.number, row.uid.get(), row.size)).collect();
    assert_eq!(rows, [(1, 2, Some(17)), (2, 4, Some(17)), (3, 5, Some(5))]);
}

#[tokio::test]
async fn an_expunge_and_an_arrival_are_both_told() {
    let (store, uids) = store(2);
    let mut view = select(&store, "INBOX", SelectMode::Writable).await;
    store.expunge("INBOX", uids[1]);
    store.add("INBOX", FakeMessage::new("\r\n"));
    assert_eq!(told(&view.advance(true).await.unwrap()), (vec![(2, 2)], Some(2), vec![]));
}

#[tokio::test]
async fn recent_messages_belong_to_one_session() {
    let (store, _) = store(2);
    let peek = select(&store, "INBOX", SelectMode::ReadOnly).await;
    let mut first = select(&store, "INBOX", SelectMode::Writable).await;
    let mut second = select(&store, "INBOX", SelectMode::Writable).await;
    assert_eq!((peek.recent(), first.recent(), second.recent()), (2, 2, 0));
    store.add("INBOX", FakeMessage::new("\r\n"));
    assert_eq!(second.advance(true).await.unwrap().recent, Some(1));
    assert_eq!(first.advance(true).await.unwrap().recent, None);
    let rows = second.rows(&MessageSet::all(), RowOptions::default()).next().await.unwrap();
    assert_eq!(rows.iter().map(|row| row.recent).collect::<Vec<_>>(), [false, false, true]);
}

#[tokio::test]
async fn keywords_and_removal_reach_a_view() {
    let (store, _) = store(1);
    let mut view = select(&store, "INBOX", SelectMode::Writable).await;
    let keywords = KeywordTable::new(vec![(8, "$Junk".into())]);
    store.set_keywords("INBOX", keywords.clone());
    assert_eq!(view.advance(false).await.unwrap().keywords, Some(keywords));
    store.remove("INBOX");
    view.changed().await;
    assert_eq!(view.advance(false).await, Err(MailstoreError::NoMailbox));
}

#[tokio::test]
async fn lists_have_the_names_above_and_the_numbers() {
    let (store, _) = store(3);
    for name in ["a/b/c", "Trash", "inbox/x", "a/z"] {
        store.create(name);
    }
    let account = account(&store).await;
    let list = async |pattern: &str, options| {
        let patterns = [NamePattern::new(pattern)];
        let mut listing = account.list(&patterns, options).await.unwrap();
        let mut names = Vec::new();
        while let Some(mailbox) = listing.next().await.unwrap() {
            let exists = mailbox.status.map(|status| status.exists);
            names.push((mailbox.name.to_string(), mailbox.id.is_some(), mailbox.has_children, exists));
        }
        names
    };
    let all = list("%", ListOptions { status: true, ..ListOptions::default() }).await;
    let expected = [("INBOX", true, true, Some(3)), ("Trash", true, false, Some(0)), ("a", false, true, None)];
    assert_eq!(all, expected.map(|(name, is, children, exists)| (name.to_owned(), is, children, exists)));
    let below: Vec<_> = list("a/*", ListOptions::default()).await.into_iter().map(|(name, ..)| name).collect();
    assert_eq!(below, ["a/b", "a/b/c", "a/z"]);
    let subscribed = list("a*", ListOptions { subscribed: true, ..ListOptions::default() }).await;
    assert_eq!(subscribed.len(), 2);
    assert!(matches!(store.account("you").await.map(drop), Err(MailstoreError::NoMailbox)));
}

#[tokio::test]
async fn a_large_set_comes_in_steps_and_bodies_in_pieces() {
    let (store, _) = store(600);
    let long = store.add("INBOX", FakeMessage::new(vec![b'x'; 100_000]));
    let broken = store.add("INBOX", FakeMessage { octets: None, ..FakeMessage::new("") });
    let view = select(&store, "INBOX", SelectMode::Writable).await;
    let mut rows = view.rows(&MessageSet::all(), RowOptions { sizes: true });
    let mut steps = Vec::new();
    loop {
        let step = rows.next().await.unwrap();
        if step.is_empty() {
            break;
        }
        steps.push(step.len());
    }
    assert_eq!(steps, [256, 256, 90]);
    let body = view.body(long).await.unwrap();
    assert_eq!(body.read(0, u64::MAX).await.unwrap().len(), 65_536);
    assert_eq!(body.read(65_536, u64::MAX).await.unwrap().len(), 34_464);
    assert!(body.read(100_000, u64::MAX).await.unwrap().is_empty() && body.read(9, 3).await.unwrap().is_empty());
    assert!(matches!(view.body(broken).await.map(drop), Err(MailstoreError::Damaged(_))));
}

/// An act of another session, or an answer to the client.
#[derive(Debug, Clone)]
enum Step {
    Add,
    Flags(usize, u8),
    Expunge(usize),
    Advance(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Add),
        2 => (any::<usize>(), 0u8..32).prop_map(|(at, flags)| Step::Flags(at, flags)),
        2 => any::<usize>().prop_map(Step::Expunge),
        3 => any::<bool>().prop_map(Step::Advance),
    ]
}

async fn shown(view: &dyn MailboxView) -> Vec<(u32, MessageFlags, ModSeq)> {
    let rows = view.rows(&MessageSet::all(), RowOptions::default()).next().await.unwrap();
    rows.iter().map(|row| (row.uid.get(), row.flags, row.modseq)).collect()
}

/// A client's own list, made of what it is told.
async fn hear(view: &mut dyn MailboxView, may_expunge: bool, known: &mut Vec<(u32, MessageFlags, ModSeq)>) {
    let changes = view.advance(may_expunge).await.unwrap();
    assert!(may_expunge || changes.expunged.is_empty());
    for gone in changes.expunged {
        assert_eq!(known.remove(gone.number as usize - 1).0, gone.uid.get());
    }
    if let Some(exists) = changes.exists {
        let first = known.len() as u32 + 1;
        let new = MessageSet::Numbers(vec![NumberRange { first, last: exists }]);
        let new = view.rows(&new, RowOptions::default()).next().await.unwrap();
        known.extend(new.iter().map(|row| (row.uid.get(), row.flags, row.modseq)));
    }
    for ChangedFlags { row, before } in changes.flags {
        let known = &mut known[row.number as usize - 1];
        assert_eq!((known.0, known.1), (row.uid.get(), before));
        assert!(known.2 < row.modseq);
        (known.1, known.2) = (row.flags, row.modseq);
    }
    assert_eq!(known.len(), view.exists() as usize);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_that_listens_knows_the_mailbox(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (store, mut uids) = store(3);
            let mut now: Vec<(Uid, MessageFlags)> = uids.drain(..).map(|uid| (uid, MessageFlags::NONE)).collect();
            let mut view = select(&store, "INBOX", SelectMode::Writable).await;
            let mut known = shown(&*view).await;
            for step in steps {
                match step {
                    Step::Add => now.push((store.add("INBOX", FakeMessage::new("\r\n")), MessageFlags::NONE)),
                    Step::Flags(at, flags) if !now.is_empty() => {
                        let at = at % now.len();
                        now[at].1 = MessageFlags(flags.into());
                        store.set_flags("INBOX", now[at].0, now[at].1);
                    }
                    Step::Expunge(at) if !now.is_empty() => store.expunge("INBOX", now.remove(at % now.len()).0),
                    Step::Advance(may_expunge) => hear(&mut *view, may_expunge, &mut known).await,
                    _ => {}
                }
            }
            hear(&mut *view, true, &mut known).await;
            let uids_and_flags = known.iter().map(|(uid, flags, _)| (*uid, *flags));
            assert!(uids_and_flags.eq(now.iter().map(|(uid, flags)| (uid.get(), *flags))));
            assert_eq!(known, shown(&*view).await, "each MODSEQ was told");
        });
    }
}
