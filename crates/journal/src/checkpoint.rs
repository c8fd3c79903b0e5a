//! Checkpoints: what was settled is made durable elsewhere and forgotten here, and its segments are used again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;

use crate::layout::{Checkpoint, KIND_CHECKPOINT, record_span};
use crate::recovery::{InService, Live};
use crate::shared::Shared;
use crate::writer::Pending;
use crate::{AppendError, Journal, RecordId};

/// Why a checkpoint freed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The caller could not make durable what the checkpoint would have covered.
    #[error("a sync for the checkpoint failed: {error}")]
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
    /// Segments that were to be freed and have a live record that could not be read: they are kept as they are.
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
        let mut held = shared.held_by_segment(&ids);
        let mut pinned = HashSet::new();
        loop {
            let step = shared.next_step(through, &held, &pinned);
            match self.copy_forward(&held, &step.free)? {
                Copied::All(count) => stats.copied += count,
                Copied::Unreadable { segment } => {
                    stats.unreadable += 1;
                    pinned.insert(segment);
                    continue;
                }
            }
            let checkpoint = Checkpoint { through, low_segment: step.low, live: ids.clone() };
            self.submit(Pending::new(KIND_CHECKPOINT, vec![checkpoint.encode().into()])).wait()?;
            settled.settled.clear();
            shared.free(&step.free);
            stats.recycled += step.free.len();
            if step.free.is_empty() || !step.more {
                return Ok(stats);
            }
            step.free.iter().for_each(|number| drop(held.remove(number)));
        }
    }

    /// Appends again, under their ids, the records that lie in one of the segments `free`.
    fn copy_forward(&self, held: &HashMap<u64, Held>, free: &BTreeSet<u64>) -> Result<Copied, AppendError> {
        let mut count = 0;
        let mut waiting = Vec::new();
        for &id in free.iter().filter_map(|number| held.get(number)).flat_map(|held| &held.ids) {
            // The record may have been replaced since: then the newer one is what recovery takes, wherever this goes.
            let place = || self.shared().state().place(id).map(|live| live.segment);
            let Some(segment) = place().filter(|segment| free.contains(segment)) else { continue };
            let (live, payload) = match self.shared().read(id) {
                Ok(Some(read)) => read,
                Err(_) if place() == Some(segment) => return Ok(Copied::Unreadable { segment }),
                Ok(None) | Err(_) => continue,
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

/// The live records of one segment.
#[derive(Default)]
struct Held {
    bytes: u64,
    ids: Vec<RecordId>,
}

/// How far one step of a checkpoint goes.
struct Step {
    /// The segments to be used again.
    free: BTreeSet<u64>,
    /// The lowest segment to keep.
    low: u64,
    /// The room for copies ended the step; another one may go further.
    more: bool,
}

impl Shared {
    /// Which of `ids` each segment holds. A record that moves meanwhile is counted where it was, or in the segment that is being
    /// written, which no step frees.
    fn held_by_segment(&self, ids: &[RecordId]) -> HashMap<u64, Held> {
        let mut all: HashMap<u64, Held> = HashMap::new();
        // In turns, because nothing is acknowledged while the state is held.
        for turn in ids.chunks(TURN) {
            let state = self.state();
            for &id in turn {
                if let Some(live) = state.place(id) {
                    let held = all.entry(live.segment).or_default();
                    held.bytes += record_span(live.len as usize) as u64;
                    held.ids.push(id);
                }
            }
        }
        all
    }

    /// Every segment in which nothing lives, wherever it lies, and of those of which at most half lives the emptiest first, as long as
    /// the copies take no more than half a segment. A segment that is full of what lives stays where it is.
    fn next_step(&self, through: u64, held: &HashMap<u64, Held>, pinned: &HashSet<u64>) -> Step {
        let state = self.state();
        let active = state.segments.keys().next_back().copied().unwrap_or(0);
        let live_bytes = |number: u64| held.get(&number).map_or(0, |held| held.bytes);
        let may_go = |&(&number, entry): &(&u64, &InService)| {
            number != active && entry.max_seq <= through && !pinned.contains(&number)
        };
        let mut candidates: Vec<(u64, u64)> =
            state.segments.iter().filter(may_go).map(|(&number, _)| (live_bytes(number), number)).collect();
        candidates.sort_unstable();
        let half = self.config.segment_bytes / 2;
        let (mut cost, mut more, mut free) = (0, false, BTreeSet::new());
        for (bytes, number) in candidates.into_iter().take_while(|(bytes, _)| *bytes <= half) {
            cost += bytes;
            if cost > half {
                more = true;
                break;
            }
            free.insert(number);
        }
        let low = state.segments.keys().copied().find(|number| !free.contains(number)).unwrap_or(0);
        Step { free, low, more }
    }

    /// Gives these segments back to the pool.
    fn free(&self, numbers: &BTreeSet<u64>) {
        let freed: Vec<InService> = {
            let mut state = self.state();
            numbers.iter().filter_map(|number| state.segments.remove(number)).collect()
        };
        freed.into_iter().for_each(|entry| self.pool.give_back(entry.segment));
        self.want_segment();
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
/// Records that are looked up while the state is held once.
const TURN: usize = 1024;
