//! A message's file, as a scan found it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use posthaste_maildir::tree::{FileFacts, flag_letters_of};
use posthaste_maildir::{Flags, Keywords, Subdir, UniqueName};

use super::body::Layout;
use crate::flags::{KeywordTable, MessageFlags};
use crate::line_ends::FileForm;

/// The bit of `$Forwarded`, whose letter is P, where it has none of `a` to `z`.
const FORWARDED_BIT: u8 = 34;
const FORWARDED: &str = "$Forwarded";

#[derive(Debug)]
pub(super) struct MailFile {
    pub subdir: Subdir,
    pub name: Box<str>,
    /// As the directory has it.
    pub inode: u64,
    /// Of the content that the UID belongs to.
    pub facts: FileFacts,
    /// The size that is sent, plus one; 0: not known.
    wire_size: AtomicU64,
    /// Of a file that is longer than a chunk.
    pub layout: OnceLock<Arc<Layout>>,
}

impl MailFile {
    pub fn new(subdir: Subdir, name: Box<str>, inode: u64, facts: FileFacts) -> Self {
        let file = Self { subdir, name, inode, facts, wire_size: AtomicU64::new(0), layout: OnceLock::new() };
        let sizes = UniqueName::parse(&file.name).and_then(|name| Some((name.disk_size()?, name.wire_size()?)));
        // A name can say anything.
        if let Some((disk_size, wire_size)) = sizes
            && disk_size == facts.size
            && (disk_size..=disk_size.saturating_mul(2)).contains(&wire_size)
        {
            file.set_wire_size(wire_size);
        }
        file
    }

    /// The same message under another name.
    pub fn renamed(&self, subdir: Subdir, name: Box<str>) -> Self {
        let layout = self.layout.get().cloned().map_or_else(OnceLock::new, OnceLock::from);
        let wire_size = AtomicU64::new(self.wire_size.load(Ordering::Relaxed));
        Self { subdir, name, inode: self.inode, facts: self.facts, wire_size, layout }
    }

    pub fn wire_size(&self) -> Option<u64> {
        self.wire_size.load(Ordering::Relaxed).checked_sub(1)
    }

    pub fn set_wire_size(&self, size: u64) {
        self.wire_size.store(size.saturating_add(1), Ordering::Relaxed);
    }

    /// How it is sent. A name of ours says whether it was stored verbatim; where it does not fit the file, the file counts as foreign.
    pub fn form(&self) -> FileForm {
        let name = UniqueName::parse(&self.name).filter(|name| name.unique().is_some_and(is_ours));
        match name.and_then(|name| Some((name.disk_size()?, name.is_verbatim()?))) {
            Some((size, true)) if size == self.facts.size => FileForm::Verbatim,
            Some((size, false)) if size == self.facts.size => FileForm::Lines { replaces_nul: false },
            _ => FileForm::Lines { replaces_nul: true },
        }
    }

    pub fn is_new(&self) -> bool {
        self.subdir == Subdir::New
    }
}

/// The middle part of names that delivery gives: `J`, hexadecimal, `R`, hexadecimal, `T`, a number.
fn is_ours(unique: &str) -> bool {
    let parts = || {
        let (id, rest) = unique.strip_prefix('J')?.split_once('R')?;
        let (nonce, number) = rest.split_once('T')?;
        let is_hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
        let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        Some(is_hex(id) && is_hex(nonce) && is_number)
    };
    parts().unwrap_or(false)
}

/// INTERNALDATE in seconds: the time in a name of ours, else that of the last change.
pub(super) fn internal_date(file: &MailFile) -> u32 {
    let ours = UniqueName::parse(&file.name).filter(|name| name.unique().is_some_and(is_ours));
    let secs = ours.and_then(|name| name.secs()).unwrap_or(file.facts.mtime_ns.max(0) as u64 / 1_000_000_000);
    u32::try_from(secs).unwrap_or(u32::MAX)
}

/// The flags that a name's letters stand for.
pub(super) fn flags_of(name: &str, keywords: &Keywords) -> MessageFlags {
    let letters = flag_letters_of(name).chars().filter_map(Flags::letter).fold(Flags::NONE, Flags::with);
    let system = [
        (Flags::SEEN, MessageFlags::SEEN),
        (Flags::REPLIED, MessageFlags::ANSWERED),
        (Flags::FLAGGED, MessageFlags::FLAGGED),
        (Flags::TRASHED, MessageFlags::DELETED),
        (Flags::DRAFT, MessageFlags::DRAFT),
        (Flags::PASSED, forwarded(keywords)),
    ];
    let mut flags = MessageFlags::NONE;
    for (letter, flag) in system.into_iter().filter(|(letter, _)| letters.contains(*letter)) {
        debug_assert!(letter != Flags::NONE);
        flags = flags.with(flag);
    }
    let of_keyword = |letter: char| Flags::letter(letter).is_some_and(|flag| letters.contains(flag));
    keywords.all().filter(|(letter, _)| of_keyword(*letter)).fold(flags, |flags, (letter, _)| flags.with(bit(letter)))
}

/// The keywords that a mailbox shows.
pub(super) fn keyword_table(keywords: &Keywords) -> KeywordTable {
    let named = keywords.all().map(|(letter, name)| (8 + (letter as u8 - b'a'), name.into()));
    let forwarded = keywords.flag(FORWARDED).is_none().then(|| (FORWARDED_BIT, FORWARDED.into()));
    KeywordTable::new(named.chain(forwarded).collect())
}

fn bit(letter: char) -> MessageFlags {
    MessageFlags::keyword(8 + (letter as u8 - b'a'))
}

fn forwarded(keywords: &Keywords) -> MessageFlags {
    let named = keywords.all().find(|(_, name)| name.eq_ignore_ascii_case(FORWARDED));
    named.map_or(MessageFlags::keyword(FORWARDED_BIT), |(letter, _)| bit(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, size: u64) -> MailFile {
        MailFile::new(Subdir::Cur, name.into(), 1, FileFacts { inode: 1, size, mtime_ns: 0 })
    }

    #[test]
    fn only_names_of_ours_say_how_a_file_is_sent() {
        let check = |name: &str, size: u64, form: FileForm, wire_size: Option<u64>| {
            let file = file(name, size);
            assert_eq!((file.form(), file.wire_size()), (form, wire_size), "{name}");
        };
        let (ours, foreign) = (FileForm::Lines { replaces_nul: false }, FileForm::Lines { replaces_nul: true });
        check("1.J1fRabT0.h,S=10,W=12:2,S", 10, ours, Some(12));
        check("1.J1fRabT0.h,S=10,W=10", 10, FileForm::Verbatim, Some(10));
        check("1.J1fRabT0.h,S=10,W=10", 11, foreign, None);
        check("1.M5P7.h,S=10,W=10:2,", 10, foreign, Some(10));
        check("1.J1R.h,S=10,W=10:2,", 10, foreign, Some(10));
        check("1.M5P7.h,S=10,W=99", 10, foreign, None);
        check("msg", 10, foreign, None);
    }

    #[test]
    fn letters_become_flags_and_keywords() {
        let keywords = Keywords::default();
        assert_eq!(flags_of("1:2,SRFTDx", &keywords), MessageFlags(0b11111));
        let forwarded = flags_of("1;2,P", &keywords);
        assert_eq!(keyword_table(&keywords).names(forwarded).collect::<Vec<_>>(), ["$Forwarded"]);
        assert_eq!(flags_of("1,S", &keywords), MessageFlags::NONE);
    }
}
