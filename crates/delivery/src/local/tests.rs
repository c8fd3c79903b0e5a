//! Local delivery on a real spool and real directories, some of which hang or fail.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use posthaste_fsops::Faults;
use posthaste_intake::{BodyFacts, Destination, IntakeError, Mail, MailPlace, MailRecipient, Reserved, Reserving};
use posthaste_maildir::{Flags, Maildir};
use posthaste_spool::{Batch, Entry, Lsn, Spool};

use super::mounts::stream_of;
use super::test_world::{Door, PATIENCE, Place, Watch, World, mailbox, message};
use super::{GatheredBody, LocalConfig, LocalEntry, MailboxDelivery, MailboxMessage, Visible};
use crate::session::SessionTag;
use crate::{DeliveryError, LineEnds, MailboxTarget};

/// The only file of a mailbox.
fn only_file(world: &World, name: &str) -> PathBuf {
    let dir = world.place.mail().join(name).join("Maildir");
    let files = ["new", "cur"].iter().flat_map(|sub| std::fs::read_dir(dir.join(sub)).expect("a Maildir"));
    let files: Vec<_> = files.map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().expect("one")
}

/// Takes every message for another stream.
struct Other(posthaste_spool::StreamId);

impl Destination for Other {
    fn reserve<'a>(&'a self, _: &'a Mail<'a>, _: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        reserved.entries.push(Entry { stream: self.0, needs_body: true, payload: Bytes::from_static(b"x") });
        Reserving::Done(Ok(()))
    }
}

#[test]
fn an_end_leaves_open_the_intake_of_others() {
    let world = World::new(&[]);
    world.deliver(message(&["ann"], "one\r\n"));
    let (intake, other) = (world.delivery.intake().clone(), Other(world.spool.stream("other").expect("a stream")));
    world.place.runtime.block_on(world.delivery.shutdown());
    assert_eq!(world.texts("ann").len(), 1);
    let closed = world.place.deliver(&world.delivery, message(&["ann"], "two\r\n"));
    assert!(matches!(closed, Err(DeliveryError::Intake(posthaste_intake::IntakeError::Closed))), "{closed:?}");
    let to_ann =
        Mail { recipients: vec![MailRecipient::to(MailPlace::Maildir("ann/Maildir".into()))], ..Mail::default() };
    let body = || GatheredBody::Memory(vec![Bytes::from_static(b"three\r\n")]);
    let accept = |destinations: &[&dyn Destination], mail| {
        world.place.runtime.block_on(intake.accept(destinations, mail, body())).map(drop)
    };
    let refused = accept(&[&world.delivery], &to_ann);
    assert!(matches!(refused, Err(IntakeError::NotTaken(_))), "{refused:?}");
    accept(&[&other], &Mail::default()).expect("others are served");
}

/// Sets the size above which bodies go to files.
fn large_from(inline_bytes_max: u64) -> impl FnOnce(LocalConfig) -> LocalConfig {
    move |mut config| {
        config.intake.inline_bytes_max = inline_bytes_max;
        config
    }
}

fn inode(path: &std::path::Path) -> u64 {
    std::fs::metadata(path).expect("there").ino()
}

/// A spool after a kill: durable messages, and their notes.
pub(super) fn killed_with(
    place: &Place,
    point: &str,
    bodies: &[(&str, &str)],
    notes: impl FnOnce(&[Lsn]) -> Vec<LocalEntry>,
) -> Vec<Lsn> {
    let spool = place.spool();
    let stream = spool.stream(&stream_of(point)).expect("a stream");
    let append = |payload: Bytes, body: Option<&str>| {
        let (tell, told) = std::sync::mpsc::channel();
        let batch = Batch {
            entries: vec![Entry { stream, needs_body: body.is_some(), payload }],
            body: body.map_or(posthaste_spool::Body::None, |body| {
                posthaste_spool::Body::inline(vec![Bytes::copy_from_slice(body.as_bytes())])
            }),
        };
        spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        told.recv().expect("an answer").expect("durable")
    };
    let lsns: Vec<Lsn> = bodies
        .iter()
        .map(|(name, body)| {
            let target = MailboxTarget { mailbox: format!("{name}/Maildir").into(), prefix: Bytes::new() };
            let deliver = MailboxDelivery {
                secs: 1_700_000_000,
                internal_date: 1_600_000_000,
                nonce: 7,
                host: "mx.example".into(),
                line_ends: LineEnds::ToLf,
                body: None,
                large: None,
                targets: vec![(0, target)],
            };
            append(LocalEntry::Deliver(deliver).encode(), Some(body))
        })
        .collect();
    for note in notes(&lsns) {
        append(note.encode(), None);
    }
    spool.abandon();
    lsns
}

