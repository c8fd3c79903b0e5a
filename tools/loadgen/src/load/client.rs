//! A session that a worker drives on a connection, by SMTP, LMTP or HTTP.

use std::time::Instant;

use super::failure::{Failure, Stage};
use super::http::HttpSession;
use super::output::Output;
use super::plan::Plan;
use super::schedule::SendSlot;
use super::session::{Event, Fate, Session};
use crate::values::{Protocol, TlsStart};

/// A session of either kind.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a connection has one, in a box with its buffers")]
pub(super) enum Client {
    Mail(Session),
    Http(HttpSession),
}

impl Client {
    /// A session with server number `server` of the plan.
    pub fn new(server: usize, plan: &Plan) -> Self {
        let target = &plan.servers[server];
        match target.protocol {
            Protocol::Http => Self::Http(HttpSession::new(server)),
            Protocol::Smtp | Protocol::Lmtp => Self::Mail(Session::new(server, target.tls == TlsStart::AtOnce)),
        }
    }

    /// Consumes the start of the input. Returns the consumed octets and the event; `None` if more input is needed.
    ///
    /// # Errors
    /// The connection is of no further use; [`Client::lost`] returns the messages in flight.
    pub fn take(&mut self, input: &[u8], plan: &Plan) -> Result<Option<(usize, Event)>, Failure> {
        match self {
            Self::Mail(session) => session.take(input, plan),
            Self::Http(session) => session.take(input, plan),
        }
    }

    /// True if the client speaks first, as soon as the connection is established.
    pub fn speaks_first(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    /// See [`Session::begin`].
    pub fn begin(&mut self, turn: SendSlot, plan: &Plan) {
        match self {
            Self::Mail(session) => session.begin(turn, plan),
            Self::Http(session) => session.begin(turn, plan),
        }
    }

    /// True if the connection is of no use after this message.
    pub fn is_closing(&self) -> bool {
        match self {
            Self::Mail(session) => session.is_closing(),
            Self::Http(session) => session.is_closing(),
        }
    }

    /// True if a message may begin now.
    pub fn is_idle(&self) -> bool {
        match self {
            Self::Mail(session) => session.is_idle(),
            Self::Http(session) => session.is_idle(),
        }
    }

    /// Messages in flight.
    pub fn in_flight(&self) -> usize {
        match self {
            Self::Mail(session) => session.in_flight(),
            Self::Http(session) => usize::from(session.is_waiting()),
        }
    }

    /// True while an answer is due.
    pub fn is_waiting(&self) -> bool {
        match self {
            Self::Mail(session) => session.is_waiting(),
            Self::Http(session) => session.is_waiting(),
        }
    }

    /// The stage that an error now belongs to.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Mail(session) => session.stage(),
            Self::Http(_) => Stage::Http,
        }
    }

    /// Ends the session. HTTP has no command for that, so its connection is closed.
    pub fn quit(&mut self) {
        match self {
            Self::Mail(session) => session.quit(),
            Self::Http(session) => session.quit(),
        }
    }

    /// True once the end was asked for.
    pub fn is_quitting(&self) -> bool {
        match self {
            Self::Mail(session) => session.is_quitting(),
            Self::Http(session) => session.has_quit(),
        }
    }

    /// True if the connection is to be closed now.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Http(session) if session.has_quit() && !session.is_waiting())
    }

    /// Call it when the connection is lost. Returns the messages that were in flight.
    pub fn lost(&mut self, failure: &Failure, plan: &Plan) -> Vec<Fate> {
        match self {
            Self::Mail(session) => session.lost(failure).collect(),
            Self::Http(session) => session.lost(failure, plan).into_iter().collect(),
        }
    }

    /// Octets still to be sent.
    pub fn output(&mut self) -> &mut Output {
        match self {
            Self::Mail(session) => &mut session.output,
            Self::Http(session) => &mut session.output,
        }
    }

    /// Recipients refused since the last call.
    pub fn take_refusals(&mut self) -> std::vec::Drain<'_, Failure> {
        match self {
            Self::Mail(session) => session.refusals.drain(..),
            Self::Http(session) => session.refusals.drain(..),
        }
    }

    /// Messages begun.
    pub fn begun(&self) -> u64 {
        match self {
            Self::Mail(session) => session.begun,
            Self::Http(session) => session.begun,
        }
    }

    /// See [`Session::may_send_ahead`].
    pub fn may_send_ahead(&self) -> bool {
        matches!(self, Self::Mail(session) if session.may_send_ahead())
    }

    /// The session of SMTP or LMTP.
    ///
    /// # Panics
    /// It is one of HTTP, which has none of its events.
    pub fn mail(&mut self) -> &mut Session {
        match self {
            Self::Mail(session) => session,
            Self::Http(_) => panic!("HTTP has no such event"),
        }
    }

    /// See [`Session::reset_due`].
    pub fn reset_due(&mut self, now: Instant) {
        if let Self::Mail(session) = self {
            session.reset_due(now);
        }
    }
}
