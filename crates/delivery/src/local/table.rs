//! The state of each message on one mount. Bookkeeping only: reads no clock and touches no disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use posthaste_spool::Lsn;

use super::entry::{MailboxDelivery, OlderBody, Removal};
use super::removals::Removals;

/// A target: the batch with its body, and its number among the message's targets.
pub(crate) type Key = (Lsn, u16);

/// Progress of the delivery to one mailbox.
///
/// ```text
///              a thread takes it          it is in new/            a sync that began later
///   ┌─► Queued ─────────────────► Writing ─────────────► Visible ──────────────────────────► gone
///   │     ▲  │                     │   │                    │          succeeded
///   │     │  │ its mailbox does    │   │ a sync failed      │
///   │     │  ▼ not answer          │   │ meanwhile          │ a sync failed
///   │   Waiting ◄──────────────────┘   │                    │
///   │      an attempt failed           │                    │
///   └──────────────────────────────────┴────────────────────┘
/// ```
///
/// A target with a lost body or a removed mailbox leaves from `Writing`: it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits for a free thread.
    Queued,
    /// A worker is writing it.
    Writing,
    /// In its mailbox, perhaps only in the page cache.
    Visible,
    /// Waits until its mailbox is tried again, at the time in [`Troubles`](super::troubles::Troubles).
    Waiting,
}

/// Kind of write for a target, by what is known about its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// No file exists: write it.
    Write,
    /// After a crash: a readable file came from the disk, or is still in the page cache. If there is none, write it.
    LookFirst,
    /// After a failed sync or attempt: a readable file may not be on the disk. Replace it by a new one, or write it for
    /// the first time.
    Renew,
    /// Like `Renew`, but the target was visible: if the file is gone, its owner removed it.
    RenewIfThere,
}

/// A message's body in memory, with its share of the memory for all bodies; dropping it releases the share.
pub(crate) type Held<B> = Option<B>;

/// A message, and its targets on this mount that are not durable.
pub(crate) struct Message<B> {
    /// LSN of the message's current entry.
    pub entry: Lsn,
    pub deliver: Arc<MailboxDelivery>,
    pub body_len: u64,
    held: Held<B>,
    targets: Vec<Target>,
}

struct Target {
    number: u16,
    state: State,
    task: Task,
    /// True if a sync has failed during the write.
    spoiled: bool,
    /// True if a sync has failed since the first write, and the file was not rewritten since.
    in_doubt: bool,
}

/// The messages of one mount, by the batch with the body.
pub(crate) struct Table<B> {
    messages: BTreeMap<Lsn, Message<B>>,
    /// LSNs of current entries, each with its number of messages.
    entries: BTreeMap<Lsn, usize>,
    /// Bytes of the bodies and the state of all messages.
    bytes: u64,
    /// The highest entry applied.
    seen: Lsn,
    /// Targets visible since the last sync began.
    visible: Vec<Key>,
    /// The entry of a failed sync: needed while anything is in doubt.
    failed_sync: Option<Lsn>,
    in_doubt: usize,
    /// Messages removed since the last call of [`take_released`](Self::take_released).
    released: Vec<Lsn>,
    /// Messages given up for their last mailbox since the last round of the syncing thread.
    given_up: BTreeSet<Lsn>,
    removals: Removals,
}

/// Bytes that a message counts where memory and disk are bounded: its body, and the state of each target.
pub(super) fn memory_of(deliver: &MailboxDelivery, body_len: u64) -> u64 {
    let of_targets =
        deliver.targets.iter().map(|(_, target)| target.mailbox.len() + target.prefix.len() + TARGET_BYTES);
    body_len + of_targets.sum::<usize>() as u64
}

/// Approximate size of a target in a table and its queues, without its texts.
const TARGET_BYTES: usize = 256;

/// Work for a thread.
#[derive(Clone)]
pub(crate) struct Taken<B> {
    pub key: Key,
    pub deliver: Arc<MailboxDelivery>,
    pub body_len: u64,
    pub body: Held<B>,
    pub task: Task,
    /// True if the mailbox was removed since the message was accepted.
    pub is_removed: bool,
}

