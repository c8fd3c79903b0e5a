//! The header fields that clients list, the structure of messages, and values for searches, in a separate file. So
//! ENVELOPE, SORT, THREAD, SEARCH of common fields and BODYSTRUCTURE open no message.
//!
//! All content can be rebuilt from the mail. The file is written without a sync and is valid for one boot: the next
//! boot and any error start with an empty file. An entry is valid for the file that it was made of (inode, size, time
//! of change).

mod database;
mod entry;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use posthaste_maildir::tree::FileFacts;

use self::database::{CacheDatabase, CacheError, CacheRead, Entries};
use self::entry::{CachedKind, Key, entry_of, key_of, listed_fields, value_of};
use crate::store::KeptKind;

/// The cache's file beside the table.
pub const HEADER_CACHE_FILE: &str = "cache.redb";

/// Maximum octets of one entry; a longer header is read from its message.
const ENTRY_BYTES_MAX: usize = 64 << 10;
/// Octets that trigger a commit.
const COMMIT_BYTES: usize = 1 << 20;
/// Maximum waiting octets, also during a commit. Further entries are dropped.
const WAITING_BYTES_MAX: usize = 4 * COMMIT_BYTES;
/// Minimum size of the cache, even with little mail.
const CACHE_BYTES_MIN: u64 = 256 << 20;
/// The cache may use one octet for this number of octets of mail.
const MAIL_BYTES_FOR_ONE: u64 = 20;

/// Returns the octets of all mail.
pub(super) type MailBytes = dyn Fn() -> u64 + Send + Sync;

/// The cache of a store. Calls block.
pub(super) struct HeaderCache {
    file: Option<CacheFile>,
    state: Mutex<CacheState>,
    /// Read transactions so far.
    #[cfg(test)]
    reads: std::sync::atomic::AtomicU32,
}

struct CacheFile {
    path: PathBuf,
    /// [`CACHE_BYTES_MIN`], but for tests.
    bytes_min: u64,
    mail_bytes: Box<MailBytes>,
}

/// Locked briefly: never during a call into the database, so that readers do not wait for a commit.
#[derive(Default)]
struct CacheState {
    database: Option<Arc<CacheDatabase>>,
    /// Entries of the next commit.
    waiting: Entries,
    waiting_bytes: usize,
    /// Entries of the running commit.
    committing: Option<Arc<Entries>>,
    /// A caller of [`HeaderCache::takes_commit`] is about to commit.
    is_commit_taken: bool,
    /// Octets of all entries in the database.
    bytes: u64,
}

/// Reads headers from one state of the cache, for one batch of messages: the file keeps that state's pages until it is
/// dropped.
pub(super) struct HeaderReader<'c> {
    cache: &'c HeaderCache,
    /// Begun by the first message that needs it.
    read: Option<CacheRead>,
}

impl HeaderCache {
    /// A cache that stores nothing.
    pub fn none() -> Self {
        Self::with(None, CacheState::default())
    }

    /// Opens the file, or creates it if it is unusable.
    pub fn open(path: PathBuf, mail_bytes: Box<MailBytes>) -> Self {
        Self::open_with(CacheFile { path, bytes_min: CACHE_BYTES_MIN, mail_bytes })
    }

    fn open_with(file: CacheFile) -> Self {
        let opened = CacheDatabase::open(&file.path).or_else(|_| CacheDatabase::create(&file.path));
        let (database, bytes) = match opened {
            Ok((database, bytes)) => (Some(Arc::new(database)), bytes),
            Err(error) => {
                tracing::warn!(path = %file.path.display(), error = error.0, "no cache of headers: lists of messages are slower");
                (None, 0)
            }
        };
        Self::with(Some(file), CacheState { database, bytes, ..CacheState::default() })
    }

    fn with(file: Option<CacheFile>, state: CacheState) -> Self {
        Self {
            file,
            state: Mutex::new(state),
            #[cfg(test)]
            reads: std::sync::atomic::AtomicU32::new(0),
        }
    }

