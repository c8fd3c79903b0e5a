//! APPEND: a message passes intake like arriving mail, without stages and front fields, and becomes visible with its
//! durable batch.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_intake::{
    BodyFacts, BodyWriter, Destination, GatheredBody, Guard, Intake, IntakeError, Mail, MailPlace, MailRecipient,
    MemoryBudget, Reservation, Reserved, Reserving,
};
use posthaste_spool::Entry;
use tokio::sync::{OwnedRwLockReadGuard, OwnedSemaphorePermit};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::answers::{PATIENCE, ended, no_answer, refusal as of_ledger};
use super::appender::OpenAppender;
use super::change_batch::change;
use super::core::MailboxCore;
use super::file_work::{FileWork, run};
use super::gathered::{GatheredMail, MessageSource};
use super::locks::lock;
use super::opening::load;
use super::scratch::{Operation, SYSTEM_BITS};
use super::seconds::{now_secs, secs};
use super::stamp::stamp;
use super::told::Oddities;
use crate::entry::{BodyKind, BodyPlace, MailEntry, MessageFacts, NewMessage, WireSize};
use crate::error::{Asked, MailstoreError};
use crate::flags::MessageFlags;
use crate::ledger::MailLedger;
use crate::row::{Uid, UidValidity};
use crate::store::{AppendRequest, AppendedMessage, MessageWriter};
use crate::table::flag_bits;

/// Messages up to this size are kept in memory; longer ones, or those without memory, go to a file of the spool while
/// they arrive.
const MEMORY_BYTES_MAX: u64 = 256 << 10;
/// Maximum octets of a message: RFC822.SIZE has 32 bits.
const MESSAGE_BYTES_MAX: u64 = u32::MAX as u64;
/// Messages of one command that a thread writes together, unless they exceed the memory of one.
const WRITTEN_AT_ONCE: usize = 64;

/// Begins to put a message into a mailbox.
pub(super) async fn begin(
    core: Arc<MailboxCore>,
    request: AppendRequest,
) -> Result<Box<dyn MessageWriter>, MailstoreError> {
    let open = core.shared.appender.get()?;
    let (intake, memory) = (open.intake.clone(), open.memory.clone());
    check(&core, (&request, 0), 1).await?;
    let earlier = EarlierMail::default();
    let (room, place, parts, large, file) = (Reservation::default(), None, Vec::new(), None, None);
    Ok(Box::new(AppendWriter { core, earlier, request, intake, memory, parts, room, large, file, place, octets: 0 }))
}

/// Refuses a message over a limit. `bytes`: size of earlier messages of the command; `messages`: their number plus one.
async fn check(
    core: &Arc<MailboxCore>,
    (request, bytes): (&AppendRequest, u64),
    messages: u64,
) -> Result<(), MailstoreError> {
    if request.octets > MESSAGE_BYTES_MAX {
        return Err(MailstoreError::TooBig);
    }
    if core.shared.ledger.is_full() {
        return Err(MailstoreError::NoSpace);
    }
    if core.shared.quotas.limits_of(core.owner.path.as_str()).is_none() {
        return Ok(());
    }
    let (core, bytes) = (Arc::clone(core), bytes.saturating_add(request.octets));
    spawn_blocking(move || core.shared.quotas.check(&core.shared.ledger, &core.owner, (bytes, messages)))
        .await
        .map_err(ended)?
}

/// Guard that keeps a mailbox's name until it is dropped.
async fn adding(core: &MailboxCore) -> OwnedRwLockReadGuard<()> {
    Arc::clone(&core.adding).read_owned().await
}

/// Complete messages of a command.
#[derive(Default)]
struct EarlierMail {
    bytes: u64,
    messages: u64,
    /// Messages to be written together: a thread for each would cost more than the file.
    waiting: Vec<(AppendRequest, MessageSource)>,
    /// Memory of the waiting messages.
    waiting_octets: usize,
    /// Earlier messages, being written by a thread.
    written: Option<JoinHandle<Result<GatheredMail, MailstoreError>>>,
}

/// An arriving message.
struct AppendWriter {
    core: Arc<MailboxCore>,
    earlier: EarlierMail,
    request: AppendRequest,
    intake: Intake,
    memory: MemoryBudget,
    parts: Vec<Bytes>,
    /// Memory reserved for `parts`.
    room: Reservation,
    large: Option<BodyWriter>,
    /// Name of the file in `tmp/` that is the message.
    file: Option<String>,
    /// Permit to write a file. Released during pauses of the client if others wait for permits.
    place: Option<OwnedSemaphorePermit>,
    octets: u64,
}

impl AppendWriter {
    async fn take(&mut self, octets: Bytes) -> Result<(), MailstoreError> {
        self.octets += octets.len() as u64;
        if self.octets > MESSAGE_BYTES_MAX {
            return Err(MailstoreError::TooBig);
        }
        let is_small = self.large.is_none() && self.octets <= MEMORY_BYTES_MAX;
        if is_small && self.memory.try_grow(&mut self.room, self.earlier.waiting_octets + self.octets as usize) {
            // A piece may be a slice of a much larger buffer.
            self.parts.push(Bytes::copy_from_slice(&octets));
            return Ok(());
        }
        self.take_in_file(&octets).await
    }

