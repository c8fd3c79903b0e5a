//! The thread of a node.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cell::{MemberReport, NodeName};
use crate::driver::NodeDriver;
use crate::driver::inbox::{NodeInbox, NodeInput};
use crate::queue::Told;

/// A node that keeps its leases on a thread of its own. Dropping it ends the thread at once, like a kill:
/// [drain](Self::drain) it before.
pub struct ClusterNode {
    inbox: Arc<NodeInbox>,
    thread: Option<JoinHandle<()>>,
}

impl ClusterNode {
    /// Starts the thread.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start(mut driver: NodeDriver) -> io::Result<Self> {
        let inbox = driver.inbox();
        let thread = std::thread::Builder::new().name("cluster-node".to_owned()).spawn(move || {
            driver.turn();
            while driver.wait(Some(TURN_EVERY)) {
                driver.turn();
            }
        })?;
        Ok(ClusterNode { inbox, thread: Some(thread) })
    }

    /// See [`NodeDriver::hand_over`].
    pub fn hand_over(&self, shard: u16, to: Option<NodeName>) {
        self.inbox.push(NodeInput::HandOver(shard, to));
    }

    /// Publishes in the node's cell how far it has applied a shard that no node owns.
    pub fn publish(&self, shard: u16, report: MemberReport) {
        self.inbox.push(NodeInput::Applied(shard, report));
    }

    /// Gives all shards away, takes no more, and waits until this node owns none. It blocks while the engine does not
    /// answer, so call it on a thread that can be abandoned.
    pub fn drain(&self) {
        let (tell, told) = sync_channel(1);
        let then: Told = Box::new(move || {
            let _ = tell.send(());
        });
        self.inbox.push(NodeInput::Drain(then));
        let _ = told.recv();
    }
}

impl Drop for ClusterNode {
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the node's thread does not panic");
            }
        }
    }
}

/// At most a quarter of a second without a turn: see [`ShardOwnership::tick`](crate::ShardOwnership::tick).
const TURN_EVERY: Duration = Duration::from_millis(200);
