//! When a checkpoint is due, and who waits for the room that one may make.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::core::Core;
use crate::log::Log;

/// The space of the log and of the spool between two checkpoints.
pub(super) struct Space {
    // Bytes of accepted bodies in files of their own.
    spooled: AtomicU64,
    // Bytes used, of log and spool together, at which the next checkpoint is due; `NEVER` while one is wanted or runs.
    due_at: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    // Messages settled, and segments that checkpoints have freed.
    settled: AtomicU64,
    freed: AtomicU64,
    waiting: AtomicUsize,
    changed: Notify,
}

/// What had been done about space at one moment.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    failed: u64,
    settled: u64,
    freed: u64,
}

/// A checkpoint that runs.
pub(super) struct Begun {
    /// Bytes used when it began.
    used: u64,
}

impl Default for Space {
    fn default() -> Self {
        Space {
            spooled: AtomicU64::new(0),
            due_at: AtomicU64::new(NEVER),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            changed: Notify::new(),
        }
    }
}

impl Space {
    /// The first checkpoint is due after so many bytes.
    pub fn opened(&self, bytes: u64) {
        self.due_at.store(bytes, Ordering::Release);
    }

    /// A message was accepted: `log_used` bytes of the log are used since it was opened, and `spooled` of the spool for this one. True
    /// once for each checkpoint that is due.
    pub fn is_checkpoint_due(&self, log_used: u64, spooled: u64) -> bool {
        let used = log_used + self.spooled.fetch_add(spooled, Ordering::AcqRel) + spooled;
        used >= self.due_at.load(Ordering::Acquire) && self.due_at.swap(NEVER, Ordering::AcqRel) != NEVER
    }

    pub fn checkpoint_begins(&self, log_used: u64) -> Begun {
        self.due_at.store(NEVER, Ordering::Release);
        self.begun.fetch_add(1, Ordering::AcqRel);
        Begun { used: log_used + self.spooled.load(Ordering::Acquire) }
    }

    /// `bytes` behind its beginning the next one is due. `recycled` are the segments that it has freed; `None`: it has failed.
    pub fn checkpoint_ended(&self, begun: Begun, bytes: u64, recycled: Option<usize>) {
        match recycled {
            Some(segments) => self.freed.fetch_add(segments as u64, Ordering::AcqRel),
            None => self.failed.fetch_add(1, Ordering::AcqRel),
        };
        self.due_at.store(begun.used.saturating_add(bytes), Ordering::Release);
        self.ended.fetch_add(1, Ordering::AcqRel);
        self.look_again();
    }

    /// Messages have been settled, so that the next checkpoint may free something.
    pub fn settled(&self, messages: usize) {
        self.settled.fetch_add(messages as u64, Ordering::AcqRel);
        // While a checkpoint runs its end is what is waited for.
        if !self.checkpoint_runs() {
            self.look_again();
        }
    }

    /// Has those look again who wait for room.
    pub fn look_again(&self) {
        if self.waiting.load(Ordering::Acquire) > 0 {
            self.changed.notify_waiters();
        }
    }

    #[cfg(test)]
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    pub fn seen(&self) -> Seen {
        let of = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        Seen { failed: of(&self.failed), settled: of(&self.settled), freed: of(&self.freed) }
    }

    fn checkpoint_runs(&self) -> bool {
        // In this order: one that ends and another that begins in between do not look like none.
        let ended = self.ended.load(Ordering::Acquire);
        self.begun.load(Ordering::Acquire) != ended
    }
}

enum Room {
    Made,
    Later,
    None,
}

impl<L: Log> Core<L> {
    /// Waits for a checkpoint that makes room in a full log, and has one made. False: it would free nothing, because all that the log holds waits for
    /// mailboxes; or it fails, or is not done by `deadline`, as when a disk hangs; or the end has come.
    pub(super) async fn room_is_made(&self, before: Seen, deadline: Instant) -> bool {
        let space = &self.keeper.space;
        space.waiting.fetch_add(1, Ordering::AcqRel);
        let _counted = Counted(&space.waiting);
        loop {
            let mut changed = pin!(space.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            match self.look_for_room(before, deadline) {
                Room::Made => return true,
                Room::None => return false,
                Room::Later => changed.await,
            }
        }
    }

    fn look_for_room(&self, before: Seen, deadline: Instant) -> Room {
        // First of all: others may take what was made again and again.
        if self.now() >= deadline {
            return Room::None;
        }
        let space = &self.keeper.space;
        // In the order opposite to that in which a checkpoint changes them, so that one that begins meanwhile is seen, running or ended.
        let changes = self.keeper.changes.load(Ordering::Acquire);
        let runs = space.checkpoint_runs();
        let now = space.seen();
        if now.freed > before.freed {
            return Room::Made;
        }
        let ends = self.backlog.is_closed() || self.keeper.stop.load(Ordering::Acquire);
        if ends || now.failed > before.failed {
            return Room::None;
        }
        if runs {
            return Room::Later;
        }
        if changes > 0 {
            self.want_checkpoint();
            return Room::Later;
        }
        if self.workers.is_busy() {
            return Room::Later;
        }
        // Fewer records live than before, which may be all that was missing; or a worker was done just now.
        match space.seen().settled > before.settled {
            true => Room::Made,
            false => Room::None,
        }
    }
}

struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

const NEVER: u64 = u64::MAX;
/// How long a message waits for room in all. A checkpoint takes seconds at most, unless a disk hangs.
pub(super) const ROOM_PATIENCE: Duration = Duration::from_secs(60);
