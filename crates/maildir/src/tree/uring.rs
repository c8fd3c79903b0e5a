//! Batches of system calls through io_uring(7): the only unsafe code of this crate.
//!
//! The kernel reads names from our memory and writes results into it until it reports completion. So all of that memory
//! has one owner ([`Memory`]). It does not move, is not touched while requests are in flight, and is leaked rather than
//! freed if the kernel stops answering.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};

use super::facts::{Contents, FileFacts};
use super::method::DISABLE_IO_URING;

/// Files of one batch. Larger ones gained nothing.
const STAT_BATCH: usize = 16_384;
/// Largest file read through the ring. Most messages are smaller; larger ones are read by ordinary calls.
const READ_BYTES: usize = 32 << 10;

/// `None` if the kernel or the environment forbids it.
fn ring(entries: usize) -> Option<IoUring> {
    if std::env::var_os(DISABLE_IO_URING).is_some_and(|value| value == "1") {
        return None;
    }
    IoUring::builder().dontfork().build(u32::try_from(entries).ok()?).ok()
}

/// Memory that the kernel reads and writes while requests are in flight.
struct Memory {
    names: Vec<CString>,
    facts: Shared<libc::statx>,
    buffers: Shared<u8>,
}

/// Values reached through one pointer that is taken once. A reference to all of them, even briefly, would claim that
/// nobody else writes to any of them, but the kernel does.
struct Shared<T> {
    // Keeps the memory. Not used otherwise.
    _owner: Vec<T>,
    base: *mut T,
    len: usize,
}

// SAFETY: the pointer leads into the vector beside it, which nothing else reaches, so both go to another thread together. The kernel does not care
// which thread takes its answers.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn new(mut values: Vec<T>) -> Self {
        let base = values.as_mut_ptr();
        let len = values.len();
        Self { _owner: values, base, len }
    }

    fn at(&self, place: usize) -> *mut T {
        assert!(place < self.len, "{place} of {}", self.len);
        self.base.wrapping_add(place)
    }

    /// # Safety
    /// The kernel has answered all requests that concern these values.
    unsafe fn values(&self, from: usize, count: usize) -> &[T] {
        assert!(from.checked_add(count).is_some_and(|end| end <= self.len), "{count} from {from} of {}", self.len);
        // SAFETY: inside the vector, whose values are never reached otherwise; the caller knows that nobody writes to these.
        unsafe { std::slice::from_raw_parts(self.base.wrapping_add(from), count) }
    }
}

impl Memory {
    fn new(files: usize, buffer_bytes: usize) -> Self {
        // SAFETY: `statx` is plain integers, for which zero is a value.
        let empty: libc::statx = unsafe { std::mem::zeroed() };
        let facts = vec![empty; files];
        let buffers = vec![0; files * buffer_bytes];
        Self { names: Vec::new(), facts: Shared::new(facts), buffers: Shared::new(buffers) }
    }

    /// # Safety
    /// The answer for `place` must have arrived.
    unsafe fn facts(&self, place: usize) -> FileFacts {
        // SAFETY: as above.
        let stat = &unsafe { self.facts.values(place, 1) }[0];
        FileFacts {
            inode: stat.stx_ino,
            size: stat.stx_size,
            mtime_ns: stat.stx_mtime.tv_sec.saturating_mul(1_000_000_000) + i64::from(stat.stx_mtime.tv_nsec),
        }
    }

    /// Requests size and time of the file at `place`.
    fn stat_entry(&self, dir: i32, place: usize) -> Entry {
        let mask = libc::STATX_INO | libc::STATX_SIZE | libc::STATX_MTIME;
        opcode::Statx::new(types::Fd(dir), self.names[place].as_ptr(), self.facts.at(place).cast())
            .flags(libc::AT_STATX_DONT_SYNC)
            .mask(mask)
            .build()
    }
}

