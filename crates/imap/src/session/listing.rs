//! LIST, LSUB and LIST-STATUS.

use super::names::NameForm;
use super::select::no_mailbox;
use super::state::{Listing, State};
use super::{ImapEvent, ImapMachine, ListedName, MailRefusal};
use crate::command::ListCommand;

/// Maximum octets of all patterns: matching time is the product with the name's length.
const PATTERN_BYTES_MAX: usize = 2048;

impl ImapMachine {
    pub(super) fn list(&mut self, tag: String, list: ListCommand) -> Option<ImapEvent> {
        if list.selection.recursive && !list.selection.subscribed {
            self.reply(&tag, "NO [CANNOT] RECURSIVEMATCH is for SUBSCRIBED only");
            return None;
        }
        if !list.is_extended && list.patterns.iter().all(Vec::is_empty) {
            // Asks for the separator (RFC 3501 section 6.3.8).
            self.line(&format!("* LIST (\\Noselect) \"{}\" \"\"", self.config.names.separator()));
            return self.done(tag, "LIST");
        }
        let listing = Listing {
            tag,
            is_lsub: false,
            is_extended: list.is_extended,
            recursive: list.selection.recursive,
            tells_subscribed: list.returns.subscribed || list.selection.subscribed,
            special_use_only: list.selection.special_use,
            status: list.returns.status,
            leaves_out_inbox: false,
            asked: false,
        };
        self.open_list(listing, &list.reference, &list.patterns, list.selection.subscribed)
    }

    pub(super) fn lsub(&mut self, tag: String, reference: &[u8], pattern: &[u8]) -> Option<ImapEvent> {
        let listing = Listing {
            tag,
            is_lsub: true,
            is_extended: false,
            // `%` finds names of which only those below are subscribed (RFC 3501 section 6.3.9).
            recursive: pattern.contains(&b'%'),
            tells_subscribed: false,
            special_use_only: false,
            status: Vec::new(),
            leaves_out_inbox: false,
            asked: false,
        };
        self.open_list(listing, reference, &[pattern.to_vec()], true)
    }

    fn open_list(
        &mut self,
        mut listing: Listing,
        reference: &[u8],
        patterns: &[Vec<u8>],
        subscribed: bool,
    ) -> Option<ImapEvent> {
        let octets: usize = patterns.iter().map(|pattern| reference.len() + pattern.len()).sum();
        if octets > PATTERN_BYTES_MAX {
            self.reply(&listing.tag, "NO [LIMIT] The pattern is too long");
            return None;
        }
        let joined = patterns.iter().map(|pattern| [reference, pattern].concat());
        // Anything but modified UTF-7 matches no name.
        let patterns: Vec<String> = joined.filter_map(|pattern| self.clients_name(&pattern).ok()).collect();
        let names = self.config.names;
        listing.leaves_out_inbox = !patterns.iter().any(|pattern| names.matches_inbox(pattern));
        let patterns = patterns.into_iter().flat_map(|pattern| names.stored_patterns(pattern)).collect();
        let status = !listing.status.is_empty();
        let recursive = listing.recursive;
        self.state = State::Listing(Box::new(listing));
        Some(ImapEvent::List { patterns, subscribed, recursive, status })
    }

    /// Answers [`ImapEvent::List`].
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn list_opened(&mut self, answer: Result<(), MailRefusal>) {
        assert!(matches!(self.state, State::Listing(_)), "a list in {:?}", self.state);
        if let Err(why) = answer {
            self.end_list(Some(why));
        }
    }

    pub(super) fn step_list(&mut self) -> Option<ImapEvent> {
        let State::Listing(listing) = &mut self.state else { unreachable!("names are being listed") };
        assert!(!std::mem::replace(&mut listing.asked, true), "stepped while a name is awaited");
        Some(ImapEvent::NextName)
    }

    /// Answers [`ImapEvent::NextName`]; `None` at the end.
    ///
    /// # Panics
    /// If that event is not pending.
    pub fn listed(&mut self, answer: Result<Option<ListedName>, MailRefusal>) {
        let State::Listing(mut listing) = std::mem::replace(&mut self.state, State::Command) else {
            panic!("a name in {:?}", self.state)
        };
        assert!(std::mem::take(&mut listing.asked), "a name without a question");
        let next = answer.map(|name| name.inspect(|name| self.tell_name(&listing, name)).is_some());
        self.state = State::Listing(listing);
        match next {
            Ok(true) => {}
            Ok(false) => self.end_list(None),
            Err(why) => self.end_list(Some(why)),
        }
    }

    fn end_list(&mut self, why: Option<MailRefusal>) {
        let State::Listing(listing) = std::mem::replace(&mut self.state, State::Command) else { return };
        match why {
            Some(why) => self.reply(&listing.tag, no_mailbox(why)),
            None => drop(self.done(listing.tag, if listing.is_lsub { "LSUB" } else { "LIST" })),
        }
    }

    fn tell_name(&mut self, listing: &Listing, name: &ListedName) {
        let is_left_out = listing.leaves_out_inbox && name.name == "INBOX";
        if is_left_out || listing.special_use_only && name.special_use.is_none() {
            return;
        }
        // Of these names all others are below INBOX.
        let is_above_all = name.name == "INBOX" && self.config.names == NameForm::DotBelowInbox;
        let children = if name.has_children || is_above_all { "\\HasChildren" } else { "\\HasNoChildren" };
        let attributes = [
            if listing.is_lsub {
                Some("\\Noselect").filter(|_| !name.is_mailbox || !name.subscribed)
            } else if listing.is_extended || self.rev2 {
                // Clients of RFC 3501 alone do not know the other one (decision 22).
                Some("\\NonExistent").filter(|_| !name.is_mailbox)
            } else {
                Some("\\Noselect").filter(|_| !name.is_mailbox)
            },
            Some(children).filter(|_| !listing.is_lsub),
            Some("\\Subscribed").filter(|_| listing.tells_subscribed && name.subscribed),
            name.special_use.filter(|_| !listing.is_lsub),
        ];
        let attributes: Vec<&str> = attributes.into_iter().flatten().collect();
        let word = if listing.is_lsub { "LSUB" } else { "LIST" };
        self.text(&format!("* {word} ({}) \"{}\" ", attributes.join(" "), self.config.names.separator()));
        self.write_name(&name.name);
        // RFC 5258 section 3.5.
        let has_child = listing.recursive && !listing.is_lsub && name.subscribed_below;
        self.line(if has_child { " (\"CHILDINFO\" (\"SUBSCRIBED\"))" } else { "" });
        if let Some(counts) = name.counts.filter(|_| !listing.status.is_empty()) {
            self.tell_status(&name.name, &listing.status, &counts);
        }
    }
}
