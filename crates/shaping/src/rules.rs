//! The rules of all files, and values with the place where they are set.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use posthaste_units::Rate;

use super::automation::Automation;
use super::file::{self, ShapingError};

/// The rules of all files. Empty: no limits.
#[derive(Debug, Default)]
pub struct ShapingRules {
    pub(super) sections: Vec<Section>,
    /// Sections by domain pattern, and by host pattern.
    pub(super) by_domain: HashMap<String, Vec<u32>>,
    pub(super) by_mx: HashMap<String, Vec<u32>>,
    pub(super) limits: BTreeMap<String, Sourced<file::Total>>,
    pub(super) tenants: BTreeMap<String, Tenant>,
    pub(super) automation: Automation,
}

#[derive(Debug, Default)]
pub(super) struct Tenant {
    pub message_rate: Option<Sourced<Rate>>,
    pub limits: Vec<Sourced<String>>,
}

/// A value, and where it is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The file and the section.
    pub from: Arc<str>,
}

/// A section, merged from all files.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// Specificity; 0 is the least.
    pub level: usize,
    pub name: String,
    pub kind: Kind,
    /// For a part of a section: the source that it applies to.
    pub source: Option<Sourced<String>>,
    /// Parts of the section, by source.
    pub parts: BTreeMap<String, u32>,
    pub values: Values,
    pub total: Vec<Sourced<file::Total>>,
    pub limits: Vec<Sourced<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    #[default]
    Default,
    Provider,
    Domain,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Values {
    pub connections: Option<Sourced<u32>>,
    pub connection_rate: Option<Sourced<Rate>>,
    pub connections_per_address: Option<Sourced<u32>>,
    pub message_rate: Option<Sourced<Rate>>,
    pub messages_per_connection: Option<Sourced<u32>>,
    pub recipients_per_message: Option<Sourced<u32>>,
    pub failures_before_pause: Option<Sourced<u32>>,
    pub chunking: Option<Sourced<bool>>,
}

impl ShapingRules {
    /// Reads and merges files; a later one overrides an earlier one.
    ///
    /// # Errors
    /// See [`ShapingError`].
    pub fn read(files: &[PathBuf]) -> Result<ShapingRules, ShapingError> {
        let mut read = Vec::new();
        for path in files {
            let text = file::read(path).map_err(|error| ShapingError::Read { file: path.clone(), error })?;
            let name = path.display().to_string();
            read.push((file::parse(&name, &text)?, name));
        }
        ShapingRules::merge(read)
    }

    /// Parses one file; `name` is for errors.
    ///
    /// # Errors
    /// See [`ShapingError`].
    pub fn parse(name: &str, text: &str) -> Result<ShapingRules, ShapingError> {
        ShapingRules::merge(vec![(file::parse(name, text)?, name.to_owned())])
    }

    /// True if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty() && self.tenants.is_empty()
    }

    /// The rules for replies.
    pub fn automation(&self) -> &Automation {
        &self.automation
    }
}

/// Default of the consecutive failed tries of all hosts before a site pauses.
pub const FAILURES_BEFORE_PAUSE: u32 = 10;
