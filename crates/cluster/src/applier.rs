//! Applies the valid records of the log to the local spool, for an owner and for a standby.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{AppendError, Body, Entry, Lsn, Released, Then};

use crate::LogPosition;
use crate::batch::{LoggedBatch, LoggedBody};
use crate::bundle::Own;
use crate::collect::{CollectError, Collector, batch_of};
use crate::entry::Place;
use crate::hub::{Failure, Hub};
use crate::local::LocalSpool;
use crate::pipeline::{Pipeline, Work};
use crate::queue::Ending;
use crate::reader::{History, Invalid};
use crate::record::{Content, LogRecord};
use crate::sender::SenderEnd;
use crate::settings::WriterRules;

/// Applies records of the log to the local spool. Used by one thread.
pub(crate) struct Applier<L> {
    hub: Arc<Hub<L>>,
    rules: WriterRules,
    pipeline: Pipeline,
    /// Units of room for all records sent to the local spool and not yet stored.
    pub room: u64,
    /// First positions of uploads that are not complete.
    unfinished: BTreeMap<u64, LogPosition>,
    collector: Collector,
    /// Time to retry a batch that the local spool has refused.
    pub retry_at: Option<Instant>,
    /// History after the last record.
    last: Option<History>,
}

/// Callers that wait for the record in flight.
pub(crate) enum Load {
    Bundle(VecDeque<Own>),
    Large(Own),
    Part,
    Stream(Box<dyn FnOnce() + Send>),
    Nothing,
}

impl Load {
    /// Units of room reserved for its batches.
    pub fn room(&self) -> u64 {
        match self {
            Load::Bundle(owns) => owns.iter().map(|own| own.room).sum(),
            Load::Large(own) => own.room,
            Load::Part | Load::Stream(_) | Load::Nothing => 0,
        }
    }

    /// Fails all waiting callers: the batch will not be stored, or its fate is unknown.
    pub fn answer(self, error: &AppendError) {
        match self {
            Load::Bundle(owns) => owns.into_iter().for_each(|own| (own.then)(Err(error.clone()))),
            Load::Large(own) => (own.then)(Err(error.clone())),
            Load::Part | Load::Stream(_) | Load::Nothing => {}
        }
    }
}

impl<L: LocalSpool> Applier<L> {
    /// Call it on the thread that will use the applier.
    pub fn new(hub: Arc<Hub<L>>, rules: WriterRules) -> Self {
        let pipeline = Pipeline::new(hub.stream, hub.queue.clone());
        let last = hub.member.last().map(|place| place.history());
        Applier {
            hub,
            rules,
            pipeline,
            room: 0,
            unfinished: BTreeMap::new(),
            collector: Collector::default(),
            retry_at: None,
            last,
        }
    }

    /// The history up to the last record that was applied or is in flight.
    pub fn last(&self) -> Option<History> {
        self.last
    }

    /// Positions of the first part of an unfinished upload, and of the last record.
    pub fn unfinished(&self) -> Option<(LogPosition, LogPosition)> {
        Some((self.unfinished.values().min().copied()?, self.last?.position))
    }

    /// Forgets collected parts; they are read again with [`collect_part`](Self::collect_part).
    pub fn forget_parts(&mut self) {
        self.collector.clear();
    }

    /// Collects one record between those of [`unfinished`](Self::unfinished), which may be a part of an unfinished
    /// upload.
    ///
    /// # Errors
    /// The local disk fails, or the log lacks the record.
    pub fn collect_part(&mut self, position: LogPosition, bytes: &Bytes) -> Result<(), SenderEnd> {
        let record = LogRecord::decode(bytes).map_err(|_| senseless(position))?;
        match &record.content {
            Content::Part { upload, offset, bytes } if self.unfinished.contains_key(upload) => {
                self.collect(position, *upload, *offset, bytes)
            }
            _ => Ok(()),
        }
    }

    /// True if everything applied is durable in the local spool.
    pub fn is_settled(&self) -> bool {
        self.pipeline.len() == 0
    }

    /// Time until the next retry at the local spool.
    pub fn timeout(&self) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Notes that the local spool may have room again.
    pub fn has_made_room(&mut self) {
        if self.retry_at.is_some() {
            self.retry_at = Some(Instant::now());
        }
    }

    /// Drops waiting batches at the end: the log has them, and the next opening applies them.
    pub fn give_up(&mut self) {
        if self.retry_at.is_some() {
            let error = AppendError::Poisoned("the spool was closed before it had room".into());
            self.pipeline.take_all().into_iter().for_each(|then| then(Err(error.clone())));
        }
    }

