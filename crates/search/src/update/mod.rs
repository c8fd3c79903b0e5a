//! Brings an index up to date with the Maildirs it covers.
//!
//! 1. *Look*: walk the trees. A folder whose directories have the stamps of last time is done; the others are listed.
//! 2. *Compare*: a known name is unchanged; a known key under another name has new flags; the rest is new or missing.
//! 3. *Read* the new files, in inode order, on all cores. One with the content of a missing message has moved: number,
//!    text and tags stay.
//! 4. *Commit*: the text index first, then the side store. Until then, readers see the last commit.
//!
//! A caller that knows which names changed ([`Touched`]) skips the first step; only those are compared.
//!
//! A new index is committed every [`ROUND_MESSAGES`] messages, so that an interrupted first run continues where it
//! stopped. A rebuild is committed once, at its end; until then the old index answers.

mod apply;
mod diff;
mod indexer;
mod keywords;
#[cfg(test)]
pub(crate) mod kills;
mod listing;
mod mend;
mod names;
mod read;
mod report;
mod rules;
mod tagging;
mod threading;
mod trees;

use std::path::{Path, PathBuf};
use std::time::Instant;

use posthaste_maildir::tree::{MailTree, TreeOptions, walk};

use crate::settings::SearchSettings;
use crate::state::Snapshot;
use crate::text_index::TextIndex;

pub use apply::ROUND_MESSAGES;
pub use diff::Touched;
pub use indexer::Indexer;
pub(crate) use indexer::PENDING;
pub use report::{MEMORY_BYTES, Progress, Report, UpdateOptions};

/// Checks, without waiting for a writer, if an update would find anything to do. Compares directories' times, and also
/// the names in them if all are to be listed.
///
/// Returns the report if there is nothing to do. `None` if there is, or if there is no index.
pub fn nothing_to_do(dir: &Path, roots: &[PathBuf], options: &UpdateOptions) -> Option<Report> {
    let started = Instant::now();
    let snapshot = Snapshot::open(dir).ok()?;
    let directory = snapshot.directory();
    let named = |root: &PathBuf| std::path::absolute(root).ok();
    let is_known =
        |root: &PathBuf| named(root).is_some_and(|root| directory.roots.iter().any(|known| root.starts_with(known)));
    let asks_for_more = options.check_files || options.into_noupdate || !roots.iter().all(is_known);
    let settings = SearchSettings::load(dir).ok()?;
    let text = TextIndex::open(&snapshot.text_dir()).ok()?;
    let waits_for_tags = directory.ruled < directory.messages
        || !directory.unruled.is_empty()
        || settings.maildir.synchronize_flags != directory.flags_are_tags
        || settings.maildir.synchronize_keywords != directory.keywords_are_tags
        || settings.headers != *text.headers();
    if asks_for_more || waits_for_tags || directory.roots.is_empty() || dir.join(PENDING).exists() {
        return None;
    }
    let walked = directory.roots.iter().map(|root| walk(root, &TreeOptions::default()).ok());
    let trees: Vec<MailTree> = walked.collect::<Option<_>>()?;
    if !diff::has_same_folders(directory, &trees, options.list_all) || !keywords::are_same(directory) {
        return None;
    }
    // A crash between the two commits has left something to mend.
    let mark = text.mark().ok()?;
    if mark.commit != directory.text_commit {
        return None;
    }
    let folders = trees.iter().map(|tree| tree.folders.len()).sum();
    if options.list_all && !names::are_same(&snapshot, &trees, options.threads).ok()? {
        return None;
    }
    Some(Report {
        folders,
        listed: if options.list_all { 2 * folders } else { 0 },
        messages: directory.present,
        without_maildirs: trees::without_maildirs(&directory.roots, &trees),
        took: started.elapsed(),
        ..Report::default()
    })
}
