//! Mail goes only to the file system that its mount's stream is bound to. Directories that swap places stand for file
//! systems.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::identity::{BoundMounts, MARKER};
use super::report::MountStats;
use super::test_world::{Place, World, message};

fn opened(place: Place) -> World {
    World::opened(place, Arc::default(), |config| config)
}

fn names(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).expect("a directory");
    all.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

fn mount(world: &World, point: &str) -> MountStats {
    world.delivery.stats().mounts.into_iter().find(|mount| &*mount.point == point).expect("its mount")
}

/// A mount at `point` that has had mail and is now replaced by an empty file system; returns where the old one is.
fn replaced(point: &str) -> (Place, PathBuf) {
    let world = if point.is_empty() { World::new(&[]) } else { World::new(&[point]) };
    world.deliver(message(&[&format!("{point}/ann"), "bob"].map(|name| name.trim_start_matches('/')), "before"));
    world.sync();
    let place = world.end();
    let (path, away) = (place.mail().join(point), place.machine().path().join("away"));
    std::fs::rename(&path, &away).expect("moved");
    std::fs::create_dir(&path).expect("made");
    (place, away)
}

#[test]
fn a_foreign_file_system_gets_no_mail_and_the_right_one_all() {
    for (point, ann) in [("big", "big/ann"), ("", "ann")] {
        let (place, away) = replaced(point);
        let path = place.mail().join(point);
        let world = opened(place);
        world.deliver(message(&[ann], "waits"));
        world.until("it is told", || mount(&world, point).absent.is_some());
        let why = mount(&world, point).absent.expect("told");
        assert!(
            why.contains("found none")
                && why.contains(&format!("accept-mount {}", world.place.config().spool_dir.display())),
            "{why}"
        );
        if !point.is_empty() {
            world.deliver(message(&["bob"], "in time"));
            world.until("the others' mail", || world.texts("bob").len() == 2);
        }
        assert_eq!((world.waiting(), names(&path)), (1, Vec::new()));
        std::fs::remove_dir(&path).expect("removed");
        std::fs::rename(&away, &path).expect("moved back");
        world.until("its mail", || world.texts(ann).len() == 2);
        assert_eq!(mount(&world, point).absent, None);
        world.sync();
        assert_eq!(world.held(point).1, 0);
    }
}

#[test]
fn a_file_system_with_another_id_is_another_one() {
    let (place, _) = replaced("big");
    let text = format!("posthaste-mount {:032x}\n", 1);
    std::fs::write(place.mail().join("big").join(MARKER), text).expect("written");
    let world = opened(place);
    world.until("it is told", || mount(&world, "big").absent.is_some());
    let why = mount(&world, "big").absent.expect("told");
    assert!(why.contains("found 00000000000000000000000000000001"), "{why}");
}

#[test]
fn a_mail_directory_that_was_there_is_not_made_again() {
    let (place, away) = replaced("");
    std::fs::remove_dir(place.mail()).expect("removed");
    let world = opened(place);
    world.deliver(message(&["ann"], "waits"));
    world.until("it is told", || mount(&world, "").absent.is_some());
    assert!(!world.place.mail().exists());
    std::fs::rename(&away, world.place.mail()).expect("moved back");
    world.until("its mail", || world.texts("ann").len() == 2);
}

#[test]
fn a_used_mount_that_is_missing_is_named_without_waiting_mail() {
    let place = Place::new(&[]);
    let spool = place.config().spool_dir;
    std::fs::create_dir_all(place.mail().join("big")).expect("the directory that a mount would hide");
    std::fs::create_dir(&spool).expect("made");
    let other = tempfile::tempdir().expect("a directory");
    let id = super::identity::Marker::make(std::fs::File::open(other.path()).expect("open")).expect("made");
    BoundMounts::read(&spool).expect("read").bind(&"big".into(), id).expect("bound");
    let world = opened(place);
    world.deliver(message(&["big/ann", "bob"], "1"));
    world.until("the other's", || world.texts("bob").len() == 1);
    world.until("it is told", || mount(&world, "big").absent.is_some());
    assert!(mount(&world, "big").absent.expect("told").contains("no file system is mounted at"));
    assert_eq!((world.waiting(), names(&world.place.mail().join("big"))), (1, Vec::new()));
}

