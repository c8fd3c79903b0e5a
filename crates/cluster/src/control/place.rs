//! Places in the log of the control shard.

use crate::LogPosition;

/// A position in the log: the last applied record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControlPlace {
    /// Random id of the log; 0 before the first record.
    pub log: u64,
    /// Position of the record.
    pub position: LogPosition,
    /// CRC of the record, which the next record names.
    pub crc: u32,
}

impl ControlPlace {
    /// A place before the first record of a log that was cut.
    pub(super) fn before(first: LogPosition) -> Self {
        ControlPlace { position: first.before(), ..ControlPlace::default() }
    }
}

/// Shard number in its records. Mail shards have numbers below 32,768.
pub const CONTROL_SHARD: u16 = 1 << 15;
