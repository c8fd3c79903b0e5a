//! Sessions that come before the first listing of an opening.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use tokio::time::{advance, pause, resume};

use super::answers::{PATIENCE, no_answer};
use super::core::MailboxCore;
use super::locks::lock;
use super::looking::look;
use super::looks::Known;
use super::mailbox::MaildirMailbox;
use super::opening::load;
use super::tests::{Place, uids};
use super::told::Oddities;
use crate::entry::{MailEntry, StateGroup};
use crate::error::MailstoreError;
use crate::opening_view::{MailboxNumbers, OpeningView};
use crate::row::{MailboxStatus, MessageSet, NumberRange, Uid};
use crate::snapshot::{SnapshotView, Source, status};
use crate::store::{MailboxView, RowOptions, SelectMode};
use crate::table::{FileNote, flag_bits};

/// A mailbox whose directories were listed, in an opening that has ended in order.
async fn listed() -> Place {
    let mut place = Place::new();
    for name in ["new/1.a", "cur/2.b:2,S", "new/3.c"] {
        fs::write(place.path(name), format!("Subject: {name}\n\n")).unwrap();
    }
    place.settled_look().await;
    let core = place.mailbox().core();
    core.shared.ledger.note(&[core.listing_note().unwrap()]);
    assert_eq!(core.listing_note(), None, "it is noted once");
    place
}

/// True if the next opening shows the mailbox before it is listed.
fn is_shown_unlisted(place: &mut Place) -> bool {
    place.reopen();
    let core = place.mailbox().core();
    let reader = core.reader().unwrap();
    load(core, Some(&reader), &mut Oddities::default()).unwrap();
    core.show_before_listing(&reader);
    let is_ahead = core.looked.borrow().is_ahead;
    let (_, outcome) = look(core, Known::default());
    assert_eq!(outcome, Ok(()));
    assert!(!core.looked.borrow().is_ahead, "a listing ends it");
    is_ahead
}

/// A look does not begin to list before the sender is dropped.
fn hold_up_listing(core: &Arc<MailboxCore>) -> Sender<()> {
    let ((locked, is_locked), (release, released)) = (channel(), channel::<()>());
    let core = Arc::clone(core);
    std::thread::spawn(move || {
        let _suspects = lock(&core.suspects);
        locked.send(()).unwrap();
        let _ = released.recv();
    });
    is_locked.recv().unwrap();
    release
}

#[tokio::test]
async fn the_first_session_does_not_wait_for_a_listing() {
    let mut place = listed().await;
    place.reopen();
    let mailbox = Arc::new(place.mailbox().clone());
    let listing = hold_up_listing(mailbox.core());
    let view = SnapshotView::select(Arc::clone(&mailbox), SelectMode::Writable).await.unwrap();
    assert_eq!((view.exists(), view.recent(), view.first_unseen()), (3, 3, Some(1)));
    let mut reading = view.body(Uid::new(3).unwrap());
    let poll = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending(), "the listing finds the names of files");
    drop(listing);
    let body = reading.await.unwrap();
    assert_eq!(body.read(0, 99).await.unwrap(), "Subject: new/3.c\r\n\r\n");
    // What the first one has had as \\Recent stays its own.
    assert_eq!(uids(&place.look().await), [1, 2, 3]);
    let second = SnapshotView::select(mailbox, SelectMode::Writable).await.unwrap();
    assert_eq!(second.recent(), 0);
}

