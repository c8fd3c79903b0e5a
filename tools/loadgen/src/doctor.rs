//! Checks the machine before a measurement: kernel settings, limits, the data directory, other processes.
//!
//! For benchmarks, which call [`check`] first, and for administrators who set up a mail server. Changes nothing. Linux only.

mod disk;
mod kernel;

use posthaste_units::wrapped;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No change needed.
    Good,
    /// Could be better; affects results under high load only.
    Advice,
    /// Results mean little, or the server will fail under load, unless it is changed.
    Serious,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check: a sysctl, or a few words.
    pub name: &'static str,
    /// Current value.
    pub value: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// The reason, and the recommended value; empty when it is good.
    pub why: String,
}

impl Finding {
    fn good(name: &'static str, value: impl ToString) -> Self {
        Self { name, value: value.to_string(), severity: Severity::Good, why: String::new() }
    }

    fn advice(name: &'static str, value: impl ToString, why: impl Into<String>) -> Self {
        Self { name, value: value.to_string(), severity: Severity::Advice, why: why.into() }
    }

    fn serious(name: &'static str, value: impl ToString, why: impl Into<String>) -> Self {
        Self { name, value: value.to_string(), severity: Severity::Serious, why: why.into() }
    }
}

/// Settings of the checks.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory for mail or measurements. It must exist.
    pub data: PathBuf,
    /// Simultaneous connections to plan for.
    pub connections: u64,
    /// Number of measured `fdatasync` calls; 0 leaves the measurement out.
    pub syncs: usize,
    /// Time for which other processes are watched.
    pub watch: std::time::Duration,
}

impl Options {
    /// Settings for a server of 10,000 connections with its data in `data`: 200 syncs, half a second of watching.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into(), connections: 10_000, syncs: 200, watch: std::time::Duration::from_millis(500) }
    }
}

/// Results of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst of all.
    pub fn severity(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Good)
    }

    /// As pretty JSON.
    pub fn to_json(&self) -> String {
        crate::report::to_json(self)
    }

    /// A table as text, each reason below its finding.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for finding in &self.findings {
            let mark = match finding.severity {
                Severity::Good => "ok",
                Severity::Advice => "advice",
                Severity::Serious => "SERIOUS",
            };
            let value = wrapped(&finding.value, 46);
            out += format!("{mark:<8}{:<38}{value}", finding.name).trim_end();
            out.push('\n');
            if !finding.why.is_empty() {
                out += &format!("{:<8}{}\n", "", wrapped(&finding.why, 8));
            }
        }
        let of = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        out + &format!("{} serious, {} to consider\n", of(Severity::Serious), of(Severity::Advice))
    }
}

/// Runs all checks. An unreadable setting is a finding, not an error: a container may hide it.
pub fn check(options: &Options) -> Report {
    let mut findings = kernel::settings(Path::new("/proc"), options.connections);
    findings.extend(kernel::descriptors(options.connections));
    findings.push(kernel::io_uring());
    findings.extend(disk::directory(&options.data));
    findings.extend(disk::sync_latency(&options.data, options.syncs));
    findings.extend(kernel::neighbours(Path::new("/proc"), options.watch));
    Report { findings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_looked_at_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let report = check(&Options { syncs: 3, ..Options::new(dir.path()) });
        for name in ["net.core.somaxconn", "open files", "io_uring", "file system", "fdatasync", "stolen time"] {
            assert!(report.findings.iter().any(|finding| finding.name == name), "{name}: {report:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0, "nothing is left behind");
        assert!(report.findings.iter().all(|f| (f.severity == Severity::Good) == f.why.is_empty()), "{report:?}");
    }
}
