//! Values of the server's own sections that can be written in several ways. Those of any section are in `posthaste_units::values`.

use std::fmt;

use posthaste_units::Rate;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) use posthaste_units::values::*;

/// A share of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolShare {
    /// A percentage of the total, 1 to 100.
    Percent(u8),
    /// Octets.
    Bytes(u64),
}

impl Serialize for SpoolShare {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Percent(percent) => serializer.serialize_str(&format!("{percent}%")),
            Self::Bytes(bytes) => serializer.serialize_u64(*bytes),
        }
    }
}

/// A share: octets, text with a unit, or percent.
pub(super) fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SpoolShare, D::Error> {
    struct ShareVisitor;
    impl Visitor<'_> for ShareVisitor {
        type Value = SpoolShare;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a share or a size, such as \"25%\" or \"2G\"")
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<SpoolShare, E> {
            u64::try_from(number).map(SpoolShare::Bytes).map_err(|_| E::custom(format!("{number} is negative")))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<SpoolShare, E> {
            let Some(percent) = text.strip_suffix('%') else {
                return posthaste_units::bytes(text).map(SpoolShare::Bytes).map_err(E::custom);
            };
            let percent = percent.trim_end().parse().ok().filter(|percent| (1..=100).contains(percent));
            percent.map(SpoolShare::Percent).ok_or_else(|| E::custom(format!("`{text}`: 1% to 100%")))
        }
    }
    deserializer.deserialize_any(ShareVisitor)
}

/// Rates that all apply; empty: unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Rates(pub Vec<Rate>);

/// One text or a list of texts. Without a burst, all of a rate may be used at once.
impl<'de> Deserialize<'de> for Rates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rate = |text: &str| Rate::parse_with_full_burst(text).map_err(|error| error.to_string());
        one_or_list(
            deserializer,
            "a rate such as \"200/hour\", or a list of rates",
            |text| Ok(Some(Rates(vec![rate(text)?]))),
            |texts| texts.iter().map(|text| rate(text)).collect::<Result<_, _>>().map(Rates),
        )
    }
}
