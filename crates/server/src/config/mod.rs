//! What the operator can set: the file's shape, its defaults, and errors that point at the line.
//!
//! [`Config`] is the effective configuration: every key has a value, so that `config show` prints what really applies.
//! A file that sets nothing is valid, and so is no file at all.

mod accounts;
mod check;
mod error;
mod limits;
mod listeners;
mod overrides;
mod report;
mod values;
mod words;

use std::path::{Path, PathBuf};

use posthaste_directory::Directory;
use posthaste_smtp::address::is_domain;
use posthaste_smtp::server::FORBIDDEN_COMMANDS;
use serde::{Deserialize, Serialize};

pub(crate) use accounts::{Identity, owner};
pub use error::{ConfigError, Position};
pub use limits::Limits;
pub use listeners::{Listener, Network};
pub use overrides::{LimitOverrides, Networks, PolicyOverrides};
pub use posthaste_directory::{Account, Domain, Pattern, Targets, Users};
pub use posthaste_smtp::{BareNewlines, LongLines, NulOctets, Protocol};
pub use report::check;
pub(crate) use report::{LOW_PORTS, is_low};
pub use values::SpoolShare;
use values::Table;

/// The name under which a configuration is looked for in the working directory.
pub const DEFAULT_FILE: &str = "posthaste.toml";

/// The whole configuration. See `docs/configuration.md` for every key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What we call ourselves in the greeting and in Received fields.
    #[serde(default = "machine_host_name")]
    pub host_name: String,
    /// The user that the server becomes once it listens, by name or number; it must be started as root. Not set: whoever starts it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub user: Option<String>,
    /// The group that it becomes. Not set: the user's own.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub group: Option<String>,
    /// Where things are kept.
    #[serde(default, deserialize_with = "values::table")]
    pub storage: Storage,
    /// How much of anything is accepted.
    #[serde(default, deserialize_with = "values::table")]
    pub limits: Limits,
    /// What is done with messages that break the rules of the line.
    #[serde(default, deserialize_with = "values::table")]
    pub policy: Policy,
    /// The search index.
    #[serde(default, deserialize_with = "values::table")]
    pub search: Search,
    /// The log.
    #[serde(default, deserialize_with = "values::table")]
    pub log: Log,
    /// Where clients connect. None given: SMTP on the loopback address, port 2525.
    #[serde(default, rename = "listener", deserialize_with = "values::tables")]
    pub listeners: Vec<Listener>,
    /// Clients for which other limits and policies apply.
    #[serde(default, rename = "network", deserialize_with = "values::tables", skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
    /// What we receive mail for. None given: any user at `localhost` and at the host name.
    #[serde(default, rename = "domain", deserialize_with = "values::tables")]
    pub domains: Vec<Domain>,
}

/// Where things are kept. Relative paths are relative to the working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// The directory that holds everything that is not placed elsewhere.
    pub data: PathBuf,
    /// The spool's directory; may lie on another file system. Not set: `spool` in `data`.
    pub spool: PathBuf,
    /// Where earlier versions kept their journal: the first start takes over what is in it. Not set: `journal` in `data`.
    pub journal: PathBuf,
    /// The directory of the mailboxes. Not set: `mail` in `data`.
    pub mail: PathBuf,
    /// Octets of one file of the spool's ring.
    #[serde(alias = "journal_segment_bytes", deserialize_with = "values::bytes")]
    pub spool_segment_bytes: u64,
    /// Files of the ring at most. Mail that waits for its mailbox moves from them into packs.
    #[serde(alias = "journal_segments", deserialize_with = "values::count")]
    pub spool_segments: usize,
    /// Octets that the spool leaves free on its file system: with less, mail is refused with 452.
    #[serde(deserialize_with = "values::bytes")]
    pub free_bytes_min: u64,
    /// As `free_bytes_min`, of inodes.
    #[serde(deserialize_with = "values::count")]
    pub free_inodes_min: usize,
    /// Octets that may wait for one mailbox that cannot be written to; beyond, its mail is refused with 452.
    #[serde(deserialize_with = "values::bytes")]
    pub mailbox_pending_bytes: u64,
    /// Octets that may wait for all such mailboxes together, and for mail file systems that do not answer; beyond, mail for any of them is refused with 452.
    #[serde(deserialize_with = "values::bytes")]
    pub pending_bytes: u64,
    /// Octets received after which the mailboxes are made durable and the files of the ring used again.
    #[serde(deserialize_with = "values::bytes")]
    pub checkpoint_bytes: u64,
    /// Seconds after which the same is done if anything was received at all.
    #[serde(deserialize_with = "values::secs")]
    pub checkpoint_secs: u64,
}

