//! States of a session, each named for the answer that it waits for or the command in progress.

use posthaste_scram::{ScramProof, ScramServer};

use super::appending::Appending;
use super::fetching::{Fetching, Vanishing};
use super::searching::Searching;
use super::{ChangedRow, FlagChange, FlagsUpdate, MessageChoice, SelectedMailbox, ViewRow};
use crate::command::{Resync, StatusItem};
use crate::set::NumberSet;

#[derive(Debug)]
pub(super) enum State {
    /// Waits for [`ImapMachine::greet`](super::ImapMachine::greet).
    Greeting,
    /// Waits for a command.
    Command,
    /// Waits for the client's answer to the challenge of AUTHENTICATE.
    AuthResponse {
        tag: String,
        asked: Asked,
    },
    /// Waits for [`ImapMachine::scram_begun`](super::ImapMachine::scram_begun).
    ScramKeys {
        tag: String,
    },
    /// Waits for [`ImapMachine::scram_checked`](super::ImapMachine::scram_checked).
    ScramProof {
        tag: String,
        proof: Box<ScramProof>,
    },
    /// Waits for DONE.
    Idle {
        tag: String,
    },
    /// Waits for [`ImapMachine::logged_in`](super::ImapMachine::logged_in).
    Login {
        tag: String,
    },
    /// Waits for [`ImapMachine::tls_started`](super::ImapMachine::tls_started).
    Tls,
    Listing(Box<Listing>),
    /// Waits for [`ImapMachine::status`](super::ImapMachine::status).
    Status {
        tag: String,
        name: String,
        items: Vec<StatusItem>,
    },
    /// Waits for [`ImapMachine::quota`](super::ImapMachine::quota).
    Quota {
        tag: String,
        mailbox: Option<String>,
    },
    Selecting(Box<Selecting>),
    Fetching(Box<Fetching>),
    Vanishing(Box<Vanishing>),
    Searching(Box<Searching>),
    Appending(Box<Appending>),
    /// Waits for the answer to a change.
    Changing(Change),
    /// Flags are stored, but the view does not show them yet.
    Storing {
        storing: Box<Storing>,
        text: String,
    },
    /// The mailbox must be closed first.
    Closing {
        tag: String,
        /// The response code, once the view was requested.
        code: Option<String>,
    },
    /// The command is done, except for reporting changes of the view.
    Finishing {
        reply: Reply,
        may_expunge: bool,
        /// Messages that were read; \Seen is set on them first.
        seen: NumberSet,
    },
    /// Waits for [`ImapMachine::changes`](super::ImapMachine::changes).
    Changes(AfterChanges),
    /// The session is over; no more is read.
    Closed,
}

#[derive(Debug)]
pub(super) enum AfterChanges {
    Reply(Reply),
    Idle {
        tag: String,
    },
    /// The mailbox must be closed first.
    Close {
        tag: String,
    },
    /// The reply to a STORE, which reports its own changes separately.
    Stored {
        storing: Box<Storing>,
        text: String,
    },
}

impl AfterChanges {
    /// The STORE whose changes will be reported.
    pub fn storing(&self) -> Option<&Storing> {
        match self {
            Self::Stored { storing, .. } => Some(storing),
            Self::Reply(_) | Self::Idle { .. } | Self::Close { .. } => None,
        }
    }
}

/// A tagged reply.
#[derive(Debug)]
pub(super) struct Reply {
    pub tag: String,
    /// `OK`, `NO` or `BAD`, and the text.
    pub text: String,
}

/// The next client message that a mechanism waits for.
#[derive(Debug)]
pub(super) enum Asked {
    Plain,
    ScramFirst {
        is_bound: bool,
    },
    ScramLast(Box<ScramServer>),
    /// Waits for SCRAM's last message, which is empty: the client has verified that the server has the keys.
    ScramEnd,
}

/// A change requested from the driver.
#[derive(Debug)]
pub(super) enum Change {
    Store(Box<Storing>),
    /// \Seen for messages that a FETCH has read.
    Seen {
        reply: Reply,
        may_expunge: bool,
    },
    Expunge {
        tag: String,
        uid: bool,
    },
    Close {
        tag: String,
    },
    Copy {
        tag: String,
        moves: bool,
    },
    /// A change of the list of mailboxes.
    Mailboxes {
        tag: String,
        name: &'static str,
    },
}

/// A STORE.
#[derive(Debug)]
pub(super) struct Storing {
    pub tag: String,
    pub uid: bool,
    pub set: MessageChoice,
    pub update: FlagsUpdate,
    pub silent: bool,
}

impl Storing {
    fn has(&self, row: &ViewRow) -> bool {
        match &self.set {
            MessageChoice::Numbers(set) => set.contains(row.number),
            MessageChoice::Uids(set) => set.contains(row.uid),
        }
    }

    /// True if the client can infer a message's flags, because it requested this change alone.
    fn expects(&self, changed: &ChangedRow, mailbox: &SelectedMailbox) -> bool {
        let keyword = |name: &String| {
            let known = mailbox.keywords.iter().find(|(_, known)| known.eq_ignore_ascii_case(name));
            known.map_or(0, |(bit, _)| *bit)
        };
        let these = self.update.keywords.iter().map(keyword).fold(self.update.flags, |flags, bit| flags | bit);
        changed.row.flags
            == match self.update.change {
                FlagChange::Replace => these,
                FlagChange::Add => changed.before | these,
                FlagChange::Remove => changed.before & !these,
            }
    }

    /// True if a change is reported like one of another session. The command's own change has its own answer, or none.
    pub fn passes(&self, changed: &ChangedRow, mailbox: &SelectedMailbox) -> bool {
        !self.has(&changed.row) || self.silent && !self.expects(changed, mailbox)
    }

    /// True if a change is reported by MODSEQ only, as requested by `.SILENT` (RFC 7162 section 3.1.3).
    pub fn is_silent_about(&self, row: &ViewRow) -> bool {
        self.silent && self.has(row)
    }
}

/// A list in progress.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) tag: String,
    pub(super) is_lsub: bool,
    pub(super) is_extended: bool,
    /// True if names above the matching ones are listed, too.
    pub(super) recursive: bool,
    /// True if `\Subscribed` is reported.
    pub(super) tells_subscribed: bool,
    pub(super) special_use_only: bool,
    pub(super) status: Vec<StatusItem>,
    /// True if no pattern matches INBOX, whatever the patterns for the store match.
    pub(super) leaves_out_inbox: bool,
    pub(super) asked: bool,
}

/// A SELECT or EXAMINE.
#[derive(Debug)]
pub(super) struct Selecting {
    pub(super) tag: String,
    pub(super) read_only: bool,
    pub(super) had_mailbox: bool,
    pub(super) resync: Option<Resync>,
    pub(super) name: String,
    /// True if the machine has not yet asked for the mailbox.
    pub(super) asks: bool,
}

impl Selecting {
    pub(super) fn command(&self) -> &'static str {
        if self.read_only { "EXAMINE" } else { "SELECT" }
    }
}
