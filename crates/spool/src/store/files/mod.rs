//! One file for each record: for comparison, for file systems that the ring does not like, and for who wants to read a spool with `ls`.
//!
//! A file has no name before its bytes are synced, so a file with a name is whole. A record counts once its directory is synced, too.

mod crew;
mod draft;
mod queue;
pub(crate) mod record;
mod writer;

use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use posthaste_units::histogram::{Histogram, LATENCY_US, NUMBERS};
use rustix::fs::{AtFlags, CWD};

use self::draft::{DraftError, NamesNeeded, RecordDraft};
use self::queue::{Item, RecordQueue, Waiting};
use self::record::{FILES, FileHeader, PER_DIR, RecordFile, dir_number, dir_of, path_of};
use self::writer::RecordWriter;
use super::{Commit, Extent, RecordError, Reopened, Store, Unneeded, Visited};
use crate::checkpoint::Checkpoint;
use crate::codec::{seal, unseal};
use crate::core::Core;
use crate::events::Event;
use crate::files;
use crate::lsn_set::LsnSet;
use crate::{AppendError, Config, Lsn, OpenError, Stats, Ticket};

/// The store, open.
pub(crate) struct FilesStore {
    shared: Arc<FilesShared>,
    writer: Option<JoinHandle<()>>,
}

/// State that the writer has, too.
pub(crate) struct FilesShared {
    dir: PathBuf,
    queue: RecordQueue,
    /// Published records whose file was not removed.
    held: Mutex<LsnSet>,
    /// The highest directory that was written in.
    writes_in: AtomicU64,
    poison: OnceLock<Arc<str>>,
    record_bytes_max: usize,
    counters: FileCounters,
    core: Arc<Core>,
    events: crate::Events,
}

struct FileCounters {
    cancelled: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
    sync_ns: AtomicU64,
    sync_ns_max: AtomicU64,
    sync_us: Histogram,
    commit_records: Histogram,
}

impl FilesStore {
    /// Opens it. Names that the last process left unsynced are durable when this returns.
    pub fn open(
        dir: &Path,
        config: &Config,
        core: &Arc<Core>,
        checkpoint: &Checkpoint,
    ) -> Result<(Arc<dyn Store>, Reopened), OpenError> {
        let dir = dir.join(FILES);
        // Its disk may be away: mail after the checkpoint would leave no trace, and its numbers would be given again.
        if checkpoint.through > 0 && !dir.join(NEXT).try_exists()? {
            return Err(OpenError::NoRecords { dir });
        }
        posthaste_fsops::make_dir(&dir)?;
        let (held, unfinished) = record::list(&dir)?;
        unfinished.iter().try_for_each(|path| files::remove(path))?;
        let mut synced = None;
        for lsn in held.iter(checkpoint.through + 1..=u64::MAX) {
            if synced.replace(dir_number(lsn)) != Some(dir_number(lsn)) {
                posthaste_fsops::make_dir(&dir_of(&dir, dir_number(lsn)))?;
            }
        }
        let last = held.last().unwrap_or(0);
        let next = reserve(&dir, last.max(checkpoint.through).max(checkpoint.freed), config.lsns_above.get())?;
        let shared = Arc::new(FilesShared {
            dir,
            queue: RecordQueue::new(config.ring.max_pending_bytes, config.ring.max_batch.min(BATCH_MAX)),
            held: Mutex::new(held),
            writes_in: dir_number(next).into(),
            poison: OnceLock::new(),
            record_bytes_max: usize::try_from(config.ring.segment_bytes).unwrap_or(usize::MAX).min(RECORD_BYTES_MAX),
            counters: FileCounters::default(),
            core: core.clone(),
            events: config.events.clone(),
        });
        let writer = RecordWriter::new(shared.clone(), next);
        let writer = std::thread::Builder::new().name("files-write".to_owned()).spawn(move || writer.run())?;
        let reopened = Reopened {
            damage: Vec::new(),
            cut_off: Vec::new(),
            last: Lsn::new(last),
            lost_through: Lsn::ZERO,
            packed_through: Some(0),
            // Only the disk limits it.
            bytes_used: Arc::default(),
            usable_bytes: u64::MAX,
        };
        let store: Arc<dyn Store> = Arc::new(FilesStore { shared, writer: Some(writer) });
        Ok((store, reopened))
    }
}

