//! Reads new messages on all cores and builds their part of the text index.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_maildir::tree::{Contents, FileFacts, FileReader, IoMethod};
use posthaste_message::mime::Header;
use xxhash_rust::xxh3::xxh3_128;

use super::UpdateOptions;
use super::diff::Candidate;
use crate::parallel::on_threads;
use crate::state::{NO_PARENT, Record, StateWriter, bits};
use crate::stop::Stop;
use crate::tags::id_of;
use crate::text_index::{FinishedSegment, SegmentBuilder, TextIndex};
use posthaste_text::HeaderNames;
use posthaste_text::{Extracted, Priority, extract_with, id_hash, subject_hash};

/// Newest references kept of one message: enough to place it in its thread.
const REFERENCES_MAX: usize = 64;
/// Nanoseconds of a second.
pub(super) const NANOS: i64 = 1_000_000_000;

/// Missing messages, by content.
pub(super) struct Missing {
    by_digest: Mutex<HashMap<u128, Vec<u32>>>,
}

impl Missing {
    pub fn new(records: &[Record], numbers: &[u32]) -> Self {
        let mut by_digest: HashMap<u128, Vec<u32>> = HashMap::new();
        for &number in numbers {
            by_digest.entry(records[number as usize].digest).or_default().push(number);
        }
        Self { by_digest: Mutex::new(by_digest) }
    }

    fn take(&self, digest: u128) -> Option<u32> {
        self.by_digest.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&digest)?.pop()
    }

    /// The missing numbers that were not found again, sorted.
    pub fn left(self) -> Vec<u32> {
        let by_digest = self.by_digest.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut left: Vec<u32> = by_digest.into_values().flatten().collect();
        left.sort_unstable();
        left
    }
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Done {
    pub messages: u64,
    pub bytes: u64,
}

pub(super) struct Moved {
    pub number: u32,
    pub candidate: Candidate,
    pub facts: FileFacts,
}

/// Result of reading one round of files.
#[derive(Default)]
pub(super) struct Round {
    /// Records from the first number on; an unused number is [`GONE`](bits::GONE).
    pub new: Vec<Record>,
    /// Ids under which new messages may have been tagged before they came, if requested.
    pub tag_ids: Vec<(u32, String)>,
    /// New messages that were not read whole, and why.
    pub problems: Vec<(u32, PathBuf, &'static str)>,
    pub moved: Vec<Moved>,
    pub segments: Vec<FinishedSegment>,
    pub troubles: Vec<(PathBuf, String)>,
    pub done: Done,
}

/// Reads all of `batch`. The first new message gets the number `first`. `step` receives the messages and bytes done.
#[expect(clippy::too_many_arguments, reason = "each is another thing")]
pub(super) fn read(
    text: &TextIndex,
    state: &StateWriter,
    batch: Vec<Candidate>,
    missing: &Missing,
    options: &UpdateOptions,
    first: usize,
    with_tag_ids: bool,
    step: &(dyn Fn(u64, u64) + Sync),
) -> tantivy::Result<Round> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let threads =
        if options.threads == 0 { cores } else { options.threads }.min(batch.len().div_ceil(FileReader::BATCH)).max(1);
    let shared = Shared {
        dirs: directories(state),
        batch: &batch,
        taken: AtomicUsize::new(0),
        first,
        next_number: AtomicU32::new(u32::try_from(first).unwrap_or(u32::MAX)),
        new: Mutex::new(Vec::with_capacity(batch.len())),
        with_tag_ids,
        messages: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        missing,
        step,
        io_method: options.io_method,
        stop: options.stop.as_ref(),
        headers: text.headers(),
    };
    let memory_bytes = options.memory_bytes / threads;
    let mut round = Round::default();
    for part in on_threads(threads, || shared.work(SegmentBuilder::new(text, memory_bytes))) {
        let part = part?;
        round.tag_ids.extend(part.tag_ids);
        round.problems.extend(part.problems);
        round.moved.extend(part.moved);
        round.segments.extend(part.segments);
        round.troubles.extend(part.troubles);
    }
    round.new = shared.new.into_inner().unwrap_or_else(PoisonError::into_inner);
    round.problems.sort_unstable_by_key(|(number, ..)| *number);
    round.done = Done { messages: shared.messages.into_inner(), bytes: shared.bytes.into_inner() };
    Ok(round)
}

