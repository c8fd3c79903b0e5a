//! Rows after any entries are those of a model, and as small as the design says.

use std::collections::BTreeMap;
use std::path::Path;

use posthaste_random::Random;
use proptest::prelude::*;

use super::super::columns::{FixedMessage, StateMessage};
use super::super::{FileNote, MetaTable, fixed_row, state_row};
use super::*;

const MAILBOX: u32 = 1;

fn made(table: &MetaTable) {
    let account = AccountFields { id: 1, name: Bytes::from_static(b"me/Maildir"), ..Default::default() };
    let mailbox = MailboxFields {
        id: MAILBOX,
        account: 1,
        uid_validity: 7,
        name: Bytes::from_static(b"INBOX"),
        ..Default::default()
    };
    commit(table, &[(1, MailEntry::Account(account)), (2, MailEntry::Mailbox(mailbox))]);
}

fn commit(table: &MetaTable, entries: &[(u64, MailEntry)]) {
    let reader = table.reader().unwrap();
    let mut applier = Applier::new(&reader).unwrap();
    entries.iter().for_each(|(lsn, entry)| applier.apply(*lsn, entry).unwrap());
    table.commit(&applier.finish().unwrap()).unwrap();
}

/// All messages, from their rows; no row may be longer than a page.
fn rows(table: &MetaTable) -> BTreeMap<u32, (FixedMessage, StateMessage)> {
    let reader = table.reader().unwrap();
    let (mut fixed, mut state) = (Vec::new(), Vec::new());
    let first = |key: &[u8]| super::super::values::second_of(key).unwrap();
    for (key, value) in rows_of(&reader, &RowChanges::default(), TableName::Fixed, &key_of(MAILBOX)).unwrap() {
        assert!(value.len() + 4 <= super::super::columns::ROW_BYTES_MAX);
        fixed.extend(fixed_row(&value, first(&key)).unwrap());
    }
    for (key, value) in rows_of(&reader, &RowChanges::default(), TableName::State, &key_of(MAILBOX)).unwrap() {
        assert!(value.len() + 4 <= super::super::columns::ROW_BYTES_MAX);
        state.extend(state_row(&value, first(&key)).unwrap());
    }
    assert!(fixed.is_sorted_by_key(|message| message.uid) && state.is_sorted_by_key(|message| message.uid));
    assert_eq!(fixed.len(), state.len());
    fixed.into_iter().zip(state).map(|(fixed, state)| (fixed.uid, (fixed, state))).collect()
}

fn head(table: &MetaTable) -> MailboxHead {
    let reader = table.reader().unwrap();
    MailboxHead::decode(&reader.get(TableName::Mailboxes, &key_of(MAILBOX)).unwrap().unwrap()).unwrap()
}

fn check_counters(table: &MetaTable, rows: &BTreeMap<u32, (FixedMessage, StateMessage)>) {
    let head = head(table);
    let count = |with: fn(u64) -> bool| rows.values().filter(|(_, state)| with(state.flags)).count() as u32;
    assert_eq!((head.exists, head.unseen, head.deleted), (rows.len() as u32, count(is_unseen), count(is_deleted)));
    let bytes: u64 = rows.values().map(|(fixed, _)| fixed.wire_size.counted()).sum();
    assert_eq!(head.bytes, bytes);
    let reader = table.reader().unwrap();
    let account = AccountRow::decode(&reader.get(TableName::Accounts, &key_of(1)).unwrap().unwrap()).unwrap();
    assert_eq!((account.messages, account.bytes), (rows.len() as u64, bytes));
    let names = rows_of(&reader, &RowChanges::default(), TableName::Foreign, &key_of(MAILBOX)).unwrap();
    assert_eq!(names.len(), rows.len());
}

