//! Receivers of mail: domains, users, aliases, and the route of each address.
//!
//! For any program that accepts mail for users. It reads no file, opens no socket, and never waits. It does not know
//! how mail is stored.
//!
//! ```
//! use posthaste_directory::{Directory, Domain, Route, Targets, Users};
//!
//! let mut domain = Domain::named("example.org");
//! domain.users = Users::Listed(vec!["alice".to_owned(), "bob".to_owned()]);
//! domain.aliases.insert("team".to_owned(), Targets::To(vec!["alice".to_owned(), "bob".to_owned()]));
//! let directory = Directory::new(&[domain], "Maildir").expect("nothing is wrong with it");
//! let Route::Local(mailboxes) = directory.resolve("Team", Some("example.org")) else { panic!("no mailboxes") };
//! assert_eq!(mailboxes[1].text(), "example.org/bob/Maildir");
//! ```
#![forbid(unsafe_code)]

mod account_quota;
mod aliases;
mod build;
mod config;
mod directory;
mod domain_folders;
mod login;
pub mod names;
mod pattern;
mod route;
mod step;
mod transport;

pub use account_quota::AccountQuota;
pub use config::{Account, AddressPattern, Domain, Targets, Users};
pub use directory::Directory;
pub use domain_folders::DomainFolders;
pub use posthaste_message::address::Address;
pub use route::{DirectoryRefusal, Mailbox, Mailboxes, Place, Route};
pub use step::{AddressStep, Rule};
pub use transport::{Transport, TransportKind};
