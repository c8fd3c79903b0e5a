//! Internet messages (RFC 5322) as far as a mail transport looks at them.
//!
//! Any program that accepts mail can use this crate: it writes the trace fields that RFC 5321 section 4.4 asks for,
//! counts hops, and finds the Message-ID while a message comes in. It owns no socket, opens no file and reads no clock.
//! Nothing that is passed in, however hostile, can add a line to the fields that it writes.
//!
//! ```
//! use posthaste_message::{DateTime, HeaderScan, Received};
//!
//! let received = Received {
//!     helo: "client.example",
//!     peer: Some("192.0.2.7".parse().unwrap()),
//!     by: "mx.example",
//!     with: "ESMTP",
//!     id: "1f3a",
//!     recipient: Some("bob@mx.example"),
//!     date: DateTime::from_unix(784_111_777),
//! };
//! let mut field = Vec::new();
//! received.write_to(&mut field);
//! assert!(field.ends_with(b"for <bob@mx.example>; Sun, 06 Nov 1994 08:49:37 +0000\r\n"));
//! let mut scan = HeaderScan::default();
//! scan.push(&field);
//! assert_eq!(scan.finish().hops, 1);
//! ```
#![forbid(unsafe_code)]

mod date;
mod scan;
mod trace;

pub use date::DateTime;
pub use scan::{HeaderScan, MAX_HOPS, Summary};
pub use trace::{Received, write_delivered_to, write_return_path};