/// Looks at files of one directory. `None` if no ring is available.
pub(super) fn stat(dir: &OwnedFd, files: &[(String, u64)]) -> io::Result<Option<Vec<Option<FileFacts>>>> {
    let batch = files.len().min(STAT_BATCH);
    if batch == 0 {
        return Ok(Some(Vec::new()));
    }
    let Some(ring) = ring(batch) else { return Ok(None) };
    let mut flight = Flight { ring, in_flight: 0, memory: Some(Memory::new(batch, 0)) };
    let mut found = vec![None; files.len()];
    // A place is free for the next file as soon as its answer is there, so the ring never runs dry.
    let mut free: Vec<usize> = (0..batch).rev().collect();
    let mut file_at = vec![0; batch];
    let mut trouble = None;
    flight.memory().names.resize(batch, CString::default());
    let mut next = 0;
    while next < files.len() || flight.in_flight > 0 {
        while next < files.len()
            && let Some(place) = free.pop()
        {
            flight.memory().names[place] = CString::new(files[next].0.as_str()).unwrap_or_default();
            file_at[place] = next;
            next += 1;
            let entry = flight.memory().stat_entry(dir.as_raw_fd(), place).user_data(place as u64);
            flight.push(&[entry]);
        }
        // Half of them: the rest is worked on while the next ones are prepared.
        flight.wait_for(flight.in_flight.div_ceil(2))?;
        flight.answers(|memory, tag, result| {
            let place = tag as usize;
            match result {
                // SAFETY: this is the answer.
                0.. => found[file_at[place]] = Some(unsafe { memory.facts(place) }),
                missing if missing == -libc::ENOENT => {}
                error => trouble = Some(io::Error::from_raw_os_error(-error)),
            }
            free.push(place);
        });
    }
    trouble.map_or(Ok(Some(found)), Err)
}

/// A ring, its buffers, and the number of outstanding answers.
struct Flight {
    ring: IoUring,
    in_flight: usize,
    /// `None` once it had to be given up.
    memory: Option<Memory>,
}

impl Flight {
    fn memory(&mut self) -> &mut Memory {
        self.memory.as_mut().expect("a ring that was given up is not used again")
    }

    /// Queues entries, which stay together. There is room: no more are in flight than the ring was made for.
    fn push(&mut self, entries: &[Entry]) {
        // SAFETY: every pointer in an entry leads into `self.memory`, into heap memory that is neither moved nor freed before the answer has
        // come: `drop` waits for all answers, and leaks the memory if it cannot.
        unsafe { self.ring.submission().push_multiple(entries) }.expect("room in the submission queue");
        self.in_flight += entries.len();
    }

    fn wait_for(&mut self, answers: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(answers) {
                Ok(_) => return Ok(()),
                // A signal, or the kernel is short of memory for a moment.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn answers(&mut self, mut each: impl FnMut(&Memory, u64, i32)) {
        let Some(memory) = &self.memory else { return };
        for answer in self.ring.completion() {
            self.in_flight -= 1;
            each(memory, answer.user_data(), answer.result());
        }
    }

    /// Stops waiting for outstanding requests. The kernel may still use their buffers, so these are leaked.
    fn give_up(&mut self) {
        std::mem::forget(self.memory.take());
        self.in_flight = 0;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            match self.wait_for(self.in_flight) {
                Ok(()) => self.answers(|_, _, _| {}),
                Err(_) => self.give_up(),
            }
        }
    }
}

/// Reads batches of files: open, read and close of each file are one chain, and the next batch is in flight while one
/// is processed.
pub(super) struct ReadRing {
    now: Half,
    next: Half,
}

/// One batch. Two rings, so that waiting for one batch does not wait for the other.
struct Half {
    flight: Flight,
    /// Bytes read of each file, `None` after a failure.
    read: Vec<Option<usize>>,
    known: Vec<bool>,
}

const OPS: usize = 4;

impl ReadRing {
    pub fn new(batch: usize) -> Option<Self> {
        Some(Self { now: Half::new(batch)?, next: Half::new(batch)? })
    }

    /// Starts reading `paths` and returns the previous batch: `None` for files to be read in another way.
    pub fn turn(&mut self, paths: &[PathBuf], mut each: impl FnMut(usize, Option<Contents<'_>>)) {
        self.next.begin(paths);
        self.now.finish();
        for place in 0..self.now.read.len() {
            each(place, self.now.contents(place));
        }
        std::mem::swap(&mut self.now, &mut self.next);
    }
}

impl Half {
    fn new(batch: usize) -> Option<Self> {
        let ring = ring(batch * OPS)?;
        // Open files get numbers in a table of the ring's own; a kernel without it is too old for us.
        ring.submitter().register_files_sparse(u32::try_from(batch).ok()?).ok()?;
        let flight = Flight { ring, in_flight: 0, memory: Some(Memory::new(batch, READ_BYTES)) };
        Some(Self { flight, read: Vec::new(), known: Vec::new() })
    }

