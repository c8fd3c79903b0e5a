//! Commands as values.

use super::error::ImapCommandError;
use super::fetch::FetchItem;
use super::flag::MailFlag;
use super::list::{ListCommand, StatusItem};
use super::order::{SortCommand, ThreadCommand};
use super::search::SearchCommand;
use crate::set::SequenceSet;

/// A command with its tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedCommand {
    /// Tag of the command, repeated in the reply.
    pub tag: String,
    /// The parsed command, or the error for the reply.
    pub command: Result<ImapCommand, ImapCommandError>,
}

/// A client's saved state of the mailbox that it selects (RFC 7162 section 3.2.5.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resync {
    /// UIDVALIDITY of the saved state.
    pub uid_validity: u32,
    /// Highest MODSEQ of the saved state.
    pub modseq: u64,
    /// UIDs that the client knows; `None`: all.
    pub known: Option<SequenceSet>,
}

/// How STORE changes flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagChange {
    /// `FLAGS`
    Replace,
    /// `+FLAGS`
    Add,
    /// `-FLAGS`
    Remove,
}

/// A command. Mailbox names are as received: modified UTF-7, or invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the standard's commands and arguments")]
pub enum ImapCommand {
    Capability,
    Noop,
    Logout,
    /// Keys and values (RFC 2971).
    Id(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    StartTls,
    /// `initial` is still in base64 (RFC 4959); `=` means empty.
    Authenticate {
        mechanism: String,
        initial: Option<String>,
    },
    Login {
        user: Vec<u8>,
        password: Vec<u8>,
    },
    /// Capabilities in upper case (RFC 5161).
    Enable(Vec<String>),
    /// SELECT, or EXAMINE with `read_only`; with `condstore`, later responses have MODSEQ (RFC 7162 section 3.1.8).
    Select {
        mailbox: Vec<u8>,
        read_only: bool,
        condstore: bool,
        resync: Option<Resync>,
    },
    /// Special uses as given (RFC 6154 section 3).
    Create {
        mailbox: Vec<u8>,
        uses: Vec<String>,
    },
    Delete(Vec<u8>),
    Rename {
        from: Vec<u8>,
        to: Vec<u8>,
    },
    Subscribe(Vec<u8>),
    Unsubscribe(Vec<u8>),
    List(ListCommand),
    /// RFC 3501 section 6.3.9.
    Lsub {
        reference: Vec<u8>,
        pattern: Vec<u8>,
    },
    Namespace,
    Status {
        mailbox: Vec<u8>,
        items: Vec<StatusItem>,
    },
    GetQuota(Vec<u8>),
    GetQuotaRoot(Vec<u8>),
    /// Resources in upper case, each with its limit.
    SetQuota {
        root: Vec<u8>,
        limits: Vec<(String, u64)>,
    },
    Idle,
    /// The mechanism in upper case (RFC 4978).
    Compress(String),
    Check,
    Close,
    Unselect,
    /// With the UIDs of UID EXPUNGE (RFC 4315).
    Expunge(Option<SequenceSet>),
    Search {
        uid: bool,
        search: SearchCommand,
    },
    /// RFC 5256.
    Sort {
        uid: bool,
        sort: SortCommand,
    },
    /// RFC 5256.
    Thread {
        uid: bool,
        thread: ThreadCommand,
    },
    /// With `changed_since`, messages with a higher MODSEQ only (RFC 7162 section 3.1.4.1).
    Fetch {
        uid: bool,
        set: SequenceSet,
        items: Vec<FetchItem>,
        changed_since: Option<u64>,
        /// True to report vanished UIDs, too (RFC 7162 section 3.2.6).
        vanished: bool,
    },
    /// With `unchanged_since`, messages with a higher MODSEQ are not changed (RFC 7162 section 3.1.3).
    Store {
        uid: bool,
        set: SequenceSet,
        unchanged_since: Option<u64>,
        kind: FlagChange,
        silent: bool,
        flags: Vec<MailFlag>,
    },
    Copy {
        uid: bool,
        set: SequenceSet,
        mailbox: Vec<u8>,
    },
    /// RFC 6851.
    Move {
        uid: bool,
        set: SequenceSet,
        mailbox: Vec<u8>,
    },
}

impl ImapCommand {
    /// True if it is allowed before login.
    pub fn is_for_anybody(&self) -> bool {
        matches!(
            self,
            Self::Capability
                | Self::Noop
                | Self::Logout
                | Self::Id(_)
                | Self::StartTls
                | Self::Authenticate { .. }
                | Self::Login { .. }
        )
    }

    /// True if it needs a selected mailbox.
    pub fn is_for_selected(&self) -> bool {
        matches!(
            self,
            Self::Check
                | Self::Close
                | Self::Unselect
                | Self::Expunge(_)
                | Self::Search { .. }
                | Self::Sort { .. }
                | Self::Thread { .. }
                | Self::Fetch { .. }
                | Self::Store { .. }
                | Self::Copy { .. }
                | Self::Move { .. }
        )
    }
}
