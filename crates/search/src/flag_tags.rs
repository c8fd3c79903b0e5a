//! Tags that are flags of a message's file, as in notmuch's `maildir.synchronize_flags`.
//!
//! Where that is wanted, the file is the only truth: these tags are read from its flags and never from the tag store, and to change them
//! is to change the file's name. So there is nothing to bring together, and no change that could come back.

use posthaste_maildir::Flags;

use crate::state::bits;
use crate::tags::Tags;

/// The tags, with the letters of a Maildir. `S` is seen: what is not seen is unread.
pub const FLAG_TAGS: [(&str, char); 5] =
    [("draft", 'D'), ("flagged", 'F'), ("passed", 'P'), ("replied", 'R'), ("unread", 'S')];

/// Flags that a message's file shall get and lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlagChange {
    /// The message.
    pub number: u32,
    /// To get.
    pub add: Flags,
    /// To lose.
    pub remove: Flags,
}

/// What tagging did, and what is left to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tagged {
    /// Messages whose tags are others now, or are when their files have the flags.
    pub changed: u64,
    /// For the caller, who may change files: only where tags are flags.
    pub flags: Vec<FlagChange>,
}

/// Whether a tag is a flag, where that is wanted.
pub fn is_flag_tag(tag: &str) -> bool {
    FLAG_TAGS.iter().any(|(name, _)| *name == tag)
}

/// The tags that a message has by the flags of its file ([`Record::flags`](crate::state::Record::flags)).
pub(crate) fn tags_of_flags(flags: u64) -> impl Iterator<Item = &'static str> {
    let has = move |tag: &str, letter: char| match tag {
        "unread" => bits::is_unread(flags),
        _ => bits::letter(letter).is_some_and(|bit| flags & bit != 0),
    };
    FLAG_TAGS.into_iter().filter(move |(tag, letter)| has(tag, *letter)).map(|(tag, _)| tag)
}

/// Stored tags with those of the file's flags in the place of their copies.
pub(crate) fn with_flags(stored: &Tags, flags: u64) -> Tags {
    let mut tags = without_flags(stored);
    tags.extend(tags_of_flags(flags).map(str::to_owned));
    tags
}

/// Tags that are no flags.
pub(crate) fn without_flags(tags: &Tags) -> Tags {
    tags.iter().filter(|tag| !is_flag_tag(tag)).cloned().collect()
}

/// How the flags of a message must change for it to have these tags; `None` if they need not.
pub(crate) fn change_for(number: u32, flags: u64, tags: &Tags) -> Option<FlagChange> {
    let mut change = FlagChange { number, add: Flags::NONE, remove: Flags::NONE };
    for (tag, letter) in FLAG_TAGS {
        let (has, wants) = (tags_of_flags(flags).any(|name| name == tag), tags.contains(tag));
        let Some(flag) = Flags::letter(letter).filter(|_| has != wants) else { continue };
        let side = if wants != (tag == "unread") { &mut change.add } else { &mut change.remove };
        *side = side.with(flag);
    }
    (change.add != Flags::NONE || change.remove != Flags::NONE).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_become_flags_and_flags_tags() {
        let tags = |names: &str| names.split_whitespace().map(str::to_owned).collect::<Tags>();
        let check = |letters: &str, wanted: &str, add: &str, remove: &str| {
            let flags = bits::letters(letters);
            let change = change_for(7, flags, &tags(wanted));
            let found = change.map_or((String::new(), String::new()), |c| (c.add.to_string(), c.remove.to_string()));
            assert_eq!(found, (add.to_owned(), remove.to_owned()), "{letters} {wanted}");
        };
        check("", "unread", "", "");
        check("", "", "S", "");
        check("S", "unread flagged other", "F", "S");
        check("DFPRSa", "replied", "", "DFP");
        assert_eq!(with_flags(&tags("inbox unread flagged"), bits::letters("RS")), tags("inbox replied"));
        assert_eq!(with_flags(&tags(""), bits::letters("S") | bits::NEW), tags("unread"), "a file in new/ is unread");
    }
}
