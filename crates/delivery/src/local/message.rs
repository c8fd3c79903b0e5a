//! A message that is handed over by a program that knows its mailboxes.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_intake::Body;

/// A message to be kept: one copy in the spool however many mailboxes it goes to.
#[derive(Debug)]
pub struct Message {
    /// Where it goes; none only if other streams are told of it.
    pub targets: Vec<Target>,
    /// Its bytes.
    pub body: Body,
    /// Handling of its line ends.
    pub line_ends: LineEnds,
    /// Entries of other streams in the same batch.
    pub also: Vec<posthaste_spool::Entry>,
}

/// One mailbox that gets the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Header fields that stand in front of the body in this mailbox alone.
    pub prefix: Bytes,
}

/// How a body is put into a Maildir file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineEnds {
    /// Byte by byte as it was given.
    AsGiven,
    /// CRLF becomes LF, unless the body has a bare CR or LF and would not come back the same.
    ToLf,
}
