//! Lists mail that waits for local delivery, with reasons, even while a server has the spool open.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::{ClosedFileSpool, ClosedSpool, Lsn, OpenError};

use super::entry::{LocalEntry, MailboxTrouble};
use super::mounts::is_of_mount;
use super::removals::Removals;

/// A message that has not reached all of its mailboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// LSN of the batch with the body.
    pub id: u64,
    /// Time of reception, in seconds since 1970.
    pub received_secs: u64,
    /// Length of the body in bytes.
    pub bytes: u64,
    /// The mailboxes that lack the message.
    pub mailboxes: Vec<Unreached>,
}

/// A mailbox that lacks a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreached {
    /// Path of the Maildir below the mail root.
    pub mailbox: Arc<str>,
    /// Error of the last attempt; `None` before any attempt.
    pub trouble: Option<MailboxTrouble>,
}

/// Messages waiting in a spool, in order of arrival. Changes nothing.
///
/// # Errors
/// An error of the file system.
pub fn undelivered(spool: &dyn ClosedSpool) -> std::io::Result<Vec<Undelivered>> {
    let mut messages: BTreeMap<Lsn, (u64, u64)> = BTreeMap::new();
    /// Numbers and mailboxes.
    type Targets = Vec<(u16, Arc<str>)>;
    // By body and stream.
    let mut of_mounts: BTreeMap<(Lsn, String), Targets> = BTreeMap::new();
    let mut visible: HashSet<(Lsn, u16)> = HashSet::new();
    let mut troubles: HashMap<Arc<str>, MailboxTrouble> = HashMap::new();
    let mut removals: HashMap<String, Removals> = HashMap::new();
    spool.entries(&mut |stream, lsn, payload, body_len| {
        if !is_of_mount(stream) {
            return;
        }
        match LocalEntry::decode(payload.clone()) {
            Some(LocalEntry::Deliver(deliver)) => {
                let (body, bytes) = deliver.body.map_or((lsn, body_len), |older| (older.lsn, older.len));
                messages.insert(body, (deliver.secs, bytes));
                // A later entry of the message names the remaining targets: the other targets are durable, and their
                // *visible* entries were passed.
                let targets = deliver.targets.into_iter().map(|(number, target)| (number, target.mailbox));
                of_mounts.insert((body, stream.to_owned()), targets.collect());
            }
            Some(LocalEntry::Visible(seen)) => visible.extend(seen.targets),
            Some(LocalEntry::Trouble(trouble)) => drop(troubles.insert(trouble.mailbox.clone(), trouble)),
            Some(LocalEntry::Removal(removal)) => {
                removals.entry(stream.to_owned()).or_default().show(lsn, removal);
            }
            Some(LocalEntry::SyncBegun { .. } | LocalEntry::Synced { .. }) | None => {}
        }
    })?;
    let mut mailboxes: BTreeMap<Lsn, BTreeMap<u16, Unreached>> = BTreeMap::new();
    for ((body, stream), targets) in of_mounts {
        let removals = removals.get(&stream);
        let is_removed = |mailbox: &str| removals.is_some_and(|removals| removals.cover(mailbox, body));
        let missing =
            targets.into_iter().filter(|(number, mailbox)| !visible.contains(&(body, *number)) && !is_removed(mailbox));
        let unreached =
            missing.map(|(number, mailbox)| (number, Unreached { trouble: troubles.get(&mailbox).cloned(), mailbox }));
        mailboxes.entry(body).or_default().extend(unreached);
    }
    let undelivered = mailboxes.into_iter().filter(|(_, mailboxes)| !mailboxes.is_empty()).map(|(body, mailboxes)| {
        let (received_secs, bytes) = messages[&body];
        Undelivered { id: body.get(), received_secs, bytes, mailboxes: mailboxes.into_values().collect() }
    });
    Ok(undelivered.collect())
}

/// Gives `each` every message waiting in the spool at `dir`, with its body as received. Leaves out mail delivered
/// meanwhile: its mailbox has it.
///
/// # Errors
/// See [`OpenError`].
pub fn each_undelivered(dir: &Path, each: &mut dyn FnMut(&Undelivered, &[u8])) -> Result<(), OpenError> {
    let mut given = HashSet::new();
    for _ in 0..LOOKS {
        let spool = ClosedFileSpool::glance(dir)?;
        let mut is_whole = true;
        for message in undelivered(&spool)? {
            if given.contains(&message.id) {
                continue;
            }
            match body_of(&spool, message.id) {
                Some(body) => {
                    given.insert(message.id);
                    each(&message, &body);
                }
                None => is_whole = false,
            }
        }
        // Otherwise the body may have moved from the ring into a pack.
        if is_whole || spool.is_current() {
            break;
        }
    }
    Ok(())
}

fn body_of(spool: &dyn ClosedSpool, id: u64) -> Option<Bytes> {
    spool.body(Lsn::new(id)).ok()??.ok()?.read().ok()
}

/// Tries to read bodies that move meanwhile.
const LOOKS: usize = 4;
