//! Replays a mount's stream into the state of each message. Takes no action.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_consumer::{ReplayedEntry, StreamState};
use posthaste_spool::{Lsn, ReplayError};

use super::entry::{LocalEntry, MailboxDelivery, Visible};
use super::removals::Removals;
use super::table::{Key, State, Table, Task, memory_of};
use crate::session::SessionTag;

/// Replayed entries, in their order.
#[derive(Default)]
pub(crate) struct History {
    messages: BTreeMap<Lsn, Shown>,
    /// The last *visible* entry of a target, with its session of the page cache. A target becomes visible again only if
    /// a failed sync may have lost it.
    visible: HashMap<Key, (Lsn, SessionTag)>,
    /// Syncs by the LSN of their *begun* entry; true if known to have succeeded.
    syncs: BTreeMap<Lsn, (SessionTag, bool)>,
    unknown: Vec<Lsn>,
    removals: Removals,
    seen: Lsn,
    bytes: u64,
}

/// A message and its current entry.
pub(crate) struct Shown {
    pub entry: Lsn,
    pub deliver: Arc<MailboxDelivery>,
    pub body_len: u64,
}

/// After a rebuild of the spool, mail that was delivered and then moved may be delivered again; the operator was told.
impl StreamState for History {
    type Error = ReplayError;

    fn apply(&mut self, ReplayedEntry { lsn, payload, body_len }: ReplayedEntry<'_>) -> Result<(), ReplayError> {
        self.show(lsn, payload, body_len);
        Ok(())
    }
}

impl History {
    /// Replays an entry. `body_len`: length in bytes of its batch's body.
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

    /// Messages that may be unfinished.
    pub fn messages(&self) -> impl Iterator<Item = (Lsn, &Shown)> {
        self.messages.iter().map(|(body, shown)| (*body, shown))
    }

    /// Bytes of the messages' bodies and state.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Entries unknown to this version.
    pub fn unknown(&self) -> &[Lsn] {
        &self.unknown
    }

    /// The state of each message in the current session of the page cache, and the targets to write.
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
            // Kept as long as the message: without it the next opening would take the note for proof of a durable file.
            let entry = doubts.chain([shown.entry]).min().expect("the message's own");
            table.insert(*body, entry, shown.deliver.clone(), shown.body_len, None, targets);
        }
        table.end_of_doubt();
        (table, queued)
    }

    /// The first sync in this session of the page cache not known to have succeeded.
    fn first_doubt(&self, session: SessionTag) -> Option<Lsn> {
        self.syncs.iter().find(|(_, (other, succeeded))| *other == session && !succeeded).map(|(begun, _)| *begun)
    }

    /// State of a target; `None` if it is durable. A message rewritten with `entry` was not durable then, whatever was
    /// noted before: its file may have been replaced since.
    fn stands(&self, key: Key, entry: Lsn, session: SessionTag, doubt: bool) -> Option<(State, Task)> {
        Some(match self.visible.get(&key) {
            Some((noted, of)) if self.is_durable(*noted.max(&entry), *of) => return None,
            Some((noted, of)) if *of == session && !self.may_be_lost(*noted, session) => (State::Visible, Task::Write),
            Some((_, of)) if *of == session => (State::Queued, Task::RenewIfThere),
            _ if doubt => (State::Queued, Task::Renew),
            _ => (State::Queued, Task::LookFirst),
        })
    }

    /// True if a file noted as visible at `noted` is on the disk: the next sync succeeded, and no sync in flight at
    /// that time may have failed.
    fn is_durable(&self, noted: Lsn, session: SessionTag) -> bool {
        let before = self.syncs.range(..noted).next_back();
        let after = self.syncs.range(noted..).next();
        let is_harmless = |(_, (of, succeeded)): (&Lsn, &(SessionTag, bool))| *of != session || *succeeded;
        before.is_none_or(is_harmless) && after.is_some_and(|(_, (of, succeeded))| *of == session && *succeeded)
    }

    /// The sync that makes a target doubtful: begun before the target was noted as visible, and not known to have
    /// succeeded.
    fn doubt_before(&self, key: Key) -> Option<Lsn> {
        let (noted, session) = self.visible.get(&key)?;
        let (begun, (of, succeeded)) = self.syncs.range(..noted).next_back()?;
        (of == session && !succeeded).then_some(*begun)
    }

    /// True if a sync that ended or began after the note `noted` is not known to have succeeded.
    fn may_be_lost(&self, noted: Lsn, session: SessionTag) -> bool {
        let under_way = self.syncs.range(..noted).next_back();
        let later = self.syncs.range(noted..);
        under_way.into_iter().chain(later).any(|(_, (of, succeeded))| *of == session && !succeeded)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::OlderBody;
    use super::super::message::{LineEnds, MailboxTarget};
    use super::*;

    const FIRST: SessionTag = SessionTag([1; 24]);
    const SECOND: SessionTag = SessionTag([2; 24]);
    const THIRD: SessionTag = SessionTag([3; 24]);

    fn message(older: Option<u64>) -> LocalEntry {
        let target = MailboxTarget { mailbox: "m".into(), prefix: Bytes::new() };
        LocalEntry::Deliver(MailboxDelivery {
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

    /// An opening in `session` with the entries after `position`: the number of messages to look for, and the position
    /// then.
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
        // The sync begun with 10 may have failed for mail written meanwhile; the next one succeeded.
        let entries = [
            (10, syncs(10)),
            (11, message(None)),
            (12, visible(FIRST, 11)),
            (13, syncs(13)),
            (14, LocalEntry::Synced { begun: Lsn::new(13) }),
        ];
        let (queued, position) = opened(&entries, 0, SECOND);
        assert_eq!(queued, 1, "it is looked for after a power cut");
        // The power fails again during the rewrite.
        assert_eq!(opened(&entries, position, THIRD).0, 1, "and after the next one");
    }

    #[test]
    fn rewritten_mail_was_not_durable_whatever_was_noted() {
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
