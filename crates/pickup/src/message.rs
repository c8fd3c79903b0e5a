//! A message that lies in the directory, as the server reads it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use bytes::Bytes;
use posthaste_fsops as fsops;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::directory::{PickupDirectory, is_sound};
use crate::head::{HEAD_BYTES_MAX, HeadError, MAGIC, PickupHead, Promise};

/// A file being read. Its author may still change it, so the octets count only once [`read`](Self::read) has returned
/// `None`.
#[derive(Debug)]
pub struct PickupMessage {
    file: File,
    head: PickupHead,
    /// The submitting user.
    uid: u32,
    /// Octets of the message.
    bytes: u64,
    /// Remaining octets of the message.
    left: u64,
    expected: Option<u32>,
    crc: u32,
    /// Octets of the message read together with the head.
    first: Vec<u8>,
}

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickupReadError {
    /// The file is gone.
    #[error("it is gone")]
    Gone,
    /// The file is not a regular file, or has several names.
    #[error("it is not a regular file, or has a second name")]
    NotAFile,
    /// We may not read it.
    #[error("the server may not read it")]
    Forbidden,
    /// Shorter or longer than its first line says.
    #[error("it has {found} bytes instead of {promised}: it is truncated or incomplete")]
    Length {
        /// Octets after the first line.
        found: u64,
        /// The length that the first line promises.
        promised: u64,
    },
    /// The checksum is wrong.
    #[error("its checksum is wrong")]
    Checksum,
    /// The head cannot be read.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// The disk or the system fails; another attempt may succeed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl PickupReadError {
    /// True if another attempt fails as well.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Io(_))
    }
}

impl PickupMessage {
    /// Opens a file and reads its head.
    ///
    /// # Errors
    /// See [`PickupReadError`].
    pub fn open(directory: &PickupDirectory, name: &OsStr) -> Result<Self, PickupReadError> {
        // A FIFO would keep us waiting, and a link may lead anywhere.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = match fsops::openat(directory, name.as_bytes(), flags, Mode::empty()) {
            Ok(file) => file.into(),
            Err(Errno::NOENT) => return Err(PickupReadError::Gone),
            Err(Errno::ACCESS | Errno::PERM) => return Err(PickupReadError::Forbidden),
            // A link, a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Err(PickupReadError::NotAFile),
            Err(error) => return Err(PickupReadError::Io(error.into())),
        };
        let found = file.metadata()?;
        if !is_sound(&found) {
            return Err(PickupReadError::NotAFile);
        }
        let mut begin = Begin { file: &file, buffer: Vec::new() };
        let first_end = begin.until(|read| read.iter().position(|&b| b == b'\n').map(|at| at + 1), LINE_BYTES_MAX);
        let first_end = first_end?.ok_or(HeadError::Magic)?;
        let promise = Promise::parse(&begin.buffer[..first_end - 1])?;
        let behind = found.size().saturating_sub(first_end as u64);
        if behind != promise.bytes {
            return Err(PickupReadError::Length { found: behind, promised: promise.bytes });
        }
        let blank = |read: &[u8]| read[first_end..].windows(2).position(|pair| pair == b"\n\n");
        let blank = begin.until(blank, first_end + HEAD_BYTES_MAX)?.ok_or(HeadError::Endless)?;
        let lines_end = first_end + blank + 1;
        let head = PickupHead::parse(&begin.buffer[first_end..lines_end])?;
        let lines_end = lines_end + 1;
        let crc = crc32c::crc32c(&begin.buffer[first_end..lines_end]);
        let mut first = begin.buffer;
        first.drain(..lines_end);
        let bytes = (first_end as u64 + promise.bytes).saturating_sub(lines_end as u64);
        first.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        // Only the server is believed about others.
        let is_ours = found.uid() == rustix::process::geteuid().as_raw();
        let uid = head.uid.filter(|_| is_ours).unwrap_or(found.uid());
        Ok(Self { file, head, uid, bytes, left: bytes, expected: promise.crc, crc, first })
    }

    /// Sender and recipients.
    pub fn head(&self) -> &PickupHead {
        &self.head
    }

    /// The user that has handed it over.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Octets of the message.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next piece of the message; `None` at the end, if length and checksum are correct.
    ///
    /// # Errors
    /// See [`PickupReadError`]; discard all earlier pieces.
    pub fn read(&mut self) -> Result<Option<Bytes>, PickupReadError> {
        if self.left == 0 {
            let is_right = self.expected.is_none_or(|expected| expected == self.crc);
            return if is_right { Ok(None) } else { Err(PickupReadError::Checksum) };
        }
        let mut piece = std::mem::take(&mut self.first);
        if piece.is_empty() {
            let max = self.left.min(PIECE_BYTES as u64);
            piece.reserve_exact(max as usize);
            (&self.file).take(max).read_to_end(&mut piece)?;
            if (piece.len() as u64) < max {
                return Err(PickupReadError::Length { found: self.bytes - self.left, promised: self.bytes });
            }
        }
        self.left -= piece.len() as u64;
        self.crc = crc32c::crc32c_append(self.crc, &piece);
        Ok(Some(piece.into()))
    }
}

/// The first octets of a file.
struct Begin<'a> {
    file: &'a File,
    buffer: Vec<u8>,
}

impl Begin<'_> {
    /// Reads until `find` returns a result, the input ends, or `max` octets were read.
    fn until(&mut self, find: impl Fn(&[u8]) -> Option<usize>, max: usize) -> io::Result<Option<usize>> {
        loop {
            if let Some(found) = find(&self.buffer) {
                return Ok(Some(found));
            }
            // Each time twice as much, so that a long head is not looked at again and again.
            let more = self.buffer.len().clamp(FIRST_BYTES, HEAD_BYTES_MAX);
            let read = self.file.take(more as u64).read_to_end(&mut self.buffer)?;
            if read == 0 || self.buffer.len() > max.saturating_add(more) {
                return Ok(None);
            }
        }
    }
}

/// More than any first line.
const LINE_BYTES_MAX: usize = MAGIC.len() + 64;
/// Octets that are read first: all of most messages of cron.
const FIRST_BYTES: usize = 8 << 10;
/// Octets of one read.
const PIECE_BYTES: usize = 256 << 10;
