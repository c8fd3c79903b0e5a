//! The keeper: which messages wait for a mailbox that cannot be written to, and when each is tried again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::core::{Core, spooled_in};
use super::report::Waiting;
use crate::workers::Letter;

/// What the keeper thread looks after: retries and checkpoints.
#[derive(Default)]
pub(super) struct Keeper {
    state: Mutex<KeeperState>,
    pub wake: Condvar,
    pub stop: AtomicBool,
    pub bytes_since_checkpoint: AtomicU64,
    // Grows while `state` is held, so that who holds it and finds it unchanged settles before the failure is dealt with.
    pub failed_syncs: AtomicU64,
}

#[derive(Default)]
pub(super) struct KeeperState {
    pub deferred: HashMap<u64, Deferred>,
    pub waiting_bytes: HashMap<Arc<str>, u64>,
    pub last_error: HashMap<u64, Arc<str>>,
    // Spooled bodies whose messages are visible, for the next checkpoint to remove.
    pub spooled_done: Vec<u64>,
    pub checkpoint_wanted: bool,
}

pub(super) struct Deferred {
    pub due: Option<Instant>,
    pub waiting: Waiting,
    // The numbers of the targets that still wait. The others are visible, but perhaps not durable.
    pub missing: Vec<u16>,
    // The record in the journal still names targets that are not missing.
    pub is_partial: bool,
    // How many syncs of the mail had failed before any of those was delivered.
    pub era: u64,
}

impl Keeper {
    pub fn state(&self) -> MutexGuard<'_, KeeperState> {
        self.state.lock().expect("keeper state")
    }

    pub fn wake(&self) {
        let _held_so_that_the_keeper_is_asleep_or_yet_to_look = self.state();
        self.wake.notify_all();
    }
}

impl Core {
    /// Every target of a letter was tried; `failed` are the numbers of those that it has not reached.
    pub(super) fn settle_or_defer(&self, letter: &Letter, mut failed: Vec<u16>) {
        let mut era = letter.era;
        let (mut state, whole) = loop {
            // A retried letter is about some of the record's targets alone. Read before the state is locked: it is slow.
            let whole = if failed.is_empty() { None } else { self.load(letter.id) };
            let state = self.keeper.state();
            if self.failed_syncs() == era {
                break (state, whole);
            }
            era = self.failed_syncs();
            drop(state);
            self.write_delivered_anew(letter, &mut failed);
        };
        let earlier = state.deferred.remove(&letter.id);
        for mailbox in earlier.iter().flat_map(|earlier| &earlier.waiting.mailboxes) {
            if let Some(bytes) = state.waiting_bytes.get_mut(mailbox) {
                *bytes = bytes.saturating_sub(letter.stored.message.body.len());
            }
        }
        let error = state.last_error.remove(&letter.id);
        if failed.is_empty() {
            // With the state held: a sync that fails from here on finds the record among the settled ones.
            self.journal.settle(letter.id);
            // Only now: a checkpoint in between would remove the body of a record that it still lists as live.
            state.spooled_done.extend(spooled_in(&letter.stored));
            return;
        }
        let stored = whole.unwrap_or_else(|| letter.stored.clone());
        let mailboxes: Vec<Arc<str>> =
            stored.clone().only(&failed).message.targets.into_iter().map(|target| target.mailbox).collect();
        let bytes = stored.message.body.len();
        for mailbox in &mailboxes {
            *state.waiting_bytes.entry(mailbox.clone()).or_default() += bytes;
        }
        let attempts = earlier.map_or(0, |earlier| earlier.waiting.attempts);
        let wait = RETRY_FIRST.saturating_mul(1 << attempts.min(16)).min(RETRY_MAX);
        let error = error.unwrap_or_else(|| "unknown".into());
        let waiting = Waiting { id: letter.id, mailboxes, bytes, attempts: attempts + 1, error };
        let is_partial = failed.len() < stored.numbers.len();
        let deferred = Deferred { due: Some(Instant::now() + wait), waiting, missing: failed, is_partial, era };
        state.deferred.insert(letter.id, deferred);
        drop(state);
        self.keeper.wake();
    }

    /// The thread that looks after mail that has to wait.
    pub(super) fn keep(self: Arc<Self>) {
        loop {
            let due = {
                let state = self.keeper.state();
                let mut state = match self.keeper.stop.load(Ordering::Acquire) {
                    true => return,
                    false => self.keeper.wake.wait_timeout(state, TICK).expect("keeper state").0,
                };
                self.due(&mut state)
            };
            for (id, missing, era, permit) in due {
                if let Some(stored) = self.load(id) {
                    let letter = Letter::again(id, stored.only(&missing), era, Some(permit));
                    self.workers.submit(Arc::new(letter), &*self);
                }
            }
            self.workers.give_up_on_stalled(&*self);
            self.workers.relieve(&self);
        }
    }

    /// Takes what is to be tried again now, as far as there is memory for it.
    fn due(&self, state: &mut KeeperState) -> Vec<(u64, Vec<u16>, u64, OwnedSemaphorePermit)> {
        let now = Instant::now();
        let mut due = Vec::new();
        for (&id, deferred) in &mut state.deferred {
            if deferred.due.is_none_or(|at| at > now) {
                continue;
            }
            let bytes = deferred.waiting.bytes.min(self.config.inline_bytes_max);
            let Ok(permit) = self.backlog.clone().try_acquire_many_owned(self.permits(bytes)) else { break };
            // None while it is being tried.
            deferred.due = None;
            due.push((id, deferred.missing.clone(), deferred.era, permit));
        }
        due
    }
}

/// How often the threads look whether something is due.
pub(super) const TICK: Duration = Duration::from_millis(200);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);
