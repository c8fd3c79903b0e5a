//! The numbers of batches.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Log sequence number: the permanent id of a batch. Increases with each batch of a spool, with gaps, and is never
/// reused.
///
/// In JSON it is a string: it may exceed the exact integers of JavaScript and others (2^53).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// Less than the LSN of every batch.
    pub const ZERO: Lsn = Lsn(0);

    /// The sequence number `number`.
    pub const fn new(number: u64) -> Self {
        Lsn(number)
    }

    /// The LSN of batch `number` in a shard of a cluster. The shard is in the bits above the number.
    ///
    /// # Panics
    /// If the number does not fit into 48 bits.
    pub const fn of_shard(shard: u16, number: u64) -> Self {
        assert!(number >> SHARD_SHIFT == 0, "a shard gives fewer than 2^48 numbers");
        Lsn((shard as u64) << SHARD_SHIFT | number)
    }

    /// The number, with the shard's bits.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The shard of a cluster that assigned the LSN; 0 for a spool that is not a shard.
    pub const fn shard(self) -> u16 {
        (self.0 >> SHARD_SHIFT) as u16
    }

    /// The number within its shard.
    pub const fn number(self) -> u64 {
        self.0 & ((1 << SHARD_SHIFT) - 1)
    }
}

/// Bits of the number within a shard: at a million batches a second they last for nine years.
const SHARD_SHIFT: u32 = 48;

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Lsn {
    type Err = ParseIntError;

    fn from_str(digits: &str) -> Result<Self, ParseIntError> {
        digits.parse().map(Lsn)
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;

        impl Visitor<'_> for Digits {
            type Value = Lsn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number as a string")
            }

            fn visit_str<E: Error>(self, digits: &str) -> Result<Lsn, E> {
                digits.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Digits)
    }
}

/// A batch is one record of the ring, with the same number.
impl From<posthaste_ring::Lsn> for Lsn {
    fn from(lsn: posthaste_ring::Lsn) -> Self {
        Lsn(lsn.get())
    }
}

impl From<Lsn> for posthaste_ring::Lsn {
    fn from(lsn: Lsn) -> Self {
        posthaste_ring::Lsn::new(lsn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_a_shard_reads_back() {
        let last = (1 << 48) - 1;
        for (shard, number) in [(0, 0), (0, last), (1, 0), (32_767, last), (5, 77)] {
            let lsn = Lsn::of_shard(shard, number);
            assert_eq!((lsn.shard(), lsn.number()), (shard, number));
        }
        assert!(Lsn::of_shard(1, 0) > Lsn::of_shard(0, last), "shards follow one another");
    }

    #[test]
    #[should_panic = "fewer than 2^48"]
    fn a_number_does_not_run_into_the_shard() {
        Lsn::of_shard(0, 1 << 48);
    }
}
