//! A message's file, as a scan found it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use posthaste_maildir::tree::{FileFacts, flag_letters_of, key_of_name};
use posthaste_maildir::{MaildirReader, Subdir, UniqueName};

use super::layout::Layout;
use crate::line_ends::FileForm;

/// Stored for each message of an open mailbox, so it is small.
#[derive(Debug)]
pub(super) struct MailFile {
    /// Name at the last listing. Before the first listing, its letters follow from the flags.
    pub name: Box<str>,
    /// Inode from the directory; 0 before the first listing.
    inode: AtomicU64,
    /// Bytes of the UID's content on disk, plus one; 0: unknown.
    disk_size: u64,
    /// The wire size plus one; 0: unknown.
    wire_size: AtomicU64,
    /// See [`Self::body`]: batch, and number there. Each is 0 where `has_body` is false.
    body: u64,
    target: u16,
    has_body: bool,
    pub subdir: Subdir,
    /// Set once the file was inspected.
    inspected: OnceLock<Box<InspectedFile>>,
}

/// Facts of a file's content, found by reading it.
#[derive(Debug, Clone)]
struct InspectedFile {
    /// Facts of the content that the UID belongs to.
    facts: FileFacts,
    /// Chunks of a file longer than one chunk.
    layout: OnceLock<Arc<Layout>>,
}

/// A stored size: 0 means unknown.
fn kept_size(size: Option<u64>) -> u64 {
    size.map_or(0, |size| size.saturating_add(1))
}

impl MailFile {
    /// A file that was listed and examined.
    pub fn new(subdir: Subdir, name: Box<str>, inode: u64, facts: FileFacts) -> Self {
        let sizes = sizes_of_name(&name).filter(|(disk_size, _)| *disk_size == facts.size);
        let file = Self::unseen(subdir, name, Some(facts.size), sizes.map(|(_, wire_size)| wire_size));
        file.set_inode(inode);
        file.saw(facts);
        file
    }

    /// A file that was not examined since the start.
    pub fn unseen(subdir: Subdir, name: Box<str>, disk_size: Option<u64>, wire_size: Option<u64>) -> Self {
        Self {
            name,
            inode: AtomicU64::new(0),
            disk_size: kept_size(disk_size),
            wire_size: AtomicU64::new(kept_size(wire_size)),
            body: 0,
            target: 0,
            has_body: false,
            subdir,
            inspected: OnceLock::new(),
        }
    }

    /// The file that delivery makes for a message. Until it is listed, its name here is the known part: see
    /// [`own_part`].
    pub fn of_delivery(body: (u64, u16), nonce: u32, wire_size: Option<u64>) -> Self {
        let name = format!("J{:x}R{nonce:08x}T{}", body.0, body.1).into();
        Self::unseen(Subdir::New, name, None, wire_size).with_body(body)
    }

    fn with_body(self, (body, target): (u64, u16)) -> Self {
        Self { body, target, has_body: true, ..self }
    }

    /// The batch and number of the body of locally accepted mail.
    pub fn body(&self) -> Option<(u64, u16)> {
        self.has_body.then_some((self.body, self.target))
    }

    /// Resets a locally accepted message to delivery's file: the listing is forgotten.
    pub fn not_listed(&self) -> Option<Self> {
        let body = self.body()?;
        let unique = own_part(&self.name).unwrap_or(&self.name).into();
        Some(Self::unseen(Subdir::New, unique, None, self.wire_size()).with_body(body))
    }

    /// The batch and number of the body of a message whose file was not listed since the start.
    pub fn awaited(&self) -> Option<(u64, u16)> {
        self.body().filter(|_| self.inode().is_none())
    }

