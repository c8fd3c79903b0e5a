//! Takes the mail of a journal of the first format over into a new spool, once.
//!
//! The journal is only read, and the spool is made under another name: until it has its own, nothing has happened, and a takeover that was cut short begins
//! again. In this order, each durable before the next: the new spool; a sign that keeps older programs from opening the journal; the spool's name. Then the journal's
//! files go. Names of messages follow from the ids of their records, which are kept: so what was delivered before is found and not delivered again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use posthaste_journal::{Damage, KIND_USER, Reader};
use posthaste_spool::{
    AppendError, Batch, CheckpointError, Config, Entry, FileSpool, Lsn, Spool, StreamError, StreamId,
};
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::config::LocalConfig;
use super::entry::{Deliver, LocalEntry, Trouble, Visible};
use super::message::{LargeBody, Target};
use super::mounts::MountPoints;
use super::old_journal::{OldJournal, sync_dir};
use super::old_record::{
    Delivered, KIND_DELIVERED, KIND_DISTRUST, KIND_MESSAGE, KIND_WAITS, OldBody, OldFile, Stored, Waits, body_path,
};
use crate::session::SessionTag;

/// What was taken over.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct TakenOver {
    /// Messages that are in the spool now.
    pub messages: usize,
    /// Records that could not be read, and why. The journal's files are kept then, in `kept/` within its directory.
    pub unreadable: Vec<(u64, io::Error)>,
    /// Damaged places of the journal.
    pub damage: Vec<Damage>,
}

impl TakenOver {
    /// Records and places of the journal whose promises cannot be kept.
    pub fn lost(&self) -> usize {
        self.unreadable.len() + self.damage.iter().filter(|damage| damage.promised).count()
    }
}

