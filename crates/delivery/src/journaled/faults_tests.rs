//! Mailboxes and syncs that fail or hang, and records that cannot be read: each step is taken by the test, those of the clock as well.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_journal::sim::SimDisk;

use super::JournaledConfig;
use super::test_world::{Door, Doors, SYNC, Steps};
use super::tests::{Place, message};
use crate::record::Delivered;
use crate::{Body, Message};

fn inode(path: &Path) -> u64 {
    std::fs::metadata(path).expect("there").ino()
}

fn only_file(steps: &Steps, name: &str) -> std::path::PathBuf {
    let new = steps.place.mail().join(name).join("Maildir/new");
    let mut entries = std::fs::read_dir(&new).expect("a mailbox");
    let path = entries.next().expect("a message").expect("an entry").path();
    assert!(entries.next().is_none(), "one message");
    path
}

#[test]
fn a_mailbox_that_hangs_holds_its_own_mail_and_gets_it_when_it_answers() {
    let steps = Steps::new(|config| config);
    let room = steps.core().backlog.available_permits();
    steps.doors.shut("hung/Maildir", Door::Hangs);
    steps.deliver(message(&["hung"], "a\r\n"));
    steps.doors.wait_until_held("hung/Maildir");
    steps.deliver(message(&["hung", "ok"], "b\r\n"));
    steps.until("delivered elsewhere", || steps.texts("ok").len() == 1);
    assert_eq!(steps.waiting(), 0, "it may yet answer");
    steps.give_up_after(4);
    assert_eq!(steps.waiting(), 0, "it may yet answer");
    steps.give_up_after(2);
    steps.until("b waits in the journal, not in memory", || steps.waiting() == 1);
    assert_eq!(steps.core().backlog.available_permits(), room, "what hangs holds no memory that others wait for");
    // Refused at once from here on, but not on the thread that accepts mail.
    steps.deliver(message(&["hung"], "c\r\n"));
    assert_eq!(steps.waiting(), 1);
    steps.give_up_after(0);
    assert_eq!(steps.waiting(), 2);
    assert!(steps.journaled.waiting()[1].error.contains("does not answer"), "{:?}", steps.journaled.waiting());

    steps.doors.open("hung/Maildir");
    steps.until("what a thread had in hand", || steps.texts("hung").len() == 1);
    steps.until("the thread is done", || !steps.core().workers.wait_until_idle());
    steps.all_follow_the_probe();
    let expected = ["a", "b", "c"].map(|text| format!("Delivered-To: hung\n{text}\n"));
    assert_eq!(steps.texts("hung"), expected);
    assert_eq!(steps.texts("ok").len(), 1);
}

#[test]
fn what_was_delivered_before_a_sync_failed_is_written_anew_before_it_is_settled() {
    let steps = Steps::new(|config| config);
    steps.doors.shut("bad/Maildir", Door::Fails);
    steps.deliver(message(&["ann", "bad"], "partly\r\n"));
    steps.deliver(message(&["bob"], "wholly\r\n"));
    steps.until("the first attempt", || steps.waiting() == 1 && steps.texts("bob").len() == 1);
    let (ann, bob) = (only_file(&steps, "ann"), only_file(&steps, "bob"));
    // Held open, so that their inode numbers are not given to what replaces them.
    let _held = [&ann, &bob].map(|path| std::fs::File::open(path).expect("readable"));
    let before = [inode(&ann), inode(&bob)];

    steps.doors.shut(SYNC, Door::Fails);
    assert!(steps.journaled.checkpoint().is_err(), "nothing may be forgotten");
    assert_eq!(inode(&ann), before[0], "its turn comes when all of its message is dealt with");
    assert_ne!(inode(&bob), before[1], "the old file may be in the page cache alone");
    assert_eq!(steps.place.promised(), [vec!["ann/Maildir", "bad/Maildir"], vec!["bob/Maildir"]]);

    steps.doors.open(SYNC);
    steps.doors.open("bad/Maildir");
    steps.try_again_after(2);
    steps.until("delivered", || steps.waiting() == 0);
    assert_ne!(inode(&ann), before[0], "delivered before the sync that failed");
    steps.journaled.checkpoint().expect("checkpoint");
    assert_eq!(steps.place.promised(), Vec::<Vec<String>>::new());
    for (name, text) in [("ann", "partly"), ("bad", "partly"), ("bob", "wholly")] {
        assert_eq!(steps.texts(name), [format!("Delivered-To: {name}\n{text}\n")]);
    }
}

