//! The syncing thread of a mount: makes visible mail durable and lets the spool release it.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use posthaste_spool::{AppendError, Lsn, Released};

use super::entry::LocalEntry;
use super::mount::MailMount;
use super::queues::State;
use super::table::Key;

/// The reason why a sync was not finished.
enum Unfinished {
    /// The mount's sync failed.
    Sync(Arc<str>),
    /// The spool refused an entry, which says nothing about the mount.
    Entry(AppendError),
}

impl MailMount {
    pub(super) fn run_syncs(self: &Arc<Self>) {
        while self.state().history.is_some() {
            self.state().looking_since = Some(self.now());
            let found = self.files.find_place();
            self.state().looking_since = None;
            self.sync.notify_all();
            match found {
                Ok(session) => self.begin(session),
                Err(error) => {
                    let mut state = self.state();
                    state.absent = Some(error.to_string().into());
                    self.tell_idle();
                    if state.stop || self.sync.wait_timeout(state, PLACE_PAUSE).expect("a mount's state").0.stop {
                        return;
                    }
                }
            }
        }
        self.tell_idle();
        loop {
            let (through, asked) = {
                let mut state = self.state();
                while !state.syncing.wanted && !state.stop {
                    state = if self.files.is_look_due(self.now()) {
                        self.look_at_mount(state)
                    } else {
                        self.sync.wait(state).expect("a mount's state")
                    };
                }
                if state.stop {
                    return;
                }
                let now = self.now();
                let syncing = &mut state.syncing;
                (syncing.wanted, syncing.bytes, syncing.last, syncing.running_since) = (false, 0, now, Some(now));
                (std::mem::take(&mut syncing.through), syncing.asked)
            };
            let begun = Instant::now();
            let outcome = self.round(through);
            let us = begun.elapsed().as_micros() as u64;
            self.counters.sync_us.fetch_add(us, Ordering::Relaxed);
            self.counters.sync_us_max.fetch_max(us, Ordering::Relaxed);
            let mut state = self.state();
            let syncing = &mut state.syncing;
            (syncing.running_since, syncing.ended) = (None, asked);
            syncing.refused = None;
            let mut has_no_room = false;
            match outcome {
                Ok(()) => {
                    self.counters.syncs.fetch_add(1, Ordering::Relaxed);
                    (syncing.failures, syncing.error) = (0, None);
                }
                Err(Unfinished::Sync(error)) => {
                    self.counters.syncs_failed.fetch_add(1, Ordering::Relaxed);
                    (syncing.failures, syncing.error) = (syncing.failures.saturating_add(1), Some(error));
                }
                Err(Unfinished::Entry(error)) => {
                    syncing.refused = Some(format!("the spool did not accept the entry: {error}").into());
                    syncing.through = syncing.through.max(through);
                    has_no_room = matches!(error, AppendError::Full(_) | AppendError::Busy);
                }
            }
            self.sync.notify_all();
            if has_no_room {
                // Every mount that releases entries frees space, including this one.
                let waited = self.sync.wait_timeout_while(state, RETRY_PAUSE, |state| !state.stop);
                state = waited.expect("a mount's state").0;
                state.syncing.wanted = true;
            }
            drop(state);
            self.tell_idle();
        }
    }

