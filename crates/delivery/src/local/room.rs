//! Disk space for deliveries on a mount's file system: each message reserves its space above a floor.
//!
//! The file system is queried at most once a second, while the space left above the floor exceeds the space taken
//! since. Mail that does not fit waits, and so does the mount: it is *short* until the smallest refused message fits.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use posthaste_fsops::Space;

/// Disk space of one mount.
pub(crate) struct MailRoom {
    /// Space to keep free.
    floor: Space,
    /// The file system's name for errors.
    place: String,
    seen: Mutex<LastLook>,
}

#[derive(Default)]
struct LastLook {
    /// Time of the last query of the file system.
    at: Option<Instant>,
    /// Space above the floor at the last query, minus the space taken since.
    left: Space,
    /// True if space was taken since the last query: otherwise another query within the second is useless.
    is_used: bool,
    /// Space taken since the start.
    taken: Space,
    short: Option<Short>,
    /// True if a shortage has ended, and waiting mail must be retried.
    is_over: bool,
}

struct Short {
    /// Space of the smallest refused message.
    need: Space,
    why: Arc<str>,
}

/// A message would take the file system below its floor. Nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BelowFloor(Arc<str>);

impl From<BelowFloor> for io::Error {
    fn from(refused: BelowFloor) -> Self {
        io::Error::new(io::ErrorKind::StorageFull, refused)
    }
}

impl MailRoom {
    pub fn new(floor: Space, place: String) -> Self {
        MailRoom { floor, place, seen: Mutex::default() }
    }

    /// Checks for the space of the smallest of several messages, and takes none. `look` queries the file system.
    ///
    /// # Errors
    /// It would take the file system below the floor.
    pub fn check(&self, need: Space, now: Instant, look: impl FnOnce() -> io::Result<Space>) -> Result<(), BelowFloor> {
        self.with_room(need, now, look, |_| ())
    }

    /// Takes the space of a message about to be written.
    ///
    /// # Errors
    /// Like [`check`](Self::check).
    pub fn take(&self, need: Space, now: Instant, look: impl FnOnce() -> io::Result<Space>) -> Result<(), BelowFloor> {
        self.with_room(need, now, look, |seen| {
            (seen.left, seen.is_used) = (seen.left.less(need), true);
            seen.taken.bytes += need.bytes;
            seen.taken.inodes += need.inodes;
        })
    }

    fn with_room(
        &self,
        need: Space,
        now: Instant,
        look: impl FnOnce() -> io::Result<Space>,
        then: impl FnOnce(&mut LastLook),
    ) -> Result<(), BelowFloor> {
        let mut seen = self.seen();
        if seen.is_old(now) || seen.is_used && !seen.left.covers(need) {
            drop(seen);
            seen = self.look(now, look);
        }
        if seen.left.covers(need) {
            then(&mut seen);
            return Ok(());
        }
        let why = self.why(seen.left, need);
        let least = seen.short.as_ref().map_or(need, |short| least_of(short.need, need));
        seen.short = Some(Short { need: least, why: why.clone() });
        Err(BelowFloor(why))
    }

    /// True if a query is due because mail waits for space.
    pub fn is_look_due(&self, now: Instant) -> bool {
        let seen = self.seen();
        seen.short.is_some() && seen.is_old(now)
    }

    /// Queries the file system, and ends the shortage if the refused message fits, or if no mail waits.
    pub fn look_again(&self, now: Instant, has_waiting: bool, look: impl FnOnce() -> io::Result<Space>) {
        let mut seen = self.look(now, look);
        if !has_waiting {
            seen.short = None;
        }
    }

    /// Holds no lock during the call: a hanging file system blocks only the callers of this.
    fn look(&self, now: Instant, look: impl FnOnce() -> io::Result<Space>) -> MutexGuard<'_, LastLook> {
        let before = self.seen().taken;
        // Without an answer the write itself will report the error.
        let free = look().unwrap_or(Space::MAX);
        let mut seen = self.seen();
        // The answer may not include space taken meanwhile.
        let meanwhile = seen.taken.less(before);
        seen.at = Some(now);
        seen.left = free.less(self.floor).less(meanwhile);
        seen.is_used = meanwhile != Space::default();
        if seen.short.as_ref().is_some_and(|short| seen.left.covers(short.need)) {
            (seen.short, seen.is_over) = (None, true);
        }
        seen
    }

    /// The reason why mail waits for space, if it does.
    pub fn short(&self) -> Option<Arc<str>> {
        self.seen().short.as_ref().map(|short| short.why.clone())
    }

    /// True if a shortage has ended since the last call: all waiting mail is to be retried.
    pub fn take_over(&self) -> bool {
        std::mem::take(&mut self.seen().is_over)
    }

    /// Notes that refused messages wait only now. If the shortage ended meanwhile, they missed that retry.
    pub fn refusals_entered(&self) {
        let mut seen = self.seen();
        seen.is_over |= seen.short.is_none();
    }

    /// One text per kind of refusal, so that it is logged once.
    fn why(&self, left: Space, need: Space) -> Arc<str> {
        let (least, what) =
            if left.bytes < need.bytes { (self.floor.bytes, "bytes") } else { (self.floor.inodes, "inodes") };
        format!("its file system would have less than {least} {what} free: {}", self.place).into()
    }

    fn seen(&self) -> MutexGuard<'_, LastLook> {
        self.seen.lock().expect("nothing panics while it is held")
    }
}

impl LastLook {
    fn is_old(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY)
    }
}

