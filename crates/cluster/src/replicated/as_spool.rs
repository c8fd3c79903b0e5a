//! The replicated spool as a spool: it uses cluster numbers on top of the local spool's numbers.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use bytes::Bytes;
use posthaste_spool::{
    AppendError, Batch, Body, CheckpointError, Consumer, Lsn, Pressure, ReadError, Released, ReplayError, Replayed,
    RestoreError, Restored, ScrubReport, SetAside, SnapshotError, SnapshotName, SnapshotReader, Spool, SpoolAdmin,
    Stats, StreamError, StreamId, StreamStats, Then, Ticket, Upload,
};

use crate::local::LocalSpool;
use crate::member::Translated;
use crate::opening;
use crate::queue::{Item, Pending};
use crate::replicated::ReplicatedSpool;

impl<L: LocalSpool> ReplicatedSpool<L> {
    /// Gives a number to a stream, or removes it; waits until the local spool has the record.
    fn log_stream(&self, number: u16, name: Option<String>) -> Result<(), StreamError> {
        let (tell, told) = sync_channel(1);
        let tell = Box::new(move || {
            let _ = tell.send(());
        });
        self.hub.queue.put(|state| {
            if state.is_owner {
                state.items.push_back(Item::Stream { number, name, tell });
            }
        });
        let why = || self.hub.failure().map_or_else(|| "this node is a standby".into(), |failure| failure.why());
        told.recv().map_err(|_| CheckpointError::Poisoned(why()).into())
    }

    fn may_append(&self, batch: &Batch) -> Result<u64, AppendError> {
        if let Some(failure) = self.hub.failure() {
            return Err(failure.error());
        }
        if batch.entries.is_empty() || batch.entries.len() > ENTRIES_MAX {
            return Err(AppendError::Entries(batch.entries.len()));
        }
        let unknown = batch.entries.iter().find(|entry| self.member().number_of(entry.stream).is_none());
        if let Some(entry) = unknown {
            return Err(AppendError::NoStream(entry.stream));
        }
        if !matches!(batch.body, Body::None)
            && let Some(refusal) = self.engine.refusal()
        {
            return Err(refusal);
        }
        let payloads: usize = batch.entries.iter().map(|entry| 7 + entry.payload.len()).sum();
        let in_record = match &batch.body {
            Body::File(front, _) => front.len() as u64,
            body => body.len(),
        };
        let bytes = payloads + in_record as usize;
        let limit = self.config.record_bytes_max;
        if bytes > limit {
            return Err(AppendError::TooLarge { bytes, limit });
        }
        Ok(bytes as u64)
    }
}

impl<L: LocalSpool> Spool for ReplicatedSpool<L> {
    fn stream(&self, name: &str) -> Result<StreamId, StreamError> {
        if opening::is_private(name) {
            return Err(StreamError::Name(name.to_owned()));
        }
        let _one_at_a_time = self.registering.lock().expect("nothing panics while it is held");
        if !self.is_owner() {
            return self.member().id_named(name).ok_or_else(|| StreamError::Unknown(name.to_owned()));
        }
        let id = self.hub.local.stream(name)?;
        if self.member().number_of(id).is_none() {
            let number = self.member().take_number().ok_or(StreamError::TooMany)?;
            self.log_stream(number, Some(name.to_owned()))?;
            self.member().set_id(number, Some(id));
        }
        Ok(id)
    }

    fn position(&self, stream: StreamId) -> (Lsn, Option<SnapshotName>) {
        let (position, snapshot) = self.hub.local.position(stream);
        (self.member().up_to(position), snapshot)
    }

    fn append(&self, batch: Batch, then: Then) -> Ticket {
        let bytes = match self.may_append(&batch) {
            Ok(bytes) => bytes,
            Err(error) => {
                then(Err(error));
                return Ticket::refused();
            }
        };
        let queue = &self.hub.queue;
        let mut state = queue.state();
        if !state.is_owner {
            drop(state);
            then(Err(AppendError::NotOwner));
            return Ticket::refused();
        }
        if state.bytes + bytes > self.config.pending_bytes_max {
            drop(state);
            then(Err(AppendError::Busy));
            return Ticket::refused();
        }
        state.bytes += bytes;
        let pending = Arc::new(Pending::new(batch, then, bytes, queue.clone()));
        state.items.push_back(Item::Batch(pending.clone()));
        drop(state);
        queue.put(|_| ());
        Ticket::new(pending)
    }

