//! The one writer of a log, as a state machine without IO: answers and reads decide which records are stored.
//!
//! Answers count in the order of sending. *Refused* is no fence: the sender reads the log from its last confirmed
//! position. *Unknown* is decided by writing, a `barrier` at the same position. If it is stored, all in flight is void;
//! if it is refused, the sender reads. A read that finds nothing decides nothing.
//!
//! A void record may still be stored late, at the position that it was sent for. Suppose a new record A was sent for that
//! position, and B for the next one. Then A is refused, but B is accepted after the void record, although it continues A.
//! So until the log has grown past all such positions, one record is in flight at a time.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::reader::{History, Invalid, LogReader, Read};
use crate::record::{Content, LogRecord, LogRecordHeader};
use crate::{LogError, LogPosition};

/// Maximum records in flight.
pub const IN_FLIGHT_MAX: usize = 4;

/// Sends records, each with a load `T` that is returned when the record is decided.
#[derive(Debug)]
pub struct Sender<T> {
    /// Reader of all decided records.
    reader: LogReader,
    identity: OwnerIdentity,
    epoch: u64,
    next_send: u64,
    /// Contents not sent yet, or void and to be sent again.
    waiting: VecDeque<(Content, T)>,
    flight: VecDeque<Sent<T>>,
    control: Option<Control>,
    /// After the last record in flight.
    tip: Tip,
    /// Up to this position a void record, of this owner or the previous one, may still be stored.
    stale: LogPosition,
    phase: Phase,
    rules: SenderRules,
    effects: VecDeque<Effect<T>>,
}

/// Numbers that identify one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerIdentity {
    /// Random number of each opening.
    pub nonce: u64,
    /// Log id for a new log.
    pub log: u64,
    /// Epoch from the shard's cell; `None`: the log's last epoch plus one.
    pub epoch: Option<u64>,
}

/// The rules of the sender, each with a switch that breaks it, to show that tests notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderRules {
    /// Decides unknown outcomes by a barrier. Broken: reads, and sends missing records again.
    pub barrier: bool,
    /// Reads after a refusal. Broken: ends.
    pub refused_is_no_fence: bool,
    /// Uses answers in the order of sending.
    pub in_order: bool,
    /// Sends one record at a time while void ones may still be stored.
    pub alone: bool,
}

impl Default for SenderRules {
    /// All rules are kept.
    fn default() -> Self {
        SenderRules { barrier: true, refused_is_no_fence: true, in_order: true, alone: true }
    }
}

/// A request of the sender, or its decision. In order.
#[derive(Debug, PartialEq)]
pub enum Effect<T> {
    /// Append this, and call [`Sender::answer`] with its send number.
    Append {
        /// See [`ShardLog::append`](crate::ShardLog::append).
        after: LogPosition,
        /// Bytes of the record.
        record: Bytes,
        /// Send number of the record.
        send: u64,
    },
    /// Read from this position to the log's end: [`Sender::read`] with each record, then [`Sender::read_to_end`].
    Read {
        /// The first position.
        from: LogPosition,
    },
    /// The next valid record of the log, by whomever.
    Valid {
        /// The record.
        record: LogRecord,
        /// The history after it.
        history: History,
        /// The load of a record of this sender.
        load: Option<T>,
    },
    /// The sender has ended and sends nothing more.
    Ended {
        /// Why it has ended.
        end: SenderEnd,
        /// Loads of records that may be stored. None of them if the sender was fenced.
        undecided: Vec<T>,
        /// Loads of records that were not stored.
        unsent: Vec<T>,
    },
}

/// Why a sender ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SenderEnd {
    /// Another owner has opened the log.
    #[error("another owner has opened the log with epoch {epoch}")]
    Fenced {
        /// Epoch of the other owner.
        epoch: u64,
    },
    /// The log cannot be read any further.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The local spool cannot take an intact record of the log. Reopen it once the cause is fixed.
    #[error("the local spool cannot take position {position} of the log: {why}")]
    Local {
        /// Position of the record.
        position: LogPosition,
        /// Error of the local spool.
        why: String,
    },
    /// A record of this epoch that this sender did not send.
    #[error("another sender uses epoch {epoch}: this machine may be a clone")]
    Foreign {
        /// The epoch.
        epoch: u64,
    },
    /// The spool was closed, or this node became a standby, before the log was open.
    #[error("the opening was cancelled")]
    GivenUp,
}

