//! Mailboxes on a machine whose power goes at any call.

use std::path::PathBuf;

use posthaste_consumer::StreamHandle;
use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{Config, FileSpool, Released};

use super::*;
use crate::entry::{AccountFields, GoneReason, MailboxFields, MessageFacts, StateGroup, WireSize};
use crate::name::SpecialUse;
use crate::row::NumberRange;
use crate::table::MailboxHead;

pub(super) const MAILBOX: u32 = 1;

pub(super) fn open_spool(machine: &Machine) -> Arc<FileSpool> {
    open_spool_above(machine, 0).0
}

/// A spool whose new LSNs are above one that the table has, and the damage to it.
fn open_spool_above(machine: &Machine, lsn: u64) -> (Arc<FileSpool>, Vec<Damage>) {
    let ring = posthaste_ring::Config { segment_bytes: 64 << 10, max_segments: 8, ..Default::default() };
    let lsns_above = Lsn::new(lsn);
    let config = Config { ring, keeper: false, free_bytes_min: 0, free_inodes_min: 0, lsns_above, ..Config::default() };
    let (spool, found) = FileSpool::open(&machine.path().join("spool"), config).unwrap();
    (Arc::new(spool), found.damage)
}

pub(super) fn open(machine: &Machine) -> (MailLedger, LedgerReport) {
    let (spool, damage) = open_spool_above(machine, 0);
    open_damaged(machine, spool, &damage)
}

pub(super) fn open_with(machine: &Machine, spool: Arc<FileSpool>) -> (MailLedger, LedgerReport) {
    open_damaged(machine, spool, &[])
}

fn open_damaged(machine: &Machine, spool: Arc<FileSpool>, damage: &[Damage]) -> (MailLedger, LedgerReport) {
    MailLedger::open(spool, damage, &machine.path().join("mailstore"), "mx", 7).unwrap()
}

pub(super) fn found(first_uid: u32, count: u32) -> MailEntry {
    let message = |uid: u32| {
        let facts =
            MessageFacts { wire_size: WireSize::of(u64::from(100 + uid)), internal_date: uid, ..Default::default() };
        (facts, Bytes::from(format!("{uid}.M1P2.host:2,")))
    };
    MailEntry::Found { mailbox: MAILBOX, first_uid, messages: (first_uid..first_uid + count).map(message).collect() }
}

