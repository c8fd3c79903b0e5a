//! `[quota]`: limits on an account's mail.

use std::collections::{BTreeMap, HashMap};

use posthaste_directory::{AccountQuota, Directory, Domain};
use posthaste_mailstore::{QuotaLimits, QuotaTable};
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
    /// The same for single accounts, in place of those of their domain and of `bytes` and `messages`: `{ "ann@example.org" = { bytes = "20 GiB" } }`.
    pub accounts: BTreeMap<String, AccountQuota>,
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
    pub fn is_set(&self, domains: &[Domain]) -> bool {
        *self != Self { permanent: self.permanent, ..Self::default() }
            || domains.iter().any(|domain| !domain.quota.is_unset())
    }

    /// Limits of all accounts, of those of a domain, and of single ones.
    ///
    /// # Errors
    /// A name without a Maildir here, or a duplicate.
    pub fn table(&self, domains: &[Domain], directory: &Directory) -> Result<QuotaTable, Problem> {
        let default = QuotaLimits { bytes: limit(self.bytes), messages: limit(self.messages) };
        let of_domain = |domain: &Domain| Some((domain.directory_name()?, within(&domain.quota, default)));
        let by_directory = domains.iter().filter_map(of_domain).collect();
        let mut table = QuotaTable { default, by_directory, by_inbox: HashMap::new() };
        for (written, own) in &self.accounts {
            let problem = |message: String| {
                Problem::new([Self::NAME.into(), "accounts".into(), written.as_str().into()], message)
            };
            let maildir = directory.login_name(written).and_then(|login| directory.maildir_of(&login));
            let maildir = maildir.ok_or_else(|| problem(format!("`{written}` has no mailbox here")))?;
            let limits = within(own, *table.of(&maildir));
            if table.by_inbox.insert(maildir.to_string(), limits).is_some() {
                return Err(problem(format!("{written} is listed twice, in two spellings")));
            }
        }
        Ok(table)
    }
}

/// The limits of `own`, and of `others` where it has none.
fn within(own: &AccountQuota, others: QuotaLimits) -> QuotaLimits {
    QuotaLimits { bytes: own.bytes.map_or(others.bytes, limit), messages: own.messages.map_or(others.messages, limit) }
}

/// A configured limit. 0: any.
fn limit(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;

    fn limits(bytes: u64, messages: u64) -> QuotaLimits {
        QuotaLimits { bytes: limit(bytes), messages: limit(messages) }
    }

    #[test]
    fn the_most_exact_quota_counts() {
        let text = "[quota]\nbytes = '1 GiB'\nmessages = 1000\n[quota.accounts]\n'Ann@Example.org' = { bytes = 0 }\n\
                    'bob@example.org' = { messages = 5 }\n'dora@b\u{fc}cher.example' = { bytes = '2 GiB' }\n\
                    [[domain]]\nname = 'example.org'\nusers = ['ann', 'bob', 'carol']\n\
                    [[domain]]\nname = 'B\u{fc}cher.example'\nusers = 'any'\nquota = { bytes = '5 GiB', messages = 0 }\n\
                    [[domain]]\nname = 'half.example'\nusers = 'any'\n[domain.quota]\nmessages = 7\n";
        let config = Config::parse(Path::new("x"), text).unwrap();
        let table = config.quota.table(&config.domains, &config.directory()).unwrap();
        let check = |account: &str, expected: QuotaLimits| {
            assert_eq!(*table.of(&format!("{account}/Maildir")), expected, "{account}");
        };
        check("example.org/ann", limits(0, 1000));
        check("example.org/bob", limits(1 << 30, 5));
        check("example.org/carol", limits(1 << 30, 1000));
        check("xn--bcher-kva.example/anybody", limits(5 << 30, 0));
        check("xn--bcher-kva.example/dora", limits(2 << 30, 0));
        check("half.example/x", limits(1 << 30, 7));
        check("else.example/x", limits(1 << 30, 1000));
        assert!(!config.quota.permanent);
    }

    #[test]
    fn a_quota_of_a_domain_alone_is_a_quota() {
        let is_set = |text: &str| {
            let config = Config::parse(Path::new("x"), text).unwrap();
            config.quota.is_set(&config.domains)
        };
        let domain = "[[domain]]\nname = 'example.org'\nusers = 'any'\n";
        assert!(!is_set(domain) && !is_set(&format!("{domain}quota = {{}}\n")));
        assert!(is_set(&format!("{domain}quota = {{ messages = 1 }}\n")));
        assert!(is_set(&format!("{domain}[quota]\nbytes = 1\n")));
    }

    #[test]
    fn a_wrong_quota_of_a_domain_is_shown_in_its_line() {
        for (quota, message) in [
            ("{ bytes = '5 GiBB' }", "x:3:19: `5 GiBB`"),
            ("{ messages = '5' }", "x:3:22: "),
            ("{ size = 1 }", "x:3:11: "),
            ("5", "x:3:9: "),
        ] {
            let text = format!("[[domain]]\nname = 'example.org'\nquota = {quota}\n");
            let error = Config::parse(Path::new("x"), &text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
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
