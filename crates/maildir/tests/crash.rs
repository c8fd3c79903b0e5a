//! Batches and keyword tables on a machine whose power goes before every call.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::SystemTime;

use posthaste_fsops::{Choice, Cut, Machine, Recording, Tree};
use posthaste_maildir::{Flags, Found, Host, Maildir, NameSource, Subdir, SyncMounts, deliver_batch};

/// Seeds for each position.
const SEEDS: u64 = 6;
const KEYWORDS: [&str; 5] = ["$Forwarded", "Junk", "NonJunk", "later", "receipts"];

fn body(number: u64) -> Vec<u8> {
    format!("Number: {number}\n\n{}\n", "text ".repeat(number as usize * 40)).into_bytes()
}

/// Every disk that a cut may leave, with the position of the cut.
fn cuts(recording: &Recording, trusted: bool) -> impl Iterator<Item = (Cut, Machine)> {
    let positions = 0..=recording.events.len();
    let cuts =
        positions.flat_map(move |position| (0..SEEDS).map(move |seed| Cut { position, choice: Choice::Seed(seed) }));
    cuts.map(move |cut| (cut, Machine::boot(&recording.cut(cut), trusted, recording.ordered_log).expect("a directory")))
}

/// A machine with an empty disk for each kind of file system: with a `syncfs` that is believed, and without.
fn machines() -> impl Iterator<Item = (Machine, bool)> {
    let kinds = [(true, false), (true, true), (false, false), (false, true)];
    kinds.into_iter().map(|(trusted, ordered_log)| {
        (Machine::boot(&Tree::default(), trusted, ordered_log).expect("a directory"), trusted)
    })
}

#[test]
fn a_batch_is_whole_and_durable_wherever_the_power_goes() {
    machines().for_each(|(machine, trusted)| check_batches(&machine, trusted));
}

fn check_batches(machine: &Machine, trusted: bool) {
    let names = NameSource::new(Host::new("rig.example")).expect("names");
    let mut mounts = SyncMounts::new();
    let mut number = 0;
    // As another program makes it, or one of ours that is killed right after.
    posthaste_fsops::mkdir(machine.path().join("a"), rustix::fs::Mode::RWXU).expect("a directory");
    posthaste_fsops::mkdir(machine.path().join("a/new"), rustix::fs::Mode::RWXU).expect("a directory");
    for _ in 0..3 {
        let mailboxes =
            ["a", "b"].map(|name| Arc::new(Maildir::open_or_create(machine.path().join(name)).expect("a mailbox")));
        let bodies: Vec<Vec<u8>> = (number..number + 6).map(body).collect();
        let batch: Vec<_> =
            bodies.iter().enumerate().map(|(at, body)| (mailboxes[at % 2].clone(), &body[..])).collect();
        for outcome in deliver_batch(&mut mounts, &names, SystemTime::now(), &batch) {
            outcome.expect("delivered");
            machine.acknowledge(number);
            number += 1;
        }
    }
    assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new());
    let recording = machine.recording();
    for (cut, left) in cuts(&recording, trusted) {
        let mut found = Vec::new();
        for maildir in ["a", "b"].iter().filter_map(|name| Maildir::open(left.path().join(name)).ok()) {
            for (dir, name) in maildir.scan().expect("names") {
                let octets = maildir.read(dir, &name).expect("a message");
                found.push(
                    (0..number).find(|number| body(*number) == octets).unwrap_or_else(|| panic!("{cut}: half {name}")),
                );
            }
        }
        found.sort_unstable();
        assert!(found.windows(2).all(|pair| pair[0] != pair[1]), "{cut}: twice in {found:?}");
        let lost = recording.acknowledged_before(cut.position).find(|number| !found.contains(number));
        assert_eq!(lost, None, "{cut}");
    }
}

#[test]
fn a_keyword_that_has_a_letter_keeps_it_wherever_the_power_goes() {
    machines().for_each(|(machine, trusted)| check_keywords(&machine, trusted));
}

fn check_keywords(machine: &Machine, trusted: bool) {
    let maildir = Arc::new(Maildir::open_or_create(machine.path().join("a")).expect("a mailbox"));
    let names = NameSource::new(Host::new("rig.example")).expect("names");
    let message = body(1);
    let mut mounts = SyncMounts::new();
    let delivered = deliver_batch(&mut mounts, &names, SystemTime::now(), &[(maildir.clone(), &message)]).remove(0);
    let mut at = maildir.find(delivered.expect("delivered").as_str()).expect("scanned").expect("there");
    let durable = machine.position();
    let mut letters = Vec::new();
    for (number, keyword) in (0..).zip(KEYWORDS) {
        letters.push(maildir.keyword_flag(keyword, SystemTime::now()).expect("a letter"));
        machine.acknowledge(number);
        // Unsynced: the flag may be lost, the message may not.
        at = maildir.change_flags(&at, letters[number as usize], Flags::NONE).expect("renamed");
    }
    let recording = machine.recording();
    for (cut, left) in cuts(&recording, trusted).filter(|(cut, _)| cut.position >= durable) {
        let maildir = Maildir::open(left.path().join("a")).expect("it was durable");
        let table = maildir.keywords().expect("a table");
        for number in recording.acknowledged_before(cut.position) {
            let (keyword, letter) = (KEYWORDS[number as usize], letters[number as usize]);
            assert_eq!(table.flag(keyword), Some(letter), "{cut}: {keyword}");
        }
        let all = maildir.scan().expect("names");
        let [(dir, name)] = &all[..] else { panic!("{cut}: {all:?}") };
        assert_eq!(maildir.read(*dir, name).expect("a message"), message, "{cut}: {name}");
    }
}

