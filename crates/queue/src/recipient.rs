//! A waiting recipient, in 24 bytes.

use super::change::{HoldReason, Status, What};
use super::clock::Secs;

/// A recipient's place, or the head of a list.
pub(super) type Id = u32;

/// Marks the absence of an id.
pub(super) const NONE: Id = Id::MAX;

#[derive(Debug, Clone, Copy)]
pub(super) struct Recipient {
    /// The next recipient in the same list; [`NONE`] at the end.
    pub next: Id,
    pub prev: Id,
    /// Time of the next attempt; if held, the reason or the end of the hold.
    pub due: Secs,
    /// Place of the recipient's queue.
    pub queue: u32,
    pub number: u16,
    pub status: Status,
    pub attempts: u8,
    pub bits: u8,
}

/// Not settled.
pub(super) const OPEN: u8 = 1;
/// Held.
pub(super) const HELD: u8 = 2;
/// The sender was notified of the delay.
pub(super) const TOLD: u8 = 4;
/// An attempt has begun, and its outcome is not recorded.
pub(super) const BEGUN: u8 = 8;
/// In flight, or with a change to be recorded. Not in snapshots.
pub(super) const BUSY: u8 = 16;
/// In a list of its queue rather than in the wheel. Not in snapshots.
pub(super) const DUE: u8 = 32;
/// Two bits for the number of crashes.
pub(super) const CRASHES_SHIFT: u32 = 6;
pub(super) const CRASHES_MAX: u8 = 3;

impl Recipient {
    pub fn new(number: u16, queue: u32, due: Secs) -> Self {
        let status = Status::default();
        Recipient { next: NONE, prev: NONE, due, queue, number, status, attempts: 0, bits: OPEN }
    }

    pub fn is(&self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    pub fn set(&mut self, bit: u8, holds: bool) {
        self.bits = if holds { self.bits | bit } else { self.bits & !bit };
    }

    /// Ends an `Uncertain` hold: a record shows that it waits undelivered.
    pub fn is_certain(&mut self) {
        if self.is(HELD) && HoldReason::of(self.due) == HoldReason::Uncertain {
            self.set(HELD, false);
        }
    }

    /// Marks it as in flight, or with a change to be recorded.
    pub fn begin_work(&mut self) {
        self.set(DUE, false);
        self.set(BUSY, true);
    }

    /// Applies a record that does not settle it. True if the record does not end the work on it.
    pub fn apply(&mut self, what: What) -> bool {
        match what {
            What::Begun { crashes } => {
                self.set(BEGUN, true);
                self.set_crashes(crashes);
                return true;
            }
            What::DelayTold => {
                self.set(TOLD, true);
                return true;
            }
            What::Deferred { attempts, next, status } => {
                self.is_certain();
                (self.attempts, self.status) = (attempts, status);
                if !self.is(HELD) {
                    self.due = next;
                }
            }
            What::Rescheduled { attempts, next } => {
                self.is_certain();
                self.attempts = attempts;
                self.set_crashes(0);
                if !self.is(HELD) {
                    self.due = next;
                }
            }
            What::Held(reason) => {
                self.set(HELD, true);
                self.due = reason.number();
            }
            What::Released { next, .. } => {
                if self.is(HELD) {
                    self.due = next;
                }
                self.set(HELD, false);
                self.set_crashes(0);
            }
            What::GivenBack => {}
            What::Delivered(_) | What::Failed(_) | What::Owed(..) | What::Suppressed | What::Deleted | What::Told => {
                unreachable!("{what:?} settles a recipient, or is of none")
            }
        }
        self.set(BEGUN, false);
        false
    }

    pub fn crashes(&self) -> u8 {
        self.bits >> CRASHES_SHIFT
    }

    pub fn set_crashes(&mut self, crashes: u8) {
        self.bits = self.bits & ((1 << CRASHES_SHIFT) - 1) | crashes.min(CRASHES_MAX) << CRASHES_SHIFT;
    }
}
