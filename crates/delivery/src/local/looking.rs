//! Search for many messages in a mailbox with one scan.

use std::collections::HashMap;
use std::io;

use posthaste_maildir::{Found, Maildir};

/// Files of many messages, as one scan found them.
pub(crate) struct FoundMessages {
    by_key: HashMap<String, Found>,
    /// Result of making the absence of the missing files durable.
    gone: io::Result<()>,
}

impl Default for FoundMessages {
    fn default() -> Self {
        FoundMessages { by_key: HashMap::new(), gone: Ok(()) }
    }
}

impl FoundMessages {
    /// True if the scan found the file.
    pub fn has(&self, key: &str) -> bool {
        self.by_key.contains_key(key)
    }

    /// The message's file; `None` if its absence is durable: no power cut brings it back beside its replacement.
    ///
    /// # Errors
    /// The file is missing, but a power cut may bring it back.
    pub fn get(&self, key: &str) -> io::Result<Option<&Found>> {
        match (self.by_key.get(key), &self.gone) {
            (None, Err(error)) => Err(copy(error)),
            (found, _) => Ok(found),
        }
    }
}

/// Searches for many messages with one scan.
pub(crate) fn look(maildir: &Maildir, keys: &[String]) -> io::Result<FoundMessages> {
    let by_key = maildir.find_many(keys.iter().map(String::as_str))?;
    let gone = if by_key.len() < keys.len() { maildir.sync_moves() } else { Ok(()) };
    Ok(FoundMessages { by_key, gone })
}

/// Copies an error that several messages share.
pub(crate) fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}
