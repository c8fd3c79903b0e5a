//! Segment files between two uses: free ones, and ones made ready ahead of time so that a commit seldom waits for one.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex};

use crate::layout::SegmentHeader;
use crate::storage::{SegmentFile, Storage};

/// A segment file with a durable header of its own, in service or about to be.
#[derive(Clone)]
pub(crate) struct Segment {
    pub name: String,
    pub file: Arc<dyn SegmentFile>,
    pub header: SegmentHeader,
}

/// Who asks for a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Mail: gets a segment only when another one remains behind it.
    User,
    /// A checkpoint, which is what frees space: it may take the last one, and one more than there should be.
    Checkpoint,
}

pub(crate) struct Pool {
    storage: Arc<dyn Storage>,
    segment_bytes: u64,
    max_segments: usize,
    epoch: u64,
    inner: Mutex<Inner>,
    // Held over the slow part of making a segment ready, so that ready segments queue in the order of their numbers.
    preparing: Mutex<()>,
}

struct Inner {
    free: Vec<String>,
    ready: VecDeque<Segment>,
    // Files in the directory: free, ready and in service. Above max_segments only what was there at open and what
    // checkpoints needed; those are removed instead of being used again.
    total: usize,
    next_number: u64,
    next_file: u64,
}

impl Pool {
    pub fn new(storage: Arc<dyn Storage>, limits: (u64, usize), epoch: u64, found: Found) -> Self {
        let (segment_bytes, max_segments) = limits;
        let inner = Inner {
            free: found.free,
            ready: VecDeque::new(),
            total: found.total,
            next_number: found.next_number,
            next_file: found.next_file,
        };
        Pool { storage, segment_bytes, max_segments, epoch, inner: Mutex::new(inner), preparing: Mutex::new(()) }
    }

    /// Takes the next segment into service.
    ///
    /// # Errors
    /// What hindered making one ready: the limit of segments ([`io::ErrorKind::StorageFull`]) or the file system.
    pub fn take(&self, need: Need) -> io::Result<Segment> {
        let wanted = if need == Need::User { 2 } else { 1 };
        while self.ready() < wanted {
            self.prepare(wanted, need)?;
        }
        let mut inner = self.inner.lock().expect("pool lock");
        Ok(inner.ready.pop_front().expect("only the one writer takes segments"))
    }

    /// Makes one more segment ready unless `wanted` are already.
    pub fn prepare(&self, wanted: usize, need: Need) -> io::Result<()> {
        let _one_at_a_time = self.preparing.lock().expect("prepare lock");
        if self.ready() >= wanted {
            return Ok(());
        }
        let (name, file) = self.file(need)?;
        let header = {
            let mut inner = self.inner.lock().expect("pool lock");
            inner.next_number += 1;
            SegmentHeader { number: inner.next_number - 1, epoch: self.epoch, salt: random_salt()? }
        };
        let written = file.write_all_at(&mut [IoSlice::new(&header.encode_block())], 0).and_then(|()| file.sync());
        let mut inner = self.inner.lock().expect("pool lock");
        match written {
            Ok(()) => {
                inner.ready.push_back(Segment { name, file, header });
                Ok(())
            }
            Err(error) => {
                // A failed sync is final for this file: nothing was promised in it, and nothing ever will be.
                inner.total -= 1;
                drop(inner);
                let _ = self.storage.remove(&name);
                Err(error)
            }
        }
    }

    /// Takes back a segment that no checkpoint needs any more.
    pub fn give_back(&self, segment: Segment) {
        let reusable = segment.file.len().is_ok_and(|len| len == self.segment_bytes);
        let mut inner = self.inner.lock().expect("pool lock");
        if reusable && inner.total <= self.max_segments {
            inner.free.push(segment.name);
        } else {
            inner.total -= 1;
            let _ = self.storage.remove(&segment.name);
        }
    }

    /// Files in the directory, whatever their state.
    pub fn total(&self) -> usize {
        self.inner.lock().expect("pool lock").total
    }

    pub fn ready(&self) -> usize {
        self.inner.lock().expect("pool lock").ready.len()
    }

    fn file(&self, need: Need) -> io::Result<(String, Arc<dyn SegmentFile>)> {
        let mut inner = self.inner.lock().expect("pool lock");
        if let Some(name) = inner.free.pop() {
            drop(inner);
            let opened = self.storage.open(&name);
            if opened.is_err() {
                self.inner.lock().expect("pool lock").free.push(name.clone());
            }
            return Ok((name, opened?));
        }
        if inner.total >= self.max_segments && need == Need::User {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the journal has as many segments as it may"));
        }
        let name = segment_file_name(inner.next_file);
        inner.next_file += 1;
        drop(inner);
        let file = self.storage.create(&name, self.segment_bytes)?;
        self.inner.lock().expect("pool lock").total += 1;
        Ok((name, file))
    }
}

/// What opening found in the directory.
pub(crate) struct Found {
    pub free: Vec<String>,
    pub total: usize,
    pub next_number: u64,
    pub next_file: u64,
}

pub(crate) fn segment_file_name(number: u64) -> String {
    format!("{number:016x}.seg")
}

fn random_salt() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