/// Makes the directory of records in a spool that nobody has open. Durable when this returns.
///
/// # Errors
/// Errors of writing.
pub(crate) fn make_records(dir: &Path) -> io::Result<()> {
    posthaste_fsops::make_dir(dir)?;
    Ok(posthaste_fsops::replace_file(&dir.join(NEXT), files::OWNER, &seal(0_u64.to_le_bytes().to_vec()))?)
}

/// Writes the record of a spool that nobody has open. Durable when this returns.
///
/// # Errors
/// Errors of writing.
pub(crate) fn write_record(dir: &Path, lsn: u64, head: Bytes, body: Bytes) -> io::Result<()> {
    let path = dir_of(dir, dir_number(lsn));
    if !path.is_dir() {
        posthaste_fsops::make_dir(&path)?;
    }
    let (into, needed) = (File::open(&path)?, NamesNeeded::default());
    let header = FileHeader {
        head_len: head.len() as u32,
        body_len: body.len() as u32,
        head_crc: crc32c::crc32c(&head),
        body_crc: crc32c::crc32c(&body),
    };
    let name = record::name_of(lsn);
    let draft = RecordDraft::write(&into, &name, &header.encode(lsn), &[head, body], &needed);
    let draft = draft.map_err(|(DraftError::Write(error) | DraftError::Sync(error))| error)?;
    draft.publish(&into, &name, &needed)?;
    Ok(posthaste_fsops::fsync(&into)?)
}

/// The first LSN of an opening. `known` is the highest on record here, `seen` elsewhere.
fn next_lsn(known: u64, seen: u64) -> u64 {
    let next = if known == 0 { 1 } else { (known / PER_DIR + 2) * PER_DIR };
    if seen < next { next } else { (seen / PER_DIR + 2) * PER_DIR + SEEN_GAP }
}

/// The first LSN of an opening, which is on record when this returns. A failed sync may leave names in the page cache alone: they are shown now and gone after a
/// power cut, and then no record tells that their numbers were used. Numbers of an opening are less than a commit above its first, or above a durable one.
fn reserve(dir: &Path, known: u64, seen: u64) -> io::Result<u64> {
    let path = dir.join(NEXT);
    let reserved = match std::fs::read(&path) {
        Err(error) if posthaste_fsops::is_of_disk(&error) => 0,
        read => unseal(&read?).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?))).unwrap_or(0),
    };
    let next = next_lsn(known.max(reserved), seen);
    posthaste_fsops::replace_file(&path, files::OWNER, &seal(next.to_le_bytes().to_vec()))?;
    Ok(next)
}

