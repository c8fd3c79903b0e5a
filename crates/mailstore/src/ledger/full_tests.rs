//! A spool that is full, and a table that cannot be written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_consumer::StreamHandle;
use posthaste_fsops::{Faults, Machine};
use posthaste_spool::Consumer;

use super::tests::{MAILBOX, found, open, open_spool, open_with, shape, steps};
use super::*;
use crate::entry::STREAM;

#[test]
fn a_full_spool_leaves_mailboxes_readable_and_is_left_behind() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    let expected = shape(ledger.mailbox(MAILBOX).unwrap());
    ledger.commit().unwrap();
    drop(ledger);
    let spool = open_spool(&machine);
    fill(&StreamHandle::register(spool.clone(), STREAM).unwrap());
    let (ledger, _) = open_with(&machine, Arc::clone(&spool));
    assert_eq!(shape(ledger.follow(MAILBOX).unwrap()), expected);
    let refused = ledger.append_uids(MAILBOX, 1, |first| vec![found(first, 1)]);
    assert!(matches!(refused, Err(MailLedgerError::Append(AppendError::Full(_)))), "{refused:?}");
    ledger.commit().unwrap();
    spool.checkpoint().unwrap();
    let lsn = ledger.append_uids(MAILBOX, 1, |first| vec![found(first, 1)]).unwrap();
    let openings = ledger
        .shared
        .read(|state| state.entries.clone(), |reader, changes, _| rows_of(reader, changes, TableName::Openings, &[]));
    let last = openings.unwrap().into_keys().last().unwrap();
    assert!(u64::from_be_bytes(last.try_into().unwrap()) < lsn, "the opening comes first");
    // The spool lets its consumer go.
    drop(ledger);
    let (ledger, _) = open_with(&machine, spool);
    assert_eq!(ledger.mailbox(MAILBOX).unwrap().unwrap().head.next_uid, 102);
}

/// Fills a spool with entries that say nothing.
fn fill(stream: &StreamHandle) {
    let nothing = MailEntry::Keyword { mailbox: 99, bit: 8, name: Bytes::from(vec![b'x'; 900]) }.encode();
    loop {
        match stream.append_durably([nothing.clone()]) {
            Ok(_) => {}
            Err(AppendError::Full(_)) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

impl MailLedger {
    /// Entries that were applied to answer questions since the opening.
    pub(crate) fn applied_entries(&self) -> usize {
        self.shared.applied.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// As if the table had not been written for long.
    pub(crate) fn let_too_much_wait(&self) {
        self.shared.waiting.lock().bytes += super::waiting::REFUSED_BYTES;
        self.append(&steps()[0]).unwrap();
    }

    /// The table is written again.
    pub(crate) fn let_it_be_written(&self) {
        self.shared.waiting.lock().bytes -= super::waiting::REFUSED_BYTES;
        self.commit().unwrap();
    }
}

#[test]
fn changes_are_refused_while_too_much_waits_for_the_table() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    ledger.let_too_much_wait();
    assert!(matches!(ledger.append(&steps()[1]), Err(MailLedgerError::TooMuchWaits)));
    ledger.let_it_be_written();
    ledger.append(&steps()[1]).unwrap();
}

#[test]
fn an_opening_without_changes_writes_nothing() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    steps().iter().for_each(|step| assert!(ledger.append(step).is_ok()));
    drop(ledger);
    let spool = open_spool(&machine);
    let before = spool.stats().published;
    let (ledger, _) = open_with(&machine, Arc::clone(&spool));
    assert_eq!(ledger.follow(MAILBOX).unwrap().unwrap().head.next_uid, 101);
    ledger.end();
    assert_eq!((spool.stats().published, ledger.shared.waiting.lock().commits), (before, 0));
    drop(ledger);
    // A UID without the entry *opening* would be that of a file with an earlier nonce in its name.
    let (ledger, _) = open_with(&machine, spool);
    assert!(ledger.pin(MAILBOX).unwrap());
    assert_eq!(ledger.lock_uids().take(MAILBOX, 1), None);
    ledger.check_open().unwrap();
    assert_eq!(ledger.lock_uids().take(MAILBOX, 1), Some(101));
    assert_eq!(ledger.nonce_of(before.get() + 2), Some(7));
}

#[test]
fn a_commit_of_nothing_writes_nothing() {
    let machine = Machine::new().unwrap();
    let (ledger, _) = open(&machine);
    ledger.commit().unwrap();
    // Of the table alone: the spool writes its own when it wants to.
    let files = || {
        let files = std::fs::read_dir(machine.path().join("mailstore")).unwrap();
        files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect::<std::collections::BTreeSet<_>>()
    };
    let before = files();
    ledger.commit().unwrap();
    assert_eq!(files(), before);
}

#[test]
fn a_failed_commit_is_not_tried_again_at_once() {
    let waiting = Waiting::default();
    waiting.advance_wanted(Lsn::new(1));
    let (begun, back_off) = (std::time::Instant::now(), Duration::from_millis(50));
    assert!(waiting.wait(Some(back_off)));
    assert!(begun.elapsed() >= back_off);
    waiting.advance_wanted(Lsn::new(1));
    assert!(waiting.wait(None));
    waiting.end();
    assert!(!waiting.wait(Some(Duration::MAX / 4)));
}

#[test]
fn a_disk_that_hangs_under_the_table_is_told_of() {
    let machine = Machine::new().unwrap();
    let spool = open_spool(&machine);
    let (ledger, _) = open_with(&machine, Arc::clone(&spool));
    // Held, so that these wait when the disk begins to hang.
    let held = lock(&ledger.shared.committing);
    for step in steps() {
        ledger.append(&step).unwrap();
    }
    machine.set_faults(Faults { hang_syncs: Some(Vec::new()), ..Faults::default() });
    drop(held);
    ledger.shared.waiting.advance_wanted(Lsn::ZERO);
    let (begun, mut now) = (Instant::now(), Instant::now());
    let mut told = || {
        loop {
            // Of the watch alone: nothing waits for so long.
            now += Duration::from_secs(61);
            let found = spool.look_for_stuck(now);
            if let Some(found) = found.into_iter().find(|found| found.states.starts_with("mailstore")) {
                return found.states;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is told");
            std::thread::yield_now();
        }
    };
    assert_eq!(told(), "mailstore > writing the table of mailboxes");
    machine.set_faults(Faults::default());
    assert_eq!(told(), "mailstore > writing the table of mailboxes", "it goes on");
    ledger.end();
}
