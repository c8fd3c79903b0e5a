//! Answers to the machine: mailboxes, messages, changes and refusals.

use crate::command::StatusItem;
use crate::set::NumberSet;

/// Why a login failed (decision 48).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginRefusal {
    /// Wrong name or password: `NO [AUTHENTICATIONFAILED]`.
    Wrong,
    /// Passwords cannot be checked now: `NO [UNAVAILABLE]`. Clients then do not ask for another password.
    Busy,
    /// The password is right, but the mailboxes cannot be opened: `NO [UNAVAILABLE]`.
    Unavailable,
    /// The login has as many sessions as it may: `NO [LIMIT]`.
    TooMany,
    /// Too many wrong guesses from the client's address: BYE.
    Blocked,
}

/// Why a mailbox or a message cannot be read or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MailRefusal {
    /// The message or its mailbox no longer exists.
    Gone,
    /// The transfer encoding of a part is unknown: `NO [UNKNOWN-CTE]`.
    UnknownEncoding,
    /// The mailbox is read-only: `NO [READ-ONLY]`.
    ReadOnly,
    /// The mailbox already exists: `NO [ALREADYEXISTS]`.
    Exists,
    /// Another mailbox has that special use, or it is unknown: `NO [USEATTR]`.
    UseTaken,
    /// Impossible for good: `NO [CANNOT]` with this sentence.
    Cannot(&'static str),
    /// There is no room: `NO [OVERQUOTA]`.
    NoSpace,
    /// The quota is used up: `NO [OVERQUOTA]`.
    OverQuota,
    /// The request exceeds a limit: `NO [LIMIT]`.
    Limit,
    /// The message is too long: `NO [TOOBIG]`.
    TooBig,
    /// A temporary failure: `NO [UNAVAILABLE]`.
    Unavailable,
    /// No permission to read: `NO [NOPERM]`.
    NoPermission,
    /// Damaged data: `NO [CORRUPTION]`.
    Damaged,
}

/// Use of an account's quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MailQuota {
    /// Octets of all messages, and the limit; `None`: unlimited.
    pub bytes: (u64, Option<u64>),
    /// Number of messages, and the limit; `None`: unlimited.
    pub messages: (u64, Option<u64>),
}

/// The decoded length of a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodedLength {
    /// Length in octets.
    pub octets: u64,
    /// True if the decoded octets contain NUL.
    pub has_nul: bool,
}

/// A name in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedName {
    /// Decoded name.
    pub name: String,
    /// True for a mailbox, false for a name that only has children.
    pub is_mailbox: bool,
    /// `\Drafts` and the like.
    pub special_use: Option<&'static str>,
    /// True if there are names below it.
    pub has_children: bool,
    /// True if it is subscribed.
    pub subscribed: bool,
    /// True if there are subscribed names below it.
    pub subscribed_below: bool,
    /// Counts of the mailbox, if requested and available.
    pub counts: Option<MailboxCounts>,
}

/// Counts of a mailbox, for STATUS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MailboxCounts {
    /// Number of messages.
    pub messages: u32,
    /// Messages no session has seen.
    pub recent: u32,
    /// The next UID.
    pub uid_next: u32,
    /// UIDVALIDITY.
    pub uid_validity: u32,
    /// Messages without \Seen.
    pub unseen: u32,
    /// Messages with \Deleted.
    pub deleted: u32,
    /// Octets of all messages, if known.
    pub size: Option<u64>,
    /// The highest MODSEQ.
    pub highest_modseq: u64,
}

impl MailboxCounts {
    pub(super) fn of(&self, item: StatusItem) -> Option<u64> {
        Some(match item {
            StatusItem::Messages => self.messages.into(),
            StatusItem::Recent => self.recent.into(),
            StatusItem::UidNext => self.uid_next.into(),
            StatusItem::UidValidity => self.uid_validity.into(),
            StatusItem::Unseen => self.unseen.into(),
            StatusItem::Deleted => self.deleted.into(),
            StatusItem::Size => self.size?,
            StatusItem::HighestModSeq => self.highest_modseq,
        })
    }
}

/// A selected mailbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelectedMailbox {
    /// Number of messages in the view.
    pub exists: u32,
    /// Messages that are `\Recent` for this client.
    pub recent: u32,
    /// Message number of the first message without \Seen.
    pub first_unseen: Option<u32>,
    /// UIDVALIDITY.
    pub uid_validity: u32,
    /// The next UID.
    pub uid_next: u32,
    /// The highest UID in the view; 0 in an empty one.
    pub last_uid: u32,
    /// Names of keywords, each with its bit in [`ViewRow::flags`].
    pub keywords: Vec<(u64, String)>,
    /// Highest MODSEQ that the client may use: all changes up to it were reported.
    pub highest_modseq: u64,
    /// True if the mailbox cannot be changed.
    pub read_only: bool,
}

/// A message of the view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ViewRow {
    /// Message number in the view.
    pub number: u32,
    /// UID of the message.
    pub uid: u32,
    /// Bits 0 to 4: \Seen, \Answered, \Flagged, \Deleted, \Draft; 8 to 63: keywords.
    pub flags: u64,
    /// True if the message is `\Recent` for this client.
    pub recent: bool,
    /// MODSEQ.
    pub modseq: u64,
    /// RFC822.SIZE, if requested and known.
    pub size: Option<u64>,
    /// INTERNALDATE in seconds since 1970.
    pub internal_date: i64,
}

/// A message whose flags have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangedRow {
    /// The message's present row.
    pub row: ViewRow,
    /// The flags last reported to the client.
    pub before: u64,
}

/// The outcome of a change of flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredMail {
    /// Messages left unchanged because of UNCHANGEDSINCE: numbers or UIDs, like the request.
    pub modified: NumberSet,
    /// True if some messages of the set no longer exist.
    pub gone: bool,
}

/// UIDs of copied or moved messages, for COPYUID (RFC 4315 section 3).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopiedMail {
    /// UIDVALIDITY of the target mailbox.
    pub uid_validity: u32,
    /// UIDs of the original messages.
    pub from: NumberSet,
    /// UIDs of the copies, in the same order.
    pub to: NumberSet,
}

/// UIDs of appended messages, for APPENDUID (RFC 4315 section 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendedMail {
    /// UIDVALIDITY of the mailbox.
    pub uid_validity: u32,
    /// UIDs of the messages, in the order of the command.
    pub uids: NumberSet,
}

/// Changes of a view, to be reported in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MailChanges {
    /// Expunged messages, the highest number first.
    pub expunged: Vec<ExpungedRow>,
    /// New number of messages, if there are new ones.
    pub exists: Option<u32>,
    /// The number of \Recent messages, if it has changed.
    pub recent: Option<u32>,
    /// Messages with changed flags, by their numbers after `expunged`.
    pub flags: Vec<ChangedRow>,
    /// All keywords, if some are new.
    pub keywords: Option<Vec<(u64, String)>>,
    /// Highest UID in the view after the changes.
    pub last_uid: u32,
    /// Highest MODSEQ that the client may use after the changes.
    pub highest_modseq: u64,
}

/// A message that left the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpungedRow {
    /// Message number before it left.
    pub number: u32,
    /// UID of the message.
    pub uid: u32,
}
