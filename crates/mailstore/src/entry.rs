//! Entries of the stream `mailstore` as bytes. docs/formats.md has the table.
//!
//! An entry is a version, a kind, and the kind's fields. Numbers are little-endian; names, paths and directories are octets with their length in
//! front. All values are absolute, so an entry may be applied twice.

pub(crate) mod codec;

use bytes::Bytes;

use crate::row::NumberRange;

/// The name of the stream.
pub const STREAM: &str = "mailstore";
/// Maximum messages of one [`MailEntry::Found`] or [`MailEntry::UniqueIds`].
pub const FOUND_MAX: usize = 65_536;

const VERSION: u8 = 1;

/// An entry of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MailEntry {
    /// Messages that a door of intake, COPY or MOVE put into a mailbox: UIDs from `first_uid` on.
    New {
        /// Mailbox id.
        mailbox: u32,
        /// Facts and places of the messages.
        first_uid: u32,
        /// The messages.
        messages: Vec<NewMessage>,
    },
    /// New flags of messages, one group for each distinct result.
    State {
        /// Mailbox id.
        mailbox: u32,
        /// The groups.
        groups: Vec<StateGroup>,
    },
    /// Messages that left a mailbox. UIDs without a message count as used: the next UID is above all of them.
    Gone {
        /// Mailbox id.
        mailbox: u32,
        /// UIDs, ascending.
        set: Vec<NumberRange>,
        /// The reason, the same for all of the set.
        reason: GoneReason,
        /// Time of removal, in seconds since 1970.
        when: u32,
    },
    /// A mailbox was made, renamed or changed; the last entry counts.
    Mailbox(MailboxFields),
    /// A mailbox was deleted.
    MailboxGone {
        /// Mailbox id.
        id: u32,
    },
    /// Assigns a keyword to a bit.
    Keyword {
        /// Mailbox id.
        mailbox: u32,
        /// Bit in the flags, 8 to 63.
        bit: u8,
        /// Name of the keyword.
        name: Bytes,
    },
    /// Files that another program put into a Maildir: UIDs from `first_uid` on. Their LSN is this batch, their target the position in it.
    Found {
        /// Mailbox id.
        mailbox: u32,
        /// UID of the first message.
        first_uid: u32,
        /// Facts and file names, at most [`FOUND_MAX`].
        messages: Vec<(MessageFacts, Bytes)>,
    },
    /// Another program gave a message's file another key.
    Name {
        /// Mailbox id.
        mailbox: u32,
        /// UID of the message.
        uid: u32,
        /// New name of the file.
        name: Bytes,
    },
    /// A message's file was read, and its sizes differ from the recorded ones.
    Size {
        /// Mailbox id.
        mailbox: u32,
        /// UID of the message.
        uid: u32,
        /// RFC822.SIZE.
        wire_size: WireSize,
        /// LF line ends in the file, as in [`MessageFacts::line_feeds`].
        line_feeds: u32,
    },
    /// An account was made or changed.
    Account(AccountFields),
    /// The store was opened.
    Opening {
        /// Random number of this opening, part of file names.
        nonce: u32,
        /// Name of this host.
        host: Bytes,
    },
    /// A name was subscribed or unsubscribed.
    Subscription {
        /// Account id.
        account: u32,
        /// Name that was subscribed or unsubscribed.
        name: Bytes,
        /// True if the name is now subscribed.
        is_on: bool,
    },
    /// POP3 unique-ids given by an earlier server. Each is a printable text of at most 70 octets.
    UniqueIds {
        /// Mailbox id.
        mailbox: u32,
        /// UIDs with their unique-ids, at most [`FOUND_MAX`].
        ids: Vec<(u32, Bytes)>,
    },
}

/// An entry's subject, known without reading all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// The messages of a mailbox, or its keywords.
    OfMailbox(u32),
    /// A mailbox itself.
    Mailbox(u32),
    /// An account, or the whole store.
    Other,
}

impl EntryKind {
    /// The mailbox that the entry concerns, if it concerns one.
    pub fn mailbox(self) -> Option<u32> {
        match self {
            Self::OfMailbox(mailbox) | Self::Mailbox(mailbox) => Some(mailbox),
            Self::Other => None,
        }
    }
}

/// RFC822.SIZE in entries and rows. A type of its own, so that an empty message is not taken for one of unknown size:
/// the size helps to identify a file after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireSize(u32);

impl WireSize {
    /// The message was not read when it arrived.
    pub const UNKNOWN: Self = Self(u32::MAX);

    /// A size in octets; 4 GiB - 1 and more count as unknown.
    pub fn of(octets: u64) -> Self {
        u32::try_from(octets).map_or(Self::UNKNOWN, Self)
    }

    /// The size in octets; `None`: unknown.
    pub fn known(self) -> Option<u64> {
        (self != Self::UNKNOWN).then_some(self.0.into())
    }

    /// Size for sums; an unknown size counts as 0.
    pub fn counted(self) -> u64 {
        self.known().unwrap_or(0)
    }

