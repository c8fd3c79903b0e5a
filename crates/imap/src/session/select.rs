//! SELECT, EXAMINE, UNSELECT, CLOSE and STATUS.

use super::state::{Selecting, State};
use super::{ImapEvent, ImapMachine, MailRefusal, MailboxCounts, SelectedMailbox};
use crate::command::{Resync, SYSTEM_FLAGS, StatusItem};
use crate::set::NumberSet;

impl ImapMachine {
    pub(super) fn select(
        &mut self,
        tag: String,
        mailbox: &[u8],
        read_only: bool,
        resync: Option<Resync>,
    ) -> Option<ImapEvent> {
        let had_mailbox = self.mailbox.take().is_some();
        self.saved = NumberSet::default();
        let name = self.name(mailbox);
        if had_mailbox && self.tells_closed() {
            self.line("* OK [CLOSED] The mailbox before is closed");
        }
        let asks = name.is_ok();
        let selecting = Selecting { tag, read_only, had_mailbox, resync, name: name.unwrap_or_default(), asks };
        self.state = State::Selecting(Box::new(selecting));
        if !asks {
            self.selected(Err(MailRefusal::Gone));
        }
        had_mailbox.then_some(ImapEvent::Unselect)
    }

    pub(super) fn step_select(&mut self) -> Option<ImapEvent> {
        let State::Selecting(selecting) = &mut self.state else { unreachable!("a mailbox is being selected") };
        assert!(std::mem::take(&mut selecting.asks), "stepped while a mailbox is awaited");
        Some(ImapEvent::Select { mailbox: selecting.name.clone(), read_only: selecting.read_only })
    }

    /// True if CLOSED is reported (RFC 7162 section 3.2.11, RFC 9051 section 7.1).
    fn tells_closed(&self) -> bool {
        self.condstore || self.rev2
    }

    /// Answers [`ImapEvent::Select`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn selected(&mut self, answer: Result<SelectedMailbox, MailRefusal>) {
        let State::Selecting(selecting) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("selected in {:?}", self.state)
        };
        match answer {
            Ok(mailbox) => {
                self.tell_flags(&mailbox);
                self.line(&format!("* {} EXISTS", mailbox.exists));
                if !self.rev2 {
                    self.line(&format!("* {} RECENT", mailbox.recent));
                }
                if let Some(number) = mailbox.first_unseen.filter(|_| !self.rev2) {
                    self.line(&format!("* OK [UNSEEN {number}] First unseen message"));
                }
                self.line(&format!("* OK [UIDVALIDITY {}] UIDs are valid", mailbox.uid_validity));
                self.line(&format!("* OK [UIDNEXT {}] Next UID", mailbox.uid_next));
                self.line(&format!("* OK [HIGHESTMODSEQ {}] Highest", mailbox.highest_modseq));
                if self.rev2 {
                    self.text(&format!("* LIST () \"{}\" ", self.config.names.separator()));
                    self.write_name(&selecting.name);
                    self.line("");
                }
                let access = if mailbox.read_only { "READ-ONLY" } else { "READ-WRITE" };
                let uid_validity = mailbox.uid_validity;
                self.mailbox = Some(mailbox);
                let text = format!("OK [{access}] {} completed", selecting.command());
                match selecting.resync.filter(|resync| resync.uid_validity == uid_validity) {
                    Some(resync) => self.resync(selecting.tag, text, resync),
                    None => self.reply(&selecting.tag, &text),
                }
            }
            Err(why) => {
                if selecting.had_mailbox && !self.tells_closed() {
                    self.line("* OK [CLOSED] No mailbox is selected now");
                }
                self.reply(&selecting.tag, no_mailbox(why));
            }
        }
    }

    /// FLAGS and PERMANENTFLAGS (decision 54).
    pub(super) fn tell_flags(&mut self, mailbox: &SelectedMailbox) {
        let keywords = mailbox.keywords.iter().map(|(_, name)| name.as_str());
        let names: Vec<&str> = SYSTEM_FLAGS.iter().map(|(_, name)| *name).chain(keywords).collect();
        self.line(&format!("* FLAGS ({})", names.join(" ")));
        if mailbox.read_only {
            self.line("* OK [PERMANENTFLAGS ()] Read-only mailbox")
        } else {
            self.line(&format!("* OK [PERMANENTFLAGS ({} \\*)] These can be set", names.join(" ")))
        }
    }

    pub(super) fn unselect(&mut self, tag: String, name: &str) -> Option<ImapEvent> {
        self.mailbox = None;
        self.reply(&tag, &format!("OK {name} completed"));
        Some(ImapEvent::Unselect)
    }

    pub(super) fn ask_status(&mut self, tag: String, mailbox: &[u8], items: Vec<StatusItem>) -> Option<ImapEvent> {
        let Ok(name) = self.name(mailbox) else {
            self.reply(&tag, no_mailbox(MailRefusal::Gone));
            return None;
        };
        self.condstore |= items.contains(&StatusItem::HighestModSeq);
        self.state = State::Status { tag, name: name.clone(), items };
        Some(ImapEvent::Status(name))
    }

    /// Answers [`ImapEvent::Status`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn status(&mut self, answer: Result<MailboxCounts, MailRefusal>) {
        let State::Status { tag, name, items } = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a status in {:?}", self.state)
        };
        match answer {
            Ok(counts) => {
                self.tell_status(&name, &items, &counts);
                self.done(tag, "STATUS");
            }
            Err(why) => self.reply(&tag, no_mailbox(why)),
        }
    }

    pub(super) fn tell_status(&mut self, name: &str, items: &[StatusItem], counts: &MailboxCounts) {
        self.text("* STATUS ");
        self.write_name(name);
        let known = items.iter().filter_map(|item| Some(format!("{} {}", item.name(), counts.of(*item)?)));
        let known: Vec<String> = known.collect();
        self.line(&format!(" ({})", known.join(" ")));
    }
}

pub(super) fn no_mailbox(why: MailRefusal) -> &'static str {
    match why {
        MailRefusal::Gone => "NO [NONEXISTENT] There is no such mailbox",
        MailRefusal::NoPermission => "NO [NOPERM] That mailbox may not be read",
        MailRefusal::Damaged => "NO [CORRUPTION] That mailbox is damaged",
        _ => "NO [UNAVAILABLE] That mailbox cannot be read now, try again later",
    }
}
