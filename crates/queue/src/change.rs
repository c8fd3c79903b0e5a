//! Outcomes of recipients, and findings and commands that become one.

use posthaste_spool::Lsn;

use super::clock::Secs;
use super::codec::{Fields, QueueDecodeError};

/// A recipient: the batch of its message, and its number within the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecipientKey {
    /// LSN of the batch with the message.
    pub message: Lsn,
    /// Number of the recipient within the message.
    pub number: u16,
}

/// An outcome of one recipient, in absolute values: applied twice it has the effect of once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The recipient.
    pub key: RecipientKey,
    /// The outcome.
    pub what: What,
}

/// The last reply's code and enhanced code (RFC 3463); 0 where there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Reply code, such as 450.
    pub code: u16,
    /// 1000 times the subject of the enhanced code, plus its detail: `1001` for x.1.1. The class is that of `code`.
    pub enhanced: u16,
}

/// The outcome of a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Delivered: the next hop has accepted it.
    Delivered(Status),
    /// Given up, without a notice.
    Failed(Status),
    /// Given up, or accepted by the next hop, with a notice owed to the sender.
    Owed(OwedNotice, Status),
    /// The owed notice is in this batch, or not wanted.
    Told,
    /// Given up: its address is on a suppression list.
    Suppressed,
    /// Removed by an operator.
    Deleted,
    /// An attempt failed.
    Deferred {
        /// Attempts so far.
        attempts: u8,
        /// Time of the next attempt.
        next: Secs,
        /// Result of the attempt.
        status: Status,
    },
    /// The next attempt has a new time.
    Rescheduled {
        /// Attempts counted.
        attempts: u8,
        /// Time of the next attempt.
        next: Secs,
    },
    /// Held: no attempts, no expiry.
    Held(HoldReason),
    /// No longer held.
    Released {
        /// Time of the next attempt.
        next: Secs,
        /// New time of expiry; 0 leaves the old one.
        expires: Secs,
    },
    /// An attempt is about to begin.
    Begun {
        /// Crashes during earlier attempts.
        crashes: u8,
    },
    /// The attempt that had begun did not take place: no crash counts.
    GivenBack,
    /// The sender was notified of the delay, or does not want that.
    DelayTold,
}

/// The reason of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldReason {
    /// An operator's command.
    Operator,
    /// It was in flight in several crashes.
    Quarantine,
    /// A rule of the configuration.
    Policy,
    /// The queue's snapshots could not be read: it may have been delivered.
    Uncertain,
    /// An operator's command, until this time.
    Until(Secs),
}

/// The kind of notice owed for a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OwedNotice {
    /// It was given up.
    Failed,
    /// A next hop accepted it that does not report success itself.
    Relayed,
    /// It was delivered to a mailbox here.
    Delivered,
}

/// An operator's command on recipients. "Now" is never before the time at which a message may first leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueAction {
    /// Holds them: no attempts and no expiry until a time, or until they are released. An operator's hold with an end
    /// gets the new end; a hold without an end, or not by an operator, stays.
    Hold(Option<Secs>),
    /// Releases held ones for an attempt now; those that have expired meanwhile get a new full lifetime.
    Release,
    /// Tries them now; suspended ones once they are resumed; held ones not.
    Flush,
    /// Like `Flush`, as for a first attempt.
    Requeue,
    /// Removes them without a notice.
    Delete,
    /// Gives them up; the caller records the DSN with the change.
    Bounce(Status),
}

/// A finding that the caller must record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueNotice {
    /// An expired recipient: record [`What::Failed`] with its DSN (5.4.7, RFC 3463). Busy until
    /// then.
    Expired(RecipientKey),
    /// A late recipient: record [`What::DelayTold`], with a DSN if NOTIFY asks.
    Delayed(RecipientKey),
}

impl RecipientKey {
    /// Less than every key.
    pub(super) const FIRST: Self = RecipientKey { message: Lsn::ZERO, number: 0 };

    /// The largest key below this one; `None` for the first.
    pub fn before(self) -> Option<Self> {
        match self.number.checked_sub(1) {
            Some(number) => Some(RecipientKey { number, ..self }),
            None => Some(RecipientKey { message: Lsn::new(self.message.get().checked_sub(1)?), number: u16::MAX }),
        }
    }

    /// The value after it.
    pub(super) fn next(self) -> Self {
        match self.number.checked_add(1) {
            Some(number) => RecipientKey { number, ..self },
            None => RecipientKey { message: Lsn::new(self.message.get() + 1), number: 0 },
        }
    }

    pub(super) fn put(self, out: &mut Vec<u8>) {
        out.extend(self.message.get().to_le_bytes());
        out.extend(self.number.to_le_bytes());
    }

    pub(super) fn take(rest: &mut Fields<'_>) -> Result<Self, QueueDecodeError> {
        Ok(RecipientKey { message: Lsn::new(rest.u64()?), number: rest.u16()? })
    }
}

impl Status {
    pub(super) fn put(self, out: &mut Vec<u8>) {
        out.extend(self.code.to_le_bytes());
        out.extend(self.enhanced.to_le_bytes());
    }

    pub(super) fn take(rest: &mut Fields<'_>) -> Result<Self, QueueDecodeError> {
        Ok(Status { code: rest.u16()?, enhanced: rest.u16()? })
    }
}

