//! A message from a program that knows its mailboxes.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_intake::GatheredBody;

/// A message to deliver: one copy in the spool for all its mailboxes.
#[derive(Debug)]
pub struct MailboxMessage {
    /// Mailboxes of the message; empty only for messages to other streams.
    pub targets: Vec<MailboxTarget>,
    /// Content of the message.
    pub body: GatheredBody,
    /// Conversion of the line ends.
    pub line_ends: LineEnds,
    /// Entries for other streams in the same batch.
    pub also: Vec<posthaste_spool::Entry>,
}

/// One mailbox that gets the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailboxTarget {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Header fields in front of the body, in this mailbox only.
    pub prefix: Bytes,
}

/// Conversion of a body's line ends for a Maildir file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnds {
    /// Unchanged.
    AsGiven,
    /// CRLF becomes LF, unless a bare CR or LF would make that irreversible.
    ToLf,
}
