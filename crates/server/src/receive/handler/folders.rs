//! Sorts mail with an address detail into the folder of that name, if it exists.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste_directory::{Mailbox, Mailboxes, Place};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::receiver::{AtRcpt, Check, Checking, Goes, Receiver};
use crate::receive::detail_folders::find_folder;
use crate::receive::transaction::Transaction;

/// Looks for the folder. If that takes long, such as on a hanging mount, the mail goes into INBOX.
pub(super) struct FolderLookup;

impl Check for FolderLookup {
    fn rcpt<'a>(&'a self, at: &'a mut AtRcpt<'_>) -> Checking<'a> {
        let Some(Goes::Here(mailboxes)) = &at.goes else { return Checking::Done(Ok(())) };
        let directory = &at.settings.directory;
        if mailboxes.iter().all(|mailbox| directory.folder(mailbox).is_none()) {
            return Checking::Done(Ok(()));
        }
        Checking::Waiting(Box::pin(async move {
            let Some(Goes::Here(mailboxes)) = &at.goes else { return Ok(()) };
            let mut found = mailboxes.to_vec();
            for mailbox in &mut found {
                if let Some(detail) = at.settings.directory.folder(mailbox).map(str::to_owned) {
                    look_up(at.receiver, &at.settings.mail, detail, mailbox).await;
                }
            }
            at.goes = Mailboxes::several(found).map(Goes::Here);
            Ok(())
        }))
    }
}

/// Sorts mail for Maildirs into their folder `name`, if it exists, except that of postmaster and abuse. True if any was
/// sorted.
pub(super) async fn sort_into(transaction: &mut Transaction, receiver: &Receiver, root: &Path, name: &str) -> bool {
    let mut is_sorted = false;
    for index in 0..transaction.recipients() {
        let (address, mailboxes) = transaction.recipient(index);
        if is_exempt_address(address) {
            continue;
        }
        let mut found = mailboxes.to_vec();
        for mailbox in &mut found {
            let folder = mailbox.place.clone();
            if let Place::Maildir(path) = &folder {
                mailbox.place = Place::Maildir(inbox_of(path));
                let inbox = mailbox.place.clone();
                look_up(receiver, root, name.to_owned(), mailbox).await;
                if mailbox.place == inbox {
                    mailbox.place = folder;
                } else {
                    is_sorted = true;
                }
            }
        }
        transaction.set_mailboxes(index, found);
    }
    is_sorted
}

/// True for addresses that senders ask for help with a refusal.
pub(super) fn is_exempt_address(address: &str) -> bool {
    let local = address.rsplit_once('@').map_or(address, |(local, _)| local);
    ["postmaster", "abuse"].iter().any(|name| local.eq_ignore_ascii_case(name))
}

/// The Maildir of a folder.
fn inbox_of(path: &Arc<str>) -> Arc<str> {
    match path.rsplit_once('/') {
        Some((inbox, folder)) if folder.starts_with('.') => inbox.into(),
        _ => Arc::clone(path),
    }
}

async fn look_up(receiver: &Receiver, root: &Path, detail: String, mailbox: &mut Mailbox) {
    let Place::Maildir(inbox) = &mailbox.place else { return };
    let (root, mailboxes) = (root.to_owned(), receiver.destinations().mailboxes().cloned());
    let inbox = Arc::clone(inbox);
    let find = async move {
        let permit = LOOK_UPS.acquire().await.ok()?;
        let find = move || {
            let is_leaving = |path: &str| mailboxes.as_ref().is_some_and(|mailboxes| mailboxes.is_leaving(path));
            let found = find_folder(&root, &inbox, &detail, &is_leaving);
            drop(permit);
            found
        };
        spawn_blocking(find).await.ok()?
    };
    if let Ok(Some(path)) = timeout(PATIENCE, find).await {
        mailbox.place = Place::Maildir(path);
    }
}

/// Concurrent look-ups: a hanging mount blocks no more threads.
static LOOK_UPS: Semaphore = Semaphore::const_new(8);
/// Maximum delay of a client at RCPT for the look-up.
const PATIENCE: Duration = Duration::from_millis(200);
