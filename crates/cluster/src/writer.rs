//! The owner's part of a shard's thread: bundles waiting batches, sends them, and applies the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_spool::{AppendError, Body};

use crate::applier::{Applier, Load};
use crate::bundle::{BUNDLE_BATCHES, BUNDLE_BYTES, Large, Own, Prepared};
use crate::hub::{Failure, Hub};
use crate::local::{LocalSpool, room_of};
use crate::queue::{Ending, Item, Pending, Promoted};
use crate::reader::Invalid;
use crate::record::Content;
use crate::sender::{Effect, Sender, SenderEnd};
use crate::settings::WriterRules;
use crate::{History, LogError, LogPosition, LogRecord};

/// A send number, and the engine's answer to it.
type Answer = (u64, Result<LogPosition, LogError>);

pub(crate) struct Writer<L> {
    hub: Arc<Hub<L>>,
    rules: WriterRules,
    sender: Sender<Load>,
    /// Answers to its own appends. Send numbers restart with each ownership, so answers to an earlier one must not
    /// arrive here.
    answers: Arc<Mutex<Vec<Answer>>>,
    applier: Applier<L>,
    /// Waits for the next bundle.
    next: Option<Prepared>,
    large: Option<Large>,
    uploads: u32,
    /// Called once the log is open.
    opened: Option<Promoted>,
}

impl<L: LocalSpool> Writer<L> {
    pub fn new(
        hub: Arc<Hub<L>>,
        applier: Applier<L>,
        sender: Sender<Load>,
        rules: WriterRules,
        opened: Promoted,
    ) -> Self {
        let answers = Arc::default();
        let opened = Some(opened);
        Writer { hub, rules, sender, answers, applier, next: None, large: None, uploads: 0, opened }
    }

    /// Runs until the spool is closed, or until the owner becomes a standby and the applier is returned.
    pub fn run(mut self) -> Option<Applier<L>> {
        self.act();
        loop {
            let (ending, is_ordered) = {
                let mut state = self.hub.queue.wait(self.applier.timeout());
                if std::mem::take(&mut state.has_made_room) {
                    self.applier.has_made_room();
                }
                (state.ending, !state.orders.is_empty())
            };
            let answers = std::mem::take(&mut *self.answers.lock().expect("nothing panics while it is held"));
            if ending == Ending::Killed {
                return None;
            }
            let is_silent = answers.iter().any(|(_, outcome)| matches!(outcome, Err(LogError::Unknown(_))));
            answers.into_iter().for_each(|(send, outcome)| self.sender.answer(send, outcome));
            self.act();
            self.applier.settle();
            self.tell_opened();
            if is_ordered {
                // A standby takes the orders.
                self.step_down();
                self.hub.queue.put(|_| ());
                return Some(self.applier);
            }
            match ending {
                Ending::Not if self.hub.failure().is_some() => self.refuse_waiting(&AppendError::Closed),
                Ending::Not => self.form(),
                // An engine that does not answer would hold up the end for ever.
                _ if self.is_idle() || is_silent || self.applier.retry_at.is_some() => {
                    self.close();
                    return None;
                }
                _ => self.refuse_waiting(&AppendError::Closed),
            }
            self.tell_drained();
        }
    }

    /// Reports that everything accepted is decided and in the local spool.
    fn tell_drained(&mut self) {
        if !self.is_idle() || self.next.is_some() {
            return;
        }
        let drained = {
            let mut state = self.hub.queue.state();
            if !state.items.is_empty() {
                return;
            }
            std::mem::take(&mut state.drains)
        };
        drained.into_iter().for_each(|drained| drained());
    }

    fn is_idle(&self) -> bool {
        self.large.is_none() && (self.sender.is_ended() || self.sender.is_idle()) && self.applier.is_settled()
    }

    /// Carries out the sender's requests.
    fn act(&mut self) {
        while let Some(effect) = self.sender.effect() {
            match effect {
                Effect::Append { .. } if self.sender.is_ended() => {}
                Effect::Append { after, record, send } => {
                    let queue = self.hub.queue.clone();
                    let answers = self.answers.clone();
                    let progress = self.hub.progress.clone();
                    progress.sent(record.len());
                    let then = move |outcome: Result<LogPosition, LogError>| {
                        if outcome.is_ok() {
                            progress.was_answered();
                        }
                        answers.lock().expect("nothing panics while it is held").push((send, outcome));
                        queue.put(|_| ());
                    };
                    self.hub.log.append(after, record, Box::new(then));
                }
                Effect::Read { from } => self.read(from),
                Effect::Valid { record, history, load } => self.apply(record, &history, load),
                Effect::Ended { end, undecided, unsent } => self.ended(end, undecided, unsent),
            }
        }
    }

    fn apply(&mut self, record: LogRecord, history: &History, load: Option<Load>) {
        if let Some(failure) = self.hub.failure() {
            let error = AppendError::Poisoned(failure.why());
            return load.into_iter().for_each(|load| self.answer(load, &error));
        }
        if let Err(end) = self.applier.apply(record, history, load) {
            self.ended(end, Vec::new(), Vec::new());
        }
    }

    /// Reports that the log is open and completely applied. A new owner that acts earlier, while the ring is full,
    /// would repeat work that the rest of the log records as done. An owner that opens its own spool does not wait for
    /// room: only its own work makes room.
    fn tell_opened(&mut self) {
        let is_full = self.applier.retry_at.is_some();
        let may_act = |opened: &mut Promoted| self.applier.is_settled() || is_full && !opened.waits_for_room;
        if self.sender.is_open()
            && let Some(opened) = self.opened.take_if(may_act)
        {
            self.hub.set_owner(true);
            (opened.tell)(Ok(()));
        }
    }

