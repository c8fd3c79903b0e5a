//! The record of an import, so that a repetition neither duplicates nor skips messages.
//!
//! A line of JSON lists the messages about to be added, and is durable before the server may add the first of them. The
//! next line lists those that were added. After an interrupt the last line may be of the first kind. Then the mailbox itself
//! shows which of them it has, by their digests. An import that stops in a batch lists the added ones, then the rest.
//!
//! Each source has its own file for each mailbox, below `imports` in the data directory. It is removed after 90 days
//! without use.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::{AtFlags, CWD, Dir, FlockOperation, Gid, Mode, OFlags, Uid, fchown, flock, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Identifies a message of the source by its place there and its octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 16]);

impl Key {
    /// `place`: parts that are unique in the source.
    pub fn new(place: &[&[u8]], sha256: &str) -> Self {
        let mut all = Vec::new();
        for part in place {
            all.extend_from_slice(&(part.len() as u64).to_be_bytes());
            all.extend_from_slice(part);
        }
        all.extend_from_slice(sha256.as_bytes());
        Self(digest(&SHA256, &all).as_ref()[..16].try_into().expect("a digest has 32 octets"))
    }

    /// Parses the displayed form.
    pub fn parse(text: &str) -> Option<Self> {
        u128::from_str_radix(text, 16).ok().map(|number| Self(number.to_be_bytes()))
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Messages about to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub mailbox: String,
    pub uid_validity: u32,
    /// Lower bound for the UIDs of its messages.
    pub from: u32,
    /// Key and SHA-256 of each.
    pub messages: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Batch(Batch),
    /// Messages of the last batch that were added.
    Added(Vec<String>),
}

impl Line {
    /// Formats the line, with a checksum in front: a key with a flipped digit would still parse.
    fn to_text(&self) -> io::Result<String> {
        let json = serde_json::to_string(self)?;
        Ok(format!("{} {json}\n", checksum(&json)))
    }

