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
fn account(world: &World) -> std::sync::Arc<super::super::MaildirAccount> {
    world.store.account(&posthaste_maildir::MailboxPath::parse("Maildir").unwrap())
}

fn look_on(world: &World, day: u16) {
    let account = account(world);
    let found = account.listed_now().unwrap();
    tokio::task::block_in_place(|| account.note_missing(&found, day));
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
    let today = super::super::missing::today();
    let take = |away: bool| {
        for folder in ["Back", "Gone"] {
            let places = (maildir.join(format!(".{folder}")), mail.path().join(folder));
            let (from, to) = if away { places } else { (places.1, places.0) };
            fs::rename(from, to).unwrap();
        }
    };
    take(true);
    // Another opening does not begin the week anew.
    look_on(&world, today);
    world.store.ledger().commit().unwrap();
    drop(world);
    let world = World::open(mail.path(), data.path()).await;
    assert_eq!(world.names(false).await, ["INBOX"]);
    look_on(&world, today + 7);
    take(false);
    assert_eq!((uids(&world, "Back").await, uids(&world, "Gone").await), (Some(back.clone()), Some(gone.clone())));
    look_on(&world, today + 8);
    take(true);
    // Since then it was there.
    look_on(&world, today + 9);
    look_on(&world, today + 16);
    take(false);
    // Without a list.
    assert_eq!((uids(&world, "Back").await, uids(&world, "Gone").await), (Some(back.clone()), Some(gone.clone())));
    take(true);
    look_on(&world, today + 17);
    // Nothing is missing while the disk is away.
    fs::rename(&maildir, mail.path().join("Away")).unwrap();
    look_on(&world, today + 40);
    fs::rename(mail.path().join("Away"), &maildir).unwrap();
    fs::rename(mail.path().join("Back"), maildir.join(".Back")).unwrap();
    look_on(&world, today + 25);
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
