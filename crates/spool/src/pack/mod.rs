//! Packs: what is still needed of batches whose place in the ring is used again.
//!
//! `packs/<id>.pack` has a segment's format: blocks 0 and 1 hold a segment header, records follow. Beside it is `packs/<id>.index`. A record that is not in the
//! index does not exist. A pack is never changed; cleaning writes a new one.

mod cache;
mod index;
mod reader;
mod writer;

use std::path::{Path, PathBuf};

pub(crate) use cache::PackCache;
pub(crate) use index::IndexEntry;
pub(crate) use reader::{PackError, PackReader};
pub(crate) use writer::PackWriter;

/// Writes the index of a pack whose records lie where they are; both names are durable then.
pub(crate) fn write_index(dir: &Path, id: u64, entries: &[IndexEntry]) -> std::io::Result<()> {
    crate::files::write_new(&index_path(dir, id), &index::encode(id, entries))?;
    crate::files::sync_dir(dir)
}

/// Writes an index in place of one that cannot be read: under another name first.
pub(crate) fn replace_index(dir: &Path, id: u64, entries: &[IndexEntry]) -> std::io::Result<()> {
    let unfinished = dir.join(format!("{id:016x}.index.new"));
    crate::files::write_new(&unfinished, &index::encode(id, entries))?;
    posthaste_fsops::rename(&unfinished, index_path(dir, id))?;
    crate::files::sync_dir(dir)
}

pub(crate) fn dir_of(spool: &Path) -> PathBuf {
    spool.join("packs")
}

pub(crate) fn pack_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.pack"))
}

pub(crate) fn index_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.index"))
}
