//! Decisions of the program that embeds the server, and news for it.

use std::future::{Future, ready};
use std::io;
use std::sync::Arc;

use posthaste_net::{Peer, Refusal, TlsFacts};

pub use crate::server::Abort;

use super::Body;
use crate::command::{MailFrom, RcptTo};
use crate::reply::Reply;
use crate::sasl::{Credentials, Identity};
use crate::server::{Envelope, MessageOutcome, Protocol};
use crate::witness::Witness;

/// Decisions of the program that embeds the server. One value serves all sessions at once.
///
/// Only `rcpt` and `message` have to be written; by default everything else is accepted, but for AUTH. For one session at a time, in this order:
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
/// For connections without a session there are [`turned_away`](Self::turned_away) and, where TLS is implicit, [`tls_failed`](Self::tls_failed). LMTP and SMTP,
/// encrypted or not, are the same here.
///
/// A method that panics costs its own session only: the panic is logged, the client is told 451 4.3.0 (421 4.3.0 in place of the
/// greeting), and the session ends. That needs `panic = "unwind"`, which is the default.
pub trait Handler: Send + Sync + 'static {
    /// Memory from the connection to its end, as [`Session::state`]; `()` for none. STARTTLS does not clear it.
    type State: Default + Send;

    /// Memory from MAIL over RCPT to the message; `()` for none. Each MAIL begins with a new one, which is dropped
    /// when the transaction is over, however it ends, at the latest when the session waits for its client.
    type Transaction: Default + Send;

    /// A client has connected, and where TLS is implicit, shaken hands; an error is sent in place of the greeting and the
    /// connection closes.
    fn connect(&self, session: &mut Session<Self::State>) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = session;
        ready(Ok(()))
    }

    /// A TLS handshake has succeeded: [`Session::tls`] says what was negotiated, and who the client is if it showed a certificate. After STARTTLS the client says hello
    /// again; where TLS is implicit this comes after `connect`. An error, usually 421 4.7.0, closes the session: it is sent in place of the greeting, or of the reply to what the
    /// client says next. To answer every command with 554 5.7.0 instead (RFC 3207 section 4.1), refuse in `hello`.
    fn tls_started(&self, session: &mut Session<Self::State>) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = session;
        ready(Ok(()))
    }

    /// A TLS handshake has failed, and the connection closes. After STARTTLS `ended` follows; where TLS is implicit there was no `connect` and no `ended` follows.
    /// It must not block.
    fn tls_failed(&self, session: &Session<Self::State>, error: &io::Error) {
        let _ = (session, error);
    }

    /// A client was not let in at a listener, counted from 0 in the order in which they were named. It must not block.
    fn turned_away(&self, listener: usize, peer: &Peer, why: &Refusal) {
        let _ = (listener, peer, why);
    }

    /// The witness of this session's dialogue; asked once, when it begins. It must not block.
    fn witness(&self, session: &Session<Self::State>) -> Option<Arc<dyn Witness>> {
        let _ = session;
        None
    }

    /// The client has named itself: [`Session::helo`]. A refused one has not said hello, and may try again.
    fn hello(&self, session: &mut Session<Self::State>) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = session;
        ready(Ok(()))
    }

    /// The client shows who it is, by `mechanism`, PLAIN or LOGIN; of SCRAM see `scram_keys`. Returns in whose name the session acts from then on: with the mechanism and
    /// [`Credentials::user`] it becomes [`Session::identity`]. An error is sent as it is, usually 535 5.7.8; a 421 closes the session. Whether the user may act for
    /// [`Credentials::acts_for`] is to be decided here too.
    ///
    /// Asked with [`Config::auth_mechanisms`](crate::server::Config::auth_mechanisms) only. Authentication is optional: to require
    /// it, refuse MAIL with 530 5.7.0 while the session has no identity (RFC 4954 section 6).
    fn authenticate(
        &self,
        session: &mut Session<Self::State>,
        mechanism: &'static str,
        credentials: Credentials,
    ) -> impl Future<Output = Result<String, Reply>> + Send {
        let _ = (session, mechanism, credentials);
        ready(Err(Reply::new(535, "5.7.8", "Authentication credentials invalid")))
    }

    /// A client wants to authenticate as `user` by SCRAM-SHA-256: what is kept of the password; `None` if there is no such user, which the client cannot tell from a
    /// wrong password where all keys have [`ITERATIONS_MIN`](crate::sasl::scram::ITERATIONS_MIN). With its proof, `scram_proof` is asked, and [`Handler::authenticate`] is not.
    /// An error is sent as it is.
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

    /// The client's proof that it has the password. Returns in whose name the session acts, as [`Handler::authenticate`] does; with a wrong proof the client is refused
    /// whatever is returned. Nothing has compared it yet, so that there is nothing to be learnt from an answer that the client does not wait for.
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

    /// There is a verdict on AUTH: [`Session::identity`] is set, or the client is told `refusal`, whether of the handler, for a wrong password or for what is not well formed.
    /// One that the client cancels has no verdict. It must not block.
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

    /// The client names a recipient; `envelope` holds those already accepted. One without a domain, such as `<Postmaster>`, means a
    /// user of this very host. A 421 closes the session.
    fn rcpt(
        &self,
        session: &mut Session<Self::State>,
        transaction: &mut Self::Transaction,
        envelope: &Envelope,
        rcpt: &RcptTo,
    ) -> impl Future<Output = Result<(), Reply>> + Send;

    /// The client wants to send the message of `envelope` by DATA. Not asked for BDAT, whose first octets come with the command. A refusal ends the transaction.
    fn data(
        &self,
        session: &mut Session<Self::State>,
        transaction: &mut Self::Transaction,
        envelope: &Envelope,
    ) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = (session, transaction, envelope);
        ready(Ok(()))
    }

    /// A message arrives. The client gets its reply only when this future is done, and until then nothing more is read
    /// from it than `body` is asked for. The replies to all that came before, the 354 for DATA among them, have gone out, unless the
    /// whole message has come already.
    ///
    /// A positive outcome counts only if the body came whole and passed the policies; otherwise the client is told what
    /// was wrong with it. Returning before the end of the body is allowed: the rest is read and dropped. The future is
    /// dropped half way when the server shuts down and its grace is over.
    fn message(
        &self,
        session: &mut Session<Self::State>,
        transaction: Self::Transaction,
        envelope: Envelope,
        body: &mut Body<'_>,
    ) -> impl Future<Output = MessageOutcome> + Send;

    /// A transaction whose MAIL was accepted has ended, and `message` is not called for it: called once, unless `data` has refused. A message that is cut off is
    /// told in [`Body::chunk`]. It must not block.
    fn aborted(&self, session: &mut Session<Self::State>, transaction: Self::Transaction, aborted: Aborted) {
        let _ = (session, transaction, aborted);
    }

    /// A session is over: called once after each call of [`Handler::connect`], whatever ended it. No other method is called for it any more; one
    /// that was at work has returned, panicked, or its future has been dropped. The connection is closed, or is about to be. It must not block.
    fn ended(&self, session: Session<Self::State>, end: SessionEnd) {
        let _ = (session, end);
    }
}

