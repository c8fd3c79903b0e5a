//! The indexed files of one folder.

use std::collections::HashMap;
use std::path::Path;

use posthaste_maildir::tree::key_of_name;
use xxhash_rust::xxh3::xxh3_64;

use super::searcher::Searcher;
use crate::error::Result;
use crate::state::{Column, bits};

/// Numbers of messages in one folder, by the keys of their files.
#[derive(Debug, Default)]
pub struct FolderFiles(HashMap<u64, u32>);

/// Longer messages are left out: a search that reads them may stop after their beginning.
const BYTES_MAX: u64 = 16 << 20;

/// Marks a key that two files share, which makes them indistinguishable.
const AMBIGUOUS: u32 = u32::MAX;

impl FolderFiles {
    /// Number of the file with this name, whatever its flags are now; `None` if it is not indexed.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.0.get(&hash(name.as_bytes())).copied().filter(|number| *number != AMBIGUOUS)
    }

    /// Number of files, those of one key counted once.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no files.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn hash(name: &[u8]) -> u64 {
    match std::str::from_utf8(name) {
        Ok(name) => xxh3_64(key_of_name(name).as_bytes()),
        Err(_) => xxh3_64(name),
    }
}

impl Searcher {
    /// The files of a folder, by its path below a tree; empty if the index has none.
    ///
    /// # Errors
    /// [`IndexError::State`](crate::IndexError::State), [`IndexError::Text`](crate::IndexError::Text).
    pub fn files_in(&self, root: &Path, folder: &str) -> Result<FolderFiles> {
        let directory = self.directory();
        let is_it = |(_, found): &(u32, &crate::state::FolderState)| {
            found.path == folder && directory.roots.get(found.root as usize).is_some_and(|known| known == root)
        };
        let Some((folder, _)) = (0..).zip(&directory.folders).find(is_it) else { return Ok(FolderFiles::default()) };
        // A commit of the text may be newer, and without what went meanwhile.
        let has_text = self.numbers_with_text()?;
        let sizes = self.wide(&self.columns.size, Column::Size)?;
        let is_short = |number: u32| sizes.get(number as usize).is_some_and(|size| *size <= BYTES_MAX);
        let mut files = HashMap::new();
        self.snapshot.for_each_name_in(folder, |number, flags, name| {
            if flags & bits::GONE == 0 && has_text.get(number) && is_short(number) {
                files.entry(hash(name)).and_modify(|known| *known = AMBIGUOUS).or_insert(number);
            }
        })?;
        Ok(FolderFiles(files))
    }
}
