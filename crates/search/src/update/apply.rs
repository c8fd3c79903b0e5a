//! One update: applies the changes that were found, and commits them.

use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::diff::{Candidate, Changes, Touched};
use super::indexer::Indexer;
use super::read::{Done, Missing, Moved, NANOS, read};
use super::report::{Progress, Report, UpdateOptions};
use super::{diff, keywords, trees};
use crate::bitmap::Bitmap;
use crate::error::IndexError;
use crate::state::{Record, bits};
use crate::stop::Stop;
use crate::tags::TagStore;
use crate::text_index::FinishedSegment;

/// Messages read between two commits of a first index.
pub const ROUND_MESSAGES: usize = 131_072;

struct Run<'a> {
    pub indexer: &'a mut Indexer,
    pub report: Report,
    options: &'a UpdateOptions,
    progress: &'a (dyn Fn(Progress) + Sync),
    /// Messages to read in all rounds.
    total: u64,
    done: Done,
}

impl<'a> Run<'a> {
    pub fn new(indexer: &'a mut Indexer, options: &'a UpdateOptions, progress: &'a (dyn Fn(Progress) + Sync)) -> Self {
        Self { indexer, report: Report::default(), options, progress, total: 0, done: Done::default() }
    }

    pub fn finish(mut self, started: Instant) -> Result<Report, IndexError> {
        // An interrupted build beside an index left nothing.
        if !self.indexer.state.is_beside() {
            self.indexer.apply_rules(&mut self.report)?;
        }
        if !self.report.stopped {
            self.indexer.passes_rules = false;
        }
        self.report.new = self.indexer.new_in_rebuild.take().unwrap_or(self.report.added);
        self.report.messages = self.indexer.state.directory.present;
        self.report.took = started.elapsed();
        Ok(self.report)
    }

    pub fn apply(&mut self, changes: Changes) -> Result<(), IndexError> {
        for rename in &changes.renamed {
            let record = self.indexer.state.change(rename.number);
            record.flags = record.flags & !bits::MUTABLE | rename.flags;
            record.name.clone_from(&rename.name);
        }
        self.report.renamed = changes.renamed.len() as u64;
        let missing = Missing::new(self.indexer.state.records(), &changes.missing);
        let mut added = changes.added;
        self.total = added.len() as u64;
        while !added.is_empty() {
            let rest = added.split_off(added.len().min(ROUND_MESSAGES));
            let batch = std::mem::replace(&mut added, rest);
            self.read_round(batch, &missing)?;
            if self.options.stop.as_ref().is_some_and(Stop::is_stopped) {
                // A missing message may be among the unread files, so no folder counts as done.
                self.report.stopped = true;
                return if self.indexer.state.is_beside() { Ok(()) } else { self.indexer.settle(self.progress, false) };
            }
            // An index built beside another one is shown only when complete.
            if !added.is_empty() && !self.indexer.state.is_beside() {
                self.indexer.settle(self.progress, false)?;
            }
        }
        self.remove(&missing.left())?;
        for (index, stamps) in changes.settled {
            let folder = &mut self.indexer.state.directory.folders[index];
            (folder.new, folder.cur) = stamps;
        }
        self.forget_stamps_of_troubles();
        self.indexer.settle(self.progress, true)
    }

    fn read_round(&mut self, batch: Vec<Candidate>, missing: &Missing) -> Result<(), IndexError> {
        let indexer = &mut *self.indexer;
        let first = indexer.state.records().len();
        let done = self.done;
        let total = self.total;
        let progress = self.progress;
        let with_tag_ids = TagStore::exists(&indexer.dir);
        let step = |messages, bytes| {
            progress(Progress::Reading { done: done.messages + messages, total, bytes: done.bytes + bytes });
        };
        let round = read(&indexer.text, &indexer.state, batch, missing, self.options, first, with_tag_ids, &step);
        let round = round.map_err(|error| indexer.text_error(error))?;
        self.done.messages += round.done.messages;
        self.done.bytes += round.done.bytes;
        self.report.bytes += round.done.bytes;
        self.report.troubles.extend(round.troubles);
        self.report.moved += round.moved.len() as u64;
        round.moved.into_iter().for_each(|moved| indexer.take_over(moved));
        for (number, path, problem) in round.problems {
            indexer.state.directory.problems.insert(number, problem.to_owned());
            self.report.problems.push((path, problem.to_owned()));
        }
        let is_new = |record: &Record| record.flags & bits::GONE == 0;
        let numbers = (first as u32..).zip(&round.new).filter(|(_, record)| is_new(record)).map(|(number, _)| number);
        indexer.unthreaded.numbers.extend(numbers);
        self.report.added += round.new.iter().filter(|record| is_new(record)).count() as u64;
        indexer.untagged.extend(round.tag_ids);
        indexer.state.extend(round.new);
        if round.segments.is_empty() {
            return Ok(());
        }
        (self.progress)(Progress::Committing);
        indexer.commit_text(round.segments, Bitmap::empty(0))
    }