/// The directory of each folder.
fn directories(state: &StateWriter) -> Vec<PathBuf> {
    let roots = &state.directory.roots;
    state.directory.folders.iter().map(|folder| roots[folder.root as usize].join(&folder.path)).collect()
}

struct Shared<'a> {
    dirs: Vec<PathBuf>,
    batch: &'a [Candidate],
    taken: AtomicUsize,
    first: usize,
    next_number: AtomicU32,
    /// By number, shared by all threads: each record is moved once, from its maker to its place.
    new: Mutex<Vec<Record>>,
    with_tag_ids: bool,
    messages: AtomicU64,
    bytes: AtomicU64,
    missing: &'a Missing,
    step: &'a (dyn Fn(u64, u64) + Sync),
    io_method: IoMethod,
    stop: Option<&'a Stop>,
    headers: &'a HeaderNames,
}

impl Shared<'_> {
    fn work(&self, mut builder: SegmentBuilder<'_>) -> tantivy::Result<Round> {
        let mut round = Round::default();
        let mut files = FileReader::new(self.io_method);
        let mut before: &[Candidate] = &[];
        loop {
            if self.stop.is_some_and(Stop::is_stopped) {
                self.taken.store(self.batch.len(), Ordering::Relaxed);
            }
            let from = self.taken.fetch_add(FileReader::BATCH, Ordering::Relaxed).min(self.batch.len());
            let next = &self.batch[from..self.batch.len().min(from + FileReader::BATCH)];
            // While `before` is worked on, `next` is read.
            let mut bytes = 0;
            let mut failed = None;
            files.turn(next.iter().map(|candidate| self.path(candidate)).collect(), |place, read| {
                let candidate = &before[place];
                match read {
                    Ok(file) => {
                        bytes += file.bytes.len() as u64;
                        let taken = self.take(candidate, &file, &mut builder, &mut round);
                        failed = failed.take().or(taken.err());
                    }
                    // Renamed or removed since it was listed: the directory's time has moved, so the next update finds it.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => round.troubles.push((self.path(candidate), e.to_string())),
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
            let count = before.len() as u64;
            let messages = self.messages.fetch_add(count, Ordering::Relaxed) + count;
            let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
            (self.step)(messages, bytes);
            if next.is_empty() {
                break;
            }
            before = next;
        }
        round.segments = builder.finish()?;
        Ok(round)
    }

    fn path(&self, candidate: &Candidate) -> PathBuf {
        let mut path = self.dirs[candidate.folder as usize].join(if candidate.is_new { "new" } else { "cur" });
        path.push(&candidate.name);
        path
    }

    fn take(
        &self,
        candidate: &Candidate,
        file: &Contents<'_>,
        builder: &mut SegmentBuilder<'_>,
        round: &mut Round,
    ) -> tantivy::Result<()> {
        let digest = digest(file.bytes);
        if let Some(number) = self.missing.take(digest) {
            round.moved.push(Moved { number, candidate: candidate.clone(), facts: file.facts });
            return Ok(());
        }
        let mut message = extract_with(file.bytes, self.headers);
        if file.facts.size > file.bytes.len() as u64 {
            message.problem = Some("longer than 256 MiB");
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        builder.add(number, &message)?;
        self.keep(number, record(candidate, digest, file.facts, &message, file.bytes, number));
        if self.with_tag_ids {
            round.tag_ids.push((number, id_of(&message.message_id, digest)));
        }
        round.problems.extend(message.problem.map(|problem| (number, self.path(candidate), problem)));
        Ok(())
    }

    fn keep(&self, number: u32, record: Record) {
        let mut new = self.new.lock().unwrap_or_else(PoisonError::into_inner);
        let at = number as usize - self.first;
        if new.len() <= at {
            new.resize_with(at + 1, || Record { flags: bits::GONE, ..Record::default() });
        }
        new[at] = record;
    }
}

/// The content's digest: XXH3-128 with CRLF counted as LF, so that it survives another program's change of line ends.
fn digest(bytes: &[u8]) -> u128 {
    if memchr::memchr(b'\r', bytes).is_none() {
        return xxh3_128(bytes);
    }
    let mut plain = Vec::with_capacity(bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        if byte != b'\r' || bytes.get(at + 1) != Some(&b'\n') {
            plain.push(byte);
        }
    }
    xxh3_128(&plain)
}

/// Tolerance for wrong clocks and zones.
const FUTURE: Duration = Duration::from_secs(86_400);

/// The message's date in seconds since 1970. A date in the future is not believed: the message would stand before all
/// other mail for years. Then the newest time at which a server received it counts.
fn believable_date(message: &Extracted, bytes: &[u8], now: SystemTime) -> Option<i64> {
    let latest = (now + FUTURE).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let is_believable = |date: &i64| *date <= i64::try_from(latest).unwrap_or(i64::MAX);
    let date = message.date?;
    if is_believable(&date) {
        return Some(date);
    }
    let received = Header::new(bytes).fields().filter(|field| field.is("Received")).take(RECEIVED_MAX);
    received.filter_map(|field| Some(field.date()?.unix_secs())).find(is_believable)
}

/// Maximum `Received` fields that are read.
const RECEIVED_MAX: usize = 50;

fn record(
    candidate: &Candidate,
    digest: u128,
    facts: FileFacts,
    message: &Extracted,
    bytes: &[u8],
    number: u32,
) -> Record {
    let (subject, is_reply) = subject_hash(&message.subject);
    let date = believable_date(message, bytes, SystemTime::now());
    let mut flags = candidate.flags();
    for (is_set, bit) in [
        (message.traits.attachment, bits::ATTACHMENT),
        (message.traits.signed, bits::SIGNED),
        (message.traits.encrypted, bits::ENCRYPTED),
        (message.traits.list, bits::LIST),
        (message.traits.calendar, bits::CALENDAR),
        (message.priority == Priority::Low, bits::PRIORITY_LOW),
        (message.priority == Priority::High, bits::PRIORITY_HIGH),
        (is_reply, bits::REPLY),
        (date.is_none(), bits::UNDATED),
    ] {
        flags |= if is_set { bit } else { 0 };
    }
    let skipped = message.references.len().saturating_sub(REFERENCES_MAX);
    Record {
        digest,
        // Without a usable date: when the file was written.
        date: date.unwrap_or(facts.mtime_ns / NANOS),
        size: facts.size,
        mtime_ns: facts.mtime_ns,
        flags,
        id: id_hash(&message.message_id),
        subject,
        folder: candidate.folder,
        thread: number,
        parent: NO_PARENT,
        tags: 0,
        name: candidate.name.clone(),
        references: message.references[skipped..].iter().map(|id| id_hash(id)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_in_the_future_is_none() {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let check = |date: Option<i64>, received: &str, expected: Option<i64>| {
            let message = Extracted { date, ..Extracted::default() };
            assert_eq!(believable_date(&message, received.as_bytes(), now), expected, "{date:?} {received}");
        };
        check(Some(1_700_050_000), "", Some(1_700_050_000));
        check(Some(51_737_477_630), "", None);
        check(None, "", None);
        let later = "Received: from a by b; Mon, 03 Mar 3025 10:40:00 +0000\n";
        let then = "Received: from a\n\tby b; Sat, 04 Mar 2023 10:40:00 +0000\nSubject: x\n";
        check(Some(51_737_477_630), &format!("{later}{then}"), Some(1_677_926_400));
        check(Some(51_737_477_630), later, None);
    }

    #[test]
    fn line_ends_do_not_change_the_digest() {
        assert_eq!(digest(b"a\r\nb\r\n"), digest(b"a\nb\n"));
        assert_ne!(digest(b"a\rb"), digest(b"ab"));
        assert_ne!(digest(b"a\r"), digest(b"a"));
    }
}