    fn begin(&mut self, paths: &[PathBuf]) {
        self.read = vec![None; paths.len()];
        self.known = vec![false; paths.len()];
        if self.flight.memory.is_none() {
            return;
        }
        let names = paths.iter().map(|path| CString::new(path.as_os_str().as_bytes()).unwrap_or_default());
        self.flight.memory().names = names.collect();
        for place in 0..paths.len() {
            let entries = self.chain(place);
            self.flight.push(&entries);
        }
        // On their way; answers are fetched by `finish`.
        let _ = self.flight.wait_for(0);
    }

    fn chain(&mut self, place: usize) -> [Entry; OPS] {
        let memory = self.flight.memory();
        let tag = |op: usize| (place * OPS + op) as u64;
        let slot = u32::try_from(place).expect("a batch is small");
        let target = types::DestinationSlot::try_from_slot_target(slot).expect("a batch is small");
        let buffer = memory.buffers.at(place * READ_BYTES);
        let bytes = u32::try_from(READ_BYTES).expect("a buffer is small");
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), memory.names[place].as_ptr())
            .file_index(Some(target))
            .flags(libc::O_RDONLY)
            .build();
        let read = opcode::Read::new(types::Fixed(slot), buffer, bytes).build();
        let close = opcode::Close::new(types::Fixed(slot)).build();
        [
            memory.stat_entry(libc::AT_FDCWD, place).user_data(tag(0)),
            open.flags(Flags::IO_LINK).user_data(tag(1)),
            // Less than a whole buffer is what is expected, and breaks a link of the other kind.
            read.flags(Flags::IO_HARDLINK).user_data(tag(2)),
            close.user_data(tag(3)),
        ]
    }

    fn finish(&mut self) {
        while self.flight.in_flight > 0 {
            if self.flight.wait_for(self.flight.in_flight).is_err() {
                self.flight.give_up();
                return;
            }
            let read = &mut self.read;
            let known = &mut self.known;
            self.flight.answers(|_, tag, result| {
                let place = tag as usize / OPS;
                let op = tag as usize % OPS;
                match (op, usize::try_from(result)) {
                    (0, Ok(_)) => known[place] = true,
                    // A full buffer may not hold the whole file.
                    (2, Ok(bytes)) if bytes < READ_BYTES => read[place] = Some(bytes),
                    _ => {}
                }
            });
        }
    }

    fn contents(&self, place: usize) -> Option<Contents<'_>> {
        let memory = self.flight.memory.as_ref()?;
        let bytes = self.read[place].filter(|_| self.known[place])?;
        // SAFETY: `finish` has taken all answers of the batch.
        let facts = unsafe { memory.facts(place) };
        // Otherwise it was written to, or put in its place, between the two calls; or a pipe, which an ordinary call knows how to read.
        if bytes as u64 != facts.size {
            return None;
        }
        // SAFETY: as above; and nothing is asked for into these buffers while the contents are borrowed.
        Some(Contents { bytes: unsafe { memory.buffers.values(place * READ_BYTES, bytes) }, facts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(ring: &mut ReadRing, paths: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
        let mut read = Vec::new();
        ring.turn(paths, |_, contents| read.push(contents.map(|contents| contents.bytes.to_vec())));
        read
    }

    #[test]
    fn a_ring_that_was_given_up_hands_out_nothing_and_does_not_wait() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        std::fs::write(&file, "text").unwrap();
        let paths = [file.clone(), file];
        let Some(mut ring) = ReadRing::new(2) else {
            eprintln!("no io_uring here");
            return;
        };
        assert_eq!(turn(&mut ring, &paths), []);
        assert_eq!(turn(&mut ring, &paths), vec![Some(b"text".to_vec()); 2]);
        // The kernel may still be at work on this batch.
        ring.now.flight.give_up();
        assert_eq!(turn(&mut ring, &paths), [None, None]);
        ring.now.flight.give_up();
        for _ in 0..3 {
            assert_eq!(turn(&mut ring, &paths), [None, None]);
        }
    }

    #[test]
    fn files_with_a_wrong_size_fall_back_to_plain_reads() {
        // Sizes there are 0 whatever can be read.
        let paths = [PathBuf::from("/proc/self/status")];
        let Some(mut ring) = ReadRing::new(1) else {
            eprintln!("no io_uring here");
            return;
        };
        turn(&mut ring, &paths);
        assert_eq!(turn(&mut ring, &[]), [None]);
    }
}
