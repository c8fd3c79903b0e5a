//! Checks of the machine before anything is measured.

use std::path::Path;

use posthaste_loadgen::doctor::{self, Options, Severity};
use posthaste_loadgen::resources::raise_file_limit;
use serde::{Deserialize, Serialize};

/// A finding about the machine that could be better.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub value: String,
    /// True if it distorts every figure.
    pub is_serious: bool,
    pub why: String,
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} ({})", self.name, self.value, self.why)
    }
}

/// Result of the checks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Checks {
    /// Settings that could be better.
    pub found: Vec<Check>,
    /// Why nothing can be measured here at all.
    pub forbids: Option<String>,
}

/// Descriptors that the generator and the servers need for the connections of all workloads.
const FILES_WANTED: u64 = 16_384;
/// Findings that make any figure of durable storage meaningless.
const FORBIDDING: [&str; 2] = ["file system", "free space"];

/// Raises the limit on descriptors, which the servers inherit, and looks at the machine and at `dir`.
pub fn look(dir: &Path, connections: u64) -> Checks {
    raise_file_limit(FILES_WANTED.max(connections + connections / 4));
    let report = doctor::check(&Options { connections, syncs: 100, ..Options::new(dir) });
    let bad = report.findings.iter().filter(|finding| finding.severity != Severity::Good);
    let found: Vec<Check> = bad
        .map(|finding| Check {
            name: finding.name.to_owned(),
            value: finding.value.clone(),
            is_serious: finding.severity == Severity::Serious,
            why: finding.why.clone(),
        })
        .collect();
    let forbidding = found.iter().find(|check| check.is_serious && FORBIDDING.contains(&check.name.as_str()));
    let forbids = forbidding.map(|check| format!("{}: {}: {}", check.name, check.value, check.why));
    Checks { found, forbids }
}
