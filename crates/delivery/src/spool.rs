//! Large bodies: each in a file of its own beside the journal, so that a slow upload holds neither memory nor commits.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use posthaste_journal::storage::make_dir;
use posthaste_maildir::line_ends::LineEndScan;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::runtime::Handle;

use crate::error::DeliveryError;
use crate::record::Spooled;

/// The directory of spooled bodies.
pub(crate) struct Spool {
    dir: PathBuf,
    next: AtomicU64,
    // Bytes that are set aside for uploads under way.
    promised: Mutex<u64>,
}

/// Its name in the journal's directory.
pub(crate) const SPOOL: &str = "spool";

/// Where body `number` of the spool `dir` lies.
pub(crate) fn body_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.body"))
}

impl Spool {
    /// Opens the spool and removes every file that no live record names. If some records cannot be read, what they name is
    /// not known: then such files are moved to `orphans/`.
    pub fn open(dir: PathBuf, named: &std::collections::HashSet<u64>, all_known: bool) -> io::Result<Arc<Self>> {
        make_dir(&dir)?;
        let orphans = dir.join("orphans");
        let mut highest = 0;
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let Some(number) = stem.and_then(|stem| u64::from_str_radix(stem, 16).ok()) else { continue };
            highest = highest.max(number);
            if named.contains(&number) {
                continue;
            }
            if all_known {
                // Whoever was writing it may be removing it still.
                posthaste_fsops::unlink(&path)
                    .or_else(|error| if error == Errno::NOENT { Ok(()) } else { Err(error) })?;
            } else {
                make_dir(&orphans)?;
                posthaste_fsops::rename(&path, body_path(&orphans, number))?;
            }
        }
        sync_dir(&dir)?;
        Ok(Arc::new(Spool { dir, next: AtomicU64::new(highest + 1), promised: Mutex::new(0) }))
    }

    pub fn path(&self, number: u64) -> PathBuf {
        body_path(&self.dir, number)
    }

    pub fn open_body(&self, spooled: &Spooled) -> io::Result<File> {
        let file = File::open(self.path(spooled.file))?;
        let len = file.metadata()?.len();
        if len != spooled.len {
            let what = format!("spooled body {:x} has {len} bytes and should have {}", spooled.file, spooled.len);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(file)
    }

    /// Forgets a body whose message is durable elsewhere.
    pub fn remove(&self, number: u64) {
        // What cannot be removed now is removed when the spool is opened next.
        let _ = posthaste_fsops::unlink(self.path(number));
    }

    /// Whether a body of that many bytes would find room now, beside those that are being written.
    pub fn check_room(&self, bytes: u64) -> Result<(), DeliveryError> {
        let free = self.free_bytes()?;
        fits(self.promised().saturating_add(bytes), free)
    }

    /// Bytes that the file system has to spare. Blocks as long as it does.
    pub fn free_bytes(&self) -> Result<u64, DeliveryError> {
        let space = rustix::fs::statvfs(&self.dir).map_err(|error| DeliveryError::Full(error.into()))?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn promised(&self) -> MutexGuard<'_, u64> {
        self.promised.lock().expect("promised bytes")
    }

    /// Starts a new body. `announced` is how long it will be, 0 if nobody knows: the file system must have that much to spare, beside
    /// what is set aside for others. No more than a step is set aside for this one, and more as it comes: announcing costs nothing.
    pub fn writer(self: &Arc<Self>, announced: u64) -> Result<SpoolWriter, DeliveryError> {
        self.check_room(announced)?;
        let mut room = Room { spool: self.clone(), bytes: 0 };
        room.grow(if announced > 0 { announced.min(STEP_BYTES) } else { STEP_BYTES })?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path(number);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = posthaste_fsops::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let file = file.map_err(|error| DeliveryError::Full(error.into()))?;
        let guard = Arc::new(Guard { path, kept: AtomicBool::new(false), runtime: Handle::try_current().ok() });
        let spooled = Spooled { file: number, len: 0, line_ends: 0, lossless: true, lone_lfs: 0, guard: Some(guard) };
        let line_ends = LineEndScan::default();
        Ok(SpoolWriter { room, announced, file: Arc::new(file.into()), buffer: Vec::new(), spooled, line_ends })
    }
}

/// Space that is set aside for one upload; given back on drop.
struct Room {
    spool: Arc<Spool>,
    bytes: u64,
}

impl Room {
    fn grow(&mut self, bytes: u64) -> Result<(), DeliveryError> {
        // Asked first: a file system that does not answer must not hold the lock. What is written in between counts as promised
        // no more and not yet as used; the floor is there for the like.
        let free = self.spool.free_bytes()?;
        let mut promised = self.spool.promised();
        let all = promised.saturating_add(bytes);
        fits(all, free)?;
        self.bytes += all - *promised;
        *promised = all;
        Ok(())
    }