pub(super) fn session(place: &Place) -> SessionTag {
    std::fs::create_dir_all(place.mail()).expect("a mail root");
    SessionTag::of(&place.mail()).expect("a tag")
}

#[test]
fn a_message_reaches_each_mailbox_once_and_leaves_nothing() {
    let world = World::new(&["big"]);
    let names = ["ann", "big/bob", "big/cy"];
    let ids = world.deliver(message(&names, "Subject: x\r\n\r\nhello\r\n"));
    world.sync();
    for (name, id) in names.iter().zip(&ids) {
        let found = mailbox(&world.place.mail(), name);
        assert_eq!(found.len(), 1);
        assert!(found[0].0.starts_with(id.as_str()), "{found:?} is not {id}");
        assert_eq!(found[0].1, format!("Delivered-To: {name}\nSubject: x\n\nhello\n"));
    }
    assert_eq!((world.held("").1, world.held("big").1), (0, 0), "each mount has let its body go");
    let place = world.end();
    let world = World::opened(place, Arc::default(), |config| config);
    assert_eq!((world.report.messages, world.report.restored), (0, 0));
    assert_eq!(world.texts("ann").len(), 1);
}

#[test]
fn replay_delivers_what_was_accepted_and_nothing_twice() {
    let place = Place::new(&["big"]);
    killed_with(&place, "", &[("ann", "one"), ("bob", "two")], |_| Vec::new());
    killed_with(&place, "big", &[("big/cy", "three")], |_| Vec::new());
    let world = World::opened(place, Arc::default(), |config| config);
    assert_eq!((world.report.messages, world.report.restored, world.report.deferred), (3, 3, 0));
    for (name, text) in [("ann", "one"), ("bob", "two"), ("big/cy", "three")] {
        assert_eq!(world.texts(name), [text]);
        let came = std::fs::metadata(only_file(&world, name)).expect("there").mtime();
        assert_eq!(came, 1_600_000_000, "INTERNALDATE");
    }
    let place = world.end();
    let world = World::opened(place, Arc::default(), |config| config);
    assert_eq!((world.report.messages, world.report.restored), (0, 0));
}

#[test]
fn mail_seen_in_the_page_cache_and_removed_does_not_return() {
    let place = Place::new(&[]);
    let session = session(&place);
    let visible = |tag, lsn: Lsn| LocalEntry::Visible(Visible { session: tag, targets: vec![(lsn, 0)] });
    let other = SessionTag([9; 24]);
    killed_with(&place, "", &[("ann", "this life"), ("bob", "another life")], |lsns| {
        vec![visible(session, lsns[0]), visible(other, lsns[1])]
    });
    let world = World::opened(place, Arc::default(), |config| config);
    assert_eq!(world.texts("ann"), [] as [&str; 0], "its owner has it");
    assert_eq!(world.texts("bob"), ["another life"], "a power cut came between");
}

/// A kill came before the note that it was visible.
#[test]
fn expunged_mail_gets_no_file_again() {
    let place = Place::new(&[]);
    let lsns = killed_with(&place, "", &[("ann", "expunged"), ("bob", "waits")], |_| Vec::new());
    let expunged = Arc::new([(lsns[0], 0)].into());
    let world = World::opened(place, Arc::default(), |config| LocalConfig { expunged, ..config });
    assert_eq!(world.texts("ann"), [] as [&str; 0]);
    assert_eq!(world.texts("bob"), ["waits"]);
    world.sync();
    assert_eq!(world.held("").1, 0, "both are done");
}

#[test]
fn what_was_durable_is_not_delivered_again_after_a_power_cut() {
    let place = Place::new(&[]);
    let other = SessionTag([9; 24]);
    let lsns = killed_with(&place, "", &[("ann", "durable"), ("bob", "waits")], |lsns| {
        let visible = LocalEntry::Visible(Visible { session: other, targets: vec![(lsns[0], 0)] });
        // The sync began with the following entry.
        let begun = Lsn::new(lsns[1].get() + 2);
        vec![visible, LocalEntry::SyncBegun { session: other }, LocalEntry::Synced { begun }]
    });
    assert_eq!(lsns.len(), 2);
    let world = World::opened(place, Arc::default(), |config| config);
    assert_eq!(world.texts("ann"), [] as [&str; 0], "its owner has taken it since");
    assert_eq!(world.texts("bob"), ["waits"]);
}

