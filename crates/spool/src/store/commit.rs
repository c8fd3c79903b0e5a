//! What happens after a commit, for the caller of the append.

use std::sync::Arc;

use crate::core::{Appended, Core, Wanted};
use crate::{AppendError, Lsn, Then};

/// A batch being written by a store, which reports its outcome once. A type instead of a closure, so that it needs no
/// allocation of its own.
///
/// A value dropped without a report means that the batch was cancelled.
pub(crate) enum Commit {
    /// A batch of the spool's user.
    Batch { core: Arc<Core>, appended: Appended, then: Then },
    /// A record of another batch's cancellation.
    Cancel { core: Arc<Core>, cancelled: u64 },
}

impl Commit {
    /// Reports that the batch is durable under this LSN, or that it was refused.
    pub fn tell(self, outcome: Result<Lsn, AppendError>) {
        match self {
            Commit::Batch { core, appended, then } => {
                match &outcome {
                    Ok(lsn) => core.publish(*lsn, appended),
                    Err(error) => {
                        appended.body.refused(error);
                        match error {
                            AppendError::Full(_) => core.bell.ring(Wanted::Room),
                            AppendError::Poisoned(_) => core.bell.ring(Wanted::Look),
                            _ => {}
                        }
                    }
                }
                core.showing.answers();
                then(outcome);
                core.showing.ends();
            }
            Commit::Cancel { core, cancelled } => match outcome {
                Ok(own) => {
                    let mut state = core.state();
                    state.published = own.get();
                    state.cancelled.remove(&cancelled);
                }
                Err(_) => drop(core.state().cancelled.insert(cancelled, false)),
            },
        }
    }
}
