//! The list of nodes, for the operator: their state, and removal.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste_cluster::{Cells, LogError, NodeCell, NodeName, add_node, is_removed, remove_node};
use posthaste_control::{NodeState, NodeStatus};

/// The nodes that the configuration names, and their cells.
#[derive(Clone)]
pub(super) struct NodeList {
    names: BTreeSet<NodeName>,
    cells: Arc<dyn Cells>,
}

impl NodeList {
    pub fn new<'a>(names: impl Iterator<Item = &'a str>, cells: Arc<dyn Cells>) -> Self {
        NodeList { names: names.filter_map(NodeName::new).collect(), cells }
    }

    /// All nodes, by name.
    pub fn names(&self) -> Vec<NodeName> {
        self.names.iter().cloned().collect()
    }

    /// Nodes that were not removed, with their cells.
    ///
    /// # Errors
    /// The engine does not answer.
    pub fn listed(&self) -> Result<Vec<(NodeName, NodeCell)>, String> {
        let mut listed = Vec::new();
        for name in &self.names {
            let (value, _) = self.cells.get(&name.key()).map_err(|error| error.to_string())?;
            let cell = NodeCell::decode(&value).unwrap_or_default();
            if !cell.is_removed {
                listed.push((name.clone(), cell));
            }
        }
        Ok(listed)
    }

    /// Removes a dead node. Takes some seconds. Blocks.
    ///
    /// # Errors
    /// No such node, it runs, or the engine does not answer.
    pub fn remove(&self, node: &str) -> Result<(), String> {
        remove_node(&*self.cells, self.known(node)?, &std::thread::sleep).map_err(|error| error.to_string())
    }

    /// Re-admits a node. Blocks.
    ///
    /// # Errors
    /// No such node, it was not removed, or the engine does not answer.
    pub fn add(&self, node: &str) -> Result<(), String> {
        add_node(&*self.cells, self.known(node)?).map_err(|error| error.to_string())
    }

    /// Refuses the start of a removed node.
    ///
    /// # Errors
    /// The engine does not answer.
    pub fn check_start(&self, node: &str) -> Result<Result<(), String>, LogError> {
        let name = match self.known(node) {
            Ok(name) => name,
            Err(unknown) => return Ok(Err(unknown)),
        };
        if is_removed(&*self.cells, name)? != Some(true) {
            return Ok(Ok(()));
        }
        Ok(Err(format!(
            "{node} was taken off the list of nodes: `posthaste cluster add {node}` at another node lets it start again"
        )))
    }

    fn known(&self, node: &str) -> Result<&NodeName, String> {
        let unknown = || {
            let names: Vec<&str> = self.names.iter().map(NodeName::as_str).collect();
            format!("{node} is not a node of this cluster: {}", names.join(", "))
        };
        self.names.iter().find(|name| name.as_str() == node).ok_or_else(unknown)
    }
}

/// True for a node that has not written for a while: it does not run, or its clock is wrong.
pub(super) fn is_silent(cell: &NodeCell, now: Duration) -> bool {
    now.saturating_sub(Duration::from_millis(cell.wall_ms)) > SILENT
}

/// The state of a node by its cell. `now` is the time since 1970.
pub(super) fn status_of(name: &NodeName, cell: Option<&NodeCell>, now: Duration) -> NodeStatus {
    let node = name.to_string();
    let Some(cell) = cell else {
        return NodeStatus { node, state: NodeState::New, version: None, silent_secs: None };
    };
    let silent = now.saturating_sub(Duration::from_millis(cell.wall_ms));
    let state = match () {
        () if cell.is_removed => NodeState::Removed,
        () if is_silent(cell, now) => NodeState::Silent,
        () => NodeState::Runs,
    };
    let is_known = cell.wall_ms > 0;
    NodeStatus {
        node,
        state,
        version: Some(cell.version.clone()).filter(|version| !version.is_empty()),
        silent_secs: is_known.then_some(silent.as_secs()),
    }
}

/// A node silent for this long is down, or its clock is wrong.
const SILENT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use posthaste_cluster::memory::MemoryCells;

    use super::super::engine_view::EngineView;
    use super::*;

    #[test]
    fn nodes_are_shown_by_their_cells() {
        let cells = MemoryCells::default();
        let list = NodeList::new(["d", "a", "b", "c"].into_iter(), Arc::new(cells.clone()));
        let write = |node: &str, wall_ms, is_removed| {
            let cell = NodeCell { wall_ms, version: "0.1.0".to_owned(), is_removed, ..NodeCell::default() };
            cells.swap(&NodeName::new(node).unwrap().key(), 0, cell.encode()).unwrap();
        };
        write("a", 99_000, false);
        write("b", 40_000, false);
        write("c", 40_000, true);
        let view = EngineView::ask(&list.cells, Vec::new(), list.names(), Duration::from_secs(60));
        let now = Duration::from_secs(100);
        let status: Vec<_> = view.nodes.iter().map(|(name, cell)| status_of(name, cell.as_ref(), now)).collect();
        let states: Vec<_> = status.iter().map(|it| (it.node.as_str(), it.state, it.silent_secs)).collect();
        let wanted = [
            ("a", NodeState::Runs, Some(1)),
            ("b", NodeState::Silent, Some(60)),
            ("c", NodeState::Removed, Some(60)),
            ("d", NodeState::New, None),
        ];
        assert_eq!(states, wanted);
        assert_eq!(list.listed().unwrap().iter().map(|it| it.0.as_str()).collect::<Vec<_>>(), ["a", "b", "d"]);
    }

    #[test]
    fn a_node_off_the_list_does_not_start_until_it_is_added() {
        let list = NodeList::new(["a", "b"].into_iter(), Arc::new(MemoryCells::default()));
        list.check_start("b").unwrap().unwrap();
        list.remove("b").unwrap();
        let why = list.check_start("b").unwrap().unwrap_err();
        assert!(why.contains("`posthaste cluster add b`"), "{why}");
        list.add("b").unwrap();
        list.check_start("b").unwrap().unwrap();
        let unknown = "x is not a node of this cluster: a, b";
        assert_eq!(
            (list.remove("x").unwrap_err(), list.add("x").unwrap_err()),
            (unknown.to_owned(), unknown.to_owned())
        );
    }
}
