//! STORE, EXPUNGE, CLOSE, COPY and MOVE.

use super::refuse::{READ_ONLY, refusal};
use super::state::{AfterChanges, Change, Reply, State, Storing};
use super::{CopiedMail, FlagsUpdate, ImapEvent, ImapMachine, MailRefusal, StoredMail};
use crate::command::FetchItem;
use crate::set::{NumberSet, SequenceSet};

impl ImapMachine {
    /// True if the selected mailbox may be changed; otherwise answers NO (decision 51).
    fn check_writable(&mut self, tag: &str) -> bool {
        let may = self.mailbox.as_ref().is_some_and(|mailbox| !mailbox.read_only);
        if !may {
            self.reply(tag, READ_ONLY);
        }
        may
    }

    pub(super) fn store(
        &mut self,
        tag: String,
        uid: bool,
        set: &SequenceSet,
        update: FlagsUpdate,
        silent: bool,
        unchanged_since: Option<u64>,
    ) -> Option<ImapEvent> {
        if !self.check_writable(&tag) {
            return None;
        }
        let set = self.choice(&tag, uid, set)?;
        let storing = Storing { tag, uid, set: set.clone(), update: update.clone(), silent };
        self.state = State::Changing(Change::Store(Box::new(storing)));
        Some(ImapEvent::Store { uid, set, update, unchanged_since })
    }