impl FilesShared {
    fn held(&self) -> MutexGuard<'_, LsnSet> {
        self.held.lock().expect("nothing panics while it is held")
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        self.poison.get().cloned()
    }

    /// Accepts nothing from now on. The first reason stays.
    fn poison_with(&self, why: String) -> Arc<str> {
        let why: Arc<str> = why.into();
        if self.poison.set(why.clone()).is_ok() {
            self.events.tell(Event::Poisoned { why: why.to_string() });
        }
        self.poison.get().expect("set by somebody").clone()
    }

    /// A file that is not there is damage: nobody asks for a record that was forgotten.
    fn record(&self, lsn: Lsn) -> Result<RecordFile, RecordError> {
        RecordFile::open(&self.dir, lsn).map_err(|error| match error {
            RecordError::NotFound(lsn) => RecordError::HeadDamaged(lsn),
            error => error,
        })
    }

    /// Removes directories that hold no record and get none any more.
    fn remove_empty(&self, numbers: &[u64]) {
        // A commit may have files in the last two.
        let written = self.writes_in.load(Ordering::Acquire).saturating_sub(1);
        for number in numbers.iter().copied().filter(|number| *number < written) {
            let lsns = number * PER_DIR..=number * PER_DIR + (PER_DIR - 1);
            if self.held().first_in(lsns).is_some() {
                continue;
            }
            let dir = dir_of(&self.dir, number);
            // One that is not empty stays, and so does that above it.
            if posthaste_fsops::unlinkat(CWD, &*dir, AtFlags::REMOVEDIR).is_ok()
                && let Some(above) = dir.parent()
            {
                let _ = posthaste_fsops::unlinkat(CWD, above, AtFlags::REMOVEDIR);
            }
        }
    }
}

impl Store for FilesStore {
    fn name(&self) -> &'static str {
        FILES
    }

    fn append(&self, head: Bytes, body: Vec<Bytes>, then: Commit) -> Ticket {
        let (bytes, limit) = (head.len() + body.iter().map(Bytes::len).sum::<usize>(), self.shared.record_bytes_max);
        let refused = match self.shared.poisoned() {
            _ if bytes > limit => Some(AppendError::TooLarge { bytes, limit }),
            why => why.map(AppendError::Poisoned),
        };
        if let Some(error) = refused {
            then.tell(Err(error));
            return Ticket::refused();
        }
        let header = FileHeader {
            // Within the limit.
            head_len: head.len() as u32,
            body_len: (bytes - head.len()) as u32,
            head_crc: crc32c::crc32c(&head),
            body_crc: body.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part)),
        };
        let parts = std::iter::once(head).chain(body).collect();
        let waiting = Waiting::new(header, parts, then);
        let ticket = Ticket::of_ring(waiting.fate.ticket());
        if let Err((Item::Record(waiting), error)) = self.shared.queue.push(Item::Record(waiting)) {
            waiting.tell(Err(error));
        }
        ticket
    }

    fn flush(&self) {
        let (tell, done) = channel();
        if self.shared.queue.push(Item::Flush(tell)).is_ok() {
            // Without an answer the writer has panicked, and has refused everything.
            let _ = done.recv();
        }
    }

    fn visit(&self, from: Lsn, each: &mut dyn FnMut(Visited) -> ControlFlow<()>) -> io::Result<()> {
        let lsns: Vec<u64> = self.shared.held().iter(from.get()..=u64::MAX).collect();
        let mut damage = None;
        for lsn in lsns {
            let read =
                self.shared.record(Lsn::new(lsn)).and_then(|record| Ok((record.head()?, record.header.body_len)));
            match read {
                Ok((head, body_len)) => {
                    if each(Visited { lsn: Lsn::new(lsn), head, body_len }).is_break() {
                        break;
                    }
                }
                Err(_) if !self.shared.held().contains(lsn) => {}
                Err(RecordError::Io(_, error)) if !posthaste_fsops::is_of_disk(&error) => return Err(error),
                Err(error) => drop(damage.get_or_insert(error.to_string())),
            }
        }
        damage.map_or(Ok(()), |damage| Err(io::Error::new(io::ErrorKind::InvalidData, damage)))
    }

    fn read_head(&self, lsn: Lsn) -> Result<Bytes, RecordError> {
        self.shared.record(lsn)?.head()
    }

    fn read_body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError> {
        self.shared.record(lsn)?.body(range)
    }

    fn read_body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError> {
        self.shared.record(lsn)?.body_again()
    }

    fn body_crc(&self, lsn: Lsn) -> Result<u32, RecordError> {
        Ok(self.shared.record(lsn)?.header.body_crc)
    }

    fn extent(&self) -> Extent {
        Extent { held: Some(self.shared.held().clone()), ..Extent::default() }
    }

    fn forget(&self, unneeded: &Unneeded) {
        let mut dirs = Vec::new();
        for lsn in unneeded.lsns.iter(0..=u64::MAX) {
            if dirs.last() != Some(&dir_number(lsn)) {
                dirs.push(dir_number(lsn));
            }
            self.shared.held().remove(lsn);
            // What cannot be removed is removed after the next opening.
            let _ = files::remove(&path_of(&self.shared.dir, lsn));
        }
        self.shared.remove_empty(&dirs);
    }

    fn poison(&self, why: String) {
        self.shared.poison_with(why);
    }

    fn poisoned(&self) -> Option<Arc<str>> {
        self.shared.poisoned()
    }

    fn stats(&self) -> Stats {
        self.shared.counters.read()
    }
}

