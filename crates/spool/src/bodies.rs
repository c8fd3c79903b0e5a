//! Large bodies: each in its own file, durable before the batch that refers to it.
//!
//! A file holds the body, and after it one CRC-32C for each [`CHUNK`] bytes of it. The batch contains the length and
//! the CRC of that table, so any range can be verified without reading the rest.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes};
use posthaste_fsops::Space;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::fields::Fields;
use crate::files;
use crate::front::FrontRegion;
use crate::room::{Reserved, Room};

/// Location of a large body, as its batch records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyFile {
    pub upload: u64,
    /// Bytes of the body in the file.
    pub len: u64,
    /// CRC-32C of the table of CRCs after the body.
    pub table_crc: u32,
    /// The front fields, which are in the record of the batch.
    pub front: FrontRegion,
}

impl BodyFile {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64_le(self.upload);
        out.put_u64_le(self.len);
        out.put_u32_le(self.table_crc);
        self.front.encode(out);
    }

    pub fn decode(fields: &mut Fields<'_>) -> Option<Self> {
        let upload = fields.u64()?;
        let len = fields.u64()?;
        let table_crc = fields.u32()?;
        Some(BodyFile { upload, len, table_crc, front: FrontRegion::decode(fields)? })
    }

    /// Bytes of the front fields and the body.
    pub fn whole_len(&self) -> u64 {
        u64::from(self.front.len).saturating_add(self.len)
    }
}

/// Bytes covered by one checksum.
const CHUNK: u64 = 256 << 10;
/// Suffix of body files.
const ENDING: &str = ".body";

/// Why a body file could not be read.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// A checksum does not match, or the file is truncated.
    Damaged(&'static str),
    /// There is no file.
    Missing,
    Io(io::Error),
}

impl BodyError {
    /// A description of the damage. `Err` if the disk failed, so that nothing is known about the body.
    pub fn what(self) -> io::Result<&'static str> {
        match self {
            BodyError::Damaged(what) => Ok(what),
            BodyError::Missing => Ok("its file is missing"),
            BodyError::Io(error) => Err(error),
        }
    }
}

/// The directory of body files.
#[derive(Debug)]
pub(crate) struct Bodies {
    dir: PathBuf,
    room: Arc<Room>,
}

impl Bodies {
    pub fn open(dir: PathBuf, floor: Space) -> io::Result<Self> {
        posthaste_fsops::make_dir(&dir)?;
        let room = Arc::new(Room::new(&dir, floor));
        Ok(Bodies { dir, room })
    }

    /// Uses the directory read-only, without creating it.
    pub fn at(dir: PathBuf) -> Self {
        let room = Arc::new(Room::new(&dir, Space::default()));
        Bodies { dir, room }
    }

    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Begins a body of `announced` bytes, 0 if unknown.
    pub fn upload(self: &Arc<Self>, announced: u64) -> io::Result<Upload> {
        let reserved = Reserved::begin(&self.room, announced)?;
        loop {
            let upload = files::random();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match posthaste_fsops::open(self.path(upload), flags, files::OWNER) {
                Err(Errno::EXIST) => {}
                opened => {
                    let file = OnDisk { bodies: self.clone(), upload, is_wanted: false.into() };
                    let writer = opened?.into();
                    return Ok(Upload { writer, file, reserved, len: 0, chunk_crc: 0, table: Vec::new() });
                }
            }
        }
    }

    /// The name of a body file.
    pub fn name(&self, upload: u64) -> String {
        format!("{upload:016x}{ENDING}")
    }

    pub fn path(&self, upload: u64) -> PathBuf {
        self.dir.join(self.name(upload))
    }

    /// Ids of all uploads with a file.
    pub fn list(&self) -> io::Result<Vec<u64>> {
        let upload = |name: String| u64::from_str_radix(name.strip_suffix(ENDING)?, 16).ok();
        Ok(files::list(&self.dir)?.into_iter().filter_map(upload).collect())
    }

    pub fn remove(&self, upload: u64) -> io::Result<()> {
        files::remove(&self.path(upload))
    }

