//! The header fields that clients list, in a file of their own: ENVELOPE and SORT open no message.
//!
//! The mail has all that is in it. The file is written without a sync and holds for one boot of the machine: the next boot and any error begin with an empty file.
//! An entry counts for the very file that it was made of (inode, size, time of change).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use posthaste_maildir::tree::FileFacts;
use posthaste_message::mime::{Header, is_listed_field};
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, RepairSession, StorageBackend, TableDefinition};

/// The cache's file beside the table.
pub const HEADER_CACHE_FILE: &str = "cache.redb";

/// Octets of one entry; a longer header is read from its message.
const ENTRY_BYTES_MAX: usize = 64 << 10;
/// Octets that wait for a commit.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Octets of pages that the database keeps in memory.
const PAGES_BYTES: usize = 16 << 20;
/// Octets that all entries may have, however little mail there is.
const CACHE_BYTES_MIN: u64 = 256 << 20;
/// With more mail they may have one in so many of its octets.
const MAIL_BYTES_FOR_ONE: u64 = 20;

/// Batch and number of a body (big-endian) → facts of the file, fields, CRC-32C over key and value.
const HEADERS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("headers");
/// The boot for which the entries count, and octets of all of them.
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");

type Key = [u8; 10];
/// Says how many octets all mail has.
pub(super) type MailBytes = dyn Fn() -> u64 + Send + Sync;

/// The cache of a store. Calls block.
pub(super) struct HeaderCache {
    file: Option<CacheFile>,
    inner: Mutex<Inner>,
}

struct CacheFile {
    path: PathBuf,
    /// [`CACHE_BYTES_MIN`], but for tests.
    bytes_min: u64,
    mail_bytes: Box<MailBytes>,
}

#[derive(Default)]
struct Inner {
    database: Option<Database>,
    /// Entries of the next commit.
    waiting: HashMap<Key, Vec<u8>>,
    waiting_bytes: usize,
    /// Octets of all entries in the database.
    bytes: u64,
}

impl HeaderCache {
    /// Remembers nothing.
    pub fn none() -> Self {
        Self { file: None, inner: Mutex::default() }
    }

    /// Opens the file, or makes it anew if it cannot be used.
    pub fn open(path: PathBuf, mail_bytes: Box<MailBytes>) -> Self {
        Self::open_with(CacheFile { path, bytes_min: CACHE_BYTES_MIN, mail_bytes })
    }

    fn open_with(file: CacheFile) -> Self {
        let opened = guarded(|| open(&file.path)).or_else(|_| guarded(|| create(&file.path)));
        let (database, bytes) = match opened {
            Ok((database, bytes)) => (Some(database), bytes),
            Err(error) => {
                tracing::warn!(path = %file.path.display(), error = error.0, "no cache of headers: lists of messages are slower");
                (None, 0)
            }
        };
        Self { file: Some(file), inner: Mutex::new(Inner { database, bytes, ..Inner::default() }) }
    }

    /// The listed fields of a message, if they were read from this very file.
    pub fn get(&self, body: (u64, u16), facts: &FileFacts) -> Option<Bytes> {
        let key = key_of(body);
        let mut inner = self.lock();
        if let Some(entry) = inner.waiting.get(&key) {
            return fields_of(&key, entry, facts);
        }
        let found = guarded(|| {
            let Some(database) = &inner.database else { return Ok(None) };
            let table = database.begin_read()?.open_table(HEADERS)?;
            Ok(table.get(&key[..])?.and_then(|entry| fields_of(&key, entry.value(), facts)))
        });
        found.unwrap_or_else(|error| {
            self.begin_anew(&mut inner, &error);
            None
        })
    }

    /// Remembers the listed fields of a header, and gives them. A header in bad form is given whole: without some of its lines it might mean something else.
    pub fn put(&self, body: (u64, u16), facts: &FileFacts, header: Bytes) -> Bytes {
        let (Some(_), Some(fields)) = (&self.file, listed_fields(&header)) else { return header };
        if fields.len() <= ENTRY_BYTES_MAX {
            let key = key_of(body);
            let entry = entry_of(&key, facts, &fields);
            let mut inner = self.lock();
            inner.waiting_bytes += entry.len();
            inner.waiting.insert(key, entry);
            if inner.waiting_bytes > WAITING_BYTES_MAX {
                self.commit(&mut inner);
            }
        }
        fields
    }

    fn commit(&self, inner: &mut Inner) {
        let waiting = std::mem::take(&mut inner.waiting);
        inner.waiting_bytes = 0;
        let (Some(database), Some(file), before) = (&inner.database, &self.file, inner.bytes) else { return };
        match guarded(|| write(database, &waiting, before, |bytes| file.bytes_max(bytes))) {
            Ok(bytes) => inner.bytes = bytes,
            Err(error) => self.begin_anew(inner, &error),
        }
    }

