//! Appends a message to a file in mbox format (RFC 4155, with the quoting called mboxrd). Blocks.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use posthaste_message::mbox::{MboxQuoting, from_line};
use posthaste_spool::MessageReader;
use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::process::{Pid, test_kill_process};

use crate::body::{PIECE_BYTES, ToLf, prefix};
use crate::entry::{Deliver, Target};

/// One message for one file.
pub(crate) struct Append<'a> {
    pub path: &'a Path,
    pub deliver: &'a Deliver,
    pub target: &'a Target,
    pub reader: &'a MessageReader,
    /// Bytes that the file had before an attempt that may have been cut short.
    pub begun: Option<u64>,
    pub lock_time: Duration,
}

/// Why a message was not appended.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// The message cannot be read.
    Body(io::Error),
    /// The file cannot be locked or written; it is unchanged.
    File(String),
}

impl Append<'_> {
    /// Appends the message and syncs it. `begin` is called with the file's length and must make it durable, before the
    /// first byte is written.
    ///
    /// # Errors
    /// See [`AppendError`]: the file is unchanged.
    pub fn run(&self, begin: &mut dyn FnMut(u64) -> Result<(), String>) -> Result<(), AppendError> {
        let file_error = |error: io::Error| AppendError::File(format!("{}: {error}", self.path.display()));
        let deadline = Instant::now() + self.lock_time;
        let _dot_lock = DotLock::take(self.path, deadline).map_err(file_error)?;
        let (mut file, is_new) = open_locked(self.path, deadline).map_err(file_error)?;
        if let Some(begun) = self.begun {
            match self.cut_off(&file, begun)? {
                Found::Whole => return sync(&file, self.path, true).map_err(file_error),
                Found::Other => {}
            }
        }
        let len = file.metadata().map_err(file_error)?.len();
        begin(len).map_err(AppendError::File)?;
        let seek = file.seek(SeekFrom::Start(len)).map(drop).map_err(file_error);
        let written = seek.and_then(|()| self.write(&mut file));
        let synced = written.and_then(|()| sync(&file, self.path, is_new || len == 0).map_err(file_error));
        if synced.is_err() {
            // Half a message must not stay. If even that fails, the next attempt knows the length.
            let _ = file.set_len(len);
        }
        synced
    }

    fn write(&self, file: &mut File) -> Result<(), AppendError> {
        self.render(&mut |piece| {
            let written = file.write_all(piece);
            written.map_err(|error| AppendError::File(format!("{}: {error}", self.path.display())))
        })
    }

    /// Gives `each` the bytes of the message in the file.
    fn render(&self, each: &mut dyn FnMut(&[u8]) -> Result<(), AppendError>) -> Result<(), AppendError> {
        each(from_line(&self.deliver.sender, self.deliver.secs).as_bytes())?;
        let reader = self.reader.clone().with_prefix(prefix(self.deliver, self.target));
        let (mut to_lf, mut quoting, mut lf, mut out) =
            (ToLf::default(), MboxQuoting::default(), Vec::new(), Vec::new());
        let mut at = 0;
        while at < reader.len() {
            let piece = reader.piece(at, PIECE_BYTES).map_err(|error| AppendError::Body(error.into()))?;
            at += piece.len() as u64;
            lf.clear();
            out.clear();
            to_lf.push(&piece, &mut lf);
            quoting.push(&lf, &mut out);
            each(&out)?;
        }
        lf.clear();
        out.clear();
        to_lf.end(&mut lf);
        quoting.push(&lf, &mut out);
        quoting.end(&mut out);
        each(&out)
    }

    /// Finds the remains of an interrupted append, and truncates the file before them.
    fn cut_off(&self, file: &File, begun: u64) -> Result<Found, AppendError> {
        let file_error = |error: io::Error| AppendError::File(format!("{}: {error}", self.path.display()));
        let len = file.metadata().map_err(file_error)?.len();
        if len <= begun {
            return Ok(Found::Other);
        }
        let mut tail = io::BufReader::new(Tail { file, at: begun });
        let mut found = Vec::new();
        let mut at = begun;
        let mut is_same = true;
        self.render(&mut |piece| {
            if is_same {
                found.clear();
                (&mut tail).take(piece.len() as u64).read_to_end(&mut found).map_err(file_error)?;
                let same = found.iter().zip(piece).take_while(|(a, b)| a == b).count();
                at += same as u64;
                is_same = same == piece.len();
            }
            Ok(())
        })?;
        if is_same {
            return Ok(Found::Whole);
        }
        // After a power cut, zeros may stand for what was not written yet. What others have appended stays, and so does half a message before it.
        let mut rest = io::BufReader::new(Tail { file, at });
        let mut buffer = [0; 8192];
        loop {
            match rest.read(&mut buffer).map_err(file_error)? {
                0 => break,
                read if buffer[..read].iter().all(|byte| *byte == 0) => {}
                _ => return Ok(Found::Other),
            }
        }
        file.set_len(begun).map_err(file_error)?;
        Ok(Found::Other)
    }
}

