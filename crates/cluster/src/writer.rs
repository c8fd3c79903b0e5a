//! The writer's thread of a shard: bundles what waits, sends it, and appends to the local spool whatever the log has.

mod apply;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{AppendError, Body, StreamId};

use crate::bundle::{BUNDLE_BATCHES, BUNDLE_BYTES, Large, Own, Prepared};
use crate::collect::Collector;
use crate::local::{LocalSpool, room_of};
use crate::member::Member;
use crate::pipeline::Pipeline;
use crate::queue::{Ending, Item, Pending, Queue};
use crate::reader::Invalid;
use crate::record::Content;
use crate::sender::{Effect, End, Sender};
use crate::{Log, LogError, Position};

/// Everything that the writer shares with the handle of the spool.
pub(crate) struct Hub<L> {
    pub local: L,
    pub log: Arc<dyn Log>,
    pub member: Arc<Member>,
    pub queue: Arc<Queue>,
    pub stream: StreamId,
    pub segment_bytes: u64,
    /// Held while a snapshot of the place is written.
    pub snapshotting: Mutex<()>,
    /// Set once, when nothing more is accepted.
    pub failed: OnceLock<Failure>,
}

/// Why nothing more is accepted.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    Fenced(Arc<str>),
    Poisoned(Arc<str>),
}

impl Failure {
    pub fn error(&self) -> AppendError {
        match self {
            Failure::Fenced(_) => AppendError::NotOwner,
            Failure::Poisoned(why) => AppendError::Poisoned(why.clone()),
        }
    }

    pub fn why(&self) -> Arc<str> {
        match self {
            Failure::Fenced(why) | Failure::Poisoned(why) => why.clone(),
        }
    }
}

/// The rules of the owner's writer, each with a switch that breaks it: for tests, which must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterRules {
    /// Acknowledges a batch when the local spool has it. Broken: when the log has it.
    pub after_local: bool,
    /// Resumes at the first part of an unfinished upload. Broken: after the last record.
    pub resume_at_parts: bool,
    /// Refuses a batch that the local spool has no room for before the log has it.
    pub room_first: bool,
}

impl Default for WriterRules {
    /// All are kept.
    fn default() -> Self {
        WriterRules { after_local: true, resume_at_parts: true, room_first: true }
    }
}

pub(crate) struct Writer<L> {
    hub: Arc<Hub<L>>,
    rules: WriterRules,
    sender: Sender<Load>,
    pipeline: Pipeline,
    /// Units of room of all that is sent and not yet in the local spool.
    room: u64,
    /// Waits for the next bundle.
    next: Option<Prepared>,
    large: Option<Large>,
    uploads: u32,
    /// First positions of uploads that are not complete.
    unfinished: BTreeMap<u64, Position>,
    collector: Collector,
    /// The time to append again what the local spool has refused.
    retry_at: Option<Instant>,
    /// Told once the log is open.
    opened: Option<SyncSender<Result<(), End>>>,
}

/// Waits for the record that is in flight.
pub(crate) enum Load {
    Bundle(VecDeque<Own>),
    Large(Own),
    Part,
    Stream(Box<dyn FnOnce() + Send>),
    Advance,
}

impl<L: LocalSpool> Writer<L> {
    pub fn new(
        hub: Arc<Hub<L>>,
        sender: Sender<Load>,
        rules: WriterRules,
        opened: SyncSender<Result<(), End>>,
    ) -> Self {
        let pipeline = Pipeline::new(hub.stream, hub.queue.clone());
        Writer {
            hub,
            rules,
            sender,
            pipeline,
            room: 0,
            next: None,
            large: None,
            uploads: 0,
            unfinished: BTreeMap::new(),
            collector: Collector::default(),
            retry_at: None,
            opened: Some(opened),
        }
    }

