//! Recordings of the requests to a disk in order, and the disks that a power cut can leave.

use std::io::{self, Read, Write};
use std::sync::Arc;

use posthaste_random::Random;

use crate::image::Image;

/// The smallest sector that disks write atomically, and so the hardest for the data.
pub const SECTOR: usize = 512;

/// One event, in the order in which the disk saw it.
#[derive(Clone)]
pub enum Event {
    /// Bytes were written; not durable before the next flush.
    Write { offset: u64, data: Arc<[u8]> },
    /// A range was discarded and reads as zeros; not durable before the next flush.
    Discard { offset: u64, len: u64 },
    /// Everything before this is on stable storage.
    Flush,
    /// The client received this 250 ([`mark`](crate::load::mark)): from here on the promised mail must be found.
    Mark(u64),
    /// The next hop is about to say 250 for this recipient, with the mark of an LMTP reply.
    Taken(u64),
    /// The server is started.
    Started,
    /// The server ended in order.
    Ended,
}

/// A run: the disk before it, and all requests to it.
#[derive(Clone)]
pub struct Recording {
    pub base: Image,
    pub events: Vec<Event>,
}

/// Treatment of unflushed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unflushed {
    /// All of them, as if the disk had no cache.
    Kept,
    /// All of them are dropped.
    Dropped,
    /// Each is kept or dropped independently, as by a cache that writes back in any order.
    Reordered,
    /// Each sector is kept or dropped independently.
    Torn,
    /// All before one of them, which is torn; none after it.
    Prefix,
}

impl Unflushed {
    fn by(rng: &mut Random) -> Self {
        match rng.below(10) {
            0 => Unflushed::Kept,
            1 | 2 => Unflushed::Dropped,
            3..6 => Unflushed::Reordered,
            6..8 => Unflushed::Torn,
            _ => Unflushed::Prefix,
        }
    }
}

/// Walks a recording from its start and builds the disks that cuts leave; positions must be in ascending order.
pub struct Cutter<'a> {
    events: &'a [Event],
    durable: Image,
    // Everything before this index is in `durable`: 0 <= applied <= position of the last cut.
    applied: usize,
    // The last flush that may be believed is before this index.
    lies_from: usize,
    // Bytes that are written whole or not at all.
    sector: usize,
}

impl<'a> Cutter<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        let (events, durable) = (&recording.events[..], recording.base.clone());
        Cutter { events, durable, applied: 0, lies_from: usize::MAX, sector: SECTOR }
    }

    /// Sets the sector size; [`SECTOR`] without it.
    pub fn sectors_of(mut self, bytes: usize) -> Self {
        self.sector = bytes;
        self
    }

    /// Makes the disk acknowledge every flush from event `from` on without flushing.
    pub fn lying_from(mut self, from: usize) -> Self {
        self.lies_from = from;
        self
    }

    /// The disk after a power cut before event `position`; `seed` decides which unflushed writes survive.
    pub fn cut(&mut self, position: usize, seed: u64) -> Image {
        let mut rng = Random::new(seed);
        let unflushed = Unflushed::by(&mut rng);
        self.cut_with(position, unflushed, &mut rng)
    }

    /// Like [`Cutter::cut`], with an explicit treatment of unflushed writes.
    pub fn cut_with(&mut self, position: usize, unflushed: Unflushed, rng: &mut Random) -> Image {
        assert!(position >= self.applied, "cuts must be asked for in order");
        let believed = &self.events[..position.min(self.lies_from)];
        if let Some(flush) = believed.iter().rposition(|event| matches!(event, Event::Flush))
            && flush >= self.applied
        {
            for event in &self.events[self.applied..flush] {
                apply(&mut self.durable, event);
            }
            self.applied = flush;
        }
        let mut image = self.durable.clone();
        let pending = &self.events[self.applied..position];
        let changes = pending.iter().filter(|event| matches!(event, Event::Write { .. } | Event::Discard { .. }));
        let count = changes.clone().count() as u64;
        let torn = if count > 0 { rng.below(count) } else { 0 };
        for (index, event) in (0..).zip(changes) {
            match unflushed {
                Unflushed::Kept => apply(&mut image, event),
                Unflushed::Dropped => {}
                Unflushed::Reordered if rng.one_in(2) => apply(&mut image, event),
                Unflushed::Reordered => {}
                Unflushed::Torn => tear(&mut image, event, self.sector, rng),
                Unflushed::Prefix if index < torn => apply(&mut image, event),
                Unflushed::Prefix if index == torn => tear(&mut image, event, self.sector, rng),
                Unflushed::Prefix => {}
            }
        }
        image
    }
}

