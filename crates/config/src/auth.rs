//! `[auth]`: logins.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use posthaste_directory::Directory;
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::values::Rates;
use crate::reload::{NeedsRestart, Reload, all_of};

/// Logins.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// The file of passwords, with a line for each login.
    pub file: PathBuf,
    /// How many recipients each login may send to: `"200/hour"`, or several rates that all apply, `["200/hour", "500/day"]`. `[]`: any number. See
    /// [submission.md](submission.md#how-much-a-login-may-send).
    pub recipient_rate: Rates,
    /// The same for each user of this machine, who sends through [`posthaste sendmail`](sendmail.md): mail above it waits in the pickup directory.
    pub local_recipient_rate: Rates,
    /// The same for single logins, in place of `recipient_rate`: `{ "app@example.org" = "5000/hour", "news@example.org" = [] }`.
    pub recipient_rates: BTreeMap<String, Rates>,
}

/// Logins at a listener (RFC 4954).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListenerAuth {
    /// No logins.
    #[default]
    Off,
    /// Logins are offered.
    Offered,
    /// A login is required before any mail.
    Required,
}

impl Table for Auth {
    const NAME: &str = "auth";
}

impl Reload for Auth {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Auth {
    /// The file, if configured.
    pub fn file(&self) -> Option<&std::path::Path> {
        Some(&*self.file).filter(|file| !file.as_os_str().is_empty())
    }

    /// `recipient_rates` by the one form of each login's name.
    ///
    /// # Errors
    /// An invalid or duplicate name.
    pub fn rates_by_login(&self, directory: &Directory) -> Result<HashMap<String, Rates>, Problem> {
        let mut by_login = HashMap::new();
        for (written, rates) in &self.recipient_rates {
            let problem = |message: String| {
                Problem::new([Self::NAME.into(), "recipient_rates".into(), written.as_str().into()], message)
            };
            let name = directory.login_name(written);
            let name = name.ok_or_else(|| problem(format!("`{written}` is not a login, such as ann@example.org")))?;
            if by_login.contains_key(&name) {
                return Err(problem(format!("{name} is listed twice, in two spellings")));
            }
            by_login.insert(name, rates.clone());
        }
        Ok(by_login)
    }
}
