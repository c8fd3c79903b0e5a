//! A disk that exists only in memory and can lose power: what tests of crash safety run on.
//!
//! The model: a write is in the cache at once and durable after the next successful sync of its file. At a power cut
//! each write since then is kept, dropped or torn at sector size, independently of the others and so in any order. A
//! failed sync drops what it covered from the cache's list of things to write, as Linux does: a second sync succeeds
//! and means nothing. Creating a file is atomic: a cut in its midst leaves all of it or nothing.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_random::{Random, mix};

use crate::storage::{SEGMENT, SegmentFile, Storage};

/// Bytes that a device writes whole or not at all.
pub const SECTOR: usize = 512;

/// A simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    files: BTreeMap<String, Content>,
    random: u64,
    syncs: u64,
    writes: u64,
    faults: Faults,
    off: bool,
}

/// What goes wrong, and when; counts start at 1 and run over the whole disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Power goes at this sync: it and everything after it fails.
    pub cut_at_sync: Option<u64>,
    /// Power goes at this write, which the cut may keep, drop or tear.
    pub cut_at_write: Option<u64>,
    /// This sync fails and forgets what it should have written.
    pub fail_sync: Option<u64>,
    /// This write fails with EIO.
    pub fail_write: Option<u64>,
    /// Creating a file fails with ENOSPC while this many files or more exist.
    pub files_max: Option<usize>,
    /// Syncs report success and do nothing: what a build without the sync would do.
    pub sync_lies: bool,
}

#[derive(Clone, Default)]
struct Content {
    durable: Vec<u8>,
    cached: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
    // Offsets of bytes that cannot be read.
    bad: Vec<usize>,
}

impl Content {
    fn durable(bytes: Vec<u8>) -> Self {
        Content { durable: bytes.clone(), cached: bytes, ..Content::default() }
    }

    fn zeros(len: u64) -> Self {
        Content::durable(vec![0; len as usize])
    }
}

impl SimDisk {
    /// An empty disk; `seed` decides what a power cut does to unsynced writes.
    pub fn new(seed: u64) -> Self {
        Self::with_faults(seed, Faults::default())
    }

