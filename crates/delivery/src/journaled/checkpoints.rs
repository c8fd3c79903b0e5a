//! Checkpoints: what is visible is made durable and forgotten by the journal; and what is done when that fails.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use posthaste_journal::{AppendError, CheckpointError, CheckpointStats};

use super::core::Core;
use super::keeper::{TICK, unreadable};
use super::waiting::{Attempt, Missing};
use crate::log::Log;
use crate::record::{KIND_DISTRUST, KIND_MESSAGE};
use crate::workers::Letter;

impl<L: Log> Core<L> {
    /// The thread that makes checkpoints, when they are wanted or the interval has passed.
    pub(super) fn make_checkpoints(self: Arc<Self>) {
        let mut last = self.now();
        loop {
            {
                let mut state = self.keeper.state();
                if !state.checkpoint_wanted && !self.keeper.stop.load(Ordering::Acquire) {
                    state = self.keeper.wake.wait_timeout(state, TICK).expect("keeper state").0;
                }
                if self.keeper.stop.load(Ordering::Acquire) {
                    return;
                }
                let idle_long = self.now().saturating_duration_since(last) >= self.config.checkpoint_interval
                    && self.keeper.changes.load(Ordering::Relaxed) > 0;
                if !std::mem::take(&mut state.checkpoint_wanted) && !idle_long {
                    continue;
                }
            }
            // A failure is counted, and it is tried again when more has come or the interval has passed.
            let _ = self.checkpoint();
            last = self.now();
        }
    }

    pub(super) fn checkpoint(&self) -> Result<CheckpointStats, CheckpointError> {
        // Until what a failed sync has made live again is written anew: another one would forget it, and remove its bodies.
        let _one_at_a_time = self.keeper.checkpointing.lock().expect("checkpoint lock");
        let begun = Instant::now();
        let space = self.keeper.space.checkpoint_begins(self.log.bytes_used());
        let outcome = self.checkpoint_begun();
        let recycled = outcome.as_ref().ok().map(|stats| stats.recycled);
        self.keeper.space.checkpoint_ended(space, self.bytes_to_next_checkpoint(), recycled);
        let us = begun.elapsed().as_micros() as u64;
        self.counters.checkpoint_us.fetch_add(us, Ordering::Relaxed);
        self.counters.checkpoint_us_max.fetch_max(us, Ordering::Relaxed);
        outcome
    }

    fn checkpoint_begun(&self) -> Result<CheckpointStats, CheckpointError> {
        // Told before, not after: if the sync fails and we are killed before we know, nobody else will ever hear of it. Without
        // the note there is no sync. The checkpoint that succeeds forgets it.
        self.note_distrust()?;
        // Behind the checkpoint's beginning, for who looks whether there is anything to wait for.
        self.keeper.changes.store(0, Ordering::Release);
        // The last one left these.
        let unreadable = std::mem::take(&mut self.keeper.state().unreadable);
        self.write_anew(unreadable.into_keys());
        let spooled_done = std::mem::take(&mut self.keeper.state().spooled_done);
        let partial = self.partial();
        let outcome = self.log.checkpoint(|| {
            if self.failed_syncs() > 0 {
                // Of an earlier failure, which this success does not undo: what waits, is under way or cannot be read now may have
                // files in the page cache alone, and whoever opens after us would believe them. This note is not forgotten.
                self.note_distrust().map_err(io::Error::other)?;
            }
            self.workers.places().sync().inspect_err(|_| self.distrust())?;
            self.narrow(&partial);
            Ok(())
        });
        match &outcome {
            Ok(stats) => {
                self.counters.unreadable_segments.store(stats.unreadable as u64, Ordering::Relaxed);
                self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
                spooled_done.iter().for_each(|&(_, file)| self.workers.places().spool().remove(file));
                // Forgotten with all other notes.
                let troubles: Vec<_> = self.keeper.state().waiting.troubles().collect();
                troubles.iter().for_each(|trouble| self.note_trouble(trouble));
            }
            Err(error) => {
                self.counters.checkpoints_failed.fetch_add(1, Ordering::Relaxed);
                self.keeper.state().spooled_done.extend(spooled_done);
                if let CheckpointError::MakeDurable { records, .. } = error {
                    // They are put down again when they are settled again.
                    let live_again: BTreeSet<u64> = records.iter().copied().collect();
                    self.keeper.state().spooled_done.retain(|(id, _)| !live_again.contains(id));
                    self.write_anew(live_again);
                }
            }
        }
        outcome
    }

