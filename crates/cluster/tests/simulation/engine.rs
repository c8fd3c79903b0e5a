//! A model of the engine: logs and cells that keep the contract. The network between it and the nodes has the faults.

use std::collections::BTreeMap;

use bytes::Bytes;
use posthaste_cluster::{CellKey, LogError, LogPosition, ShardCell};

#[derive(Default)]
pub struct Engine {
    pub logs: BTreeMap<u16, SimLog>,
    pub cells: BTreeMap<String, (Bytes, u64)>,
    revision: u64,
}

#[derive(Default)]
pub struct SimLog {
    /// Stored now.
    pub records: BTreeMap<u64, Bytes>,
    /// Stored at any time, and not rolled back: a cut leaves them here.
    pub all: BTreeMap<u64, Bytes>,
    pub first: u64,
    pub end: u64,
    pub bytes: u64,
}

/// Asked by a node.
#[derive(Clone)]
pub enum Request {
    Get(CellKey),
    Swap(CellKey, u64, Bytes),
    Watch,
    Append { shard: u16, after: LogPosition, record: Bytes },
    Read { shard: u16, from: LogPosition },
    State { shard: u16 },
    Cut { shard: u16, below: LogPosition },
}

/// Records, and the end of the log.
pub type Records = (Vec<(LogPosition, Bytes)>, LogPosition);

/// Told to a node.
pub enum Answer {
    Got(Result<(Bytes, u64), LogError>),
    Swapped(Result<u64, LogError>),
    Appended(Result<LogPosition, LogError>),
    /// Records, and the end of the log.
    Read(Result<Records, LogError>),
    /// First position, last position, bytes appended, bytes stored.
    State(Result<(LogPosition, LogPosition, u64, u64), LogError>),
    Done,
}

impl Request {
    /// The answer when none has come.
    pub fn lost(&self) -> Answer {
        let away = || LogError::Unreachable("no answer in time".to_owned());
        let unknown = || LogError::Unknown("no answer in time".to_owned());
        match self {
            Request::Get(_) => Answer::Got(Err(away())),
            Request::Swap(..) => Answer::Swapped(Err(unknown())),
            Request::Append { .. } => Answer::Appended(Err(unknown())),
            Request::Read { .. } => Answer::Read(Err(away())),
            Request::State { .. } => Answer::State(Err(away())),
            Request::Watch | Request::Cut { .. } => Answer::Done,
        }
    }
}

impl Engine {
    pub fn log(&mut self, shard: u16) -> &mut SimLog {
        self.logs.entry(shard).or_insert_with(|| SimLog { first: 1, ..SimLog::default() })
    }

    /// All but the watch, which is the network's.
    pub fn handle(&mut self, request: &Request) -> Answer {
        match request {
            Request::Get(key) => Answer::Got(Ok(self.cells.get(&key.to_string()).cloned().unwrap_or_default())),
            Request::Swap(key, revision, value) => Answer::Swapped(self.swap(key, *revision, value)),
            Request::Append { shard, after, record } => Answer::Appended(self.log(*shard).append(*after, record)),
            Request::Read { shard, from } => Answer::Read(self.log(*shard).read(*from)),
            Request::State { shard } => {
                let log = self.log(*shard);
                let stored = log.records.values().map(|record| record.len() as u64).sum();
                Answer::State(Ok((LogPosition::new(log.first), LogPosition::new(log.end), log.bytes, stored)))
            }
            Request::Cut { shard, below } => {
                let log = self.log(*shard);
                log.first = log.first.max(below.get().min(log.end + 1));
                let first = log.first;
                log.records.retain(|position, _| *position >= first);
                Answer::Done
            }
            Request::Watch => Answer::Done,
        }
    }

    fn swap(&mut self, key: &CellKey, revision: u64, value: &Bytes) -> Result<u64, LogError> {
        let key = key.to_string();
        if self.cells.get(&key).map_or(0, |cell| cell.1) != revision {
            return Err(LogError::Conflict);
        }
        self.revision += 1;
        self.cells.insert(key, (value.clone(), self.revision));
        Ok(self.revision)
    }

    pub fn shard_cell(&self, shard: u16) -> Option<ShardCell> {
        ShardCell::decode(&self.cells.get(&CellKey::Shard(shard).to_string())?.0)
    }
}

impl SimLog {
    fn append(&mut self, after: LogPosition, record: &Bytes) -> Result<LogPosition, LogError> {
        if after.get() != self.end {
            return Err(LogError::Refused("another position".to_owned()));
        }
        self.end += 1;
        self.bytes += record.len() as u64;
        self.records.insert(self.end, record.clone());
        self.all.insert(self.end, record.clone());
        Ok(LogPosition::new(self.end))
    }

    fn read(&self, from: LogPosition) -> Result<Records, LogError> {
        let from = from.get().max(1);
        if from < self.first {
            return Err(LogError::Cut { first: LogPosition::new(self.first) });
        }
        if from > self.end + 1 {
            return Err(LogError::Gap(LogPosition::new(self.end + 1)));
        }
        let some = self.records.range(from..).take(READ_RECORDS);
        let records = some.map(|(position, record)| (LogPosition::new(*position), record.clone())).collect();
        Ok((records, LogPosition::new(self.end)))
    }

    /// The engine was restored from an older state.
    pub fn roll_back(&mut self, end: u64) {
        self.end = end;
        self.records.retain(|position, _| *position <= end);
        self.all.retain(|position, _| *position <= end);
    }
}

const READ_RECORDS: usize = 32;
