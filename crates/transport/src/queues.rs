//! The state of each message at each transport. Bookkeeping only: reads no clock, starts nothing and touches no disk.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use posthaste_consumer::{ReplayedEntry, StreamHandle, StreamState};
use posthaste_directory::{Transport, TransportKind};
use posthaste_spool::{Lsn, ReplayError};

use crate::config::Config;
use crate::entry::{Deliver, Failure, Target, TargetKey, TargetTrouble, TransportEntry};
use crate::reason::FailureReason;

/// The state of a target.
///
/// ```text
///              a worker takes it            it was taken
///   ┌─► Queued ─────────────────► Running ─────────────► gone
///   │     ▲                         │
///   │     │ the transport failed    │ this message failed, or was refused for good
///   │     └─────────────────────────┤
///   └────────── due ─────────── Waiting
/// ```
/// A target is held from a replay on that cannot tell whether it has had its message, until an operator releases it: then it is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    Queued,
    Running,
    Waiting(Instant),
    Held,
}

pub(crate) struct Message {
    pub entry: Lsn,
    pub deliver: Arc<Deliver>,
    pub body_len: u64,
    pub jobs: BTreeMap<u16, Job>,
    pub carry: Carry,
}

/// The state of a message that may be appended again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Carry {
    #[default]
    No,
    /// Its batch is in flight. Stale: the message has changed since, and that entry may precede the batch. So the
    /// stream does not pass it with this batch.
    UnderWay { is_stale: bool },
}

pub(crate) struct Job {
    pub target: Target,
    pub stand: Stand,
    pub attempts: u32,
    pub begun: Option<u64>,
    /// The error of the last attempt; `None` before any.
    pub error: Option<(Failure, FailureReason)>,
    /// True if it was reported as waiting.
    pub is_told: bool,
    /// Facts for the notice of its refusal.
    pub notice: RefusalNotice,
}

/// State of the notice about a refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum RefusalNotice {
    /// It was never permanently refused.
    #[default]
    None,
    /// Owed, with the first reply of the other side.
    Owed(Arc<str>),
    /// Sent, in this run or an earlier one.
    Told,
}

pub(crate) struct Queue {
    /// The transport, or the mistake in it, if an earlier configuration or version has written it.
    pub transport: Result<Arc<Transport>, Arc<str>>,
    pub queued: VecDeque<TargetKey>,
    pub running: usize,
    /// Consecutive failures of the transport itself.
    pub attempts: u32,
    pub blocked_until: Option<Instant>,
    pub error: Option<FailureReason>,
    /// True if overdue messages were reported.
    pub is_overdue: bool,
    pub is_ready: bool,
    pub targets: usize,
    pub bytes: u64,
}

/// A worker, and the message that it delivers.
pub(crate) struct Worker {
    pub transport: Arc<str>,
    pub since: Instant,
    pub targets: Vec<TargetKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wake {
    Target(TargetKey),
    Transport(Arc<str>),
}

pub(crate) struct Queues {
    pub config: Config,
    pub messages: BTreeMap<Lsn, Message>,
    /// Entries of messages, or entries unknown to this version.
    pub entries: BTreeSet<Lsn>,
    pub unknown: Vec<Lsn>,
    pub seen: Lsn,
    /// Entries since nothing waited, or since waiting messages were appended again.
    pub shown: usize,
    pub queues: HashMap<Arc<str>, Queue>,
    /// Transports at which a worker may begin.
    pub ready: VecDeque<Arc<str>>,
    pub due: BTreeSet<(Instant, Wake)>,
    pub released: Vec<Lsn>,
    /// Targets with an owed notice since the last look.
    pub owing: Vec<TargetKey>,
    /// Held targets that the stream does not record yet: until then, it does not advance.
    pub holds_to_record: BTreeSet<TargetKey>,
    /// Messages whose new entries the spool has refused.
    pub failed_carries: Arc<Mutex<Vec<Lsn>>>,
    pub is_changed: bool,
    /// Targets that the replay has shown as done: a replacement entry may still list them.
    pub done: Option<HashSet<TargetKey>>,
    pub workers: HashMap<u64, Worker>,
    pub next_worker: u64,
}

impl Queues {
    /// At the beginning of a replay.
    pub fn new(config: Config) -> Self {
        Queues {
            config,
            messages: BTreeMap::new(),
            entries: BTreeSet::new(),
            unknown: Vec::new(),
            seen: Lsn::ZERO,
            shown: 0,
            queues: HashMap::new(),
            ready: VecDeque::new(),
            due: BTreeSet::new(),
            released: Vec::new(),
            owing: Vec::new(),
            holds_to_record: BTreeSet::new(),
            failed_carries: Arc::default(),
            is_changed: false,
            done: Some(HashSet::new()),
            workers: HashMap::new(),
            next_worker: 0,
        }
    }