/// Disk space of a file of `bytes`.
pub(crate) fn need_of(bytes: u64) -> Space {
    Space { bytes: bytes.saturating_add(1).next_multiple_of(BLOCK), inodes: 1 }
}

/// True if an attempt failed because the file system would have gone below its floor.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<BelowFloor>())
}

fn least_of(one: Space, other: Space) -> Space {
    Space { bytes: one.bytes.min(other.bytes), inodes: one.inodes.min(other.inodes) }
}

/// Time for which an answer of the file system is used.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const BLOCK: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const FLOOR: Space = Space { bytes: 1 << 20, inodes: 10 };

    /// A file system with a count of queries, and the time.
    struct Disk {
        room: MailRoom,
        free: Cell<Space>,
        looks: Cell<u32>,
        now: Cell<Instant>,
    }

    impl Disk {
        fn new(bytes: u64, inodes: u64) -> Self {
            let room = MailRoom::new(FLOOR, "/mail".to_owned());
            let (free, looks, now) = (Space { bytes, inodes }.into(), 0.into(), Instant::now().into());
            Disk { room, free, looks, now }
        }

        fn look(&self) -> io::Result<Space> {
            self.looks.set(self.looks.get() + 1);
            Ok(self.free.get())
        }

        fn take(&self, bytes: u64) -> bool {
            let taken = self.room.take(need_of(bytes), self.now.get(), || self.look());
            if taken.is_ok() {
                self.free.set(self.free.get().less(need_of(bytes)));
            }
            taken.is_ok()
        }

        fn pass(&self, millis: u64) {
            self.now.set(self.now.get() + Duration::from_millis(millis));
        }

        fn look_again(&self) {
            assert!(self.room.is_look_due(self.now.get()));
            self.room.look_again(self.now.get(), true, || self.look());
        }
    }

    #[test]
    fn a_file_system_with_room_is_asked_once_a_second() {
        let disk = Disk::new(1 << 40, 1 << 30);
        for _ in 0..30 {
            for _ in 0..1000 {
                assert!(disk.take(10_000));
            }
            disk.pass(100);
        }
        assert_eq!(disk.looks.get(), 3);
        assert!(!disk.room.is_look_due(disk.now.get()), "nothing waits");
    }

    #[test]
    fn nothing_is_written_below_the_floor_and_statvfs_runs_near_it() {
        for (bytes, inodes) in [(FLOOR.bytes + 100_000, 1 << 20), (1 << 40, FLOOR.inodes + 11)] {
            let disk = Disk::new(bytes, inodes);
            let taken = (0..100).filter(|_| disk.take(8000)).count();
            // Each takes 8192 bytes.
            assert_eq!(taken, if inodes > 1000 { 12 } else { 11 });
            assert!(disk.free.get().covers(FLOOR));
            assert!(disk.looks.get() <= 3, "{} looks within a second", disk.looks.get());
            let why = disk.room.short().unwrap();
            let what = if inodes > 1000 { "less than 1048576 bytes" } else { "less than 10 inodes" };
            assert!(why.contains(what) && why.contains("/mail"), "{why}");
        }
    }

    #[test]
    fn a_shortage_ends_when_the_smallest_that_was_refused_fits() {
        let disk = Disk::new(FLOOR.bytes + 10_000, 1000);
        assert!(!disk.take(50_000) && !disk.take(20_000) && disk.take(1000), "a small one fits");
        assert!(!disk.room.is_look_due(disk.now.get()), "not within the second");
        disk.pass(1000);
        disk.look_again();
        assert!(disk.room.short().is_some() && !disk.room.take_over());
        disk.free.set(Space { bytes: FLOOR.bytes + 30_000, inodes: 1000 });
        disk.pass(1000);
        disk.look_again();
        assert!(disk.room.short().is_none() && disk.room.take_over() && !disk.room.take_over(), "told once");
        assert!(disk.take(20_000) && !disk.take(50_000));
    }

    #[test]
    fn a_refusal_entered_after_a_shortage_is_retried() {
        let disk = Disk::new(0, 0);
        assert!(!disk.take(1));
        disk.free.set(Space::MAX);
        disk.pass(1000);
        assert!(disk.take(1) && disk.room.take_over());
        // From another thread that was refused before.
        disk.room.refusals_entered();
        assert!(disk.room.take_over());
        disk.free.set(Space::default());
        disk.pass(1000);
        assert!(!disk.take(1));
        disk.room.refusals_entered();
        assert!(!disk.room.take_over(), "there is no room yet");
    }

    #[test]
    fn without_mail_that_waits_a_mount_is_not_short() {
        let disk = Disk::new(0, 0);
        assert!(!disk.take(1));
        disk.pass(1000);
        disk.room.look_again(disk.now.get(), false, || disk.look());
        assert!(disk.room.short().is_none() && !disk.room.take_over());
    }

    #[test]
    fn space_taken_during_statvfs_is_counted() {
        let disk = Disk::new(FLOOR.bytes + 100_000, 1000);
        assert!(disk.take(1000));
        disk.pass(1000);
        // The answer is older than the other reservation.
        let other = || {
            let answer = disk.look();
            disk.room.seen().taken.bytes += 90_000;
            answer
        };
        assert!(disk.room.take(need_of(20_000), disk.now.get(), other).is_err());
    }

    #[test]
    fn a_file_system_that_does_not_say_what_it_has_is_written_to() {
        let disk = Disk::new(0, 0);
        let no_answer = || Err(io::ErrorKind::Unsupported.into());
        disk.room.check(need_of(1 << 30), disk.now.get(), no_answer).unwrap();
    }
}