    /// The bytes of `range` within the body, verified.
    pub fn read(&self, body: BodyFile, range: Range<u64>) -> Result<Bytes, BodyError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (file, table) = self.open_checked(body)?;
        let first = range.start / CHUNK;
        let mut bytes = Vec::with_capacity((range.end.div_ceil(CHUNK) - first) as usize * CHUNK as usize);
        for chunk in first..range.end.div_ceil(CHUNK) {
            read_chunk(&file, body, &table, chunk, &mut bytes)?;
        }
        let skipped = (range.start - first * CHUNK) as usize;
        Ok(Bytes::from(bytes).slice(skipped..skipped + (range.end - range.start) as usize))
    }

    /// Reads the whole body and reports damage.
    pub fn verify(&self, body: BodyFile) -> Result<(), BodyError> {
        let (file, table) = self.open_checked(body)?;
        let mut bytes = Vec::new();
        for chunk in 0..body.len.div_ceil(CHUNK) {
            bytes.clear();
            read_chunk(&file, body, &table, chunk, &mut bytes)?;
        }
        Ok(())
    }

    /// Like [`verify`](Self::verify), but bypasses the page cache. Unreadable sectors count as damage.
    pub fn verify_again(&self, body: BodyFile) -> io::Result<Result<(), &'static str>> {
        if let Ok(file) = File::open(self.path(body.upload)) {
            // Without this call, the read shows the content of the page cache.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
        match self.verify(body) {
            Err(BodyError::Io(error)) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                Ok(Err("the disk cannot read it"))
            }
            Err(error) => error.what().map(Err),
            Ok(()) => Ok(Ok(())),
        }
    }

    fn open_checked(&self, body: BodyFile) -> Result<(File, Vec<u8>), BodyError> {
        let file = match File::open(self.path(body.upload)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BodyError::Missing);
            }
            opened => opened.map_err(BodyError::Io)?,
        };
        let mut table = vec![0; body.len.div_ceil(CHUNK) as usize * 4];
        read_at(&file, &mut table, body.len)?;
        if crc32c::crc32c(&table) != body.table_crc {
            return Err(BodyError::Damaged("the checksums after the body are damaged"));
        }
        Ok((file, table))
    }
}

fn read_chunk(file: &File, body: BodyFile, table: &[u8], chunk: u64, into: &mut Vec<u8>) -> Result<(), BodyError> {
    let at = into.len();
    into.resize(at + CHUNK.min(body.len - chunk * CHUNK) as usize, 0);
    read_at(file, &mut into[at..], chunk * CHUNK)?;
    let expected = &table[chunk as usize * 4..][..4];
    if crc32c::crc32c(&into[at..]).to_le_bytes() != expected {
        return Err(BodyError::Damaged("a checksum of the body is wrong"));
    }
    Ok(())
}

fn read_at(file: &File, into: &mut [u8], offset: u64) -> Result<(), BodyError> {
    file.read_exact_at(into, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => BodyError::Damaged("its file is too short"),
        _ => BodyError::Io(error),
    })
}

/// A body file without a reference: removed when dropped, unless it is kept.
#[derive(Debug)]
struct OnDisk {
    bodies: Arc<Bodies>,
    upload: u64,
    is_wanted: AtomicBool,
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        if !*self.is_wanted.get_mut() {
            // The next opening removes a file that cannot be removed now.
            let _ = self.bodies.remove(self.upload);
        }
    }
}

/// A large body being written. Dropping it unfinished leaves nothing.
#[derive(Debug)]
pub struct Upload {
    writer: File,
    file: OnDisk,
    reserved: Reserved,
    len: u64,
    /// Checksum of the unfinished chunk.
    chunk_crc: u32,
    table: Vec<u8>,
}

