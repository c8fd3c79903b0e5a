//! Mailboxes on a machine whose power goes at any call.

use std::path::PathBuf;

use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{Config, FileSpool};

use super::*;
use crate::entry::{AccountFields, GoneReason, MailboxFields, MessageFacts, StateGroup};
use crate::row::NumberRange;

const MAILBOX: u32 = 1;

fn open_spool(machine: &Machine) -> Arc<FileSpool> {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    let config = Config { ring, keeper: false, free_bytes_min: 0, free_inodes_min: 0, ..Config::default() };
    Arc::new(FileSpool::open(&machine.path().join("spool"), config).unwrap().0)
}

fn open(machine: &Machine) -> (MailLedger, LedgerReport) {
    open_with(machine, open_spool(machine))
}

fn open_with(machine: &Machine, spool: Arc<FileSpool>) -> (MailLedger, LedgerReport) {
    MailLedger::open(spool, &machine.path().join("mailstore"), "mx", 7).unwrap()
}

fn found(first_uid: u32, count: u32) -> MailEntry {
    let message = |uid: u32| {
        let facts = MessageFacts { wire_size: 100 + uid, internal_date: uid, ..Default::default() };
        (facts, Bytes::from(format!("{uid}.M1P2.host:2,")))
    };
    MailEntry::Found { mailbox: MAILBOX, first_uid, messages: (first_uid..first_uid + count).map(message).collect() }
}

/// The story, one batch after the other.
fn steps() -> Vec<Vec<MailEntry>> {
    let account = AccountFields { id: 1, name: Bytes::from_static(b"me/Maildir"), ..Default::default() };
    let mailbox = MailboxFields {
        id: MAILBOX,
        account: 1,
        uid_validity: 99,
        name: Bytes::from_static(b"INBOX"),
        directory: Bytes::from_static(b"me/Maildir"),
        ..Default::default()
    };
    let set = |first, last| vec![NumberRange { first, last }];
    let gone =
        |first, last| MailEntry::Gone { mailbox: MAILBOX, set: set(first, last), reason: GoneReason::Missing, when: 3 };
    let seen = StateGroup { set: set(1, 3), flags: 1, letters: 0 };
    vec![
        vec![MailEntry::Account(account), MailEntry::Mailbox(mailbox)],
        vec![found(1, 5), found(6, 2)],
        vec![MailEntry::State { mailbox: MAILBOX, groups: vec![seen] }, gone(2, 2), gone(7, 7)],
        vec![MailEntry::Keyword { mailbox: MAILBOX, bit: 8, name: Bytes::from_static(b"$Junk") }, found(8, 3)],
        // A takeover: the next UID is 100.
        vec![gone(99, 99)],
        vec![found(100, 1)],
    ]
}

/// UID, size, flags and name.
type MessageShape = (u32, u32, u64, Option<Bytes>);
/// Next UID, messages without `\Seen`, messages, and the number of keywords.
type Shape = (u32, u32, Vec<MessageShape>, usize);

/// A mailbox without its LSNs, which are others where a power cut came between.
fn shape(stored: Option<StoredMailbox>) -> Option<Shape> {
    let stored = stored?;
    let of = |message: StoredMessage| (message.fixed.uid, message.fixed.wire_size, message.state.flags, message.name);
    let messages = stored.messages.into_values().map(of).collect();
    Some((stored.head.next_uid, stored.head.unseen, messages, stored.keywords.len()))
}

#[test]
fn uids_are_the_same_after_a_cut_at_any_call() {
    let machine = Machine::new().unwrap();
    let (ledger, report) = open(&machine);
    assert_eq!(report, LedgerReport::default());
    let mut shapes = vec![shape(ledger.mailbox(MAILBOX).unwrap())];
    for (number, step) in (1..).zip(steps()) {
        ledger.append(&step).unwrap();
        machine.acknowledge(number);
        shapes.push(shape(ledger.mailbox(MAILBOX).unwrap()));
        if number % 2 == 0 {
            ledger.commit().unwrap();
            assert_eq!(shape(ledger.mailbox(MAILBOX).unwrap()), shapes[number as usize]);
        }
    }
    drop(ledger);
    assert_eq!(shapes[6].as_ref().map(|shape| shape.0), Some(101));
    assert_eq!(machine.unrecorded().unwrap(), Vec::<PathBuf>::new(), "past the door");
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        let acknowledged = recording.acknowledged_before(position).last().unwrap_or(0) as usize;
        let choice = Choice::Seed(position as u64 * 7);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let (ledger, report) = open(&machine);
        assert_eq!((report.damaged, report.lost, report.unknown), (vec![], None, vec![]));
        let now = shape(ledger.mailbox(MAILBOX).unwrap());
        let step = (acknowledged..=6.min(acknowledged + 1)).find(|step| shapes[*step] == now);
        let step = step.unwrap_or_else(|| panic!("{position}: after step {acknowledged}: {now:?}"));
        // It goes on, is committed, and is the same once more.
        steps().into_iter().skip(step).for_each(|step| assert!(ledger.append(&step).is_ok()));
        ledger.commit().unwrap();
        drop(ledger);
        let (ledger, report) = open(&machine);
        assert_eq!((report.lost, shape(ledger.mailbox(MAILBOX).unwrap())), (None, shapes[6].clone()), "{position}");
    }
}

#[test]
fn kills_without_a_commit_lose_no_uid() {
    let machine = Machine::new().unwrap();
    for (number, step) in steps().into_iter().enumerate() {
        let spool = open_spool(&machine);
        let (ledger, _) = open_with(&machine, Arc::clone(&spool));
        ledger.append(&step).unwrap();
        let before = shape(ledger.mailbox(MAILBOX).unwrap());
        // The process is gone: no commit at its end has an effect.
        machine.kill();
        drop(ledger);
        drop(spool);
        machine.go_on();
        let (ledger, report) = open(&machine);
        assert_eq!(shape(ledger.mailbox(MAILBOX).unwrap()), before, "{number}: {report:?}");
        assert_eq!((ledger.new_account(), ledger.new_mailbox()), (2, 2));
        assert_eq!(report.lost, None);
    }
}

#[test]
fn a_table_that_lost_a_commit_is_told() {
    let machine = Machine::new().unwrap();
    let spool = open_spool(&machine);
    let (ledger, _) = open_with(&machine, Arc::clone(&spool));
    let old = std::fs::read(machine.path().join("mailstore/meta.redb")).unwrap();
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    ledger.commit().unwrap();
    drop(ledger);
    spool.checkpoint().unwrap();
    drop(spool);
    std::fs::write(machine.path().join("mailstore/meta.redb"), old).unwrap();
    let (_, report) = open(&machine);
    assert!(report.lost.is_some_and(|(applied, position)| applied < position), "{report:?}");
}
