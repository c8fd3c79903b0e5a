//! Snapshots of streams: files that a stream writes before it advances, outside of the ring.

use std::io;
use std::path::{Path, PathBuf};

use crate::codec::{seal, unseal};
use crate::files;

/// Names a stream's snapshot: the stream's own choice, kept with its position. A name that the spool gave is a file of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotName(String);

impl SnapshotName {
    /// `None` for what is no name: empty, longer than 200 bytes, or with a slash, a dot in front or a control character.
    pub fn new(name: &str) -> Option<Self> {
        let is_name = !name.is_empty()
            && name.len() <= 200
            && !name.starts_with('.')
            && !name.contains(|letter: char| letter == '/' || letter.is_control());
        is_name.then(|| SnapshotName(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The directory `snapshots/`.
#[derive(Debug)]
pub(crate) struct Snapshots {
    dir: PathBuf,
}

impl Snapshots {
    pub fn open(spool: &Path) -> io::Result<Self> {
        let snapshots = Snapshots { dir: spool.join("snapshots") };
        posthaste_fsops::make_dir(&snapshots.dir)?;
        Ok(snapshots)
    }

    /// Writes a snapshot with its checksum and makes it durable with its name. Under another name until it is whole.
    pub fn write(&self, name: &SnapshotName, content: &[u8]) -> io::Result<()> {
        let unfinished = self.dir.join(format!(".{}", name.0));
        files::write_new(&unfinished, &seal(content.to_vec()))?;
        posthaste_fsops::rename(&unfinished, self.dir.join(&name.0))?;
        files::sync_dir(&self.dir)
    }

    /// `InvalidData` if it is damaged.
    pub fn read(&self, name: &SnapshotName) -> io::Result<Vec<u8>> {
        let bytes = std::fs::read(self.dir.join(&name.0))?;
        let content = unseal(&bytes).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the snapshot {} is damaged", name.as_str()))
        })?;
        Ok(content.to_vec())
    }

    pub fn remove(&self, name: &SnapshotName) -> io::Result<()> {
        files::remove(&self.dir.join(&name.0))
    }

    /// Removes what is none of these, unfinished ones included.
    pub fn remove_others(&self, named: &[SnapshotName]) -> io::Result<()> {
        for name in files::list(&self.dir)? {
            if named.iter().all(|other| other.0 != name) {
                files::remove(&self.dir.join(name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_reads_back_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path()).unwrap();
        let name = SnapshotName::new("s1.7").unwrap();
        snapshots.write(&name, b"all that counts").unwrap();
        assert_eq!(snapshots.read(&name).unwrap(), b"all that counts");
        std::fs::write(dir.path().join("snapshots/s1.7"), b"all that count").unwrap();
        assert_eq!(snapshots.read(&name).unwrap_err().kind(), io::ErrorKind::InvalidData);
        snapshots.write(&SnapshotName::new("s1.8").unwrap(), b"").unwrap();
        snapshots.remove_others(&[name]).unwrap();
        assert_eq!(files::list(&dir.path().join("snapshots")).unwrap(), ["s1.7"]);
        for refused in ["", "a/b", "..", "a\n"] {
            assert_eq!(SnapshotName::new(refused), None);
        }
    }
}
