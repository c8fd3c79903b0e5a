//! The one thread that writes: takes whatever waits, writes it, syncs once, and tells everybody.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::layout::{ALIGN, BLOCK, FLAG_NOTE, KIND_BARRIER, KIND_USER, RECORD_HEADER, RecordHeader, record_span};
use crate::pool::{Need, Segment};
use crate::recovery::{InService, Live};
use crate::shared::Shared;
use crate::{AppendError, RecordId};

/// What is called, on the writer's thread, once a record is durable or refused.
pub(crate) type Done = Box<dyn FnOnce(Result<RecordId, AppendError>) + Send>;

/// One record on its way into the log.
pub(crate) struct Pending {
    pub kind: u8,
    pub note: bool,
    /// `None`: the record gets its own sequence number as id.
    pub id: Option<RecordId>,
    pub version: u16,
    /// The same record again, so that a checkpoint can free its old place.
    pub is_copy: bool,
    pub parts: Vec<Bytes>,
    pub len: u32,
    pub payload_crc: u32,
    pub done: Option<Done>,
}

impl Pending {
    pub fn new(kind: u8, parts: Vec<Bytes>) -> Self {
        let len = parts.iter().map(Bytes::len).sum::<usize>();
        let payload_crc = parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        // The callers refuse what is longer than a segment, and a segment is shorter than 4 GiB.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Pending { kind, note: false, id: None, version: 0, is_copy: false, parts, len, payload_crc, done: None }
    }

    fn span(&self) -> usize {
        record_span(self.len as usize)
    }

    /// Whether the record is part of a checkpoint, which must find room when mail does not.
    fn frees_space(&self) -> bool {
        self.kind < KIND_USER || self.is_copy || self.note && self.done.is_some()
    }

    /// Whether it is a note that nobody waits for.
    fn is_aside(&self) -> bool {
        self.note && self.done.is_none()
    }

    /// Whether it has to leave room for others.
    fn is_mail(&self) -> bool {
        !self.frees_space() && !self.is_aside()
    }

