//! The traits: a store has accounts, an account has mailboxes, a session selects one as a view.

use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use crate::by_account::ByAccount;
use crate::error::{Asked, MailstoreError};
use crate::flags::{FlagUpdate, KeywordTable, MessageFlags};
use crate::mail_body::MailBody;
use crate::name::{MailboxName, SpecialUse};
use crate::pattern::NamePattern;
use crate::row::{
    MailboxId, MailboxStatus, MessageRow, MessageSet, ModSeq, NumberRange, RebuiltMailbox, Uid, UidValidity, UniqueIds,
};

/// A store of mail.
pub trait Mailstore: Send + Sync + 'static {
    /// The mailboxes of a login. The caller has checked the password.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`]: this login has no mailboxes here. [`MailstoreError::Unavailable`].
    fn account<'a>(&'a self, login: &'a str) -> Asked<'a, Arc<dyn MailAccount>>;
}

/// One login's mailboxes. Clients cannot pass mailbox ids: names are looked up with [`find`](Self::find).
pub trait MailAccount: Send + Sync {
    /// Mailboxes whose names match one of the patterns, INBOX first, then by bytes. A name above a mailbox, but without
    /// its own, is listed without an id.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`].
    fn list<'a>(&'a self, patterns: &'a [NamePattern], options: ListOptions)
    -> Asked<'a, Box<dyn MailboxListing + 'a>>;

    /// The mailbox with this name, if any.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`].
    fn find<'a>(&'a self, name: &'a MailboxName) -> Asked<'a, Option<MailboxId>>;

    /// Counters of a mailbox.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`], [`MailstoreError::Unavailable`].
    fn status(&self, mailbox: MailboxId) -> Asked<'_, MailboxStatus>;

    /// A session's view of a mailbox.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`], [`MailstoreError::NoPermission`], [`MailstoreError::Unavailable`].
    fn select(&self, mailbox: MailboxId, mode: SelectMode) -> Asked<'_, Box<dyn MailboxView>>;

    /// Creates a mailbox, and missing ones above it. Durable.
    ///
    /// # Errors
    /// [`MailstoreError::Exists`]; [`MailstoreError::UseTaken`]: another mailbox has the special use; [`MailstoreError::Cannot`],
    /// [`MailstoreError::NoSpace`], [`MailstoreError::Limit`], [`MailstoreError::Unavailable`].
    fn create<'a>(&'a self, name: &'a MailboxName, special_use: Option<SpecialUse>) -> Asked<'a, MailboxId>;

    /// Removes a mailbox with its mail; mailboxes below it stay. Durable.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`]; [`MailstoreError::Cannot`], for INBOX too; [`MailstoreError::Unavailable`].
    fn delete(&self, mailbox: MailboxId) -> Asked<'_, ()>;

    /// Renames a mailbox and those below it, in one batch. INBOX stays: its mail moves to a new mailbox of that name
    /// (RFC 9051 section 6.3.6). Missing mailboxes above the new name are made. Durable.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`delete`](Self::delete).
    fn rename<'a>(&'a self, mailbox: MailboxId, to: &'a MailboxName) -> Asked<'a, ()>;

    /// Subscribes or unsubscribes a name, with or without a mailbox. Durable.
    ///
    /// # Errors
    /// [`MailstoreError::NoSpace`], [`MailstoreError::Limit`], [`MailstoreError::Unavailable`].
    fn subscribe<'a>(&'a self, name: &'a MailboxName, on: bool) -> Asked<'a, ()>;

    /// The amount of mail, and its limit; `None` if unlimited.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`].
    fn quota(&self) -> Asked<'_, Option<QuotaUse>>;

