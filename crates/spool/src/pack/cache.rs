//! The open packs, at most [`OPEN_MAX`]; the least recently used is closed first.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::files;
use crate::pack::{PackError, PackReader, index_path, pack_path};

/// Maximum open packs, two descriptors each.
pub(crate) const OPEN_MAX: usize = 128;

/// An LRU of readers. A read holds the `Arc` only while it copies.
#[derive(Debug)]
pub(crate) struct PackCache {
    dir: PathBuf,
    /// Least recently used first.
    open: Mutex<Vec<(u64, Arc<PackReader>)>>,
}

impl PackCache {
    pub fn new(dir: PathBuf) -> Self {
        PackCache { dir, open: Mutex::default() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn get(&self, id: u64) -> Result<Arc<PackReader>, PackError> {
        {
            let mut open = self.open.lock().expect("nothing panics while it is held");
            if let Some(at) = open.iter().position(|(other, _)| *other == id) {
                open[at..].rotate_left(1);
                return Ok(open[open.len() - 1].1.clone());
            }
        }
        // Opened without the lock, so that other readers do not wait: two may open the same pack, which is harmless.
        let reader = Arc::new(PackReader::open(&self.dir, id)?);
        let mut open = self.open.lock().expect("nothing panics while it is held");
        if open.len() == OPEN_MAX {
            open.remove(0);
        }
        open.push((id, reader.clone()));
        Ok(reader)
    }

    /// Closes a pack and removes its files. The next opening retries failed removals.
    pub fn remove(&self, id: u64) {
        for path in [pack_path(&self.dir, id), index_path(&self.dir, id)] {
            let _ = files::remove(&path);
        }
        self.open.lock().expect("nothing panics while it is held").retain(|(other, _)| *other != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::PackWriter;

    #[test]
    fn descriptors_are_bounded_and_a_pack_in_use_outlives_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let packs = OPEN_MAX as u64 + 20;
        for id in 0..packs {
            let mut writer = PackWriter::create(dir.path(), id).unwrap();
            writer.append(id + 1, b"head", Some(b"body")).unwrap();
            writer.finish().unwrap();
        }
        let cache = PackCache::new(dir.path().into());
        for id in 0..packs {
            let reader = cache.get(id).unwrap();
            assert!(reader.find(id + 1).unwrap().is_some());
            cache.get(0).unwrap();
        }
        let held = |id| cache.open.lock().unwrap().iter().any(|(other, _)| *other == id);
        assert_eq!(cache.open.lock().unwrap().len(), OPEN_MAX);
        assert!(held(0) && held(packs - 1) && !held(1), "the one that was used last long ago has gone");
        let reader = cache.get(0).unwrap();
        cache.remove(0);
        assert!(reader.body(&reader.find(1).unwrap().unwrap()).is_ok());
        assert!(matches!(cache.get(0), Err(PackError::Damaged(_))));
    }
}
