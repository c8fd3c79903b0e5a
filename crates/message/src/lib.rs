//! Internet messages (RFC 5322): trace fields and hop counts for mail transport, and a reader for programs that show or
//! search mail.
//!
//! For any program that accepts mail: it writes the trace fields of RFC 5321 section 4.4, counts hops, and finds the
//! Message-ID while a message comes in. It opens no socket and no file, and reads no clock. No input, however hostile,
//! can add a line to the fields that it writes.
//!
//! [`address`] parses and writes envelope addresses, as in MAIL and RCPT.
//!
//! [`mbox`] reads and writes files with many messages.
//!
//! [`mime`] parses a whole message: parts with their exact positions, decoded header fields and texts. It accepts all
//! mail; no octets are an error.
//!
//! ```
//! use posthaste_message::mime::{DecodedAddress, Message};
//!
//! let message = Message::parse(b"From: =?iso-8859-1?Q?J=FCrgen?= <j@example.org>\nContent-Type: text/plain; charset=koi8r\n\n\xf0\xd2\xc9\n");
//! let from = message.root().header().first("From").unwrap();
//! let sender = DecodedAddress::Mailbox { name: Some("Jürgen".into()), address: Some("j@example.org".into()) };
//! assert_eq!(from.addresses(message.header_charset()).collect::<Vec<_>>(), [sender]);
//! assert_eq!(message.root().text(), "При\n");
//! ```
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
//!     tls: None,
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

pub mod address;
mod author;
mod author_domains;
mod authserv;
mod date;
mod edit;
pub mod mbox;
pub mod mime;
pub mod rewrite;
mod scan;
mod trace;
pub mod utf7;

pub use author::sole_mailbox;
pub use author_domains::{AUTHOR_DOMAINS_MAX, author_domains};
pub use authserv::{authserv_id, squeezed_authserv_id};
pub use date::DateTime;
pub use edit::{Edit, FIELD_BYTES_MAX, HeaderEditor, RawField};
pub use scan::{HeaderScan, MAX_HOPS, Summary};
pub use trace::{Encryption, LocalSource, Received, ReceivedLocally, write_delivered_to, write_return_path};
