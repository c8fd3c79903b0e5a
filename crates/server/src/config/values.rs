//! Values that can be written in two ways.

use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

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
