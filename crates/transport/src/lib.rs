//! Durable delivery to programs, mbox files and LMTP servers.
//!
//! For any server that keeps mail in a spool. All of them share one stream; each has its own queue, retries and limit,
//! so that a hanging or failing one does not delay others. Each target gets a message at least once: after a kill
//! between the delivery and its record in the spool, it is delivered again.
//!
//! It runs programs and writes files with the rights of the process; the caller decides who may configure them.
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
mod notifier;
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
pub use entry::{Deliver, Failure, Target, TargetKey, TargetTrouble, TransportEntry};
pub use events::{TransportEvent, TransportEvents};
pub use notifier::{RefusalNotifier, RefusedMail, Telling};
pub use observer::{TargetId, TransportObserver};
pub use reason::{ERROR_BYTES_MAX, FailureReason};
pub use section::Section;
pub use transports::{STREAM, TransportFull, TransportMessage, TransportOpenReport, TransportStats, Transports};
pub use waiting::{TransportWaits, WaitingTarget};
pub use work::LostMail;