#[test]
fn a_copy_that_could_not_be_written_anew_is_not_believed_when_it_is_tried_again() {
    let steps = Steps::new(|config| config);
    steps.deliver(message(&["bob"], "a\r\n"));
    steps.until("delivered", || steps.texts("bob").len() == 1);
    let bob = only_file(&steps, "bob");
    let _held = std::fs::File::open(&bob).expect("readable");
    let before = inode(&bob);

    // The sync that has failed was the only one to hear of it: the next one succeeds.
    steps.doors.shut(SYNC, Door::Fails);
    steps.doors.shut("bob/Maildir", Door::Fails);
    assert!(steps.journaled.checkpoint().is_err());
    assert_eq!(steps.waiting(), 1, "it could not be written anew");
    steps.doors.open(SYNC);
    steps.doors.open("bob/Maildir");
    steps.try_again_after(2);
    steps.until("tried again", || steps.waiting() == 0);
    assert_ne!(inode(&bob), before, "the old file reads well and may be in the page cache alone");
    assert_eq!(steps.texts("bob"), ["Delivered-To: bob\na\n"]);
}

#[test]
fn mail_that_waited_is_read_back_as_far_as_there_is_memory_for_it() {
    // Room for one of them at a time, and a half.
    let steps = Steps::new(|config| JournaledConfig { backlog_bytes: 60 << 10, ..config });
    let large = || Message {
        body: Body::Memory(vec![Bytes::from("0123456789 abcdefghij 0123456789 abcdef\r\n".repeat(1000))]),
        ..message(&["bad"], "")
    };
    steps.doors.shut("bad/Maildir", Door::Fails);
    for count in 1..=3 {
        steps.deliver(large());
        steps.until("put by", || steps.waiting() == count);
    }
    steps.until("their memory is given back", || steps.core().backlog.available_permits() == 60);
    steps.doors.open("bad/Maildir");
    steps.try_again_after(2);
    steps.until("the probe", || steps.waiting() == 2);
    steps.until("its memory is given back", || steps.core().backlog.available_permits() == 60);

    steps.doors.shut("bad/Maildir", Door::Hangs);
    steps.try_again_after(2);
    steps.doors.wait_until_held("bad/Maildir");
    assert_eq!(steps.core().backlog.available_permits(), 60 - 41, "one of two");
    steps.try_again_after(2);
    assert_eq!(steps.core().backlog.available_permits(), 60 - 41, "no room for the other");
    steps.doors.open("bad/Maildir");
    steps.until("one more", || steps.waiting() == 1);
    steps.until("its memory is given back", || steps.core().backlog.available_permits() == 60);
    steps.try_again_after(2);
    steps.until("all", || steps.waiting() == 0);
    assert_eq!(steps.texts("bad").len(), 3);
}

#[test]
fn a_mailbox_is_retried_without_a_restart() {
    let steps = Steps::with_all_threads(|config| config);
    steps.doors.shut("bad/Maildir", Door::Fails);
    steps.deliver(message(&["bad"], "a\r\n"));
    steps.until("put by", || steps.waiting() == 1);
    steps.doors.open("bad/Maildir");
    steps.pass(1);
    steps.until("tried again", || steps.waiting() == 0);
    assert_eq!(steps.texts("bad").len(), 1);
}

