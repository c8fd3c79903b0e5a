//! Unused segment files: free ones, and prepared ones, so that commits seldom wait for one.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::Room;
use crate::file::SegmentFile;
use crate::layout::SegmentHeader;
use crate::roster::Roster;
use crate::storage::{MakeError, SEGMENT, Storage};

/// A segment file with a durable header of its own, in service or about to be.
#[derive(Clone)]
pub(crate) struct Segment {
    pub name: String,
    pub file: Arc<SegmentFile>,
    pub header: SegmentHeader,
}

/// The use of a wanted segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// For records with a body: such a segment is given only if another one remains.
    Body,
    /// For records without a body, which report progress and may use the last segment.
    NoBody,
}

/// Why no segment is available.
#[derive(Debug)]
pub(crate) enum PoolError {
    /// The maximum exists, or the file system is full, and none is free.
    NoneFree,
    /// The disk is full.
    NoSpace(io::Error),
    /// The device failed: cached writes of others may be lost.
    Device(String),
    /// Another error, such as too many open files.
    Other(io::Error),
}

impl From<MakeError> for PoolError {
    fn from(error: MakeError) -> Self {
        let (error, in_sync) = match error {
            MakeError::Sync(error) => (error, true),
            MakeError::Other(error) => (error, false),
        };
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC | Errno::DQUOT) => PoolError::NoSpace(error),
            Some(Errno::IO) => PoolError::Device(format!("making a segment failed: {error}")),
            _ if in_sync => PoolError::Device(format!("syncing a new segment failed: {error}")),
            _ => PoolError::Other(error),
        }
    }
}

impl From<io::Error> for PoolError {
    fn from(error: io::Error) -> Self {
        MakeError::Other(error).into()
    }
}

pub(crate) struct Pool {
    storage: Storage,
    segment_bytes: u64,
    max_segments: usize,
    room: Room,
    epoch: u64,
    inner: Mutex<Inner>,
    // Held over the slow part of making a segment ready, so that ready segments queue in the order of their numbers.
    preparing: Mutex<Preparing>,
    hurry: Hurry,
    pause_after: fn(Duration) -> Duration,
}

struct Preparing {
    roster: Roster,
    /// A segment with a durable header that could not be entered: the roster may name it, so it is the next.
    unentered: Option<Segment>,
}

struct Inner {
    free: Vec<String>,
    ready: VecDeque<Segment>,
    // Files in the directory: free, ready and in service. Above max_segments only what was there at open; those are
    // removed instead of being used again.
    total: usize,
    next_number: u64,
    next_file: u64,
}

/// Files that opening found in the directory.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub free: Vec<String>,
    pub total: usize,
    pub next_number: u64,
    pub next_file: u64,
}

impl Pool {
    pub fn new(storage: Storage, roster: Roster, limits: (u64, usize, Room), epoch: u64, found: Found) -> Self {
        let (segment_bytes, max_segments, room) = limits;
        let inner = Inner {
            free: found.free,
            ready: VecDeque::new(),
            total: found.total,
            next_number: found.next_number,
            next_file: found.next_file,
        };
        let preparing = Mutex::new(Preparing { roster, unentered: None });
        let inner = Mutex::new(inner);
        let hurry = Hurry::default();
        Pool { storage, segment_bytes, max_segments, room, epoch, inner, preparing, hurry, pause_after }
    }

    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Takes the next segment into service.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn take(&self, need: Need) -> Result<Segment, PoolError> {
        let wanted = match need {
            Need::Body => 2,
            Need::NoBody => 1,
        };
        while self.ready() < wanted {
            self.prepare(wanted)?;
        }
        let mut inner = self.inner.lock().expect("pool lock");
        Ok(inner.ready.pop_front().expect("only the one writer takes segments"))
    }

    /// Prepares one more segment for a waiting append, unless `wanted` are ready.
    ///
    /// # Errors
    /// Like [`take`](Self::take).
    pub fn prepare(&self, wanted: usize) -> Result<(), PoolError> {
        let _waits = self.hurry.begin();
        self.prepare_ahead(wanted)
    }

