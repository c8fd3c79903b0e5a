//! Maildirs that another server kept before, and tables that are lost.

use super::*;
use crate::entry::MailEntry;
use crate::row::UniqueIds;

const UID_LIST: &str = "3 V77 N20 Gabc\n3 :a\n4 W9 :b,S=1\n9 :gone\n12 :c\n";

/// A Maildir of Dovecot: four files, three of which are in its list of UIDs.
pub(super) fn dovecots(mail: &Path) {
    Maildir::open_or_create(mail.join("Maildir")).unwrap();
    for name in ["cur/c:2,Sa", "cur/a:2,", "new/b,S=1", "new/0"] {
        fs::write(mail.join("Maildir").join(name), "x").unwrap();
    }
    fs::write(mail.join("Maildir/dovecot-uidlist"), UID_LIST).unwrap();
    fs::write(mail.join("Maildir/dovecot-keywords"), "0 $Junk\n").unwrap();
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

#[tokio::test]
async fn unique_ids_of_pop3_are_taken_over_and_stay() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dovecots(mail.path());
    let list = mail.path().join("Maildir/dovecot-uidlist");
    // One that is no unique-id, one that is taken, and one of a message that is gone.
    let lines = format!("3 Pold-3 :a\n4 W9 P{} :b,S=1\n9 Pgone :gone\n12 Pold-3 :c\n13 Pold-13 :0\n", "x".repeat(71));
    fs::write(&list, format!("3 V77 N20 Gabc\n{lines}")).unwrap();
    let expected: UniqueIds = [(3, "old-3".into()), (13, "old-13".into())].into();
    for round in 0..3 {
        let mailbox = open_mailbox(mail.path(), data.path());
        let messages = mailbox.look_patiently().await.unwrap();
        assert_eq!(uids(&messages), [3, 4, 12, 13]);
        assert_eq!(*mailbox.unique_ids().await.unwrap(), expected);
        mailbox.unload();
        assert_eq!(*mailbox.unique_ids().await.unwrap(), expected);
        match round {
            // The list is read once.
            0 => fs::remove_file(&list).unwrap(),
            _ => mailbox.core().shared.ledger.commit().unwrap(),
        }
    }
    let mailbox = open_mailbox(mail.path(), data.path());
    mailbox.look_patiently().await.unwrap();
    fs::remove_file(mail.path().join("Maildir/cur/a:2,")).unwrap();
    settle_in(mail.path(), 1);
    mailbox.look_patiently().await.unwrap();
    mailbox.unload();
    assert_eq!(*mailbox.unique_ids().await.unwrap(), UniqueIds::from([(13, "old-13".into())]));
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
