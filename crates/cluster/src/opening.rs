//! Opening a shard: the local spool's position in the log, and the check that the log has the same history.

use std::collections::BTreeMap;
use std::io::{self, Read};

use bytes::Bytes;
use posthaste_spool::{Lsn, ReplayError, Replayed, RestoreError, Spool, SpoolAdmin, StreamError, StreamId};

use crate::entry::{Applied, Place};
use crate::member::Member;
use crate::reader::{Invalid, LogReader};
use crate::record::LogRecord;
use crate::sender::SenderEnd;
use crate::{LogError, LogPosition, ShardLog};

/// Prefix of the private stream's name, followed by the id of the local spool. So the id is created with the stream,
/// and lost with the spool.
pub(crate) const LOG_STREAM: &str = "log";
const ID_SIGN: char = '-';

/// True of the name of the private stream.
pub(crate) fn is_private(name: &str) -> bool {
    spool_id(name).is_some()
}

fn spool_id(name: &str) -> Option<u64> {
    let hex = name.strip_prefix(LOG_STREAM)?.strip_prefix(ID_SIGN)?;
    (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok()).flatten()
}

/// The private stream and the id of the local spool. A new spool gets `new_id`.
pub(crate) fn private_stream(local: &impl SpoolAdmin, new_id: u64) -> Result<(StreamId, u64), ShardOpenError> {
    let id = local.streams().iter().find_map(|stream| spool_id(&stream.name)).unwrap_or(new_id);
    Ok((local.stream(&format!("{LOG_STREAM}{ID_SIGN}{id:016x}"))?, id))
}

/// Why a shard could not be opened. The log is unchanged, unless stated otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardOpenError {
    /// The local spool has lost entries of its private stream: the member needs seeding.
    #[error("the local spool has lost its place in the log: {0}")]
    PlaceLost(String),
    /// The log ends before this member's position: it was rolled back or recreated.
    #[error("the log ends at position {end}, but this member has applied position {applied}")]
    RolledBack {
        /// The last position of the log.
        end: LogPosition,
        /// The last position in the local spool.
        applied: LogPosition,
    },
    /// The log cannot be read from that position on.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Another node owns the shard, or the log cannot be read.
    #[error(transparent)]
    End(#[from] SenderEnd),
    /// The engine has unsafe settings.
    #[error("change the settings of the engine: {}", .0.join("; "))]
    Settings(Vec<String>),
    /// The engine did not answer.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A stream of the local spool failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// See [`RestoreError`].
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// See [`ReplayError`].
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A snapshot could not be read, or a thread not started.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the private stream: the local spool's position in the log, and its last local LSN.
pub(crate) fn applied(local: &dyn Spool, stream: StreamId) -> Result<(Applied, Lsn), ShardOpenError> {
    let restored = local.restore(stream)?;
    let mut applied = Applied::default();
    if let Some(mut snapshot) = restored.snapshot {
        let mut bytes = Vec::new();
        snapshot.read_to_end(&mut bytes)?;
        let lost = || ShardOpenError::PlaceLost("its snapshot has no meaning".to_owned());
        applied = Applied::decode(&bytes).ok_or_else(lost)?;
    }
    let mut lost = None;
    let covered = local.replay(stream, &mut |replayed| match replayed {
        Replayed::Entry { lsn, payload, .. } => match Place::decode(payload) {
            // One that is not the next was cancelled when it was on the disk, and will come again.
            Some(place) => drop(applied.push(place, lsn.get())),
            None => lost = Some(format!("batch {lsn} has no meaning")),
        },
        Replayed::Damaged { lsn } => lost = Some(format!("batch {lsn} is damaged")),
        Replayed::Uncertain { through } => lost = Some(format!("batches up to {through} are missing")),
    })?;
    match lost {
        Some(what) => Err(ShardOpenError::PlaceLost(what)),
        None => Ok((applied, covered)),
    }
}

/// State for reading the log further.
pub(crate) struct Resumed {
    pub reader: LogReader,
    /// Records up to the last that the local spool has: of uploads that were not complete, and of batches that it
    /// lacks.
    pub again: Vec<(LogPosition, Bytes)>,
}

/// Compares the log with the local spool's history.
pub(crate) fn resume(log: &dyn ShardLog, applied: &Applied, shard: u16) -> Result<Resumed, ShardOpenError> {
    let first = log.first()?;
    let end = log.end()?;
    let cut = |position| ShardOpenError::Invalid(Invalid::Cut { position, first });
    let Some(last) = &applied.last else {
        let from = LogPosition::START.next();
        return if first > from {
            Err(cut(from))
        } else {
            Ok(Resumed { reader: LogReader::new(shard), again: Vec::new() })
        };
    };
    if end < last.position {
        return Err(ShardOpenError::RolledBack { end, applied: last.position });
    }
    let needed = if last.is_last() { last.position.next() } else { last.position }.min(last.resume_from());
    if first > needed {
        return Err(cut(needed));
    }
    let mut again = Vec::new();
    if first <= last.position {
        log.follow(needed.min(last.position), &mut |position, bytes| {
            again.push((position, bytes));
            position < last.position
        })?;
        let bytes = again.last().map(|(_, bytes)| bytes.clone()).unwrap_or_default();
        is_same(last, &bytes)?;
    }
    Ok(Resumed { reader: LogReader::resume(shard, last.history()), again })
}

/// Checks that the log still has the last batch's record.
fn is_same(last: &Place, bytes: &Bytes) -> Result<(), Invalid> {
    let position = last.position;
    match LogRecord::decode(bytes) {
        Ok(record) if record.crc == last.crc => Ok(()),
        Ok(_) => Err(Invalid::OtherHistory { position, why: "it is not the record that this member has applied" }),
        Err(error) => Err(Invalid::Hole { position, why: error.to_string() }),
    }
}

impl Place {
    /// The first position to read again: of the oldest incomplete upload, or the next one.
    fn resume_from(&self) -> LogPosition {
        if self.resume < self.position { self.resume } else { self.position.next() }
    }
}

/// Tells the member the local ids of its streams, and removes local streams that the log does not name. Their
/// registration was not acknowledged, or they were forgotten.
pub(crate) fn register(
    local: &impl SpoolAdmin,
    member: &Member,
    streams: &BTreeMap<u16, Option<String>>,
) -> Result<(), ShardOpenError> {
    for (number, name) in streams {
        let id = name.as_deref().map(|name| local.stream(name)).transpose()?;
        member.set_id(*number, id);
    }
    let is_named = |name: &str| is_private(name) || streams.values().flatten().any(|known| known == name);
    for stream in local.streams().into_iter().filter(|stream| !is_named(&stream.name)) {
        local.forget_stream(&stream.name)?;
    }
    Ok(())
}
