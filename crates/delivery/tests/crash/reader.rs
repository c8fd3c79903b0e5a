//! Other programs on the mailboxes: they mark, move and remove mail, with its mailbox or alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste_fsops::Machine;
use posthaste_maildir::{Flags, Maildir, Subdir};
use posthaste_turns::Random;
use rustix::fs::{AtFlags, CWD};

use crate::mail::{Kind, Letter, MAILBOXES, files_below, name_of, number_of};

/// An entry that is no longer where it was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub number: u64,
    pub mailbox: u64,
    /// The event from which on it was gone.
    pub since: usize,
    /// True if it was moved to another directory, where it must be unless it comes back.
    pub is_kept: bool,
}

/// Messages taken in one life of the executor.
#[derive(Default)]
pub struct Reader {
    /// All messages that may be in the mailboxes.
    pub letters: Arc<[Arc<Letter>]>,
    taken: Vec<Taken>,
    /// Renamed mailboxes: their present path, their number, and the event of the renaming.
    away: Vec<(PathBuf, u64, usize)>,
}

impl Reader {
    /// Does something to a mailbox. Ignores failures.
    pub fn act(&mut self, machine: &Machine, random: &mut Random) {
        let mailbox = random.below(MAILBOXES);
        let path = machine.path().join("mail").join(name_of(mailbox));
        let since = machine.position();
        match random.below(16) {
            _ if !path.is_dir() => {}
            0 => {
                let away = path.with_file_name(format!("away{since}"));
                if posthaste_fsops::rename(&path, &away).is_ok() {
                    self.away.push((away, mailbox, since));
                }
            }
            1 => {
                // Any of it may be gone from now on: a name moved within the mailbox, not yet on the disk, goes with
                // its old directory.
                let numbers: Vec<u64> = all_below(&path).filter_map(|bytes| self.number(mailbox, &bytes)).collect();
                let taken = |number| Taken { number, mailbox, since, is_kept: false };
                self.taken.extend(numbers.into_iter().map(taken));
                let _ = self.remove_all(machine, &path, mailbox);
            }
            _ => {
                let Ok(maildir) = Maildir::open(&path) else { return };
                for (dir, name) in maildir.scan().expect("names").into_iter().take(2) {
                    self.act_on(machine, random, &maildir, (&path, mailbox), (dir, &name));
                }
            }
        }
    }

    fn act_on(
        &mut self,
        machine: &Machine,
        random: &mut Random,
        maildir: &Maildir,
        (path, mailbox): (&Path, u64),
        (dir, name): (Subdir, &str),
    ) {
        let choice = random.below(6);
        let Ok(Some(found)) = maildir.find(name) else { return };
        // A message not yet repaired by a start looks damaged to the reader, who leaves it alone.
        let Some(number) = self.number(mailbox, &maildir.read(found.dir, &found.name).expect("a message")) else {
            return;
        };
        let since = machine.position();
        let mut take = |is_kept| self.taken.push(Taken { number, mailbox, since, is_kept });
        match choice {
            0 | 1 if maildir.remove(found.dir, &found.name).is_ok() => take(false),
            2 if make_folder(path).is_ok() => {
                let to = path.join(FOLDER).join("cur").join(&found.name);
                if posthaste_fsops::rename(path.join(found.dir.as_str()).join(&found.name), to).is_ok() {
                    take(true);
                }
            }
            3 => drop(maildir.set_flags(&found, Flags::SEEN)),
            4 => drop(maildir.set_flags(&found, Flags::SEEN.with(Flags::REPLIED))),
            5 if dir == Subdir::New => drop(maildir.set_flags(&found, Flags::FLAGGED)),
            // Marked as new, as mutt does it.
            5 => {
                let plain = found.name.split(':').next().expect("a name");
                let _ = posthaste_fsops::rename(path.join("cur").join(&found.name), path.join("new").join(plain));
            }
            _ => {}
        }
    }

    /// Like `rm -r`, while others still write there.
    fn remove_all(&mut self, machine: &Machine, dir: &Path, mailbox: u64) -> std::io::Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                self.remove_all(machine, &path, mailbox)?;
                continue;
            }
            // A mailbox with a mount of its own holds the mount's id: without it the disk would be another one.
            if path.ends_with(".posthaste-mount") {
                continue;
            }
            let bytes = std::fs::read(&path).ok().filter(|_| !dir.ends_with("tmp"));
            let number = bytes.and_then(|bytes| self.number(mailbox, &bytes));
            let since = machine.position();
            posthaste_fsops::unlink(&path)?;
            self.taken.extend(number.map(|number| Taken { number, mailbox, since, is_kept: false }));
        }
        Ok(posthaste_fsops::unlinkat(CWD, dir, AtFlags::REMOVEDIR)?)
    }

    /// All removed messages, once nobody writes any more.
    pub fn end(mut self) -> Vec<Taken> {
        for (dir, mailbox, since) in std::mem::take(&mut self.away) {
            // It may have been half removed before.
            for path in ["new", "cur"].iter().flat_map(|subdir| files_below(&dir.join(subdir)).expect("names")) {
                let number = self.number(mailbox, &std::fs::read(path).expect("a message"));
                self.taken.extend(number.map(|number| Taken { number, mailbox, since, is_kept: true }));
            }
        }
        self.taken
    }

    fn number(&self, mailbox: u64, bytes: &[u8]) -> Option<u64> {
        number_of(&self.letters, Kind::Local, mailbox, bytes)
    }
}

/// The readable mail in a mailbox and its folder.
fn all_below(mailbox: &Path) -> impl Iterator<Item = Vec<u8>> {
    let dirs = ["new", "cur", ".Folder/new", ".Folder/cur"].map(|dir| mailbox.join(dir));
    let files = dirs.into_iter().flat_map(|dir| files_below(&dir).unwrap_or_default());
    files.filter_map(|path| std::fs::read(path).ok())
}

/// Makes a folder durable before anything is moved there, as is the mail program's duty.
fn make_folder(mailbox: &Path) -> std::io::Result<()> {
    let folder = mailbox.join(FOLDER);
    if !folder.join("new").exists() {
        Maildir::open_or_create(&folder)?;
        posthaste_fsops::fsync(std::fs::File::open(&folder)?)?;
        posthaste_fsops::fsync(std::fs::File::open(mailbox)?)?;
    }
    Ok(())
}

const FOLDER: &str = ".Folder";