    /// True once the replay has ended.
    pub fn replayed(&mut self) {
        self.done = None;
        self.is_changed = true;
        // Not before: what is done need not be looked for in a queue.
        let open = self.messages.iter().flat_map(|(body, message)| {
            let queued = message.jobs.iter().filter(|(_, job)| job.stand == Stand::Queued);
            queued.map(|(number, job)| ((*body, *number), job.target.transport.clone()))
        });
        for (key, transport) in open.collect::<Vec<_>>() {
            self.queue(&transport).queued.push_back(key);
            self.consider(&transport);
        }
    }

    /// Takes an entry. Returns its targets that are already done.
    pub fn show(&mut self, lsn: Lsn, entry: Option<TransportEntry>, body_len: u64) -> Vec<TargetKey> {
        self.seen = self.seen.max(lsn);
        self.shown += 1;
        match entry {
            Some(TransportEntry::Deliver(deliver)) => return self.deliver(lsn, deliver, body_len),
            Some(TransportEntry::Done(keys)) if self.done.is_some() => {
                for key in keys {
                    self.done.get_or_insert_default().insert(key);
                    self.remove(key);
                }
            }
            Some(TransportEntry::Begun { key, file_bytes }) => {
                self.changed(key.0);
                self.job(key).into_iter().for_each(|job| job.begun = Some(file_bytes));
            }
            Some(TransportEntry::Trouble(TargetTrouble {
                key: Some(key), failure: Failure::Refused, error, ..
            })) => {
                self.is_changed = true;
                self.owe_notice(key, error.said());
            }
            Some(TransportEntry::Told(keys)) => {
                self.is_changed = true;
                for key in keys {
                    self.changed(key.0);
                    self.job(key).into_iter().for_each(|job| job.notice = RefusalNotice::Told);
                }
            }
            Some(TransportEntry::Held(keys)) => {
                self.is_changed = true;
                let is_replay = self.done.is_some();
                for key in keys {
                    self.holds_to_record.remove(&key);
                    self.job(key).filter(|_| is_replay).into_iter().for_each(|job| job.stand = Stand::Held);
                }
            }
            Some(TransportEntry::Released(keys)) => keys.into_iter().for_each(|key| self.release(key)),
            Some(_) => self.is_changed = true,
            None => {
                self.entries.insert(lsn);
                self.unknown.push(lsn);
            }
        }
        Vec::new()
    }

    fn deliver(&mut self, lsn: Lsn, mut deliver: Deliver, body_len: u64) -> Vec<TargetKey> {
        let is_carried = deliver.body.is_some();
        let (body, body_len) = deliver.body.unwrap_or((lsn, body_len));
        let targets = std::mem::take(&mut deliver.targets);
        if let Some(message) = self.messages.get_mut(&body) {
            // What it does not name was done when it was written, and its note may be passed.
            let gone: Vec<u16> =
                message.jobs.keys().copied().filter(|job| !targets.iter().any(|(number, _)| number == job)).collect();
            let named: Vec<u16> = targets.iter().map(|(number, _)| *number).collect();
            let done =
                named.into_iter().filter(|number| !message.jobs.contains_key(number)).map(|number| (body, number));
            let done: Vec<TargetKey> = done.collect();
            self.is_changed = true;
            let carry = std::mem::take(&mut message.carry);
            if carry != (Carry::UnderWay { is_stale: true }) {
                self.entries.insert(lsn);
                let before = std::mem::replace(&mut message.entry, lsn);
                self.entries.remove(&before);
            }
            if self.done.is_some() {
                gone.into_iter().for_each(|number| self.remove((body, number)));
                // The others were open then; of those that were held it is said after this.
                targets.iter().for_each(|(number, _)| self.release((body, *number)));
            }
            return done;
        }
        let keys: Vec<TargetKey> = targets.iter().map(|(number, _)| (body, *number)).collect();
        if is_carried && self.done.is_none() {
            return keys;
        }
        let is_open =
            |(number, _): &(u16, Target)| !self.done.as_ref().is_some_and(|done| done.contains(&(body, *number)));
        let targets: Vec<(u16, Target)> = targets.into_iter().filter(is_open).collect();
        self.is_changed = true;
        if targets.is_empty() {
            self.released.push(body);
            return Vec::new();
        }
        let keys: Vec<(TargetKey, Arc<str>)> =
            targets.iter().map(|(number, target)| ((body, *number), target.transport.clone())).collect();
        let job = |target| Job {
            target,
            stand: Stand::Queued,
            attempts: 0,
            begun: None,
            error: None,
            is_told: false,
            notice: RefusalNotice::None,
        };
        let jobs = targets.into_iter().map(|(number, target)| (number, job(target))).collect();
        self.entries.insert(lsn);
        self.messages.insert(body, Message { entry: lsn, deliver: deliver.into(), body_len, jobs, carry: Carry::No });
        for (key, transport) in keys {
            let queue = self.queue(&transport);
            queue.targets += 1;
            queue.bytes += body_len + TARGET_BYTES;
            if self.done.is_none() {
                self.queue(&transport).queued.push_back(key);
                self.consider(&transport);
            }
        }
        Vec::new()
    }

