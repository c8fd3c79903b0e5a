//! The directory of a commit: trees, folders, sets of tags, and the places of its chunks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::chunk::{self, CHUNK_MESSAGES};
use super::current::{directory_bytes, read_current_of_any_format};
use crate::flag_tags::{FLAG_TAGS, FileTags};
use crate::query::SavedQueries;

/// Data about all messages together; small, read whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexDirectory {
    /// Message numbers given out so far, including those of gone messages.
    pub messages: u32,
    /// Present messages: numbers in use without those of gone messages.
    pub present: u64,
    /// Present messages without a readable date.
    pub undated: u64,
    pub(super) chunks: Vec<ChunkPlace>,
    /// The text index's commit that belongs to this one.
    pub text_commit: u64,
    /// CRC-32C of the text index's `meta.json` after that commit; `None` before the first text was committed.
    pub text_crc: Option<u32>,
    /// Maildir trees, absolute.
    pub roots: Vec<PathBuf>,
    /// Device number of each tree when it was last seen whole; 0 if it was never seen.
    pub devices: Vec<u64>,
    /// Folders ever seen; their indexes do not change.
    pub folders: Vec<FolderState>,
    /// The distinct sets of tags, sorted; the first is empty.
    pub tag_sets: Vec<Vec<String>>,
    /// Messages that could not be read whole, by number, and why.
    pub problems: BTreeMap<u32, String>,
    /// Copy of the tag store's saved queries.
    pub queries: SavedQueries,
    /// The rules for new mail have been applied to messages below this number.
    pub ruled: u32,
    /// Messages below `ruled` that still wait for the rules: new ones that a rebuild was first to find.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unruled: Vec<u32>,
    /// True if [`FLAG_TAGS`](crate::flag_tags::FLAG_TAGS) are the files' flags, by the settings at the last commit.
    pub flags_are_tags: bool,
    /// True if keywords in the files' names are tags, by the settings at the last commit.
    pub keywords_are_tags: bool,
    /// Seconds since 1970 of the last completed update.
    pub updated: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChunkPlace {
    pub offset: u64,
    pub length: u32,
    pub crc: u32,
}

/// A folder, and its directories when last listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderState {
    /// Index into [`IndexDirectory::roots`].
    pub root: u32,
    /// Relative to the root; empty for the root itself.
    pub path: String,
    /// True if the folder existed at the last update.
    pub present: bool,
    /// `None` if it must be listed again.
    pub new: Option<Seen>,
    /// Same as `new`, for `cur/`.
    pub cur: Option<Seen>,
    /// Keywords of the letters from `a` on, while [`IndexDirectory::keywords_are_tags`]. Empty for letters without a keyword
    /// that can be a tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keywords: Vec<String>,
    /// Stamp of the table that they were read from; `None` if there is none, or if it must be read again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keywords_seen: Option<Seen>,
}

/// A directory's inode and mtime in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen(pub u64, pub i64);

impl IndexDirectory {
    /// Validates the directory against itself and the size of the file, so that later reads stay in bounds.
    pub(super) fn check(&self, file_bytes: u64) -> Result<(), &'static str> {
        if self.chunks.len() != (self.messages as usize).div_ceil(CHUNK_MESSAGES) {
            return Err("there are fewer chunks than the messages need");
        }
        for (index, place) in self.chunks.iter().enumerate() {
            let is_inside = place.offset.checked_add(place.length.into()).is_some_and(|end| end <= file_bytes);
            if !is_inside || (place.length as usize) < chunk::names_offset(self.count(index)) {
                return Err("a chunk is not where it should be");
            }
        }
        if self.folders.iter().any(|folder| folder.root as usize >= self.roots.len()) {
            return Err("a folder is in no tree");
        }
        if self.devices.len() != self.roots.len() || self.tag_sets.first().is_none_or(|set| !set.is_empty()) {
            return Err("the lists of trees and tags are incomplete");
        }
        Ok(())
    }

    /// Messages in a chunk.
    pub(super) fn count(&self, index: usize) -> usize {
        (self.messages as usize).saturating_sub(index * CHUNK_MESSAGES).min(CHUNK_MESSAGES)
    }

    /// Tags that the file names of a folder hold.
    pub(crate) fn file_tags(&self, folder: u32) -> FileTags<'_> {
        let folder = self.folders.get(folder as usize).filter(|_| self.keywords_are_tags);
        let keywords = folder.map_or(&[][..], |folder| &folder.keywords);
        FileTags { flags: self.flags_are_tags, keywords }
    }

    /// Tags that files have, or can have, through flags and keywords.
    pub fn tags_of_files(&self) -> BTreeSet<&str> {
        let flags = FLAG_TAGS.iter().map(|(tag, _)| *tag).filter(|_| self.flags_are_tags);
        let folders = self.folders.iter().filter(|folder| folder.present && self.keywords_are_tags);
        let keywords = folders.flat_map(|folder| &folder.keywords).filter(|name| !name.is_empty());
        flags.chain(keywords.map(String::as_str)).collect()
    }

    /// True if the tree had folders at the last update.
    pub(crate) fn has_folders(&self, root: usize) -> bool {
        has_folders(&self.folders, root)
    }
}

/// The trees and folders that an index covers, in the fields that all versions share.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Covered {
    /// See [`IndexDirectory::roots`].
    pub roots: Vec<PathBuf>,
    folders: Vec<FolderState>,
}

impl Covered {
    /// Reads the coverage of the index in `dir`; empty if there is no readable index.
    pub fn by(dir: &Path) -> Self {
        let read = || {
            let current = read_current_of_any_format(dir).ok()?;
            let file = File::open(dir.join(&current.file)).ok()?;
            serde_json::from_slice(&directory_bytes(&file, &current).ok()??).ok()
        };
        read().unwrap_or_default()
    }

    /// The trees that had folders.
    pub fn inhabited(&self) -> Vec<PathBuf> {
        let inhabited = (0..self.roots.len()).filter(|&root| has_folders(&self.folders, root));
        inhabited.map(|root| self.roots[root].clone()).collect()
    }
}

fn has_folders(folders: &[FolderState], root: usize) -> bool {
    folders.iter().any(|folder| folder.present && folder.root as usize == root)
}
