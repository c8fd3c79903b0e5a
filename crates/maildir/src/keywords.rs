//! Keywords: user-defined flags, as letters `a`-`z` in file names and a table in the file `dovecot-keywords`.
//!
//! The file has a line for each letter in use: its index (`a` is 0) and its name, `0 $Forwarded`. This is Dovecot's
//! layout and locking, so both can serve the same Maildir. Dovecot guards the table with `dovecot-uidlist.lock`, and
//! removes any `dovecot-keywords.lock`. So a writer makes `dovecot-uidlist.lock` (exclusively) and reads the table
//! again. It then writes the new table into `dovecot-keywords.lock` and renames it into place. Dovecot reads the table
//! again when its mtime, in whole seconds, has changed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use crate::dirs::open_parent;
use crate::flags::Flags;
use crate::maildir::{Maildir, Subdir};
use crate::tree::Stamp;

/// Keywords a Maildir can have: the letters `a` to `z`.
pub const KEYWORDS_MAX: usize = 26;
/// Maximum bytes of a keyword.
pub const KEYWORD_BYTES_MAX: usize = 200;

/// The table's name in a Maildir.
pub const KEYWORDS_FILE: &str = "dovecot-keywords";
const NEXT: &str = "dovecot-keywords.lock";
const LOCK: &str = "dovecot-uidlist.lock";
/// A table of 26 keywords of the greatest length is much shorter; a longer file is not a table.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// A lock older than this is stale (Dovecot's own limit).
const LOCK_AGE_MAX: Duration = Duration::from_secs(120);

/// The keywords of one Maildir.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keywords(BTreeMap<u8, Vec<u8>>);

impl Keywords {
    /// The letter of a keyword, as a flag; upper and lower case are the same (RFC 9051 section 2.3.2).
    pub fn flag(&self, keyword: &str) -> Option<Flags> {
        // Of two lines with one name the last one counts, as for Dovecot.
        self.named(keyword).next_back()
    }

    /// All letters of a keyword; a damaged table can have several.
    pub fn flags(&self, keyword: &str) -> Flags {
        self.named(keyword).fold(Flags::NONE, Flags::with)
    }

    fn named(&self, keyword: &str) -> impl DoubleEndedIterator<Item = Flags> {
        let named = self.0.iter().filter(move |(_, name)| name.eq_ignore_ascii_case(keyword.as_bytes()));
        named.filter_map(|(index, _)| Flags::letter(char::from(b'a' + index)))
    }

    /// All letters with a keyword, with their keywords.
    pub fn all(&self) -> impl Iterator<Item = (char, &str)> {
        self.0.iter().filter_map(|(index, name)| Some((char::from(b'a' + index), keyword_of(name)?)))
    }

    /// The keywords of a message's flags; letters without an entry are skipped.
    pub fn names(&self, flags: Flags) -> impl Iterator<Item = &str> {
        let has = move |letter: char| Flags::letter(letter).is_some_and(|flag| flags.contains(flag));
        self.all().filter(move |(letter, _)| has(*letter)).map(|(_, name)| name)
    }

    /// Parses the table. Malformed lines are skipped; a letter with an invalid name stays taken.
    fn parse(text: &[u8]) -> Self {
        let line = |line: &[u8]| {
            let blank = line.iter().position(|b| *b == b' ')?;
            let index = &line[..blank];
            let name = &line[blank + 1..];
            let name = name.strip_suffix(b"\r").unwrap_or(name);
            let index = str::from_utf8(index).ok().filter(|index| index.bytes().all(|b| b.is_ascii_digit()))?;
            let index: u8 = index.parse().ok().filter(|index| usize::from(*index) < KEYWORDS_MAX)?;
            (!name.is_empty()).then(|| (index, name.to_owned()))
        };
        Self(text.split(|b| *b == b'\n').filter_map(line).collect())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let line = |(index, name): (&u8, &Vec<u8>)| [format!("{index} ").as_bytes(), name, b"\n"].concat();
        self.0.iter().flat_map(line).collect()
    }

