//! SMTP and LMTP, both sides, as state machines without IO; with feature `tokio` an embeddable server and client.
//!
//! Who else would use it: any program that wants to receive or send mail. What it must not be able to do: outside the
//! module `driver` nothing here reads a clock, opens a file or a socket. Bytes go in, events and reply bytes come out.
//!
//! - [`server::Machine`] is the receiving side, [`client::Machine`] the sending side;
//! - [`address`], [`command`] and [`reply`] are the parsers, usable alone;
//! - [`Limits`] and the policies beside it name every bound and what happens at it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod address;
pub mod client;
pub mod command;
#[cfg(feature = "tokio")]
pub mod driver;
mod limits;
pub mod reply;
mod scan;
pub mod server;

pub use address::{Address, Domain, ForwardPath, LocalPart, ReversePath};
pub use command::{BodyType, MailFrom, Notify, RcptTo, Ret};
pub use limits::{BareNewlines, Limits, LongLines, NulOctets, Timeouts};
pub use reply::{EnhancedCode, Reply};
pub use scan::BodyError;
pub use server::{Envelope, MessageOutcome, Protocol};
