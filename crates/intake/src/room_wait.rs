//! Waiting for room in the spool. The refusal has asked the spool's keeper for a checkpoint, which may free segments,
//! packs and files of bodies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use posthaste_units::BackOff;

/// One message's wait. After a timeout, waits of others end at once until one finds room.
pub(crate) struct RoomWait<'a> {
    clock: &'a (dyn Fn() -> Instant + Send + Sync),
    is_full: &'a AtomicBool,
    deadline: Instant,
    back_off: BackOff,
}

impl<'a> RoomWait<'a> {
    /// `is_full`: true if the last wait of this kind timed out.
    pub fn begin(clock: &'a (dyn Fn() -> Instant + Send + Sync), patience: Duration, is_full: &'a AtomicBool) -> Self {
        RoomWait { clock, is_full, deadline: clock() + patience, back_off: LOOK_AGAIN }
    }

    /// Call after a successful attempt.
    pub fn found(&self) {
        // Written only when it changes: all who deliver read it.
        if self.is_full.load(Ordering::Relaxed) {
            self.is_full.store(false, Ordering::Relaxed);
        }
    }

    /// Call after a failed attempt: waits a moment. False if there must be no further attempt.
    pub async fn goes_on(&mut self) -> bool {
        if (self.clock)() >= self.deadline || self.is_full.load(Ordering::Relaxed) {
            self.is_full.store(true, Ordering::Relaxed);
            return false;
        }
        tokio::time::sleep(self.back_off.failed()).await;
        true
    }
}

const LOOK_AGAIN: BackOff = BackOff::new(Duration::from_millis(10), Duration::from_millis(500));
