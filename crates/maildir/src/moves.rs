//! Moves of messages between Maildirs.

use std::collections::HashSet;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::SystemTime;

use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps};
use rustix::io::Errno;

use crate::dirs::identity;
use crate::flags::Flags;
use crate::maildir::{Found, Maildir, Subdir, check_name, rename_exclusive};
use crate::name::key_of;

/// Names to try when the message's own is taken in the other Maildir.
const NAMES_MAX: u32 = 1000;
/// Attempts for a message that other programs rename at the same time.
const RENAMES_MAX: usize = 8;
/// Bytes copied at once between file systems.
const COPY_BYTES: usize = 256 * 1024;

/// Keys that are taken in a Maildir (a key is the part of a name before the first `,` or `:`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TakenKeys(HashSet<String>);

impl Maildir {
    /// The keys of its messages: one scan of `new/` and `cur/`, for any number of moves.
    ///
    /// # Errors
    /// Errors of `open` and `getdents`.
    pub fn keys(&self) -> io::Result<TakenKeys> {
        let mut keys = HashSet::new();
        for dir in [Subdir::New, Subdir::Cur] {
            self.for_each_name(dir, |name| {
                keys.insert(key_of(name).to_owned());
            })?;
        }
        Ok(TakenKeys(keys))
    }

