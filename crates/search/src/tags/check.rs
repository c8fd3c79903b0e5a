//! Checks the tag store and its dump for damage.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{Builder, StorageBackend as _};

use super::all::AllTags;
use super::dump::{Dump, restore};
use super::kept;
use super::store::{FILE, TagStore};
use crate::query::SavedQueries;

/// Reads the tag store in the index's directory and its dump, without changes. Returns the damaged files, each with its
/// damage.
pub(crate) fn check(dir: &Path) -> Vec<(String, String)> {
    let path = dir.join(FILE);
    let dump = kept::read(dir).map(|text| text.map(|text| restore(&text)));
    let is_dumped = matches!(&dump, Ok(Some(Ok(dump))) if !dump.tags.is_empty() || !dump.queries.is_empty());
    let damaged = |what: String| {
        let restore = format!("`posthaste tag --restore {}` builds it again", kept::path(dir).display());
        vec![(FILE.to_owned(), if is_dumped { format!("{what}; {restore}") } else { what })]
    };
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return if is_dumped { damaged("is missing".to_owned()) } else { Vec::new() };
        }
        Err(error) => return damaged(format!("cannot be read: {error}")),
    };
    // In memory, so that the file stays as it is. A database that was altered may lead its reader astray.
    let read = catch_unwind(AssertUnwindSafe(|| read_copy(dir, &bytes)));
    let Ok(Some((tags, queries))) = read else { return damaged("checksum is wrong".to_owned()) };
    let says = |dump: &Dump| {
        let tags: BTreeSet<_> = tags.iter().map(|(id, tags)| (id.to_owned(), tags)).collect();
        let dumped = dump.tags.iter().filter(|(_, tags)| !tags.is_empty());
        let dumped: BTreeSet<_> = dumped.map(|(id, tags)| (id.clone(), tags.clone())).collect();
        let saved = dump.queries.iter().filter(|(_, text)| !text.is_empty());
        tags == dumped && saved.eq(queries.iter())
    };
    match dump {
        Ok(Some(Ok(dump))) if says(&dump) => Vec::new(),
        // From before a dump was kept: the next writer makes it.
        Ok(None) => Vec::new(),
        _ => vec![("tags.dump".to_owned(), "is not what tags.redb says".to_owned())],
    }
}

fn read_copy(dir: &Path, bytes: &[u8]) -> Option<(AllTags, SavedQueries)> {
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, bytes)).ok()?;
    let database = Builder::new().set_check_integrity_on_open(true).create_with_backend(copy).ok()?;
    let store = TagStore { dir: dir.to_owned(), database };
    Some((store.all().ok()?, store.queries().unwrap_or_default()))
}