impl Change {
    /// This change with an owed notice if it gives a recipient up or delivers to it; else unchanged.
    #[must_use]
    pub fn with_notice(self) -> Self {
        let what = match self.what {
            What::Failed(status) => What::Owed(OwedNotice::Failed, status),
            What::Delivered(status) => What::Owed(OwedNotice::Relayed, status),
            what => what,
        };
        Change { what, ..self }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.push(match self.what {
            What::Delivered(_) => 1,
            What::Failed(_) => 2,
            What::Suppressed => 3,
            What::Deleted => 4,
            What::Deferred { .. } => 5,
            What::Rescheduled { .. } => 6,
            What::Held(HoldReason::Until(_)) => 11,
            What::Held(_) => 7,
            What::Released { .. } => 8,
            What::Begun { .. } => 9,
            What::DelayTold => 10,
            What::Owed(..) => 12,
            What::Told => 13,
            What::GivenBack => 14,
        });
        self.key.put(out);
        match self.what {
            What::Delivered(status) | What::Failed(status) => status.put(out),
            What::Suppressed | What::Deleted | What::DelayTold | What::Told | What::GivenBack => {}
            What::Owed(notice, status) => {
                out.push(notice.number());
                status.put(out);
            }
            What::Deferred { attempts, next, status } => {
                out.push(attempts);
                out.extend(next.to_le_bytes());
                status.put(out);
            }
            What::Rescheduled { attempts, next } => {
                out.push(attempts);
                out.extend(next.to_le_bytes());
            }
            What::Held(reason) if reason.has_end() => out.extend(reason.number().to_le_bytes()),
            What::Held(reason) => out.push(reason.number() as u8),
            What::Released { next, expires } => {
                out.extend(next.to_le_bytes());
                out.extend(expires.to_le_bytes());
            }
            What::Begun { crashes } => out.push(crashes),
        }
    }

    pub(super) fn take(rest: &mut Fields<'_>) -> Result<Self, QueueDecodeError> {
        let kind = rest.u8()?;
        let key = RecipientKey::take(rest)?;
        let what = match kind {
            1 => What::Delivered(Status::take(rest)?),
            2 => What::Failed(Status::take(rest)?),
            3 => What::Suppressed,
            4 => What::Deleted,
            5 => What::Deferred { attempts: rest.u8()?, next: rest.u32()?, status: Status::take(rest)? },
            6 => What::Rescheduled { attempts: rest.u8()?, next: rest.u32()? },
            7 => What::Held(Some(HoldReason::of(rest.u8()?.into())).filter(|reason| !reason.has_end()).ok_or(UNKNOWN)?),
            8 => What::Released { next: rest.u32()?, expires: rest.u32()? },
            9 => What::Begun { crashes: rest.u8()? },
            10 => What::DelayTold,
            11 => What::Held(Some(HoldReason::of(rest.u32()?)).filter(|reason| reason.has_end()).ok_or(UNKNOWN)?),
            12 => What::Owed(OwedNotice::of(rest.u8()?)?, Status::take(rest)?),
            13 => What::Told,
            14 => What::GivenBack,
            _ => return Err(QueueDecodeError::Unknown("change")),
        };
        Ok(Change { key, what })
    }
}

impl HoldReason {
    /// Encoding in the field of the next attempt: 0 to 3 without an end, else the end of the hold.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Operator => 0,
            Self::Quarantine => 1,
            Self::Policy => 2,
            Self::Uncertain => 3,
            Self::Until(until) => until.max(4),
        }
    }

    pub(super) fn of(number: u32) -> Self {
        let reasons = [Self::Operator, Self::Quarantine, Self::Policy, Self::Uncertain];
        reasons.get(number as usize).copied().unwrap_or(Self::Until(number))
    }

    /// True if the hold ends by itself.
    pub fn has_end(self) -> bool {
        matches!(self, Self::Until(_))
    }

    /// True if an operator holds it.
    pub fn is_operators(self) -> bool {
        matches!(self, Self::Operator | Self::Until(_))
    }
}

impl OwedNotice {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Failed => 0,
            Self::Relayed => 1,
            Self::Delivered => 2,
        }
    }

    pub(super) fn of(number: u8) -> Result<Self, QueueDecodeError> {
        match number {
            0 => Ok(Self::Failed),
            1 => Ok(Self::Relayed),
            2 => Ok(Self::Delivered),
            _ => Err(QueueDecodeError::Unknown("notice")),
        }
    }
}

impl QueueAction {
    /// Rank among actions that follow the same attempt: the highest counts; of equal rank, the latest.
    pub(super) fn rank(self) -> u8 {
        match self {
            QueueAction::Delete => 3,
            QueueAction::Bounce(_) => 2,
            QueueAction::Hold(_) => 1,
            QueueAction::Release | QueueAction::Flush | QueueAction::Requeue => 0,
        }
    }
}

impl DueNotice {
    /// The recipient.
    pub fn key(&self) -> RecipientKey {
        match self {
            DueNotice::Expired(key) | DueNotice::Delayed(key) => *key,
        }
    }

    /// True if both have the same kind and message.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.key().message == other.key().message
    }
}

const UNKNOWN: QueueDecodeError = QueueDecodeError::Unknown("reason");
