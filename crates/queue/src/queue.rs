//! The queue: its state, times and counts.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use posthaste_shaping::MailScope;
use posthaste_spool::Lsn;

use super::change::{Change, DueNotice, HoldReason, QueueAction, RecipientKey, What};
use super::clock::Secs;
use super::codec::EntryText;
use super::destinations::{Destinations, QueueId, QueueName};
use super::imported::{Imports, Origin};
use super::names::Names;
use super::owed::OwedNotices;
use super::recipient::{BEGUN, BUSY, CRASHES_MAX, DUE, HELD, Id, TOLD};
use super::schedule::{RetrySchedule, Schedules};
use super::table::{RECIPIENTS_MAX, Table};
use super::tally::QueueTally;
use super::temporary::{Diversion, Slow, Temporary};
use super::turns::{Ready, ReadyId};
use super::wheel::Wheel;

/// Mail to be sent. See the [crate](crate).
#[derive(Debug)]
pub struct Queue {
    pub(super) table: Table,
    wheel: Wheel,
    /// A list of recipients whose hold has ended, to be released.
    pub(super) ended_holds: Id,
    pub(super) names: Names,
    pub(super) destinations: Destinations,
    pub(super) schedules: Schedules,
    pub(super) seed: u64,
    pub(super) now: Secs,
    pub(super) is_running: bool,
    pub(super) seen: Lsn,
    /// Messages have arrived up to here; those not in the table are settled.
    pub(super) last_message: Lsn,
    pub(super) recorded: Secs,
    /// Messages with a time of expiry of their own.
    pub(super) expires: HashMap<Lsn, Secs>,
    pub(super) suspended: BTreeMap<MailScope, (Secs, EntryText)>,
    pub(super) diverted: Temporary<Diversion>,
    pub(super) slowed: Temporary<Slow>,
    pub(super) imports: Imports,
    pub(super) released: Vec<Lsn>,
    pub(super) owed: OwedNotices,
    pub(super) ready: Vec<Ready>,
    pub(super) ready_free: Vec<u32>,
    pub(super) ready_by_name: HashMap<(Arc<str>, Arc<str>), u32>,
    pub(super) unrouted: VecDeque<QueueId>,
    pub(super) woken: VecDeque<ReadyId>,
    pub(super) notices: Vec<DueNotice>,
    /// Recipients whose sender is being notified of the delay.
    pub(super) delays: BTreeSet<RecipientKey>,
    pub(super) sweep_at: RecipientKey,
    /// Actions on busy recipients.
    pub(super) pending: HashMap<RecipientKey, QueueAction>,
    /// Pending recipients whose attempt has ended.
    pub(super) pending_due: Vec<RecipientKey>,
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
            sweep_at: RecipientKey::FIRST,
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
        let mut from = RecipientKey::FIRST;
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
            if !recipient.is(BEGUN) {
                return false;
            }
            recipient.set(BEGUN, false);
            recipient.set_crashes(recipient.crashes() + 1);
            let is_quarantined = recipient.crashes() >= CRASHES_MAX && !recipient.is(HELD);
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

    /// The latest time that an entry or a snapshot has recorded, for [`QueueClock::start`](super::QueueClock::start).
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

    /// The queues that have recipients.
    pub fn queues(&self) -> Vec<QueueId> {
        self.destinations.ids()
    }

    /// The names of a queue and its number of recipients. `None` if it is empty.
    pub fn queue(&self, id: QueueId) -> Option<(QueueName, u32)> {
        let destination = self.destinations.get(id)?;
        let [tenant, campaign, domain, pool] = destination.key.map(|name| self.names.get(name).clone());
        Some((QueueName { tenant, campaign, domain, pool }, destination.open))
    }

    /// Counts of a queue. `None`: it has no recipients any more.
    pub fn tally(&self, id: QueueId) -> Option<QueueTally> {
        self.destinations.get(id).map(|_| self.table.tallies.at(id.place))
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
        self.table.open() + recipients <= RECIPIENTS_MAX
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
        let open =
            self.table.open_from(RecipientKey::FIRST).and_then(|(ids, _)| Some(self.table.message(*ids.first()?).0));
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
    pub(super) fn settle_in(&mut self, id: Id) {
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

    pub(super) fn schedule_of(&self, id: Id) -> &RetrySchedule {
        self.schedules.get(self.destinations.at(self.table.get(id).queue).schedule)
    }

    /// True if a recipient of a message was imported within [`IMPORT_KEPT_SECS`](super::IMPORT_KEPT_SECS).
    pub fn was_imported(&self, origin: Origin, number: u16) -> bool {
        self.imports.has(origin, number)
    }

    /// True if this many more recipients can be imported.
    pub fn can_import(&self, recipients: usize) -> bool {
        self.imports.has_room(recipients)
    }

    /// A message's own expiry; 0 without one.
    pub fn own_expiry(&self, message: Lsn) -> Secs {
        self.expires.get(&message).copied().unwrap_or(0)
    }

    /// True if the sender of a recipient was notified of the delay.
    pub fn is_delay_told(&self, key: RecipientKey) -> bool {
        self.table.find(key).is_some_and(|id| self.table.get(id).is(TOLD))
    }
}