    /// Reads to the end of the log. Retries while the engine is unreachable.
    fn read(&mut self, mut from: LogPosition) {
        loop {
            let slice = self.read_slice(from);
            // What was read is applied before more is read: memory has a bound.
            while let Some(effect) = self.sender.effect() {
                match effect {
                    Effect::Valid { record, history, load } => self.apply(record, &history, load),
                    Effect::Ended { end, undecided, unsent } => return self.ended(end, undecided, unsent),
                    Effect::Append { .. } | Effect::Read { .. } => unreachable!("reading asks for nothing"),
                }
            }
            match slice {
                _ if self.sender.is_ended() => return,
                Ok(true) => return self.sender.read_to_end(),
                Ok(false) if !self.hub.queue.state().orders.is_empty() => return,
                Ok(false) => {}
                Err(LogError::Gap(position)) => {
                    let why = "the engine does not have it".to_owned();
                    return self.sender.read_failed(Invalid::Hole { position, why });
                }
                Err(LogError::Cut { first }) => {
                    return self.sender.read_failed(Invalid::Cut { position: from, first });
                }
                // Whoever ends it, or makes it a standby, does not wait for the engine.
                Err(_) if self.hub.queue.pause(ENGINE_PAUSE) => return,
                Err(_) => {}
            }
            from = self.sender.position().next();
        }
    }

    /// Reads a part. True at the end of the log.
    fn read_slice(&mut self, from: LogPosition) -> Result<bool, LogError> {
        let end = self.hub.log.end()?;
        if from > end {
            // Shorter than what is known to be stored.
            return if from == end.next() { Ok(true) } else { Err(LogError::Gap(end.next())) };
        }
        let sender = &mut self.sender;
        let mut left = READ_RECORDS;
        let mut last = from;
        self.hub.log.follow(from, &mut |position, bytes| {
            sender.read(position, &bytes);
            (last, left) = (position, left - 1);
            position < end && left > 0 && !sender.is_ended()
        })?;
        Ok(last >= end)
    }

    /// Sends waiting batches while the window has room.
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
                    Some(Item::Digest) => self.sender.push(Content::Digest, Load::Nothing),
                    Some(Item::Advance { stream, position, below, also }) => {
                        self.sender.push(Content::Advance { stream, position, below, also }, Load::Nothing);
                    }
                }
            }
            self.act();
        }
    }

    /// The next batch, if one is first in the queue.
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
        let has_room = hub.local.has_room(hub.segment_bytes, self.applier.room + room, has_body)
            && self.applier.retry_at.is_none();
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
        self.applier.room += room;
        Some(Prepared::new(batch, then, room, &numbers))
    }

    /// Sends a batch together with as many later ones as fit.
    fn bundle(&mut self, first: Prepared) {
        if first.is_large() {
            return self.begin_large(first);
        }
        let mut batches = Vec::new();
        let mut owns = VecDeque::new();
        let mut bytes = 0;
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
        self.applier.room -= own.room;
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
                let len = large.sent;
                let crc = large.crc;
                self.sender.push(Content::Commit { upload, len, crc }, Load::Large(large.into_own()));
            }
            Err(error) => {
                self.sender.push(Content::Abort { upload }, Load::Part);
                self.refuse(large.into_own(), AppendError::Local(Arc::new(error)));
            }
        }
    }

    fn ended(&mut self, end: SenderEnd, undecided: Vec<Load>, unsent: Vec<Load>) {
        let why: Arc<str> = end.to_string().into();
        let failure = match &end {
            SenderEnd::Fenced { .. } => Failure::Fenced(why.clone()),
            _ => Failure::Poisoned(why.clone()),
        };
        self.hub.fail(failure.clone());
        self.hub.note_end(end.clone());
        let more = self.sender.give_up();
        for load in undecided.into_iter().chain(more.0) {
            self.answer(load, &AppendError::Poisoned(why.clone()));
        }
        unsent.into_iter().chain(more.1).for_each(|load| self.answer(load, &failure.error()));
        self.refuse_waiting(&AppendError::Closed);
        if let Some(opened) = self.opened.take() {
            (opened.tell)(Err(end));
        }
    }

    /// Fails all batches that were never sent, with the sender's failure if there is one.
    fn refuse_waiting(&mut self, error: &AppendError) {
        let error = self.hub.failure().map_or(error.clone(), |failure| failure.error());
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
        self.give_up("the spool was closed before the batch was decided", &AppendError::Closed);
        self.applier.give_up();
    }

    /// Makes room for another owner. Undecided batches may be stored, and return through the log.
    fn step_down(&mut self) {
        self.hub.set_owner(false);
        if let Some(opened) = self.opened.take() {
            (opened.tell)(Err(SenderEnd::GivenUp));
        }
        self.give_up("the shard was handed over before the batch was decided", &AppendError::NotOwner);
    }

    fn give_up(&mut self, why: &str, unsent_error: &AppendError) {
        self.refuse_waiting(unsent_error);
        let error = AppendError::Poisoned(why.into());
        let (undecided, unsent) = self.sender.give_up();
        undecided.into_iter().for_each(|load| self.answer(load, &error));
        unsent.into_iter().for_each(|load| self.answer(load, unsent_error));
    }

    fn answer(&mut self, load: Load, error: &AppendError) {
        self.applier.room -= load.room();
        load.answer(error);
    }
}

/// Records that are read before they are applied.
const READ_RECORDS: usize = 16;
/// Interval between two attempts to reach the engine.
const ENGINE_PAUSE: Duration = Duration::from_millis(200);
