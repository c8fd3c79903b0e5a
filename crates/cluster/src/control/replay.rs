//! Reads the log of the control shard from its first record on.

use bytes::Bytes;

use super::chunk::{Chunk, ReadError};
use super::entry::ControlKind;
use super::place::ControlPlace;
use super::table::ControlTable;
use crate::{LogPosition, ShardLog};

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
