//! What all threads of a journaled executor share, and the way of a message from the journal to the workers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::Semaphore;

use super::config::JournaledConfig;
use super::keeper::Keeper;
use crate::log::Log;
use crate::record::{Body, Delivered, KIND_DELIVERED, Stored};
use crate::session::SessionTag;
use crate::workers::{Desk, Letter, Workers};

pub(crate) struct Core<L> {
    pub(super) config: JournaledConfig,
    pub(super) nonce: u32,
    pub(super) host: Arc<str>,
    pub(super) session: SessionTag,
    pub(super) log: L,
    pub(super) workers: Arc<Workers>,
    pub(super) backlog: Arc<Semaphore>,
    pub(super) keeper: Keeper,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct Counters {
    pub accepted: AtomicU64,
    pub delivered: AtomicU64,
    pub failed_attempts: AtomicU64,
    pub checkpoints: AtomicU64,
    pub checkpoints_failed: AtomicU64,
    pub checkpoint_us: AtomicU64,
    pub checkpoint_us_max: AtomicU64,
    // Of the last checkpoint that succeeded.
    pub unreadable_segments: AtomicU64,
}

impl<L: Log> Core<L> {
    /// Called on the journal's thread for each message that has become durable.
    pub(super) fn accepted(&self, letter: Letter) {
        self.counters.accepted.fetch_add(1, Ordering::Relaxed);
        self.keeper.changes.fetch_add(1, Ordering::Relaxed);
        // Those in files of their own are removed by checkpoints, too.
        let spooled = spooled_in(&letter.stored).map_or(0, |_| letter.stored.message.body.len());
        if self.keeper.space.is_checkpoint_due(self.log.bytes_used(), spooled) {
            self.want_checkpoint();
        }
        self.workers.submit(Arc::new(letter));
    }

    pub(super) fn want_checkpoint(&self) {
        self.keeper.state().checkpoint_wanted = true;
        self.keeper.wake.notify_all();
    }

    /// The spool has no room for a body: those that have been delivered are removed by a checkpoint, so it is not put off.
    pub(super) fn want_spooled_removed(&self) {
        if !self.keeper.state().spooled_done.is_empty() {
            self.want_checkpoint();
        }
    }

    /// The units for a body; a body larger than all that there is takes all of it.
    pub(super) fn permits(&self, bytes: u64) -> u32 {
        permits(bytes).min(permits(self.config.backlog_bytes.into()))
    }

    pub(super) fn now(&self) -> Instant {
        self.workers.now()
    }

    pub(super) fn failed_syncs(&self) -> u64 {
        self.keeper.failed_syncs.load(Ordering::Acquire)
    }

    /// The message of a record, as [`load`] has it.
    pub(super) fn load(&self, id: u64) -> io::Result<Stored> {
        load(&self.log, id)
    }
}

/// The message of a record.
///
/// # Errors
/// `NotFound`; `InvalidData` if it is none that this version knows; else the disk's.
pub(super) fn load(log: &impl Log, id: u64) -> io::Result<Stored> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "no message that this version can read");
    Stored::decode(log.read(id)?.ok_or(io::ErrorKind::NotFound)?).ok_or_else(unknown)
}

impl<L: Log> Desk for Core<L> {
    fn delivered(&self, done: Vec<(u64, u16)>) {
        self.counters.delivered.fetch_add(done.len() as u64, Ordering::Relaxed);
        let note = Delivered { session: self.session, done };
        self.log.note(KIND_DELIVERED, vec![note.encode()]);
    }

    fn finished(&self, letters: &[&Letter]) {
        for letter in self.settle_plain(letters) {
            self.settle_or_defer(letter, letter.failed());
        }
    }
}

pub(super) fn spooled_in(stored: &Stored) -> Option<u64> {
    match &stored.message.body {
        Body::Spooled(spooled) => Some(spooled.file),
        Body::Memory(_) => None,
    }
}

/// Memory is counted in units that a semaphore can hold.
pub(super) fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).max(1)
}

pub(super) fn random_nonce() -> u32 {
    // Keyed with random bytes of the system for each of its values.
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0_u8) as u32
}

const PERMIT_BYTES: u64 = 1024;