    /// Like [`prepare`](Self::prepare), in advance: with pauses that leave most of the device's time to others, until
    /// an append waits.
    ///
    /// # Errors
    /// Like [`take`](Self::take).
    pub fn prepare_ahead(&self, wanted: usize) -> Result<(), PoolError> {
        let mut preparing = self.preparing.lock().expect("prepare lock");
        let Preparing { roster, unentered } = &mut *preparing;
        if self.ready() >= wanted {
            return Ok(());
        }
        if roster.has_failed {
            return Err(PoolError::Device("the list of segments could not be written".to_owned()));
        }
        let segment = match unentered.take() {
            Some(segment) => segment,
            None => self.make_ready()?,
        };
        if let Err(error) = roster.enter(segment.header.number, self.epoch) {
            *unentered = Some(segment);
            return Err(error.into());
        }
        let mut inner = self.inner.lock().expect("pool lock");
        inner.next_number += 1;
        inner.ready.push_back(segment);
        Ok(())
    }

    /// A segment with a durable header and the next number. Only the holder of `preparing` calls it.
    fn make_ready(&self) -> Result<Segment, PoolError> {
        let (name, file) = self.file()?;
        // Nobody else changes it meanwhile. It is used up only when the header is durable: numbers have no gaps.
        let number = self.inner.lock().expect("pool lock").next_number;
        let ready = random_salt().map_err(MakeError::from).and_then(|salt| {
            let header = SegmentHeader { number, epoch: self.epoch, salt, bytes: self.segment_bytes };
            file.write_all_at(&mut [IoSlice::new(&header.encode_blocks())], 0)?;
            // Before any record: a cut that left records and no header would look like damage to all of them.
            file.sync().map_err(MakeError::Sync)?;
            Ok(Segment { name: name.clone(), file, header })
        });
        Ok(ready.inspect_err(|_| {
            // A failed sync is final for this file: nothing was promised in it, and nothing ever will be.
            self.inner.lock().expect("pool lock").total -= 1;
            let _ = self.storage.remove(&name);
        })?)
    }

    /// Ends all pauses: the shutdown waits.
    pub fn hurry(&self) {
        self.hurry.add();
    }

    /// Returns a freed segment. One with a second name (a pack) only loses its name in the ring.
    pub fn give_back(&self, segment: &Segment) {
        let is_unusable = segment.file.len().is_ok_and(|len| len != self.segment_bytes)
            || segment.file.is_linked_elsewhere().unwrap_or(true);
        let mut inner = self.inner.lock().expect("pool lock");
        if !is_unusable && inner.total <= self.max_segments {
            inner.free.push(segment.name.clone());
        } else {
            inner.total -= 1;
            drop(inner);
            let _ = self.storage.remove(&segment.name);
        }
    }

    /// Removes free files with at least `bytes` bytes together, or all. Returns their number.
    pub fn remove_free(&self, bytes: u64) -> usize {
        let mut removed = 0;
        while (removed as u64).saturating_mul(self.segment_bytes) < bytes {
            let mut inner = self.inner.lock().expect("pool lock");
            let Some(name) = inner.free.pop() else { break };
            inner.total -= 1;
            drop(inner);
            // A file that cannot be removed is found by the next opening.
            let _ = self.storage.remove(&name);
            removed += 1;
        }
        removed
    }

    /// Files in the directory, in any state.
    pub fn total(&self) -> usize {
        self.inner.lock().expect("pool lock").total
    }

    pub fn ready(&self) -> usize {
        self.inner.lock().expect("pool lock").ready.len()
    }

