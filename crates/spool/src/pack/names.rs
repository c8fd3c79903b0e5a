use std::path::{Path, PathBuf};

pub(crate) fn pack_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.pack"))
}

pub(crate) fn index_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.index"))
}
