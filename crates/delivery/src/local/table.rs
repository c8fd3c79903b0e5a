//! The state of each message on one mount. Bookkeeping alone: it reads no clock and touches no disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use posthaste_spool::Lsn;

use super::entry::{Deliver, OlderBody, Removal};
use super::removals::Removals;

/// A target: the batch that has its body, and its number among the message's targets.
pub(crate) type Key = (Lsn, u16);

/// How far the delivery into one mailbox has come.
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
/// A target of which the body is lost, or the mailbox was removed, goes from `Writing`: it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// To be written as soon as a thread is free.
    Queued,
    /// A thread is at it.
    Writing,
    /// In its mailbox, perhaps in the page cache alone.
    Visible,
    /// Until its mailbox is tried again: [`Troubles`](super::troubles::Troubles) says when.
    Waiting,
}

/// The work of a thread for a target, as far as its file is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// There is none: write it.
    Write,
    /// A crash came between: what is there and reads well has been read from the disk, or is still in its cache. Otherwise write it.
    LookFirst,
    /// A sync failed, or an attempt: what is there reads well perhaps and is not on the disk. Write it to a new file, or write it at all.
    Renew,
    /// As `Renew`, but it was visible: if it is not there, its owner has taken it away.
    RenewIfThere,
}

/// A message's body in memory, and its share of the memory for all of them, which dropping gives back.
pub(crate) type Held<B> = Option<B>;

/// A message, and its targets on this mount that are not durable.
pub(crate) struct Message<B> {
    /// The entry that stands for it now.
    pub entry: Lsn,
    pub deliver: Arc<Deliver>,
    pub body_len: u64,
    held: Held<B>,
    targets: Vec<Target>,
}

struct Target {
    number: u16,
    state: State,
    task: Task,
    /// It is being written, and a sync has failed meanwhile.
    spoiled: bool,
    /// A sync has failed since any of it was written, and it was not rewritten since.
    in_doubt: bool,
}

/// The messages of one mount, by the batch that has the body.
pub(crate) struct Table<B> {
    messages: BTreeMap<Lsn, Message<B>>,
    /// Entries that stand for messages here, and for how many.
    entries: BTreeMap<Lsn, usize>,
    /// Of the bodies of all messages, and of what is known of each.
    bytes: u64,
    /// The highest entry that was shown.
    seen: Lsn,
    /// Visible since the last sync began.
    visible: Vec<Key>,
    /// A sync began with this entry and failed: it is needed as long as anything is in doubt.
    failed_sync: Option<Lsn>,
    in_doubt: usize,
    /// Messages removed since the last call of [`take_released`](Self::take_released).
    released: Vec<Lsn>,
    /// Messages that were given up for their last mailbox since the last round of the syncing thread.
    given_up: BTreeSet<Lsn>,
    removals: Removals,
}

/// Bytes that a message counts where memory and disk are bounded: its body, and what is known of each target.
pub(super) fn memory_of(deliver: &Deliver, body_len: u64) -> u64 {
    let of_targets =
        deliver.targets.iter().map(|(_, target)| target.mailbox.len() + target.prefix.len() + TARGET_BYTES);
    body_len + of_targets.sum::<usize>() as u64
}

/// About what a table and its queues hold for a target, beside its texts.
const TARGET_BYTES: usize = 256;

/// Work that a thread takes.
#[derive(Clone)]
pub(crate) struct Taken<B> {
    pub key: Key,
    pub deliver: Arc<Deliver>,
    pub body_len: u64,
    pub body: Held<B>,
    pub task: Task,
    /// Its mailbox was removed since it was accepted.
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
    /// An entry of any kind was shown.
    pub fn saw(&mut self, entry: Lsn) {
        self.seen = self.seen.max(entry);
    }

    /// The highest of them.
    pub fn seen(&self) -> Lsn {
        self.seen
    }

    /// An entry of an unknown kind: the position stops before it.
    pub fn keep_entry(&mut self, entry: Lsn) {
        *self.entries.entry(entry).or_default() += 1;
    }

    /// As found at an opening.
    pub fn set_removals(&mut self, removals: Removals) {
        self.removals = removals;
    }

    /// A mailbox was removed.
    pub fn removed(&mut self, entry: Lsn, removal: Removal) {
        self.removals.show(entry, removal);
    }

    /// True if a target's mailbox was removed since it was accepted.
    pub fn is_removed(&self, key: Key) -> bool {
        let covers = |message: &Message<B>| self.removals.cover(message.mailbox(key.1), key.0);
        !self.removals.is_empty() && self.messages.get(&key.0).is_some_and(covers)
    }

    /// Removals that hold the position at or below an entry, as they are to be rewritten.
    pub fn old_removals(&self, through: Lsn) -> Vec<Removal> {
        self.removals.through(through).collect()
    }

    /// Ends a rewriting: no entry comes that names a target which is gone, so what was remembered against that is forgotten.
    pub fn all_is_carried(&mut self) {
        self.given_up.clear();
        self.removals.let_go(self.messages.keys().next().copied());
    }

