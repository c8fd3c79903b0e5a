//! A member on a machine, and an engine in memory.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use posthaste_cluster::memory::{LogFaults, MemoryLog};
use posthaste_cluster::{
    LogPosition, LogReader, LogRecord, OwnerIdentity, Read, ReaderRules, ReplicatedConfig, ReplicatedSpool,
    SenderRules, ShardLog, ShardOpenError, WriterRules,
};
use posthaste_fsops::{Choice, Cut, Machine};
use posthaste_spool::{AppendError, Batch, Body, Config, Entry, FileSpool, Lsn, Replayed, Spool, StreamId};

pub type Replicated = ReplicatedSpool<FileSpool>;

pub struct Place {
    pub machine: Machine,
    pub log: MemoryLog,
    pub config: ReplicatedConfig,
    /// The local spool makes room by itself.
    pub keeper: bool,
    /// Segments of the local ring.
    pub segments: usize,
}

/// Every way in which an engine that answers at once fails.
pub fn faults() -> LogFaults {
    LogFaults { held: 0, ..LogFaults::all() }
}

impl Place {
    pub fn new(faults: LogFaults) -> Self {
        Place::with(Machine::new().unwrap(), MemoryLog::new(7, faults))
    }

    pub fn with(machine: Machine, log: MemoryLog) -> Self {
        let config = ReplicatedConfig {
            shard: 3,
            identity: OwnerIdentity { nonce: 0, log: 0x1061d, epoch: None },
            segment_bytes: SEGMENT_BYTES,
            record_bytes_max: 40 << 10,
            pending_bytes_max: 64 << 20,
            engine_pace: Duration::from_millis(1),
            owner_streams: vec!["of the owner".to_owned()],
            reader_rules: ReaderRules::default(),
            sender_rules: SenderRules::default(),
            writer_rules: WriterRules::default(),
        };
        Place { machine, log, config, keeper: false, segments: SEGMENTS }
    }

    pub fn path(&self) -> &Path {
        self.machine.path()
    }

    pub fn open(&mut self) -> Result<Replicated, ShardOpenError> {
        self.config.identity.nonce += 1;
        self.open_on(Arc::new(self.log.clone()))
    }

    /// Opens it on another kind of log.
    pub fn open_on(&self, log: Arc<dyn ShardLog>) -> Result<Replicated, ShardOpenError> {
        ReplicatedSpool::open(self.local(), log, self.config.clone())
    }

    /// Opens it as a standby.
    pub fn follow(&mut self) -> Result<Replicated, ShardOpenError> {
        self.follow_on(Arc::new(self.log.clone()))
    }

    /// Opens it as a standby on another kind of log.
    pub fn follow_on(&self, log: Arc<dyn ShardLog>) -> Result<Replicated, ShardOpenError> {
        ReplicatedSpool::follow(self.local(), log, self.config.clone())
    }

    pub fn local(&self) -> FileSpool {
        let segment_bytes = SEGMENT_BYTES;
        let max_segments = self.segments;
        let ring = posthaste_ring::Config { segment_bytes, max_segments, ..Default::default() };
        let config = Config { ring, keeper: self.keeper, pack_bytes: 200 << 10, ..Config::default() };
        let (spool, report) = FileSpool::open(self.path(), config).unwrap();
        assert_eq!(report.damage, []);
        spool
    }

    pub fn cut_power(&mut self, seed: u64) {
        let recording = self.machine.recording();
        let cut = Cut { position: recording.events.len(), choice: Choice::Seed(seed) };
        self.machine = Machine::boot(&recording.cut(cut), true, seed.is_multiple_of(2)).unwrap();
    }
}

pub const SEGMENT_BYTES: u64 = 64 << 10;
pub const SEGMENTS: usize = 8;

pub fn start(spool: &dyn Spool, stream: StreamId, body: Body, text: &str) -> Receiver<Result<Lsn, AppendError>> {
    let needs_body = !matches!(body, Body::None);
    let entry = Entry { stream, needs_body, payload: Bytes::copy_from_slice(text.as_bytes()) };
    let (tell, told) = channel();
    spool.append(Batch { entries: vec![entry], body }, Box::new(move |outcome| drop(tell.send(outcome))));
    told
}

pub fn text(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at * 31 + at / 256) as u8).collect()
}

pub fn inline(len: usize) -> Body {
    Body::inline(vec![text(len).into()])
}

pub fn in_file(spool: &Replicated, len: usize) -> Body {
    let mut upload = spool.upload(0).unwrap();
    upload.write(&text(len)).unwrap();
    Body::file(upload.finish().unwrap())
}

pub fn append(spool: &Replicated, stream: StreamId, body: Body, name: &str) -> Lsn {
    start(spool, stream, body, name).recv().unwrap().unwrap()
}

/// Number, entry and body of each batch of a stream.
pub fn content(spool: &Replicated, stream: StreamId) -> Vec<(Lsn, String, Vec<u8>)> {
    let mut all = Vec::new();
    spool
        .replay(stream, &mut |replayed| match replayed {
            Replayed::Entry { lsn, payload, body_len, .. } => {
                all.push((lsn, String::from_utf8(payload.to_vec()).unwrap(), body_len));
            }
            other => panic!("{other:?}"),
        })
        .unwrap();
    let read = |(lsn, entry, len): (Lsn, String, u64)| {
        let body = if len > 0 { spool.read(lsn, 0..len).unwrap().to_vec() } else { Vec::new() };
        (lsn, entry, body)
    };
    all.into_iter().map(read).collect()
}

/// Valid records of a log.
pub fn records(log: &MemoryLog) -> Vec<LogRecord> {
    let mut reader = LogReader::new(3);
    let valid = |(position, bytes): (LogPosition, _)| match reader.read(position, &bytes).unwrap() {
        Read::Valid(record) => Some(record),
        Read::Skipped(_) => None,
    };
    log.records().into_iter().filter_map(valid).collect()
}
