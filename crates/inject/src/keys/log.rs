//! The stream of idempotency keys: applies entries of batches to the table, and writes snapshots of it.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use posthaste_consumer::{
    AttachedStream, Pulse, ReplayedEntry, StreamHandle, StreamOpenError, StreamState, StreamThread,
};
use posthaste_spool::{Consumer, Damage, Entry, Lsn, Published, Released, SnapshotName, Spool};

use super::entry::{BodyDigest, KeyId, Settled};
use super::table::{FoundKey, KeyClock, KeyRefusal, KeyTable};

/// The name of the stream.
pub const KEY_STREAM: &str = "inject";
/// Name of the table in errors of an opening.
const KEYS: &str = "the keys of requests";
/// Maximum keys of all tokens, of about 100 bytes each.
const KEYS_MAX: usize = 1_000_000;

/// Idempotency keys, durable together with their mail.
#[derive(Debug)]
pub struct KeyLog {
    shared: Arc<Shared>,
    attached: AttachedStream,
    thread: Mutex<Option<StreamThread>>,
}

struct Shared {
    stream: StreamHandle,
    table: Arc<KeyTable>,
    clock: KeyClock,
    progress: Mutex<Progress>,
    changed: Condvar,
    /// Counter for the names of snapshots.
    snapshots: AtomicU64,
}

#[derive(Debug, Default)]
struct Progress {
    /// Last batch that the table has.
    seen: Lsn,
    /// Last batch that a snapshot has.
    written: Lsn,
    /// The spool asked the stream to advance: write a snapshot before the next one is due.
    is_wanted: bool,
    is_over: bool,
}

/// Damage found by [`KeyLog::open`].
#[derive(Debug, Default)]
pub struct KeyReport {
    /// Snapshots that are missing or damaged.
    pub unreadable: Vec<Damage>,
    /// Unreadable batches, and those of another version.
    pub damaged: Vec<Lsn>,
    /// Keys of batches up to this one may be lost.
    pub uncertain: Option<Lsn>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("stream", &self.stream).finish_non_exhaustive()
    }
}

/// The table while [`KeyLog::open`] applies entries.
struct Restoring<'a> {
    table: &'a KeyTable,
    report: &'a mut KeyReport,
}

impl StreamState for Restoring<'_> {
    type Error = StreamOpenError;

    fn apply(&mut self, ReplayedEntry { lsn, payload, .. }: ReplayedEntry<'_>) -> Result<(), StreamOpenError> {
        match Settled::decode(payload) {
            Some(settled) => self.table.apply(settled, BEFORE),
            None => self.report.damaged.push(lsn),
        }
        Ok(())
    }

    fn damaged(&mut self, lsn: Lsn) -> Result<(), StreamOpenError> {
        self.report.damaged.push(lsn);
        Ok(())
    }

    fn uncertain(&mut self, _: &StreamHandle, through: Lsn) {
        self.report.uncertain = Some(through);
    }
}

impl KeyLog {
    /// Loads the keys of the last day. Blocks.
    ///
    /// # Errors
    /// See [`StreamOpenError`].
    pub fn open(spool: Arc<dyn Spool>) -> Result<(Self, KeyReport), StreamOpenError> {
        let table = Arc::new(KeyTable::new(KEYS_MAX));
        let stream = StreamHandle::register(spool, KEY_STREAM)?;
        let restored = stream.spool().restore(stream.id())?;
        let mut report = KeyReport { unreadable: restored.unreadable, ..KeyReport::default() };
        if let Some(mut snapshot) = restored.snapshot {
            read_snapshot(&mut snapshot, |settled| table.apply(settled, BEFORE)).map_err(StreamOpenError::io(KEYS))?;
            table.sort();
        }
        let replayed = stream.clone().replay(&mut Restoring { table: &table, report: &mut report })?;
        // Only now it is known how late it is.
        let clock = KeyClock::start(table.latest(), unix_secs(), Instant::now());
        let progress = Progress { seen: replayed.through(), written: stream.position().0, ..Progress::default() };
        let progress = Mutex::new(progress);
        let changed = Condvar::new();
        let shared = Arc::new(Shared { stream, table, clock, progress, changed, snapshots: AtomicU64::new(0) });
        let attached = replayed.attach(Arc::clone(&shared) as _)?;
        let of_thread = Arc::clone(&shared);
        let thread = shared.stream.start_thread("inject-keys", STEPS, move |pulse| of_thread.run(pulse));
        let thread = thread.map_err(StreamOpenError::io(KEYS))?;
        Ok((Self { shared, attached, thread: Mutex::new(Some(thread)) }, report))
    }

    /// Begins a request with an idempotency key.
    ///
    /// # Errors
    /// See [`KeyRefusal`].
    pub fn begin(&self, id: KeyId, digest: BodyDigest) -> Result<FoundKey, KeyRefusal> {
        self.shared.table.begin(id, digest, self.now())
    }

