//! A session as a state machine: octets in, [`ImapEvent`]s and octets out.
//!
//! The owner (a *driver*) calls [`ImapMachine::step`] with its input until the answer is [`ImapEvent::NeedInput`], then
//! writes [`ImapMachine::output`] and reads more. After an event marked *asks* the machine waits for the answer. The
//! machine holds one row, one header or the beginning of one message at a time; the driver sends octets of messages
//! from given positions.

mod appending;
mod auth;
mod binary;
mod changes;
mod changing;
mod fetch;
mod listing;
mod machine;
mod mail_keys;
mod managing;
mod matching;
mod names;
mod ordering;
mod quota;
mod refuse;
mod rev2;
mod searching;
mod select;
mod source;
mod state;
mod threads;
mod vanishing;

use std::ops::Range;

use bytes::Bytes;
use posthaste_message::mime::Encoding;
use posthaste_scram::{ScramFirst, ScramProof};
use posthaste_text::{Needle, SearchedField};

use crate::command::StatusItem;
use crate::set::NumberSet;

pub use crate::command::FlagChange;
pub use machine::ImapMachine;
pub use names::NameForm;

/// Settings of an [`ImapMachine`].
#[derive(Debug, Clone)]
pub struct ImapConfig {
    /// Our name in the greeting.
    pub host_name: String,
    /// Offer STARTTLS. Set it only if the driver can do the handshake.
    pub starttls: bool,
    /// Offer COMPRESS=DEFLATE. Set it only if the driver can do it.
    pub compress: bool,
    /// Logins need TLS even from this machine.
    pub needs_tls: bool,
    /// The form of mailbox names.
    pub names: NameForm,
    /// The answer to ID, keys and values (RFC 2971). Never empty: Microsoft's cloud gives up without an answer.
    pub id: Vec<(String, String)>,
    /// All bounds.
    pub limits: ImapLimits,
}

impl ImapConfig {
    /// Everything at its default.
    pub fn new(host_name: impl Into<String>) -> Self {
        let id = vec![("name".into(), "Posthaste".into())];
        let names = NameForm::default();
        let limits = ImapLimits::default();
        Self { host_name: host_name.into(), starttls: false, compress: false, needs_tls: false, names, id, limits }
    }
}

/// Bounds of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImapLimits {
    /// Octets of a command before login, with its literals. Default 8 KiB.
    pub command_bytes_before_login: usize,
    /// Octets of a command after login, with its literals. Default 64 KiB.
    pub command_bytes: usize,
    /// Maximum consecutive invalid commands; then the client is disconnected. Default 20.
    pub errors: u32,
    /// Octets of a message that are read at once to find its parts. In a longer message, a part cut off there extends
    /// to the end. Default 32 MiB.
    pub structure_bytes: u64,
    /// Maximum octets of an APPEND message. Default 50 MiB.
    pub append_bytes: u64,
    /// Maximum octets that one SORT or THREAD collects. Default 64 MiB.
    pub order_bytes: usize,
}

impl Default for ImapLimits {
    fn default() -> Self {
        Self {
            command_bytes_before_login: 8 << 10,
            command_bytes: 64 << 10,
            errors: 20,
            structure_bytes: 32 << 20,
            append_bytes: 50 << 20,
            order_bytes: 64 << 20,
        }
    }
}

