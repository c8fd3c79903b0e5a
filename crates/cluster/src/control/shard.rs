//! The control shard on one node: a thread that follows its log and appends to it.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::compact::Restatement;
use super::entry::{ControlEntry, ENTRIES_MAX};
use super::place::ControlPlace;
use super::replay::ControlRules;
use super::shared::{ControlFollower, ControlShardError, Shared};
use crate::{LogError, LogPosition, ShardLog};

/// The control shard, followed by a thread. Dropping it ends the thread.
pub struct ControlShard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ControlShard {
    /// Follows the log from a position. The seed must be random and unique.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(
        (log, rules): (Arc<dyn ShardLog>, Arc<dyn ControlRules>),
        place: ControlPlace,
        seed: u64,
        mut follower: Box<dyn ControlFollower>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(log, rules, place, seed));
        let followed = shared.clone();
        let thread = std::thread::Builder::new().name("cluster-control".to_owned());
        let thread = Some(thread.spawn(move || followed.follow(&mut *follower))?);
        Ok(ControlShard { shared, thread })
    }

    /// Stores up to [`ENTRIES_MAX`] entries in one record, and waits until this node has applied them. Returns their
    /// position. Blocks, for hardly longer than `patience`, including the wait for other changes.
    ///
    /// # Errors
    /// See [`ControlShardError`].
    ///
    /// # Panics
    /// If there are no entries, or too many.
    pub fn put(&self, entries: &[ControlEntry], patience: Duration) -> Result<LogPosition, ControlShardError> {
        assert!((1..=ENTRIES_MAX).contains(&entries.len()), "{} entries", entries.len());
        let shared = &self.shared;
        let until = Instant::now() + patience;
        let position = shared.store(entries, until)?;
        // The next change may begin meanwhile.
        shared.wait_past(position.before(), until);
        Ok(position)
    }

    /// Restates all values at the end of the log. Holds all of them in memory. Others change the log meanwhile. Blocks,
    /// for hardly longer than `patience`.
    ///
    /// # Errors
    /// See [`ControlShardError`]. What was stored changes nothing.
    pub fn restate(&self, patience: Duration) -> Result<(), ControlShardError> {
        Restatement::begin(&self.shared, Instant::now() + patience)?.append()
    }

    /// Cuts the log before the last complete restatement. False, without a cut, if a node that has applied only the
    /// records up to `lowest` would then miss some.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    pub fn cut(&self, lowest: LogPosition) -> Result<bool, LogError> {
        let log = &*self.shared.log;
        let Some(base) = self.shared.base().filter(|base| *base <= lowest.next()) else { return Ok(false) };
        if log.first()? >= base {
            return Ok(false);
        }
        log.cut(base).map(|()| true)
    }

    /// Bytes of the log.
    ///
    /// # Errors
    /// [`LogError::Unreachable`].
    pub fn used_bytes(&self) -> Result<u64, LogError> {
        self.shared.log.room().map(|(used, _)| used)
    }

    /// The last record that this node has applied.
    pub fn place(&self) -> ControlPlace {
        self.shared.place()
    }

    /// Why this node cannot read the log now; `None` if it can.
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble()
    }
}

impl Drop for ControlShard {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the follower does not panic");
            }
        }
    }
}

#[cfg(test)]
mod tests;