    /// Rebuilds the data of a mailbox from its files. UIDs stay if all assigned ones are known, unless `renews`:
    /// otherwise UIDVALIDITY changes. Sessions that have selected it end. Durable: a crash leaves the old state or the
    /// new one.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`], [`MailstoreError::NoPermission`], [`MailstoreError::NoSpace`],
    /// [`MailstoreError::Limit`], [`MailstoreError::Unavailable`]: mail is being delivered to it, or its directory
    /// keeps changing.
    fn rebuild(&self, mailbox: MailboxId, renews: bool) -> Asked<'_, RebuiltMailbox>;

    /// Begins to put a message into a mailbox.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`], [`MailstoreError::ReadOnly`], [`MailstoreError::NoSpace`], [`MailstoreError::OverQuota`],
    /// [`MailstoreError::Limit`], [`MailstoreError::TooBig`], [`MailstoreError::Unavailable`].
    fn append(&self, mailbox: MailboxId, message: AppendRequest) -> Asked<'_, Box<dyn MessageWriter>>;
}

/// The files of a view's messages, when the view was made.
pub trait MailboxFiles: Send + Sync {
    /// Directory of the mailbox, relative to the mail directory.
    fn folder(&self) -> String;

    /// Calls `each` with ascending UIDs and file names. Messages that have no file yet are left out.
    fn for_each(&self, each: &mut dyn FnMut(Uid, &str));
}

/// Access of a session to a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectMode {
    /// Read-only (EXAMINE).
    ReadOnly,
    /// Flags and messages may be changed, and this session takes `\Recent` (SELECT).
    Writable,
    /// Flags and messages may be changed, and `\Recent` is left to another session (POP3).
    KeepsRecent,
}

/// Limits on the mail of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaLimits {
    /// RFC822.SIZE of all messages; `None`: unlimited.
    pub bytes: Option<u64>,
    /// Number of messages; `None`: unlimited.
    pub messages: Option<u64>,
}

impl QuotaLimits {
    /// True if unlimited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Limits of all accounts.
pub type QuotaTable = ByAccount<QuotaLimits>;

/// An account's usage with its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUse {
    /// RFC822.SIZE of all messages.
    pub bytes: u64,
    /// Number of messages.
    pub messages: u64,
    /// Limits, at least one of which is set.
    pub limits: QuotaLimits,
}

/// A message to [append](MailAccount::append).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendRequest {
    /// System flags.
    pub flags: MessageFlags,
    /// Keywords by name; new ones get a bit.
    pub keywords: Vec<String>,
    /// INTERNALDATE; `None`: now.
    pub internal_date: Option<SystemTime>,
    /// Octets announced by the client. Slightly more may follow: a bare LF becomes CRLF before it is written.
    pub octets: u64,
}

/// Takes messages with CRLF line ends, one after the other. Dropping it stores nothing.
pub trait MessageWriter: Send {
    /// Ends the message and begins another one (RFC 3502). Either all are stored or none.
    ///
    /// # Errors
    /// Errors of [`append`](MailAccount::append) and [`write`](Self::write). Then [`finish`](Self::finish) fails, too.
    fn next(&mut self, message: AppendRequest) -> Asked<'_, ()>;

    /// Adds octets to the message; waits for memory.
    ///
    /// # Errors
    /// [`MailstoreError::NoSpace`], [`MailstoreError::TooBig`], [`MailstoreError::Unavailable`]; the message cannot be finished then.
    fn write(&mut self, octets: Bytes) -> Asked<'_, ()>;

    /// Takes a file in `tmp/` of the mailbox, owned by the mailbox's owner, as the message, instead of octets. Errors
    /// of the file are reported later.
    ///
    /// # Errors
    /// [`MailstoreError::Cannot`]: this store does not keep messages as files.
    fn take_file(&mut self, _name: String) -> Asked<'_, ()> {
        Box::pin(std::future::ready(Err(MailstoreError::Cannot("no message of this mailbox is a file"))))
    }

    /// Stores all messages. `Ok`: durable.
    ///
    /// # Errors
    /// Errors of [`write`](Self::write); [`MailstoreError::NoMailbox`]: the mailbox was removed meanwhile;
    /// [`MailstoreError::Limit`]: too many keywords.
    fn finish(self: Box<Self>) -> Asked<'static, AppendedMessage>;
}

