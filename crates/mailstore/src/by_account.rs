//! Settings of accounts: of one, of those below a directory, or of all.

use std::collections::HashMap;

/// A setting of accounts. The most exact one counts.
#[derive(Debug, Clone, Default)]
pub struct ByAccount<T> {
    /// That of all other accounts.
    pub default: T,
    /// By the first directory of an INBOX's path.
    pub by_directory: HashMap<String, T>,
    /// By the path of an INBOX.
    pub by_inbox: HashMap<String, T>,
}

impl<T> ByAccount<T> {
    /// The setting of the account with this INBOX.
    pub fn of(&self, inbox: &str) -> &T {
        let of_directory = || self.by_directory.get(inbox.split_once('/')?.0);
        self.by_inbox.get(inbox).or_else(of_directory).unwrap_or(&self.default)
    }
}
