//! The list of the files of an export, with their lengths and checksums. It is written last: without it an export is unfinished.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use posthaste_fsops::{checked, with_checksum};

/// Names below the export's directory, such as `snapshots/queue.1`, and the content of each file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Manifest(BTreeMap<String, Content>);

/// Length in bytes and CRC-32C of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Content {
    bytes: u64,
    crc: u32,
}

/// The streams of an export.
pub const STREAMS: &str = "streams.json";
/// Directory of the streams' snapshots.
pub const SNAPSHOTS: &str = "snapshots";
/// The ids of mail mounts, as in the spool.
pub const MOUNTS: &str = "mounts";
/// The manifest's own file.
pub const MANIFEST: &str = "manifest";
const FIRST_LINE: &str = "posthaste spool export\n";
/// Maximum file names in an error; the others are counted.
const NAMED_MAX: usize = 10;

impl Manifest {
    /// Copies a file into the export, and enters it.
    ///
    /// # Errors
    /// Errors of reading and writing.
    pub fn copy(&mut self, name: String, from: &mut dyn Read, to: &mut dyn Write) -> io::Result<()> {
        let content = Content::copy(from, to)?;
        self.0.insert(name, content);
        Ok(())
    }

    /// The names, in order: those of batches ascend with their numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Recorded bytes of a file. `None` if the file is not in the export.
    pub fn bytes_of(&self, name: &str) -> Option<u64> {
        self.0.get(name).map(|content| content.bytes)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|content| content.bytes).sum()
    }

    /// The content of its file.
    pub fn text(&self) -> String {
        let line = |(name, Content { bytes, crc }): (&String, &Content)| format!("{crc:08x} {bytes} {name}\n");
        with_checksum(FIRST_LINE.to_owned() + &self.0.iter().map(line).collect::<String>())
    }

    /// Reads the manifest of the export in `dir`. `None` if there is none.
    ///
    /// # Errors
    /// `InvalidData` if the manifest is damaged; errors of reading.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        match std::fs::read(dir.join(MANIFEST)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            bytes => Self::parse(&bytes?)
                .map(Some)
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the list of the export's files is damaged")),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let entry = |line: &str| {
            let (crc, rest) = line.split_once(' ')?;
            let (bytes, name) = rest.split_once(' ')?;
            let content = Content { bytes: bytes.parse().ok()?, crc: u32::from_str_radix(crc, 16).ok()? };
            Some((name.to_owned(), content))
        };
        checked(bytes)?.strip_prefix(FIRST_LINE)?.lines().map(entry).collect::<Option<_>>().map(Self)
    }

    /// Reads all files of the export, and compares them. `progress` gets the bytes of each file.
    ///
    /// # Errors
    /// The names of missing, changed and foreign files; errors of reading the directory.
    pub fn verify(&self, dir: &Path, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        let found = files(dir)?;
        let mut wrong = Vec::new();
        for (name, content) in &self.0 {
            let why =
                if !found.contains(name) { Some("is missing".to_owned()) } else { content.compare(&dir.join(name)) };
            wrong.extend(why.map(|why| format!("{name} {why}")));
            progress(content.bytes);
        }
        let more = found.iter().filter(|name| !self.0.contains_key(*name) && *name != MANIFEST);
        wrong.extend(more.map(|name| format!("{name} is not one of its files")));
        if wrong.is_empty() {
            return Ok(());
        }
        let left = wrong.len().saturating_sub(NAMED_MAX);
        wrong.truncate(NAMED_MAX);
        let more = if left > 0 { format!("; and {left} more") } else { String::new() };
        let what = format!("the export was changed after it was written: {}{more}", wrong.join("; "));
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }
}

