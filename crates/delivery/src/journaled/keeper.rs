//! Settles what has been delivered, puts by what waits for a mailbox, and has it tried again.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::core::{Core, spooled_in};
use super::space::Space;
use super::waiting::{Attempt, Missing, Trouble, WaitingMail};
use crate::log::Log;
use crate::record::{KIND_WAITS, Waits};
use crate::workers::Letter;

/// What the threads for retries and for checkpoints share.
#[derive(Default)]
pub(super) struct Keeper {
    state: Mutex<KeeperState>,
    // Mailboxes that more mail waits for than may, for who only wants to know whether there is one.
    pub overfull: AtomicUsize,
    pub wake: Condvar,
    pub stop: AtomicBool,
    // Messages accepted or settled since the last checkpoint began.
    pub changes: AtomicU64,
    pub space: Space,
    // Grows while `state` is held, so that who holds it and finds it unchanged settles before the failure is dealt with.
    pub failed_syncs: AtomicU64,
    pub checkpointing: Mutex<()>,
}

#[derive(Default)]
pub(super) struct KeeperState {
    pub waiting: WaitingMail,
    // Settled records and their spooled bodies, for the next checkpoint to remove.
    pub spooled_done: Vec<(u64, u64)>,
    // Live again after a failed sync, with what hinders the next checkpoint from writing them anew.
    pub unreadable: BTreeMap<u64, Arc<str>>,
    pub checkpoint_wanted: bool,
}

