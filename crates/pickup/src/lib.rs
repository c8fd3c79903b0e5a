//! Mail from programs on the same machine: a directory in which each file is an envelope and a message.
//!
//! For programs that hand over mail and must not lose it while the server is down, and for servers that take such
//! mail. It opens no socket, and does not decide who receives mail.
//!
//! - [`PickupDirectory`] is the directory, and who may read what is put there;
//! - [`PickupEntry`] writes a file, [`PickupEntry::finish`] makes it durable; [`PickupMessage`] reads one;
//! - [`submit`](mod@submit) does what `sendmail` does with its input, [`dialogue`] is SMTP on standard input and output;
//! - [`Section`] is `[pickup]` of a configuration file.
//!
//! ```
//! use posthaste_pickup::{PickupDirectory, PickupEntry, PickupHead, PickupMessage};
//! use posthaste_smtp::{ForwardPath, MailFrom, RcptTo, ReversePath};
//!
//! # let place = tempfile::tempdir()?;
//! let directory = PickupDirectory::open(place.path())?;
//! let mail = MailFrom::new(ReversePath::parse("<cron@example.org>")?);
//! let rcpt = RcptTo::new(ForwardPath::parse("<bob@example.org>")?);
//! let mut entry = PickupEntry::begin(&directory, PickupHead::new(mail, vec![rcpt]), None)?;
//! entry.write(b"Subject: x\r\n\r\nhello\r\n")?;
//! let name = entry.finish()?;
//!
//! let mut message = PickupMessage::open(&directory, name.as_ref())?;
//! assert_eq!(message.head().recipients.len(), 1);
//! let mut text = Vec::new();
//! while let Some(piece) = message.read()? {
//!     text.extend_from_slice(&piece);
//! }
//! assert_eq!(text, b"Subject: x\r\n\r\nhello\r\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod compose;
pub mod dialogue;
mod directory;
mod entry;
mod head;
mod lines;
mod message;
mod section;
pub mod submit;

pub use directory::{PickupDirectory, UNFINISHED_AGE_MAX};
pub use entry::{EntryError, PickupEntry};
pub use head::{HeadError, PickupHead};
pub use message::{PickupMessage, PickupReadError};
pub use section::Section;
pub use submit::{Completed, Facts, Reading, Submission, SubmitError, complete_header};