/// Expunges of years take no more room than those of some weeks.
#[test]
fn the_newest_ranges_of_expunged_messages_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let table = MetaTable::open(dir.path()).unwrap();
    made(&table);
    let gone = |lsn: u64| {
        let set = vec![NumberRange { first: lsn as u32, last: lsn as u32 }];
        (lsn, MailEntry::Gone { mailbox: MAILBOX, set, reason: GoneReason::Missing, when: 5 })
    };
    let kept = || {
        let rows = rows_of(&table.reader().unwrap(), &RowChanges::default(), TableName::Gone, &key_of(MAILBOX));
        rows.unwrap().into_keys().map(|key| super::super::values::modseq_and_uid(&key).unwrap().0).collect::<Vec<_>>()
    };
    for lsn in (10..1000).step_by(3) {
        commit(&table, &[gone(lsn), gone(lsn + 1), gone(lsn + 2)]);
        let (kept, from) = (kept(), head(&table).gone_from);
        assert!(kept.len() <= 80, "{} ranges", kept.len());
        // All later ones are known.
        assert_eq!(kept, (from.max(9) + 1..=lsn + 2).collect::<Vec<_>>());
    }
    assert!(head(&table).gone_from > 900);
}

/// A damaged range leaves with those of its age: else the others were never fewer again.
#[test]
fn old_ranges_leave_though_one_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let table = MetaTable::open(dir.path()).unwrap();
    made(&table);
    let gone = |lsns: std::ops::Range<u64>| {
        let set = |lsn: u64| vec![NumberRange { first: lsn as u32, last: lsn as u32 }];
        let entry = |lsn| MailEntry::Gone { mailbox: MAILBOX, set: set(lsn), reason: GoneReason::Missing, when: 5 };
        lsns.map(|lsn| (lsn, entry(lsn))).collect::<Vec<_>>()
    };
    commit(&table, &gone(10..60));
    drop(table);
    let database = redb::Database::create(dir.path().join(super::super::FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    let rows: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("gone");
    let key = super::super::values::key_of_gone(MAILBOX, 20, 20);
    transaction.open_table(rows).unwrap().insert(&key[..], &b"damaged"[..]).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let table = MetaTable::open(dir.path()).unwrap();
    commit(&table, &gone(60..200));
    let (mut whole, mut damaged) = (0, 0);
    let mut look = |_: &[u8], value: Option<&[u8]>| {
        *if value.is_some() { &mut whole } else { &mut damaged } += 1;
        Ok(())
    };
    table.reader().unwrap().for_each(TableName::Gone, &key_of(MAILBOX), &mut look).unwrap();
    assert!(damaged == 0 && whole <= 80, "{whole} ranges, {damaged} damaged");
}

#[derive(Debug, Clone)]
enum Change {
    Found(Vec<(u64, WireSize)>),
    State(u32, u32, u64),
    Gone(u32, u32),
    Size(u32, WireSize),
    Commit,
    Again,
}

fn size() -> impl Strategy<Value = WireSize> {
    prop_oneof![8 => any::<u32>().prop_map(WireSize::of_stored), 1 => Just(WireSize::of(0)), 1 => Just(WireSize::UNKNOWN)]
}

fn change() -> impl Strategy<Value = Change> {
    let uids = (1u32..900, 0u32..300);
    prop_oneof![
        3 => prop::collection::vec((0u64..32, size()), 1..300).prop_map(Change::Found),
        2 => (uids.clone(), any::<u64>()).prop_map(|((first, more), flags)| Change::State(first, first + more, flags)),
        2 => (1u32..900, 0u32..4).prop_map(|(first, more)| Change::State(first, first + more, 1 << 63)),
        2 => uids.prop_map(|(first, more)| Change::Gone(first, first + more)),
        2 => (1u32..900, size()).prop_map(|(uid, size)| Change::Size(uid, size)),
        1 => Just(Change::Commit),
        1 => Just(Change::Again),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_those_of_a_model_whatever_comes(changes in prop::collection::vec(change(), 1..25)) {
        let dir = tempfile::tempdir().unwrap();
        let table = MetaTable::open(dir.path()).unwrap();
        made(&table);
        let (mut model, mut next) = (BTreeMap::new(), 1);
        let (mut waiting, mut last) = (Vec::new(), Vec::new());
        for (lsn, change) in (10..).zip(changes) {
            match change {
                Change::Found(messages) => {
                    let found = messages.iter().map(|(flags, size)| {
                        let facts = MessageFacts { flags: *flags, wire_size: *size, ..Default::default() };
                        (facts, Bytes::from_static(b"name"))
                    });
                    let entry = MailEntry::Found { mailbox: MAILBOX, first_uid: next, messages: found.collect() };
                    for (flags, size) in messages {
                        model.insert(next, (flags | flag_bits::NAMED, size, lsn));
                        next += 1;
                    }
                    waiting.push((lsn, entry));
                }
                Change::State(first, last, flags) => {
                    let set = vec![NumberRange { first, last }];
                    let group = StateGroup { set, flags, letters: 0 };
                    waiting.push((lsn, MailEntry::State { mailbox: MAILBOX, groups: vec![group] }));
                    for (_, message) in model.range_mut(first..=last) {
                        (message.0, message.2) = (flags | flag_bits::NAMED, lsn);
                    }
                }
                Change::Gone(first, last) => {
                    let set = vec![NumberRange { first, last }];
                    let reason = GoneReason::Missing;
                    waiting.push((lsn, MailEntry::Gone { mailbox: MAILBOX, set, reason, when: 5 }));
                    model.retain(|uid, _| !(first..=last).contains(uid));
                    next = next.max(last + 1);
                }
                Change::Size(uid, wire_size) => {
                    // As a server does: of a message that is there.
                    if let Some(message) = model.get_mut(&uid) {
                        message.1 = wire_size;
                        waiting.push((lsn, MailEntry::Size { mailbox: MAILBOX, uid, wire_size, line_feeds: 1 }));
                    }
                }
                Change::Commit => {
                    commit(&table, &waiting);
                    last = std::mem::take(&mut waiting);
                }
                // A commit whose outcome was not known.
                Change::Again => {
                    last.append(&mut waiting);
                    commit(&table, &last);
                }
            }
        }
        commit(&table, &waiting);
        let rows = rows(&table);
        let found: BTreeMap<_, _> =
            rows.iter().map(|(uid, (fixed, state))| (*uid, (state.flags, fixed.wire_size, state.modseq))).collect();
        prop_assert_eq!(found, model);
        prop_assert_eq!(head(&table).next_uid, next);
        check_counters(&table, &rows);
    }
}

#[test]
fn small_rows_join_and_damaged_ones_cost_their_messages() {
    let dir = tempfile::tempdir().unwrap();
    let table = MetaTable::open(dir.path()).unwrap();
    made(&table);
    let mut random = Random::new(5);
    let messages = (0..3000).map(|_| (plausible(&mut random), Bytes::from_static(b"name"))).collect();
    commit(&table, &[(10, MailEntry::Found { mailbox: MAILBOX, first_uid: 1, messages })]);
    let fixed = |table: &MetaTable| {
        rows_of(&table.reader().unwrap(), &RowChanges::default(), TableName::Fixed, &key_of(MAILBOX)).unwrap()
    };
    let before = fixed(&table).len();
    let set: Vec<_> = (0..300).map(|ten| NumberRange { first: ten * 10 + 1, last: ten * 10 + 9 }).collect();
    commit(&table, &[(11, MailEntry::Gone { mailbox: MAILBOX, set, reason: GoneReason::Missing, when: 0 })]);
    assert_eq!(rows(&table).len(), 300);
    assert!(fixed(&table).len() * 3 < before, "{} of {before} rows", fixed(&table).len());

    // Of a damaged row the UIDs stay unused.
    let last = fixed(&table).into_keys().next_back().unwrap();
    let mut changes = RowChanges::default();
    changes.put(TableName::Fixed, &last, vec![0; 50]);
    table.commit(&changes).unwrap();
    let messages = vec![(MessageFacts::default(), Bytes::from_static(b"new"))];
    commit(&table, &[(12, MailEntry::Found { mailbox: MAILBOX, first_uid: 3001, messages })]);
    let rows = fixed(&table);
    assert_eq!(rows[&last], vec![0; 50], "nobody writes over it");
    let new = fixed_row(&rows[&key_of_two(MAILBOX, 3001)[..]], 3001).unwrap();
    assert_eq!(new.len(), 1);
}

/// A message as mail is: sizes of 2 KB to some MB, days of a year.
fn plausible(random: &mut Random) -> MessageFacts {
    let magnitude = 1 << random.below(11);
    let wire_size = 1500 + random.below(2000 * magnitude) as u32;
    let internal_date = 1_760_000_000 + random.below(30_000_000) as u32;
    let flags = u64::from(random.below(2) == 0) | if random.below(33) == 0 { 1 << 10 } else { 0 };
    let line_feeds = wire_size / (40 + random.below(30) as u32);
    let wire_size = WireSize::of(wire_size.into());
    MessageFacts { flags, internal_date, save_date: internal_date + random.below(3) as u32, wire_size, line_feeds }
}

/// Sizes of 100,000 messages in 60 commits, each with flag changes: bytes of live pages in rows, and of all, for each message.
#[test]
fn a_hundred_thousand_messages_take_34_bytes_each() {
    let dir = tempfile::tempdir().unwrap();
    let table = MetaTable::open(dir.path()).unwrap();
    made(&table);
    let mut random = Random::new(1);
    let (commits, each) = (60u32, 1667u32);
    for number in 0..commits {
        let mut entries = Vec::new();
        let first = number * each + 1;
        for at in 0..each {
            let lsn = 10_000 + u64::from(first + at) * 400 + random.below(400);
            let facts = plausible(&mut random);
            // A name of our own follows from the row.
            let messages = vec![(facts, Bytes::new())];
            entries.push((lsn, MailEntry::Found { mailbox: MAILBOX, first_uid: first + at, messages }));
        }
        for at in 0..416u64 {
            let uid = 1 + random.below(u64::from(first + each - 1)) as u32;
            let set = vec![NumberRange { first: uid, last: uid }];
            let groups = vec![StateGroup { set, flags: 1 | random.below(4), letters: 0 }];
            let lsn = 10_000 + u64::from(first + each) * 400 + at;
            entries.push((lsn, MailEntry::State { mailbox: MAILBOX, groups }));
        }
        commit(&table, &entries);
    }
    let messages = f64::from(commits * each);
    let (rows, all) = live_bytes(dir.path());
    let (rows, all) = (rows as f64 / messages, all as f64 / messages);
    println!("{rows:.1} bytes a message in rows, {all:.1} with the names of foreign files");
    assert!(rows <= 34.0, "{rows}");
}

fn live_bytes(dir: &Path) -> (u64, u64) {
    super::super::peek(dir, |reader| {
        let of = |table| reader.live_bytes(table).unwrap();
        let rows = of(TableName::Fixed) + of(TableName::State) + of(TableName::Gone) + of(TableName::Mailboxes);
        Ok((rows, TableName::ALL.into_iter().map(of).sum()))
    })
    .unwrap()
}

/// A session may hold a mailbox that is removed.
#[test]
fn a_note_of_a_listing_brings_no_mailbox_back() {
    let dir = tempfile::tempdir().unwrap();
    let table = MetaTable::open(dir.path()).unwrap();
    made(&table);
    let note = |stamps: i64| FileNote::Listed { mailbox: MAILBOX, stamps: [(stamps, 1), (stamps, 2)] };
    let commit_with = |entries: &[(u64, MailEntry)], note: FileNote| {
        let reader = table.reader().unwrap();
        let mut applier = Applier::new(&reader).unwrap();
        entries.iter().for_each(|(lsn, entry)| applier.apply(*lsn, entry).unwrap());
        applier.note(note).unwrap();
        table.commit(&applier.finish().unwrap()).unwrap();
    };
    commit_with(&[], note(5));
    assert_eq!(head(&table).stamps, [(5, 1), (5, 2)]);
    for entries in [&[(3, MailEntry::MailboxGone { id: MAILBOX })][..], &[]] {
        commit_with(entries, note(6));
        let reader = table.reader().unwrap();
        assert_eq!(reader.get(TableName::Mailboxes, &key_of(MAILBOX)).unwrap(), None);
    }
}