impl Content {
    fn copy(from: &mut dyn Read, to: &mut dyn Write) -> io::Result<Self> {
        let mut content = Content::default();
        let mut piece = vec![0; 64 << 10];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(content),
                Ok(len) => {
                    to.write_all(&piece[..len])?;
                    content.bytes += len as u64;
                    content.crc = crc32c::crc32c_append(content.crc, &piece[..len]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// How a file differs from the manifest. `None` if it is unchanged.
    fn compare(&self, path: &Path) -> Option<String> {
        let read = || {
            let mut file = File::open(path)?;
            let len = file.metadata()?.len();
            if len != self.bytes {
                return Ok(Some(format!("has {len} bytes, not {}", self.bytes)));
            }
            let content = Content::copy(&mut file, &mut io::sink())?;
            Ok::<_, io::Error>((content != *self).then(|| "has another checksum".to_owned()))
        };
        read().unwrap_or_else(|error| Some(format!("cannot be read: {error}")))
    }
}

/// The names of everything in an export. A directory that exports do not have counts as a file.
fn files(dir: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == SNAPSHOTS && entry.file_type()?.is_dir() {
            for snapshot in std::fs::read_dir(entry.path())? {
                names.insert(format!("{SNAPSHOTS}/{}", snapshot?.file_name().to_string_lossy()));
            }
        } else {
            names.insert(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(dir: &Path) -> Manifest {
        let mut manifest = Manifest::default();
        std::fs::create_dir(dir.join(SNAPSHOTS)).unwrap();
        for (name, text) in [("1.body", "one"), ("2.body", "two"), ("snapshots/a b", ""), ("mounts", "x")] {
            let mut file = File::create(dir.join(name)).unwrap();
            manifest.copy(name.to_owned(), &mut text.as_bytes(), &mut file).unwrap();
        }
        std::fs::write(dir.join(MANIFEST), manifest.text()).unwrap();
        manifest
    }

    #[test]
    fn a_manifest_reads_back_and_any_flipped_bit_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap(), None);
        let manifest = sample(dir.path());
        assert_eq!(Manifest::read(dir.path()).unwrap().as_ref(), Some(&manifest));
        assert_eq!((manifest.bytes(), manifest.bytes_of("2.body"), manifest.bytes_of("3")), (7, Some(3), None));
        let whole = manifest.text().into_bytes();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::parse(&bytes), None, "{bit}");
        }
        (0..whole.len()).for_each(|len| assert_eq!(Manifest::parse(&whole[..len]), None, "{len}"));
        for text in ["", "other\n", "posthaste spool export\nx 1 a\n", "posthaste spool export\n00000000 a\n"] {
            assert_eq!(Manifest::parse(with_checksum(text.to_owned()).as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn every_file_that_is_not_as_it_was_written_is_named() {
        type Change = fn(&Path);
        let changes: [(Change, &[&str]); 7] = [
            (|_| (), &[]),
            (|dir| std::fs::remove_file(dir.join("1.body")).unwrap(), &["1.body is missing"]),
            (|dir| std::fs::write(dir.join("mounts"), "").unwrap(), &["mounts has 0 bytes, not 1"]),
            (|dir| std::fs::write(dir.join("2.body"), "twO").unwrap(), &["2.body has another checksum"]),
            (|dir| std::fs::write(dir.join("snapshots/c"), "").unwrap(), &["snapshots/c is not one of its files"]),
            (|dir| std::fs::create_dir(dir.join("d")).unwrap(), &["d is not one of its files"]),
            (
                |dir| {
                    std::fs::rename(dir.join("1.body"), dir.join("x")).unwrap();
                    std::fs::rename(dir.join("2.body"), dir.join("1.body")).unwrap();
                    std::fs::rename(dir.join("x"), dir.join("2.body")).unwrap();
                },
                &["1.body has another checksum", "2.body has another checksum"],
            ),
        ];
        for (change, expected) in changes {
            let dir = tempfile::tempdir().unwrap();
            let manifest = sample(dir.path());
            change(dir.path());
            let verified = manifest.verify(dir.path(), &mut |_| ()).map_err(|error| error.to_string());
            match expected {
                [] => verified.unwrap(),
                names => {
                    let said = verified.unwrap_err();
                    assert_eq!(said, format!("the export was changed after it was written: {}", names.join("; ")));
                }
            }
        }
    }
}