impl Drop for FilesStore {
    fn drop(&mut self) {
        self.shared.queue.close();
        // The last handle may go with something that the writer calls back. A panic was printed when it happened.
        if let Some(writer) = self.writer.take().filter(|it| it.thread().id() != std::thread::current().id()) {
            let _ = writer.join();
        }
    }
}

impl Default for FileCounters {
    fn default() -> Self {
        let none = || AtomicU64::new(0);
        FileCounters {
            cancelled: none(),
            bytes: none(),
            syncs: none(),
            sync_ns: none(),
            sync_ns_max: none(),
            sync_us: Histogram::new(&LATENCY_US),
            commit_records: Histogram::new(&NUMBERS),
        }
    }
}

impl FileCounters {
    /// A group of records was made durable: one sync, as its waiters see it.
    fn count_commit(&self, records: u64, bytes: u64, took: Duration) {
        let ns = took.as_nanos() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_ns.fetch_add(ns, Ordering::Relaxed);
        self.sync_ns_max.fetch_max(ns, Ordering::Relaxed);
        self.sync_us.count(ns / 1000);
        self.commit_records.count(records);
    }

    fn read(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            cancelled: of(&self.cancelled),
            bytes_written: of(&self.bytes),
            syncs: of(&self.syncs),
            sync_ns: of(&self.sync_ns),
            sync_ns_max: of(&self.sync_ns_max),
            sync_us: self.sync_us.read(),
            commit_records: self.commit_records.read(),
            // Only the disk limits it.
            space_max: 1,
            ..Stats::default()
        }
    }
}

/// The first LSN of the last opening.
const NEXT: &str = "next";
/// Records of a commit: each has a descriptor until it has its name, and all lie in two directories at most.
const BATCH_MAX: usize = 256;
/// Head and body of a record together.
const RECORD_BYTES_MAX: usize = 1 << 30;
/// LSNs between the highest that somebody else has on record and the first of a spool that took another's place.
const SEEN_GAP: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_opening_begins_where_another_did() {
        let dir = tempfile::tempdir().unwrap();
        let mut before = 0;
        for known in [0, 0, 0, 5, 5, 100_000, 100_000] {
            let next = reserve(dir.path(), known, 0).unwrap();
            assert!(next > known && (before == 0 || next >= before + PER_DIR), "{next} after {before}");
            before = next;
        }
        std::fs::write(dir.path().join(NEXT), b"damaged").unwrap();
        assert_eq!(reserve(dir.path(), 77, 0).unwrap(), 2 * PER_DIR);
    }

    #[test]
    fn an_opening_begins_above_all_that_a_commit_may_have_left() {
        assert_eq!((next_lsn(0, 0), next_lsn(1, 0), next_lsn(4095, 0)), (1, 8192, 8192));
        for known in [1, 77, 4095, 4096, 1 << 40] {
            assert!(next_lsn(known, 0) > known + BATCH_MAX as u64);
            assert_eq!(next_lsn(known, 0), next_lsn(known, known));
            assert!(next_lsn(known, known + (1 << 20)) > known + (1 << 32));
        }
    }
}