/// The story, one batch after the other.
pub(super) fn steps() -> Vec<Vec<MailEntry>> {
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
pub(super) type MessageShape = (u32, WireSize, u64, Option<Bytes>);
/// Next UID, messages without `\Seen`, messages, and the number of keywords.
pub(super) type Shape = (u32, u32, Vec<MessageShape>, usize);

/// A mailbox without its LSNs, which are others where a power cut came between. Its counters are those of its messages.
pub(super) fn shape(stored: Option<StoredMailbox>) -> Option<Shape> {
    let stored = stored?;
    let count = |is: fn(&StoredMessage) -> bool| stored.messages.values().filter(|message| is(message)).count();
    let counted =
        (count(|_| true), count(|message| message.state.flags & 1 == 0), count(|message| message.state.flags & 8 != 0));
    let bytes: u64 = stored.messages.values().map(|message| message.fixed.wire_size.counted()).sum();
    let head = &stored.head;
    assert_eq!([head.exists, head.unseen, head.deleted].map(|count| count as usize), <[usize; 3]>::from(counted));
    assert_eq!(head.bytes, bytes);
    let of = |message: StoredMessage| (message.fixed.uid, message.fixed.wire_size, message.state.flags, message.name);
    let messages = stored.messages.into_values().map(of).collect();
    Some((stored.head.next_uid, stored.head.unseen, messages, stored.keywords.len()))
}

/// Numbers that are counted by columns are those of the messages.
fn check_counts(ledger: &MailLedger) {
    for recent_from in [None, Some(3)] {
        let counted = ledger.counted(MAILBOX, |_| true, recent_from).unwrap();
        let Some((stored, counted)) = ledger.mailbox(MAILBOX).unwrap().zip(counted) else { return };
        let messages: Vec<&StoredMessage> = stored.messages.values().collect();
        let unseen = messages.iter().position(|message| message.state.flags & 1 == 0).map(|at| at as u32 + 1);
        let is_new = |message: &&&StoredMessage| message.state.flags & crate::table::flag_bits::IN_NEW != 0;
        let first_new = messages.iter().find(is_new).map_or(stored.head.next_uid, |message| message.fixed.uid);
        let from = recent_from.unwrap_or(first_new);
        let recent = messages.iter().filter(|message| message.fixed.uid >= from).count() as u32;
        let last_uid = messages.last().map_or(0, |message| message.fixed.uid);
        assert_eq!((counted.messages as usize, counted.last_uid), (messages.len(), last_uid));
        assert_eq!((counted.first_unseen, counted.recent_from, counted.recent), (unseen, from, recent));
        assert_eq!((counted.head, counted.keywords), (stored.head, stored.keywords));
    }
}

/// Scenarios 7 and 21 of the design: cut also between a commit of the table and the spool's note of it. Counters are those of the rows.
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
        check_counts(&ledger);
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

/// A head is counted again from the rows of its mailbox, and commits go on.
/// Sessions take the LSN of each entry of their mailbox as its HIGHESTMODSEQ, whatever the entry's kind.
#[test]
fn a_modseq_that_was_told_is_kept_after_a_kill() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps()[..2].iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    drop(ledger);
    let uid = || vec![NumberRange { first: 1, last: 1 }];
    let seen = StateGroup { set: uid(), flags: 1, letters: 0 };
    let alone = [
        MailEntry::Keyword { mailbox: MAILBOX, bit: 9, name: Bytes::from_static(b"alone") },
        MailEntry::Name { mailbox: MAILBOX, uid: 2, name: Bytes::from_static(b"other") },
        MailEntry::State { mailbox: MAILBOX, groups: vec![seen] },
        MailEntry::Gone { mailbox: MAILBOX, set: uid(), reason: GoneReason::Expunged, when: 3 },
        found(8, 1),
    ];
    for (entry, commits) in alone.into_iter().flat_map(|entry| [(entry.clone(), false), (entry, true)]) {
        let spool = open_spool(&machine);
        let (ledger, _) = open_with(&machine, Arc::clone(&spool));
        ledger.follow(MAILBOX).unwrap();
        ledger.append(std::slice::from_ref(&entry)).unwrap();
        let tail = ledger.take_tail(MAILBOX).unwrap();
        let told = tail.last().expect("sessions see it").0;
        if commits {
            ledger.commit().unwrap();
        }
        machine.kill();
        drop(ledger);
        drop(spool);
        machine.go_on();
        let (ledger, _) = open(&machine);
        assert_eq!(ledger.head(MAILBOX).unwrap().unwrap().highest_modseq, told, "{entry:?}, committed: {commits}");
    }
}

#[test]
fn a_damaged_head_is_made_again() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    let before = ledger.mailbox(MAILBOX).unwrap().unwrap();
    drop(ledger);
    damage_row(&machine, "mailboxes", &MAILBOX.to_be_bytes());
    let (ledger, _) = open(&machine);
    let after = ledger.follow(MAILBOX).unwrap().unwrap();
    let numbers = |head: &MailboxHead| {
        let MailboxHead { account, uid_validity, next_uid, exists, unseen, deleted, bytes, .. } = *head;
        (account, uid_validity, next_uid, exists, unseen, deleted, bytes, head.directory.clone())
    };
    assert_eq!(numbers(&after.head), numbers(&before.head));
    assert!(after.head.modseq_floor > before.head.highest_modseq);
    assert_eq!((after.messages, after.keywords), (before.messages, before.keywords));
    ledger.append_uids(MAILBOX, 1, |first| vec![found(first, 1)]).unwrap();
    ledger.commit().unwrap();
    let head = ledger.mailbox(MAILBOX).unwrap().unwrap().head;
    assert_eq!((head.next_uid, head.exists), (before.head.next_uid + 1, before.head.exists + 1));
}

/// The head had its use and its directory alone. A wrong use would be there twice, and a wrong directory could be that of
/// another mailbox, which a DELETE would remove.
#[test]
fn a_rebuilt_head_claims_no_use_and_no_directory_of_another() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    let account = AccountFields { id: 1, name: Bytes::from_static(b"me/Maildir"), ..Default::default() };
    let named = |id: u32, name: &'static str, special_use: Option<SpecialUse>| {
        let (special_use, name) = (SpecialUse::number(special_use), Bytes::from_static(name.as_bytes()));
        let directory = Bytes::from(format!("me/Maildir/.{id}"));
        MailEntry::Mailbox(MailboxFields { id, account: 1, uid_validity: id, special_use, name, directory, form: 0 })
    };
    let boxes = [named(1, "Sent", None), named(2, "Old Sent", Some(SpecialUse::Sent)), named(3, "a.b/c", None)];
    ledger.append(&[&[MailEntry::Account(account)][..], &boxes].concat()).unwrap();
    drop(ledger);
    [1_u32, 3].iter().for_each(|id| damage_row(&machine, "mailboxes", &id.to_be_bytes()));
    let (ledger, _) = open(&machine);
    assert_eq!(ledger.special_uses(1).unwrap(), [(2, Some(SpecialUse::Sent))].into());
    let directory = |id| ledger.head(id).unwrap().unwrap().directory;
    assert_eq!((&directory(1)[..], &directory(3)[..]), (&b"me/Maildir/.Sent"[..], &b""[..]));
}