#[derive(Debug)]
struct Sent<T> {
    send: u64,
    record: LogRecord,
    load: T,
    answer: Option<Result<LogPosition, LogError>>,
}

/// A record of the sender's own in flight, at the first undecided position.
#[derive(Debug)]
struct Control {
    send: u64,
    record: LogRecord,
}

#[derive(Debug, Clone, Copy)]
struct Tip {
    position: LogPosition,
    crc: u32,
    next: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// The `open` is not decided.
    Opening,
    Sending,
    /// A record in flight is refused or unknown.
    Deciding,
    Ended,
}

impl<T> Sender<T> {
    /// Opens the log, after the reader's position.
    pub fn new(reader: LogReader, identity: OwnerIdentity, rules: SenderRules) -> Self {
        let tip = Tip { position: reader.position(), crc: 0, next: 0 };
        let from = reader.position().next();
        Sender {
            reader,
            identity,
            epoch: 0,
            next_send: 0,
            waiting: VecDeque::new(),
            flight: VecDeque::new(),
            control: None,
            tip,
            stale: LogPosition::START,
            phase: Phase::Opening,
            rules,
            effects: VecDeque::from([Effect::Read { from }]),
        }
    }

    /// The next act or decision.
    pub fn effect(&mut self) -> Option<Effect<T>> {
        self.effects.pop_front()
    }

    /// The last position that is decided.
    pub fn position(&self) -> LogPosition {
        self.reader.position()
    }