fn apply(image: &mut Image, event: &Event) {
    match event {
        Event::Write { offset, data } => image.write(*offset, data),
        Event::Discard { offset, len } => image.clear(*offset, *len),
        Event::Flush | Event::Mark(_) | Event::Taken(_) | Event::Started | Event::Ended => {}
    }
}

/// Keeps or drops each sector of a write.
fn tear(image: &mut Image, event: &Event, sector: usize, rng: &mut Random) {
    match event {
        Event::Write { offset, data } => {
            let mut from = 0;
            while from < data.len() {
                // A write may begin within a sector.
                let within = (*offset as usize + from) % sector;
                let to = data.len().min(from + sector - within);
                if rng.one_in(2) {
                    image.write(offset + from as u64, &data[from..to]);
                }
                from = to;
            }
        }
        discard if rng.one_in(2) => apply(image, discard),
        _ => {}
    }
}

impl Recording {
    /// Removes the flushes from event `from` on, as on a disk that ignores them, so that there is a loss to find.
    pub fn without_flushes_from(mut self, from: usize) -> Self {
        let mut index = 0;
        self.events.retain(|event| {
            index += 1;
            index <= from || !matches!(event, Event::Flush)
        });
        self
    }

    /// Marks before `position`: see [`mark`](crate::load::mark).
    pub fn marked_before(&self, position: usize) -> impl Iterator<Item = u64> {
        self.events[..position].iter().filter_map(|event| match event {
            Event::Mark(number) => Some(*number),
            _ => None,
        })
    }

    /// Writes the recording to `out`: a cut can then be repeated from a seed and a position.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn save(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&self.base.len().to_le_bytes())?;
        let chunks = self.base.occupied().map(|(offset, bytes)| (offset, &bytes[..]));
        for (offset, data) in chunks {
            save_event(out, TAG_WRITE, offset, data.len() as u64)?;
            out.write_all(data)?;
        }
        save_event(out, TAG_START, 0, 0)?;
        for event in &self.events {
            match event {
                Event::Write { offset, data } => {
                    save_event(out, TAG_WRITE, *offset, data.len() as u64)?;
                    out.write_all(data)?;
                }
                Event::Discard { offset, len } => save_event(out, TAG_DISCARD, *offset, *len)?,
                Event::Flush => save_event(out, TAG_FLUSH, 0, 0)?,
                Event::Mark(number) => save_event(out, TAG_MARK, *number, 0)?,
                Event::Taken(number) => save_event(out, TAG_TAKEN, *number, 0)?,
                Event::Started => save_event(out, TAG_STARTED, 0, 0)?,
                Event::Ended => save_event(out, TAG_ENDED, 0, 0)?,
            }
        }
        Ok(())
    }

    /// Reads a recording from [`Recording::save`].
    ///
    /// # Errors
    /// Errors of `from`; `InvalidData` if it is not a recording.
    pub fn load(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 16];
        from.read_exact(&mut head)?;
        let bytes = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
        if &head[..8] != MAGIC || !bytes.is_multiple_of(crate::image::CHUNK as u64) || bytes > BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a recording"));
        }
        let mut recording = Recording { base: Image::zeros(bytes), events: Vec::new() };
        let mut started = false;
        loop {
            let mut fields = [0; 17];
            if let Err(error) = from.read_exact(&mut fields) {
                return if started && error.kind() == io::ErrorKind::UnexpectedEof {
                    Ok(recording)
                } else {
                    Err(error)
                };
            }
            let number = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().expect("eight bytes"));
            let (first, second) = (number(1), number(9));
            let is_range = matches!(fields[0], TAG_WRITE | TAG_DISCARD);
            if is_range && first.checked_add(second).is_none_or(|end| end > bytes) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a write lies beyond the disk"));
            }
            match fields[0] {
                TAG_WRITE => {
                    // As much memory as there are bytes, whatever the file says.
                    let mut data = Vec::new();
                    if from.take(second).read_to_end(&mut data)? as u64 != second {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    if started {
                        recording.events.push(Event::Write { offset: first, data: data.into() })
                    } else {
                        recording.base.write(first, &data)
                    }
                }
                TAG_START => started = true,
                TAG_DISCARD => recording.events.push(Event::Discard { offset: first, len: second }),
                TAG_FLUSH => recording.events.push(Event::Flush),
                TAG_MARK => recording.events.push(Event::Mark(first)),
                TAG_TAKEN => recording.events.push(Event::Taken(first)),
                TAG_STARTED => recording.events.push(Event::Started),
                TAG_ENDED => recording.events.push(Event::Ended),
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "unknown event")),
            }
        }
    }
}

