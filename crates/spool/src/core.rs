//! State where the ring's thread records durable batches, for consumers and the keeper.
//!
//! Callbacks waiting in the ring refer to this and not to the ring, as the last of them may be dropped on the ring's
//! own thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use crate::Lsn;
use bytes::Bytes;
use posthaste_watch::Watch;

use crate::bodies::{BodyFile, FinishedUpload};
use crate::front::FrontRegion;
use crate::showing::Showing;
use crate::state::State;
use crate::{AppendError, Consumer, Entry, Published, PublishedBody};

/// A store, for entries about cancelled batches.
pub(crate) trait CancelLog: Send + Sync {
    /// Appends an entry that records a batch's cancellation, as part of the next write. `core` gets the outcome.
    fn append_cancel(&self, core: &Arc<Core>, cancelled: u64);
}

#[derive(Default)]
pub(crate) struct Core {
    state: Mutex<State>,
    /// Held while consumers are looked up and called.
    telling: Mutex<()>,
    /// Like `telling`, for notices of checkpoints: a hanging consumer must not delay a checkpoint.
    announcing: Mutex<()>,
    pub bell: Bell,
    pub showing: Showing,
    /// Bytes appended since the last checkpoint began.
    pub bytes: AtomicU64,
    /// The keeper is called when `bytes` passes this.
    pub bytes_wanted: AtomicU64,
    /// The store's log, once it is open.
    cancels: OnceLock<Weak<dyn CancelLog>>,
}

impl Core {
    /// Adds the core's workers to `watch`.
    pub fn new(watch: Watch) -> Self {
        Core { showing: Showing::new(watch), ..Core::default() }
    }

    /// Sets the open store, which gets cancel entries.
    pub fn opened(&self, store: Weak<dyn CancelLog>) {
        let is_first = self.cancels.set(store).is_ok();
        assert!(is_first, "a core has one store");
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it is held")
    }

    /// The lock for calls to consumers. While it is held, no detached consumer is called or referenced.
    pub fn telling(&self) -> MutexGuard<'_, ()> {
        self.telling.lock().expect("consumers do not panic")
    }

    /// Removes a stream's consumer, and waits until a running call to it has returned.
    pub fn detach(&self, stream: u16) {
        let consumer = self.state().streams.get_mut(&stream).and_then(|stream| stream.consumer.take());
        drop(self.telling());
        drop(self.announcing.lock().expect("consumers do not panic"));
        // Dropped without a lock held: the consumer's drop may run any code.
        drop(consumer);
    }

    /// Notifies each consumer of a checkpoint, without locks that batches need.
    pub fn announce(&self, tell: impl Fn(u16, &dyn Consumer)) {
        let _announcing = self.announcing.lock().expect("consumers do not panic");
        let consumers: Vec<_> = {
            let state = self.state();
            state.streams.iter().filter_map(|(id, stream)| Some((*id, stream.consumer.clone()?))).collect()
        };
        consumers.iter().for_each(|(id, consumer)| tell(*id, &**consumer));
    }

    /// Handles a durable batch: records the streams' needs, then calls the consumers.
    pub fn publish(self: &Arc<Self>, lsn: Lsn, batch: Appended) {
        self.showing.begins();
        let telling = self.telling();
        let mut told: Vec<(u16, Arc<dyn Consumer>, Bytes)> = Vec::new();
        let owes_cancels = {
            let mut state = self.state();
            state.published = lsn.get();
            for entry in batch.entries {
                state.add_entry(lsn.get(), entry.stream.0, entry.needs_body);
                let consumer = state.streams.get(&entry.stream.0).and_then(|stream| stream.consumer.clone());
                told.extend(consumer.map(|consumer| (entry.stream.0, consumer, entry.payload)));
            }
            if let AppendedBody::File(file) = &batch.body {
                state.add_large(lsn.get(), file.wanted());
            }
            !state.cancelled.is_empty()
        };
        let body = batch.body.published();
        for (stream, consumer, payload) in told {
            self.showing.shows(stream);
            consumer.published(Published { lsn, payload, body: body.clone() });
        }
        drop(telling);
        let before = self.bytes.fetch_add(batch.bytes, Ordering::Relaxed);
        let wanted = self.bytes_wanted.load(Ordering::Relaxed);
        if before < wanted && before + batch.bytes >= wanted {
            self.bell.ring(Wanted::Look);
        }
        if owes_cancels {
            // Some batches were refused, or cancelled before a restart.
            self.append_cancels();
        }
    }

    /// Handles a durable batch that was cancelled: consumers do not see it, and an entry in the store's next write
    /// records the cancellation for later openings. Called on the store's own thread.
    pub fn cancelled(self: &Arc<Self>, lsn: Lsn) {
        let mut state = self.state();
        state.published = lsn.get();
        state.cancelled.insert(lsn.get(), false);
        drop(state);
        self.append_cancels();
    }

    /// Appends an entry for each cancelled batch without one. Until it is durable, checkpoints list the batch. A
    /// refused entry is retried with the next published batch: by then there is room.
    fn append_cancels(self: &Arc<Self>) {
        let Some(store) = self.cancels.get().and_then(Weak::upgrade) else { return };
        let new: Vec<u64> = {
            let mut state = self.state();
            let new = state.cancelled.iter_mut().filter(|(_, is_written)| !**is_written);
            new.map(|(lsn, is_written)| (*lsn, *is_written = true).0).collect()
        };
        for lsn in new {
            store.append_cancel(self, lsn);
        }
    }
}