#[test]
fn what_was_delivered_to_some_mailboxes_stays_promised_until_it_is_durable_there() {
    let steps = Steps::new(|config| config);
    steps.doors.shut("bad/Maildir", Door::Fails);
    steps.deliver(message(&["ann", "bad", "cid"], "a\r\n"));
    steps.until("the first attempt", || steps.waiting() == 1);
    // No checkpoint yet: nobody has made the files of the others durable.
    assert_eq!(steps.place.promised(), [["ann/Maildir", "bad/Maildir", "cid/Maildir"]]);
    // Behind a checkpoint the record is about the one that waits: what their owners take from the others stays taken.
    steps.journaled.checkpoint().expect("checkpoint");
    assert_eq!(steps.place.promised(), [["bad/Maildir"]]);
    steps.doors.open("bad/Maildir");
    steps.try_again_after(2);
    steps.until("delivered", || steps.waiting() == 0);
    steps.journaled.checkpoint().expect("checkpoint");
    assert_eq!(steps.place.promised(), Vec::<Vec<String>>::new());
    for name in ["ann", "bad", "cid"] {
        assert_eq!(steps.texts(name).len(), 1, "{name}");
    }
}

#[test]
fn a_sync_that_hangs_does_not_hold_up_the_end() {
    let impatient = |config| JournaledConfig { shutdown_patience: Duration::from_millis(100), ..config };
    let Steps { place, doors, journaled, .. } = Steps::with_all_threads(impatient);
    place.deliver(&journaled, message(&["ann"], "a\r\n")).expect("accepted");
    doors.shut(SYNC, Door::Hangs);
    // Returns, although the last checkpoint never ends.
    drop(journaled);
    doors.wait_until_held(SYNC);
    assert_eq!(place.promised(), [["ann/Maildir"]], "the next opening sees to it");
    doors.open(SYNC);
}

#[test]
fn a_mailbox_that_hangs_does_not_hold_up_the_opening() {
    let (place, doors) = (Place::new(), Arc::new(Doors::default()));
    place.crashed_with(&[message(&["ann", "hung"], "a\r\n"), message(&["bob"], "b\r\n")], |_| None);
    doors.shut("hung/Maildir", Door::Hangs);
    let config = JournaledConfig { open_patience: Duration::from_millis(100), ..place.config() };
    // Returns.
    let steps = Steps::reopened(place, doors, config);
    assert_eq!(steps.report.messages, 2);
    // The others as well, where the machine is so slow that they did not answer in time.
    assert!((1..=3).contains(&steps.report.deferred), "{:?}", steps.report);
    steps.until("the others", || {
        steps.try_again_after(2);
        steps.texts("ann").len() + steps.texts("bob").len() == 2
    });
    assert_eq!(steps.texts("hung").len(), 0);
    steps.doors.open("hung/Maildir");
    steps.until("what waited for it", || {
        steps.try_again_after(2);
        steps.waiting() == 0
    });
    assert_eq!(["ann", "bob", "hung"].map(|name| steps.texts(name).len()), [1, 1, 1]);
}

#[test]
fn what_is_visible_is_forgotten_only_if_its_file_system_is_synced() {
    let (place, doors) = (Place::new(), Arc::new(Doors::default()));
    let session = place.session();
    place.crashed_with(&[message(&["far"], "a\r\n")], |ids| Some(Delivered { session, done: vec![(ids[0], 0)] }));
    doors.shut("far/Maildir", Door::Hangs);
    let config = JournaledConfig { open_patience: Duration::from_millis(100), ..place.config() };
    let steps = Steps::reopened(place, doors, config);
    assert_eq!((steps.report.messages, steps.report.deferred), (1, 1), "nobody knows which file system it is on");
    steps.journaled.checkpoint().expect("of all others");
    assert_eq!(steps.waiting(), 1);
    steps.doors.open("far/Maildir");
    steps.until("it is looked for", || {
        steps.try_again_after(2);
        steps.waiting() == 0
    });
    assert_eq!(steps.texts("far").len(), 1);
}

