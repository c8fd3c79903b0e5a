//! Changes of a file system, call by call, and the moment of a power cut.

use std::fmt;
use std::str::FromStr;

use crate::tree::NodeId;

/// A successful call, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FsEvent {
    /// A file or directory was made.
    Create {
        /// Directory of the name.
        dir: NodeId,
        /// Name in the directory.
        name: String,
        /// Itself.
        node: NodeId,
        /// True for a directory.
        is_dir: bool,
    },
    /// A file got another name.
    Link {
        /// The directory of that name.
        dir: NodeId,
        /// The name.
        name: String,
        /// The file.
        node: NodeId,
    },
    /// A name was removed.
    Remove {
        /// Directory of the name.
        dir: NodeId,
        /// The name.
        name: String,
        /// The file or directory that the name leads to.
        node: NodeId,
    },
    /// A file or directory was renamed, replacing the one with that name.
    Rename {
        /// Directory and name before.
        from: (NodeId, String),
        /// Directory and name after.
        to: (NodeId, String),
        /// The renamed file or directory.
        node: NodeId,
    },
    /// Two names were exchanged.
    Exchange {
        /// Directory and name of the first, and the node that it led to.
        first: (NodeId, String, NodeId),
        /// The second name of the exchange: directory, name, node.
        second: (NodeId, String, NodeId),
    },
    /// A file was cut off, or grew by zeros.
    Truncate {
        /// The file.
        node: NodeId,
        /// Bytes that it has then.
        len: u64,
    },
    /// Bytes were written.
    Write {
        /// The file.
        node: NodeId,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A successful sync.
    Sync(SyncScope),
    /// A failed sync.
    SyncFailed(SyncScope),
    /// A message was acknowledged as durable.
    Acknowledged(u64),
}

/// The files that a sync covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncScope {
    /// fsync or fdatasync: of this file or directory.
    Node(NodeId),
    /// syncfs of the file system mounted at this directory.
    FileSystem(NodeId),
}

impl FsEvent {
    /// True if it makes something durable.
    pub fn is_sync(&self) -> bool {
        matches!(self, FsEvent::Sync(_))
    }

    /// The directory, or one of the two, in which it changes a name.
    pub(crate) fn dir(&self) -> Option<NodeId> {
        match self {
            FsEvent::Create { dir, .. } | FsEvent::Link { dir, .. } | FsEvent::Remove { dir, .. } => Some(*dir),
            FsEvent::Rename { from, .. } => Some(from.0),
            FsEvent::Exchange { first, .. } => Some(first.0),
            _ => None,
        }
    }

    pub(crate) fn changes_names_in(&self, node: NodeId) -> bool {
        match self {
            FsEvent::Create { dir, .. } | FsEvent::Link { dir, .. } | FsEvent::Remove { dir, .. } => *dir == node,
            FsEvent::Rename { from, to, .. } => from.0 == node || to.0 == node,
            FsEvent::Exchange { first, second } => first.0 == node || second.0 == node,
            _ => false,
        }
    }

    pub(crate) fn writes_to(&self) -> Option<NodeId> {
        match self {
            FsEvent::Write { node, .. } | FsEvent::Truncate { node, .. } => Some(*node),
            _ => None,
        }
    }
}

/// The moment of a power cut, and what survives it: as text `POSITION:sSEED` or `POSITION:bBITS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Position of the event that it precedes.
    pub position: usize,
    /// The outcome of changes that are not durable then.
    pub choice: Choice,
}

/// The outcome of changes that are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// This seed decides.
    Seed(u64),
    /// Item `n` of the changes that are not durable is kept if bit `n` is set, else dropped.
    Bits(u64),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.choice {
            Choice::Seed(seed) => write!(f, "{}:s{seed}", self.position),
            Choice::Bits(bits) => write!(f, "{}:b{bits}", self.position),
        }
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (position, choice) = text.split_once(':')?;
            let number = choice.get(1..)?.parse().ok()?;
            let choice = match choice.as_bytes().first()? {
                b's' => Choice::Seed(number),
                b'b' => Choice::Bits(number),
                _ => return None,
            };
            Some(Cut { position: position.parse().ok()?, choice })
        };
        parse().ok_or_else(|| format!("{text:?} is not a cut such as 17:s4 or 17:b5"))
    }
}
