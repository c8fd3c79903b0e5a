//! `posthaste-uids` in each used mailbox: its UIDs for people, and for rebuilding the mailbox. The table takes
//! precedence, and the file is not durable.

use std::sync::Weak;
use std::time::Duration;

use posthaste_maildir::UidList;
use posthaste_maildir::tree::key_of_name;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::core::MailboxCore;
use super::locks::lock;
use super::{MaildirStore, Shared};

/// Idle time without added or removed messages after which the list is written.
const IDLE: Duration = Duration::from_secs(60);

/// Next UID and number of messages: a list written with the same values has the same UIDs.
type Extent = (u32, usize);

/// The list of a mailbox.
#[derive(Debug, Default)]
pub(super) struct UidListState {
    written: Option<Extent>,
    /// Extent at the last check.
    seen: Option<Extent>,
}

impl MailboxCore {
    /// Writes the list if it has changed, when the mailbox is idle or the server ends. Blocks.
    fn write_uid_list(&self, is_ending: bool) {
        let Some(now) = self.now() else { return };
        let extent = (now.uid_next, now.messages.len());
        {
            let mut state = lock(&self.uid_list);
            let is_idle = state.seen.replace(extent) == Some(extent);
            if state.written == Some(extent) || !(is_idle || is_ending) {
                return;
            }
            // One that cannot be written is not tried again before it has changed.
            state.written = Some(extent);
        }
        let validity = self.uid_validity.load(std::sync::atomic::Ordering::Relaxed);
        let messages = now.messages.iter().map(|message| (message.uid, key_of_name(&message.file.name)));
        let text = UidList::own_text(validity, now.uid_next, messages);
        let path = lock(&self.path).clone();
        if let Err(error) = self.shared.root.put_uid_list(&path, &text) {
            let (mailbox, error) = (path.to_string(), error.to_string());
            tracing::debug!(mailbox, error, "the list of UIDs cannot be written");
        }
    }
}

impl Shared {
    fn write_uid_lists(&self, is_ending: bool) {
        self.loaded.all().iter().for_each(|mailbox| mailbox.core().write_uid_list(is_ending));
    }
}

impl MaildirStore {
    /// Writes changed UID lists at the end of the server. Blocks.
    pub fn write_uid_lists(&self) {
        self.shared.write_uid_lists(true);
    }
}

/// Writes lists of idle mailboxes until the store has ended.
pub(super) async fn write_when_idle(shared: Weak<Shared>) {
    let mut times = interval(IDLE);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let work = move || {
            shared.note_listings();
            shared.write_uid_lists(false);
        };
        if spawn_blocking(work).await.is_err() {
            return;
        }
    }
}
