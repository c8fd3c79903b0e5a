//! Queries to the other nodes, through the engine.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use posthaste_cluster::{BootTime, CellKey, Cells, LeaseClock, NodeName, PeerName, Peers, ShardCell};

use super::engine_view::{Call, EngineView, ask_all};
use super::nodes::{NodeList, is_silent};
use crate::receive::cluster::{OtherNode, OtherNodes, PeerAnswerer};

/// The other nodes of the configuration, reached through the engine.
pub(super) struct EngineNodes {
    pub me: String,
    pub nodes: NodeList,
    pub cells: Arc<dyn Cells>,
    pub peers: Arc<dyn Peers>,
    /// Guard: while it exists, queries of other nodes are answered.
    pub answers: Mutex<Option<Box<dyn Send + Sync>>>,
}

impl OtherNodes for EngineNodes {
    fn me(&self) -> &str {
        &self.me
    }

    fn list(&self) -> Vec<OtherNode> {
        let view = EngineView::ask(&self.cells, Vec::new(), self.nodes.names(), CELL_PATIENCE);
        let now = BootTime.wall();
        let others = self.nodes.names().into_iter().filter(|name| name.as_str() != self.me);
        let listed = |name: NodeName| match view.nodes.get(&name) {
            Some(Some(cell)) if cell.is_removed => None,
            Some(cell) => {
                let is_silent = cell.as_ref().is_none_or(|cell| is_silent(cell, now));
                Some(OtherNode { name: name.to_string(), is_silent })
            }
            // One of which the engine does not tell is asked, too.
            None => Some(OtherNode { name: name.to_string(), is_silent: false }),
        };
        others.filter_map(listed).collect()
    }

    fn ask_each(&self, nodes: &[OtherNode], question: &Bytes, patience: Duration) -> Vec<Result<Bytes, String>> {
        let call = |OtherNode { name: node, is_silent }: &OtherNode| -> Call<Result<Bytes, String>> {
            // A silent one is asked, and not waited for.
            let patience = if *is_silent { patience.min(SILENT_PATIENCE) } else { patience };
            let (peers, question, node) =
                (self.peers.clone(), question.clone(), NodeName::new(node).map(PeerName::Node));
            Box::new(move || {
                let node = node.ok_or_else(|| "it is not a node".to_owned())?;
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

    fn answer(&self, answerer: PeerAnswerer) {
        let me = PeerName::Node(NodeName::new(&self.me).expect("the configuration was checked"));
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.peers.answer(&me, answerer));
    }
}

/// Longest wait of a command for cells.
const CELL_PATIENCE: Duration = Duration::from_secs(2);
/// Timeout for a node that seems to be down.
const SILENT_PATIENCE: Duration = Duration::from_millis(500);
/// Added to a timeout, so that a node's own error comes first.
const GRACE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use posthaste_cluster::memory::MemoryCells;
    use posthaste_cluster::{CellOwner, LogError, NodeCell};

    use super::*;

    /// Answers with the name of the node, and the time that it was waited for.
    struct Names;

    impl Peers for Names {
        fn ask(&self, node: &PeerName, question: Bytes, patience: Duration) -> Result<Bytes, LogError> {
            let PeerName::Node(node) = node else { unreachable!("nodes are asked") };
            if node.as_str() == "c" {
                return Err(LogError::Unreachable("no".to_owned()));
            }
            Ok([node.as_str().as_bytes(), &question, patience.as_millis().to_string().as_bytes()].concat().into())
        }

        fn answer(&self, _: &PeerName, _: PeerAnswerer) -> Box<dyn Send + Sync> {
            Box::new(())
        }
    }

    #[test]
    fn nodes_on_the_list_are_asked_and_silent_ones_not_waited_for() {
        let cells = MemoryCells::default();
        let write = |node: &str, wall_ms, is_removed| {
            let cell = NodeCell { wall_ms, is_removed, ..NodeCell::default() };
            cells.swap(&NodeName::new(node).unwrap().key(), 0, cell.encode()).unwrap();
        };
        let now = u64::try_from(BootTime.wall().as_millis()).unwrap();
        ["a", "b", "c"].into_iter().for_each(|node| write(node, now, false));
        write("d", now, true);
        write("e", now - 60_000, false);
        let owner = CellOwner { node: NodeName::new("b").unwrap(), incarnation: 1 };
        cells.swap("shard.3", 0, ShardCell { owner: Some(owner), ..ShardCell::default() }.encode()).unwrap();
        let cells: Arc<dyn Cells> = Arc::new(cells);
        let nodes = NodeList::new(["a", "b", "c", "d", "e"].into_iter(), cells.clone());
        let peers = Arc::new(Names);
        let others = EngineNodes { me: "a".to_owned(), nodes, cells: cells.clone(), peers, answers: Mutex::default() };
        let list = others.list();
        let of = |list: &[OtherNode]| list.iter().map(|it| (it.name.clone(), it.is_silent)).collect::<Vec<_>>();
        let wanted = [("b", false), ("c", false), ("e", true)].map(|(name, is_silent)| (name.to_owned(), is_silent));
        assert_eq!(of(&list), wanted);
        // Another command looks later, when the node runs again: the first still waits as it has found.
        let (key, running) = (NodeName::new("e").unwrap().key(), NodeCell { wall_ms: now, ..NodeCell::default() });
        cells.swap(&key, cells.get(&key).unwrap().1, running.encode()).unwrap();
        assert!(others.list().iter().all(|it| !it.is_silent));
        let answers = others.ask_each(&list, &Bytes::from("?"), Duration::from_secs(9));
        let [b, c, e] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((b.clone().unwrap(), e.clone().unwrap()), ("b?9000".into(), "e?500".into()));
        assert!(c.is_err());
        assert_eq!((others.owner_of(3), others.owner_of(4)), (Some("b".to_owned()), None));
    }
}