    /// Moves a message into the same directory (`new/`, `cur/`) of another Maildir, and returns its name there. Flags
    /// stay; keywords get the other Maildir's letters. mbsync's field (`,U=`) is dropped: it counts in the old place
    /// only. No file is ever replaced. A key that is among `taken` gets a number, since the same message may be there
    /// under other flags. The new key is added to `taken`.
    ///
    /// A message renamed meanwhile by another program is found by its key. At every moment the message is in at least
    /// one of the two, on disk too. Where names may reach the disk in any order, it is in both until the new name is
    /// durable. Otherwise not synced: call [`sync_names`](Self::sync_names) of both. Between file systems the message
    /// is copied, with mode and time. The old file is removed once the copy is durable; a crash in between leaves both.
    ///
    /// # Errors
    /// `NotFound` if the message is gone; `Unsupported` unless it is a regular file (a relative link would lead
    /// elsewhere); `InvalidFilename`; `ResourceBusy` if others keep renaming it. Others of `open`, `read`, `write`,
    /// `rename`, `link`, `unlink`, `fsync`. The message then stays in its old place.
    pub fn move_to(&self, found: &Found, target: &Self, taken: &mut TakenKeys) -> io::Result<Found> {
        let place = |maildir: &Self| rustix::fs::fstat(maildir.new_dir()).map(|stat| identity(&stat));
        if place(self)? == place(target)? {
            return Ok(found.clone());
        }
        target.sync_way()?;
        let mut step = Move { from: self, target, taken };
        let mut at = found.clone();
        for _ in 0..RENAMES_MAX {
            match step.try_move(&at) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            }
            at = self.find(&at.name)?.ok_or(io::ErrorKind::NotFound)?;
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

struct Move<'a> {
    from: &'a Maildir,
    target: &'a Maildir,
    taken: &'a mut TakenKeys,
}

impl Move<'_> {
    /// Tries to move the message, under the first name whose key is free there.
    fn try_move(&mut self, at: &Found) -> io::Result<Found> {
        check_name(&at.name)?;
        let stat = rustix::fs::statat(self.from.dir(at.dir), &*at.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only regular files are moved"));
        }
        let flags = self.flags_there(&at.name)?;
        for number in 0..NAMES_MAX {
            let there = Found { dir: at.dir, name: name_there(&at.name, flags, number), size: at.size };
            check_name(&there.name)?;
            if self.taken.0.contains(key_of(&there.name)) {
                continue;
            }
            let there = match self.give_name(at, there) {
                // Another program has already moved it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                moved => moved?,
            };
            self.taken.0.insert(key_of(&there.name).to_owned());
            return Ok(there);
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn give_name(&self, at: &Found, there: Found) -> io::Result<Found> {
        let old = self.from.dir(at.dir);
        let new = self.target.dir(there.dir);
        if self.from.facts().ordered_log {
            match rename_exclusive(old, &at.name, new, &there.name) {
                // Without an exclusive rename; a link is exclusive everywhere.
                Err(Errno::INVAL | Errno::NOSYS | Errno::XDEV) => {}
                done => return Ok(done.map(|()| there)?),
            }
        }
        match posthaste_fsops::linkat(old, &*at.name, new, &*there.name, AtFlags::empty()) {
            Err(Errno::XDEV) => self.copy(at, &there)?,
            linked => linked?,
        }
        let synced = posthaste_fsops::fsync(new).map_err(io::Error::from);
        match synced.and_then(|()| self.remove_old(at)) {
            Ok(last_name) => Ok(self.with_flags_of(&last_name, there)),
            Err(error) => {
                // The old file is still there: the new one would be a duplicate.
                let _ = self.target.remove(there.dir, &there.name);
                Err(error)
            }
        }
    }

    /// Copies the file by way of `tmp/`. Its bytes are durable afterwards, its name is not.
    fn copy(&self, at: &Found, there: &Found) -> io::Result<()> {
        let source = self.from.open_message(at.dir, &at.name)?;
        let tmp_name = key_of(&there.name);
        // Litter of an earlier attempt that a crash cut short.
        let _ = self.target.remove_tmp(tmp_name);
        let file = self.target.create_tmp(tmp_name)?;
        let tmp = self.target.tmp_dir();
        let dir = self.target.dir(there.dir);
        let named = copy_durably(source, &file)
            .and_then(|()| Ok(posthaste_fsops::linkat(tmp, tmp_name, dir, &*there.name, AtFlags::empty())?));
        // Files that cannot be removed now are removed by cleanup_tmp.
        let _ = self.target.remove_tmp(tmp_name);
        named
    }

    /// Removes the old file, and returns its last name. After an error it still exists.
    fn remove_old(&self, at: &Found) -> io::Result<String> {
        let mut at = at.clone();
        loop {
            match self.from.remove(at.dir, &at.name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => return removed.map(|()| at.name),
            }
            match self.from.find(&at.name)? {
                Some(found) => at = found,
                // Another program has removed it, too late for us.
                None => return Ok(at.name),
            }
        }
    }

    /// Copies flags that another program has given the old file before its removal; ignores errors.
    fn with_flags_of(&self, last_name: &str, there: Found) -> Found {
        match self.flags_there(last_name) {
            Ok(flags) if flags != Flags::of_name(&there.name) => self.target.set_flags(&there, flags).unwrap_or(there),
            _ => there,
        }
    }

    /// The flags of a name, with the target's letters for its keywords.
    fn flags_there(&self, name: &str) -> io::Result<Flags> {
        let flags = Flags::of_name(name);
        if !flags.letters().any(|letter| letter.is_ascii_lowercase()) {
            return Ok(flags);
        }
        let keywords = self.from.keywords()?;
        let mut there = flags;
        keywords.names(flags).for_each(|keyword| there = there.without(keywords.flags(keyword)));
        for keyword in keywords.names(flags) {
            there = there.with(self.target.keyword_flag(keyword, SystemTime::now())?);
        }
        Ok(there)
    }
}

/// Copies bytes, mode and modification time; the latter is the time of arrival.
fn copy_durably(source: std::fs::File, target: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(&source)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut source_bytes = &source;
    loop {
        match source_bytes.read(&mut buffer)? {
            0 => break,
            count => posthaste_fsops::write_all(target, &buffer[..count])?,
        }
    }
    posthaste_fsops::fchmod(target, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as _),
    };
    rustix::fs::futimens(target, &times)?;
    Ok(posthaste_fsops::fsync(target)?)
}

/// The name in another Maildir: a taken key gets a number.
fn name_there(name: &str, flags: Flags, number: u32) -> String {
    let key = key_of(name);
    let (base, info) = name.split_once(':').map_or((name, None), |(base, info)| (base, Some(info)));
    let fields = base[key.len()..].split(',').skip(1).filter(|field| !field.starts_with("U="));
    let fields: String = fields.map(|field| format!(",{field}")).collect();
    let number = if number == 0 { String::new() } else { format!("_{number}") };
    let info = match info {
        None => String::new(),
        Some(info) if info.starts_with("2,") => format!(":2,{flags}"),
        Some(other) => format!(":{other}"),
    };
    format!("{key}{number}{fields}{info}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leaves_behind_what_is_the_old_places() {
        for (name, number, expected) in [
            ("1.a.h,S=4,W=4:2,FS", 0, "1.a.h,S=4,W=4:2,FS"),
            ("1.a.h,U=17:2,S", 0, "1.a.h:2,S"),
            ("1.a.h,S=4,U=17,W=4", 2, "1.a.h_2,S=4,W=4"),
            ("x", 1, "x_1"),
            ("1.a.h:2,", 0, "1.a.h:2,"),
            ("1.a.h:2,SF", 0, "1.a.h:2,FS"),
            ("1.a.h:1,x", 0, "1.a.h:1,x"),
        ] {
            assert_eq!(name_there(name, Flags::of_name(name), number), expected, "{name}");
        }
    }
}
