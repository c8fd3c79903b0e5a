//! Files that an import moves: each gets a second name in `tmp/` of the mailbox, from which the server takes it.
//!
//! The source name is removed once the message is durable, as with a copy. So a kill at any moment loses nothing, and a
//! repeated import finds the message or the file.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_maildir::{MailRoot, MailboxPath, Maildir};

use super::source::{ReadFile, SourceFile};

/// Files that are moved into the mailbox, with `--move`.
pub struct MovedFiles {
    /// Path of the directory of all mail.
    root: PathBuf,
    /// The open mailbox. `None`: octets are sent.
    maildir: Option<Maildir>,
    /// Names made in its `tmp/` since the last answer.
    names: Vec<String>,
    /// The prefix of these names.
    prefix: String,
    count: u64,
}

impl MovedFiles {
    /// `root`: the directory of all mail.
    pub fn new(root: PathBuf) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let prefix = format!("{}.I{}P{}", now.as_secs(), now.subsec_nanos(), std::process::id());
        Self { root, maildir: None, names: Vec::new(), prefix, count: 0 }
    }

    /// Switches to another mailbox, in this directory below the mail directory.
    pub fn open(&mut self, folder: Option<String>) {
        let opened = folder.and_then(|folder| {
            let path = MailboxPath::parse(&folder).ok()?;
            MailRoot::open(&self.root).and_then(|root| root.existing_mailbox(&path)).ok()
        });
        self.maildir = opened;
    }

    /// A second name of a file in `tmp/` of the mailbox; `None`: its octets must be sent.
    pub fn link(&mut self, file: &SourceFile, read: &ReadFile) -> Option<String> {
        let maildir = self.maildir.as_ref()?;
        let name = format!("{}Q{}", self.prefix, self.count);
        if !file.link_to(maildir, &name, read).unwrap_or(false) {
            return None;
        }
        self.count += 1;
        self.names.push(name.clone());
        Some(name)
    }

    /// Removes the names that are still in `tmp/`, after the server has taken the files or refused them.
    pub fn answered(&mut self) {
        for name in self.names.drain(..) {
            // The server has given it another name, or has removed it. What stays is removed when it is old.
            let _ = self.maildir.as_ref().map(|maildir| maildir.remove_tmp(&name));
        }
    }
}
