//! A model of a node's member of a shard: its disk, its writer and its queue. Reader, sender and records are the real
//! ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use posthaste_cluster::{Content, Digest, History, LogPosition, LogReader, LogRecord, Read, ReaderRules, Sender};

/// A batch of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    Queued(u64),
    Delivered(u64),
}

impl Entry {
    pub fn encode(self) -> Bytes {
        let (kind, id) = match self {
            Entry::Queued(id) => (0, id),
            Entry::Delivered(id) => (1, id),
        };
        [&[kind][..], &id.to_le_bytes()].concat().into()
    }

    pub fn decode(bytes: &Bytes) -> Self {
        let id = u64::from_le_bytes(bytes[1..9].try_into().expect("an entry of the model"));
        if bytes[0] == 0 { Entry::Queued(id) } else { Entry::Delivered(id) }
    }

    pub fn of(record: &LogRecord) -> Vec<Entry> {
        match &record.content {
            Content::Batches(batches) => batches.iter().map(Entry::decode).collect(),
            _ => Vec::new(),
        }
    }
}

/// Survives the process.
#[derive(Clone)]
pub struct Disk {
    /// Random, made with the spool.
    pub spool: u64,
    /// Position and entries of each valid record.
    pub applied: Vec<(LogPosition, Vec<Entry>)>,
    pub history: Option<History>,
    pub queue: ModelQueue,
    pub digest: Option<Digest>,
    /// When it was made empty by somebody, in milliseconds.
    pub wiped_at: Option<u64>,
}

impl Disk {
    pub fn new(spool: u64) -> Self {
        Disk { spool, applied: Vec::new(), history: None, queue: ModelQueue::default(), digest: None, wiped_at: None }
    }

    pub fn position(&self) -> LogPosition {
        self.history.map_or(LogPosition::START, |history| history.position)
    }

    fn apply(&mut self, valid: &Valid) {
        let entries = Entry::of(&valid.record);
        entries.iter().for_each(|entry| self.queue.apply(*entry));
        self.applied.push((valid.history.position, entries));
        self.history = Some(valid.history);
        if valid.record.content == Content::Digest {
            self.digest = Some(Digest { position: valid.history.position, sum: self.queue.sum() });
        }
    }
}

/// A model of the relay's queue: messages that are not delivered.
#[derive(Clone, Default)]
pub struct ModelQueue {
    pub open: BTreeSet<u64>,
    sum: u64,
}

impl ModelQueue {
    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Queued(id) if self.open.insert(id) => self.sum = self.sum.wrapping_add(hash(id)),
            Entry::Delivered(id) if self.open.remove(&id) => self.sum = self.sum.wrapping_sub(hash(id)),
            _ => {}
        }
    }

    fn sum(&self) -> u64 {
        self.sum
    }

    /// A defect that no record says.
    pub fn forget(&mut self, id: u64) {
        self.open.remove(&id);
        self.sum = self.sum.wrapping_sub(hash(id));
    }
}

fn hash(id: u64) -> u64 {
    posthaste_random::mix(id)
}

/// A record on its way to the disk.
pub struct Valid {
    pub record: LogRecord,
    pub history: History,
    /// Messages that a client waits for.
    pub acknowledges: Vec<u64>,
}

/// Load of a record in flight.
pub type Load = Vec<u64>;

/// The part of a process for one shard.
pub struct Member {
    pub reader: LogReader,
    pub sender: Option<Sender<Load>>,
    /// Tells the senders of a process apart.
    pub generation: u64,
    /// Decided, and not on the disk.
    pub unsynced: VecDeque<Valid>,
    pub is_reading: bool,
    /// The log still has the last record on the disk.
    pub is_verified: bool,
    /// The log that it needs was cut, or is another: it applies nothing.
    pub is_stopped: bool,
    /// Acts for the shard, in this epoch.
    pub acts: Option<u64>,
    pub is_releasing: bool,
    pub is_opening: bool,
    /// Messages of clients, not sent.
    pub intake: Vec<u64>,
    /// Messages delivered, not sent.
    pub outcomes: Vec<u64>,
    pub wants_digest: bool,
    /// Transactions: the message.
    pub open_transactions: BTreeSet<u64>,
    /// Delivered, and not on the disk as such.
    pub unrecorded: BTreeSet<u64>,
    pub behind_since: Option<u64>,
}