    /// Applies the next valid record of the log to the local spool.
    ///
    /// # Errors
    /// The record cannot be applied; no later one can be, either.
    pub fn apply(&mut self, record: LogRecord, history: &History, load: Option<Load>) -> Result<(), SenderEnd> {
        self.last = Some(*history);
        let position = history.position;
        match &record.content {
            Content::Part { upload, offset, bytes } => {
                self.unfinished.entry(*upload).or_insert(position);
                if load.is_none() {
                    self.collect(position, *upload, *offset, bytes)?;
                }
            }
            Content::Commit { upload, .. } => drop(self.unfinished.remove(upload)),
            Content::Abort { upload } => {
                self.unfinished.remove(upload);
                self.collector.abort(*upload);
            }
            Content::Open { .. } => {
                self.unfinished.clear();
                self.collector.clear();
            }
            _ => {}
        }
        let first_part = self.unfinished.values().min().copied().filter(|_| self.rules.resume_at_parts);
        let resume = first_part.unwrap_or(position);
        let place = |index| Place::of(&record, history, index, resume);
        match (&record.content, load) {
            (_, Some(Load::Bundle(owns))) => {
                (0..).zip(owns).for_each(|(index, own)| self.append_own(place(index), own));
            }
            (_, Some(Load::Large(own))) => self.append_own(place(0), own),
            (Content::Batches(batches), _) => {
                for (index, bytes) in (0..).zip(batches) {
                    let (logged, body) = LoggedBatch::decode(bytes).ok_or_else(|| senseless(position))?;
                    let body = self.body_of(position, &logged, body)?;
                    self.append_read(place(index), &logged, body)?;
                }
            }
            (Content::Commit { upload, len, crc }, _) if self.is_new(&place(0)) => {
                let collected = self.collector.finish(*upload, *len, *crc);
                let (logged, body) = collected.map_err(|error| of_collecting(position, &error))?;
                self.append_read(place(0), &logged, body)?;
            }
            (Content::Stream { number, name }, load) => {
                let stream = Some((*number, name.clone()));
                self.register(position, *number, name.as_deref(), load.is_some())?;
                let then = match load {
                    Some(Load::Stream(tell)) => Some(tell),
                    _ => None,
                };
                let then = then.map(|tell| -> Then {
                    Box::new(move |outcome| {
                        if outcome.is_ok() {
                            tell()
                        }
                    })
                });
                self.append_local(Place { stream, ..place(0) }, Vec::new(), Body::None, then, 0);
            }
            (Content::Advance { stream, position, below, also }, None) => {
                // Its batches must have their local numbers.
                self.settle_to(1);
                self.advance(*stream, *position, *below, also);
                self.append_local(place(0), Vec::new(), Body::None, None, 0);
            }
            _ => self.append_local(place(0), Vec::new(), Body::None, None, 0),
        }
        Ok(())
    }

    /// The body of a batch in a bundle: as a file if it was one.
    fn body_of(&self, position: LogPosition, logged: &LoggedBatch, body: Bytes) -> Result<Body, SenderEnd> {
        Ok(match logged.body {
            LoggedBody::None => Body::None,
            LoggedBody::Inline => Body::Inline(logged.front.clone(), vec![body]),
            LoggedBody::File => {
                let written = self.hub.local.upload(logged.body_len).and_then(|mut upload| {
                    upload.write(&body)?;
                    upload.finish()
                });
                let upload = written.map_err(|error| local(position, &error))?;
                Body::File(logged.front.clone(), upload)
            }
        })
    }

    fn collect(&mut self, position: LogPosition, upload: u64, offset: u64, bytes: &Bytes) -> Result<(), SenderEnd> {
        let added = self.collector.add(&self.hub.local, upload, offset, bytes);
        added.map_err(|error| of_collecting(position, &error))
    }

    /// Collects parts of uploads that were incomplete when the spool was closed, and the rest of a half-applied record.
    pub fn collect_again(&mut self, again: Vec<(LogPosition, Bytes)>) -> Result<(), SenderEnd> {
        let Some(last) = self.hub.member.last() else { return Ok(()) };
        for (position, bytes) in again {
            let Ok(record) = LogRecord::decode(&bytes) else { return Err(senseless(position)) };
            match &record.content {
                Content::Part { upload, offset, bytes } => {
                    self.unfinished.entry(*upload).or_insert(position);
                    self.collect(position, *upload, *offset, bytes)?;
                }
                Content::Abort { upload } => {
                    self.unfinished.remove(upload);
                    self.collector.abort(*upload);
                }
                Content::Commit { upload, .. } => drop(self.unfinished.remove(upload)),
                _ => {}
            }
            if position == last.position && !last.is_last() {
                self.apply(record, &last.history(), None)?;
            }
        }
        Ok(())
    }