    async fn take_in_file(&mut self, octets: &[u8]) -> Result<(), MailstoreError> {
        if self.place.is_none() {
            let place = self.memory.place_to_spool().await;
            self.place = Some(place.ok_or_else(|| MailstoreError::Unavailable("too much mail comes in".to_owned()))?);
        }
        if self.large.is_none() {
            let (mut large, _) = self.intake.upload_when_room(self.request.octets).await.map_err(refusal)?;
            for part in std::mem::take(&mut self.parts) {
                large.write(&part).await.map_err(refusal)?;
            }
            self.room.shrink(self.earlier.waiting_octets);
            self.large = Some(large);
        }
        let large = self.large.as_mut().expect("it was begun");
        large.write(octets).await.map_err(refusal)?;
        if self.memory.places_are_scarce() {
            large.write_out().await.map_err(refusal)?;
            self.place = None;
        }
        Ok(())
    }

    /// The whole message. Its memory stays reserved.
    async fn body(&mut self) -> Result<GatheredBody, MailstoreError> {
        let body = match self.large.take() {
            Some(large) => GatheredBody::Large(large.finish().await.map_err(refusal)?),
            None => GatheredBody::Memory(std::mem::take(&mut self.parts)),
        };
        self.place = None;
        Ok(body)
    }

    /// Writes the complete message to a file beside earlier ones, so that few of them are in memory.
    async fn gather(&mut self, next: AppendRequest) -> Result<(), MailstoreError> {
        let source = match self.file.take() {
            Some(name) => MessageSource::File(name),
            None => MessageSource::Octets(self.body().await?),
        };
        let request = std::mem::replace(&mut self.request, next);
        let earlier = &mut self.earlier;
        (earlier.bytes, earlier.messages) = (earlier.bytes + self.octets, earlier.messages + 1);
        let is_large = matches!(source, MessageSource::Octets(GatheredBody::Large(_)));
        let is_in_memory = matches!(source, MessageSource::Octets(GatheredBody::Memory(_)));
        earlier.waiting_octets += if is_in_memory { self.octets as usize } else { 0 };
        earlier.waiting.push((request, source));
        let has_many = earlier.waiting.len() >= WRITTEN_AT_ONCE || earlier.waiting_octets as u64 >= MEMORY_BYTES_MAX;
        self.octets = 0;
        if is_large || has_many { self.write_waiting().await } else { Ok(()) }
    }

    /// Starts a thread that writes waiting messages, after the previous thread has ended.
    async fn write_waiting(&mut self) -> Result<(), MailstoreError> {
        let mut gathered = match self.earlier.written.take() {
            Some(written) => written.await.map_err(ended)??,
            None => GatheredMail::new(Arc::clone(&self.core)),
        };
        let (waiting, room) = (std::mem::take(&mut self.earlier.waiting), std::mem::take(&mut self.room));
        self.earlier.waiting_octets = 0;
        let write = move |work: &FileWork<GatheredMail>| {
            let _room = room;
            waiting.into_iter().try_for_each(|(request, source)| {
                work.step()?;
                gathered.add(request, &source)
            })?;
            Ok(gathered)
        };
        let core = Arc::clone(&self.core);
        self.earlier.written = Some(tokio::spawn(async move { run(core.files.to_append(), write).await }));
        Ok(())
    }

    async fn store_all(mut self) -> Result<AppendedMessage, MailstoreError> {
        self.gather(self.request.clone()).await?;
        if !self.earlier.waiting.is_empty() {
            self.write_waiting().await?;
        }
        let written = self.earlier.written.take().expect("it was begun");
        let gathered = written.await.map_err(ended)??;
        let core = &self.core;
        // RENAME and DELETE wait until the messages are in.
        let turns = async { (adding(core).await, core.files.to_append().await) };
        run(turns, move |work| gathered.store(work)).await
    }

    async fn store(mut self) -> Result<AppendedMessage, MailstoreError> {
        let body = self.body().await?;
        let Self { core, request, room: _room, .. } = self;
        if !request.keywords.is_empty() {
            change(&core, Operation::Name(request.keywords.clone())).await?;
        }
        // RENAME and DELETE wait until the message is in.
        let _adding = timeout(PATIENCE, adding(&core)).await.map_err(|_| no_answer())?;
        let opening = Arc::clone(&core);
        let facts = run(core.files.to_append(), move |_| opening.prepare(&request)).await?;
        let OpenAppender { intake, writer, .. } = core.shared.appender.get()?;
        let arrival = Arc::new(AppendArrival { core: Arc::clone(&core), facts });
        let place = MailPlace::Maildir(lock(&core.path).as_str().into());
        let internal_date = Some(facts.internal_date);
        let mail = Mail { recipients: vec![MailRecipient::to(place)], internal_date, ..Mail::default() };
        let list: [Arc<dyn Destination>; 2] = [arrival, Arc::clone(&writer.files)];
        let receipt = intake.accept(&list, &mail, body).await.map_err(refusal)?;
        let uid = receipt.entries.iter().filter(|entry| entry.stream == core.shared.ledger.stream());
        let uid = uid.filter_map(|entry| match MailEntry::decode(&entry.payload)? {
            MailEntry::New { first_uid, .. } => Uid::new(first_uid),
            _ => None,
        });
        // Without a UID left the message is stored, and nobody sees it.
        let uid = uid.last().ok_or(MailstoreError::Limit)?;
        let catching_up = Arc::clone(&core);
        let _ = spawn_blocking(move || catching_up.catch_up()).await;
        let uid_validity = Uid::new(core.uid_validity.load(std::sync::atomic::Ordering::Relaxed));
        let uid_validity = UidValidity(uid_validity.ok_or(MailstoreError::NoMailbox)?.0);
        Ok(AppendedMessage { uid_validity, uid, count: 1 })
    }
}