    pub fn queue(&mut self, transport: &Arc<str>) -> &mut Queue {
        self.queues.entry(transport.clone()).or_insert_with(|| {
            let transport = match Transport::parse(transport) {
                Some(Ok(transport)) => Ok(transport.into()),
                Some(Err(why)) => Err(why.into()),
                None => Err("it is not a transport".into()),
            };
            Queue {
                transport,
                queued: VecDeque::new(),
                running: 0,
                attempts: 0,
                blocked_until: None,
                error: None,
                is_overdue: false,
                is_ready: false,
                targets: 0,
                bytes: 0,
            }
        })
    }

    pub fn job(&mut self, (body, number): TargetKey) -> Option<&mut Job> {
        self.messages.get_mut(&body)?.jobs.get_mut(&number)
    }

    /// Marks an entry in flight for a message as stale.
    pub fn changed(&mut self, body: Lsn) {
        if let Some(Message { carry: Carry::UnderWay { is_stale }, .. }) = self.messages.get_mut(&body) {
            *is_stale = true;
        }
    }

    /// Holds all waiting targets, as records of deliveries are lost: they may have had their messages.
    pub fn hold_all(&mut self) {
        for (body, message) in &mut self.messages {
            for (number, job) in &mut message.jobs {
                job.stand = Stand::Held;
                self.holds_to_record.insert((*body, *number));
            }
        }
    }

    /// Queues a held target for an attempt.
    fn release(&mut self, key: TargetKey) {
        self.holds_to_record.remove(&key);
        let Some(job) = self.job(key).filter(|job| job.stand == Stand::Held) else { return };
        job.stand = Stand::Queued;
        let transport = job.target.transport.clone();
        self.is_changed = true;
        self.changed(key.0);
        if self.done.is_none() {
            self.queue(&transport).queued.push_back(key);
            self.consider(&transport);
        }
    }

    /// Makes a transport ready if a worker may begin at it.
    pub fn consider(&mut self, transport: &Arc<str>) {
        let Some(queue) = self.queues.get_mut(transport) else { return };
        let may_begin = queue.transport.is_ok() && queue.blocked_until.is_none() && queue.running < queue.workers_max();
        if may_begin && !queue.is_ready && !queue.queued.is_empty() {
            queue.is_ready = true;
            self.ready.push_back(transport.clone());
        }
    }

    pub fn remove(&mut self, key: TargetKey) {
        let Some(message) = self.messages.get_mut(&key.0) else { return };
        let Some(job) = message.jobs.remove(&key.1) else { return };
        self.is_changed = true;
        self.holds_to_record.remove(&key);
        let bytes = message.body_len + TARGET_BYTES;
        let transport = job.target.transport;
        if message.jobs.is_empty() {
            self.entries.remove(&message.entry);
            self.messages.remove(&key.0);
            self.released.push(key.0);
        }
        let Some(queue) = self.queues.get_mut(&transport) else { return };
        (queue.targets, queue.bytes) = (queue.targets - 1, queue.bytes - bytes);
        self.forget_if_idle(&transport);
    }

    pub fn forget_if_idle(&mut self, transport: &Arc<str>) {
        if self
            .queues
            .get(transport)
            .is_some_and(|queue| queue.targets == 0 && queue.running == 0 && queue.attempts == 0)
        {
            self.queues.remove(transport);
            self.ready.retain(|other| other != transport);
        }
    }

    /// Bytes that wait for a transport.
    pub fn bytes_of(&self, transport: &str) -> u64 {
        self.queues.get(transport).map_or(0, |queue| queue.bytes)
    }

    /// Bytes waiting for all transports.
    pub fn bytes(&self) -> u64 {
        self.queues.values().map(|queue| queue.bytes).sum()
    }

    /// Messages with targets that have not got them.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Transports that messages wait for.
    pub fn transports(&self) -> usize {
        self.queues.values().filter(|queue| queue.targets > 0).count()
    }

    /// Entries that this version cannot read.
    pub fn unknown(&self) -> &[Lsn] {
        &self.unknown
    }
}

impl StreamState for Queues {
    type Error = ReplayError;

    fn apply(&mut self, ReplayedEntry { lsn, payload, body_len }: ReplayedEntry<'_>) -> Result<(), ReplayError> {
        self.show(lsn, TransportEntry::decode(payload.clone()), body_len);
        Ok(())
    }

    fn uncertain(&mut self, _: &StreamHandle, _: Lsn) {
        self.hold_all();
    }
}

impl Queue {
    /// Maximum workers: programs run concurrently, and a server has several connections; a file is written by one. A
    /// transport that has failed is tried by one.
    pub fn workers_max(&self) -> usize {
        match &self.transport {
            _ if self.attempts > 0 => 1,
            Ok(transport) if matches!(transport.kind(), TransportKind::File(_)) => 1,
            _ => TRANSPORT_WORKERS_MAX,
        }
    }
}

/// Maximum workers at one transport.
const TRANSPORT_WORKERS_MAX: usize = 4;
/// Bytes counted for a target in addition to the body.
const TARGET_BYTES: u64 = 1024;
