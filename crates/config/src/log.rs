//! `[log]`: format and level of log lines.

use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;

use super::reload::{NeedsRestart, Reload, none_of};

/// The log, written to standard error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `"plain"` or `"json"`; `"json"` also prints the start as a line of JSON. `serve --log-format` overrides it.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter such as `"warn,posthaste_server::message_log=info"`, which leaves one line for each
    /// message and warnings.
    pub level: String,
}

/// Formats of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Plain,
    /// One JSON object a line.
    Json,
}

impl Table for Log {
    const NAME: &str = "log";
}

impl Reload for Log {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        none_of(self, new)
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".to_owned() }
    }
}

/// A part of `log.level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogDirective<'a> {
    /// The module that it is for; `None`: all others.
    pub part: Option<&'a str>,
    /// The least important lines that are written.
    pub level: LevelFilter,
}

impl Log {
    pub(super) fn check(&self) -> Result<(), Problem> {
        let why = self.directives().err();
        why.map_or(Ok(()), |why| Err(Problem::new([Self::NAME.into(), "level".into()], why)))
    }

    /// The filter that `level` means.
    ///
    /// # Errors
    /// An invalid filter, or one that never matches: a misspelled level would otherwise be taken for a module, and silence all others.
    pub fn directives(&self) -> Result<Vec<LogDirective<'_>>, String> {
        self.level.split(',').map(directive).collect()
    }
}

fn directive(text: &str) -> Result<LogDirective<'_>, String> {
    let (part, level) = match text.split_once('=') {
        Some((part, level)) => (Some(part.trim()), level.trim()),
        None => (None, text.trim()),
    };
    let Some((_, level)) = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(level)) else {
        let names = "error, warn, info, debug, trace or off";
        return Err(format!(
            "there is no log level `{level}`: write {names}, or a filter such as \"warn,{LOGGED}=info\""
        ));
    };
    match part.filter(|part| !has_lines(part)) {
        None => Ok(LogDirective { part, level: *level }),
        Some(part) => Err(format!(
            "`{part}` has no log lines; targets are {LOGGED}, {} and their parts, such as {LOGGED}::message_log",
            LOGGED_TOO.join(", ")
        )),
    }
}

/// True if this module writes log lines.
fn has_lines(part: &str) -> bool {
    let within = |name: &str| part.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    match part.strip_prefix(LOGGED) {
        Some("") => true,
        Some(rest) => rest.strip_prefix("::").is_some_and(|module| LOG_MODULES.contains(&module)),
        None => LOGGED_TOO.into_iter().any(within),
    }
}

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
/// The crate of nearly all lines.
const LOGGED: &str = "posthaste_server";
/// Its modules that have some: a test of the server compares them with its files.
pub const LOG_MODULES: [&str; 32] = [
    "certificates",
    "cluster",
    "control",
    "events",
    "first_password",
    "forward",
    "indexing",
    "inject",
    "listening",
    "logins",
    "mailboxes",
    "maildirs",
    "message_log",
    "opening",
    "own_certificates",
    "panics",
    "pickup",
    "ready",
    "receive",
    "relay",
    "relay_log",
    "repeats",
    "returned",
    "self_made",
    "serve",
    "services",
    "stuck",
    "text_search",
    "tidy",
    "transports",
    "watch",
    "webhooks",
];
/// Modules that log failed handshakes, panics, and obtained or missing certificates.
const LOGGED_TOO: [&str; 3] = ["posthaste_smtp", "posthaste_net", "posthaste_acme"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_only_parts_that_have_lines() {
        for (level, good) in [
            ("warn,posthaste_server::receive=info", true),
            ("posthaste_server=debug,posthaste_smtp::driver=off", true),
            ("warn,posthaste_server::recieve=info", false),
            ("warn,posthaste_server::=info", false),
            ("warn,posthaste_servers=info", false),
            ("warn,posthaste_smtpd=info", false),
        ] {
            assert_eq!(Log { level: level.to_owned(), ..Log::default() }.directives().is_ok(), good, "{level}");
        }
    }
}