    /// Assigns a keyword to the first letter that is free in the table and in the messages: an unnamed letter in use
    /// has an unknown meaning.
    fn insert(&mut self, keyword: &str, in_use: Flags) -> Option<Flags> {
        let flag = |index: u8| Flags::letter(char::from(b'a' + index));
        let is_free =
            |index: &u8| !self.0.contains_key(index) && flag(*index).is_some_and(|flag| !in_use.contains(flag));
        let free = (0..KEYWORDS_MAX as u8).find(is_free)?;
        self.0.insert(free, keyword.as_bytes().to_owned());
        flag(free)
    }
}

/// True for an IMAP keyword: an atom (RFC 9051 section 9, `flag-keyword`), so without blanks, controls and specials, of
/// at most [`KEYWORD_BYTES_MAX`] bytes.
pub fn is_keyword(name: &str) -> bool {
    keyword_of(name.as_bytes()).is_some()
}

fn keyword_of(name: &[u8]) -> Option<&str> {
    let allowed = |b: &u8| b.is_ascii_graphic() && !b"(){%*\"\\]".contains(b);
    let is_keyword = (1..=KEYWORD_BYTES_MAX).contains(&name.len()) && name.iter().all(allowed);
    str::from_utf8(name).ok().filter(|_| is_keyword)
}