    /// The number stored in entries and rows.
    pub(crate) fn stored(self) -> u32 {
        self.0
    }

    /// Inverse of [`Self::stored`].
    pub(crate) fn of_stored(stored: u32) -> Self {
        Self(stored)
    }
}

impl Default for WireSize {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

/// A message's constant numbers, and its initial flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageFacts {
    /// Flags as in [`MessageFlags`](crate::MessageFlags), and bits 5 to 7, which the table uses.
    pub flags: u64,
    /// INTERNALDATE in seconds since 1970.
    pub internal_date: u32,
    /// Time of its arrival in this mailbox, in seconds since 1970.
    pub save_date: u32,
    /// RFC822.SIZE.
    pub wire_size: WireSize,
    /// Number of line ends without a CR in the file. The size on the wire is larger by this number.
    pub line_feeds: u32,
}

/// A message of [`MailEntry::New`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// Sizes and dates of the message.
    pub facts: MessageFacts,
    /// Recipient number of the body.
    pub target: u16,
    /// The kind of the body.
    pub kind: BodyKind,
    /// Place of the body.
    pub place: BodyPlace,
}

/// Place of a new message's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyPlace {
    /// The body of this batch. Until its file is written, the message is read from the spool.
    Batch {
        /// Header fields in front of the body, in this mailbox only.
        prefix: Bytes,
    },
    /// The body of another message: COPY or MOVE.
    Copied(BodyOrigin),
}

/// A body of an earlier batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyOrigin {
    /// The batch.
    pub lsn: u64,
    /// E-mail id: LSN and target; zeros if it equals the body's.
    pub email_id: (u64, u16),
    /// The file's name.
    pub name: Bytes,
}

/// The kind of a message's body: column `kind` of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
#[repr(u8)]
pub enum BodyKind {
    /// A file delivered by this server, with LF line ends that are sent as CRLF.
    #[default]
    Own = 0,
    /// A file delivered by this server, sent unchanged.
    OwnVerbatim = 1,
    /// A file delivered by another program.
    Foreign = 2,
}

/// Messages that get the same flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateGroup {
    /// UIDs, ascending.
    pub set: Vec<NumberRange>,
    /// New flags of these messages.
    pub flags: u64,
    /// Letters last seen in the names of their files: bits 0-25 `a`-`z`, then D, F, P, R, S, T.
    pub letters: u32,
}

/// Why messages left a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum GoneReason {
    /// A client expunged them.
    Expunged = 0,
    /// Moved to another mailbox.
    Moved = 1,
    /// Removed because of its age.
    Missing = 2,
    /// Too old.
    Expired = 3,
    /// The operator removed them.
    Removed = 4,
}

/// A mailbox, according to its last entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MailboxFields {
    /// Id, never reused.
    pub id: u32,
    /// Account id.
    pub account: u32,
    /// UIDVALIDITY.
    pub uid_validity: u32,
    /// 0: Maildir, 1: packed.
    pub form: u8,
    /// 0: none; else `\Drafts`, `\Sent`, `\Junk`, `\Trash`, `\Archive` as 1 to 5.
    pub special_use: u8,
    /// Mailbox name, UTF-8 in normal form C.
    pub name: Bytes,
    /// Directory below the mail directory.
    pub directory: Bytes,
}

/// An account, according to its last entry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountFields {
    /// Id, never reused.
    pub id: u32,
    /// Path of the account's INBOX below the mail directory.
    pub name: Bytes,
    /// Quota in bytes; 0: no limit.
    pub quota_bytes: u64,
    /// Quota in messages; 0: no limit.
    pub quota_messages: u32,
    /// True if the account was removed.
    pub is_gone: bool,
}

impl BodyKind {
    /// The kind with this number; `None` if this version does not know it.
    pub fn of(number: u8) -> Option<Self> {
        [Self::Own, Self::OwnVerbatim, Self::Foreign].get(usize::from(number)).copied()
    }
}

impl GoneReason {
    /// The reason with this number; `None` if this version does not know it.
    pub fn of(number: u8) -> Option<Self> {
        [Self::Expunged, Self::Moved, Self::Missing, Self::Expired, Self::Removed].get(usize::from(number)).copied()
    }
}

impl MailEntry {
    /// Offset of the first UID in entries with UIDs.
    pub const FIRST_UID_AT: usize = 6;

    /// The mailbox whose sessions see the entry, and whose HIGHESTMODSEQ becomes its LSN.
    pub fn seen_in(&self) -> Option<u32> {
        match self {
            Self::New { mailbox, .. }
            | Self::State { mailbox, .. }
            | Self::Gone { mailbox, .. }
            | Self::Keyword { mailbox, .. }
            | Self::Found { mailbox, .. }
            | Self::Name { mailbox, .. }
            | Self::Size { mailbox, .. }
            | Self::UniqueIds { mailbox, .. } => Some(*mailbox),
            Self::Mailbox(_)
            | Self::MailboxGone { .. }
            | Self::Account(_)
            | Self::Opening { .. }
            | Self::Subscription { .. } => None,
        }
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
