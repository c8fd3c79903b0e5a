//! Bodies damaged in the spool while their mail waits.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use posthaste_spool::{Lsn, SpoolAdmin};

use super::table::{State, Table, Task};
use super::test_world::{Door, Doors, PATIENCE, Place, World, message};
use super::{GatheredBody, LineEnds, Losses, LostMailboxMail, MailboxDelivery, MailboxMessage, MailboxTarget};

type LostMails = Arc<Mutex<Vec<LostMailboxMail>>>;

/// Position of the text in a file below a directory of the spool.
fn find(place: &Place, dir: &str, text: &str) -> (PathBuf, u64) {
    for path in std::fs::read_dir(place.config().spool_dir.join(dir)).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text.as_bytes()) {
            return (path, at as u64);
        }
    }
    panic!("{text} is not in {dir}");
}

pub(super) fn flip(place: &Place, dir: &str, text: &str) {
    let (path, at) = find(place, dir, text);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[text.as_bytes()[0] ^ 1], at).unwrap();
}

fn world(place: Place, doors: &Arc<Doors>, told: &LostMails) -> World {
    let told = told.clone();
    let losses = Losses::new(move |lost| told.lock().unwrap().push(lost.clone()));
    World::opened(place, doors.clone(), |mut config| {
        (config.losses, config.intake.inline_bytes_max) = (losses, 100_000);
        config
    })
}

/// Has mail wait for two mailboxes; `damage` then damages one message, whose body begins with "BAD".
fn damaged(body: &str, damage: impl FnOnce(&World)) -> (World, Arc<Doors>, LostMails) {
    let (doors, told) = (Arc::new(Doors::default()), LostMails::default());
    ["ann/Maildir", "bob/Maildir"].iter().for_each(|mailbox| doors.shut(mailbox, Door::Fails));
    let world = world(Place::new(&[]), &doors, &told);
    world.deliver(message(&["ann"], "before"));
    world.deliver(MailboxMessage {
        body: GatheredBody::Memory(vec![Bytes::copy_from_slice(body.as_bytes())]),
        ..message(&["ann", "bob"], "")
    });
    world.deliver(message(&["bob"], "behind"));
    world.until("all wait", || world.waiting() == 3);
    damage(&world);
    ["ann/Maildir", "bob/Maildir"].iter().for_each(|mailbox| doors.open(mailbox));
    (world, doors, told)
}

fn kept(place: &Place) -> usize {
    std::fs::read_dir(place.config().spool_dir.join("kept")).map_or(0, Iterator::count)
}

#[test]
fn a_damaged_body_is_reported_once_and_other_mail_delivered() {
    let large = format!("BAD{}", "x".repeat(300_000));
    let in_ring = |world: &World| flip(&world.place, "ring", "BAD");
    let in_pack = |world: &World| {
        // A body goes into a pack with its whole segment, once that is full.
        (0..20).for_each(|_| drop(world.deliver(message(&["cy"], &"f".repeat(90_000)))));
        world.until("its other mail has arrived", || world.texts("cy").len() == 20);
        assert!(world.spool.spool.pack_oldest(1).unwrap() > 0);
        world.spool.spool.checkpoint().unwrap();
        flip(&world.place, "packs", "BAD");
    };
    let in_file = |world: &World| flip(&world.place, "bodies", "BAD");
    type Damage<'a> = &'a dyn Fn(&World);
    let cases: [(&str, Damage<'_>); 3] = [("BAD one", &in_ring), ("BAD one", &in_pack), (&large, &in_file)];
    for (body, damage) in cases {
        let (world, doors, told) = damaged(body, |world| damage(world));
        world.until_in_time("given up", || world.delivery.stats().given_up == 2);
        let are_there = || ["ann", "bob"].iter().all(|name| world.texts(name).len() == 1);
        world.until_in_time("all others are there", are_there);
        for (name, text) in [("ann", "before"), ("bob", "behind")] {
            assert_eq!(world.texts(name), [format!("Delivered-To: {name}\n{text}")]);
        }
        let mut lost = std::mem::take(&mut *told.lock().unwrap());
        lost.sort_by(|a, b| a.mailbox.cmp(&b.mailbox));
        let mailboxes: Vec<&str> = lost.iter().map(|lost| &*lost.mailbox).collect();
        assert_eq!(mailboxes, ["ann/Maildir", "bob/Maildir"]);
        let mut expected = body.as_bytes().to_vec();
        expected[0] ^= 1;
        for lost in &lost {
            assert_eq!((lost.bytes, lost.is_there), (body.len() as u64, false));
            assert_eq!(std::fs::read(lost.kept.as_ref().expect("kept")).unwrap(), expected);
        }
        // The others' mail may still be in flight.
        world.until_in_time("no body is needed any more", || {
            world.sync();
            world.held("").1 == 0
        });
        let place = world.end();
        assert_eq!(kept(&place), 1);
        let world = self::world(place, &doors, &told);
        assert_eq!((world.report.messages, world.report.given_up, told.lock().unwrap().len()), (0, 0, 0));
    }
}

#[test]
fn mail_given_up_beside_waiting_mail_is_reported_once() {
    let (doors, told) = (Arc::new(Doors::default()), LostMails::default());
    ["ann/Maildir", "bob/Maildir"].iter().for_each(|mailbox| doors.shut(mailbox, Door::Fails));
    let world = world(Place::new(&[]), &doors, &told);
    world.deliver(message(&["bob"], "waits on"));
    world.deliver(message(&["ann"], "BAD"));
    world.until("both wait", || world.waiting() == 2);
    flip(&world.place, "ring", "BAD");
    doors.open("ann/Maildir");
    world.until_in_time("given up", || world.delivery.stats().given_up == 1);
    // Waiting mail is rewritten after it, so that the position passes it.
    world.until_in_time("passed", || world.held("") == (1, 1) || world.held("") == (2, 1));
    world.spool.spool.checkpoint().unwrap();
    let place = killed(world);
    let world = self::world(place, &doors, &told);
    assert_eq!((world.report.given_up, told.lock().unwrap().len()), (0, 1));
    doors.open("bob/Maildir");
    world.until_in_time("it has arrived", || world.texts("bob").len() == 1);
}

/// Ends it like a kill: without a word to the spool.
fn killed(world: World) -> Place {
    let World { delivery, spool, place, .. } = world;
    let (dir, copy) = (place.config().spool_dir, place.config().spool_dir.with_extension("copy"));
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The keeper and the threads of the ring may be at work.
        let before = files_of(&dir);
        if copy_all(&dir, &copy).is_ok() && before.is_ok_and(|before| files_of(&dir).is_ok_and(|it| it == before)) {
            break;
        }
        assert!(Instant::now() < deadline, "the spool is never at rest");
        std::fs::remove_dir_all(&copy).unwrap();
    }
    drop((delivery, spool));
    std::fs::remove_dir_all(place.config().spool_dir).unwrap();
    std::fs::rename(copy, place.config().spool_dir).unwrap();
    place
}

fn copy_all(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let path = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &path)?
        } else {
            std::fs::copy(entry.path(), path)?;
        }
    }
    Ok(())
}