    /// A free file, or a new one.
    fn file(&self) -> Result<(String, Arc<SegmentFile>), PoolError> {
        let mut inner = self.inner.lock().expect("pool lock");
        if let Some(name) = inner.free.pop() {
            drop(inner);
            let opened = self.storage.segment(&name);
            if opened.is_err() {
                self.inner.lock().expect("pool lock").free.push(name.clone());
            }
            return Ok((name, opened?));
        }
        if inner.total >= self.max_segments {
            return Err(PoolError::NoneFree);
        }
        let is_last = inner.ready.is_empty();
        drop(inner);
        if !is_last && (self.room)()? < self.segment_bytes {
            return Err(PoolError::NoneFree);
        }
        let mut inner = self.inner.lock().expect("pool lock");
        let name = format!("{:016x}{SEGMENT}", inner.next_file);
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

/// The number after those in the names of these files.
pub(crate) fn next_file(names: &[String]) -> u64 {
    let number = |name: &String| u64::from_str_radix(name.strip_suffix(SEGMENT)?, 16).ok();
    names.iter().filter_map(number).max().map_or(0, |highest| highest + 1)
}

/// A piece is followed by a pause of equal length: so the writer's syncs, which appends wait for, have the device half
/// of the time. Longer pauses would make a segment too late if one is filled in a tenth of a second.
fn pause_after(took: Duration) -> Duration {
    took.min(PAUSE_MAX)
}

/// Maximum pause: a slower device is busy with other work; a segment of 64 MiB is still made within seconds.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Number of threads that wait for a segment. While any does, the preparer does not pause.
#[derive(Default)]
struct Hurry {
    waiting: Mutex<usize>,
    begun: Condvar,
}

impl Hurry {
    /// Ends all pauses, and prevents new ones until the returned guard is dropped.
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

fn random_salt() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use posthaste_fsops::{Faults, Machine};

    use super::*;
    use crate::roster::Entered;
    use crate::shared::{Opened, Shared};
    use crate::table::Table;
    use crate::{Config, RingEvent};

    /// A timeout longer than any of these tests.
    const FOR_EVER: Duration = Duration::from_secs(3600);
    /// Timeout of tests for events that must happen.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// Filled in four pieces.
    const LARGE: u64 = 4 * crate::file::PIECE_BYTES;

    fn pool_in(dir: &std::path::Path, segment_bytes: u64) -> Pool {
        let found = Found { next_number: 1, ..Found::default() };
        let limits: (u64, usize, Room) = (segment_bytes, 8, Arc::new(|| Ok(u64::MAX)));
        let storage = Storage::open(dir).expect("a directory");
        Pool::new(storage, Roster::new(dir.join("roster"), Entered::default()), limits, 1, found)
    }

    /// Runs `act` on a thread of its own; its result comes from the receiver.
    fn returns<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (told, outcome) = channel();
        std::thread::spawn(move || told.send(act()));
        outcome
    }

    /// Until the first piece of a file is written.
    fn until_begun(dir: &std::path::Path) {
        let begun = Instant::now();
        let is_begun = |entry: std::fs::DirEntry| entry.metadata().is_ok_and(|metadata| metadata.len() > 0);
        while !std::fs::read_dir(dir).unwrap().flatten().any(is_begun) {
            assert!(begun.elapsed() < PATIENCE, "it never began");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_segment_made_ahead_of_need_leaves_time_to_others() {
        assert_eq!(pause_after(Duration::from_millis(2)), Duration::from_millis(2));
        assert_eq!(pause_after(Duration::from_secs(9)), PAUSE_MAX);
        let dir = tempfile::tempdir().unwrap();
        let pause = Duration::from_millis(5);
        let pool = Pool { pause_after: |_| Duration::from_millis(5), ..pool_in(dir.path(), LARGE) };
        let begun = Instant::now();
        pool.prepare_ahead(1).expect("made");
        assert!(begun.elapsed() >= pause * 3);
    }

    #[test]
    fn whoever_needs_a_segment_waits_for_no_pause() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Arc::new(Pool { pause_after: |_| FOR_EVER, ..pool_in(dir.path(), LARGE) });
        let ahead = pool.clone();
        let prepared = returns(move || ahead.prepare_ahead(1).is_ok());
        until_begun(dir.path());
        // This one it joins in the midst, and the second it makes itself.
        let takes = pool.clone();
        let taken = returns(move || takes.take(Need::Body).is_ok());
        assert_eq!(taken.recv_timeout(PATIENCE), Ok(true));
        assert_eq!(prepared.recv_timeout(PATIENCE), Ok(true));
        assert_eq!(pool.ready(), 1);
        // Nobody waits any more.
        assert_eq!(*pool.hurry.waiting.lock().unwrap(), 0);
    }

    #[test]
    fn closing_waits_for_no_pause() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool { pause_after: |_| FOR_EVER, ..pool_in(dir.path(), LARGE) };
        let shared = Arc::new(Shared::new(Config::default(), pool, Table::default(), Opened::default()));
        shared.want_segment();
        let preparer = shared.clone();
        let ended = returns(move || preparer.prepare_segments());
        until_begun(dir.path());
        shared.close();
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(()));
    }

