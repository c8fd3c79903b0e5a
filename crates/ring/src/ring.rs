//! The handle: append, read, free.

use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bytes::Bytes;

use crate::config::{Config, OnRecord, Proof, ROSTER};
use crate::file::Source;
use crate::layout::{Lsn, RecordHeader};
use crate::pool::{Found, Pool, Segment, next_file};
use crate::queue::{Item, Pending};
use crate::recovery::{Contents, Recovery, read_all};
use crate::roster::{Entered, Roster};
use crate::scan::scan;
use crate::segment::SegmentReader;
use crate::shared::{Opened, Shared};
use crate::storage::Storage;
use crate::table::{InService, Table};
use crate::writer::Writer;
use crate::{RingAppendError, RingOpenError, RingReadError, RingStats, RingTicket, SegmentInfo};

/// A record, for [`Ring::visit`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordHead {
    /// LSN of the record.
    pub lsn: Lsn,
    /// Head of the record, with a valid checksum.
    pub head: Bytes,
    /// Bytes of its body, which is not read.
    pub body_len: u32,
    /// The number of the segment that it is in.
    pub segment: u64,
    /// Offset of the record in its segment.
    pub offset: u32,
}

/// An open ring. Clones share it; when the last one is dropped, appended records are written and the files are closed.
#[derive(Clone)]
pub struct Ring {
    threads: Arc<Threads>,
}

impl Ring {
    /// Opens or creates the ring in `dir`, and recovers from a crash.
    ///
    /// Takes no space. New records belong to a new epoch, which is durable before the first of them.
    ///
    /// # Errors
    /// [`RingOpenError::Locked`] if another process has it; [`RingOpenError::Missing`]; [`RingOpenError::Io`] if the file system fails.
    pub fn open(dir: &Path, config: Config, on_record: OnRecord) -> Result<(Self, Recovery), RingOpenError> {
        let failed = |error: io::Error| match error.kind() {
            // Only the lock is asked for without a wait.
            io::ErrorKind::WouldBlock => RingOpenError::Locked { dir: dir.to_owned() },
            _ => RingOpenError::Io { dir: dir.to_owned(), error },
        };
        let config = config.within_bounds();
        let path = config.roster.clone().unwrap_or_else(|| dir.join(ROSTER));
        let storage = Storage::open(dir).map_err(failed)?;
        let entered = Entered::read(&path).map_err(failed)?;
        let contents = read_all(&storage, on_record, entered.as_ref()).map_err(failed)?;
        if !contents.missing.is_empty() && !config.gives_up_missing {
            return Err(RingOpenError::Missing { numbers: contents.missing, unreadable: contents.unreadable });
        }
        contents.set_aside(&storage);
        let mut roster = Roster::new(path, entered.clone().unwrap_or_default());
        contents.bring_up_to_date(&mut roster, on_record.low, entered.is_some()).map_err(failed)?;
        Self::recover(storage, roster, config, contents).map_err(failed)
    }

    fn recover(storage: Storage, roster: Roster, config: Config, contents: Contents) -> io::Result<(Self, Recovery)> {
        contents.make_durable()?;
        let mut total = contents.names.len();
        let mut free = Vec::new();
        for name in contents.free.into_iter().map(|segment| segment.name).chain(contents.unused) {
            let file = storage.segment(&name)?;
            // Nothing in it is needed here: what has a name and is neither free nor zeros counts as damaged.
            if file.len()? == config.segment_bytes && !file.is_linked_elsewhere()? {
                free.push(name);
            } else {
                storage.remove(&name)?;
                total -= 1;
            }
        }
        let next_number = contents.next_number;
        let next_file = next_file(&contents.names);
        let epoch = contents.max_epoch + 1;
        let found = Found { total, free, next_number, next_file };
        let pool =
            Pool::new(storage, roster, (config.segment_bytes, config.max_segments, config.room.clone()), epoch, found);
        let recovery = Recovery {
            damage: contents.damage,
            records: contents.in_service.values().map(|read| read.scan.records).sum(),
            last: contents.in_service.values().map(|read| read.scan.whole).max().unwrap_or_default(),
            lost_through: contents.lost_through,
            bytes_read: contents.bytes_read,
            epoch,
        };
        let mut table = Table::default();
        for (number, read) in contents.in_service {
            table.segments.insert(number, InService::found(read)?);
        }
        let next_lsn = contents.next_lsn;
        let opened = Opened { epoch, first: Lsn::new(next_lsn), last: recovery.last, found: contents.found };
        let shared = Arc::new(Shared::new(config, pool, table, opened));
        // No segment is taken before the first append: opening a full ring takes no space.
        let writer = Writer::new(shared.clone(), next_lsn, contents.found.through);
        Ok((Ring { threads: Arc::new(Threads::start(shared, writer)?) }, recovery))
    }