/// Gives a row of the table another value.
fn damage_row(machine: &Machine, table: &str, key: &[u8]) {
    let database = redb::Database::create(machine.path().join("mailstore/meta.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let table: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new(table);
    transaction.open_table(table).unwrap().insert(key, &b"damaged"[..]).unwrap();
    transaction.commit().unwrap();
}

/// A client that were told only of the others would keep the messages of the damaged range for ever.
#[test]
fn a_damaged_range_of_expunged_messages_is_unknown() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    let lsns: Vec<u64> = steps().iter().map(|step| ledger.append(step).unwrap()).collect();
    let gone = |ledger: &MailLedger, since: u64| {
        let gone = ledger.gone_since(MAILBOX, since).unwrap();
        gone.map(|gone| gone.into_iter().map(|range| (range.first, range.last)).collect::<Vec<_>>())
    };
    assert_eq!(gone(&ledger, lsns[1]), Some(vec![(2, 2), (7, 7), (99, 99)]));
    drop(ledger);
    let key = [&MAILBOX.to_be_bytes()[..], &lsns[2].to_be_bytes(), &7_u32.to_be_bytes()].concat();
    damage_row(&machine, "gone", &key);
    let (ledger, _) = open(&machine);
    assert_eq!((gone(&ledger, lsns[1]), gone(&ledger, lsns[2])), (None, Some(vec![(99, 99)])));
}

/// Copies the table as it is now, to be put back later.
fn table_of(machine: &Machine) -> Vec<u8> {
    std::fs::read(machine.path().join("mailstore/meta.redb")).unwrap()
}

/// Appends the first five steps and lets the table have them, of which it loses the last three. Returns the UID that was next, and the last MODSEQ that was told.
fn lose_a_commit(machine: &Machine) -> (u32, u64) {
    let spool = open_spool(machine);
    let (ledger, _) = open_with(machine, Arc::clone(&spool));
    steps()[..2].iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    ledger.commit().unwrap();
    let old = table_of(machine);
    steps()[2..5].iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    let head = ledger.mailbox(MAILBOX).unwrap().unwrap().head;
    ledger.commit().unwrap();
    spool.checkpoint().unwrap();
    drop(ledger);
    drop(spool);
    std::fs::write(machine.path().join("mailstore/meta.redb"), old).unwrap();
    (head.next_uid, head.highest_modseq)
}

/// Scenarios 28 and 32 of the design.
#[test]
fn uids_of_a_lost_commit_are_left_out_once() {
    let machine = Machine::new().unwrap();
    let (next_uid, told) = lose_a_commit(&machine);
    let (ledger, report) = open(&machine);
    assert!(report.lost.is_some_and(|(applied, position)| applied < position), "{report:?}");
    assert!(report.has_skipped);
    let head = ledger.mailbox(MAILBOX).unwrap().unwrap().head;
    assert!(head.next_uid > next_uid && head.modseq_floor > told && head.gone_from > told, "{head:?}");
    ledger.follow(MAILBOX).unwrap();
    ledger.append_uids(MAILBOX, 1, |first| vec![found(first, 1)]).unwrap();
    let first = head.next_uid;
    drop(ledger);
    for _ in 0..3 {
        let (ledger, report) = open(&machine);
        assert_eq!((report.lost, report.has_skipped), (None, false));
        let stored = ledger.mailbox(MAILBOX).unwrap().unwrap();
        assert_eq!((stored.head.next_uid, stored.messages.contains_key(&first)), (first + 1, true));
    }
}

#[test]
fn a_lost_table_leaves_uids_out() {
    let machine = Machine::new().unwrap();
    lose_a_commit(&machine);
    std::fs::remove_dir_all(machine.path().join("mailstore")).unwrap();
    let (ledger, report) = open(&machine);
    assert!(report.lost.is_some_and(|(applied, _)| applied == 0) && report.has_skipped, "{report:?}");
    assert_eq!((ledger.skip(), ledger.mailbox(MAILBOX).unwrap()), (1, None));
    drop(ledger);
    let (ledger, report) = open(&machine);
    assert_eq!((report.lost, report.has_skipped, ledger.skip()), (None, false, 1));
    drop(ledger);
    // The number of losses is not lost with the table.
    std::fs::remove_dir_all(machine.path().join("mailstore")).unwrap();
    assert_eq!(open(&machine).0.skip(), 2);
}

#[test]
fn a_table_lost_with_its_spool_leaves_uids_out() {
    let machine = Machine::new().unwrap();
    lose_a_commit(&machine);
    for lost in 1..3 {
        for dir in ["mailstore", "spool"] {
            std::fs::remove_dir_all(machine.path().join(dir)).unwrap();
        }
        let (ledger, report) = open(&machine);
        assert_eq!((report.has_skipped, ledger.skip()), (true, lost));
        drop(ledger);
        let (ledger, report) = open(&machine);
        assert_eq!((report.has_skipped, ledger.skip()), (false, lost));
    }
}

/// Scenarios 4 and 32: a batch that gave UIDs cannot be read any more.
#[test]
fn uids_of_a_damaged_batch_are_left_out_once() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    machine.kill();
    drop(ledger);
    machine.go_on();
    // UIDs 8 to 10 are given in the fourth step.
    damage(&machine, "ring", b"10.M1P2.host");
    let (ledger, report) = open(&machine);
    assert!(report.has_skipped, "{report:?}");
    let stored = ledger.mailbox(MAILBOX).unwrap().unwrap();
    assert_eq!((stored.head.next_uid, stored.messages.contains_key(&100)), (101 + (1 << 20), true));
    drop(ledger);
    let (ledger, report) = open(&machine);
    assert!(!report.has_skipped, "{report:?}");
    assert_eq!(ledger.mailbox(MAILBOX).unwrap().unwrap().head.next_uid, 101 + (1 << 20));
}

