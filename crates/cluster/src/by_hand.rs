//! Opens a shard by an operator's order, where no member in sync can take it: they are lost, or their copies were set
//! aside.
//!
//! The order names the one member in sync in the shard's cell. That member then takes the shard as any other does: it
//! applies the rest of the log, and stops if the log ends below what a node has reported.

use std::fmt;
use std::time::Duration;

use crate::cell::{CellKey, MemberReport, NodeCell, NodeName, ShardCell};
use crate::{Cells, LogError, LogPosition, ShardLog};

/// A shard that nobody takes, and what a member can make of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOpening {
    /// Revision of the shard's cell, unchanged for [`UNCHANGED`].
    pub revision: u64,
    /// Risks of lost or repeated mail if this member opens the shard. Empty without a risk.
    pub risks: Vec<OpeningRisk>,
    cell: ShardCell,
    shard: u16,
    node: NodeName,
    spool: u64,
}

/// A consequence of opening a shard by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpeningRisk {
    /// The log has no record.
    Empty,
    /// The copy is not the one that was in sync.
    NewCopy(NodeName),
    /// The queue of the member differed from the owner's.
    Differs(NodeName),
    /// A member in sync that does not answer and may have more mail.
    Away(NodeName),
}

impl fmt::Display for OpeningRisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                f.write_str("the log is empty: the shard begins anew, without the mail of copies that were set aside")
            }
            Self::NewCopy(node) => {
                write!(f, "the copy of {node} was made anew: it has what the log has, and nothing else")
            }
            Self::Differs(node) => {
                write!(f, "the queue of {node} differed from the owner's: mail may be missing in it, or be sent twice")
            }
            Self::Away(node) => {
                write!(
                    f,
                    "{node} is in sync and takes nothing over: mail that it alone has is lost, unless it is started instead"
                )
            }
        }
    }
}

/// Why a shard is not opened by hand. Nothing was changed, unless it says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandOpeningError {
    /// The shard is new, or the engine has lost its cells.
    #[error("shard {0} has never had an owner: its home opens it by itself")]
    New(u16),
    /// A node acts for the shard, or is taking it now.
    #[error("shard {shard} has an owner or gets one now: its cell was written within the last {} s", UNCHANGED.as_secs())]
    Written {
        /// Number of the shard.
        shard: u16,
    },
    /// The member applies nothing.
    #[error("{0} reports no copy of the shard: its member has stopped; see `posthaste cluster status` there")]
    NoCopy(NodeName),
    /// The log has lost records that a copy has.
    #[error(
        "{node} has applied position {applied}, and the log ends at position {end}: save the mail of that copy, and set it aside with \
         `posthaste cluster reseed`, or take a lost node off the list with `posthaste cluster remove`"
    )]
    Short {
        /// The node that has more.
        node: NodeName,
        /// The last position that it has applied.
        applied: LogPosition,
        /// The last position of the log.
        end: LogPosition,
    },
    /// The engine did not answer. The order may still have been stored: check the status.
    #[error(transparent)]
    Engine(#[from] LogError),
}

/// Examines a shard that a member is to open: for [`UNCHANGED`], in which nobody may write the shard's cell. `nodes`:
/// all of its members. `pause` waits.
///
/// # Errors
/// See [`HandOpeningError`].
pub fn look_at_opening(
    (cells, log): (&dyn Cells, &dyn ShardLog),
    shard: u16,
    node: &NodeName,
    nodes: &[NodeName],
    pause: &dyn Fn(Duration),
) -> Result<HandOpening, HandOpeningError> {
    let key = CellKey::Shard(shard).to_string();
    let revision = cells.get(&key)?.1;
    if revision == 0 {
        return Err(HandOpeningError::New(shard));
    }
    pause(UNCHANGED);
    let (value, later) = cells.get(&key)?;
    let Some(cell) = ShardCell::decode(&value).filter(|_| later == revision) else {
        return Err(HandOpeningError::Written { shard });
    };
    let end = log.end()?;
    let mut own = None;
    for name in nodes {
        let reports = NodeCell::decode(&cells.get(&name.key())?.0).unwrap_or_default().reports;
        let Some(report) = reports.get(&shard).copied() else { continue };
        if report.applied > end {
            return Err(HandOpeningError::Short { node: name.clone(), applied: report.applied, end });
        }
        if name == node {
            own = Some(report);
        }
    }
    let own: MemberReport = own.ok_or_else(|| HandOpeningError::NoCopy(node.clone()))?;
    let mut risks = Vec::new();
    if end == LogPosition::START {
        risks.push(OpeningRisk::Empty);
    } else if cell.in_sync.get(node).is_some_and(|spool| *spool != own.spool) {
        risks.push(OpeningRisk::NewCopy(node.clone()));
    }
    if cell.seeding.get(node) == Some(&own.spool) {
        risks.push(OpeningRisk::Differs(node.clone()));
    }
    risks.extend(cell.in_sync.keys().filter(|name| *name != node).cloned().map(OpeningRisk::Away));
    Ok(HandOpening { revision, risks, cell, shard, node: node.clone(), spool: own.spool })
}

impl HandOpening {
    /// Lets the member take the shard at once. `nonce`: random.
    ///
    /// # Errors
    /// [`HandOpeningError::Written`], [`HandOpeningError::Engine`].
    pub fn order(self, cells: &dyn Cells, nonce: u64) -> Result<(), HandOpeningError> {
        let HandOpening { revision, mut cell, shard, node, spool, .. } = self;
        cell.seeding.remove(&node);
        let cell = ShardCell { nonce, owner: None, next: Some(node.clone()), in_sync: [(node, spool)].into(), ..cell };
        match cells.swap(&CellKey::Shard(shard).to_string(), revision, cell.encode()) {
            Ok(_) => Ok(()),
            Err(LogError::Conflict) => Err(HandOpeningError::Written { shard }),
            Err(error) => Err(error.into()),
        }
    }
}

/// An owner writes its shard's cell every 2 s, and a standby takes a silent owner's shard after 20 answered writes. In
/// so long, one of them has written.
pub const UNCHANGED: Duration = Duration::from_secs(30);