    /// This message under another name, or in another file.
    pub fn renamed(&self, subdir: Subdir, name: Box<str>, inode: u64) -> Self {
        // Delivery writes a file of ours again after a failed sync, so another inode may have the same content.
        let inspected = self.inspected.get().filter(|inspected| inspected.facts.inode == inode).cloned();
        Self {
            name,
            inode: inode.into(),
            disk_size: self.disk_size,
            wire_size: self.wire_size.load(Ordering::Relaxed).into(),
            body: self.body,
            target: self.target,
            has_body: self.has_body,
            subdir,
            inspected: inspected.map_or_else(OnceLock::new, OnceLock::from),
        }
    }

    pub fn inode(&self) -> Option<u64> {
        Some(self.inode.load(Ordering::Relaxed)).filter(|inode| *inode != 0)
    }

    /// The inode of a file that was not listed since the start.
    pub fn set_inode(&self, inode: u64) {
        let _ = self.inode.compare_exchange(0, inode, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// True if a file under this message's key has the content that the UID belongs to.
    pub fn is(&self, facts: &FileFacts) -> bool {
        let has_size = self.disk_size().is_none_or(|size| size == facts.size);
        match self.facts() {
            Some(known) if known == *facts => true,
            // No other program makes a name like this, and delivery writes the same content again.
            Some(_) => has_size && self.is_own(facts.size),
            None => has_size,
        }
    }

    pub fn disk_size(&self) -> Option<u64> {
        self.disk_size.checked_sub(1)
    }

    fn facts(&self) -> Option<FileFacts> {
        self.inspected.get().map(|inspected| inspected.facts)
    }

    /// Facts of an inspected file; default if it was not inspected.
    pub fn known_facts(&self) -> FileFacts {
        self.facts().unwrap_or_default()
    }

    /// Facts of the file with the UID's content, if it was examined since the start.
    pub fn content_facts(&self) -> Option<FileFacts> {
        self.facts().filter(|_| self.awaited().is_none())
    }

    /// Order in which files that were found together get UIDs: time and name.
    pub fn age_order(&self) -> (i64, &str) {
        (self.known_facts().mtime_ns, &self.name)
    }

    /// Remembers facts of a file that has the right content.
    pub fn saw(&self, facts: FileFacts) {
        if self.inspected.get().is_none() {
            let _ = self.inspected.set(Box::new(InspectedFile { facts, layout: OnceLock::new() }));
        }
    }

    /// Chunks of a file longer than one chunk, once it was read.
    pub fn layout(&self) -> Option<&Arc<Layout>> {
        self.inspected.get()?.layout.get()
    }

    /// Remembers the chunks of a file that was inspected.
    pub fn keep_layout(&self, layout: &Arc<Layout>) {
        if let Some(inspected) = self.inspected.get() {
            let _ = inspected.layout.set(Arc::clone(layout));
        }
    }

    pub fn wire_size(&self) -> Option<u64> {
        self.wire_size.load(Ordering::Relaxed).checked_sub(1)
    }

    pub fn set_wire_size(&self, size: u64) {
        self.wire_size.store(kept_size(Some(size)), Ordering::Relaxed);
    }

    /// Its wire form. Our names tell if it was stored verbatim; a name that does not match its file counts as foreign.
    pub fn form(&self, size: u64) -> FileForm {
        match self.is_own(size).then(|| UniqueName::parse(&self.name)?.is_verbatim()).flatten() {
            Some(true) => FileForm::Verbatim,
            Some(false) => FileForm::Lines { replaces_nul: false },
            None => FileForm::Lines { replaces_nul: true },
        }
    }

    /// True if delivery has made it, and its size is that of its name.
    pub fn is_own(&self, size: u64) -> bool {
        let name = UniqueName::parse(&self.name).filter(|name| name.unique().is_some_and(is_ours));
        name.is_some_and(|name| name.disk_size() == Some(size))
    }

    pub fn is_new(&self) -> bool {
        self.subdir == Subdir::New
    }
}

/// Sizes on disk and on the wire according to a name. They are unverified.
fn sizes_of_name(name: &str) -> Option<(u64, u64)> {
    let name = UniqueName::parse(name)?;
    let (disk_size, wire_size) = (name.disk_size()?, name.wire_size()?);
    (disk_size..=disk_size.saturating_mul(2)).contains(&wire_size).then_some((disk_size, wire_size))
}

/// A name with the letters that flags have in it.
pub(super) fn name_with_letters(name: &str, subdir: Subdir, letters: &str) -> Box<str> {
    let base = without_letters(name);
    let separator = name[base.len()..].chars().next().unwrap_or(':');
    match subdir {
        Subdir::New if letters.is_empty() => base.into(),
        _ => format!("{base}{separator}2,{letters}").into(),
    }
}

fn without_letters(name: &str) -> &str {
    let letters = flag_letters_of(name);
    let cut = &name[..name.len() - letters.len()];
    let base = cut.strip_suffix("2,").and_then(|cut| cut.strip_suffix([':', ';', '!']));
    base.filter(|base| !base.is_empty()).unwrap_or(name)
}

/// Parses the middle part of delivery's names: `J`, hexadecimal, `R`, hexadecimal, `T`, a number.
pub(super) fn own_part(name: &str) -> Option<&str> {
    let key = key_of_name(name);
    key.split('.').nth(1).filter(|unique| is_ours(unique))
}

/// Looks for a file that has another name than when it was listed last.
///
/// # Errors
/// Errors of `open` and `getdents`.
pub(super) fn find_again(reader: &MaildirReader, file: &MailFile) -> io::Result<Option<(Subdir, String)>> {
    let mut found = None;
    for subdir in [Subdir::New, Subdir::Cur] {
        reader.for_each_name(subdir, |listed| {
            let is_same = file.inode().is_none_or(|inode| inode == listed.inode);
            let is_own = || file.awaited().is_some() && own_part(listed.name) == Some(&*file.name);
            if is_same && (key_of_name(listed.name) == key_of_name(&file.name) || is_own()) {
                found = Some((subdir, listed.name.to_owned()));
            }
        })?;
    }
    Ok(found)
}

/// The middle part of delivery's names: `J`, hexadecimal, `R`, hexadecimal, `T`, a number.
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

/// INTERNALDATE in seconds: the time of the last change. Delivery and APPEND set it.
pub(super) fn internal_date(facts: &FileFacts) -> u32 {
    u32::try_from(facts.mtime_ns.max(0) / 1_000_000_000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, size: u64) -> MailFile {
        MailFile::new(Subdir::Cur, name.into(), 1, FileFacts { inode: 1, size, mtime_ns: 0 })
    }

    #[test]
    fn a_message_takes_little_memory() {
        // Beside its name, and the two counts of the `Arc`.
        assert!(size_of::<MailFile>() <= 72, "{}", size_of::<MailFile>());
        assert!(size_of::<crate::message_list::Message<Arc<MailFile>>>() <= 56);
    }

    #[test]
    fn only_names_of_ours_say_how_a_file_is_sent() {
        let check = |name: &str, size: u64, form: FileForm, wire_size: Option<u64>| {
            let file = file(name, size);
            assert_eq!((file.form(size), file.wire_size()), (form, wire_size), "{name}");
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
    fn a_name_gets_other_letters_and_keeps_the_rest() {
        let check = |name: &str, subdir: Subdir, letters: &str, expected: &str| {
            assert_eq!(&*name_with_letters(name, subdir, letters), expected);
        };
        check("1.a.h,S=4:2,RS", Subdir::Cur, "FS", "1.a.h,S=4:2,FS");
        check("1.a.h;2,", Subdir::Cur, "S", "1.a.h;2,S");
        check("1.a.h", Subdir::Cur, "", "1.a.h:2,");
        check("1.a.h", Subdir::New, "", "1.a.h");
        check(":2,S", Subdir::Cur, "T", ":2,S:2,T");
    }
}
