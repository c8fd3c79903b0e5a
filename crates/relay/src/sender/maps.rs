//! `[relay.maps]` and `[[relay.recipients]]` of the configuration: pairs and lists of addresses, in the file or in
//! files of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use posthaste_message::address::{Address, is_domain};
use posthaste_message::rewrite::AddressMap;
use posthaste_units::values::one_or_list;
use posthaste_units::words::{Key, Problem};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Rewriting of addresses, and copies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MapsSection {
    /// Senders and recipients of mail that comes in.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    pub canonical: Pairs,
    /// Addresses of mail that goes to other hosts.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    pub generic: Pairs,
    /// An address that gets a copy of all mail.
    pub always_bcc: String,
    /// The address that gets a copy of mail, by sender.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    pub sender_bcc: Pairs,
    /// The address that gets a copy of mail, by recipient.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    pub recipient_bcc: Pairs,
}

/// The recipients of a domain in `relay.domains`; others are refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipientsSection {
    /// The domain. Default: (required).
    pub domain: String,
    /// Local parts, `["ann", "joe"]`, or the name of a file with one a line. Case does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users: Option<LocalParts>,
    /// Instead of `users`, the next hop is asked at RCPT whether a recipient exists
    /// ([relay.md](relay.md#recipients-of-other-domains)). Default: `false`.
    #[serde(default)]
    pub call_ahead: bool,
}

/// Pairs of addresses: a table, or the name of a file with one pair a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs {
    file: Option<PathBuf>,
    pairs: BTreeMap<String, String>,
}

/// Local parts: a list, or the name of a file with one a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalParts {
    file: Option<PathBuf>,
    names: BTreeSet<String>,
}

impl Pairs {
    /// True if there is neither a pair nor a file of pairs.
    pub fn is_empty(&self) -> bool {
        self.file.is_none() && self.pairs.is_empty()
    }

    /// The pairs as a map for lookups.
    pub fn map(&self) -> AddressMap {
        AddressMap::new(self.pairs.clone())
    }

    fn mistake(&self, is_to_domain: bool) -> Option<String> {
        let is_side = |text: &str, is_domain_fine: bool| match text.strip_prefix('@') {
            Some(domain) => is_domain_fine && is_domain(domain) && domain.is_ascii(),
            None => is_address(text),
        };
        let wrong = self.pairs.iter().find(|(from, to)| !is_side(from, true) || !is_side(to, is_to_domain))?;
        let sides = if is_to_domain { "both sides are" } else { "the left side is" };
        Some(format!("`{} {}`: {sides} an address, or `@` and a domain, in ASCII", wrong.0, wrong.1))
    }
}

impl LocalParts {
    /// True if a local part is in the list, whatever the case of letters.
    pub fn has(&self, local_part: &str) -> bool {
        self.names.contains(&local_part.to_lowercase())
    }
}

impl MapsSection {
    pub(super) fn check(&self, at: &[Key]) -> Result<(), Problem> {
        let maps = [
            ("canonical", &self.canonical, true),
            ("generic", &self.generic, true),
            ("sender_bcc", &self.sender_bcc, false),
            ("recipient_bcc", &self.recipient_bcc, false),
        ];
        let at = |key: &str| [at, &[key.into()]].concat();
        for (key, pairs, is_to_domain) in maps {
            if let Some(mistake) = pairs.mistake(is_to_domain) {
                return Err(Problem::new(at(key), mistake));
            }
        }
        if self.always_bcc.is_empty() || is_address(&self.always_bcc) {
            Ok(())
        } else {
            Err(Problem::new(at("always_bcc"), "not an address in ASCII"))
        }
    }
}

/// Validates lists of recipients.
pub(super) fn check_recipients(lists: &[RecipientsSection], domains: &[String], at: &[Key]) -> Result<(), Problem> {
    for (index, list) in lists.iter().enumerate() {
        let at = || [at, &[index.into(), "domain".into()]].concat();
        let is_it = |domain: &&str| domain.eq_ignore_ascii_case(&list.domain);
        if !domains.iter().map(String::as_str).any(|domain| is_it(&domain)) {
            return Err(Problem::new(at(), format!("`{}` is not in relay.domains", list.domain)));
        }
        if lists[..index].iter().map(|other| other.domain.as_str()).any(|domain| is_it(&domain)) {
            return Err(Problem::new(at(), format!("`{}` already has a list", list.domain)));
        }
        if list.users.is_some() == list.call_ahead {
            return Err(Problem::new(at(), "needs either `users` or `call_ahead = true`"));
        }
    }
    Ok(())
}

