//! Waits for room in the spool, whose keeper was asked for it by the refusal: a checkpoint may free segments, packs and files of bodies.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use posthaste_spool::Spool;
use posthaste_units::BackOff;

use crate::body::blocking;
use crate::error::IntakeError;
use crate::intake::Intake;

/// One message's wait. Once a wait was in vain, others end at once until one finds room.
pub(crate) struct RoomWait<'a> {
    intake: &'a Intake,
    is_full: &'a AtomicBool,
    deadline: Instant,
    back_off: BackOff,
}

impl<'a> RoomWait<'a> {
    /// `is_full`: whether the last wait of this kind was in vain.
    pub fn begin(intake: &'a Intake, is_full: &'a AtomicBool) -> Self {
        RoomWait { intake, is_full, deadline: intake.now() + intake.config().room_patience, back_off: LOOK_AGAIN }
    }

    /// After an attempt that found room.
    pub fn found(&self) {
        // Written only when it changes: all who deliver read it.
        if self.is_full.load(Ordering::Relaxed) {
            self.is_full.store(false, Ordering::Relaxed);
        }
    }

    /// After an attempt that found none: waits a moment. False: it is not to be tried again.
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
    /// Repeats an attempt for a large body, which blocks, until there is room for it or [`room_patience`](crate::Config::room_patience) ends.
    ///
    /// # Errors
    /// [`IntakeError::Full`] if there was no room, else what the attempt ended with.
    pub(crate) async fn when_room<T: Send + 'static>(
        &self,
        attempt: impl Fn(&dyn Spool) -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<T, IntakeError> {
        let mut wait = RoomWait::begin(self, self.is_full_of_bodies());
        loop {
            let (attempt, spool) = (attempt.clone(), self.spool().clone());
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
