//! Durable delivery to places that are no Maildir: programs, mbox files, LMTP servers.
//!
//! For any server that keeps mail in a spool. All of them together are one stream of it; each has a queue, retries and a bound of its own, so one that hangs
//! or fails holds up nobody else. Each target gets a message at least once: a kill between the delivery and its note in the spool has it delivered again.
//!
//! It runs programs and writes files with the rights of the process, and does not know who may configure them: its user sees to that.
#![warn(missing_docs)]

mod attempts;
mod blocking;
mod body;
mod carry;
mod config;
mod consumer;
mod descriptors;
mod destination;
mod entry;
mod events;
#[cfg(test)]
mod held_tests;
pub mod inspect;
mod lmtp;
#[cfg(test)]
mod lmtp_tests;
mod mbox;
mod observer;
#[cfg(test)]
mod panic_tests;
mod program;
mod queues;
#[cfg(test)]
mod queues_tests;
mod reason;
mod record;
#[cfg(test)]
mod record_tests;
mod refusals;
#[cfg(test)]
mod refusals_tests;
mod section;
#[cfg(test)]
mod tests;
mod transports;
mod waiting;
mod work;
mod workers;

pub use config::Config;
pub use descriptors::close_inherited_on_exec;
pub use entry::{Deliver, ERROR_BYTES_MAX, Failure, Target, TargetKey, TargetTrouble, TransportEntry};
pub use events::{TransportEvent, TransportEvents};
pub use observer::{TargetId, TransportObserver};
pub use reason::FailureReason;
pub use refusals::{RefusalNotifier, RefusedMail, Telling};
pub use section::Section;
pub use transports::{STREAM, TransportFull, TransportMessage, TransportOpenReport, TransportStats, Transports};
pub use waiting::{TransportWaits, WaitingTarget};
pub use work::LostMail;
