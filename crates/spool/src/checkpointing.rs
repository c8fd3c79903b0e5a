//! A checkpoint, step by step.
//!
//! Order: snapshots and packs are durable with their names before anything refers to them; live files are written and
//! synced; the checkpoint that names them is written and synced; only then are segments reused and files unlinked. A
//! failure anywhere frees nothing.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use posthaste_ring::Proof;

use crate::batch::{BodyPlace, Head};
use crate::checkpoint::Checkpoint;
use crate::core::{Appended, AppendedBody};
use crate::events::SpoolEvent;
use crate::live::Window;
use crate::lsn_set::LsnSet;
use crate::shared::{Shared, Work};
use crate::snapshots::SnapshotName;
use crate::state::Doomed;
use crate::store::{Commit, Extent, Unneeded};
use crate::{AppendError, CheckpointError, Lsn};

/// The content of a checkpoint, taken at one moment.
struct Taken {
    checkpoint: Checkpoint,
    /// The first segment of the ring still in use; the checkpoint may keep earlier ones.
    ring_low: u64,
    /// Records to forget once the checkpoint is durable, and all records that it does not need.
    forgotten: LsnSet,
    unneeded: LsnSet,
    /// Windows to write; an empty window loses its file.
    windows: Vec<(u64, Window)>,
    doomed: Doomed,
}

