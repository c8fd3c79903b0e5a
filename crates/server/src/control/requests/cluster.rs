//! This node of a cluster: its state, and orders about its shards.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use posthaste_control::{ClusterOrder, ClusterStatus, ShardRole};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::answering::{Answer, Outcome, as_json};
use super::asker::Asker;
use crate::receive::cluster::NodeControl;
use crate::receive::handler::Receiver;

type NodeHandle = Arc<dyn NodeControl>;

/// This server's cluster node.
///
/// # Errors
/// It is not part of a cluster.
fn node_of(receiver: &Receiver) -> Result<&NodeHandle, String> {
    receiver.cluster().ok_or_else(|| NO_CLUSTER.to_owned())
}

/// Tells the state, in a line, or moves a shard.
pub(super) fn perform(receiver: &Receiver, asker: &Asker, order: Option<&ClusterOrder>, answer: Answer<'_>) -> Outcome {
    let own = node_of(receiver)?;
    match order {
        None => _ = answer(as_json(&own.status())),
        Some(ClusterOrder::Check) => _ = answer(as_json(&own.status())) && answer(as_json(&own.check())),
        Some(ClusterOrder::Move { shard, to }) => {
            check_move(&own.status(), *shard, to.as_deref())?;
            own.move_shard(*shard, to.as_deref());
            tracing::info!(uid = asker.uid, shard, to, "the operator moves a shard to another node");
        }
        Some(ClusterOrder::Remove { node }) => {
            own.remove_node(node)?;
            tracing::info!(uid = asker.uid, node, "the operator has removed a node");
        }
        Some(ClusterOrder::Add { node }) => {
            own.add_node(node)?;
            tracing::info!(uid = asker.uid, node, "the operator has re-admitted a removed node");
        }
        Some(ClusterOrder::Open { shard, revision: None }) => _ = answer(as_json(&own.look_at_opening(*shard)?)),
        Some(ClusterOrder::Open { shard, revision: Some(revision) }) => {
            own.open_shard(*shard, *revision)?;
            tracing::warn!(uid = asker.uid, shard, "the operator opens a shard without an owner on this node");
        }
        Some(ClusterOrder::Drain) => return Err("answered elsewhere".to_owned()),
    }
    Ok(json!({ "done": 1 }))
}

/// Gives all shards away, and answers.
pub(super) async fn drain(
    mut write: OwnedWriteHalf,
    receiver: Receiver,
    mut ended: watch::Receiver<()>,
    uid: u32,
) -> io::Result<()> {
    let node = node_of(&receiver).cloned();
    // It holds nothing up at the server's end.
    drop(receiver);
    tracing::info!(uid, "the operator drains this node: it hands its shards over");
    let drained = tokio::select! {
        drained = async { give_away(node?).await } => drained,
        _ = ended.changed() => Err("the server is stopping".to_owned()),
    };
    let last = drained.unwrap_or_else(|error| json!({ "error": error }));
    write.write_all(format!("{last}\n").as_bytes()).await
}

/// Waits, with a timeout, until this node owns no shard.
async fn give_away(node: NodeHandle) -> Outcome {
    if !status(&node).await.is_draining {
        let (draining, (tell, told)) = (node.clone(), oneshot::channel());
        // It may never end, and a thread of the runtime would hold the server's end up.
        let thread = std::thread::Builder::new().name("cluster-drain".to_owned());
        let begun = thread.spawn(move || {
            draining.drain();
            let _ = tell.send(());
        });
        begun.map_err(|error| error.to_string())?;
        if timeout(DRAIN_PATIENCE, told).await.is_ok() {
            return Ok(json!({ "done": 1 }));
        }
    }
    match left(&status(&node).await) {
        left if left.is_empty() => Ok(json!({ "done": 1 })),
        left => Err(format!(
            "this node still owns {left}: no other member in sync takes it. The node keeps trying, and takes no new shard"
        )),
    }
}