#[test]
fn without_room_for_the_note_there_is_no_sync() {
    let disk = SimDisk::new(1);
    let steps = Steps::with_journal_on(&disk);
    steps.deliver(message(&["ann"], "a\r\n"));
    // From now on it takes nothing.
    drop(disk.power_cut());
    steps.doors.shut(SYNC, Door::Hangs);
    // Would hang if it came to the sync.
    assert!(steps.journaled.checkpoint().is_err());
    assert_eq!(steps.core().failed_syncs(), 0);
}

#[test]
fn a_mailbox_that_is_slow_keeps_its_share_of_memory_and_no_more() {
    // Its share is one of these and a half.
    let steps = Steps::new(|config| JournaledConfig { backlog_bytes: 100 << 10, ..config });
    let letter = |name: &str| Message {
        body: Body::Memory(vec![Bytes::from("0123456789 abcdefghij 0123456789 abcdef\r\n".repeat(200))]),
        ..message(&[name], "")
    };
    let room = steps.core().backlog.available_permits();
    steps.doors.shut("slow/Maildir", Door::Hangs);
    steps.deliver(letter("slow"));
    steps.doors.wait_until_held("slow/Maildir");
    (0..6).for_each(|_| steps.deliver(letter("slow")));
    let each = (room - steps.core().backlog.available_permits()) / 7;
    steps.give_up_after(1);
    assert_eq!(steps.waiting(), 0, "a burst is no reason");
    // Less than after which it would count as hanging.
    steps.give_up_after(2);
    assert_eq!(steps.waiting(), 5, "what is in hand and one more stay");
    assert_eq!(steps.core().backlog.available_permits(), room - 2 * each);
    steps.deliver(letter("ok"));
    steps.until("delivered elsewhere", || steps.texts("ok").len() == 1);

    steps.doors.open("slow/Maildir");
    steps.until("what was in memory", || steps.texts("slow").len() == 2);
    steps.all_follow_the_probe();
    assert_eq!(steps.texts("slow").len(), 7);
}

#[test]
fn a_body_in_the_spool_takes_no_share_of_memory() {
    // Each of these bodies would take more than the mailbox's share.
    let steps = Steps::new(|config| JournaledConfig { backlog_bytes: 8 << 10, inline_bytes_max: 1 << 10, ..config });
    let letter = || Message {
        body: Body::Memory(vec![Bytes::from("0123456789 abcdefghij 0123456789 abcdef\r\n".repeat(200))]),
        ..message(&["slow"], "")
    };
    let room = steps.core().backlog.available_permits();
    steps.doors.shut("slow/Maildir", Door::Hangs);
    steps.deliver(letter());
    steps.doors.wait_until_held("slow/Maildir");
    (0..3).for_each(|_| steps.deliver(letter()));
    assert_eq!(room - steps.core().backlog.available_permits(), 4, "one for each");
    steps.give_up_after(3);
    assert_eq!(steps.waiting(), 0, "they hold no memory");
    steps.give_up_after(3);
    assert_eq!(steps.waiting(), 3, "it does not answer");
    steps.doors.open("slow/Maildir");
    steps.until("what a thread had in hand", || steps.texts("slow").len() == 1);
    steps.until("the thread is done", || !steps.core().workers.wait_until_idle());
    steps.all_follow_the_probe();
    assert_eq!(steps.texts("slow").len(), 4);
}

#[test]
fn when_file_systems_that_do_not_answer_hold_all_threads_nothing_waits_for_one_in_memory() {
    let steps = Steps::new(|config| config);
    let room = steps.core().backlog.available_permits();
    for name in ["a", "b"] {
        steps.doors.shut(&format!("{name}/Maildir"), Door::Hangs);
        steps.deliver(message(&[name], "held\r\n"));
        steps.doors.wait_until_held(&format!("{name}/Maildir"));
    }
    (0..3).for_each(|_| steps.deliver(message(&["late"], "waits\r\n")));
    steps.give_up_after(6);
    assert_eq!(steps.waiting(), 3, "there is nobody to come for them");
    assert_eq!(steps.core().backlog.available_permits(), room);
    // Does not wait for them.
    steps.journaled.checkpoint().expect("checkpoint");
    ["a", "b"].iter().for_each(|name| steps.doors.open(&format!("{name}/Maildir")));
    steps.until("what the threads had in hand", || steps.texts("a").len() + steps.texts("b").len() == 2);
    steps.all_follow_the_probe();
    assert_eq!(steps.texts("late").len(), 3);
}

