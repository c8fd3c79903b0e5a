//! A session about the mail of one account, which begins with [`Request::Account`](crate::Request::Account).
//!
//! The server answers the request with a [`MailAnswer`]. Then each command is a line of JSON. Its answer is a number of
//! lines, and a [`MailAnswer`] as the last. Octets of a message are sent between lines: each [`MailPiece::Data`] is a
//! line that gives their number. They are in the form of IMAP, with CRLF line ends.

use serde::{Deserialize, Serialize};

/// The most octets in a piece of a message.
pub const PIECE_BYTES_MAX: u32 = 64 << 10;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum MailCommand {
    /// The names of all mailboxes, a string on each line.
    Mailboxes,
    /// Creates a mailbox, and missing ones above it.
    Create {
        /// Its name.
        mailbox: String,
    },
    /// Renames a mailbox and those below it.
    Rename {
        /// Its name.
        mailbox: String,
        /// The new name.
        to: String,
    },
    /// Removes a mailbox with its mail.
    Delete {
        /// Its name.
        mailbox: String,
        /// If the number of messages differs, nothing is done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expect: Option<u32>,
    },
    /// Removes all messages of a mailbox, as EXPUNGE does.
    Empty {
        /// Its name.
        mailbox: String,
    },
    /// Rebuilds the data about a mailbox from its files.
    Rebuild {
        /// Its name.
        mailbox: String,
        /// True: messages get new UIDs in any case.
        #[serde(default)]
        renew: bool,
    },
    /// Selects a mailbox for the commands that follow. The answer has its numbers.
    Open {
        /// Its name.
        mailbox: String,
        /// True for a session that adds mail. It creates and subscribes to a missing mailbox, and is the only one
        /// that adds to the account.
        #[serde(default)]
        make: bool,
    },
    /// The directory of the selected mailbox below the mail directory, a string on a line. No line if it has none.
    Folder,
    /// The messages of the selected mailbox in the order of their UIDs: a [`MailRow`] each.
    Rows {
        /// From this UID on.
        from: u32,
        /// Adds digests, which requires reading all messages.
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
    /// Its octets.
    pub bytes: u64,
}

/// Part of a message that follows [`MailCommand::Add`], or is the answer to [`MailCommand::Read`].
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
    /// The message is whole, and the last.
    End,
    /// Adds none of the messages: one could not be read completely.
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
    /// Refused, and may be repeated: the session continues. For [`MailCommand::Add`] this concerns these messages only.
    Refused(String),
    /// No further command of this kind can succeed now, as without room.
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
    /// Messages of the mailbox that was selected, deleted, emptied or rebuilt.
    #[serde(skip_serializing_if = "is_zero")]
    pub messages: u32,
    /// The UID of the added message; of several the first one, and the others follow it.
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
