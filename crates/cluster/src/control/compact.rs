//! Keeps the control shard's log short.
//!
//! A node *restates* all values at the end of the log, between two marks. Each part directly follows the entries that
//! it was made from, so it changes nothing for nodes that have read the log. A reader that starts at the first mark has
//! all values at the second. So once the second mark is stored, and no node still reads before the first, the log can
//! be cut there. A removed node that returns after the cut replaces all of its values.

use std::time::Instant;

use bytes::Bytes;
use posthaste_random::Random;

use super::chunk::{Mark, ReadError};
use super::entry::{ControlEntry, ControlKind, ENTRIES_MAX};
use super::place::ControlPlace;
use super::replay::Replay;
use super::shared::{ControlShardError, LOOK_EVERY, Shared};
use crate::LogError;
use crate::record::Content;

/// A restatement in progress.
pub(super) struct Restatement<'a> {
    shared: &'a Shared,
    replay: Replay,
    random: Random,
    id: u64,
    until: Instant,
}

/// A key in the order of a table.
type Key = (ControlKind, Bytes);

impl<'a> Restatement<'a> {
    /// A restatement that gives up at `until`. It has appended nothing yet.
    pub fn begin(shared: &'a Shared, until: Instant) -> Result<Self, ControlShardError> {
        let offline = |error: LogError| ControlShardError::Offline(error.to_string());
        let busy = || ControlShardError::Offline("other changes wait for the engine".to_owned());
        let mut random = {
            let mut writing = shared.begin_write(until).ok_or_else(busy)?;
            Random::of(writing.random.next(), 0xC1)
        };
        let first = shared.log.first().map_err(offline)?;
        let id = random.next();
        let replay = Replay::new(ControlPlace::before(first));
        Ok(Restatement { shared, replay, random, id, until })
    }

    /// Appends all values.
    pub fn append(mut self) -> Result<(), ControlShardError> {
        let mut after = None;
        loop {
            match self.append_part(after.as_ref())? {
                None => return Ok(()),
                last => after = last,
            }
        }
    }

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