    fn register(
        &mut self,
        position: LogPosition,
        number: u16,
        name: Option<&str>,
        is_own: bool,
    ) -> Result<(), SenderEnd> {
        match (name, is_own) {
            // The local stream was there before the record.
            (_, true) => {}
            (Some(name), false) => {
                let id = self.hub.local.stream(name).map_err(|error| local(position, &error))?;
                self.hub.member.set_id(number, Some(id));
            }
            (None, false) => {
                // What it had before goes; the same name may come again.
                self.settle_to(1);
                if let Some(name) = self.hub.member.name_of(number) {
                    self.hub.local.forget_stream(&name).map_err(|error| local(position, &error))?;
                }
                self.hub.member.set_id(number, None);
            }
        }
        Ok(())
    }

    fn advance(&self, stream: u16, position: u64, below: u64, also: &[u64]) {
        let member = &self.hub.member;
        let Ok(Some(id)) = member.id_of(stream) else { return };
        let also = also.iter().filter_map(|number| member.local(member.lsn(*number))).collect();
        let released = Released { below: member.local_from(member.lsn(below)), also };
        self.hub.local.advance(id, member.local_up_to(member.lsn(position)), None, released);
    }

    fn append_own(&mut self, place: Place, own: Own) {
        let then: Then = if self.rules.after_local {
            own.then
        } else {
            (own.then)(Ok(self.hub.member.lsn(place.number)));
            Box::new(|_| ())
        };
        self.append_local(place, own.entries, own.body, Some(then), own.room);
    }

    fn append_read(&mut self, place: Place, logged: &LoggedBatch, body: Body) -> Result<(), SenderEnd> {
        let position = place.position;
        let batch = batch_of(logged, body, |number| self.hub.member.id_of(number));
        let batch = batch.map_err(|number| hole(position, &format!("there is no stream {number}")))?;
        self.append_local(place, batch.entries, batch.body, None, 0);
        Ok(())
    }

    /// True if the local spool lacks it.
    fn is_new(&self, place: &Place) -> bool {
        self.hub.member.last().is_none_or(|last| place.number > last.number)
    }

    fn append_local(&mut self, place: Place, entries: Vec<Entry>, body: Body, then: Option<Then>, room: u64) {
        if then.is_none() && !self.is_new(&place) {
            return;
        }
        let lsn: Lsn = self.hub.member.lsn(place.number);
        self.pipeline.push(&self.hub.local, Work { place, entries, body, then, room }, lsn);
        self.settle_to(PIPELINE_MAX);
    }

    /// Waits until fewer batches than this are in flight to the local spool. An order ends the wait early, unless it is
    /// for all batches. Then releases are decided by the batches' final numbers, which cannot be repeated.
    fn settle_to(&mut self, most: usize) {
        while self.pipeline.len() >= most {
            self.pipeline.wait();
            self.settle();
            if self.retry_at.is_none() || !self.hub.queue.pause(ROOM_PAUSE) {
                continue;
            }
            if most > 1 || self.hub.queue.state().ending != Ending::Not {
                return;
            }
            std::thread::sleep(ROOM_PAUSE);
        }
    }

    /// Closes the spool to writing. Batches in the log get the error, too: the local spool lacks them.
    fn fail(&mut self, error: &AppendError) {
        let failure = Failure::Poisoned(error.to_string().into());
        let error = failure.error();
        self.hub.fail(failure);
        self.pipeline.take_all().into_iter().for_each(|then| then(Err(error.clone())));
    }

    /// Handles stored and refused batches. A refused one is retried after a while, since the log has it.
    pub fn settle(&mut self) {
        self.room -= self.pipeline.take_done();
        let Some(error) = self.pipeline.failure() else {
            self.retry_at = None;
            return;
        };
        if !matches!(error, AppendError::Full(_) | AppendError::Busy | AppendError::Local(_)) {
            return self.fail(&error);
        }
        let now = Instant::now();
        match self.retry_at {
            Some(at) if at <= now => {
                self.pipeline.send_again(&self.hub.local);
                self.retry_at = Some(now + ROOM_PAUSE);
            }
            Some(_) => {}
            None => {
                self.hub.local.ask_for_room();
                self.retry_at = Some(now + ROOM_PAUSE);
            }
        }
    }
}

pub(crate) fn hole(position: LogPosition, why: &dyn std::fmt::Display) -> SenderEnd {
    SenderEnd::Invalid(Invalid::Hole { position, why: why.to_string() })
}

fn local(position: LogPosition, why: &dyn std::fmt::Display) -> SenderEnd {
    SenderEnd::Local { position, why: why.to_string() }
}

fn of_collecting(position: LogPosition, error: &CollectError) -> SenderEnd {
    match error {
        CollectError::Io(error) => local(position, error),
        CollectError::Damaged(_) => hole(position, error),
    }
}

fn senseless(position: LogPosition) -> SenderEnd {
    hole(position, &"a batch in it has no meaning")
}

/// Maximum batches in flight to the local spool.
const PIPELINE_MAX: usize = 2048;
/// Pause between retries of logged batches at a full local spool.
const ROOM_PAUSE: Duration = Duration::from_millis(50);
