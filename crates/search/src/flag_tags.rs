//! Tags that stand in the name of a message's file: its flags, as in notmuch's `maildir.synchronize_flags`, and its
//! keywords.
//!
//! Where flags are tags, the file's name holds the only copy: these tags are read from it, never from the tag store,
//! and a change renames the file. With a single copy there is nothing to merge.
//!
//! The folder's table (Dovecot's `dovecot-keywords`) names the letters `a` to `z`. Here too the file's name is the only
//! copy, with one exception: a name may become a keyword after years as an ordinary tag. A stored tag of that name
//! still counts, until the tag is removed or the next tagging of the message moves it into the file's name.

use std::collections::BTreeSet;

use posthaste_maildir::{Flags, Keywords};

use crate::state::bits;
use crate::tags::{Tags, check_tag};

/// The tags, with their Maildir letters. `S` means seen, the opposite of `unread`.
pub const FLAG_TAGS: [(&str, char); 5] =
    [("draft", 'D'), ("flagged", 'F'), ("passed", 'P'), ("replied", 'R'), ("unread", 'S')];

/// Changes of flags and keywords in the name of a message's file. Keywords go by name: the folder's table maps them to
/// letters when the change is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagFlags {
    /// Number of the message.
    pub number: u32,
    /// Flags to add.
    pub add: Flags,
    /// Flags to remove.
    pub remove: Flags,
    /// Keywords to add; one without a letter in the folder gets one.
    pub add_keywords: Vec<String>,
    /// Keywords to remove.
    pub remove_keywords: Vec<String>,
}

/// Outcome of a tagging run, with the renames that the caller still has to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tagged {
    /// Messages whose tags changed, or will when their files have the flags.
    pub changed: u64,
    /// Flag and keyword changes that the caller applies to the files; empty unless flags or keywords are tags.
    pub flags: Vec<TagFlags>,
}

/// Outcome of restoring a dump.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RestoredTags {
    /// Messages whose tags changed.
    pub changed: u64,
    /// Messages that lost tags.
    pub replaced: u64,
    /// Sum of the tags that messages lost.
    pub tags_lost: u64,
    /// Saved queries that changed.
    pub queries: u64,
    /// Message-IDs that are not in the index.
    pub not_here: u64,
    /// Flag changes that the caller applies to the files; empty unless flags are tags.
    pub flags: Vec<TagFlags>,
}

/// True for the tags of [`FLAG_TAGS`].
pub fn is_flag_tag(tag: &str) -> bool {
    FLAG_TAGS.iter().any(|(name, _)| *name == tag)
}

/// The tags that a message has by the flags of its file ([`Record::flags`](crate::state::Record::flags)).
fn tags_of_flags<'a>(flags: u64) -> impl Iterator<Item = &'a str> {
    let has = move |tag: &str, letter: char| match tag {
        "unread" => bits::is_unread(flags),
        _ => bits::letter(letter).is_some_and(|bit| flags & bit != 0),
    };
    FLAG_TAGS.into_iter().filter(move |(tag, letter)| has(tag, *letter)).map(|(tag, _)| tag)
}

/// Tags that the file names of one folder hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileTags<'a> {
    /// True if the tags of [`FLAG_TAGS`] come from the flags.
    pub flags: bool,
    /// Keywords of the letters from `a` on, empty for unnamed letters.
    pub keywords: &'a [String],
}

impl<'a> FileTags<'a> {
    fn letters(self) -> impl Iterator<Item = (u64, &'a str)> {
        let named = ('a'..='z').zip(self.keywords).filter(|(_, name)| !name.is_empty());
        named.filter_map(|(letter, name)| Some((bits::letter(letter)?, name.as_str())))
    }

    /// Letters whose keywords `accepts` accepts.
    pub fn letters_that(self, accepts: impl Fn(&str) -> bool) -> u64 {
        self.letters().filter(|(_, name)| accepts(name)).fold(0, |all, (bit, _)| all | bit)
    }

