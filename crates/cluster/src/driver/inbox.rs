//! All that a node's thread waits for, in the order of arrival.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;

use crate::cell::{CellKey, MemberReport, NodeName};
use crate::queue::Told;
use crate::sender::SenderEnd;
use crate::{LogError, LogPosition};

/// Input of a node's thread. Inputs about an ownership carry its epoch.
pub(crate) enum NodeInput {
    Seen(CellKey, Bytes, u64),
    Got(u64, Result<(Bytes, u64), LogError>),
    Swapped(u64, Result<u64, LogError>),
    LogEnd(u16, Result<LogPosition, LogError>),
    LogLooked(u16, BeforeLook, Result<LogLook, LogError>),
    Opened(u16, u64, Result<(), SenderEnd>),
    /// The last open transaction has ended.
    TransactionsEnded(u16, u64),
    /// The service has nothing in progress any more.
    ServiceReleased(u16, u64),
    /// All batches are decided.
    Drained(u16, u64),
    /// `true`: a service acted.
    Demoted(u16, bool),
    HandOver(u16, Option<NodeName>),
    /// Of a shard without an owner.
    Applied(u16, MemberReport),
    Drain(Told),
}

/// The state of the member before the log was asked.
pub(crate) struct BeforeLook {
    pub applied: LogPosition,
    /// Bytes that were appended.
    pub bytes: u64,
}

/// See [`LogState`](crate::LogState).
pub(crate) struct LogLook {
    pub first: LogPosition,
    pub end: LogPosition,
    pub room: (u64, u64),
    pub is_current: bool,
}

#[derive(Default)]
pub(crate) struct NodeInbox {
    state: Mutex<InboxState>,
    changed: Condvar,
}

#[derive(Default)]
struct InboxState {
    inputs: VecDeque<NodeInput>,
    /// The newest value of each cell since the last look, so that a watch may report any number of them.
    seen: BTreeMap<String, (CellKey, Bytes, u64)>,
    has_answered: bool,
    is_closed: bool,
}

impl NodeInbox {
    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().expect("nothing panics while it is held")
    }

    pub fn push(&self, input: NodeInput) {
        self.state().inputs.push_back(input);
        self.changed.notify_all();
    }

    /// A callback that pushes an input.
    pub fn told(self: &Arc<Self>, input: NodeInput) -> Told {
        let inbox = self.clone();
        Box::new(move || inbox.push(input))
    }

    /// Records a reported cell. False if nobody reads it any more.
    pub fn saw(&self, key: &str, value: &[u8], revision: u64) -> bool {
        let mut state = self.state();
        if let Some(cell) = CellKey::of(key)
            && state.seen.get(key).is_none_or(|known| known.2 < revision)
        {
            state.seen.insert(key.to_owned(), (cell, Bytes::copy_from_slice(value), revision));
            self.changed.notify_all();
        }
        !state.is_closed
    }

    pub fn take(&self) -> Vec<NodeInput> {
        let mut state = self.state();
        let seen = std::mem::take(&mut state.seen).into_values();
        let seen: Vec<_> = seen.map(|(key, value, revision)| NodeInput::Seen(key, value, revision)).collect();
        seen.into_iter().chain(state.inputs.drain(..)).collect()
    }

    /// Waits for an input, up to the timeout if there is one. False at the end.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let is_empty = |state: &mut InboxState| state.inputs.is_empty() && state.seen.is_empty() && !state.is_closed;
        let state = match timeout {
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(self.state(), timeout, is_empty);
                waited.expect("nothing panics while it is held").0
            }
            None => self.changed.wait_while(self.state(), is_empty).expect("nothing panics while it is held"),
        };
        !state.is_closed
    }

    pub fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// Notes that the engine can be reached.
    pub fn has_answer(&self) {
        self.state().has_answered = true;
        self.changed.notify_all();
    }

    /// Waits until the engine has answered a call. False at the end.
    pub fn wait_for_engine(&self) -> bool {
        let is_silent = |state: &mut InboxState| !state.has_answered && !state.is_closed;
        let waited = self.changed.wait_while(self.state(), is_silent);
        let mut state = waited.expect("nothing panics while it is held");
        state.has_answered = false;
        !state.is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_value_of_a_cell_waits() {
        let inbox = NodeInbox::default();
        assert!(inbox.saw("shard.3", b"one", 1) && inbox.saw("shard.3", b"two", 2) && inbox.saw("shard.3", b"old", 1));
        assert!(inbox.saw("other", b"x", 3));
        let seen = inbox.take();
        assert!(
            matches!(&seen[..], [NodeInput::Seen(CellKey::Shard(3), value, 2)] if value == "two"),
            "{}",
            seen.len()
        );
        inbox.close();
        assert!(!inbox.saw("shard.3", b"three", 4) && !inbox.wait(None));
    }
}
