//! Log lines and events of refusals: the first of a kind at their level, repeats at level `debug`.

use std::time::Instant;

use posthaste_smtp::driver::Peer;
use posthaste_smtp::{Envelope, MessageOutcome, RcptTo, Reply, ReversePath};

use super::receiver::{Receiver, Stop};
use crate::receive::events;
use crate::receive::logins::Session;
use crate::receive::message_log::{LogLine, Severity};
use crate::repeats::{About, Kind};

/// Logs a line at a level, or at `debug` if it is a repeat.
macro_rules! log_bounded {
    ($is_told:expr, $level:ident, $($line:tt)+) => {
        if $is_told { tracing::$level!($($line)+) } else { tracing::debug!($($line)+) }
    };
}
pub(super) use log_bounded;

impl Receiver {
    /// False for a repeat, which is counted.
    pub(super) fn is_told(&self, kind: Kind, about: About<'_>) -> bool {
        self.0.repeats.is_told(kind, about, Instant::now())
    }

    /// Records and logs a failed TLS handshake.
    pub(super) fn tell_failed_tls(&self, session: &Session, error: &std::io::Error) {
        let peer = session.peer.to_string();
        let error = error.to_string();
        let is_told = self.is_told(Kind::FailedTls, client(session));
        if let Some(recorder) = self.events().filter(|_| is_told) {
            events::connection(recorder, &session.peer, &format!("TLS handshake failed: {error}"));
        }
        log_bounded!(is_told, info, peer, error, "TLS handshake failed");
    }

    /// Records and logs a client that may not connect.
    pub(super) fn tell_refused_peer(&self, peer: &Peer, why: &str) {
        if let Some(recorder) = self.events() {
            events::connection(recorder, peer, why);
        }
        let is_told = self.is_told(Kind::RefusedConnection, About::Client(peer.ip()));
        log_bounded!(is_told, info, peer = peer.to_string(), why, "connection refused");
    }

    /// Counts, records and logs a client that a check has stopped before MAIL.
    pub(super) fn refuse_session(&self, session: &Session, stop: Stop) -> Reply {
        let Stop { reply, why, kind, .. } = stop;
        self.count_refused();
        let peer = session.peer.to_string();
        let why = why.unwrap_or_else(|| reply.to_string());
        let helo = session.helo.as_deref();
        let is_told = self.is_told(kind.unwrap_or(Kind::RefusedConnection), client(session));
        if let Some(recorder) = self.events().filter(|_| is_told) {
            events::connection(recorder, &session.peer, &why);
        }
        log_bounded!(is_told, info, peer, helo, why, "connection refused");
        reply
    }

    /// Counts, records and logs a refused recipient.
    pub(super) fn refuse_recipient(&self, session: &Session, sender: &ReversePath, rcpt: &RcptTo, stop: Stop) -> Reply {
        let Stop { kind, about, reply, why } = stop;
        let kind = kind.unwrap_or(Kind::RefusedRecipient);
        self.count_refused();
        if let Some(recorder) = self.events() {
            events::command(recorder, session, sender, Some(&rcpt.forward_path), &reply);
        }
        let about = about.as_deref().map_or_else(|| client(session), About::Name);
        let is_told = self.is_told(kind, about);
        // Clients that guess names get here often: the texts are made for a line that is written.
        if !is_told && !tracing::enabled!(tracing::Level::DEBUG) {
            return reply;
        }
        let to = rcpt.forward_path.to_string();
        let reply_text = reply.to_string();
        let peer = session.peer.to_string();
        let user = session.identity.as_ref().map(|identity| &*identity.authorization_id);
        if is_told && kind.is_ours() {
            let about = about.to_string();
            let mut help = self.help(kind);
            why.iter().for_each(|why| help.extend([": ", why]));
            tracing::warn!(peer, user, to, about, reply = reply_text, help, "recipient refused");
        } else {
            log_bounded!(is_told, info, peer, user, to, reply = reply_text, "recipient refused");
        }
        reply
    }

