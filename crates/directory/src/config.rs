//! `[[domain]]` of the configuration: its keys and the forms of their values.

use std::collections::BTreeMap;
use std::fmt;

use posthaste_units::values::{self, Table};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::account_quota::AccountQuota;
use crate::domain_folders::DomainFolders;
use crate::names::{directory_name, folded_domain};
use crate::transport::Transport;

/// One domain that we receive mail for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// The domain, in letters (`bücher.example`) or as in DNS (`xn--bcher-kva.example`): either form covers both. Default: (required).
    pub name: String,
    /// Other domains that mean this one. Default: `[]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domain_aliases: Vec<String>,
    /// Local parts that have a mailbox, or `"any"`: the first message creates the mailbox. Default: `[]`.
    #[serde(default)]
    pub users: Users,
    /// Where mail for unknown recipients goes; the same values as for an alias. Not with `users = "any"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub catch_all: Option<Targets>,
    /// The character between user and detail (`alice+lists@…` goes to `alice`); empty for none. Default: `"+"`.
    #[serde(default = "default_sub_addressing")]
    pub sub_addressing: String,
    /// True: mail with a detail goes into the folder of that name, if the user has one ([addresses.md](addresses.md#folders)). Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detail_folders: bool,
    /// Other names: each is a user or alias of this domain, an address in any domain, a list of them, a program, file or LMTP server, `{ discard = true
    /// }` or `{ refuse = "TEXT" }`. Default: `{}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub aliases: BTreeMap<String, Targets>,
    /// Aliases by regular expression: `match` and `to`.
    #[serde(default, rename = "pattern", skip_serializing_if = "Vec::is_empty", deserialize_with = "values::tables")]
    pub patterns: Vec<AddressPattern>,
    /// Where mail for the users goes instead of Maildirs: a program, a file or an LMTP server ([transports.md](transports.md)).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub transport: Option<String>,
    /// Owner of the mailboxes: `"vmail"`, `"vmail:mail"` or `":mail"`, by name or number. A user alone means also that user's group in `/etc/passwd`.
    /// Default: the server's.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub owner: Option<String>,
    /// Permission bits of mail files, in octal, at least 0600 and without x. Directories also get x wherever files have r: `"0640"` gives directories
    /// 0750. Default: `"0600"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "values::mode")]
    pub mode: Option<String>,
    /// How much mail each account of the domain may have, in place of `[quota]`: `{ bytes = "5 GiB", messages = 100000 }`
    /// ([imap-pop3.md](imap-pop3.md#quotas)). Default: that of all accounts.
    #[serde(default, skip_serializing_if = "AccountQuota::is_unset")]
    pub quota: AccountQuota,
    /// Names of the folders that the first login of an account makes, in place of those of `[mailstore]`: `{ sent = "Gesendet" }`. Default: those of
    /// all accounts.
    #[serde(default, skip_serializing_if = "DomainFolders::is_unset")]
    pub folders: DomainFolders,
    /// What is special to users: `[domain.accounts.alice]` with `owner`, `mode`, `transport`, or `forward` (addresses that get the user's mail instead;
    /// with `keep_copy = true` the mailbox gets it too). Default: `{}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub accounts: BTreeMap<String, Account>,
}

/// Settings for the mailbox of one user.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Account {
    /// As [`Domain::owner`]; not set: the domain's.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::account")]
    pub owner: Option<String>,
    /// As [`Domain::mode`]; not set: the domain's.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::mode")]
    pub mode: Option<String>,
    /// As [`Domain::transport`]; not set: the domain's.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::some")]
    pub transport: Option<String>,
    /// Where mail for the user goes instead, as of an alias.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<String>,
    /// With `forward`: whether the mailbox gets it too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_copy: bool,
}

impl Table for Domain {
    const NAME: &str = "domain";
}

impl Domain {
    /// A domain without users.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            domain_aliases: Vec::new(),
            users: Users::default(),
            catch_all: None,
            sub_addressing: default_sub_addressing(),
            detail_folders: false,
            aliases: BTreeMap::new(),
            patterns: Vec::new(),
            transport: None,
            owner: None,
            mode: None,
            quota: AccountQuota::default(),
            folders: DomainFolders::default(),
            accounts: BTreeMap::new(),
        }
    }

    /// A domain where everybody has a mailbox.
    pub fn open_to_any(name: &str) -> Self {
        Self { users: Users::Any, ..Self::named(name) }
    }

    /// Its name and its other names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.domain_aliases).map(String::as_str)
    }

    /// Name of the directory of its mailboxes. `None`: not a domain.
    pub fn directory_name(&self) -> Option<String> {
        folded_domain(&self.name).and_then(|name| directory_name(&name).ok())
    }

    /// Every transport of mail, duplicates included. [`Directory::new`](crate::Directory::new) checks them.
    pub fn transports(&self) -> impl Iterator<Item = Transport> {
        let of_users =
            self.transport.iter().chain(self.accounts.values().filter_map(|account| account.transport.as_ref()));
        let of_aliases = self.aliases.values().chain(&self.catch_all).flat_map(|targets| match targets {
            Targets::To(targets) => targets.as_slice(),
            Targets::Discard | Targets::Refuse(_) => &[],
        });
        of_users.chain(of_aliases).filter_map(|text| Transport::parse(text)?.ok())
    }

    /// The keys that a table of the configuration may have.
    pub const KEYS: [&str; 14] = [
        "name",
        "domain_aliases",
        "users",
        "catch_all",
        "sub_addressing",
        "detail_folders",
        "aliases",
        "pattern",
        "transport",
        "owner",
        "mode",
        "quota",
        "folders",
        "accounts",
    ];
}

