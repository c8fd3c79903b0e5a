//! An embeddable SMTP and LMTP server on tokio, and a client.
//!
//! ```
//! use posthaste_smtp::server::Config;
//! use posthaste_smtp::driver::{IncomingBody, Handler, Server, Session};
//! use posthaste_smtp::{Envelope, MessageOutcome, RcptTo, Reply};
//!
//! struct Print;
//!
//! impl Handler for Print {
//!     type State = ();
//!     type Transaction = ();
//!
//!     async fn rcpt(&self, _: &mut Session, _: &mut (), _: &Envelope, _: &RcptTo) -> Result<(), Reply> {
//!         Ok(())
//!     }
//!     async fn message(&self, _: &mut Session, _: (), envelope: Envelope, body: &mut IncomingBody<'_>) -> MessageOutcome {
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
//!
//! [`Handler`] lists its other decisions and events; the example `hooks` shows each.
//!
//! A [`Client`] sends:
//!
//! ```no_run
//! use posthaste_smtp::driver::Client;
//! use posthaste_smtp::{Address, MailFrom, RcptTo};
//!
//! # async fn send() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = Client::builder("client.example.net").connect("127.0.0.1:2525").await?;
//! let mail = MailFrom::new("ann@example.net".parse::<Address>()?);
//! let rcpt = RcptTo::new("bob@example.org".parse::<Address>()?);
//! let outcome = client.send(mail, vec![rcpt], vec!["Subject: hello\r\n\r\nHello Bob.\r\n".into()]).await?;
//! for recipient in &outcome.recipients {
//!     println!("{}", recipient.reply);
//! }
//! client.quit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! With feature `tls` both sides do STARTTLS and implicit TLS ([`ServerBuilder::tls`], [`ClientBuilder::starttls`]); with
//! [`Config::auth_mechanisms`](crate::server::Config::auth_mechanisms) the server asks [`Handler::authenticate`].

mod body;
mod builder;
mod client;
mod connection;
mod handler;
mod local;
mod panics;
mod server;
mod session;
mod session_facts;
mod setup;

pub use body::IncomingBody;
pub use builder::{Server, ServerBuilder};
pub use client::{Client, ClientBuilder, ClientTimeouts, ConnectError, SendError};
pub use handler::{Abort, AbortCause, Aborted, Handler, Stage};
pub use local::serve_local;
pub use posthaste_net::{
    Backlog, ByNetwork, Certificate, ClientCertificate, ConnectionRefusal, GateLimits as ConnectionLimits, IpNet,
    ListenError, NetworkLimits, Peer, Proxies, ProxyError, Rules, TlsFacts, UnixAccess, network,
};
pub use server::{BoundServer, RunningServer};
pub use session_facts::{Session, SmtpSessionEnd};
pub use setup::{ListenerSettings, ServerSetupError};
