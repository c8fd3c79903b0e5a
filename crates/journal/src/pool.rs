//! Segment files between two uses: free ones, and ones made ready ahead of time so that a commit seldom waits for one.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::layout::SegmentHeader;
use crate::storage::{SEGMENT, SegmentFile, Storage};

/// A segment file with a durable header of its own, in service or about to be.
#[derive(Clone)]
pub(crate) struct Segment {
    pub name: String,
    pub file: Arc<dyn SegmentFile>,
    pub header: SegmentHeader,
}

/// Who asks for a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Mail: gets a segment only when another one remains behind it.
    User,
    /// A checkpoint, which is what frees space: it may take the last one, and one more than there should be.
    Checkpoint,
}

pub(crate) struct Pool {
    storage: Arc<dyn Storage>,
    segment_bytes: u64,
    max_segments: usize,
    epoch: u64,
    inner: Mutex<Inner>,
    // Held over the slow part of making a segment ready, so that ready segments queue in the order of their numbers.
    preparing: Mutex<()>,
    hurry: Hurry,
    pause_after: fn(Duration) -> Duration,
}

struct Inner {
    free: Vec<String>,
    ready: VecDeque<Segment>,
    // Files in the directory: free, ready and in service. Above max_segments only what was there at open and what
    // checkpoints needed; those are removed instead of being used again.
    total: usize,
    next_number: u64,
    next_file: u64,
}

impl Pool {
    pub fn new(storage: Arc<dyn Storage>, limits: (u64, usize), epoch: u64, found: Found) -> Self {
        let (segment_bytes, max_segments) = limits;
        let inner = Inner {
            free: found.free,
            ready: VecDeque::new(),
            total: found.total,
            next_number: found.next_number,
            next_file: found.next_file,
        };
        let (inner, preparing, hurry) = (Mutex::new(inner), Mutex::default(), Hurry::default());
        Pool { storage, segment_bytes, max_segments, epoch, inner, preparing, hurry, pause_after }
    }

    /// Takes the next segment into service.
    ///
    /// # Errors
    /// What hindered making one ready: the limit of segments ([`io::ErrorKind::StorageFull`]) or the file system.
    pub fn take(&self, need: Need) -> io::Result<Segment> {
        let wanted = if need == Need::User { 2 } else { 1 };
        while self.ready() < wanted {
            self.prepare(wanted, need)?;
        }
        let mut inner = self.inner.lock().expect("pool lock");
        Ok(inner.ready.pop_front().expect("only the one writer takes segments"))
    }

    /// Makes one more segment ready unless `wanted` are already, for somebody who waits for it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn prepare(&self, wanted: usize, need: Need) -> io::Result<()> {
        let _waits = self.hurry.begin();
        self.prepare_one(wanted, need)
    }

    /// The same ahead of need: a file that is created leaves most of the device's time to others, until somebody waits for it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn prepare_ahead(&self, wanted: usize) -> io::Result<()> {
        self.prepare_one(wanted, Need::User)
    }

    /// From now on nothing pauses: somebody waits for the end.
    pub fn hurry(&self) {
        self.hurry.add();
    }

    fn prepare_one(&self, wanted: usize, need: Need) -> io::Result<()> {
        let _one_at_a_time = self.preparing.lock().expect("prepare lock");
        if self.ready() >= wanted {
            return Ok(());
        }
        let (name, file) = self.file(need)?;
        let header = {
            let mut inner = self.inner.lock().expect("pool lock");
            inner.next_number += 1;
            SegmentHeader { number: inner.next_number - 1, epoch: self.epoch, salt: random_salt()? }
        };
        let written = file.write_all_at(&mut [IoSlice::new(&header.encode_block())], 0).and_then(|()| file.sync());
        let mut inner = self.inner.lock().expect("pool lock");
        match written {
            Ok(()) => {
                inner.ready.push_back(Segment { name, file, header });
                Ok(())
            }
            Err(error) => {
                // A failed sync is final for this file: nothing was promised in it, and nothing ever will be.
                inner.total -= 1;
                drop(inner);
                let _ = self.storage.remove(&name);
                Err(error)
            }
        }
    }

    /// Takes back a segment that no checkpoint needs any more.
    pub fn give_back(&self, segment: Segment) {
        let reusable = segment.file.len().is_ok_and(|len| len == self.segment_bytes);
        let mut inner = self.inner.lock().expect("pool lock");
        if reusable && inner.total <= self.max_segments {
            inner.free.push(segment.name);
        } else {
            inner.total -= 1;
            let _ = self.storage.remove(&segment.name);
        }
    }

    /// Files in the directory, whatever their state.
    pub fn total(&self) -> usize {
        self.inner.lock().expect("pool lock").total
    }

    pub fn ready(&self) -> usize {
        self.inner.lock().expect("pool lock").ready.len()
    }

    fn file(&self, need: Need) -> io::Result<(String, Arc<dyn SegmentFile>)> {
        let mut inner = self.inner.lock().expect("pool lock");
        if let Some(name) = inner.free.pop() {
            drop(inner);
            let opened = self.storage.open(&name);
            if opened.is_err() {
                self.inner.lock().expect("pool lock").free.push(name.clone());
            }
            return Ok((name, opened?));
        }
        if inner.total >= self.max_segments && need == Need::User {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the journal has as many segments as it may"));
        }
        let name = segment_file_name(inner.next_file);
        inner.next_file += 1;
        drop(inner);
        let mut begun = Instant::now();
        let mut between_pieces = || {
            self.hurry.pause((self.pause_after)(begun.elapsed()));
            begun = Instant::now();
        };
        let file = self.storage.create(&name, self.segment_bytes, &mut between_pieces)?;
        self.inner.lock().expect("pool lock").total += 1;
        Ok((name, file))
    }
}

