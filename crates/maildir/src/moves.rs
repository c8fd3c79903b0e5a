//! A message goes from one Maildir to another.

use std::collections::HashSet;
use std::io;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::maildir::{Found, Maildir, Subdir, check_name, rename_exclusive};
use crate::name::key_of;

/// Names that are tried where the message's own is taken in the other Maildir.
const NAMES_MAX: u32 = 1000;

/// The keys (what stands before the first `,` or `:` of a name) that are taken in a Maildir.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys(HashSet<String>);

impl Maildir {
    /// The keys of its messages: one scan of `new/` and `cur/`, for any number of moves.
    ///
    /// # Errors
    /// Those of `open` and `getdents`.
    pub fn keys(&self) -> io::Result<Keys> {
        let mut keys = HashSet::new();
        for dir in [Subdir::New, Subdir::Cur] {
            self.for_each_name(dir, |name| {
                keys.insert(key_of(name).to_owned());
            })?;
        }
        Ok(Keys(keys))
    }

    /// Moves a message into the same directory (`new/`, `cur/`) of another Maildir on the same file system, and returns its name there. Flags stay. What
    /// mbsync keeps in a name (`,U=`) does not: it is of this Maildir. No file is ever replaced, and a key that is among `taken` gets a number: the same
    /// message may be there under other flags. The new key is added.
    ///
    /// At no moment is the message in neither of them, on disk too: where names may reach the disk in any order it lies in both until
    /// that of the new place is durable. Otherwise not synced: [`sync_names`](Self::sync_names) of both is for that.
    ///
    /// # Errors
    /// `NotFound` if the message is gone or has another name by now; `CrossesDevices`: nothing was done; `InvalidFilename`; others of `rename`, `link`,
    /// `unlink` and `fsync`.
    pub fn move_to(&self, found: &Found, target: &Self, taken: &mut Keys) -> io::Result<Found> {
        check_name(&found.name)?;
        for number in 0..NAMES_MAX {
            let name = name_there(&found.name, number);
            check_name(&name)?;
            if taken.0.contains(key_of(&name)) {
                continue;
            }
            match self.move_as(found, target, &name) {
                // Another program was faster.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    taken.0.insert(key_of(&name).to_owned());
                    return Ok(Found { dir: found.dir, name, size: found.size });
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn move_as(&self, found: &Found, target: &Self, name: &str) -> Result<(), Errno> {
        let (from, to) = (self.dir(found.dir), target.dir(found.dir));
        if self.facts().ordered_log {
            match rename_exclusive(from, &found.name, to, name) {
                // Without an exclusive rename; a link is exclusive everywhere.
                Err(Errno::INVAL | Errno::NOSYS) => {}
                done => return done,
            }
        }
        posthaste_fsops::linkat(from, &*found.name, to, name, AtFlags::empty())?;
        posthaste_fsops::fsync(to)?;
        posthaste_fsops::unlinkat(from, &*found.name, AtFlags::empty())
    }
}

/// The name in another Maildir: with a number behind its key where it is taken.
fn name_there(name: &str, number: u32) -> String {
    let key = key_of(name);
    let (fields, flags) = name[key.len()..].split_once(':').map_or((&name[key.len()..], None), |(a, b)| (a, Some(b)));
    let fields: String =
        fields.split(',').skip(1).filter(|field| !field.starts_with("U=")).map(|field| format!(",{field}")).collect();
    let key = if number == 0 { key.to_owned() } else { format!("{key}_{number}") };
    let flags = flags.map(|flags| format!(":{flags}")).unwrap_or_default();
    format!("{key}{fields}{flags}")
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
        ] {
            assert_eq!(name_there(name, number), expected, "{name}");
        }
    }
}
