//! A look at a mailbox: reads it from the ledger, lists its files, and records their changes.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use posthaste_maildir::MaildirReader;

use super::core::MailboxCore;
use super::file::MailFile;
use super::known_files::KnownFiles;
use super::listed::Listing;
use super::locks::lock;
use super::looks::Known;
use super::names_out::write_names;
use super::opening::load;
use super::scan::{Difference, Settled};
use super::state::{LookedAt, MailboxState, Messages};
use super::told::{Oddities, first};
use crate::error::MailstoreError;
use crate::message_list::Message;

/// Maximum rounds of assigning new keys to files in one look.
const RENAMES_MAX: usize = 3;

/// Looks once for changes. Blocks.
pub(super) fn look(core: &MailboxCore, mut known: Known) -> (Known, Result<(), MailstoreError>) {
    let mut odd = Oddities::default();
    let mut outcome = look_into(core, &mut known, &mut odd);
    core.looked.send_if_modified(|looked| std::mem::take(&mut looked.is_ahead));
    if odd.out_of_uids {
        // Its sessions end: whoever selects it next has it made anew.
        outcome = outcome.and(Err(MailstoreError::NoMailbox));
    }
    core.told.tell(&lock(&core.path).to_string(), &odd);
    (known, outcome)
}

/// Looks once for changes, independently of the looks of sessions. Blocks.
pub(super) fn look_once(core: &MailboxCore) -> Result<(), MailstoreError> {
    let outcome = look(core, Known::default()).1;
    // Of this listing the memory of the others has nothing.
    core.is_unlisted.store(true, Ordering::Relaxed);
    outcome
}

fn look_into(core: &MailboxCore, known: &mut Known, odd: &mut Oddities) -> Result<(), MailstoreError> {
    let reader = match core.reader() {
        Ok(reader) => Some(reader),
        // An INBOX without a directory is empty until mail comes.
        Err(error) if error.kind() == io::ErrorKind::NotFound && core.is_inbox() => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MailstoreError::NoMailbox),
        Err(error) => return Err(core.failed(&error)),
    };
    check_alone(core, known, reader.as_ref())?;
    let _one = lock(&core.changing);
    let was_loaded = lock(&core.state).is_some();
    // Before the takeover the list may be mended.
    load(core, reader.as_ref(), odd).inspect_err(|_| known.uid_list = None)?;
    let Some(reader) = reader else {
        // A directory that is gone with known mail means a lost mount. Mail that is still awaited does not count.
        let is_there =
            |message: &Message<Arc<MailFile>>| message.file.awaited().is_none_or(|(lsn, _)| !core.is_pending(lsn));
        let is_empty = core.now().is_none_or(|now| !now.messages.iter().any(is_there));
        return if is_empty { Ok(()) } else { Err(core.failed(&io::ErrorKind::NotFound.into())) };
    };
    if !was_loaded {
        core.show_before_listing(&reader);
    }
    core.record_sizes(odd);
    let suspects = std::mem::take(&mut *lock(&core.suspects));
    for _ in 0..RENAMES_MAX {
        match scan(core, known, &reader, &suspects, odd) {
            Ok(Settled::LookAgain) => {}
            Ok(_) => break,
            Err(error) => {
                lock(&core.suspects).extend(suspects);
                return Err(core.failed(&error));
            }
        }
    }
    if !std::mem::replace(&mut known.was_listed, true) {
        let recent = |now: Arc<Messages>| {
            let recent = now.messages.iter().find(|message| message.file.is_new());
            recent.map_or(now.uid_next, |message| message.uid)
        };
        core.found_recent(core.now().map_or(1, recent));
        // Flags that the previous run had not yet put into file names.
        write_names(core, &reader);
    }
    Ok(())
}

/// Checks Dovecot's UID list, which changes only if another server runs.
fn check_alone(core: &MailboxCore, known: &mut Known, reader: Option<&MaildirReader>) -> Result<(), MailstoreError> {
    let Some(reader) = reader else { return Ok(()) };
    let stamp = reader.uid_list_stamp().map_err(|error| core.failed(&error))?;
    if *known.uid_list.get_or_insert(stamp) == stamp {
        return Ok(());
    }
    if first(&core.told.other_server) {
        let mailbox = lock(&core.path).to_string();
        tracing::error!(mailbox, "another IMAP server gives UIDs in this Maildir: stop it, then restart this one");
    }
    Err(MailstoreError::Unavailable("another server keeps this mailbox".to_owned()))
}

/// Looks for changes by other programs.
fn scan(
    core: &MailboxCore,
    known: &mut Known,
    reader: &MaildirReader,
    suspects: &HashSet<u32>,
    odd: &mut Oddities,
) -> io::Result<Settled> {
    let keywords = reader.keywords().inspect_err(|error| odd.keywords = Some(error.to_string())).ok();
    let has_other =
        |state: &MailboxState| keywords.as_ref().is_some_and(|file| !state.keywords.missing(file).is_empty());
    let has_other_keywords = lock(&core.state).as_ref().is_some_and(has_other);
    if core.is_unlisted.swap(false, Ordering::Relaxed) {
        known.settled = None;
    }
    if known.settled == Some(reader.stamps()?) && suspects.is_empty() && !has_other_keywords {
        return Ok(Settled::Yes);
    }
    let mut listing = Listing::new(reader, odd)?;
    // A file of ours is made after its message was published: so the UID of each that was listed is there now.
    if !core.catch_up() {
        return Ok(Settled::No);
    }
    let Some(now) = core.now() else { return Ok(Settled::No) };
    // Asked before `is_quiet`: a file that delivery makes after this has changed the directory.
    let is_pending = |lsn| core.is_pending(lsn);
    let listed = std::mem::take(&mut listing.listed);
    let files = lock(&core.state).as_ref().map(|state| (state.leaving.clone(), state.behind.clone()));
    let (leaving, behind) = files.unwrap_or_default();
    let is_pending: &dyn Fn(u64) -> bool = &is_pending;
    let listed_at = known.listed_at;
    let known_files = KnownFiles { now: &now, leaving: &leaving, behind: &behind, suspects, is_pending, listed_at };
    let difference = Difference::new(&known_files, reader, listed, odd);
    let is_quiet = listing.is_quiet(reader)?;
    if difference.is_complete() {
        known.listed_at = Some(listing.looked_at);
    }
    let plan = {
        let mut guard = lock(&core.state);
        let Some(state) = &mut *guard else { return Ok(Settled::No) };
        let plan = difference.plan(state, core.id, (is_quiet, keywords.as_ref()));
        core.show(state);
        plan
    };
    let looked_at = |files: LookedAt| {
        lock(&core.state).iter_mut().for_each(|state| state.looked_at = files.clone());
    };
    let catch_up = || {
        let _ = core.catch_up();
    };
    let settled = plan.carry_out(reader, (&core.shared.ledger, core.id), (&looked_at, &catch_up), odd);
    looked_at(LookedAt::default());
    known.settled = (settled == Settled::Yes).then_some(listing.stamps);
    known.tells_of_changes = reader.tells_of_changes()?;
    Ok(settled)
}
