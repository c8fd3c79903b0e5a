//! Keywords of one mailbox: those in the table, and those in `dovecot-keywords`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_maildir::Keywords;
use posthaste_maildir::tree::flag_letters_of;

use crate::flags::{KeywordTable, MessageFlags};

/// Bit of `$Forwarded`, with the letter P, unless the keyword has one of the letters `a` to `z`.
const FORWARDED_BIT: u8 = 34;
const FORWARDED: &str = "$Forwarded";
/// The bit of the letter `a`.
pub(super) const FIRST_BIT: u8 = 8;
/// Maximum keywords with a letter, and bits without one.
const KEYWORDS_MAX: usize = 26 + (63 - FORWARDED_BIT as usize);
/// Letters of system flags.
const SYSTEM: [(char, MessageFlags); 5] = [
    ('D', MessageFlags::DRAFT),
    ('F', MessageFlags::FLAGGED),
    ('R', MessageFlags::ANSWERED),
    ('S', MessageFlags::SEEN),
    ('T', MessageFlags::DELETED),
];

/// Names by bit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MailboxKeywords(BTreeMap<u8, Arc<str>>);

impl MailboxKeywords {
    /// Keywords of the table.
    pub fn stored(keywords: &BTreeMap<u8, Bytes>) -> Self {
        let text = |(bit, name): (&u8, &Bytes)| Some((*bit, Arc::from(std::str::from_utf8(name).ok()?)));
        Self(keywords.iter().filter_map(text).collect())
    }

    pub fn insert(&mut self, bit: u8, name: &[u8]) {
        if let Ok(name) = std::str::from_utf8(name) {
            self.0.insert(bit, name.into());
        }
    }

    /// Bits with another name in the file, or with none here. A name missing in the file stays: messages may have it.
    pub fn missing(&self, file: &Keywords) -> Vec<(u8, Arc<str>)> {
        let in_file = file.all().map(|(letter, name)| (FIRST_BIT + (letter as u8 - b'a'), Arc::from(name)));
        in_file.filter(|(bit, name)| self.0.get(bit) != Some(name)).collect()
    }

    /// Keywords visible to clients: all, and `$Forwarded`, which needs no entry.
    pub fn table(&self) -> KeywordTable {
        let forwarded = (self.forwarded() == FORWARDED_BIT).then(|| (FORWARDED_BIT, FORWARDED.into()));
        KeywordTable::new(self.0.iter().map(|(bit, name)| (*bit, Arc::clone(name))).chain(forwarded).collect())
    }

    /// The flag of a keyword, case-insensitive.
    pub fn flag(&self, name: &str) -> Option<MessageFlags> {
        let named = self.0.iter().find(|(_, known)| known.eq_ignore_ascii_case(name));
        let forwarded = || name.eq_ignore_ascii_case(FORWARDED).then_some(FORWARDED_BIT);
        named.map(|(bit, _)| *bit).or_else(forwarded).map(MessageFlags::keyword)
    }

    /// The bit that a new keyword can have without a letter.
    pub fn free_bit(&self) -> Option<u8> {
        (FORWARDED_BIT + 1..64).find(|bit| !self.0.contains_key(bit))
    }

    /// True if `count` more keywords can have bits. `$Forwarded` needs none.
    pub fn has_room_for(&self, count: usize) -> bool {
        self.0.len() + count <= KEYWORDS_MAX
    }

    /// True if a bit has no other name than this.
    pub fn is_free_for(&self, bit: u8, name: &str) -> bool {
        self.0.get(&bit).is_none_or(|known| known.eq_ignore_ascii_case(name))
    }

    /// The flags of a name's letters; letters without a keyword are skipped.
    pub fn flags_of(&self, name: &str) -> MessageFlags {
        self.flags_of_letters(letters_in(name))
    }

    /// Like [`flags_of`](Self::flags_of), with letters as a bit set.
    pub fn flags_of_letters(&self, letters: u32) -> MessageFlags {
        let has = |letter: char| letter_bit(letter).is_some_and(|bit| letters & bit != 0);
        let system = SYSTEM.into_iter().filter(|(letter, _)| has(*letter)).map(|(_, flag)| flag);
        let forwarded = has('P').then(|| MessageFlags::keyword(self.forwarded()));
        let keywords = self.0.keys().filter(|bit| letter_of(**bit).is_some_and(has));
        let keywords = keywords.map(|bit| MessageFlags::keyword(*bit));
        system.chain(forwarded).chain(keywords).fold(MessageFlags::NONE, MessageFlags::with)
    }

    /// The flags that have letters.
    pub fn lettered(&self) -> MessageFlags {
        self.flags_of_letters(u32::MAX)
    }

