//! A folder that is renamed while mail for it waits.

use posthaste_fsops::{Choice, Cut, Machine};

use super::*;

const FOLDER: &str = "me/Maildir/.Lists";

/// Scenario 31: RENAME waits for the file. Then there is one directory, and no mail is dropped.
#[test]
fn a_rename_waits_for_mail_after_a_cut_at_any_call() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let machine = Machine::new().unwrap();
    let maildirs = machine.path().join("mail");
    Maildir::open_or_create(maildirs.join(INBOX)).unwrap();
    Maildir::open_or_create(maildirs.join(FOLDER)).unwrap();
    for dir in ["", "mail", "mail/me", "mail/me/Maildir", "mail/me/Maildir/.Lists"] {
        posthaste_fsops::fsync(std::fs::File::open(machine.path().join(dir)).unwrap()).unwrap();
    }
    let (lsn, validity) = runtime.block_on(async {
        let world = Arc::new(open(&maildirs, machine.path()));
        let validity = world.select_named("Lists").await.uid_validity();
        machine.acknowledge(0);
        let receipt = world.intake.accept(&world.list, &mail(FOLDER), body("one")).await.unwrap();
        assert_eq!(receipt.entries.len(), 2, "it has its UID");
        machine.acknowledge(1);
        let account = world.logins.account("me").await.unwrap();
        let id = account.find(&MailboxName::parse("Lists").unwrap()).await.unwrap().unwrap();
        let (delivery, folder, lsn) = (Arc::clone(&world), maildirs.join(FOLDER), receipt.lsn);
        *lock(&world.when_asked) = Some(Box::new(move || {
            delivery.deliver_to(&folder, &receipt, "one");
            delivery.release(&[&receipt]);
        }));
        account.rename(id, &MailboxName::parse("New").unwrap()).await.unwrap();
        assert!(lock(&world.when_asked).is_none(), "it has asked for the file");
        machine.acknowledge(2);
        (lsn, validity)
    });
    let recording = machine.recording();
    let mut waited = 0;
    for position in 0..=recording.events.len() {
        let Some(last) = recording.acknowledged_before(position).last() else { continue };
        let choice = Choice::Seed(position as u64 * 7);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let maildirs = machine.path().join("mail");
        runtime.block_on(async {
            for opening in 0..2 {
                let said = format!("{position}, opening {opening}");
                let world = open(&maildirs, machine.path());
                let account = world.logins.account("me").await.unwrap();
                let mut names = Vec::new();
                for name in ["Lists", "New"] {
                    names.extend(account.find(&MailboxName::parse(name).unwrap()).await.unwrap().map(|_| name));
                }
                assert!(names.len() == 1 && (last < 2 || names == ["New"]), "{said}: {names:?} after {last}");
                // Delivery knows the old path alone: it would make that directory again.
                let waits = world.spool.needs_body(world.local, lsn);
                assert!(!waits || names == ["Lists"], "{said}: renamed before the file was made");
                let view = world.select_named(names[0]).await;
                let there = all(&*view).await;
                assert_eq!(view.uid_validity(), validity, "{said}");
                assert!(there.len() as u64 >= last.min(1) && there.len() <= 1, "{said}: {there:?}");
                assert!(there.iter().all(|(uid, text)| (*uid, text) == (1, &wire("one"))), "{said}: {there:?}");
                if waits {
                    waited += 1;
                    let receipt = Receipt { lsn, entries: Vec::new() };
                    if std::fs::read_dir(maildirs.join(FOLDER).join("new")).unwrap().next().is_none() {
                        world.deliver_to(&maildirs.join(FOLDER), &receipt, "one");
                    }
                    world.release(&[&receipt]);
                }
            }
        });
    }
    assert!(waited > 0, "no cut came while the mail waited");
}
