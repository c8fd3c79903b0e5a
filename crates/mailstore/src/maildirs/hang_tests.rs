//! Commands and logins while a directory hangs (decision 46).

use std::fs;
use std::sync::mpsc::channel;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{advance, pause, resume};

use super::*;
use crate::error::MailstoreError;
use crate::flags::MessageFlags;
use crate::maildirs::account::{LISTINGS_MAX, MaildirAccount};
use crate::maildirs::file_work::turn;
use crate::row::MessageSet;
use crate::store::MailAccount;

/// Something that a thread holds, as on a disk that does not answer, until it is dropped.
struct Hung {
    hangs: Option<std::sync::mpsc::Sender<()>>,
    disk: Option<std::thread::JoinHandle<()>>,
}

impl Hung {
    /// `hang` calls its argument, which returns when the disk answers, while it holds what hangs.
    fn on(hang: impl FnOnce(&dyn Fn()) + Send + 'static) -> Self {
        let ((held, is_held), (hangs, ended)) = (channel(), channel::<()>());
        let disk = std::thread::spawn(move || {
            hang(&|| {
                held.send(()).unwrap();
                let _ = ended.recv();
            });
        });
        is_held.recv().unwrap();
        Self { hangs: Some(hangs), disk: Some(disk) }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        drop(self.hangs.take());
        self.disk.take().into_iter().for_each(|disk| disk.join().unwrap());
    }
}

async fn append(account: Arc<dyn MailAccount>, to: crate::MailboxId, count: usize) -> Result<(), MailstoreError> {
    let mut writer = account.append(to, request(MessageFlags::NONE, &[], 5)).await?;
    for at in 0..count {
        if at > 0 {
            writer.next(request(MessageFlags::NONE, &[], 5)).await?;
        }
        writer.write(Bytes::from_static(b"Subject: x\r\n\r\nx\r\n")).await?;
    }
    writer.finish().await.map(drop)
}

#[tokio::test]
async fn copies_and_appends_to_a_mailbox_that_hangs_are_withdrawn() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = dir.path().join(INBOX);
    for folder in ["", ".Hung", ".Sent"] {
        Maildir::open_or_create(maildir.join(folder)).unwrap();
        fs::write(maildir.join(folder).join("new/1.a"), "1\n").unwrap();
    }
    let world = open(dir.path(), data.path());
    drop(world.begin(request(MessageFlags::NONE, &[], 5)).await);
    let account = world.logins.account("me").await.unwrap();
    let mut views = Vec::new();
    for name in ["INBOX", "Hung", "Sent"] {
        let id = account.find(&MailboxName::parse(name).unwrap()).await.unwrap().unwrap();
        views.push(Arc::<dyn MailboxView>::from(account.select(id, SelectMode::Writable).await.unwrap()));
    }
    let (to_hung, to_sent) = (views[1].id(), views[2].id());
    let core = Arc::clone(world.store.loaded.find(to_hung.0).unwrap().core());
    let hung = Hung::on(move |wait| {
        let _one = lock(&core.changing);
        wait();
    });
    pause();
    let mut asked = JoinSet::new();
    for at in 0..12 {
        let (from, to) = if at % 2 == 0 { (&views[0], to_hung) } else { (&views[1], to_sent) };
        let from = Arc::clone(from);
        asked.spawn(async move {
            let all = MessageSet::all();
            if at % 3 == 0 { from.move_to(&all, to).await.map(drop) } else { from.copy(&all, to).await.map(drop) }
        });
        asked.spawn(append(Arc::clone(&account), to_hung, 1 + at % 3));
    }
    // Other mailboxes go on.
    assert!(views[0].copy(&MessageSet::all(), to_sent).await.unwrap().is_some());
    append(Arc::clone(&account), to_sent, 2).await.unwrap();
    while !asked.is_empty() {
        advance(Duration::from_secs(60)).await;
        while let Some(answer) = asked.try_join_next() {
            let answer = answer.unwrap();
            assert!(matches!(&answer, Err(MailstoreError::Unavailable(_))), "{answer:?}");
        }
    }
    resume();
    drop(hung);
    // Threads that were withdrawn make no batch, and leave no files.
    let files = || fs::read_dir(maildir.join(".Hung/tmp")).unwrap().count();
    while files() > 0 {
        yield_now().await;
    }
    let found = async |id| account.status(id).await.unwrap().exists;
    assert_eq!((found(views[0].id()).await, found(to_hung).await, found(to_sent).await), (1, 1, 4));
}