/// An alias for all local parts that a regular expression matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressPattern {
    /// The regular expression, in the syntax of the crate `regex`. It has to match all of a local part, in any case.
    #[serde(rename = "match")]
    pub expression: String,
    /// As of an alias; `$1` or `${name}` stands for what a group matched, `$$` for a dollar.
    pub to: Targets,
}

impl Table for AddressPattern {
    const NAME: &str = "domain.pattern";
}

/// Users with a mailbox in a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Users {
    /// Everybody: a mailbox comes into being with its first message.
    Any,
    /// Local parts of a list.
    Listed(Vec<String>),
}

impl Default for Users {
    /// A domain without users: it has only aliases.
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

/// Target of an alias.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Targets {
    /// To one or several of: a user or alias of this domain, an address in one of our domains, a [transport](crate::Transport::parse).
    To(Vec<String>),
    /// Nowhere: the mail is accepted and discarded. `{ discard = true }`
    Discard,
    /// The mail is refused with this reply: a text, or a code, an enhanced code and a text. `{ refuse = "550 5.1.1 No longer here" }`
    Refuse(String),
}

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
        values::one_or_list(
            deserializer,
            "a list of local parts, or \"any\"",
            |text| Ok((text == "any").then_some(Users::Any)),
            |users| Ok(Users::Listed(users)),
        )
    }
}

impl Serialize for Targets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::To(targets) => match targets.as_slice() {
                [one] => serializer.serialize_str(one),
                several => several.serialize(serializer),
            },
            Self::Discard => serializer.collect_map([("discard", true)]),
            Self::Refuse(reply) => serializer.collect_map([("refuse", reply)]),
        }
    }
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TargetsVisitor;
        impl<'de> Visitor<'de> for TargetsVisitor {
            type Value = Targets;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a user or an address, a list of them, { discard = true } or { refuse = \"TEXT\" }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Targets, E> {
                Ok(Targets::To(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Targets, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Targets::To)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Targets, A::Error> {
                let key: Option<String> = map.next_key()?;
                let targets = match key.as_deref() {
                    Some("discard") => {
                        if map.next_value()? {
                            Targets::Discard
                        } else {
                            return Err(de::Error::custom("leave it out to have the mail delivered"));
                        }
                    }
                    Some("refuse") => Targets::Refuse(map.next_value()?),
                    _ => return Err(de::Error::custom(NOT_TARGETS)),
                };
                match map.next_key::<String>()? {
                    None => Ok(targets),
                    Some(_) => Err(de::Error::custom(NOT_TARGETS)),
                }
            }
        }
        deserializer.deserialize_any(TargetsVisitor)
    }
}

/// Error for an unknown table of targets.
const NOT_TARGETS: &str = "an alias leads to an address or a list of them, or is { discard = true } or { refuse = \"TEXT\" }; \
                           a name with a dot stands in quotes";

fn default_sub_addressing() -> String {
    "+".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Domain, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn every_key_reads_back_as_it_is_shown() {
        let text = "name = \"a.example\"\ndomain_aliases = [\"b.example\"]\nusers = [\"ann\"]\ncatch_all = \"ann\"\n\
                    transport = \"lmtp:unix:/run/lmtp\"\nowner = \"vmail\"\nmode = \"0640\"\ndetail_folders = true\n[aliases]\nnoreply.discard = true\nbob.refuse = \"gone\"\n\
                    one = \"ann\"\ntwo = [\"ann\", \"b\"]\n[[pattern]]\nmatch = \"a(.)\"\nto = \"$1\"\n\
                    [[pattern]]\nmatch = \"b.\"\nto.discard = true\n[accounts.ann]\nmode = \"0600\"\n\
                    [quota]\nbytes = \"1 GiB\"\nmessages = 0\n[folders]\nsent = \"Gesendet\"\n";
        let domain = read(text).unwrap();
        assert_eq!(domain.aliases["noreply"], Targets::Discard);
        assert_eq!(domain.aliases["bob"], Targets::Refuse("gone".to_owned()));
        let shown = toml::to_string_pretty(&domain).unwrap();
        assert_eq!(read(&shown).unwrap(), domain, "{shown}");
        let table: toml::Table = toml::from_str(&shown).unwrap();
        assert_eq!(table.len(), Domain::KEYS.len());
        assert!(Domain::KEYS.iter().all(|key| table.contains_key(*key)), "{shown}");
    }

    #[test]
    fn what_leads_nowhere_says_so() {
        for (targets, expected) in [
            ("{ discard = false }", "leave it out to have the mail delivered"),
            ("{ reject = \"x\" }", "an alias leads to an address"),
            ("{ discard = true, refuse = \"x\" }", "an alias leads to an address"),
            ("{}", "an alias leads to an address"),
            ("5", "expected a user or an address, a list of them"),
        ] {
            let said = read(&format!("name = \"a.example\"\naliases = {{ x = {targets} }}\n")).unwrap_err();
            assert!(said.contains(expected), "{targets}: {said}");
        }
    }
}
