//! Byte format of entries in the stream `queue`.
//!
//! Every entry begins with a version (1) and a kind; numbers are little-endian. A *text* is a length (u16) and UTF-8. A
//! *key* is the LSN of the message (u64) and the number of the recipient (u16). Seconds are those of the queue's
//! [clock](super::QueueClock). A *scope* is a kind (u8) and a text. Kinds: 0 tenant, 1 campaign, 2 domain, 3 site, 4 tenant
//! at a domain, 5 tenant at a site, 6 campaign at a domain, 7 campaign at a site. For kinds 4 to 7 a text of the place
//! follows.
//!
//! | kind | fields in order |
//! | --- | --- |
//! | 1 *queued* | flags (u8: 1 8bit, 2 SMTPUTF8, 4 RET=FULL, 8 RET=HDRS, 16 some leave from another sender, 32 its author may sign it); received, not before, expires (u32 each, 0 for none); texts: sender, ENVID, tenant, campaign, pool, with flag 16 the other sender; number of recipients (u16); each: number (u16), NOTIFY (u8: 1 never, 2 success, 4 failure, 8 delay; with flag 16: 16 leaves from the other sender), texts: address, ORCPT |
//! | 2 *changes* | when (u32); each: kind of change (u8), key, fields of [`What`] |
//! | 3 *replies* | text of a reply; keys |
//! | 4 *suspended* | scope, until (u32), reason (text) |
//! | 5 *resumed* | scope |
//! | 6 *diverted* | scope (without a site), until (u32), next hop (text), reason (text) |
//! | 7 *diverted no more* | scope |
//! | 8 *slowed* | scope, until (u32), rate of messages (text, empty for none), connections (u32, 0 for no limit), reason (text) |
//! | 9 *imported* | origin (16 bytes); when (u32); fields of *queued*; each recipient: attempts (u8), bits (u8: 2 held, 4 delay told), next attempt, or reason of the hold (u32; above 3 its end), status (u16 each), text of the last reply |
//! | 10 *import noted* | origin (16 bytes); when (u32); number of recipients (u16); number of each (u16) |
//! | 11 *why held* | reason (text, empty for none); keys |

use std::sync::Arc;

use posthaste_shaping::MailScope;
use posthaste_spool::put_text;

pub use super::change::{Change, HoldReason, RecipientKey, Status, What};
use super::clock::Secs;
pub use super::codec::EntryText;
use super::codec::{Fields, QueueDecodeError};
use super::imported::{ImportNoted, Imported};
pub use super::queued::{Forwarded, Queued, QueuedRecipient, QueuedRet};
use super::scope::{put_scope, take_scope};

/// An entry in the stream of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueEntry {
    /// A message for some recipients, in the batch of the message.
    Queued(Queued),
    /// Outcomes of recipients.
    Changes {
        /// Time of the record, on the queue's clock.
        at: Secs,
        /// The outcomes, at most [`CHANGES_MAX`].
        changes: Vec<Change>,
    },
    /// A reply, for display: why recipients wait. The queue does not keep it.
    Replies {
        /// The next hop's reply.
        text: EntryText,
        /// The recipients.
        keys: Vec<RecipientKey>,
    },
    /// A suspended scope: no attempts.
    Suspended {
        /// The suspended scope.
        scope: MailScope,
        /// End of the suspension; [`Secs::MAX`] without one.
        until: Secs,
        /// Reason of the suspension, for display.
        reason: EntryText,
    },
    /// A scope resumed, at full speed.
    Resumed(MailScope),
    /// A diverted scope: its mail, waiting or to come, goes to another next hop.
    Diverted {
        /// The diverted scope; never a site.
        scope: MailScope,
        /// End of the diversion; [`Secs::MAX`] without one.
        until: Secs,
        /// A host or an address literal, and a port after a colon if it is not 25.
        to: Arc<str>,
        /// Reason of the diversion, for display.
        reason: EntryText,
    },
    /// The end of a diversion.
    NotDiverted(MailScope),
    /// A scope slowed down until it is resumed.
    Slowed {
        /// The slowed scope: a site or a domain.
        scope: MailScope,
        /// End of the slow-down.
        until: Secs,
        /// A rate of messages as text; empty for none.
        message_rate: Arc<str>,
        /// Connections at a time; 0 for no limit.
        connections: u32,
        /// Reason of the slow-down, for display.
        reason: EntryText,
    },
    /// A message imported from another queue, in the batch of the message.
    Imported(Box<Imported>),
    /// The mark against a second import of its recipients, in the same batch.
    ImportNoted(ImportNoted),
    /// An operator's reason for a hold, for display. The queue does not keep it.
    WhyHeld {
        /// The reason; empty clears an earlier one.
        reason: EntryText,
        /// The recipients.
        keys: Vec<RecipientKey>,
    },
}

/// Longest kept reply, in bytes.
pub const REPLY_BYTES_MAX: usize = EntryText::BYTES_MAX;
/// Maximum changes in one entry; further changes go into more entries.
pub const CHANGES_MAX: usize = 65_536;

