//! Calls to the engine, which may take seconds.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// A call of the engine.
pub type EngineCall = Box<dyn FnOnce() + Send>;

/// The cell of the node, or the cells and logs of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallLane {
    /// Writes of the node's cell. A standby counts their answers, so they never wait for a call of a shard.
    Node,
    /// All others.
    Shards,
}

/// Runs calls to the engine. Tests run them synchronously.
pub trait EngineCalls: Send + Sync {
    /// Runs one call without blocking the caller for long.
    fn call(&self, lane: CallLane, call: EngineCall);
}

/// Runs calls on threads of its own. Each ends after its current call once the last handle is dropped.
pub struct CallThreads {
    node: Sender<EngineCall>,
    shards: Sender<EngineCall>,
}

impl CallThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn start() -> io::Result<Self> {
        Ok(CallThreads { node: workers("cluster-node-cell", 1)?, shards: workers("cluster-calls", SHARD_CALLS)? })
    }
}

impl EngineCalls for CallThreads {
    fn call(&self, lane: CallLane, call: EngineCall) {
        let workers = match lane {
            CallLane::Node => &self.node,
            CallLane::Shards => &self.shards,
        };
        assert!(workers.send(call).is_ok(), "the workers end with their handle");
    }
}

fn workers(name: &str, count: usize) -> io::Result<Sender<EngineCall>> {
    let (sender, calls) = channel();
    let calls = Arc::new(Mutex::new(calls));
    for _ in 0..count {
        let calls = calls.clone();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&calls))?;
    }
    Ok(sender)
}

fn work(calls: &Mutex<Receiver<EngineCall>>) {
    loop {
        let next = calls.lock().expect("nothing panics while it is held").recv();
        match next {
            Ok(call) => call(),
            Err(_) => return,
        }
    }
}

/// Concurrent calls of shards.
const SHARD_CALLS: usize = 4;
