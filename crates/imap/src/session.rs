//! A session as a state machine: octets in, [`ImapEvent`]s and octets out.
//!
//! The owner (a *driver*) calls [`ImapMachine::step`] with what it has read until the answer is [`ImapEvent::NeedInput`], then writes
//! [`ImapMachine::output`] and reads more. Events marked *asks* stand still until they are answered. The machine holds one row, one header or
//! the beginning of one message at a time; octets of messages are sent by the driver, which is told their places.

mod auth;
mod changes;
mod fetch;
mod listing;
mod machine;
mod matching;
mod refuse;
mod searching;
mod select;

use std::ops::Range;

use crate::command::StatusItem;
use crate::set::NumberSet;

pub use machine::ImapMachine;

/// What an [`ImapMachine`] is told once.
#[derive(Debug, Clone)]
pub struct ImapConfig {
    /// Our name in the greeting.
    pub host_name: String,
    /// Offer STARTTLS. Set it only if the driver can do the handshake.
    pub starttls: bool,
    /// Logins need TLS from this machine, too.
    pub needs_tls: bool,
    /// What ID answers, keys and values (RFC 2971). Never empty: Microsoft's cloud gives up without an answer.
    pub id: Vec<(String, String)>,
    /// All bounds.
    pub limits: ImapLimits,
}

impl ImapConfig {
    /// Everything at its default.
    pub fn new(host_name: impl Into<String>) -> Self {
        let id = vec![("name".into(), "Posthaste".into())];
        Self { host_name: host_name.into(), starttls: false, needs_tls: false, id, limits: ImapLimits::default() }
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
}

impl Default for ImapLimits {
    fn default() -> Self {
        Self { command_bytes_before_login: 8 << 10, command_bytes: 64 << 10, errors: 20, structure_bytes: 32 << 20 }
    }
}

/// What the machine wants.
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
    /// *Asks*: answer with [`ImapMachine::logged_in`].
    Login(ImapCredentials),
    /// *Asks* for the names that match one of the patterns, INBOX first, then by bytes. Answer with [`ImapMachine::list_opened`].
    List { patterns: Vec<String>, subscribed: bool, status: bool },
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
    /// *Asks* for the header section of the last row, with its empty line. Answer with [`ImapMachine::header`].
    Header { uid: u32 },
    /// *Asks* for the length of the last row's message, which will be read. Answer with [`ImapMachine::opened`].
    Open { uid: u32 },
    /// *Asks* for the first octets of the open message, so many or all. Answer with [`ImapMachine::message`].
    Read { octets: u64 },
    /// Write the output, then these octets of the open message. If they cannot be read, close: the client waits for them.
    Send(Range<u64>),
    /// *Asks* what has changed in the view. Answer with [`ImapMachine::changes`].
    Changes { may_expunge: bool },
}

/// Messages of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageChoice {
    /// By number.
    Numbers(NumberSet),
    /// By UID.
    Uids(NumberSet),
}

/// Who a client says to be.
#[derive(Clone, PartialEq, Eq)]
pub struct ImapCredentials {
    /// Whose password it is.
    pub user: String,
    /// The password.
    pub password: String,
    /// On whose behalf the client wants to act (PLAIN); `None` for its own.
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
    /// Another password, or no such name: `NO [AUTHENTICATIONFAILED]`.
    Wrong,
    /// Passwords cannot be checked now: `NO [UNAVAILABLE]`, upon which clients do not ask for another password.
    Busy,
    /// The password is right, and the mailboxes cannot be opened: `NO [UNAVAILABLE]`.
    Unavailable,
    /// The client's address has guessed too often: BYE.
    Blocked,
}

/// Why a mailbox or a message cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MailRefusal {
    /// The message is gone, or its mailbox.
    Gone,
    /// It may work later: `NO [UNAVAILABLE]`.
    Unavailable,
    /// It may not be read: `NO [NOPERM]`.
    NoPermission,
    /// It is damaged: `NO [CORRUPTION]`.
    Damaged,
}

/// A name in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedName {
    /// The name, decoded.
    pub name: String,
    /// Whether it is a mailbox, not just a name above others.
    pub is_mailbox: bool,
    /// `\Drafts` and the like.
    pub special_use: Option<&'static str>,
    /// There are names below it.
    pub has_children: bool,
    /// Whether it is subscribed.
    pub subscribed: bool,
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
    /// Names of keywords, each with its bit in [`MailRow::flags`].
    pub keywords: Vec<(u64, String)>,
}

/// A message of the view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MailRow {
    /// Its number in the view.
    pub number: u32,
    /// Its UID.
    pub uid: u32,
    /// Bits 0 to 4: \Seen, \Answered, \Flagged, \Deleted, \Draft; 8 to 63: keywords.
    pub flags: u64,
    /// It is `\Recent` for this client.
    pub recent: bool,
    /// RFC822.SIZE, if asked for and known.
    pub size: Option<u64>,
    /// INTERNALDATE in seconds since 1970.
    pub internal_date: i64,
}

/// What has changed in a view, to be told in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MailChanges {
    /// Numbers of messages that are gone, the highest first.
    pub expunged: Vec<u32>,
    /// The number of messages, if there are new ones.
    pub exists: Option<u32>,
    /// The number of \Recent messages, if it is another one.
    pub recent: Option<u32>,
    /// Messages with other flags, by their numbers after `expunged`.
    pub flags: Vec<MailRow>,
    /// All keywords, if there are new ones.
    pub keywords: Option<Vec<(u64, String)>>,
    /// The highest UID in the view now.
    pub last_uid: u32,
}

pub(crate) const SEEN: u64 = 1;
pub(crate) const ANSWERED: u64 = 1 << 1;
pub(crate) const FLAGGED: u64 = 1 << 2;
pub(crate) const DELETED: u64 = 1 << 3;
pub(crate) const DRAFT: u64 = 1 << 4;
/// In the order in which they are told.
pub(crate) const SYSTEM_FLAGS: [(u64, &str); 5] =
    [(ANSWERED, "\\Answered"), (FLAGGED, "\\Flagged"), (DELETED, "\\Deleted"), (SEEN, "\\Seen"), (DRAFT, "\\Draft")];