impl<B> Default for Table<B> {
    fn default() -> Self {
        Table {
            messages: BTreeMap::new(),
            entries: BTreeMap::new(),
            bytes: 0,
            seen: Lsn::ZERO,
            visible: Vec::new(),
            failed_sync: None,
            in_doubt: 0,
            released: Vec::new(),
            given_up: BTreeSet::new(),
            removals: Removals::default(),
        }
    }
}

impl<B: Clone> Table<B> {
    /// Notes an applied entry of any kind.
    pub fn saw(&mut self, entry: Lsn) {
        self.seen = self.seen.max(entry);
    }

    /// The highest applied entry.
    pub fn seen(&self) -> Lsn {
        self.seen
    }

    /// Keeps an entry of an unknown kind: the position stops before it.
    pub fn keep_entry(&mut self, entry: Lsn) {
        *self.entries.entry(entry).or_default() += 1;
    }

    /// Sets the removals found at an opening.
    pub fn set_removals(&mut self, removals: Removals) {
        self.removals = removals;
    }

    /// Notes the removal of a mailbox.
    pub fn removed(&mut self, entry: Lsn, removal: Removal) {
        self.removals.show(entry, removal);
    }

    /// True if a target's mailbox was removed since the message was accepted.
    pub fn is_removed(&self, key: Key) -> bool {
        let covers = |message: &Message<B>| self.removals.cover(message.mailbox(key.1), key.0);
        !self.removals.is_empty() && self.messages.get(&key.0).is_some_and(covers)
    }

    /// Removals that hold the position at or below an entry, to be rewritten.
    pub fn old_removals(&self, through: Lsn) -> Vec<Removal> {
        self.removals.through(through).collect()
    }

    /// Called when no later entry refers to finished targets any more: drops their memory.
    pub fn all_is_carried(&mut self) {
        self.given_up.clear();
        self.removals.let_go(self.messages.keys().next().copied());
    }

    /// Notes, at an opening, that a sync begun with this entry may have failed.
    pub fn doubt_since(&mut self, begun: Lsn) {
        self.failed_sync = Some(self.failed_sync.map_or(begun, |other| other.min(begun)));
    }

    /// Adds a message. `targets`: the targets of `deliver` that are not durable, with their states; empty if all are.
    pub fn insert(
        &mut self,
        body: Lsn,
        entry: Lsn,
        deliver: Arc<MailboxDelivery>,
        body_len: u64,
        held: Held<B>,
        targets: impl IntoIterator<Item = (u16, State, Task)>,
    ) {
        let is_in_doubt = |task: Task| self.failed_sync.is_some() && matches!(task, Task::Renew | Task::RenewIfThere);
        let target =
            |(number, state, task)| Target { number, state, task, spoiled: false, in_doubt: is_in_doubt(task) };
        let targets: Vec<Target> = targets.into_iter().map(target).collect();
        if targets.is_empty() {
            return self.released.push(body);
        }
        let visible = targets.iter().filter(|target| target.state == State::Visible);
        self.visible.extend(visible.map(|target| (body, target.number)));
        self.in_doubt += targets.iter().filter(|target| target.in_doubt).count();
        *self.entries.entry(entry).or_default() += 1;
        self.bytes += memory_of(&deliver, body_len);
        self.messages.insert(body, Message { entry, deliver, body_len, held, targets });
    }

    /// Replaces a message's entry by a later one; false if the message is not known. One given up while that entry was
    /// in flight stays gone.
    pub fn carried(&mut self, body: Lsn, entry: Lsn) -> bool {
        let Some(message) = self.messages.get_mut(&body) else { return self.given_up.contains(&body) };
        let before = std::mem::replace(&mut message.entry, entry);
        *self.entries.entry(entry).or_default() += 1;
        self.let_go(before);
        true
    }

    pub fn get(&self, body: Lsn) -> Option<&Message<B>> {
        self.messages.get(&body)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Lsn, &Message<B>)> {
        self.messages.iter().map(|(body, message)| (*body, message))
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Bytes of the bodies and the state of all messages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(test)]
    pub fn state(&self, key: Key) -> Option<State> {
        self.messages.get(&key.0)?.target(key.1).map(|target| target.state)
    }

    /// True if a sync would make anything durable.
    pub fn has_visible(&self) -> bool {
        !self.visible.is_empty()
    }