    /// The letters of a file name: those of the flags, and its letters that stand for no flag.
    pub fn letters_for(&self, flags: MessageFlags, name: &str) -> String {
        let known = letters_in(&format!(":2,{}", self.letters_of(self.lettered())));
        let is_kept = |letter: &char| letter_bit(*letter).is_none_or(|bit| known & bit == 0);
        let kept = flag_letters_of(name).chars().filter(|letter| letter.is_ascii_alphabetic()).filter(is_kept);
        let mut letters: Vec<char> = self.letters_of(flags).chars().chain(kept).collect();
        letters.sort_unstable();
        letters.dedup();
        letters.into_iter().collect()
    }

    /// True if a file name already shows these flags, as far as flags have letters.
    pub fn shows(&self, name: &str, flags: MessageFlags) -> bool {
        self.flags_of(name).0 == flags.0 & self.lettered().0
    }

    /// The letters of flags, in the order of names.
    pub fn letters_of(&self, flags: MessageFlags) -> String {
        let system = SYSTEM.into_iter().filter(|(_, flag)| flags.contains(*flag)).map(|(letter, _)| letter);
        let forwarded = flags.contains(MessageFlags::keyword(self.forwarded())).then_some('P');
        let has_bit = |bit: &u8| flags.contains(MessageFlags::keyword(*bit)) && *bit != self.forwarded();
        let keywords = (FIRST_BIT..FIRST_BIT + 26).filter(has_bit).filter_map(letter_of);
        let mut letters: Vec<char> = system.chain(forwarded).chain(keywords).collect();
        letters.sort_unstable();
        letters.into_iter().collect()
    }

    fn forwarded(&self) -> u8 {
        let mut named = self.0.iter().filter(|(_, name)| name.eq_ignore_ascii_case(FORWARDED));
        named.next().map_or(FORWARDED_BIT, |(bit, _)| *bit)
    }
}

/// The table's letters besides `a` to `z`, from bit 26 on.
const UPPER: [char; 6] = ['D', 'F', 'P', 'R', 'S', 'T'];

/// The bit of a letter in the table's letter column, if any.
fn letter_bit(letter: char) -> Option<u32> {
    match letter {
        'a'..='z' => Some(1 << (letter as u32 - 'a' as u32)),
        _ => UPPER.iter().position(|upper| *upper == letter).map(|at| 1 << (26 + at)),
    }
}

/// The letters of a name as a number: bits 0-25 `a`-`z`, then D, F, P, R, S, T. Others are left out.
pub(super) fn letters_in(name: &str) -> u32 {
    flag_letters_of(name).chars().filter_map(letter_bit).fold(0, |letters, bit| letters | bit)
}

/// The letters of a number, in the order of names.
pub(super) fn letters_text(letters: u32) -> String {
    UPPER
        .into_iter()
        .chain('a'..='z')
        .filter(|letter| letter_bit(*letter).is_some_and(|bit| letters & bit != 0))
        .collect()
}

/// The letter of a keyword's bit in file names, if any.
fn letter_of(bit: u8) -> Option<char> {
    let at = bit.checked_sub(FIRST_BIT).filter(|at| *at < 26)?;
    Some(char::from(b'a' + at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_become_flags_and_flags_letters() {
        let mut keywords = MailboxKeywords::default();
        assert_eq!(keywords.flags_of("1:2,SRFTDx"), MessageFlags(0b11111));
        let forwarded = keywords.flags_of("1;2,P");
        assert_eq!(keywords.table().names(forwarded).collect::<Vec<_>>(), ["$Forwarded"]);
        assert_eq!(keywords.flags_of("1,S"), MessageFlags::NONE);
        keywords.insert(10, b"$Junk");
        let flags = keywords.flags_of("1:2,STPcz");
        assert_eq!(keywords.letters_of(flags), "PSTc", "z has no keyword");
        assert_eq!(keywords.letters_for(MessageFlags::DRAFT, "1:2,STPXcz"), "DXz", "what is not known stays");
        let without_letter = flags.with(MessageFlags::keyword(40));
        assert!(keywords.shows("1:2,PSTcz", without_letter) && !keywords.shows("1:2,PST", flags));
        assert_eq!(keywords.letters_of(MessageFlags(u64::MAX)), "DFPRSTabcdefghijklmnopqrstuvwxyz");
        keywords.insert(9, b"$forwarded");
        assert_eq!(keywords.letters_of(keywords.flags_of("1:2,P")), "P");
        assert_eq!(letters_text(letters_in("1:2,XSTPcz")), "PSTcz");
        assert_eq!(keywords.table().all().count(), 2);
    }
}