    /// The tags that a file with these flags has.
    pub fn of(self, flags: u64) -> impl Iterator<Item = &'a str> {
        let by_flags = tags_of_flags(flags).filter(move |_| self.flags);
        by_flags.chain(self.letters().filter(move |(bit, _)| flags & bit != 0).map(|(_, name)| name))
    }

    fn is_keyword(self, tag: &str) -> bool {
        self.letters().any(|(_, name)| name == tag)
    }

    /// Returns the tags that a user sees: stored ones, without stored copies of flags, and the file's own.
    pub fn seen(self, stored: &Tags, flags: u64) -> Tags {
        let counts = |tag: &&String| !self.flags || !is_flag_tag(tag);
        stored.iter().filter(counts).cloned().chain(self.of(flags).map(str::to_owned)).collect()
    }

    /// Splits the `wanted` tags into tags to store and a change of the file's name for the rest. `asked` is true for a
    /// tag that this command names. A tag in `new_keywords` gets a letter if the folder has none for it.
    pub fn split(
        self,
        number: u32,
        flags: u64,
        stored: &Tags,
        wanted: &Tags,
        asked: &dyn Fn(&str) -> bool,
        new_keywords: &BTreeSet<String>,
    ) -> (Tags, Option<TagFlags>) {
        let mut change = TagFlags {
            number,
            add: Flags::NONE,
            remove: Flags::NONE,
            add_keywords: Vec::new(),
            remove_keywords: Vec::new(),
        };
        let has: BTreeSet<&str> = self.of(flags).collect();
        for (tag, letter) in FLAG_TAGS.into_iter().filter(|_| self.flags) {
            let wants = wanted.contains(tag);
            let Some(flag) = Flags::letter(letter).filter(|_| has.contains(tag) != wants) else { continue };
            let side = if wants != (tag == "unread") { &mut change.add } else { &mut change.remove };
            *side = side.with(flag);
        }
        let keywords = self.letters().map(|(_, name)| name).collect::<BTreeSet<_>>();
        let may_be_new =
            |tag: &str| new_keywords.contains(tag) && !self.letters().any(|(_, name)| name.eq_ignore_ascii_case(tag));
        let mut store = Tags::new();
        for tag in wanted.iter().filter(|tag| !self.flags || !is_flag_tag(tag)) {
            if !keywords.contains(tag.as_str()) && !may_be_new(tag) {
                store.insert(tag.clone());
                continue;
            }
            let is_stored = stored.contains(tag);
            let is_in_file = has.contains(tag.as_str());
            if !is_in_file && (asked(tag) || !is_stored) {
                change.add_keywords.push(tag.clone());
            }
            // The file is changed later than the store: until then nothing is taken away.
            if is_stored && !is_in_file {
                store.insert(tag.clone());
            }
        }
        let lost = has.iter().filter(|tag| self.is_keyword(tag) && !wanted.contains(**tag));
        change.remove_keywords.extend(lost.map(|tag| (*tag).to_owned()));
        let is_none = change.add == Flags::NONE && change.remove == Flags::NONE;
        let is_none = is_none && change.add_keywords.is_empty() && change.remove_keywords.is_empty();
        (store, Some(change).filter(|_| !is_none))
    }
}

/// The keywords of a folder as tags, by letter from `a` on. Keywords that cannot be a tag, or have a flag's name, are
/// left empty.
pub(crate) fn keyword_tags(keywords: &Keywords) -> Vec<String> {
    let mut all = Vec::new();
    for (letter, name) in keywords.all().filter(|(_, name)| check_tag(name).is_ok() && !is_flag_tag(name)) {
        let at = letter as usize - 'a' as usize;
        all.resize(all.len().max(at + 1), String::new());
        name.clone_into(&mut all[at]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(names: &str) -> Tags {
        names.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn tags_become_flags_and_flags_tags() {
        let file = FileTags { flags: true, keywords: &[] };
        let check = |letters: &str, wanted: &str, add: &str, remove: &str| {
            let flags = bits::letters(letters);
            let (_, change) = file.split(7, flags, &Tags::new(), &tags(wanted), &|_| true, &BTreeSet::new());
            let found = change.map_or((String::new(), String::new()), |c| (c.add.to_string(), c.remove.to_string()));
            assert_eq!(found, (add.to_owned(), remove.to_owned()), "{letters} {wanted}");
        };
        check("", "unread", "", "");
        check("", "", "S", "");
        check("S", "unread flagged other", "F", "S");
        check("DFPRSa", "replied", "", "DFP");
        assert_eq!(file.seen(&tags("inbox unread flagged"), bits::letters("RSa")), tags("inbox replied"));
        assert_eq!(file.seen(&tags(""), bits::letters("S") | bits::NEW), tags("unread"), "a file in new/ is unread");
    }

    #[test]
    fn tags_become_keywords_and_keywords_tags() {
        let keywords = ["todo", "", "$Junk", "todo"].map(str::to_owned);
        let file = FileTags { flags: false, keywords: &keywords };
        // Stored and wanted tags and the file's letters; what is stored then, and what the file gets and loses.
        let check = |letters: &str, stored: &str, wanted: &str, store: &str, add: &[&str], remove: &[&str]| {
            let asked = |tag: &str| tag != "old";
            let new = BTreeSet::from(["work".to_owned(), "TODO".to_owned()]);
            let (found, change) = file.split(7, bits::letters(letters), &tags(stored), &tags(wanted), &asked, &new);
            assert_eq!(found, tags(store), "{letters} {stored} {wanted}");
            let (added, removed) =
                change.map(|change| (change.add_keywords, change.remove_keywords)).unwrap_or_default();
            assert_eq!(
                (added, removed),
                (add.iter().map(|s| (*s).to_owned()).collect(), remove.iter().map(|s| (*s).to_owned()).collect()),
                "{letters} {stored} {wanted}"
            );
        };
        check("S", "", "todo flagged", "flagged", &["todo"], &[]);
        check("Sd", "", "todo", "", &[], &[]);
        check("a", "", "", "", &[], &["todo"]);
        check("c", "x", "x work", "x", &["work"], &["$Junk"]);
        // A name that the folder has in another case cannot be one more keyword.
        check("", "", "TODO junk", "TODO junk", &[], &[]);
        // A copy from before is kept until the file has it.
        check("", "todo", "todo", "todo", &["todo"], &[]);
        check("a", "todo", "todo x", "x", &[], &[]);
        check("a", "todo", "", "", &[], &["todo"]);
        assert_eq!(file.seen(&tags("x todo"), bits::letters("bcz")), tags("x todo $Junk"));
        assert_eq!(file.letters_that(|name| name == "todo"), bits::letters("ad"));
    }
}
