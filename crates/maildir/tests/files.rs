//! Maildirs on a real file system: where links, odd names and other programs come in.

use std::io::{ErrorKind, IoSlice};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_fsops::{Faults, Machine, Tree};
use posthaste_maildir::{
    Host, MailRoot, MailboxPath, Maildir, NameSource, RenamedMail, StoreError, Subdir, SyncBy, SyncMounts, TMP_AGE_MAX,
    UniqueName, Written, deliver_batch, sync,
};

struct Place {
    dir: tempfile::TempDir,
    root: MailRoot,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = MailRoot::open(dir.path()).expect("mail root opens");
        Self { dir, root }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn mailbox(&self) -> Maildir {
        self.root.mailbox(&path("example.org/ann/Maildir")).expect("mailbox opens")
    }
}

fn path(path: &str) -> MailboxPath {
    MailboxPath::parse(path).expect("a valid path")
}

fn name(unique: &str, body: &[u8]) -> UniqueName {
    let size = body.len() as u64;
    UniqueName::new(1_700_000_000, unique, &Host::new("mx"), size, size)
}

fn deliver(maildir: &Maildir, unique: &str, body: &[u8]) -> UniqueName {
    let name = name(unique, body);
    maildir.write_tmp(name.as_str(), &[IoSlice::new(body)]).expect("written");
    maildir.publish(name.as_str()).expect("published");
    name
}

#[test]
fn a_message_goes_through_tmp_into_new_and_is_private() {
    let place = Place::new();
    let maildir = place.mailbox();
    assert!(maildir.is_fresh());
    let name = name("A", b"hello, world");
    let parts = [IoSlice::new(b"hello"), IoSlice::new(b""), IoSlice::new(b", world")];
    maildir.write_tmp(name.as_str(), &parts).expect("written");
    let base = place.path("example.org/ann/Maildir");
    assert_eq!(std::fs::read_dir(base.join("new")).expect("new/").count(), 0);
    maildir.publish(name.as_str()).expect("published");
    assert_eq!(maildir.read(Subdir::New, name.as_str()).expect("readable"), b"hello, world");
    let mode = |path: PathBuf| path.metadata().expect("exists").permissions().mode() & 0o777;
    assert_eq!(mode(base.join("new").join(name.as_str())), 0o600);
    assert_eq!(mode(base.join("new")), 0o700);
    assert_eq!(mode(place.path("example.org")), 0o700);
    place.root.sync().or_else(|e| if e.kind() == ErrorKind::Unsupported { Ok(()) } else { Err(e) }).expect("synced");
    maildir.sync_message(Subdir::New, name.as_str()).expect("synced by itself");
    assert!(!place.mailbox().is_fresh());
}

#[test]
fn more_parts_than_one_writev_takes_arrive_in_order() {
    let place = Place::new();
    let maildir = place.mailbox();
    let numbers: Vec<String> = (0..3000).map(|n| format!("{n} ")).collect();
    let parts: Vec<IoSlice<'_>> = numbers.iter().map(|n| IoSlice::new(n.as_bytes())).collect();
    maildir.write_tmp("many", &parts).expect("written");
    maildir.publish("many").expect("published");
    assert_eq!(maildir.read(Subdir::New, "many").expect("readable"), numbers.concat().as_bytes());
}

#[test]
fn nothing_is_ever_overwritten() {
    let place = Place::new();
    let maildir = place.mailbox();
    let name = deliver(&maildir, "A", b"first");
    maildir.write_tmp(name.as_str(), &[IoSlice::new(b"second")]).expect("written");
    let again = maildir.write_tmp(name.as_str(), &[]).expect_err("tmp has it");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    let again = maildir.publish(name.as_str()).expect_err("new has it");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert_eq!(maildir.read(Subdir::New, name.as_str()).expect("readable"), b"first");
}