    #[test]
    fn whatever_sync_of_a_segment_fails_the_device_is_not_believed() {
        // Of its zeros, of its name, of its header.
        for nth in 1..=3 {
            let machine = Machine::new().unwrap();
            let pool = pool_in(&machine.path().join("ring"), 64 << 10);
            let fail_syncs = vec![machine.counts().0 + nth];
            machine.set_faults(Faults { fail_syncs, ..Faults::default() });
            let made = pool.prepare_ahead(1);
            assert!(matches!(made, Err(PoolError::Device(_))), "sync {nth}: {made:?}");
            // Nothing of it stays.
            assert_eq!((pool.total(), pool.storage.list().unwrap()), (0, Vec::new()));
        }
    }

    /// As on file systems that copy on write, where each write of the roster takes space.
    #[test]
    fn a_roster_without_room_is_written_again_once_there_is_some() {
        let machine = Machine::new().unwrap();
        let dir = machine.path().join("ring");
        let pool = pool_in(&dir, 64 << 10);
        pool.prepare_ahead(1).unwrap();
        let before = machine.counts().1;
        pool.prepare_ahead(2).unwrap();
        let now = machine.counts().1;
        // The last change for a segment is that of the roster, of which a half is written.
        let due = now + (now - before)..u64::MAX;
        machine.set_faults(Faults { fail_changes: Some((due, Errno::NOSPC)), ..Faults::default() });
        for _ in 0..3 {
            let made = pool.prepare_ahead(3);
            assert!(matches!(made, Err(PoolError::NoSpace(_))), "{made:?}");
        }
        assert_eq!((pool.total(), pool.ready()), (3, 2), "the segment stays, as the roster may name it");
        machine.set_faults(Faults::default());
        pool.prepare_ahead(3).unwrap();
        let numbers = [(); 3].map(|()| pool.take(Need::NoBody).unwrap().header.number);
        assert_eq!((numbers, pool.total()), ([1, 2, 3], 3));
        assert_eq!(Entered::read(&dir.join("roster")).unwrap().unwrap().high, 4);
    }

    #[test]
    fn what_hinders_making_a_segment_is_told_apart() {
        let outcome = |errno: Errno| {
            let (mut outcomes, machine) = (Vec::new(), Machine::new().unwrap());
            let pool = pool_in(&machine.path().join("ring"), 64 << 10);
            // Making the file, filling it, naming it, writing its header.
            for nth in 1..=4 {
                let changes = machine.counts().1;
                // The first write that fails takes half of its bytes first.
                let due = if nth == 2 { changes + nth + 1..changes + 9 } else { changes + nth..changes + 9 };
                machine.set_faults(Faults { fail_changes: Some((due, errno)), ..Faults::default() });
                outcomes.push(match pool.prepare_ahead(1).expect_err("it is hindered") {
                    PoolError::NoSpace(_) => "no space",
                    PoolError::Device(_) => "device",
                    PoolError::Other(_) => "other",
                    PoolError::NoneFree => "none free",
                });
            }
            machine.set_faults(Faults::default());
            pool.prepare_ahead(1).expect("nothing hinders it now");
            assert_eq!(pool.take(Need::NoBody).unwrap().header.number, 1, "numbers have no gaps");
            outcomes.dedup();
            outcomes
        };
        assert_eq!([Errno::NOSPC, Errno::DQUOT].map(outcome), [["no space"]; 2]);
        assert_eq!([Errno::MFILE, Errno::NFILE, Errno::ROFS, Errno::ACCESS].map(outcome), [["other"]; 4]);
        assert_eq!(outcome(Errno::IO), ["device"]);
    }

    #[test]
    fn as_many_segments_as_there_may_be_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let (tell, told) = channel();
        let tell = Mutex::new(tell);
        let events: crate::RingEvents = Arc::new(move |event| drop(tell.lock().unwrap().send(event)));
        let pool = Pool { max_segments: 1, ..pool_in(dir.path(), 64 << 10) };
        let config = Config { events, ..Config::default() };
        let shared = Shared::new(config, pool, Table::default(), Opened::default());
        shared.pool.prepare_ahead(2).unwrap();
        let error = shared.pool.prepare_ahead(2).unwrap_err();
        assert!(matches!(shared.report(error), crate::RingAppendError::Full(_)));
        assert!(matches!(told.try_recv(), Ok(RingEvent::RoomWanted)));
        let segment = shared.pool.take(Need::NoBody).unwrap();
        shared.pool.give_back(&segment);
        assert_eq!(shared.pool.take(Need::NoBody).unwrap().header.number, 2, "at once, from the same file");
    }
}
