//! Requests of the machine to its driver, and their parts.

use std::ops::Range;

use bytes::Bytes;
use posthaste_message::mime::Encoding;
use posthaste_scram::{ScramFirst, ScramProof};
use posthaste_text::{Needle, SearchedField};

use crate::command::{FlagChange, MailFlag};
use crate::set::NumberSet;

/// A request of the machine to its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant says what its fields are")]
pub enum ImapEvent {
    /// Everything in the buffer is done: write the output, then read more.
    NeedInput,
    /// The output is large: write it, then continue.
    Flush,
    /// Write the output and close. There is no further output.
    Close,
    /// *Asks*: write the output, do the handshake, then call [`ImapMachine::tls_started`](super::ImapMachine::tls_started). The input is empty.
    StartTls,
    /// Write the output; all later octets are DEFLATE, in both directions (RFC 4978). The input is empty.
    Compress,
    /// *Asks*: answer with [`ImapMachine::logged_in`](super::ImapMachine::logged_in).
    Login(ImapCredentials),
    /// *Asks* for the user's keys at the start of an exchange. Answer with [`ImapMachine::scram_begun`](super::ImapMachine::scram_begun).
    ScramKeys(Box<ScramFirst>),
    /// *Asks* to verify the proof of a password. Answer with [`ImapMachine::scram_checked`](super::ImapMachine::scram_checked).
    ScramProof(Box<ScramProof>),
    /// *Asks* for the names that match one of the patterns, INBOX first, then by bytes. Answer with
    /// [`ImapMachine::list_opened`](super::ImapMachine::list_opened). With `subscribed`: the subscribed names; with `recursive` also the names above
    /// them.
    List { patterns: Vec<String>, subscribed: bool, recursive: bool, status: bool },
    /// *Asks* for the next name of the list. Answer with [`ImapMachine::listed`](super::ImapMachine::listed).
    NextName,
    /// *Asks*: answer with [`ImapMachine::status`](super::ImapMachine::status).
    Status(String),
    /// *Asks* to replace the view by that of a mailbox. Answer with [`ImapMachine::selected`](super::ImapMachine::selected).
    Select { mailbox: String, read_only: bool },
    /// The view is no longer needed.
    Unselect,
    /// The messages for the following [`ImapEvent::NextRow`], in the order of their numbers.
    Rows { set: MessageChoice, sizes: bool },
    /// *Asks* for the next message. Answer with [`ImapMachine::row`](super::ImapMachine::row).
    NextRow,
    /// *Asks* an index for messages that contain these texts. Answer with [`ImapMachine::text_found`](super::ImapMachine::text_found).
    FindText(Vec<TextKey>),
    /// *Asks* for the header section of the last row, with its empty line. Answer with [`ImapMachine::header`](super::ImapMachine::header). Unless `whole`, fields that clients
    /// do not [list](posthaste_message::mime::is_listed_field) may be left out.
    Header { uid: u32, whole: bool },
    /// *Asks* for cached [keys](super::ImapMachine::made_keys) of the last row's header, which SORT, THREAD and SEARCH
    /// compare. Answer with [`ImapMachine::keys`](super::ImapMachine::keys).
    Keys { uid: u32 },
    /// *Asks* for the cached [structure](super::ImapMachine::made_structure) of the last row's message, if it was made from
    /// the same octets. Answer with [`ImapMachine::structure`](super::ImapMachine::structure).
    Structure { uid: u32 },
    /// *Asks* for the length of the last row's message, which will be read next. Answer with [`ImapMachine::opened`](super::ImapMachine::opened).
    Open { uid: u32 },
    /// *Asks* for the first `octets` of the open message, or all. Answer with [`ImapMachine::message`](super::ImapMachine::message).
    Read { octets: u64 },
    /// Write the output, then these octets of the open message. If they cannot be read, close: the client waits for them.
    Send(Range<u64>),
    /// *Asks* for the decoded length of these octets of the open message. Answer with [`ImapMachine::decoded`](super::ImapMachine::decoded).
    Decode { range: Range<u64>, encoding: Encoding },
    /// Write the output, then `octets` of these octets of the open message after decoding. Close if that fails: the
    /// client waits for them.
    SendDecoded { range: Range<u64>, encoding: Encoding, octets: Range<u64> },
    /// *Asks* for the UIDs that vanished since a MODSEQ. Answer with [`ImapMachine::vanished`](super::ImapMachine::vanished).
    Vanished { since: u64 },
    /// *Asks* for changes of the view; `looks`: including changes made by other programs. Answer with
    /// [`ImapMachine::changes`](super::ImapMachine::changes).
    Changes { may_expunge: bool, looks: bool },
    /// *Asks* for a durable change of flags, by UIDs or by numbers. Answer with
    /// [`ImapMachine::stored`](super::ImapMachine::stored).
    Store { uid: bool, set: MessageChoice, update: FlagsUpdate, unchanged_since: Option<u64> },
    /// *Asks* to set \Seen on these UIDs, which were read. It need not be durable when answered with
    /// [`ImapMachine::marked_seen`](super::ImapMachine::marked_seen).
    MarkSeen(NumberSet),
    /// *Asks* to remove messages with \Deleted, of these UIDs if given. Answer with [`ImapMachine::expunged`](super::ImapMachine::expunged).
    Expunge(Option<NumberSet>),
    /// *Asks* to copy messages, or to move them. Answer with [`ImapMachine::copied`](super::ImapMachine::copied).
    Copy { set: MessageChoice, mailbox: String, moves: bool },
    /// *Asks* for room for a message in a mailbox. Answer with [`ImapMachine::append_begun`](super::ImapMachine::append_begun).
    Append { mailbox: String, message: MessageOffer },
    /// *Asks* to begin another message of the same command (RFC 3502). Answer with [`ImapMachine::append_begun`](super::ImapMachine::append_begun).
    AppendNext(MessageOffer),
    /// *Asks* to store the next octets of that message. Answer with [`ImapMachine::written`](super::ImapMachine::written).
    Write(Bytes),
    /// *Asks* to store all messages of the command, or none. Answer with [`ImapMachine::appended`](super::ImapMachine::appended).
    Finish,
    /// The command failed: drop all its messages.
    Abandon,
    /// *Asks* for the quota of the account, as seen from a mailbox if one is named. Answer with [`ImapMachine::quota`](super::ImapMachine::quota).
    Quota { mailbox: Option<String> },
    /// *Asks* to change the list of mailboxes. Answer with [`ImapMachine::managed`](super::ImapMachine::managed).
    Manage(MailboxChange),
}

