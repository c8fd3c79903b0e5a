//! A store of records in groups, as the spool uses it.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use bytes::Bytes;

use super::counters::GroupCounters;
use super::header::StoredHeader;
use super::medium::OpenedMedium;
use super::numbers::{self, LOST_MAX};
use super::queue::{Item, RecordQueue, Waiting};
use super::shared::{GROUP_MAX, GroupShared};
use super::writer::StoreWriter;
use crate::checkpoint::Checkpoint;
use crate::core::Core;
use crate::events::Damage;
use crate::store::{Commit, Extent, RecordError, Reopened, Store, Unneeded, VisitError, Visited};
use crate::{AppendError, Config, Lsn, OpenError, Stats, StoreKind, Ticket};

/// An open store with its writer thread.
pub(crate) struct GroupStore {
    shared: Arc<GroupShared>,
    writer: Option<JoinHandle<()>>,
}

impl GroupStore {
    /// Opens the store. `is_lost`: it had records, and they are missing. `open_medium` makes unsynced records of the
    /// last process above an LSN durable, and finds the records.
    pub fn open(
        dir: &Path,
        config: &Config,
        core: &Arc<Core>,
        checkpoint: &Checkpoint,
        is_lost: bool,
        open_medium: impl Fn(&Path, u64) -> Result<OpenedMedium, OpenError>,
    ) -> Result<(Arc<dyn Store>, Reopened), OpenError> {
        let dir = dir.join(config.kind.dir());
        if is_lost && !config.ring.gives_up_missing {
            return Err(OpenError::NoRecords { dir });
        }
        posthaste_fsops::make_dir(&dir)?;
        let (medium, held) = match open_medium(&dir, checkpoint.through) {
            // A power cut while the spool was created may leave a database that cannot be opened. It has accepted
            // nothing.
            Err(OpenError::Log(_)) if checkpoint.kind.is_none() => {
                std::fs::remove_dir_all(&dir)?;
                posthaste_fsops::make_dir(&dir)?;
                open_medium(&dir, checkpoint.through)?
            }
            opened => opened?,
        };
        let last = held.last().unwrap_or(0);
        let known = last.max(checkpoint.through).max(checkpoint.freed);
        let lost_through = if is_lost { known + LOST_MAX } else { 0 };
        let next = numbers::reserve(&dir, known.max(lost_through), config.lsns_above.get())?;
        let shared = Arc::new(GroupShared {
            kind: config.kind,
            medium: medium.clone(),
            queue: RecordQueue::new(config.ring.max_pending_bytes, config.ring.max_batch.min(GROUP_MAX)),
            held: Mutex::new(held),
            poison: OnceLock::new(),
            record_bytes_max: usize::try_from(config.ring.segment_bytes).unwrap_or(usize::MAX).min(RECORD_BYTES_MAX),
            counters: GroupCounters::default(),
            core: core.clone(),
            events: config.events.clone(),
        });
        let writer = StoreWriter::new(shared.clone(), medium.writer(next), next);
        let writer = std::thread::Builder::new().name("spool-write".to_owned()).spawn(move || writer.run())?;
        let reopened = Reopened {
            damage: is_lost.then(|| records_lost(config.kind, known)).into_iter().collect(),
            cut_off: Vec::new(),
            last: Lsn::new(last),
            lost_through: Lsn::new(lost_through),
            packed_through: Some(0),
            // Limited only by the disk.
            bytes_used: Arc::default(),
            usable_bytes: u64::MAX,
        };
        let store: Arc<dyn Store> = Arc::new(GroupStore { shared, writer: Some(writer) });
        Ok((store, reopened))
    }
}

/// The damage of a spool whose directory of records is lost. `known`: the last batch recorded elsewhere; how many
/// followed is unknown.
pub(crate) fn records_lost(kind: StoreKind, known: u64) -> Damage {
    let what = format!("holds no records: its disk may be away (batches from {} on)", known + 1);
    Damage { lsn: Some(Lsn::new(known + 1)), place: kind.dir().to_owned(), what }
}

/// Turns a missing record into damage: forgotten ones are never requested.
fn missing_is_damage<T>(read: Result<T, RecordError>) -> Result<T, RecordError> {
    read.map_err(|error| match error {
        RecordError::NotFound(lsn) => RecordError::HeadDamaged(lsn),
        error => error,
    })
}

