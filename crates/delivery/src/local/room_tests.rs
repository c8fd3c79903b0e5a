//! Mail for file systems with little space left.

use std::sync::Arc;

use posthaste_fsops::Space;

use super::test_world::{Place, World, message};
use super::{LocalConfig, MountStats};

/// A file system with this many bytes above the usual floor.
fn above(bytes: u64) -> Space {
    Space { bytes: LocalConfig::new("", "").free_bytes_min + bytes, inodes: 1 << 20 }
}

/// Sets the free space of the mail mount at "big".
fn set_space(place: &Place, space: Space) {
    place.machine().set_space(&place.mail().join("big"), space);
}

fn stats(world: &World, point: &str) -> MountStats {
    let mounts = world.delivery.stats().mounts;
    mounts.into_iter().find(|mount| &*mount.point == point).expect("a mount")
}

#[test]
fn mail_waits_for_disk_room_and_is_delivered_at_once_after() {
    for space in [above(100), Space { inodes: 500, ..above(1 << 30) }] {
        let world = World::new(&["big"]);
        set_space(&world.place, space);
        let ids = world.deliver(message(&["ann", "big/bob"], "text"));
        world.deliver(message(&["big/cy"], "text"));
        world.until("they wait", || world.waiting() == 2);
        world.until("the other mount has its mail", || world.texts("ann").len() == 1);
        let made = std::fs::read_dir(world.place.mail().join("big")).unwrap();
        assert_eq!(
            made.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(),
            0,
            "not even a directory is made"
        );
        let why = stats(&world, "big").short_of_space.expect("it is told");
        assert!(why.contains("would have less than"), "{why}");
        assert_eq!(stats(&world, "").short_of_space, None);
        world.sync();
        assert_eq!((world.held("").1, world.held("big").1), (0, 2));
        // Tried in vain so often that the next try is minutes away.
        let attempts = || world.delivery.waiting_mailboxes().iter().map(|waiting| waiting.attempts).min();
        world.until_in_time("many tries", || attempts() >= Some(8));
        assert!(world.delivery.waiting_mailboxes().iter().all(|waiting| waiting.error == why), "the reason stays");

        set_space(&world.place, above(1 << 20));
        world.pass(1);
        world.until("its mail", || ["big/bob", "big/cy"].iter().all(|name| world.texts(name).len() == 1));
        world.until("nothing waits", || world.waiting() == 0);
        assert_eq!((stats(&world, "big").short_of_space, world.texts("ann").len()), (None, 1));
        let name = super::test_world::mailbox(&world.place.mail(), "big/bob").remove(0).0;
        assert!(name.starts_with(ids[1].as_str()), "{name} is not {}", ids[1]);
        world.sync();
        assert_eq!(world.held("big").1, 0);
    }
}

#[test]
fn mail_waiting_for_room_is_bounded_by_mailbox_and_mount() {
    let world = World::opened(Place::new(&["big"]), Arc::default(), |config| LocalConfig {
        pending_bytes_max: 1000,
        pending_bytes_max_all: 1500,
        ..config
    });
    set_space(&world.place, above(0));
    let text = "x".repeat(600);
    let is_taken = |name: &str| world.delivery.check_mailbox(&format!("{name}/Maildir")).is_ok();
    let deliver = |name: &str, waiting| {
        assert!(is_taken(name));
        world.deliver(message(&[name], &text));
        world.until("it waits", || world.waiting() == waiting);
    };
    deliver("big/ann", 1);
    deliver("big/ann", 2);
    assert!(!is_taken("big/ann") && is_taken("big/bob"), "one mailbox has more than it may");
    deliver("big/bob", 3);
    assert!(!is_taken("big/bob") && !is_taken("big/cy"), "also where nothing waits yet");
    assert!(is_taken("dan"), "another mount");
    set_space(&world.place, Space::MAX);
    world.pass(1);
    world.until("all is taken again", || ["big/ann", "big/bob", "big/cy"].iter().all(|name| is_taken(name)));
    world.until("all mail", || world.texts("big/ann").len() == 2 && world.texts("big/bob").len() == 1);
}

#[test]
fn a_start_below_the_floor_keeps_mail_and_delivers_it_once() {
    let world = World::new(&["big"]);
    set_space(&world.place, above(0));
    world.deliver(message(&["big/ann"], "text"));
    world.until("it waits", || world.waiting() == 1);
    let world = World::opened(world.end(), Arc::default(), |config| config);
    assert_eq!((world.report.messages, world.report.deferred, world.waiting()), (1, 1, 1));
    set_space(&world.place, Space::MAX);
    world.pass(1);
    world.until("its mail", || world.texts("big/ann") == ["Delivered-To: big/ann\ntext"]);
    world.sync();
    assert_eq!(world.held("big").1, 0);
}
