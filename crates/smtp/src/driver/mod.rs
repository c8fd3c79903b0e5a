//! An embeddable SMTP and LMTP server on tokio, and a client.
//!
//! ```
//! use posthaste_smtp::server::Config;
//! use posthaste_smtp::driver::{Body, Handler, Server, Session};
//! use posthaste_smtp::{Envelope, MessageOutcome, RcptTo, Reply};
//!
//! struct Print;
//!
//! impl Handler for Print {
//!     type Transaction = ();
//!
//!     async fn rcpt(&self, _: &Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
//!         Ok(())
//!     }
//!     async fn message(&self, _: &Session, _: (), envelope: Envelope, body: &mut Body<'_>) -> MessageOutcome {
//!         let mut octets = 0;
//!         while let Some(chunk) = body.chunk().await {
//!             match chunk {
//!                 Ok(bytes) => octets += bytes.len(),
//!                 Err(error) => return error.reply().into(),
//!             }
//!         }
//!         println!("{} sent {octets} octets", envelope.mail.reverse_path);
//!         MessageOutcome::accepted("printed")
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let server = Server::builder().config(Config::new("mx.example.org")).listen("127.0.0.1:0").start(Print).await?;
//! println!("listening on {:?}", server.local_addrs());
//! server.shutdown(std::time::Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```

mod body;
mod client;
mod connection;
mod gate;
mod listen;
mod server;
mod stream;

use std::fmt;
use std::future::{Future, ready};
use std::net::{IpAddr, SocketAddr};

pub use body::Body;
pub use client::{Client, ClientTimeouts, ConnectError};
pub use listen::{Backlog, UnixAccess};
pub use server::{BoundServer, ListenError, RunningServer, Server, ServerBuilder};

use crate::command::{MailFrom, RcptTo};
use crate::reply::Reply;
use crate::server::{Envelope, MessageOutcome, Protocol};

/// What the program that embeds the server decides. One value serves all sessions at once.
pub trait Handler: Send + Sync + 'static {
    /// What is remembered from MAIL over RCPT to the message; `()` for nothing. Each MAIL begins with a new one, which is dropped
    /// when the transaction is over, however it ends, at the latest when the session waits for its client.
    type Transaction: Default + Send;

    /// A client has connected; an error is sent in place of the greeting and the connection closes.
    fn connect(&self, peer: &Peer) -> impl Future<Output = Result<(), Reply>> + Send {
        let _ = peer;
        ready(Ok(()))
    }

    /// A client was told `reply`, a 421, in place of the greeting, for there are too many connections or open files.
    fn turned_away(&self, peer: &Peer, reply: &Reply) {
        let _ = (peer, reply);
    }

    /// The client names a sender.
    fn mail(
        &self,
        session: &Session,
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
        session: &Session,
        transaction: &mut Self::Transaction,
        envelope: &Envelope,
        rcpt: &RcptTo,
    ) -> impl Future<Output = Result<(), Reply>> + Send;

    /// A message arrives. The client gets its reply only when this future is done, and until then nothing more is read
    /// from it than `body` is asked for. The replies to all that came before, the 354 for DATA among them, have gone out, unless the
    /// whole message has come already.
    ///
    /// A positive outcome counts only if the body came whole and passed the policies; otherwise the client is told what
    /// was wrong with it. Returning before the end of the body is allowed: the rest is read and dropped. The future is
    /// dropped half way when the server shuts down and its grace is over.
    fn message(
        &self,
        session: &Session,
        transaction: Self::Transaction,
        envelope: Envelope,
        body: &mut Body<'_>,
    ) -> impl Future<Output = MessageOutcome> + Send;
}

/// The two ends of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Over TCP.
    Tcp {
        /// The client.
        remote: SocketAddr,
        /// Our address that it connected to.
        local: SocketAddr,
    },
    /// Over a UNIX socket; such clients have no address.
    Unix,
}

impl Peer {
    /// The client's IP address. An IPv4 address that came through an IPv6 socket is given as IPv4.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp { remote, .. } => Some(remote.ip().to_canonical()),
            Self::Unix => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { remote, .. } => remote.fmt(f),
            Self::Unix => f.write_str("unix socket"),
        }
    }
}

/// What is known about a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Counts up from 1 within one server.
    pub id: u64,
    /// Who is connected.
    pub peer: Peer,
    /// The client's name as it gave it; fit to stand in a Received field.
    pub helo: Option<String>,
    /// SMTP or LMTP.
    pub protocol: Protocol,
    /// Whether the client said EHLO or LHLO.
    pub extended: bool,
    /// Whether the session is encrypted.
    pub tls: bool,
    /// Whether the client has authenticated.
    pub authenticated: bool,
}

impl Session {
    /// The protocol's name for the `with` clause of a Received field (RFC 3848, RFC 6531 section 3.7.3).
    pub fn with_keyword(&self, smtputf8: bool) -> &'static str {
        let names = match (self.protocol, self.extended, smtputf8) {
            (Protocol::Smtp, false, _) => return "SMTP",
            (Protocol::Smtp, true, false) => ["ESMTP", "ESMTPA", "ESMTPS", "ESMTPSA"],
            (Protocol::Smtp, true, true) => ["UTF8SMTP", "UTF8SMTPA", "UTF8SMTPS", "UTF8SMTPSA"],
            (Protocol::Lmtp, _, false) => ["LMTP", "LMTPA", "LMTPS", "LMTPSA"],
            (Protocol::Lmtp, _, true) => ["UTF8LMTP", "UTF8LMTPA", "UTF8LMTPS", "UTF8LMTPSA"],
        };
        names[usize::from(self.tls) * 2 + usize::from(self.authenticated)]
    }
}
