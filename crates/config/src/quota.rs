//! `[quota]`: limits on an account's mail.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use posthaste_directory::Directory;
use posthaste_units::values::Table;
use posthaste_units::words::Problem;
use serde::{Deserialize, Serialize};

use super::values;
use crate::reload::{NeedsRestart, Reload, all_of};

/// Storage limits of accounts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// The size of all its messages. 0: any.
    #[serde(deserialize_with = "values::bytes")]
    pub bytes: u64,
    /// The number of its messages. 0: any.
    #[serde(deserialize_with = "values::count")]
    pub messages: u64,
    /// Mail for an account that is full is refused for good (552 5.2.2), and not for now (452 4.2.2).
    pub permanent: bool,
    /// The same for single accounts, in place of `bytes` and `messages`: `{ "ann@example.org" = { bytes = "20 GiB" } }`.
    pub accounts: BTreeMap<String, AccountQuota>,
}

/// Settings of one account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccountQuota {
    /// Overrides the value of all accounts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_bytes")]
    pub bytes: Option<u64>,
    /// Overrides the value of all accounts.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_count")]
    pub messages: Option<u64>,
}

fn some_bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    values::bytes(deserializer).map(Some)
}

fn some_count<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    values::count(deserializer).map(Some)
}

impl Table for Quota {
    const NAME: &str = "quota";
}

impl Reload for Quota {
    fn reloaded(&self, new: &Self) -> (Self, Vec<NeedsRestart>) {
        all_of(new)
    }
}

impl Quota {
    /// True if any account has a limit.
    pub fn is_set(&self) -> bool {
        *self != Self { permanent: self.permanent, ..Self::default() }
    }

    /// Bytes and messages of single accounts, by their Maildirs.
    ///
    /// # Errors
    /// A name without a Maildir here, or a duplicate.
    pub fn by_maildir(&self, directory: &Directory) -> Result<HashMap<Arc<str>, (u64, u64)>, Problem> {
        let mut by_maildir = HashMap::new();
        for (written, own) in &self.accounts {
            let problem = |message: String| {
                Problem::new([Self::NAME.into(), "accounts".into(), written.as_str().into()], message)
            };
            let maildir = directory.login_name(written).and_then(|login| directory.maildir_of(&login));
            let maildir = maildir.ok_or_else(|| problem(format!("`{written}` has no mailbox here")))?;
            let limits = (own.bytes.unwrap_or(self.bytes), own.messages.unwrap_or(self.messages));
            if by_maildir.insert(maildir, limits).is_some() {
                return Err(problem(format!("{written} is listed twice, in two spellings")));
            }
        }
        Ok(by_maildir)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    #[test]
    fn accounts_have_their_own_quota_or_that_of_all() {
        let text = "[quota]\nbytes = '1 GiB'\nmessages = 1000\n[quota.accounts]\n'Ann@Example.org' = { bytes = 0 }\n\
                    'bob@example.org' = { messages = 5 }\n[[domain]]\nname = 'example.org'\nusers = ['ann', 'bob']\n";
        let config = Config::parse(Path::new("x"), text).unwrap();
        let by_maildir = config.quota.by_maildir(&config.directory()).unwrap();
        let mut found: Vec<_> = by_maildir.iter().map(|(path, limits)| (&**path, *limits)).collect();
        found.sort();
        let of = |user: &str| format!("example.org/{user}/Maildir");
        assert_eq!(found, [(&*of("ann"), (0, 1000)), (&*of("bob"), (1 << 30, 5))]);
        assert!(!config.quota.permanent);
    }

    #[test]
    fn quotas_of_nobody_are_refused() {
        let domain = "[[domain]]\nname = 'example.org'\nusers = ['ann']\n";
        for (accounts, message) in [
            ("'eve@example.org' = { bytes = 1 }", "has no mailbox here"),
            ("'ann@example.org' = { bytes = 1 }\n'ANN@example.org' = {}", "is listed twice"),
            ("'ann@example.org' = { size = 1 }", "size"),
        ] {
            let text = format!("[quota.accounts]\n{accounts}\n{domain}");
            let error = Config::parse(Path::new("x"), &text).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
