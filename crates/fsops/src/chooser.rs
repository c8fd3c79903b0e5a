//! Decides if a power cut keeps, drops or tears each change that is not durable.

use posthaste_random::Random;

use crate::event::{Choice, Cut, FsEvent};

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: usize = 512;

/// The outcome of a change.
pub(crate) enum Fate {
    Kept,
    Dropped,
    Torn,
}

/// Decides about changes that are not durable.
pub(crate) struct Chooser {
    choice: Choice,
    random: Random,
    mode: CutMode,
    // Items so far, and the first that is dropped where they go in order.
    index: usize,
    end: usize,
}

/// The rule by which a power cut keeps or drops changes that are not durable.
#[derive(Clone, Copy)]
enum CutMode {
    Kept,
    Dropped,
    Prefix,
    Reordered,
    Torn,
}

impl Chooser {
    pub fn new(cut: Cut, pending: usize) -> Self {
        let seed = match cut.choice {
            Choice::Seed(seed) => seed,
            Choice::Bits(_) => 0,
        };
        // By position too, so that one seed does not do the same everywhere.
        let mut random = Random::new(seed ^ (cut.position as u64) << 32);
        let mode = match random.below(8) {
            0 => CutMode::Kept,
            1 => CutMode::Dropped,
            2 => CutMode::Prefix,
            3..6 => CutMode::Reordered,
            _ => CutMode::Torn,
        };
        let end = random.below(pending as u64 + 1) as usize;
        Chooser { choice: cut.choice, random, mode, index: 0, end }
    }

    pub fn next(&mut self, event: &FsEvent) -> Fate {
        let index = self.index;
        self.index += 1;
        let keep_if = |kept: bool| if kept { Fate::Kept } else { Fate::Dropped };
        if let Choice::Bits(bits) = self.choice {
            return keep_if(bits >> index & 1 == 1);
        }
        match self.mode {
            CutMode::Kept => Fate::Kept,
            CutMode::Dropped => Fate::Dropped,
            CutMode::Prefix if event.dir().is_some() => keep_if(index < self.end),
            CutMode::Prefix if index == self.end => Fate::Torn,
            CutMode::Prefix | CutMode::Reordered => keep_if(self.random.below(2) == 0),
            CutMode::Torn if event.dir().is_some() => keep_if(self.random.below(4) != 0),
            CutMode::Torn => Fate::Torn,
        }
    }

    pub fn tear(&mut self, file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
        self.grow(file, at + bytes.len());
        let mut from = 0;
        while from < bytes.len() {
            // In the disk's own grid.
            let to = (from + SECTOR - (at + from) % SECTOR).min(bytes.len());
            if self.random.below(2) == 0 {
                write(file, at + from, &bytes[from..to]);
            }
            from = to;
        }
    }

    /// A change of size is decided separately.
    pub fn grow(&mut self, file: &mut Vec<u8>, len: usize) {
        if file.len() >= len || matches!(self.choice, Choice::Bits(_)) {
            return;
        }
        match self.random.below(3) {
            0 => {}
            1 => file.resize(len, 0),
            _ => file.resize(len, GARBAGE),
        }
    }
}

/// Writes into a file, which grows if necessary.
pub(crate) fn write(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if file.len() < at + bytes.len() {
        file.resize(at + bytes.len(), 0);
    }
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Content of a block before it was this file's.
pub(crate) const GARBAGE: u8 = 0xDB;
