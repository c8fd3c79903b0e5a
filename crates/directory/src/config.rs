//! `[[domain]]` of the configuration: its keys, and the ways to write their values.

use std::collections::BTreeMap;
use std::fmt;

use posthaste_units::values::{self, Table};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One domain that we receive mail for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// The domain as it stands behind the `@`.
    pub name: String,
    /// Who has a mailbox: a list of local parts, or `"any"`.
    #[serde(default)]
    pub users: Users,
    /// The mailbox that takes what nobody else does: a user or alias of this domain, or an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_all: Option<String>,
    /// What separates a user from a detail, as in `alice+lists`; empty for none.
    #[serde(default = "default_sub_addressing")]
    pub sub_addressing: String,
    /// Other names and lists: local part to a user of this domain, an address in one of our domains, or several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub aliases: BTreeMap<String, Targets>,
    /// Whose the mailboxes are: `user`, `user:group` or `:group`, by name or number. Not set: the server's.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub owner: Option<String>,
    /// Permission bits of mail files, in octal; directories get x where these have r. Not set: `0600`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::mode")]
    pub mode: Option<String>,
    /// Users whose mailboxes have another owner or mode than the domain's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub accounts: BTreeMap<String, Account>,
}

/// What is special to the mailbox of one user.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Account {
    /// As [`Domain::owner`]; not set: the domain's.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub owner: Option<String>,
    /// As [`Domain::mode`]; not set: the domain's.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::mode")]
    pub mode: Option<String>,
}

impl Table for Domain {
    const NAME: &str = "domain";
}

impl Domain {
    /// A domain at which anybody has a mailbox.
    pub fn open_to_any(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            users: Users::Any,
            catch_all: None,
            sub_addressing: default_sub_addressing(),
            aliases: BTreeMap::new(),
            owner: None,
            mode: None,
            accounts: BTreeMap::new(),
        }
    }
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

fn default_sub_addressing() -> String {
    "+".to_owned()
}