#[test]
fn links_on_the_way_to_a_mailbox_are_refused() {
    let place = Place::new();
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    symlink(elsewhere.path(), place.path("linked")).expect("link");
    let refused = |p: &str| place.root.mailbox(&path(p)).expect_err(p).raw_os_error();
    let eloop = Some(rustix::io::Errno::LOOP.raw_os_error());
    assert_eq!(refused("linked"), eloop);
    assert_eq!(refused("linked/Maildir"), eloop);
    // A link in the place of new/ as well, also for a mailbox that is opened by a trusted path.
    drop(place.mailbox());
    let new = place.path("example.org/ann/Maildir/new");
    std::fs::remove_dir(&new).expect("empty");
    symlink(elsewhere.path(), &new).expect("link");
    assert_eq!(refused("example.org/ann/Maildir"), eloop);
    let trusted = Maildir::open_or_create(place.path("example.org/ann/Maildir"));
    assert_eq!(trusted.expect_err("new/ is a link").raw_os_error(), eloop);
    assert_eq!(std::fs::read_dir(elsewhere.path()).expect("dir").count(), 0);
}

#[test]
fn names_that_are_paths_or_too_long_are_refused() {
    let place = Place::new();
    let maildir = place.mailbox();
    for bad in ["../escape", "a/b", "..", ".", "", "nul\0", &"n".repeat(256)] {
        let refused = maildir.write_tmp(bad, &[]).expect_err(bad);
        assert_eq!(refused.kind(), ErrorKind::InvalidFilename, "{bad:?}");
        let refused = maildir.publish(bad).expect_err(bad);
        assert_eq!(refused.kind(), ErrorKind::InvalidFilename, "{bad:?}");
        assert!(maildir.read(Subdir::New, bad).is_err(), "{bad:?}");
    }
    maildir.write_tmp(&"n".repeat(255), &[]).expect("255 bytes fit");
}

#[test]
fn a_file_in_the_place_of_a_mailbox_is_an_error_of_that_mailbox() {
    let place = Place::new();
    std::fs::write(place.path("bob"), b"").expect("written");
    let refused = place.root.mailbox(&path("bob")).expect_err("a file");
    assert_eq!(refused.kind(), ErrorKind::NotADirectory);
    let missing = place.root.existing_mailbox(&path("carol")).expect_err("missing");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn a_handle_notices_that_its_path_leads_elsewhere() {
    let place = Place::new();
    let at = place.path("box");
    let maildir = Maildir::open_or_create(&at).expect("opens");
    assert!(maildir.is_at(&at));
    std::fs::rename(&at, place.path("moved")).expect("renamed");
    assert!(!maildir.is_at(&at));
    let other = Maildir::open_or_create(&at).expect("opens");
    assert!(other.is_at(&at) && !maildir.is_at(&at));
    for dir in ["tmp", "cur"] {
        let maildir = Maildir::open_or_create(&at).expect("opens");
        std::fs::remove_dir(at.join(dir)).expect("removed");
        assert!(!maildir.is_at(&at), "without {dir}");
    }
}

#[test]
fn a_message_is_found_whatever_became_of_its_name() {
    let place = Place::new();
    let maildir = place.mailbox();
    let names: Vec<UniqueName> = (0..20).map(|n| deliver(&maildir, &format!("J{n}"), b"body")).collect();
    let base = place.path("example.org/ann/Maildir");
    for name in &names[10..] {
        let from = base.join("new").join(name.as_str());
        std::fs::rename(from, base.join("cur").join(format!("{}:2,RS", name.key()))).expect("renamed");
    }
    let all = maildir.find_many(names.iter().map(UniqueName::as_str)).expect("scanned");
    assert_eq!(all.len(), 20);
    assert_eq!(all[names[3].key()].dir, Subdir::New);
    let found = &all[names[15].key()];
    assert_eq!((found.dir, found.size), (Subdir::Cur, 4));
    assert_eq!(maildir.find(names[15].as_str()).expect("scanned").as_ref(), Some(found));
    assert_eq!(maildir.find(names[15].key()).expect("scanned").as_ref(), Some(found));
    assert_eq!(maildir.find("1700000000.J99.mx").expect("scanned"), None);
    assert_eq!(maildir.scan().expect("scanned").len(), 20);
}

#[test]
fn a_damaged_message_is_replaced_in_its_place() {
    let place = Place::new();
    let maildir = place.mailbox();
    let name = deliver(&maildir, "A", b"");
    let cur = place.path("example.org/ann/Maildir/cur").join(format!("{name}:2,F"));
    std::fs::rename(place.path("example.org/ann/Maildir/new").join(name.as_str()), &cur).expect("renamed");
    let found = maildir.find(name.as_str()).expect("scanned").expect("there");
    assert_eq!(found.size, 0);
    maildir.replace(&found, &[IoSlice::new(b"whole")]).expect("replaced");
    assert_eq!(std::fs::read(&cur).expect("readable"), b"whole");
    std::fs::remove_file(&cur).expect("removed");
    let gone = maildir.replace(&found, &[IoSlice::new(b"whole")]).expect_err("gone");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(place.path("example.org/ann/Maildir/tmp")).expect("tmp/").count(), 0);
}