    /// Epoch of the sender's `open`.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// True if the sender has ended.
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// True from when its `open` is in the log until it ends.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Sending | Phase::Deciding)
    }

    /// True if one more record would be sent at once.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Sending && self.waiting.is_empty() && self.flight.len() < self.places()
    }

    /// True if nothing waits or is in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flight.is_empty()
    }

    /// Sends a record as soon as the window allows.
    ///
    /// # Panics
    /// If the sender has ended.
    pub fn push(&mut self, content: Content, load: T) {
        assert!(self.phase != Phase::Ended, "nothing is sent after the end");
        self.waiting.push_back((content, load));
        self.pump();
    }

    /// The engine's answer to an append.
    pub fn answer(&mut self, send: u64, outcome: Result<LogPosition, LogError>) {
        if self.control.as_ref().is_some_and(|control| control.send == send) {
            self.control_answered(outcome);
        } else if let Some(sent) = self.flight.iter_mut().find(|sent| sent.send == send) {
            sent.answer = Some(outcome);
            self.settle();
        }
        // Otherwise it was void before its answer came.
    }

    /// Takes one record of a read.
    pub fn read(&mut self, position: LogPosition, bytes: &Bytes) {
        if self.phase == Phase::Ended {
            return;
        }
        match self.reader.read(position, bytes) {
            Ok(Read::Valid(record)) => self.found(record),
            Ok(Read::Skipped(_)) => {}
            Err(invalid) => self.end(SenderEnd::Invalid(invalid)),
        }
    }

    /// Notes that a read has reached the log's end.
    pub fn read_to_end(&mut self) {
        match self.phase {
            Phase::Opening if self.epoch > 0 && self.history().is_some_and(|it| it.epoch == self.epoch) => {
                self.resume()
            }
            Phase::Opening => self.send_open(),
            Phase::Deciding if self.flight.is_empty() => self.resume(),
            Phase::Deciding if self.rules.barrier => self.send_barrier(),
            Phase::Deciding => {
                self.void();
                self.resume();
            }
            Phase::Sending | Phase::Ended => {}
        }
    }

    /// The log cannot be read.
    pub fn read_failed(&mut self, invalid: Invalid) {
        self.end(SenderEnd::Invalid(invalid));
    }

    /// Ends without a decision. Returns the loads of records that may be stored, and of those that are not.
    pub fn give_up(&mut self) -> (Vec<T>, Vec<T>) {
        self.phase = Phase::Ended;
        self.control = None;
        let flight = std::mem::take(&mut self.flight).into_iter().map(|sent| sent.load);
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(_, load)| load);
        (flight.collect(), waiting.collect())
    }

    fn history(&self) -> Option<&History> {
        self.reader.history()
    }

    /// Sends while the window has room.
    fn pump(&mut self) {
        while self.phase == Phase::Sending && self.flight.len() < self.places() {
            let Some((content, load)) = self.waiting.pop_front() else { return };
            let send = self.take_send();
            let header = LogRecordHeader { first: self.tip.next, previous: self.tip.crc, ..self.header(send) };
            let (record, crc) = LogRecord::encode(&header, &content);
            self.effects.push_back(Effect::Append { after: self.tip.position, record, send });
            self.tip = Tip { position: self.tip.position.next(), crc, next: header.first + content.numbers() };
            self.flight.push_back(Sent { send, record: LogRecord { header, content, crc }, load, answer: None });
        }
    }

    /// Records that may be in flight now.
    fn places(&self) -> usize {
        if self.rules.alone && self.reader.position() <= self.stale { 1 } else { IN_FLIGHT_MAX }
    }

    fn take_send(&mut self) -> u64 {
        self.next_send += 1;
        self.next_send - 1
    }

    /// Header for a record at the first undecided position.
    fn header(&self, send: u64) -> LogRecordHeader {
        let shard = self.reader.shard();
        match self.history() {
            Some(it) => {
                LogRecordHeader { shard, log: it.log, epoch: self.epoch, send, first: it.next, previous: it.crc }
            }
            None => LogRecordHeader { shard, log: self.identity.log, epoch: 0, send, first: FIRST_NUMBER, previous: 0 },
        }
    }

    /// Handles available answers, up to the first missing one.
    fn settle(&mut self) {
        while self.phase == Phase::Sending {
            let ready = if self.rules.in_order {
                self.flight.front().is_some_and(|sent| sent.answer.is_some()).then_some(0)
            } else {
                self.flight.iter().position(|sent| sent.answer.is_some())
            };
            let Some(at) = ready else { break };
            let expected = self.reader.position().next();
            match self.flight[at].answer.take().expect("it was just seen") {
                Ok(position) if position == expected || !self.rules.in_order => {
                    let sent = self.flight.remove(at).expect("it was just seen");
                    self.reader.confirm(position, &sent.record);
                    self.valid(sent.record, Some(sent.load));
                }
                Ok(_) | Err(LogError::Refused(_)) => self.refused(),
                Err(_) if self.rules.barrier => {
                    self.phase = Phase::Deciding;
                    self.send_barrier();
                }
                Err(_) => self.decide_by_reading(),
            }
        }
        self.pump();
    }

    fn refused(&mut self) {
        if self.rules.refused_is_no_fence {
            self.decide_by_reading()
        } else {
            self.end(SenderEnd::Fenced { epoch: self.epoch })
        }
    }

    fn decide_by_reading(&mut self) {
        self.phase = Phase::Deciding;
        self.effects.push_back(Effect::Read { from: self.reader.position().next() });
    }

    fn send_barrier(&mut self) {
        let send = self.take_send();
        // All that was sent before it is void.
        self.send_control(self.header(send), Content::Barrier { valid_from: send + 1 });
    }

    /// Sends an `open`, which is also the first record of a new log.
    fn send_open(&mut self) {
        let Some(history) = self.history().copied() else {
            let send = self.take_send();
            return self.send_control(self.header(send), Content::Start);
        };
        match self.identity.epoch {
            Some(epoch) if epoch <= history.epoch => return self.end(SenderEnd::Fenced { epoch: history.epoch }),
            Some(epoch) => self.epoch = epoch,
            None => self.epoch = history.epoch + 1,
        }
        let send = self.take_send();
        self.send_control(self.header(send), Content::Open { nonce: self.identity.nonce });
    }

    fn send_control(&mut self, header: LogRecordHeader, content: Content) {
        let (bytes, crc) = LogRecord::encode(&header, &content);
        let send = header.send;
        self.effects.push_back(Effect::Append { after: self.reader.position(), record: bytes, send });
        self.control = Some(Control { send, record: LogRecord { header, content, crc } });
    }

    fn control_answered(&mut self, outcome: Result<LogPosition, LogError>) {
        let Some(control) = self.control.take() else { return };
        match outcome {
            Ok(position) if position == self.reader.position().next() => {
                let is_start = control.record.content == Content::Start;
                self.reader.confirm(position, &control.record);
                self.opened(&control.record.content);
                self.valid(control.record, None);
                if is_start {
                    self.send_open()
                } else {
                    self.void();
                    self.resume();
                }
            }
            Ok(_) | Err(LogError::Refused(_)) => {
                self.effects.push_back(Effect::Read { from: self.reader.position().next() });
            }
            // At the same position: only one of them can be stored.
            Err(_) => match control.record.content {
                Content::Barrier { .. } => self.send_barrier(),
                _ => self.send_open(),
            },
        }
    }

    /// A valid record that was read.
    fn found(&mut self, record: LogRecord) {
        let epoch = record.header.epoch;
        let is_own = epoch == self.epoch && epoch > 0;
        match &record.content {
            Content::Open { nonce } if is_own && *nonce == self.identity.nonce => {
                self.phase = Phase::Deciding;
                self.opened(&record.content);
                self.valid(record, None);
            }
            Content::Open { .. } if epoch >= self.epoch && (self.phase != Phase::Opening || self.is_given(epoch)) => {
                self.end(SenderEnd::Fenced { epoch });
            }
            Content::Barrier { .. } if is_own => {
                self.void();
                self.valid(record, None);
            }
            _ if is_own && self.flight.front().is_some_and(|sent| sent.send == record.header.send) => {
                let load = self.flight.pop_front().map(|sent| sent.load);
                self.valid(record, load);
            }
            // While it opens, another may open with the same number: the next number is free.
            _ if is_own && self.phase != Phase::Opening => self.end(SenderEnd::Foreign { epoch }),
            _ => self.valid(record, None),
        }
    }

    /// Notes that the previous owner may have had as many records in flight after this `open`.
    fn opened(&mut self, content: &Content) {
        if matches!(content, Content::Open { .. }) {
            self.stale = self.stale.max(LogPosition::new(self.reader.position().get() + IN_FLIGHT_MAX as u64));
        }
    }

    /// True if the epoch is at least the one from the shard's cell.
    fn is_given(&self, epoch: u64) -> bool {
        self.identity.epoch.is_some_and(|given| epoch >= given)
    }

    fn valid(&mut self, record: LogRecord, load: Option<T>) {
        let history = *self.history().expect("a record was read");
        self.effects.push_back(Effect::Valid { record, history, load });
    }

    /// Declares all in flight void: they are sent again, before waiting contents.
    fn void(&mut self) {
        if !self.flight.is_empty() {
            self.stale = self.stale.max(LogPosition::new(self.tip.position.get() - 1));
        }
        while let Some(sent) = self.flight.pop_back() {
            self.waiting.push_front((sent.record.content, sent.load));
        }
    }

    fn resume(&mut self) {
        let history = *self.history().expect("the log is open");
        self.tip = Tip { position: history.position, crc: history.crc, next: history.next };
        self.phase = Phase::Sending;
        self.pump();
    }

    fn end(&mut self, end: SenderEnd) {
        if self.phase == Phase::Ended {
            return;
        }
        let (mut undecided, mut unsent) = self.give_up();
        // All before another's `open` was read; what comes later is skipped by every reader.
        if matches!(end, SenderEnd::Fenced { .. }) {
            unsent = undecided.drain(..).chain(unsent).collect();
        }
        self.effects.push_back(Effect::Ended { end, undecided, unsent });
    }
}

/// Cluster number of the first record of a new log: 0 is below every batch.
const FIRST_NUMBER: u64 = 1;

#[cfg(test)]
mod tests;
