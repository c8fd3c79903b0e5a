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
mod scope;
mod share;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use automation::Automation;
use posthaste_units::words::plain;

pub use resolve::{NamedLimit, OfDomain, OfSite, OfTenant, TotalOf};
pub use scope::{DomainOrSite, Label, MailScope};

/// The rules of all files. Empty: no limits.
#[derive(Debug, Default)]
pub struct ShapingRules {
    sections: Vec<Section>,
    /// Sections by domain pattern, and by host pattern.
    by_domain: HashMap<String, Vec<u32>>,
    by_mx: HashMap<String, Vec<u32>>,
    limits: BTreeMap<String, Sourced<file::Total>>,
    tenants: BTreeMap<String, Tenant>,
    automation: Automation,
}

#[derive(Debug, Default)]
struct Tenant {
    message_rate: Option<Sourced<posthaste_units::Rate>>,
    limits: Vec<Sourced<String>>,
}

/// A value, and where it is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The file and the section.
    pub from: Arc<str>,
}

/// Sections that apply to a domain, for [`ShapingRules::of_site`].
pub type Sections = BTreeSet<u32>;

/// A mistake in a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShapingError {
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// The read error.
        error: std::io::Error,
    },
    /// Not TOML, or with unknown keys or values.
    #[error("{file}:{line}: {why}")]
    Toml {
        /// Name of the file.
        file: String,
        /// Line of the mistake.
        line: usize,
        /// The mistake.
        why: String,
    },
    /// A value is invalid.
    #[error("{section}: {why}")]
    Meaning {
        /// File and section.
        section: String,
        /// The mistake.
        why: String,
    },
}

/// A section, merged from all files.
#[derive(Debug, Default)]
struct Section {
    /// Specificity; 0 is the least.
    level: usize,
    name: String,
    kind: Kind,
    /// For a part of a section: the source that it applies to.
    source: Option<Sourced<String>>,
    /// Its parts, by source.
    parts: BTreeMap<String, u32>,
    values: Values,
    total: Vec<Sourced<file::Total>>,
    limits: Vec<Sourced<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    #[default]
    Default,
    Provider,
    Domain,
}

#[derive(Debug, Default, Clone)]
struct Values {
    connections: Option<Sourced<u32>>,
    connection_rate: Option<Sourced<posthaste_units::Rate>>,
    connections_per_address: Option<Sourced<u32>>,
    message_rate: Option<Sourced<posthaste_units::Rate>>,
    messages_per_connection: Option<Sourced<u32>>,
    recipients_per_message: Option<Sourced<u32>>,
    failures_before_pause: Option<Sourced<u32>>,
    chunking: Option<Sourced<bool>>,
}

impl ShapingRules {
    /// Reads and merges files; a later one overrides an earlier one.
    ///
    /// # Errors
    /// See [`ShapingError`].
    pub fn read(files: &[PathBuf]) -> Result<ShapingRules, ShapingError> {
        let mut read = Vec::new();
        for path in files {
            let text = read_bounded(path).map_err(|error| ShapingError::Read { file: path.clone(), error })?;
            let name = path.display().to_string();
            read.push((parse(&name, &text)?, name));
        }
        ShapingRules::merge(read)
    }

    /// Parses one file; `name` is for errors.
    ///
    /// # Errors
    /// See [`ShapingError`].
    pub fn parse(name: &str, text: &str) -> Result<ShapingRules, ShapingError> {
        ShapingRules::merge(vec![(parse(name, text)?, name.to_owned())])
    }

    /// True without any rules.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty() && self.tenants.is_empty()
    }

    /// The rules for replies.
    pub fn automation(&self) -> &Automation {
        &self.automation
    }
}

fn parse(name: &str, text: &str) -> Result<file::File, ShapingError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..at].iter().filter(|octet| **octet == b'\n').count() + 1;
        ShapingError::Toml { file: name.to_owned(), line, why: plain(error.message(), |_| None) }
    })
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it is larger than 16 MiB"))
    } else {
        Ok(text)
    }
}

/// Default of the consecutive failed tries of all hosts before a site pauses.
pub const FAILURES_BEFORE_PAUSE: u32 = 10;
const FILE_BYTES_MAX: u64 = 16 << 20;
