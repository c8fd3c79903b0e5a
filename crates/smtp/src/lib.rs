//! SMTP and LMTP, both sides, as state machines without IO; with feature `tokio` an embeddable server and client, with `tls` encrypted.
//!
//! For any program that receives or sends mail. Outside the module `driver` nothing reads a clock or opens a file or a
//! socket: bytes go in, events and reply bytes come out.
//!
//! - `driver::Server` and `driver::Client` (feature `tokio`) are where most programs begin;
//! - [`server::Machine`] is the receiving side, [`client::Machine`] the sending side, for drivers of one's own;
//! - [`command`], [`reply`] and [`sasl`] are the parsers, usable alone; [`address`] is that of `posthaste-message`;
//! - [`Limits`] and the policies beside it name every bound and what happens at it.
//!
//! Features: `tokio`; `tls` (STARTTLS and implicit TLS by rustls with `ring`; includes `tokio` and `scram`); `scram`
//! (SCRAM-SHA-256 for AUTH); `serde` for protocol and policies; `config` for their sections of a configuration file.
//! None is on by default.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod body_error;
pub mod client;
pub mod command;
#[cfg(feature = "tokio")]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub mod driver;
mod limits;
pub mod reply;
pub mod sasl;
mod scan;
#[cfg(feature = "config")]
#[cfg_attr(docsrs, doc(cfg(feature = "config")))]
pub mod section;
pub mod server;
mod witness;

pub use body_error::BodyError;
pub use command::{BodyType, MailFrom, Notify, RcptTo, Ret};
pub use limits::{BareNewlines, Limits, LongLines, NulOctets, Timeouts};
#[doc(no_inline)]
pub use posthaste_message::address::{self, Address, AddressDomain, ForwardPath, LocalPart, ReversePath};
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use posthaste_net::tls;
pub use reply::{EnhancedCode, Reply, ShortReply};
pub use server::{Envelope, MessageOutcome, Protocol};
pub use witness::{Side, Witness};