/// A batch on its way through the ring.
pub(crate) struct Appended {
    pub entries: Vec<Entry>,
    pub body: AppendedBody,
    pub bytes: u64,
}

pub(crate) enum AppendedBody {
    None,
    Memory(Arc<[Bytes]>),
    File(FileOfBatch),
}

impl AppendedBody {
    /// Handles the refusal of the batch.
    pub fn refused(&self, error: &AppendError) {
        let AppendedBody::File(file) = self else { return };
        match error {
            AppendError::Poisoned(_) => file.leave(),
            _ => file.give_back(),
        }
    }

    fn published(&self) -> PublishedBody {
        match self {
            AppendedBody::None => PublishedBody::None,
            AppendedBody::Memory(parts) => PublishedBody::Memory(parts.clone()),
            AppendedBody::File(file) => PublishedBody::Stored { len: file.body.whole_len() },
        }
    }
}

/// The body file of an undecided batch.
pub(crate) struct FileOfBatch {
    body: BodyFile,
    core: Arc<Core>,
    /// Taken once the batch's outcome is known.
    upload: Cell<Option<FinishedUpload>>,
}

impl FileOfBatch {
    pub fn new(upload: FinishedUpload, front: FrontRegion, core: Arc<Core>) -> Self {
        upload.keep();
        FileOfBatch { body: BodyFile { front, ..upload.body }, core, upload: Cell::new(Some(upload)) }
    }

    pub fn body(&self) -> BodyFile {
        self.body
    }

    /// The batch is durable, so the file is its body. Returns the file's location.
    fn wanted(&self) -> BodyFile {
        drop(self.upload.take());
        self.body
    }

    /// Leaves the batch undecided: the next opening finds out whether it is durable.
    fn leave(&self) {
        drop(self.upload.take());
    }

    /// The batch was not written: its owner gets the file back. Without an owner the keeper removes it, as the ring's
    /// thread must not block.
    fn give_back(&self) {
        if self.upload.take().is_some_and(|upload| !upload.give_back()) {
            self.core.state().unripe_uploads.push(self.body.upload);
        }
    }
}

impl Drop for FileOfBatch {
    /// The batch was cancelled. A power cut before its cancel entry is durable may still publish it, with its body. So
    /// the body's file is removed only after a checkpoint that excludes this.
    fn drop(&mut self) {
        if self.upload.take().is_some() {
            self.core.state().unripe_uploads.push(self.body.upload);
        }
    }
}

/// Kind of work requested from the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// A checkpoint or a pack may be due.
    Look,
    /// The ring is full: make a checkpoint and packs at once.
    Room,
    Stop,
}

/// Wakes the keeper.
#[derive(Default)]
pub(crate) struct Bell {
    wanted: Mutex<Option<Wanted>>,
    changed: Condvar,
}

impl Bell {
    pub fn ring(&self, wanted: Wanted) {
        let mut now = self.wanted.lock().expect("nothing panics while it is held");
        *now = (*now).max(Some(wanted));
        // Wakes all: a pausing thread may wait besides the keeper.
        self.changed.notify_all();
    }

    /// True if the keeper is asked to stop.
    pub fn is_end_wanted(&self) -> bool {
        *self.wanted.lock().expect("nothing panics while it is held") == Some(Wanted::Stop)
    }

    /// Waits for `timeout` or a stop; true if it was stopped. Other requests stay pending.
    pub fn wait_for_stop(&self, timeout: Duration) -> bool {
        let now = self.wanted.lock().expect("nothing panics while it is held");
        let waited = self.changed.wait_timeout_while(now, timeout, |wanted| *wanted != Some(Wanted::Stop));
        *waited.expect("nothing panics while it is held").0 == Some(Wanted::Stop)
    }

    /// Waits for `timeout`, or until room or a stop is requested. Requests stay pending.
    pub fn pause(&self, timeout: Duration) {
        let now = self.wanted.lock().expect("nothing panics while it is held");
        let waited = self.changed.wait_timeout_while(now, timeout, |wanted| *wanted < Some(Wanted::Room));
        drop(waited.expect("nothing panics while it is held"));
    }

    /// The most urgent work since the last call, or `None` on a timeout.
    pub fn wait(&self, timeout: Duration) -> Option<Wanted> {
        let now = self.wanted.lock().expect("nothing panics while it is held");
        let waited = self.changed.wait_timeout_while(now, timeout, |wanted| wanted.is_none());
        let mut now = waited.expect("nothing panics while it is held").0;
        match *now {
            // A stop request stays pending: it outranks later requests.
            Some(Wanted::Stop) => Some(Wanted::Stop),
            _ => now.take(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_when_room_or_shutdown_is_wanted() {
        // Longer than any test.
        const FOR_EVER: Duration = Duration::from_secs(3600);
        for wanted in [Wanted::Room, Wanted::Stop] {
            let bell = Bell::default();
            bell.ring(Wanted::Look);
            std::thread::scope(|scope| {
                let pause = scope.spawn(|| bell.pause(FOR_EVER));
                bell.ring(wanted);
                pause.join().expect("it ends");
            });
            bell.pause(FOR_EVER);
            assert_eq!(bell.wait(FOR_EVER), Some(wanted));
        }
    }
}
