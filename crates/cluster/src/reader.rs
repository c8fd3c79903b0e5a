//! The common rule by which every reader of a log recognises valid records. No clock, no engine: positions and bytes
//! in, a verdict out.

use bytes::Bytes;

use crate::LogPosition;
use crate::record::{Content, LogRecord, LogRecordError};

/// The history of a shard up to a position, as far as it decides about the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// The log id.
    pub log: u64,
    /// The last position read.
    pub position: LogPosition,
    /// The epoch of the last `open`; 0 before the first.
    pub epoch: u64,
    /// The lowest valid send number of that epoch.
    pub valid_from: u64,
    /// The next cluster number.
    pub next: u64,
    /// CRC of the last valid record.
    pub crc: u32,
}

/// Reads the log of one shard.
#[derive(Debug, Clone)]
pub struct LogReader {
    shard: u16,
    /// `None` before the first record of the log.
    history: Option<History>,
    rules: ReaderRules,
}

/// The rules, each with a switch that breaks it, to show that tests notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderRules {
    /// Skips records of an older epoch.
    pub old_epochs: bool,
    /// Skips records sent before the last barrier.
    pub barriers: bool,
    /// Compares the log id, and the CRC of the last valid record.
    pub chain: bool,
    /// Compares cluster numbers.
    pub numbers: bool,
}

impl Default for ReaderRules {
    /// All rules are kept.
    fn default() -> Self {
        ReaderRules { old_epochs: true, barriers: true, chain: true, numbers: true }
    }
}

/// A verdict on one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A valid record.
    Valid(LogRecord),
    /// A stored record that is void.
    Skipped(Skipped),
}

/// Why a record is skipped. A late append may be stored after an `open` or a `barrier` that took its predecessor's
/// position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skipped {
    /// The record's epoch is below that of the last `open`.
    OldEpoch,
    /// Its send number is below that of the epoch's last `barrier`.
    BeforeBarrier,
}

/// Why a reader stops.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// Records are missing or damaged. Other members may have them.
    #[error("the log has a hole at position {position}: {why}")]
    Hole {
        /// The first position that cannot be used.
        position: LogPosition,
        /// The damage.
        why: String,
    },
    /// The history differs from the reader's: the member needs seeding.
    #[error("the log has another history from position {position} on: {why}")]
    OtherHistory {
        /// The first record of the other history.
        position: LogPosition,
        /// The difference.
        why: &'static str,
    },
    /// Records that this reader needs were cut: it was away too long, and needs seeding. No damage.
    #[error("the log begins at position {first}, but position {position} is needed")]
    Cut {
        /// The first position needed.
        position: LogPosition,
        /// The lowest position stored.
        first: LogPosition,
    },
    /// A newer release wrote this record: upgrade the program first.
    #[error("position {position}: {error}")]
    Unknown {
        /// The record.
        position: LogPosition,
        /// Error of decoding, with the version.
        error: LogRecordError,
    },
}

impl LogReader {
    /// A reader at the first record of a log.
    pub fn new(shard: u16) -> Self {
        LogReader { shard, history: None, rules: ReaderRules::default() }
    }

    /// Continues after a known history.
    pub fn resume(shard: u16, history: History) -> Self {
        LogReader { history: Some(history), ..Self::new(shard) }
    }

    /// Sets the rules; tests switch some off.
    pub fn with_rules(self, rules: ReaderRules) -> Self {
        LogReader { rules, ..self }
    }

    /// The history so far; `None` before the first record.
    pub fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// The shard.
    pub fn shard(&self) -> u16 {
        self.shard
    }

    /// The last position read.
    pub fn position(&self) -> LogPosition {
        self.history.map_or(LogPosition::START, |history| history.position)
    }

    /// Processes the record at the next position.
    ///
    /// # Errors
    /// See [`Invalid`]. The reader does not advance: the same position may be read again, from another replica.
    pub fn read(&mut self, position: LogPosition, bytes: &Bytes) -> Result<Read, Invalid> {
        let expected = self.position().next();
        if position != expected {
            return Err(Invalid::Hole { position: expected, why: format!("the engine went on with {position}") });
        }
        let record = LogRecord::decode(bytes).map_err(|error| match error {
            LogRecordError::Version(_) => Invalid::Unknown { position, error },
            _ => Invalid::Hole { position, why: error.to_string() },
        })?;
        let Some(history) = &mut self.history else { return self.start(position, record) };
        if let Some(skipped) = skips(&self.rules, history, &record) {
            history.position = position;
            return Ok(Read::Skipped(skipped));
        }
        check(&self.rules, self.shard, history, position, &record)?;
        history.take(position, &record);
        Ok(Read::Valid(record))
    }