/// Stamp of the keyword table of the Maildir in `dir`, which differs after every change. `None` if there is no table.
///
/// # Errors
/// Errors of `stat`.
pub fn keywords_stamp(dir: &Path) -> io::Result<Option<Stamp>> {
    match rustix::fs::stat(dir.join(KEYWORDS_FILE)) {
        Ok(stat) => Ok(Some(Stamp::of(&stat))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the keyword table of the Maildir in `dir`, and its stamp. Another program may own the table, so symbolic links
/// are followed.
///
/// # Errors
/// `InvalidData` if it is not a regular file, or longer than 64 KiB; others of `open` and `read`.
pub fn read_keywords(dir: &Path) -> io::Result<(Keywords, Option<Stamp>)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(dir.join(KEYWORDS_FILE), flags, Mode::empty());
    Ok(match read(opened)? {
        Some((keywords, stat)) => (keywords, Some(Stamp::of(&stat))),
        None => (Keywords::default(), None),
    })
}

fn read(opened: rustix::io::Result<OwnedFd>) -> io::Result<Option<(Keywords, Stat)>> {
    let file = match opened {
        Err(Errno::NOENT) => return Ok(None),
        file => File::from(file?),
    };
    let stat = rustix::fs::fstat(&file)?;
    let mut text = Vec::new();
    if FileType::from_raw_mode(stat.st_mode).is_file() {
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    }
    if !FileType::from_raw_mode(stat.st_mode).is_file() || text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a table of keywords"));
    }
    Ok(Some((Keywords::parse(&text), stat)))
}

impl Maildir {
    /// The keywords of this Maildir; none if it has no table.
    ///
    /// # Errors
    /// As [`read_keywords`]; a symbolic link is not followed.
    pub fn keywords(&self) -> io::Result<Keywords> {
        keywords_at(&open_parent(self.new_dir())?)
    }

    /// The letter of a keyword; one without a letter gets one now. The changed table is fsynced.
    ///
    /// # Errors
    /// `InvalidInput` if it is not an IMAP keyword; `QuotaExceeded` when all 26 letters are taken; `InvalidData` if the
    /// table is malformed. `WouldBlock` while another program changes the table or the list of UIDs: try again soon. A
    /// lock is broken once its process has ended, or two minutes before `now`. Others of `open`, `write`, `fsync`,
    /// `rename`.
    pub fn keyword_flag(&self, keyword: &str, now: SystemTime) -> io::Result<Flags> {
        if !is_keyword(keyword) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let base = open_parent(self.new_dir())?;
        if let Some(flag) = self.keywords_in(&base)?.and_then(|(keywords, _)| keywords.flag(keyword)) {
            return Ok(flag);
        }
        self.sync_way()?;
        take_lock(&base, now)?;
        let flag = self.add_locked(&base, keyword, now);
        let unlocked = posthaste_fsops::unlinkat(&base, LOCK, AtFlags::empty());
        let flag = flag?;
        unlocked?;
        Ok(flag)
    }

    /// Reads the table again under the lock, and replaces it.
    fn add_locked(&self, base: &OwnedFd, keyword: &str, now: SystemTime) -> io::Result<Flags> {
        let (mut keywords, old) =
            self.keywords_in(base)?.map_or((Keywords::default(), None), |(k, stat)| (k, Some(stat)));
        if let Some(flag) = keywords.flag(keyword) {
            return Ok(flag);
        }
        let mut in_use = Flags::NONE;
        for dir in [Subdir::New, Subdir::Cur] {
            self.for_each_name(dir, |name| in_use = in_use.with(Flags::of_name(name)))?;
        }
        let flag = keywords.insert(keyword, in_use).ok_or(io::ErrorKind::QuotaExceeded)?;
        // Left by a process that was killed: the holder of the lock may remove it.
        match posthaste_fsops::unlinkat(base, NEXT, AtFlags::empty()) {
            Err(Errno::NOENT) => {}
            removed => removed?,
        }
        let next = posthaste_fsops::openat(base, NEXT, CREATE, Mode::RUSR | Mode::WUSR)?;
        let replaced = self.replace_table(base, &next, &keywords, old.as_ref(), now);
        if replaced.is_err() {
            let _ = posthaste_fsops::unlinkat(base, NEXT, AtFlags::empty());
        }
        replaced.map(|()| flag)
    }

    fn replace_table(
        &self,
        base: &OwnedFd,
        next: &OwnedFd,
        keywords: &Keywords,
        old: Option<&Stat>,
        now: SystemTime,
    ) -> io::Result<()> {
        self.make_alike(base, next, old)?;
        posthaste_fsops::write_all(next, &keywords.to_bytes())?;
        set_later(next, old, now)?;
        posthaste_fsops::fsync(next)?;
        posthaste_fsops::renameat(base, NEXT, base, KEYWORDS_FILE)?;
        Ok(posthaste_fsops::fsync(base)?)
    }

    /// Gives the new table the owner and mode of the old one or of the Maildir, so that users keep access when root has
    /// changed it.
    fn make_alike(&self, base: &OwnedFd, next: &OwnedFd, old: Option<&Stat>) -> io::Result<()> {
        let model = old.copied().map_or_else(|| rustix::fs::fstat(base), Ok)?;
        let stat = rustix::fs::fstat(next)?;
        if (stat.st_uid, stat.st_gid) != (model.st_uid, model.st_gid) {
            let uid = rustix::fs::Uid::from_raw(model.st_uid);
            let gid = rustix::fs::Gid::from_raw(model.st_gid);
            match posthaste_fsops::fchown(next, Some(uid), Some(gid)) {
                Err(Errno::PERM) => {}
                changed => changed?,
            }
        }
        posthaste_fsops::fchmod(next, Mode::from_raw_mode(model.st_mode & 0o666))?;
        self.ownership().apply_to_file(next)
    }

    fn keywords_in(&self, base: &OwnedFd) -> io::Result<Option<(Keywords, Stat)>> {
        table_in(base)
    }
}

/// The keywords of the Maildir open as `base`; none if it has no table. A symbolic link is not followed.
///
/// # Errors
/// As [`read_keywords`].
pub fn keywords_at(base: &OwnedFd) -> io::Result<Keywords> {
    Ok(table_in(base)?.map(|(keywords, _)| keywords).unwrap_or_default())
}

fn table_in(base: &OwnedFd) -> io::Result<Option<(Keywords, Stat)>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    read(rustix::fs::openat(base, KEYWORDS_FILE, flags, Mode::empty()))
}

const CREATE: OFlags =
    OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Sets the table's mtime at least a full second after the old one; otherwise Dovecot would not reread the table.
