//! The sending side as a state machine: replies in, [`Event`]s and wire bytes out.
//!
//! ```
//! use bytes::BytesMut;
//! use posthaste_smtp::client::{Config, Event, Machine, MessageBody};
//! use posthaste_smtp::{ForwardPath, MailFrom, RcptTo, ReversePath};
//!
//! let mut machine = Machine::new(Config::new("client.example.net"))?;
//! let mut input = BytesMut::from("220 mx.example.org ESMTP\r\n");
//! assert!(matches!(machine.step(&mut input)?, Event::NeedInput));
//! assert_eq!(machine.take_output().concat(), b"EHLO client.example.net\r\n");
//! input.extend_from_slice(b"250-mx.example.org\r\n250 PIPELINING\r\n");
//! assert!(matches!(machine.step(&mut input)?, Event::Ready));
//!
//! let mail = MailFrom::new(ReversePath::parse("<a@example.net>").unwrap());
//! let rcpt = RcptTo::new(ForwardPath::parse("<b@example.org>").unwrap());
//! machine.send(mail, vec![rcpt], MessageBody::Whole(vec!["Subject: x\r\n\r\n.\r\n".into()]));
//! let commands = machine.take_output().concat();
//! assert_eq!(commands, b"MAIL FROM:<a@example.net>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n");
//! input.extend_from_slice(b"250 ok\r\n250 ok\r\n354 go\r\n");
//! assert!(matches!(machine.step(&mut input)?, Event::NeedInput));
//! assert_eq!(machine.take_output().concat(), b"Subject: x\r\n\r\n..\r\n.\r\n");
//! input.extend_from_slice(b"250 2.0.0 kept\r\n");
//! let Event::Sent(outcome) = machine.step(&mut input)? else { panic!() };
//! assert!(outcome.recipients[0].is_delivered());
//! # Ok::<(), posthaste_smtp::client::ClientError>(())
//! ```

mod config;
mod error;
mod event;
mod extensions;
mod machine;
mod output;
mod stuff;

pub use config::{Config, EightBit, Transfer};
pub use error::ClientError;
pub use event::{Event, MessageBody, Outcome, RecipientOutcome, Stage, Step};
pub use extensions::Extensions;
pub use machine::Machine;
pub use output::Output;
pub use stuff::Stuffer;