#[test]
fn a_failed_sync_rewrites_visible_mail_and_not_removed_mail() {
    let world = World::new(&[]);
    for name in ["ann", "bob", "cy"] {
        world.deliver(message(&[name], "text"));
    }
    world.until("all visible", || ["ann", "bob", "cy"].iter().all(|name| world.texts(name).len() == 1));
    let before = inode(&only_file(&world, "ann"));
    let came = std::fs::metadata(only_file(&world, "ann")).expect("there").mtime();
    // Bob reads his message.
    let maildir = Maildir::open(world.place.mail().join("bob/Maildir")).expect("a Maildir");
    let (_, name) = maildir.scan().expect("names").remove(0);
    let moved = maildir.set_flags(&maildir.find(&name).expect("scanned").expect("there"), Flags::SEEN);
    moved.expect("moved");
    let bobs = inode(&only_file(&world, "bob"));
    std::fs::remove_file(only_file(&world, "cy")).expect("removed");
    world.until("what was noted", || world.delivery.stats().delivered == 3);

    world.doors.shut("sync ", Door::Fails);
    assert!(world.delivery.sync(PATIENCE).is_err());
    world.until("written anew", || world.delivery.stats().delivered == 6);
    assert_eq!(world.held("").1, 3, "nothing is let go");
    assert_ne!(inode(&only_file(&world, "ann")), before, "the old file may never reach the disk");
    assert_eq!(std::fs::metadata(only_file(&world, "ann")).expect("there").mtime(), came);
    let of_bob = only_file(&world, "bob");
    assert_ne!(inode(&of_bob), bobs);
    assert!(of_bob.to_str().expect("UTF-8").ends_with(":2,S"), "where its reader moved it: {of_bob:?}");
    assert_eq!(world.texts("cy"), [] as [&str; 0]);

    world.doors.open("sync ");
    world.sync();
    assert_eq!(world.held("").1, 0);
}

#[test]
fn a_failed_sync_scans_a_mailbox_once_for_all_moved_mail() {
    let world = World::new(&[]);
    const MESSAGES: usize = 40;
    for number in 0..MESSAGES {
        world.deliver(message(&["ann"], &number.to_string()));
    }
    world.until("noted", || world.delivery.stats().delivered == MESSAGES as u64);
    let maildir = Maildir::open(world.place.mail().join("ann/Maildir")).expect("a Maildir");
    for (_, name) in maildir.scan().expect("names") {
        let found = maildir.find(&name).expect("looked for").expect("there");
        maildir.set_flags(&found, Flags::SEEN).expect("moved");
    }
    let before = world.place.machine().dirs_opened();
    world.doors.shut("sync ", Door::Fails);
    assert!(world.delivery.sync(PATIENCE).is_err());
    world.until("written anew", || world.delivery.stats().delivered == 2 * MESSAGES as u64);
    assert_eq!(world.place.machine().dirs_opened() - before, 2, "new/ and cur/");
    assert_eq!(world.texts("ann").len(), MESSAGES);
    world.doors.open("sync ");
    world.sync();
}

#[test]
fn a_mount_whose_syncs_fail_keeps_its_own_mail_and_no_other() {
    let world = World::new(&["bad"]);
    world.doors.shut("sync bad", Door::Fails);
    for _ in 0..3 {
        world.deliver(message(&["ann"], "good"));
        world.deliver(message(&["bad/bob"], "not durable"));
        let failed = world.delivery.sync(PATIENCE).expect_err("one mount fails");
        assert_eq!(failed.iter().map(|failed| &*failed.point).collect::<Vec<_>>(), ["bad"]);
        assert_eq!(world.held("").1, 0, "the other has let go");
    }
    assert_eq!(world.held("bad").1, 3);
    let stats = world.delivery.stats();
    let bad = stats.mounts.iter().find(|mount| &*mount.point == "bad").expect("the mount");
    assert!(bad.sync_error.is_some() && stats.mounts.iter().filter(|mount| mount.sync_error.is_some()).count() == 1);
    world.spool.checkpoint().expect("checkpoints go on");
    world.doors.open("sync bad");
    world.sync();
    assert_eq!(world.held("bad").1, 0);
}

