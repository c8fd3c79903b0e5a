//! The queue of mail to other hosts: decides which mail is sent, when, and in which order.
//!
//! For every program that sends mail on, and for tools that read what its queue has kept.
//!
//! A state machine: no IO, no threads and no clock ([`Queue::tick`] gets the time of a [`QueueClock`]); a seed decides every
//! random choice. Only [`Queue::apply`] changes lasting state, by the entries of a stream in their order, so a replay
//! gives the same queue. A decision has three steps: a method returns a [`Change`], the caller appends it to the spool,
//! and applies the entry once it is durable. In between the recipient is *busy*: nothing else is decided about it.
//! Addresses are not kept; they are in the entry of the message.
//!
//! ```text
//!              due               next()              Deferred
//! Scheduled ────────► Due ─────────────► Busy ─────────────────► Scheduled
//!     ▲                                   │ Delivered, Failed, Suppressed, Deleted
//!     │ Released                          ├──────────────────────────────────► gone
//!     └──────────────── Held ◄────────────┘ Held
//! ```
//!
//! A settled recipient may owe its sender a notice: it stays known, with its message, until [`What::Told`]. See
//! [`OwedNotice`].
//!
//! | question | file |
//! | --- | --- |
//! | the change of each entry | `apply.rs` |
//! | the next message of a site | `ready.rs`, turns: `turns.rs` |
//! | retries and expiry | `schedule.rs`, `wheel.rs` |
//! | routes, sources | `routes.rs`, `pick.rs` |
//! | suspensions, diversions, slow-downs | `suspended` of [`Queue`], `divert.rs`, `slow.rs`; durable: `entry.rs`, `snapshot.rs` |
//! | operators' commands | `admin.rs` |
//!
//! An operator releases held recipients; those held until a time are released then ([`Queue::end_holds`]).
//!
//! A due recipient waits in the queue of its tenant, campaign and domain (the scheduled level). [`Queue::route`]
//! assigns such a queue to a site and to sources. Each pair of them is a ready queue, which holds no recipients itself:
//! it takes turns among tenants, then among their queues. So it needs no memory per recipient, and mail that waits for
//! one site holds up no other.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
mod apply;
mod change;
mod clock;
mod codec;
mod destinations;
mod digest;
mod divert;
pub mod entry;
mod gate;
mod imported;
mod names;
mod notices;
mod owed;
mod pick;
mod queued;
mod ready;
mod recipient;
mod routes;
mod schedule;
mod scope;
mod served_kinds;
mod slow;
mod snapshot;
mod table;
mod tally;
mod temporary;
mod turns;
mod wheel;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use posthaste_shaping::MailScope;
use posthaste_spool::Lsn;

pub use admin::{QueueAction, RecipientState, Selection, Waits};
pub use clock::{QueueClock, STOPPED_SECS_MAX, Secs};
pub use codec::QueueDecodeError;
pub use destinations::{QueueId, QueueName, domain_of};
pub use divert::Diversion;
pub use entry::{Change, EntryText, QueueEntry, Queued, QueuedRecipient, QueuedRet, RecipientKey, Status, What};
pub use gate::{Gate, Parked};
pub use imported::{IMPORT_KEPT_SECS, ImportNoted, Imported, ImportedState, Origin};
pub use notices::DueNotice;
pub use owed::{OwedNotice, OwedRecipient};
pub use ready::{AttemptOutcome, Prefer, Take, Taken, Transaction};
pub use routes::{Hop, LateHop, RouteSource};
pub use schedule::{RetrySchedule, ScheduleRule, Schedules};
pub use served_kinds::ServedKinds;
pub use slow::Slow;
pub use snapshot::{QueueRestoreError, QueueSnapshot};
pub use tally::{QueueTally, SuspendedPart};
pub use turns::ReadyId;

use destinations::Destinations;
use entry::HoldReason;
use imported::Imports;
use names::Names;
use owed::OwedNotices;
use table::{BUSY, DUE, HELD, Id, Table};
use temporary::Temporary;
use turns::Ready;
use wheel::Wheel;

