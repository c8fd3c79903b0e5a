//! A session as a state machine: octets in, [`ImapEvent`]s and octets out.
//!
//! The owner (a *driver*) calls [`ImapMachine::step`] with what it has read until the answer is [`ImapEvent::NeedInput`], then writes
//! [`ImapMachine::output`] and reads more. Events marked *asks* stand still until they are answered. The machine holds one row, one header or
//! the beginning of one message at a time; octets of messages are sent by the driver, which is told their places.

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
    /// Logins need TLS from this machine, too.
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
    /// Commands in a row that make no sense; then the client is cut off. Default 20.
    pub errors: u32,
    /// Octets of a message that are read at once to find its parts. Of a longer message, the part in which they end goes on to its end. Default
    /// 32 MiB.
    pub structure_bytes: u64,
    /// Octets of a message that APPEND takes. Default 50 MiB.
    pub append_bytes: u64,
    /// Octets that one SORT or THREAD collects. Default 64 MiB.
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
    /// The output has grown large: write it, then go on.
    Flush,
    /// Write the output and close. Nothing more will come.
    Close,
    /// *Asks*: write the output, do the handshake, then call [`ImapMachine::tls_started`]. The input is empty.
    StartTls,
    /// Write the output; all octets after it are DEFLATE, in both directions (RFC 4978). The input is empty.
    Compress,
    /// *Asks*: answer with [`ImapMachine::logged_in`].
    Login(ImapCredentials),
    /// *Asks* for the exchange that a client begins, with the keys of its user. Answer with [`ImapMachine::scram_begun`].
    ScramKeys(Box<ScramFirst>),
    /// *Asks* whether this is the proof of a password. Answer with [`ImapMachine::scram_checked`].
    ScramProof(Box<ScramProof>),
    /// *Asks* for the names that match one of the patterns, INBOX first, then by bytes. Answer with [`ImapMachine::list_opened`].
    /// With `subscribed`, those that are subscribed to, and with `recursive` those above them.
    List { patterns: Vec<String>, subscribed: bool, recursive: bool, status: bool },
    /// *Asks* for the next name of the list. Answer with [`ImapMachine::listed`].
    NextName,
    /// *Asks*: answer with [`ImapMachine::status`].
    Status(String),
    /// *Asks*: the view of a mailbox takes the place of any other. Answer with [`ImapMachine::selected`].
    Select { mailbox: String, read_only: bool },
    /// The view is not needed any more.
    Unselect,
    /// The messages that [`ImapEvent::NextRow`] will ask for, in the order of their numbers.
    Rows { set: MessageChoice, sizes: bool },
    /// *Asks* for the next message. Answer with [`ImapMachine::row`].
    NextRow,
    /// *Asks* which messages have these texts, as far as an index knows. Answer with [`ImapMachine::text_found`].
    FindText(Vec<TextKey>),
    /// *Asks* for the header section of the last row, with its empty line. Answer with [`ImapMachine::header`]. Unless `whole`, fields that clients
    /// do not [list](posthaste_message::mime::is_listed_field) may be left out.
    Header { uid: u32, whole: bool },
    /// *Asks* for the values of the last row's header that SORT, THREAD and SEARCH compare, if some were [made](ImapMachine::made_keys) and kept. Answer
    /// with [`ImapMachine::keys`].
    Keys { uid: u32 },
    /// *Asks* for the structure of the last row's message, if one was [made](ImapMachine::made_structure) of these octets and kept. Answer with
    /// [`ImapMachine::structure`].
    Structure { uid: u32 },
    /// *Asks* for the length of the last row's message, which will be read. Answer with [`ImapMachine::opened`].
    Open { uid: u32 },
    /// *Asks* for the first `octets` of the open message, or all. Answer with [`ImapMachine::message`].
    Read { octets: u64 },
    /// Write the output, then these octets of the open message. If they cannot be read, close: the client waits for them.
    Send(Range<u64>),
    /// *Asks* how long these octets of the open message are without their transfer encoding. Answer with [`ImapMachine::decoded`].
    Decode { range: Range<u64>, encoding: Encoding },
    /// Write the output, then `octets` of what these octets of the open message are without their transfer encoding. If they cannot be had, close:
    /// the client waits for them.
    SendDecoded { range: Range<u64>, encoding: Encoding, octets: Range<u64> },
    /// *Asks* which UIDs vanished since a MODSEQ. Answer with [`ImapMachine::vanished`].
    Vanished { since: u64 },
    /// *Asks* what has changed in the view, by other programs too if it `looks`. Answer with [`ImapMachine::changes`].
    Changes { may_expunge: bool, looks: bool },
    /// *Asks* for a durable change of flags. Answer with [`ImapMachine::stored`], by UIDs or by numbers.
    Store { uid: bool, set: MessageChoice, update: FlagsUpdate, unchanged_since: Option<u64> },
    /// *Asks* for \Seen on these UIDs, which were read. It need not be durable when it is answered with [`ImapMachine::marked_seen`].
    MarkSeen(NumberSet),
    /// *Asks* to remove messages with \Deleted, of these UIDs if there are any. Answer with [`ImapMachine::expunged`].
    Expunge(Option<NumberSet>),
    /// *Asks* to copy messages, or to move them. Answer with [`ImapMachine::copied`].
    Copy { set: MessageChoice, mailbox: String, moves: bool },
    /// *Asks* for room for a message in a mailbox. Answer with [`ImapMachine::append_begun`].
    Append { mailbox: String, message: MessageOffer },
    /// *Asks* for room for another message of the same command (RFC 3502). Answer with [`ImapMachine::append_begun`].
    AppendNext(MessageOffer),
    /// *Asks* to take the next octets of that message. Answer with [`ImapMachine::written`].
    Write(Bytes),
    /// *Asks* to store all messages of the command, or none. Answer with [`ImapMachine::appended`].
    Finish,
    /// The command failed: none of its messages is kept.
    Abandon,
    /// *Asks* for the quota of the account, in the eyes of a mailbox if one is named. Answer with [`ImapMachine::quota`].
    Quota { mailbox: Option<String> },
    /// *Asks* to change the list of mailboxes. Answer with [`ImapMachine::managed`].
    Manage(MailboxChange),
}

