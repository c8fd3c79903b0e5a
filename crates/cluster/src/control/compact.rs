//! Keeps the control shard's log short.
//!
//! A node *restates* all values at the end of the log, between two marks. Each part directly follows the entries that
//! it was made from, so it changes nothing for nodes that have read the log. A reader that starts at the first mark has
//! all values at the second. So once the second mark is stored, and no node still reads before the first, the log can
//! be cut there. A removed node that returns after the cut replaces all of its values.

use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_random::Random;

use super::chunk::{Chunk, Mark, ReadError};
use super::shard::{ControlPlace, ControlShard, ControlShardError, ENTRIES_MAX, LOOK_EVERY, Shared};
use super::{ControlEntry, ControlKind, ControlTable};
use crate::record::Content;
use crate::{LogError, LogPosition, ShardLog};

/// The meaning of values, as far as a restatement needs it.
pub trait ControlRules: Send + Sync {
    /// True if a key keeps its value although a later entry has another one.
    fn stays(&self, kind: ControlKind, value: &Bytes, later: &Bytes) -> bool;

    /// Value for restating an entry: it changes nothing on a node that has the value. `None`: the value has expired,
    /// and all nodes know that.
    fn restated(&self, kind: ControlKind, value: &Bytes) -> Option<Bytes>;
}

/// The values of the log, read from its first record on.
pub(super) struct Replay {
    table: ControlTable,
}

impl Replay {
    pub fn new(place: ControlPlace) -> Self {
        Replay { table: ControlTable::at(place) }
    }

    pub fn table(&self) -> &ControlTable {
        &self.table
    }

    /// Reads on. Returns what was read, without the entries.
    pub fn read_to(
        &mut self,
        log: &dyn ShardLog,
        end: LogPosition,
        rules: &dyn ControlRules,
    ) -> Result<Vec<Chunk>, ReadError> {
        let mut chunks = Vec::new();
        while self.table.place.position < end {
            let mut chunk = Chunk::read(log, self.table.place, end)?;
            for entry in chunk.entries.drain(..) {
                let before = self.table.value(entry.kind, &entry.key);
                let is_kept =
                    before.zip(entry.value.as_ref()).is_some_and(|(it, next)| rules.stays(entry.kind, it, next));
                if !is_kept {
                    self.table.apply(&entry);
                }
            }
            self.table.place = chunk.place;
            chunks.push(chunk);
        }
        Ok(chunks)
    }
}

/// A restatement in progress.
struct Restatement<'a> {
    shared: &'a Shared,
    replay: Replay,
    random: Random,
    id: u64,
    until: Instant,
}

impl ControlShard {
    /// Restates all values at the end of the log. Holds all of them in memory. Others change the log meanwhile. Blocks,
    /// for hardly longer than `patience`.
    ///
    /// # Errors
    /// See [`ControlShardError`]. What was stored changes nothing.
    pub fn restate(&self, patience: Duration) -> Result<(), ControlShardError> {
        let until = Instant::now() + patience;
        let offline = |error: LogError| ControlShardError::Offline(error.to_string());
        let busy = || ControlShardError::Offline("other changes wait for the engine".to_owned());
        let mut random = {
            let mut writing = self.shared.begin_write(until).ok_or_else(busy)?;
            Random::of(writing.random.next(), 0xC1)
        };
        let first = self.shared.log.first().map_err(offline)?;
        let id = random.next();
        let replay = Replay::new(ControlPlace::before(first));
        let mut restatement = Restatement { shared: &self.shared, replay, random, id, until };
        let mut after = None;
        loop {
            match restatement.append_part(after.as_ref())? {
                None => return Ok(()),
                last => after = last,
            }
        }
    }

    /// Cuts the log before the last complete restatement. False, without a cut, if a node that has applied only the
    /// records up to `lowest` would then miss some.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    pub fn cut(&self, lowest: LogPosition) -> Result<bool, LogError> {
        let log = &*self.shared.log;
        let Some(base) = self.base().filter(|base| *base <= lowest.next()) else { return Ok(false) };
        if log.first()? >= base {
            return Ok(false);
        }
        log.cut(base).map(|()| true)
    }

    /// Bytes of the log.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    pub fn used_bytes(&self) -> Result<u64, LogError> {
        self.shared.log.room().map(|(used, _)| used)
    }
}

/// A key in the order of a table.
type Key = (ControlKind, Bytes);

impl Restatement<'_> {
    /// Appends the values after a key, as many as fit into a record. Returns the last key; `None`: the whole is stored.
    fn append_part(&mut self, after: Option<&Key>) -> Result<Option<Key>, ControlShardError> {
        let mut failed = ControlShardError::Offline("it was not tried".to_owned());
        // Each attempt has its own number, as its values may be others: some expire meanwhile.
        let mut sent: Vec<(u64, Option<Key>)> = Vec::new();
        loop {
            let stored = self.read_on().map_err(|error| ControlShardError::Offline(error.into()))?;
            if let Some((_, last)) = sent.iter().find(|(nonce, _)| stored.contains(nonce)) {
                return Ok(last.clone());
            }
            if Instant::now() >= self.until {
                return Err(failed);
            }
            // Made from all up to the place that it is appended at. One of the attempts gets that, or another record.
            let (entries, last) = self.part(after);
            let nonce = self.random.next();
            let content = Content::Batches(entries.iter().map(ControlEntry::encode).collect());
            let place = self.replay.table().place;
            let shared = self.shared;
            match shared.append(place, nonce, &content, &mut self.random, self.until) {
                Ok(_) => return Ok(last),
                Err(LogError::Unknown(why)) => failed = ControlShardError::Unknown(why),
                Err(error) => failed = ControlShardError::Offline(error.to_string()),
            }
            sent.push((nonce, last));
            shared.wait_past(place.position, self.until.min(Instant::now() + LOOK_EVERY));
        }
    }

    /// Reads on. Returns the numbers of the records.
    fn read_on(&mut self) -> Result<Vec<u64>, ReadError> {
        let Shared { log, rules, .. } = self.shared;
        let end = log.end().map_err(|error| ReadError::Failed(error.to_string()))?;
        let chunks = self.replay.read_to(&**log, end, &**rules)?;
        Ok(chunks.iter().flat_map(|chunk| &chunk.nonces).map(|(nonce, _)| *nonce).collect())
    }

    /// Entries of one record, and the key of the last one: `None` if it is the last record.
    fn part(&self, after: Option<&Key>) -> (Vec<ControlEntry>, Option<Key>) {
        let mut entries = Vec::new();
        if after.is_none() {
            entries.push(Mark::entry(self.id, true));
        }
        for (kind, key, value) in self.replay.table().after(after) {
            // There is room for the mark at the end.
            if entries.len() + 1 == ENTRIES_MAX {
                let last = entries.last().map(|entry: &ControlEntry| (entry.kind, entry.key.clone()));
                return (entries, last);
            }
            let value = self.shared.rules.restated(kind, value);
            entries.extend(value.map(|value| ControlEntry { kind, key: key.clone(), value: Some(value) }));
        }
        entries.push(Mark::entry(self.id, false));
        (entries, None)
    }
}
