//! Snapshots of streams: files that a stream writes before it advances, outside of the ring.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Take, Write};
use std::path::{Path, PathBuf};

use crate::events::Damage;
use crate::files;

/// Identifies a stream's state at its position: a snapshot, which is a file of the spool, or a cursor, which is only a
/// text in the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotName {
    text: String,
    is_file: bool,
}

impl SnapshotName {
    /// The name of a snapshot. `None` if it is invalid: empty, longer than 200 bytes, with a slash, a leading dot or a
    /// control character.
    pub fn new(name: &str) -> Option<Self> {
        let is_name = !name.is_empty()
            && name.len() <= 200
            && !name.starts_with('.')
            && !name.contains(|letter: char| letter == '/' || letter.is_control());
        is_name.then(|| SnapshotName { text: name.to_owned(), is_file: true })
    }

    /// A cursor: a position outside of the spool, whose text is the stream's whole state. `None` as for
    /// [`new`](Self::new).
    pub fn cursor(text: &str) -> Option<Self> {
        Self::new(text).map(|name| SnapshotName { is_file: false, ..name })
    }

    /// The name of the snapshot, or the cursor's text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// True if the spool has a file of this name.
    pub fn is_file(&self) -> bool {
        self.is_file
    }

    pub(crate) fn damage(&self, error: &SnapshotError) -> Damage {
        Damage { lsn: None, place: format!("snapshots/{}", self.text), what: format!("the snapshot {error}") }
    }
}

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Its file is missing.
    #[error("is missing")]
    Missing,
    /// Its file is damaged.
    #[error("is damaged")]
    Damaged,
    /// The disk failed; the file's content is unknown.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// The content of a snapshot. All of the file was verified before this is handed out.
#[derive(Debug)]
pub struct SnapshotReader(BufReader<Take<File>>);

impl Read for SnapshotReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

/// Length and checksum of the written data.
#[derive(Default)]
struct Sum {
    len: u64,
    crc: u32,
}

impl Sum {
    fn trailer(&self) -> [u8; TRAILER as usize] {
        let len = self.len.to_le_bytes();
        let crc = crc32c::crc32c_append(self.crc, &len).to_le_bytes();
        std::array::from_fn(|at| if at < len.len() { len[at] } else { crc[at - len.len()] })
    }
}

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes to a file and computes the checksum.
struct Sealing {
    file: File,
    sum: Sum,
}

impl Write for Sealing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        posthaste_fsops::write_all(&self.file, bytes)?;
        self.sum.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes after the content: its length (u64, little-endian), then the CRC-32C of the content and that length (u32).
/// Zeros are not a valid trailer.
const TRAILER: u64 = 12;
/// Bytes of one write or read.
const WRITTEN_AT_ONCE: usize = 256 << 10;

/// The directory `snapshots/`.
#[derive(Debug)]
pub(crate) struct Snapshots {
    dir: PathBuf,
}

impl Snapshots {
    /// Read-only access to a spool from outside.
    pub fn at(spool: &Path) -> Self {
        Snapshots { dir: spool.join("snapshots") }
    }

    pub fn open(spool: &Path) -> io::Result<Self> {
        let snapshots = Self::at(spool);
        posthaste_fsops::make_dir(&snapshots.dir)?;
        Ok(snapshots)
    }

    /// Writes a snapshot with its trailer and makes it durable with its name. It has a temporary name until it is
    /// complete.
    pub fn write(
        &self,
        name: &SnapshotName,
        content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let unfinished = self.dir.join(format!(".{}", name.text));
        let sealing = Sealing { file: files::create(&unfinished)?, sum: Sum::default() };
        let mut file = BufWriter::with_capacity(WRITTEN_AT_ONCE, sealing);
        let written = content(&mut file).and_then(|()| file.flush()).and_then(|()| {
            let Sealing { file, sum } = file.get_ref();
            posthaste_fsops::write_all(file, &sum.trailer())?;
            Ok(posthaste_fsops::fsync(file)?)
        });
        if written.is_err() {
            // Not written again when the buffer is dropped.
            let _ = file.into_parts();
            let _ = posthaste_fsops::unlink(&unfinished);
            return written;
        }
        posthaste_fsops::rename(&unfinished, self.dir.join(&name.text))?;
        files::sync_dir(&self.dir)
    }

    /// Verifies all of a snapshot, and only then opens it.
    pub fn read(&self, name: &SnapshotName) -> Result<SnapshotReader, SnapshotError> {
        let (mut file, len) = self.verified(name)?;
        file.rewind()?;
        Ok(SnapshotReader(BufReader::new(file.take(len))))
    }