impl Upload {
    /// Appends bytes to the body. Reserves room in steps that grow with the body; each step queries the file system.
    ///
    /// # Errors
    /// [`StorageFull`](io::ErrorKind::StorageFull) if there is no room above
    /// [`Config::free_bytes_min`](crate::Config::free_bytes_min), or those of `write`; then the upload is unusable.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.reserved.want(bytes.len() as u64)?;
        posthaste_fsops::write_all(&self.writer, bytes)?;
        self.reserved.wrote(bytes.len() as u64);
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min((CHUNK - self.len % CHUNK) as usize));
            self.chunk_crc = crc32c::crc32c_append(self.chunk_crc, now);
            self.len += now.len() as u64;
            bytes = rest;
            if self.len.is_multiple_of(CHUNK) {
                self.table.put_u32_le(std::mem::take(&mut self.chunk_crc));
            }
        }
        Ok(())
    }

    /// Releases the reservation during a pause. Later bytes reserve again. Does not block.
    pub fn pause(&mut self) {
        self.reserved.pause();
    }

    /// Bytes written so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if it has no bytes yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes the file and its name durable. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// An error of `write` or `fsync`: then the file is removed. EIO of a sync poisons the whole spool, as the device
    /// may have lost writes of other files.
    pub fn finish(mut self) -> io::Result<FinishedUpload> {
        if !self.len.is_multiple_of(CHUNK) {
            self.table.put_u32_le(self.chunk_crc);
        }
        posthaste_fsops::write_all(&self.writer, &self.table)?;
        posthaste_fsops::fsync(&self.writer)?;
        files::sync_dir(&self.file.bodies.dir)?;
        let upload = self.file.upload;
        let len = self.len;
        let table_crc = crc32c::crc32c(&self.table);
        let body = BodyFile { upload, len, table_crc, front: FrontRegion::default() };
        Ok(FinishedUpload { body, file: Arc::new(self.file) })
    }
}

/// A durable large body that waits for its batch. Dropping it leaves nothing.
///
/// Clones share the body. It belongs to one batch; a refused batch returns it, so that a clone can be appended again.
#[derive(Debug, Clone)]
pub struct FinishedUpload {
    pub(crate) body: BodyFile,
    file: Arc<OnDisk>,
}

impl FinishedUpload {
    /// Bytes of the body.
    pub fn len(&self) -> u64 {
        self.body.len
    }

    /// True if the body is empty.
    pub fn is_empty(&self) -> bool {
        self.body.len == 0
    }

    /// The octets of the body, for an owner that copies them. They come from the page cache of their own write, so
    /// checksums are not verified.
    ///
    /// # Errors
    /// Errors of `open`.
    pub fn reader(&self) -> io::Result<io::Take<File>> {
        let path = self.file.bodies.path(self.body.upload);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file: File = posthaste_fsops::open(path, flags, files::OWNER)?.into();
        Ok(io::Read::take(file, self.body.len))
    }

    /// Keeps the file: from here on a record may refer to it.
    ///
    /// # Panics
    /// If another batch has kept the file: each of them would remove it later.
    pub(crate) fn keep(&self) {
        let was_kept = self.file.is_wanted.swap(true, Ordering::AcqRel);
        assert!(!was_kept, "body file {:016x} is in another batch", self.body.upload);
    }

    /// Notes that no record refers to the file: its last owner removes it. False if this was the last owner, and the
    /// file still exists.
    pub(crate) fn give_back(self) -> bool {
        self.file.is_wanted.store(false, Ordering::Release);
        match Arc::into_inner(self.file) {
            Some(mut file) => {
                *file.is_wanted.get_mut() = true;
                false
            }
            None => true,
        }
    }
}

