//! Numbers of mailboxes and messages.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::SystemTime;

use crate::flags::MessageFlags;

/// Identifies a mailbox, uniquely over all accounts. RENAME keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MailboxId(pub u32);

/// The UID of a message (RFC 9051 section 2.3.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid(pub NonZeroU32);

/// UIDVALIDITY of a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UidValidity(pub NonZeroU32);

/// A modification sequence (RFC 7162), never 0. A store without MODSEQ uses 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModSeq(pub u64);

/// Unique-ids of POP3 (RFC 1939 section 7) by UID.
pub type UniqueIds = BTreeMap<u32, Box<str>>;

impl Uid {
    /// `None` for 0.
    pub fn new(uid: u32) -> Option<Self> {
        NonZeroU32::new(uid).map(Self)
    }

    /// The UID as a number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl UidValidity {
    /// The UIDVALIDITY as a number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for UidValidity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counters of a mailbox for STATUS and SELECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailboxStatus {
    /// Number of messages.
    pub exists: u32,
    /// Messages that were `\Recent` in no session yet.
    pub recent: u32,
    /// Messages without `\Seen`.
    pub unseen: u32,
    /// Messages with `\Deleted`.
    pub deleted: u32,
    /// The next UID, or a lower bound of it.
    pub uid_next: Uid,
    /// UIDVALIDITY.
    pub uid_validity: UidValidity,
    /// The highest MODSEQ.
    pub highest_modseq: ModSeq,
    /// The sum of all wire sizes in bytes, recorded at arrival; unreadable messages count nothing. `None` if it is
    /// unknown without reading the mail.
    pub bytes: Option<u64>,
}

/// A rebuilt mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RebuiltMailbox {
    /// UIDVALIDITY after the rebuild.
    pub uid_validity: UidValidity,
    /// The next UID.
    pub uid_next: Uid,
    /// Number of messages.
    pub messages: u32,
    /// True if UIDVALIDITY and the UIDs of messages are unchanged.
    pub keeps_uids: bool,
}

/// A message in a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageRow {
    /// Message number in the view, from 1 on.
    pub number: u32,
    /// UID of the message.
    pub uid: Uid,
    /// Flags and keywords.
    pub flags: MessageFlags,
    /// True if the message is `\Recent` in this IMAP session.
    pub recent: bool,
    /// MODSEQ of the last change.
    pub modseq: ModSeq,
    /// RFC822.SIZE: bytes of the body, CRLF counting as two. `None` if not requested, or the message cannot be read.
    pub size: Option<u64>,
    /// INTERNALDATE, in whole seconds from 1970 to 2106.
    pub internal_date: SystemTime,
}

/// An inclusive range of message numbers or UIDs, `first <= last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberRange {
    /// Lowest number.
    pub first: u32,
    /// Highest number, inclusive.
    pub last: u32,
}

impl NumberRange {
    /// Intersection of two lists. Ranges of each ascend and do not overlap.
    pub(crate) fn common(one: &[Self], other: &[Self]) -> Vec<Self> {
        let (mut common, mut at) = (Vec::new(), 0);
        for range in one {
            while other.get(at).is_some_and(|other| other.last < range.first) {
                at += 1;
            }
            let within = other[at..].iter().take_while(|other| other.first <= range.last);
            common.extend(
                within.map(|other| Self { first: other.first.max(range.first), last: other.last.min(range.last) }),
            );
        }
        common
    }
}

/// Messages of a view. The caller has replaced `*`. Ranges may overlap and be in any order; missing messages are
/// skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageSet {
    /// Message numbers of the view.
    Numbers(Vec<NumberRange>),
    /// UIDs.
    Uids(Vec<NumberRange>),
}

impl MessageSet {
    /// All messages.
    pub fn all() -> Self {
        Self::Uids(vec![NumberRange { first: 1, last: u32::MAX }])
    }

    /// Sorted ranges that neither overlap nor touch.
    pub(crate) fn merged(ranges: &[NumberRange]) -> Vec<NumberRange> {
        let mut sorted: Vec<NumberRange> = ranges.iter().copied().filter(|range| range.first <= range.last).collect();
        sorted.sort_unstable_by_key(|range| range.first);
        let mut merged: Vec<NumberRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if range.first <= last.last.saturating_add(1) => last.last = last.last.max(range.last),
                _ => merged.push(range),
            }
        }
        merged
    }

    /// Sorted ranges of positions (from 0) in a view of `len` messages in UID order, of which `below` are below a UID.
    pub(crate) fn positions(&self, len: usize, below: impl Fn(u64) -> usize) -> Vec<Range<usize>> {
        let position = |range: NumberRange| match self {
            Self::Numbers(_) => (range.first.max(1) as usize - 1).min(len)..(range.last as usize).min(len),
            Self::Uids(_) => below(range.first.into())..below(u64::from(range.last) + 1),
        };
        let (Self::Numbers(ranges) | Self::Uids(ranges)) = self;
        Self::merged(ranges).into_iter().map(position).filter(|range| !range.is_empty()).collect()
    }
}

/// Ascending UIDs as ranges.
pub(crate) fn ranges(uids: impl Iterator<Item = u32>) -> Vec<NumberRange> {
    let mut ranges: Vec<NumberRange> = Vec::new();
    for uid in uids {
        match ranges.last_mut() {
            Some(range) if range.last + 1 == uid => range.last = uid,
            _ => ranges.push(NumberRange { first: uid, last: uid }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ranges: &[(u32, u32)]) -> Vec<NumberRange> {
        ranges.iter().map(|&(first, last)| NumberRange { first, last }).collect()
    }

    #[test]
    fn sets_become_positions_whatever_their_order() {
        let uids = [2u64, 3, 5, 9];
        let check = |set: MessageSet, expected: &[usize]| {
            let below = |uid: u64| uids.partition_point(|known| *known < uid);
            assert_eq!(set.positions(uids.len(), below).into_iter().flatten().collect::<Vec<_>>(), expected, "{set:?}");
        };
        check(MessageSet::all(), &[0, 1, 2, 3]);
        check(MessageSet::Uids(ranges(&[(9, 20), (1, 2), (6, 8)])), &[0, 3]);
        check(MessageSet::Uids(ranges(&[(3, 5), (4, 4), (6, 6), (u32::MAX, u32::MAX)])), &[1, 2]);
        check(MessageSet::Numbers(ranges(&[(4, u32::MAX), (0, 1), (2, 2)])), &[0, 1, 3]);
        check(MessageSet::Numbers(ranges(&[(5, 5), (3, 2)])), &[]);
        check(MessageSet::Numbers(Vec::new()), &[]);
    }
}
