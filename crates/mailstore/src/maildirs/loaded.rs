//! Mailboxes with messages in memory, and their eviction.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

use super::locks::lock;

/// Messages of mailboxes without a session that stay in memory, about 200 bytes each.
const LOADED_MESSAGES_MAX: usize = 300_000;

/// Mailboxes that sessions have asked for, by id. `M` is a [`MaildirMailbox`](super::mailbox::MaildirMailbox), which
/// refers to them.
#[derive(Debug)]
pub(super) struct LoadedMailboxes<M>(Mutex<State<M>>);

#[derive(Debug)]
struct State<M> {
    by_id: HashMap<u32, Entry<M>>,
    /// Ids by their last use.
    order: BTreeMap<u64, u32>,
    uses: u64,
    messages: usize,
}

#[derive(Debug)]
struct Entry<M> {
    mailbox: Weak<M>,
    last_use: u64,
    messages: usize,
}

impl<M> LoadedMailboxes<M> {
    pub fn new() -> Self {
        Self(Mutex::new(State { by_id: HashMap::new(), order: BTreeMap::new(), uses: 0, messages: 0 }))
    }

    /// Adds a mailbox, whose sessions are notified of new entries from now on. Holds a weak reference.
    pub fn add(&self, id: u32, mailbox: &Arc<M>) {
        lock(&self.0).put(id, Arc::downgrade(mailbox), 0);
    }

    pub fn find(&self, id: u32) -> Option<Arc<M>> {
        lock(&self.0).by_id.get(&id)?.mailbox.upgrade()
    }

    /// The mailboxes in use.
    pub fn all(&self) -> Vec<Arc<M>> {
        lock(&self.0).by_id.values().filter_map(|entry| entry.mailbox.upgrade()).collect()
    }

    /// True if it is used by others than its account and the caller.
    pub fn has_session(mailbox: &Arc<M>) -> bool {
        Arc::strong_count(mailbox) > 2
    }

    /// Notes the use of a mailbox with `messages` in memory. Calls `unload` for the least recently used ones while
    /// there are too many.
    pub fn used(&self, id: u32, messages: usize, unload: impl Fn(&M)) {
        self.used_within(id, messages, LOADED_MESSAGES_MAX, unload);
    }

    pub(super) fn used_within(&self, id: u32, messages: usize, messages_max: usize, unload: impl Fn(&M)) {
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
        unloaded.into_iter().for_each(|mailbox| unload(&mailbox));
    }
}

impl<M> State<M> {
    fn put(&mut self, id: u32, mailbox: Weak<M>, messages: usize) {
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

    fn remove(&mut self, id: u32) -> Entry<M> {
        let entry = self.by_id.remove(&id).expect("it is there");
        self.order.remove(&entry.last_use);
        self.messages -= entry.messages;
        entry
    }
}
