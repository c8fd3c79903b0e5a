//! The side store: all mutable data of messages, by message number, in columns.
//!
//! The text index is written once for a message; flags, folder, file name, thread and tags change all the time. Here a
//! change of ten thousand flags rewrites some columns and reads no mail. A query filters by whole columns, at 4 or 8
//! bytes a message.
//!
//! ```text
//! current      JSON, one line: format version, name of the state file, where its newest directory is, and that one's checksum
//! state.<n>    chunks and directories, only ever appended to; superseded parts stay until the file is written anew
//! text, text.<n> the text index; a rebuild makes the next one and names it in `current`
//! lock         held (flock) by the one writer
//! turn         held (flock) by the next writer, which waits for the lock
//! ```
//!
//! A commit appends the changed chunks (4096 messages each) and a new directory, syncs the file, then replaces
//! `current` by rename. A reader's snapshot never changes, whatever a writer does. After a crash `current` names the
//! last commit, and bytes after its directory are dead.

mod chunk;
mod current;
mod directory;
mod error;
mod lock;
mod snapshot;
mod writer;

pub use chunk::{Column, NO_PARENT, Record, bits};
pub(crate) use directory::Covered;
pub use directory::{FolderState, IndexDirectory, Seen};
pub use error::StateError;
pub use lock::{Lock, WaitingWriter};
pub use snapshot::Snapshot;
pub use writer::StateWriter;