    /// Until the spool is closed. `again`: records up to the last that the local spool has, from the place to resume from on.
    pub fn run(mut self, again: Vec<(Position, Bytes)>) {
        if let Err(end) = self.collect_again(again) {
            return self.ended(end, Vec::new(), Vec::new());
        }
        self.act();
        loop {
            let timeout = self.retry_at.map(|at| at.saturating_duration_since(Instant::now()));
            let (answers, ending) = {
                let mut state = self.hub.queue.wait(timeout);
                if std::mem::take(&mut state.has_made_room) && self.retry_at.is_some() {
                    self.retry_at = Some(Instant::now());
                }
                (std::mem::take(&mut state.answers), state.ending)
            };
            if ending == Ending::Killed {
                return;
            }
            let is_silent = answers.iter().any(|(_, outcome)| matches!(outcome, Err(LogError::Unknown(_))));
            answers.into_iter().for_each(|(send, outcome)| self.sender.answer(send, outcome));
            self.act();
            self.settle();
            self.tell_opened();
            match ending {
                Ending::Not if self.hub.failed.get().is_some() => self.refuse_waiting(),
                Ending::Not => self.form(),
                // An engine that does not answer would hold up the end for ever.
                _ if self.is_idle() || is_silent || self.retry_at.is_some() => return self.close(),
                _ => self.refuse_waiting(),
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.large.is_none() && (self.sender.is_ended() || self.sender.is_idle()) && self.pipeline.len() == 0
    }

    /// Does what the sender asks for.
    fn act(&mut self) {
        while let Some(effect) = self.sender.effect() {
            match effect {
                Effect::Append { .. } if self.sender.is_ended() => {}
                Effect::Append { after, record, send } => {
                    let queue = self.hub.queue.clone();
                    let then = move |outcome| queue.put(|state| state.answers.push((send, outcome)));
                    self.hub.log.append(after, record, Box::new(then));
                }
                Effect::Read { from } => self.read(from),
                Effect::Valid { record, history, load } => self.apply(record, history, load),
                Effect::Ended { end, undecided, unsent } => self.ended(end, undecided, unsent),
            }
        }
    }

    /// The log is open, and the local spool has all of it, or will have once there is room.
    fn tell_opened(&mut self) {
        if self.sender.is_open()
            && (self.pipeline.len() == 0 || self.retry_at.is_some())
            && let Some(opened) = self.opened.take()
        {
            let _ = opened.send(Ok(()));
        }
    }

    /// Reads to the end of the log. Asks again while the engine cannot be reached.
    fn read(&mut self, mut from: Position) {
        loop {
            let slice = self.read_slice(from);
            // What was read is applied before more is read: memory has a bound.
            while let Some(effect) = self.sender.effect() {
                match effect {
                    Effect::Valid { record, history, load } => self.apply(record, history, load),
                    Effect::Ended { end, undecided, unsent } => return self.ended(end, undecided, unsent),
                    Effect::Append { .. } | Effect::Read { .. } => unreachable!("reading asks for nothing"),
                }
            }
            match slice {
                _ if self.sender.is_ended() => return,
                Ok(true) => return self.sender.read_to_end(),
                Ok(false) => {}
                Err(LogError::Gap(position)) => {
                    let why = "the engine does not have it".to_owned();
                    return self.sender.read_failed(Invalid::Hole { position, why });
                }
                Err(LogError::Cut { first }) => {
                    return self.sender.read_failed(Invalid::Cut { position: from, first });
                }
                // Whoever ends it does not wait for the engine.
                Err(_) if self.hub.queue.pause(ENGINE_PAUSE) != Ending::Not => return self.close(),
                Err(_) => {}
            }
            from = self.sender.position().next();
        }
    }

    /// True at the end of the log.
    fn read_slice(&mut self, from: Position) -> Result<bool, LogError> {
        let end = self.hub.log.end()?;
        if from > end {
            // Shorter than what is known to be stored.
            return if from == end.next() { Ok(true) } else { Err(LogError::Gap(end.next())) };
        }
        let (sender, mut left) = (&mut self.sender, READ_RECORDS);
        let mut last = from;
        self.hub.log.follow(from, &mut |position, bytes| {
            sender.read(position, &bytes);
            (last, left) = (position, left - 1);
            position < end && left > 0 && !sender.is_ended()
        })?;
        Ok(last >= end)
    }

    /// Sends what waits, while there is a place for it in flight.
    fn form(&mut self) {
        while self.sender.is_ready() {
            if self.large.is_some() {
                self.send_part();
            } else if let Some(prepared) = self.next.take().or_else(|| self.prepare_next()) {
                self.bundle(prepared);
            } else {
                let item = self.hub.queue.state().items.pop_front();
                match item {
                    None => return,
                    Some(Item::Batch(pending)) => self.next = self.prepare(&pending),
                    Some(Item::Stream { number, name, tell }) => {
                        self.sender.push(Content::Stream { number, name }, Load::Stream(tell));
                    }
                    Some(Item::Advance { stream, position, below, also }) => {
                        self.sender.push(Content::Advance { stream, position, below, also }, Load::Advance);
                    }
                }
            }
            self.act();
        }
    }

    /// The next batch in the queue, if that comes next.
    fn prepare_next(&mut self) -> Option<Prepared> {
        loop {
            let pending = {
                let mut state = self.hub.queue.state();
                let pending = match state.items.front()? {
                    Item::Batch(pending) => pending.clone(),
                    _ => return None,
                };
                state.items.pop_front();
                pending
            };
            if let Some(prepared) = self.prepare(&pending) {
                return Some(prepared);
            }
        }
    }

    /// Reserves room for a batch. `None` if it was cancelled or refused.
    fn prepare(&mut self, pending: &Pending) -> Option<Prepared> {
        let (batch, then) = pending.take()?;
        let hub = &self.hub;
        let payloads: usize = batch.entries.iter().map(|entry| 7 + entry.payload.len()).sum();
        let in_record = match &batch.body {
            Body::File(front, _) => front.len() as u64,
            body => body.len(),
        };
        let room = room_of(payloads as u64 + in_record, hub.segment_bytes);
        let has_body = !matches!(batch.body, Body::None);
        let has_room = hub.local.has_room(hub.segment_bytes, self.room + room, has_body) && self.retry_at.is_none();
        if self.rules.room_first && !has_room {
            hub.local.ask_for_room();
            then(Err(AppendError::Full("the local spool has no room for what is under way".into())));
            return None;
        }
        let numbers: Option<Vec<u16>> = batch.entries.iter().map(|entry| hub.member.number_of(entry.stream)).collect();
        let Some(numbers) = numbers else {
            // Forgotten since it was queued.
            then(Err(AppendError::NoStream(batch.entries[0].stream)));
            return None;
        };
        self.room += room;
        Some(Prepared::new(batch, then, room, &numbers))
    }

    /// Sends a batch, with as many of those after it as fit.
    fn bundle(&mut self, first: Prepared) {
        if first.is_large() {
            return self.begin_large(first);
        }
        let (mut batches, mut owns, mut bytes) = (Vec::new(), VecDeque::new(), 0);
        let mut prepared = Some(first);
        while let Some(next) = prepared {
            if bytes + next.bytes > BUNDLE_BYTES || batches.len() == BUNDLE_BATCHES {
                self.next = Some(next);
                break;
            }
            match next.octets() {
                Ok(octets) => {
                    bytes += next.bytes;
                    batches.push(octets);
                    owns.push_back(next.own);
                }
                Err(error) => self.refuse(next.own, AppendError::Local(Arc::new(error))),
            }
            prepared = self.prepare_next();
        }
        if !batches.is_empty() {
            self.sender.push(Content::Batches(batches), Load::Bundle(owns));
        }
    }

    fn refuse(&mut self, own: Own, error: AppendError) {
        self.room -= own.room;
        (own.then)(Err(error));
    }

    fn begin_large(&mut self, prepared: Prepared) {
        self.uploads += 1;
        // Epochs are not used again, so neither are these.
        let upload = self.sender.epoch() << 32 | u64::from(self.uploads);
        match Large::new(upload, prepared) {
            Ok(large) => self.large = Some(large),
            Err(failed) => self.refuse(failed.0, AppendError::Local(Arc::new(failed.1))),
        }
    }

    fn send_part(&mut self) {
        let Some(mut large) = self.large.take() else { return };
        let upload = large.upload;
        match large.part() {
            Ok(Some((offset, bytes))) => {
                self.large = Some(large);
                self.sender.push(Content::Part { upload, offset, bytes }, Load::Part);
            }
            Ok(None) => {
                let (len, crc) = (large.sent, large.crc);
                self.sender.push(Content::Commit { upload, len, crc }, Load::Large(large.into_own()));
            }
            Err(error) => {
                self.sender.push(Content::Abort { upload }, Load::Part);
                self.refuse(large.into_own(), AppendError::Local(Arc::new(error)));
            }
        }
    }

    /// Closes the spool to writing. Batches that the log has get the error, too: they are not in the local spool.
    fn fail(&mut self, error: &AppendError) {
        let failure = Failure::Poisoned(error.to_string().into());
        let error = failure.error();
        let _ = self.hub.failed.set(failure);
        self.pipeline.take_all().into_iter().for_each(|then| then(Err(error.clone())));
        self.refuse_waiting();
    }

    fn ended(&mut self, end: End, undecided: Vec<Load>, unsent: Vec<Load>) {
        let why: Arc<str> = end.to_string().into();
        let failure = match &end {
            End::Fenced { .. } => Failure::Fenced(why.clone()),
            _ => Failure::Poisoned(why.clone()),
        };
        let _ = self.hub.failed.set(failure.clone());
        let more = self.sender.give_up();
        for load in undecided.into_iter().chain(more.0) {
            answer(load, &AppendError::Poisoned(why.clone()));
        }
        unsent.into_iter().chain(more.1).for_each(|load| answer(load, &failure.error()));
        self.refuse_waiting();
        if let Some(opened) = self.opened.take() {
            let _ = opened.send(Err(end));
        }
    }

    /// Answers what was never sent.
    fn refuse_waiting(&mut self) {
        let error = self.hub.failed.get().map_or(AppendError::Closed, Failure::error);
        let large = self.large.take().map(Large::into_own);
        for own in self.next.take().map(|it| it.own).into_iter().chain(large) {
            self.refuse(own, error.clone());
        }
        let items = std::mem::take(&mut self.hub.queue.state().items);
        for item in items {
            if let Item::Batch(pending) = item
                && let Some((_, then)) = pending.take()
            {
                then(Err(error.clone()));
            }
        }
    }

    fn close(&mut self) {
        self.refuse_waiting();
        let error = AppendError::Poisoned("the spool was closed before the batch was decided".into());
        let (undecided, unsent) = self.sender.give_up();
        if self.retry_at.is_some() {
            // The log has them, and the next opening appends them.
            self.pipeline.take_all().into_iter().for_each(|then| then(Err(error.clone())));
        }
        undecided.into_iter().for_each(|load| answer(load, &error));
        unsent.into_iter().for_each(|load| answer(load, &AppendError::Closed));
    }
}

fn answer(load: Load, error: &AppendError) {
    match load {
        Load::Bundle(owns) => owns.into_iter().for_each(|own| (own.then)(Err(error.clone()))),
        Load::Large(own) => (own.then)(Err(error.clone())),
        Load::Part | Load::Stream(_) | Load::Advance => {}
    }
}

/// Records that are read before they are applied.
const READ_RECORDS: usize = 16;
/// Between two attempts to reach the engine.
const ENGINE_PAUSE: Duration = Duration::from_millis(200);
