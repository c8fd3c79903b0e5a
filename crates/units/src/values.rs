//! Values of a TOML file with several notations, and error messages for malformed ones.
//!
//! Functions for serde's `deserialize_with`; their errors are meant for [`plain`](crate::words::plain).

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads octets: a number, or text with a unit.
pub fn bytes<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let read = |text: &str| crate::bytes(text).map_err(|error| error.to_string());
    deserializer
        .deserialize_any(Number { expecting: "a size, such as 1048576, \"10M\" or \"1.5 GiB\"", read })
        .and_then(fits)
}

/// Reads whole seconds: a number, or text with a unit.
pub fn secs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let read = |text: &str| {
        let time = crate::duration(text).map_err(|error| error.to_string())?;
        match time.subsec_nanos() {
            0 => Ok(time.as_secs()),
            _ => Err(format!("`{text}`: whole seconds only")),
        }
    };
    deserializer.deserialize_any(Number { expecting: "a time, such as 30, \"30s\" or \"5m\"", read })
}

/// Reads a count.
pub fn count<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<T, D::Error> {
    let read = |_: &str| Err("a whole number without quotes, such as 1000".to_owned());
    deserializer.deserialize_any(Number { expecting: "a whole number, such as 1000", read }).and_then(fits)
}

fn fits<T: TryFrom<u64>, E: de::Error>(number: u64) -> Result<T, E> {
    T::try_from(number).map_err(|_| E::custom(format!("{number} is too large")))
}

/// Reads an optional key. An error describes the value that is expected, not an `Option` of it.
pub fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A number, or text that `read` parses.
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
        u64::try_from(number).map_err(|_| E::custom(format!("{number} is negative")))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        (self.read)(text).map_err(E::custom)
    }
}

/// Reads permission bits.
pub fn mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let expecting = "permission bits in octal and in quotes, such as \"0660\"";
    deserializer.deserialize_any(Text { expecting, number: |_| None }).map(Some)
}

/// Reads a user or group, by name or number.
pub fn account<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let number = |number: i64| u32::try_from(number).ok().map(|number| number.to_string());
    deserializer.deserialize_any(Text { expecting: "a name in quotes, or a number", number }).map(Some)
}

/// Reads text, or a number that `number` converts to text.
#[derive(Debug, Clone, Copy)]
pub struct Text {
    /// The expected value, as an error names it: `a name in quotes`.
    pub expecting: &'static str,
    /// Converts a number; `None` if numbers are not allowed.
    pub number: fn(i64) -> Option<String>,
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

/// Reads one text or a list of texts. `one` parses a text; `None` means that it is not what is `expected`.
pub fn one_or_list<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &'static str,
    one: impl FnOnce(&str) -> Result<Option<T>, String>,
    list: impl FnOnce(Vec<String>) -> Result<T, String>,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(OneOrList { expected, one, list })
}

struct OneOrList<O, L> {
    expected: &'static str,
    one: O,
    list: L,
}

impl<'de, T, O, L> Visitor<'de> for OneOrList<O, L>
where
    O: FnOnce(&str) -> Result<Option<T>, String>,
    L: FnOnce(Vec<String>) -> Result<T, String>,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        let one = (self.one)(text).map_err(E::custom)?;
        one.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self.expected))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<T, A::Error> {
        let texts = Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))?;
        (self.list)(texts).map_err(de::Error::custom)
    }
}

/// A part of the configuration that is a table of TOML.
pub trait Table {
    /// Name of the table.
    const NAME: &'static str;
}

/// Reads `[name]`, which may occur once.
pub fn table<'de, D: Deserializer<'de>, T: Table + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
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

/// Reads `[[name]]`, which may occur any number of times.
pub fn tables<'de, D: Deserializer<'de>, T: Table + Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
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