/// Each login once waited on a thread of its own, without an end: when none was left, nobody could log in.
#[test]
fn an_account_that_hangs_holds_up_no_login_of_another() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(LISTINGS_MAX + 2).build().unwrap();
    runtime.block_on(async {
        let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let world = open(dir.path(), data.path());
        let find = |login: &str| MailboxPath::parse(&format!("{login}/Maildir")).ok();
        let logins = Arc::new(MaildirLogins::new(Arc::clone(&world.store), Box::new(find)));
        let of = |login: &str| world.store.account(&find(login).unwrap());
        let hang = |login: &str, holds: fn(&MaildirAccount, &dyn Fn())| {
            let account = of(login);
            Hung::on(move |wait| holds(&account, wait))
        };
        let hung = hang("hung", |account, wait| {
            let _known = lock(&account.mailboxes);
            wait();
        });
        // A RENAME there does not end, and its mailboxes are served all the same.
        let renaming = hang("renaming", |account, wait| {
            let _one = lock(&account.folders);
            wait();
        });
        let mut asked = JoinSet::new();
        for _ in 0..3 * LISTINGS_MAX {
            let logins = Arc::clone(&logins);
            asked.spawn(async move { logins.account("hung").await.map(drop) });
            yield_now().await;
        }
        for login in ["me", "renaming"] {
            let logged_in = tokio::time::timeout(Duration::from_secs(60), logins.account(login)).await;
            assert!(logged_in.is_ok_and(|account| account.is_ok()), "{login}");
        }
        pause();
        while !asked.is_empty() {
            advance(Duration::from_secs(60)).await;
            while let Some(answer) = asked.try_join_next() {
                let answer = answer.unwrap();
                assert!(matches!(&answer, Err(MailstoreError::Unavailable(_))), "{answer:?}");
            }
        }
        resume();
        drop((hung, renaming));
        assert!(logins.account("hung").await.is_ok());
    });
}

#[tokio::test]
async fn names_of_an_account_that_hangs_are_not_changed_later() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in ["", ".Gone", ".Old"] {
        Maildir::open_or_create(dir.path().join(INBOX).join(folder)).unwrap();
    }
    let world = open(dir.path(), data.path());
    let account = world.logins.account("me").await.unwrap();
    let (gone, old) = (world.select_named("Gone").await.id(), world.select_named("Old").await.id());
    let name = |name: &str| MailboxName::parse(name).unwrap();
    let names = async || {
        let mut found = Vec::new();
        for each in ["Gone", "New", "Old"] {
            found.extend(account.find(&name(each)).await.unwrap().map(|_| each));
        }
        found
    };
    let of_account = world.store.account(&MailboxPath::parse(INBOX).unwrap());
    for number in 0..3 {
        let held = Arc::clone(&of_account);
        let core = [None, Some(gone), Some(old)][number];
        let core = core.map(|id| Arc::clone(world.store.loaded.find(id.0).unwrap().core()));
        let adding = core.as_ref().map(|core| Arc::clone(&core.adding));
        let hung = Hung::on(move |wait| match core {
            Some(core) => {
                let _one = lock(&core.changing);
                wait();
            }
            None => {
                let _one = lock(&held.folders);
                wait();
            }
        });
        pause();
        let (account, new) = (Arc::clone(&account), name("New"));
        let asked = tokio::spawn(async move {
            match number {
                0 => account.create(&new, None).await.map(drop),
                1 => account.delete(gone).await,
                _ => account.rename(old, &new).await,
            }
        });
        // Its thread has come to the lock.
        while adding.as_ref().is_some_and(|adding| adding.try_read().is_ok()) {
            yield_now().await;
        }
        for _ in 0..1000 {
            advance(Duration::from_secs(1)).await;
        }
        assert!(asked.is_finished(), "{number}");
        resume();
        assert!(matches!(asked.await.unwrap(), Err(MailstoreError::Unavailable(_))), "{number}");
        drop(hung);
        // Its thread ends.
        drop(turn(&of_account.renaming).await);
        assert_eq!(names().await, ["Gone", "Old"], "{number}");
        assert!(!dir.path().join(INBOX).join(".New").exists(), "{number}");
    }
    account.delete(gone).await.unwrap();
    account.rename(old, &name("New")).await.unwrap();
    assert_eq!(names().await, ["New"]);
}