/// Why a journal could not be taken over. It is as it was, and there is no spool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeoverError {
    /// The new spool would lie in the journal's directory, which has one of the old format.
    #[error("{0}: lies in the directory of the journal; place the spool elsewhere")]
    Inside(PathBuf),
    /// Another process has it open.
    #[error("{0}: the journal is in use by another process")]
    Locked(PathBuf),
    /// After a downgrade the older program has received mail, and the spool may hold other mail.
    #[error(
        "{journal} has mail of an older version, and {spool} is there, too: let the older version deliver what it has, or move one of the two away"
    )]
    Both {
        /// The journal's directory.
        journal: PathBuf,
        /// The spool's.
        spool: PathBuf,
    },
    /// A file or directory could not be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the file system said.
        error: io::Error,
    },
    /// The new spool could not be made.
    #[error(transparent)]
    Open(#[from] posthaste_spool::OpenError),
    /// The new spool took no stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The new spool took no mail.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The new spool did not become durable.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// Takes over what the journal in `journal_dir` holds, if there is one, into a new spool. [`LocalDelivery::open`](super::LocalDelivery::open) does it by itself with
/// [`LocalConfig::journal_dir`]. `None`: there was nothing to take over, or that had been done. Blocks, and takes the space of all mail that waits once more.
///
/// # Errors
/// See [`TakeoverError`].
pub fn take_over(journal_dir: &Path, config: &LocalConfig) -> Result<Option<TakenOver>, TakeoverError> {
    let journal = OldJournal { dir: journal_dir.to_owned() };
    if !journal.has_segments().map_err(at(journal_dir))? {
        return Ok(None);
    }
    if !config.mail_root.is_dir() {
        posthaste_fsops::make_dir(&config.mail_root).map_err(at(&config.mail_root))?;
    }
    let mounts = MountPoints::below(&config.mail_root).map_err(at(&config.mail_root))?;
    let points: Vec<&str> = mounts.iter().map(|point| &**point).collect();
    let stream_of = |mailbox: &str| super::mounts::stream_of(points[mounts.of(mailbox)]);
    take_over_into(journal_dir, &config.spool_dir, &config.spool, &stream_of)
}

/// Like [`take_over`]; `stream_of` says which stream a mailbox belongs to.
pub(super) fn take_over_into(
    journal_dir: &Path,
    spool_dir: &Path,
    config: &Config,
    stream_of: &dyn Fn(&str) -> String,
) -> Result<Option<TakenOver>, TakeoverError> {
    let journal = OldJournal { dir: journal_dir.to_owned() };
    if !journal.has_segments().map_err(at(journal_dir))? {
        return Ok(None);
    }
    let reader = Reader::open(journal_dir).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => TakeoverError::Locked(journal_dir.to_owned()),
        _ => TakeoverError::Io { path: journal_dir.to_owned(), error },
    })?;
    if spool_dir.starts_with(journal_dir) {
        return Err(TakeoverError::Inside(spool_dir.to_owned()));
    }
    // An empty directory is one that was made for the new spool: it takes its place.
    if spool_dir
        .read_dir()
        .map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |mut names| names.next().is_some())
    {
        if !journal.sign().is_dir() {
            return Err(TakeoverError::Both { journal: journal_dir.to_owned(), spool: spool_dir.to_owned() });
        }
        // Cut short after the last step that counts.
        journal.retire().map_err(at(journal_dir))?;
        return Ok(None);
    }
    let unfinished = beside(spool_dir);
    remove_all(&unfinished).map_err(at(&unfinished))?;
    let config = Config { lsns_above: Lsn::new(reader.last()), keeper: false, ..config.clone() };
    let ring_bytes = config.ring.segment_bytes.saturating_mul(config.ring.max_segments as u64);
    let bytes_in_flight = BYTES_IN_FLIGHT.min(ring_bytes / 4);
    let (spool, _) = FileSpool::open(&unfinished, config)?;
    let taken =
        Takeover { spool, reader, journal: &journal, stream_of, streams: BTreeMap::new(), bytes_in_flight }.run()?;
    if taken.lost() > 0 {
        posthaste_fsops::make_dir(&journal.kept()).map_err(at(journal_dir))?;
    }
    journal.put_sign(spool_dir).map_err(at(journal_dir))?;
    let parent = spool_dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let renamed = posthaste_fsops::rename(&unfinished, spool_dir).map_err(io::Error::from);
    renamed.and_then(|()| sync_dir(parent)).map_err(at(spool_dir))?;
    journal.retire().map_err(at(journal_dir))?;
    Ok(Some(taken))
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> TakeoverError {
    let path = path.to_owned();
    move |error| TakeoverError::Io { path, error }
}

/// Where the new spool is made.
fn beside(spool_dir: &Path) -> PathBuf {
    let mut name = spool_dir.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    spool_dir.with_file_name(name)
}

/// A takeover under way. Dropped, it closes both.
struct Takeover<'a> {
    spool: FileSpool,
    reader: Reader,
    journal: &'a OldJournal,
    stream_of: &'a dyn Fn(&str) -> String,
    streams: BTreeMap<String, StreamId>,
    /// The ring has room for them, and for what is appended beside them.
    bytes_in_flight: u64,
}

/// The batch that a message became, and the stream of each of its targets by its number.
type Moved = HashMap<u64, (Lsn, HashMap<u16, StreamId>)>;