    /// As found at an opening: a sync that began with this entry may have failed.
    pub fn doubt_since(&mut self, begun: Lsn) {
        self.failed_sync = Some(self.failed_sync.map_or(begun, |other| other.min(begun)));
    }

    /// A message comes in. `targets` are those of `deliver` that are not durable, each with where it stands; none: all of them are.
    pub fn insert(
        &mut self,
        body: Lsn,
        entry: Lsn,
        (deliver, body_len, held): (Arc<Deliver>, u64, Held<B>),
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

    /// A later entry stands for a message from now on; false if the message is not known. One that was given up while that entry was under way stays gone.
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

    /// Bytes of the bodies of all messages, and of what is known of each.
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

    /// A thread takes a target.
    pub fn take(&mut self, key: Key) -> Taken<B> {
        let is_removed = self.is_removed(key);
        let message = self.messages.get_mut(&key.0).expect("what is queued is known");
        let target = message.target_mut(key.1, State::Queued);
        (target.state, target.spoiled) = (State::Writing, false);
        let task = target.task;
        let (deliver, body_len, body) = (message.deliver.clone(), message.body_len, message.held.clone());
        Taken { key, deliver, body_len, body, task, is_removed }
    }

    /// It is in its mailbox. False: a sync has failed since it was begun, so that it has to be written again; it is queued.
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

    /// The attempt failed.
    pub fn failed(&mut self, key: Key) {
        let message = self.messages.get_mut(&key.0).expect("what is written is known");
        let target = message.target_mut(key.1, State::Writing);
        target.state = State::Waiting;
        if target.task != Task::RenewIfThere {
            // Whatever went wrong, some of it may be there.
            target.task = Task::Renew;
        }
        message.let_body_go();
    }

    /// It is not tried now.
    pub fn put_off(&mut self, key: Key) {
        let message = self.messages.get_mut(&key.0).expect("what is queued is known");
        message.target_mut(key.1, State::Queued).state = State::Waiting;
        message.let_body_go();
    }

    /// Its mailbox is tried again with it.
    pub fn try_again(&mut self, key: Key) {
        let message = self.messages.get_mut(&key.0).expect("what waits is known");
        message.target_mut(key.1, State::Waiting).state = State::Queued;
    }

    /// The bodies of these that are in memory, which is where they are no longer looked for.
    pub fn take_bodies(&mut self, keys: &[Key]) -> Vec<B> {
        keys.iter().filter_map(|key| self.messages.get_mut(&key.0)?.held.take()).collect()
    }

    /// A sync begins: it will make these durable.
    pub fn sync_begins(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.visible)
    }

    /// It did not begin after all.
    pub fn sync_did_not_begin(&mut self, covered: Vec<Key>) {
        self.visible.extend(covered);
    }

    /// It has succeeded.
    pub fn synced(&mut self, covered: &[Key]) {
        for &(body, number) in covered {
            self.remove_targets(body, |target| target.number == number && target.state == State::Visible);
        }
    }

    /// A target is given up for good. Returns the entry that stands for its message.
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

    /// The sync that began with the entry `begun` has failed. Everything that is visible may be lost, also what became so since; it is queued again.
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
                    // Of an earlier attempt, or an earlier process, something may have been there.
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

    /// Up to where nothing is needed any more.
    pub fn position(&self) -> Lsn {
        let first = self.entries.keys().next().copied();
        let needed = first.into_iter().chain(self.failed_sync).chain(self.removals.first_entry()).min();
        needed.map_or(self.seen, |needed| Lsn::new(needed.get().saturating_sub(1)).min(self.seen))
    }

    /// The bodies that are no longer needed: all below the first, and those that were let go since this was asked.
    pub fn take_released(&mut self) -> (Lsn, Vec<Lsn>) {
        let behind = Lsn::new(self.position().get() + 1);
        let below = self.messages.keys().next().map_or(behind, |first| behind.min(*first));
        let mut released = std::mem::take(&mut self.released);
        released.retain(|body| *body >= below);
        (below, released)
    }

    /// Messages that hold the position at or below an entry, with the targets that are not durable, in the order of their bodies: those after `after`, up to about
    /// so many bytes of them as [`memory_of`] counts, at least one.
    pub fn laggards(&self, through: Lsn, after: Lsn, bytes_max: u64) -> Vec<Deliver> {
        let behind = self.messages.range((Bound::Excluded(after), Bound::Unbounded));
        let lags = behind.filter(|(_, message)| message.entry <= through);
        let left = |message: &Message<B>| Deliver {
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
            Deliver { body: Some(older), ..left(message) }
        };
        let mut bytes = 0;
        let fits = |deliver: &Deliver| {
            let fits = bytes == 0 || bytes < bytes_max;
            bytes += memory_of(deliver, 0);
            fits
        };
        lags.map(carried).take_while(fits).collect()
    }

    /// All that is there is known: so is whether anything is in doubt.
    pub fn end_of_doubt(&mut self) {
        if self.in_doubt == 0 {
            self.failed_sync = None;
        }
    }

    /// True if a failed sync has to be remembered.
    pub fn is_in_doubt(&self) -> bool {
        self.failed_sync.is_some()
    }

    /// The entry of a sync that stands for the one that failed.
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
    /// The targets that are not durable.
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
