//! Journaled mode on a log that is none of ours: a list in memory, which outlives the executor as a replicated log would.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use posthaste_journal::{
    AppendError, CheckpointError, CheckpointStats, Note, RecordId, Recovered, Recovery, StatsSnapshot,
};

use super::Journaled;
use super::tests::{Place, mailbox, message};
use crate::log::Log;
use crate::record::{KIND_DELIVERED, KIND_MESSAGE, Stored};

/// Clones share it.
#[derive(Clone, Default)]
struct MemoryLog {
    state: Arc<Mutex<State>>,
    one_checkpoint_at_a_time: Arc<Mutex<()>>,
}

#[derive(Default)]
struct State {
    next: u64,
    live: BTreeMap<RecordId, (u8, Bytes)>,
    settled: BTreeMap<RecordId, (u8, Bytes)>,
    notes: Vec<Note>,
    // Whether each of the next reads of a record fails, the last of these first.
    bad_reads: BTreeMap<RecordId, Vec<bool>>,
}

impl MemoryLog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What a process that was killed leaves: nothing of what was settled and not checkpointed is forgotten.
    fn recovery(&self) -> Recovery {
        let mut state = self.state();
        let settled = std::mem::take(&mut state.settled);
        state.live.extend(settled);
        let record =
            |(&id, (kind, payload)): (&u64, &(u8, Bytes))| Recovered { id, kind: *kind, len: payload.len() as u32 };
        let records = state.live.iter().map(record).collect();
        Recovery { records, notes: state.notes.clone(), damage: Vec::new(), bytes_read: 0, epoch: 1 }
    }
}

impl Log for MemoryLog {
    fn append(&self, kind: u8, parts: Vec<Bytes>, then: impl FnOnce(Result<RecordId, AppendError>) + Send + 'static) {
        let id = {
            let mut state = self.state();
            state.next += 1;
            let id = state.next;
            state.live.insert(id, (kind, parts.concat().into()));
            id
        };
        then(Ok(id));
    }

    fn note(&self, kind: u8, parts: Vec<Bytes>) {
        let mut state = self.state();
        state.next += 1;
        let note = Note { seq: state.next, kind, payload: parts.concat() };
        state.notes.push(note);
    }

    fn note_durably(&self, kind: u8, parts: Vec<Bytes>) -> Result<(), AppendError> {
        self.note(kind, parts);
        Ok(())
    }

    fn commit(&self) -> Result<(), AppendError> {
        Ok(())
    }

    fn replace(&self, id: RecordId, kind: u8, parts: Vec<Bytes>) -> Result<(), AppendError> {
        let mut state = self.state();
        let record = state.live.get_mut(&id).ok_or(AppendError::Closed)?;
        *record = (kind, parts.concat().into());
        Ok(())
    }

    fn settle(&self, ids: &[RecordId]) {
        let mut state = self.state();
        for id in ids {
            if let Some(record) = state.live.remove(id) {
                state.settled.insert(*id, record);
            }
        }
    }

    fn read(&self, id: RecordId) -> io::Result<Option<Bytes>> {
        let mut state = self.state();
        if state.bad_reads.get_mut(&id).is_some_and(|reads| reads.pop() == Some(true)) {
            return Err(io::Error::other("the disk says no"));
        }
        Ok(state.live.get(&id).or_else(|| state.settled.get(&id)).map(|(_, payload)| payload.clone()))
    }

    fn checkpoint(&self, make_durable: impl FnOnce() -> io::Result<()>) -> Result<CheckpointStats, CheckpointError> {
        let _alone = self.one_checkpoint_at_a_time.lock().unwrap();
        let (settled, notes) = {
            let state = self.state();
            (state.settled.keys().copied().collect::<Vec<_>>(), state.notes.len())
        };
        make_durable().map_err(|error| CheckpointError::MakeDurable { error, records: settled.clone() })?;
        let mut state = self.state();
        settled.iter().for_each(|id| drop(state.settled.remove(id)));
        state.notes.drain(..notes);
        let (through, live) = (state.next, state.live.len());
        Ok(CheckpointStats { through, recycled: 0, copied: 0, live, unreadable: 0 })
    }

    fn bytes_used(&self) -> u64 {
        0
    }

    fn checkpoint_after(&self) -> u64 {
        u64::MAX
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        None
    }

    fn stats(&self) -> StatsSnapshot {
        StatsSnapshot { live_records: self.state().live.len(), ..StatsSnapshot::default() }
    }
}

#[test]
fn another_log_takes_the_journals_place() {
    let (place, log) = (Place::new(), MemoryLog::default());
    let (executor, report) = Journaled::open_on(log.clone(), log.recovery(), place.config()).expect("opens");
    assert_eq!(report.messages, 0);
    std::fs::create_dir_all(place.mail().join("bad")).expect("a directory");
    std::fs::write(place.mail().join("bad/Maildir"), "in the way").expect("a file");
    place.runtime.block_on(executor.deliver_message(message(&["ann", "bad"], "a\r\n"))).expect("accepted");
    executor.checkpoint().expect("checkpoint");
    place.runtime.block_on(executor.deliver_message(message(&["bob"], "b\r\n"))).expect("accepted");
    drop(executor);
    assert_eq!(log.stats().live_records, 1, "what waits for the bad one");

    // As if the end had come before its checkpoint: the same file again, under the same name.
    log.append(KIND_MESSAGE, vec![log.read(1).expect("readable").expect("it waits")], |_| ());
    log.state().notes.retain(|note| note.kind != KIND_DELIVERED);
    std::fs::remove_file(place.mail().join("bad/Maildir")).expect("cleared");
    let (executor, report) = Journaled::open_on(log.clone(), log.recovery(), place.config()).expect("opens");
    assert_eq!((report.messages, report.restored, report.deferred), (2, 2, 0));
    executor.checkpoint().expect("checkpoint");
    assert_eq!(log.stats().live_records, 0);
    let counts = ["ann", "bob", "bad"].map(|name| mailbox(&place.mail(), name).len());
    assert_eq!(counts, [1, 1, 2], "two records, two entries");
}

#[test]
fn what_cannot_be_read_at_an_opening_is_named_and_found_by_the_next() {
    let (place, log) = (Place::new(), MemoryLog::default());
    for body in ["a\r\n", "b\r\n", "c\r\n"] {
        let numbers = vec![0];
        let message = message(&["ann"], body);
        let stored = Stored { secs: 1_700_000_000, nonce: 7, host: "mx.example".into(), message, numbers };
        log.append(KIND_MESSAGE, stored.encode(), |_| ());
    }
    // One at the first look, and one when its turn comes.
    log.state().bad_reads = BTreeMap::from([(1, vec![true]), (2, vec![true, false])]);
    let (executor, report) = Journaled::open_on(log.clone(), log.recovery(), place.config()).expect("opens");
    let named: Vec<(u64, String)> = report.unreadable.iter().map(|(id, error)| (*id, error.to_string())).collect();
    assert_eq!(named, [(1, "the disk says no".to_owned()), (2, "the disk says no".to_owned())]);
    assert_eq!((report.restored, report.deferred), (1, 0));
    drop(executor);
    let (_executor, report) = Journaled::open_on(log.clone(), log.recovery(), place.config()).expect("opens");
    assert_eq!((report.messages, report.restored, report.unreadable.len()), (2, 2, 0));
    assert_eq!(mailbox(&place.mail(), "ann").len(), 3);
}
