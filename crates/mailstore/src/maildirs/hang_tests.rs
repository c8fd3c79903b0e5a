//! COPY, MOVE and APPEND while a directory hangs (decision 46).

use std::fs;
use std::sync::mpsc::channel;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{advance, pause, resume};

use super::*;
use crate::error::MailstoreError;
use crate::flags::MessageFlags;
use crate::row::MessageSet;
use crate::store::MailAccount;

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
    let core = Arc::clone(world.store.shared.loaded.find(to_hung.0).unwrap().core());
    let ((held, is_held), (hangs, ended)) = (channel(), channel::<()>());
    let disk = std::thread::spawn(move || {
        let _one = lock(&core.changing);
        held.send(()).unwrap();
        let _ = ended.recv();
    });
    is_held.recv().unwrap();
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
    drop(hangs);
    disk.join().unwrap();
    // Threads that were withdrawn make no batch, and leave no files.
    let files = || fs::read_dir(maildir.join(".Hung/tmp")).unwrap().count();
    while files() > 0 {
        yield_now().await;
    }
    let found = async |id| account.status(id).await.unwrap().exists;
    assert_eq!((found(views[0].id()).await, found(to_hung).await, found(to_sent).await), (1, 1, 4));
}
