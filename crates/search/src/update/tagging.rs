//! Tags and saved queries. The tag store is authoritative; the side store has a copy for queries.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::indexer::{Indexer, PENDING};
use crate::disk;
use crate::error::IndexError;
use crate::flag_tags::{FileTags, RestoredTags, Tagged};
use crate::query::SavedQueries;
use crate::settings::SearchSettings;
use crate::state::{Record, StateError, bits};
use crate::tags::{self, AllTags, Dump, Restore, TagError, TagStore, Tags, check_query_name};
use posthaste_text::id_hash;

impl Indexer {
    /// Changes the tags of messages: adds `add`, then removes `remove`. Where tags are flags, returns the changes of
    /// files, which the caller makes.
    ///
    /// # Errors
    /// [`IndexError::Tags`], [`IndexError::State`], [`IndexError::Text`].
    pub fn tag(&mut self, messages: &[(u32, String)], add: &[String], remove: &[String]) -> Result<Tagged, IndexError> {
        let ids = self.tag_ids(messages);
        // From the store itself: what the side store has is a copy, and may be an old one.
        let known = self.tags()?.about(ids.iter().map(|(id, _)| id.as_str()))?;
        let mut changes: Vec<(&str, u128, Tags)> = Vec::new();
        let mut tagged = Tagged::default();
        let new_keywords = self.new_keywords()?;
        for ((id, digest), (number, _)) in ids.iter().zip(messages) {
            let stored = known.of(id, *digest);
            let (file, flags) = self.file_tags(*number);
            let old = file.seen(&stored, flags);
            let mut new = old.clone();
            new.extend(add.iter().cloned());
            new.retain(|tag| !remove.contains(tag));
            let is_asked = |tag: &str| add.iter().any(|added| added == tag);
            let (store, change) = file.split(*number, flags, &stored, &new, &is_asked, &new_keywords);
            tagged.changed += u64::from(new != old || change.is_some());
            tagged.flags.extend(change);
            if store != stored {
                changes.push((id, *digest, store));
            }
        }
        if !changes.is_empty() {
            self.begin_tags()?;
            self.tags()?.set(changes.iter().map(|(id, digest, tags)| (*id, *digest, tags)), &[])?;
            self.apply_tags_of(changes.iter().map(|(id, ..)| *id))?;
            self.commit()?;
        }
        Ok(tagged)
    }

    /// True if tags follow the flags of files.
    pub fn are_flags_tags(&self) -> bool {
        self.state.directory.flags_are_tags
    }

    /// True if tags follow the names of files, by flags or keywords.
    pub fn has_tags_of_files(&self) -> bool {
        self.state.directory.flags_are_tags || self.state.directory.keywords_are_tags
    }

    /// The folder's tags in file names, and the message's flags.
    fn file_tags(&self, number: u32) -> (FileTags<'_>, u64) {
        let record = &self.state.records()[number as usize];
        (self.state.directory.file_tags(record.folder), record.flags)
    }

    fn new_keywords(&self) -> Result<BTreeSet<String>, IndexError> {
        if !self.state.directory.keywords_are_tags {
            return Ok(BTreeSet::new());
        }
        Ok(SearchSettings::load(&self.dir)?.maildir.new_keywords)
    }

    /// Saves a query's text under a name, replacing an earlier one; without a text, deletes the query. True if anything
    /// changed. The caller has to validate the text ([`parse_with`](crate::query::parse_with)).
    ///
    /// # Errors
    /// [`IndexError::Tags`], [`IndexError::State`].
    pub fn save_query(&mut self, name: &str, text: Option<&str>) -> Result<bool, IndexError> {
        if self.tags()?.queries()?.get(name).map(String::as_str) == text {
            return Ok(false);
        }
        // Before the mark: a name that is refused leaves nothing to mend.
        check_query_name(name)?;
        self.begin_tags()?;
        self.tags()?.set([], &[(name, text)])?;
        self.apply_queries()?;
        self.commit()?;
        Ok(true)
    }

