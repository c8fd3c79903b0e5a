//! The log line of each message.

use std::time::Instant;

use posthaste_intake::{IntakeError, Mail, MailPlace};
use posthaste_smtp::{Envelope, MessageOutcome, Reply};
use posthaste_spool::Lsn;

use crate::config::certificates;
use crate::receive::logins::Session;
use crate::receive::replies::{reply_to, too_slow};
use crate::repeats::Kind;

/// The log line of a message.
#[derive(Default)]
pub(crate) struct LogLine {
    /// Number of the message; `None` if it was not stored.
    pub id: Option<Lsn>,
    /// The id in its Received field: the number is unknown before the message is durable.
    pub received_id: String,
    pub bytes: u64,
    pub message_id: Option<String>,
    /// Local mailboxes and transports.
    pub mailboxes: usize,
    /// Recipients at other hosts.
    pub remote: usize,
    /// Recipients whose mail is discarded by configuration.
    pub discarded: usize,
    /// True if the client did not send it completely, and got no reply.
    pub abandoned: bool,
    /// Results of the checks of a stranger's message.
    pub results: Option<String>,
    /// Why the checks put it into Junk.
    pub junk: Option<String>,
    pub why: Option<String>,
    /// Problem of this server that prevented acceptance, if any.
    pub trouble: Option<Kind>,
}

/// Level of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    Debug,
    Info,
    Warn,
    Error,
}

impl LogLine {
    /// Counts the recipients of an accepted message.
    pub fn count(&mut self, mail: &Mail<'_>, discarded: usize) {
        self.remote = mail.recipients.iter().filter(|recipient| recipient.place == MailPlace::Remote).count();
        (self.mailboxes, self.discarded) = (mail.recipients.len() - self.remote, discarded);
    }

    /// Notes why nothing was stored.
    pub fn refused(&mut self, error: &IntakeError) -> Reply {
        self.trouble = match error {
            IntakeError::Full(_) => Some(Kind::NoSpace),
            IntakeError::Busy | IntakeError::Cancelled => Some(Kind::Slow),
            IntakeError::TooLarge { .. } | IntakeError::NotTaken(_) | IntakeError::Closed => None,
            _ => Some(Kind::Broken),
        };
        self.why = Some(error.to_string());
        reply_to(error)
    }

    /// Notes that the store did not answer in time.
    pub fn too_slow(&mut self) -> Reply {
        self.trouble = Some(Kind::Slow);
        self.why = Some("the storage is too slow".to_owned());
        too_slow()
    }

    /// Notes that a large message could not be written to a file of its own.
    pub fn unspoolable(&mut self, error: &std::io::Error) -> Reply {
        self.trouble = Some(Kind::Broken);
        self.why = Some(format!("the file of a large message cannot be written: {error}"));
        Reply::new(452, "4.3.1", "The message could not be written, try again later")
    }

    pub fn write(
        &self,
        severity: Severity,
        help: String,
        session: &Session,
        envelope: &Envelope,
        outcome: &MessageOutcome,
        begun: Instant,
    ) {
        let enabled = match severity {
            Severity::Debug => tracing::enabled!(tracing::Level::DEBUG),
            Severity::Info => tracing::enabled!(tracing::Level::INFO),
            Severity::Warn | Severity::Error => true,
        };
        if !enabled {
            return;
        }
        let reply = match outcome {
            _ if self.abandoned => String::new(),
            MessageOutcome::All(reply) => reply.to_string(),
            MessageOutcome::Each(replies) => replies.iter().map(Reply::to_string).collect::<Vec<_>>().join("; "),
        };
        // `&str` fields are quoted and escaped by every format; a path is limited, and so is this list of them.
        let mut to: Vec<String> =
            envelope.recipients.iter().take(RECIPIENTS_LOGGED).map(|rcpt| rcpt.forward_path.to_string()).collect();
        if envelope.recipients.len() > RECIPIENTS_LOGGED {
            to.push(format!("and {} more", envelope.recipients.len() - RECIPIENTS_LOGGED));
        }
        let event = if self.abandoned {
            "message abandoned"
        } else if !outcome.is_accepted() {
            "message refused"
        } else if self.mailboxes + self.remote == 0 {
            "message discarded"
        } else {
            "message kept"
        };
        let some = |count: usize| Some(count).filter(|&count| count > 0);
        let mailboxes = some(self.mailboxes);
        let remote = some(self.remote);
        let discarded = some(self.discarded);
        let tls = session.tls.as_deref().map(certificates::version);
        let user = session.identity.as_ref().map(|identity| &*identity.authorization_id);
        let help = Some(help).filter(|help| !help.is_empty());
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    id = self.id.map(tracing::field::display),
                    received_id = self.received_id,
                    peer = session.peer.to_string(),
                    helo = session.helo.as_deref().unwrap_or_default(),
                    with = session.with_keyword(envelope.mail.smtputf8),
                    tls,
                    user,
                    from = envelope.mail.reverse_path.to_string(),
                    to = to.join(" "),
                    mailboxes,
                    remote,
                    discarded,
                    bytes = self.bytes,
                    message_id = self.message_id.as_deref().unwrap_or_default(),
                    auth = self.results.as_deref(),
                    junk = self.junk.as_deref(),
                    ms = begun.elapsed().as_millis() as u64,
                    reply,
                    why = self.why.as_deref().unwrap_or_default(),
                    help,
                    "{event}"
                )
            };
        }
        match severity {
            Severity::Debug => line!(debug),
            Severity::Info => line!(info),
            Severity::Warn => line!(warn),
            Severity::Error => line!(error),
        }
    }
}

const RECIPIENTS_LOGGED: usize = 5;
