//! The end of a command: reports changes of the view, then sends the tagged reply.

use super::state::{AfterChanges, Reply, State, Storing};
use super::{ImapEvent, ImapMachine, MailChanges, MailRefusal, SelectedMailbox, ViewRow};
use crate::command::SYSTEM_FLAGS;
use crate::set::NumberSet;

impl ImapMachine {
    /// Ends a command. Changes of the view are reported first.
    pub(super) fn done(&mut self, tag: String, name: &str) -> Option<ImapEvent> {
        self.finish_with(tag, format!("OK {name} completed"), true)
    }

    pub(super) fn finish_with(&mut self, tag: String, text: String, may_expunge: bool) -> Option<ImapEvent> {
        self.finish_seen(Reply { tag, text }, may_expunge, NumberSet::default())
    }

    /// Ends a command that has read messages.
    pub(super) fn finish_seen(&mut self, reply: Reply, may_expunge: bool, seen: NumberSet) -> Option<ImapEvent> {
        self.state = State::Finishing { reply, may_expunge, seen };
        None
    }

    pub(super) fn finish(&mut self) -> Option<ImapEvent> {
        let State::Finishing { reply, may_expunge, seen } = std::mem::replace(&mut self.state, State::Command) else {
            unreachable!("a command is being finished")
        };
        if !seen.is_empty() {
            return self.mark_seen(reply, may_expunge, seen);
        }
        if self.mailbox.is_none() {
            self.reply(&reply.tag, &reply.text);
            return None;
        }
        self.state = State::Changes(AfterChanges::Reply(reply));
        Some(self.ask_changes(may_expunge))
    }

    pub(super) fn ask_changes(&self, may_expunge: bool) -> ImapEvent {
        ImapEvent::Changes { may_expunge, looks: !self.has_changed }
    }

    /// Answers [`ImapEvent::Changes`]. If the mailbox is [gone](MailRefusal::Gone), the session ends (decision 14).
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn changes(&mut self, changes: Result<MailChanges, MailRefusal>) {
        let State::Changes(after) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("changes in {:?}", self.state)
        };
        let expunges = std::mem::take(&mut self.expunges);
        let mut code = String::new();
        match changes {
            Ok(changes) => {
                if expunges && self.qresync && !changes.expunged.is_empty() {
                    let told = self.mailbox.as_ref().map(|mailbox| mailbox.highest_modseq);
                    // CLOSE tells of no change. With a higher number the client would never ask for those that others
                    // have made (decision 53); its own ones it may hear of again.
                    let told = told.filter(|_| matches!(after, AfterChanges::Close { .. }));
                    code = format!("[HIGHESTMODSEQ {}] ", told.unwrap_or(changes.highest_modseq));
                }
                match after {
                    // The mailbox closes: nobody needs to hear of its messages.
                    AfterChanges::Close { .. } => {}
                    _ => self.tell_changes(changes, after.storing()),
                }
            }
            Err(MailRefusal::Gone) => return self.bye("The selected mailbox was deleted"),
            // Later commands ask again.
            Err(_) => {}
        }
        match after {
            AfterChanges::Reply(Reply { tag, text }) => match text.strip_prefix("OK ") {
                Some(text) => self.reply(&tag, &format!("OK {code}{text}")),
                None => self.reply(&tag, &text),
            },
            AfterChanges::Close { tag } => self.state = State::Closing { tag, code: Some(code) },
            AfterChanges::Idle { tag } => self.state = State::Idle { tag },
            AfterChanges::Stored { storing, text } => self.tell_stored(*storing, text),
        }
    }

    /// Reports changes. `own`: the STORE that is being answered.
    fn tell_changes(&mut self, changes: MailChanges, own: Option<&Storing>) {
        let Some(mut mailbox) = self.mailbox.take() else { return };
        self.tell_expunged(&changes.expunged);
        mailbox.exists -= changes.expunged.len() as u32;
        if let Some(exists) = changes.exists {
            self.line(&format!("* {exists} EXISTS"));
            mailbox.exists = exists;
        }
        if let Some(recent) = changes.recent.filter(|_| !self.rev2) {
            self.line(&format!("* {recent} RECENT"));
            mailbox.recent = recent;
        }
        (mailbox.last_uid, mailbox.highest_modseq) = (changes.last_uid, changes.highest_modseq);
        if let Some(keywords) = changes.keywords {
            mailbox.keywords = keywords;
            self.tell_flags(&mailbox);
        }
        for changed in &changes.flags {
            let row = &changed.row;
            // Only its MODSEQ is another one.
            if changed.before == row.flags && !self.condstore {
                continue;
            }
            if own.is_none_or(|own| own.passes(changed, &mailbox)) {
                self.text(&format!("* {} FETCH (UID {} FLAGS ", row.number, row.uid));
                self.write_flags(&mailbox, row);
                self.line(&if self.condstore { format!(" MODSEQ ({}))", row.modseq) } else { ")".into() });
            } else if self.condstore && own.is_some_and(|own| own.is_silent_about(row)) {
                self.line(&format!("* {} FETCH (UID {} MODSEQ ({}))", row.number, row.uid, row.modseq));
            }
        }
        self.mailbox = Some(mailbox);
    }

    /// Writes the flags of a message: `(flag flag …)`.
    pub(super) fn write_flags(&mut self, mailbox: &SelectedMailbox, row: &ViewRow) {
        self.out.push(b'(');
        let keywords = mailbox.keywords.iter().map(|(bit, name)| (*bit, name.as_str()));
        let set = SYSTEM_FLAGS.into_iter().chain(keywords).filter(|(bit, _)| row.flags & bit != 0);
        let names = set.map(|(_, name)| name).chain((row.recent && !self.rev2).then_some("\\Recent"));
        for (at, name) in names.enumerate() {
            if at > 0 {
                self.out.push(b' ');
            }
            self.out.extend_from_slice(name.as_bytes());
        }
        self.out.push(b')');
    }
}
