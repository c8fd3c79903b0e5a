//! The result of a replay of a mount's stream: the state of each message. Takes no action.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_consumer::{ReplayedEntry, StreamState};
use posthaste_spool::{Lsn, ReplayError};

use super::entry::{Deliver, LocalEntry, Visible};
use super::removals::Removals;
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
    removals: Removals,
    seen: Lsn,
    bytes: u64,
}

/// A message and the entry that stands for it.
pub(crate) struct Shown {
    pub entry: Lsn,
    pub deliver: Arc<Deliver>,
    pub body_len: u64,
}

/// Of a spool that was rebuilt, mail that was delivered and moved since may come again, which its operator was told.
impl StreamState for History {
    type Error = ReplayError;

    fn apply(&mut self, ReplayedEntry { lsn, payload, body_len }: ReplayedEntry<'_>) -> Result<(), ReplayError> {
        self.show(lsn, payload, body_len);
        Ok(())
    }
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
            Some(LocalEntry::Removal(removal)) => self.removals.show(lsn, removal),
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

    /// The state of each message in the present session of the page cache, and which ones to write.
    pub fn end<B: Clone>(mut self, session: SessionTag) -> (Table<B>, Vec<Key>) {
        let mut table = Table::default();
        let mut queued = Vec::new();
        table.saw(self.seen);
        table.set_removals(std::mem::take(&mut self.removals));
        self.unknown.iter().for_each(|entry| table.keep_entry(*entry));
        let doubt = self.first_doubt(session);
        if let Some(begun) = doubt {
            table.doubt_since(begun);
        }
        for (body, shown) in &self.messages {
            let stands = |number: u16| self.stands((*body, number), shown.entry, session, doubt.is_some());
            let targets = shown.deliver.targets.iter().map(|(number, _)| *number);
            let targets = targets.filter_map(|number| stands(number).map(|(state, task)| (number, state, task)));
            let targets: Vec<_> = targets.collect();
            let is_queued = |(_, state, _): &&(u16, State, Task)| *state == State::Queued;
            queued.extend(targets.iter().filter(is_queued).map(|(number, ..)| (*body, *number)));
            let doubts = targets.iter().filter_map(|(number, ..)| self.doubt_before((*body, *number)));
            // It stays as long as the message: without it the note would look like that of a durable file to the next opening.
            let entry = doubts.chain([shown.entry]).min().expect("the message's own");
            table.insert(*body, entry, (shown.deliver.clone(), shown.body_len, None), targets);
        }
        table.end_of_doubt();
        (table, queued)
    }

    /// The first sync in this life of the page cache that is not known to have succeeded.
    fn first_doubt(&self, session: SessionTag) -> Option<Lsn> {
        self.syncs.iter().find(|(_, (other, succeeded))| *other == session && !succeeded).map(|(begun, _)| *begun)
    }

    /// Where a target stands; `None` if it is durable. A message that was rewritten with `entry` was not durable then, whatever was noted before: its
    /// file may have been replaced since.
    fn stands(&self, key: Key, entry: Lsn, session: SessionTag, doubt: bool) -> Option<(State, Task)> {
        Some(match self.visible.get(&key) {
            Some((noted, of)) if self.is_durable(*noted.max(&entry), *of) => return None,
            Some((noted, of)) if *of == session && !self.may_be_lost(*noted, session) => (State::Visible, Task::Write),
            Some((_, of)) if *of == session => (State::Queued, Task::RenewIfThere),
            _ if doubt => (State::Queued, Task::Renew),
            _ => (State::Queued, Task::LookFirst),
        })
    }

    /// True if the file that was noted as visible there is on the disk: the sync that began next succeeded, and none was under way that may have failed.
    fn is_durable(&self, noted: Lsn, session: SessionTag) -> bool {
        let before = self.syncs.range(..noted).next_back();
        let after = self.syncs.range(noted..).next();
        let is_harmless = |(_, (of, succeeded)): (&Lsn, &(SessionTag, bool))| *of != session || *succeeded;
        before.is_none_or(is_harmless) && after.is_some_and(|(_, (of, succeeded))| *of == session && *succeeded)
    }