/// Has syncs of the file system at `point` fail from the mail's own sync on. Returns the spool's refusal, if it takes
/// no more.
fn with_a_failing_sync(point: &str, name: &str) -> Option<Arc<str>> {
    let world = World::new(&["other"]);
    world.deliver(message(&[name], "acknowledged"));
    world.until("visible", || world.delivery.stats().delivered == 1);
    // It is prepared concurrently, with syncs of its own.
    let next = world.place.machine().path().join("spool/ring/0000000000000002.seg");
    world.until("the next segment", || next.exists());
    let mailbox = std::fs::File::open(world.place.mail().join(name)).expect("a mailbox");
    let device = posthaste_fsops::declared(&mailbox).map(|declared| declared.device);
    let door = format!("sync {point}");
    world.doors.shut(&door, Door::Hangs);
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| world.delivery.sync(PATIENCE));
        // Earlier batches in the spool are durable; the next sync is the mail's.
        world.doors.wait_until_held(&door);
        world.place.machine().set_faults(Faults { fail_syncs_on: device, ..Faults::default() });
        world.doors.open(&door);
        assert!(syncing.join().expect("no panic").is_err());
    });
    world.place.machine().set_faults(Faults::default());
    let batch = |stream| Batch {
        entries: vec![Entry { stream, needs_body: false, payload: Bytes::from_static(b"x") }],
        body: posthaste_spool::Body::None,
    };
    let stream = world.spool.stream(&stream_of(point)).expect("a stream");
    let (tell, told) = std::sync::mpsc::channel();
    world.spool.append(batch(stream), Box::new(move |outcome| drop(tell.send(outcome))));
    match told.recv().expect("an answer") {
        Err(posthaste_spool::AppendError::Poisoned(why)) => Some(why),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

#[test]
fn a_failed_sync_on_a_disk_of_the_spool_ends_acknowledgements() {
    let why = with_a_failing_sync("", "ann").expect("poisoned");
    // Of the mail, or of a segment that the ring prepares meanwhile on the same device.
    assert!(why.contains("the spool's device has failed: "), "{why}");
    assert_eq!(with_a_failing_sync("other", "other/bob"), None);
}

#[test]
fn a_mount_that_hangs_at_the_start_blocks_nobody() {
    let place = Place::new(&["slow"]);
    killed_with(&place, "slow", &[("slow/ann", "late")], |_| Vec::new());
    killed_with(&place, "", &[("bob", "in time")], |_| Vec::new());
    let doors = Arc::<super::test_world::Doors>::default();
    doors.shut("mount slow", Door::Hangs);
    let world = World::opened(place, doors, |config| LocalConfig {
        open_patience: std::time::Duration::from_millis(200),
        ..config
    });
    world.until("the other mount's mail", || world.texts("bob") == ["in time"]);
    world.deliver(message(&["slow/ann", "bob"], "more"));
    world.until("more of it", || world.texts("bob").len() == 2);
    assert_eq!(world.texts("slow/ann"), [] as [&str; 0]);
    world.doors.open("mount slow");
    world.until("the mount's mail", || world.texts("slow/ann").len() == 2);
    world.sync();
    assert_eq!((world.held("").1, world.held("slow").1), (0, 0));
}

#[test]
fn an_unmounted_place_keeps_its_mail_and_gets_no_files() {
    let place = Place::new(&[]);
    std::fs::create_dir_all(place.mail().join("gone")).expect("the directory that a mount would hide");
    killed_with(&place, "gone", &[("gone/ann", "waits")], |_| Vec::new());
    let world = World::opened(place, Arc::default(), |config| config);
    world.deliver(message(&["gone/ann", "bob"], "waits, too"));
    world.until("the other's", || world.texts("bob").len() == 1);
    let waiting = world.delivery.waiting();
    assert_eq!(waiting.len(), 2);
    assert!(waiting.iter().all(|waiting| waiting.error.contains("mounted")), "{waiting:?}");
    assert!(std::fs::read_dir(world.place.mail().join("gone")).expect("there").next().is_none());
    assert_eq!(world.held("gone").1, 2);
}

#[test]
fn an_unwritable_mailbox_waits_alone_and_gets_its_mail_later() {
    let world = World::new(&[]);
    world.doors.shut("bad/Maildir", Door::Fails);
    for text in ["1", "2", "3"] {
        world.deliver(message(&["bad", "good"], text));
    }
    world.until("they wait", || world.waiting() == 3);
    world.until("the other mailbox has them", || world.texts("good").len() == 3);
    let known = world.delivery.waiting_mailboxes();
    assert_eq!((known.len(), &*known[0].mailbox, known[0].messages, known[0].bytes), (1, "bad/Maildir", 3, 3));
    world.sync();
    assert_eq!(world.held("").1, 3, "all of them are needed still");
    world.doors.open("bad/Maildir");
    world.until_in_time("its mail", || world.texts("bad").len() == 3);
    world.until("nothing waits", || world.waiting() == 0);
    assert_eq!(world.delivery.take_recovered().len(), 1);
    world.sync();
    assert_eq!((world.held("").1, world.texts("good").len()), (0, 3));
}

#[test]
fn all_waiting_mail_is_bounded_and_working_mailboxes_accept() {
    let place = Place::new(&["gone-soon"]);
    let doors = Arc::<super::test_world::Doors>::default();
    for name in ["a", "b", "gone-soon/c"] {
        doors.shut(&format!("{name}/Maildir"), Door::Fails);
    }
    let world = World::opened(place, doors, |config| LocalConfig {
        pending_bytes_max: 1000,
        pending_bytes_max_all: 1500,
        ..config
    });
    let text = "x".repeat(600);
    for (count, name) in ["a", "b", "gone-soon/c"].iter().enumerate() {
        world.delivery.check_mailbox(&format!("{name}/Maildir")).expect("not yet");
        world.deliver(message(&[name], &text));
        world.until("it waits", || world.waiting() == count + 1);
    }
    // Each stays below its limit, and together they exceed theirs.
    for name in ["a", "b", "gone-soon/c"] {
        let refused = world.delivery.check_mailbox(&format!("{name}/Maildir")).expect_err("too much waits");
        assert_eq!(refused.bytes, 600);
    }
    world.delivery.check_mailboxes(["good/Maildir", "gone-soon/good/Maildir"]).expect("these can be written to");
    world.doors.open("a/Maildir");
    world.until_in_time("its mail", || world.texts("a").len() == 1);
    world.until("room for the others", || world.delivery.check_mailbox("b/Maildir").is_ok());
}

#[test]
fn mail_a_mount_cannot_sync_is_bounded_and_rarely_rewritten() {
    let world = World::opened(Place::new(&["bad"]), Arc::default(), |config| LocalConfig {
        pending_bytes_max_all: 1500,
        sync_bytes: 3000,
        ..config
    });
    world.doors.shut("sync bad", Door::Fails);
    let text = "x".repeat(600);
    world.deliver(message(&["bad/ann"], &text));
    world.deliver(message(&["good"], &text));
    assert!(world.delivery.sync(PATIENCE).is_err());
    world.delivery.check_mailbox("bad/bob/Maildir").expect("little waits");
    for _ in 0..3 {
        world.deliver(message(&["bad/ann"], &text));
        world.deliver(message(&["good"], &text));
    }
    world.until("refused", || world.delivery.check_mailbox("bad/bob/Maildir").is_err());
    world.delivery.check_mailbox("good/Maildir").expect("another mount");
    // Each counts for a sync once it is visible again, which alone is no reason to retry.
    world.until("all visible", || world.delivery.stats().delivered >= 9);
    let failed = || world.delivery.stats().syncs_failed;
    assert_eq!(failed(), 1);
    world.pass(31);
    world.delivery.core().mounts.iter().for_each(|mount| mount.tick(true));
    assert_eq!(failed(), 1, "the pauses become longer");
    world.doors.open("sync bad");
    world.until_in_time("tried again", || world.held("bad").1 == 0);
    world.until("all is well", || world.delivery.check_mailbox("bad/bob/Maildir").is_ok());
}

#[test]
fn a_slow_mailbox_is_timed_by_message_not_by_group() {
    let world = World::new(&[]);
    world.doors.shut("slow/Maildir", Door::Hangs);
    for _ in 0..40 {
        world.deliver(message(&["slow"], "text"));
    }
    world.doors.wait_until_held("slow/Maildir");
    // One message after the other takes three seconds each, two minutes in all.
    world.doors.shut("message slow/Maildir", Door::Hangs);
    world.doors.open("slow/Maildir");
    for count in 0..40 {
        world.until("the next one", || world.doors.is_held("message slow/Maildir"));
        world.pass(3);
        world.delivery.core().mounts.iter().for_each(|mount| mount.tick(true));
        assert_eq!(world.waiting(), 0, "at message {count}");
        world.doors.let_one_pass("message slow/Maildir");
    }
    world.doors.open("message slow/Maildir");
    world.until("all of them", || world.texts("slow").len() == 40);
}

#[test]
fn others_are_retried_while_a_rewritten_mailbox_hangs() {
    let world = World::new(&[]);
    world.doors.shut("bad/Maildir", Door::Fails);
    world.deliver(message(&["bad"], "retried"));
    world.deliver(message(&["hangs"], "text"));
    world.until("one waits", || world.waiting() == 1 && world.delivery.stats().delivered == 1);
    world.doors.shut("sync ", Door::Fails);
    world.doors.shut("hangs/Maildir", Door::Hangs);
    assert!(world.delivery.sync(PATIENCE).is_err());
    world.doors.wait_until_held("hangs/Maildir");
    world.doors.open("bad/Maildir");
    world.until_in_time("the other one is retried", || world.texts("bad").len() == 1);
    world.doors.open("hangs/Maildir");
    world.doors.open("sync ");
    world.until("written anew", || world.delivery.stats().delivered == 3);
    world.sync();
    assert_eq!(world.held("").1, 0);
}

#[test]
fn a_large_body_waits_for_room_as_a_small_one_does() {
    let world = World::opened(Place::new(&[]), Arc::default(), large_from(1000));
    let left = &world.spool.hooks.uploads_refused;
    left.store(3, Ordering::Relaxed);
    world.deliver(message(&["ann"], &"x".repeat(2000)));
    left.store(3, Ordering::Relaxed);
    world.place.runtime.block_on(world.delivery.intake().upload_when_room(0)).expect("room at the fourth attempt");
    assert_eq!(left.load(Ordering::Relaxed), 0);
}

#[test]
fn a_large_body_that_timed_out_makes_others_fail_at_once() {
    let world = World::new(&[]);
    let left = &world.spool.hooks.uploads_refused;
    let upload = || world.place.runtime.block_on(world.delivery.intake().upload_when_room(0));
    left.store(u64::MAX, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(world.delivery.intake().upload_when_room(0))
        });
        world.until_in_time("it has waited", || first.is_finished());
        assert!(matches!(first.join().expect("ended"), Err(IntakeError::Full(_))));
    });
    left.store(1, Ordering::Relaxed);
    assert!(matches!(upload(), Err(IntakeError::Full(_))), "without another attempt");
    assert!(upload().is_ok());
    left.store(1, Ordering::Relaxed);
    assert!(upload().is_ok(), "it waits again");
}