/// How a transaction ended without a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aborted {
    /// How far it had come.
    pub stage: Stage,
    /// The cause of its end.
    pub cause: AbortCause,
}

/// The last command of a transaction that the handler was asked about.
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
    /// The end of the session, which [`Handler::ended`] is told next.
    SessionEnd(SessionEnd),
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The client said QUIT.
    Quit,
    /// The server closed it: a refusal in place of the greeting, a 421, a limit.
    Closed,
    /// The client closed the connection.
    Disconnected,
    /// The connection failed.
    Failed(io::ErrorKind),
    /// The client took too long.
    TimedOut,
    /// The server shuts down.
    ShutDown,
    /// The TLS handshake failed.
    Tls,
    /// A method of the handler panicked.
    Panicked,
}

/// Facts about a session, and the handler's notes about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session<S = ()> {
    /// Counts up from 1 within one server.
    pub id: u64,
    /// The listener that it came through: counted from 0 in the order in which they were named.
    pub listener: usize,
    /// The client; behind a proxy, the client that the proxy named.
    pub peer: Peer,
    /// The client's name as it gave it.
    pub helo: Option<String>,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// True if the client said EHLO or LHLO.
    pub extended: bool,
    /// How the session is encrypted; `None` if it is not.
    pub tls: Option<Box<TlsFacts>>,
    /// The identity that the client has shown by AUTH; `None` before. A client's certificate is in [`Session::tls`].
    pub identity: Option<Box<Identity>>,
    /// The handler's own: [`Handler::State`].
    pub state: S,
}

impl<S: Default> Session<S> {
    pub(super) fn new(id: u64, listener: usize, peer: Peer, protocol: Protocol) -> Self {
        Self {
            id,
            listener,
            peer,
            helo: None,
            protocol,
            extended: false,
            tls: None,
            identity: None,
            state: S::default(),
        }
    }
}

impl<S> Session<S> {
    /// The protocol's name for the `with` clause of a Received field (RFC 3848, RFC 6531 section 3.7.3). What a program on this machine handed over is `local`,
    /// and what came by HTTP is `HTTP`: these are not registered and do not belong into the field.
    pub fn with_keyword(&self, smtputf8: bool) -> &'static str {
        match self.peer {
            Peer::Local { .. } => return "local",
            Peer::Token { .. } => return "HTTP",
            Peer::Tcp { .. } | Peer::Unix => {}
        }
        let names = match (self.protocol, self.extended, smtputf8) {
            (Protocol::Smtp, false, _) => return "SMTP",
            (Protocol::Smtp, true, false) => ["ESMTP", "ESMTPA", "ESMTPS", "ESMTPSA"],
            (Protocol::Smtp, true, true) => ["UTF8SMTP", "UTF8SMTPA", "UTF8SMTPS", "UTF8SMTPSA"],
            (Protocol::Lmtp, _, false) => ["LMTP", "LMTPA", "LMTPS", "LMTPSA"],
            (Protocol::Lmtp, _, true) => ["UTF8LMTP", "UTF8LMTPA", "UTF8LMTPS", "UTF8LMTPSA"],
        };
        names[usize::from(self.tls.is_some()) * 2 + usize::from(self.identity.is_some())]
    }
}
