//! Room on the file system for large bodies being written.
//!
//! No space is allocated ahead. Bytes that uploads may still write are reserved in steps. Each step is compared with
//! the free space minus the reservations of all other uploads. So uploads together never take the file system below the
//! floor, and a paused upload reserves nothing.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_fsops::Space;

type Look = Box<dyn Fn() -> io::Result<Space> + Send + Sync>;

/// The room that all uploads share.
pub(crate) struct Room {
    /// Space to keep free.
    floor: Space,
    look: Look,
    count: Mutex<Count>,
}

/// Counts of all uploads together.
#[derive(Debug, Default)]
struct Count {
    /// Bytes reserved for uploads and not written yet: they need no other query of the file system.
    reserved: u64,
    /// Bytes written by all uploads since the start.
    written: u64,
}

impl Room {
    /// Room on the file system of `dir`, which keeps `floor` free.
    pub fn new(dir: &Path, floor: Space) -> Self {
        let dir = dir.to_owned();
        Self::with(floor, Box::new(move || Space::of(&dir)))
    }

    fn with(floor: Space, look: Look) -> Self {
        Room { floor, look, count: Mutex::default() }
    }

    /// The space left, and true if that is below the floor.
    pub fn look(&self) -> io::Result<(Space, bool)> {
        let space = (self.look)()?;
        Ok((space, !space.covers(self.floor)))
    }

    /// Bytes missing to the floor if the file system has `space` left.
    pub fn missing(&self, space: Space) -> u64 {
        self.floor.bytes.saturating_sub(space.bytes)
    }

    /// Bytes above the floor, minus reservations of uploads.
    ///
    /// # Errors
    /// An error of the query of the file system.
    pub fn free(&self) -> io::Result<u64> {
        let space = (self.look)()?;
        Ok(space.bytes.saturating_sub(self.floor.bytes).saturating_sub(self.count().reserved))
    }

    /// Checks if a body of that many bytes would find room now, in addition to those in progress.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or an error of the query of the file system.
    pub fn check(&self, bytes: u64) -> io::Result<()> {
        self.reserve_if(bytes, |_| ())
    }

    /// Changes the count by `then` if there is room for that many bytes.
    fn reserve_if(&self, bytes: u64, then: impl FnOnce(&mut Count)) -> io::Result<()> {
        let written_before = self.count().written;
        // Without the lock on the count: a hanging file system must not block uploads that return room.
        let space = (self.look)()?;
        let mut count = self.count();
        // The file system may not have counted recent writes.
        let bytes = count.reserved.saturating_add(count.written - written_before).saturating_add(bytes);
        if space.bytes < bytes.saturating_add(self.floor.bytes) {
            let what = "the spool's file system has no room for a body of this size";
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        if space.inodes < self.floor.inodes {
            let what = "the spool's file system has too few inodes left";
            return Err(io::Error::new(io::ErrorKind::StorageFull, what));
        }
        then(&mut count);
        Ok(())
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().expect("nothing panics while it is held")
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room").field("floor", &self.floor).finish_non_exhaustive()
    }
}

/// The reservation of one upload, returned on drop.
#[derive(Debug)]
pub(crate) struct Reserved {
    room: Arc<Room>,
    /// Announced length of the body; 0 if unknown.
    announced: u64,
    written: u64,
    bytes: u64,
}

impl Reserved {
    /// Begins a body of `announced` bytes (0: unknown). There must be room for all of them now, but only the first step
    /// is reserved: an announcement alone holds no space.
    ///
    /// # Errors
    /// Like [`Room::check`].
    pub fn begin(room: &Arc<Room>, announced: u64) -> io::Result<Self> {
        room.check(announced)?;
        let mut this = Reserved { room: room.clone(), announced, written: 0, bytes: 0 };
        this.grow(if announced == 0 { STEP_BYTES } else { announced.min(STEP_BYTES) })?;
        Ok(this)
    }

    /// Call it before writing that many bytes.
    ///
    /// # Errors
    /// Like [`Room::check`].
    pub fn want(&mut self, bytes: u64) -> io::Result<()> {
        let missing = bytes.saturating_sub(self.bytes);
        if missing == 0 {
            return Ok(());
        }
        // Later bytes are checked again; received bytes must find room now.
        self.grow(missing.saturating_add(self.ahead(bytes))).or_else(|_| self.grow(missing))
    }

    /// Call it after writing that many bytes, which the file system then counts.
    pub fn wrote(&mut self, bytes: u64) {
        self.written += bytes;
        self.room.count().written += bytes;
        self.give_back(bytes);
    }

    /// Returns the unused reservation during a pause. Later bytes reserve again.
    pub fn pause(&mut self) {
        self.give_back(self.bytes);
    }

