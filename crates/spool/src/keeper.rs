//! The thread that makes checkpoints when they are due, and makes room when the ring is short of it. Appends never wait
//! for these files.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Lsn;
use posthaste_fsops::Space;
use posthaste_ring::Ring;

use crate::config::usable_bytes;
use crate::core::{Core, Wanted};
use crate::events::SpoolEvent;
use crate::shared::Shared;

/// The running thread. Dropping it ends the thread after its current work.
pub(crate) struct Keeper {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(shared: Arc<Shared>) -> std::io::Result<Self> {
        let core = shared.core.clone();
        let thread = std::thread::Builder::new().name("spool-keep".to_owned()).spawn(move || run(&shared))?;
        Ok(Keeper { core, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.core.bell.ring(Wanted::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    let mut due = Instant::now() + shared.config.checkpoint_every;
    let mut has_failed = false;
    loop {
        let wanted = shared.core.bell.wait(LOOK_EVERY);
        if wanted == Some(Wanted::Stop) {
            return;
        }
        // On a full disk every refused batch asks for room: after a failure, tries and reports are rate-limited.
        if std::mem::take(&mut has_failed) && shared.core.bell.wait_for_stop(LOOK_EVERY) {
            return;
        }
        shared.look_at_space();
        if shared.store.poisoned().is_some() {
            // Nothing can be written until the spool is reopened.
            continue;
        }
        let is_due = Instant::now() >= due;
        let is_room_wanted = wanted == Some(Wanted::Room) || shared.is_short_of_space.load(Ordering::Relaxed);
        let outcome = shared.keep(is_due, is_room_wanted);
        if is_room_wanted {
            shared.look_at_space();
        }
        has_failed = outcome.is_err();
        if is_due || outcome.is_ok_and(|made_checkpoint| made_checkpoint) {
            due = Instant::now() + shared.config.checkpoint_every;
        }
    }
}

impl Shared {
    /// One round: asks lagging streams to advance, makes a checkpoint if one is due or would free anything, packs if
    /// the ring is short. True if it made a checkpoint.
    pub fn keep(&self, is_due: bool, is_room_wanted: bool) -> Result<bool, crate::CheckpointError> {
        let Some(ring) = self.store.ring() else { return self.keep_records(is_due, is_room_wanted) };
        let max = self.segments_max(ring);
        self.pressure.set_usable(usable_bytes(max, self.config.ring.segment_bytes));
        let stats = ring.stats();
        let in_use = stats.segments_in_service;
        let is_pressed = in_use * 2 > max;
        if is_pressed {
            let segments = ring.segments();
            let oldest = &segments[..in_use.saturating_sub(max / 2).max(1).min(segments.len())];
            oldest.last().into_iter().for_each(|segment| self.ask_laggards(segment.last.get()));
        }
        let is_full = self.core.bytes.load(Ordering::Relaxed) >= self.config.checkpoint_bytes;
        let is_changed = self.core.state().is_changed();
        let mut made = false;
        // Unneeded packs occupy the disk just as the ring's segments do.
        let is_disk_full = is_room_wanted && max < stats.max_segments;
        if is_changed && (is_due || is_full || is_disk_full)
            || (is_pressed || is_room_wanted) && self.is_oldest_free(ring)
        {
            self.checkpoint()?;
            made = true;
        }
        // A segment freed by the checkpoint may be enough.
        let in_use = ring.stats().segments_in_service;
        let wanted = usize::from(is_pressed && is_room_wanted && !made);
        let is_packing = in_use * 8 >= max * 5 || wanted > 0;
        let mut left = if is_packing { in_use.saturating_sub(max / 2).max(wanted) } else { 0 };
        // Each checkpoint makes room: pressure on intake ends before the last segment is packed.
        while left > 0 && !self.core.bell.is_end_wanted() {
            let packed = self.pack_oldest(left.min(PACKED_AT_ONCE))?;
            if packed == 0 {
                break;
            }
            self.checkpoint()?;
            made = true;
            left -= packed;
        }
        if made && self.clean_packs()? > 0 {
            self.checkpoint()?;
        }
        Ok(made)
    }

    /// Like [`keep`](Self::keep), for a store that forgets single records: it needs no packs.
    fn keep_records(&self, is_due: bool, is_room_wanted: bool) -> Result<bool, crate::CheckpointError> {
        let is_pressed = self.is_pressed();
        let (published, is_changed) = {
            let state = self.core.state();
            (state.published, state.is_changed())
        };
        if is_pressed {
            self.ask_laggards(published);
        }
        let is_full = self.core.bytes.load(Ordering::Relaxed) >= self.config.checkpoint_bytes;
        // The last checkpoint has left them to this one.
        let has_unneeded = !self.work.lock().expect("a checkpoint does not panic").unneeded.is_empty();
        let is_wanted = is_changed && (is_due || is_full || is_room_wanted || is_pressed) || is_due && has_unneeded;
        if is_wanted {
            self.checkpoint()?;
        }
        Ok(is_wanted)
    }

    /// Existing segments, plus those for which the disk has room.
    fn segments_max(&self, ring: &Ring) -> usize {
        let stats = ring.stats();
        let room = self.bodies.room().free().unwrap_or(u64::MAX) / self.config.ring.segment_bytes.max(1);
        stats.max_segments.min(stats.segments.saturating_add(usize::try_from(room).unwrap_or(usize::MAX)))
    }

    /// True if the store or the disk is short of space: then nothing is kept longer than necessary.
    pub fn is_pressed(&self) -> bool {
        let stats = self.store.stats();
        let max = self.store.ring().map_or(stats.space_max, |ring| self.segments_max(ring) as u64);
        stats.space_used * 2 > max || self.is_short_of_space.load(Ordering::Relaxed)
    }

    /// True if a checkpoint would free the oldest segment.
    fn is_oldest_free(&self, ring: &Ring) -> bool {
        let Some(oldest) = ring.segments().into_iter().next().filter(|segment| segment.is_sealed) else {
            return false;
        };
        let first = oldest.first.get();
        let last = oldest.last.get();
        let state = self.core.state();
        last <= state.packed_through || last <= state.published && !state.is_any_needed(first..=last)
    }

    /// Asks streams that lag behind an LSN to advance, once for each LSN.
    fn ask_laggards(&self, through: u64) {
        let _telling = self.core.telling();
        let asked: Vec<_> = {
            let mut state = self.core.state();
            let lags = |stream: &&mut crate::state::Stream| {
                stream.asked < through && stream.entries.first_in(0..=through).is_some()
            };
            let laggards = state.streams.values_mut().filter(lags);
            let ask = |stream: &mut crate::state::Stream| {
                let consumer = stream.consumer.clone()?;
                stream.asked = through;
                Some(consumer)
            };
            laggards.filter_map(ask).collect()
        };
        for consumer in asked {
            consumer.advance_wanted(Lsn::new(through));
        }
    }

    /// Compares free space with the floors. Below the floor of bytes it first removes free segments of the ring: other
    /// files need the space more than the next burst of mail does.
    pub fn look_at_space(&self) {
        let room = self.bodies.room();
        let Ok((mut space, mut is_short)) = room.look() else { return };
        if is_short && self.store.ring().is_some_and(|ring| ring.remove_free(room.missing(space)) > 0) {
            let Ok(again) = room.look() else { return };
            (space, is_short) = again;
        }
        let Space { bytes: free_bytes, inodes: free_inodes } = space;
        if self.is_short_of_space.swap(is_short, Ordering::Relaxed) != is_short {
            self.config.events.tell(SpoolEvent::ShortOfSpace { is_short, free_bytes, free_inodes });
        }
    }
}

/// Number of segments packed before each checkpoint.
const PACKED_AT_ONCE: usize = 4;

/// Interval of the keeper's rounds without requests.
const LOOK_EVERY: Duration = Duration::from_secs(1);
