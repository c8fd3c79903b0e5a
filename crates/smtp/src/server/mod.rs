//! The receiving side as a state machine: bytes in, [`Event`]s and reply bytes out.
//!
//! The owner (a *driver*) calls [`Machine::step`] with what it has read until the answer is [`Event::NeedInput`],
//! then writes [`Machine::output`] in one piece and reads more. All commands in a buffer are handled in one pass.
//!
//! ```
//! use bytes::BytesMut;
//! use posthaste_smtp::server::{Config, Event, Machine};
//! use std::sync::Arc;
//!
//! let mut machine = Machine::new(Arc::new(Config::new("mx.example.org")));
//! machine.greet(Ok(()));
//! let mut input = BytesMut::from("EHLO client.example.net\r\nNOOP\r\n");
//! assert!(matches!(machine.step(&mut input), Event::NeedInput));
//! assert!(machine.output().ends_with(b"250 2.0.0 OK\r\n"));
//! ```

mod config;
mod event;
mod machine;
mod outcome;

pub use config::{Config, FORBIDDEN_COMMANDS, Protocol};
pub use event::{Abort, AuthStep, Envelope, Event, Waiting};
pub use machine::Machine;
pub use outcome::MessageOutcome;