const VERSION: u8 = 1;
const QUEUED: u8 = 1;
const CHANGES: u8 = 2;
const REPLIES: u8 = 3;
const SUSPENDED: u8 = 4;
const RESUMED: u8 = 5;
const DIVERTED: u8 = 6;
const NOT_DIVERTED: u8 = 7;
const SLOWED: u8 = 8;
const IMPORTED: u8 = 9;
const IMPORT_NOTED: u8 = 10;
const WHY_HELD: u8 = 11;

impl QueueEntry {
    /// The message that the entry adds to the queue.
    pub fn into_message(self) -> Option<Queued> {
        match self {
            Self::Queued(queued) => Some(queued),
            Self::Imported(imported) => Some(imported.queued),
            _ => None,
        }
    }

    /// Encodes the entry's payload.
    ///
    /// # Panics
    /// A name or an address of more than 65,535 bytes, or more than 65,535 recipients: both are checked when they come
    /// in. Free text has a [type](EntryText) that bounds it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.push(VERSION);
        match self {
            Self::Queued(queued) => {
                out.push(QUEUED);
                queued.put(&mut out);
            }
            Self::Changes { at, changes } => {
                out.push(CHANGES);
                out.extend(at.to_le_bytes());
                changes.iter().for_each(|change| change.put(&mut out));
            }
            Self::Replies { text, keys } => {
                out.push(REPLIES);
                put_text(&mut out, text);
                keys.iter().for_each(|key| key.put(&mut out));
            }
            Self::Suspended { scope, until, reason } => {
                out.push(SUSPENDED);
                put_scope(&mut out, scope);
                out.extend_from_slice(&until.to_le_bytes());
                put_text(&mut out, reason);
            }
            Self::Resumed(scope) => {
                out.push(RESUMED);
                put_scope(&mut out, scope);
            }
            Self::Diverted { scope, until, to, reason } => {
                out.push(DIVERTED);
                put_scope(&mut out, scope);
                out.extend_from_slice(&until.to_le_bytes());
                put_text(&mut out, to);
                put_text(&mut out, reason);
            }
            Self::NotDiverted(scope) => {
                out.push(NOT_DIVERTED);
                put_scope(&mut out, scope);
            }
            Self::Slowed { scope, until, message_rate, connections, reason } => {
                out.push(SLOWED);
                put_scope(&mut out, scope);
                out.extend_from_slice(&until.to_le_bytes());
                put_text(&mut out, message_rate);
                out.extend_from_slice(&connections.to_le_bytes());
                put_text(&mut out, reason);
            }
            Self::Imported(imported) => {
                out.push(IMPORTED);
                imported.put(&mut out);
            }
            Self::ImportNoted(noted) => {
                out.push(IMPORT_NOTED);
                noted.put(&mut out);
            }
            Self::WhyHeld { reason, keys } => {
                out.push(WHY_HELD);
                put_text(&mut out, reason);
                keys.iter().for_each(|key| key.put(&mut out));
            }
        }
        out
    }

    /// Decodes a payload.
    ///
    /// # Errors
    /// See [`QueueDecodeError`]. Leave an entry of a later version in the spool.
    pub fn decode(payload: &[u8]) -> Result<Self, QueueDecodeError> {
        let mut rest = Fields::new(payload);
        if rest.u8()? != VERSION {
            return Err(QueueDecodeError::Unknown("version"));
        }
        let entry = match rest.u8()? {
            QUEUED => Self::Queued(Queued::take(&mut rest)?),
            CHANGES => {
                let at = rest.u32()?;
                let mut changes = Vec::new();
                while !rest.is_empty() {
                    if changes.len() == CHANGES_MAX {
                        return Err(QueueDecodeError::Bound("changes"));
                    }
                    changes.push(Change::take(&mut rest)?);
                }
                Self::Changes { at, changes }
            }
            REPLIES => Self::Replies { text: rest.text()?.into(), keys: keys(&mut rest)? },
            WHY_HELD => Self::WhyHeld { reason: rest.text()?.into(), keys: keys(&mut rest)? },
            SUSPENDED => {
                Self::Suspended { scope: take_scope(&mut rest)?, until: rest.u32()?, reason: rest.text()?.into() }
            }
            RESUMED => Self::Resumed(take_scope(&mut rest)?),
            DIVERTED => Self::Diverted {
                scope: take_scope(&mut rest)?,
                until: rest.u32()?,
                to: rest.text()?,
                reason: rest.text()?.into(),
            },
            NOT_DIVERTED => Self::NotDiverted(take_scope(&mut rest)?),
            SLOWED => Self::Slowed {
                scope: take_scope(&mut rest)?,
                until: rest.u32()?,
                message_rate: rest.text()?,
                connections: rest.u32()?,
                reason: rest.text()?.into(),
            },
            IMPORTED => Self::Imported(Box::new(Imported::take(&mut rest)?)),
            IMPORT_NOTED => Self::ImportNoted(ImportNoted::take(&mut rest)?),
            _ => return Err(QueueDecodeError::Unknown("kind")),
        };
        rest.end()?;
        Ok(entry)
    }
}

/// All keys up to the end.
fn keys(rest: &mut Fields<'_>) -> Result<Vec<RecipientKey>, QueueDecodeError> {
    let mut keys = Vec::new();
    while !rest.is_empty() {
        keys.push(RecipientKey::take(rest)?);
    }
    Ok(keys)
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