    fn upload(&self, announced: u64) -> io::Result<Upload> {
        self.hub.local.upload(announced)
    }

    fn room(&self) -> io::Result<u64> {
        self.hub.local.room()
    }

    fn check_room(&self, bytes: u64) -> io::Result<()> {
        self.hub.local.check_room(bytes)
    }

    fn read(&self, body: Lsn, range: Range<u64>) -> Result<Bytes, ReadError> {
        let local = self.member().local(body).ok_or(ReadError::NotFound(body))?;
        self.hub.local.read(local, range).map_err(|error| of_cluster(error, body))
    }

    fn entries(&self, stream: StreamId, batch: Lsn) -> Result<Vec<Bytes>, ReadError> {
        let local = self.member().local(batch).ok_or(ReadError::NotFound(batch))?;
        self.hub.local.entries(stream, local).map_err(|error| of_cluster(error, batch))
    }

    fn write_snapshot(
        &self,
        name: &SnapshotName,
        content: &mut dyn FnMut(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.hub.local.write_snapshot(name, content)
    }

    fn read_snapshot(&self, name: &SnapshotName) -> Result<SnapshotReader, SnapshotError> {
        self.hub.local.read_snapshot(name)
    }

    fn restore(&self, stream: StreamId) -> Result<Restored, RestoreError> {
        self.hub.local.restore(stream)
    }

    fn wants_snapshot(&self, stream: StreamId) -> bool {
        self.hub.local.wants_snapshot(stream)
    }

    fn needs_body(&self, stream: StreamId, body: Lsn) -> bool {
        self.member().local(body).is_some_and(|local| self.hub.local.needs_body(stream, local))
    }

    fn set_aside(&self, body: Lsn) -> io::Result<SetAside> {
        match self.member().local(body) {
            Some(local) => self.hub.local.set_aside(local),
            None => Ok(SetAside::Gone { why: "this member never had it".to_owned() }),
        }
    }

    fn advance(&self, stream: StreamId, position: Lsn, snapshot: Option<SnapshotName>, released: Released) {
        let member = self.member();
        let also = released.also.iter().filter_map(|lsn| member.local(*lsn)).collect();
        let local = Released { below: member.local_from(released.below), also };
        self.hub.local.advance(stream, member.local_up_to(position), snapshot, local);
        let is_of_owner =
            |number: &u16| member.name_of(*number).is_some_and(|name| self.config.owner_streams.contains(&name));
        let Some(number) = member.number_of(stream).filter(|number| self.is_owner() && is_of_owner(number)) else {
            return;
        };
        let numbers: Vec<u64> = released.also.iter().map(|lsn| lsn.number()).collect();
        let mut parts: Vec<_> = numbers.chunks(ALSO_MAX).map(<[u64]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let position = position.number();
        let below = released.below.number();
        self.hub.queue.put(|state| {
            if !state.is_owner {
                return;
            }
            let items = parts.into_iter().map(|also| Item::Advance { stream: number, position, below, also });
            state.items.extend(items);
        });
    }

    fn replay(&self, stream: StreamId, visitor: &mut dyn FnMut(Replayed<'_>)) -> Result<Lsn, ReplayError> {
        let member = self.member();
        let shown = self.hub.local.replay(stream, &mut |replayed| match replayed {
            Replayed::Entry { lsn, payload, needs_body, body_len } => {
                if let Some(lsn) = member.of_local(lsn) {
                    visitor(Replayed::Entry { lsn, payload, needs_body, body_len });
                }
            }
            Replayed::Damaged { lsn } => {
                if let Some(lsn) = member.of_local(lsn) {
                    visitor(Replayed::Damaged { lsn });
                }
            }
            Replayed::Uncertain { through } => visitor(Replayed::Uncertain { through: member.up_to(through) }),
        });
        shown.map(|local| member.shown(local)).map_err(|error| self.of_replay(error))
    }

    fn attach(&self, stream: StreamId, after: Lsn, consumer: Arc<dyn Consumer>) -> Result<(), ReplayError> {
        let translated = Translated { inner: consumer, member: self.hub.member.clone() };
        let after = self.member().local_up_to(after);
        self.hub.local.attach(stream, after, Arc::new(translated)).map_err(|error| self.of_replay(error))
    }

    fn detach(&self, stream: StreamId) {
        self.hub.local.detach(stream);
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        self.hub.failure().map(|failure| failure.why()).or_else(|| self.hub.local.poisoned())
    }

    fn pressure(&self) -> &Pressure {
        self.hub.local.pressure()
    }

    fn checkpoint(&self) -> Result<(), CheckpointError> {
        let kept = self.hub.write_snapshot();
        kept.map_err(|error| CheckpointError::Io { what: "cannot keep the place in the log", error })?;
        self.hub.local.checkpoint()?;
        self.hub.queue.put(|state| state.has_made_room = true);
        Ok(())
    }

    fn watch(&self) -> &posthaste_watch::Watch {
        self.hub.local.watch()
    }

    fn look_for_stuck(&self, now: Instant) -> Vec<posthaste_watch::StuckWorker> {
        self.hub.local.look_for_stuck(now)
    }

    fn stats(&self) -> Stats {
        let mut stats = self.hub.local.stats();
        (stats.published, stats.streams) = (self.member().published(), stats.streams.saturating_sub(1));
        stats
    }

    fn streams(&self) -> Vec<StreamStats> {
        let mut streams = self.hub.local.streams();
        streams.retain(|stream| stream.id != self.hub.stream);
        streams.iter_mut().for_each(|stats| self.translate(stats));
        streams
    }
}

impl<L: LocalSpool> ReplicatedSpool<L> {
    fn translate(&self, stats: &mut StreamStats) {
        stats.position = self.member().up_to(stats.position);
        stats.first = stats.first.and_then(|first| self.member().of_local(first));
    }

    fn of_replay(&self, error: ReplayError) -> ReplayError {
        match error {
            ReplayError::Io { lsn, error } => ReplayError::Io { lsn: self.member().up_to(lsn), error },
            other => other,
        }
    }
}

impl<L: LocalSpool> SpoolAdmin for ReplicatedSpool<L> {
    fn forget_stream(&self, name: &str) -> Result<StreamStats, StreamError> {
        let _one_at_a_time = self.registering.lock().expect("nothing panics while it is held");
        let unknown = || StreamError::Unknown(name.to_owned());
        let mut streams = self.streams().into_iter();
        let stats = streams.find(|stream| stream.name == name).ok_or_else(unknown)?;
        if stats.is_attached {
            return Err(StreamError::Attached(name.to_owned()));
        }
        if let Some(number) = self.member().number_of(stats.id) {
            // Batches that come later are refused; those that are queued are before the record.
            self.member().begin_to_forget(stats.id);
            self.log_stream(number, None)?;
            self.member().set_id(number, None);
        }
        let mut stats = self.hub.local.forget_stream(name)?;
        self.translate(&mut stats);
        Ok(stats)
    }

    fn give_up_bodies(&self, bodies: &[Lsn]) -> Result<(), CheckpointError> {
        let local: Vec<Lsn> = bodies.iter().filter_map(|lsn| self.member().local(*lsn)).collect();
        self.hub.local.give_up_bodies(&local)
    }

    fn scrub(&self, pause: &mut dyn FnMut(&ScrubReport) -> ControlFlow<()>) -> io::Result<ScrubReport> {
        let mut report = self.hub.local.scrub(pause)?;
        for damage in &mut report.damage {
            damage.lsn = damage.lsn.and_then(|lsn| self.member().of_local(lsn));
        }
        Ok(report)
    }
}

/// The error of a local batch, with its number in the cluster.
fn of_cluster(error: ReadError, batch: Lsn) -> ReadError {
    match error {
        ReadError::NotFound(_) => ReadError::NotFound(batch),
        ReadError::OutOfRange { len, .. } => ReadError::OutOfRange { lsn: batch, len },
        ReadError::Damaged { what, .. } => ReadError::Damaged { lsn: batch, what },
        ReadError::Unreachable { what, .. } => ReadError::Unreachable { lsn: batch, what },
        ReadError::Io { error, .. } => ReadError::Io { lsn: batch, error },
        other => other,
    }
}

/// One less than in a local batch: the log's own entry takes one.
const ENTRIES_MAX: usize = u16::MAX as usize - 1;
/// Maximum released bodies in one record: 256 KiB.
const ALSO_MAX: usize = 32 << 10;
