//! Trees of Maildirs, as they are found in home directories: for programs that read mail which somebody else keeps.
//!
//! Unlike [`MailRoot`](crate::MailRoot), which owns what lies below it and follows no link, a tree is another program's: symbolic links to
//! directories and files are followed (each directory is visited once), folders may be nested in any way, beside each other (Maildir++) or
//! in each other, and what mail programs leave lying around is passed over.
//!
//! Three ways to look at a folder, from cheap to dear. A directory's [`Stamp`] tells whether anything was added, removed or renamed
//! since the last look; [`Folder::for_each_name`] lists names and inode numbers without looking at files; [`stat_files`] looks at each file.

mod stat;
mod walk;

pub use stat::{FileFacts, stat_files};
pub use walk::{Folder, Stamp, Tree, TreeError, TreeOptions, flag_letters_of, key_of_name, walk};