    /// Bytes to reserve in advance: as many as were received, within bounds, and at most the announced length.
    fn ahead(&self, coming: u64) -> u64 {
        let come = self.written.saturating_add(coming);
        let step = come.clamp(STEP_BYTES, STEP_BYTES_MAX);
        match self.announced {
            0 => step,
            announced => step.min(announced.saturating_sub(come)),
        }
    }

    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        self.room.reserve_if(bytes, |count| count.reserved += bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.room.count().reserved -= bytes;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.pause();
    }
}

/// Bytes reserved for a body at first, and at least with each step.
const STEP_BYTES: u64 = 1 << 20;
/// Maximum bytes of one reservation step.
const STEP_BYTES_MAX: u64 = 16 << 20;

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Room of a simulated file system of `bytes`, less the content of `dir`.
    pub(crate) fn room_of(dir: &Path, bytes: u64, floor: u64) -> Arc<Room> {
        let dir = dir.to_owned();
        let look = move || {
            let lens = std::fs::read_dir(&dir)?.map(|entry| Ok(entry?.metadata()?.len()));
            Ok(Space { bytes: bytes - lens.sum::<io::Result<u64>>()?, inodes: 1000 })
        };
        Arc::new(Room::with(Space { bytes: floor, inodes: 10 }, Box::new(look)))
    }

    pub(crate) fn reserved(room: &Room) -> u64 {
        room.count().reserved
    }

    fn is_full<T>(outcome: io::Result<T>) -> bool {
        outcome.is_err_and(|error| error.kind() == io::ErrorKind::StorageFull)
    }

    #[test]
    fn a_reservation_grows_with_data_up_to_the_announced_size() {
        let dir = tempfile::tempdir().unwrap();
        let room = room_of(dir.path(), 1 << 40, 0);
        let mut unknown = Reserved::begin(&room, 0).unwrap();
        assert_eq!(reserved(&room), MIB);
        for come in 1..100 {
            unknown.want(MIB).unwrap();
            unknown.wrote(MIB);
            assert!(reserved(&room) <= (come * MIB).min(16 * MIB), "{} for {come} MiB", reserved(&room));
        }
        drop(unknown);
        assert_eq!(reserved(&room), 0);
        let mut announced = Reserved::begin(&room, 1_000_000).unwrap();
        announced.want(300_000).unwrap();
        announced.wrote(300_000);
        assert_eq!(reserved(&room), 700_000);
        // More bytes than announced.
        announced.want(900_000).unwrap();
        announced.wrote(900_000);
        assert_eq!(reserved(&room), 0);
        announced.pause();
        announced.want(1).unwrap();
        assert_eq!(reserved(&room), 1);
    }

    #[test]
    fn what_stalled_uploads_have_announced_is_free_for_others() {
        let room =
            Room::with(Space { bytes: 64 * MIB, inodes: 10 }, Box::new(|| Ok(Space { bytes: 1 << 30, inodes: 1000 })));
        let room = Arc::new(room);
        let stall = |_| {
            let mut upload = Reserved::begin(&room, 50 * MIB).unwrap();
            upload.pause();
            upload
        };
        // 70 GB in all.
        let stalled: Vec<Reserved> = (0..1400).map(stall).collect();
        room.check(900 * MIB).unwrap();
        drop(stalled);
        assert_eq!(reserved(&room), 0);
    }

    #[test]
    fn an_announced_size_is_compared_with_space_above_the_floor() {
        let dir = tempfile::tempdir().unwrap();
        let room = room_of(dir.path(), 100 * MIB, 40 * MIB);
        room.check(60 * MIB).unwrap();
        assert!(is_full(room.check(60 * MIB + 1)) && is_full(Reserved::begin(&room, 60 * MIB + 1)));
        assert_eq!(room.free().unwrap(), 60 * MIB);
        let other = Reserved::begin(&room, 60 * MIB).unwrap();
        assert_eq!(room.free().unwrap(), 59 * MIB);
        // Of the other upload only its step counts.
        room.check(59 * MIB).unwrap();
        assert!(is_full(room.check(60 * MIB)));
        drop(other);
        room.check(60 * MIB).unwrap();
        let room = Room::with(Space { bytes: 0, inodes: 10 }, Box::new(|| Ok(Space { bytes: MIB, inodes: 9 })));
        assert!(is_full(room.check(0)));
    }

    #[test]
    fn space_written_during_statvfs_is_counted() {
        let room: Arc<std::sync::OnceLock<Arc<Room>>> = Arc::default();
        let seen = room.clone();
        let asked = Arc::new(AtomicU64::new(0));
        let look = move || {
            // During the third query another upload writes reserved bytes, too late for that query to count them.
            let nth = asked.fetch_add(1, Ordering::Relaxed);
            if nth == 2 {
                let mut other = Reserved { room: seen.get().unwrap().clone(), announced: 0, written: 0, bytes: 0 };
                other.wrote(5 * MIB);
            }
            Ok(Space { bytes: if nth <= 2 { 10 * MIB } else { 5 * MIB }, inodes: 1000 })
        };
        let this = room.get_or_init(|| Arc::new(Room::with(Space::default(), Box::new(look))));
        let mut upload = Reserved::begin(this, 6 * MIB).unwrap();
        upload.pause();
        assert!(is_full(upload.want(6 * MIB)));
    }
}