impl Store for GroupStore {
    fn name(&self) -> &'static str {
        self.shared.kind.dir()
    }

    fn append(&self, head: Bytes, body: Vec<Bytes>, then: Commit) -> Ticket {
        let bytes = head.len() + body.iter().map(Bytes::len).sum::<usize>();
        let limit = self.shared.record_bytes_max;
        let refused = match self.shared.poisoned() {
            _ if bytes > limit => Some(AppendError::TooLarge { bytes, limit }),
            why => why.map(AppendError::Poisoned),
        };
        if let Some(error) = refused {
            then.tell(Err(error));
            return Ticket::refused();
        }
        let header = StoredHeader::of(&head, &body);
        let parts = std::iter::once(head).chain(body).collect();
        let waiting = Waiting::new(header, parts, then);
        let ticket = Ticket::of_ring(waiting.told.fate.ticket());
        if let Err((Item::Record(waiting), error)) = self.shared.queue.push(Item::Record(waiting)) {
            waiting.told.tell(Err(error));
        }
        ticket
    }

    fn flush(&self) {
        let (tell, done) = channel();
        if self.shared.queue.push(Item::Flush(tell)).is_ok() {
            // No answer means that the writer has panicked and refused everything.
            let _ = done.recv();
        }
    }

    fn visit(&self, from: Lsn, each: &mut dyn FnMut(Visited) -> ControlFlow<()>) -> Result<(), VisitError> {
        let lsns: Vec<u64> = self.shared.held().iter(from.get()..=u64::MAX).collect();
        let mut damage = Vec::new();
        for lsn in lsns {
            match missing_is_damage(self.shared.medium.head(Lsn::new(lsn))) {
                Ok((header, head)) => {
                    if each(Visited { lsn: Lsn::new(lsn), head, body_len: header.body_len }).is_break() {
                        break;
                    }
                }
                Err(_) if !self.shared.held().contains(lsn) => {}
                Err(RecordError::Io(_, error)) if !posthaste_fsops::is_of_disk(&error) => {
                    return Err(VisitError::Io(error));
                }
                Err(error) => damage.push(Damage {
                    lsn: Some(Lsn::new(lsn)),
                    place: self.name().to_owned(),
                    what: error.to_string(),
                }),
            }
        }
        if damage.is_empty() { Ok(()) } else { Err(VisitError::Damaged(damage)) }
    }

    fn read_head(&self, lsn: Lsn) -> Result<Bytes, RecordError> {
        missing_is_damage(self.shared.medium.head(lsn)).map(|(_, head)| head)
    }

    fn read_body(&self, lsn: Lsn, range: Range<u32>) -> Result<Bytes, RecordError> {
        missing_is_damage(self.shared.medium.body(lsn, range))
    }

    fn read_body_again(&self, lsn: Lsn) -> Result<(Bytes, bool), RecordError> {
        missing_is_damage(self.shared.medium.body_again(lsn))
    }

    fn body_crc(&self, lsn: Lsn) -> Result<u32, RecordError> {
        missing_is_damage(self.shared.medium.header(lsn)).map(|header| header.body_crc)
    }

    fn extent(&self) -> Extent {
        Extent { held: Some(self.shared.held().clone()), ..Extent::default() }
    }

    fn forget(&self, unneeded: &Unneeded) {
        {
            let mut held = self.shared.held();
            for lsn in unneeded.lsns.iter(0..=u64::MAX) {
                held.remove(lsn);
            }
        }
        let is_held = |range| self.shared.held().first_in(range).is_some();
        self.shared.medium.remove(&unneeded.lsns, &is_held);
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

impl Drop for GroupStore {
    fn drop(&mut self) {
        self.shared.queue.close();
        // A callback of the writer may drop the last handle. A panic was printed when it happened.
        if let Some(writer) = self.writer.take().filter(|it| it.thread().id() != std::thread::current().id()) {
            let _ = writer.join();
        }
    }
}

/// Maximum bytes of a record's head and body together.
const RECORD_BYTES_MAX: usize = 1 << 30;
