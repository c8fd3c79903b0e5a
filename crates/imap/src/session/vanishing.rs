//! QRESYNC (RFC 7162 section 3.2): vanished UIDs, in SELECT, in UID FETCH and instead of EXPUNGE.

use super::state::State;
use super::{ExpungedRow, ImapEvent, ImapMachine, MailRefusal};
use crate::set::NumberSet;

/// Maximum ranges of one line.
const RANGES_MAX: usize = 1000;

impl ImapMachine {
    pub(super) fn step_vanishing(&mut self) -> Option<ImapEvent> {
        let State::Vanishing(vanishing) = &mut self.state else { unreachable!("something vanished") };
        assert!(!std::mem::replace(&mut vanishing.asked, true), "stepped while an answer is awaited");
        Some(ImapEvent::Vanished { since: vanishing.since })
    }

    /// Answers [`ImapEvent::Vanished`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn vanished(&mut self, answer: Result<NumberSet, MailRefusal>) {
        let State::Vanishing(vanishing) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("vanished in {:?}", self.state)
        };
        let mut then = vanishing.then;
        match answer {
            Ok(uids) => self.tell_vanished(" (EARLIER)", &uids.common(&vanishing.among)),
            Err(why) => then.fail(why),
        }
        self.state = State::Fetching(then);
    }

    /// Reports expunged messages with VANISHED, once QRESYNC is enabled; else with EXPUNGE.
    pub(super) fn tell_expunged(&mut self, expunged: &[ExpungedRow]) {
        if !self.qresync {
            return expunged.iter().for_each(|row| self.line(&format!("* {} EXPUNGE", row.number)));
        }
        let mut uids = NumberSet::default();
        expunged.iter().rev().for_each(|row| uids.push(row.uid));
        self.tell_vanished("", &uids);
    }

    fn tell_vanished(&mut self, tag: &str, uids: &NumberSet) {
        for piece in uids.pieces(RANGES_MAX) {
            self.line(&format!("* VANISHED{tag} {}", piece.text()));
        }
    }
}
