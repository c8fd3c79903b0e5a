//! Values that can be written in several ways, and what is said of those that cannot be read.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Octets: a number, or text with a unit.
pub(super) fn bytes<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let read = |text: &str| posthaste_units::bytes(text).map_err(|error| error.to_string());
    deserializer
        .deserialize_any(Number { expecting: "a size, such as 1048576, \"10M\" or \"1.5 GiB\"", read })
        .and_then(fits)
}

/// Whole seconds: a number, or text with a unit.
pub(super) fn secs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let read = |text: &str| {
        let time = posthaste_units::duration(text).map_err(|error| error.to_string())?;
        match time.subsec_nanos() {
            0 => Ok(time.as_secs()),
            _ => Err(format!("`{text}`: whole seconds only")),
        }
    };
    deserializer.deserialize_any(Number { expecting: "a time, such as 30, \"30s\" or \"5m\"", read })
}

/// How many of something.
pub(super) fn count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let read = |_: &str| Err("a whole number without quotes, such as 1000".to_owned());
    deserializer.deserialize_any(Number { expecting: "a whole number, such as 1000", read }).and_then(fits)
}

fn fits<T: TryFrom<u64>, E: de::Error>(number: u64) -> Result<T, E> {
    T::try_from(number).map_err(|_| E::custom(format!("{number} is too large")))
}

/// As [`bytes`], of a key that need not be set.
pub(super) fn some_bytes<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    bytes(deserializer).map(Some)
}

/// As [`secs`], of a key that need not be set.
pub(super) fn some_secs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    secs(deserializer).map(Some)
}

/// As [`count`], of a key that need not be set.
pub(super) fn some_count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    count(deserializer).map(Some)
}

/// Of a key that need not be set. What is expected is said of the value, and not of an option of it.
pub(super) fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A number that may be given as text, which `read` reads.
struct Number<R> {
    expecting: &'static str,
    read: R,
}

impl<R: Fn(&str) -> Result<u64, String>> Visitor<'_> for Number<R> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        u64::try_from(number).map_err(|_| E::custom(format!("{number} is less than nothing")))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        (self.read)(text).map_err(E::custom)
    }
}

/// A share of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolShare {
    /// Of what there is, 1 to 100.
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
            u64::try_from(number)
                .map(SpoolShare::Bytes)
                .map_err(|_| E::custom(format!("{number} is less than nothing")))
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

/// Where a client connects.
pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let expecting = "an address and port in quotes, such as \"0.0.0.0:25\"";
    deserializer.deserialize_any(Text { expecting, number: |_| None }).map(Some)
}

/// Permission bits.
pub(super) fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let expecting = "permission bits in octal and in quotes, such as \"0660\"";
    deserializer.deserialize_any(Text { expecting, number: |_| None }).map(Some)
}

/// A user or group, by name or number.
pub(super) fn account<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let number = |number: i64| u32::try_from(number).ok().map(|number| number.to_string());
    deserializer.deserialize_any(Text { expecting: "a name in quotes, or a number", number }).map(Some)
}

/// Text, or a number that `number` makes text of.
struct Text {
    expecting: &'static str,
    number: fn(i64) -> Option<String>,
}

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        (self.number)(number).ok_or_else(|| E::invalid_type(de::Unexpected::Signed(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// A part of the configuration that is a table of TOML.
pub(super) trait Table {
    /// Its name.
    const NAME: &'static str;
}

/// `[name]`, once.
pub(super) fn table<'de, D: Deserializer<'de>, T: Table + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct TableVisitor<T>(PhantomData<T>);
    impl<'de, T: Table + Deserialize<'de>> Visitor<'de> for TableVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a table: `[{}]` on a line of its own", T::NAME)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(de::value::MapAccessDeserializer::new(map))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<T, A::Error> {
            Err(de::Error::custom(format!("there is one `[{0}]` only: write it with one pair of brackets", T::NAME)))
        }
    }
    deserializer.deserialize_any(TableVisitor(PhantomData))
}

/// `[[name]]`, any number of times.
pub(super) fn tables<'de, D: Deserializer<'de>, T: Table + Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct TablesVisitor<T>(PhantomData<T>);
    impl<'de, T: Table + Deserialize<'de>> Visitor<'de> for TablesVisitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "tables: `[[{}]]` on a line of its own before each", T::NAME)
        }

        fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Vec<T>, A::Error> {
            let message = format!("there can be several: write `[[{}]]`, with two pairs of brackets", T::NAME);
            Err(de::Error::custom(message))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vec<T>, A::Error> {
            Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))
        }
    }
    deserializer.deserialize_any(TablesVisitor(PhantomData))
}

/// Who has a mailbox in a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Users {
    /// Everybody: a mailbox comes into being with its first message.
    Any,
    /// These local parts.
    Listed(Vec<String>),
}

impl Default for Users {
    /// A domain that lists nobody has aliases only.
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

/// Where an alias leads: one or several of a user, an alias, an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Targets(pub Vec<String>);

impl Serialize for Users {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Any => serializer.serialize_str("any"),
            Self::Listed(users) => users.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Users {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UsersVisitor;
        impl<'de> Visitor<'de> for UsersVisitor {
            type Value = Users;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of local parts, or \"any\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Users, E> {
                match text {
                    "any" => Ok(Users::Any),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Users, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Users::Listed)
            }
        }
        deserializer.deserialize_any(UsersVisitor)
    }
}

impl Serialize for Targets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => serializer.serialize_str(one),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TargetsVisitor;
        impl<'de> Visitor<'de> for TargetsVisitor {
            type Value = Targets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a user or an address, or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Targets, E> {
                Ok(Targets(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Targets, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Targets)
            }
        }
        deserializer.deserialize_any(TargetsVisitor)
    }
}
