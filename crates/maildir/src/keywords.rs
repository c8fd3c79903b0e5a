//! Keywords: user-defined flags, as letters `a`-`z` in file names and a table in the file `dovecot-keywords`.
//!
//! The file has a line for each letter in use: its index (`a` is 0) and its name, `0 $Forwarded`. This is Dovecot's
//! layout and locking, so both can serve the same Maildir: whoever changes the table makes `dovecot-keywords.lock`
//! (exclusively), writes the new table into it and renames it into place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::flags::Flags;
use crate::maildir::Maildir;
use crate::root::open_parent;

/// Keywords a Maildir can have: the letters `a` to `z`.
pub const KEYWORDS_MAX: usize = 26;
/// The longest keyword, in bytes.
pub const KEYWORD_BYTES_MAX: usize = 200;

const FILE: &str = "dovecot-keywords";
const LOCK: &str = "dovecot-keywords.lock";
/// A table with 26 of the longest keywords is much shorter; what is beyond is not read.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// A lock older than this has lost its owner.
const LOCK_AGE_MAX: Duration = Duration::from_secs(60);

/// The keywords of one Maildir.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keywords(BTreeMap<u8, String>);

impl Keywords {
    /// The letter of a keyword, as a flag; upper and lower case are the same (RFC 9051 section 2.3.2).
    pub fn flag(&self, keyword: &str) -> Option<Flags> {
        let (index, _) = self.0.iter().find(|(_, name)| name.eq_ignore_ascii_case(keyword))?;
        Flags::letter(char::from(b'a' + index))
    }

    /// The keywords that a message's flags stand for; letters without an entry are passed over.
    pub fn names(&self, flags: Flags) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(index, _)| {
                Flags::letter(char::from(b'a' + **index)).is_some_and(|flag| flags.contains(flag))
            })
            .map(|(_, name)| name.as_str())
    }

    /// Reads the table; lines that make no sense are passed over.
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (index, name) = line.split_once(' ')?;
            let index = index.parse().ok().filter(|index| usize::from(*index) < KEYWORDS_MAX)?;
            is_keyword(name).then(|| (index, name.to_owned()))
        };
        Self(text.lines().filter_map(line).collect())
    }

    fn to_text(&self) -> String {
        self.0.iter().map(|(index, name)| format!("{index} {name}\n")).collect()
    }

    fn insert(&mut self, keyword: &str) -> Option<Flags> {
        let free = (0..KEYWORDS_MAX as u8).find(|index| !self.0.contains_key(index))?;
        self.0.insert(free, keyword.to_owned());
        self.flag(keyword)
    }
}

/// An IMAP keyword: an atom (RFC 9051 section 9, `flag-keyword`), so no blanks, controls or specials.
fn is_keyword(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_graphic() && !b"(){%*\"\\]".contains(&b);
    (1..=KEYWORD_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

impl Maildir {
    /// The keywords of this Maildir; none if it has no table.
    ///
    /// # Errors
    /// Those of `open` and `read`.
    pub fn keywords(&self) -> io::Result<Keywords> {
        self.keywords_in(&open_parent(self.new_dir())?)
    }

    /// The letter of a keyword, given to it now if it has none. The changed table is fsynced.
    ///
    /// # Errors
    /// `InvalidInput` if it is no IMAP keyword; `QuotaExceeded` when all 26 letters are taken; `WouldBlock` while another program changes
    /// the table (try again soon; a lock older than a minute before `now` is broken); others of `open`, `write`, `fsync`, `rename`.
    pub fn keyword_flag(&self, keyword: &str, now: SystemTime) -> io::Result<Flags> {
        if !is_keyword(keyword) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let base = open_parent(self.new_dir())?;
        if let Some(flag) = self.keywords_in(&base)?.flag(keyword) {
            return Ok(flag);
        }
        self.sync_way()?;
        let mut lock = take_lock(&base, now)?;
        let changed = self.add_locked(&base, &mut lock, keyword);
        if changed.is_err() {
            let _ = posthaste_fsops::unlinkat(&base, LOCK, AtFlags::empty());
        }
        changed
    }

    /// Reads the table again, now that nobody else changes it, and renames the lock file with the new one over it.
    fn add_locked(&self, base: &OwnedFd, lock: &mut File, keyword: &str) -> io::Result<Flags> {
        let mut keywords = self.keywords_in(base)?;
        if let Some(flag) = keywords.flag(keyword) {
            posthaste_fsops::unlinkat(base, LOCK, AtFlags::empty())?;
            return Ok(flag);
        }
        let flag = keywords.insert(keyword).ok_or(io::ErrorKind::QuotaExceeded)?;
        self.ownership().apply_to_file(&*lock)?;
        posthaste_fsops::write_all(&*lock, keywords.to_text().as_bytes())?;
        posthaste_fsops::fsync(&*lock)?;
        posthaste_fsops::renameat(base, LOCK, base, FILE)?;
        posthaste_fsops::fsync(base)?;
        Ok(flag)
    }

    fn keywords_in(&self, base: &OwnedFd) -> io::Result<Keywords> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(base, FILE, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Keywords::default()),
            file => File::from(file?),
        };
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
        Ok(Keywords::parse(&String::from_utf8_lossy(&text)))
    }
}

fn take_lock(base: &OwnedFd, now: SystemTime) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = || posthaste_fsops::openat(base, LOCK, flags, Mode::RUSR | Mode::WUSR);
    match make() {
        Err(Errno::EXIST) => {
            let stat = rustix::fs::statat(base, LOCK, AtFlags::SYMLINK_NOFOLLOW)?;
            let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
            if now.duration_since(changed).unwrap_or_default() <= LOCK_AGE_MAX {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            posthaste_fsops::unlinkat(base, LOCK, AtFlags::empty())?;
            make()
                .map(File::from)
                .map_err(|e| if e == Errno::EXIST { io::ErrorKind::WouldBlock.into() } else { e.into() })
        }
        made => Ok(File::from(made?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_and_writes_dovecots_layout() {
        let table = Keywords::parse("0 $Forwarded\n2 Junk\nnonsense\n26 Beyond\n3 bad name\n");
        assert_eq!(table.to_text(), "0 $Forwarded\n2 Junk\n");
        assert_eq!(table.flag("junk"), Flags::letter('c'));
        let flags = Flags::of_name("x:2,Sac");
        assert_eq!(table.names(flags).collect::<Vec<_>>(), ["$Forwarded", "Junk"]);
    }
}
