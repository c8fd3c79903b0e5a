//! Checkpoints: what was settled is made durable elsewhere and forgotten here, and its segments are used again.

use std::collections::HashMap;
use std::io;

use crate::layout::{Checkpoint, KIND_CHECKPOINT, record_span};
use crate::recovery::Live;
use crate::shared::Shared;
use crate::writer::Pending;
use crate::{AppendError, Journal, RecordId};

/// Why a checkpoint freed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The caller could not make durable what the checkpoint would have covered.
    #[error("what the checkpoint covers could not be made durable: {error}")]
    MakeDurable {
        /// What went wrong.
        error: io::Error,
        /// Every record that was settled since the last checkpoint, also while this one ran. They are live again: what
        /// they led to may be damaged and has to be made anew and settled once more.
        records: Vec<RecordId>,
    },
    /// The journal itself could not write it.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// What a checkpoint did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointStats {
    /// Everything up to this sequence number is finished or listed as live.
    pub through: u64,
    /// Segments that can be used again.
    pub recycled: usize,
    /// Live records that were copied out of them first.
    pub copied: usize,
    /// Live records that remain.
    pub live: usize,
    /// Live records that could not be read. Their segments, and those behind, are kept as they are.
    pub unreadable: usize,
}

impl Journal {
    /// Frees the segments whose records were all settled before this call. `make_durable` must put onto stable storage
    /// whatever the settled records led to. Blocks; one checkpoint runs at a time, appends go on meanwhile.
    ///
    /// Order: note what is settled; `make_durable`; copy live records out of the segments to be freed; append the
    /// checkpoint and sync it; only then are the segments used again. When there is much to copy this goes in steps, so
    /// that no more room is needed than a full journal keeps back for it.
    ///
    /// # Errors
    /// See [`CheckpointError`]; a failed checkpoint frees nothing, or nothing more than its finished steps.
    pub fn checkpoint(
        &self,
        make_durable: impl FnOnce() -> io::Result<()>,
    ) -> Result<CheckpointStats, CheckpointError> {
        let shared = self.shared();
        let _one_at_a_time = shared.checkpointing.lock().expect("checkpoint lock");
        let (through, ids, settled) = {
            let mut state = shared.state();
            let ids: Vec<RecordId> = state.live.keys().copied().collect();
            (state.last_seq, ids, std::mem::take(&mut state.settled))
        };
        let mut settled = SettledAgain { shared, settled };
        if let Err(error) = make_durable() {
            drop(settled);
            return Err(CheckpointError::MakeDurable { error, records: shared.unsettle_all() });
        }
        let mut stats = CheckpointStats { through, recycled: 0, copied: 0, live: ids.len(), unreadable: 0 };
        let mut pinned = None;
        loop {
            let step = shared.next_step(through, &ids, pinned);
            match self.copy_forward(&ids, step.low)? {
                Copied::All(count) => stats.copied += count,
                Copied::Unreadable { segment } => {
                    stats.unreadable += 1;
                    pinned = Some(segment);
                    continue;
                }
            }
            let checkpoint = Checkpoint { through, low_segment: step.low, live: ids.clone() };
            self.submit(Pending::new(KIND_CHECKPOINT, vec![checkpoint.encode().into()])).wait()?;
            settled.settled.clear();
            let recycled = shared.free_below(step.low);
            stats.recycled += recycled;
            if recycled == 0 || !step.more {
                return Ok(stats);
            }
        }
    }

    /// Appends again, under their ids, those of `ids` that lie below segment `low`.
    fn copy_forward(&self, ids: &[RecordId], low: u64) -> Result<Copied, AppendError> {
        let below = |id: &&RecordId| self.shared().state().place(**id).is_some_and(|live| live.segment < low);
        let mut count = 0;
        let mut waiting = Vec::new();
        for &id in ids.iter().filter(below) {
            // The record may have been replaced since: then the newer one is what recovery takes, wherever this goes.
            let (live, payload) = match self.shared().read(id) {
                Ok(Some(read)) => read,
                Ok(None) => continue,
                Err(_) => {
                    let segment = self.shared().state().place(id).map_or(0, |live| live.segment);
                    return Ok(Copied::Unreadable { segment });
                }
            };
            let copy = Pending::new(live.kind, vec![payload.into()]);
            waiting.push(self.submit(Pending { id: Some(id), version: live.version, is_copy: true, ..copy }));
            count += 1;
            if waiting.len() == COPIES_IN_FLIGHT {
                waiting.drain(..).try_for_each(|copy| copy.wait().map(drop))?;
            }
        }
        waiting.into_iter().try_for_each(|copy| copy.wait().map(drop))?;
        Ok(Copied::All(count))
    }
}

enum Copied {
    All(usize),
    /// A record of this segment cannot be read, so the segment must stay.
    Unreadable {
        segment: u64,
    },
}

/// How far one step of a checkpoint goes.
struct Step {
    /// The lowest segment to keep.
    low: u64,
    /// The room for copies ended the step; another one may go further.
    more: bool,
}

impl Shared {
    /// The prefix of the log that is finished, or that holds so few live bytes that copying them forward frees at least
    /// twice what it costs; no more than half a segment is copied.
    fn next_step(&self, through: u64, ids: &[RecordId], pinned: Option<u64>) -> Step {
        let state = self.state();
        let mut live_bytes: HashMap<u64, u64> = HashMap::new();
        for live in ids.iter().filter_map(|&id| state.place(id)) {
            *live_bytes.entry(live.segment).or_default() += record_span(live.len as usize) as u64;
        }
        let active = state.segments.keys().next_back().copied().unwrap_or(0);
        let low = state.segments.keys().next().copied().unwrap_or(0);
        let mut step = Step { low, more: false };
        let (mut freed, mut cost) = (0, 0);
        for (&number, entry) in &state.segments {
            if number == active || entry.max_seq > through || pinned.is_some_and(|pinned| number >= pinned) {
                break;
            }
            freed += self.config.segment_bytes;
            cost += live_bytes.get(&number).copied().unwrap_or(0);
            if cost > self.config.segment_bytes / 2 {
                step.more = true;
                break;
            }
            if cost * 2 <= freed {
                step.low = number + 1;
            }
        }
        step
    }

    /// Gives the segments below `low` back to the pool; returns how many.
    fn free_below(&self, low: u64) -> usize {
        let freed = {
            let mut state = self.state();
            let kept = state.segments.split_off(&low);
            std::mem::replace(&mut state.segments, kept)
        };
        let count = freed.len();
        freed.into_values().for_each(|entry| self.pool.give_back(entry.segment));
        self.want_segment();
        count
    }

    /// Makes everything that is settled live again, and names it in order.
    fn unsettle_all(&self) -> Vec<RecordId> {
        let mut state = self.state();
        let settled = std::mem::take(&mut state.settled);
        let mut records: Vec<RecordId> = settled.keys().copied().collect();
        state.live.extend(settled);
        records.sort_unstable();
        records
    }
}

/// What a checkpoint is about to forget; goes back to the settled ones if it fails before it has.
struct SettledAgain<'a> {
    shared: &'a Shared,
    settled: HashMap<RecordId, Live>,
}

impl Drop for SettledAgain<'_> {
    fn drop(&mut self) {
        if !self.settled.is_empty() {
            self.shared.state().settled.extend(self.settled.drain());
        }
    }
}

/// Copies that are read into memory before the first is waited for.
const COPIES_IN_FLIGHT: usize = 64;