    /// Bytes have been written: from now on the file system counts them.
    fn shrink(&mut self, bytes: u64) {
        let used = bytes.min(self.bytes);
        self.bytes -= used;
        *self.spool.promised() -= used;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// Removes an unfinished or refused body.
#[derive(Debug)]
pub(crate) struct Guard {
    path: PathBuf,
    kept: AtomicBool,
    // Of whoever writes it. It may be the journal's thread that gives it up.
    runtime: Option<Handle>,
}

impl Guard {
    /// A durable record names the file now.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if *self.kept.get_mut() {
            return;
        }
        let path = std::mem::take(&mut self.path);
        // What is not removed now is removed when the spool is opened next.
        let remove = move || {
            let _ = posthaste_fsops::unlink(path);
        };
        // Freeing a large file takes its time, and whoever gives it up has others to serve.
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn_blocking(remove)),
            None => remove(),
        }
    }
}

/// Takes a large body piece by piece. Dropping it unfinished removes what was written.
pub struct SpoolWriter {
    room: Room,
    announced: u64,
    file: Arc<File>,
    buffer: Vec<u8>,
    spooled: Spooled,
    /// So that the size on disk is known before a byte is converted.
    line_ends: LineEndScan,
}

impl SpoolWriter {
    /// Appends a piece. Memory held is bounded by one buffer of 256 KiB and the piece itself.
    ///
    /// # Errors
    /// [`DeliveryError::Full`] when the file system will not take it.
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), DeliveryError> {
        self.spooled.len += piece.len() as u64;
        self.line_ends.push(piece, |_| ());
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush(false).await?;
        }
        Ok(())
    }

    /// Hands all that has come to the operating system, so that no memory is held until more comes. Not synced.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_out(&mut self) -> Result<(), DeliveryError> {
        if self.buffer.is_empty() { Ok(()) } else { self.flush(false).await.map(|()| self.buffer = Vec::new()) }
    }

    /// Gives the space back that is set aside for what comes next; for whoever hears nothing of it for a while. With what comes then,
    /// space is looked for anew.
    pub fn pause(&mut self) {
        self.room.shrink(self.room.bytes);
    }

    /// What to set aside beyond what has come: as much again, within bounds, and nothing that was not announced.
    fn ahead(&self) -> u64 {
        let step = self.spooled.len.clamp(STEP_BYTES, STEP_BYTES_MAX);
        match self.announced {
            0 => step,
            announced => step.min(announced.saturating_sub(self.spooled.len)),
        }
    }

    /// Makes the body and its name durable.
    ///
    /// # Errors
    /// [`DeliveryError::Full`] or [`DeliveryError::Sync`]; the file is then removed.
    pub async fn finish(mut self) -> Result<Spooled, DeliveryError> {
        self.spooled.lossless = self.line_ends.are_lossless();
        self.spooled.line_ends = self.line_ends.crs();
        self.spooled.lone_lfs = self.line_ends.lone_lfs();
        self.flush(true).await?;
        Ok(self.spooled)
    }

    async fn flush(&mut self, last: bool) -> Result<(), DeliveryError> {
        let (file, dir) = (self.file.clone(), self.room.spool.dir.clone());
        let buffer = std::mem::take(&mut self.buffer);
        let bytes = buffer.len() as u64;
        let missing = bytes.saturating_sub(self.room.bytes);
        let ahead = if last { 0 } else { self.ahead() };
        let mut more = Room { spool: self.room.spool.clone(), bytes: 0 };
        let work = move || -> Result<(Vec<u8>, Room), DeliveryError> {
            if missing > 0 {
                // What comes later is looked for again; what has come must find room now.
                more.grow(missing.saturating_add(ahead)).or_else(|_| more.grow(missing))?;
            }
            let written = write(&file, &buffer, last.then_some(&*dir)).map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DeliveryError::Full(error),
                _ => DeliveryError::Sync(error),
            });
            written.map(|()| (buffer, more))
        };
        let mut more;
        (self.buffer, more) = tokio::task::spawn_blocking(work).await.map_err(|_| DeliveryError::Closed)??;
        self.room.bytes += std::mem::take(&mut more.bytes);
        self.room.shrink(bytes);
        self.buffer.clear();
        Ok(())
    }
}

fn fits(bytes: u64, free: u64) -> Result<(), DeliveryError> {
    if free < bytes.saturating_add(SPACE_FLOOR) {
        let what = "the spool's file system has no room for a message of this size";
        return Err(DeliveryError::Full(io::Error::new(io::ErrorKind::StorageFull, what)));
    }
    Ok(())
}