    /// Bytes from the beginning of one checkpoint to that of the next.
    pub(super) fn bytes_to_next_checkpoint(&self) -> u64 {
        self.config.checkpoint_bytes.min(self.log.checkpoint_after())
    }

    /// Tells whoever opens next, in this life of the page cache, not to believe what reads well.
    fn note_distrust(&self) -> Result<(), AppendError> {
        self.log.note_durably(KIND_DISTRUST, vec![Bytes::copy_from_slice(&self.session.0)])
    }

    /// From now on nothing that was delivered before is believed to become durable with the next sync.
    pub(super) fn distrust(&self) {
        let _held_by_nobody_who_settles = self.keeper.state();
        self.keeper.failed_syncs.fetch_add(1, Ordering::AcqRel);
    }

    /// Records of which some targets are visible and others wait, with the numbers of those.
    fn partial(&self) -> Vec<(u64, Vec<u16>)> {
        let state = self.keeper.state();
        let era = self.failed_syncs();
        let partial = state.waiting.iter().filter(|(_, deferred)| deferred.is_partial() && deferred.era == era);
        partial.map(|(id, deferred)| (id, deferred.missing.iter().map(|missing| missing.number).collect())).collect()
    }

    /// Writes records anew that from now on are about those targets alone that still waited before the sync which has made the others
    /// durable. Not earlier: until then the record is all that a power cut leaves of the others.
    fn narrow(&self, partial: &[(u64, Vec<u16>)]) {
        for (id, missing) in partial {
            let Ok(stored) = self.load(*id) else { continue };
            // A failure costs nothing: the older record says the same and a little more.
            if self.log.replace(*id, KIND_MESSAGE, stored.only(missing).encode()).is_err() {
                continue;
            }
            if let Some(deferred) = self.keeper.state().waiting.get_mut(*id) {
                deferred.targets = missing.len();
            }
        }
    }

    /// After a failed sync of the mail's file system: what it should have covered is written to new files from the
    /// journal, each synced by itself. What cannot be read now waits for the next checkpoint.
    fn write_anew(&self, records: impl IntoIterator<Item = u64>) {
        for id in records {
            let stored = match self.load(id) {
                Ok(stored) => stored,
                Err(error) => {
                    self.keeper.state().unreadable.insert(id, unreadable(&error));
                    // So that there will be another checkpoint, which tries it again.
                    self.keeper.changes.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            };
            // Of an era that is over: so its files are written anew before it is settled.
            let letter = Letter::again(id, stored, ERA_BEFORE_ANY, None);
            self.settle_or_defer(&letter, Vec::new());
        }
    }

    /// A sync of the mail has failed since the first target of this message was delivered and may have dropped it: whatever its record
    /// says was delivered is written to new files, each synced by itself. `missing` are the targets that waited before this attempt.
    ///
    /// # Errors
    /// The record cannot be read: nothing was written anew.
    pub(super) fn write_delivered_anew(&self, attempt: &mut Attempt, missing: &[Missing]) -> io::Result<()> {
        let stored = self.load(attempt.id)?;
        for (target, (&number, to)) in stored.numbers.iter().zip(&stored.message.targets).enumerate() {
            let this = Missing { number, mailbox: to.mailbox.clone() };
            let waits = missing.contains(&this) && !attempt.reached.contains(&this);
            if waits || attempt.failed.iter().any(|(failed, _)| *failed == this) {
                continue;
            }
            if let Err(error) = self.workers.places().renew_synced(&stored, attempt.id, target) {
                self.counters.failed_attempts.fetch_add(1, Ordering::Relaxed);
                attempt.reached.retain(|reached| *reached != this);
                attempt.failed.push((this, error.to_string().into()));
            }
        }
        Ok(())
    }
}

/// No sync has failed a number of times that is this large.
const ERA_BEFORE_ANY: u64 = u64::MAX;
