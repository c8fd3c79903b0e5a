//! The configuration as read from its file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste_directory::Directory;

use super::check;
use super::config::Config;
use super::error::ConfigError;
use super::place::{DEFAULT_FILE, FoundFile};

/// A configuration and its source.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings in force.
    pub config: Config,
    /// The directory of [`Config::directory`], made once.
    pub directory: Arc<Directory>,
    /// The file that was read; `None` if there was none.
    pub file: Option<PathBuf>,
    /// Why a file in the working directory was not read; see [`FoundFile`].
    pub passed_over: Option<String>,
    /// True if the file has a `[[listener]]`.
    pub names_listeners: bool,
    /// True if the file has a `[[domain]]`.
    pub names_domains: bool,
}

impl Loaded {
    /// As [`Config::load`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let FoundFile { path, passed_over } = FoundFile::find(file);
        let Some(file) = path else {
            if let Some(why) = passed_over {
                let message =
                    format!("root does not read it, because {why}; to use it anyway, add --config {DEFAULT_FILE}");
                return Err(ConfigError::whole(Path::new(DEFAULT_FILE), message));
            }
            // Checked like any other: what is taken from the machine may not do.
            return Ok(Self { file: None, ..Self::parse(Path::new(DEFAULT_FILE), "")? });
        };
        let octets = std::fs::read(&file).map_err(|error| ConfigError::unreadable(&file, &error))?;
        let text = std::str::from_utf8(&octets).map_err(|error| ConfigError::encoding(&file, &octets, error))?;
        Ok(Self { passed_over, ..Self::parse(&file, text)? })
    }

    /// As [`Config::parse`].
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError::syntax(file, text, &error))?;
        let names_listeners = !config.listeners.is_empty();
        let names_domains = !config.domains.is_empty();
        let config = config.completed();
        let directory = check::check(&config).map_err(|problem| ConfigError::meaning(file, text, &problem))?;
        let directory = Arc::new(directory);
        let file = Some(file.to_owned());
        let passed_over = None;
        Ok(Self { config, directory, file, passed_over, names_listeners, names_domains })
    }

    /// A mistake in the file as a whole.
    pub fn error(&self, message: String) -> ConfigError {
        ConfigError::whole(self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE)), message)
    }

    /// Reads the configuration again for a running server. Its file must still exist: otherwise the defaults would
    /// apply, and all mail would be refused.
    ///
    /// # Errors
    /// As [`Config::load`]; and the file has lost all of its domains or, with them, all of its listeners.
    pub fn again(&self, file: Option<&Path>) -> Result<Self, ConfigError> {
        let again = Self::load(file.or(self.file.as_deref()))?;
        let lost = match (again.names_listeners, again.names_domains) {
            (_, false) if self.names_domains => "[[domain]]",
            (false, false) if self.names_listeners => "[[listener]]",
            _ => return Ok(again),
        };
        Err(again
            .error(format!("{lost} is gone, as if the file had been emptied; restart the server if this is intended")))
    }
}

impl Config {
    /// Reads `file`; without it the one of [`FoundFile::find`]; without that the defaults.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has a key that does not exist, or a value that makes no sense. Or the
    /// only file is one that root does not trust.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        Loaded::load(file).map(|loaded| loaded.config)
    }

    /// Parses a configuration from `text`; errors call the file `file`.
    ///
    /// # Errors
    /// As [`Config::load`], apart from reading.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        Loaded::parse(file, text).map(|loaded| loaded.config)
    }
}
