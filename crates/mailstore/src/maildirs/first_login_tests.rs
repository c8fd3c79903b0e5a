//! Folders that the first login finds or makes.

use super::*;

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