impl MessageWriter for AppendWriter {
    fn next(&mut self, message: AppendRequest) -> Asked<'_, ()> {
        Box::pin(async move {
            let (bytes, messages) = (self.earlier.bytes + self.octets, self.earlier.messages + 2);
            check(&self.core, (&message, bytes), messages).await?;
            self.gather(message).await
        })
    }

    fn write(&mut self, octets: Bytes) -> Asked<'_, ()> {
        Box::pin(self.take(octets))
    }

    fn take_file(&mut self, name: String) -> Asked<'_, ()> {
        (self.octets, self.file) = (self.request.octets, Some(name));
        Box::pin(std::future::ready(Ok(())))
    }

    fn finish(self: Box<Self>) -> Asked<'static, AppendedMessage> {
        // What was begun goes on if its session ends.
        Box::pin(async move {
            let is_one_body = self.earlier.messages == 0 && self.file.is_none();
            let stored = if is_one_body { tokio::spawn(self.store()) } else { tokio::spawn(self.store_all()) };
            stored.await.map_err(ended)?
        })
    }
}

impl MailboxCore {
    /// Refuses messages while the directory has yet to follow a RENAME: delivery would make the old one again after it.
    /// `adding` is locked. Blocks.
    pub fn check_staying(&self) -> Result<(), MailstoreError> {
        if self.shared.moved_paths.is_leaving(lock(&self.path).as_str()) {
            return Err(MailstoreError::Unavailable("an earlier RENAME is not finished".to_owned()));
        }
        Ok(())
    }

    /// Loads the mailbox, so that UIDs can be assigned, and returns the facts of a message except its size. `adding` is
    /// locked. Blocks.
    fn prepare(&self, request: &AppendRequest) -> Result<MessageFacts, MailstoreError> {
        self.shared.ledger.check_open().map_err(|error| of_ledger(&error))?;
        self.check_staying()?;
        let _one = lock(&self.changing);
        load(self, self.reader().ok().as_ref(), &mut Oddities::default())?;
        let guard = lock(&self.state);
        let keywords = &guard.as_ref().ok_or_else(|| MailstoreError::Unavailable("not in memory".to_owned()))?.keywords;
        let named = request.keywords.iter().map(|name| keywords.flag(name).ok_or(MailstoreError::Limit));
        let flags = named.collect::<Result<Vec<_>, _>>()?.into_iter();
        let flags = flags.fold(MessageFlags(request.flags.0 & SYSTEM_BITS), MessageFlags::with);
        // Delivery makes the file in `new/`, without letters.
        let behind = if keywords.shows("", flags) { 0 } else { flag_bits::BEHIND };
        let internal_date = request.internal_date.map_or_else(now_secs, secs);
        let flags = flags.0 | behind | flag_bits::IN_NEW;
        Ok(MessageFacts { flags, internal_date, save_date: now_secs(), ..MessageFacts::default() })
    }
}

/// One message for one mailbox, as an intake destination.
struct AppendArrival {
    core: Arc<MailboxCore>,
    facts: MessageFacts,
}

impl AppendArrival {
    fn ledger(&self) -> &MailLedger {
        &self.core.shared.ledger
    }
}

impl Destination for AppendArrival {
    fn reserve<'a>(&'a self, _: &'a Mail<'a>, body: BodyFacts, reserved: &'a mut Reserved) -> Reserving<'a> {
        let wire_size = WireSize::of(body.len);
        let (facts, place) = (MessageFacts { wire_size, ..self.facts }, BodyPlace::Batch { prefix: Bytes::new() });
        let messages = vec![NewMessage { facts, target: 0, kind: BodyKind::Own, place }];
        let payload = MailEntry::New { mailbox: self.core.id, first_uid: 0, messages }.encode();
        reserved.entries.push(Entry { stream: self.ledger().stream(), needs_body: false, payload });
        Reserving::Done(Ok(()))
    }

    fn stamp<'a>(&'a self, entries: &mut [Entry]) -> Option<Box<dyn Guard + 'a>> {
        stamp(self.ledger(), entries)
    }
}

fn refusal(error: IntakeError) -> MailstoreError {
    match error {
        IntakeError::Full(_) => MailstoreError::NoSpace,
        IntakeError::TooLarge { .. } => MailstoreError::TooBig,
        error => MailstoreError::Unavailable(error.to_string()),
    }
}