#[test]
fn a_large_body_is_rewritten_in_pieces() {
    let world = World::opened(Place::new(&[]), Arc::default(), large_from(1000));
    let line = "0123456789abcdef\r\n".repeat(200_000);
    world.deliver(message(&["ann"], &line));
    let mut writer = world.delivery.intake().upload(0).expect("room");
    let large = world.place.runtime.block_on(async {
        for piece in line.as_bytes().chunks(70_001) {
            writer.write(piece).await.expect("written");
        }
        writer.finish().await.expect("durable")
    });
    world.deliver(MailboxMessage { body: GatheredBody::Large(large), ..message(&["bob"], "") });
    assert_eq!(world.spool.stats().large_bodies, 2);
    world.until("visible", || world.delivery.stats().delivered == 2);
    world.doors.shut("sync ", Door::Fails);
    assert!(world.delivery.sync(PATIENCE).is_err());
    world.until("written anew", || world.delivery.stats().delivered == 4);
    world.doors.open("sync ");
    world.sync();
    let plain = line.replace('\r', "");
    for name in ["ann", "bob"] {
        assert_eq!(world.texts(name), [format!("Delivered-To: {name}\n{plain}")]);
        let file = only_file(&world, name);
        let sizes = format!(",S={},W={}", plain.len() + 15 + name.len(), line.len() + 16 + name.len());
        assert!(file.to_str().expect("UTF-8").contains(&sizes), "{file:?} {sizes}");
    }
    let largest = world.spool.hooks.largest_read.load(Ordering::Relaxed);
    assert!(largest > 0 && largest <= 1 << 20, "{largest}");
    // Repeated: a later checkpoint removes what the first releases.
    (0..3).for_each(|_| world.spool.checkpoint().expect("a checkpoint"));
    assert_eq!(world.spool.stats().large_bodies, 0);
}