    /// `None` if it is damaged.
    fn parse(line: &[u8]) -> Option<Self> {
        let (sum, json) = std::str::from_utf8(line).ok()?.strip_suffix('\n')?.split_once(' ')?;
        (sum == checksum(json)).then(|| serde_json::from_str(json).ok())?
    }
}

/// True for a last line that was truncated by a kill or a power cut. Any other invalid line is damage.
fn is_cut_off(line: &[u8]) -> bool {
    if line.ends_with(b"\n") {
        // A block that was never written reads as zeros; text has none. Few are in front if the line begins at the end
        // of a block: no changed bit makes one there.
        return line.starts_with(&[0]) || line.windows(UNWRITTEN.len()).any(|octets| octets == UNWRITTEN);
    }
    // With another line end it would be whole: an octet of it was changed.
    let with_line_end = [&line[..line.len().saturating_sub(1)], b"\n"].concat();
    Line::parse(&with_line_end).is_none()
}

/// More than a single changed octet would cause.
const UNWRITTEN: [u8; 8] = [0; 8];

fn checksum(json: &str) -> String {
    digest(&SHA256, json.as_bytes()).as_ref()[..4].iter().map(|octet| format!("{octet:02x}")).collect()
}

/// The record, locked by this process.
pub struct Journal {
    file: File,
    /// Added messages, each with the UIDVALIDITY of its mailbox.
    added: HashMap<Key, u32>,
    /// UIDVALIDITY of the last batch.
    uid_validity: u32,
    /// The last batch, if its outcome is unknown.
    pub in_doubt: Option<Batch>,
    /// The thread that makes the line of the last batch durable.
    syncing: Option<JoinHandle<io::Result<()>>>,
}

const DIRECTORY: &str = "imports";
const AGE_MAX: Duration = Duration::from_secs(90 * 86_400);

impl Drop for Journal {
    fn drop(&mut self) {
        // A child that is being started may have the file open for a moment more.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Journal {
    /// Opens the record of importing `source` into a mailbox.
    ///
    /// # Errors
    /// Another process has locked it; it cannot be read or made.
    pub fn open(data: &Path, source: &Path, account: &str, mailbox: &str) -> io::Result<Self> {
        let (dir, path) = open_directory(data)?;
        remove_old(&dir);
        let source = source.canonicalize()?;
        let name = Key::new(&[source.as_os_str().as_encoded_bytes(), account.as_bytes()], mailbox).to_string();
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.join(&name).display()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&dir, &*name, flags, Mode::RUSR | Mode::WUSR).map_err(|error| at(error.into()))?);
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.nlink() != 1 {
            return Err(at(io::Error::other("it is not the record of an import")));
        }
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(io::Error::other("another process is importing from there into this mailbox"));
        }
        own(&dir, &file)?;
        let mut journal = Self { file, added: HashMap::new(), uid_validity: 0, in_doubt: None, syncing: None };
        journal.read().map_err(at)?;
        posthaste_fsops::fsync(&dir)?;
        Ok(journal)
    }

    /// Reads all lines, and truncates a last one that was cut off.
    fn read(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(&self.file);
        let mut line = Vec::new();
        let mut whole = 0;
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)? as u64;
            if read == 0 {
                break;
            }
            let Some(parsed) = Line::parse(&line) else {
                let is_last = reader.fill_buf()?.is_empty();
                if is_last && is_cut_off(&line) {
                    break;
                }
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged; remove it to start over"));
            };
            whole += read;
            match parsed {
                Line::Batch(batch) => {
                    self.uid_validity = batch.uid_validity;
                    self.in_doubt = Some(batch);
                }
                Line::Added(keys) => {
                    let keys = keys.iter().filter_map(|key| Key::parse(key));
                    self.added.extend(keys.map(|key| (key, self.uid_validity)));
                    self.in_doubt = None;
                }
            }
        }
        if whole != self.file.metadata()?.len() {
            self.file.set_len(whole)?;
        }
        Ok(())
    }

    /// True if the message was added to the mailbox with this UIDVALIDITY. A mailbox that was deleted and made again
    /// has another.
    pub fn has(&self, key: &Key, uid_validity: u32) -> bool {
        self.added.get(key) == Some(&uid_validity)
    }

    /// Records messages about to be added. Durable once [`begun`](Self::begun) returns: meanwhile they can be sent.
    ///
    /// # Errors
    /// Errors of `write` and of starting a thread.
    pub fn begin(&mut self, batch: Batch) -> io::Result<()> {
        self.uid_validity = batch.uid_validity;
        self.write(&Line::Batch(batch))?;
        let file = self.file.try_clone()?;
        let sync = move || Ok(posthaste_fsops::fdatasync(&file)?);
        self.syncing = Some(thread::Builder::new().name("record".to_owned()).spawn(sync)?);
        Ok(())
    }

    /// Waits until the last batch is recorded durably. Nothing of it may be added before.
    ///
    /// # Errors
    /// Errors of `fdatasync`.
    pub fn begun(&mut self) -> io::Result<()> {
        self.syncing.take().map_or(Ok(()), |syncing| syncing.join().expect("it only syncs"))
    }

    /// Records the added messages of the last batch. Durable with the next batch.
    ///
    /// # Errors
    /// Errors of `write`.
    pub fn end(&mut self, added: &[Key]) -> io::Result<()> {
        self.in_doubt = None;
        self.write(&Line::Added(added.iter().map(Key::to_string).collect()))?;
        self.added.extend(added.iter().map(|key| (*key, self.uid_validity)));
        Ok(())
    }

    /// Records the added messages of the last batch, and the `rest` of it, whose outcome is unknown.
    ///
    /// # Errors
    /// Errors of `write`.
    pub fn stop(&mut self, added: &[Key], rest: Batch) -> io::Result<()> {
        let line = Line::Added(added.iter().map(Key::to_string).collect());
        // One write: a kill between the two would leave the rest out.
        self.file.write_all((line.to_text()? + &Line::Batch(rest.clone()).to_text()?).as_bytes())?;
        self.added.extend(added.iter().map(|key| (*key, self.uid_validity)));
        self.in_doubt = Some(rest);
        Ok(())
    }

    /// Makes the whole record durable: source files may be removed.
    ///
    /// # Errors
    /// Errors of `fdatasync`.
    pub fn sync(&self) -> io::Result<()> {
        Ok(posthaste_fsops::fdatasync(&self.file)?)
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        self.file.write_all(line.to_text()?.as_bytes())
    }
}

