//! The log of the control shard as one node follows it and appends to it: on a thread, and for callers that wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use posthaste_random::Random;

use super::chunk::{Chunk, Mark, ReadError};
use super::entry::ControlEntry;
use super::place::{CONTROL_SHARD, ControlPlace};
use super::replay::{ControlRules, Replay};
use super::table::ControlTable;
use crate::record::{Content, LogRecord, LogRecordHeader};
use crate::{LogError, LogPosition, ShardLog};

/// The node's interface: stores the values. Called on one thread.
pub trait ControlFollower: Send {
    /// Applies entries, and makes them durable with the place. After a crash some come again.
    ///
    /// # Errors
    /// The reason; the entries are passed again soon.
    fn apply(&mut self, place: ControlPlace, entries: &[ControlEntry]) -> Result<(), String>;

    /// Replaces all values: the log was cut before this node had read it, and the values of keys that were removed
    /// meanwhile must go. Durable with the place.
    ///
    /// # Errors
    /// The reason; the table is passed again soon.
    fn replace(&mut self, table: &ControlTable) -> Result<(), String>;

    /// Called if the log cannot be read or applied, with the reason; with `None` once it can be again.
    fn trouble(&mut self, why: Option<&str>);

    /// Called a few times a second, after the node first reached the end of the log.
    fn tick(&mut self);
}

/// Why a change was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlShardError {
    /// Nothing was stored.
    #[error("the control shard cannot be changed now: {0}")]
    Offline(String),
    /// The change may be stored, now or later. Repeating it is safe.
    #[error("the control shard did not answer, but may have been changed; try again: {0}")]
    Unknown(String),
}

/// The part of a control shard that its thread and its callers share.
pub(super) struct Shared {
    pub log: Arc<dyn ShardLog>,
    pub rules: Arc<dyn ControlRules>,
    state: Mutex<State>,
    changed: Condvar,
    /// One change at a time takes it. Source of nonces and log ids.
    writer: Mutex<Option<Random>>,
    /// Notified when the writer is returned.
    is_free: Condvar,
}

/// The writer, until it is dropped.
pub(super) struct Writing<'a> {
    shared: &'a Shared,
    pub random: Random,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let random = std::mem::replace(&mut self.random, Random::of(0, 0));
        *self.shared.writer.lock().expect("nothing panics while it is held") = Some(random);
        self.shared.is_free.notify_one();
    }
}

#[derive(Default)]
struct State {
    place: ControlPlace,
    /// The nonce of the record that is being appended.
    awaited: Option<u64>,
    /// Position of that record, once it was read back.
    stored: Option<LogPosition>,
    /// The first records of restatements whose end is not read yet.
    begun: BTreeMap<u64, LogPosition>,
    /// The first record of the last whole restatement: a reader needs nothing before it.
    base: Option<LogPosition>,
    /// Why the log cannot be read now.
    trouble: Option<String>,
    /// True if the thread should check the log at once.
    is_woken: bool,
    is_closed: bool,
}

impl Shared {
    pub fn new(log: Arc<dyn ShardLog>, rules: Arc<dyn ControlRules>, place: ControlPlace, seed: u64) -> Self {
        let state = Mutex::new(State { place, ..State::default() });
        let writer = Mutex::new(Some(Random::of(seed, 0xC0)));
        Shared { log, rules, state, changed: Condvar::new(), writer, is_free: Condvar::new() }
    }

    /// Ends [`follow`](Self::follow).
    pub fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// The last applied record.
    pub fn place(&self) -> ControlPlace {
        self.state().place
    }

    /// The first record of the last whole restatement that this node has read.
    pub fn base(&self) -> Option<LogPosition> {
        self.state().base
    }

    /// Why the log cannot be read now.
    pub fn trouble(&self) -> Option<String> {
        self.state().trouble.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }

    /// Takes the writer. `None` if another change holds it until the deadline.
    pub fn begin_write(&self, until: Instant) -> Option<Writing<'_>> {
        let writer = self.writer.lock().expect("nothing panics while it is held");
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.is_free.wait_timeout_while(writer, left, |writer| writer.is_none());
        let random = waited.expect("nothing panics while it is held").0.take()?;
        Some(Writing { shared: self, random })
    }

    pub fn store(&self, entries: &[ControlEntry], until: Instant) -> Result<LogPosition, ControlShardError> {
        let busy = || ControlShardError::Offline("other changes wait for the engine".to_owned());
        let mut writing = self.begin_write(until).ok_or_else(|| self.give_up(busy()))?;
        let content = Content::Batches(entries.iter().map(ControlEntry::encode).collect());
        let nonce = writing.random.next();
        let mut failed = ControlShardError::Offline("it was not tried".to_owned());
        loop {
            let (place, stored) = self.await_record(nonce);
            if let Some(position) = stored {
                return Ok(position);
            }
            if Instant::now() >= until {
                return Err(self.give_up(failed));
            }
            match self.append(place, nonce, &content, &mut writing.random, until) {
                Ok(position) => return Ok(position),
                Err(LogError::Unknown(why)) => failed = ControlShardError::Unknown(why),
                // Another record has the place, so this one can never get it.
                Err(error) => failed = ControlShardError::Offline(error.to_string()),
            }
            // Reading decides: it is there, or another record has its place.
            self.wait_past(place.position, until.min(Instant::now() + LOOK_EVERY));
        }
    }

    pub fn follow(&self, follower: &mut dyn ControlFollower) {
        let mut is_current = false;
        while !self.state().is_closed {
            let outcome = self.read_on(follower);
            is_current |= outcome.is_ok();
            let before = std::mem::replace(&mut self.state().trouble, outcome.as_ref().err().cloned());
            if before.is_some() != outcome.is_err() {
                follower.trouble(outcome.err().as_deref());
            }
            if is_current {
                follower.tick();
            }
            let is_idle = |state: &mut State| !state.is_woken && !state.is_closed;
            let waited = self.changed.wait_timeout_while(self.state(), LOOK_EVERY, is_idle);
            let (mut state, _) = waited.expect("nothing panics while it is held");
            state.is_woken = false;
        }
    }

    /// Applies all that the log has.
    fn read_on(&self, follower: &mut dyn ControlFollower) -> Result<(), String> {
        loop {
            let (place, is_closed) = {
                let state = self.state();
                (state.place, state.is_closed)
            };
            let end = self.log.end().map_err(|error| error.to_string())?;
            if end < place.position {
                let at = place.position;
                return Err(format!("the control shard's log ends at {end}, and this node has applied position {at}"));
            }
            if end == place.position || is_closed {
                return Ok(());
            }
            let chunk = match self.read(place, end) {
                Err(ReadError::Cut(first)) if place.position > LogPosition::START => {
                    self.replace(place, first, end, follower)?;
                    continue;
                }
                // It has nothing yet, and begins with a restatement.
                Err(ReadError::Cut(first)) => self.read(ControlPlace::before(first), end)?,
                chunk => chunk?,
            };
            follower.apply(chunk.place, &chunk.entries)?;
            self.note(&chunk);
        }
    }

    /// Updates the state after records were applied.
    fn note(&self, chunk: &Chunk) {
        let mut state = self.state();
        state.place = chunk.place;
        let own = chunk.nonces.iter().find(|(nonce, _)| state.awaited == Some(*nonce));
        state.stored = state.stored.or(own.map(|(_, position)| *position));
        for mark in &chunk.marks {
            match *mark {
                Mark::Begin(id, position) => drop(state.begun.insert(id, position)),
                Mark::End(id) => {
                    if let Some(position) = state.begun.remove(&id) {
                        // Those that began before and have not ended are of no use.
                        state.begun.retain(|_, begun| *begun > position);
                        state.base = state.base.max(Some(position));
                    }
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Reads the whole log, which begins with a restatement, and replaces all of the follower's values.
    fn replace(
        &self,
        place: ControlPlace,
        first: LogPosition,
        end: LogPosition,
        follower: &mut dyn ControlFollower,
    ) -> Result<(), String> {
        let mut replay = Replay::new(ControlPlace::before(first));
        let chunks = replay.read_to(&*self.log, end, &*self.rules)?;
        let table = replay.table();
        if table.place.log != place.log {
            return Err(
                "the control shard's log is of another history: the engine was restored, or its data lost".to_owned()
            );
        }
        follower.replace(table)?;
        chunks.iter().for_each(|chunk| self.note(chunk));
        Ok(())
    }

    /// Reads some records after a place, one at least.
    fn read(&self, from: ControlPlace, end: LogPosition) -> Result<Chunk, ReadError> {
        Chunk::read(&*self.log, from, end)
    }

    /// Waits for the position of the next append, or of the record with this nonce.
    fn await_record(&self, nonce: u64) -> (ControlPlace, Option<LogPosition>) {
        let mut state = self.state();
        if state.awaited != Some(nonce) {
            (state.awaited, state.stored) = (Some(nonce), None);
        }
        (state.place, state.stored)
    }

    pub fn append(
        &self,
        place: ControlPlace,
        nonce: u64,
        content: &Content,
        random: &mut Random,
        until: Instant,
    ) -> Result<LogPosition, LogError> {
        // 0 is no log.
        let log = if place.position == LogPosition::START { random.next().max(1) } else { place.log };
        let first = place.position.get() + 1;
        let previous = place.crc;
        let header = LogRecordHeader { shard: CONTROL_SHARD, log, epoch: 0, send: nonce, first, previous };
        let (record, _) = LogRecord::encode(&header, content);
        let (tell, told) = mpsc::sync_channel(1);
        let then = move |outcome| {
            let _ = tell.send(outcome);
        };
        self.log.append(place.position, record, Box::new(then));
        let left = until.saturating_duration_since(Instant::now());
        told.recv_timeout(left).unwrap_or_else(|_| Err(LogError::Unknown("no answer in time".to_owned())))
    }

    /// Makes the thread check the log, and waits until a record after this position is applied.
    pub fn wait_past(&self, position: LogPosition, until: Instant) {
        let mut state = self.state();
        state.is_woken = true;
        self.changed.notify_all();
        let left = until.saturating_duration_since(Instant::now());
        let lacks = |state: &mut State| state.place.position <= position;
        drop(self.changed.wait_timeout_while(state, left, lacks).expect("nothing panics while it is held"));
    }

    /// The error, with the trouble of reading.
    fn give_up(&self, failed: ControlShardError) -> ControlShardError {
        match (failed, self.state().trouble.clone()) {
            (ControlShardError::Offline(_), Some(trouble)) => ControlShardError::Offline(trouble),
            (failed, _) => failed,
        }
    }
}

/// Interval between two looks at the log's end.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