#[test]
fn memory_for_bodies_is_given_back_whatever_becomes_of_them() {
    let world = World::opened(Place::new(&["big"]), Arc::default(), |mut config| {
        config.intake.backlog_bytes = 64 << 10;
        config
    });
    world.doors.shut("bad/Maildir", Door::Fails);
    world.doors.shut("hangs/Maildir", Door::Hangs);
    let text = "x".repeat(3000);
    for name in ["bad", "hangs", "good", "big/good"] {
        (0..3).for_each(|_| drop(world.deliver(message(&[name, "good"], &text))));
    }
    world.doors.wait_until_held("hangs/Maildir");
    // Larger on its mounts together than the whole memory budget: not kept in memory at all.
    world.deliver(message(&["good", "big/good"], &"y".repeat(40 << 10)));
    let is_whole = || world.delivery.intake().budget().is_whole();
    world.until_in_time("all of it", is_whole);
    let refused = world.place.deliver(&world.delivery, message(&["good"], &"z".repeat(2 << 20)));
    assert!(refused.is_ok(), "{refused:?}");
    world.until_in_time("all of it again", is_whole);
    world.doors.open("hangs/Maildir");
}

#[test]
fn waiting_mail_does_not_keep_later_mail_in_the_spool() {
    let world = World::new(&[]);
    world.doors.shut("bad/Maildir", Door::Fails);
    let waiting = world.deliver(message(&["bad", "good"], "waits"));
    world.until("it waits", || world.waiting() == 1);
    for _ in 0..200 {
        world.deliver(message(&["good"], "text"));
    }
    world.sync();
    let (entries, bodies) = world.held("");
    assert!(
        entries > 200 && bodies == 201,
        "{entries} entries, {bodies} bodies: nothing is forgotten after what waits"
    );
    // The spool needs the space.
    let mount = world.delivery.core().mounts[0].clone();
    posthaste_spool::Consumer::advance_wanted(&*mount, world.spool.stats().published);
    world.until("what waits was written down anew", || world.held("").0 < 20);
    assert_eq!(world.held("").1, 1, "its body is where it was");
    drop(mount);
    let place = world.end();
    // Visible from outside, too: durable targets are not listed, and the reason of the wait is known.
    let closed = posthaste_spool::ClosedFileSpool::open(&place.config().spool_dir).expect("opens");
    let undelivered = super::inspect::undelivered(&closed).expect("readable");
    drop(closed);
    let [message] = &undelivered[..] else { panic!("{undelivered:?}") };
    let [to] = &message.mailboxes[..] else { panic!("{undelivered:?}") };
    assert!(&*to.mailbox == "bad/Maildir" && to.trouble.is_some(), "{to:?}");
    let doors = Arc::<super::test_world::Doors>::default();
    doors.shut("bad/Maildir", Door::Fails);
    let world = World::opened(place, doors, |config| config);
    assert_eq!((world.report.messages, world.waiting()), (1, 1));
    world.doors.open("bad/Maildir");
    world.until_in_time("its mail", || world.texts("bad").len() == 1);
    let name = mailbox(&world.place.mail(), "bad").remove(0).0;
    assert!(name.starts_with(waiting[0].as_str()), "{name} is not {}", waiting[0]);
    world.sync();
    assert_eq!(world.held("").1, 0);
}

