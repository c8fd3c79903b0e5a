//! Packs: needed parts of batches whose segments in the ring are reused.
//!
//! `packs/<id>.pack` has a segment's format: blocks 0 and 1 hold a segment header, records follow. Beside it is
//! `packs/<id>.index`. A record missing in the index does not exist. A pack is immutable; cleaning writes a new one.

mod cache;
mod error;
mod index;
mod names;
mod pieces;
mod reader;
mod writer;

use std::path::{Path, PathBuf};

pub(crate) use cache::PackCache;
pub(crate) use error::PackError;
pub(crate) use index::{IndexEntry, IndexWriter};
pub(crate) use names::{index_path, pack_path};
pub(crate) use reader::PackReader;
pub(crate) use writer::PackWriter;

pub(crate) fn dir_of(spool: &Path) -> PathBuf {
    spool.join("packs")
}