/// The bits of `text`, in octal.
pub(crate) fn permission_bits(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777)
}

impl Table for Storage {
    const NAME: &str = "storage";
}

impl Table for Limits {
    const NAME: &str = "limits";
}

impl Table for Policy {
    const NAME: &str = "policy";
}

impl Table for Search {
    const NAME: &str = "search";
}

impl Table for Log {
    const NAME: &str = "log";
}

/// What is done with messages that break the rules of the line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// A CR or LF that is not part of a CRLF.
    pub bare_newlines: BareNewlines,
    /// A text line longer than `limits.text_line_bytes`.
    pub long_lines: LongLines,
    /// A NUL octet.
    pub nul_octets: NulOctets,
    /// Commands of other protocols: a client that says one, or something like a header field, is cut off with 502.
    pub forbidden_commands: Vec<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            bare_newlines: BareNewlines::default(),
            long_lines: LongLines::default(),
            nul_octets: NulOctets::default(),
            forbidden_commands: FORBIDDEN_COMMANDS.map(String::from).to_vec(),
        }
    }
}

/// The search index of all mail, for `posthaste find`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Search {
    /// Whether mail is indexed as it is delivered.
    pub index: bool,
    /// The index's directory. Not set: `search` in `storage.data`.
    pub dir: PathBuf,
}

/// The log, written to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `plain` or `json`.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`, or a filter such as `warn,posthaste_server=info`.
    pub level: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            host_name: machine_host_name(),
            user: None,
            group: None,
            storage: Storage::default(),
            limits: Limits::default(),
            policy: Policy::default(),
            search: Search::default(),
            log: Log::default(),
            listeners: Vec::new(),
            networks: Vec::new(),
            domains: Vec::new(),
        }
        .completed()
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            data: PathBuf::new(),
            spool: PathBuf::new(),
            journal: PathBuf::new(),
            mail: PathBuf::new(),
            spool_segment_bytes: 64 << 20,
            spool_segments: 64,
            free_bytes_min: 64 << 20,
            free_inodes_min: 1000,
            mailbox_pending_bytes: 1 << 30,
            pending_bytes: 2 << 30,
            checkpoint_bytes: 256 << 20,
            checkpoint_secs: 30,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".to_owned() }
    }
}