    /// Accepts a record that the owner sent and the engine acknowledged, without reading it back.
    pub fn confirm(&mut self, position: LogPosition, record: &LogRecord) {
        match &mut self.history {
            Some(history) => history.take(position, record),
            None => drop(self.start(position, record.clone())),
        }
    }

    fn start(&mut self, position: LogPosition, record: LogRecord) -> Result<Read, Invalid> {
        let header = &record.header;
        if header.shard != self.shard {
            return Err(Invalid::OtherHistory { position, why: "it belongs to another shard" });
        }
        if record.content != Content::Start || header.epoch != 0 || header.previous != 0 {
            return Err(Invalid::Hole { position, why: "the log does not begin with its first record".to_owned() });
        }
        let next = header.first + record.numbers();
        self.history = Some(History { log: header.log, position, epoch: 0, valid_from: 0, next, crc: record.crc });
        Ok(Read::Valid(record))
    }
}

impl History {
    fn take(&mut self, position: LogPosition, record: &LogRecord) {
        (self.position, self.crc) = (position, record.crc);
        self.next = record.header.first + record.numbers();
        match record.content {
            Content::Open { .. } => (self.epoch, self.valid_from) = (record.header.epoch, 0),
            Content::Barrier { valid_from } => self.valid_from = valid_from.max(self.valid_from),
            _ => {}
        }
    }
}

/// Rules (a) and (b): true if a record is void.
fn skips(rules: &ReaderRules, history: &History, record: &LogRecord) -> Option<Skipped> {
    let header = &record.header;
    let is_open = matches!(record.content, Content::Open { .. });
    if rules.old_epochs && (header.epoch < history.epoch || is_open && header.epoch == history.epoch) {
        return Some(Skipped::OldEpoch);
    }
    if rules.barriers && header.epoch == history.epoch && header.send < history.valid_from {
        return Some(Skipped::BeforeBarrier);
    }
    None
}