    /// The current time of the clock for keys.
    pub fn now(&self) -> u32 {
        self.shared.clock.at(Instant::now())
    }

    /// Makes the entry for the batch that settles these recipients.
    pub fn entry(&self, settled: &Settled) -> Entry {
        self.shared.stream.entry(settled.encode())
    }

    /// Stops writing snapshots and taking entries, which then wait in the spool for the next opening. Blocks while a
    /// snapshot is written.
    pub fn end(&self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        thread.join();
        self.attached.detach();
    }
}

impl Drop for KeyLog {
    fn drop(&mut self) {
        self.end();
    }
}

impl Consumer for Shared {
    fn published(&self, entry: Published) {
        // One of ours that is none would be a bug; the next opening tells of it.
        if let Some(settled) = Settled::decode(&entry.payload) {
            self.table.apply(settled, self.clock.at(Instant::now()));
        }
        self.lock().seen = entry.lsn;
    }

    fn advance_wanted(&self, _: Lsn) {
        self.lock().is_wanted = true;
        self.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a snapshot at intervals if there are new entries.
    fn run(&self, pulse: &Pulse) {
        let mut due = Instant::now() + EVERY;
        let mut wanted_at = Instant::now();
        let mut is_failing = false;
        loop {
            let progress = self.lock();
            let wait = |progress: &mut Progress| {
                let now = Instant::now();
                !progress.is_over && now < due && !(progress.is_wanted && now >= wanted_at)
            };
            let (mut progress, _) =
                self.changed.wait_timeout_while(progress, LOOK_EVERY, wait).unwrap_or_else(PoisonError::into_inner);
            if progress.is_over {
                return;
            }
            if wait(&mut progress) {
                continue;
            }
            progress.is_wanted = false;
            drop(progress);
            let begun = Instant::now();
            let outcome = self.write(pulse);
            pulse.step(0);
            if let Err(error) = &outcome
                && !is_failing
            {
                tracing::error!(
                    error = error.to_string(),
                    "cannot save Idempotency-Keys: they stay in the spool's log; retrying"
                );
            }
            is_failing = outcome.is_err();
            // Many keys take their time: a tenth of the whole at most, a fifth while the spool wants room.
            let took = begun.elapsed();
            let now = Instant::now();
            (due, wanted_at) = (now + EVERY.max(took * 9), now + LOOK_EVERY.max(took * 4));
        }
    }

    /// Writes a snapshot, and passes all entries that are in it.
    fn write(&self, pulse: &Pulse) -> io::Result<()> {
        let Progress { seen, written, .. } = *self.lock();
        let spool = self.stream.spool();
        if (seen <= written && !spool.wants_snapshot(self.stream.id())) || spool.poisoned().is_some() {
            return Ok(());
        }
        // Entries that come while it is written may be in it, too: they settle the same when they are shown again.
        let unique = self.snapshots.fetch_add(1, Ordering::Relaxed);
        let name =
            SnapshotName::new(&format!("{KEY_STREAM}-{seen}-{unique:x}")).expect("letters and digits are a name");
        pulse.step(1);
        spool.write_snapshot(&name, &mut |out| {
            let mut number = 0;
            while let Some(part) = self.table.part(number) {
                // Many parts may take their time: each is progress.
                pulse.step(1);
                for settled in part {
                    let octets = settled.encode();
                    out.write_all(&(octets.len() as u32).to_le_bytes())?;
                    out.write_all(&octets)?;
                }
                number += 1;
            }
            Ok(())
        })?;
        let released = Released { below: Lsn::new(seen.get() + 1), also: Vec::new() };
        self.stream.advance(seen, Some(name), released);
        self.lock().written = seen;
        Ok(())
    }
}

/// Reads records: each its length in octets (u32), then an entry.
fn read_snapshot(from: &mut impl Read, mut each: impl FnMut(Settled)) -> io::Result<()> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the snapshot has another format");
    loop {
        let mut length = [0; 4];
        match from.read(&mut length[..1])? {
            0 => return Ok(()),
            _ => from.read_exact(&mut length[1..])?,
        }
        let length = u32::from_le_bytes(length);
        if length > ENTRY_BYTES_MAX {
            return Err(wrong());
        }
        let mut octets = vec![0; length as usize];
        from.read_exact(&mut octets)?;
        each(Settled::decode(&octets).ok_or_else(wrong)?);
    }
}

/// The wall clock, in seconds since 1970.
fn unix_secs() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}

/// A time at which nothing has expired.
const BEFORE: u32 = 0;
/// Maximum octets of an entry: more than any request can settle.
const ENTRY_BYTES_MAX: u32 = 64 << 20;
/// Interval between snapshots.
const EVERY: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Steps of the thread, for the watch.
const STEPS: &[&str] = &["", "writing a snapshot of the keys of requests"];
