//! Trees of Maildirs, as they are found in home directories: for programs that read mail which somebody else keeps.
//!
//! Unlike [`MailRoot`](crate::MailRoot), which owns what lies below it and follows no link, a tree is another program's: symbolic links to
//! directories and files are followed (each directory is visited once), folders may be nested in any way, beside each other (Maildir++) or
//! in each other, and what mail programs leave lying around is passed over.
//!
//! Three ways to look at a folder, from cheap to dear. A directory's [`Stamp`] tells whether anything was added, removed or renamed
//! since the last look; [`Folder::for_each_name`] lists names and inode numbers without looking at files; [`stat_files`] looks at each file.

mod read;
mod stat;
#[cfg(feature = "io-uring")]
mod uring;
mod walk;

pub use read::{BODY_BYTES_MAX, Contents, FileReader};
pub use stat::{FileFacts, look_up, stat_files, stat_files_with};
pub use walk::{Folder, Stamp, Tree, TreeError, TreeOptions, flag_letters_of, key_of_name, walk};

/// How files are looked at and read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMethod {
    /// The one that was measured to be faster: one after the other, until a sample shows that files are not cached, and from there on many at once.
    #[default]
    Best,
    /// One system call after the other.
    OneByOne,
    /// Many at once through io_uring, where the kernel allows it; otherwise one by one.
    Batched,
}

/// Set to `1`, nothing is done through io_uring.
pub const DISABLE_IO_URING: &str = "POSTHASTE_DISABLE_IO_URING";
