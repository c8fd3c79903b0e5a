//! One shard of a node: its spool and its service.

use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use crate::cell::{Digest, MemberReport};
use crate::hub::LogProgress;
use crate::local::LocalSpool;
use crate::member::DigestHook;
use crate::ownership::OwnReport;
use crate::ownership::marks::Marks;
use crate::queue::Told;
use crate::replicated::{MemberPlace, ReplicatedSpool};
use crate::sender::{OwnerIdentity, SenderEnd};
use crate::{LogPosition, ShardLog};

/// Acts for a shard while this node owns it, such as the queue of a relay. The node's thread makes all calls but
/// [`digest_at`](Self::digest_at), one at a time. They must not block.
pub trait ShardService: Send + Sync {
    /// This node owns the shard, and its spool has the whole log. Begin to act while the lease allows it.
    fn promote(&self, lease: Lease);

    /// Begin nothing new, let work in progress end, and call `done`. Transactions that had [begun](Lease::begin) have
    /// ended, or timed out.
    fn release(&self, done: Box<dyn FnOnce() + Send>);

    /// The spool is now that of a standby: drop work in progress. Unanswered entries may return through the log.
    fn demote(&self);

    /// The stream has shown exactly the entries before the `digest` record at this position. On the ring's thread.
    fn digest_at(&self, position: LogPosition);

    /// The last digest that was computed.
    fn digest(&self) -> Option<Digest>;

    /// True while it cannot act for the shard. The node then gives the shard away, and is no candidate for [a
    /// while](crate::OwnershipTimes::pause).
    fn has_failed(&self) -> bool {
        false
    }
}

/// A shard that a node is a member of.
pub struct NodeShard {
    pub(super) number: u16,
    pub(super) is_home: bool,
    pub(super) spool: Arc<dyn ShardSpool>,
    pub(super) service: Arc<dyn ShardService>,
}

impl NodeShard {
    /// A shard with a standby's spool: see [`ReplicatedSpool::follow`]. `is_home`: this node creates the cell of a new
    /// shard, and gets the shard back.
    pub fn new<L: LocalSpool>(spool: Arc<ReplicatedSpool<L>>, is_home: bool, service: Arc<dyn ShardService>) -> Self {
        NodeShard { number: spool.shard(), is_home, spool, service }
    }
}

/// A [`ReplicatedSpool`] of any kind.
pub(super) trait ShardSpool: Send + Sync {
    fn id(&self) -> u64;
    fn log(&self) -> &Arc<dyn ShardLog>;
    fn progress(&self) -> &LogProgress;
    fn place(&self) -> Option<MemberPlace>;
    /// Why the member has stopped applying, until its spool is reopened.
    fn stopped(&self) -> Option<Arc<str>>;
    fn ended(&self) -> Option<SenderEnd>;
    fn log_digest(&self);
    fn on_digest(&self, hook: Option<DigestHook>);
    fn promote_then(&self, identity: OwnerIdentity, then: Box<dyn FnOnce(Result<(), SenderEnd>) + Send>);
    fn demote_then(&self, then: Told);
    fn drain_then(&self, then: Told);
}

impl<L: LocalSpool> ShardSpool for ReplicatedSpool<L> {
    fn id(&self) -> u64 {
        self.id()
    }

    fn log(&self) -> &Arc<dyn ShardLog> {
        self.log()
    }

    fn progress(&self) -> &LogProgress {
        self.progress()
    }

    fn place(&self) -> Option<MemberPlace> {
        self.place()
    }

    fn stopped(&self) -> Option<Arc<str>> {
        self.poison().or_else(|| self.local().poisoned())
    }

    fn ended(&self) -> Option<SenderEnd> {
        self.ended()
    }

    fn log_digest(&self) {
        self.log_digest();
    }

    fn on_digest(&self, hook: Option<DigestHook>) {
        self.on_digest(hook);
    }

    fn promote_then(&self, identity: OwnerIdentity, then: Box<dyn FnOnce(Result<(), SenderEnd>) + Send>) {
        self.promote_then(identity, then);
    }

