//! Packs: needed parts of batches whose segments in the ring are reused.
//!
//! `packs/<id>.pack` has a segment's format: blocks 0 and 1 hold a segment header, records follow. Beside it is
//! `packs/<id>.index`. A record missing in the index does not exist. A pack is immutable; cleaning writes a new one.

mod cache;
mod index;
mod pieces;
mod reader;
mod writer;

use std::path::{Path, PathBuf};

pub(crate) use cache::PackCache;
pub(crate) use index::{IndexEntry, IndexWriter};
pub(crate) use reader::{PackError, PackReader};
pub(crate) use writer::PackWriter;

pub(crate) fn dir_of(spool: &Path) -> PathBuf {
    spool.join("packs")
}

pub(crate) fn pack_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.pack"))
}

pub(crate) fn index_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.index"))
}
