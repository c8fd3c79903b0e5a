//! Acceptance of mail: from a whole message to one durable batch for all of its destinations.
//!
//! For every program that takes mail into a [`Spool`](posthaste_spool::Spool), whatever the protocol and the
//! destinations. It knows neither: an entrance (SMTP, HTTP, an embedding program) passes [`Mail`] and
//! [`GatheredBody`], and a [`Destination`] supplies its entries of the batch.
//!
//! [`Intake::accept`] enforces the limits of memory, waits for room, appends and waits for the commit. All refusals
//! precede the append.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod body;
mod budget;
mod destination;
mod error;
mod gather;
mod intake;
mod memory;
pub mod notify;
mod room_wait;
mod shares;
#[cfg(test)]
mod tests;
mod under_way;

pub use body::{BodyFacts, BodyWriter, FinishedBody, GatheredBody, LargeBody};
pub use budget::{Budget, BudgetShare, memory_units};
pub use destination::{
    Arrival, ArrivalFacts, Destination, DestinationFigures, Guard, Held, Left, Mail, MailPlace, MailRecipient,
    NotifyWhen, Reserved, Reserving, ReturnedPart, SuccessHere, Trouble,
};
pub use error::{IntakeError, NotTaken, NotTakenCause};
pub use gather::{Gathered, Incoming, NotGathered, PieceFilter, STORE_PATIENCE};
pub use intake::{Clock, Config, Intake, Receipt};
pub use memory::{LARGE_BODY_BYTES, MemoryBudget, Reservation, default_memory_bytes};
pub use shares::{Allowance, HeldSpace, ShareExceeded, SpaceShare, SpoolShares};