enum Found {
    /// The whole message: only the sync is missing.
    Whole,
    /// The file contains no part of the message now.
    Other,
}

struct Tail<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Tail<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

fn sync(file: &File, path: &Path, with_name: bool) -> io::Result<()> {
    posthaste_fsops::fsync(file)?;
    match path.parent().filter(|_| with_name) {
        Some(dir) => Ok(posthaste_fsops::fsync(File::open(dir)?)?),
        None => Ok(()),
    }
}

/// Opens and locks the file; true if it was created. Another program may move it away meanwhile.
fn open_locked(path: &Path, deadline: Instant) -> io::Result<(File, bool)> {
    loop {
        let is_there = std::fs::symlink_metadata(path).is_ok();
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600).custom_flags(flags.bits().cast_signed());
        let file = options.open(path)?;
        let opened = file.metadata()?;
        if !opened.is_file() || opened.nlink() > 1 {
            return Err(io::Error::other("it is not a plain file with one name"));
        }
        while let Err(error) = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            let is_held = matches!(error, rustix::io::Errno::ACCESS | rustix::io::Errno::AGAIN);
            if !is_held || Instant::now() >= deadline {
                return Err(if is_held { io::Error::other("another program holds its lock") } else { error.into() });
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        let is_same = |now: std::fs::Metadata| (now.dev(), now.ino()) == (opened.dev(), opened.ino());
        if std::fs::symlink_metadata(path).is_ok_and(is_same) {
            return Ok((file, !is_there));
        }
        if Instant::now() >= deadline {
            return Err(io::Error::other("another program keeps replacing it"));
        }
    }
}

/// `PATH.lock`, as in other mail programs. Where it cannot be created, the file's own lock is used.
struct DotLock(Option<PathBuf>);

impl DotLock {
    fn take(path: &Path, deadline: Instant) -> io::Result<Self> {
        let mut lock = path.as_os_str().to_owned();
        lock.push(".lock");
        let lock = PathBuf::from(lock);
        loop {
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&lock) {
                Ok(mut file) => {
                    let _ = writeln!(file, "{}", std::process::id());
                    return Ok(DotLock(Some(lock)));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) =>
                {
                    return Ok(DotLock(None));
                }
                Err(error) => return Err(error),
            }
            if is_stale(&lock) {
                let _ = std::fs::remove_file(&lock);
            } else if Instant::now() >= deadline {
                return Err(io::Error::other(format!("another program holds {}", lock.display())));
            } else {
                std::thread::sleep(LOCK_PAUSE);
            }
        }
    }
}

impl Drop for DotLock {
    fn drop(&mut self) {
        if let Some(lock) = &self.0 {
            let _ = std::fs::remove_file(lock);
        }
    }
}

/// True if its process has ended, or it names none and is old.
fn is_stale(lock: &Path) -> bool {
    let content = std::fs::read_to_string(lock).unwrap_or_default();
    if let Some(pid) = content.trim().parse().ok().and_then(Pid::from_raw) {
        // One of ours may be left of a process that had our number.
        return test_kill_process(pid) == Err(rustix::io::Errno::SRCH);
    }
    let modified = std::fs::metadata(lock).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|then| SystemTime::now().duration_since(then).is_ok_and(|age| age > LOCK_AGE_MAX))
}

