//! Trees of Maildirs in home directories, for programs that read mail owned by another program.
//!
//! Unlike [`MailRoot`](crate::MailRoot), which owns its directory and follows no link, a tree is another program's.
//! Symbolic links to directories and files are followed; each directory is visited once. Folders may be side by side
//! (Maildir++) or nested. Other files of mail programs are ignored.
//!
//! Three ways to look at a folder, from cheap to dear. A directory's [`Stamp`] shows if anything was added, removed or
//! renamed since the last look. [`Folder::for_each_name`] lists names and inode numbers without touching the files.
//! [`stat_files`] looks at each file.

mod facts;
mod method;
mod read;
mod stat;
#[cfg(feature = "io-uring")]
mod uring;
mod walk;

pub use facts::{BODY_BYTES_MAX, Contents, FileFacts};
pub use method::{DISABLE_IO_URING, IoMethod};
pub use read::FileReader;
pub use stat::{look_up, stat_files, stat_files_with};
pub use walk::{Folder, MailTree, Stamp, TreeError, TreeOptions, flag_letters_of, key_of_name, walk};
