//! A session as the handler sees it.

use std::io;

use posthaste_net::{Peer, TlsFacts};

use crate::sasl::Identity;
use crate::server::Protocol;

/// The cause of a session's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SmtpSessionEnd {
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
    /// Index of the listener, from 0 in the order of addition.
    pub listener: usize,
    /// Address of the client; behind a proxy, the address that the proxy reported.
    pub peer: Peer,
    /// Name of the client, as given in HELO or EHLO.
    pub helo: Option<String>,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// True if the client said EHLO or LHLO.
    pub extended: bool,
    /// Encryption of the session; `None` if there is none.
    pub tls: Option<Box<TlsFacts>>,
    /// The client's identity by AUTH; `None` before. A client's certificate is in [`Session::tls`].
    pub identity: Option<Box<Identity>>,
    /// The handler's own state: [`Handler::State`](super::Handler::State).
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
    /// The protocol's name for the `with` clause of a Received field (RFC 3848, RFC 6531 section 3.7.3). Mail from a
    /// program on this machine has `local`, mail by HTTP has `HTTP`: these are not registered and do not belong in the
    /// field.
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