    /// Dumps all tags and saved queries in notmuch's text format. `ids` are the Message-IDs of indexed messages, needed
    /// only where tags are flags or keywords.
    ///
    /// # Errors
    /// [`IndexError::Tags`].
    pub fn dump_tags(&mut self, ids: &[(u32, String)]) -> Result<String, IndexError> {
        let store = self.tags()?;
        let all = store.all()?;
        let queries = store.queries()?;
        if !self.has_tags_of_files() {
            return Ok(tags::dump(&all, &queries));
        }
        let mut flags: BTreeMap<String, (u64, BTreeSet<&str>)> = BTreeMap::new();
        for ((id, _), (number, _)) in self.tag_ids(ids).into_iter().zip(ids) {
            // Of several files with one id: seen, flagged, ... is what one of them is, as in notmuch.
            let (file, letters) = self.file_tags(*number);
            let of_id = flags.entry(id).or_default();
            of_id.1.extend(FileTags { flags: false, ..file }.of(letters));
            let letters = if bits::is_unread(letters) { letters & !bits::letters("S") } else { letters };
            of_id.0 |= letters & !bits::NEW;
        }
        let file = FileTags { flags: self.are_flags_tags(), keywords: &[] };
        let mut dumped: BTreeMap<String, Tags> = all.iter().map(|(id, tags)| (id.to_owned(), tags)).collect();
        for (id, (flags, keywords)) in flags {
            let tags = dumped.entry(id).or_default();
            *tags = file.seen(tags, flags);
            tags.extend(keywords.into_iter().map(str::to_owned));
        }
        dumped.retain(|_, tags| !tags.is_empty());
        Ok(tags::dump_of(dumped.iter().map(|(id, tags)| (id.as_str(), tags)), &queries))
    }

    /// Replaces the tags of messages by those of a dump, or adds them if tags accumulate. Messages missing from the
    /// dump keep theirs. `messages` are the Message-IDs of indexed messages; tags of other ids are kept for when their
    /// messages come. Adds the dump's queries to the existing ones. A damaged tag store is set aside, and a new one
    /// made from the dump.
    ///
    /// # Errors
    /// [`IndexError::Tags`], [`IndexError::State`].
    pub fn restore_tags(
        &mut self,
        text: &str,
        messages: &[(u32, String)],
        how: Restore,
    ) -> Result<RestoredTags, IndexError> {
        let Dump { tags: wanted, queries } = tags::restore(text)?;
        let is_damaged = matches!(self.tags(), Err(IndexError::Tags(TagError::Damaged { .. })));
        if is_damaged && !how.dry_run {
            self.begin_tags()?;
            TagStore::set_aside(&self.dir)?;
        }
        let ids = self.tag_ids(messages);
        let mut by_id: HashMap<&str, Vec<(u128, u32)>> = HashMap::new();
        for ((id, digest), (number, _)) in ids.iter().zip(messages) {
            by_id.entry(id).or_default().push((*digest, *number));
        }
        let known = self.tags()?.about(wanted.keys().map(String::as_str))?;
        let mut rows: Vec<(&str, u128, Tags)> = Vec::new();
        let mut restored = RestoredTags::default();
        let new_keywords = self.new_keywords()?;
        for (id, tags) in &wanted {
            let Some(here) = by_id.get(id.as_str()) else {
                restored.not_here += 1;
                let mut new = tags.clone();
                if how.accumulate {
                    new.extend(known.of(id, 0));
                }
                rows.push((id, 0, new));
                continue;
            };
            for &(digest, number) in here {
                let (file, flags) = self.file_tags(number);
                let stored = known.of(id, digest);
                let old = file.seen(&stored, flags);
                let mut new = tags.clone();
                if how.accumulate {
                    new.extend(old.iter().cloned());
                }
                let lost = old.difference(&new).count() as u64;
                restored.changed += u64::from(old != new);
                restored.replaced += u64::from(lost > 0);
                restored.tags_lost += lost;
                let is_asked = |tag: &str| tags.contains(tag);
                let (store, change) = file.split(number, flags, &stored, &new, &is_asked, &new_keywords);
                restored.flags.extend(change);
                rows.push((id, digest, store));
            }
        }
        let saved = self.tags()?.queries()?;
        // notmuch forgets a setting by giving it nothing for its value.
        let queries: Vec<(&str, Option<&str>)> = queries
            .iter()
            .map(|(name, text)| (name.as_str(), Some(text.as_str()).filter(|text| !text.is_empty())))
            .filter(|(name, text)| saved.get(*name).map(String::as_str) != *text)
            .collect();
        restored.queries = queries.len() as u64;
        if how.dry_run {
            return Ok(restored);
        }
        self.begin_tags()?;
        self.tags()?.set(rows.iter().map(|(id, digest, tags)| (*id, *digest, tags)), &queries)?;
        if is_damaged {
            self.apply_all_tags()?;
            self.are_tags_reconciled = true;
        } else {
            self.apply_tags_of(wanted.keys().map(String::as_str))?;
        }
        self.apply_queries()?;
        self.commit()?;
        Ok(restored)
    }

    /// The messages' keys in the tag store: Message-IDs and digests.
    fn tag_ids(&self, messages: &[(u32, String)]) -> Vec<(String, u128)> {
        let digest = |number: &u32| self.state.records()[*number as usize].digest;
        messages.iter().map(|(number, id)| (tags::id_of(id, digest(number)), digest(number))).collect()
    }

