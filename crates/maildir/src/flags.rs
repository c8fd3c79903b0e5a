//! Flags: the letters after `:2,`, changed by renaming.

use std::fmt;
use std::io;

use rustix::io::Errno;

use crate::maildir::{Found, Maildir, Subdir, check_name, rename_exclusive};

/// Attempts at a change while other programs rename the same message.
const RENAMES_MAX: usize = 8;

/// A set of flag letters: `A`-`Z` are standard flags, `a`-`z` keywords (see [`Keywords`](crate::Keywords)). Letters
/// without a meaning are preserved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u64);

impl Flags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// `D`: a draft.
    pub const DRAFT: Self = Self::upper(b'D');
    /// `F`: flagged by the user.
    pub const FLAGGED: Self = Self::upper(b'F');
    /// `P`: passed on, resent or bounced.
    pub const PASSED: Self = Self::upper(b'P');
    /// `R`: replied to.
    pub const REPLIED: Self = Self::upper(b'R');
    /// `S`: seen.
    pub const SEEN: Self = Self::upper(b'S');
    /// `T`: in the trash.
    pub const TRASHED: Self = Self::upper(b'T');

    const fn upper(letter: u8) -> Self {
        Self(1 << (letter - b'A'))
    }

    /// One letter; `None` unless it is an ASCII letter.
    pub fn letter(letter: char) -> Option<Self> {
        match letter {
            'A'..='Z' => Some(Self(1 << (letter as u32 - 'A' as u32))),
            'a'..='z' => Some(Self(1 << (26 + letter as u32 - 'a' as u32))),
            _ => None,
        }
    }

    /// The flags of a file name; other characters are ignored.
    pub fn of_name(name: &str) -> Self {
        let letters = name.split_once(":2,").map_or("", |(_, letters)| letters);
        letters.chars().filter_map(Self::letter).fold(Self::NONE, Self::with)
    }

    /// Union of both sets.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// This set without `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// True if all of `others` are in this set.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// The letters in ASCII order, as in the file name.
    pub fn letters(self) -> impl Iterator<Item = char> {
        ('A'..='Z')
            .chain('a'..='z')
            .enumerate()
            .filter(move |(bit, _)| self.0 >> bit & 1 == 1)
            .map(|(_, letter)| letter)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.letters().try_for_each(|letter| fmt::Write::write_char(f, letter))
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({self})")
    }
}

impl Maildir {
    /// Adds and removes flags of a message and returns its new place, which is `cur/` even if no flag changed.
    ///
    /// A message that another program has renamed meanwhile is found by its key; that program's flags are kept. Not
    /// synced.
    ///
    /// # Errors
    /// `NotFound` if the message is gone; `InvalidFilename` if the name would exceed 255 bytes; others of `rename`.
    pub fn change_flags(&self, found: &Found, add: Flags, remove: Flags) -> io::Result<Found> {
        let mut at = found.clone();
        for _ in 0..RENAMES_MAX {
            let flags = Flags::of_name(&at.name).with(add).without(remove);
            match self.rename_with(&at, flags) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                done => return done,
            }
            at = self.find(&at.name)?.ok_or(io::ErrorKind::NotFound)?;
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Gives a message exactly these flags; otherwise as [`change_flags`](Self::change_flags).
    ///
    /// # Errors
    /// As [`change_flags`](Self::change_flags).
    pub fn set_flags(&self, found: &Found, flags: Flags) -> io::Result<Found> {
        self.change_flags(found, flags, Flags(u64::MAX).without(flags))
    }

    fn rename_with(&self, at: &Found, flags: Flags) -> io::Result<Found> {
        let base = at.name.split(':').next().unwrap_or("");
        let name = format!("{base}:2,{flags}");
        check_name(&at.name)?;
        check_name(&name)?;
        let moved = Found { dir: Subdir::Cur, name, size: at.size };
        if (at.dir, &at.name) == (moved.dir, &moved.name) {
            return Ok(moved);
        }
        match rename_exclusive(self.dir(at.dir), &at.name, self.dir(Subdir::Cur), &moved.name) {
            // Without an exclusive rename: the target has this message's own unique name, so it can only be a copy of it.
            Err(Errno::INVAL | Errno::NOSYS) => {
                posthaste_fsops::renameat(self.dir(at.dir), &*at.name, self.dir(Subdir::Cur), &*moved.name)?;
            }
            done => done?,
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_a_set_in_ascii_order() {
        let flags = Flags::of_name("1.a.h,S=1:2,aSFz?S");
        assert_eq!(flags.to_string(), "FSaz");
        assert!(flags.contains(Flags::SEEN.with(Flags::FLAGGED)) && !flags.contains(Flags::DRAFT));
        assert_eq!(flags.without(Flags::SEEN).to_string(), "Faz");
        assert_eq!(Flags::of_name("1.a.h,S=1"), Flags::NONE);
        assert_eq!(Flags::letter('é'), None);
    }
}