    pub fn fail(self, error: &AppendError) {
        if let Some(done) = self.done {
            done(Err(error.clone()));
        }
    }
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    // None until the first append after opening.
    current: Option<Segment>,
    // Next free byte of `current`; a multiple of BLOCK.
    offset: u64,
    segment_bytes: u64,
    next_seq: u64,
    // 0 <= synced < next_seq: all up to here is on stable storage. Before the first sync it is what opening found without a break.
    synced: u64,
    // Written to `current` since its last sync.
    dirty: bool,
    // `current` is the last segment there is: for checkpoints alone.
    in_reserve: bool,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, next_seq: u64, synced: u64) -> Self {
        Writer { shared, current: None, offset: 0, segment_bytes: 0, next_seq, synced, dirty: false, in_reserve: false }
    }

    /// Runs until the journal is closed and everything that was appended before is written.
    pub fn run(mut self) {
        let _not_left_waiting = FailsTheRest(self.shared.clone());
        while let Some(batch) = self.shared.next_batch() {
            self.commit(batch);
        }
    }

    /// Writes a batch as one commit, or as several when a segment ends in between.
    pub fn commit(&mut self, batch: Vec<Pending>) {
        let (barriers, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(|pending| pending.kind == KIND_BARRIER);
        self.commit_records(batch);
        if !barriers.is_empty() {
            let poisoned = self.shared.poison().map(AppendError::Poisoned);
            let synced = if self.dirty && poisoned.is_none() { self.sync() } else { Ok(()) };
            let error = poisoned.or_else(|| Some(AppendError::Poisoned(synced.err()?.to_string().into())));
            for done in barriers.into_iter().filter_map(|barrier| barrier.done) {
                done(error.clone().map_or(Ok(self.next_seq - 1), Err));
            }
        }
    }

    fn commit_records(&mut self, mut batch: Vec<Pending>) {
        while !batch.is_empty() {
            if let Some(why) = self.shared.poison() {
                return batch.into_iter().for_each(|pending| pending.fail(&AppendError::Poisoned(why.clone())));
            }
            // Space is looked for before anything is written: a message that finds none is refused whole, and what
            // frees space, a checkpoint, still goes through.
            if let Err(error) = self.make_room(&mut batch) {
                let error = match self.shared.poison() {
                    Some(why) => AppendError::Poisoned(why),
                    None => AppendError::Full(error.to_string().into()),
                };
                let (refused, kept): (Vec<_>, Vec<_>) = batch.into_iter().partition(|pending| {
                    self.shared.poison().is_some() || pending.is_mail() || self.fits(std::slice::from_ref(pending)) == 0
                });
                refused.into_iter().for_each(|pending| pending.fail(&error));
                batch = kept;
                if batch.is_empty() {
                    return;
                }
            }
            // A batch of notes may have been dropped, and one that a segment's end cuts has its turn in the next.
            let fits = self.fits(&batch);
            if fits == 0 {
                continue;
            }
            let rest = batch.split_off(fits);
            self.write(batch);
            batch = rest;
        }
    }

    fn fits(&self, batch: &[Pending]) -> usize {
        let mut room = self.segment_bytes - self.offset;
        let fits = |pending: &&Pending| match room.checked_sub(pending.span() as u64) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        batch.iter().take_while(fits).count()
    }

    /// Sees that the first record of the batch has a place, and that mail does not take the last one. Drops notes that would take more of that
    /// than is kept for them.
    fn make_room(&mut self, batch: &mut Vec<Pending>) -> io::Result<()> {
        let mail = batch.iter().any(Pending::is_mail);
        if mail && self.shared.state().live.len() >= self.shared.live_max() {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the journal has as many live records as it may"));
        }
        if self.in_reserve && batch.iter().any(|pending| !pending.frees_space()) {
            match self.shared.pool.prepare(1, Need::User) {
                Ok(()) => self.in_reserve = false,
                Err(error) if mail => return Err(error),
                Err(_) => self.drop_notes_beyond_their_share(batch),
            }
        }
        if self.fits(batch) > 0 || batch.is_empty() {
            return Ok(());
        }
        match self.next_segment(Need::User) {
            Ok(()) => Ok(()),
            Err(error) if self.shared.poison().is_some() || batch.iter().all(Pending::is_mail) => Err(error),
            Err(error) => {
                self.next_segment(Need::Checkpoint)?;
                self.in_reserve = true;
                if mail { Err(error) } else { Ok(()) }
            }
        }
    }

    /// A checkpoint needs three quarters of the last segment: half for copies, one for naming what is live.
    fn drop_notes_beyond_their_share(&self, batch: &mut Vec<Pending>) {
        let mut at = self.offset;
        batch.retain(|pending| {
            at += if pending.is_aside() { pending.span() as u64 } else { 0 };
            !pending.is_aside() || at <= self.segment_bytes / 4
        });
    }

    fn next_segment(&mut self, need: Need) -> io::Result<()> {
        let next = self.shared.pool.take(need)?;
        if self.dirty {
            // Later commits will call these bytes durable, and only sync their own segment.
            self.sync()?;
        }
        self.offset = BLOCK as u64;
        self.segment_bytes = next.file.len()?;
        let entry = InService { segment: next.clone(), max_seq: self.next_seq - 1 };
        self.shared.state().segments.insert(next.header.number, entry);
        self.current = Some(next);
        self.shared.want_segment();
        Ok(())
    }

    fn write(&mut self, batch: Vec<Pending>) {
        let current = self.current.clone().expect("something fits, so there is a segment");
        let first = self.next_seq;
        let mut headers = Vec::with_capacity(batch.len());
        for (index, pending) in batch.iter().enumerate() {
            let seq = first + index as u64;
            let header = RecordHeader {
                seq,
                id: pending.id.unwrap_or(seq),
                durable: self.synced,
                len: pending.len,
                kind: pending.kind,
                flags: if pending.note { FLAG_NOTE } else { 0 },
                version: pending.version,
                payload_crc: pending.payload_crc,
            };
            headers.push((header, header.encode(&current.header)));
        }
        self.next_seq += batch.len() as u64;

        let start = self.offset;
        let mut slices = Vec::with_capacity(batch.iter().map(|pending| pending.parts.len() + 2).sum::<usize>() + 1);
        let mut bytes = 0;
        for (pending, (_, header)) in batch.iter().zip(&headers) {
            slices.push(IoSlice::new(header));
            slices.extend(pending.parts.iter().map(|part| IoSlice::new(part)));
            let padding = pending.span() - RECORD_HEADER - pending.len as usize;
            if padding > 0 {
                slices.push(IoSlice::new(&ZEROS[..padding]));
            }
            bytes += pending.span();
        }
        let padded = bytes.next_multiple_of(BLOCK);
        if padded > bytes {
            slices.push(IoSlice::new(&ZEROS[..padded - bytes]));
        }
        if let Err(error) = current.file.write_all_at(&mut slices, start) {
            // Some of the bytes may be in the page cache and become durable without anybody being told.
            let why = self.shared.poison_with(format!("write failed: {error}"));
            return batch.into_iter().for_each(|pending| pending.fail(&AppendError::Poisoned(why.clone())));
        }
        self.offset += padded as u64;
        self.dirty = true;
        let waited_for = batch.iter().any(|pending| pending.done.is_some());
        if waited_for && let Err(error) = self.sync() {
            let why = error.to_string().into();
            return batch.into_iter().for_each(|pending| pending.fail(&AppendError::Poisoned(Arc::clone(&why))));
        }
        self.shared.stats.count(batch.len(), bytes, padded);
        self.publish(&current, start, batch, &headers);
    }

    /// Enters what was committed into the tables, then tells those who wait.
    fn publish(
        &self,
        current: &Segment,
        start: u64,
        batch: Vec<Pending>,
        headers: &[(RecordHeader, [u8; RECORD_HEADER])],
    ) {
        let mut state = self.shared.state();
        state.last_seq = self.next_seq - 1;
        if let Some(entry) = state.segments.get_mut(&current.header.number) {
            entry.max_seq = self.next_seq - 1;
        }
        let mut at = start;
        for (pending, (header, _)) in batch.iter().zip(headers) {
            let live = Live {
                segment: current.header.number,
                offset: at + RECORD_HEADER as u64,
                len: header.len,
                kind: header.kind,
                version: header.version,
                payload_crc: header.payload_crc,
                seq: header.seq,
            };
            at += pending.span() as u64;
            if pending.note || pending.kind < KIND_USER {
                continue;
            }
            if pending.id.is_none() {
                state.live.insert(header.id, live);
                continue;
            }
            // A copy or a replacement. Nobody needs it if the record was replaced or forgotten meanwhile.
            if let Some(known) = state.place_mut(header.id)
                && known.version <= live.version
            {
                *known = live;
            }
        }
        drop(state);
        // Read again before anybody is told: a checkpoint may have found out meanwhile that this device lies.
        let poison = self.shared.poison();
        for (pending, (header, _)) in batch.into_iter().zip(headers) {
            match &poison {
                Some(why) => pending.fail(&AppendError::Poisoned(why.clone())),
                None => {
                    if let Some(done) = pending.done {
                        done(Ok(header.id));
                    }
                }
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        let Some(current) = &self.current else { return Ok(()) };
        if let Err(error) = current.file.sync() {
            // A failed fsync may have dropped dirty pages, so a second try would only report a comforting lie.
            let why = self.shared.poison_with(format!("sync failed: {error}"));
            return Err(io::Error::other(why.to_string()));
        }
        self.shared.stats.count_sync(begun.elapsed());
        self.synced = self.next_seq - 1;
        self.dirty = false;
        Ok(())
    }
}

/// If the writer ends by a panic, of its own or of what it calls back, nobody may wait for it any more.
struct FailsTheRest(Arc<Shared>);

impl Drop for FailsTheRest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = self.0.poison_with("the thread that writes has ended by a panic".to_owned());
            self.0.fail_all(&AppendError::Poisoned(why));
        }
    }
}

const ZEROS: [u8; BLOCK] = [0; BLOCK];
const _: () = assert!(RECORD_HEADER.is_multiple_of(ALIGN));
