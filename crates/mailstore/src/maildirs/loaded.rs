//! Mailboxes with messages in memory, and their eviction.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

use super::locks::lock;
use super::mailbox::MaildirMailbox;

/// Messages of mailboxes without a session that stay in memory, about 200 bytes each.
const LOADED_MESSAGES_MAX: usize = 300_000;

/// Mailboxes that sessions have asked for, by id.
#[derive(Debug, Default)]
pub(super) struct LoadedMailboxes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_id: HashMap<u32, Entry>,
    /// Ids by their last use.
    order: BTreeMap<u64, u32>,
    uses: u64,
    messages: usize,
}

#[derive(Debug)]
struct Entry {
    mailbox: Weak<MaildirMailbox>,
    last_use: u64,
    messages: usize,
}

impl LoadedMailboxes {
    /// Adds a mailbox, whose sessions are notified of new entries from now on. Holds a weak reference.
    pub fn add(&self, id: u32, mailbox: &Arc<MaildirMailbox>) {
        lock(&self.0).put(id, Arc::downgrade(mailbox), 0);
    }

    pub fn find(&self, id: u32) -> Option<Arc<MaildirMailbox>> {
        lock(&self.0).by_id.get(&id)?.mailbox.upgrade()
    }

    /// The mailboxes in use.
    pub fn all(&self) -> Vec<Arc<MaildirMailbox>> {
        lock(&self.0).by_id.values().filter_map(|entry| entry.mailbox.upgrade()).collect()
    }

    /// True if it is used by others than its account and the caller.
    pub fn has_session(mailbox: &Arc<MaildirMailbox>) -> bool {
        Arc::strong_count(mailbox) > 2
    }

    /// Notes the use of a mailbox with `messages` in memory. Unloads the least recently used ones while there are too
    /// many.
    pub fn used(&self, id: u32, messages: usize) {
        self.used_within(id, messages, LOADED_MESSAGES_MAX);
    }

    pub(super) fn used_within(&self, id: u32, messages: usize, messages_max: usize) {
        let mut unloaded = Vec::new();
        {
            let mut state = lock(&self.0);
            let Some(mailbox) = state.by_id.get(&id).map(|entry| Weak::clone(&entry.mailbox)) else { return };
            state.put(id, mailbox, messages);
            let newest = state.uses;
            while state.messages > messages_max {
                let Some((last_use, oldest)) = state.order.first_key_value().map(|(at, id)| (*at, *id)) else { break };
                if last_use >= newest {
                    break;
                }
                let entry = state.remove(oldest);
                match entry.mailbox.upgrade() {
                    Some(mailbox) if Self::has_session(&mailbox) => state.put(oldest, entry.mailbox, entry.messages),
                    Some(mailbox) => {
                        state.put(oldest, entry.mailbox, 0);
                        unloaded.push(mailbox);
                    }
                    None => {}
                }
            }
        }
        unloaded.into_iter().for_each(|mailbox| mailbox.unload());
    }
}

impl State {
    fn put(&mut self, id: u32, mailbox: Weak<MaildirMailbox>, messages: usize) {
        if self.by_id.contains_key(&id) {
            self.remove(id);
        }
        self.uses += 1;
        self.messages += messages;
        if messages > 0 {
            self.order.insert(self.uses, id);
        }
        self.by_id.insert(id, Entry { mailbox, last_use: self.uses, messages });
    }

    fn remove(&mut self, id: u32) -> Entry {
        let entry = self.by_id.remove(&id).expect("it is there");
        self.order.remove(&entry.last_use);
        self.messages -= entry.messages;
        entry
    }
}