    /// An empty disk on which something will go wrong.
    pub fn with_faults(seed: u64, faults: Faults) -> Self {
        let inner = Inner { files: BTreeMap::new(), random: seed, syncs: 0, writes: 0, faults, off: false };
        SimDisk { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Syncs so far.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// The disk as it is after a power cut now: a new, healthy one. The old handle stays off.
    pub fn power_cut(&self) -> Self {
        let mut inner = self.lock();
        inner.off = true;
        let mut random = Random::new(inner.random ^ (inner.syncs << 32) ^ inner.writes);
        let mut files = inner.files.clone();
        for content in files.values_mut() {
            let unsynced = std::mem::take(&mut content.unsynced);
            for (at, bytes) in unsynced {
                survive(&mut content.durable, at, &bytes, &mut random);
            }
            content.cached = content.durable.clone();
        }
        let next = random.next();
        let inner = Inner { files, random: next, syncs: 0, writes: 0, faults: Faults::default(), off: false };
        SimDisk { inner: Arc::new(Mutex::new(inner)) }
    }

    /// The disk as it is after the process was killed now: the cache survives.
    pub fn kill(&self) -> Self {
        let mut inner = self.lock();
        inner.off = true;
        let copy = Inner { files: inner.files.clone(), faults: Faults::default(), off: false, ..*inner };
        SimDisk { inner: Arc::new(Mutex::new(copy)) }
    }

    /// A copy of this disk as it is, for trying several things from the same state.
    pub fn copy(&self) -> Self {
        let inner = self.lock();
        SimDisk { inner: Arc::new(Mutex::new(Inner { files: inner.files.clone(), ..*inner })) }
    }

    /// The names and lengths of the files.
    pub fn files(&self) -> Vec<(String, usize)> {
        self.lock().files.iter().map(|(name, content)| (name.clone(), content.cached.len())).collect()
    }

    /// The bytes of a file.
    pub fn read(&self, name: &str) -> Vec<u8> {
        self.lock().files[name].cached.clone()
    }

    /// Changes a file behind everybody's back, durably.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut inner = self.lock();
        let content = inner.files.get_mut(name).expect("a file of this name");
        change(&mut content.cached);
        content.durable = content.cached.clone();
        content.unsynced.clear();
    }

    /// From now on no read succeeds that this byte of a file has a part in.
    pub fn spoil(&self, name: &str, at: usize) {
        self.lock().files.get_mut(name).expect("a file of this name").bad.push(at);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("disk lock")
    }
}

/// Applies a write to what is durable, or part of it, or nothing.
fn survive(durable: &mut [u8], at: usize, bytes: &[u8], random: &mut Random) {
    match random.below(3) {
        0 => {}
        1 => durable[at..at + bytes.len()].copy_from_slice(bytes),
        _ => {
            // Sector by sector, in the disk's own grid.
            let mut from = 0;
            while from < bytes.len() {
                let to = (from + SECTOR - (at + from) % SECTOR).min(bytes.len());
                if random.below(2) == 0 {
                    durable[at + from..at + to].copy_from_slice(&bytes[from..to]);
                }
                from = to;
            }
        }
    }
}

impl Storage for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().files.keys().filter(|name| name.ends_with(SEGMENT)).cloned().collect())
    }

    fn create(&self, name: &str, len: u64, _: &mut dyn FnMut()) -> io::Result<Arc<dyn SegmentFile>> {
        let mut inner = self.lock();
        if inner.faults.files_max.is_some_and(|max| inner.files.len() >= max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if inner.count_sync() == Verdict::Failed {
            // The cut may have come right behind it.
            if inner.off && mix(inner.random).is_multiple_of(2) {
                inner.files.insert(name.to_owned(), Content::zeros(len));
            }
            return Err(eio());
        }
        inner.files.insert(name.to_owned(), Content::zeros(len));
        Ok(Arc::new(SimFile { disk: self.clone(), name: name.to_owned() }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
        let known = self.lock().files.contains_key(name);
        if known {
            Ok(Arc::new(SimFile { disk: self.clone(), name: name.to_owned() }))
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.lock().files.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn set_aside(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.lock().files.insert(name.to_owned(), Content::durable(bytes.to_vec()));
        Ok(())
    }
}

#[derive(PartialEq, Eq)]
enum Verdict {
    Done,
    Failed,
    Lied,
}

impl Inner {
    fn count_sync(&mut self) -> Verdict {
        self.syncs += 1;
        self.off |= self.faults.cut_at_sync == Some(self.syncs);
        if self.off || self.faults.fail_sync == Some(self.syncs) {
            Verdict::Failed
        } else if self.faults.sync_lies {
            Verdict::Lied
        } else {
            Verdict::Done
        }
    }
}

struct SimFile {
    disk: SimDisk,
    name: String,
}

impl SimFile {
    fn with<T>(&self, act: impl FnOnce(&mut Inner, &str) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.disk.lock();
        if !inner.files.contains_key(&self.name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        act(&mut inner, &self.name)
    }
}

impl SegmentFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|inner, name| Ok(inner.files[name].cached.len() as u64))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(|inner, name| {
            let at = offset as usize;
            let content = &inner.files[name];
            if content.bad.iter().any(|bad| (at..at + buf.len()).contains(bad)) {
                return Err(eio());
            }
            let bytes = content.cached.get(at..at + buf.len());
            buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes = parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>();
        self.with(|inner, name| {
            inner.writes += 1;
            let was_off = inner.off;
            inner.off |= inner.faults.cut_at_write == Some(inner.writes);
            if was_off || inner.faults.fail_write == Some(inner.writes) {
                return Err(eio());
            }
            let off = inner.off;
            let content = inner.files.get_mut(name).expect("checked by `with`");
            let at = offset as usize;
            assert!(at + bytes.len() <= content.cached.len(), "a write past the end of {name}");
            content.cached[at..at + bytes.len()].copy_from_slice(&bytes);
            content.unsynced.push((at, bytes));
            if off { Err(eio()) } else { Ok(()) }
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|inner, name| {
            let verdict = inner.count_sync();
            let off = inner.off;
            let content = inner.files.get_mut(name).expect("checked by `with`");
            match verdict {
                Verdict::Done => {
                    let unsynced = std::mem::take(&mut content.unsynced);
                    for (at, bytes) in unsynced {
                        content.durable[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                    Ok(())
                }
                Verdict::Lied => Ok(()),
                Verdict::Failed => {
                    if !off {
                        content.unsynced.clear();
                    }
                    Err(eio())
                }
            }
        })
    }
}

fn eio() -> io::Error {
    rustix::io::Errno::IO.into()
}
