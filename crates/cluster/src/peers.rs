//! Queries between the nodes of a cluster: for commands, and about limits. They decide nothing about mail.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{LogError, NodeName};

/// Answers the question of another node. Blocks.
pub type PeerAnswerer = Arc<dyn Fn(Bytes) -> Bytes + Send + Sync>;

/// The node that is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerName {
    /// By its name, for a command.
    Node(NodeName),
    /// The owner of this shard, about [limits](crate::TokenHome).
    Limits(u16),
}

/// Queries to the other nodes.
pub trait Peers: Send + Sync {
    /// Asks a node. The question may have arrived even if no answer comes. Blocks, for hardly longer than `patience`.
    ///
    /// # Errors
    /// [`LogError::Unreachable`]: the node does not run, has too many questions, or has not answered in time.
    fn ask(&self, node: &PeerName, question: Bytes, patience: Duration) -> Result<Bytes, LogError>;

    /// Answers questions to a node, at most [`QUESTIONS_MAX`] at a time, until the returned guard is dropped. Takes
    /// effect soon.
    fn answer(&self, node: &PeerName, answer: PeerAnswerer) -> Box<dyn Send + Sync>;
}

/// Questions that a node answers at a time. Those beyond are refused at once.
pub const QUESTIONS_MAX: usize = 4;
/// Maximum bytes of a question.
pub const QUESTION_BYTES_MAX: usize = 128 << 10;
/// Maximum bytes of an answer. Appends of the same connection wait no longer than for a large record.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;