    /// Appends a record. `then` is called with the outcome on the ring's own thread, in LSN order, once the record is on stable storage or refused. It
    /// must be quick and must not block: all commits wait for it. If the record is refused at once, `then` is called on the caller's thread before this
    /// returns.
    pub fn append(
        &self,
        head: Vec<Bytes>,
        body: Vec<Bytes>,
        then: impl FnOnce(Result<Lsn, RingAppendError>) + Send + 'static,
    ) -> RingTicket {
        let limit = self.max_record_bytes();
        let bytes = head.iter().chain(&body).map(Bytes::len).sum();
        if bytes > limit {
            let refused = Pending::new(Vec::new(), Vec::new(), Box::new(then));
            let ticket = refused.fate.ticket();
            refused.tell(Err(RingAppendError::TooLarge { bytes, limit }));
            return ticket;
        }
        let pending = Pending::new(head, body, Box::new(then));
        let ticket = pending.fate.ticket();
        if let Err((item, error)) = self.shared().push(Item::Record(pending)) {
            item.fail(&error);
        }
        ticket
    }

    /// Like [`append`](Self::append) for a record without a body, but ahead of all waiting ones, and beyond
    /// [`Config::max_pending_bytes`]. Called on the ring's own thread, from a callback or for an event, the record is
    /// part of the next write. For consequences of a written record: see [`RingEvent::Cancelled`](crate::RingEvent::Cancelled).
    pub fn append_first(&self, head: Bytes, then: impl FnOnce(Result<Lsn, RingAppendError>) + Send + 'static) {
        let bytes = head.len();
        let limit = self.max_record_bytes();
        let pending = Pending::new(vec![head], Vec::new(), Box::new(then));
        if bytes > limit {
            pending.tell(Err(RingAppendError::TooLarge { bytes, limit }));
        } else if let Err((item, error)) = self.shared().push_first(Item::Record(pending)) {
            item.fail(&error);
        }
    }

    /// Waits until everything that was appended before this call is durable or refused. Blocks, so it must not be called on the ring's own thread.
    ///
    /// # Errors
    /// [`RingAppendError::Poisoned`] and [`RingAppendError::Closed`].
    pub fn flush(&self) -> Result<(), RingAppendError> {
        let (tell, outcome) = sync_channel(1);
        let item = Item::Flush(Box::new(move |outcome| drop(tell.send(outcome))));
        if let Err((_, error)) = self.shared().push(item) {
            return Err(error);
        }
        // The sender is dropped without a word only when the ring is closed.
        outcome.recv().unwrap_or(Err(RingAppendError::Closed))
    }