/// Scenario 4, in a pack: the spool has moved the batch there, as the table could not be written. The replay finds it.
#[test]
fn uids_of_a_batch_damaged_in_a_pack_are_left_out_once() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    // Into further segments.
    for first in [1000, 2000, 3000, 4000] {
        ledger.append(&[found(first, 1000)]).unwrap();
    }
    machine.kill();
    drop(ledger);
    machine.go_on();
    let spool = open_spool(&machine);
    assert_eq!(spool.pack_oldest(1).unwrap(), 1);
    spool.checkpoint().unwrap();
    drop(spool);
    damage(&machine, "packs", b"10.M1P2.host");
    let expected = 5000 + (1 << 20);
    for opening in 0..3 {
        let (ledger, report) = open(&machine);
        assert_eq!((report.has_skipped, report.damaged.is_empty()), (opening == 0, opening > 0), "{report:?}");
        assert_eq!(ledger.mailbox(MAILBOX).unwrap().unwrap().head.next_uid, expected);
    }
}

/// Scenario 32: the same damage at three openings is one step.
#[test]
fn one_damage_leaves_uids_out_once_whatever_is_said_of_it() {
    let machine = Machine::new().unwrap();
    drop(open(&machine));
    let damage = |lsn: u64, what: &str| Damage {
        lsn: Some(Lsn::new(lsn)),
        place: "ring/1.seg at 4096".to_owned(),
        what: what.to_owned(),
    };
    let (one, later) = (damage(5, "gap (batches 5 to 9)"), damage(5, "gap (batches 5 to 1048600)"));
    let other = damage(70, "gap (batches 70 to 71)");
    let steps = [(vec![one.clone()], true), (vec![later.clone()], false), (vec![], false), (vec![one], false)];
    for (damage, expected) in steps.into_iter().chain([(vec![later, other], true)]) {
        let (ledger, report) = open_damaged(&machine, open_spool(&machine), &damage);
        assert_eq!(report.has_skipped, expected, "{damage:?}");
        drop(ledger);
    }
}