impl Config {
    /// Reads `file`; without one, `posthaste.toml` in the working directory; without that, the defaults.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, has a key that does not exist, or a value that makes no sense.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        Loaded::load(file).map(|loaded| loaded.config)
    }

    /// Reads a configuration from `text`; `file` is what errors call it.
    ///
    /// # Errors
    /// As [`Config::load`], apart from reading.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        Loaded::parse(file, text).map(|loaded| loaded.config)
    }

    /// Whom the server becomes once it listens, if anybody else.
    ///
    /// # Errors
    /// The key that is wrong, and how.
    pub(crate) fn identity(&self) -> Result<Option<Identity>, (&'static str, String)> {
        match (&self.user, &self.group) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(("group", "only with `user`".to_owned())),
            (Some(user), group) => Identity::of(user, group.as_deref()).map(Some),
        }
    }

    /// Who receives what.
    ///
    /// # Panics
    /// When the configuration was not made by [`Config::parse`] or one like it, which find what is wrong with its domains.
    pub fn directory(&self) -> Directory {
        Directory::new(&self.domains, crate::MAILDIR)
            .unwrap_or_else(|problem| panic!("an unchecked configuration: {problem:?}"))
    }

    /// The configuration as TOML, every key shown.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("every value of a configuration has a TOML form")
    }

    /// The configuration as JSON, every key shown.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every value of a configuration has a JSON form")
    }

    /// Fills in what depends on other keys.
    fn completed(mut self) -> Self {
        if self.storage.data.as_os_str().is_empty() {
            self.storage.data = PathBuf::from("posthaste-data");
        }
        if self.storage.spool.as_os_str().is_empty() {
            self.storage.spool = self.storage.data.join("spool");
        }
        if self.storage.journal.as_os_str().is_empty() {
            self.storage.journal = self.storage.data.join("journal");
        }
        if self.storage.mail.as_os_str().is_empty() {
            self.storage.mail = self.storage.data.join("mail");
        }
        if self.search.dir.as_os_str().is_empty() {
            self.search.dir = self.storage.data.join("search");
        }
        if self.listeners.is_empty() {
            self.listeners.push(Listener { address: Some(DEFAULT_ADDRESS.to_owned()), ..Listener::default() });
        }
        if self.domains.is_empty() {
            self.domains.push(Domain::open_to_any("localhost"));
            if !self.host_name.eq_ignore_ascii_case("localhost") {
                self.domains.push(Domain::open_to_any(&self.host_name));
            }
        }
        self
    }
}

/// A configuration and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// What applies.
    pub config: Config,
    /// The file that was read; `None`: there was none.
    pub file: Option<PathBuf>,
    /// Whether the file has a `[[listener]]`.
    pub names_listeners: bool,
    /// Whether the file has a `[[domain]]`.
    pub names_domains: bool,
}

impl Loaded {
    /// As [`Config::load`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(file) = found_file(file) else {
            // Checked like any other: what is taken from the machine may not do.
            return Ok(Self { file: None, ..Self::parse(Path::new(DEFAULT_FILE), "")? });
        };
        let octets = std::fs::read(file).map_err(|error| ConfigError::unreadable(file, &error))?;
        let text = std::str::from_utf8(&octets).map_err(|error| ConfigError::encoding(file, &octets, error))?;
        Self::parse(file, text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError::syntax(file, text, &error))?;
        let (names_listeners, names_domains) = (!config.listeners.is_empty(), !config.domains.is_empty());
        let config = config.completed();
        check::check(&config).map_err(|problem| ConfigError::meaning(file, text, &problem))?;
        Ok(Self { config, file: Some(file.to_owned()), names_listeners, names_domains })
    }

    /// What is wrong with it as a whole.
    pub(crate) fn error(&self, message: String) -> ConfigError {
        ConfigError::whole(self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE)), message)
    }

    /// Reads the configuration again for a server that runs with this one. A file that was there must still be: without it the
    /// defaults would apply, and all mail be refused.
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
            .error(format!("there is no {lost} any more, as if the file was emptied; restart if this is intended")))
    }
}

/// The file that [`Config::load`] would read; `None` when it would use the defaults.
pub fn found_file(file: Option<&Path>) -> Option<&Path> {
    file.or_else(|| Some(Path::new(DEFAULT_FILE)).filter(|path| path.exists()))
}

/// The machine's name if it can stand in a greeting, otherwise `localhost`.
fn machine_host_name() -> String {
    let uname = rustix::system::uname();
    match uname.nodename().to_str() {
        Ok(name) if is_domain(name) && name.is_ascii() => name.to_ascii_lowercase(),
        _ => "localhost".to_owned(),
    }
}

const DEFAULT_ADDRESS: &str = "127.0.0.1:2525";

#[cfg(test)]
mod tests;
