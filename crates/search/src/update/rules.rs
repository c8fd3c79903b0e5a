//! Rules of the settings that tag new messages.
//!
//! They apply once, when a message is new in a run. [`IndexDirectory::ruled`](crate::state::IndexDirectory::ruled) is the number
//! up to which that was done, so a crash between the commits of messages and tags skips none. Messages known to the tag
//! store are left alone: the user has tagged them already.

use std::collections::HashSet;
use std::path::Path;

use super::{Indexer, Report};
use crate::error::IndexError;
use crate::search::Searcher;
use crate::settings::{MaildirSettings, SearchSettings, SettingsError};
use crate::state::{Record, Snapshot, bits};
use crate::tags::{self, TagStore, Tags};

/// [`IndexDirectory::ruled`](crate::state::IndexDirectory::ruled) while a rebuilt index fills up, whose messages are not new to
/// the user.
const ALL: u32 = u32::MAX;

impl Indexer {
    /// Call before an update: determines the messages that count as new.
    pub(super) fn begin_rules(&mut self) {
        let count = self.state.records().len();
        // A rebuilt index, or a new one beside kept tags, even if it took several runs.
        self.passes_rules =
            self.state.is_beside() || count == 0 && TagStore::exists(&self.dir) || self.state.directory.ruled == ALL;
        if self.state.is_beside() {
            self.ruled_before = ruled_messages(&self.dir);
        }
        if let Ok(settings) = SearchSettings::load(&self.dir) {
            self.follow(&settings.maildir);
        }
    }

    /// Call before a commit of messages: marks them as done where no rules apply to them. `is_whole`: nothing is left
    /// to read.
    pub(super) fn pass_rules(&mut self, is_whole: bool) {
        let settings = SearchSettings::load(&self.dir);
        let has_none = settings.as_ref().is_ok_and(|settings| !settings.has_rules());
        if self.passes_rules && !is_whole {
            self.state.directory.ruled = ALL;
        } else if self.passes_rules || has_none {
            self.state.directory.ruled = u32::try_from(self.state.records().len()).unwrap_or(ALL);
            self.state.directory.unruled.clear();
            if let Some(ruled) = self.ruled_before.take() {
                let is_new = |record: &Record| record.flags & bits::GONE == 0 && !ruled.contains(&record.digest);
                let records = (0..).zip(self.state.records());
                let new: Vec<u32> = records.filter(|(_, record)| is_new(record)).map(|(number, _)| number).collect();
                self.new_in_rebuild = Some(new.len() as u64);
                if !has_none {
                    self.state.directory.unruled = new;
                }
            }
        }
        if let Ok(settings) = settings {
            self.follow(&settings.maildir);
        }
    }

    fn follow(&mut self, settings: &MaildirSettings) {
        self.state.directory.flags_are_tags = settings.synchronize_flags;
        self.state.directory.keywords_are_tags = settings.synchronize_keywords;
    }

    /// Call after a commit of messages. A mistake in the settings goes into the report, and the messages wait until it
    /// is corrected.
    pub(super) fn apply_rules(&mut self, report: &mut Report) -> Result<(), IndexError> {
        let from = self.state.directory.ruled;
        let end = u32::try_from(self.state.records().len()).unwrap_or(u32::MAX);
        let mut numbers = self.state.directory.unruled.clone();
        numbers.extend(from..end);
        if numbers.is_empty() {
            return Ok(());
        }
        match self.ruled_tags(&numbers) {
            Ok(wanted) => {
                report.tagged = wanted.len() as u64;
                if !wanted.is_empty() {
                    self.begin_tags()?;
                    self.tags()?.set(wanted.iter().map(|(id, digest, tags)| (id.as_str(), *digest, tags)), &[])?;
                    self.apply_tags_of(wanted.iter().map(|(id, ..)| id.as_str()))?;
                }
                self.state.directory.ruled = end;
                self.state.directory.unruled.clear();
                self.commit()
            }
            Err(RuleError::Settings(error)) => {
                let why = error.in_short();
                report.troubles.push((error.path, why));
                Ok(())
            }
            Err(RuleError::Index(error)) => Err(error),
        }
    }

    /// Tags of the new messages that get any, by id and digest. `new` is in ascending order.
    fn ruled_tags(&mut self, new: &[u32]) -> Result<Vec<(String, u128, Tags)>, RuleError> {
        let settings = SearchSettings::load(&self.dir)?;
        let searcher = Searcher::open(&self.dir)?;
        let queries = settings.queries(&searcher.directory().queries)?;
        let mut rules = Vec::new();
        for (query, rule) in queries.iter().zip(&settings.new.rule) {
            rules.push((searcher.find(query).map_err(|error| settings_ahead(error, &settings))?, rule));
        }
        // A second copy of a message is no new message.
        let records = self.state.records();
        let is_older = |(number, record): &(u32, &Record)| record.id != 0 && new.binary_search(number).is_err();
        let older: HashSet<u64> = (0..).zip(records).filter(is_older).map(|(_, record)| record.id).collect();
        let alive = |number: &u32| {
            let record = &records[*number as usize];
            record.flags & bits::GONE == 0 && !older.contains(&record.id)
        };
        let numbers: Vec<u32> = new.iter().copied().filter(alive).collect();
        let heads = searcher.heads(&numbers)?;
        let mut ids = Vec::new();
        for (number, head) in numbers.iter().zip(heads) {
            ids.push(tags::id_of(&head.message_id, self.state.records()[*number as usize].digest));
        }
        let known = if TagStore::exists(&self.dir) {
            self.tags()?.about(ids.iter().map(String::as_str)).map_err(IndexError::from)?
        } else {
            tags::AllTags::default()
        };
        let mut wanted = Vec::new();
        for (number, id) in numbers.into_iter().zip(ids).filter(|(_, id)| !known.knows(id)) {
            let mut tags = settings.new.tags.clone();
            for (_, rule) in rules.iter().filter(|(found, _)| found.get(number)) {
                tags.extend(rule.add.iter().cloned());
                tags.retain(|tag| !rule.remove.contains(tag));
            }
            if !tags.is_empty() {
                wanted.push((id, self.state.records()[number as usize].digest, tags));
            }
        }
        Ok(wanted)
    }
}

/// Digests of an index's messages to which the rules have been applied. `None` if the index cannot be read or is not
/// filled yet.
fn ruled_messages(dir: &Path) -> Option<HashSet<u128>> {
    let snapshot = Snapshot::open(dir).ok()?;
    let directory = snapshot.directory();
    let ruled = Some(directory.ruled).filter(|&ruled| ruled != ALL)?;
    let records = snapshot.records().ok()?;
    let is_ruled = |(number, record): &(u32, Record)| {
        *number < ruled && record.flags & bits::GONE == 0 && directory.unruled.binary_search(number).is_err()
    };
    Some((0..).zip(records).filter(is_ruled).map(|(_, record)| record.digest).collect())
}

/// Words the error of a rule with a header that the index will only have after its rebuild, as may happen during a
/// watch.
fn settings_ahead(error: IndexError, settings: &SearchSettings) -> RuleError {
    match error {
        IndexError::Header { name, .. } => {
            RuleError::Settings(settings.error(format!(
                "a rule asks for the header {name}, which the index gets with the next `posthaste index`"
            )))
        }
        error => RuleError::Index(error),
    }
}

enum RuleError {
    Settings(SettingsError),
    Index(IndexError),
}

impl From<SettingsError> for RuleError {
    fn from(error: SettingsError) -> Self {
        Self::Settings(error)
    }
}

impl From<IndexError> for RuleError {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}
