//! Acceptance of mail: from a whole message to one durable batch for all of its destinations.
//!
//! For every program that takes mail into a [`Spool`](posthaste_spool::Spool), by whatever protocol, and for whatever becomes of it. It knows neither: a door
//! (SMTP, HTTP, an embedding program) hands over [`Mail`] and [`Body`], a [`Destination`] says what the batch has for it.
//!
//! [`Intake::accept`] holds the bounds of memory, waits for room, appends and waits for the commit. Whatever can refuse a message does so before the append.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod body;
mod budget;
mod destination;
mod error;
mod intake;
mod room_wait;
#[cfg(test)]
mod tests;
mod under_way;

pub use body::{Body, BodyFacts, BodyWriter, FinishedBody, LargeBody};
pub use budget::{Budget, BudgetShare, memory_units};
pub use destination::{
    Destination, Guard, Held, Mail, MailPlace, MailRecipient, NotTaken, NotifyWhen, Reserved, Reserving, ReturnedPart,
};
pub use error::IntakeError;
pub use intake::{Clock, Config, Intake, Receipt};