#[test]
fn without_room_for_the_note_there_is_no_sync() {
    let world = World::new(&[]);
    world.deliver(message(&["ann"], "text"));
    world.until("visible", || world.delivery.stats().delivered == 1);
    world.doors.shut("sync ", Door::Hangs);
    let mount = world.delivery.core().mounts[0].clone();
    world.spool.hooks.refuse_entries(true);
    let outcome = mount.sync_now(std::time::Instant::now() + PATIENCE).expect("it did not hang");
    assert!(outcome.is_err_and(|error| error.contains("did not accept the entry")));
    world.spool.hooks.refuse_entries(false);
    world.doors.open("sync ");
    world.sync();
    assert_eq!(world.held("").1, 0);
}

#[test]
fn a_large_body_waits_for_room_and_leaves_no_file_on_timeout() {
    let world = World::opened(Place::new(&[]), Arc::default(), large_from(1000));
    let text = "x".repeat(5000);
    let deliver = || world.place.deliver(&world.delivery, message(&["ann"], &text));
    let files = || std::fs::read_dir(world.place.machine().path().join("spool/bodies")).expect("a spool").count();
    world.spool.hooks.refuse_entries(true);
    std::thread::scope(|scope| {
        let first = scope.spawn(deliver);
        world.until("it waits", || world.spool.hooks.refused.load(Ordering::Relaxed) > 1);
        world.spool.hooks.refuse_entries(false);
        first.join().unwrap().expect("there is room now");
    });
    world.until("visible", || world.texts("ann") == [format!("Delivered-To: ann\n{text}")]);
    assert_eq!((files(), world.spool.stats().large_bodies), (1, 1));
    world.spool.hooks.refuse_entries(true);
    std::thread::scope(|scope| {
        let second = scope.spawn(deliver);
        world.until_in_time("it has waited", || second.is_finished());
        assert!(second.join().unwrap().is_err());
    });
    assert_eq!((files(), world.spool.stats().large_bodies), (1, 1), "nothing is left of what was refused");
}

