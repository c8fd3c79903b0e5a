//! What the entries of a mount's stream say together, from its position on: where each message stands when the stream begins anew. Acts on nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_spool::Lsn;

use super::entry::{Deliver, LocalEntry, Visible};
use super::table::{Key, State, Table, Task, memory_of};
use crate::session::SessionTag;

/// Entries, in the order in which they were shown.
#[derive(Default)]
pub(crate) struct History {
    messages: BTreeMap<Lsn, Shown>,
    /// Where a target became visible last, and in which life of the page cache. It becomes visible again only when a failed sync may have lost it.
    visible: HashMap<Key, (Lsn, SessionTag)>,
    /// Syncs by the entry with which each began, and whether it is known to have succeeded.
    syncs: BTreeMap<Lsn, (SessionTag, bool)>,
    unknown: Vec<Lsn>,
    seen: Lsn,
    bytes: u64,
}

/// A message and the entry that stands for it.
pub(crate) struct Shown {
    pub entry: Lsn,
    pub deliver: Arc<Deliver>,
    pub body_len: u64,
}

impl History {
    /// An entry is shown. `body_len` is that of its batch's body.
    pub fn show(&mut self, lsn: Lsn, payload: &Bytes, body_len: u64) {
        self.seen = self.seen.max(lsn);
        match LocalEntry::decode(payload.clone()) {
            Some(LocalEntry::Deliver(deliver)) => {
                let (body, body_len) = deliver.body.map_or((lsn, body_len), |older| (older.lsn, older.len));
                let bytes = memory_of(&deliver, body_len);
                let shown = Shown { entry: lsn, deliver: deliver.into(), body_len };
                if self.messages.insert(body, shown).is_none() {
                    self.bytes += bytes;
                }
            }
            Some(LocalEntry::Visible(Visible { session, targets })) => {
                for key in targets {
                    self.visible.insert(key, (lsn, session));
                }
            }
            Some(LocalEntry::SyncBegun { session }) => drop(self.syncs.insert(lsn, (session, false))),
            Some(LocalEntry::Synced { begun }) => {
                if let Some((_, succeeded)) = self.syncs.get_mut(&begun) {
                    *succeeded = true;
                }
            }
            Some(LocalEntry::Trouble(_)) => {}
            None => self.unknown.push(lsn),
        }
    }

    /// Messages that are not known to be done.
    pub fn messages(&self) -> impl Iterator<Item = (Lsn, &Shown)> {
        self.messages.iter().map(|(body, shown)| (*body, shown))
    }

    /// Bytes of their bodies, and of what is known of each.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries that this version cannot read.
    pub fn unknown(&self) -> &[Lsn] {
        &self.unknown
    }

    /// Where each message stands in the present life of the page cache, and which are to be written.
    pub fn end<B: Clone>(self, session: SessionTag) -> (Table<B>, Vec<Key>) {
        let mut table = Table::default();
        let mut queued = Vec::new();
        table.saw(self.seen);
        self.unknown.iter().for_each(|entry| table.keep_entry(*entry));
        let doubt = self.first_doubt(session);
        if let Some(begun) = doubt {
            table.doubt_since(begun);
        }
        for (body, shown) in &self.messages {
            let stands = |number: u16| self.stands((*body, number), session, doubt.is_some());
            let targets = shown.deliver.targets.iter().map(|(number, _)| *number);
            let targets = targets.filter_map(|number| stands(number).map(|(state, task)| (number, state, task)));
            let targets: Vec<_> = targets.collect();
            let is_queued = |(_, state, _): &&(u16, State, Task)| *state == State::Queued;
            queued.extend(targets.iter().filter(is_queued).map(|(number, ..)| (*body, *number)));
            table.insert(*body, shown.entry, (shown.deliver.clone(), shown.body_len, None), targets);
        }
        table.end_of_doubt();
        (table, queued)
    }

    /// The first sync in this life of the page cache that is not known to have succeeded.
    fn first_doubt(&self, session: SessionTag) -> Option<Lsn> {
        self.syncs.iter().find(|(_, (other, succeeded))| *other == session && !succeeded).map(|(begun, _)| *begun)
    }

    /// Where a target stands; `None` if it is durable.
    fn stands(&self, key: Key, session: SessionTag, doubt: bool) -> Option<(State, Task)> {
        Some(match self.visible.get(&key) {
            Some((noted, of)) if self.is_durable(*noted, *of) => return None,
            Some((noted, of)) if *of == session && !self.may_be_lost(*noted, session) => (State::Visible, Task::Write),
            Some((_, of)) if *of == session => (State::Queued, Task::RenewIfThere),
            _ if doubt => (State::Queued, Task::Renew),
            _ => (State::Queued, Task::LookFirst),
        })
    }

    /// Whether what was noted as visible there is on the disk: the sync that began next succeeded, and none was under way that may have failed.
    fn is_durable(&self, noted: Lsn, session: SessionTag) -> bool {
        let before = self.syncs.range(..noted).next_back();
        let after = self.syncs.range(noted..).next();
        let is_harmless = |(_, (of, succeeded)): (&Lsn, &(SessionTag, bool))| *of != session || *succeeded;
        before.is_none_or(is_harmless) && after.is_some_and(|(_, (of, succeeded))| *of == session && *succeeded)
    }

    /// Whether a sync that ended or began behind the note is not known to have succeeded.
    fn may_be_lost(&self, noted: Lsn, session: SessionTag) -> bool {
        let under_way = self.syncs.range(..noted).next_back();
        let later = self.syncs.range(noted..);
        under_way.into_iter().chain(later).any(|(_, (of, succeeded))| *of == session && !succeeded)
    }
}