/// Decision 46, for FETCH.
#[tokio::test]
async fn reading_ends_while_the_first_listing_hangs() {
    let mut place = listed().await;
    place.reopen();
    let mailbox = Arc::new(place.mailbox().clone());
    let listing = hold_up_listing(mailbox.core());
    let view = SnapshotView::select(mailbox, SelectMode::ReadOnly).await.unwrap();
    pause();
    let mut reading = view.body(Uid::new(3).unwrap());
    assert!(reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // Its timer counts whole milliseconds.
    advance(PATIENCE + Duration::from_millis(1)).await;
    assert_eq!(reading.await.err(), Some(no_answer()));
    resume();
    drop(listing);
    assert!(view.body(Uid::new(3).unwrap()).await.is_ok());
}

/// A view with numbers alone, and whoever holds its messages up.
async fn opening_view(mailbox: &Arc<MaildirMailbox>, mode: SelectMode) -> OpeningView<MaildirMailbox> {
    let opening = mailbox.opening().await.unwrap().expect("its numbers are shown");
    OpeningView::select(Arc::clone(mailbox), mode, opening).expect("they are enough")
}

#[tokio::test]
async fn numbers_answer_before_messages_are_read() {
    let mut place = listed().await;
    place.reopen();
    let mailbox = Arc::new(place.mailbox().clone());
    let core = mailbox.core();
    // Messages are in memory once the next UID is known.
    let held = core.shared.ledger.lock_uids();
    let mut view = opening_view(&mailbox, SelectMode::Writable).await;
    assert_eq!((view.exists(), view.recent(), view.first_unseen(), view.last_uid()), (3, 3, Some(1), Uid::new(3)));
    // The first session has them as \\Recent.
    let second = opening_view(&mailbox, SelectMode::ReadOnly).await;
    assert_eq!((second.exists(), second.recent()), (3, 0));
    let stored = core.stored_status().expect("the directories are as they were");
    assert_eq!((stored.exists, stored.recent, stored.unseen), (3, 0, 2));
    {
        let mut rows = view.rows(&MessageSet::all(), RowOptions::default());
        let mut asked = rows.next();
        assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it has no messages");
        drop(held);
        let rows = asked.await.unwrap();
        assert_eq!(
            rows.iter().map(|row| (row.uid.get(), row.recent)).collect::<Vec<_>>(),
            [(1, true), (2, true), (3, true)]
        );
    }
    // Mail that came meanwhile is told later.
    let came = MailEntry::State { mailbox: core.id, groups: vec![seen(1)] };
    core.shared.ledger.append(&[came]).unwrap();
    assert_eq!((view.exists(), view.first_unseen()), (3, Some(1)));
    let changes = view.catch_up(true).await.unwrap();
    assert_eq!((changes.flags.len(), view.first_unseen()), (1, Some(3)));
    assert!(mailbox.opening().await.unwrap().is_none(), "they are in memory");
}

/// A change of a message's flags, which its file's name does not show yet.
fn seen(uid: u32) -> StateGroup {
    let set = vec![NumberRange { first: uid, last: uid }];
    StateGroup { set, flags: 1 | flag_bits::BEHIND | flag_bits::IN_NEW, letters: 0 }
}

#[tokio::test]
async fn numbers_without_messages_end_the_session() {
    let mut place = listed().await;
    place.reopen();
    let mailbox = Arc::new(place.mailbox().clone());
    // Its messages would take the place of its numbers.
    let held = mailbox.core().shared.ledger.lock_uids();
    let mut opening = mailbox.opening().await.unwrap().unwrap();
    drop(held);
    let mut numbers = MailboxNumbers::clone(&opening.numbers);
    // As where a row of the other table is damaged.
    numbers.status.exists += 1;
    opening.numbers = Arc::new(numbers);
    let mut view = OpeningView::select(mailbox, SelectMode::ReadOnly, opening).unwrap();
    assert_eq!(view.advance(true).await, Err(MailstoreError::NoMailbox));
}

#[tokio::test]
async fn changed_directories_have_no_numbers() {
    for change in changes() {
        let mut place = listed().await;
        change(&place);
        place.reopen();
        assert!(place.mailbox().opening().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn status_does_not_wait_for_the_first_listing() {
    let mut place = listed().await;
    place.reopen();
    let mailbox = place.mailbox().clone();
    let core = mailbox.core();
    let listing = hold_up_listing(core);
    let now = mailbox.look().await.unwrap();
    assert!(!core.needs_look());
    assert!(core.before_listing().is_some_and(|known| Arc::ptr_eq(&known, &now)));
    fs::write(place.path("new/4.d"), "x").unwrap();
    assert!(core.before_listing().is_none(), "a listing would find it");
    drop(listing);
    assert_eq!(uids(&place.look().await), [1, 2, 3, 4]);
    assert!(core.needs_look() && core.before_listing().is_none());
}

/// Changes by other programs, each of which a listing finds.
fn changes() -> [fn(&Place); 4] {
    [
        |place| fs::write(place.path("new/4.d"), "x").unwrap(),
        |place| fs::rename(place.path("new/1.a"), place.path("cur/1.a:2,S")).unwrap(),
        |place| fs::remove_file(place.path("new/3.c")).unwrap(),
        // Another directory in its place, with the same time.
        |place| {
            let at = fs::metadata(place.path("new")).unwrap().modified().unwrap();
            fs::rename(place.path("new"), place.path("old")).unwrap();
            fs::create_dir(place.path("new")).unwrap();
            fs::File::open(place.path("new")).unwrap().set_modified(at).unwrap();
        },
    ]
}

#[tokio::test]
async fn directories_that_have_changed_are_listed_first() {
    let mut place = listed().await;
    assert!(is_shown_unlisted(&mut place), "nothing has changed");
    assert!(is_shown_unlisted(&mut place), "the next opening finds it, too");
    for change in changes() {
        let mut place = listed().await;
        change(&place);
        assert!(!is_shown_unlisted(&mut place));
    }
}

/// The numbers of the mailbox without its messages, and those that a look then finds.
async fn both_statuses(place: &Place) -> (Option<MailboxStatus>, MailboxStatus) {
    let core = place.mailbox().core();
    let stored = core.stored_status();
    assert!(!core.is_loaded(), "it has loaded the messages");
    let messages = place.look().await;
    assert_eq!(core.stored_status(), None, "they are in memory");
    (stored, status(place.mailbox(), &messages))
}

#[tokio::test]
async fn status_of_an_unchanged_mailbox_loads_no_message() {
    let mut place = listed().await;
    place.reopen();
    let (stored, looked) = both_statuses(&place).await;
    assert_eq!((looked.exists, looked.recent, looked.unseen, looked.deleted), (3, 3, 2, 0));
    assert_eq!(stored, Some(looked));
    // A session has had them as \\Recent.
    let mailbox = Arc::new(place.mailbox().clone());
    drop(SnapshotView::select(mailbox, SelectMode::Writable).await.unwrap());
    place.mailbox().unload();
    let (stored, looked) = both_statuses(&place).await;
    assert_eq!((stored, looked.recent), (Some(looked), 0));
    // The table lacks what has come since, and none of the names shows it.
    place.reopen();
    let core = place.mailbox().core();
    let set = vec![NumberRange { first: 3, last: 3 }];
    let deleted = StateGroup { set, flags: 0b1000 | flag_bits::BEHIND | flag_bits::IN_NEW, letters: 0 };
    core.shared.ledger.append(&[MailEntry::State { mailbox: core.id, groups: vec![deleted] }]).unwrap();
    let (stored, looked) = both_statuses(&place).await;
    assert_eq!((looked.unseen, looked.deleted), (2, 1));
    assert_eq!(stored, Some(looked));
}

#[tokio::test]
async fn status_of_a_changed_mailbox_needs_a_listing() {
    for change in changes() {
        let mut place = listed().await;
        change(&place);
        place.reopen();
        assert_eq!(both_statuses(&place).await.0, None);
    }
    // Nobody has looked at it yet.
    let place = Place::new();
    assert_eq!(both_statuses(&place).await.0, None);
}

#[tokio::test]
async fn a_listing_counts_for_one_boot() {
    let mut place = listed().await;
    let core = place.mailbox().core();
    let stamps = lock(&core.state).as_ref().unwrap().stamps;
    let of_another_boot = stamps.map(|(time, inode)| (time, inode ^ 0x5555));
    core.shared.ledger.note(&[FileNote::Listed { mailbox: core.id, stamps: of_another_boot }]);
    assert!(!is_shown_unlisted(&mut place));
}

/// A listing that has left something to do is not noted.
#[tokio::test]
async fn a_listing_of_a_directory_that_was_changing_is_not_noted() {
    let place = Place::new();
    fs::write(place.path("new/1.a"), "x").unwrap();
    let soon = SystemTime::now() + Duration::from_secs(3600);
    fs::File::open(place.path("new")).unwrap().set_modified(soon).unwrap();
    place.look().await;
    assert_eq!(place.mailbox().core().listing_note(), None);
    // Files that turned out to have other names are to be listed again.
    let mut place = listed().await;
    place.settled_look().await;
    let core = place.mailbox().core();
    core.is_unlisted.store(true, Ordering::Relaxed);
    assert_eq!(core.listing_note(), None);
}