fn is_address(text: &str) -> bool {
    text.is_ascii() && Address::parse(text).is_ok()
}

/// The lines of a file that are neither empty nor begin with `#`.
fn lines_of(file: &str) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.file {
            Some(file) => file.serialize(serializer),
            None => self.pairs.serialize(serializer),
        }
    }
}

impl Serialize for LocalParts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.file {
            Some(file) => file.serialize(serializer),
            None => self.names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("pairs such as { \"ann@a.example\" = \"boss@b.example\" }, or the name of a file")
            }

            fn visit_str<E: de::Error>(self, file: &str) -> Result<Pairs, E> {
                let pair = |line: String| match line.split_whitespace().collect::<Vec<_>>()[..] {
                    [from, to] => Ok((from.to_owned(), to.to_owned())),
                    _ => Err(E::custom(format!("{file}: `{line}` is not a pair"))),
                };
                let pairs = lines_of(file).map_err(E::custom)?.into_iter().map(pair).collect::<Result<_, E>>()?;
                Ok(Pairs { file: Some(file.into()), pairs })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some((from, to)) = map.next_entry()? {
                    pairs.insert(from, to);
                }
                Ok(Pairs { file: None, pairs })
            }
        }
        deserializer.deserialize_any(PairsVisitor)
    }
}

impl<'de> Deserialize<'de> for LocalParts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let lower = |names: Vec<String>| names.iter().map(|name| name.to_lowercase()).collect();
        one_or_list(
            deserializer,
            "a list of local parts, or the name of a file with one a line",
            |file| Ok(Some(LocalParts { file: Some(file.into()), names: lower(lines_of(file)?) })),
            |names| Ok(LocalParts { file: None, names: lower(names) }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_stand_in_the_configuration_or_in_a_file() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("pairs");
        std::fs::write(&file, "# old names\nann@a.example\tboss@b.example\n\n @a.example   @b.example\n").unwrap();
        let from_file: MapsSection = toml::from_str(&format!("generic = '{}'", file.display())).unwrap();
        let text = "generic = { 'ann@a.example' = 'boss@b.example', '@a.example' = '@b.example' }";
        let written: MapsSection = toml::from_str(text).unwrap();
        assert_eq!(from_file.generic.map(), written.generic.map());
        assert_eq!(from_file.generic.map().text("joe@a.example").as_deref(), Some("joe@b.example"));
        for section in [from_file, written] {
            section.check(&[]).unwrap();
            assert_eq!(toml::from_str::<MapsSection>(&toml::to_string(&section).unwrap()).unwrap(), section);
        }
        std::fs::write(&file, "three words here\n").unwrap();
        for text in [format!("generic = '{}'", file.display()), "generic = '/nonexistent'".into(), "generic = 1".into()]
        {
            assert!(toml::from_str::<MapsSection>(&text).is_err(), "{text}");
        }
        for text in [
            "canonical = { 'a' = 'b@b.example' }",
            "canonical = { 'a@a.example' = 'b' }",
            "sender_bcc = { 'a@a.example' = '@b.example' }",
            "always_bcc = '@b.example'",
            "generic = { 'a@a.example' = '\u{e9}@b.example' }",
        ] {
            assert!(toml::from_str::<MapsSection>(text).unwrap().check(&[]).is_err(), "{text}");
        }
    }

    #[test]
    fn recipients_are_of_domains_that_are_relayed() {
        let read = |text: &str| toml::from_str::<RecipientsSection>(text).unwrap();
        let list = read("domain = 'A.example'\nusers = ['Ann', 'joe']");
        let users = list.users.as_ref().unwrap();
        assert!(users.has("ann") && users.has("JOE") && !users.has("eve"));
        let domains = ["a.example".to_owned()];
        assert!(check_recipients(std::slice::from_ref(&list), &domains, &[]).is_ok());
        assert!(check_recipients(&[list.clone(), list], &domains, &[]).is_err());
        assert!(check_recipients(&[read("domain = 'b.example'\nusers = []")], &domains, &[]).is_err());
        for (text, is_fine) in [
            ("domain = 'a.example'\ncall_ahead = true", true),
            ("domain = 'a.example'\nusers = []", true),
            ("domain = 'a.example'", false),
            ("domain = 'a.example'\ncall_ahead = false", false),
            ("domain = 'a.example'\nusers = []\ncall_ahead = true", false),
        ] {
            let list = read(text);
            assert_eq!(check_recipients(std::slice::from_ref(&list), &domains, &[]).is_ok(), is_fine, "{text}");
            assert_eq!(read(&toml::to_string(&list).unwrap()), list);
        }
    }
}