    /// A sync that began before a target was noted as visible and is not known to have succeeded, which is why the target is not taken for durable.
    fn doubt_before(&self, key: Key) -> Option<Lsn> {
        let (noted, session) = self.visible.get(&key)?;
        let (begun, (of, succeeded)) = self.syncs.range(..noted).next_back()?;
        (of == session && !succeeded).then_some(*begun)
    }

    /// True if a sync that ended or began after the note is not known to have succeeded.
    fn may_be_lost(&self, noted: Lsn, session: SessionTag) -> bool {
        let under_way = self.syncs.range(..noted).next_back();
        let later = self.syncs.range(noted..);
        under_way.into_iter().chain(later).any(|(_, (of, succeeded))| *of == session && !succeeded)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::OlderBody;
    use super::super::message::{LineEnds, Target};
    use super::*;

    const FIRST: SessionTag = SessionTag([1; 24]);
    const SECOND: SessionTag = SessionTag([2; 24]);
    const THIRD: SessionTag = SessionTag([3; 24]);

    fn message(older: Option<u64>) -> LocalEntry {
        let target = Target { mailbox: "m".into(), prefix: Bytes::new() };
        LocalEntry::Deliver(Deliver {
            secs: 1,
            internal_date: 1,
            nonce: 2,
            host: "h".into(),
            line_ends: LineEnds::ToLf,
            body: older.map(|lsn| OlderBody { lsn: Lsn::new(lsn), len: 9 }),
            large: None,
            targets: vec![(0, target)],
        })
    }

    fn visible(session: SessionTag, body: u64) -> LocalEntry {
        LocalEntry::Visible(Visible { session, targets: vec![(Lsn::new(body), 0)] })
    }

    /// An opening in `session` with the entries after `position`: the number of messages to be looked for, and the position then.
    fn opened(entries: &[(u64, LocalEntry)], position: u64, session: SessionTag) -> (usize, u64) {
        let mut history = History::default();
        for (lsn, entry) in entries.iter().filter(|(lsn, _)| *lsn > position) {
            history.show(Lsn::new(*lsn), &entry.encode(), 9);
        }
        let (table, queued) = history.end::<()>(session);
        (queued.len(), table.position().get())
    }

    #[test]
    fn a_note_does_not_outlive_the_doubt_about_it() {
        let syncs = |begun: u64| LocalEntry::SyncBegun { session: if begun < 20 { FIRST } else { SECOND } };
        // The sync that began with 10 may have failed for what was written meanwhile; the next one succeeded.
        let entries = [
            (10, syncs(10)),
            (11, message(None)),
            (12, visible(FIRST, 11)),
            (13, syncs(13)),
            (14, LocalEntry::Synced { begun: Lsn::new(13) }),
        ];
        let (queued, position) = opened(&entries, 0, SECOND);
        assert_eq!(queued, 1, "it is looked for after a power cut");
        // It is being rewritten, and the power fails again.
        assert_eq!(opened(&entries, position, THIRD).0, 1, "and after the next one");
    }

    #[test]
    fn what_was_written_down_anew_was_not_durable_whatever_was_noted_before() {
        let begun = LocalEntry::SyncBegun { session: FIRST };
        let done = |begun: u64| LocalEntry::Synced { begun: Lsn::new(begun) };
        let mut entries = vec![
            (5, message(None)),
            (12, visible(FIRST, 5)),
            (13, begun.clone()),
            (14, done(13)),
            (20, message(Some(5))),
        ];
        assert_eq!(opened(&entries, 0, SECOND).0, 1);
        entries.extend([(21, begun), (22, done(21))]);
        assert_eq!(opened(&entries, 0, SECOND).0, 0, "a sync since then has made it durable");
    }
}