    fn remove(&mut self, gone: &[u32]) -> Result<(), IndexError> {
        self.report.removed = gone.len() as u64;
        if gone.is_empty() {
            return Ok(());
        }
        gone.iter().for_each(|&number| self.indexer.bury(number));
        let gone = self.indexer.set_of(gone);
        self.indexer.commit_text(Vec::new(), gone)
    }

    /// Forgets the stamps of folders with read errors, so that the next update lists them again.
    fn forget_stamps_of_troubles(&mut self) {
        let directory = &mut self.indexer.state.directory;
        for (path, _) in &self.report.troubles {
            let roots = &directory.roots;
            let concerned = directory
                .folders
                .iter_mut()
                .filter(|folder| path.starts_with(roots[folder.root as usize].join(&folder.path)));
            concerned.for_each(|folder| (folder.new, folder.cur) = (None, None));
        }
    }
}

impl Indexer {
    /// Looks at the trees of earlier updates and at `roots`, and applies the changes.
    ///
    /// # Errors
    /// [`IndexError`]. Rounds that were committed before the error stay.
    pub fn update(
        &mut self,
        roots: &[PathBuf],
        options: &UpdateOptions,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Report, IndexError> {
        let started = Instant::now();
        let looked_at = SystemTime::now();
        progress(Progress::Looking);
        let trees = self.walk(roots, options)?;
        let mut run = Run::new(self, options, progress);
        run.report.without_maildirs = trees::without_maildirs(run.indexer.roots(), &trees);
        let changes = diff::compare(&mut run.indexer.state, &trees, options, looked_at, &mut run.report);
        keywords::read_changed(&mut run.indexer.state.directory, looked_at, &mut run.report);
        run.apply(changes)?;
        run.finish(started)
    }

    /// Updates the index for these names. `None` if that takes a whole [`update`](Self::update): a folder is unknown.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn update_touched(
        &mut self,
        touched: &Touched,
        options: &UpdateOptions,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<Option<Report>, IndexError> {
        let started = Instant::now();
        let mut run = Run::new(self, options, progress);
        let Some(changes) = diff::compare_touched(&run.indexer.state, touched, &mut run.report) else {
            return Ok(None);
        };
        run.apply(changes)?;
        run.finish(started).map(Some)
    }

    /// Updates a known message that was moved, or whose file was rewritten with the same content.
    fn take_over(&mut self, Moved { number, candidate, facts }: Moved) {
        let record = self.state.change(number);
        record.folder = candidate.folder;
        record.flags = record.flags & !bits::MUTABLE | candidate.flags();
        record.name = candidate.name;
        (record.size, record.mtime_ns) = (facts.size, facts.mtime_ns);
        if record.flags & bits::UNDATED != 0 {
            record.date = facts.mtime_ns / NANOS;
            self.unthreaded.numbers.push(number);
        }
    }

    pub(super) fn commit_text(&mut self, segments: Vec<FinishedSegment>, gone: Bitmap) -> Result<(), IndexError> {
        let next = u32::try_from(self.state.records().len()).unwrap_or(u32::MAX);
        let commit = self.text.commit(segments, gone, next).map_err(|error| self.text_error(error))?;
        self.state.directory.text_commit = commit;
        self.state.directory.text_crc = Some(self.text.meta_crc().map_err(|error| self.text_error(error))?);
        Ok(())
    }

    /// Completes an update: tags and threads of added and removed messages, and the commit. `is_whole`: nothing is left
    /// to read.
    fn settle(&mut self, progress: &(dyn Fn(Progress) + Sync), is_whole: bool) -> Result<(), IndexError> {
        self.apply_new_tags()?;
        self.pass_rules(is_whole);
        if self.state.is_changed() {
            progress(Progress::Committing);
            self.thread();
        }
        self.commit()
    }

    /// Makes the changes durable; writes nothing if there are none.
    pub(super) fn commit(&mut self) -> Result<(), IndexError> {
        if self.state.is_changed() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.state.directory.updated = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
            self.state.commit()?;
        }
        self.end_tags();
        Ok(())
    }
}
