//! Sections of a configuration file: the session's part of `[limits]`, and `[policy]`.

use std::time::Duration;

use posthaste_units::values::{self, Table};
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, check_bounds, keys};
use serde::Deserialize;

use crate::limits::{BareNewlines, Limits, LongLines, NulOctets, Timeouts};
use crate::server::FORBIDDEN_COMMANDS;

keys! {
    /// The session's part of `[limits]`. The reply at each bound is that of [`Limits`].
    pub struct SessionLimits, overridden by SessionLimitOverrides {
        /// Size of a message; announced with SIZE; 0 for no limit.
        message_bytes: u64 = Limits::default().message_bytes, values::bytes;
        /// Size of a message's header, at least 1024.
        header_bytes: u64 = Limits::default().header_bytes, values::bytes;
        /// Recipients of one message.
        recipients: usize = Limits::default().recipients, values::count;
        /// Messages in one session; 0 for no limit.
        messages_per_session: u32 = Limits::default().messages.unwrap_or(0), values::count;
        /// Time that a client may have mail for other hosts held back (FUTURERELEASE, RFC 4865); 0: not offered. For clients that you trust, by
        /// `[[network]]`.
        future_release_secs: u64 = 0, values::secs;
        /// Length of a command line with its CRLF, at least 512; extensions add to it.
        command_line_bytes: usize = Limits::default().command_line_bytes, values::bytes;
        /// Length of a text line without its CRLF, at least 998; applies with `policy.long_lines = "reject"`.
        text_line_bytes: u64 = Limits::default().text_line_bytes, values::bytes;
        /// Bytes of a refused message that are read and discarded, so that the client sees the reply.
        discard_bytes: u64 = Limits::default().discard_bytes, values::bytes;
        /// Commands answered with 5yz since the last accepted message.
        errors: u32 = Limits::default().errors, values::count;
        /// Recipients answered with 4yz since the last accepted message.
        deferred_recipients: u32 = Limits::default().deferred_recipients, values::count;
        /// Commands without progress, empty chunks included, since the last accepted message; at least 5.
        idle_commands: u32 = Limits::default().idle_commands, values::count;
        /// Time for a whole command line. This and the following times: at most a year.
        command_secs: u64 = Timeouts::default().command.as_secs(), values::secs;
        /// Time between two reads of a body.
        body_read_secs: u64 = Timeouts::default().body_read.as_secs(), values::secs;
        /// Time for a whole body, including the commands between its chunks.
        body_total_secs: u64 = Timeouts::default().body_total.as_secs(), values::secs;
        /// Time for the client to take a reply.
        write_secs: u64 = Timeouts::default().write.as_secs(), values::secs;
        /// Time that the server goes on reading from a connection it closes, so that the last reply is not lost; 0 for none.
        linger_secs: u64 = Timeouts::default().linger.as_secs(), values::secs;
    }
}

keys! {
    /// Handling of messages and commands that break the protocol's rules.
    pub struct Policy, overridden by PolicyOverrides {
        /// CR or LF alone in a message: `"reject"`, `"fix"`, `"accept"`. Each has dangers: read [smtp.md](smtp.md).
        bare_newlines: BareNewlines = BareNewlines::default(), Deserialize::deserialize;
        /// Text lines longer than `limits.text_line_bytes`: `"accept"` keeps them unchanged, `"reject"`.
        long_lines: LongLines = LongLines::default(), Deserialize::deserialize;
        /// DSN (RFC 3461) is offered: NOTIFY, RET, ENVID and ORCPT. Not set: to clients that may send mail anywhere, by their network, their
        /// listener or a login; where `auth = "required"`, to all, unless `relay` is `false` there. With `true` also to strangers, who can have a
        /// success notification sent to whatever sender they give. Default: not set.
        dsn: Option<bool> = None, Deserialize::deserialize;
        /// Take `MAIL FROM:a@b` without brackets, and a HELO with blanks in its name or without one, as RAID controllers, UPSs and
        /// printers send. For their `[[network]]`.
        lenient_commands: bool = false, Deserialize::deserialize;
        /// NUL in a message: `"reject"` or `"accept"`.
        nul_octets: NulOctets = NulOctets::default(), Deserialize::deserialize;
        /// Commands of other protocols. A client that sends one, or a line that looks like a header field, gets 502 5.7.0 and is disconnected. `[]`:
        /// never. See [smtp.md](smtp.md). Default: `["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PRI"]`.
        forbidden_commands: Vec<String> = FORBIDDEN_COMMANDS.map(String::from).to_vec(), Deserialize::deserialize;
    }
}

impl Table for Policy {
    const NAME: &str = "policy";
}

impl SessionLimits {
    /// Validates the limits.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self) -> Result<(), Problem> {
        const ANY: u64 = u64::MAX;
        check_bounds(
            "limits",
            &[
                ("header_bytes", self.header_bytes, 1024, ANY),
                ("recipients", self.recipients as u64, 1, ANY),
                ("command_line_bytes", self.command_line_bytes as u64, 512, ANY),
                ("text_line_bytes", self.text_line_bytes, 998, ANY),
                ("future_release_secs", self.future_release_secs, 0, A_YEAR),
                ("errors", self.errors.into(), 1, ANY),
                ("deferred_recipients", self.deferred_recipients.into(), 1, ANY),
                ("idle_commands", self.idle_commands.into(), 5, ANY),
                ("command_secs", self.command_secs, 1, A_YEAR),
                ("body_read_secs", self.body_read_secs, 1, A_YEAR),
                ("body_total_secs", self.body_total_secs, 1, A_YEAR),
                ("write_secs", self.write_secs, 1, A_YEAR),
                ("linger_secs", self.linger_secs, 0, A_YEAR),
            ],
        )
    }
}

impl From<&SessionLimits> for Limits {
    fn from(limits: &SessionLimits) -> Self {
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
            future_release_secs: u32::try_from(limits.future_release_secs).unwrap_or(u32::MAX),
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

impl Policy {
    /// Validates the policy.
    ///
    /// # Errors
    /// The first forbidden command that is not a word, or is one of SMTP.
    pub fn check(&self) -> Result<(), Problem> {
        for (index, command) in self.forbidden_commands.iter().enumerate() {
            let at = || [Self::NAME.into(), "forbidden_commands".into(), index.into()];
            if command.is_empty() || !command.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
                return Err(Problem::new(at(), "a command is one word, such as \"GET\""));
            }
            if crate::command::is_known(command) {
                let message = format!("{command} is a command of SMTP or LMTP and cannot be forbidden");
                return Err(Problem::new(at(), message));
            }
        }
        Ok(())
    }
}
