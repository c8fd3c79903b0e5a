//! Differences for a client that has enabled IMAP4rev2 (RFC 9051 appendix E).

use posthaste_message::utf7;

use super::ImapMachine;
use crate::write;

/// The octets are not a valid mailbox name.
#[derive(Debug)]
pub(super) struct NoName;

impl ImapMachine {
    /// Decodes a mailbox name into the store's form.
    pub(super) fn name(&self, octets: &[u8]) -> Result<String, NoName> {
        self.config.names.stored(self.clients_name(octets)?).ok_or(NoName)
    }

    /// Decodes a mailbox name, in the client's form: UTF-8, and in IMAP4rev1 modified UTF-7.
    pub(super) fn clients_name(&self, octets: &[u8]) -> Result<String, NoName> {
        if self.rev2 {
            std::str::from_utf8(octets).map(str::to_owned).map_err(|_| NoName)
        } else {
            utf7::decode(octets).map_err(|_| NoName)
        }
    }

    pub(super) fn write_name(&mut self, name: &str) {
        let name = self.config.names.shown(name);
        if self.rev2 { write::utf8(&mut self.out, &name) } else { write::mailbox(&mut self.out, &name) }
    }
}
