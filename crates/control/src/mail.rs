//! A session about the mail of one account, which begins with [`Request::Account`](crate::Request::Account).
//!
//! The server answers the request with a [`MailAnswer`]. Then each command is a line of JSON, and its answer is some
//! lines that end with a [`MailAnswer`]. Message octets follow a line with [`MailPiece::Data`], which gives their
//! number. They are in the form of IMAP, with CRLF line ends.

use serde::{Deserialize, Serialize};

/// Maximum octets in one piece of a message.
pub const PIECE_BYTES_MAX: u32 = 64 << 10;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum MailCommand {
    /// The names of all mailboxes, a string on each line.
    Mailboxes,
    /// Creates a mailbox, and missing ones above it.
    Create {
        /// Name of the new mailbox.
        mailbox: String,
    },
    /// Renames a mailbox and those below it.
    Rename {
        /// Present name.
        mailbox: String,
        /// The new name.
        to: String,
    },
    /// Removes a mailbox with its mail.
    Delete {
        /// Name of the mailbox to remove.
        mailbox: String,
        /// Expected number of messages: with any other number nothing is removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<u32>,
    },
    /// Removes all messages of a mailbox, as EXPUNGE does.
    Empty {
        /// Name of the mailbox to empty.
        mailbox: String,
    },
    /// Rebuilds the data about a mailbox from its files.
    Rebuild {
        /// Name of the mailbox to rebuild.
        mailbox: String,
        /// True: gives messages new UIDs in any case.
        #[serde(default)]
        renew: bool,
    },
    /// Selects a mailbox for the commands that follow. The answer has its UIDVALIDITY, next UID and number of messages.
    Open {
        /// Name of the mailbox to select.
        mailbox: String,
        /// True for a session that adds mail. It creates and subscribes to a missing mailbox, and is the only one
        /// that adds to the account.
        #[serde(default)]
        make: bool,
    },
    /// The selected mailbox's directory, relative to the mail directory: a string on a line. No line if it has none.
    Folder,
    /// The messages of the selected mailbox in the order of their UIDs: a [`MailRow`] each.
    Rows {
        /// Lowest UID to list.
        from: u32,
        /// Adds SHA-256 digests, which requires reading all messages.
        #[serde(default)]
        digests: bool,
    },
    /// A message of the selected mailbox, in pieces.
    Read {
        /// Its UID.
        uid: u32,
    },
    /// Adds one or several messages to the selected mailbox: pieces follow. On success all are durable, else none was
    /// added.
    Add(AddedMail),
}

/// A message to add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedMail {
    /// System flags and keywords, as in IMAP.
    pub flags: Vec<String>,
    /// INTERNALDATE, in seconds since 1970; not set: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<u64>,
    /// Size of the message in octets.
    pub bytes: u64,
}

/// A piece of a message: after [`MailCommand::Add`], or in the answer to [`MailCommand::Read`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MailPiece {
    /// This many octets follow the line, at most [`PIECE_BYTES_MAX`].
    Data(u32),
    /// The message is a file of this name in `tmp/` of the mailbox's directory, which becomes the message; another line
    /// follows. The file keeps one other name until the answer comes.
    File(String),
    /// Ends a message; the next one follows, and both are added together.
    Next(AddedMail),
    /// Ends the last message.
    End,
    /// Cancels the whole addition: one of the messages could not be read completely.
    Drop,
}

/// A message of a mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailRow {
    /// Its UID.
    pub uid: u32,
    /// Flags and keywords.
    pub flags: Vec<String>,
    /// INTERNALDATE, in seconds since 1970.
    pub date: u64,
    /// The SHA-256 of its octets in hexadecimal, if it was asked for and they can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// The last line of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MailAnswer {
    /// The command succeeded.
    Done(MailDone),
    /// Refused. The session continues, and the command may be repeated. For [`MailCommand::Add`] only these messages
    /// are affected.
    Refused(String),
    /// A failure that later commands would meet, too: the disk is full, the quota is used up, or the account is
    /// unavailable or read-only. Clients stop.
    Error(String),
}

/// Counts of completed work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MailDone {
    /// UIDVALIDITY of the mailbox that was selected, added to or rebuilt.
    #[serde(skip_serializing_if = "is_zero")]
    pub uid_validity: u32,
    /// The next UID of the mailbox that was selected or rebuilt.
    #[serde(skip_serializing_if = "is_zero")]
    pub uid_next: u32,
    /// Number of messages in the mailbox that was selected, deleted, emptied or rebuilt.
    #[serde(skip_serializing_if = "is_zero")]
    pub messages: u32,
    /// UID of the first added message; the others follow in sequence.
    #[serde(skip_serializing_if = "is_zero")]
    pub uid: u32,
    /// True if the mailbox was created. After a rebuild: true if it has a new UIDVALIDITY.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub made: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
