//! Cells in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;

use crate::{Cells, LogError};

/// Cells in memory. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryCells(Arc<(Mutex<State>, Condvar)>);

/// The fate of a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellFault {
    /// No fault.
    None,
    /// The swap is done if the revision matches, but its answer is lost.
    UnknownDone,
    /// The swap is not done, and its answer is lost.
    UnknownLost,
}

#[derive(Default)]
struct State {
    cells: BTreeMap<String, (Bytes, u64)>,
    revision: u64,
    script: VecDeque<CellFault>,
    is_away: bool,
    /// The last revision that each watcher has seen.
    watchers: BTreeMap<u64, u64>,
    next_watcher: u64,
}

impl MemoryCells {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("nothing panics while it is held")
    }

    /// Scripted fates of the next swaps; later ones succeed.
    pub fn script(&self, fates: &[CellFault]) {
        self.state().script.extend(fates);
    }

    /// Stops answering until `is_away` is false again.
    pub fn set_away(&self, is_away: bool) {
        self.state().is_away = is_away;
        self.0.1.notify_all();
    }

    /// Number of watchers that have seen everything.
    pub fn watchers(&self) -> usize {
        self.state().watchers.len()
    }

    /// Waits until each watcher has seen everything.
    pub fn wait_for_watchers(&self) {
        let is_behind = |state: &mut State| state.watchers.values().any(|seen| *seen != state.revision);
        drop(self.0.1.wait_while(self.state(), is_behind).expect("nothing panics while it is held"));
    }

    fn watch_as(&self, watcher: u64, each: &mut dyn FnMut(&str, &[u8], u64) -> bool) -> Result<(), LogError> {
        let mut seen = 0;
        let mut state = self.state();
        loop {
            state.reachable()?;
            let new = state.cells.iter().filter(|(_, cell)| cell.1 > seen);
            let mut new: Vec<_> = new.map(|(key, (value, revision))| (*revision, key.clone(), value.clone())).collect();
            if new.is_empty() {
                // Not each time: two idle watchers would wake one another for ever.
                if state.watchers.insert(watcher, seen) != Some(seen) {
                    self.0.1.notify_all();
                }
                state = self.0.1.wait(state).expect("nothing panics while it is held");
                continue;
            }
            drop(state);
            new.sort();
            for (revision, key, value) in new {
                seen = revision;
                if !each(&key, &value, revision) {
                    return Ok(());
                }
            }
            state = self.state();
        }
    }
}

impl State {
    fn reachable(&self) -> Result<(), LogError> {
        if self.is_away { Err(LogError::Unreachable("it is away".to_owned())) } else { Ok(()) }
    }

    fn swap(&mut self, key: &str, revision: u64, value: Bytes) -> Result<u64, LogError> {
        let current = self.cells.get(key).map_or(0, |cell| cell.1);
        if current != revision {
            return Err(LogError::Conflict);
        }
        self.revision += 1;
        self.cells.insert(key.to_owned(), (value, self.revision));
        Ok(self.revision)
    }
}

impl Cells for MemoryCells {
    fn get(&self, key: &str) -> Result<(Bytes, u64), LogError> {
        let state = self.state();
        state.reachable()?;
        Ok(state.cells.get(key).cloned().unwrap_or_default())
    }

    fn swap(&self, key: &str, revision: u64, value: Bytes) -> Result<u64, LogError> {
        let mut state = self.state();
        let lost = || Err(LogError::Unknown("no answer in time".to_owned()));
        if state.is_away {
            return lost();
        }
        let outcome = match state.script.pop_front().unwrap_or(CellFault::None) {
            CellFault::None => state.swap(key, revision, value),
            CellFault::UnknownDone => state.swap(key, revision, value).and_then(|_| lost()).or_else(|_| lost()),
            CellFault::UnknownLost => lost(),
        };
        self.0.1.notify_all();
        outcome
    }

    fn watch(&self, each: &mut dyn FnMut(&str, &[u8], u64) -> bool) -> Result<(), LogError> {
        let watcher = {
            let mut state = self.state();
            state.next_watcher += 1;
            state.next_watcher
        };
        let outcome = self.watch_as(watcher, each);
        self.state().watchers.remove(&watcher);
        self.0.1.notify_all();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_swap_needs_the_current_revision() {
        let cells = MemoryCells::default();
        assert_eq!(cells.get("a"), Ok((Bytes::new(), 0)));
        let first = cells.swap("a", 0, "one".into()).unwrap();
        assert_eq!(cells.swap("a", 0, "two".into()), Err(LogError::Conflict));
        assert_eq!(cells.get("a"), Ok(("one".into(), first)));
        assert!(cells.swap("a", first, "two".into()).unwrap() > first);
    }

    #[test]
    fn a_lost_answer_leaves_the_cell_changed_or_not() {
        let cells = MemoryCells::default();
        cells.script(&[CellFault::UnknownDone, CellFault::UnknownLost, CellFault::None]);
        assert!(matches!(cells.swap("a", 0, "one".into()), Err(LogError::Unknown(_))));
        let (value, revision) = cells.get("a").unwrap();
        assert_eq!(value, "one");
        assert!(matches!(cells.swap("a", revision, "two".into()), Err(LogError::Unknown(_))));
        assert_eq!(cells.get("a"), Ok(("one".into(), revision)), "unchanged: swap again");
        cells.swap("a", revision, "two".into()).unwrap();
        cells.set_away(true);
        assert!(matches!(cells.get("a"), Err(LogError::Unreachable(_))));
        assert!(matches!(cells.swap("a", 0, "x".into()), Err(LogError::Unknown(_))));
    }

    #[test]
    fn a_watcher_is_shown_each_key_and_then_changes() {
        let cells = MemoryCells::default();
        cells.swap("a", 0, "one".into()).unwrap();
        cells.swap("b", 0, "two".into()).unwrap();
        let (tell, told) = channel();
        let watcher = std::thread::spawn({
            let cells = cells.clone();
            move || {
                cells.watch(&mut |key, value, _| {
                    tell.send((key.to_owned(), value.to_vec())).unwrap();
                    value != b"end"
                })
            }
        });
        let next = || told.recv().unwrap();
        assert_eq!((next(), next()), (("a".into(), b"one".to_vec()), ("b".into(), b"two".to_vec())));
        let revision = cells.get("a").unwrap().1;
        cells.swap("a", revision, "end".into()).unwrap();
        assert_eq!(next(), ("a".into(), b"end".to_vec()));
        assert_eq!(watcher.join().unwrap(), Ok(()));
    }
}
