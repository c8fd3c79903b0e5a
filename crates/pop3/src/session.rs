//! A session as a state machine: octets in, [`Pop3Event`]s and octets out.
//!
//! The owner (a *driver*) calls [`Pop3Machine::step`] with its input until the answer is [`Pop3Event::NeedInput`], then
//! writes [`Pop3Machine::output`] and reads more. After an event marked *asks* the machine waits for the answer.
//! Message numbers refer to the driver's list at the login, until the end of the session (RFC 1939 section 5).

mod auth;
mod events;
mod listing;
mod machine;
mod mail;
mod maildrop;

pub use events::{
    MESSAGES_MAX, Pop3Config, Pop3Credentials, Pop3Event, Pop3Limits, Pop3LoginRefusal, Pop3Refusal, Pop3Row,
};
pub use machine::Pop3Machine;
pub use maildrop::MarkedMessages;
