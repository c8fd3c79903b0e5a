//! Tells when all nodes have a change, so that a command returns then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::Position;
use crate::cell::NodeName;

/// Waits for nodes that lack a change. Times are those of one clock, which never goes back.
#[derive(Debug, Default)]
pub struct ControlSpread {
    /// Positions in the control shard's log that nodes have reported as applied.
    applied: BTreeMap<NodeName, Position>,
    nodes: BTreeSet<NodeName>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    change: u64,
    at: Position,
    until: Duration,
}

/// The end of the wait for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpreadOutcome {
    /// Number of the change.
    pub change: u64,
    /// Nodes on the list that do not have it, as far as is known; empty: all have it.
    pub missing: Vec<NodeName>,
    /// Nodes on the list.
    pub nodes: usize,
}

impl ControlSpread {
    /// Nodes on the list, alive or not. A node that leaves it is not waited for.
    pub fn set_nodes(&mut self, nodes: impl IntoIterator<Item = NodeName>) {
        self.nodes = nodes.into_iter().collect();
    }

    /// A node's report. One whose spool was wiped reports less than before.
    pub fn report(&mut self, node: &NodeName, applied: Position) {
        self.applied.insert(node.clone(), applied);
    }

    /// A change is stored, at this position at the latest. It is waited for until then.
    pub fn wait_for(&mut self, change: u64, at: Position, until: Duration) {
        self.waiting.push(Waiting { change, at, until });
    }

    /// Changes that all have, and those whose time is over.
    pub fn ended(&mut self, now: Duration) -> Vec<SpreadOutcome> {
        let mut ended = Vec::new();
        let (nodes, applied) = (&self.nodes, &self.applied);
        self.waiting.retain(|it| {
            let lacks = |node: &&NodeName| applied.get(*node).is_none_or(|applied| *applied < it.at);
            let missing: Vec<NodeName> = nodes.iter().filter(lacks).cloned().collect();
            let is_over = missing.is_empty() || now >= it.until;
            if is_over {
                ended.push(SpreadOutcome { change: it.change, missing, nodes: nodes.len() });
            }
            !is_over
        });
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    fn spread() -> ControlSpread {
        let mut spread = ControlSpread::default();
        spread.set_nodes(["a", "b", "c"].map(name));
        spread
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_command_returns_when_all_nodes_have_it() {
        let mut spread = spread();
        spread.report(&name("c"), Position::new(12));
        spread.wait_for(1, Position::new(10), secs(5));
        spread.wait_for(2, Position::new(11), secs(5));
        for (node, applied) in [("a", 11), ("b", 9)] {
            spread.report(&name(node), Position::new(applied));
            assert_eq!(spread.ended(secs(1)), []);
        }
        spread.report(&name("b"), Position::new(10));
        let all = |change| SpreadOutcome { change, missing: Vec::new(), nodes: 3 };
        assert_eq!(spread.ended(secs(2)), [all(1)]);
        spread.report(&name("b"), Position::new(11));
        assert_eq!(spread.ended(secs(2)), [all(2)]);
        assert_eq!(spread.ended(secs(9)), [], "each ends once");
    }

    #[test]
    fn nodes_that_lack_it_are_named_in_the_end() {
        let mut spread = spread();
        spread.wait_for(1, Position::new(10), secs(5));
        spread.report(&name("b"), Position::new(10));
        assert_eq!(spread.ended(secs(4)), []);
        let missing = vec![name("a"), name("c")];
        assert_eq!(spread.ended(secs(5)), [SpreadOutcome { change: 1, missing, nodes: 3 }]);
    }

    #[test]
    fn a_node_off_the_list_is_not_waited_for() {
        let mut spread = spread();
        spread.wait_for(1, Position::new(10), secs(5));
        ["a", "b"].iter().for_each(|node| spread.report(&name(node), Position::new(10)));
        assert_eq!(spread.ended(secs(1)), []);
        spread.set_nodes(["a", "b"].map(name));
        assert_eq!(spread.ended(secs(1)), [SpreadOutcome { change: 1, missing: Vec::new(), nodes: 2 }]);
    }

    #[test]
    fn a_wiped_node_has_not_what_it_had() {
        let mut spread = spread();
        ["a", "b", "c"].iter().for_each(|node| spread.report(&name(node), Position::new(10)));
        spread.report(&name("b"), Position::START);
        spread.wait_for(1, Position::new(10), secs(5));
        assert_eq!(spread.ended(secs(5))[0].missing, [name("b")]);
    }
}