#[test]
fn a_message_replaced_during_a_move_stays_one() {
    let place = Place::new();
    let maildir = place.mailbox();
    let name = deliver(&maildir, "A", b"damaged");
    let base = place.path("example.org/ann/Maildir");
    let names = ["new", "cur"].map(|dir| base.join(dir).join(name.as_str()));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // Over nothing: an entry too many stays.
                let one_too_many = names.iter().all(|path| path.exists());
                if one_too_many {
                    return;
                }
                std::fs::rename(&names[0], &names[1]).expect("the one entry");
                std::fs::rename(&names[1], &names[0]).expect("the one entry");
            }
        });
        let mut replaced = 0;
        while replaced < 50 {
            let Some(found) = maildir.find(name.as_str()).expect("scanned") else { continue };
            match maildir.replace(&found, &[IoSlice::new(b"whole")]) {
                Ok(()) => replaced += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(maildir.scan().expect("scanned").len(), 1);
    assert_eq!(std::fs::read_dir(base.join("tmp")).expect("tmp/").count(), 0);
}

#[test]
fn only_old_files_are_cleaned_out_of_tmp() {
    let place = Place::new();
    let maildir = place.mailbox();
    maildir.write_tmp("left-behind", &[IoSlice::new(b"half")]).expect("written");
    let now = SystemTime::now();
    let soon = now + TMP_AGE_MAX - Duration::from_secs(60);
    assert_eq!(maildir.cleanup_tmp(soon, TMP_AGE_MAX).expect("cleaned"), 0);
    let later = now + TMP_AGE_MAX + Duration::from_secs(60);
    assert_eq!(maildir.cleanup_tmp(later, TMP_AGE_MAX).expect("cleaned"), 1);
    assert_eq!(maildir.cleanup_tmp(later, TMP_AGE_MAX).expect("cleaned"), 0);
}

#[test]
fn concurrent_readers_never_see_part_of_a_message() {
    let place = Place::new();
    let maildir = place.mailbox();
    let body = vec![b'x'; 64 * 1024];
    let source = NameSource::new(Host::new("mx")).expect("random bytes");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                let size = body.len() as u64;
                let name = source.next(SystemTime::now(), size, size);
                let (a, b) = body.split_at(1000);
                maildir.write_tmp(name.as_str(), &[IoSlice::new(a), IoSlice::new(b)]).expect("written");
                maildir.publish(name.as_str()).expect("published");
            }
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        loop {
            let last_round = done.load(std::sync::atomic::Ordering::Acquire);
            let mut seen = 0;
            maildir
                .for_each_name(Subdir::New, |name| {
                    let bytes = maildir.read(Subdir::New, name).expect("readable");
                    assert_eq!(bytes.len(), body.len(), "{name}");
                    seen += 1;
                })
                .expect("scanned");
            if last_round {
                assert_eq!(seen, 300);
                break;
            }
        }
    });
}

#[test]
fn a_batch_reaches_all_mailboxes_and_a_bad_one_fails_alone() {
    let place = Place::new();
    let names = NameSource::new(Host::new("mx")).expect("random bytes");
    let boxes: Vec<Arc<Maildir>> =
        (0..5).map(|n| Arc::new(place.root.mailbox(&path(&format!("u{n}"))).expect("opens"))).collect();
    // The third mailbox disappears under its handle.
    std::fs::remove_dir_all(place.path("u2")).expect("removed");
    let bodies: Vec<String> = (0..20).map(|n| format!("message {n}\n")).collect();
    let messages: Vec<_> = bodies.iter().enumerate().map(|(n, body)| (boxes[n % 5].clone(), body.as_bytes())).collect();
    let outcomes = deliver_batch(&mut SyncMounts::new(), &names, SystemTime::now(), &messages);
    assert_eq!(outcomes.len(), 20);
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(name) if n % 5 != 2 => {
                let found = boxes[n % 5].read(Subdir::New, name.as_str()).expect("readable");
                assert_eq!(found, bodies[n].as_bytes());
                assert_eq!(name.wire_size(), Some(bodies[n].len() as u64 + 1));
            }
            Err(StoreError::Message(_)) if n % 5 == 2 => {}
            other => panic!("message {n}: {other:?}"),
        }
    }
}