#[test]
fn what_cannot_be_read_after_a_failed_sync_is_not_settled() {
    let steps = Steps::new(|config| config);
    steps.doors.shut("ann/Maildir", Door::Hangs);
    steps.deliver(message(&["ann"], "a needle\r\n"));
    steps.doors.wait_until_held("ann/Maildir");
    steps.doors.shut(SYNC, Door::Fails);
    assert!(steps.core().checkpoint().is_err());
    steps.flip("a needle");
    steps.doors.open("ann/Maildir");
    steps.until("it waits", || steps.waiting() == 1);
    assert!(steps.journaled.waiting()[0].error.contains("cannot be read"), "{:?}", steps.journaled.waiting());
    assert_eq!(steps.journaled.stats().journal.live_records, 1);
    steps.flip("a needle");
    steps.try_again_after(2);
    steps.until("delivered anew", || steps.waiting() == 0);
    assert_eq!(steps.texts("ann"), ["Delivered-To: ann\na needle\n"]);
}

/// "a needle" has reached `ann`, whose file is given, and waits for `bad`; then a sync has failed.
fn half_delivered_when_a_sync_failed() -> (Steps, std::path::PathBuf) {
    let steps = Steps::new(|config| config);
    steps.doors.shut("bad/Maildir", Door::Fails);
    steps.deliver(message(&["ann", "bad"], "a needle\r\n"));
    steps.until("the first attempt", || steps.waiting() == 1);
    let ann = only_file(&steps, "ann");
    steps.doors.shut(SYNC, Door::Fails);
    assert!(steps.core().checkpoint().is_err());
    steps.doors.open(SYNC);
    (steps, ann)
}

#[test]
fn what_could_not_be_read_after_a_failed_sync_is_still_written_anew_when_it_can_be() {
    let (steps, ann) = half_delivered_when_a_sync_failed();
    let _held = std::fs::File::open(&ann).expect("readable");
    let before = inode(&ann);

    steps.doors.shut("bad/Maildir", Door::Hangs);
    steps.try_again_after(2);
    steps.doors.wait_until_held("bad/Maildir");
    steps.flip("a needle");
    steps.doors.open("bad/Maildir");
    steps.until("put by again", || steps.journaled.waiting()[0].attempts == 2);
    assert!(steps.journaled.waiting()[0].error.contains("cannot be read"), "{:?}", steps.journaled.waiting());
    steps.core().checkpoint().expect("a checkpoint that does not hear of the failure");
    steps.flip("a needle");
    assert_eq!(steps.place.promised(), [["ann/Maildir", "bad/Maildir"]], "its file may be in the page cache alone");

    steps.try_again_after(5);
    steps.until("delivered", || steps.waiting() == 0);
    assert_ne!(inode(&ann), before, "delivered before the sync that failed");
    assert_eq!(steps.texts("ann"), ["Delivered-To: ann\na needle\n"]);
    assert_eq!(steps.texts("bad"), ["Delivered-To: bad\na needle\n"]);
}

#[test]
fn a_failed_sync_is_not_forgotten_by_those_that_succeed_nor_by_the_next_opening() {
    let (steps, ann) = half_delivered_when_a_sync_failed();
    steps.core().checkpoint().expect("a checkpoint that does not hear of the failure");
    let Steps { place, journaled, .. } = steps;
    drop(journaled);

    std::fs::create_dir_all(place.mail().join("bad")).expect("a directory");
    std::fs::write(place.mail().join("bad/Maildir"), "in the way").expect("a file");
    let mut before = inode(&ann);
    for (opening, waits) in [("with one in the way", true), ("with none", false)] {
        let _held = std::fs::File::open(&ann).expect("readable");
        if !waits {
            std::fs::remove_file(place.mail().join("bad/Maildir")).expect("cleared");
        }
        let (journaled, report) = place.open();
        assert_eq!((report.messages, report.deferred), (1, usize::from(waits)), "{opening}");
        assert_ne!(inode(&ann), before, "{opening}: the old file may be in the page cache alone");
        before = inode(&ann);
        journaled.checkpoint().expect("checkpoint");
        drop(journaled);
    }
    assert_eq!(place.promised(), Vec::<Vec<String>>::new());
}

