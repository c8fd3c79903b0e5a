//! Writes flags into file names, and moves files of expunged messages away.
//!
//! Renames follow the durable entry and can be repeated: after a power cut the next opening does them.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use posthaste_maildir::{GoneDir, MaildirReader, Subdir};
use tokio::task::spawn_blocking;

use super::core::MailboxCore;
use super::file::{MailFile, name_with_letters};
use super::gone_dirs::gone_name;
use super::locks::lock;
use super::state::MailboxState;
use crate::row::Uid;
use crate::table::FileNote;

/// Maximum files renamed before one sync. The mailbox is locked meanwhile.
const FILES_AT_ONCE: usize = 64;
/// Maximum files that already have the right name and need only the sync, for each one that is renamed.
const SHOWN_FOR_ONE: usize = 64;

/// Starts writing flags into file names, unless that is running or nothing changed.
pub(super) fn begin_writing_names(core: &Arc<MailboxCore>) {
    if !has_work(core) || core.is_writing_names.swap(true, Ordering::AcqRel) {
        return;
    }
    let core = Arc::clone(core);
    drop(spawn_blocking(move || {
        let mut writer = NamesWriter::new(&core);
        let is_readable = loop {
            let Ok(reader) = core.reader() else { break false };
            let _one = lock(&core.changing);
            if !writer.round(&reader) {
                break true;
            }
        };
        core.is_writing_names.store(false, Ordering::Release);
        // Work that has come since the last round. A file that could not be renamed, or a mailbox that cannot be opened, waits for the next listing.
        if is_readable && writer.skipped.is_empty() {
            begin_writing_names(&core);
        }
    }));
}

/// Writes all flags into file names, unless that is running. `changing` is locked.
pub(super) fn write_names(core: &MailboxCore, reader: &MaildirReader) {
    if core.is_writing_names.swap(true, Ordering::AcqRel) {
        return;
    }
    write_names_now(core, reader);
    core.is_writing_names.store(false, Ordering::Release);
}

/// Writes all flags into file names, as far as possible. `changing` is locked.
pub(super) fn write_names_now(core: &MailboxCore, reader: &MaildirReader) {
    let mut writer = NamesWriter::new(core);
    while writer.round(reader) {}
}

pub(super) fn has_work(core: &MailboxCore) -> bool {
    let has_lost = core.has_lost_names.load(Ordering::Relaxed);
    lock(&core.state).as_ref().is_some_and(|state| !Work::of(state, &HashSet::new(), 1, has_lost).is_empty())
}

/// Files to rename or move away in one round.
struct Work {
    /// UID, MODSEQ, file, and new name.
    names: Vec<(u32, u64, Arc<MailFile>, Box<str>)>,
    leaving: Vec<(u32, Arc<MailFile>)>,
    absent: Vec<u32>,
}

impl Work {
    /// Selects at most `count` files to rename. `has_lost`: skips files that already have the right name, as it cannot
    /// become durable.
    fn of(state: &MailboxState, skipped: &HashSet<u32>, count: usize, has_lost: bool) -> Self {
        let is_open = |uid: &u32| !skipped.contains(uid);
        let behind = state.behind.keys().filter(|uid| is_open(uid));
        let mut changed = 0;
        let names = behind.filter_map(|uid| {
            let message = state.now.find(Uid::new(*uid)?)?;
            // A file that was not listed, as delivery has yet to make it, is looked for first.
            message.file.inode()?;
            let letters = state.keywords.letters_for(message.flags, &message.file.name);
            let name = name_with_letters(&message.file.name, Subdir::Cur, &letters);
            let is_shown = (message.file.subdir, &message.file.name) == (Subdir::Cur, &name);
            (!has_lost || !is_shown).then_some(())?;
            changed += usize::from(!is_shown);
            (is_shown || changed <= count).then_some(())?;
            Some((*uid, message.modseq, Arc::clone(&message.file), name))
        });
        let leaving = state.leaving.iter().filter(|(uid, file)| is_open(uid) && file.inode().is_some());
        Self {
            names: names.take(count * SHOWN_FOR_ONE).collect(),
            leaving: leaving.take(count).map(|(uid, file)| (*uid, Arc::clone(file))).collect(),
            absent: state.absent.iter().take(count).copied().collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.leaving.is_empty() && self.absent.is_empty()
    }
}

struct NamesWriter<'a> {
    core: &'a MailboxCore,
    gone_dir: Option<Arc<GoneDir>>,
    /// UIDs whose files have moved, or cannot be renamed.
    skipped: HashSet<u32>,
}

impl<'a> NamesWriter<'a> {
    fn new(core: &'a MailboxCore) -> Self {
        Self { core, gone_dir: None, skipped: HashSet::new() }
    }