#[test]
fn a_doubtful_sync_fails_the_whole_batch_and_leaves_nothing() {
    // Elsewhere files are synced one by one, with their own descriptors.
    let machine = Machine::new().expect("a directory whose syncfs is trusted");
    let maildir = Arc::new(Maildir::open_or_create(machine.path().join("box")).expect("opens"));
    assert!(maildir.facts().syncfs_trusted);
    let mut mounts = SyncMounts::new();
    let mut written = Written::default();
    for unique in ["A", "B"] {
        let (name, parts) = (name(unique, b"body"), [IoSlice::new(b"body")]);
        written.write(&mut mounts, maildir.clone(), name, &parts, SyncBy::FileSystem, unique).expect("written");
    }
    // These mounts opened no descriptor before the writes, so a 0 from their syncfs would prove nothing.
    let (synced, outcomes) = sync(&mut SyncMounts::new(), RenamedMail::default(), written);
    assert_eq!(outcomes.len(), 2);
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, Err(StoreError::Sync(_)))), "{outcomes:?}");
    let (published, failed) = synced.publish();
    assert!(published.is_empty() && failed.is_empty());
    assert_eq!(std::fs::read_dir(machine.path().join("box/tmp")).expect("tmp/").count(), 0);
    assert_eq!(maildir.scan().expect("scanned"), []);
}

/// A machine whose `syncfs` is not trusted: only an fsync of each file and directory counts.
fn machine_without_syncfs() -> Machine {
    Machine::boot(&Tree::default(), false, false).expect("a directory")
}

#[test]
fn reading_syncs_nothing_and_the_first_write_syncs_the_way() {
    let machine = machine_without_syncfs();
    let root = MailRoot::open(machine.path()).expect("opens");
    let at = path("example.org/ann/Maildir");
    drop(root.mailbox(&at).expect("made"));
    let maildir = root.existing_mailbox(&at).expect("opens");
    maildir.cleanup_tmp(SystemTime::now(), TMP_AGE_MAX).expect("cleaned");
    maildir.find("nothing").expect("scanned");
    assert_eq!(machine.counts().0, 0, "a file system whose directories have no fsync can be read");
    drop(maildir.draft("first").expect("begun"));
    let syncs = machine.counts().0;
    assert!(syncs >= 4, "{syncs}: Maildir, ann, example.org and the root");
    drop(maildir.draft("second").expect("begun"));
    assert_eq!(machine.counts().0, syncs);
}

#[test]
fn no_fsync_of_a_directory_that_failed_is_repeated_and_believed() {
    let machine = machine_without_syncfs();
    let root = MailRoot::open(machine.path()).expect("opens");
    let [ann, bob, eve] = ["example.org/ann/Maildir", "example.org/bob/Maildir", "eve/Maildir"].map(path);
    let maildir = root.mailbox(&ann).expect("made");
    // Its own directory, that above it, and then what it shares with bob.
    machine.set_faults(Faults { fail_syncs: vec![machine.counts().0 + 3], ..Faults::default() });
    assert!(maildir.draft("name").is_err());
    machine.set_faults(Faults::default());
    assert!(maildir.draft("name").is_err(), "the same handle");
    assert!(root.mailbox(&ann).expect("opens").write_tmp("name", &[]).is_err(), "another one");
    assert!(root.mailbox(&bob).expect("opens").draft("name").is_err(), "another below it");
    assert!(root.mailbox(&eve).expect("opens").draft("name").is_ok(), "not below it");
    let again = MailRoot::open(machine.path()).expect("opens");
    assert!(again.mailbox(&ann).expect("opens").draft("name").is_ok());
}