/// It may wait for the engine.
async fn status(node: &NodeHandle) -> ClusterStatus {
    let node = node.clone();
    spawn_blocking(move || node.status()).await.expect("it does not panic")
}

/// Validates an order, as the node's thread would ignore an invalid one.
fn check_move(status: &ClusterStatus, number: u16, to: Option<&str>) -> Result<(), String> {
    let node = &status.node;
    let Some(shard) = status.shards.iter().find(|it| it.shard == number) else {
        let numbers: Vec<String> = status.shards.iter().map(|it| it.shard.to_string()).collect();
        return Err(format!("{node} is not a member of shard {number}, but of {}", numbers.join(", ")));
    };
    if shard.role != ShardRole::Owner {
        let owner = shard.owner.as_deref().map_or("nobody does".to_owned(), |owner| format!("{owner} does: ask there"));
        return Err(format!("{node} does not own shard {number}; {owner}"));
    }
    let others: Vec<&str> = shard.in_sync.iter().map(String::as_str).filter(|it| it != node).collect();
    match to {
        Some(to) if to == node => Err(format!("{node} already owns shard {number}")),
        _ if others.is_empty() => Err(format!("no other member of shard {number} is in sync")),
        Some(to) if !others.contains(&to) => {
            Err(format!("{to} is not in sync with shard {number}: choose {}", others.join(" or ")))
        }
        _ => Ok(()),
    }
}

/// The shards that this node owns, in words.
fn left(status: &ClusterStatus) -> String {
    let owned = status.shards.iter().filter(|it| it.role == ShardRole::Owner);
    owned.map(|it| format!("shard {}", it.shard)).collect::<Vec<_>>().join(" and ")
}