/// A request of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum ImapEvent {
    /// Everything in the buffer is done: write the output, then read more.
    NeedInput,
    /// The output is large: write it, then continue.
    Flush,
    /// Write the output and close. There is no further output.
    Close,
    /// *Asks*: write the output, do the handshake, then call [`ImapMachine::tls_started`]. The input is empty.
    StartTls,
    /// Write the output; all later octets are DEFLATE, in both directions (RFC 4978). The input is empty.
    Compress,
    /// *Asks*: answer with [`ImapMachine::logged_in`].
    Login(ImapCredentials),
    /// *Asks* for the user's keys at the start of an exchange. Answer with [`ImapMachine::scram_begun`].
    ScramKeys(Box<ScramFirst>),
    /// *Asks* to verify the proof of a password. Answer with [`ImapMachine::scram_checked`].
    ScramProof(Box<ScramProof>),
    /// *Asks* for the names that match one of the patterns, INBOX first, then by bytes. Answer with
    /// [`ImapMachine::list_opened`]. With `subscribed`: the subscribed names; with `recursive` also the names above
    /// them.
    List { patterns: Vec<String>, subscribed: bool, recursive: bool, status: bool },
    /// *Asks* for the next name of the list. Answer with [`ImapMachine::listed`].
    NextName,
    /// *Asks*: answer with [`ImapMachine::status`].
    Status(String),
    /// *Asks* to replace the view by that of a mailbox. Answer with [`ImapMachine::selected`].
    Select { mailbox: String, read_only: bool },
    /// The view can be dropped.
    Unselect,
    /// The messages that [`ImapEvent::NextRow`] will ask for, in the order of their numbers.
    Rows { set: MessageChoice, sizes: bool },
    /// *Asks* for the next message. Answer with [`ImapMachine::row`].
    NextRow,
    /// *Asks* an index for messages that contain these texts. Answer with [`ImapMachine::text_found`].
    FindText(Vec<TextKey>),
    /// *Asks* for the header section of the last row, with its empty line. Answer with [`ImapMachine::header`]. Unless `whole`, fields that clients
    /// do not [list](posthaste_message::mime::is_listed_field) may be left out.
    Header { uid: u32, whole: bool },
    /// *Asks* for cached [keys](ImapMachine::made_keys) of the last row's header, which SORT, THREAD and SEARCH
    /// compare. Answer with [`ImapMachine::keys`].
    Keys { uid: u32 },
    /// *Asks* for the cached [structure](ImapMachine::made_structure) of the last row's message, if it was made from
    /// the same octets. Answer with [`ImapMachine::structure`].
    Structure { uid: u32 },
    /// *Asks* for the length of the last row's message, which will be read next. Answer with [`ImapMachine::opened`].
    Open { uid: u32 },
    /// *Asks* for the first `octets` of the open message, or all. Answer with [`ImapMachine::message`].
    Read { octets: u64 },
    /// Write the output, then these octets of the open message. If they cannot be read, close: the client waits for them.
    Send(Range<u64>),
    /// *Asks* for the decoded length of these octets of the open message. Answer with [`ImapMachine::decoded`].
    Decode { range: Range<u64>, encoding: Encoding },
    /// Write the output, then `octets` of these octets of the open message after decoding. Close if that fails: the
    /// client waits for them.
    SendDecoded { range: Range<u64>, encoding: Encoding, octets: Range<u64> },
    /// *Asks* for the UIDs that vanished since a MODSEQ. Answer with [`ImapMachine::vanished`].
    Vanished { since: u64 },
    /// *Asks* for changes of the view, with those of other programs if it `looks`. Answer with
    /// [`ImapMachine::changes`].
    Changes { may_expunge: bool, looks: bool },
    /// *Asks* for a durable change of flags. Answer with [`ImapMachine::stored`], by UIDs or by numbers.
    Store { uid: bool, set: MessageChoice, update: FlagsUpdate, unchanged_since: Option<u64> },
    /// *Asks* to set \Seen on these UIDs, which were read. It need not be durable when answered with
    /// [`ImapMachine::marked_seen`].
    MarkSeen(NumberSet),
    /// *Asks* to remove messages with \Deleted, of these UIDs if given. Answer with [`ImapMachine::expunged`].
    Expunge(Option<NumberSet>),
    /// *Asks* to copy messages, or to move them. Answer with [`ImapMachine::copied`].
    Copy { set: MessageChoice, mailbox: String, moves: bool },
    /// *Asks* for room for a message in a mailbox. Answer with [`ImapMachine::append_begun`].
    Append { mailbox: String, message: MessageOffer },
    /// *Asks* to begin another message of the same command (RFC 3502). Answer with [`ImapMachine::append_begun`].
    AppendNext(MessageOffer),
    /// *Asks* to store the next octets of that message. Answer with [`ImapMachine::written`].
    Write(Bytes),
    /// *Asks* to store all messages of the command, or none. Answer with [`ImapMachine::appended`].
    Finish,
    /// The command failed: drop all its messages.
    Abandon,
    /// *Asks* for the quota of the account, as seen from a mailbox if one is named. Answer with [`ImapMachine::quota`].
    Quota { mailbox: Option<String> },
    /// *Asks* to change the list of mailboxes. Answer with [`ImapMachine::managed`].
    Manage(MailboxChange),
}

/// A text to search in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextKey {
    /// The field to search.
    pub field: SearchedField,
    /// The text.
    pub needle: Needle,
}

/// An index's answer for a [`TextKey`]: the same as reading the messages would give.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextAnswer {
    /// UIDs of messages for which the index knows the answer. The others are read.
    pub known: NumberSet,
    /// UIDs of matching messages.
    pub found: NumberSet,
}

/// Flags to set, add or remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagsUpdate {
    /// The change.
    pub change: FlagChange,
    /// System flags, as in [`ViewRow::flags`].
    pub flags: u64,
    /// Keywords.
    pub keywords: Vec<String>,
}

/// A message that a client wants to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageOffer {
    /// System flags, as in [`ViewRow::flags`].
    pub flags: u64,
    /// Keywords.
    pub keywords: Vec<String>,
    /// INTERNALDATE in seconds since 1970; `None`: now.
    pub date: Option<i64>,
    /// Octets as sent by the client, without the CRs to be added at bare LFs.
    pub octets: u64,
}