/// Mail to be sent. See the [crate](self).
#[derive(Debug)]
pub struct Queue {
    table: Table,
    wheel: Wheel,
    /// A list of recipients whose hold has ended, to be released.
    ended_holds: Id,
    names: Names,
    destinations: Destinations,
    schedules: Schedules,
    seed: u64,
    now: Secs,
    is_running: bool,
    seen: Lsn,
    /// Messages have arrived up to here; those not in the table are settled.
    last_message: Lsn,
    recorded: Secs,
    /// Messages with a time of expiry of their own.
    expires: HashMap<Lsn, Secs>,
    suspended: BTreeMap<MailScope, (Secs, EntryText)>,
    diverted: Temporary<Diversion>,
    slowed: Temporary<Slow>,
    imports: Imports,
    released: Vec<Lsn>,
    owed: OwedNotices,
    ready: Vec<Ready>,
    ready_free: Vec<u32>,
    ready_by_name: HashMap<(Arc<str>, Arc<str>), u32>,
    unrouted: VecDeque<QueueId>,
    woken: VecDeque<ReadyId>,
    notices: Vec<DueNotice>,
    /// Recipients whose sender is being notified of the delay.
    delays: BTreeSet<RecipientKey>,
    sweep_at: RecipientKey,
    /// Actions on busy recipients.
    pending: HashMap<RecipientKey, QueueAction>,
    /// Pending recipients whose attempt has ended.
    pending_due: Vec<RecipientKey>,
}

impl Queue {
    /// An empty queue, to be filled by a replay. `seed` decides the random parts of pauses.
    pub fn new(schedules: Schedules, seed: u64) -> Self {
        let mut table = Table::new();
        let wheel = Wheel::new(&mut table);
        let ended_holds = table.list();
        Queue {
            table,
            wheel,
            ended_holds,
            names: Names::default(),
            destinations: Destinations::default(),
            schedules,
            seed,
            now: 0,
            is_running: false,
            seen: Lsn::ZERO,
            last_message: Lsn::ZERO,
            recorded: 0,
            expires: HashMap::new(),
            suspended: BTreeMap::new(),
            diverted: Temporary::default(),
            slowed: Temporary::default(),
            imports: Imports::default(),
            released: Vec::new(),
            owed: OwedNotices::default(),
            ready: Vec::new(),
            ready_free: Vec::new(),
            ready_by_name: HashMap::new(),
            unrouted: VecDeque::new(),
            woken: VecDeque::new(),
            notices: Vec::new(),
            delays: BTreeSet::new(),
            sweep_at: FIRST,
            pending: HashMap::new(),
            pending_due: Vec::new(),
        }
    }

    /// Ends the replay: recipients become due from now on. Returns the recipients in flight in three crashes, to be
    /// recorded as held.
    pub fn start(&mut self, now: Secs) -> Vec<Change> {
        assert!(!self.is_running, "it starts once");
        (self.is_running, self.now) = (true, now);
        self.keep_owing();
        self.owed.note_all();
        self.wheel.start(now);
        let mut from = FIRST;
        let mut changes = Vec::new();
        while let Some((ids, next)) = self.table.open_from(from) {
            changes.extend(ids.into_iter().filter_map(|id| self.start_one(id)));
            from = next;
        }
        changes
    }

    /// Keeps messages with an owed notice: a snapshot may show all recipients of one as settled before the entry of its
    /// notice is replayed. Call it after the replay of a queue that is never [started](Self::start).
    pub fn keep_owing(&mut self) {
        let owed = &self.owed;
        self.released.retain(|message| !owed.has(*message));
    }

    fn start_one(&mut self, id: Id) -> Option<Change> {
        let is_quarantined = self.table.change(id, |recipient| {
            if !recipient.is(table::BEGUN) {
                return false;
            }
            recipient.set(table::BEGUN, false);
            recipient.set_crashes(recipient.crashes() + 1);
            let is_quarantined = recipient.crashes() >= table::CRASHES_MAX && !recipient.is(HELD);
            recipient.set(BUSY, is_quarantined || recipient.is(BUSY));
            is_quarantined
        });
        if is_quarantined {
            return Some(Change { key: self.table.key(id), what: What::Held(HoldReason::Quarantine) });
        }
        self.settle_in(id);
        None
    }

