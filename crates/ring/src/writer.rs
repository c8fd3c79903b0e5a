//! The writer thread: takes all waiting records, writes them, syncs once, and calls back.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::layout::{BLOCK, FIRST_RECORD, RECORD_HEADER, RecordHeader};
use crate::pool::{Need, PoolError, Segment};
use crate::queue::{Item, Pending};
use crate::shared::Shared;
use crate::table::InService;
use crate::{Lsn, RingAppendError, RingEvent};

pub(crate) struct Writer {
    shared: Arc<Shared>,
    // None until the first append after opening.
    current: Option<Segment>,
    // Next free byte of `current`; a multiple of BLOCK.
    offset: u64,
    segment_bytes: u64,
    next_lsn: u64,
    // 0 <= synced < next_lsn: all up to here is on stable storage. Before the first sync it is what opening found without a break.
    synced: Lsn,
    // `current` is the last segment there is: for records without a body alone.
    is_last: bool,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, next_lsn: u64, synced: Lsn) -> Self {
        Writer { shared, current: None, offset: 0, segment_bytes: 0, next_lsn, synced, is_last: false }
    }

    /// Runs until the ring is closed and everything that was appended before is written.
    pub fn run(mut self) {
        let _not_left_waiting = FailsTheRest(self.shared.clone());
        while let Some(batch) = self.shared.next_batch() {
            let mut records = Vec::with_capacity(batch.len());
            let mut flushes = Vec::new();
            for item in batch {
                match item {
                    Item::Record(pending) => records.push(pending),
                    Item::Flush(then) => flushes.push(then),
                }
            }
            self.commit(records);
            let outcome = self.shared.poison().map_or(Ok(()), |why| Err(RingAppendError::Poisoned(why)));
            flushes.into_iter().for_each(|then| then(outcome.clone()));
        }
    }

    /// Writes records as one commit, or several at the end of a segment.
    fn commit(&mut self, mut batch: Vec<Pending>) {
        while !batch.is_empty() {
            if let Some(why) = self.shared.poison() {
                return fail(batch, &RingAppendError::Poisoned(why));
            }
            // Space is looked for before anything is written: a record that finds none is refused whole, and one without a
            // body may still get through.
            if let Err(error) = self.make_room(&batch) {
                let error = self.shared.report(error);
                let is_poisoned = matches!(error, RingAppendError::Poisoned(_));
                let (refused, kept): (Vec<_>, Vec<_>) = batch.into_iter().partition(|pending| {
                    is_poisoned || pending.has_body() || self.fits(std::slice::from_ref(pending)) == 0
                });
                fail(refused, &error);
                batch = kept;
            }
            // Records cut off by the end of a segment go into the next one.
            let rest = batch.split_off(self.fits(&batch));
            if !batch.is_empty() {
                self.write(batch);
            }
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

    /// Provides room for the first record of the batch, and reserves the last segment for records without a body.
    fn make_room(&mut self, batch: &[Pending]) -> Result<(), PoolError> {
        let has_bodies = batch.iter().any(Pending::has_body);
        if self.is_last && has_bodies {
            self.shared.pool.prepare(1)?;
            self.is_last = false;
        }
        if self.fits(batch) > 0 {
            return Ok(());
        }
        match self.next_segment(Need::Body) {
            Ok(()) => Ok(()),
            Err(error @ PoolError::Device(_)) => Err(error),
            Err(error) if batch.iter().all(Pending::has_body) => Err(error),
            Err(error) => {
                self.next_segment(Need::NoBody)?;
                self.is_last = true;
                if has_bodies { Err(error) } else { Ok(()) }
            }
        }
    }

    fn next_segment(&mut self, need: Need) -> Result<(), PoolError> {
        let next = self.shared.pool.take(need)?;
        let number = next.header.number;
        let len = next.file.len()?;
        let mut table = self.shared.table();
        table.segments.insert(number, InService::new(next.clone(), len));
        table.current = Some(number);
        self.shared.used.store(table.bytes_used(), Ordering::Relaxed);
        drop(table);
        (self.offset, self.segment_bytes) = (FIRST_RECORD as u64, len);
        self.current = Some(next);
        self.shared.want_segment();
        Ok(())
    }

    /// Writes records that fit as one commit, syncs it and calls back.
    fn write(&mut self, mut batch: Vec<Pending>) {
        let current = self.current.clone().expect("something fits, so there is a segment");
        let mut headers = Vec::with_capacity(batch.len());
        batch.retain(|pending| {
            let lsn = Lsn::new(self.next_lsn);
            if !pending.fate.take(lsn) {
                return false;
            }
            self.next_lsn += 1;
            let header = RecordHeader {
                lsn,
                durable: self.synced,
                head_len: pending.head_len,
                body_len: pending.body_len,
                head_crc: pending.head_crc,
                body_crc: pending.body_crc,
            };
            headers.push((lsn, header.encode(&current.header)));
            true
        });
        if batch.is_empty() {
            return;
        }
        let start = self.offset;
        let parts = |pending: &Pending| pending.head.len() + pending.body.len() + 2;
        let mut slices = Vec::with_capacity(batch.iter().map(parts).sum::<usize>() + 1);
        let mut bytes = 0;
        for (pending, (_, header)) in batch.iter().zip(&headers) {
            slices.push(IoSlice::new(header));
            slices.extend(pending.head.iter().chain(&pending.body).map(|part| IoSlice::new(part)));
            let padding = pending.span() - RECORD_HEADER - pending.bytes();
            slices.push(IoSlice::new(&ZEROS[..padding]));
            bytes += pending.span();
        }
        let padded = bytes.next_multiple_of(BLOCK);
        slices.push(IoSlice::new(&ZEROS[..padded - bytes]));
        if let Err(error) = current.file.write_all_at(&mut slices, start) {
            // Some bytes may be in the page cache and become durable although the append failed.
            let why = self.shared.poison_with(format!("write failed: {error}"));
            return fail(batch, &RingAppendError::Poisoned(why));
        }
        self.offset += padded as u64;
        if let Err(error) = self.sync(&current) {
            // A failed fsync may have dropped dirty pages, so a second try would only report a comforting lie.
            let why = self.shared.poison_with(format!("sync failed: {error}"));
            return fail(batch, &RingAppendError::Poisoned(why));
        }
        // Read again before the callbacks: another sync may have failed meanwhile, so that this device is not trusted any more.
        if let Some(why) = self.shared.poison() {
            return fail(batch, &RingAppendError::Poisoned(why));
        }
        self.shared.counters.count_commit(batch.len(), bytes, padded);
        self.enter(&current, start, &batch, &headers);
        self.publish(batch, &headers);
    }

    fn sync(&mut self, current: &Segment) -> io::Result<()> {
        let begun = Instant::now();
        current.file.sync()?;
        self.shared.counters.count_sync(begun.elapsed());
        self.synced = Lsn::new(self.next_lsn - 1);
        Ok(())
    }

    /// Enters committed records into the table, before their callbacks run: those may read them.
    fn enter(&self, current: &Segment, start: u64, batch: &[Pending], headers: &[(Lsn, [u8; RECORD_HEADER])]) {
        let mut table = self.shared.table();
        let entry = table.segments.get_mut(&current.header.number).expect("the current segment is never freed");
        let mut at = start;
        for (pending, (lsn, _)) in batch.iter().zip(headers) {
            entry.enter(*lsn, at);
            at += pending.span() as u64;
        }
        entry.end = at;
        self.shared.used.store(table.bytes_used(), Ordering::Relaxed);
    }

    fn publish(&self, batch: Vec<Pending>, headers: &[(Lsn, [u8; RECORD_HEADER])]) {
        self.shared.durable.store(self.synced.get(), Ordering::Release);
        for (pending, (lsn, _)) in batch.into_iter().zip(headers) {
            if !pending.tell(Ok(*lsn)) {
                self.shared.counters.count_cancelled();
                self.shared.tell(RingEvent::Cancelled(*lsn));
            }
        }
    }
}

fn fail(batch: Vec<Pending>, error: &RingAppendError) {
    for pending in batch {
        pending.tell(Err(error.clone()));
    }
}

/// If the writer panics, itself or in a callback, waiting appends are refused.
struct FailsTheRest(Arc<Shared>);

impl Drop for FailsTheRest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = self.0.poison_with("the thread that writes has ended by a panic".to_owned());
            self.0.fail_all(&RingAppendError::Poisoned(why));
        }
    }
}

const ZEROS: [u8; BLOCK] = [0; BLOCK];
