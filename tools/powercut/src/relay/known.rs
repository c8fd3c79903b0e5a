//! Promises and deliveries up to a moment of a recording, and the results that they allow of a recovery.

use std::collections::{BTreeMap, BTreeSet};

use crate::account::Account;
use crate::load::{Entry, Load, mark, message_of};
use crate::log::Event;

/// Facts at the moment of a cut.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The 250s that clients received, as [`mark`]s.
    pub acknowledged: Vec<u64>,
    /// Entries that the next hop had taken, each with the number of flushes before its last copy.
    pub taken: BTreeMap<Entry, u64>,
    /// Entries of `taken` that are certainly recorded: the server that sent them has since ended in order.
    pub recorded: BTreeSet<Entry>,
    /// Entries taken since the last start.
    since: BTreeSet<Entry>,
    /// Entries taken again although they were recorded.
    pub doubled: Vec<Entry>,
    /// Number of flushes so far.
    pub flushes: u64,
}

impl Known {
    /// The facts at the end of these events, which begin with the run.
    pub fn after(load: &Load, events: &[Event]) -> Self {
        let mut known = Self::default();
        known.go_on(load, events);
        known
    }

    /// Adds later events.
    pub fn go_on(&mut self, load: &Load, events: &[Event]) {
        for event in events {
            match event {
                Event::Mark(number) => self.acknowledged.push(*number),
                Event::Taken(number) => {
                    for entry in load.promised(*number) {
                        self.taken.insert(entry, self.flushes);
                        self.since.insert(entry);
                        self.doubled.extend(self.recorded.contains(&entry).then_some(entry));
                    }
                }
                // What came before a kill, and is not recorded, is sent again.
                Event::Started => self.since.clear(),
                Event::Ended => self.recorded.append(&mut self.since),
                Event::Flush => self.flushes += 1,
                Event::Write { .. } | Event::Discard { .. } => {}
            }
        }
    }

    /// Events that lead to the same facts.
    pub fn events(&self, load: &Load) -> Vec<Event> {
        let taken = |entries: Vec<&Entry>| -> Vec<Event> {
            entries.into_iter().map(|entry| Event::Taken(mark_of(load, *entry))).collect()
        };
        let mut events = taken(self.recorded.iter().collect());
        if !events.is_empty() {
            events.push(Event::Ended);
        }
        events.extend(taken(self.taken.keys().filter(|entry| !self.recorded.contains(entry)).collect()));
        events.push(Event::Started);
        events.extend(self.acknowledged.iter().copied().map(Event::Mark));
        events
    }

    /// Accounts for the mail that reached the next hop in `events`. They end with an empty queue and contain no kill or
    /// power cut.
    ///
    /// A message must arrive whole if it was acknowledged, or if one of its recipients got it: nothing leaves before it
    /// is durable.
    pub fn account(&self, load: &Load, events: &[Event], altered: Vec<String>) -> Account {
        let mut arrived: BTreeMap<Entry, u64> = BTreeMap::new();
        for event in events {
            if let Event::Taken(number) = event {
                load.promised(*number).into_iter().for_each(|entry| *arrived.entry(entry).or_default() += 1);
            }
        }
        let come = self.taken.keys().chain(arrived.keys()).map(|entry| entry.message);
        let owed: BTreeSet<u64> = self.acknowledged.iter().copied().map(message_of).chain(come).collect();
        let owed = owed.into_iter().flat_map(|message| load.promised(message));
        let lost = owed.filter(|entry| !self.taken.contains_key(entry) && !arrived.contains_key(entry)).collect();
        let is_double = |(entry, copies): &(&Entry, &u64)| **copies > 1 || self.recorded.contains(entry);
        let duplicated = arrived.iter().filter(is_double).map(|(entry, _)| *entry).collect();
        let again = |entry: &Entry| self.taken.get(entry).filter(|_| !self.recorded.contains(entry)).copied();
        let sent_again: Vec<u64> = arrived.keys().filter_map(again).map(|flushes| self.flushes - flushes).collect();
        Account { lost, duplicated, half: altered, sent_again, ..Account::default() }
    }
}

/// The mark of one recipient of a message.
pub fn mark_of(load: &Load, entry: Entry) -> u64 {
    let index = load.recipients(entry.message).iter().position(|mailbox| *mailbox == entry.mailbox);
    mark(entry.message, Some(index.expect("a recipient of the message")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load { several_one_in: 1, ..Load::mixed(3) }
    }

    /// A message to several recipients, and the event of its delivery to each.
    fn several(load: &Load, least: u64) -> (u64, Vec<Event>) {
        let number = (least..).find(|number| load.recipients(*number).len() > 1).unwrap();
        (number, load.promised(number).into_iter().map(|entry| Event::Taken(mark_of(load, entry))).collect())
    }

    #[test]
    fn owed_is_what_was_acknowledged_or_has_come_in_part() {
        let load = load();
        let (number, taken) = several(&load, 0);
        let lost = |before: &[Event], behind: &[Event]| {
            Known::after(&load, before).account(&load, behind, Vec::new()).lost.len()
        };
        assert_eq!(lost(&[], &[]), 0);
        assert_eq!(lost(&[Event::Mark(number)], &[]), taken.len());
        assert_eq!(lost(&[Event::Mark(number)], &taken), 0);
        assert_eq!(lost(&taken, &[]), 0);
        let part = [vec![Event::Mark(number)], taken[..1].to_vec()].concat();
        assert_eq!(lost(&part, &taken[1..]), 0, "one before and the others after");
        assert_eq!(lost(&taken[..1], &[]), taken.len() - 1, "never acknowledged, and yet durable");
        assert_eq!(lost(&[], &taken[..1]), taken.len() - 1);
    }

    #[test]
    fn an_extra_copy_is_excused_if_its_record_may_be_lost() {
        let load = load();
        let (number, taken) = several(&load, 0);
        let check = |before: &[Event], behind: &[Event]| {
            let before = [vec![Event::Mark(number)], before.to_vec()].concat();
            let found = Known::after(&load, &before).account(&load, behind, Vec::new());
            (found.duplicated.len(), found.sent_again.len())
        };
        let all = taken.len();
        assert_eq!(check(&taken, &taken), (0, all));
        assert_eq!(check(&[], &[taken.clone(), taken.clone()].concat()), (all, 0));
        let ended = [taken.clone(), vec![Event::Ended]].concat();
        assert_eq!(check(&ended, &taken), (all, 0));
        // Killed, and another server has ended, which knew nothing of it.
        let killed = [taken.clone(), vec![Event::Started, Event::Ended]].concat();
        assert_eq!(check(&killed, &taken), (0, all));
        assert_eq!(
            check(&[taken[..1].to_vec(), vec![Event::Ended], taken[1..].to_vec()].concat(), &taken),
            (1, all - 1)
        );
    }

    #[test]
    fn what_is_known_can_be_told_again_as_events() {
        let load = load();
        let (first, taken) = several(&load, 0);
        let (_, others) = several(&load, first + 1);
        let events = [vec![Event::Mark(first), Event::Flush], taken, vec![Event::Ended], others].concat();
        for end in 0..=events.len() {
            let known = Known::after(&load, &events[..end]);
            let told = Known::after(&load, &known.events(&load));
            let of = |known: &Known| {
                (known.acknowledged.clone(), known.recorded.clone(), known.taken.keys().copied().collect::<Vec<_>>())
            };
            assert_eq!(of(&told), of(&known));
        }
    }
}
