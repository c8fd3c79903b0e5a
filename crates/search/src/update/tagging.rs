//! Tags: changed in the tag store, which is the truth, and copied into the side store, where queries look.

use std::collections::{BTreeMap, HashMap};

use super::{IndexError, Indexer, id_hash};
use crate::state::{StateError, bits};
use crate::tags::{self, AllTags, Tags};

/// There while tags are being changed: what the tag store says may not be in the side store yet.
pub(super) const PENDING: &str = "tags.pending";

impl Indexer {
    /// Changes the tags of messages: to each, `add` is added and then `remove` is taken away. Says how many messages changed.
    ///
    /// # Errors
    /// [`IndexError::Tags`], [`IndexError::State`], [`IndexError::Text`].
    pub fn tag(&mut self, messages: &[(u32, String)], add: &[String], remove: &[String]) -> Result<u64, IndexError> {
        let mut changes: Vec<(u32, String, u128, Tags)> = Vec::new();
        for (number, message_id) in messages {
            let record = &self.state.records()[*number as usize];
            let old: Tags = self.state.directory.tag_sets[record.tags as usize].iter().cloned().collect();
            let mut new = old.clone();
            new.extend(add.iter().cloned());
            new.retain(|tag| !remove.contains(tag));
            if new != old {
                changes.push((*number, tags::id_of(message_id, record.digest), record.digest, new));
            }
        }
        // The truth first; a crash before the side store's commit is mended by the next update.
        self.begin_tags()?;
        self.tags.set(changes.iter().map(|(_, id, digest, tags)| (id.as_str(), *digest, tags)))?;
        let changed = changes.len() as u64;
        for (number, _, _, tags) in changes {
            let set = self.state.tag_set(tags.into_iter().collect());
            self.state.change(number).tags = set;
        }
        self.commit()?;
        self.end_tags();
        Ok(changed)
    }

    /// All tags, in notmuch's text format.
    ///
    /// # Errors
    /// [`IndexError::Tags`].
    pub fn dump_tags(&self) -> Result<String, IndexError> {
        Ok(tags::dump(&self.tags.all()?))
    }

    /// Gives messages the tags of a dump, and no others; messages that it does not name keep theirs. `ids` are the Message-IDs of
    /// messages in the index. Ids that are not in the index are kept for when they come. Says how many messages changed.
    ///
    /// # Errors
    /// [`IndexError::Tags`], [`IndexError::State`].
    pub fn restore_tags(&mut self, text: &str, ids: &[(u32, String)]) -> Result<u64, IndexError> {
        let wanted = tags::restore(text)?;
        let mut by_id: HashMap<&str, Vec<u32>> = HashMap::new();
        let ids: Vec<(u32, String)> = ids
            .iter()
            .map(|(number, id)| (*number, tags::id_of(id, self.state.records()[*number as usize].digest)))
            .collect();
        ids.iter().for_each(|(number, id)| by_id.entry(id).or_default().push(*number));
        let mut rows: Vec<(&str, u128, &Tags)> = Vec::new();
        let mut changed: BTreeMap<u32, &Tags> = BTreeMap::new();
        for (id, tags) in &wanted {
            match by_id.get(id.as_str()) {
                None => rows.push((id, 0, tags)),
                Some(numbers) => {
                    for &number in numbers {
                        rows.push((id, self.state.records()[number as usize].digest, tags));
                        changed.insert(number, tags);
                    }
                }
            }
        }
        self.begin_tags()?;
        self.tags.set(rows)?;
        let mut count = 0;
        for (number, tags) in changed {
            let set = self.state.tag_set(tags.iter().cloned().collect());
            if self.state.records()[number as usize].tags != set {
                self.state.change(number).tags = set;
                count += 1;
            }
        }
        self.commit()?;
        self.end_tags();
        Ok(count)
    }

    fn begin_tags(&self) -> Result<(), IndexError> {
        let mark = || std::fs::File::create(self.dir.join(PENDING))?.sync_all();
        let durable = mark().and_then(|()| std::fs::File::open(&self.dir)?.sync_all());
        durable.map_err(|error| StateError::Io { dir: self.dir.clone(), error }.into())
    }

    /// A mark that cannot be removed costs the next update a look, nothing else.
    pub(super) fn end_tags(&self) {
        let _ = std::fs::remove_file(self.dir.join(PENDING));
    }

    /// Brings the tags of all messages to what the tag store says: for new messages, and after a crash between its commit and ours.
    pub(super) fn apply_tags(&mut self, tags: &AllTags) {
        if tags.is_empty() && self.state.records().iter().all(|record| record.tags == 0) {
            return;
        }
        let by_hash: HashMap<u64, &str> = tags.iter().map(|(id, _)| (id_hash(id), id)).collect();
        for number in 0..u32::try_from(self.state.records().len()).unwrap_or(u32::MAX) {
            let record = &self.state.records()[number as usize];
            if record.flags & bits::GONE != 0 {
                continue;
            }
            let hash = if record.id == 0 { id_hash(&tags::id_of("", record.digest)) } else { record.id };
            let wanted = by_hash.get(&hash).map(|id| tags.of(id, record.digest)).unwrap_or_default();
            let known = self.state.directory.tag_sets.get(record.tags as usize);
            if known.is_none_or(|known| !known.iter().eq(&wanted)) {
                let set = self.state.tag_set(wanted.into_iter().collect());
                self.state.change(number).tags = set;
            }
        }
    }
}