/// Writes `bytes`, and makes all of `file` and its name durable if it was told where that is.
fn write(file: &File, bytes: &[u8], sync_in: Option<&Path>) -> io::Result<()> {
    posthaste_fsops::write_all(file, bytes)?;
    let Some(dir) = sync_in else { return Ok(()) };
    posthaste_fsops::fsync(file)?;
    sync_dir(dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    Ok(posthaste_fsops::fsync(File::open(dir)?)?)
}

const BUFFER_BYTES: usize = 256 << 10;
/// What is set aside for a body at first, and at least with each step.
const STEP_BYTES: u64 = 1 << 20;
/// What is set aside with a step at most.
const STEP_BYTES_MAX: u64 = 16 << 20;
/// Left free for the segments of the journal.
const SPACE_FLOOR: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn free(dir: &Path) -> u64 {
        let space = rustix::fs::statvfs(dir).expect("statvfs");
        space.f_bavail * space.f_frsize
    }

    #[test]
    fn uploads_under_way_share_the_space() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool::open(dir.path().join("spool"), &Default::default(), true).expect("opens");
        // What others write to this disk meanwhile is far less than what is asked for here.
        let most = free(dir.path()) / 3 * 2;
        let mut room = Room { spool: spool.clone(), bytes: 0 };
        room.grow(most).expect("room for one");
        assert!(matches!(spool.writer(most), Err(DeliveryError::Full(_))), "not for two");
        assert!(matches!(spool.check_room(most), Err(DeliveryError::Full(_))));
        spool.check_room(most / 4).expect("room for a smaller one");
        assert_eq!(std::fs::read_dir(&spool.dir).expect("a spool").count(), 0, "asking makes no file");
        drop(room);
        spool.check_room(most).expect("an upload that ended holds nothing");
        assert_eq!(*spool.promised(), 0);
    }

    #[tokio::test]
    async fn stalled_uploads_hold_no_space_however_much_they_announced() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool::open(dir.path().join("spool"), &Default::default(), true).expect("opens");
        let announced = free(dir.path()) / 2;
        let mut stalled = Vec::new();
        for _ in 0..100 {
            let mut writer = spool.writer(announced).expect("room for what has come");
            writer.write(&[b'x'; 50_000]).await.expect("written");
            writer.pause();
            stalled.push(writer);
        }
        assert_eq!(*spool.promised(), 0);
        spool.writer(announced).expect("room for one that is not stalled");
        for writer in &mut stalled {
            writer.write(&[b'x'; 250_000]).await.expect("goes on");
        }
        // A step each, and not half of the disk.
        assert!(*spool.promised() <= 100 * STEP_BYTES, "{}", spool.promised());
    }

    #[tokio::test]
    async fn what_is_set_aside_grows_with_what_has_come() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool::open(dir.path().join("spool"), &Default::default(), true).expect("opens");
        let mut writer = spool.writer(0).expect("room");
        let mut come = 0;
        while come < 40 << 20 {
            writer.write(&[b'x'; 1 << 20]).await.expect("written");
            come += 1 << 20;
            let most = come.clamp(STEP_BYTES, STEP_BYTES_MAX);
            assert!(*spool.promised() <= most, "{} for {come}", spool.promised());
        }
    }

    #[test]
    fn whoever_gives_a_body_up_does_not_wait_for_its_removal() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool::open(dir.path().join("spool"), &Default::default(), true).expect("opens");
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime");
        let (release, held) = std::sync::mpsc::channel::<()>();
        drop(runtime.spawn_blocking(move || held.recv()));
        let writer = {
            let _entered = runtime.enter();
            spool.writer(1).expect("room")
        };
        let path = writer.spooled.guard.as_ref().expect("not taken over").path.clone();
        // Outside of the runtime, as on the journal's thread when it is full.
        drop(writer);
        assert!(path.exists(), "removed by who gave it up");
        drop(release);
        // It takes its turn behind the removal.
        runtime.block_on(runtime.spawn_blocking(|| ())).expect("a turn");
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_was_written_is_counted_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let spool = Spool::open(dir.path().join("spool"), &Default::default(), true).expect("opens");
        let mut writer = spool.writer(1_000_000).expect("room");
        writer.write(&[b'x'; 300_000]).await.expect("written");
        assert_eq!(*spool.promised(), 700_000);
        // More than was announced.
        writer.write(&[b'x'; 900_000]).await.expect("written");
        assert_eq!(*spool.promised(), 0);
        writer.write(b"in the buffer").await.expect("written");
        let spooled = writer.finish().await.expect("synced");
        assert_eq!((*spool.promised(), spooled.len), (0, 1_200_013));
    }
}
