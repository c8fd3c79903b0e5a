//! State that the threads of a replicated spool share with its handle.

use std::sync::{Arc, Mutex};

use posthaste_spool::{AppendError, StreamId};

use crate::Log;
use crate::member::Member;
use crate::queue::Queue;

pub(crate) struct Hub<L> {
    pub local: L,
    pub log: Arc<dyn Log>,
    pub member: Arc<Member>,
    pub queue: Arc<Queue>,
    pub stream: StreamId,
    pub segment_bytes: u64,
    /// Held while a snapshot of the place is written.
    pub snapshotting: Mutex<()>,
    failed: Mutex<Option<Failure>>,
}

/// Why nothing more is accepted.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Another node owns the shard: until this one does again.
    Fenced(Arc<str>),
    /// Until the spool is opened again.
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
    pub fn new(local: L, log: Arc<dyn Log>, member: Arc<Member>, stream: StreamId, segment_bytes: u64) -> Self {
        let (queue, snapshotting, failed) = Default::default();
        Hub { local, log, member, queue, stream, segment_bytes, snapshotting, failed }
    }

    pub fn failure(&self) -> Option<Failure> {
        self.failed.lock().expect("nothing panics while it is held").clone()
    }

    /// Accepts nothing more. The first failure stays, but for one that another owner is the cause of.
    pub fn fail(&self, failure: Failure) {
        let mut failed = self.failed.lock().expect("nothing panics while it is held");
        if !matches!(*failed, Some(Failure::Poisoned(_))) {
            *failed = Some(failure);
        }
    }

    /// Becomes the owner, or a standby: that another one was the owner does not count any more.
    pub fn set_owner(&self, is_owner: bool) {
        let mut failed = self.failed.lock().expect("nothing panics while it is held");
        failed.take_if(|failure| matches!(failure, Failure::Fenced(_)));
        self.queue.state().is_owner = is_owner;
    }
}
