//! Commands that would change something: this server only reads yet.

use super::machine::{State, StatusAsk};
use super::{ImapEvent, ImapMachine};
use crate::command::{Appending, ImapCommand, ImapCommandError};
use posthaste_message::utf7;

pub(super) const READ_ONLY_SERVER: &str = "NO [CANNOT] Mailboxes cannot be changed here yet";
const READ_ONLY: &str = "NO [READ-ONLY] The mailbox is read-only";

impl ImapMachine {
    pub(super) fn refuse(&mut self, tag: String, command: ImapCommand) -> Option<ImapEvent> {
        match command {
            ImapCommand::Store { .. } | ImapCommand::Expunge(_) | ImapCommand::Move { .. } => {
                self.reply(&tag, READ_ONLY)
            }
            ImapCommand::Copy { mailbox, .. } => return self.ask_target(tag, &mailbox),
            ImapCommand::GetQuota(_)
            | ImapCommand::GetQuotaRoot(_)
            | ImapCommand::SetQuota { .. }
            | ImapCommand::Compress(_) => {
                self.bad(&tag, "That command is not offered");
            }
            _ => self.reply(&tag, READ_ONLY_SERVER),
        }
        None
    }

    /// An APPEND is answered before its message is asked for (decision 52); if the message comes all the same, after it was dropped.
    pub(super) fn append_refused(
        &mut self,
        tag: String,
        appending: Result<Appending, ImapCommandError>,
    ) -> Option<ImapEvent> {
        match appending {
            Ok(appending) => self.ask_target(tag, &appending.mailbox),
            Err(why) => {
                self.bad(&tag, &why.to_string());
                None
            }
        }
    }

    /// Asks whether there is a mailbox of that name: if not, clients make it and try again.
    fn ask_target(&mut self, tag: String, mailbox: &[u8]) -> Option<ImapEvent> {
        let Ok(name) = utf7::decode(mailbox) else {
            self.reply(&tag, "NO [CANNOT] That is no mailbox name");
            return None;
        };
        self.state = State::Status(StatusAsk::Target { tag });
        Some(ImapEvent::Status(name))
    }
}
