//! Removed mailboxes: earlier mail is not delivered to a later one of the same name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_spool::{ClosedFileSpool, Lsn, Spool};

use super::entry::Removal;
use super::inspect::undelivered;
use super::test_world::{Door, Doors, PATIENCE, Place, World, message};
use super::tests::{killed_with, session};
use super::{LocalEntry, RemoveError, Visible, remove_mailbox};
use crate::session::{SessionTag, TAG_BYTES};

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn removal(mailbox: &str) -> LocalEntry {
    LocalEntry::Removal(Removal { before: None, mailbox: mailbox.into() })
}

fn visible(session: SessionTag, lsns: &[Lsn]) -> LocalEntry {
    LocalEntry::Visible(Visible { session, targets: lsns.iter().map(|lsn| (*lsn, 0)).collect() })
}

#[test]
fn mail_waiting_for_a_removed_mailbox_is_dropped() {
    let world = World::new(&[]);
    world.doors.shut("bad/Maildir", Door::Fails);
    world.doors.shut("badly/Maildir", Door::Fails);
    ["1", "2", "3"].iter().for_each(|text| drop(world.deliver(message(&["bad", "badly"], text))));
    world.until("they wait", || world.waiting() == 3);
    world.delivery.remove_mailbox("bad", soon()).expect("removed");
    world.until_in_time("they are dropped, though the mailbox cannot be written to", || {
        world.delivery.waiting_mailboxes().iter().all(|waiting| &*waiting.mailbox == "badly/Maildir")
    });
    world.doors.open("bad/Maildir");
    world.deliver(message(&["bad"], "for the new one"));
    world.until("the new one's mail", || world.texts("bad").len() == 1);
    world.doors.open("badly/Maildir");
    world.until_in_time("the other's mail", || world.texts("badly").len() == 3);
    assert!(world.texts("bad")[0].ends_with("for the new one"), "{:?}", world.texts("bad"));
    world.sync();
    assert_eq!(world.held("").1, 0, "nothing is needed");
    assert_eq!(world.delivery.stats().given_up, 0, "nothing is lost");
}

#[test]
fn a_removal_waits_for_a_thread_that_writes_to_the_mailbox() {
    let world = World::new(&[]);
    world.doors.shut("message bad/Maildir", Door::Hangs);
    world.deliver(message(&["bad"], "being written"));
    world.doors.wait_until_held("message bad/Maildir");
    world.deliver(message(&["bad"], "behind it"));
    let held = world.delivery.remove_mailbox("bad", Instant::now() + Duration::from_millis(50));
    assert!(matches!(held, Err(RemoveError::Held(_))), "{held:?}");
    world.doors.open("message bad/Maildir");
    world.delivery.remove_mailbox("bad", soon()).expect("removed");
    let texts = world.texts("bad");
    assert!(texts.iter().all(|text| text.ends_with("being written")) && texts.len() == 1, "{texts:?}");
    std::fs::remove_dir_all(world.place.mail().join("bad")).expect("removed");
    world.deliver(message(&["bad"], "for the new one"));
    world.until("the new one's mail", || world.texts("bad").len() == 1);
    world.sync();
    assert_eq!((world.held("").1, world.texts("bad").len()), (0, 1));
}

#[test]
fn mail_before_a_removal_does_not_return_after_a_cut_or_fault() {
    let place = Place::new(&[]);
    let now = session(&place);
    // One in this session of the page cache, one in another; neither has a file left, as the Maildir was removed.
    killed_with(&place, "", &[("ann", "1"), ("ann", "2"), ("bob", "3")], |lsns| {
        let before = visible(SessionTag([9; TAG_BYTES]), &lsns[..1]);
        let begun = LocalEntry::SyncBegun { session: now };
        vec![before, visible(now, &lsns[1..2]), begun, removal("ann")]
    });
    let spool = ClosedFileSpool::glance(&place.config().spool_dir).expect("a spool");
    let shown = undelivered(&spool).expect("readable");
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert_eq!(&*shown[0].mailboxes[0].mailbox, "bob/Maildir");
    drop(spool);
    let world = World::opened(place, Arc::default(), |config| config);
    assert_eq!(world.texts("bob").len(), 1);
    assert!(!world.place.mail().join("ann").exists(), "nothing is made for it");
    world.sync();
    assert_eq!(world.held(""), (0, 0));
}

#[test]
fn a_mailbox_is_removed_from_a_mount_that_is_away() {
    let place = Place::new(&["far"]);
    killed_with(&place, "far", &[("far/ann", "1"), ("far/bob", "2")], |_| Vec::new());
    let doors = Arc::new(Doors::default());
    doors.shut("mount far", Door::Fails);
    let world = World::opened(place, doors, |config| config);
    world.delivery.remove_mailbox("far/ann", soon()).expect("removed");
    world.deliver(message(&["far/ann"], "for the new one"));
    world.doors.open("mount far");
    world.until("all mail", || world.texts("far/ann").len() + world.texts("far/bob").len() == 2);
    world.sync();
    assert!(world.texts("far/ann")[0].ends_with("for the new one"));
}

#[test]
fn a_removal_lasts_as_long_as_earlier_mail_and_is_rewritten() {
    let world = World::new(&[]);
    world.doors.shut("slow/Maildir", Door::Fails);
    world.doors.shut("ann/Maildir", Door::Fails);
    world.deliver(message(&["slow", "ann"], "old"));
    world.until("it waits", || world.delivery.waiting_mailboxes().len() == 2);
    world.delivery.remove_mailbox("ann", soon()).expect("removed");
    world.until_in_time("it is dropped for the one", || world.delivery.waiting_mailboxes().len() == 1);
    (0..200).for_each(|_| drop(world.deliver(message(&["good"], "text"))));
    world.sync();
    // The spool needs the space.
    let mount = world.delivery.mounts()[0].clone();
    posthaste_spool::Consumer::advance_wanted(&*mount, world.spool.stats().published);
    world.until("what waits was written down anew", || world.held("").0 < 20);
    drop(mount);
    // The later mailbox has its Maildir, and the earlier message is still in the spool for the other mailbox.
    world.doors.open("ann/Maildir");
    let place = world.end();
    let world = World::opened(place, Arc::default(), |config| config);
    world.until("the other's mail", || world.texts("slow").len() == 1);
    assert!(world.texts("ann").is_empty(), "{:?}", world.texts("ann"));
    world.sync();
    assert_eq!(world.held(""), (0, 0));
}

#[test]
fn a_mailbox_is_removed_while_nothing_runs() {
    let place = Place::new(&[]);
    killed_with(&place, "", &[("ann", "1"), ("ann/inner", "2"), ("annette", "3")], |_| Vec::new());
    let spool = place.spool();
    assert!(matches!(remove_mailbox(&spool, "../ann"), Err(RemoveError::BadMailbox(_))));
    remove_mailbox(&spool, "ann").expect("removed");
    drop(spool);
    let world = World::opened(place, Arc::default(), |config| config);
    world.until("the other's mail", || world.texts("annette").len() == 1);
    assert!(!world.place.mail().join("ann").exists());
}
