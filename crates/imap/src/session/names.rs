//! Mailbox names as clients write them. The store uses `/` between levels; clients that come from another server may
//! expect `.`, or `INBOX.` in front of all names.

use std::borrow::Cow;

/// Form of mailbox names in a session. While it stays the same, names do not change for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NameForm {
    /// `Work/2026`.
    #[default]
    Slash,
    /// `Work.2026`, as in Courier and Dovecot with Maildirs. A dot in a level is shown as `/`.
    Dot,
    /// `INBOX.Work.2026`: all names are below INBOX.
    DotBelowInbox,
}

const INBOX: &str = "INBOX";
/// Prefix of all names except INBOX.
const PREFIX: &str = "INBOX.";

impl NameForm {
    /// Separator between levels.
    pub(super) fn separator(self) -> &'static str {
        if self == Self::Slash { "/" } else { "." }
    }

    /// The prefix of the personal namespace (RFC 2342).
    pub(super) fn prefix(self) -> &'static str {
        if self == Self::DotBelowInbox { PREFIX } else { "" }
    }

    /// Converts a client's name to the store's. `None`: no mailbox can have the name.
    pub(super) fn stored(self, name: String) -> Option<String> {
        match self {
            Self::Slash => Some(name),
            Self::Dot => Some(swapped(&name)),
            Self::DotBelowInbox if name.eq_ignore_ascii_case(INBOX) => Some(name),
            Self::DotBelowInbox => {
                let (prefix, name) = name.split_at_checked(PREFIX.len())?;
                // INBOX has one name.
                let is_name = prefix.eq_ignore_ascii_case(PREFIX) && !name.eq_ignore_ascii_case(INBOX);
                is_name.then(|| swapped(name))
            }
        }
    }

    /// Converts a name in the store to the client's form.
    pub(super) fn shown(self, name: &str) -> Cow<'_, str> {
        match self {
            Self::Slash => Cow::Borrowed(name),
            Self::DotBelowInbox if name == INBOX => Cow::Borrowed(name),
            Self::Dot | Self::DotBelowInbox => Cow::Owned(format!("{}{}", self.prefix(), swapped(name))),
        }
    }

    /// LIST patterns for the store that match the same mailboxes as this one does for the client. Some may match INBOX
    /// although this one does not: see [`matches_inbox`](Self::matches_inbox).
    pub(super) fn stored_patterns(self, pattern: String) -> Vec<String> {
        match self {
            Self::Slash => vec![pattern],
            Self::Dot => vec![swapped(&pattern)],
            Self::DotBelowInbox => {
                let pattern: Vec<char> = pattern.chars().collect();
                let inbox = reached(&pattern, INBOX).contains(&pattern.len()).then(|| INBOX.to_owned());
                let rest = |at: usize| swapped(&String::from_iter(&pattern[at..]));
                let below = reached(&pattern, PREFIX).into_iter().filter(|at| *at < pattern.len()).map(rest);
                // No name begins with a separator.
                inbox.into_iter().chain(below.filter(|rest| !rest.starts_with('/'))).collect()
            }
        }
    }

    /// True if a LIST pattern matches INBOX, which the patterns for the store cannot express.
    pub(super) fn matches_inbox(self, pattern: &str) -> bool {
        let pattern: Vec<char> = pattern.chars().collect();
        self != Self::DotBelowInbox || reached(&pattern, INBOX).contains(&pattern.len())
    }
}

/// Exchanges dots within levels and the separator, so that the conversion is reversible.
fn swapped(name: &str) -> String {
    let swap = |next| match next {
        '.' => '/',
        '/' => '.',
        next => next,
    };
    name.chars().map(swap).collect()
}

/// Positions in a pattern after matching this text, in any case.
fn reached(pattern: &[char], text: &str) -> Vec<usize> {
    let with_wildcards = |positions: Vec<usize>| {
        let mut all = vec![false; pattern.len() + 1];
        for mut at in positions {
            all[at] = true;
            // A wildcard may stand for nothing.
            while pattern.get(at).is_some_and(|next| matches!(next, '*' | '%')) {
                at += 1;
                all[at] = true;
            }
        }
        (0..all.len()).filter(|at| all[*at]).collect::<Vec<usize>>()
    };
    let mut positions = with_wildcards(vec![0]);
    for next in text.chars() {
        let step = |at: usize| match pattern.get(at)? {
            '*' => Some(at),
            '%' => (next != '.').then_some(at),
            wanted => wanted.eq_ignore_ascii_case(&next).then_some(at + 1),
        };
        positions = with_wildcards(positions.into_iter().filter_map(step).collect());
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_form_and_comes_back() {
        for name in ["INBOX", "Work", "Work/2026", "INBOX/x", "v1.0", "v1.0/a"] {
            for form in [NameForm::Slash, NameForm::Dot, NameForm::DotBelowInbox] {
                let shown = form.shown(name).into_owned();
                assert_eq!(form.stored(shown.clone()).as_deref(), Some(name), "{form:?} {shown}");
            }
        }
        assert_eq!(NameForm::Dot.shown("v1.0/a"), "v1/0.a");
        assert_eq!(NameForm::DotBelowInbox.shown("Work/2026"), "INBOX.Work.2026");
        for other in ["Work", "INBOX.INBOX", "inbox.inbox", "INBOX/Work", "INBO", "\u{e9}\u{e9}\u{e9}\u{e9}"] {
            assert_eq!(NameForm::DotBelowInbox.stored(other.to_owned()), None, "{other}");
        }
        assert_eq!(NameForm::DotBelowInbox.stored("inbox.Work".to_owned()).as_deref(), Some("Work"));
    }

    #[test]
    fn a_pattern_is_meant_for_names_below_inbox() {
        let check = |pattern: &str, stored: &[&str], inbox: bool| {
            let form = NameForm::DotBelowInbox;
            assert_eq!(form.stored_patterns(pattern.to_owned()), stored, "{pattern}");
            assert_eq!(form.matches_inbox(pattern), inbox, "{pattern}");
        };
        check("*", &["INBOX", "*"], true);
        check("%", &["INBOX"], true);
        check("INBOX.%", &["%"], false);
        check("inbox.Work.*", &["Work/*"], false);
        check("INBOX*", &["INBOX", "*"], true);
        check("INBOX", &["INBOX"], true);
        check("%.Sent", &["Sent"], false);
        check("IN*.Sent", &["*/Sent", "Sent"], false);
        check("Sent", &[], false);
        assert_eq!(NameForm::Dot.stored_patterns("Work.%".to_owned()), ["Work/%"]);
    }
}
