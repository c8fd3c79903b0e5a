//! Tags of messages in memory, and the ids that messages are tagged under.

use std::collections::{BTreeMap, BTreeSet};

/// Separates the tags of one message; no tag contains it.
const SEPARATOR: char = '\n';
/// Digest stored with restored tags of a message that has not arrived so far.
pub(super) const ANY_CONTENT: u128 = 0;

/// A message's tags.
pub type Tags = BTreeSet<String>;

/// The whole store in memory, or a part of it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct AllTags {
    by_id: BTreeMap<String, BTreeMap<u128, Tags>>,
}

impl AllTags {
    pub(super) fn insert(&mut self, id: &str, digest: u128, tags: &str) {
        // The empty text means "no tags", not one tag without a name.
        let tags = tags.split(SEPARATOR).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
        self.by_id.entry(id.to_owned()).or_default().insert(digest, tags);
    }

    /// True if nothing is tagged.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// True if there is an entry for this id, also one without tags.
    pub fn knows(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// A message's tags. Without an entry for its content, those of the id.
    pub fn of(&self, id: &str, digest: u128) -> Tags {
        let Some(contents) = self.by_id.get(id) else { return Tags::new() };
        let any = || contents.values().find(|tags| !tags.is_empty());
        contents.get(&digest).or_else(any).cloned().unwrap_or_default()
    }

    /// Union of the tags of all contents of an id.
    pub(super) fn together(&self, id: &str) -> Tags {
        self.by_id.get(id).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect()
    }

    /// Tagged ids, each with the union of its contents' tags.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Tags)> {
        self.by_id
            .iter()
            .map(|(id, contents)| (id.as_str(), contents.values().flatten().cloned().collect::<Tags>()))
            .filter(|(_, tags)| !tags.is_empty())
    }
}

/// The id under which a message is tagged, dumped and found by `id:`. It is its Message-ID, or one made from its
/// content.
pub fn id_of(message_id: &str, digest: u128) -> String {
    if message_id.is_empty() { format!("{MADE}{digest:032x}") } else { message_id.to_owned() }
}

const MADE: &str = "posthaste-";

/// Digest of the content that an id was made from.
pub(crate) fn digest_of(id: &str) -> Option<u128> {
    let digits =
        id.strip_prefix(MADE).filter(|digits| digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u128::from_str_radix(digits, 16).ok()
}
