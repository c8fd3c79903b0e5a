//! CREATE, DELETE, RENAME, SUBSCRIBE and UNSUBSCRIBE.

use super::refuse::refusal;
use super::state::{Change, State};
use super::{ImapEvent, ImapMachine, MailRefusal, MailboxChange};

const NO_NAME: &str = "NO [CANNOT] That is not a mailbox name";

/// Checks the name of a mailbox to create (decisions 19 and 21). A trailing separator, which announces children, is
/// removed.
fn new_name(name: Option<String>) -> Result<String, &'static str> {
    let name = name.ok_or(NO_NAME)?;
    if name.contains(['*', '%']) {
        return Err("NO [CANNOT] A mailbox name has no * or %");
    }
    Ok(name.strip_suffix('/').map(str::to_owned).unwrap_or(name))
}

impl ImapMachine {
    pub(super) fn create(&mut self, tag: String, mailbox: &[u8], uses: &[String]) -> Option<ImapEvent> {
        if uses.len() > 1 {
            self.reply(&tag, "NO [USEATTR] A mailbox has one special use");
            return None;
        }
        let special_use = uses.first().cloned();
        let change = new_name(self.name(mailbox).ok()).map(|mailbox| MailboxChange::Create { mailbox, special_use });
        self.manage(tag, "CREATE", change)
    }

    pub(super) fn delete(&mut self, tag: String, mailbox: &[u8]) -> Option<ImapEvent> {
        let change = self.name(mailbox).map(MailboxChange::Delete);
        self.manage(tag, "DELETE", change.map_err(|_| "NO [NONEXISTENT] There is no such mailbox"))
    }

    pub(super) fn rename(&mut self, tag: String, from: &[u8], to: &[u8]) -> Option<ImapEvent> {
        let to = self.name(to).ok();
        let from = self.name(from).map_err(|_| "NO [NONEXISTENT] There is no such mailbox");
        let change = from.and_then(|from| Ok(MailboxChange::Rename { from, to: new_name(to)? }));
        self.manage(tag, "RENAME", change)
    }

    pub(super) fn subscribe(&mut self, tag: String, mailbox: &[u8], on: bool) -> Option<ImapEvent> {
        let change = self.name(mailbox).map(|mailbox| MailboxChange::Subscribe { mailbox, on });
        self.manage(tag, if on { "SUBSCRIBE" } else { "UNSUBSCRIBE" }, change.map_err(|_| NO_NAME))
    }

    fn manage(
        &mut self,
        tag: String,
        name: &'static str,
        change: Result<MailboxChange, &'static str>,
    ) -> Option<ImapEvent> {
        match change {
            Ok(change) => {
                self.state = State::Changing(Change::Mailboxes { tag, name });
                Some(ImapEvent::Manage(change))
            }
            Err(why) => {
                self.reply(&tag, why);
                None
            }
        }
    }

    /// Answers [`ImapEvent::Manage`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn managed(&mut self, answer: Result<(), MailRefusal>) {
        let State::Changing(Change::Mailboxes { tag, name }) = std::mem::replace(&mut self.state, State::Command)
        else {
            panic!("managed in {:?}", self.state)
        };
        match answer {
            // It may be the selected one: then the next command hears of it, after this reply.
            Ok(()) if name == "DELETE" => self.reply(&tag, "OK DELETE completed"),
            Ok(()) => drop(self.done(tag, name)),
            Err(why) => drop(self.finish_with(tag, refusal(why), true)),
        }
    }
}
