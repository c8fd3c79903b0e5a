//! The other nodes, which are asked through the engine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_cluster::{CellKey, Cells, NodeName, Peers, ShardCell};

use super::engine_view::{Call, EngineView, ask_all};
use super::nodes::NodeList;
use crate::receive::cluster::OtherNodes;

/// The other nodes on the list.
pub(super) struct EngineNodes {
    pub me: String,
    pub nodes: NodeList,
    pub cells: Arc<dyn Cells>,
    pub peers: Arc<dyn Peers>,
}

impl OtherNodes for EngineNodes {
    fn me(&self) -> &str {
        &self.me
    }

    fn list(&self) -> Vec<String> {
        let view = EngineView::ask(&self.cells, Vec::new(), self.nodes.names(), CELL_PATIENCE);
        // One of which the engine does not tell is asked, too.
        let is_removed = |name: &NodeName| {
            view.nodes.get(name).is_some_and(|cell| cell.as_ref().is_some_and(|cell| cell.is_removed))
        };
        let others = self.nodes.names().into_iter().filter(|name| name.as_str() != self.me && !is_removed(name));
        others.map(|name| name.to_string()).collect()
    }

    fn ask_each(&self, nodes: &[String], question: &Bytes, patience: Duration) -> Vec<Result<Bytes, String>> {
        let call = |node: &String| -> Call<Result<Bytes, String>> {
            let (peers, question, node) = (self.peers.clone(), question.clone(), NodeName::new(node));
            Box::new(move || {
                let node = node.ok_or_else(|| "it is no node".to_owned())?;
                peers.ask(&node, question, patience).map_err(|error| error.to_string())
            })
        };
        let late = || Err("it has not answered in time".to_owned());
        let answers = ask_all(nodes.iter().map(call).collect(), patience + GRACE);
        answers.into_iter().map(|answer| answer.unwrap_or_else(late)).collect()
    }

    fn owner_of(&self, shard: u16) -> Option<String> {
        let cells = self.cells.clone();
        let call: Call<Option<String>> = Box::new(move || {
            let (value, _) = cells.get(&CellKey::Shard(shard).to_string()).ok()?;
            Some(ShardCell::decode(&value)?.owner?.node.to_string())
        });
        ask_all(vec![call], CELL_PATIENCE).pop().flatten().flatten()
    }
}

/// A command waits so long for cells.
const CELL_PATIENCE: Duration = Duration::from_secs(2);
/// So that a node's own error comes first.
const GRACE: Duration = Duration::from_secs(1);