    /// Renames some files and makes that durable. False if there was no work.
    fn round(&mut self, reader: &MaildirReader) -> bool {
        let core = self.core;
        let work = match &*lock(&core.state) {
            Some(state) => Work::of(state, &self.skipped, FILES_AT_ONCE, core.has_lost_names.load(Ordering::Relaxed)),
            None => return false,
        };
        if work.is_empty() {
            return false;
        }
        let (mut renamed, mut shown, mut left) = (Vec::new(), Vec::new(), work.absent);
        for (uid, modseq, file, name) in work.names {
            if let Some(now) = self.rename(reader, uid, &file, name) {
                shown.push((uid, modseq));
                renamed.extend((!Arc::ptr_eq(&now, &file)).then_some((uid, now)));
            }
        }
        let leaving = work.leaving.into_iter();
        left.extend(leaving.filter(|(uid, file)| self.take_away(reader, *uid, file)).map(|(uid, _)| uid));
        let are_durable = self.sync(reader);
        let mut guard = lock(&core.state);
        let Some(state) = &mut *guard else { return false };
        state.set_files(renamed);
        core.show(state);
        if are_durable {
            let is_pending = |lsn| core.is_pending(lsn);
            core.shared.ledger.note(&settled(state, core.id, &shown, &left, &is_pending));
        } else {
            // Letters that names had last on the disk stay the base of merges: for the table nothing was done, and the next opening does it once more.
            left.iter().for_each(|uid| state.forget_leaving(*uid))
        }
        true
    }

    /// False after a failed sync of the mailbox in this opening: a second one would prove nothing.
    fn sync(&self, reader: &MaildirReader) -> bool {
        if self.core.has_lost_names.load(Ordering::Relaxed) {
            return false;
        }
        let synced = reader.sync_names();
        if let Err(error) = &synced {
            self.core.has_lost_names.store(true, Ordering::Relaxed);
            let (mailbox, error) = (lock(&self.core.path).to_string(), error.to_string());
            tracing::error!(
                mailbox,
                error,
                "renames of mail files cannot be made durable: until the next start only the table keeps flags"
            );
        }
        synced.is_ok()
    }

    /// Gives a message's file its new name in `cur/`, if it has another.
    fn rename(
        &mut self,
        reader: &MaildirReader,
        uid: u32,
        file: &Arc<MailFile>,
        name: Box<str>,
    ) -> Option<Arc<MailFile>> {
        if (file.subdir, &file.name) == (Subdir::Cur, &name) {
            return Some(Arc::clone(file));
        }
        match reader.rename_to_cur(file.subdir, &file.name, &name) {
            Ok(()) => Some(Arc::new(file.renamed(Subdir::Cur, name, file.inode()?))),
            Err(error) => {
                self.skip(uid, file, &error);
                None
            }
        }
    }

    /// Moves the file of an expunged message away. True if the file is no longer in the mailbox.
    fn take_away(&mut self, reader: &MaildirReader, uid: u32, file: &MailFile) -> bool {
        let path = lock(&self.core.path).clone();
        let dir = match &self.gone_dir {
            Some(dir) => Some(Arc::clone(dir)),
            None => self.core.shared.gone_dirs.get(&path),
        };
        self.gone_dir.clone_from(&dir);
        let taken = match dir {
            Some(dir) => dir.take(reader, file.subdir, &file.name, &gone_name(self.core.id, uid)),
            None => Err(io::ErrorKind::PermissionDenied.into()),
        };
        let removed = match taken {
            // It is not kept: a session that was not told of the expunge gets an error for it.
            Err(error) if error.kind() != io::ErrorKind::NotFound => reader.remove(file.subdir, &file.name),
            taken => taken,
        };
        removed.inspect_err(|error| self.skip(uid, file, error)).is_ok()
    }

    fn skip(&mut self, uid: u32, file: &MailFile, error: &io::Error) {
        self.skipped.insert(uid);
        // Another program has renamed it.
        if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) {
            self.core.is_unlisted.store(true, Ordering::Relaxed);
        } else {
            self.core.told.no_rename(&file.name, error);
        }
    }
}

/// Applies durable names to the state, and returns the changes for the table.
fn settled(
    state: &mut MailboxState,
    mailbox: u32,
    shown: &[(u32, u64)],
    left: &[u32],
    is_pending: &dyn Fn(u64) -> bool,
) -> Vec<FileNote> {
    let mut notes = Vec::with_capacity(shown.len() + left.len());
    for &(uid, modseq) in shown {
        state.behind.remove(&uid);
        notes.push(FileNote::Shown { mailbox, uid, modseq });
    }
    for &uid in left {
        state.absent.remove(&uid);
        let Some(file) = state.leaving.remove(&uid) else { continue };
        match file.not_listed().filter(|file| file.awaited().is_some_and(|(lsn, _)| is_pending(lsn))) {
            // After a power cut delivery may make it once more.
            Some(file) => drop(state.leaving.insert(uid, Arc::new(file))),
            None => notes.push(FileNote::Left { mailbox, uid }),
        }
    }
    notes
}
