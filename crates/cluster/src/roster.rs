//! The list of nodes: takes a dead node off it, and lets one come back.
//!
//! The mark stands in the node's own cell. Its process writes that each second and needs the revision that it knows: so it cannot write any more, reads the mark, and ends.
//! A process that starts later reads it first.

use std::time::Duration;

use crate::cell::{NodeCell, NodeName};
use crate::survey::SURVEY;
use crate::{Cells, LogError};

/// Why the list stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// It writes its cell: only a dead node is taken off.
    #[error("{0} runs: `posthaste cluster drain` there, stop it, and try again")]
    Alive(NodeName),
    /// It can start already.
    #[error("{0} is on the list: it may start")]
    Listed(NodeName),
    /// The engine did not answer. It may have happened: try again, nothing is done twice.
    #[error(transparent)]
    Engine(#[from] LogError),
}

/// Takes a node off the list, if it has not written its cell for [`SURVEY`]. Nothing happens if it is off already. `pause` waits.
///
/// # Errors
/// [`RosterError::Alive`], [`RosterError::Engine`].
pub fn remove_node(cells: &dyn Cells, node: &NodeName, pause: &dyn Fn(Duration)) -> Result<(), RosterError> {
    let key = node.key();
    let (value, revision) = cells.get(&key)?;
    let old = NodeCell::decode(&value).unwrap_or_default();
    if old.is_removed {
        return Ok(());
    }
    if revision > 0 {
        pause(SURVEY);
    }
    // A node that goes on meanwhile has another revision. No reports: no shard counts on it.
    let removed = NodeCell { is_removed: true, version: old.version, wall_ms: old.wall_ms, ..NodeCell::default() };
    match cells.swap(&key, revision, removed.encode()) {
        Ok(_) => Ok(()),
        Err(LogError::Conflict) => Err(RosterError::Alive(node.clone())),
        Err(error) if is_removed(cells, node)? != Some(true) => Err(error.into()),
        Err(_) => Ok(()),
    }
}

/// Lets a node that was taken off the list start again.
///
/// # Errors
/// [`RosterError::Listed`], [`RosterError::Engine`].
pub fn add_node(cells: &dyn Cells, node: &NodeName) -> Result<(), RosterError> {
    let (value, revision) = cells.get(&node.key())?;
    match NodeCell::decode(&value) {
        Some(cell) if cell.is_removed => {
            cells.swap(&node.key(), revision, NodeCell { is_removed: false, ..cell }.encode())?;
            Ok(())
        }
        _ => Err(RosterError::Listed(node.clone())),
    }
}

/// True if a node is off the list; `None` if it has never written and was never taken off.
///
/// # Errors
/// [`LogError::Unreachable`].
pub fn is_removed(cells: &dyn Cells, node: &NodeName) -> Result<Option<bool>, LogError> {
    Ok(NodeCell::decode(&cells.get(&node.key())?.0).map(|cell| cell.is_removed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{CellFault, MemoryCells};

    fn node() -> NodeName {
        NodeName::new("a").unwrap()
    }

    fn write(cells: &MemoryCells) {
        let revision = cells.get(&node().key()).unwrap().1;
        cells.swap(&node().key(), revision, NodeCell::default().encode()).unwrap();
    }

    #[test]
    fn a_node_that_writes_stays_on_the_list() {
        let cells = MemoryCells::default();
        write(&cells);
        assert_eq!(remove_node(&cells, &node(), &|_| write(&cells)), Err(RosterError::Alive(node())));
        assert_eq!(is_removed(&cells, &node()), Ok(Some(false)));
    }

    #[test]
    fn a_silent_node_leaves_the_list_until_it_is_added() {
        let cells = MemoryCells::default();
        write(&cells);
        assert_eq!(add_node(&cells, &node()), Err(RosterError::Listed(node())));
        // The answer is lost, and it has happened.
        cells.script(&[CellFault::UnknownDone]);
        for _ in 0..2 {
            assert_eq!(remove_node(&cells, &node(), &|_| ()), Ok(()));
            assert_eq!(is_removed(&cells, &node()), Ok(Some(true)));
        }
        assert_eq!(add_node(&cells, &node()), Ok(()));
        assert_eq!(is_removed(&cells, &node()), Ok(Some(false)));
    }

    #[test]
    fn a_lost_answer_is_no_success() {
        let cells = MemoryCells::default();
        write(&cells);
        cells.script(&[CellFault::UnknownLost]);
        assert!(matches!(remove_node(&cells, &node(), &|_| ()), Err(RosterError::Engine(LogError::Unknown(_)))));
        assert_eq!(is_removed(&cells, &node()), Ok(Some(false)));
    }

    #[test]
    fn a_node_that_never_ran_can_be_kept_out() {
        let cells = MemoryCells::default();
        assert_eq!(is_removed(&cells, &node()), Ok(None));
        assert_eq!(remove_node(&cells, &node(), &|_| panic!("nothing to wait for")), Ok(()));
        assert_eq!(is_removed(&cells, &node()), Ok(Some(true)));
    }
}
