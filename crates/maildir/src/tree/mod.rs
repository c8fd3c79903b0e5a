//! Trees of Maildirs in home directories, for programs that read mail owned by another program.
//!
//! Unlike [`MailRoot`](crate::MailRoot), which owns its directory and follows no link, a tree is another program's.
//! Symbolic links to directories and files are followed; each directory is visited once. Folders may be side by side
//! (Maildir++) or nested. Other files of mail programs are ignored.
//!
//! Three ways to look at a folder, from cheap to dear. A directory's [`Stamp`] shows if anything was added, removed or
//! renamed since the last look. [`Folder::for_each_name`] lists names and inode numbers without touching the files.
//! [`stat_files`] looks at each file.

mod read;
mod stat;
#[cfg(feature = "io-uring")]
mod uring;
mod walk;

pub use read::{BODY_BYTES_MAX, Contents, FileReader};
pub use stat::{FileFacts, look_up, stat_files, stat_files_with};
pub use walk::{Folder, MailTree, Stamp, TreeError, TreeOptions, flag_letters_of, key_of_name, walk};

/// Method of looking at files and reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMethod {
    /// The faster method by measurement: single calls until a sample shows that files are not cached, batches from
    /// there on.
    #[default]
    Best,
    /// One system call after the other.
    OneByOne,
    /// Batches through io_uring, where the kernel allows it; otherwise single calls.
    Batched,
}

/// Environment variable that disables io_uring if set to `1`.
pub const DISABLE_IO_URING: &str = "POSTHASTE_DISABLE_IO_URING";
