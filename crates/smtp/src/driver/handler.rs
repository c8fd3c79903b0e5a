//! Decisions of the program that embeds the server, and events for it.

use std::future::{Future, ready};
use std::io;
use std::sync::Arc;

use posthaste_net::{ConnectionRefusal, Peer};

pub use crate::server::Abort;

use super::{IncomingBody, Session, SmtpSessionEnd};
use crate::command::{MailFrom, RcptTo};
use crate::reply::Reply;
use crate::sasl::Credentials;
use crate::server::{Envelope, MessageOutcome};
use crate::witness::Witness;

/// Decisions of the program that embeds the server. One value serves all sessions at once.
///
/// Only `rcpt` and `message` are required; by default everything else is accepted, except AUTH. For one session at a
/// time, in this order:
///
/// | method | when | may refuse |
/// | --- | --- | --- |
/// | [`connect`](Self::connect) | connected, before the greeting (RFC 5321 section 3.1) | yes |
/// | [`tls_started`](Self::tls_started) | after a TLS handshake (RFC 3207, RFC 8314) | yes |
/// | [`hello`](Self::hello) | HELO, EHLO or LHLO (RFC 5321 section 4.1.1.1, RFC 2033 section 4.1) | yes |
/// | [`authenticate`](Self::authenticate), `scram_keys`, `scram_proof` | AUTH (RFC 4954) | yes |
/// | [`auth_ended`](Self::auth_ended) | the verdict on AUTH | |
/// | [`mail`](Self::mail) | MAIL (RFC 5321 section 4.1.1.2) | yes |
/// | [`rcpt`](Self::rcpt) | each RCPT (RFC 5321 section 4.1.1.3) | yes |
/// | [`data`](Self::data) | DATA, before 354 (RFC 5321 section 4.1.1.4); not for BDAT (RFC 3030) | yes |
/// | [`message`](Self::message) | the message, to its end | yes, all or each recipient in LMTP |
/// | [`aborted`](Self::aborted) | in place of `message`: the transaction ended before | |
/// | [`ended`](Self::ended) | the session is over | |
///
/// Connections without a session cause [`turned_away`](Self::turned_away) and, with implicit TLS,
/// [`tls_failed`](Self::tls_failed). LMTP and SMTP, encrypted or not, are the same here.
///
/// A panic in a method costs only its own session. It is logged, the client gets 451 4.3.0 (421 4.3.0 in place of the
/// greeting), and the session ends. That needs `panic = "unwind"`, the default.
pub trait Handler: Send + Sync + 'static {
    /// State of a connection, as [`Session::state`]; `()` for none. STARTTLS does not clear it.
    type State: Default + Send;

    /// State of a transaction, from MAIL to the message; `()` for none. Each MAIL begins with a new one. It is dropped
    /// when the transaction is over, however it ends, at the latest when the session waits for its client.
    type Transaction: Default + Send;

    /// A client has connected and, with implicit TLS, finished its handshake. An error is sent in place of the
    /// greeting, and the connection closes.
    fn connect(&self, session: &mut Session<Self::State>) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = session;
        ready(Ok(()))
    }

    /// A TLS handshake has succeeded: [`Session::tls`] has its parameters, and the client's certificate if it sent one.
    /// After STARTTLS the client says hello again; with implicit TLS this follows `connect`. An error, usually 421
    /// 4.7.0, closes the session: it is sent in place of the greeting, or of the reply to the next command. To answer
    /// every command with 554 5.7.0 instead (RFC 3207 section 4.1), refuse in `hello`.
    fn tls_started(&self, session: &mut Session<Self::State>) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = session;
        ready(Ok(()))
    }

    /// A TLS handshake has failed, and the connection closes. After STARTTLS `ended` follows; with implicit TLS there
    /// was no `connect`, and no `ended` follows. Must not block.
    fn tls_failed(&self, session: &Session<Self::State>, error: &io::Error) {
        let _ = (session, error);
    }

    /// A listener turned a client away; `listener` counts from 0 in the order of naming. Must not block.
    fn turned_away(&self, listener: usize, peer: &Peer, why: &ConnectionRefusal) {
        let _ = (listener, peer, why);
    }

    /// The witness of this session's dialogue; called once, at its beginning. Must not block.
    fn witness(&self, session: &Session<Self::State>) -> Option<Arc<dyn Witness>> {
        let _ = session;
        None
    }

    /// The client has given its name: [`Session::helo`]. After a refusal it may try again.
    fn hello(&self, session: &mut Session<Self::State>) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = session;
        ready(Ok(()))
    }

    /// The client authenticates by `mechanism`, PLAIN or LOGIN; for SCRAM see `scram_keys`. Returns the name in which
    /// the session acts: with the mechanism and [`Credentials::user`] it becomes [`Session::identity`]. An error is
    /// sent unchanged, usually 535 5.7.8; a 421 closes the session. Also decide here if the user may act for
    /// [`Credentials::acts_for`].
    ///
    /// Called only with [`Config::auth_mechanisms`](crate::server::Config::auth_mechanisms). Authentication is
    /// optional: to require it, refuse MAIL with 530 5.7.0 while the session has no identity (RFC 4954 section 6).
    fn authenticate(
        &self,
        session: &mut Session<Self::State>,
        mechanism: &'static str,
        credentials: Credentials,
    ) -> impl Future<Output = Result<String, Reply>> + Send {
        let _ = (session, mechanism, credentials);
        ready(Err(Reply::new(535, "5.7.8", "Authentication credentials invalid")))
    }

    /// A client wants to authenticate as `user` by SCRAM-SHA-256. Returns the stored keys; `None` for an unknown user.
    /// The client cannot tell that from a wrong password if all keys have
    /// [`ITERATIONS_MIN`](crate::sasl::scram::ITERATIONS_MIN). The proof then goes to `scram_proof`, not to
    /// [`Handler::authenticate`]. An error is sent unchanged.
    #[cfg(feature = "scram")]
    #[cfg_attr(docsrs, doc(cfg(feature = "scram")))]
    fn scram_keys(
        &self,
        session: &mut Session<Self::State>,
        user: &str,
    ) -> impl Future<Output = Result<Option<crate::sasl::scram::ScramKeys>, Reply>> + Send {
        let _ = (session, user);
        ready(Ok(None))
    }

    /// The client's proof that it knows the password. Returns the name in which the session acts, like
    /// [`Handler::authenticate`]; a wrong proof is refused whatever is returned. It is verified only afterwards, so
    /// that an abandoned exchange reveals nothing.
    #[cfg(feature = "scram")]
    #[cfg_attr(docsrs, doc(cfg(feature = "scram")))]
    fn scram_proof(
        &self,
        session: &mut Session<Self::State>,
        proof: &crate::sasl::scram::ScramProof,
    ) -> impl Future<Output = Result<String, Reply>> + Send {
        let _ = session;
        let refused = |_| Reply::new(535, "5.7.8", "Authentication credentials invalid");
        ready(proof.check().map(|()| proof.user().to_owned()).map_err(refused))
    }

    /// The verdict on AUTH: [`Session::identity`] is set, or the client gets `refusal`, from the handler, for a wrong
    /// password or for malformed input. An exchange that the client cancels has no verdict. Must not block.
    fn auth_ended(&self, session: &mut Session<Self::State>, mechanism: &'static str, refusal: Option<&Reply>) {
        let _ = (session, mechanism, refusal);
    }

    /// The client names a sender.
    fn mail(
        &self,
        session: &mut Session<Self::State>,
        transaction: &mut Self::Transaction,
        mail: &MailFrom,
    ) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = (session, transaction, mail);
        ready(Ok(()))
    }

    /// The client names a recipient; `envelope` holds those already accepted. One without a domain, such as
    /// `<Postmaster>`, is a user of this very host. A 421 closes the session.
    fn rcpt(
        &self,
        session: &mut Session<Self::State>,
        transaction: &mut Self::Transaction,
        envelope: &Envelope,
        rcpt: &RcptTo,
    ) -> impl Future<Output = Result<(), Reply>> + Send;

    /// The client sends DATA for the message of `envelope`. Not called for BDAT, whose first octets come with the
    /// command. A refusal ends the transaction.
    fn data(
        &self,
        session: &mut Session<Self::State>,
        transaction: &mut Self::Transaction,
        envelope: &Envelope,
    ) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = (session, transaction, envelope);
        ready(Ok(()))
    }

    /// A message arrives. The client gets its reply only when this future is done. Until then the client's octets are
    /// read only through `body`. All earlier replies, the 354 for DATA among them, have been sent, unless the whole
    /// message has already arrived.
    ///
    /// A positive outcome counts only if the body came whole and passed the policies; otherwise the client gets the
    /// error. Returning before the end of the body is allowed: the rest is read and dropped. The future is dropped
    /// midway when the server shuts down and its grace is over.
    fn message(
        &self,
        session: &mut Session<Self::State>,
        transaction: Self::Transaction,
        envelope: Envelope,
        body: &mut IncomingBody<'_>,
    ) -> impl Future<Output = MessageOutcome> + Send;

    /// A transaction with an accepted MAIL ended without a call of `message`. Called once, unless `data` has refused.
    /// [`IncomingBody::chunk`] reports a message that is cut off. Must not block.
    fn aborted(&self, session: &mut Session<Self::State>, transaction: Self::Transaction, aborted: Aborted) {
        let _ = (session, transaction, aborted);
    }

    /// A session is over: called once after each call of [`Handler::connect`], however it ended. No other method is
    /// called for it any more; a running one has returned, panicked, or its future has been dropped. The connection is
    /// closed, or about to be. Must not block.
    fn ended(&self, session: Session<Self::State>, end: SmtpSessionEnd) {
        let _ = (session, end);
    }
}

/// The end of a transaction without a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aborted {
    /// The last command of the transaction.
    pub stage: Stage,
    /// Why the transaction ended.
    pub cause: AbortCause,
}

/// The last command of a transaction that reached the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stage {
    /// MAIL.
    Mail,
    /// RCPT, accepted or not.
    Rcpt,
    /// DATA.
    Data,
}

/// The cause of a transaction's end before its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AbortCause {
    /// A command of the client.
    Command(Abort),
    /// The end of the session; [`Handler::ended`] follows.
    SessionEnd(SmtpSessionEnd),
}