/// UIDs of appended messages (RFC 4315 section 3, APPENDUID).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendedMessage {
    /// UIDVALIDITY of the mailbox.
    pub uid_validity: UidValidity,
    /// UID of the first message.
    pub uid: Uid,
    /// Number of messages, at least one; their UIDs are consecutive.
    pub count: u32,
}

/// Options of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Fill [`ListedMailbox::status`].
    pub status: bool,
    /// Only names that are subscribed to.
    pub subscribed: bool,
    /// With `subscribed`: names above subscribed ones, too (RFC 5258 section 3.1, RECURSIVEMATCH).
    pub recursive: bool,
}

/// Mailboxes of a list, one after the other.
pub trait MailboxListing: Send {
    /// The next mailbox; `None` at the end.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`].
    fn next(&mut self) -> Asked<'_, Option<ListedMailbox>>;
}

/// A name in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedMailbox {
    /// Name of the mailbox.
    pub name: MailboxName,
    /// `None` if there is no mailbox, only a parent of others (`\NonExistent`; `\Noselect` before IMAP4rev2).
    pub id: Option<MailboxId>,
    /// `\Drafts` and the like.
    pub special_use: Option<SpecialUse>,
    /// True if there are mailboxes below it.
    pub has_children: bool,
    /// True if the user has subscribed to it.
    pub subscribed: bool,
    /// True if there are subscribed names below it.
    pub subscribed_below: bool,
    /// Counters, if requested; `None` also if they cannot be read.
    pub status: Option<MailboxStatus>,
}

/// Data that a protocol derives from a message, for caching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptKind {
    /// Structure of its parts. The file is checked each time: positions in another file would be wrong.
    Structure,
    /// Header values for searches. A file that was examined since the start is not checked again: a message never
    /// changes.
    Keys,
}

/// A selected mailbox as seen by one session. Only [`advance`](Self::advance) changes it: until then numbers denote the
/// same messages.
pub trait MailboxView: Send + Sync {
    /// Id of the mailbox.
    fn id(&self) -> MailboxId;

    /// True if it is read-only for the session or in the store.
    fn read_only(&self) -> bool;

    /// UIDVALIDITY, constant during the view's life.
    fn uid_validity(&self) -> UidValidity;

    /// Next UID as of the last [`advance`](Self::advance).
    fn uid_next(&self) -> Uid;

    /// The number of messages.
    fn exists(&self) -> u32;

    /// The number of messages that are `\Recent` in this session.
    fn recent(&self) -> u32;

    /// The number of the first message without `\Seen`.
    fn first_unseen(&self) -> Option<u32>;

    /// The highest UID in the view, the value of `*` in UID sets.
    fn last_uid(&self) -> Option<Uid>;

    /// The highest MODSEQ reported to the session.
    fn highest_modseq(&self) -> ModSeq;

    /// Keywords of the mailbox.
    fn keywords(&self) -> KeywordTable;

    /// Applies changes, including those of other programs, and returns the updates for the client.
    ///
    /// Without `may_expunge`, vanished messages stay in the view until a later call.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`]: the mailbox was removed. [`MailstoreError::Unavailable`]: the view is unchanged.
    fn advance(&mut self, may_expunge: bool) -> Asked<'_, ViewChanges>;

    /// Like [`advance`](Self::advance), but does not check for changes by other programs. For a session's own change,
    /// which needs no listing.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    fn catch_up(&mut self, may_expunge: bool) -> Asked<'_, ViewChanges>;

    /// Waits until [`advance`](Self::advance) may return changes, for IDLE. Dropping it loses nothing.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// UIDs outside the view that vanished with a higher MODSEQ, ascending (RFC 7162 section 3.2.10.1); if some are
    /// unknown, all UIDs outside the view.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`].
    fn vanished(&self, since: ModSeq) -> Asked<'_, Vec<NumberRange>>;

