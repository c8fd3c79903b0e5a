//! Applies the records of the log to the local spool.

use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{AppendError, Body, Entry, Lsn, Released, Then};

use super::{Load, Writer, answer};
use crate::Position;
use crate::batch::{LoggedBatch, LoggedBody};
use crate::bundle::Own;
use crate::collect::{CollectError, batch_of};
use crate::entry::Place;
use crate::local::LocalSpool;
use crate::pipeline::Work;
use crate::queue::Ending;
use crate::reader::{History, Invalid};
use crate::record::{Content, Record};
use crate::sender::End;

impl<L: LocalSpool> Writer<L> {
    /// The next valid record of the log: it goes into the local spool.
    pub(super) fn apply(&mut self, record: Record, history: History, load: Option<Load>) {
        if let Some(failure) = self.hub.failed.get() {
            let error = AppendError::Poisoned(failure.why());
            return load.into_iter().for_each(|load| answer(load, &error));
        }
        if let Err(end) = self.try_apply(record, &history, load) {
            self.ended(end, Vec::new(), Vec::new());
        }
    }

    fn try_apply(&mut self, record: Record, history: &History, load: Option<Load>) -> Result<(), End> {
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

    /// A body from a bundle: in a file if it was in one.
    fn body_of(&self, position: Position, logged: &LoggedBatch, body: Bytes) -> Result<Body, End> {
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

    fn collect(&mut self, position: Position, upload: u64, offset: u64, bytes: &Bytes) -> Result<(), End> {
        let added = self.collector.add(&self.hub.local, upload, offset, bytes);
        added.map_err(|error| of_collecting(position, &error))
    }

    /// Parts of uploads that were not complete when the spool was closed, and the rest of the record in the middle of which that happened.
    pub(super) fn collect_again(&mut self, again: Vec<(Position, Bytes)>) -> Result<(), End> {
        let Some(last) = self.hub.member.last() else { return Ok(()) };
        for (position, bytes) in again {
            let Ok(record) = Record::decode(&bytes) else { return Err(senseless(position)) };
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
                self.try_apply(record, &last.history(), None)?;
            }
        }
        Ok(())
    }

    fn register(&mut self, position: Position, number: u16, name: Option<&str>, is_own: bool) -> Result<(), End> {
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
        let then: Then = match self.rules.after_local {
            true => own.then,
            false => {
                (own.then)(Ok(self.hub.member.lsn(place.number)));
                Box::new(|_| ())
            }
        };
        self.append_local(place, own.entries, own.body, Some(then), own.room);
    }

    fn append_read(&mut self, place: Place, logged: &LoggedBatch, body: Body) -> Result<(), End> {
        let position = place.position;
        let batch = batch_of(logged, body, |number| self.hub.member.id_of(number));
        let batch = batch.map_err(|number| hole(position, &format!("there is no stream {number}")))?;
        self.append_local(place, batch.entries, batch.body, None, 0);
        Ok(())
    }

    /// True if the local spool does not have it yet.
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

    /// Waits until fewer batches than that are on their way into the local spool.
    fn settle_to(&mut self, most: usize) {
        while self.pipeline.len() >= most {
            self.pipeline.wait();
            self.settle();
            if self.retry_at.is_some() && self.hub.queue.pause(ROOM_PAUSE) != Ending::Not {
                return;
            }
        }
    }

    /// Takes note of what has become durable, and of what the local spool refuses: that is appended again after a while, for the log has it.
    pub(super) fn settle(&mut self) {
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

fn hole(position: Position, why: &dyn std::fmt::Display) -> End {
    End::Invalid(Invalid::Hole { position, why: why.to_string() })
}

fn local(position: Position, why: &dyn std::fmt::Display) -> End {
    End::Local { position, why: why.to_string() }
}

fn of_collecting(position: Position, error: &CollectError) -> End {
    match error {
        CollectError::Io(error) => local(position, error),
        CollectError::Damaged(_) => hole(position, error),
    }
}

fn senseless(position: Position) -> End {
    hole(position, &"a batch in it has no meaning")
}

/// Batches on their way into the local spool at most.
const PIPELINE_MAX: usize = 2048;
/// Between two attempts to append to a full local spool what the log has.
const ROOM_PAUSE: Duration = Duration::from_millis(50);
