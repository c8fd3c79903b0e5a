//! Records of the control shard's log, as they are read.

use bytes::Bytes;

use super::entry::{ControlEntry, ControlKind, ENTRIES_MAX};
use super::place::{CONTROL_SHARD, ControlPlace};
use crate::record::{Content, LogRecord, LogRecordHeader};
use crate::{LogError, LogPosition, ShardLog};

/// Records that were read.
pub(super) struct Chunk {
    pub place: ControlPlace,
    pub entries: Vec<ControlEntry>,
    /// Numbers of the records, and their positions.
    pub nonces: Vec<(u64, LogPosition)>,
    pub marks: Vec<Mark>,
}

/// The begin or the end of a restatement, by its random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// In the record at this position.
    Begin(u64, LogPosition),
    End(u64),
}

/// Why nothing was read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReadError {
    /// The log now begins with this record.
    #[error("the control shard's log now begins at position {0}")]
    Cut(LogPosition),
    #[error("{0}")]
    Failed(String),
}

impl From<ReadError> for String {
    fn from(error: ReadError) -> Self {
        error.to_string()
    }
}

impl Mark {
    /// The entry of a begin, or of an end.
    pub fn entry(id: u64, is_begin: bool) -> ControlEntry {
        let key = Bytes::copy_from_slice(&id.to_le_bytes());
        ControlEntry { kind: ControlKind::Restatement, key, value: is_begin.then(Bytes::new) }
    }

    /// `None` if it is of a newer release.
    fn of(entry: &ControlEntry, position: LogPosition) -> Option<Self> {
        let id = u64::from_le_bytes(entry.key[..].try_into().ok()?);
        Some(if entry.value.is_some() { Mark::Begin(id, position) } else { Mark::End(id) })
    }
}

impl Chunk {
    /// Reads some records after a place, one at least. Before the first record of a log that was cut, the place has no
    /// log.
    pub fn read(log: &dyn ShardLog, from: ControlPlace, end: LogPosition) -> Result<Self, ReadError> {
        let mut chunk = Chunk { place: from, entries: Vec::new(), nonces: Vec::new(), marks: Vec::new() };
        let mut wrong = None;
        let followed = log.follow(from.position.next(), &mut |position, bytes| {
            wrong = chunk.take(position, &bytes).err();
            wrong.is_none() && position < end && chunk.entries.len() < ENTRIES_MAX
        });
        if !chunk.nonces.is_empty() {
            return Ok(chunk);
        }
        match (wrong, followed) {
            (Some(why), _) => Err(ReadError::Failed(why)),
            (None, Err(LogError::Cut { first })) => Err(ReadError::Cut(first)),
            (None, Err(error)) => Err(ReadError::Failed(error.to_string())),
            (None, Ok(())) => Ok(chunk),
        }
    }

    /// # Errors
    /// The record is damaged, of another history, or of a newer release.
    fn take(&mut self, position: LogPosition, bytes: &Bytes) -> Result<(), String> {
        let at = || format!("position {position} of the control shard's log");
        let record = LogRecord::decode(bytes).map_err(|error| format!("{}: {error}", at()))?;
        let LogRecordHeader { shard, log, send, previous, .. } = record.header;
        let Content::Batches(batches) = record.content else { return Err(format!("{} has no entries", at())) };
        let entries: Option<Vec<ControlEntry>> = batches.iter().map(|batch| ControlEntry::decode(batch)).collect();
        let unknown = || format!("{} has an entry that this release does not know", at());
        let (marks, entries): (Vec<_>, Vec<_>) =
            entries.ok_or_else(unknown)?.into_iter().partition(|entry| entry.kind == ControlKind::Restatement);
        let marks: Option<Vec<Mark>> = marks.iter().map(|mark| Mark::of(mark, position)).collect();
        let marks = marks.ok_or_else(unknown)?;
        let is_next = if self.place.log != 0 {
            previous == self.place.crc && log == self.place.log
        } else if self.place.position == LogPosition::START {
            previous == 0
        } else {
            // What it follows was cut: it must need nothing of that.
            marks.iter().any(|mark| matches!(mark, Mark::Begin(..)))
        };
        if shard != CONTROL_SHARD || !is_next || position != self.place.position.next() {
            return Err(format!("{} belongs to another history: the engine was restored, or its data lost", at()));
        }
        self.entries.extend(entries);
        self.marks.extend(marks);
        self.nonces.push((send, position));
        self.place = ControlPlace { log, position, crc: record.crc };
        Ok(())
    }
}