    /// The messages' files; `None` if the store has none.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`], [`MailstoreError::Unavailable`]: the messages cannot be read.
    fn files(&self) -> Asked<'_, Option<Arc<dyn MailboxFiles>>>;

    /// POP3 unique-ids (RFC 1939 section 7) given by an earlier server, by UID. For other messages they follow from the
    /// UID.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`].
    fn unique_ids(&self) -> Asked<'_, Arc<UniqueIds>>;

    /// The messages of a set, in order of their numbers.
    fn rows<'a>(&'a self, set: &MessageSet, options: RowOptions) -> Box<dyn MessageRows + 'a>;

    /// The [headers](MailBody::header) of messages. In UID order, for the first ones until they have
    /// [`FIELDS_BYTES_MAX`](crate::FIELDS_BYTES_MAX) octets.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]; of each message [`MailstoreError::Gone`], [`MailstoreError::NoPermission`], [`MailstoreError::Damaged`],
    /// [`MailstoreError::Unavailable`].
    fn headers<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Bytes, MailstoreError>>>;

    /// The [header](MailBody::header) of one message.
    ///
    /// # Errors
    /// As [`body`](Self::body).
    fn header(&self, uid: Uid) -> Asked<'_, Bytes> {
        Box::pin(async move {
            let uids = [uid];
            self.headers(&uids).await?.pop().unwrap_or(Err(MailstoreError::Gone))
        })
    }

    /// Like [`headers`](Self::headers), if only the [listed fields](posthaste_message::mime::is_listed_field) are
    /// needed; others may be missing.
    ///
    /// # Errors
    /// As [`headers`](Self::headers).
    fn fields<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Bytes, MailstoreError>>>;

    /// Data stored with [`keep`](Self::keep), for unchanged messages only. Data may be dropped at any time. In UID
    /// order, for the first messages until they have [`FIELDS_BYTES_MAX`](crate::FIELDS_BYTES_MAX) octets.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]; of each message [`MailstoreError::Gone`].
    fn kept<'a>(&'a self, kind: KeptKind, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Option<Bytes>, MailstoreError>>>;

    /// Caches data derived from a message, in the caller's encoding, if there is room. The data must come from the
    /// octets read last. Does not wait.
    fn keep(&self, kind: KeptKind, uid: Uid, made: &[u8]);

    /// Opens the message's body.
    ///
    /// # Errors
    /// [`MailstoreError::Gone`], [`MailstoreError::NoPermission`], [`MailstoreError::Damaged`], [`MailstoreError::Unavailable`].
    fn body(&self, uid: Uid) -> Asked<'_, Arc<dyn MailBody>>;

    /// Messages in UID order: the first ones until they have [`BODIES_BYTES_MAX`](crate::BODIES_BYTES_MAX) octets.
    /// Reading several short ones together is cheaper than one by one.
    ///
    /// # Errors
    /// As [`headers`](Self::headers).
    fn bodies<'a>(&'a self, uids: &'a [Uid]) -> Asked<'a, Vec<Result<Arc<dyn MailBody>, MailstoreError>>>;

    /// Changes flags of a set, in one batch. With `unchanged_since`, messages with a higher MODSEQ are not changed (RFC
    /// 7162 section 3.1.3). Durable.
    ///
    /// # Errors
    /// [`MailstoreError::ReadOnly`], [`MailstoreError::NoMailbox`], [`MailstoreError::Limit`]: too many keywords, or too many messages at once;
    /// [`MailstoreError::Unavailable`]. Nothing is changed then.
    fn store<'a>(
        &'a self,
        set: &'a MessageSet,
        update: &'a FlagUpdate,
        unchanged_since: Option<ModSeq>,
    ) -> Asked<'a, StoredFlags>;

    /// Removes messages with `\Deleted`: all of them, or those among some UIDs (RFC 4315 section 2.1). Durable.
    ///
    /// # Errors
    /// [`MailstoreError::ReadOnly`], [`MailstoreError::NoMailbox`], [`MailstoreError::Unavailable`]. Nothing is changed then.
    fn expunge(&self, uids: Option<Vec<NumberRange>>) -> Asked<'_, ()>;

    /// Removes messages of a set, whatever their flags (POP3). Durable.
    ///
    /// # Errors
    /// As [`expunge`](Self::expunge).
    fn remove<'a>(&'a self, set: &'a MessageSet) -> Asked<'a, ()>;

    /// Copies messages of a set with their flags and dates, all or none. `None`: all of them are gone. Durable.
    ///
    /// # Errors
    /// [`MailstoreError::NoMailbox`]: the mailbox `to` is gone; [`MailstoreError::NoPermission`], [`MailstoreError::Damaged`],
    /// [`MailstoreError::NoSpace`], [`MailstoreError::OverQuota`] (not of [`move_to`](Self::move_to)), [`MailstoreError::Limit`], [`MailstoreError::Unavailable`]. Nothing is changed then.
    fn copy<'a>(&'a self, set: &'a MessageSet, to: MailboxId) -> Asked<'a, Option<CopiedMessages>>;

    /// Moves messages of a set, as [`copy`](Self::copy) (RFC 6851).
    ///
    /// # Errors
    /// Errors of [`copy`](Self::copy), and [`MailstoreError::ReadOnly`].
    fn move_to<'a>(&'a self, set: &'a MessageSet, to: MailboxId) -> Asked<'a, Option<CopiedMessages>>;
}