    pub(super) fn tags(&mut self) -> Result<&TagStore, IndexError> {
        let store = match self.tags.take() {
            Some(store) => store,
            None => TagStore::open(&self.dir)?,
        };
        Ok(self.tags.insert(store))
    }

    /// Marks the change as pending, durably, before the tag store changes. After a crash before the side store's commit
    /// the next open repairs it.
    pub(super) fn begin_tags(&mut self) -> Result<(), IndexError> {
        self.is_tagging = true;
        let mark = self.dir.join(PENDING);
        let durable = disk::open(&mark, false).and_then(|file| disk::sync(&file, &mark));
        let durable = durable.and_then(|()| disk::sync_dir(&self.dir));
        durable.map_err(|error| StateError::Io { dir: self.dir.clone(), error }.into())
    }

    /// Call after a commit. A marker that cannot be removed only costs the next open a check.
    pub(super) fn end_tags(&mut self) {
        if self.are_tags_reconciled && std::mem::take(&mut self.is_tagging) {
            let _ = disk::remove_file(&self.dir.join(PENDING));
        }
    }

    /// Copies tags and queries from the tag store, and rewrites the dump, if they may differ.
    pub(super) fn reconcile_tags(&mut self) -> Result<(), IndexError> {
        if self.is_tagging {
            self.write_dump()?;
            self.apply_all_tags()?;
        }
        // A new index beside a tag store that was kept has the queries from there too.
        if self.is_tagging || self.state.records().is_empty() {
            self.apply_queries()?;
        }
        Ok(())
    }

    /// Writes the dump beside the tag store, whole.
    pub(super) fn write_dump(&mut self) -> Result<(), IndexError> {
        if TagStore::exists(&self.dir) { Ok(self.tags()?.write_dump()?) } else { Ok(()) }
    }

    /// Copies the saved queries into the side store.
    pub(super) fn apply_queries(&mut self) -> Result<(), IndexError> {
        self.state.directory.queries =
            if TagStore::exists(&self.dir) { self.tags()?.queries()? } else { SavedQueries::new() };
        Ok(())
    }

    /// Copies the tags of all messages from the tag store.
    pub(super) fn apply_all_tags(&mut self) -> Result<(), IndexError> {
        let all = if TagStore::exists(&self.dir) { self.tags()?.all()? } else { AllTags::default() };
        let ids: HashMap<u64, &str> = all.iter().map(|(id, _)| (id_hash(id), id)).collect();
        let numbers = 0..u32::try_from(self.state.records().len()).unwrap_or(u32::MAX);
        self.untagged.clear();
        for number in numbers {
            let record = &self.state.records()[number as usize];
            let id = ids.get(&tag_hash(record));
            let wanted = id.map(|id| all.of(id, record.digest)).unwrap_or_default();
            self.set_tags(number, wanted);
        }
        Ok(())
    }

    /// Applies the stored tags to all messages with these ids: the tags of one content may count for another.
    pub(super) fn apply_tags_of<'i>(&mut self, ids: impl Iterator<Item = &'i str>) -> Result<(), IndexError> {
        let ids: HashMap<u64, &str> = ids.map(|id| (id_hash(id), id)).collect();
        let all = self.tags()?.about(ids.values().copied())?;
        for number in 0..u32::try_from(self.state.records().len()).unwrap_or(u32::MAX) {
            let record = &self.state.records()[number as usize];
            if let Some(id) = ids.get(&tag_hash(record)) {
                let wanted = all.of(id, record.digest);
                self.set_tags(number, wanted);
            }
        }
        Ok(())
    }

    /// Applies stored tags to new messages, which may have been tagged before they came.
    pub(super) fn apply_new_tags(&mut self) -> Result<(), IndexError> {
        let new = std::mem::take(&mut self.untagged);
        if new.is_empty() || !TagStore::exists(&self.dir) {
            return Ok(());
        }
        let all = self.tags()?.about(new.iter().map(|(_, id)| id.as_str()))?;
        for (number, id) in new {
            let wanted = all.of(&id, self.state.records()[number as usize].digest);
            self.set_tags(number, wanted);
        }
        Ok(())
    }

    fn set_tags(&mut self, number: u32, wanted: Tags) {
        let record = &self.state.records()[number as usize];
        let known = self.state.directory.tag_sets.get(record.tags as usize);
        if record.flags & bits::GONE == 0 && known.is_none_or(|known| !known.iter().eq(&wanted)) {
            let set = self.state.tag_set(wanted.into_iter().collect());
            self.state.change(number).tags = set;
        }
    }
}

/// The hash of the id under which a message is tagged.
fn tag_hash(record: &Record) -> u64 {
    if record.id == 0 { id_hash(&tags::id_of("", record.digest)) } else { record.id }
}