#[test]
fn a_new_file_system_is_taken_once_it_is_accepted() {
    let (place, _) = replaced("big");
    let world = opened(place);
    world.deliver(message(&["big/ann"], "waits"));
    world.until("it waits", || world.waiting() == 1);
    let place = world.end();
    let bound = BoundMounts::read(&place.config().spool_dir).expect("read");
    assert!(bound.unbind("local:big").expect("unbound"));
    let world = opened(place);
    world.until("its mail", || world.texts("big/ann").len() == 1);
    assert!(world.texts("big/ann")[0].ends_with("waits"));
    let place = world.end();
    let id = BoundMounts::read(&place.config().spool_dir).expect("read").get("big").flatten().expect("bound again");
    let marker = super::identity::Marker::read(std::fs::File::open(place.mail().join("big")).expect("open"));
    assert_eq!(marker.expect("read"), super::identity::Marker::Is(id));
}

#[test]
fn a_mount_lost_under_load_is_named_and_its_mail_waits() {
    for (point, ann, new) in [("big", "big/ann", "big/new"), ("", "ann", "new")] {
        let world = if point.is_empty() { World::new(&[]) } else { World::new(&[point]) };
        world.deliver(message(&[ann], "before"));
        world.until("delivered", || world.texts(ann).len() == 1);
        let (path, away) = (world.place.mail().join(point), world.place.machine().path().join("away"));
        std::fs::rename(&path, &away).expect("moved");
        std::fs::create_dir(&path).expect("made");
        world.deliver(message(&[ann, new], "waits"));
        world.until("both wait", || world.delivery.waiting_mailboxes().len() == 2);
        let why = mount(&world, point).absent.expect("told");
        assert!(why.contains("leads to another file system or directory"), "{why}");
        world.sync();
        assert_eq!(names(&path), [] as [&str; 0]);
        std::fs::remove_dir(&path).expect("removed");
        std::fs::rename(&away, &path).expect("moved back");
        world.until_in_time("its mail", || world.texts(ann).len() == 2 && world.texts(new).len() == 1);
        assert_eq!(mount(&world, point).absent, None);
        world.sync();
        assert_eq!(world.held(point).1, 0);
    }
}

#[test]
fn a_mount_that_takes_no_id_gets_its_mail_and_that_is_told() {
    let place = Place::new(&[]);
    std::fs::create_dir_all(place.mail().join(MARKER)).expect("something of this name");
    let world = opened(place);
    world.deliver(message(&["ann"], "1"));
    world.until("delivered", || world.texts("ann").len() == 1);
    assert!(mount(&world, "").unbound.expect("told").contains(MARKER));
    let place = world.end();
    std::fs::remove_dir(place.mail().join(MARKER)).expect("removed");
    let world = opened(place);
    assert_eq!((mount(&world, "").unbound, names(&world.place.mail()).len()), (None, 2));
}

#[test]
fn without_both_lists_the_mounts_tell_their_ids_or_are_missed() {
    for is_there in [true, false] {
        let world = World::new(&["big"]);
        world.deliver(message(&["big/ann", "bob"], "before"));
        world.sync();
        let place = world.end();
        let spool = place.config().spool_dir;
        let before = BoundMounts::read(&spool).expect("read").streams();
        ["mounts", "mounts.copy"].iter().for_each(|name| std::fs::write(spool.join(name), "x").expect("written"));
        let (path, away) = (place.mail().join("big"), place.machine().path().join("away"));
        if !is_there {
            std::fs::rename(&path, &away).expect("moved");
            std::fs::create_dir(&path).expect("made");
        }
        let world = opened(place);
        world.deliver(message(&["big/ann", "bob"], "after"));
        world.until("the root tells its id", || world.texts("bob").len() == 2);
        if !is_there {
            world.until("it is told", || mount(&world, "big").absent.is_some());
            let why = mount(&world, "big").absent.expect("told");
            assert!(why.contains("found none") && why.contains("accept-mount"), "{why}");
            assert_eq!((world.waiting(), names(&path)), (1, Vec::new()));
            std::fs::remove_dir(&path).expect("removed");
            std::fs::rename(&away, &path).expect("moved back");
        }
        world.until("its mail", || world.texts("big/ann").len() == 2);
        let place = world.end();
        assert_eq!(BoundMounts::read(&place.config().spool_dir).expect("read").streams(), before);
    }
}