    /// Answers [`ImapEvent::Store`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn stored(&mut self, answer: Result<StoredMail, MailRefusal>) {
        let State::Changing(Change::Store(storing)) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("stored in {:?}", self.state)
        };
        let name = if storing.uid { "UID STORE" } else { "STORE" };
        let text = match answer {
            Ok(stored) if !stored.modified.is_empty() => {
                format!("OK [MODIFIED {}] {name} was not done for these", stored.modified.text())
            }
            // Of UIDs that are gone nothing is said (decision 11).
            Ok(stored) if stored.gone && !storing.uid => format!("OK [EXPUNGEISSUED] {name} completed"),
            Ok(_) => format!("OK {name} completed"),
            Err(why) => {
                self.finish_with(storing.tag, refusal(why), storing.uid);
                return;
            }
        };
        self.state = State::Storing { storing, text };
    }

    /// Applies a stored change to the view. If flags are reported, message numbers stay unchanged until then.
    pub(super) fn step_stored(&mut self) -> Option<ImapEvent> {
        let State::Storing { storing, text } = std::mem::replace(&mut self.state, State::Command) else {
            unreachable!("flags were stored")
        };
        let may_expunge = storing.uid && storing.silent;
        self.state = State::Changes(AfterChanges::Stored { storing, text });
        self.has_changed = true;
        Some(self.ask_changes(may_expunge))
    }

    /// Reports the flags of all messages of the set, unless the client wants none.
    pub(super) fn tell_stored(&mut self, storing: Storing, text: String) {
        let Storing { tag, uid, set, silent, .. } = storing;
        if silent {
            return self.reply(&tag, &text);
        }
        let mut items = vec![FetchItem::Flags];
        // With QRESYNC a client may count by UIDs alone (RFC 7162 section 3.2.4).
        if uid || self.qresync {
            items.insert(0, FetchItem::Uid);
        }
        if self.condstore {
            items.push(FetchItem::ModSeq);
        }
        self.tell_items(tag, text, uid, set, items);
    }

    pub(super) fn mark_seen(&mut self, reply: Reply, may_expunge: bool, seen: NumberSet) -> Option<ImapEvent> {
        self.state = State::Changing(Change::Seen { reply, may_expunge });
        Some(ImapEvent::MarkSeen(seen))
    }

    /// Answers [`ImapEvent::MarkSeen`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn marked_seen(&mut self) {
        let State::Changing(Change::Seen { reply, may_expunge }) = std::mem::replace(&mut self.state, State::Command)
        else {
            panic!("marked as seen in {:?}", self.state)
        };
        self.has_changed = true;
        self.finish_with(reply.tag, reply.text, may_expunge);
    }

    pub(super) fn expunge(&mut self, tag: String, uids: Option<&SequenceSet>) -> Option<ImapEvent> {
        if !self.check_writable(&tag) {
            return None;
        }
        let last_uid = self.mailbox.as_ref().map_or(0, |mailbox| mailbox.last_uid);
        self.state = State::Changing(Change::Expunge { tag, uid: uids.is_some() });
        let resolved = |uids: &SequenceSet| if uids.is_saved() { self.saved.clone() } else { uids.resolve(last_uid) };
        Some(ImapEvent::Expunge(uids.map(resolved)))
    }

    /// CLOSE expunges where permitted (decision 51).
    pub(super) fn ask_close(&mut self, tag: String) -> Option<ImapEvent> {
        if self.mailbox.as_ref().is_none_or(|mailbox| mailbox.read_only) {
            return self.unselect(tag, "CLOSE");
        }
        self.state = State::Changing(Change::Close { tag });
        Some(ImapEvent::Expunge(None))
    }

    pub(super) fn close(&mut self) -> Option<ImapEvent> {
        let State::Closing { tag, code } = std::mem::replace(&mut self.state, State::Command) else {
            unreachable!("a mailbox is being closed")
        };
        if code.is_none() && self.qresync {
            self.expunges = true;
            self.state = State::Changes(AfterChanges::Close { tag });
            return Some(self.ask_changes(true));
        }
        self.mailbox = None;
        self.reply(&tag, &format!("OK {}CLOSE completed", code.unwrap_or_default()));
        Some(ImapEvent::Unselect)
    }

    /// Answers [`ImapEvent::Expunge`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn expunged(&mut self, answer: Result<(), MailRefusal>) {
        let State::Changing(change) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("expunged in {:?}", self.state)
        };
        self.has_changed = answer.is_ok();
        match (change, answer) {
            (Change::Expunge { tag, uid }, Ok(())) => {
                self.expunges = true;
                drop(self.done(tag, if uid { "UID EXPUNGE" } else { "EXPUNGE" }));
            }
            (Change::Close { tag }, Ok(())) => self.state = State::Closing { tag, code: None },
            // The mailbox stays selected, so that the client can try again.
            (Change::Expunge { tag, .. } | Change::Close { tag }, Err(why)) => {
                self.finish_with(tag, refusal(why), true);
            }
            (change, _) => panic!("expunged while {change:?} is awaited"),
        }
    }

    pub(super) fn copy(
        &mut self,
        tag: String,
        uid: bool,
        set: &SequenceSet,
        mailbox: &[u8],
        moves: bool,
    ) -> Option<ImapEvent> {
        if moves && !self.check_writable(&tag) {
            return None;
        }
        let set = self.choice(&tag, uid, set)?;
        let Ok(mailbox) = self.name(mailbox) else {
            self.reply(&tag, "NO [CANNOT] That is not a mailbox name");
            return None;
        };
        self.state = State::Changing(Change::Copy { tag, moves });
        Some(ImapEvent::Copy { set, mailbox, moves })
    }

    /// Answers [`ImapEvent::Copy`]. `None`: the messages are gone. [`MailRefusal::Gone`]: no such mailbox.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn copied(&mut self, answer: Result<Option<CopiedMail>, MailRefusal>) {
        let State::Changing(Change::Copy { tag, moves }) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("copied in {:?}", self.state)
        };
        self.has_changed = answer.is_ok();
        let name = if moves { "MOVE" } else { "COPY" };
        let code = |CopiedMail { uid_validity, from, to }: &CopiedMail| {
            format!("[COPYUID {uid_validity} {} {}]", from.text(), to.text())
        };
        let text = match answer {
            // Before the EXPUNGEs that follow (RFC 6851 section 4.3).
            Ok(Some(copied)) if moves => {
                self.line(&format!("* OK {} Moved", code(&copied)));
                self.expunges = true;
                format!("OK {name} completed")
            }
            Ok(Some(copied)) => format!("OK {} {name} completed", code(&copied)),
            // No NO: it would leave ghosts on phones (decision 11).
            Ok(None) => format!("OK {name} completed"),
            Err(MailRefusal::Gone) => "NO [TRYCREATE] There is no such mailbox".into(),
            Err(why) => refusal(why),
        };
        self.finish_with(tag, text, true);
    }
}