/// Directory of body files in a spool.
pub(crate) fn dir_of(spool: &Path) -> PathBuf {
    spool.join("bodies")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    fn uploaded(bodies: &Arc<Bodies>, bytes: &[u8]) -> BodyFile {
        let mut upload = bodies.upload(0).unwrap();
        bytes.chunks(100_003).for_each(|piece| upload.write(piece).unwrap());
        let finished = upload.finish().unwrap();
        finished.keep();
        finished.body
    }

    #[test]
    fn any_range_reads_back_and_any_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let bodies = Arc::new(Bodies::open(dir.path().join("bodies"), Space::default()).unwrap());
        for len in [1, CHUNK as usize - 1, CHUNK as usize, 2 * CHUNK as usize + 77] {
            let bytes = sample(len);
            let body = uploaded(&bodies, &bytes);
            for range in [0..len, 0..1, len - 1..len, len / 2..len / 2 + len / 3, len / 3..len / 3] {
                let read = bodies.read(body, range.start as u64..range.end as u64).unwrap();
                assert_eq!(read, bytes[range]);
            }
            bodies.verify(body).unwrap();
            let file = File::options().read(true).write(true).open(bodies.path(body.upload)).unwrap();
            let whole = file.metadata().unwrap().len();
            for at in [0, len as u64 / 2, len as u64 - 1, len as u64, whole - 1] {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 1], at).unwrap();
                assert!(matches!(bodies.verify(body), Err(BodyError::Damaged(_))), "byte {at} of {len}");
                assert!(matches!(bodies.read(body, 0..len as u64), Err(BodyError::Damaged(_))));
                file.write_all_at(&byte, at).unwrap();
            }
            file.set_len(whole - 1).unwrap();
            assert!(matches!(bodies.verify(body), Err(BodyError::Damaged(_))));
        }
    }

    #[test]
    fn a_body_that_nobody_names_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let bodies = Arc::new(Bodies::open(dir.path().join("bodies"), Space::default()).unwrap());
        drop(bodies.upload(0).unwrap());
        let mut upload = bodies.upload(0).unwrap();
        upload.write(b"part").unwrap();
        drop(upload.finish().unwrap());
        assert_eq!(bodies.list().unwrap(), []);
        let body = uploaded(&bodies, b"named");
        assert_eq!(bodies.list().unwrap(), [body.upload]);
    }

    #[test]
    fn a_finished_body_and_its_name_survive_any_cut() {
        use posthaste_fsops::{Choice, Cut, Machine};
        let machine = Machine::new().unwrap();
        let dir = dir_of(machine.path());
        let bodies = Arc::new(Bodies::open(dir, Space::default()).unwrap());
        let body = uploaded(&bodies, &sample(300_000));
        let recording = machine.recording();
        for seed in 0..20 {
            let tree = recording.cut(Cut { position: recording.events.len(), choice: Choice::Seed(seed) });
            let left = Machine::boot(&tree, true, false).unwrap();
            Bodies::open(dir_of(left.path()), Space::default()).unwrap().verify(body).unwrap();
        }
    }

    #[test]
    fn stalled_uploads_leave_room_whatever_they_announced() {
        use crate::room::tests::{reserved, room_of};
        let dir = tempfile::tempdir().unwrap();
        let mut bodies = Bodies::open(dir.path().join("bodies"), Space::default()).unwrap();
        bodies.room = room_of(&bodies.dir, 1 << 30, 64 << 20);
        let bodies = Arc::new(bodies);
        let stalled = (0..100).map(|_| {
            let mut upload = bodies.upload(900 << 20).unwrap();
            upload.write(&[1; 1000]).unwrap();
            upload.pause();
            upload
        });
        let stalled: Vec<Upload> = stalled.collect();
        assert_eq!(reserved(bodies.room()), 0);
        let other = uploaded(&bodies, &sample(3 << 20));
        drop(stalled);
        assert_eq!(bodies.list().unwrap(), [other.upload]);
    }

    #[test]
    fn uploads_that_would_cross_the_floor_together_are_refused() {
        use crate::room::tests::{reserved, room_of};
        let dir = tempfile::tempdir().unwrap();
        let mut bodies = Bodies::open(dir.path().join("bodies"), Space::default()).unwrap();
        let (all, floor) = (20 << 20, 4 << 20);
        bodies.room = room_of(&bodies.dir, all, floor);
        let bodies = Arc::new(bodies);
        // Each finds room alone, and says so; together they are 20 MiB.
        let mut uploads: Vec<Option<Upload>> = (0..2).map(|_| Some(bodies.upload(10 << 20).unwrap())).collect();
        let mut refused = Vec::new();
        for _ in 0..10 {
            for (number, slot) in uploads.iter_mut().enumerate() {
                let Some(upload) = slot else { continue };
                if let Err(error) = upload.write(&[7; 1 << 20]) {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
                    refused.push(number);
                    *slot = None;
                }
                let used: u64 = bodies
                    .list()
                    .unwrap()
                    .iter()
                    .map(|upload| std::fs::metadata(bodies.path(*upload)).unwrap().len())
                    .sum();
                assert!(used <= all - floor, "below the floor: {used}");
            }
        }
        assert_eq!(refused.len(), 1, "one gets through");
        assert_eq!(bodies.list().unwrap().len(), 1);
        let finished = uploads.into_iter().flatten().next().unwrap().finish().unwrap();
        assert_eq!((finished.len(), reserved(bodies.room())), (10 << 20, 0));
    }
}
