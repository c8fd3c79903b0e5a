//! NATS JetStream as the engine: a stream for the log of each shard, and one for the cells.
//!
//! Requests are made by hand and not by the library's JetStream client: an append must never be repeated, and its
//! position is the only protection against doubles. One thread does all input and output of a node. Records of a log
//! are sent in the order of their appends.

mod cells;
mod check;
mod config;
mod connection;
mod log;
mod peers;
mod seen;

use std::sync::Arc;

pub use self::cells::NatsCells;
use self::check::stream_config;
pub use self::config::{NatsConfig, NatsLogin, NatsTls};
use self::connection::Connection;
pub use self::connection::NatsError;
pub use self::log::NatsLog;
pub use self::peers::NatsPeers;
use crate::LogError;

/// A connection to the engine. Clones are the same one.
#[derive(Clone)]
pub struct NatsEngine(Arc<Connection>);

impl NatsEngine {
    /// Connects. Blocks until a server has answered.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub fn connect(config: NatsConfig) -> Result<Self, NatsError> {
        Connection::open(config).map(|connection| NatsEngine(Arc::new(connection)))
    }

    /// The log of a shard. Its stream is created if missing.
    ///
    /// # Errors
    /// [`LogError::Unreachable`], [`LogError::Rejected`].
    pub fn log(&self, shard: u16) -> Result<NatsLog, LogError> {
        let name = format!("{}-log-{shard}", self.0.config.prefix);
        self.log_named(name, self.0.config.log_bytes_max)
    }

    /// Removes the log of a shard with all of its records, and makes a new one.
    ///
    /// # Errors
    /// [`LogError::Unreachable`]: it may have happened.
    pub fn new_log(&self, shard: u16) -> Result<NatsLog, LogError> {
        self.log(shard)?.delete()?;
        self.log(shard)
    }

    /// The log of the control shard. Its stream is created if missing.
    ///
    /// # Errors
    /// As for [`log`](Self::log).
    pub fn control(&self) -> Result<NatsLog, LogError> {
        let name = format!("{}-control", self.0.config.prefix);
        self.log_named(name, CONTROL_BYTES_MAX)
    }

    fn log_named(&self, name: String, bytes_max: u64) -> Result<NatsLog, LogError> {
        let subjects = std::slice::from_ref(&name);
        self.0.make(stream_config(&name, subjects, bytes_max, self.0.config.replicas, -1))?;
        Ok(NatsLog::new(self.0.clone(), name))
    }

    /// The cells. Their stream is created if missing.
    ///
    /// # Errors
    /// As for [`log`](Self::log).
    pub fn cells(&self) -> Result<NatsCells, LogError> {
        let name = format!("{}-cells", self.0.config.prefix);
        let subjects = [format!("{name}.>")];
        self.0.make(stream_config(&name, &subjects, CELLS_BYTES_MAX, self.0.config.replicas, 1))?;
        Ok(NatsCells::new(self.0.clone(), name))
    }

    /// Queries to the other nodes.
    pub fn peers(&self) -> NatsPeers {
        NatsPeers::new(self.0.clone())
    }
}

/// Limit of the cells' stream: they are small, with one value each.
const CELLS_BYTES_MAX: u64 = 256 << 20;
/// Limit of the control shard's log: values of some million keys, and changes since they were restated.
const CONTROL_BYTES_MAX: u64 = 1 << 30;