/// Paths, lengths and times of all files.
fn files_of(dir: &Path) -> std::io::Result<Vec<(PathBuf, u64, SystemTime)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let data = entry.metadata()?;
        if data.is_dir() {
            all.extend(files_of(&entry.path())?)
        } else {
            all.push((entry.path(), data.len(), data.modified()?))
        }
    }
    all.sort();
    Ok(all)
}

#[test]
fn what_may_come_back_waits_until_the_operator_gives_it_up() {
    let large = format!("BAD{}", "x".repeat(300_000));
    let (world, doors, told) = damaged(&large, |world| {
        let (path, _) = find(&world.place, "bodies", "BAD");
        std::fs::remove_file(path).unwrap();
    });
    world.until_in_time("the others are there", || world.texts("ann").len() == 1 && world.texts("bob").len() == 1);
    world.until_in_time("tried again", || world.delivery.waiting().iter().any(|waiting| waiting.attempts > 2));
    let waiting = world.delivery.waiting();
    assert_eq!((waiting.len(), world.delivery.stats().given_up), (1, 0));
    assert!(waiting[0].error.contains("its file is missing"), "{}", waiting[0].error);
    let id = Lsn::new(waiting[0].id);
    let place = world.end();
    let spool = place.spool();
    spool.give_up_bodies(&[id]).unwrap();
    drop(spool);
    let world = self::world(place, &doors, &told);
    assert_eq!(world.report.given_up, 2);
    let lost = told.lock().unwrap().clone();
    assert_eq!((lost.len(), lost[0].id, lost[0].kept.clone()), (2, id.get(), None));
    let place = world.end();
    assert_eq!((self::world(place, &doors, &told).report.messages, told.lock().unwrap().len()), (0, 2));
}

#[test]
fn mail_given_up_while_it_is_rewritten_does_not_return() {
    let target = MailboxTarget { mailbox: "ann/Maildir".into(), prefix: Bytes::new() };
    let deliver = MailboxDelivery {
        secs: 1,
        internal_date: 1,
        nonce: 7,
        host: "mx.example".into(),
        line_ends: LineEnds::ToLf,
        body: None,
        large: None,
        targets: vec![(0, target)],
    };
    let mut table: Table<()> = Table::default();
    let [first, again, other] = [10, 11, 12].map(Lsn::new);
    table.insert(first, first, deliver.into(), 5, None, [(0, State::Queued, Task::Write)]);
    table.saw(first);
    assert_eq!(table.laggards(first, Lsn::ZERO, u64::MAX).len(), 1);
    table.take((first, 0));
    assert_eq!(table.gave_up((first, 0)), first);
    assert!(table.carried(first, again), "known, and gone");
    assert!(!table.carried(other, again));
    table.saw(again);
    assert_eq!((table.len(), table.position(), table.bytes()), (0, again, 0));
    assert_eq!(table.take_released().0, other);
}