/// Rule (c), except for the record's own CRC.
fn check(
    rules: &ReaderRules,
    shard: u16,
    history: &History,
    position: LogPosition,
    record: &LogRecord,
) -> Result<(), Invalid> {
    let header = &record.header;
    let other = |why| Err(Invalid::OtherHistory { position, why });
    if header.shard != shard {
        return other("it belongs to another shard");
    }
    if rules.chain && header.log != history.log {
        return other("its log id differs");
    }
    if rules.chain && header.previous != history.crc {
        return other("it follows another record");
    }
    if matches!(record.content, Content::Start) {
        return other("it is a first record");
    }
    if header.epoch != history.epoch && !matches!(record.content, Content::Open { .. }) {
        return other("its epoch was never opened");
    }
    if rules.numbers && header.first != history.next {
        let why = format!("it begins with batch {} instead of {}", header.first, history.next);
        return Err(Invalid::Hole { position, why });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::LogRecordHeader;

    const LOG: u64 = 77;

    /// Writes records as owners do, and reads them.
    struct Shard {
        reader: LogReader,
        /// Header of the next record.
        header: LogRecordHeader,
    }

    impl Shard {
        fn new(rules: ReaderRules) -> Self {
            let header = LogRecordHeader { shard: 3, log: LOG, epoch: 0, send: 0, first: 100, previous: 0 };
            Shard { reader: LogReader::new(3).with_rules(rules), header }
        }

        /// The next record of the owner, which becomes its last one.
        fn next(&mut self, content: &Content) -> Bytes {
            let (bytes, crc) = LogRecord::encode(&self.header, content);
            self.header.previous = crc;
            self.header.first += content.numbers();
            self.header.send += 1;
            bytes
        }

        fn open(&mut self, epoch: u64) -> Bytes {
            (self.header.epoch, self.header.send) = (epoch, 0);
            self.next(&Content::Open { nonce: epoch })
        }

        fn read(&mut self, bytes: &Bytes) -> Result<Read, Invalid> {
            self.reader.read(self.reader.position().next(), bytes)
        }

        fn is_valid(&mut self, bytes: &Bytes) -> bool {
            matches!(self.read(bytes), Ok(Read::Valid(_)))
        }

        /// A reader after an `open` of epoch 1 and two batches.
        fn begun(rules: ReaderRules) -> Self {
            let mut shard = Shard::new(rules);
            let first = shard.next(&Content::Start);
            assert!(shard.is_valid(&first));
            let open = shard.open(1);
            assert!(shard.is_valid(&open));
            let batches = shard.next(&batches(2));
            assert!(shard.is_valid(&batches));
            shard
        }
    }

    fn batches(count: usize) -> Content {
        Content::Batches(vec![Bytes::from_static(b"a batch"); count])
    }

    fn broken(break_it: impl FnOnce(&mut ReaderRules)) -> ReaderRules {
        let mut rules = ReaderRules::default();
        break_it(&mut rules);
        rules
    }

    #[test]
    fn a_log_is_read_from_its_first_record_on() {
        let shard = Shard::begun(ReaderRules::default());
        let history = *shard.reader.history().unwrap();
        assert_eq!((history.log, history.epoch, history.position), (LOG, 1, LogPosition::new(3)));
        assert_eq!(history.next, 104, "two records without batches, and two batches");
        let mut other = Shard::new(ReaderRules::default());
        other.next(&Content::Start);
        let later = other.next(&batches(1));
        assert!(matches!(other.read(&later), Err(Invalid::Hole { .. })));
        let mut elsewhere = Shard::new(ReaderRules::default());
        elsewhere.header.shard = 4;
        let first = elsewhere.next(&Content::Start);
        assert!(matches!(elsewhere.read(&first), Err(Invalid::OtherHistory { .. })));
    }

    #[test]
    fn a_reader_resumes_from_a_history() {
        let mut shard = Shard::begun(ReaderRules::default());
        shard.reader = LogReader::resume(3, *shard.reader.history().unwrap());
        let next = shard.next(&batches(1));
        assert!(shard.is_valid(&next));
    }

    /// Rule (a): an old owner's append was in flight when the next one opened.
    fn reads_old_owners_append(rules: ReaderRules) -> bool {
        let mut shard = Shard::begun(rules);
        let before = shard.header;
        let late = shard.next(&batches(1));
        shard.header = before;
        let open = shard.open(2);
        assert!(shard.is_valid(&open));
        // Of the same history as the record that the new owner sends now.
        let verdict = shard.read(&late);
        let next = shard.next(&batches(1));
        verdict == Ok(Read::Skipped(Skipped::OldEpoch)) && shard.is_valid(&next)
    }

    #[test]
    fn records_of_an_old_epoch_are_skipped() {
        assert!(reads_old_owners_append(ReaderRules::default()));
        assert!(!reads_old_owners_append(broken(|rules| rules.old_epochs = false)));
    }

    #[test]
    fn the_first_of_two_openings_of_an_epoch_counts() {
        let mut shard = Shard::begun(ReaderRules::default());
        let before = shard.header;
        let one = shard.open(2);
        shard.header = before;
        (shard.header.epoch, shard.header.send) = (2, 0);
        let other = shard.next(&Content::Open { nonce: 99 });
        assert!(shard.is_valid(&one));
        assert_eq!(shard.read(&other), Ok(Read::Skipped(Skipped::OldEpoch)));
    }

    /// Rule (b): two appends were in flight, the barrier took the place of the first, and the second is stored after
    /// it.
    fn reads_voided_append(rules: ReaderRules) -> bool {
        let mut shard = Shard::begun(rules);
        let before = shard.header;
        shard.next(&batches(1));
        let second = shard.next(&batches(1));
        let valid_from = shard.header.send + 1;
        shard.header = LogRecordHeader { send: shard.header.send, ..before };
        let barrier = shard.next(&Content::Barrier { valid_from });
        assert!(shard.is_valid(&barrier));
        let verdict = shard.read(&second);
        let again = shard.next(&batches(1));
        verdict == Ok(Read::Skipped(Skipped::BeforeBarrier)) && shard.is_valid(&again)
    }

    #[test]
    fn records_before_a_barrier_are_skipped() {
        assert!(reads_voided_append(ReaderRules::default()));
        assert!(!reads_voided_append(broken(|rules| rules.barriers = false)));
    }

    #[test]
    fn a_barrier_of_one_epoch_does_not_bind_the_next() {
        let mut shard = Shard::begun(ReaderRules::default());
        let barrier = shard.next(&Content::Barrier { valid_from: 1_000 });
        assert!(shard.is_valid(&barrier));
        let voided = shard.clone_header_then(&batches(1));
        assert_eq!(shard.read(&voided), Ok(Read::Skipped(Skipped::BeforeBarrier)));
        let open = shard.open(2);
        assert!(shard.is_valid(&open));
        let next = shard.next(&batches(1));
        assert!(shard.is_valid(&next));
    }

    impl Shard {
        /// A record that does not become the owner's last one.
        fn clone_header_then(&mut self, content: &Content) -> Bytes {
            let before = self.header;
            let bytes = self.next(content);
            self.header = before;
            bytes
        }
    }

    /// Rule (c): the log was rolled back, and another owner wrote in the same places.
    fn stops_at_another_history(rules: ReaderRules) -> bool {
        let mut shard = Shard::begun(rules);
        let before = shard.header;
        let seen = shard.next(&batches(1));
        assert!(shard.is_valid(&seen));
        shard.header = LogRecordHeader { send: 40, ..before };
        shard.next(&Content::Batches(vec![Bytes::from_static(b"something else")]));
        let next = shard.next(&batches(1));
        matches!(shard.read(&next), Err(Invalid::OtherHistory { .. }))
    }

    #[test]
    fn another_history_stops_the_reader() {
        assert!(stops_at_another_history(ReaderRules::default()));
        assert!(!stops_at_another_history(broken(|rules| rules.chain = false)));
        let mut shard = Shard::begun(ReaderRules::default());
        shard.header.log += 1;
        let other = shard.next(&batches(1));
        assert!(matches!(shard.read(&other), Err(Invalid::OtherHistory { .. })));
    }

    #[test]
    fn an_epoch_counts_from_its_opening_on() {
        let mut shard = Shard::begun(ReaderRules::default());
        shard.header.epoch = 2;
        let early = shard.next(&batches(1));
        assert!(matches!(shard.read(&early), Err(Invalid::OtherHistory { .. })));
        let mut shard = Shard::begun(ReaderRules::default());
        let again = shard.next(&Content::Start);
        assert!(matches!(shard.read(&again), Err(Invalid::OtherHistory { .. })));
    }

    /// Rule (c): batches are missing though the checksums fit.
    fn stops_at_missing_numbers(rules: ReaderRules) -> bool {
        let mut shard = Shard::begun(rules);
        shard.header.first += 1;
        let next = shard.next(&batches(1));
        matches!(shard.read(&next), Err(Invalid::Hole { .. }))
    }

    #[test]
    fn missing_numbers_are_a_hole() {
        assert!(stops_at_missing_numbers(ReaderRules::default()));
        assert!(!stops_at_missing_numbers(broken(|rules| rules.numbers = false)));
    }

    #[test]
    fn a_missing_position_or_flipped_bit_is_a_hole_to_read_again() {
        let mut shard = Shard::begun(ReaderRules::default());
        let at = shard.reader.position();
        let bytes = shard.next(&batches(3));
        let skipping = shard.reader.read(at.next().next(), &bytes);
        assert!(matches!(skipping, Err(Invalid::Hole { position, .. }) if position == at.next()));
        let mut flipped = bytes.to_vec();
        flipped[60] ^= 4;
        let damaged = shard.read(&flipped.into());
        assert!(matches!(damaged, Err(Invalid::Hole { position, .. }) if position == at.next()));
        assert_eq!(shard.reader.position(), at);
        assert!(shard.is_valid(&bytes), "another replica has it");
        assert!(matches!(shard.reader.read(at, &bytes), Err(Invalid::Hole { .. })), "a position comes once");
    }

    #[test]
    fn a_newer_version_stops_the_reader_without_damage() {
        let mut shard = Shard::begun(ReaderRules::default());
        let bytes = shard.next(&batches(1));
        let mut newer = bytes[..bytes.len() - 4].to_vec();
        newer[0] = 2;
        let crc = crc32c::crc32c(&newer);
        newer.extend_from_slice(&crc.to_le_bytes());
        assert!(matches!(shard.read(&newer.into()), Err(Invalid::Unknown { .. })));
    }
}