/// A text to search in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextKey {
    /// Part of the message to search.
    pub field: SearchedField,
    /// Text to find.
    pub needle: Needle,
}

/// An index's answer for a [`TextKey`], equal to the result of reading the messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextAnswer {
    /// UIDs of messages for which the index knows the answer. The others must be read.
    pub known: NumberSet,
    /// UIDs of matching messages.
    pub found: NumberSet,
}

/// Flags to set, add or remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagsUpdate {
    /// Set, add or remove.
    pub change: FlagChange,
    /// System flags, as in [`ViewRow::flags`](super::ViewRow::flags).
    pub flags: u64,
    /// Keywords.
    pub keywords: Vec<String>,
}

/// A message that a client wants to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageOffer {
    /// System flags, as in [`ViewRow::flags`](super::ViewRow::flags).
    pub flags: u64,
    /// Keywords.
    pub keywords: Vec<String>,
    /// INTERNALDATE in seconds since 1970; `None`: now.
    pub date: Option<i64>,
    /// Octets as announced by the client, before CRs are added at bare LFs.
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

/// Flags as bits, and keywords.
pub(super) fn split(flags: Vec<MailFlag>) -> (u64, Vec<String>) {
    let mut bits = 0;
    let mut keywords = Vec::new();
    for flag in flags {
        match flag {
            MailFlag::Keyword(name) => keywords.push(name),
            system => bits |= system.system_bit().unwrap_or_default(),
        }
    }
    (bits, keywords)
}

pub(super) fn update(change: FlagChange, flags: Vec<MailFlag>) -> FlagsUpdate {
    let (flags, keywords) = split(flags);
    FlagsUpdate { change, flags, keywords }
}