    /// Logs a login that sent from an address of another user.
    pub(super) fn tell_foreign_sender(&self, session: &Session, user: &str, sender: &ReversePath) {
        let peer = session.peer.to_string();
        let from = sender.to_string();
        let is_told = self.is_told(Kind::Refused, client(session));
        log_bounded!(is_told, info, peer, user, from, "sender refused: not an address of this login");
    }

    /// Logs a client that exceeds its share of the spool.
    pub(super) fn tell_share_is_full(&self, session: &Session, size: u64, why: &str) {
        let peer = session.peer.to_string();
        let is_told = self.is_told(Kind::Refused, client(session));
        log_bounded!(is_told, info, peer, size, why, "no room for a large message");
    }

    /// Logs that the spool has no room.
    pub(super) fn tell_no_room(&self, session: &Session, size: u64, error: &str) {
        let peer = session.peer.to_string();
        let is_told = self.is_told(Kind::NoSpace, About::Name(&self.0.spool));
        let help = is_told.then(|| self.help(Kind::NoSpace));
        log_bounded!(is_told, warn, peer, size, error, help, "no room for a large message");
    }

    /// Logs the outcome of a message.
    pub(super) fn log_message(
        &self,
        line: &LogLine,
        session: &Session,
        envelope: &Envelope,
        outcome: &MessageOutcome,
        begun: Instant,
    ) {
        let kind = match line.trouble {
            _ if line.abandoned => Kind::Abandoned,
            _ if outcome.is_accepted() => {
                self.0.meters.accepted(begun.elapsed());
                return line.write(Severity::Info, String::new(), session, envelope, outcome, begun);
            }
            Some(trouble) => trouble,
            None => Kind::Refused,
        };
        let about = if kind.is_ours() { About::Name(&self.0.spool) } else { client(session) };
        let severity = if !self.is_told(kind, about) {
            Severity::Debug
        } else if kind == Kind::Broken {
            Severity::Error
        } else if kind.is_ours() {
            Severity::Warn
        } else {
            Severity::Info
        };
        let help = if severity == Severity::Debug { String::new() } else { self.help(kind) };
        line.write(severity, help, session, envelope, outcome, begun);
    }

    /// Advice for the operator.
    fn help(&self, kind: Kind) -> String {
        let spool = &self.0.spool;
        match kind {
            Kind::NoSpace => {
                format!("free space on the disk of {spool}; `posthaste spool inspect {spool}` lists what waits there")
            }
            Kind::Slow => format!("the disk of {spool}, or that of the mailboxes, is overloaded or does not answer"),
            Kind::Broken => {
                format!(
                    "check the kernel's log for errors of the disk of {spool}; after a failed sync, restart the server"
                )
            }
            Kind::MailboxFull => format!("`posthaste spool inspect {spool}` shows why it cannot be written"),
            Kind::AccountFull => "`[quota]` sets the limit".to_owned(),
            Kind::NoMemory => "raise limits.memory_bytes".to_owned(),
            Kind::QueueFull => {
                "`posthaste queue summary` shows what waits; `relay.queue_recipients` is the bound".to_owned()
            }
            Kind::OverQuota => {
                "is its password stolen, or a program abused? `auth.recipient_rate` sets the limit".to_owned()
            }
            Kind::NotSigned => "`posthaste dkim list` shows the key that cannot be used".to_owned(),
            Kind::NotVerified => "the next hop cannot be asked for its recipients".to_owned(),
            Kind::Login | Kind::FailedLogin => String::new(),
            Kind::Refused | Kind::RefusedRecipient | Kind::RefusedConnection | Kind::FailedTls | Kind::Abandoned => {
                String::new()
            }
        }
    }
}

/// The client that a line counts for.
fn client(session: &Session) -> About<'static> {
    About::Client(session.peer.ip())
}