    /// Takes a target for a thread.
    pub fn take(&mut self, key: Key) -> Taken<B> {
        let is_removed = self.is_removed(key);
        let message = self.messages.get_mut(&key.0).expect("what is queued is known");
        let target = message.target_mut(key.1, State::Queued);
        (target.state, target.spoiled) = (State::Writing, false);
        let task = target.task;
        let deliver = message.deliver.clone();
        let body_len = message.body_len;
        let body = message.held.clone();
        Taken { key, deliver, body_len, body, task, is_removed }
    }

    /// Notes a target as visible. False: a sync has failed during the write, so it is queued again.
    pub fn written(&mut self, key: Key) -> bool {
        let message = self.messages.get_mut(&key.0).expect("what is written is known");
        let target = message.target_mut(key.1, State::Writing);
        if target.spoiled {
            (target.state, target.task, target.spoiled) = (State::Queued, Task::RenewIfThere, false);
            return false;
        }
        target.state = State::Visible;
        self.in_doubt -= usize::from(std::mem::take(&mut target.in_doubt));
        self.visible.push(key);
        message.let_body_go();
        self.end_of_doubt();
        true
    }

    /// Notes a failed attempt.
    pub fn failed(&mut self, key: Key) {
        let message = self.messages.get_mut(&key.0).expect("what is written is known");
        let target = message.target_mut(key.1, State::Writing);
        target.state = State::Waiting;
        if target.task != Task::RenewIfThere {
            // After any error, a part of the file may be there.
            target.task = Task::Renew;
        }
        message.let_body_go();
    }

    /// Puts a target off.
    pub fn put_off(&mut self, key: Key) {
        let message = self.messages.get_mut(&key.0).expect("what is queued is known");
        message.target_mut(key.1, State::Queued).state = State::Waiting;
        message.let_body_go();
    }

    /// Queues a target to try its mailbox again.
    pub fn try_again(&mut self, key: Key) {
        let message = self.messages.get_mut(&key.0).expect("what waits is known");
        message.target_mut(key.1, State::Waiting).state = State::Queued;
    }

    /// Takes the in-memory bodies of these targets, which are then read from the spool.
    pub fn take_bodies(&mut self, keys: &[Key]) -> Vec<B> {
        keys.iter().filter_map(|key| self.messages.get_mut(&key.0)?.held.take()).collect()
    }