impl Member {
    pub fn new(shard: u16, disk: &Disk, rules: ReaderRules) -> Self {
        let reader = match disk.history {
            Some(history) => LogReader::resume(shard, history),
            None => LogReader::new(shard),
        };
        Member {
            reader: reader.with_rules(rules),
            sender: None,
            generation: 0,
            unsynced: VecDeque::new(),
            is_reading: false,
            is_verified: disk.history.is_none(),
            is_stopped: false,
            acts: None,
            is_releasing: false,
            is_opening: false,
            intake: Vec::new(),
            outcomes: Vec::new(),
            wants_digest: false,
            open_transactions: BTreeSet::new(),
            unrecorded: BTreeSet::new(),
            behind_since: None,
        }
    }

    /// The history of the last valid record, on the disk or on its way there.
    pub fn last(&self, disk: &Disk) -> Option<History> {
        self.unsynced.back().map(|valid| valid.history).or(disk.history)
    }

    /// Becomes a standby.
    pub fn demote(&mut self, shard: u16, disk: &Disk, rules: ReaderRules) {
        self.sender = None;
        self.generation += 1;
        self.reader = match self.last(disk) {
            Some(history) => LogReader::resume(shard, history),
            None => LogReader::new(shard),
        }
        .with_rules(rules);
        (self.acts, self.is_releasing, self.is_opening, self.is_reading) = (None, false, false, false);
        (self.intake, self.outcomes) = (Vec::new(), Vec::new());
        self.open_transactions.clear();
        self.unrecorded.clear();
    }

    /// All that was decided is on the disk now. Returns messages to acknowledge.
    pub fn sync(&mut self, disk: &mut Disk) -> Vec<u64> {
        let mut acknowledged = Vec::new();
        for valid in self.unsynced.drain(..) {
            disk.apply(&valid);
            for entry in Entry::of(&valid.record) {
                if let Entry::Delivered(id) = entry {
                    self.unrecorded.remove(&id);
                }
            }
            acknowledged.extend(valid.acknowledges);
        }
        acknowledged
    }

    /// The next record to send, and the messages that it acknowledges.
    pub fn next_record(&mut self) -> Option<(Content, Load)> {
        if std::mem::take(&mut self.wants_digest) {
            return Some((Content::Digest, Vec::new()));
        }
        let intake: Vec<u64> = self.intake.drain(..self.intake.len().min(4)).collect();
        let outcomes: Vec<u64> = self.outcomes.drain(..self.outcomes.len().min(4)).collect();
        let queued = intake.iter().map(|id| Entry::Queued(*id).encode());
        let delivered = outcomes.iter().map(|id| Entry::Delivered(*id).encode());
        let batches: Vec<Bytes> = queued.chain(delivered).collect();
        (!batches.is_empty()).then_some((Content::Batches(batches), intake))
    }

    /// True if nothing is under way.
    pub fn is_quiet(&self) -> bool {
        self.intake.is_empty()
            && self.outcomes.is_empty()
            && self.open_transactions.is_empty()
            && self.unsynced.is_empty()
            && self.sender.as_ref().is_none_or(Sender::is_idle)
    }
}

/// The valid records of a whole log: entries by position, and the position of each epoch's `open`.
pub struct ValidLog {
    pub entries: Vec<(LogPosition, Vec<Entry>)>,
    pub opens: BTreeMap<u64, LogPosition>,
}

impl ValidLog {
    pub fn of(shard: u16, records: &BTreeMap<u64, Bytes>) -> Result<Self, String> {
        let mut reader = LogReader::new(shard);
        let mut log = ValidLog { entries: Vec::new(), opens: BTreeMap::new() };
        for (position, bytes) in records {
            let position = LogPosition::new(*position);
            let read =
                reader.read(position, bytes).map_err(|invalid| format!("the log of shard {shard}: {invalid}"))?;
            if let Read::Valid(record) = read {
                if matches!(record.content, Content::Open { .. }) {
                    log.opens.insert(record.header.epoch, position);
                }
                log.entries.push((position, Entry::of(&record)));
            }
        }
        Ok(log)
    }
}