    /// Visits the heads of the records in service from `from` up to the last published one, in LSN order, including
    /// cancelled ones. Reads them from disk. Skips segments that are freed meanwhile.
    ///
    /// # Errors
    /// An error of reading; [`io::ErrorKind::InvalidData`], after all others were shown, if records were damaged since the ring was opened.
    pub fn visit(&self, from: Lsn, visitor: &mut dyn FnMut(RecordHead) -> ControlFlow<()>) -> io::Result<()> {
        let parts: Vec<_> = self.shared().table().segments.values().filter_map(|entry| entry.part(from)).collect();
        let mut damage = None;
        for part in parts {
            let number = part.segment.header.number;
            let mut flow = ControlFlow::Continue(());
            let from_disk = (&*part.segment.file, Source::Disk);
            let scanned = scan(from_disk, &part.segment.header, part.range.clone(), &mut |located| {
                let lsn = located.header.lsn;
                if lsn >= from && part.torn.binary_search(&lsn).is_err() {
                    let head = Bytes::copy_from_slice(located.head);
                    let body_len = located.header.body_len;
                    flow = visitor(RecordHead { lsn, head, body_len, segment: number, offset: located.offset });
                }
                flow
            });
            let is_known =
                |range: &Range<u64>| part.gaps.iter().any(|known| known.start < range.end && range.start < known.end);
            let new = match scanned {
                Ok(scanned) => scanned.gaps.into_iter().find(|gap| !is_known(&gap.range)),
                Err(_) if !self.shared().table().segments.contains_key(&number) => None,
                Err(error) => return Err(error),
            };
            if let Some(gap) = new.filter(|_| self.shared().table().segments.contains_key(&number)) {
                damage.get_or_insert(format!("{} at {}: {}", part.segment.name, gap.range.start, gap.what));
            }
            if flow.is_break() {
                break;
            }
        }
        damage.map_or(Ok(()), |damage| Err(io::Error::new(io::ErrorKind::InvalidData, damage)))
    }

    /// The head of a record in service.
    ///
    /// # Errors
    /// See [`RingReadError`].
    pub fn read_head(&self, lsn: Lsn) -> Result<Bytes, RingReadError> {
        self.read(lsn, |segment, offset, record| segment.head(offset, record))
    }

    /// A part of the body of a record in service; the range is cut at the body's end. The checksum of the whole body is
    /// verified first.
    ///
    /// # Errors
    /// See [`RingReadError`].
    pub fn read_body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RingReadError> {
        self.read(lsn, |segment, offset, record| segment.body(offset, record, range))
    }

    /// The header of a record in service.
    ///
    /// # Errors
    /// See [`RingReadError`].
    pub fn record(&self, lsn: Lsn) -> Result<RecordHeader, RingReadError> {
        self.read(lsn, |_, _, record| Ok(*record))
    }

    /// Reads the body of a record again from the disk instead of the page cache: see [`SegmentReader::body_again`].
    ///
    /// # Errors
    /// See [`RingReadError`]; a damaged body is no error.
    pub fn read_body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RingReadError> {
        self.read(lsn, |segment, offset, record| segment.body_again(offset, record))
    }