    /// Reads all of a snapshot and compares its checksum. Returns the bytes of its file.
    pub fn verify(&self, name: &SnapshotName) -> Result<u64, SnapshotError> {
        self.verified(name).map(|(_, len)| len + TRAILER)
    }

    fn verified(&self, name: &SnapshotName) -> Result<(File, u64), SnapshotError> {
        let file = File::open(self.dir.join(&name.text)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SnapshotError::Missing,
            _ => error.into(),
        })?;
        let len = file.metadata()?.len().checked_sub(TRAILER).ok_or(SnapshotError::Damaged)?;
        let mut reading = BufReader::with_capacity(WRITTEN_AT_ONCE, &file);
        let mut sum = Sum::default();
        let mut trailer = Vec::new();
        io::copy(&mut reading.by_ref().take(len), &mut sum)?;
        reading.take(TRAILER).read_to_end(&mut trailer)?;
        let is_whole = sum.len == len && trailer == sum.trailer();
        if is_whole { Ok((file, len)) } else { Err(SnapshotError::Damaged) }
    }

    pub fn remove(&self, name: &SnapshotName) -> io::Result<()> {
        files::remove(&self.dir.join(&name.text))
    }

    /// Moves the remains of a snapshot into a directory of the spool.
    pub fn move_to(&self, name: &SnapshotName, dir: &Path) -> io::Result<()> {
        match posthaste_fsops::rename(self.dir.join(&name.text), dir.join(&name.text)) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            moved => moved?,
        }
        files::sync_dir(dir)?;
        files::sync_dir(&self.dir)
    }

    /// Removes all other files, including unfinished ones.
    pub fn remove_others(&self, named: &[SnapshotName]) -> io::Result<()> {
        for name in files::list(&self.dir)? {
            if named.iter().all(|other| other.text != name) {
                files::remove(&self.dir.join(name))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(snapshots: &Snapshots, name: &SnapshotName, content: &[u8]) {
        snapshots.write(name, &mut |out| out.write_all(content)).unwrap();
    }

    fn read(snapshots: &Snapshots, name: &SnapshotName) -> Result<Vec<u8>, SnapshotError> {
        let mut content = Vec::new();
        Ok(snapshots.read(name)?.read_to_end(&mut content).map(|_| content)?)
    }

    #[test]
    fn a_snapshot_reads_back_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path()).unwrap();
        let name = SnapshotName::new("s1.7").unwrap();
        for content in [&b"all that counts"[..], b"", &vec![7; 3 * WRITTEN_AT_ONCE + 1]] {
            write(&snapshots, &name, content);
            assert_eq!(read(&snapshots, &name).unwrap(), content);
        }
        write(&snapshots, &name, b"all that counts");
        let path = dir.path().join("snapshots/s1.7");
        let whole = std::fs::read(&path).unwrap();
        let is_damaged = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let both = (snapshots.read(&name).err(), snapshots.verify(&name).err());
            assert!(
                matches!(both, (Some(SnapshotError::Damaged), Some(SnapshotError::Damaged))),
                "{bytes:?}: {both:?}"
            );
        };
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            is_damaged(&bytes);
        }
        (0..whole.len()).for_each(|len| is_damaged(&whole[..len]));
        (0..40).for_each(|len| is_damaged(&vec![0; len]));
        is_damaged(&[&whole[..], b"x"].concat());
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(read(&snapshots, &name), Err(SnapshotError::Missing)));
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(read(&snapshots, &name), Err(SnapshotError::Io(_))));
        std::fs::remove_dir(&path).unwrap();
        write(&snapshots, &name, b"");
        write(&snapshots, &SnapshotName::new("s1.8").unwrap(), b"");
        snapshots.remove_others(&[name]).unwrap();
        assert_eq!(files::list(&dir.path().join("snapshots")).unwrap(), ["s1.7"]);
    }

    #[test]
    fn a_snapshot_that_its_stream_gives_up_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(dir.path()).unwrap();
        let name = SnapshotName::new("s").unwrap();
        write(&snapshots, &name, b"before");
        let given_up = snapshots.write(&name, &mut |out| {
            out.write_all(&vec![1; WRITTEN_AT_ONCE + 1])?;
            Err(io::ErrorKind::Interrupted.into())
        });
        assert_eq!(given_up.unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(read(&snapshots, &name).unwrap(), b"before");
        assert_eq!(files::list(&dir.path().join("snapshots")).unwrap(), ["s"]);
    }

    #[test]
    fn invalid_names_are_refused() {
        for refused in ["", "a/b", "..", "a\n"] {
            assert_eq!((SnapshotName::new(refused), SnapshotName::cursor(refused)), (None, None));
        }
    }
}
