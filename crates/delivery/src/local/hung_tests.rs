//! Hanging mounts: the threads that they hold, and the progress of other mounts.

use std::time::Duration;

use super::test_world::{Door, PATIENCE, World, message};

#[test]
fn a_mount_that_hangs_takes_no_threads_from_others() {
    let world = World::new(&["slow"]);
    let mailboxes: Vec<String> = (0..80).map(|number| format!("slow/m{number}")).collect();
    for name in &mailboxes {
        world.doors.shut(&format!("{name}/Maildir"), Door::Hangs);
        world.deliver(message(&[name], "late"));
    }
    world.doors.wait_until_held("slow/m0/Maildir");
    world.doors.shut("sync slow", Door::Hangs);
    for _ in 0..20 {
        world.deliver(message(&["ann", "bob"], "in time"));
    }
    world.until("the other mount's mail", || world.texts("ann").len() == 20 && world.texts("bob").len() == 20);
    // None of it waits in memory, and it is reported.
    world.until_in_time("all of it waits in the spool", || world.waiting() == 80);
    assert!(world.delivery.waiting().iter().all(|waiting| waiting.mailboxes.len() == 1));
    let other = world.delivery.core().mounts.iter().find(|mount| mount.files.point().is_empty()).expect("the root's");
    other.sync_now(std::time::Instant::now() + PATIENCE).expect("it answers").expect("synced");
    assert_eq!(world.held("").1, 0);
    world.doors.open("sync slow");
    mailboxes.iter().for_each(|name| world.doors.open(&format!("{name}/Maildir")));
    world.until_in_time("the mount's mail", || mailboxes.iter().all(|name| world.texts(name).len() == 1));
    world.sync();
    assert_eq!(world.held("slow").1, 0);
}

#[test]
fn a_hanging_mount_holds_a_bounded_number_of_threads() {
    let world = World::new(&["slow"]);
    let mailboxes: Vec<String> = (0..200).map(|number| format!("slow/m{number}")).collect();
    for name in &mailboxes {
        world.doors.shut(&format!("{name}/Maildir"), Door::Hangs);
        world.deliver(message(&[name], "late"));
    }
    let slow = world.delivery.core().mounts.iter().find(|mount| **mount.files.point() == *"slow").expect("the mount");
    // Too short to give anything up, and long enough for one more thread.
    let look = || {
        *world.clock.lock().unwrap() += Duration::from_millis(101);
        slow.tick(false);
    };
    // One after the other: threads that hang for longer are not counted any more.
    while world.doors.held() < THREADS - 1 {
        let before = world.doors.held();
        look();
        world.until("one more thread hangs", || world.doors.held() > before);
    }
    (0..20).for_each(|_| look());
    world.until_in_time("all of it waits in the spool", || world.waiting() == 200);
    for round in 0..5 {
        world.deliver(message(&["ann", "bob"], "in time"));
        world.until_in_time("the other mount's mail", || world.texts("bob").len() == round + 1);
    }
    assert!(world.doors.held() < THREADS, "{} threads at mailboxes, and one syncs", world.doors.held());
    mailboxes.iter().for_each(|name| world.doors.open(&format!("{name}/Maildir")));
    world.until_in_time("the mount's mail", || mailboxes.iter().all(|name| world.texts(name).len() == 1));
}

/// Most threads of a mount.
const THREADS: usize = 64;