/// Result of a change of flags.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredFlags {
    /// Messages left unchanged because of `unchanged_since`, ascending.
    pub modified: Vec<Uid>,
    /// True if some messages of the set are gone.
    pub gone: bool,
}

/// Copied or moved messages (RFC 4315 section 3, COPYUID). Both lists are ascending, have the same length and are never
/// empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedMessages {
    /// UIDVALIDITY of the target mailbox.
    pub uid_validity: UidValidity,
    /// UIDs of the originals in this mailbox.
    pub from: Vec<Uid>,
    /// UIDs of the copies.
    pub to: Vec<Uid>,
}

/// Options for rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowOptions {
    /// Fill [`MessageRow::size`], for which a store may have to read mail.
    pub sizes: bool,
}

/// Rows, read in batches.
pub trait MessageRows: Send {
    /// The next rows, at most 256; empty at the end.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`].
    fn next(&mut self) -> Asked<'_, Vec<MessageRow>>;
}

/// Changes that a session must report, in this order. Empty: no change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ViewChanges {
    /// Vanished messages, the highest number first, so that each number is right when reported in this order.
    pub expunged: Vec<ExpungedMessage>,
    /// The number of messages, if there are new ones.
    pub exists: Option<u32>,
    /// The number of `\Recent` messages, if it has changed.
    pub recent: Option<u32>,
    /// Earlier messages of the view with changed flags or MODSEQ, by their numbers after `expunged`.
    pub flags: Vec<ChangedFlags>,
    /// The keywords of the mailbox, if there are new ones (untagged FLAGS and PERMANENTFLAGS).
    pub keywords: Option<KeywordTable>,
}

/// A message with changed flags, or with the same flags and a later MODSEQ after two changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedFlags {
    /// The message's present row, without its size.
    pub row: MessageRow,
    /// Flags in the view before the change.
    pub before: MessageFlags,
}

/// A message that left the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpungedMessage {
    /// Message number before it left.
    pub number: u32,
    /// UID of the message.
    pub uid: Uid,
}

impl ViewChanges {
    /// True if there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.expunged.is_empty()
            && self.exists.is_none()
            && self.recent.is_none()
            && self.flags.is_empty()
            && self.keywords.is_none()
    }
}

impl MessageRow {
    /// True if all of `flags` are set.
    pub fn has(&self, flags: MessageFlags) -> bool {
        self.flags.contains(flags)
    }
}