/// Opens the directory of all records, which belongs to the owner of the data.
fn open_directory(data: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let at = |error: Errno| io::Error::new(io::Error::from(error).kind(), format!("{}: {error}", data.display()));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = openat(CWD, data, flags, Mode::empty()).map_err(at)?;
    match mkdirat(&above, DIRECTORY, Mode::RWXU) {
        Ok(()) => posthaste_fsops::fsync(&above)?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(at(error)),
    }
    let dir = openat(&above, DIRECTORY, flags | OFlags::NOFOLLOW, Mode::empty()).map_err(at)?;
    own(&above, &dir)?;
    Ok((dir, data.join(DIRECTORY)))
}

/// Gives a file or directory made by root to the owner of its directory.
fn own(above: impl AsFd, made: impl AsFd) -> io::Result<()> {
    let above = rustix::fs::fstat(above)?;
    let stat = rustix::fs::fstat(&made)?;
    if (above.st_uid, above.st_gid) != (stat.st_uid, stat.st_gid) && rustix::process::geteuid().is_root() {
        fchown(made, Some(Uid::from_raw(above.st_uid)), Some(Gid::from_raw(above.st_gid)))?;
    }
    Ok(())
}

/// Removes records that were not used for long. Unreadable ones stay.
fn remove_old(dir: &OwnedFd) {
    let Ok(entries) = Dir::read_from(dir) else { return };
    let oldest =
        SystemTime::now().checked_sub(AGE_MAX).and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_record = name.to_bytes().len() == 32 && name.to_bytes().iter().all(u8::is_ascii_hexdigit);
        let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let secs = u64::try_from(stat.st_mtime).unwrap_or(u64::MAX);
        if is_record && oldest.is_some_and(|oldest| secs < oldest.as_secs()) {
            let _ = unlinkat(dir, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(messages: &[(&Key, &str)]) -> Batch {
        let messages = messages.iter().map(|(key, sha256)| (key.to_string(), (*sha256).to_owned())).collect();
        Batch { mailbox: "a".to_owned(), uid_validity: 1, from: 5, messages }
    }

    #[test]
    fn a_record_knows_what_was_added_wherever_it_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Journal::open(dir.path(), dir.path(), "ann", "INBOX");
        let keys = ["x", "y", "z"].map(|sha256| Key::new(&[b"a"], sha256));
        let mut journal = open().unwrap();
        assert!(open().is_err(), "two at a time");
        journal.begin(batch(&[(&keys[0], "x"), (&keys[1], "y")])).unwrap();
        journal.end(&[keys[0]]).unwrap();
        journal.begin(batch(&[(&keys[2], "z")])).unwrap();
        drop(journal);
        let path = std::fs::read_dir(dir.path().join("imports")).unwrap().next().unwrap().unwrap().path();
        let whole = std::fs::read(&path).unwrap();
        let ends: Vec<usize> =
            whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
        for len in 0..=whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let mut journal = open().unwrap();
            let lines = ends.iter().filter(|end| **end <= len).count();
            let expected = [None, Some(2), None, Some(1)][lines];
            assert_eq!(journal.in_doubt.as_ref().map(|batch| batch.messages.len()), expected, "{len}");
            assert_eq!(journal.has(&keys[0], 1), lines >= 2, "{len}");
            assert!(!journal.has(&keys[0], 2) && !journal.has(&keys[1], 1) && !journal.has(&keys[2], 1));
            journal.begin(batch(&[(&keys[2], "z")])).unwrap();
            journal.end(&[keys[2]]).unwrap();
            drop(journal);
            assert!(open().unwrap().has(&keys[2], 1), "{len}");
        }
    }

    #[test]
    fn a_stopped_batch_is_in_doubt_without_its_added_messages() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Journal::open(dir.path(), dir.path(), "ann", "INBOX");
        let keys = ["x", "y"].map(|sha256| Key::new(&[b"a"], sha256));
        let mut journal = open().unwrap();
        journal.begin(batch(&[(&keys[0], "x"), (&keys[1], "y")])).unwrap();
        journal.begun().unwrap();
        let rest = Batch { from: 6, ..batch(&[(&keys[1], "y")]) };
        journal.stop(&keys[..1], rest.clone()).unwrap();
        for _ in 0..2 {
            assert!(journal.has(&keys[0], 1) && !journal.has(&keys[1], 1));
            assert_eq!(journal.in_doubt, Some(rest.clone()));
            drop(journal);
            journal = open().unwrap();
        }
    }

    #[test]
    fn places_and_octets_make_a_key() {
        let key = Key::new(&[b"a", b"b"], "x");
        assert_ne!(key, Key::new(&[b"ab", b""], "x"));
        assert_ne!(key, Key::new(&[b"a", b"b"], "y"));
        assert_eq!(Key::parse(&key.to_string()), Some(key));
    }

    #[test]
    fn a_damaged_record_stops_the_import() {
        let dir = tempfile::tempdir().unwrap();
        drop(Journal::open(dir.path(), dir.path(), "ann", "INBOX").unwrap());
        let path = std::fs::read_dir(dir.path().join("imports")).unwrap().next().unwrap().unwrap().path();
        let key = Key::new(&[b"a"], "x");
        let lines = [Line::Batch(batch(&[(&key, "x")])), Line::Added(vec![key.to_string()]), Line::Added(Vec::new())];
        let lines = lines.map(|line| line.to_text().unwrap());
        let open = || Journal::open(dir.path(), dir.path(), "ann", "INBOX");
        // The last line is of either kind.
        for count in 1..=lines.len() {
            let whole = lines[..count].concat().into_bytes();
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                std::fs::write(&path, &bytes).unwrap();
                let error = open().err().unwrap_or_else(|| panic!("bit {bit} of {count} lines"));
                assert!(error.to_string().contains("it is damaged"), "{error}");
                assert_eq!(std::fs::read(&path).unwrap(), bytes, "it is left as it is");
            }
            std::fs::write(&path, whole).unwrap();
            assert_eq!(open().unwrap().has(&key, 1), count > 1);
        }
    }

    #[test]
    fn a_last_line_that_was_written_in_part_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Journal::open(dir.path(), dir.path(), "ann", "INBOX");
        drop(open().unwrap());
        let path = std::fs::read_dir(dir.path().join("imports")).unwrap().next().unwrap().unwrap().path();
        let keys: Vec<Key> = (0..100).map(|number: u8| Key::new(&[&[number]], "x")).collect();
        let first = Line::Batch(batch(&[(&keys[0], "x")])).to_text().unwrap();
        let last = Line::Added(keys.iter().map(Key::to_string).collect()).to_text().unwrap();
        // Of blocks of 512 octets some reached the disk, and the file has its length.
        let blocks = last.len().div_ceil(512);
        for written in 0..(1 << blocks) - 1 {
            let mut bytes = last.clone().into_bytes();
            for (at, block) in bytes.chunks_mut(512).enumerate().filter(|(at, _)| (written >> at) & 1 == 0) {
                assert!(block.len() >= UNWRITTEN.len(), "block {at}");
                block.fill(0);
            }
            std::fs::write(&path, [first.as_bytes(), &bytes].concat()).unwrap();
            let journal = open().unwrap_or_else(|error| panic!("{written:b}: {error}"));
            assert!(journal.in_doubt.is_some() && !journal.has(&keys[0], 1));
            drop(journal);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        }
        // Its first octets ended a block.
        std::fs::write(&path, [first.as_bytes(), &[0; 3], &last.as_bytes()[3..]].concat()).unwrap();
        assert!(open().unwrap().in_doubt.is_some());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    }
}
