//! The standby's part of a shard's thread: reads and applies the log until this node becomes the owner.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::applier::Applier;
use crate::hub::{Failure, Hub};
use crate::local::LocalSpool;
use crate::queue::{Ending, Order, Promoted};
use crate::reader::{Invalid, LogReader, Read};
use crate::sender::{OwnerIdentity, Sender, SenderEnd};
use crate::settings::ReplicatedConfig;
use crate::writer::Writer;
use crate::{LogError, LogPosition};

/// The thread of a shard.
pub(crate) struct ShardThread<L> {
    pub hub: Arc<Hub<L>>,
    pub config: ReplicatedConfig,
}

impl<L: LocalSpool> ShardThread<L> {
    /// Runs until the spool is closed. `again`: records from the resume position to the last one in the local spool.
    pub fn run(self, mut reader: LogReader, again: Vec<(LogPosition, Bytes)>) {
        let mut applier = Applier::new(self.hub.clone(), self.config.writer_rules);
        let mut stopped = applier.collect_again(again).err();
        let mut parts = None;
        loop {
            let mut follower = Follower { hub: &self.hub, applier: &mut applier, reader: &mut reader, parts, stopped };
            follower.note_stop();
            let Some((identity, opened)) = follower.run() else { return applier.give_up() };
            // The sender reads what is missing, and what is on its way to the disk is not read again.
            let sender = Sender::new(reader, identity, self.config.sender_rules);
            let writer = Writer::new(self.hub.clone(), applier, sender, self.config.writer_rules, opened);
            let Some(back) = writer.run() else { return };
            applier = back;
            // The owner has not collected the parts that it sent itself. If their `commit` is still under way, they are
            // needed.
            applier.forget_parts();
            (stopped, parts) = (None, applier.unfinished());
            reader = match applier.last() {
                Some(history) => LogReader::resume(self.config.shard, history),
                None => LogReader::new(self.config.shard),
            }
            .with_rules(self.config.reader_rules);
        }
    }
}

/// A standby.
struct Follower<'a, L> {
    hub: &'a Arc<Hub<L>>,
    applier: &'a mut Applier<L>,
    reader: &'a mut LogReader,
    /// First and last position to read again for parts of uploads.
    parts: Option<(LogPosition, LogPosition)>,
    /// Why it applies nothing more until the spool is reopened.
    stopped: Option<SenderEnd>,
}

impl<L: LocalSpool> Follower<'_, L> {
    /// Runs until the order to become the owner; `None` at the end.
    fn run(&mut self) -> Option<(OwnerIdentity, Promoted)> {
        let mut is_at_end = false;
        let mut wanted = None;
        loop {
            let pause = if is_at_end { LOOK_EVERY } else { Duration::ZERO };
            let timeout = self.applier.timeout().map_or(pause, |timeout| timeout.min(pause));
            let (ending, orders, drains) = {
                let mut state = self.hub.queue.wait(Some(timeout));
                if std::mem::take(&mut state.has_made_room) {
                    self.applier.has_made_room();
                }
                (state.ending, std::mem::take(&mut state.orders), std::mem::take(&mut state.drains))
            };
            if ending != Ending::Not {
                return None;
            }
            self.applier.settle();
            // Nothing waits at a standby.
            drains.into_iter().for_each(|drained| drained());
            for order in orders {
                match order {
                    Order::Promote(identity, opened) => {
                        give_up(wanted.replace((identity, opened)));
                    }
                    Order::Demote(done) => {
                        give_up(wanted.take());
                        done();
                    }
                }
            }
            if let Some(failure) = self.hub.failure()
                && let Some((_, opened)) = wanted.take()
            {
                let local =
                    || SenderEnd::Local { position: self.reader.position().next(), why: failure.why().to_string() };
                (opened.tell)(Err(self.stopped.clone().unwrap_or_else(local)));
            }
            if self.parts.is_none() && wanted.is_some() {
                return wanted;
            }
            is_at_end = self.hub.failure().is_some() || self.read();
        }
    }

    /// Reads and applies some records. True at the end of the log, or if the engine does not answer.
    fn read(&mut self) -> bool {
        if let Some((first, last)) = self.parts {
            return self.read_parts(first, last);
        }
        let from = self.reader.position().next();
        let end = match self.hub.log.end() {
            Ok(end) => end,
            Err(_) => return true,
        };
        self.hub.progress.saw_end(end);
        if from > end {
            if from > end.next() {
                self.fail(SenderEnd::Invalid(Invalid::OtherHistory {
                    position: end.next(),
                    why: "it is shorter than before",
                }));
            }
            return true;
        }
        let mut ended = None;
        let mut left = READ_RECORDS;
        let reader = &mut *self.reader;
        let applier = &mut *self.applier;
        let followed = self.hub.log.follow(from, &mut |position, bytes| {
            match reader.read(position, &bytes) {
                Ok(Read::Valid(record)) => {
                    let history = *reader.history().expect("a record was read");
                    ended = applier.apply(record, &history, None).err();
                }
                Ok(Read::Skipped(_)) => {}
                Err(invalid) => ended = Some(SenderEnd::Invalid(invalid)),
            }
            left -= 1;
            ended.is_none() && position < end && left > 0
        });
        self.is_stopped(ended, followed, from) || self.reader.position() >= end
    }

    /// Collects some parts again. True if the engine does not answer.
    fn read_parts(&mut self, first: LogPosition, last: LogPosition) -> bool {
        let mut ended = None;
        let mut left = READ_RECORDS;
        let mut next = first;
        let applier = &mut *self.applier;
        let followed = self.hub.log.follow(first, &mut |position, bytes| {
            ended = applier.collect_part(position, &bytes).err();
            (left, next) = (left - 1, position.next());
            ended.is_none() && position < last && left > 0
        });
        self.parts = Some((next, last)).filter(|_| next <= last);
        self.is_stopped(ended, followed, first)
    }

    /// True if nothing more can be read now.
    fn is_stopped(&mut self, ended: Option<SenderEnd>, followed: Result<(), LogError>, from: LogPosition) -> bool {
        let end = match (ended, followed) {
            (Some(end), _) => end,
            (None, Ok(())) => return false,
            (None, Err(LogError::Gap(position))) => missing(position),
            (None, Err(LogError::Cut { first })) => SenderEnd::Invalid(Invalid::Cut { position: from, first }),
            (None, Err(_)) => return true,
        };
        self.fail(end);
        true
    }

    fn fail(&mut self, end: SenderEnd) {
        self.stopped = Some(end);
        self.note_stop();
    }

    fn note_stop(&self) {
        if let Some(end) = &self.stopped {
            self.hub.fail(Failure::Poisoned(end.to_string().into()));
        }
    }
}

fn give_up(wanted: Option<(OwnerIdentity, Promoted)>) {
    if let Some((_, opened)) = wanted {
        (opened.tell)(Err(SenderEnd::GivenUp));
    }
}

fn missing(position: LogPosition) -> SenderEnd {
    SenderEnd::Invalid(Invalid::Hole { position, why: "the engine does not have it".to_owned() })
}

/// Records of one read.
const READ_RECORDS: usize = 16;
/// Interval between checks for new records.
const LOOK_EVERY: Duration = Duration::from_millis(100);