fn set_later(next: &OwnedFd, old: Option<&Stat>, now: SystemTime) -> io::Result<()> {
    let Some(old) = old else { return Ok(()) };
    let now = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0));
    let time = Timespec { tv_sec: now.max(old.st_mtime.saturating_add(1)), tv_nsec: 0 };
    Ok(rustix::fs::futimens(next, &Timestamps { last_access: time, last_modification: time })?)
}

/// Makes the lock file with its owner's name.
fn take_lock(base: &OwnedFd, now: SystemTime) -> io::Result<()> {
    // Others must be able to read whose it is, should its owner be killed.
    let make = || posthaste_fsops::openat(base, LOCK, CREATE, Mode::from_raw_mode(0o644));
    let lock = match make() {
        Err(Errno::EXIST) => {
            if !is_stale(base, now)? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            posthaste_fsops::unlinkat(base, LOCK, AtFlags::empty())?;
            make().map_err(|e| if e == Errno::EXIST { io::ErrorKind::WouldBlock.into() } else { io::Error::from(e) })?
        }
        made => made?,
    };
    let said = posthaste_fsops::write_all(&lock, format!("{}:{}", std::process::id(), host_name()).as_bytes());
    if said.is_err() {
        let _ = posthaste_fsops::unlinkat(base, LOCK, AtFlags::empty());
    }
    said
}

/// True if the lock is stale: its owner (`process:host`) has ended on this host, or it is old.
fn is_stale(base: &OwnedFd, now: SystemTime) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(base, LOCK, flags, Mode::empty()) {
        // The letter was released since we read the table.
        Err(Errno::NOENT) => return Ok(false),
        file => File::from(file?),
    };
    let changed = file.metadata()?.modified()?;
    let mut owner = String::new();
    let _ = file.take(1024).read_to_string(&mut owner);
    let process = owner.split_once(':').filter(|(_, host)| *host == host_name()).and_then(|(id, _)| id.parse().ok());
    let has_ended = process
        .and_then(rustix::process::Pid::from_raw)
        .is_some_and(|process| matches!(rustix::process::test_kill_process(process), Err(Errno::SRCH)));
    Ok(has_ended || now.duration_since(changed).unwrap_or_default() > LOCK_AGE_MAX)
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_and_writes_dovecots_layout() {
        let table = Keywords::parse(
            b"0 $Forwarded\n2 Junk\r\nnonsense\n26 Beyond\n+4 Sign\n-1 Below\n300 Far\n5 \n3 bad name\n7 \xff\n",
        );
        assert_eq!(table.to_bytes(), b"0 $Forwarded\n2 Junk\n3 bad name\n7 \xff\n");
        assert_eq!(table.flag("junk"), Flags::letter('c'));
        let flags = Flags::of_name("x:2,Sacdhz");
        assert_eq!(table.names(flags).collect::<Vec<_>>(), ["$Forwarded", "Junk"]);
        let mut table = table;
        // `d` and `h` have names that we do not understand, `b` is in use by a message.
        let letters = ["x", "y", "z"].map(|name| table.insert(name, Flags::of_name("x:2,b")).unwrap().to_string());
        assert_eq!(letters, ["e", "f", "g"]);
        assert_eq!(table.insert("w", Flags::NONE), Flags::letter('b'));
    }

    #[test]
    fn the_last_of_double_lines_counts_and_each_letter_has_a_name() {
        let table = Keywords::parse(b"0 a\n1 old\n1 b\n2 A\n");
        assert_eq!((table.flag("a"), table.flags("a")), (Flags::letter('c'), Flags::of_name(":2,ac")));
        assert_eq!(table.all().collect::<Vec<_>>(), [('a', "a"), ('b', "b"), ('c', "A")]);
    }

    #[test]
    fn what_is_no_table_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_keywords(dir.path()).unwrap(), (Keywords::default(), None));
        std::fs::write(dir.path().join(KEYWORDS_FILE), "0 a\n".repeat(20_000)).unwrap();
        assert_eq!(read_keywords(dir.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(dir.path().join(KEYWORDS_FILE)).unwrap();
        std::fs::create_dir(dir.path().join(KEYWORDS_FILE)).unwrap();
        assert_eq!(read_keywords(dir.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
