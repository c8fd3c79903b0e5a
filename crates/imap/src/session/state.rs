//! The states of a session: each is named for its question, or for the command that it carries out.

use posthaste_scram::ScramProof;

use super::appending::Appending;
use super::auth::Asked;
use super::changing::{Change, Storing};
use super::fetch::Fetching;
use super::listing::Listing;
use super::searching::Searching;
use super::select::Selecting;
use super::vanishing::Vanishing;
use crate::command::StatusItem;
use crate::set::NumberSet;

#[derive(Debug)]
pub(super) enum State {
    /// Waits for [`ImapMachine::greet`].
    Greeting,
    /// Waits for a command.
    Command,
    /// Waits for the client's answer to the challenge of AUTHENTICATE.
    AuthResponse {
        tag: String,
        asked: Asked,
    },
    /// Waits for [`ImapMachine::scram_begun`].
    ScramKeys {
        tag: String,
    },
    /// Waits for [`ImapMachine::scram_checked`].
    ScramProof {
        tag: String,
        proof: Box<ScramProof>,
    },
    /// Waits for DONE.
    Idle {
        tag: String,
    },
    /// Waits for [`ImapMachine::logged_in`].
    Login {
        tag: String,
    },
    /// Waits for [`ImapMachine::tls_started`].
    Tls,
    Listing(Box<Listing>),
    /// Waits for [`ImapMachine::status`].
    Status {
        tag: String,
        name: String,
        items: Vec<StatusItem>,
    },
    /// Waits for [`ImapMachine::quota`].
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
    /// Flags are stored, but not in the view yet.
    Storing {
        storing: Box<Storing>,
        text: String,
    },
    /// The mailbox must be closed first.
    Closing {
        tag: String,
        /// The response code, once the view was asked for it.
        code: Option<String>,
    },
    /// The command is done, except for reporting changes of the view.
    Finishing {
        reply: Reply,
        may_expunge: bool,
        /// Messages that were read; \Seen is set on them first.
        seen: NumberSet,
    },
    /// Waits for [`ImapMachine::changes`].
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
    /// The STORE whose changes are to be reported.
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
