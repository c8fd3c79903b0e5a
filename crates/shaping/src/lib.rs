//! Limits of outgoing mail by destination, and rules for replies. Rules are TOML files, merged in their order.
//!
//! For every program that sends mail to many hosts. It opens no connection: the sender passes the time and asks.
//!
//! A *site* is a set of mail hosts. Its rules come from `default`, from matching providers, and from the sections of
//! the domains routed to it. For each key the most specific section with a value decides; among equally specific ones
//! the lowest value. Within a section, a value for the mail's source precedes the general one. The [limits] in force
//! count what is sent.
//!
//! ```
//! use posthaste_shaping::ShapingRules;
//!
//! let rules = ShapingRules::parse(
//!     "shaping.toml",
//!     "
//!     [default]
//!     connections = 10
//!
//!     [provider.big]
//!     mx = ['.big.example']
//!     connections = 5
//!     total = { connections = 20 }
//!     ",
//! )?;
//! let site = rules.of_site("default", &["mx1.big.example"], &rules.of_domain("a.example"));
//! assert_eq!(site.connections.unwrap().value, 5);
//! assert_eq!(site.totals[0].value.connections, Some(20));
//! # Ok::<(), posthaste_shaping::ShapingError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod automation;
pub mod explain;
pub mod file;
pub mod kumo;
pub mod limits;
mod merge;
mod resolve;
mod rules;
mod scope;
mod share;
#[cfg(test)]
mod tests;

pub use file::ShapingError;
pub use resolve::{NamedLimit, OfDomain, OfSite, OfTenant, TotalOf};
pub use rules::{FAILURES_BEFORE_PAUSE, ShapingRules, Sourced};
pub use scope::{DomainOrSite, Label, MailScope, Sections};