/// No batch is lost with it, so no UID is.
#[test]
fn a_lost_live_file_of_the_spool_leaves_no_uids_out() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    let expected = ledger.mailbox(MAILBOX).unwrap().unwrap().head.next_uid;
    drop(ledger);
    let spool = open_spool(&machine);
    // Somebody else still needs a batch.
    let other = StreamHandle::register(spool.clone(), "other").unwrap();
    other.append_durably([Bytes::from_static(b"x")]).unwrap();
    spool.checkpoint().unwrap();
    drop((other, spool));
    let live: Vec<_> = std::fs::read_dir(machine.path().join("spool/live")).unwrap().collect();
    assert!(!live.is_empty());
    live.into_iter().for_each(|file| std::fs::remove_file(file.unwrap().path()).unwrap());
    let (ledger, report) = open(&machine);
    assert!(!report.has_skipped, "{report:?}");
    assert_eq!(ledger.mailbox(MAILBOX).unwrap().unwrap().head.next_uid, expected);
}

/// Flips a bit of the record that has these octets, in a directory of the spool.
fn damage(machine: &Machine, dir: &str, octets: &[u8]) {
    for segment in std::fs::read_dir(machine.path().join("spool").join(dir)).unwrap() {
        let path = segment.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(octets.len()).position(|found| found == octets) {
            bytes[at] ^= 1;
            return std::fs::write(&path, bytes).unwrap();
        }
    }
    panic!("no segment has these octets");
}

/// Scenarios 22 and 29.
#[test]
fn another_spool_gives_later_uids_and_modseqs() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    let before = ledger.mailbox(MAILBOX).unwrap().unwrap().head;
    drop(ledger);
    std::fs::remove_dir_all(machine.path().join("spool")).unwrap();
    let applied = applied_in(&machine.path().join("mailstore")).unwrap();
    let (ledger, report) = open_with(&machine, open_spool_above(&machine, applied).0);
    assert!(report.other_spool.is_some() && report.lost.is_none() && report.has_skipped, "{report:?}");
    let head = ledger.mailbox(MAILBOX).unwrap().unwrap().head;
    assert!(head.next_uid > before.next_uid && head.modseq_floor > before.highest_modseq, "{head:?}");
    ledger.follow(MAILBOX).unwrap();
    let modseq = ledger.append_uids(MAILBOX, 1, |first| vec![found(first, 1)]).unwrap();
    assert!(modseq > applied + (1 << 32));
    let now = shape(ledger.mailbox(MAILBOX).unwrap());
    drop(ledger);
    let (ledger, report) = open_with(&machine, open_spool_above(&machine, modseq).0);
    assert_eq!((report.other_spool, report.has_skipped), (None, false));
    assert_eq!(shape(ledger.mailbox(MAILBOX).unwrap()), now);
}

/// A server that turns IMAP on later: its spool is old, and nothing is lost.
#[test]
fn a_new_table_beside_an_old_spool_has_lost_nothing() {
    let machine = Machine::new().unwrap();
    let spool = open_spool(&machine);
    let other = StreamHandle::register(spool.clone(), "other").unwrap();
    let lsn = other.append_durably(["x"]).unwrap();
    other.advance(lsn, None, Released::default());
    spool.checkpoint().unwrap();
    drop(other);
    drop(spool);
    let before = machine.position();
    let (ledger, report) = open(&machine);
    assert_eq!(report, LedgerReport::default());
    drop(ledger);
    let recording = machine.recording();
    for position in before..=recording.events.len() {
        let choice = Choice::Seed(position as u64);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        let (ledger, report) = open(&machine);
        assert_eq!((report.lost, report.other_spool, report.has_skipped), (None, None, false), "{position}");
        assert_eq!(ledger.skip(), 0, "{position}");
    }
}

#[test]
fn a_commit_during_replay_takes_whole_batches() {
    let first = Machine::new().unwrap();
    let (ledger, _) = open(&first);
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    let expected = shape(ledger.mailbox(MAILBOX).unwrap());
    first.kill();
    drop(ledger);
    let recording = first.recording();
    let position = recording.events.len();
    let machine = Machine::boot(&recording.cut(Cut { position, choice: Choice::Seed(0) }), true, false).unwrap();
    let opened = |machine: &Machine| {
        let dir = machine.path().join("mailstore");
        MailLedger::open_bounded(open_spool(machine), &[], &dir, ("mx", 7), 1).unwrap().0
    };
    drop(opened(&machine));
    let recording = machine.recording();
    for position in 0..=recording.events.len() {
        let choice = Choice::Seed(position as u64 * 3);
        let machine = Machine::boot(&recording.cut(Cut { position, choice }), true, false).unwrap();
        assert_eq!(shape(opened(&machine).mailbox(MAILBOX).unwrap()), expected, "{position}");
    }
}
