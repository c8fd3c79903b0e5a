//! A message being written into the directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_fsops as fsops;
use posthaste_smtp::BodyType;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::directory::PickupDirectory;
use crate::head::{FIRST_LINE_BYTES, HEAD_BYTES_MAX, PickupHead, Promise};

/// A file that is being written. Dropped before [`finish`](Self::finish), it is removed.
#[derive(Debug)]
pub struct PickupEntry<'a> {
    directory: &'a PickupDirectory,
    file: File,
    head: PickupHead,
    /// Octets in front of the message.
    head_bytes: u64,
    /// While it is written it has a dot in front of this.
    name: String,
    is_finished: bool,
    /// Octets of the message so far.
    bytes: u64,
    bytes_max: Option<u64>,
    crc: u32,
    is_8bit: bool,
    /// Buffered octets.
    buffer: Vec<u8>,
}

/// Why a message was not stored. No part of it is left, and the program still has it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The message is larger than the server's limit.
    #[error("the message is larger than {limit} bytes")]
    TooLarge {
        /// The server's limit, in octets.
        limit: u64,
    },
    /// The envelope is larger than the server's limit.
    #[error("too many recipients for one message")]
    TooManyRecipients,
    /// The file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for EntryError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl<'a> PickupEntry<'a> {
    /// Begins a file under an unpredictable name.
    ///
    /// # Errors
    /// See [`EntryError`].
    pub fn begin(directory: &'a PickupDirectory, head: PickupHead, bytes_max: Option<u64>) -> Result<Self, EntryError> {
        let head_bytes = head.lines().len();
        if head_bytes > HEAD_BYTES_MAX {
            return Err(EntryError::TooManyRecipients);
        }
        let name = new_name()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fsops::openat(directory, format!(".{name}"), flags, Mode::RUSR | Mode::WUSR)?;
        let entry = Self {
            directory,
            file: file.into(),
            head,
            head_bytes: (FIRST_LINE_BYTES + head_bytes) as u64,
            name,
            is_finished: false,
            bytes: 0,
            bytes_max,
            crc: 0,
            is_8bit: false,
            buffer: Vec::new(),
        };
        directory.let_server_read(&entry.file)?;
        Ok(entry)
    }

    /// Adds a piece of the message, unchanged. Lines must end in CRLF.
    ///
    /// # Errors
    /// See [`EntryError`].
    pub fn write(&mut self, piece: &[u8]) -> Result<(), EntryError> {
        let bytes = self.bytes + (self.buffer.len() + piece.len()) as u64;
        if let Some(limit) = self.bytes_max.filter(|&max| bytes > max) {
            return Err(EntryError::TooLarge { limit });
        }
        self.buffer.extend_from_slice(piece);
        if self.buffer.len() >= BUFFER_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<(), EntryError> {
        let offset = self.head_bytes + self.bytes;
        fsops::write_all_parts(&self.file, &mut [io::IoSlice::new(&self.buffer)], Some(offset))?;
        self.crc = crc32c::crc32c_append(self.crc, &self.buffer);
        self.is_8bit |= !self.buffer.is_ascii();
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Renames the file, and returns its name once both are on stable storage: from then on no power cut loses the
    /// message.
    ///
    /// # Errors
    /// See [`EntryError`]. After a failed sync of the directory the server may have the message nevertheless.
    pub fn finish(mut self) -> Result<String, EntryError> {
        let name = self.name.clone();
        self.put(self.directory, name.as_ref())?;
        Ok(name)
    }

    /// Like `finish`, but in another directory of the file system, atomically replacing a file with that name.
    ///
    /// # Errors
    /// See [`EntryError`].
    pub fn finish_as(mut self, directory: &PickupDirectory, name: &OsStr) -> Result<(), EntryError> {
        self.put(directory, name)
    }

    fn put(&mut self, directory: &PickupDirectory, name: &OsStr) -> Result<(), EntryError> {
        self.write_out()?;
        if self.is_8bit {
            self.head.mail.body = BodyType::EightBitMime;
        }
        let lines = self.head.lines();
        let crc = crc32c::crc32c_combine(
            crc32c::crc32c(lines.as_bytes()),
            self.crc,
            usize::try_from(self.bytes).unwrap_or(usize::MAX),
        );
        let promise = Promise { bytes: lines.len() as u64 + self.bytes, crc: Some(crc) };
        let head = promise.line() + &lines;
        fsops::write_all_parts(&self.file, &mut [io::IoSlice::new(head.as_bytes())], Some(0))?;
        fsops::fsync(&self.file)?;
        fsops::renameat(self.directory, self.unfinished().as_bytes(), directory, name.as_bytes())?;
        self.is_finished = true;
        Ok(directory.sync_with(&self.file)?)
    }

    fn unfinished(&self) -> String {
        format!(".{}", self.name)
    }
}

impl Drop for PickupEntry<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            // Otherwise it goes when it is old.
            let _ = fsops::unlinkat(self.directory, self.unfinished(), AtFlags::empty());
        }
    }
}

/// Names are sorted by time, roughly, and cannot be guessed.
fn new_name() -> io::Result<String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 16];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    if filled != random.len() {
        return Err(io::Error::other("the kernel has too few random numbers"));
    }
    Ok(format!("{:014x}.{:032x}", since.as_micros(), u128::from_le_bytes(random)))
}

/// Octets of one write.
const BUFFER_BYTES: usize = 64 << 10;
