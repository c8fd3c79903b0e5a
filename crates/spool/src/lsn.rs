//! The numbers of batches.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Log sequence number: the permanent name of a batch. Grows from batch to batch of a spool, with gaps, and is never reused.
///
/// In JSON it is a string: it may be larger than the integers that JavaScript and others tell apart (2^53).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// Below every batch.
    pub const ZERO: Lsn = Lsn(0);

    /// The sequence number `number`.
    pub const fn new(number: u64) -> Self {
        Lsn(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

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

/// A batch is one record of the ring.
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
