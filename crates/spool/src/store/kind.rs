//! The kinds of stores.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The directory of the ring.
pub(crate) const RING: &str = "ring";
/// Name of an LSM kind's database in the directory of its records.
pub(super) const DATABASE: &str = "database";

/// The storage engine of a spool. All keep the same promise, and a spool never changes its kind. The numbers are stored
/// in checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum StoreKind {
    /// A log of large recycled files, one sync for all waiting messages.
    #[default]
    Ring = 1,
    /// One file for each message.
    Files = 2,
    /// An LSM tree, if the feature `fjall` was built.
    Fjall = 3,
    /// RocksDB, if the feature `rocksdb` was built.
    Rocksdb = 4,
}

impl StoreKind {
    pub(super) const ALL: [StoreKind; 4] = [StoreKind::Ring, StoreKind::Files, StoreKind::Fjall, StoreKind::Rocksdb];

    /// Encodes a kind as a byte of a checkpoint; 0 for none.
    pub(crate) fn encode(kind: Option<Self>) -> u8 {
        kind.map_or(0, |kind| kind as u8)
    }

    /// Decodes a byte of a checkpoint. `None` for an unknown byte.
    pub(crate) fn decode(byte: u8) -> Option<Option<Self>> {
        match byte {
            0 => Some(None),
            byte => Self::ALL.into_iter().find(|kind| *kind as u8 == byte).map(Some),
        }
    }

    /// The directory in the spool that only this kind has.
    pub(crate) fn dir(self) -> &'static str {
        match self {
            StoreKind::Ring => RING,
            StoreKind::Files => "files",
            StoreKind::Fjall => "fjall",
            StoreKind::Rocksdb => "rocksdb",
        }
    }

    /// True if this program was built with it.
    pub fn is_built(self) -> bool {
        match self {
            StoreKind::Ring | StoreKind::Files => true,
            StoreKind::Fjall => cfg!(feature = "fjall"),
            StoreKind::Rocksdb => cfg!(feature = "rocksdb"),
        }
    }
}

impl FromStr for StoreKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.to_string() == name);
        known.ok_or_else(|| {
            format!(
                "there is no kind {name:?} of spools; there are {}",
                Self::ALL.map(|kind| kind.to_string()).join(", ")
            )
        })
    }
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dir())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_bytes_that_are_on_disk() {
        let on_disk = [
            (None, 0),
            (Some(StoreKind::Ring), 1),
            (Some(StoreKind::Files), 2),
            (Some(StoreKind::Fjall), 3),
            (Some(StoreKind::Rocksdb), 4),
        ];
        for (kind, byte) in on_disk {
            assert_eq!((StoreKind::encode(kind), StoreKind::decode(byte)), (byte, Some(kind)));
        }
        assert!((5..=255).all(|byte| StoreKind::decode(byte).is_none()));
    }
}
