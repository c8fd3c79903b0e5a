//! `--config`: the configuration that a command reads.

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::Args;
use posthaste_config::{ConfigError, DEFAULT_FILE, FoundFile, Loaded, SYSTEM_FILE};

#[derive(Args, Clone, Default)]
pub struct ConfigArg {
    /// The server's configuration file; default: $POSTHASTE_CONFIG, ./posthaste.toml, /etc/posthaste/posthaste.toml, else built-in defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The file in use.
static USED: OnceLock<FoundFile> = OnceLock::new();

impl ConfigArg {
    /// Reads the configuration.
    ///
    /// # Errors
    /// As [`Loaded::load`].
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        Loaded::load(self.named().as_deref())
    }

    /// The configuration file that was named. Later errors of this command mention it.
    pub fn named(&self) -> Option<PathBuf> {
        USED.get_or_init(|| FoundFile::find(self.config.as_deref()));
        self.config.clone()
    }

    /// Returns the argument, with `file` as its default.
    pub fn or(&self, file: Option<PathBuf>) -> Self {
        Self { config: self.config.clone().or(file) }
    }
}

/// The configuration in use, as a line after an error. `None` without a file, or if the error names it.
pub fn in_use(error: &str) -> Option<String> {
    let FoundFile { path, passed_over } = USED.get()?;
    let passed_over =
        passed_over.as_ref().map(|why| format!("; root does not read {DEFAULT_FILE} in this directory: {why}"));
    let used = match path.as_ref().map(|path| path.display().to_string()) {
        Some(path) if passed_over.is_none() && error.starts_with(&format!("{path}:")) => return None,
        // The error says so.
        None if passed_over.is_some() => return None,
        Some(path) => format!("the configuration is {path}"),
        None => format!(
            "there is no {DEFAULT_FILE} here and no {SYSTEM_FILE}, so the defaults apply; --config FILE names another"
        ),
    };
    Some(used + &passed_over.unwrap_or_default())
}
