//! Other servers as processes on a scratch directory, with a configuration made there.

mod dovecot;
mod opendkim;
mod postfix;
mod smtp_sink;

pub use dovecot::Dovecot;
pub use opendkim::OpenDkim;
pub use postfix::{PROCESSES_MAX, Postfix};
pub use smtp_sink::SmtpSink;

use std::path::{Path, PathBuf};

use posthaste_loadgen::process::find_program;

use crate::suite::SideError;

/// Path of an installed program.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf, SideError> {
    find_program(name).ok_or_else(|| SideError::Absent(format!("{name} is not installed (package {package})")))
}

/// True if we run as root: some peers then run as another user, and otherwise as ourselves.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Writes a configuration file.
fn write(path: &Path, text: &str) -> Result<(), SideError> {
    std::fs::write(path, text).map_err(SideError::failed(&path.display().to_string()))
}