    fn begin_anew(&self, inner: &mut Inner, error: &CacheError) {
        let Some(file) = &self.file else { return };
        tracing::warn!(path = %file.path.display(), error = error.0, "the cache of headers is made anew");
        close(std::mem::take(inner));
        if let Ok((database, bytes)) = guarded(|| create(&file.path)) {
            (inner.database, inner.bytes) = (Some(database), bytes);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // At worst an entry is missing.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheFile {
    /// Octets that entries may have, if they have `bytes` now.
    fn bytes_max(&self, bytes: u64) -> u64 {
        if bytes <= self.bytes_min {
            return self.bytes_min;
        }
        self.bytes_min.max((self.mail_bytes)() / MAIL_BYTES_FOR_ONE)
    }
}

impl Drop for HeaderCache {
    fn drop(&mut self) {
        let mut inner = std::mem::take(&mut *self.lock());
        self.commit(&mut inner);
        close(inner);
    }
}

/// The database writes when it is closed, and may find damage then.
fn close(inner: Inner) {
    let _ = guarded(|| {
        drop(inner);
        Ok(())
    });
}

/// The reason why the file cannot be used, in words.
#[derive(Debug)]
struct CacheError(String);

impl<E: std::fmt::Display> From<E> for CacheError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// A database that is damaged may panic: that ends with the cache.
fn guarded<T>(work: impl FnOnce() -> Result<T, CacheError>) -> Result<T, CacheError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(CacheError::from("the database panicked")))
}

/// A file that is never synced.
#[derive(Debug)]
struct Unsynced(FileBackend);

impl StorageBackend for Unsynced {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

fn open(path: &Path) -> Result<(Database, u64), CacheError> {
    let database = database_of(File::options().read(true).write(true).open(path)?)?;
    let state = database.begin_read()?.open_table(STATE)?;
    let is_current = state.get("boot")?.is_some_and(|boot| boot.value() == boot_id().as_bytes());
    let bytes = state.get("bytes")?.and_then(|bytes| Some(u64::from_le_bytes(bytes.value().try_into().ok()?)));
    match bytes {
        Some(bytes) if is_current => Ok((database, bytes)),
        _ => Err(CacheError::from("of another boot")),
    }
}

fn create(path: &Path) -> Result<(Database, u64), CacheError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let database = database_of(File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?)?;
    write(&database, &HashMap::new(), 0, |_| u64::MAX)?;
    Ok((database, 0))
}

fn database_of(file: File) -> Result<Database, CacheError> {
    let mut builder = Database::builder();
    // A repair would read all of the file before the first session: to begin anew costs less.
    builder.set_cache_size(PAGES_BYTES).set_repair_callback(RepairSession::abort);
    Ok(builder.create_with_backend(Unsynced(FileBackend::new(file)?))?)
}

/// Adds entries. Says how many octets all of them have. The oldest mail goes first: clients list the newest, and a list of all of
/// a mailbox that does not fit in keeps what is there.
fn write(
    database: &Database,
    entries: &HashMap<Key, Vec<u8>>,
    mut bytes: u64,
    bytes_max: impl FnOnce(u64) -> u64,
) -> Result<u64, CacheError> {
    let mut transaction = database.begin_write()?;
    // So that the file opens at once after a kill.
    transaction.set_quick_repair(true);
    {
        let mut table = transaction.open_table(HEADERS)?;
        for (key, entry) in entries {
            let old = table.insert(&key[..], &entry[..])?.map_or(0, |old| old.value().len());
            bytes = (bytes + entry.len() as u64).saturating_sub(old as u64);
        }
        let bytes_max = bytes_max(bytes);
        while bytes > bytes_max {
            let Some(oldest) = table.pop_first()? else { break };
            bytes = bytes.saturating_sub(oldest.1.value().len() as u64);
        }
        let mut state = transaction.open_table(STATE)?;
        state.insert("boot", boot_id().as_bytes())?;
        state.insert("bytes", &bytes.to_le_bytes()[..])?;
    }
    transaction.commit()?;
    Ok(bytes)
}

/// Another one after each start of the machine; empty if it cannot be known.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn key_of((lsn, target): (u64, u16)) -> Key {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&lsn.to_be_bytes());
    key[8..].copy_from_slice(&target.to_be_bytes());
    key
}

const FACTS_BYTES: usize = 24;

fn facts_of(facts: &FileFacts) -> [u8; FACTS_BYTES] {
    let mut octets = [0; FACTS_BYTES];
    octets[..8].copy_from_slice(&facts.inode.to_le_bytes());
    octets[8..16].copy_from_slice(&facts.size.to_le_bytes());
    octets[16..].copy_from_slice(&facts.mtime_ns.to_le_bytes());
    octets
}