const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Age after which a lock without a known process is broken.
const LOCK_AGE_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use posthaste_spool::{Batch, Body, Entry, FileSpool, Lsn, Spool};

    use super::*;

    struct World {
        dir: tempfile::TempDir,
        deliver: Deliver,
        target: Target,
        spool: Arc<dyn Spool>,
        batch: Lsn,
        reader: MessageReader,
    }

    impl World {
        fn new(body: &[u8]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let mut settings = posthaste_spool::Config::default();
            settings.ring.segment_bytes = 4 << 20;
            let (spool, _) = FileSpool::open(&dir.path().join("spool"), settings).unwrap();
            let spool: Arc<dyn Spool> = Arc::new(spool);
            let (tell, told) = std::sync::mpsc::channel();
            let entry = Entry { stream: spool.stream("x").unwrap(), needs_body: true, payload: "x".into() };
            let batch = Batch { entries: vec![entry], body: Body::inline(vec![body.to_vec().into()]) };
            spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
            let batch = told.recv().unwrap().unwrap();
            let reader = MessageReader::in_spool(Arc::clone(&spool), batch, body.len() as u64);
            let (sender, secs) = ("s@example.net".into(), 784_111_777);
            let deliver = Deliver { secs, sender, is_8bit: false, smtputf8: false, body: None, targets: Vec::new() };
            let recipient: Arc<str> = "r@example.org".into();
            let target = Target { transport: "/x".into(), original: recipient.clone(), recipient, detail: "".into() };
            World { dir, deliver, target, spool, batch, reader }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("file")
        }

        fn append(&self, begun: Option<u64>) -> Result<u64, AppendError> {
            let (path, lock_time) = (self.path(), Duration::ZERO);
            let (deliver, target, reader) = (&self.deliver, &self.target, &self.reader);
            let mut noted = u64::MAX;
            Append { path: &path, deliver, target, reader, begun, lock_time }.run(&mut |len| {
                noted = len;
                Ok(())
            })?;
            Ok(noted)
        }
    }

    const BEFORE: &[u8] = b"From x Thu Jan  1 00:00:00 1970\n\nbefore\n\n";
    const AFTER: &[u8] = b"From y Thu Jan  1 00:00:00 1970\n\nafter\n\n";

    #[test]
    fn after_any_cut_the_next_attempt_leaves_one_whole_message() {
        let world = World::new(b"Subject: x\r\n\r\nFrom here\r\nend\r\n");
        std::fs::write(world.path(), BEFORE).unwrap();
        let begun = world.append(None).unwrap();
        assert_eq!(begun, BEFORE.len() as u64);
        let whole = std::fs::read(world.path()).unwrap();
        let message = "From s@example.net Sun Nov  6 08:49:37 1994\nReturn-Path: <s@example.net>\nDelivered-To: r@example.org\n\
             Subject: x\n\n>From here\nend\n\n";
        assert_eq!(String::from_utf8_lossy(&whole[BEFORE.len()..]), message);
        for len in BEFORE.len()..=whole.len() {
            for zeros in [0, 1, 5000] {
                let is_whole = len == whole.len();
                std::fs::write(world.path(), [&whole[..len], &vec![0; zeros]].concat()).unwrap();
                world.append(Some(begun)).unwrap();
                let found = std::fs::read(world.path()).unwrap();
                // Zeros after a whole message are somebody else's.
                assert_eq!(found, [&whole[..], &vec![0; if is_whole { zeros } else { 0 }]].concat(), "{len} {zeros}");
            }
            // Another program has appended meanwhile: that must not go, and ours comes after it unless it is whole.
            std::fs::write(world.path(), [&whole[..len], AFTER].concat()).unwrap();
            world.append(Some(begun)).unwrap();
            let again: &[u8] = if len == whole.len() { b"" } else { &whole[BEFORE.len()..] };
            assert_eq!(std::fs::read(world.path()).unwrap(), [&whole[..len], AFTER, again].concat(), "{len}");
        }
        // The file was emptied, or another is in its place.
        std::fs::write(world.path(), b"").unwrap();
        assert_eq!(world.append(Some(begun)).unwrap(), 0);
        assert_eq!(std::fs::read(world.path()).unwrap(), &whole[BEFORE.len()..]);
    }

    #[test]
    fn an_attempt_that_fails_midway_leaves_the_file_unchanged() {
        let mut world = World::new(&[b'x'; 600_000]);
        std::fs::write(world.path(), BEFORE).unwrap();
        // The last octet of the body is not there.
        let reader = MessageReader::in_spool(Arc::clone(&world.spool), world.batch, 600_001);
        world.reader = reader;
        assert!(matches!(world.append(None), Err(AppendError::Body(_))));
        assert_eq!(std::fs::read(world.path()).unwrap(), BEFORE);
    }

    #[test]
    fn nothing_is_written_unless_the_length_is_on_record() {
        let world = World::new(b"x\r\n");
        let (path, lock_time) = (world.path(), Duration::ZERO);
        let (deliver, target, reader) = (&world.deliver, &world.target, &world.reader);
        let append = Append { path: &path, deliver, target, reader, begun: None, lock_time };
        assert!(append.run(&mut |_| Err("the spool is full".to_owned())).is_err());
        assert_eq!(std::fs::read(world.path()).unwrap(), b"");
    }
}
