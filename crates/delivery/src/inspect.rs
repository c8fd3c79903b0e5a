//! A look at the journal of a journaled executor from outside, also beside the one that has it open: which mail waits, and why.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use posthaste_journal::inspect::{Report, inspect_with};

use crate::record::{Body, Delivered, KIND_DELIVERED, KIND_MESSAGE, KIND_WAITS, Stored, Waits};
use crate::spool::{SPOOL, body_path};

/// A message that has not reached all of its mailboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// Its record in the journal.
    pub id: u64,
    /// When it was received, in seconds since 1970.
    pub received_secs: u64,
    /// Bytes of its body.
    pub bytes: u64,
    /// The mailboxes that it has not reached.
    pub mailboxes: Vec<Unreached>,
}

/// A mailbox that a message has not reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreached {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Why, if it was tried in vain; otherwise the message was on its way.
    pub trouble: Option<Trouble>,
}

/// What is known of a mailbox that cannot be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Attempts in a row that failed, of whichever message.
    pub attempts: u32,
    /// When it is tried next, in seconds since 1970.
    pub next_try_secs: u64,
    /// What the last attempt ended with.
    pub error: Arc<str>,
}

/// Gives `each` every message that waits, with its body as it was received. Changes nothing. What is delivered while this
/// reads is left out: its mailbox has it.
///
/// # Errors
/// What the file system said.
pub fn each_undelivered(dir: &Path, each: &mut dyn FnMut(&Undelivered, &[u8])) -> io::Result<()> {
    let (_, undelivered) = inspect(dir)?;
    if undelivered.is_empty() {
        return Ok(());
    }
    let undelivered: HashMap<u64, &Undelivered> = undelivered.iter().map(|message| (message.id, message)).collect();
    let mut failed = None;
    inspect_with(dir, |id, kind, payload| {
        let Some(message) = undelivered.get(&id).filter(|_| kind == KIND_MESSAGE) else { return };
        let Some(stored) = Stored::decode(payload.into()) else { return };
        match stored.message.body {
            Body::Memory(parts) => each(message, &parts.concat()),
            Body::Spooled(spooled) => match std::fs::read(body_path(&dir.join(SPOOL), spooled.file)) {
                Ok(body) => each(message, &body),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failed = Some(error),
            },
        }
    })?;
    failed.map_or(Ok(()), Err)
}

/// Reads the journal in `dir`: everything that the journal itself can tell, and the messages that wait, in the order in which they came.
/// Changes nothing.
///
/// # Errors
/// What the file system said.
pub fn inspect(dir: &Path) -> io::Result<(Report, Vec<Undelivered>)> {
    let mut messages = Vec::new();
    let report = inspect_with(dir, |id, kind, payload| {
        if kind == KIND_MESSAGE
            && let Some(mut stored) = Stored::decode(payload.into())
        {
            let bytes = stored.message.body.len();
            let targets = std::mem::take(&mut stored.message.targets);
            let targets: Vec<_> = stored.numbers.into_iter().zip(targets.into_iter().map(|to| to.mailbox)).collect();
            messages.push((id, stored.secs, bytes, targets));
        }
    })?;
    messages.sort_by_key(|message| message.0);
    let notes = |kind: u8| report.notes.iter().filter(move |note| note.kind == kind);
    let delivered = notes(KIND_DELIVERED).filter_map(|note| Delivered::decode(&note.payload));
    let delivered: HashSet<(u64, u16)> = delivered.flat_map(|note| note.done).collect();
    let waits = notes(KIND_WAITS).filter_map(|note| Waits::decode(note.payload.clone().into()));
    let troubles: HashMap<Arc<str>, Trouble> = waits
        .map(|note| {
            let Waits { mailbox, attempts, next_try_secs, error } = note;
            (mailbox, Trouble { attempts, next_try_secs, error })
        })
        .collect();
    let unreached = |id: u64, targets: Vec<(u16, Arc<str>)>| -> Vec<Unreached> {
        let missing = targets.into_iter().filter(|(number, _)| !delivered.contains(&(id, *number)));
        missing.map(|(_, mailbox)| Unreached { trouble: troubles.get(&mailbox).cloned(), mailbox }).collect()
    };
    let undelivered = messages
        .into_iter()
        .map(|(id, received_secs, bytes, targets)| Undelivered {
            id,
            received_secs,
            bytes,
            mailboxes: unreached(id, targets),
        })
        .filter(|message| !message.mailboxes.is_empty())
        .collect();
    Ok((report, undelivered))
}