/// A piece and a pause as long behind it: the writer's syncs, which mail waits for, have half of the device to themselves. Longer ones
/// make a segment too late where one is filled in a tenth of a second.
fn pause_after(took: Duration) -> Duration {
    took.min(PAUSE_MAX)
}

/// A device so slow is busy with others; a segment of 64 MiB is made within seconds all the same.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// How many wait for a segment, so that whoever makes one does not pause.
#[derive(Default)]
struct Hurry {
    waiting: Mutex<usize>,
    begun: Condvar,
}

impl Hurry {
    /// Ends all pauses, and keeps new ones from being made until what it returns is dropped.
    fn begin(&self) -> Waits<'_> {
        self.add();
        Waits(self)
    }

    fn add(&self) {
        *self.waiting.lock().expect("hurry lock") += 1;
        self.begun.notify_all();
    }

    fn pause(&self, length: Duration) {
        let waiting = self.waiting.lock().expect("hurry lock");
        drop(self.begun.wait_timeout_while(waiting, length, |waiting| *waiting == 0).expect("hurry lock"));
    }
}

struct Waits<'a>(&'a Hurry);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        *self.0.waiting.lock().expect("hurry lock") -= 1;
    }
}

/// What opening found in the directory.
pub(crate) struct Found {
    pub free: Vec<String>,
    pub total: usize,
    pub next_number: u64,
    pub next_file: u64,
}

pub(crate) fn segment_file_name(number: u64) -> String {
    format!("{number:016x}{SEGMENT}")
}

fn random_salt() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::Config;
    use crate::shared::{Shared, State};
    use crate::sim::SimDisk;

    const SEGMENT: u64 = 64 << 10;
    const PIECES: u32 = 4;
    /// Longer than any of these tests.
    const FOR_EVER: Duration = Duration::from_secs(3600);
    /// For what would otherwise never happen.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A disk that makes its files in pieces, and tells of each.
    struct InPieces(SimDisk, Sender<()>);

    impl Storage for InPieces {
        fn list(&self) -> io::Result<Vec<String>> {
            self.0.list()
        }

        fn create(&self, name: &str, len: u64, between_pieces: &mut dyn FnMut()) -> io::Result<Arc<dyn SegmentFile>> {
            for _ in 1..PIECES {
                let _ = self.1.send(());
                between_pieces();
            }
            self.0.create(name, len, between_pieces)
        }

        fn open(&self, name: &str) -> io::Result<Arc<dyn SegmentFile>> {
            self.0.open(name)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }

        fn set_aside(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
            self.0.set_aside(name, bytes)
        }
    }

    /// An empty pool on such a disk.
    fn pool(pause_after: fn(Duration) -> Duration) -> (Pool, Receiver<()>) {
        let (told, pieces) = channel();
        let found = Found { free: Vec::new(), total: 0, next_number: 1, next_file: 0 };
        let pool = Pool::new(Arc::new(InPieces(SimDisk::new(1), told)), (SEGMENT, 8), 1, found);
        (Pool { pause_after, ..pool }, pieces)
    }

    /// What `act` returns, as long as it does.
    fn returns<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (told, outcome) = channel();
        std::thread::spawn(move || told.send(act()));
        outcome
    }

    #[test]
    fn a_segment_made_ahead_of_need_leaves_time_to_others() {
        assert_eq!(pause_after(Duration::from_millis(2)), Duration::from_millis(2));
        assert_eq!(pause_after(Duration::from_secs(9)), PAUSE_MAX);
        let pause = Duration::from_millis(5);
        let (pool, _pieces) = pool(|_| Duration::from_millis(5));
        let begun = Instant::now();
        pool.prepare_ahead(1).expect("made");
        assert!(begun.elapsed() >= pause * (PIECES - 1));
    }

    #[test]
    fn whoever_needs_a_segment_waits_for_no_pause() {
        let (pool, pieces) = pool(|_| FOR_EVER);
        let pool = Arc::new(pool);
        let ahead = pool.clone();
        let prepared = returns(move || ahead.prepare_ahead(1).is_ok());
        pieces.recv_timeout(PATIENCE).expect("it has begun");
        // This one it joins in the midst, and the second it makes itself.
        let (takes, user) = (pool.clone(), Need::User);
        let taken = returns(move || takes.take(user).is_ok());
        assert_eq!(taken.recv_timeout(PATIENCE), Ok(true));
        assert_eq!(prepared.recv_timeout(PATIENCE), Ok(true));
        assert_eq!(pool.ready(), 1);
        // Nobody waits any more.
        assert_eq!(*pool.hurry.waiting.lock().expect("hurry lock"), 0);
    }

    #[test]
    fn closing_waits_for_no_pause() {
        let (pool, pieces) = pool(|_| FOR_EVER);
        let state = State { live: HashMap::new(), settled: HashMap::new(), segments: BTreeMap::new(), last_seq: 0 };
        let shared = Arc::new(Shared::new(Config::default(), pool, state));
        shared.want_segment();
        let preparer = shared.clone();
        let ended = returns(move || preparer.prepare_segments());
        pieces.recv_timeout(PATIENCE).expect("it has begun");
        shared.close();
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(()));
    }
}