/// A text that is looked for in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextKey {
    /// The place where it is looked for.
    pub field: SearchedField,
    /// The text.
    pub needle: Needle,
}

/// The knowledge of an index about a [`TextKey`]: the same that reading the messages would tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextAnswer {
    /// UIDs of messages of which it knows whether they have the text. The others are read.
    pub known: NumberSet,
    /// UIDs of those that have it.
    pub found: NumberSet,
}

/// Flags that become those of messages, or are added or removed.
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
    /// Octets as sent by the client; bare LFs count once.
    pub octets: u64,
}

/// A change of the list of mailboxes. Names are decoded, and not checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the standard")]
pub enum MailboxChange {
    /// CREATE, perhaps with a special use such as `\Drafts`.
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
    /// Whose password it is.
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

/// Why somebody is not logged in (decision 48).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginRefusal {
    /// Wrong name or password: `NO [AUTHENTICATIONFAILED]`.
    Wrong,
    /// Passwords cannot be checked now: `NO [UNAVAILABLE]`, upon which clients do not ask for another password.
    Busy,
    /// The password is right, but the mailboxes cannot be opened: `NO [UNAVAILABLE]`.
    Unavailable,
    /// The client's address has guessed too often: BYE.
    Blocked,
}

/// Why a mailbox or a message cannot be had, or not be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MailRefusal {
    /// The message is gone, or its mailbox.
    Gone,
    /// The transfer encoding of a part cannot be undone: `NO [UNKNOWN-CTE]`.
    UnknownEncoding,
    /// The mailbox is read-only: `NO [READ-ONLY]`.
    ReadOnly,
    /// There is such a mailbox: `NO [ALREADYEXISTS]`.
    Exists,
    /// Another mailbox has that special use, or it is not known: `NO [USEATTR]`.
    UseTaken,
    /// Impossible for good: `NO [CANNOT]` with this sentence.
    Cannot(&'static str),
    /// There is no room: `NO [OVERQUOTA]`.
    NoSpace,
    /// The quota is used up: `NO [OVERQUOTA]`.
    OverQuota,
    /// Too much is asked for: `NO [LIMIT]`.
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
    /// Octets of all messages, and how many there may be; `None`: any number.
    pub bytes: (u64, Option<u64>),
    /// Messages, and how many there may be.
    pub messages: (u64, Option<u64>),
}

/// The length of a part without its transfer encoding.
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
    /// The highest MODSEQ.
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
    /// RFC822.SIZE, if asked for and known.
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
    /// Messages that stay as they are because of UNCHANGEDSINCE: numbers or UIDs, as was asked.
    pub modified: NumberSet,
    /// Messages of the set are gone.
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

/// Changes of a view, to be told in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MailChanges {
    /// Messages that are gone, the highest number first.
    pub expunged: Vec<ExpungedRow>,
    /// The number of messages, if there are new ones.
    pub exists: Option<u32>,
    /// The number of \Recent messages, if it is another one.
    pub recent: Option<u32>,
    /// Messages with other flags, by their numbers after `expunged`.
    pub flags: Vec<ChangedRow>,
    /// All keywords, if there are new ones.
    pub keywords: Option<Vec<(u64, String)>>,
    /// The highest UID in the view now.
    pub last_uid: u32,
    /// The highest MODSEQ that the client may know now.
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
