//! The directory on a machine whose power goes before every call.

use std::ffi::OsString;

use posthaste_fsops::{Choice, Cut, Machine, Tree};
use posthaste_pickup::{PickupDirectory, PickupEntry, PickupHead, PickupMessage};
use posthaste_smtp::{ForwardPath, MailFrom, RcptTo, ReversePath};

/// Seeds for each position.
const SEEDS: u64 = 6;

fn head(number: u64) -> PickupHead {
    let mail = MailFrom::new(ReversePath::parse("<a@example.org>").expect("a path"));
    PickupHead::new(mail, vec![RcptTo::new(ForwardPath::parse(&format!("<r{number}@example.org>")).expect("a path"))])
}

fn body(number: u64) -> Vec<u8> {
    format!("Number: {number}\r\n\r\n{}\r\n", "text ".repeat(number as usize * 3000)).into_bytes()
}

fn put<'a>(directory: &'a PickupDirectory, number: u64) -> PickupEntry<'a> {
    let mut entry = PickupEntry::begin(directory, head(number), None).expect("begun");
    body(number).chunks(9000).for_each(|piece| entry.write(piece).expect("written"));
    entry
}

/// The number of a message that is whole.
fn number_of(directory: &PickupDirectory, name: &OsString) -> u64 {
    let mut message =
        PickupMessage::open(directory, name).unwrap_or_else(|error| panic!("{}: {error}", name.display()));
    let mut text = Vec::new();
    while let Some(piece) = message.read().unwrap_or_else(|error| panic!("{}: {error}", name.display())) {
        text.extend_from_slice(&piece);
    }
    let recipient = message.head().recipients[0].forward_path.local_part().to_owned();
    let number = recipient.strip_prefix('r').and_then(|number| number.parse().ok()).expect("a number");
    assert_eq!(text, body(number));
    number
}

/// Every disk that a cut may leave, with the position of the cut and what lies in the directory.
fn each_cut(machine: &Machine, ordered_log: bool, check: impl Fn(Cut, Vec<u64>)) {
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        for seed in 0..SEEDS {
            let cut = Cut { position, choice: Choice::Seed(seed) };
            let left = Machine::boot(&recording.cut(cut), true, ordered_log).expect("a directory");
            let Ok(directory) = PickupDirectory::open(&left.path().join("pickup")) else {
                check(cut, Vec::new());
                continue;
            };
            let names = directory.names().expect("names");
            let mut found: Vec<u64> = names.iter().map(|name| number_of(&directory, name)).collect();
            found.sort_unstable();
            check(cut, found);
        }
    }
}

#[test]
fn what_was_finished_is_there_and_whole_wherever_the_power_goes() {
    for ordered_log in [false, true] {
        let machine = Machine::boot(&Tree::default(), true, ordered_log).expect("a machine");
        let directory = PickupDirectory::make(&machine.path().join("pickup")).expect("a directory");
        for number in 0..4 {
            put(&directory, number).finish().expect("finished");
            machine.acknowledge(number);
            // One that its program gives up.
            drop(put(&directory, 90 + number));
        }
        assert_eq!(machine.unrecorded().expect("it can be read"), Vec::<std::path::PathBuf>::new());
        let recording = machine.recording();
        each_cut(&machine, ordered_log, |cut, found| {
            let lost = recording.acknowledged_before(cut.position).find(|number| !found.contains(number));
            assert_eq!(lost, None, "{cut}: {found:?}");
            assert!(found.iter().all(|&number| number < 90), "{cut}: {found:?}");
        });
    }
}

#[test]
fn a_file_that_is_written_anew_is_the_old_one_or_the_new_one() {
    let machine = Machine::new().expect("a machine");
    let directory = PickupDirectory::make(&machine.path().join("pickup")).expect("a directory");
    let name = put(&directory, 1).finish().expect("finished");
    let begun = machine.position();
    put(&directory, 2).finish_as(&directory, name.as_ref()).expect("finished");
    let done = machine.position();
    directory.remove(name.as_ref()).and_then(|()| directory.sync()).expect("removed");
    let removed = machine.position();
    each_cut(&machine, false, |cut, found| match cut.position {
        position if position < begun => {}
        position if position < done => assert!(found == [1] || found == [2], "{cut}: {found:?}"),
        position if position < removed => assert!(found == [2] || found.is_empty(), "{cut}: {found:?}"),
        _ => assert!(found.is_empty(), "{cut}: {found:?}"),
    });
}
