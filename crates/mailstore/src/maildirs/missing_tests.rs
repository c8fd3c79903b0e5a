//! Decision 60: folders that another program removes.

use super::*;

/// UIDVALIDITY and UIDs of a folder; `None` without the folder.
async fn uids(world: &World, of: &str) -> Option<(u32, Vec<u32>)> {
    let id = world.account.find(&name(of)).await.unwrap()?;
    let view = world.account.select(id, crate::store::SelectMode::Writable).await.unwrap();
    let uids = shown(&*view).await.into_iter().map(|(uid, ..)| uid).collect();
    Some((view.uid_validity().get(), uids))
}

/// The account, to look at its folders on another day.
fn account(world: &World) -> std::sync::Arc<super::super::account::MaildirAccount> {
    world.store.account(&posthaste_maildir::MailboxPath::parse("Maildir").unwrap())
}

/// Looks `days` days from now. The clock of the machine says nothing of it.
fn look_on(world: &World, days: u64) {
    let account = account(world);
    let found = account.listed_now().unwrap();
    let then = std::time::Instant::now() + std::time::Duration::from_secs(days * 86_400);
    tokio::task::block_in_place(|| account.note_missing(&found, then));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_removed_folder_continues_its_uids_for_a_week() {
    let (mail, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let maildir = mail.path().join("Maildir");
    for folder in ["", ".Back", ".Gone"] {
        Maildir::open_or_create(maildir.join(folder)).unwrap();
        fs::write(maildir.join(folder).join("new/1.a"), "1\n").unwrap();
    }
    let world = World::open(mail.path(), data.path()).await;
    let (back, gone) = (uids(&world, "Back").await.unwrap(), uids(&world, "Gone").await.unwrap());
    let gone_id = world.id("Gone").await.0;
    let take = |away: bool| {
        for folder in ["Back", "Gone"] {
            let places = (maildir.join(format!(".{folder}")), mail.path().join(folder));
            let (from, to) = if away { places } else { (places.1, places.0) };
            fs::rename(from, to).unwrap();
        }
    };
    take(true);
    // Another opening does not begin the week anew.
    look_on(&world, 0);
    look_on(&world, 2);
    world.store.ledger().commit().unwrap();
    drop(world);
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(world.names(false).await, ["INBOX"]);
    assert_eq!(world.store.ledger().head(gone_id).unwrap().unwrap().missing_day, 3);
    look_on(&world, 4);
    take(false);
    assert_eq!((uids(&world, "Back").await, uids(&world, "Gone").await), (Some(back.clone()), Some(gone.clone())));
    look_on(&world, 5);
    take(true);
    // Since then it was there.
    look_on(&world, 6);
    look_on(&world, 12);
    take(false);
    // Without a list.
    assert_eq!((uids(&world, "Back").await, uids(&world, "Gone").await), (Some(back.clone()), Some(gone.clone())));
    take(true);
    look_on(&world, 13);
    // Nothing is missing while the disk is away.
    fs::rename(&maildir, mail.path().join("Away")).unwrap();
    look_on(&world, 40);
    fs::rename(mail.path().join("Away"), &maildir).unwrap();
    look_on(&world, 41);
    fs::rename(mail.path().join("Back"), maildir.join(".Back")).unwrap();
    look_on(&world, 47);
    fs::rename(mail.path().join("Gone"), maildir.join(".Gone")).unwrap();
    let (validity, _) = uids(&world, "Gone").await.unwrap();
    assert!(validity > gone.0, "another mailbox, and no UID comes twice");
    assert_eq!(uids(&world, "Back").await, Some(back));
    let seen = shown(&*world.select("Gone").await).await;
    assert_eq!(seen.len(), 1, "its mail is found like that of any folder");
    drop(world);
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(shown(&*world.select("Gone").await).await, seen);
}
