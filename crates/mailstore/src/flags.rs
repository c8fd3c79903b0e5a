//! Flags and keywords of messages.

use std::sync::Arc;

/// The flags of a message as bits: five system flags, keywords from bit 8 on. The mailbox's [`KeywordTable`] maps bits
/// to keywords.
///
/// `\Recent` is no bit: it belongs to a session, see [`MessageRow::recent`](crate::MessageRow::recent).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MessageFlags(pub u64);

impl MessageFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// `\Seen`.
    pub const SEEN: Self = Self(1);
    /// `\Answered`.
    pub const ANSWERED: Self = Self(1 << 1);
    /// `\Flagged`.
    pub const FLAGGED: Self = Self(1 << 2);
    /// `\Deleted`.
    pub const DELETED: Self = Self(1 << 3);
    /// `\Draft`.
    pub const DRAFT: Self = Self(1 << 4);
    /// The system flags, with their names.
    pub const SYSTEM: [(Self, &'static str); 5] = [
        (Self::ANSWERED, "\\Answered"),
        (Self::FLAGGED, "\\Flagged"),
        (Self::DELETED, "\\Deleted"),
        (Self::SEEN, "\\Seen"),
        (Self::DRAFT, "\\Draft"),
    ];

    /// The flag for a keyword's bit.
    ///
    /// # Panics
    /// If `bit` is not in 8 to 63.
    pub const fn keyword(bit: u8) -> Self {
        assert!(bit >= 8 && bit < 64, "a bit of a keyword");
        Self(1 << bit)
    }

    /// The union of both sets.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// This set without `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// True if all of `others` are set.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// A change of flags, the same for all messages of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagUpdate {
    /// The change: `flags` and `keywords` replace, extend or reduce the present ones.
    pub mode: FlagUpdateMode,
    /// System flags.
    pub flags: MessageFlags,
    /// Keywords by name. New ones get a bit, unless they are removed.
    pub keywords: Vec<String>,
}

/// The way a [`FlagUpdate`] changes the flags of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagUpdateMode {
    /// Replaces all flags.
    Replace,
    /// Adds these flags.
    Add,
    /// Removes these flags.
    Remove,
}

impl FlagUpdateMode {
    /// Result of the update for a message that had `old`.
    pub const fn apply(self, old: MessageFlags, these: MessageFlags) -> MessageFlags {
        match self {
            Self::Replace => these,
            Self::Add => old.with(these),
            Self::Remove => old.without(these),
        }
    }
}

/// Maximum keywords of a mailbox.
pub const KEYWORDS_MAX: usize = 56;

/// The keywords of a mailbox: at most [`KEYWORDS_MAX`], bits 8 to 63.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeywordTable(Vec<(u8, Arc<str>)>);

impl KeywordTable {
    /// A table of bits and names.
    pub fn new(mut keywords: Vec<(u8, Arc<str>)>) -> Self {
        keywords.retain(|(bit, _)| (8..64).contains(bit));
        keywords.sort_unstable();
        keywords.dedup_by_key(|(bit, _)| *bit);
        Self(keywords)
    }

    /// The flag of a keyword; a new one gets the lowest free bit. `None` if the table is full.
    pub fn add(&mut self, name: &str) -> Option<MessageFlags> {
        if let Some((flag, _)) = self.all().find(|(_, known)| known.eq_ignore_ascii_case(name)) {
            return Some(flag);
        }
        let bit = (8..64).find(|bit| self.0.iter().all(|(taken, _)| taken != bit))?;
        let at = self.0.partition_point(|(taken, _)| *taken < bit);
        self.0.insert(at, (bit, name.into()));
        Some(MessageFlags::keyword(bit))
    }

    /// All keywords, by bit.
    pub fn all(&self) -> impl Iterator<Item = (MessageFlags, &str)> {
        self.0.iter().map(|(bit, name)| (MessageFlags::keyword(*bit), &**name))
    }

    /// The names of all flags in `flags`, system flags first, as FETCH FLAGS has them. A bit without a name is left out.
    pub fn names(&self, flags: MessageFlags) -> impl Iterator<Item = &str> {
        let system = MessageFlags::SYSTEM.into_iter();
        system.chain(self.all()).filter(move |(flag, _)| flags.contains(*flag)).map(|(_, name)| name)
    }

    /// The flag with this name, system flag or keyword, case-insensitive (RFC 9051 section 2.3.2).
    pub fn flag(&self, name: &str) -> Option<MessageFlags> {
        let mut all = MessageFlags::SYSTEM.into_iter().chain(self.all());
        all.find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(flag, _)| flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_flags_are_found_both_ways() {
        let table = KeywordTable::new(vec![(9, "$Junk".into()), (8, "$Forwarded".into()), (3, "none".into())]);
        let flags = MessageFlags::SEEN.with(MessageFlags::keyword(9)).with(MessageFlags::keyword(20));
        assert_eq!(table.names(flags).collect::<Vec<_>>(), ["\\Seen", "$Junk"]);
        assert_eq!(table.flag("$FORWARDED"), Some(MessageFlags::keyword(8)));
        assert_eq!(table.flag("\\seen"), Some(MessageFlags::SEEN));
        assert_eq!(table.flag("none"), None);
    }

    #[test]
    fn new_keywords_take_free_bits_until_none_is_left() {
        let mut table = KeywordTable::new(vec![(9, "$Junk".into())]);
        assert_eq!(table.add("$junk"), Some(MessageFlags::keyword(9)));
        assert_eq!(table.add("a"), Some(MessageFlags::keyword(8)));
        assert_eq!(table.add("b"), Some(MessageFlags::keyword(10)));
        for n in 3..KEYWORDS_MAX {
            assert!(table.add(&n.to_string()).is_some());
        }
        assert_eq!((table.add("one more"), table.add("A")), (None, Some(MessageFlags::keyword(8))));
        assert_eq!(table.all().count(), KEYWORDS_MAX);
    }
}