#[test]
fn a_replaced_and_moved_message_has_one_name_after_any_cut() {
    for then in [Then::Synced, Then::ReplacedAgain, Then::MovedBack] {
        machines().for_each(|(machine, trusted)| check_replaced(&machine, trusted, then));
    }
}

/// Next step for a message that was replaced and then moved to `cur/`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Synced,
    ReplacedAgain,
    /// Synced there; its owner marks it as new by moving it back, as mutt does, and it is replaced.
    MovedBack,
}

fn check_replaced(machine: &Machine, trusted: bool, then: Then) {
    let maildir = Arc::new(Maildir::open_or_create(machine.path().join("a")).expect("a mailbox"));
    let names = NameSource::new(Host::new("rig.example")).expect("names");
    let (before, message) = (body(1), body(2));
    let batch = [(maildir.clone(), &before[..])];
    let delivered = deliver_batch(&mut SyncMounts::new(), &names, SystemTime::now(), &batch).remove(0);
    let at = maildir.find(delivered.expect("delivered").as_str()).expect("scanned").expect("there");
    let durable = machine.position();
    maildir.replace(&at, &[IoSlice::new(&message)]).expect("replaced");
    let at = maildir.set_flags(&at, Flags::SEEN).expect("moved to cur/");
    match then {
        Then::Synced => maildir.sync_message(at.dir, &at.name).expect("synced"),
        Then::ReplacedAgain => maildir.replace(&at, &[IoSlice::new(&message)]).expect("replaced again"),
        Then::MovedBack => {
            maildir.sync_message(at.dir, &at.name).expect("synced");
            let name = at.name.split(':').next().expect("a name").to_owned();
            let [from, to] =
                [("cur", &at.name), ("new", &name)].map(|(dir, name)| machine.path().join("a").join(dir).join(name));
            posthaste_fsops::rename(from, to).expect("moved back");
            let at = Found { dir: Subdir::New, name, size: at.size };
            maildir.replace(&at, &[IoSlice::new(&message)]).expect("replaced again");
        }
    }
    let recording = machine.recording();
    for (cut, left) in cuts(&recording, trusted).filter(|(cut, _)| cut.position >= durable) {
        let maildir = Maildir::open(left.path().join("a")).expect("it was durable");
        let all = maildir.scan().expect("names");
        let [(dir, name)] = &all[..] else { panic!("{cut}: {all:?}") };
        if then == Then::Synced && cut.position == recording.events.len() {
            assert_eq!(maildir.read(*dir, name).expect("a message"), message, "{cut}: {name}");
        }
    }
}

#[test]
fn a_moved_message_is_always_somewhere_and_ends_in_one_place() {
    machines().for_each(|(machine, trusted)| check_moved(&machine, trusted));
    // The other Maildir on a file system of its own.
    for (trusted, ordered_log) in [(true, false), (true, true), (false, false), (false, true)] {
        let disk = Tree::with_mounts(&["b"]);
        check_moved(&Machine::boot(&disk, trusted, ordered_log).expect("a directory"), trusted);
    }
}

fn check_moved(machine: &Machine, trusted: bool) {
    let [from, to] =
        ["a", "b"].map(|name| Arc::new(Maildir::open_or_create(machine.path().join(name)).expect("a mailbox")));
    let names = NameSource::new(Host::new("rig.example")).expect("names");
    let message = body(3);
    // Both, so that both are durable.
    let batch = [(from.clone(), &message[..]), (to.clone(), b"other\n")];
    let delivered =
        deliver_batch(&mut SyncMounts::new(), &names, SystemTime::now(), &batch).remove(0).expect("delivered");
    let at = from.find(delivered.as_str()).expect("scanned").expect("there");
    let durable = machine.position();
    let moved = from.move_to(&at, &to, &mut to.keys().expect("scanned")).expect("moved");
    assert_eq!(to.read(moved.dir, &moved.name).expect("there"), message);
    to.sync_names().expect("synced");
    from.sync_names().expect("synced");
    machine.acknowledge(0);
    assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new());
    let recording = machine.recording();
    for (cut, left) in cuts(&recording, trusted).filter(|(cut, _)| cut.position >= durable) {
        let count = |name: &str| {
            let maildir = Maildir::open(left.path().join(name)).expect("it was durable");
            let all = maildir.scan().expect("names");
            let octets = all.into_iter().map(|(dir, name)| maildir.read(dir, &name).expect("a message"));
            octets
                .filter(|octets| *octets != b"other\n")
                .inspect(|octets| assert_eq!(*octets, message, "{cut}"))
                .count()
        };
        let is_done = recording.acknowledged_before(cut.position).next().is_some();
        match (count("a"), count("b")) {
            (0, 1) => {}
            (1, 0) | (1, 1) if !is_done => {}
            other => panic!("{cut}: {other:?}"),
        }
    }
}