impl Shared {
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.core.announce(|_, consumer| consumer.checkpoint_begins());
        let mut work = self.work.lock().expect("a checkpoint does not panic");
        let begun = Instant::now();
        *self.checkpoint_since.lock().expect("a time") = Some(begun);
        let outcome = self.checkpoint_now(&mut work);
        *self.checkpoint_since.lock().expect("a time") = None;
        drop(work);
        let took = begun.elapsed();
        match &outcome {
            Ok(positions) => {
                self.core.announce(|stream, consumer| {
                    positions.get(&stream).into_iter().for_each(|through| consumer.checkpoint_durable(*through));
                });
                self.checkpoints.fetch_add(1, Ordering::Relaxed);
                if took > self.config.checkpoint_slow {
                    self.config.events.tell(SpoolEvent::CheckpointSlow { took });
                }
            }
            Err(error) => {
                self.checkpoints_failed.fetch_add(1, Ordering::Relaxed);
                self.config.events.tell(SpoolEvent::CheckpointFailed { error: error.to_string() });
            }
        }
        outcome.map(drop)
    }

    /// Ends a loss in the ring that a durable checkpoint records: appends a record without a stream, and makes a
    /// checkpoint. Without a later record, each opening would treat more possible LSNs of missing segments as lost.
    /// Blocks.
    pub fn end_loss(&self) -> Result<(), CheckpointError> {
        if self.store.ring().is_none() || self.core.state().lost_through == 0 {
            return Ok(());
        }
        let head = Head { entries: Vec::new(), body: BodyPlace::None }.encode();
        let appended = Appended { entries: Vec::new(), body: AppendedBody::None, bytes: head.len() as u64 };
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let then: crate::Then = Box::new(move |outcome| drop(tell.send(outcome)));
        let commit = Commit::Batch { core: self.core.clone(), appended, then };
        drop(self.store.append(head.into(), Vec::new(), commit));
        match told.recv().unwrap_or(Err(AppendError::Closed)) {
            Ok(_) => self.checkpoint(),
            Err(AppendError::Poisoned(why)) => Err(CheckpointError::Poisoned(why)),
            Err(error) => {
                let error = std::io::Error::new(std::io::ErrorKind::StorageFull, error);
                Err(CheckpointError::Io { what: "cannot write the end of the loss", error })
            }
        }
    }

    /// # Errors
    /// [`CheckpointError::Poisoned`] after a failed sync or write.
    pub fn not_poisoned(&self) -> Result<(), CheckpointError> {
        self.store.poisoned().map_or(Ok(()), |why| Err(CheckpointError::Poisoned(why)))
    }

    /// Makes a checkpoint. Returns the position of each stream in it.
    fn checkpoint_now(&self, work: &mut Work) -> Result<BTreeMap<u16, Lsn>, CheckpointError> {
        self.not_poisoned()?;
        let mut taken = self.take(work);
        if let Err(error) = self.write(work, &mut taken) {
            let mut state = self.core.state();
            state.is_changed_otherwise = true;
            state.dirty.extend(taken.windows.into_iter().map(|(window, _)| window));
            state.doomed.extend(taken.doomed);
            return Err(error);
        }
        {
            let mut state = self.core.state();
            state.freed = taken.checkpoint.freed;
            taken.doomed.snapshots.extend(state.made_durable(&taken.checkpoint));
            let named = taken.checkpoint.windows.iter().copied().collect();
            let before = std::mem::replace(&mut state.windows, named);
            let replaced = before.into_iter().filter(|(window, old)| state.windows.get(window) != Some(old));
            taken.doomed.live.extend(replaced);
        }
        work.durable_ring_low = taken.ring_low;
        work.unneeded = taken.unneeded.without(&taken.forgotten, 0..=u64::MAX);
        self.store.forget(&Unneeded { segments_below: taken.checkpoint.ring_low, lsns: taken.forgotten });
        self.bury(work, taken.doomed);
        Ok(taken.checkpoint.streams.iter().map(|row| (row.id, Lsn::new(row.position))).collect())
    }

    /// Copies the present state in memory, consistently.
    fn take(&self, work: &mut Work) -> Taken {
        work.counter += 1;
        // Before the lock on the state: a segment that fills up meanwhile is needed anyway.
        let Extent { proof, segments, held } = self.store.extent();
        let is_pressed = self.is_pressed();
        self.core.bytes.store(0, Ordering::Relaxed);
        let mut state = self.core.state();
        state.is_changed_otherwise = false;
        // There are none where nothing was appended since all were freed; the files of the freed ones still have what they had.
        let mut ring_low = segments.first().map_or(work.ring_low, |segment| segment.number);
        let mut packed_low = 0;
        let in_packs = state.packs.last().map_or(0, |pack| pack.last);
        for segment in segments.iter().take_while(|segment| segment.is_sealed) {
            let first = segment.first.get();
            let last = segment.last.get();
            let is_free = last <= state.packed_through;
            if !is_free && (last > state.published || state.is_any_needed(first..=last)) {
                break;
            }
            state.packed_through = state.packed_through.max(last);
            ring_low = segment.number + 1;
            if last <= in_packs {
                packed_low = ring_low;
            }
        }
        work.ring_low = ring_low;
        // A stream that cannot read its last snapshot starts from the one of the checkpoint before, and finds in the ring what has come in between. Where the ring
        // is short of room that is given up, as are segments that were packed.
        let kept_low = if is_pressed { ring_low } else { ring_low.min(work.durable_ring_low.max(packed_low)) };
        // Nothing after the last batch: its number may be given again if every file of the ring is lost.
        let proof = Proof { through: proof.through.min(Lsn::new(state.published).into()), ..proof };
        state.keep_up();
        let (gone, kept) = segments.split_at(segments.partition_point(|segment| segment.number < kept_low));
        let mut freed = gone.iter().map(|segment| segment.last.get()).fold(state.freed, u64::max);
        if kept.iter().all(|segment| segment.first.get() == 0) {
            freed = freed.max(proof.through.get());
        }
        // The same for records that are forgotten one by one: they stay until the next checkpoint.
        let unneeded = held.map_or_else(LsnSet::default, |held| state.unneeded(&held));
        let forgotten = if is_pressed { unneeded.clone() } else { work.unneeded.clone() };
        freed = freed.max(forgotten.last().unwrap_or(0));
        let counter = work.counter;
        let kind = Some(self.config.kind);
        let mut checkpoint = Checkpoint { counter, kind, ring_low: kept_low, freed, proof, ..state.rows() };
        let mut named = state.windows.clone();
        let mut windows = Vec::new();
        for window in std::mem::take(&mut state.dirty) {
            let content = state.window(window);
            if content.is_empty() {
                named.remove(&window);
            } else {
                named.insert(window, work.counter);
            }
            windows.push((window, content));
        }
        checkpoint.windows = named.into_iter().collect();
        let mut doomed = std::mem::take(&mut state.doomed);
        state.doomed.uploads = std::mem::take(&mut state.unripe_uploads);
        // One that was replaced while the last checkpoint named it goes when a checkpoint has dropped it.
        let is_named = |name: &SnapshotName| {
            checkpoint.streams.iter().flat_map(|stream| &stream.snapshots).any(|row| row.name == *name)
        };
        doomed.snapshots.retain(|name| !is_named(name));
        Taken { checkpoint, ring_low, forgotten, unneeded, windows, doomed }
    }

    fn write(&self, work: &mut Work, taken: &mut Taken) -> Result<(), CheckpointError> {
        let generation = taken.checkpoint.counter;
        let mut is_any_written = false;
        for (window, content) in taken.windows.iter().filter(|(_, content)| !content.is_empty()) {
            // From here on it may be named by a checkpoint that is on the disk although its writing failed.
            taken.doomed.live.push((*window, generation));
            let written = work.live.write(*window, generation, content);
            written.map_err(CheckpointError::io("cannot write a live file"))?;
            is_any_written = true;
        }
        if is_any_written {
            work.live.sync().map_err(CheckpointError::io("cannot sync the live files"))?;
        }
        work.files.write(&taken.checkpoint).map_err(CheckpointError::io("cannot write the checkpoint"))?;
        taken.doomed.live.retain(|(_, other)| *other != generation);
        Ok(())
    }

    /// Removes files that no checkpoint names. Failed removals are left to the next opening.
    fn bury(&self, work: &Work, doomed: Doomed) {
        for id in doomed.packs {
            self.packs.remove(id);
        }
        for upload in doomed.uploads {
            let _ = self.bodies.remove(upload);
        }
        for name in doomed.snapshots.iter().filter(|name| name.is_file()) {
            let _ = self.snapshots.remove(name);
        }
        for (window, generation) in doomed.live {
            let _ = work.live.remove(window, generation);
        }
    }
}
