//! The `[limits]` table.

use std::time::Duration;

use posthaste_smtp::{Limits as SmtpLimits, Timeouts};
use serde::{Deserialize, Serialize};

use super::values;
use super::values::SpoolShare;

/// How much of anything is accepted. The reply at each bound is in `docs/smtp.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections at a time, over all listeners.
    #[serde(deserialize_with = "values::count")]
    pub connections: usize,
    /// Connections at a time from one address.
    #[serde(deserialize_with = "values::count")]
    pub connections_per_address: usize,
    /// Octets of a message; announced as SIZE. 0 for no limit.
    #[serde(deserialize_with = "values::bytes")]
    pub message_bytes: u64,
    /// Octets of a message's header.
    #[serde(deserialize_with = "values::bytes")]
    pub header_bytes: u64,
    /// Recipients of one message.
    #[serde(deserialize_with = "values::count")]
    pub recipients: usize,
    /// Messages in one session. 0 for no limit.
    #[serde(deserialize_with = "values::count")]
    pub messages_per_session: u32,
    /// Octets of a command line without extensions, CRLF included.
    #[serde(deserialize_with = "values::bytes")]
    pub command_line_bytes: usize,
    /// Octets of a text line, CRLF not included; see `policy.long_lines`.
    #[serde(deserialize_with = "values::bytes")]
    pub text_line_bytes: u64,
    /// Octets that are thrown away behind a message already refused.
    #[serde(deserialize_with = "values::bytes")]
    pub discard_bytes: u64,
    /// Commands answered with 5yz since the last accepted message.
    #[serde(deserialize_with = "values::count")]
    pub errors: u32,
    /// Recipients answered with 4yz since the last accepted message.
    #[serde(deserialize_with = "values::count")]
    pub deferred_recipients: u32,
    /// Commands that moved nothing forward since the last accepted message.
    #[serde(deserialize_with = "values::count")]
    pub idle_commands: u32,
    /// Received fields in a message before it is taken to be in a loop.
    #[serde(deserialize_with = "values::count")]
    pub hops: usize,
    /// Octets of all messages that are held in memory at a time.
    #[serde(deserialize_with = "values::bytes")]
    pub memory_bytes: u64,
    /// What large messages under way from one client address may hold of the spool's space.
    #[serde(deserialize_with = "values::share")]
    pub spool_per_address: SpoolShare,
    /// Seconds for a whole command line.
    #[serde(deserialize_with = "values::secs")]
    pub command_secs: u64,
    /// Seconds between two reads of a message body.
    #[serde(deserialize_with = "values::secs")]
    pub body_read_secs: u64,
    /// Seconds for a whole message body.
    #[serde(deserialize_with = "values::secs")]
    pub body_total_secs: u64,
    /// Seconds for the client to take a reply.
    #[serde(deserialize_with = "values::secs")]
    pub write_secs: u64,
    /// Seconds that a connection which we close keeps reading, so that the last reply is not lost.
    #[serde(deserialize_with = "values::secs")]
    pub linger_secs: u64,
    /// Seconds that sessions have to finish when the server stops.
    #[serde(deserialize_with = "values::secs")]
    pub shutdown_secs: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let smtp = SmtpLimits::default();
        Self {
            connections: 20_000,
            connections_per_address: 5_000,
            message_bytes: smtp.message_bytes,
            header_bytes: smtp.header_bytes,
            recipients: smtp.recipients,
            messages_per_session: smtp.messages.unwrap_or(0),
            command_line_bytes: smtp.command_line_bytes,
            text_line_bytes: smtp.text_line_bytes,
            discard_bytes: smtp.discard_bytes,
            errors: smtp.errors,
            deferred_recipients: smtp.deferred_recipients,
            idle_commands: smtp.idle_commands,
            hops: posthaste_message::MAX_HOPS,
            memory_bytes: 256 << 20,
            spool_per_address: SpoolShare::Percent(25),
            command_secs: smtp.timeouts.command.as_secs(),
            body_read_secs: smtp.timeouts.body_read.as_secs(),
            body_total_secs: smtp.timeouts.body_total.as_secs(),
            write_secs: smtp.timeouts.write.as_secs(),
            linger_secs: smtp.timeouts.linger.as_secs(),
            shutdown_secs: 30,
        }
    }
}

impl From<&Limits> for SmtpLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            command_line_bytes: limits.command_line_bytes,
            message_bytes: limits.message_bytes,
            header_bytes: limits.header_bytes,
            text_line_bytes: limits.text_line_bytes,
            discard_bytes: limits.discard_bytes,
            recipients: limits.recipients,
            errors: limits.errors,
            deferred_recipients: limits.deferred_recipients,
            idle_commands: limits.idle_commands,
            messages: Some(limits.messages_per_session).filter(|&messages| messages > 0),
            timeouts: Timeouts {
                command: Duration::from_secs(limits.command_secs),
                body_read: Duration::from_secs(limits.body_read_secs),
                body_total: Duration::from_secs(limits.body_total_secs),
                write: Duration::from_secs(limits.write_secs),
                linger: Duration::from_secs(limits.linger_secs),
            },
        }
    }
}