    /// Checks that the mount's file system is still there, and has space for waiting mail.
    fn look_at_mount<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let has_waiting = state.troubles.iter().next().is_some();
        state.looking_since = Some(self.now());
        drop(state);
        self.files.look_again(self.now(), has_waiting);
        state = self.state();
        state.looking_since = None;
        // The end of the mount may wait for this lock.
        self.sync.notify_all();
        state
    }

    /// Syncs the mount now and returns the result; `None` if it has not returned by `deadline` (real time), or the
    /// mount has not answered yet.
    pub fn sync_now(&self, deadline: Instant) -> Option<Result<(), Arc<str>>> {
        let mut state = self.state();
        if state.history.is_some() {
            return None;
        }
        state.syncing.asked += 1;
        let asked = state.syncing.asked;
        state.syncing.wanted = true;
        self.sync.notify_all();
        while state.syncing.ended < asked {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.stop {
                return None;
            }
            state = self.sync.wait_timeout(state, left).expect("a mount's state").0;
        }
        let syncing = &state.syncing;
        Some(syncing.error.clone().or(syncing.refused.clone()).map_or(Ok(()), Err))
    }

    /// One sync with its consequences.
    fn round(&self, through: Lsn) -> Result<(), Unfinished> {
        let synced = match self.sync_visible() {
            // No mail was visible: this round does not clear an earlier failed sync.
            Ok(false) => {
                let state = self.state();
                let error = state.syncing.error.clone().filter(|_| state.table.len() > 0);
                error.map_or(Ok(()), |error| Err(Unfinished::Sync(error)))
            }
            synced => synced.map(drop),
        };
        let carried = self.carry(through);
        let mut state = self.state();
        state.table.all_is_carried();
        let position = state.table.position();
        if position >= state.syncing.seen {
            (state.syncing.entries, state.syncing.lagging_bytes) = (0, 0);
        }
        state.syncing.seen = state.table.seen();
        let (below, also) = state.table.take_released();
        drop(state);
        self.files.common().spool.advance(self.stream, position, None, Released { below, also });
        synced.and(carried)
    }

    /// Syncs visible mail; false if there is none.
    fn sync_visible(&self) -> Result<bool, Unfinished> {
        let covered: Vec<Key> = self.state().table.sync_begins();
        if covered.is_empty() {
            return Ok(false);
        }
        let begun = match self.put_on_record() {
            Ok(begun) => begun,
            Err(error) => {
                self.state().table.sync_did_not_begin(covered);
                return Err(Unfinished::Entry(error));
            }
        };
        match self.files.sync() {
            Ok(()) => {
                // Durable before the spool drops any of it: otherwise a message could be gone from the spool without a
                // record of its delivery.
                if let Err(error) =
                    self.append(&LocalEntry::Synced { begun }).recv().unwrap_or(Err(AppendError::Closed))
                {
                    self.state().table.sync_did_not_begin(covered);
                    return Err(Unfinished::Entry(error));
                }
                // In pieces: the ring's thread needs the lock, too.
                covered.chunks(SYNCED_AT_ONCE).for_each(|some| self.state().table.synced(some));
                Ok(true)
            }
            Err(error) => {
                let now = self.now();
                let mut state = self.state();
                // The mail may be lost, so no *visible* entry may name it.
                state.unnoted.clear();
                for key in state.table.sync_failed(begun) {
                    state.enqueue(key, now);
                }
                drop(state);
                self.tell_workers();
                Err(Unfinished::Sync(error.to_string().into()))
            }
        }
    }

    /// Recorded durably before the sync: the sync may fail and the process be killed before it sees the failure, and
    /// the kernel reports a failure only once.
    fn put_on_record(&self) -> Result<Lsn, AppendError> {
        let session = self.state().session.expect("the mount has answered");
        for _ in 0..ROOM_TRIES {
            let begun = {
                // Earlier visible targets are noted before this entry.
                let _no_note_is_missing = self.noting.write().expect("no thread panics while it appends a note");
                self.append_visible();
                self.append(&LocalEntry::SyncBegun { session })
            };
            match begun.recv().unwrap_or(Err(AppendError::Closed)) {
                // The spool's keeper frees space, and so does each mount that releases entries.
                Err(AppendError::Full(_) | AppendError::Busy) => {
                    let state = self.state();
                    if state.stop || self.sync.wait_timeout(state, ROOM_PAUSE).expect("a mount's state").0.stop {
                        return Err(AppendError::Closed);
                    }
                }
                begun => return begun,
            }
        }
        Err(AppendError::Full("no room was made for an entry".into()))
    }

    /// Rewrites, without their bodies, the messages that hold up the position, if the spool needs the space, or if far
    /// more entries have arrived than messages wait.
    fn carry(&self, through: Lsn) -> Result<(), Unfinished> {
        let (through, session) = {
            let state = self.state();
            let little = state.syncing.is_little(state.table.len());
            if state.table.len() == 0 || little && through == Lsn::ZERO {
                return Ok(());
            }
            let all = if little { through } else { through.max(state.syncing.seen) };
            (all, state.session.filter(|_| state.table.is_in_doubt()))
        };
        // The entry of the failed sync moves with the others; everything that it covers is rewritten after this one.
        let doubt = session.map(|session| self.append(&LocalEntry::SyncBegun { session }));
        let doubt = doubt
            .map(|begun| begun.recv().unwrap_or(Err(AppendError::Closed)))
            .transpose()
            .map_err(Unfinished::Entry)?;
        let through = doubt.unwrap_or(through);
        let removals = self.state().table.old_removals(through);
        self.append_each(removals.into_iter().map(LocalEntry::Removal)).map_err(Unfinished::Entry)?;
        self.carry_laggards(through).map_err(Unfinished::Entry)?;
        let mut state = self.state();
        if let Some(begun) = doubt {
            state.table.doubt_carried(begun);
        }
        // Notes of their mailboxes have been passed with the older entries.
        state.note_troubles_again();
        let notes = state.notes(self.now());
        drop(state);
        self.append_all(notes);
        Ok(())
    }

    /// Works in steps of a few MiB, each durable before the next, so that incoming mail finds space in the spool's
    /// queue.
    fn carry_laggards(&self, through: Lsn) -> Result<(), AppendError> {
        let mut after = Lsn::ZERO;
        loop {
            let laggards = {
                let state = self.state();
                if state.stop {
                    return Err(AppendError::Closed);
                }
                state.table.laggards(through, after, CARRY_STEP_BYTES)
            };
            let Some(last) = laggards.last().and_then(|deliver| deliver.body) else { return Ok(()) };
            after = last.lsn;
            self.append_each(laggards.into_iter().map(LocalEntry::Deliver))?;
        }
    }

    /// Appends entries and waits until each is durable and applied, or refused. None is in flight on return, even after
    /// an error.
    fn append_each(&self, entries: impl Iterator<Item = LocalEntry>) -> Result<(), AppendError> {
        let told: Vec<_> = entries.map(|entry| self.append(&entry)).collect();
        let outcomes = told.into_iter().map(|outcome| outcome.recv().unwrap_or(Err(AppendError::Closed)).map(drop));
        outcomes.fold(Ok(()), Result::and)
    }

    /// Appends an entry and returns a receiver of its result.
    fn append(&self, entry: &LocalEntry) -> Receiver<Result<Lsn, AppendError>> {
        let (tell, told) = channel();
        let then = move |outcome| drop(tell.send(outcome));
        self.files.common().spool.append(self.batch(entry), Box::new(then));
        told
    }
}

/// Interval of checks of a mount that does not answer.
const PLACE_PAUSE: Duration = Duration::from_secs(1);
/// Pause before the retry of a round that found no space in the spool.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Number of tries, and pauses, for a full spool.
const ROOM_TRIES: u32 = 20;
const ROOM_PAUSE: Duration = Duration::from_millis(100);
const SYNCED_AT_ONCE: usize = 4096;
/// Bytes rewritten at once: some ten thousand messages.
const CARRY_STEP_BYTES: u64 = 4 << 20;