    /// Begins a sync; returns the targets that it will make durable.
    pub fn sync_begins(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.visible)
    }

    /// Undoes the beginning of a sync.
    pub fn sync_did_not_begin(&mut self, covered: Vec<Key>) {
        self.visible.extend(covered);
    }

    /// Notes a successful sync.
    pub fn synced(&mut self, covered: &[Key]) {
        for &(body, number) in covered {
            self.remove_targets(body, |target| target.number == number && target.state == State::Visible);
        }
    }

    /// Gives a target up for good. Returns its message's entry.
    pub fn gave_up(&mut self, key: Key) -> Lsn {
        let message = self.messages.get_mut(&key.0).expect("what is written is known");
        let entry = message.entry;
        self.in_doubt -= usize::from(message.target_mut(key.1, State::Writing).in_doubt);
        self.remove_targets(key.0, |target| target.number == key.1);
        if !self.messages.contains_key(&key.0) {
            self.given_up.insert(key.0);
        }
        self.end_of_doubt();
        entry
    }

    fn remove_targets(&mut self, body: Lsn, which: impl Fn(&Target) -> bool) {
        let Some(message) = self.messages.get_mut(&body) else { return };
        message.targets.retain(|target| !which(target));
        if message.targets.is_empty() {
            let entry = message.entry;
            self.bytes -= memory_of(&message.deliver, message.body_len);
            self.messages.remove(&body);
            self.released.push(body);
            self.let_go(entry);
        }
    }

    /// Notes that the sync begun with `begun` has failed. All visible targets may be lost, even those visible since;
    /// they are queued again.
    pub fn sync_failed(&mut self, begun: Lsn) -> Vec<Key> {
        let mut again = Vec::new();
        for (body, message) in &mut self.messages {
            for target in &mut message.targets {
                match target.state {
                    State::Visible => {
                        (target.state, target.task) = (State::Queued, Task::RenewIfThere);
                        again.push((*body, target.number));
                    }
                    State::Writing => target.spoiled = true,
                    State::Queued | State::Waiting if target.task == Task::Write => continue,
                    // An earlier attempt or process may have left a file.
                    State::Queued | State::Waiting if target.task == Task::LookFirst => target.task = Task::Renew,
                    State::Queued | State::Waiting => {}
                }
                self.in_doubt += usize::from(!std::mem::replace(&mut target.in_doubt, true));
            }
        }
        self.visible.clear();
        if self.in_doubt > 0 {
            self.doubt_since(begun);
        }
        again
    }

    /// The stream's position: nothing before it is needed.
    pub fn position(&self) -> Lsn {
        let first = self.entries.keys().next().copied();
        let needed = first.into_iter().chain(self.failed_sync).chain(self.removals.first_entry()).min();
        needed.map_or(self.seen, |needed| Lsn::new(needed.get().saturating_sub(1)).min(self.seen))
    }

    /// The bodies no longer needed: all below the first value, and those released since the last call.
    pub fn take_released(&mut self) -> (Lsn, Vec<Lsn>) {
        let behind = Lsn::new(self.position().get() + 1);
        let below = self.messages.keys().next().map_or(behind, |first| behind.min(*first));
        let mut released = std::mem::take(&mut self.released);
        released.retain(|body| *body >= below);
        (below, released)
    }

    /// Messages that hold the position at or below an entry, with their targets that are not durable, by body. Starts
    /// after `after`; returns at least one message, up to about `bytes_max` bytes as [`memory_of`] counts.
    pub fn laggards(&self, through: Lsn, after: Lsn, bytes_max: u64) -> Vec<MailboxDelivery> {
        let behind = self.messages.range((Bound::Excluded(after), Bound::Unbounded));
        let lags = behind.filter(|(_, message)| message.entry <= through);
        let left = |message: &Message<B>| MailboxDelivery {
            targets: message
                .deliver
                .targets
                .iter()
                .filter(|(number, _)| message.target(*number).is_some())
                .cloned()
                .collect(),
            ..(*message.deliver).clone()
        };
        let carried = |(body, message): (&Lsn, &Message<B>)| {
            let older = OlderBody { lsn: *body, len: message.body_len };
            MailboxDelivery { body: Some(older), ..left(message) }
        };
        let mut bytes = 0;
        let fits = |deliver: &MailboxDelivery| {
            let fits = bytes == 0 || bytes < bytes_max;
            bytes += memory_of(deliver, 0);
            fits
        };
        lags.map(carried).take_while(fits).collect()
    }

    /// Ends a replay: all messages and all doubtful syncs are known now.
    pub fn end_of_doubt(&mut self) {
        if self.in_doubt == 0 {
            self.failed_sync = None;
        }
    }

    /// True if a failed sync must be remembered.
    pub fn is_in_doubt(&self) -> bool {
        self.failed_sync.is_some()
    }

    /// Replaces the entry of the failed sync by a later one.
    pub fn doubt_carried(&mut self, begun: Lsn) {
        if self.failed_sync.is_some() {
            self.failed_sync = Some(begun);
        }
    }

    fn let_go(&mut self, entry: Lsn) {
        if let std::collections::btree_map::Entry::Occupied(mut count) = self.entries.entry(entry) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl<B> Message<B> {
    /// Targets that are not durable.
    pub fn targets(&self) -> impl Iterator<Item = (u16, State)> {
        self.targets.iter().map(|target| (target.number, target.state))
    }

    /// The mailbox of a target.
    pub fn mailbox(&self, number: u16) -> &Arc<str> {
        let target = self.deliver.targets.iter().find(|(other, _)| *other == number);
        &target.expect("a target of its message").1.mailbox
    }

    fn target(&self, number: u16) -> Option<&Target> {
        self.targets.iter().find(|target| target.number == number)
    }

    fn target_mut(&mut self, number: u16, expected: State) -> &mut Target {
        let target = self.targets.iter_mut().find(|target| target.number == number).expect("its state is known");
        assert_eq!(target.state, expected, "target {number}");
        target
    }

    fn let_body_go(&mut self) {
        if !self.targets.iter().any(|target| matches!(target.state, State::Queued | State::Writing)) {
            self.held = None;
        }
    }
}