#[test]
fn after_one_wait_in_vain_no_message_waits_until_there_is_room() {
    let world = World::new(&[]);
    world.spool.hooks.refuse_entries(true);
    let is_refused = || world.place.deliver(&world.delivery, message(&["ann"], "x")).is_err();
    std::thread::scope(|scope| {
        let first = scope.spawn(is_refused);
        world.until_in_time("it has waited", || first.is_finished());
        assert!(first.join().unwrap());
        // The clock stands still now, so the wait for space has no end.
        let second = scope.spawn(is_refused);
        world.until("it is refused at once", || second.is_finished());
        assert!(second.join().unwrap());
    });
    world.spool.hooks.refuse_entries(false);
    world.deliver(message(&["ann"], "there is room"));
    world.spool.hooks.refuse_entries(true);
    std::thread::scope(|scope| {
        let third = scope.spawn(is_refused);
        world.until_in_time("it has waited", || third.is_finished());
        assert!(third.join().unwrap());
    });
}

#[test]
fn what_a_later_version_wrote_stays_in_the_spool() {
    let place = Place::new(&[]);
    killed_with(&place, "", &[("ann", "text")], |_| Vec::new());
    {
        let spool = place.spool();
        let stream = spool.stream(&stream_of("")).expect("a stream");
        let entry = Entry { stream, needs_body: false, payload: Bytes::from_static(&[9, 9, 9]) };
        spool.append(Batch { entries: vec![entry], body: posthaste_spool::Body::None }, Box::new(|_| ()));
    }
    let world = World::opened(place, Arc::default(), |config| config);
    assert_eq!((world.report.unknown.len(), world.texts("ann").len()), (1, 1));
    world.sync();
    assert_eq!(world.held("").1, 0, "what is known is let go");
    let place = world.end();
    assert_eq!(World::opened(place, Arc::default(), |config| config).report.unknown.len(), 1);
}

#[test]
fn paths_out_of_the_mail_root_are_refused() {
    let world = World::new(&[]);
    for mailbox in ["../out", "/etc", "a//b", ""] {
        let mut message = message(&["x"], "text");
        message.targets[0].mailbox = mailbox.into();
        let refused = world.place.deliver(&world.delivery, message);
        assert!(matches!(refused, Err(DeliveryError::BadMailbox(_))), "{mailbox}: {refused:?}");
    }
    let nobody = MailboxMessage { targets: Vec::new(), ..message(&["x"], "text") };
    assert!(matches!(world.place.deliver(&world.delivery, nobody), Err(DeliveryError::BadMailbox(_))));
}

#[test]
fn a_stream_that_cannot_be_read_is_stuck_and_the_others_serve() {
    let world = World::new(&["big"]);
    world.doors.shut("big/ann/Maildir", Door::Fails);
    world.deliver(message(&["big/ann"], "waits"));
    world.until("it waits", || world.waiting() == 1);
    let stream = world.spool.stream(&stream_of("big")).expect("a stream");
    let world = World::opened_with(world.end(), Arc::default(), Watch::not_reading(stream), |config| config);
    let mounts = world.delivery.stats().mounts;
    let big = mounts.iter().find(|mount| &*mount.point == "big").expect("its mount");
    assert!(big.is_stuck && big.absent.as_ref().is_some_and(|why| why.contains("cannot read batch")), "{big:?}");
    world.deliver(message(&["bob"], "served"));
    world.until("the others' mail", || world.texts("bob").len() == 1);
    assert!(world.delivery.is_stuck("big/ann/Maildir") && !world.delivery.is_stuck("bob/Maildir"));
    let refused = world.place.deliver(&world.delivery, message(&["bob", "big/ann"], "no"));
    assert!(matches!(refused, Err(DeliveryError::Intake(IntakeError::Full(_)))), "{refused:?}");
    // Includes the note of its failure.
    assert_eq!(world.held("big"), (2, 1));
    let world = World::opened(world.end(), Arc::default(), |config| config);
    world.until("its mail", || world.texts("big/ann").len() == 1);
    assert_eq!(
        (world.texts("big/ann"), world.texts("bob").len()),
        (vec!["Delivered-To: big/ann\nwaits".to_owned()], 1)
    );
}