    /// The segments in service, in the order of numbers and records.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.shared().table().info()
    }

    /// Reads a sealed segment in service sequentially, which is far cheaper than a look-up for each record. Free no
    /// segment meanwhile: it might be overwritten.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if no such segment is in service and sealed.
    pub fn reader(&self, number: u64) -> io::Result<SegmentReader> {
        let table = self.shared().table();
        let entry = table.segments.get(&number).filter(|_| table.current != Some(number));
        let segment = &entry.ok_or(io::ErrorKind::NotFound)?.segment;
        Ok(SegmentReader::new(segment.file.clone(), segment.header))
    }

    /// Gives the file of a sealed segment a second name, so that the ring does not recycle it when it frees it. The
    /// caller syncs the directory. Until it is freed the segment stays in service, so a cut in between leaves it in the
    /// ring.
    ///
    /// # Errors
    /// An error of `link`; [`io::ErrorKind::NotFound`] if no such segment is in service and sealed.
    pub fn link(&self, number: u64, to: &Path) -> io::Result<()> {
        let name = {
            let table = self.shared().table();
            let entry = table.segments.get(&number).filter(|_| table.current != Some(number));
            entry.map(|entry| entry.segment.name.clone())
        };
        self.shared().pool.storage().link(&name.ok_or(io::ErrorKind::NotFound)?, to)
    }

    /// Frees the segments below `number`, except the current one. Call it only when a durable record elsewhere makes
    /// `number` the first needed one: freed files are overwritten at once.
    pub fn free_below(&self, number: u64) {
        let freed = {
            let mut table = self.shared().table();
            let freed = table.take_below(number);
            self.shared().used.store(table.bytes_used(), Ordering::Relaxed);
            freed
        };
        freed.iter().for_each(|segment| self.shared().pool.give_back(segment));
        if !freed.is_empty() {
            self.shared().want_segment();
        }
    }

    /// Accepts nothing more until the ring is reopened. Call it when any sync on the ring's device has failed with EIO,
    /// even for another part of the program: the device may have dropped cached writes that the ring's next sync would
    /// report as durable.
    pub fn poison(&self, why: String) {
        self.shared().poison_with(why);
    }

    /// The reason, if the ring is poisoned.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.shared().poison()
    }

    /// The last durable record; zero without any.
    pub fn durable_lsn(&self) -> Lsn {
        Lsn::new(self.shared().durable.load(Ordering::Acquire))
    }

    /// Position up to which records are durable, for the owner to store. Damage before it is corruption, not a torn
    /// tail, even if no record follows. See [`OnRecord`].
    pub fn proof(&self) -> Proof {
        let (durable, Opened { epoch, first, found, .. }) = (self.durable_lsn(), self.shared().opened);
        if durable >= first { Proof { epoch, through: durable } } else { found }
    }

    /// Counters since opening.
    pub fn stats(&self) -> RingStats {
        let shared = self.shared();
        RingStats {
            segments_in_service: shared.table().segments.len(),
            segments: shared.pool.total(),
            max_segments: shared.config.max_segments,
            ..shared.counters.read()
        }
    }

    /// A live counter of the bytes in segments with records; of the current segment only the written part. Read it
    /// where no lock may be taken.
    pub fn bytes_used(&self) -> Arc<AtomicU64> {
        self.shared().used.clone()
    }

    /// Removes free segment files of at least `bytes` bytes together, or all, except prepared ones. Returns their
    /// number.
    pub fn remove_free(&self, bytes: u64) -> usize {
        self.shared().pool.remove_free(bytes)
    }

    /// Maximum bytes of a record's head and body together.
    pub fn max_record_bytes(&self) -> usize {
        self.shared().max_record_bytes()
    }

    fn read<T>(
        &self,
        lsn: Lsn,
        read: impl FnOnce(&SegmentReader, u32, &RecordHeader) -> Result<T, RingReadError>,
    ) -> Result<T, RingReadError> {
        let found = self.shared().table().find(lsn);
        let (Segment { file, header, .. }, from) = found.ok_or(RingReadError::NotFound(lsn))?;
        let reader = SegmentReader::new(file, header);
        let outcome = match reader.find(from, lsn) {
            Ok(Some((offset, record))) => read(&reader, offset, &record),
            Ok(None) => Err(RingReadError::HeadDamaged(lsn)),
            Err(error) => Err(RingReadError::Io(lsn, error)),
        };
        // It may have been freed and overwritten meanwhile.
        outcome.map_err(|error| {
            if self.shared().table().segments.contains_key(&header.number) {
                error
            } else {
                RingReadError::NotFound(lsn)
            }
        })
    }

    fn shared(&self) -> &Shared {
        &self.threads.shared
    }
}

/// The writer and the preparer; dropping this closes the ring.
struct Threads {
    shared: Arc<Shared>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    fn start(shared: Arc<Shared>, writer: Writer) -> io::Result<Self> {
        let preparer = shared.clone();
        let threads = Threads { shared, running: Mutex::default() };
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let mut running = threads.running.lock().expect("thread list");
        running.push(named("ring-write").spawn(move || writer.run())?);
        running.push(named("ring-prepare").spawn(move || preparer.prepare_segments())?);
        drop(running);
        threads.shared.want_segment();
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.close();
        for thread in self.running.get_mut().expect("thread list").drain(..) {
            // The last handle may go with something that the writer calls back.
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            // A panic of a thread was printed when it happened.
            let _ = thread.join();
        }
    }
}
