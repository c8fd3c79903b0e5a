//! State that the threads of a replicated spool share with its handle.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use posthaste_spool::{AppendError, StreamId};

use crate::member::Member;
use crate::queue::Queue;
use crate::sender::SenderEnd;
use crate::{LogPosition, ShardLog};

pub(crate) struct Hub<L> {
    pub local: L,
    pub log: Arc<dyn ShardLog>,
    pub member: Arc<Member>,
    pub queue: Arc<Queue>,
    pub stream: StreamId,
    pub segment_bytes: u64,
    /// Locked while a snapshot of the position is written.
    pub snapshotting: Mutex<()>,
    /// Outlives the hub: the engine may answer after its end.
    pub progress: Arc<LogProgress>,
    failed: Mutex<Option<Failure>>,
    ended: Mutex<Option<SenderEnd>>,
}

/// Progress of the log, as last seen by the shard's thread. All values only grow.
#[derive(Debug, Default)]
pub(crate) struct LogProgress {
    end: AtomicU64,
    appended_bytes: AtomicU64,
    answers: AtomicU64,
}

impl LogProgress {
    /// Notes a reported end of the log.
    pub fn saw_end(&self, end: LogPosition) {
        self.end.fetch_max(end.get(), Ordering::Relaxed);
    }

    pub fn end(&self) -> LogPosition {
        LogPosition::new(self.end.load(Ordering::Relaxed))
    }

    /// Counts a sent record, which may be a repetition.
    pub fn sent(&self, bytes: usize) {
        self.appended_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn sent_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Relaxed)
    }

    /// The engine has stored a record.
    pub fn was_answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

/// Why no more batches are accepted.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Fenced while another node owns the shard.
    Fenced(Arc<str>),
    /// Poisoned until the spool is reopened.
    Poisoned(Arc<str>),
}

impl Failure {
    pub fn error(&self) -> AppendError {
        match self {
            Failure::Fenced(_) => AppendError::NotOwner,
            Failure::Poisoned(why) => AppendError::Poisoned(why.clone()),
        }
    }

    pub fn why(&self) -> Arc<str> {
        match self {
            Failure::Fenced(why) | Failure::Poisoned(why) => why.clone(),
        }
    }
}

impl<L> Hub<L> {
    pub fn new(local: L, log: Arc<dyn ShardLog>, member: Arc<Member>, stream: StreamId, segment_bytes: u64) -> Self {
        let (queue, snapshotting, progress, failed, ended) = Default::default();
        Hub { local, log, member, queue, stream, segment_bytes, snapshotting, progress, failed, ended }
    }

    pub fn failure(&self) -> Option<Failure> {
        self.failed.lock().expect("nothing panics while it is held").clone()
    }

    /// Stops accepting batches. The first failure is kept, unless it was caused by another owner.
    pub fn fail(&self, failure: Failure) {
        let mut failed = self.failed.lock().expect("nothing panics while it is held");
        if !matches!(*failed, Some(Failure::Poisoned(_))) {
            *failed = Some(failure);
        }
    }

    /// The owner's sender has ended.
    pub fn note_end(&self, end: SenderEnd) {
        *self.ended.lock().expect("nothing panics while it is held") = Some(end);
    }

    /// The end of the current ownership, if it has ended by itself.
    pub fn ended(&self) -> Option<SenderEnd> {
        self.ended.lock().expect("nothing panics while it is held").clone()
    }

    /// Becomes the owner or a standby. A failure caused by another owner is cleared.
    pub fn set_owner(&self, is_owner: bool) {
        *self.ended.lock().expect("nothing panics while it is held") = None;
        let mut failed = self.failed.lock().expect("nothing panics while it is held");
        failed.take_if(|failure| matches!(failure, Failure::Fenced(_)));
        self.queue.state().is_owner = is_owner;
    }
}