    /// Advances to `now`: due recipients become ready, suspensions and holds end, and expired or late recipients become
    /// a [notice](Self::take_notices). Call it every second, or when something waits for the time. Going back has no
    /// effect.
    pub fn tick(&mut self, now: Secs) {
        let before = self.now;
        self.now = before.max(now);
        while let Some(id) = self.wheel.advance(&mut self.table, self.now) {
            self.come_due(id);
        }
        self.end_suspensions();
        self.diverted.end(self.now);
        self.slowed.end(self.now);
        self.sweep(self.now - before);
    }

    /// The time of the last [`tick`](Self::tick).
    pub fn now(&self) -> Secs {
        self.now
    }

    /// The latest time that an entry or a snapshot has recorded, for [`QueueClock::start`].
    pub fn recorded(&self) -> Secs {
        self.recorded
    }

    /// The last entry that was applied.
    pub fn seen(&self) -> Lsn {
        self.seen
    }

    /// Notes that no entry up to here is missing.
    pub fn pass(&mut self, through: Lsn) {
        self.seen = self.seen.max(through);
    }

    /// Number of unsettled recipients.
    pub fn recipients(&self) -> u64 {
        self.table.open()
    }

    /// Number of recipients that are unsettled or that a notice is owed for.
    pub fn filling(&self) -> u64 {
        self.recipients() + self.owed_notices()
    }

    /// A sum over the recipients that are not settled. Equal on all members of a shard that have applied the same
    /// entries, whenever each was started.
    pub fn digest(&self) -> u64 {
        self.table.digest()
    }

    /// Number of a tenant's unsettled recipients.
    pub fn recipients_of_tenant(&self, tenant: &str) -> u64 {
        self.names.find(tenant).map_or(0, |tenant| self.destinations.of_tenant(tenant))
    }

    /// True if the table has room for this many more recipients.
    pub fn has_room(&self, recipients: u64) -> bool {
        self.table.open() + recipients <= table::RECIPIENTS_MAX
    }

    /// Messages settled since the last call, with all notices made: their bodies and entries are no longer needed.
    pub fn take_released(&mut self) -> Vec<Lsn> {
        std::mem::take(&mut self.released)
    }

    /// The messages that [`take_released`](Self::take_released) would return, in the order of settlement.
    pub fn released(&self) -> &[Lsn] {
        &self.released
    }

    /// Puts back messages of [`take_released`](Self::take_released) that could not be released.
    pub fn not_released(&mut self, messages: Vec<Lsn>) {
        self.released.extend(messages);
    }

    /// The first message with recipients or an owed notice; all before it are settled.
    pub fn first_message(&self) -> Option<Lsn> {
        let open = self.table.open_from(FIRST).and_then(|(ids, _)| Some(self.table.message(*ids.first()?).0));
        open.into_iter().chain(self.owed.first_message()).min()
    }

    /// Replaces the schedules: next attempts stay, ages count at once.
    pub fn set_schedules(&mut self, schedules: Schedules) {
        self.schedules = schedules;
        for destination in self.destinations.iter_mut() {
            let [tenant, campaign, domain, _] = destination.key.map(|name| &**self.names.get(name));
            destination.schedule = self.schedules.find(tenant, campaign, domain);
        }
    }

    /// Adds a recipient to the list for its state, once the queue runs.
    fn settle_in(&mut self, id: Id) {
        if !self.is_running {
            return;
        }
        self.table.unlink(id);
        let recipient = self.table.change(id, |recipient| {
            recipient.set(DUE, false);
            *recipient
        });
        let due = recipient.due;
        if recipient.is(BUSY) || recipient.is(HELD) && !HoldReason::of(due).has_end() {
            return;
        }
        if due <= self.now {
            self.come_due(id);
        } else {
            self.wheel.insert(&mut self.table, id, due);
        }
    }

    /// Handles the due time of a recipient in no list: its attempt, or the end of its hold.
    fn come_due(&mut self, id: Id) {
        if self.table.get(id).is(HELD) { self.table.push_back(self.ended_holds, id) } else { self.enqueue(id, false) }
    }

    fn schedule_of(&self, id: Id) -> &RetrySchedule {
        self.schedules.get(self.destinations.at(self.table.get(id).queue).schedule)
    }
}

const FIRST: RecipientKey = RecipientKey { message: Lsn::ZERO, number: 0 };

#[cfg(test)]
mod tests;
