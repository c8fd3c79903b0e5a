//! Waiting for room in the spool. The refusal has asked the spool's keeper for a checkpoint, which may free segments,
//! packs and files of bodies.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use posthaste_spool::Spool;
use posthaste_units::BackOff;

use crate::body::blocking;
use crate::error::IntakeError;
use crate::intake::Intake;

/// One message's wait. After a timeout, waits of others end at once until one finds room.
pub(crate) struct RoomWait<'a> {
    intake: &'a Intake,
    is_full: &'a AtomicBool,
    deadline: Instant,
    back_off: BackOff,
}

impl<'a> RoomWait<'a> {
    /// `is_full`: true if the last wait of this kind timed out.
    pub fn begin(intake: &'a Intake, is_full: &'a AtomicBool) -> Self {
        RoomWait { intake, is_full, deadline: intake.now() + intake.config().room_patience, back_off: LOOK_AGAIN }
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
        if self.intake.now() >= self.deadline || self.is_full.load(Ordering::Relaxed) {
            self.is_full.store(true, Ordering::Relaxed);
            return false;
        }
        tokio::time::sleep(self.back_off.failed()).await;
        true
    }
}

impl Intake {
    /// Retries a blocking attempt for a large body, until there is room for it or
    /// [`room_patience`](crate::Config::room_patience) ends.
    ///
    /// # Errors
    /// [`IntakeError::Full`] without room, else the attempt's error.
    pub(crate) async fn when_room<T: Send + 'static>(
        &self,
        attempt: impl Fn(&dyn Spool) -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<T, IntakeError> {
        let mut wait = RoomWait::begin(self, self.is_full_of_bodies());
        loop {
            let attempt = attempt.clone();
            let spool = self.spool().clone();
            match blocking(move || attempt(&*spool)).await {
                Err(IntakeError::Full(error)) => {
                    if !wait.goes_on().await {
                        return Err(IntakeError::Full(error));
                    }
                }
                ended => {
                    wait.found();
                    return ended;
                }
            }
        }
    }
}

const LOOK_AGAIN: BackOff = BackOff::new(Duration::from_millis(10), Duration::from_millis(500));