const NO_CLUSTER: &str = "this server is not a node of a cluster: its configuration has no [cluster]";
/// Timeout of a hand-over: it takes a second, plus half a minute for open transactions.
const DRAIN_PATIENCE: Duration = Duration::from_secs(40);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver as Told, Sender, channel};

    use posthaste_control::{ClusterCheck, Named, ShardOpening, ShardStatus, Suppressed, SuppressionFilter};

    use super::*;
    use crate::receive::cluster::{Begun, OtherNodes, begin_soon};
    use crate::receive::shared::{SharedChange, SharedSuspension, Spread};

    fn in_state(roles: &[(u16, ShardRole)], is_draining: bool) -> ClusterStatus {
        let shard = |(shard, role): &(u16, ShardRole)| ShardStatus {
            shard: *shard,
            home: "a".into(),
            role: *role,
            owner: None,
            epoch: 1,
            in_sync: Vec::new(),
            seeding: Vec::new(),
            members: Vec::new(),
            end: None,
            used_bytes: None,
            limit_bytes: None,
            queued: None,
            queue_error: None,
            troubles: Vec::new(),
        };
        let shards = roles.iter().map(shard).collect();
        ClusterStatus {
            node: "a".into(),
            engine: "nats".into(),
            is_draining,
            shards,
            nodes: Vec::new(),
            troubles: Vec::new(),
        }
    }

    /// A node whose drain ends when the test says so.
    struct Node {
        state: Mutex<ClusterStatus>,
        drained: Mutex<Told<()>>,
    }

    impl Node {
        fn new(state: ClusterStatus) -> (Arc<Self>, Sender<()>) {
            let (tell, told) = channel();
            (Arc::new(Node { state: Mutex::new(state), drained: Mutex::new(told) }), tell)
        }
    }

    impl NodeControl for Node {
        fn status(&self) -> ClusterStatus {
            self.state.lock().unwrap().clone()
        }

        fn drain(&self) {
            self.state.lock().unwrap().is_draining = true;
            let _ = self.drained.lock().unwrap().recv();
        }

        fn check(&self) -> ClusterCheck {
            ClusterCheck::default()
        }

        fn move_shard(&self, _: u16, _: Option<&str>) {}

        fn remove_node(&self, _: &str) -> Result<(), String> {
            Ok(())
        }

        fn add_node(&self, _: &str) -> Result<(), String> {
            Ok(())
        }

        fn look_at_opening(&self, _: u16) -> Result<ShardOpening, String> {
            Err("somebody acts for it".to_owned())
        }

        fn open_shard(&self, _: u16, _: u64) -> Result<(), String> {
            Ok(())
        }

        fn share(&self, _: &[SharedChange]) -> Result<Spread, String> {
            Ok(Spread::default())
        }

        fn suppressed(&self, _: &SuppressionFilter, _: &mut dyn FnMut(Suppressed) -> bool) -> Result<(), String> {
            Ok(())
        }

        fn unshared(&self, _: &SuppressionFilter, _: &mut dyn FnMut(Suppressed) -> bool) -> Result<(), String> {
            Ok(())
        }

        fn others(&self) -> &dyn OtherNodes {
            unreachable!("nobody asks for other nodes")
        }

        fn suspension(&self, _: &Named) -> Option<SharedSuspension> {
            None
        }

        fn begin(&self, _: bool) -> Option<Begun> {
            None
        }

        fn waits_for_engine(&self, _: bool) -> bool {
            !self.state.lock().unwrap().is_draining
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_answers_though_nobody_takes_the_shards() {
        let owns = [(1, ShardRole::Owner), (2, ShardRole::Standby), (7, ShardRole::Owner)];
        let (node, _tell) = Node::new(in_state(&owns, false));
        let why = give_away(node.clone()).await.unwrap_err();
        assert!(why.contains("shard 1 and shard 7"), "{why}");
        // It goes on: a second one does not wait, and ends well once the shards are gone.
        assert!(give_away(node.clone()).await.is_err());
        *node.state.lock().unwrap() = in_state(&[(1, ShardRole::Standby)], true);
        assert_eq!(give_away(node).await.unwrap(), json!({ "done": 1 }));
    }

    #[tokio::test]
    async fn a_drain_waits_until_the_shards_are_gone() {
        let (node, tell) = Node::new(in_state(&[(1, ShardRole::Owner)], false));
        tell.send(()).unwrap();
        assert_eq!(give_away(node).await.unwrap(), json!({ "done": 1 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_for_the_engine_but_not_for_a_node_that_drains() {
        let begun = tokio::time::Instant::now();
        let (node, _tell) = Node::new(in_state(&[(1, ShardRole::Owner)], false));
        let waiting = tokio::spawn({
            let node = node.clone();
            async move { begin_soon(&*node, false).await.is_none() }
        });
        tokio::time::sleep(Duration::from_secs(14)).await;
        assert!(!waiting.is_finished(), "the engine elects a leader");
        assert!(waiting.await.unwrap());
        assert_eq!(begun.elapsed().as_secs(), 60);
        node.state.lock().unwrap().is_draining = true;
        assert!(begin_soon(&*node, false).await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 60, "another node has it at once");
    }

    #[test]
    fn orders_that_make_no_sense_are_refused() {
        let mut status = in_state(&[(1, ShardRole::Owner), (2, ShardRole::Standby)], false);
        let refused = |status: &ClusterStatus, number, to| check_move(status, number, to).unwrap_err();
        assert_eq!(refused(&status, 9, None), "a is not a member of shard 9, but of 1, 2");
        assert_eq!(refused(&status, 2, None), "a does not own shard 2; nobody does");
        status.shards[1].owner = Some("b".into());
        assert_eq!(refused(&status, 2, None), "a does not own shard 2; b does: ask there");
        status.shards[0].in_sync = vec!["a".into()];
        assert_eq!(refused(&status, 1, None), "no other member of shard 1 is in sync");
        status.shards[0].in_sync = vec!["a".into(), "b".into(), "c".into()];
        assert_eq!(refused(&status, 1, Some("a")), "a already owns shard 1");
        assert_eq!(refused(&status, 1, Some("d")), "d is not in sync with shard 1: choose b or c");
        assert_eq!((check_move(&status, 1, Some("c")), check_move(&status, 1, None)), (Ok(()), Ok(())));
    }
}
