//! Owners of delivered files.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use posthaste_maildir::{Owners, Ownership};

use super::test_world::{Door, Place, World, message};

/// Permission bits of a mailbox's `new/` and of the files in it.
fn modes(mail: &Path, name: &str) -> (u32, Vec<u32>) {
    let bits = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let dir = mail.join(name).join("Maildir/new");
    let entries = std::fs::read_dir(&dir).expect("a Maildir");
    let mut files: Vec<u32> = entries.map(|entry| bits(&entry.expect("an entry").path())).collect();
    files.sort_unstable();
    (bits(&dir), files)
}

#[test]
fn mail_is_written_for_the_present_owner_of_its_mailbox() {
    let mode = Arc::new(AtomicU32::new(0o600));
    let now = mode.clone();
    let owners = Owners::new(move |path: &str| {
        if path.starts_with("ann") { Ownership::with_mode(now.load(Ordering::Relaxed)) } else { Ownership::default() }
    });
    let doors = Arc::default();
    let world = World::opened(Place::new(&[]), Arc::clone(&doors), |config| super::LocalConfig { owners, ..config });
    doors.shut("ann/Maildir", Door::Fails);
    world.deliver(message(&["ann", "bob"], "it waits\r\n"));
    world.until("it waits", || world.waiting() == 1);
    mode.store(0o640, Ordering::Relaxed);
    doors.open("ann/Maildir");
    world.until_in_time("it is delivered", || world.texts("ann").len() == 1);
    // For files written from now on, though the mailbox is open already.
    mode.store(0o644, Ordering::Relaxed);
    world.deliver(message(&["ann", "bob"], "it comes later\r\n"));
    world.sync();
    let mail = world.place.mail();
    assert_eq!(modes(&mail, "ann"), (0o750, vec![0o640, 0o644]));
    assert_eq!(modes(&mail, "bob"), (0o700, vec![0o600, 0o600]));
}