#[test]
fn the_body_of_a_message_that_is_live_again_stays_until_it_can_be_written_anew() {
    let steps = Steps::new(|config| JournaledConfig { inline_bytes_max: 0, ..config });
    let bodies = || std::fs::read_dir(steps.place.config().journal_dir.join("spool")).expect("a spool").count();
    steps.deliver(message(&["ann"], "in a file\r\n"));
    steps.until("settled", || steps.journaled.stats().journal.live_records == 0);
    steps.flip("Delivered-To: ann");
    steps.doors.shut(SYNC, Door::Fails);
    assert!(steps.core().checkpoint().is_err());
    steps.doors.open(SYNC);
    assert_eq!(steps.journaled.stats().journal.live_records, 1);
    steps.core().checkpoint().expect("a checkpoint of the others");
    assert_eq!(bodies(), 1, "it is promised");
    let waiting = steps.journaled.waiting();
    assert!(waiting.len() == 1 && waiting[0].error.contains("cannot be read"), "{waiting:?}");
    assert_eq!(steps.waiting(), 1);

    steps.flip("Delivered-To: ann");
    steps.core().checkpoint().expect("a checkpoint that can read it");
    assert_eq!((steps.waiting(), steps.journaled.stats().journal.live_records, bodies()), (0, 0, 0));
    assert_eq!(steps.texts("ann"), ["Delivered-To: ann\nin a file\n"]);
}

#[test]
fn no_checkpoint_begins_before_the_last_one_has_written_anew_what_it_found_undurable() {
    let steps = Steps::new(|config| config);
    steps.deliver(message(&["ann"], "a\r\n"));
    steps.until("settled", || steps.journaled.stats().journal.live_records == 0);
    steps.doors.shut(SYNC, Door::Fails);
    steps.doors.shut("ann/Maildir", Door::Hangs);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| steps.core().checkpoint());
        steps.doors.wait_until_held("ann/Maildir");
        let another_may_begin = steps.core().keeper.checkpointing.try_lock().is_ok();
        steps.doors.open("ann/Maildir");
        assert!(checkpoint.join().expect("no panic").is_err());
        assert!(!another_may_begin);
    });
    assert_eq!(steps.journaled.stats().journal.live_records, 0, "written anew and settled");
}

#[test]
fn asking_about_mailboxes_takes_no_lock_until_too_much_waits_for_one() {
    let steps = Steps::new(|config| JournaledConfig { pending_bytes_max: 5, ..config });
    steps.doors.shut("bad/Maildir", Door::Fails);
    steps.deliver(message(&["bad"], "12345"));
    steps.until("it waits", || steps.waiting() == 1);
    let asked = |names: Vec<String>| {
        let (journaled, (told, answer)) = (steps.journaled.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || told.send(journaled.check_mailboxes(names.iter().map(String::as_str)).is_ok()));
        answer
    };
    let alias: Vec<String> =
        (0..1000).map(|user| format!("user{user}/Maildir")).chain(["bad/Maildir".into()]).collect();
    {
        let _held_by_somebody_else = steps.core().keeper.state();
        let answer = asked(alias.clone()).recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(answer, Ok(true), "no more waits than may");
    }
    steps.deliver(message(&["bad"], "6"));
    steps.until("both wait", || steps.waiting() == 2);
    assert_eq!(asked(alias.clone()).recv(), Ok(false));
    assert_eq!(asked(alias[..1000].to_vec()).recv(), Ok(true));
    steps.doors.open("bad/Maildir");
    steps.all_follow_the_probe();
    assert_eq!(asked(alias).recv(), Ok(true));
}