impl Takeover<'_> {
    fn run(mut self) -> Result<TakenOver, TakeoverError> {
        let mut taken = TakenOver { damage: self.reader.damage().to_vec(), ..TakenOver::default() };
        let mut moved = Moved::new();
        let mut in_flight = Vec::new();
        let mut bytes = 0;
        for record in self.reader.records().into_iter().filter(|record| record.kind >= KIND_USER) {
            let stored = match self.load(record.id, record.kind) {
                Ok(stored) => stored,
                Err(error) => {
                    taken.unreadable.push((record.id, error));
                    continue;
                }
            };
            let (entries, targets) = self.entries(record.id, &stored)?;
            let body = match self.body(&stored.body) {
                Ok(body) => body,
                Err(error) => {
                    taken.unreadable.push((record.id, error));
                    continue;
                }
            };
            bytes += stored.memory_bytes();
            in_flight.push((record.id, targets, self.append(Batch { entries, body })));
            if in_flight.len() >= IN_FLIGHT || bytes > self.bytes_in_flight {
                self.settle(&mut in_flight, &mut moved)?;
                bytes = 0;
            }
        }
        self.settle(&mut in_flight, &mut moved)?;
        taken.messages = moved.len();
        self.take_notes(&moved)?;
        self.spool.checkpoint()?;
        Ok(taken)
    }

    fn load(&self, id: u64, kind: u8) -> io::Result<Stored> {
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "no message that this version can read");
        let payload = self.reader.read(id)?;
        let stored = Some(payload).filter(|_| kind == KIND_MESSAGE).and_then(|payload| Stored::decode(payload.into()));
        let fits = |stored: &Stored| stored.targets.iter().all(|(_, target)| target.mailbox.len() <= TEXT_BYTES_MAX);
        stored.filter(|stored| fits(stored) && stored.host.len() <= TEXT_BYTES_MAX).ok_or_else(unknown)
    }

    /// What each stream is told of a message, and which of its targets are whose.
    fn entries(&mut self, id: u64, stored: &Stored) -> Result<(Vec<Entry>, HashMap<u16, StreamId>), TakeoverError> {
        let large = match &stored.body {
            OldBody::Inline(_) => None,
            OldBody::File(OldFile { line_ends, lossless, lone_lfs, .. }) => {
                Some(LargeBody { crlfs: *line_ends, is_lossless: *lossless, lone_lfs: *lone_lfs })
            }
        };
        let mut of_stream: BTreeMap<StreamId, Vec<(u16, Target)>> = BTreeMap::new();
        for (number, target) in &stored.targets {
            let stream = self.stream(&target.mailbox)?;
            of_stream.entry(stream).or_default().push((*number, target.clone()));
        }
        let targets =
            of_stream.iter().flat_map(|(stream, targets)| targets.iter().map(|(number, _)| (*number, *stream)));
        let targets = targets.collect();
        let entry = |(stream, targets)| {
            let deliver = Deliver {
                secs: stored.secs,
                nonce: stored.nonce,
                host: stored.host.clone(),
                line_ends: stored.line_ends,
                name_id: Some(id),
                body: None,
                large,
                targets,
            };
            Entry { stream, needs_body: true, payload: LocalEntry::Deliver(deliver).encode() }
        };
        Ok((of_stream.into_iter().map(entry).collect(), targets))
    }

    fn stream(&mut self, mailbox: &str) -> Result<StreamId, StreamError> {
        let name = (self.stream_of)(mailbox);
        if let Some(stream) = self.streams.get(&name) {
            return Ok(*stream);
        }
        let stream = self.spool.stream(&name)?;
        self.streams.insert(name, stream);
        Ok(stream)
    }

    fn body(&self, body: &OldBody) -> io::Result<posthaste_spool::Body> {
        let spooled = match body {
            OldBody::Inline(body) if body.len() <= INLINE_BYTES_MAX => {
                return Ok(posthaste_spool::Body::Inline(vec![body.clone()]));
            }
            OldBody::Inline(body) => {
                let mut upload = self.spool.upload(body.len() as u64)?;
                upload.write(body)?;
                return Ok(posthaste_spool::Body::File(upload.finish()?));
            }
            OldBody::File(file) => file,
        };
        let mut file = File::open(body_path(&self.journal.dir, spooled.file))?;
        let len = file.metadata()?.len();
        if len != spooled.len {
            let what = format!("body {:x} has {len} bytes and should have {}", spooled.file, spooled.len);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut upload = self.spool.upload(len)?;
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(posthaste_spool::Body::File(upload.finish()?)),
                n => upload.write(&piece[..n])?,
            }
        }
    }

    fn append(&self, batch: Batch) -> Receiver<Result<Lsn, AppendError>> {
        let (tell, told) = channel();
        self.spool.append(batch, Box::new(move |outcome| drop(tell.send(outcome))));
        told
    }

    /// Waits for what is in flight, and makes room in the ring before it is full.
    fn settle(&self, in_flight: &mut InFlight, moved: &mut Moved) -> Result<(), TakeoverError> {
        for (id, targets, told) in in_flight.drain(..) {
            moved.insert(id, (told.recv().unwrap_or(Err(AppendError::Closed))?, targets));
        }
        self.spool.pack_oldest(usize::MAX)?;
        Ok(self.spool.checkpoint()?)
    }

    /// What was visible, syncs of which nobody knows the end, and why mail waits.
    fn take_notes(&mut self, moved: &Moved) -> Result<(), TakeoverError> {
        let mut entries: Vec<(StreamId, LocalEntry)> = Vec::new();
        let mut syncs = BTreeSet::new();
        let mut waits: BTreeMap<Arc<str>, Waits> = BTreeMap::new();
        for note in self.reader.notes() {
            match note.kind {
                KIND_DELIVERED => {
                    let Some(Delivered { session, done }) = Delivered::decode(&note.payload) else { continue };
                    let mut of_stream: BTreeMap<StreamId, Vec<(Lsn, u16)>> = BTreeMap::new();
                    for (id, number) in done {
                        let place = moved.get(&id).and_then(|(lsn, targets)| Some((*lsn, *targets.get(&number)?)));
                        if let Some((lsn, stream)) = place {
                            of_stream.entry(stream).or_default().push((lsn, number));
                        }
                    }
                    let visible = |targets| LocalEntry::Visible(Visible { session, targets });
                    entries.extend(of_stream.into_iter().map(|(stream, targets)| (stream, visible(targets))));
                }
                KIND_DISTRUST => syncs.extend(<[u8; 24]>::try_from(&note.payload[..]).ok()),
                KIND_WAITS => {
                    if let Some(note) = Waits::decode(Bytes::copy_from_slice(&note.payload)) {
                        waits.insert(note.mailbox.clone(), note);
                    }
                }
                _ => {}
            }
        }
        // Behind all that was visible then, so that nothing of it is believed.
        let streams: Vec<StreamId> = self.streams.values().copied().collect();
        for session in syncs {
            let begun = LocalEntry::SyncBegun { session: SessionTag(session) };
            entries.extend(streams.iter().map(|stream| (*stream, begun.clone())));
        }
        for Waits { mailbox, attempts, next_try_secs, error } in waits.into_values() {
            // Of a mailbox that mail still waits for, its stream is there.
            if let Some(stream) = self.streams.get(&(self.stream_of)(&mailbox)) {
                let error = if error.len() > TEXT_BYTES_MAX { "".into() } else { error };
                entries.push((*stream, LocalEntry::Trouble(Trouble { mailbox, attempts, next_try_secs, error })));
            }
        }
        for (stream, entry) in entries {
            let entry = Entry { stream, needs_body: false, payload: entry.encode() };
            let batch = Batch { entries: vec![entry], body: posthaste_spool::Body::None };
            self.append(batch).recv().unwrap_or(Err(AppendError::Closed))?;
        }
        Ok(())
    }
}

/// Records that were appended and are not known to be durable yet.
type InFlight = Vec<(u64, HashMap<u16, StreamId>, Receiver<Result<Lsn, AppendError>>)>;

/// Removes a directory with all that is in it, if it is there.
fn remove_all(dir: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for path in entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()? {
        match path.symlink_metadata()?.is_dir() {
            true => remove_all(&path)?,
            false => posthaste_fsops::unlink(&path)?,
        }
    }
    match posthaste_fsops::unlinkat(CWD, dir, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

/// Longer texts are in no entry.
const TEXT_BYTES_MAX: usize = u16::MAX as usize;
/// Batches that are appended before the first of them is waited for, and their bytes, unless the ring is small.
const IN_FLIGHT: usize = 256;
/// See [`IN_FLIGHT`].
const BYTES_IN_FLIGHT: u64 = 16 << 20;
/// Larger bodies go to files of their own: no segment is too small for the others.
const INLINE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a large body that are read at once.
const PIECE: usize = 256 << 10;
