//! Mail that its owner removes before a start that delivers it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use posthaste_fsops::{Choice, Cut, Machine, Tree, fsync};
use posthaste_maildir::{Flags, Maildir, Subdir};
use posthaste_turns::in_turns;

use crate::engine::Engine;
use crate::life::{runtime, send};
use crate::mail::{Expected, Kind, Letter, name_of};

/// Longest delivery, in turns.
const TURNS_MAX: u64 = 100_000;
/// Seeds of each cut.
const SEEDS: u64 = 4;

#[test]
fn what_comes_back_comes_back_once_wherever_the_power_goes() {
    for (syncfs_trusted, ordered_log) in [(true, false), (false, false), (true, true)] {
        let boot = |tree: &Tree| Machine::boot(tree, syncfs_trusted, ordered_log).expect("a directory");
        let start = |machine: &Machine| in_turns(1, || drop(Engine::open(machine.path()).expect("it opens")));
        let letter = Arc::new(Letter::new(1, 1));
        let first = boot(&Tree::default());
        let mailbox = |machine: &Machine| Maildir::open(machine.path().join("mail").join(name_of(letter.mailboxes[0])));
        in_turns(1, || {
            let engine = Engine::open(first.path()).expect("it opens");
            send(&runtime(), &first, &engine, std::slice::from_ref(&letter));
            let is_there = || mailbox(&first).is_ok_and(|maildir| !maildir.scan().expect("names").is_empty());
            assert!(
                (0..TURNS_MAX).any(|_| is_there() || {
                    std::thread::yield_now();
                    false
                }),
                "not delivered"
            );
            first.kill();
        });
        first.go_on();
        let maildir = mailbox(&first).expect("a mailbox");
        let (dir, name) = maildir.scan().expect("names").remove(0);
        let found = maildir.find(&name).expect("scanned").expect("there");
        assert_eq!(dir, Subdir::New);
        maildir.set_flags(&found, Flags::SEEN).expect("moved to cur/");
        for dir in ["new", "cur"] {
            let path = first.path().join("mail").join(name_of(letter.mailboxes[0])).join(dir);
            path.ancestors().take(5).for_each(|path| fsync(std::fs::File::open(path).expect("open")).expect("synced"));
        }
        let recording = first.recording();
        let left = recording.cut(Cut { position: recording.events.len(), choice: Choice::Seed(1) });

        let second = boot(&left);
        let maildir = mailbox(&second).expect("durable");
        let (dir, name) = maildir.scan().expect("names").remove(0);
        assert_eq!(dir, Subdir::Cur);
        maildir.remove(dir, &name).expect("removed");
        start(&second);
        let recording = second.recording();
        let expected = Expected {
            kind: Kind::Local,
            letters: [0, 1].map(|number| Arc::new(Letter::new(1, number))).into(),
            acknowledged: BTreeSet::from([1]),
            taken: BTreeMap::from([((1, letter.mailboxes[0]), false)]),
            has_failed: false,
        };
        for position in 0..=recording.events.len() {
            for cut in (0..SEEDS).map(|seed| Cut { position, choice: Choice::Seed(seed) }) {
                let third = boot(&recording.cut(cut));
                start(&third);
                let checked = expected.check(&third.path().join("mail"));
                checked.unwrap_or_else(|what| panic!("{syncfs_trusted} {ordered_log} {cut}: {what}"));
            }
        }
    }
}