/// A recording on disk: the magic, the disk's length (u64, little-endian), then events of 17 bytes: tag, two u64. A
/// write is followed by its bytes. Events before the start tag are the disk before the run.
const MAGIC: &[u8; 8] = b"PHPWCT\0\x01";
const TAG_WRITE: u8 = 1;
const TAG_DISCARD: u8 = 2;
const TAG_FLUSH: u8 = 3;
const TAG_MARK: u8 = 4;
const TAG_START: u8 = 5;
const TAG_TAKEN: u8 = 6;
const TAG_ENDED: u8 = 7;
const TAG_STARTED: u8 = 8;
/// Limit on the disk's length: ours are smaller, so a larger one means a damaged file.
const BYTES_MAX: u64 = 1 << 34;

fn save_event(out: &mut impl Write, tag: u8, first: u64, second: u64) -> io::Result<()> {
    let mut fields = [0; 17];
    fields[0] = tag;
    fields[1..9].copy_from_slice(&first.to_le_bytes());
    fields[9..].copy_from_slice(&second.to_le_bytes());
    out.write_all(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, byte: u8) -> Event {
        Event::Write { offset, data: vec![byte; 2 * SECTOR].into() }
    }

    fn recording() -> Recording {
        let events = vec![
            write(0, 1),
            Event::Flush,
            write(1024, 2),
            write(2048, 3),
            Event::Mark(9),
            Event::Flush,
            write(0, 4),
            Event::Started,
            Event::Taken(9),
            Event::Ended,
        ];
        Recording { base: Image::zeros(8192), events }
    }

    fn sectors(image: &Image) -> Vec<u8> {
        let mut bytes = [0; 3072];
        image.read(0, &mut bytes);
        bytes.chunks(SECTOR).map(|sector| sector[0]).collect()
    }

    #[test]
    fn what_was_flushed_is_there_whatever_the_seed() {
        let recording = recording();
        for seed in 0..200 {
            let mut cutter = Cutter::new(&recording);
            assert_eq!(sectors(&cutter.cut(2, seed))[..2], [1, 1]);
            let after = sectors(&cutter.cut(6, seed));
            assert_eq!(after, [1, 1, 2, 2, 3, 3], "seed {seed}");
        }
        assert_eq!(recording.marked_before(5).collect::<Vec<_>>(), [9]);
        assert_eq!(recording.marked_before(4).count(), 0);
    }

    #[test]
    fn what_was_not_flushed_may_be_there_or_not_sector_by_sector() {
        let recording = recording();
        let seen: std::collections::HashSet<Vec<u8>> =
            (0..2000).map(|seed| sectors(&Cutter::new(&recording).cut(4, seed))[2..].to_vec()).collect();
        assert_eq!(seen.len(), 16, "every choice among four sectors: {seen:?}");
    }

    #[test]
    fn a_lying_disk_keeps_nothing_behind_its_first_lie() {
        let recording = recording();
        let image = Cutter::new(&recording).lying_from(3).cut_with(6, Unflushed::Dropped, &mut Random::new(1));
        assert_eq!(sectors(&image), [1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_saved_recording_gives_the_same_cuts() {
        let mut recording = recording();
        recording.base.write(4096, &[5; 10]);
        let mut bytes = Vec::new();
        recording.save(&mut bytes).unwrap();
        let loaded = Recording::load(&mut &bytes[..]).unwrap();
        assert_eq!(loaded.events.len(), recording.events.len());
        for (position, seed) in [(0, 1), (4, 7), (7, 3)] {
            let of = |recording: &Recording| {
                let image = Cutter::new(recording).cut(position, seed);
                image.occupied().map(|(offset, bytes)| (offset, bytes.to_vec())).collect::<Vec<_>>()
            };
            assert_eq!(of(&loaded), of(&recording));
        }
        assert!(Recording::load(&mut &b"something else entirely"[..]).is_err());
        for len in 0..bytes.len() {
            // Cut off, or with a byte that is another: refused, or another recording.
            let mut damaged = bytes.clone();
            damaged[len] ^= 0xff;
            let _ = (Recording::load(&mut &bytes[..len]), Recording::load(&mut &damaged[..]));
        }
    }
}
