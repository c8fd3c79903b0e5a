//! Removed mailboxes, each with the batch before which its mail is not delivered.

use std::collections::BTreeMap;
use std::sync::Arc;

use posthaste_spool::Lsn;

use super::entry::Removal;

/// Removed mailboxes, by their paths.
#[derive(Debug, Clone, Default)]
pub(crate) struct Removals(BTreeMap<Arc<str>, Removed>);

#[derive(Debug, Clone, Copy)]
struct Removed {
    /// Mail in earlier batches is not delivered.
    before: Lsn,
    /// LSN of the current entry of this removal.
    entry: Lsn,
}

impl Removals {
    /// Replays or applies an entry. The last removal of a mailbox counts; an entry that repeats it replaces its entry.
    pub fn show(&mut self, entry: Lsn, removal: Removal) {
        let removed = Removed { before: removal.before.unwrap_or(entry), entry };
        let known = self.0.entry(removal.mailbox).or_insert(removed);
        if removed.before >= known.before {
            *known = removed;
        }
    }

    /// True if no removal is known, as almost always.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if mail in the batch `body` must not be delivered, because its mailbox, or one above it, was removed since.
    pub fn cover(&self, mailbox: &str, body: Lsn) -> bool {
        let above = mailbox.match_indices('/').map(|(end, _)| &mailbox[..end]);
        above.chain([mailbox]).any(|path| self.0.get(path).is_some_and(|removed| body < removed.before))
    }

    /// The first entry still needed.
    pub fn first_entry(&self) -> Option<Lsn> {
        self.0.values().map(|removed| removed.entry).min()
    }

    /// Removals with entries up to `through`, to be rewritten.
    pub fn through(&self, through: Lsn) -> impl Iterator<Item = Removal> {
        let old = self.0.iter().filter(move |(_, removed)| removed.entry <= through);
        old.map(|(mailbox, removed)| Removal { before: Some(removed.before), mailbox: mailbox.clone() })
    }

    /// Forgets removals that affect no message; `first` is the earliest message.
    pub fn let_go(&mut self, first: Option<Lsn>) {
        self.0.retain(|_, removed| first.is_some_and(|first| first < removed.before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(all: &[(u64, Option<u64>, &str)]) -> Removals {
        let mut removals = Removals::default();
        for (entry, before, mailbox) in all {
            removals.show(Lsn::new(*entry), Removal { before: before.map(Lsn::new), mailbox: (*mailbox).into() });
        }
        removals
    }

    #[test]
    fn a_removal_covers_earlier_mail_of_a_mailbox_and_those_below() {
        let removals = shown(&[(10, None, "org/a")]);
        for (mailbox, body, is_removed) in [
            ("org/a", 9, true),
            ("org/a/Maildir", 9, true),
            ("org/a/b/c", 1, true),
            ("org/ab", 9, false),
            ("org", 9, false),
            ("a", 9, false),
            ("org/a", 10, false),
            ("org/a/Maildir", 11, false),
        ] {
            assert_eq!(removals.cover(mailbox, Lsn::new(body)), is_removed, "{mailbox} {body}");
        }
    }

    #[test]
    fn the_later_of_two_removals_counts_in_any_order() {
        // The second removal came while the first was being repeated.
        let removals = shown(&[(10, None, "a"), (20, None, "a"), (21, Some(10), "a")]);
        assert!(removals.cover("a", Lsn::new(15)));
        assert_eq!(removals.first_entry(), Some(Lsn::new(20)));
        let repeated = shown(&[(10, None, "a"), (30, Some(10), "a")]);
        assert!(!repeated.cover("a", Lsn::new(15)), "mail that came after it is not touched by repeating it");
        assert_eq!(repeated.first_entry(), Some(Lsn::new(30)));
    }

    #[test]
    fn a_removal_is_forgotten_with_the_last_earlier_message() {
        let mut removals = shown(&[(10, None, "a"), (20, None, "b")]);
        assert_eq!(removals.through(Lsn::new(15)).count(), 1);
        removals.let_go(Some(Lsn::new(15)));
        assert_eq!(removals.first_entry(), Some(Lsn::new(20)));
        removals.let_go(None);
        assert_eq!(removals.first_entry(), None);
    }
}
