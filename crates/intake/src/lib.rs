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
mod gather;
mod intake;
mod memory;
mod room_wait;
mod shares;
#[cfg(test)]
mod tests;
mod under_way;

pub use body::{Body, BodyFacts, BodyWriter, FinishedBody, LargeBody};
pub use budget::{Budget, BudgetShare, memory_units};
pub use destination::{
    Arrival, ArrivalFacts, Destination, DestinationFigures, Guard, Held, Left, Mail, MailPlace, MailRecipient,
    NotTaken, NotTakenCause, NotifyWhen, Reserved, Reserving, ReturnedPart, Trouble,
};
pub use error::IntakeError;
pub use gather::{Gathered, Incoming, NotGathered, PieceFilter, STORE_PATIENCE};
pub use intake::{Clock, Config, Intake, Receipt};
pub use memory::{LARGE_BODY_BYTES, MemoryBudget, Reservation, default_memory_bytes};
pub use shares::{Allowance, HeldSpace, ShareExceeded, SpaceShare, SpoolShares};
