//! The list of nodes: removes a dead node, and re-admits one.
//!
//! The mark is in the node's own cell. Its process writes the cell each second, which needs the known revision. So its
//! next write fails, it reads the mark, and exits. A process that starts later reads the mark first.

use std::time::Duration;

use crate::cell::{NodeCell, NodeName};
use crate::survey::SURVEY;
use crate::{Cells, LogError};

/// Why the list was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// The node is alive: only a dead one can be removed.
    #[error("{0} runs: `posthaste cluster drain` there, stop it, and try again")]
    Alive(NodeName),
    /// The node is on the list already.
    #[error("{0} was not removed: it may start")]
    Listed(NodeName),
    /// The engine did not answer. The change may have happened; repeating it is safe.
    #[error(transparent)]
    Engine(#[from] LogError),
}

/// Removes a node that has not written its cell for [`SURVEY`]. Does nothing if it is removed already. `pause` waits.
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

/// Re-admits a removed node.
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

/// True if a node was removed; `None` if it has never written and was never removed.
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