fn entry_of(key: &Key, facts: &FileFacts, fields: &[u8]) -> Vec<u8> {
    let mut entry = [&facts_of(facts)[..], fields].concat();
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &entry);
    entry.extend_from_slice(&crc.to_le_bytes());
    entry
}

/// `None`: the entry is damaged, or of another file.
fn fields_of(key: &Key, entry: &[u8], facts: &FileFacts) -> Option<Bytes> {
    let (entry, crc) = entry.split_last_chunk::<4>()?;
    let is_sound = crc32c::crc32c_append(crc32c::crc32c(key), entry) == u32::from_le_bytes(*crc);
    let (known, fields) = entry.split_first_chunk::<FACTS_BYTES>()?;
    (is_sound && *known == facts_of(facts)).then(|| Bytes::copy_from_slice(fields))
}

/// The listed fields as they stand, and the empty line. `None` unless the header is fields from its first octet to its empty line.
fn listed_fields(header: &Bytes) -> Option<Bytes> {
    let (mut fields, mut end) = (Vec::new(), 0);
    for field in Header::new(header).fields() {
        if field.start != end {
            return None;
        }
        end = field.end;
        if is_listed_field(field.name) {
            fields.extend_from_slice(&header[field.start..field.end]);
        }
    }
    fields.extend_from_slice(b"\r\n");
    (end > 0 && header[end..] == *b"\r\n").then(|| fields.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = b"Received: x\r\nSubject: one\r\n two\r\nX-Other: y\r\nTo: a@b\r\nto: c@d\r\n\r\n";
    const FIELDS: &[u8] = b"Subject: one\r\n two\r\nTo: a@b\r\nto: c@d\r\n\r\n";
    const FACTS: FileFacts = FileFacts { inode: 7, size: 100, mtime_ns: 5 };

    const MAIL: u64 = 40_000;

    fn cache_of(path: &Path, bytes_min: u64) -> HeaderCache {
        HeaderCache::open_with(CacheFile { path: path.to_owned(), bytes_min, mail_bytes: Box::new(|| MAIL) })
    }

    fn header_of(octets: usize) -> Bytes {
        [b"Subject: ", &b"x".repeat(octets)[..], b"\r\n\r\n"].concat().into()
    }

    #[test]
    fn fields_are_those_of_the_very_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HEADER_CACHE_FILE);
        let cache = HeaderCache::open(path.clone(), Box::new(|| 0));
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap()) & 0o777, 0o600);
        assert_eq!(cache.get((1, 2), &FACTS), None);
        assert_eq!(cache.put((1, 2), &FACTS, Bytes::from_static(HEADER)), FIELDS);
        let check = |cache: &HeaderCache| {
            assert_eq!(cache.get((1, 2), &FACTS).as_deref(), Some(FIELDS));
            assert_eq!(cache.get((1, 3), &FACTS), None);
            for other in
                [FileFacts { inode: 8, ..FACTS }, FileFacts { size: 99, ..FACTS }, FileFacts { mtime_ns: 6, ..FACTS }]
            {
                assert_eq!(cache.get((1, 2), &other), None, "{other:?}");
            }
        };
        check(&cache);
        drop(cache);
        check(&cache_of(&path, CACHE_BYTES_MIN));
    }

    #[test]
    fn a_header_in_bad_form_is_given_whole() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache_of(&dir.path().join(HEADER_CACHE_FILE), CACHE_BYTES_MIN);
        for header in [
            &b""[..],
            b"\r\n",
            b"no field\r\nSubject: one\r\n\r\n",
            b"Subject: one\r\nno field\r\nTo: a@b\r\n\r\n",
            b" Subject: one\r\n\r\n",
            b"Subject: one\r\n",
            b"Subject: one",
            b"Subject: one\n\n",
        ] {
            assert_eq!(cache.put((1, 1), &FACTS, Bytes::from_static(header)), header);
            assert_eq!(cache.get((1, 1), &FACTS), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn listed_fields_say_what_they_say_in_the_header(
            lines in proptest::collection::vec("(Subject|X-A|to|From |Date)?:? ?[a-c:]{0,3}(\r\n|\n|\r\n )", 0..6),
        ) {
            let header = Bytes::from(lines.concat() + "\r\n");
            if let Some(listed) = listed_fields(&header) {
                let of = |header: &Bytes| -> Vec<(Vec<u8>, Vec<u8>)> {
                    let fields = Header::new(header).fields().filter(|field| is_listed_field(field.name));
                    fields.map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
                };
                proptest::prop_assert_eq!(of(&listed), of(&header));
            }
        }
    }

    #[test]
    fn a_file_that_is_damaged_or_of_another_boot_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HEADER_CACHE_FILE);
        for damage in [&b"no database"[..], b""] {
            std::fs::write(&path, damage).unwrap();
            cache_of(&path, CACHE_BYTES_MIN).put((1, 1), &FACTS, Bytes::from_static(HEADER));
            assert!(cache_of(&path, CACHE_BYTES_MIN).get((1, 1), &FACTS).is_some());
        }
        let (database, _) = open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(STATE).unwrap().insert("boot", &b"another"[..]).unwrap();
        transaction.commit().unwrap();
        drop(database);
        assert_eq!(cache_of(&path, CACHE_BYTES_MIN).get((1, 1), &FACTS), None);
    }

    #[test]
    fn what_was_committed_is_there_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let (path, killed) = (dir.path().join(HEADER_CACHE_FILE), dir.path().join("killed"));
        let cache = cache_of(&path, CACHE_BYTES_MIN);
        for n in 0..300 {
            cache.put((n, 0), &FACTS, header_of(10_000));
        }
        // As a kill leaves it: nobody has closed it.
        std::fs::copy(&path, &killed).unwrap();
        let after = cache_of(&killed, CACHE_BYTES_MIN);
        assert_eq!(after.lock().bytes, cache.lock().bytes);
        let found = (0..300).filter(|n| after.get((*n, 0), &FACTS).is_some()).count();
        assert_eq!(found, 300 - cache.lock().waiting.len());
    }

    #[test]
    fn damage_anywhere_costs_entries_and_gives_no_other_fields() {
        let dir = tempfile::tempdir().unwrap();
        let (path, damaged) = (dir.path().join(HEADER_CACHE_FILE), dir.path().join("damaged"));
        let cache = cache_of(&path, CACHE_BYTES_MIN);
        let header = |n: u64| Bytes::from(format!("Subject: {n} {}\r\n\r\n", "x".repeat(200)));
        (0..200).for_each(|n| drop(cache.put((n, 0), &FACTS, header(n))));
        drop(cache);
        let whole = std::fs::read(&path).unwrap();
        let used = whole.iter().rposition(|octet| *octet != 0).unwrap();
        for seed in 0..300_u64 {
            let mut random = posthaste_random::Random::new(seed);
            let mut octets = whole.clone();
            for _ in 0..1 + seed % 4 {
                // Half of them in the pages that say where others are.
                let within = if seed % 2 == 0 { used.min(16 << 10) } else { used };
                octets[usize::try_from(random.below(within as u64)).unwrap()] ^= 1 << random.below(8);
            }
            std::fs::write(&damaged, octets).unwrap();
            let cache = cache_of(&damaged, CACHE_BYTES_MIN);
            for n in 0..200 {
                let found = cache.get((n, 0), &FACTS);
                assert!(found.is_none_or(|found| found == header(n)), "seed {seed}: message {n}");
            }
            assert_eq!(cache.put((1, 0), &FACTS, header(1)), header(1), "seed {seed}");
        }
    }

    #[test]
    fn many_entries_wait_in_little_memory() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache_of(&dir.path().join(HEADER_CACHE_FILE), CACHE_BYTES_MIN);
        for n in 0..500 {
            cache.put((n, 0), &FACTS, header_of(10_000));
            assert!(cache.lock().waiting_bytes <= WAITING_BYTES_MAX + 20_000);
        }
        assert!((0..500).all(|n| cache.get((n, 0), &FACTS).is_some()));
        assert_eq!(cache.put((1000, 0), &FACTS, header_of(ENTRY_BYTES_MAX)), header_of(ENTRY_BYTES_MAX));
        assert_eq!(cache.get((1000, 0), &FACTS), None);
    }

    #[test]
    fn the_oldest_mail_goes_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(HEADER_CACHE_FILE);
        // The least may be less than one in twenty of the mail, or more.
        for (bytes_min, bytes_max) in [(1000, MAIL / MAIL_BYTES_FOR_ONE), (5000, 5000)] {
            let _ = std::fs::remove_file(&path);
            let cache = cache_of(&path, bytes_min);
            (0..100).for_each(|n| drop(cache.put((n, 0), &FACTS, header_of(100))));
            drop(cache);
            let cache = cache_of(&path, bytes_min);
            let found: Vec<u64> = (0..100).filter(|n| cache.get((*n, 0), &FACTS).is_some()).collect();
            let entry = entry_of(&key_of((0, 0)), &FACTS, &header_of(100)).len() as u64;
            assert_eq!(found, (100 - bytes_max / entry..100).collect::<Vec<_>>());
            assert!(cache.lock().bytes <= bytes_max);
        }
    }
}