/// A change of the list of mailboxes. Names are decoded, and not checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the standard")]
pub enum MailboxChange {
    /// CREATE, optionally with a special use such as `\Drafts`.
    Create {
        mailbox: String,
        special_use: Option<String>,
    },
    Delete(String),
    Rename {
        from: String,
        to: String,
    },
    Subscribe {
        mailbox: String,
        on: bool,
    },
}

/// Messages of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageChoice {
    /// Message numbers.
    Numbers(NumberSet),
    /// Message UIDs.
    Uids(NumberSet),
}

/// The credentials of a client.
#[derive(Clone, PartialEq, Eq)]
pub struct ImapCredentials {
    /// The login name.
    pub user: String,
    /// The password.
    pub password: String,
    /// The authorization identity (PLAIN); `None`: the login itself.
    pub acts_for: Option<String>,
}

/// Without the password.
impl std::fmt::Debug for ImapCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImapCredentials").field("user", &self.user).finish_non_exhaustive()
    }
}

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

/// Why a mailbox or a message cannot be had, or not be changed.
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
    /// Octets of all messages, and their limit; `None`: unlimited.
    pub bytes: (u64, Option<u64>),
    /// Messages, and their limit.
    pub messages: (u64, Option<u64>),
}

/// The decoded length of a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodedLength {
    /// Octets.
    pub octets: u64,
    /// There is a NUL among them.
    pub has_nul: bool,
}

/// A name in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedName {
    /// The name, decoded.
    pub name: String,
    /// True for a mailbox, false for a name above others.
    pub is_mailbox: bool,
    /// `\Drafts` and the like.
    pub special_use: Option<&'static str>,
    /// There are names below it.
    pub has_children: bool,
    /// True if it is subscribed.
    pub subscribed: bool,
    /// There are subscribed names below it.
    pub subscribed_below: bool,
    /// If it was asked for and can be had.
    pub counts: Option<MailboxCounts>,
}

/// Numbers of a mailbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MailboxCounts {
    /// Messages.
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
    /// Octets, if known.
    pub size: Option<u64>,
    /// The highest MODSEQ.
    pub highest_modseq: u64,
}

impl MailboxCounts {
    fn of(&self, item: StatusItem) -> Option<u64> {
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
    /// Messages in the view.
    pub exists: u32,
    /// Messages that are `\Recent` for this client.
    pub recent: u32,
    /// The number of the first message without \Seen.
    pub first_unseen: Option<u32>,
    /// UIDVALIDITY.
    pub uid_validity: u32,
    /// The next UID.
    pub uid_next: u32,
    /// The highest UID in the view; 0 in an empty one.
    pub last_uid: u32,
    /// Names of keywords, each with its bit in [`ViewRow::flags`].
    pub keywords: Vec<(u64, String)>,
    /// The highest MODSEQ that the client may use: all changes up to it were told.
    pub highest_modseq: u64,
    /// The mailbox cannot be changed.
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

/// A message with other flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangedRow {
    /// The message now.
    pub row: ViewRow,
    /// The flags last reported to the client.
    pub before: u64,
}

/// The outcome of a change of flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredMail {
    /// Messages left unchanged because of UNCHANGEDSINCE: numbers or UIDs, like the request.
    pub modified: NumberSet,
    /// Some messages of the set are gone.
    pub gone: bool,
}

/// UIDs of copied or moved messages, for COPYUID (RFC 4315 section 3).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopiedMail {
    /// UIDVALIDITY of that mailbox.
    pub uid_validity: u32,
    /// UIDs of the messages.
    pub from: NumberSet,
    /// UIDs of the copies, in the same order.
    pub to: NumberSet,
}

/// UIDs of appended messages, for APPENDUID (RFC 4315 section 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendedMail {
    /// UIDVALIDITY of the mailbox.
    pub uid_validity: u32,
    /// Their UIDs, in the order of the messages.
    pub uids: NumberSet,
}

/// Changes of a view, to be reported in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MailChanges {
    /// Expunged messages, the highest number first.
    pub expunged: Vec<ExpungedRow>,
    /// The number of messages, if there are new ones.
    pub exists: Option<u32>,
    /// The number of \Recent messages, if it has changed.
    pub recent: Option<u32>,
    /// Messages with other flags, by their numbers after `expunged`.
    pub flags: Vec<ChangedRow>,
    /// All keywords, if there are new ones.
    pub keywords: Option<Vec<(u64, String)>>,
    /// The highest UID in the view now.
    pub last_uid: u32,
    /// The highest MODSEQ that the client may use now.
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
