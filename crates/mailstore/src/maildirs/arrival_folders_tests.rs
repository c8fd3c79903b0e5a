//! Mail that is accepted for a folder.

use super::*;
use crate::entry::MailboxFields;

impl World {
    async fn folder_uids(&self, name: &str) -> Vec<u32> {
        let account = self.logins.account("me").await.unwrap();
        let id = account.find(&MailboxName::parse(name).unwrap()).await.unwrap().unwrap();
        let view = account.select(id, SelectMode::ReadOnly).await.unwrap();
        let rows = view.rows(&crate::MessageSet::all(), crate::RowOptions::default()).next().await.unwrap();
        rows.iter().map(|row| row.uid.get()).collect()
    }
}

#[tokio::test]
async fn mail_for_a_folder_has_its_uid_in_its_batch() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in ["", ".Lists", ".Other"] {
        Maildir::open_or_create(dir.path().join(INBOX).join(folder)).unwrap();
    }
    let world = open(dir.path(), data.path());
    let accept = |folder: &str| {
        let (mail, intake, list) = (mail(&format!("{INBOX}/.{folder}")), world.intake.clone(), world.list.clone());
        async move { intake.accept(&list, &mail, body("one")).await.map(|receipt| receipt.entries.len()) }
    };
    assert_eq!(accept("Lists").await.unwrap(), 2);
    assert_eq!(world.folder_uids("Lists").await, [1]);
    // A folder that is renamed has no mail for its old path any more, and one that is deleted has none at all.
    let account = world.logins.account("me").await.unwrap();
    for (folder, to) in [("Lists", Some("New")), ("Other", None)] {
        assert_eq!(accept(folder).await.unwrap(), 2);
        let id = account.find(&MailboxName::parse(folder).unwrap()).await.unwrap().unwrap();
        // Delivery has made its files, as far as anybody knows.
        let published = world.spool.stats().published;
        let below = Lsn::new(published.get() + 1);
        world.spool.advance(world.local, published, None, Released { below, also: Vec::new() });
        match to {
            Some(to) => account.rename(id, &MailboxName::parse(to).unwrap()).await.unwrap(),
            None => account.delete(id).await.unwrap(),
        }
        // Its recipient was accepted before. Delivery would make the directory again.
        let refused = accept(folder).await;
        assert!(matches!(&refused, Err(IntakeError::NotTaken(why)) if why.code == 451), "{folder}: {refused:?}");
    }
    assert_eq!(accept("New").await.unwrap(), 2);
    // One that is made anew takes mail.
    account.create(&MailboxName::parse("Lists").unwrap(), None).await.unwrap();
    assert!(accept("Lists").await.is_ok());
    // Nothing of it holds a mailbox for longer than its batch.
    let id = account.find(&MailboxName::parse("New").unwrap()).await.unwrap().unwrap();
    assert!(world.store.loaded.find(id.0).unwrap().core().adding.try_write().is_ok());
}

/// A folder that is not there is not made: the mail of a typing mistake is found where delivery puts it.
#[tokio::test]
async fn mail_for_a_missing_folder_has_no_uid_yet() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = open(dir.path(), data.path());
    let receipt = world.intake.accept(&world.list, &mail("me/Maildir/.Junk"), body("one")).await.unwrap();
    assert_eq!(receipt.entries.len(), 1);
    assert!(world.store.ledger().accounts().unwrap().is_empty());
}

/// A kill came after the batch of a DELETE and of a RENAME, before their directories went. Mail that was in them would be
/// removed, or come back under a name that somebody else may make.
#[tokio::test]
async fn mail_is_kept_from_folders_that_a_retry_removes_or_renames() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in ["", ".Gone", ".Old"] {
        Maildir::open_or_create(dir.path().join(INBOX).join(folder)).unwrap();
    }
    let world = open(dir.path(), data.path());
    let (gone, old) = (world.select_named("Gone").await.id().0, world.select_named("Old").await.id().0);
    let ledger = world.store.ledger();
    let head = ledger.head(old).unwrap().unwrap();
    let (account, uid_validity) = (head.account, head.uid_validity);
    let (name, directory) = ("New".into(), format!("{INBOX}/.New").into());
    let fields = MailboxFields { id: old, account, uid_validity, name, directory, ..MailboxFields::default() };
    ledger.append(&[MailEntry::MailboxGone { id: gone }, MailEntry::Mailbox(fields)]).unwrap();
    drop(world);
    let world = open(dir.path(), data.path());
    let arrivals = MailArrivals::new(Arc::clone(&world.store));
    let paths = [".Gone", ".Old"].map(|folder| format!("{INBOX}/{folder}"));
    let are_leaving = || paths.each_ref().map(|path| arrivals.is_leaving(path));
    assert_eq!(are_leaving(), [true, true]);
    for is_done in [false, true] {
        for path in &paths {
            assert_eq!(dir.path().join(path).exists(), !is_done, "{path}");
            let mail = mail(path);
            // Before its directory is looked at, and after that.
            let mut reserved = Reserved::default();
            let taken = arrivals.add_entries(&mail, BodyFacts { len: 1, large: None }, &mut reserved);
            assert_eq!(taken.err().map(|why| why.code), Some(451), "{path}");
        }
        world.select_named("New").await;
    }
    assert_eq!(are_leaving(), [false, false]);
    assert!(dir.path().join(INBOX).join(".New").exists());
    // Others make them anew.
    world.logins.account("me").await.unwrap().create(&MailboxName::parse("Gone").unwrap(), None).await.unwrap();
    assert!(world.intake.accept(&world.list, &mail(&paths[0]), body("one")).await.is_ok());
}

/// RENAME waits up to 10 s for delivery. Mail that was accepted without a UID meanwhile made the old directory again.
#[tokio::test]
async fn mail_for_a_folder_that_is_being_renamed_is_deferred() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in ["", ".Lists"] {
        Maildir::open_or_create(dir.path().join(INBOX).join(folder)).unwrap();
    }
    let world = open(dir.path(), data.path());
    let mail = mail(&format!("{INBOX}/.Lists"));
    let accept = || world.intake.accept(&world.list, &mail, body("one"));
    assert_eq!(accept().await.unwrap().entries.len(), 2);
    let id = world.select_named("Lists").await.id();
    let adding = Arc::clone(&world.store.loaded.find(id.0).unwrap().core().adding);
    let renaming = adding.write_owned().await;
    let refused = accept().await;
    assert!(matches!(&refused, Err(IntakeError::NotTaken(why)) if why.code == 451), "{refused:?}");
    drop(renaming);
    assert_eq!(accept().await.unwrap().entries.len(), 2);
}