impl Keeper {
    /// More than `pending_bytes_max` bytes must not wait for a mailbox.
    pub fn new(pending_bytes_max: u64) -> Self {
        let waiting = WaitingMail::new(pending_bytes_max);
        Keeper { state: Mutex::new(KeeperState { waiting, ..KeeperState::default() }), ..Keeper::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, KeeperState> {
        self.state.lock().expect("keeper state")
    }

    pub fn wake(&self) {
        let _held_so_that_the_keeper_is_asleep_or_yet_to_look = self.state();
        self.wake.notify_all();
    }
}

impl<L: Log> Core<L> {
    /// Every target of a letter was tried; `failed` are the numbers of those that it has not reached, and why.
    pub(super) fn settle_or_defer(&self, letter: &Letter, failed: Vec<(u16, Arc<str>)>) {
        self.counters.failed_attempts.fetch_add(failed.len() as u64, Ordering::Relaxed);
        let mut attempt = Attempt::of(letter, failed);
        let mut state = self.keeper.state();
        while self.failed_syncs() != attempt.era {
            let era = self.failed_syncs();
            let missing = state.waiting.get(letter.id).map(|deferred| deferred.missing.clone());
            // Writing takes its time, and others want the state.
            drop(state);
            let written = self.write_delivered_anew(&mut attempt, &missing.unwrap_or_default());
            state = self.keeper.state();
            if let Err(error) = written {
                // Nothing of it may be settled or counted as of this era: what there is may be in the page cache alone.
                attempt.fail_all(&unreadable(&error));
                break;
            }
            attempt.era = era;
        }
        let (done, troubles) = state.waiting.enter(attempt, self.now());
        self.keeper.overfull.store(state.waiting.overfull(), Ordering::Release);
        if done {
            self.settle(&[letter], &mut state);
        }
        drop(state);
        troubles.iter().for_each(|trouble| self.note_trouble(trouble));
    }

    /// Settles those that have reached all their targets and that nothing else is to be said of, nearly always all of them; returns the others.
    pub(super) fn settle_plain<'a>(&self, letters: &[&'a Letter]) -> Vec<&'a Letter> {
        let mut state = self.keeper.state();
        let era = self.failed_syncs();
        let nothing_waits = state.waiting.is_empty();
        let is_plain = |letter: &&&Letter| nothing_waits && letter.era == era && !letter.has_failed();
        let (plain, others): (Vec<&Letter>, Vec<&Letter>) = letters.iter().partition(|letter| is_plain(letter));
        self.settle(&plain, &mut state);
        others
    }

    /// With the state held: a sync that fails from here on finds the records among the settled ones.
    fn settle(&self, letters: &[&Letter], state: &mut KeeperState) {
        if letters.is_empty() {
            return;
        }
        let ids: Vec<u64> = letters.iter().map(|letter| letter.id).collect();
        self.log.settle(&ids);
        // The room that they take comes back with a checkpoint, also if nothing new can be accepted before.
        self.keeper.changes.fetch_add(ids.len() as u64, Ordering::Relaxed);
        self.keeper.space.settled(ids.len());
        // Only now: a checkpoint in between would remove the body of a record that it still lists as live.
        let spooled = |letter: &&Letter| Some((letter.id, spooled_in(&letter.stored)?));
        state.spooled_done.extend(letters.iter().filter_map(spooled));
    }

    /// Tells whoever looks at the journal why mail waits.
    pub(super) fn note_trouble(&self, trouble: &Trouble) {
        let next_try = SystemTime::now() + trouble.due.saturating_duration_since(self.now());
        let note = Waits {
            mailbox: trouble.mailbox.clone(),
            attempts: trouble.attempts,
            next_try_secs: next_try.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            error: trouble.error.clone(),
        };
        self.log.note(KIND_WAITS, vec![note.encode()]);
    }

    /// The thread that looks after mail that has to wait.
    pub(super) fn keep(self: Arc<Self>) {
        loop {
            {
                let state = self.keeper.state();
                if self.keeper.stop.load(Ordering::Acquire) {
                    return;
                }
                drop(self.keeper.wake.wait_timeout(state, TICK).expect("keeper state"));
            }
            self.keeper.space.look_again();
            let now = self.now();
            self.try_again(now);
            self.workers.give_up_on_stalled(now, &*self);
            self.workers.relieve(now, &self);
        }
    }

    /// Has that which is due tried again, as far as there is memory for it.
    pub(super) fn try_again(&self, now: Instant) {
        let room = |bytes: u64| self.backlog.clone().try_acquire_many_owned(self.permits(bytes)).ok();
        let due = self.keeper.state().waiting.due(now, room);
        for again in due {
            match self.load(again.id) {
                Ok(stored) => {
                    let stored = stored.only(&again.numbers);
                    self.workers.submit(Arc::new(Letter::again(again.id, stored, again.era, Some(again.permit))));
                }
                Err(error) => self.keeper.state().waiting.not_tried(again.id, unreadable(&error), now),
            }
        }
    }
}

impl Attempt {
    fn of(letter: &Letter, failed: Vec<(u16, Arc<str>)>) -> Self {
        let stored = &letter.stored;
        let targets = stored.numbers.iter().zip(&stored.message.targets);
        let (mut missing, mut reached) = (Vec::new(), Vec::new());
        for (&number, target) in targets {
            let this = Missing { number, mailbox: target.mailbox.clone() };
            match failed.iter().find(|(failed, _)| *failed == number) {
                Some((_, error)) => missing.push((this, error.clone())),
                None => reached.push(this),
            }
        }
        Attempt {
            id: letter.id,
            reached,
            failed: missing,
            bytes: stored.message.body.len(),
            memory_bytes: stored.memory_bytes(),
            targets: stored.numbers.len(),
            era: letter.era,
        }
    }

    /// What it has reached does not count.
    fn fail_all(&mut self, why: &Arc<str>) {
        self.failed.extend(self.reached.drain(..).map(|reached| (reached, why.clone())));
    }
}

/// Why a promised message waits although no mailbox is to blame.
pub(super) fn unreadable(error: &io::Error) -> Arc<str> {
    format!("its record cannot be read: {error}").into()
}

/// How often the threads look whether something is due.
pub(super) const TICK: Duration = Duration::from_millis(200);
