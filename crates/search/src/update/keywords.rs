//! Keyword tables: read while keywords are tags, and again after a change.

use std::path::PathBuf;
use std::time::SystemTime;

use posthaste_maildir::tree::Stamp;
use posthaste_maildir::{KEYWORDS_FILE, keywords_stamp, read_keywords};

use super::Report;
use crate::flag_tags::keyword_tags;
use crate::state::{FolderState, IndexDirectory, Seen};

fn dir_of(directory: &IndexDirectory, folder: &FolderState) -> PathBuf {
    let root = &directory.roots[folder.root as usize];
    // Joined with nothing a path would end in a slash.
    if folder.path.is_empty() { root.clone() } else { root.join(&folder.path) }
}

fn is_same(folder: &FolderState, stamp: Option<Stamp>) -> bool {
    match (folder.keywords_seen, stamp) {
        (Some(seen), Some(stamp)) => seen == Seen(stamp.inode, stamp.mtime_ns),
        (None, None) => folder.keywords.is_empty(),
        _ => false,
    }
}

/// True if no folder's keyword table changed since the last update. Always true where keywords are not tags.
pub(super) fn are_same(directory: &IndexDirectory) -> bool {
    let mut folders = directory.folders.iter().filter(|folder| folder.present && directory.keywords_are_tags);
    folders.all(|folder| keywords_stamp(&dir_of(directory, folder)).is_ok_and(|stamp| is_same(folder, stamp)))
}

/// Reads the changed tables, or forgets all of them where keywords are not tags. An unreadable table stays as it was,
/// and is reported.
pub(super) fn read_changed(directory: &mut IndexDirectory, looked_at: SystemTime, report: &mut Report) {
    for index in 0..directory.folders.len() {
        let folder = &directory.folders[index];
        if !directory.keywords_are_tags {
            let folder = &mut directory.folders[index];
            (folder.keywords, folder.keywords_seen) = (Vec::new(), None);
            continue;
        }
        if !folder.present {
            continue;
        }
        let dir = dir_of(directory, folder);
        let read = keywords_stamp(&dir)
            .and_then(|stamp| if is_same(folder, stamp) { Ok(None) } else { read_keywords(&dir).map(Some) });
        match read {
            Ok(None) => {}
            Ok(Some((keywords, stamp))) => {
                let folder = &mut directory.folders[index];
                folder.keywords = keyword_tags(&keywords);
                let settled = stamp.filter(|stamp| stamp.is_settled(looked_at));
                folder.keywords_seen = settled.map(|stamp| Seen(stamp.inode, stamp.mtime_ns));
            }
            Err(error) => report.troubles.push((dir.join(KEYWORDS_FILE), error.to_string())),
        }
    }
}
