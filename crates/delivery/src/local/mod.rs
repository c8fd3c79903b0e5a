//! Local delivery as a consumer of the spool: a stream, a pool of threads and a sync for each mail mount.
//!
//! A message is durable once the spool has it. It then reaches its Maildirs unsynced, until a sync of the mount makes
//! it durable there, too, and the mount's stream releases it. So a hanging or failing mount keeps its own mail in the
//! spool and does not delay other mail.

mod common;
mod config;
mod content;
mod core;
mod delivery;
mod destination;
mod entry;
mod files;
mod held;
mod history;
#[cfg(test)]
mod hung_tests;
mod identity;
#[cfg(test)]
mod identity_tests;
pub mod inspect;
mod looking;
mod losses;
#[cfg(test)]
mod losses_tests;
mod message;
mod mount;
mod mount_dir;
mod mounts;
mod observer;
#[cfg(test)]
mod observer_tests;
mod one_message;
#[cfg(test)]
mod owners_tests;
mod queues;
mod removals;
mod remove;
#[cfg(test)]
mod remove_tests;
mod report;
mod room;
#[cfg(test)]
mod room_tests;
#[cfg(feature = "config")]
mod section;
mod syncer;
mod syncing;
mod table;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod test_world;
#[cfg(test)]
mod tests;
mod troubles;
#[cfg(test)]
mod under_way_tests;

pub use config::{LocalConfig, LocalOpenError};
pub use delivery::LocalDelivery;
pub use entry::{LocalEntry, MailboxDelivery, MailboxTrouble, OlderBody, Removal, Visible};
pub use identity::{BoundMounts, MountId};
pub use losses::{Losses, LostMailboxMail};
pub use message::{LineEnds, MailboxMessage, MailboxTarget};
pub use observer::{DeliveryObserver, MailboxTargetId};
pub use remove::{RemoveError, remove_mailbox};
pub use report::{
    LocalReceipt, LocalStats, MailboxFull, MountStats, RecoveredMailbox, Remaining, ReplayReport, SyncFailed,
    WaitingMailbox, WaitingMailboxMail,
};
#[cfg(feature = "config")]
pub use section::Storage;

pub use posthaste_intake::{BodyWriter, FinishedBody, GatheredBody, LargeBody};
