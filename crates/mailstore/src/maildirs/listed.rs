//! Listed files of a Maildir.

use std::io;
use std::time::SystemTime;

use posthaste_maildir::tree::{Stamp, key_of_name};
use posthaste_maildir::{MaildirReader, Subdir};

use super::told::Oddities;

/// A listed name.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub subdir: Subdir,
    pub name: String,
    pub inode: u64,
}

/// All names of a Maildir, and true if none can be missing.
pub(super) struct Listing {
    pub listed: Vec<Listed>,
    pub stamps: [Stamp; 2],
    /// When it began.
    pub looked_at: SystemTime,
}

impl Listing {
    /// # Errors
    /// Errors of `open`, `getdents` and `stat`.
    pub fn new(reader: &MaildirReader, odd: &mut Oddities) -> io::Result<Self> {
        let looked_at = SystemTime::now();
        let stamps = reader.stamps()?;
        // Those of `new/` first: messages move from there to `cur/`, and seldom back.
        let mut listed = Vec::new();
        for subdir in [Subdir::New, Subdir::Cur] {
            odd.not_utf8 += reader.for_each_name(subdir, |found| match found.is_file {
                Some(false) => odd.no_file = Some(format!("{:?}: no regular file", found.name)),
                // Nothing of the name would stay while flags change.
                _ if key_of_name(found.name).is_empty() => {
                    odd.no_file = Some(format!("{:?}: nothing in front of its flags", found.name));
                }
                _ => listed.push(Listed { subdir, name: found.name.to_owned(), inode: found.inode }),
            })?;
        }
        Ok(Self { listed, stamps, looked_at })
    }

    /// True if the directories did not change during the listing: else `getdents` may have missed or doubled a name.
    pub fn is_quiet(&self, reader: &MaildirReader) -> io::Result<bool> {
        let settle = reader.settle_time()?;
        let is_old = self.stamps.iter().all(|stamp| stamp.is_older_than(settle, self.looked_at));
        Ok(is_old && reader.stamps()? == self.stamps)
    }
}

/// Files that share a key with others, and second names of files.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Further files with the key of another.
    pub seconds: Vec<Listed>,
    /// Two names of one file, the one to keep first: the listing raced with a rename, or a kill interrupted `link` and
    /// `unlink`.
    pub twins: Vec<(Listed, Listed)>,
}

impl Others {
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty() && self.twins.is_empty()
    }
}

/// The file that counts among those with the same key.
#[derive(Debug, Clone, Default)]
pub(super) struct Candidate {
    pub listed: Option<Listed>,
    pub has_twin: bool,
}

impl Candidate {
    /// Of two names of one file only one is used. Of two files the known one is used, else the first in byte order.
    pub fn add(&mut self, next: Listed, known: Option<u64>, others: &mut Others) {
        let Some(current) = self.listed.take() else { return self.listed = Some(next) };
        let takes_next = match (current.inode == next.inode, known) {
            (false, Some(known)) if known == next.inode => true,
            (false, Some(known)) if known == current.inode => false,
            _ => order(&next) < order(&current),
        };
        let is_other = current.inode != next.inode;
        let (kept, left) = if takes_next { (next, current) } else { (current, next) };
        self.listed = Some(kept.clone());
        if is_other {
            others.seconds.push(left)
        } else {
            self.has_twin = true;
            others.twins.push((kept, left));
        }
    }
}

/// `cur/` comes before `new/`, then the order of bytes decides.
pub(super) fn order(listed: &Listed) -> (bool, &str) {
    (listed.subdir == Subdir::New, &listed.name)
}
