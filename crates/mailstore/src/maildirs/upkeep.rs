//! Work for mailboxes in use, at times and at the end: their UID lists, and notes of their listings.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_maildir::UidList;
use posthaste_maildir::tree::key_of_name;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::core::MailboxCore;
use super::loaded::LoadedMailboxes;
use super::locks::lock;
use super::mailbox::MaildirMailbox;
use super::shared::Shared;
use crate::ledger::MailLedger;
use crate::table::FileNote;

/// Idle time without added or removed messages after which the list is written.
const IDLE: Duration = Duration::from_secs(60);

/// Writes lists of idle mailboxes until the store has ended.
pub(super) async fn write_when_idle(shared: Weak<Shared>, loaded: Weak<LoadedMailboxes<MaildirMailbox>>) {
    let mut times = interval(IDLE);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let (Some(shared), Some(loaded)) = (shared.upgrade(), loaded.upgrade()) else { return };
        let work = move || {
            note_listings(&shared.ledger, &loaded);
            write_uid_lists(&loaded, false);
        };
        if spawn_blocking(work).await.is_err() {
            return;
        }
    }
}

/// Notes the stamps of listings for the next commit.
pub(super) fn note_listings(ledger: &MailLedger, loaded: &LoadedMailboxes<MaildirMailbox>) {
    let notes = loaded.all().into_iter().filter_map(|mailbox| mailbox.core().listing_note());
    ledger.note(&notes.collect::<Vec<FileNote>>());
}

/// Writes the UID lists that have changed. Blocks.
pub(super) fn write_uid_lists(loaded: &LoadedMailboxes<MaildirMailbox>, is_ending: bool) {
    loaded.all().iter().for_each(|mailbox| write_uid_list(mailbox.core(), is_ending));
}

/// Writes the list if it has changed, when the mailbox is idle or the server ends. Blocks.
fn write_uid_list(core: &MailboxCore, is_ending: bool) {
    let Some(now) = core.now() else { return };
    let extent = (now.uid_next, now.messages.len());
    if !lock(&core.uid_list).is_to_write(extent, is_ending) {
        return;
    }
    let validity = core.uid_validity.load(Ordering::Relaxed);
    let messages = now.messages.iter().map(|message| (message.uid, key_of_name(&message.file.name)));
    let text = UidList::own_text(validity, now.uid_next, messages);
    let path = lock(&core.path).clone();
    if let Err(error) = core.shared.root.put_uid_list(&path, &text) {
        let (mailbox, error) = (path.to_string(), error.to_string());
        tracing::debug!(mailbox, error, "the list of UIDs cannot be written");
    }
}
