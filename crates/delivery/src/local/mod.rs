//! Local delivery as a consumer of the spool: a stream, a pool of threads and a sync for each mail mount.
//!
//! A message is durable when the spool has it. It gets into its Maildirs afterwards, unsynced, until a sync of the mount makes it durable there, too; then
//! the mount's stream lets it go. So a mount that hangs or fails keeps its own mail in the spool and holds up nobody else's.

mod budget;
mod config;
mod content;
mod delivery;
mod entry;
mod files;
mod history;
pub mod inspect;
mod looking;
mod message;
mod mount;
mod mounts;
mod old_record;
#[cfg(test)]
mod owners_tests;
mod pending;
mod queues;
mod report;
mod syncer;
mod table;
#[cfg(test)]
mod table_tests;
mod takeover;
#[cfg(test)]
mod takeover_tests;
#[cfg(test)]
mod test_world;
#[cfg(test)]
mod tests;
mod troubles;

pub use config::{LocalConfig, OpenError};
pub use delivery::LocalDelivery;
pub use entry::{Deliver, LargeBody, LocalEntry, OlderBody, Trouble, Visible};
pub use message::{Body, BodyWriter, FinishedBody, LineEnds, Message, Target};
#[doc(hidden)]
pub use old_record::old_message_bytes;
pub use report::{
    Kept, LocalStats, MailboxFull, MountStats, RecoveredMailbox, ReplayReport, SyncFailed, Waiting, WaitingMailbox,
};
pub use takeover::{TakenOver, TakeoverError, take_over};