/// The session has its OK, and the directory has its old name. Mail that was added then came after the rename, and made
/// the old directory again.
#[tokio::test]
async fn mail_waits_for_the_directory_of_an_answered_rename() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (inbox, folder) = (dir.path().join(INBOX), dir.path().join(INBOX).join(".Old"));
    Maildir::open_or_create(&inbox).unwrap();
    Maildir::open_or_create(&folder).unwrap();
    let world = Arc::new(open(dir.path(), data.path()));
    drop(world.begin(request(MessageFlags::NONE, &[], 5)).await);
    let account = world.logins.account("me").await.unwrap();
    let id = world.select_named("Old").await.id();
    let core = Arc::clone(world.store.loaded.find(id.0).unwrap().core());
    let accept = async |folder: &str| {
        let mail = mail(&format!("{INBOX}/{folder}"));
        world.intake.accept(&world.list, &mail, body("one")).await
    };
    let receipt = accept(".Old").await.unwrap();
    assert_eq!(receipt.entries.len(), 2);
    // The new name is taken, and whether the mailbox has moved there cannot be found out.
    fs::write(inbox.join(".New"), "no directory").unwrap();
    let hung = Arc::<Mutex<Option<Hung>>>::default();
    let (delivery, hangs, path) = (Arc::clone(&world), Arc::clone(&hung), folder.clone());
    // RENAME asks for the file last before its batch. Then it needs the path.
    *lock(&world.when_asked) = Some(Box::new(move || {
        delivery.deliver_to(&path, &receipt, "one");
        delivery.release(&[&receipt]);
        *lock(&hangs) = Some(Hung::on(move |wait| {
            let _path = lock(&core.path);
            wait();
        }));
    }));
    pause();
    let (renaming, new) = (Arc::clone(&account), MailboxName::parse("New").unwrap());
    let asked = tokio::spawn(async move { renaming.rename(id, &new).await });
    while !world.store.shared.moved_paths.is_leaving(&format!("{INBOX}/.Old")) {
        yield_now().await;
    }
    while !asked.is_finished() {
        advance(Duration::from_secs(60)).await;
    }
    resume();
    assert_eq!(asked.await.unwrap(), Ok(()));
    drop(lock(&hung).take());
    // Its thread ends, with an error that nobody hears.
    drop(turn(&world.store.account(&MailboxPath::parse(INBOX).unwrap()).renaming).await);
    for _ in 0..2 {
        let refused = accept(".Old").await;
        assert!(matches!(&refused, Err(IntakeError::NotTaken(why)) if why.code == 451), "{refused:?}");
    }
    for count in [1, 2] {
        let refused = append(Arc::clone(&account), id, count).await;
        assert!(matches!(&refused, Err(MailstoreError::Unavailable(_))), "{count}: {refused:?}");
    }
    assert!(folder.exists());
    // The next change of names moves it.
    fs::remove_file(inbox.join(".New")).unwrap();
    account.create(&MailboxName::parse("x").unwrap(), None).await.unwrap();
    assert!(inbox.join(".New").exists() && !folder.exists());
    append(Arc::clone(&account), id, 1).await.unwrap();
    append(Arc::clone(&account), id, 2).await.unwrap();
    assert_eq!(account.status(id).await.unwrap().exists, 4);
    assert!(matches!(accept(".Old").await, Err(IntakeError::NotTaken(_))));
}

/// The first subscription of an account makes its INBOX.
#[tokio::test]
async fn a_subscription_that_was_given_up_is_not_made_later() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = open(dir.path(), data.path());
    let account = world.logins.account("me").await.unwrap();
    let of_account = world.store.account(&MailboxPath::parse(INBOX).unwrap());
    let owner = Arc::clone(of_account.load().unwrap());
    let id = owner.id;
    let hung = Hung::on(move |wait| {
        let _making = owner.making.lock().unwrap();
        wait();
    });
    pause();
    let asking = Arc::clone(&account);
    let name = MailboxName::parse("x").unwrap();
    let asked = tokio::spawn(async move { asking.subscribe(&name, true).await });
    for _ in 0..1000 {
        advance(Duration::from_secs(1)).await;
    }
    assert!(asked.is_finished());
    resume();
    assert!(matches!(asked.await.unwrap(), Err(MailstoreError::Unavailable(_))));
    drop(hung);
    // Its thread ends.
    drop(of_account.listing.acquire_many(LISTINGS_MAX as u32).await);
    let subscribed = || world.store.ledger().names(id).unwrap().1.contains_key(&b"x"[..]);
    assert!(!subscribed());
    account.subscribe(&MailboxName::parse("x").unwrap(), true).await.unwrap();
    assert!(subscribed());
}

#[tokio::test]
async fn a_mailbox_that_hangs_is_not_waited_for_without_an_end() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in ["", ".Hung"] {
        Maildir::open_or_create(dir.path().join(INBOX).join(folder)).unwrap();
    }
    let world = open(dir.path(), data.path());
    let account = world.logins.account("me").await.unwrap();
    let id = account.find(&MailboxName::parse("Hung").unwrap()).await.unwrap().unwrap();
    let core = Arc::clone(world.store.loaded.find(id.0).unwrap().core());
    let hung = Hung::on(move |wait| {
        let _one = lock(&core.changing);
        wait();
    });
    pause();
    let mut asked = JoinSet::new();
    for mode in [SelectMode::Writable, SelectMode::ReadOnly] {
        let account = Arc::clone(&account);
        asked.spawn(async move { account.select(id, mode).await.map(drop) });
    }
    let asking = Arc::clone(&account);
    asked.spawn(async move { asking.status(id).await.map(drop) });
    for _ in 0..1000 {
        advance(Duration::from_secs(1)).await;
    }
    resume();
    while let Some(answer) = asked.try_join_next() {
        let answer = answer.unwrap();
        assert!(matches!(&answer, Err(MailstoreError::Unavailable(_))), "{answer:?}");
    }
    assert!(asked.is_empty());
    assert_eq!(world.select().await.exists(), 0);
    drop(hung);
    assert_eq!(account.select(id, SelectMode::Writable).await.unwrap().exists(), 0);
}