    pub fn reader(&self) -> HeaderReader<'_> {
        HeaderReader { cache: self, read: None }
    }

    /// Caches the listed fields of a header, and returns them. A malformed header is returned whole: without some lines
    /// its meaning might change. The caller commits when that [is due](Self::takes_commit).
    pub fn put(&self, body: (u64, u16), facts: &FileFacts, header: Bytes) -> Bytes {
        let (Some(_), Some(fields)) = (&self.file, listed_fields(&header)) else { return header };
        self.add(key_of(body, CachedKind::Fields), facts, &fields);
        fields
    }

    /// Stores data that a protocol has made of a message. Like [`put`](Self::put), it may require a commit.
    pub fn keep(&self, kind: KeptKind, body: (u64, u16), facts: &FileFacts, made: &[u8]) {
        if self.file.is_some() {
            self.add(key_of(body, kind.into()), facts, made);
        }
    }

    fn add(&self, key: Key, facts: &FileFacts, value: &[u8]) {
        if value.len() <= ENTRY_BYTES_MAX {
            self.lock().add(key, entry_of(&key, facts, value));
        }
    }

    /// True if enough entries wait for a commit; the caller must then commit. True once for each commit, so that no
    /// second thread is started.
    pub fn takes_commit(&self) -> bool {
        let mut state = self.lock();
        let is_due = state.waiting_bytes > COMMIT_BYTES && state.committing.is_none();
        is_due && !std::mem::replace(&mut state.is_commit_taken, true)
    }

    /// Commits waiting entries, unless a commit runs.
    pub fn commit(&self) {
        let (database, entries, before) = {
            let mut state = self.lock();
            state.is_commit_taken = false;
            let (Some(database), None) = (state.database.clone(), &state.committing) else { return };
            let entries = Arc::new(std::mem::take(&mut state.waiting));
            state.waiting_bytes = 0;
            state.committing = Some(Arc::clone(&entries));
            (database, entries, state.bytes)
        };
        let Some(file) = &self.file else { return };
        let written = database.write(&entries, before, |bytes| file.bytes_max(bytes));
        {
            let mut state = self.lock();
            state.committing = None;
            // Not into the count of a file that was made anew meanwhile.
            if let (Ok(bytes), true) = (&written, state.is_of(&database)) {
                state.bytes = *bytes;
            }
        }
        if let Err(error) = written {
            self.begin_anew(&database, &error);
        }
    }

    /// Replaces a failed file by an empty one; the first caller to see the failure does it.
    fn begin_anew(&self, failed: &Arc<CacheDatabase>, error: &CacheError) {
        let Some(file) = &self.file else { return };
        {
            let mut state = self.lock();
            if !state.is_of(failed) {
                return;
            }
            *state = CacheState { committing: state.committing.take(), ..CacheState::default() };
        }
        tracing::warn!(path = %file.path.display(), error = error.0, "the cache of headers was unusable: starting an empty one");
        if let Ok((database, bytes)) = CacheDatabase::create(&file.path) {
            let mut state = self.lock();
            (state.database, state.bytes) = (Some(Arc::new(database)), bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        // At worst an entry is missing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeaderReader<'_> {
    /// The listed fields of a message, if they were read from this very file.
    pub fn get(&mut self, body: (u64, u16), facts: &FileFacts) -> Option<Bytes> {
        self.find(&key_of(body, CachedKind::Fields), facts)
    }

    /// Cached data of a message, if they were made of the same file.
    pub fn kept(&mut self, kind: KeptKind, body: (u64, u16), facts: &FileFacts) -> Option<Bytes> {
        self.find(&key_of(body, kind.into()), facts)
    }

    fn find(&mut self, key: &Key, facts: &FileFacts) -> Option<Bytes> {
        let database = {
            let state = self.cache.lock();
            if let Some(entry) = state.not_yet_committed(key) {
                return value_of(key, entry, facts);
            }
            state.database.clone()?
        };
        let found = match &mut self.read {
            Some(read) => read.get(key, facts),
            None => self.begin(&database).and_then(|read| read.get(key, facts)),
        };
        found.unwrap_or_else(|error| {
            let failed = self.read.take().map_or(database, |read| Arc::clone(read.database()));
            self.cache.begin_anew(&failed, &error);
            None
        })
    }

    fn begin(&mut self, database: &Arc<CacheDatabase>) -> Result<&mut CacheRead, CacheError> {
        #[cfg(test)]
        self.cache.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(self.read.insert(database.read()?))
    }
}

impl CacheState {
    /// Adds an entry, if it has room.
    fn add(&mut self, key: Key, entry: Vec<u8>) {
        if self.database.is_some() && self.waiting_bytes <= WAITING_BYTES_MAX {
            self.waiting_bytes += entry.len();
            self.waiting.insert(key, entry);
        }
    }

    fn is_of(&self, database: &Arc<CacheDatabase>) -> bool {
        self.database.as_ref().is_some_and(|current| Arc::ptr_eq(current, database))
    }

    fn not_yet_committed(&self, key: &Key) -> Option<&Vec<u8>> {
        self.waiting.get(key).or_else(|| self.committing.as_ref()?.get(key))
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
        self.commit();
    }
}
