//! Entries passed from the ring's thread to the writer. Bounded: entries without room are read from the spool again.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{Consumer, Lsn, Published};

#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    entries: Vec<(Lsn, Bytes)>,
    bytes: usize,
    /// True if entries were dropped here; the spool still has them.
    has_overflowed: bool,
    is_advance_wanted: bool,
    stop: bool,
}

/// Why the writer was woken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Entries, in order; empty after a timeout, or if the spool asks for the position.
    Entries { entries: Vec<(Lsn, Bytes)>, is_advance_wanted: bool },
    /// Entries were dropped here: replay them from the spool.
    Overflowed,
    /// The last entries.
    Stopped { entries: Vec<(Lsn, Bytes)> },
}

impl Inbox {
    pub fn new(bytes_max: usize) -> Self {
        Inbox { bytes_max, ..Inbox::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The ring's thread hands in what comes: a bug of the log must not end it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empties it: its content is replayed.
    pub fn clear(&self) {
        let mut state = self.state();
        (state.entries, state.bytes, state.has_overflowed) = (Vec::new(), 0, false);
    }

    /// Waits for entries, or `until`; then a moment longer for more, so that one wake-up serves many entries.
    pub fn take(&self, until: Option<Instant>) -> Taken {
        let is_urgent = |state: &State| state.stop || state.has_overflowed || state.is_advance_wanted;
        let mut state = self.state();
        state = match until {
            None => {
                let idle = |state: &mut State| state.entries.is_empty() && !is_urgent(state);
                self.changed.wait_while(state, idle).expect("nothing panics while it is held")
            }
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                let idle = |state: &mut State| state.entries.is_empty() && !is_urgent(state);
                self.changed.wait_timeout_while(state, left, idle).expect("nothing panics while it is held").0
            }
        };
        if !state.entries.is_empty() {
            let gathering = |state: &mut State| !is_urgent(state);
            state =
                self.changed.wait_timeout_while(state, GATHER, gathering).expect("nothing panics while it is held").0;
        }
        if state.has_overflowed {
            return Taken::Overflowed;
        }
        state.bytes = 0;
        let entries = std::mem::take(&mut state.entries);
        if state.stop {
            Taken::Stopped { entries }
        } else {
            Taken::Entries { entries, is_advance_wanted: std::mem::take(&mut state.is_advance_wanted) }
        }
    }

    pub fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_all();
    }

    pub fn has_overflowed(&self) -> bool {
        self.state().has_overflowed
    }

    /// Waits for `timeout` or the stop; true if it was stopped.
    pub fn wait_for_stop(&self, timeout: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), timeout, |state| !state.stop);
        waited.expect("nothing panics while it is held").0.stop
    }
}

impl Consumer for Inbox {
    fn published(&self, entry: Published) {
        let mut state = self.state();
        if state.has_overflowed {
            return;
        }
        let wakes = state.entries.is_empty();
        state.bytes += entry.payload.len() + ENTRY_BYTES;
        if state.bytes > self.bytes_max {
            (state.entries, state.bytes, state.has_overflowed) = (Vec::new(), 0, true);
        } else {
            state.entries.push((entry.lsn, entry.payload));
        }
        if wakes || state.has_overflowed {
            drop(state);
            self.changed.notify_all();
        }
    }

    fn advance_wanted(&self, _: Lsn) {
        self.state().is_advance_wanted = true;
        self.changed.notify_all();
    }
}

/// Time for collecting more entries.
const GATHER: Duration = Duration::from_millis(100);
/// Memory of an entry besides its payload.
const ENTRY_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_spool::PublishedBody;

    fn publish(inbox: &Inbox, lsn: u64) {
        let entry = Published { lsn: Lsn::new(lsn), payload: Bytes::from_static(b"x"), body: PublishedBody::None };
        inbox.published(entry);
    }

    #[test]
    fn entries_come_in_order_until_there_are_too_many() {
        let inbox = Inbox::new(10 * (ENTRY_BYTES + 1));
        (1..=10).for_each(|lsn| publish(&inbox, lsn));
        let Taken::Entries { entries, .. } = inbox.take(None) else { panic!("entries") };
        assert_eq!(entries.iter().map(|(lsn, _)| lsn.get()).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
        (11..=30).for_each(|lsn| publish(&inbox, lsn));
        assert_eq!(inbox.take(None), Taken::Overflowed);
        inbox.clear();
        publish(&inbox, 31);
        inbox.stop();
        assert!(matches!(inbox.take(None), Taken::Stopped { entries } if entries.len() == 1));
    }

    #[test]
    fn the_spool_that_wants_room_does_not_wait_for_entries() {
        let inbox = Inbox::new(1000);
        inbox.advance_wanted(Lsn::new(1));
        assert_eq!(inbox.take(None), Taken::Entries { entries: Vec::new(), is_advance_wanted: true });
        let begun = Instant::now();
        let nothing = Taken::Entries { entries: Vec::new(), is_advance_wanted: false };
        assert_eq!(inbox.take(Some(begun + Duration::from_millis(20))), nothing);
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
