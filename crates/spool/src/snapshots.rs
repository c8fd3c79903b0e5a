//! Snapshots of streams: files that a stream writes before it advances, outside of the ring.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

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

/// The content of a snapshot, in order.
///
/// Reading ends with `InvalidData` in place of the last bytes if it is damaged: what was read before may be wrong, so nothing of it counts before the end.
#[derive(Debug)]
pub struct SnapshotReader {
    file: BufReader<File>,
    left: u64,
    crc: u32,
    /// What is said then.
    damaged: String,
}

impl SnapshotReader {
    fn check(&mut self) -> io::Result<()> {
        let mut crc = [0; 4];
        self.file.read_exact(&mut crc)?;
        match u32::from_le_bytes(crc) == self.crc {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, self.damaged.clone())),
        }
    }
}

impl Read for SnapshotReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let wanted = out.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.file.read(&mut out[..wanted])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, self.damaged.clone()));
        }
        self.crc = crc32c::crc32c_append(self.crc, &out[..read]);
        self.left -= read as u64;
        if self.left == 0 {
            self.check()?;
        }
        Ok(read)
    }
}

/// Writes to a file and sums up what was written.
struct Sealing {
    file: File,
    crc: u32,
}

impl Write for Sealing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        posthaste_fsops::write_all(&self.file, bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is gathered before it is written.
const WRITTEN_AT_ONCE: usize = 256 << 10;

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
    pub fn write(
        &self,
        name: &SnapshotName,
        content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let unfinished = self.dir.join(format!(".{}", name.0));
        let mut file = BufWriter::with_capacity(WRITTEN_AT_ONCE, Sealing { file: files::create(&unfinished)?, crc: 0 });
        let written = content(&mut file).and_then(|()| file.flush()).and_then(|()| {
            let Sealing { file, crc } = file.get_ref();
            posthaste_fsops::write_all(file, &crc.to_le_bytes())?;
            Ok(posthaste_fsops::fsync(file)?)
        });
        if written.is_err() {
            // Not written again when the buffer is dropped.
            let _ = file.into_parts();
            let _ = posthaste_fsops::unlink(&unfinished);
            return written;
        }
        posthaste_fsops::rename(&unfinished, self.dir.join(&name.0))?;
        files::sync_dir(&self.dir)
    }

    pub fn read(&self, name: &SnapshotName) -> io::Result<SnapshotReader> {
        let file = File::open(self.dir.join(&name.0))?;
        let damaged = format!("the snapshot {} is damaged", name.as_str());
        let Some(left) = file.metadata()?.len().checked_sub(4) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, damaged));
        };
        let mut reader = SnapshotReader { file: BufReader::new(file), left, crc: 0, damaged };
        if left == 0 {
            reader.check()?;
        }
        Ok(reader)
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

    fn write(snapshots: &Snapshots, name: &SnapshotName, content: &[u8]) {
        snapshots.write(name, &mut |out| out.write_all(content)).unwrap();
    }

    fn read(snapshots: &Snapshots, name: &SnapshotName) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        snapshots.read(name)?.read_to_end(&mut content).map(|_| content)
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
        let path = dir.path().join("snapshots/s1.7");
        let whole = std::fs::read(&path).unwrap();
        for (at, len) in
            [(0, whole.len()), (whole.len() - 1, whole.len()), (0, whole.len() - 1), (0, 4), (0, 3), (0, 0)]
        {
            let mut bytes = whole[..len].to_vec();
            if len == whole.len() {
                bytes[at] ^= 1;
            }
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&snapshots, &name).unwrap_err().kind(), io::ErrorKind::InvalidData, "{at} {len}");
        }
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
    fn a_name_is_one_of_a_file() {
        for refused in ["", "a/b", "..", "a\n"] {
            assert_eq!(SnapshotName::new(refused), None);
        }
    }
}