    fn demote_then(&self, then: Told) {
        self.demote_then(then);
    }

    fn drain_then(&self, then: Told) {
        self.drain_then(then);
    }
}

/// Drives a shard: its spool, service and reports.
pub(super) struct DrivenShard {
    pub number: u16,
    pub spool: Arc<dyn ShardSpool>,
    pub service: Arc<dyn ShardService>,
    /// Epoch that the spool is opening, if any.
    pub opening: Option<u64>,
    pub tenure: Option<Tenure>,
    /// Orders that the spool has not answered.
    pub orders: usize,
    /// Earlier ends of the log, to date unapplied records.
    marks: Marks,
    marked_at: Option<Duration>,
    /// Start of the last look at the log.
    looked_at: Option<Duration>,
    pub is_looking: bool,
    /// The stop of its member was reported.
    pub is_stop_told: bool,
    answers: u64,
}

/// An ownership with an active service.
pub(super) struct Tenure {
    pub lease: Lease,
    pub release: Option<Releasing>,
}

/// An ownership that is being handed over.
pub(super) struct Releasing {
    pub since: Duration,
    /// True once the service was asked to stop.
    pub is_service_told: bool,
}

impl DrivenShard {
    pub fn new(shard: NodeShard) -> Self {
        let NodeShard { number, spool, service, .. } = shard;
        let told = service.clone();
        spool.on_digest(Some(Box::new(move |position| told.digest_at(position))));
        DrivenShard {
            number,
            spool,
            service,
            opening: None,
            tenure: None,
            orders: 0,
            marks: Marks::default(),
            marked_at: None,
            looked_at: None,
            is_looking: false,
            is_stop_told: false,
            answers: 0,
        }
    }

    /// The state of the member, or why it has stopped applying.
    pub fn report(&mut self, now: Duration) -> Result<OwnReport, Arc<str>> {
        if let Some(why) = self.spool.stopped() {
            return Err(why);
        }
        let place = self.spool.place();
        let (log, applied) = place.map_or((0, LogPosition::START), |it| (it.log, it.applied));
        if self.marked_at.is_none_or(|at| now.saturating_sub(at) >= MARK_EVERY) {
            self.marked_at = Some(now);
            self.marks.note(now, self.spool.progress().end(), 0, LAG_MOST);
        }
        let lag = self.marks.behind(applied, now).0;
        let report = MemberReport { spool: self.spool.id(), log, applied, digest: self.service.digest() };
        Ok(OwnReport { report, lag })
    }

    /// True if the engine has stored records of this owner since the last call.
    pub fn has_new_answers(&mut self) -> bool {
        let answers = self.spool.progress().answers();
        std::mem::replace(&mut self.answers, answers) != answers
    }

    /// True if the owner shall look at the log now.
    pub fn begin_look(&mut self, now: Duration, pace: Duration) -> bool {
        let is_due = !self.is_looking && self.looked_at.is_none_or(|at| now.saturating_sub(at) >= pace);
        if is_due {
            (self.is_looking, self.looked_at) = (true, Some(now));
        }
        is_due
    }

    /// Asks the service once to stop in this ownership.
    pub fn release_service(&mut self, epoch: u64, told: Told) {
        let release = self.tenure_of(epoch).and_then(|tenure| tenure.release.as_mut());
        if let Some(release) = release.filter(|release| !release.is_service_told) {
            release.is_service_told = true;
            self.service.release(told);
        }
    }

    /// The ownership of this epoch, if it is still active.
    pub fn tenure_of(&mut self, epoch: u64) -> Option<&mut Tenure> {
        self.tenure.as_mut().filter(|tenure| tenure.lease.epoch() == epoch)
    }
}

impl Drop for DrivenShard {
    fn drop(&mut self) {
        // The service may hold the spool, which would hold the service.
        self.spool.on_digest(None);
    }
}

/// Interval between notes of the log's end.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// An older lag counts as this.
const LAG_MOST: Duration = Duration::from_secs(3600);
