//! What the program that embeds the server decides, and what it is told.

use std::future::{Future, ready};
use std::io;

use posthaste_net::{Peer, Refusal, TlsFacts};

use super::Body;
use crate::command::{MailFrom, RcptTo};
use crate::reply::Reply;
use crate::sasl::Credentials;
use crate::server::{Envelope, MessageOutcome, Protocol};

/// What the program that embeds the server decides. One value serves all sessions at once.
///
/// A method that panics costs its own session only: the panic is logged, the client is told 451 4.3.0 (421 4.3.0 in place of the
/// greeting), and the session ends. That needs `panic = "unwind"`, which is the default.
pub trait Handler: Send + Sync + 'static {
    /// What is remembered from the connection to its end, as [`Session::state`]; `()` for nothing. STARTTLS does not clear it.
    type State: Default + Send;

    /// What is remembered from MAIL over RCPT to the message; `()` for nothing. Each MAIL begins with a new one, which is dropped
    /// when the transaction is over, however it ends, at the latest when the session waits for its client.
    type Transaction: Default + Send;

    /// A client has connected, and where TLS is implicit, shaken hands; an error is sent in place of the greeting and the
    /// connection closes.
    fn connect(&self, session: &mut Session<Self::State>) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = session;
        ready(Ok(()))
    }

    /// A client was not let in at a listener, counted from 0 in the order in which they were named. It must not block.
    fn turned_away(&self, listener: usize, peer: &Peer, why: &Refusal) {
        let _ = (listener, peer, why);
    }

    /// The client has said who it is: [`Session::helo`]. Asked with [`Config::asks_hello`](crate::server::Config::asks_hello) only.
    fn hello(&self, session: &mut Session<Self::State>) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = session;
        ready(Ok(()))
    }

    /// The client shows who it is, by PLAIN or LOGIN; of SCRAM see `scram_keys`. Returns the identity that the session has from then on,
    /// [`Session::identity`]. An error is sent as it is, usually 535 5.7.8; a 421 closes the session. Whether the user may act for
    /// [`Credentials::acts_for`] is to be decided here too.
    ///
    /// Asked with [`Config::auth_mechanisms`](crate::server::Config::auth_mechanisms) only. Nobody has to authenticate: whoever wants
    /// that refuses MAIL while the session has no identity, with 530 5.7.0 (RFC 4954 section 6).
    fn authenticate(
        &self,
        session: &mut Session<Self::State>,
        credentials: Credentials,
    ) -> impl Future<Output = Result<String, Reply>> + Send {
        let _ = (session, credentials);
        ready(Err(Reply::new(535, "5.7.8", "Authentication credentials invalid")))
    }

    /// A client wants to authenticate as `user` by SCRAM-SHA-256: what is kept of the password; `None` if there is no such user, which the client cannot tell from a
    /// wrong password where all keys have [`ITERATIONS_MIN`](crate::sasl::scram::ITERATIONS_MIN). Once it has shown the password, `user` is [`Session::identity`], and [`Handler::authenticate`] is not asked. An error is sent as it is.
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

    /// The client wants to send the message of `envelope` by DATA. Asked with
    /// [`Config::asks_data`](crate::server::Config::asks_data) only, and never for BDAT. A refusal ends the transaction.
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

    /// A session is over: called once after each call of [`Handler::connect`], whatever ended it. No other method is called for this session any more; one
    /// that was at work has returned, panicked, or its future has been dropped. The connection is closed, or is about to be. It must not block.
    fn ended(&self, session: Session<Self::State>, end: SessionEnd) {
        let _ = (session, end);
    }
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

/// What is known about a session, and what the handler has noted about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session<S = ()> {
    /// Counts up from 1 within one server.
    pub id: u64,
    /// Which listener it came through: counted from 0 in the order in which they were named.
    pub listener: usize,
    /// Who is connected; behind a proxy, the client that the proxy named.
    pub peer: Peer,
    /// The client's name as it gave it.
    pub helo: Option<String>,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// Whether the client said EHLO or LHLO.
    pub extended: bool,
    /// How the session is encrypted; `None` if it is not.
    pub tls: Option<Box<TlsFacts>>,
    /// Who the client is, as [`Handler::authenticate`] said; `None` before.
    pub identity: Option<String>,
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
    /// The protocol's name for the `with` clause of a Received field (RFC 3848, RFC 6531 section 3.7.3).
    pub fn with_keyword(&self, smtputf8: bool) -> &'static str {
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
