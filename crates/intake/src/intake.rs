//! Acceptance of a message: limits, room, one batch, the commit.

use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_spool::{AppendError, Batch, Entry, FinishedUpload, FrontFields, Lsn, Spool, Then, Ticket};
use tokio::sync::oneshot;

use crate::body::{BodyWriter, GatheredBody, blocking};
use crate::budget::{Budget, BudgetShare};
use crate::destination::{Destination, Held, Mail, Reserved, Reserving};
use crate::error::IntakeError;
use crate::room_wait::RoomWait;
use crate::under_way::{UnderWay, unless};

/// Source of the time.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// Limits of an intake.
#[derive(Debug, Clone)]
pub struct Config {
    /// Memory for durable messages that destinations still hold, in bytes. Beyond it callers wait. A larger body goes
    /// to a file.
    pub backlog_bytes: u32,
    /// Larger bodies go to a file of their own, even if handed over in memory. Default 1 MiB.
    pub inline_bytes_max: u64,
    /// Longest wait of a message for room in a full spool before it is refused. After one timeout others are refused at
    /// once, until one finds room.
    pub room_patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config { backlog_bytes: 256 << 20, inline_bytes_max: 1 << 20, room_patience: Duration::from_secs(10) }
    }
}

/// Accepts messages into a spool. Clones share it.
#[derive(Clone)]
pub struct Intake(Arc<Shared>);

struct Shared {
    spool: Arc<dyn Spool>,
    config: Config,
    clock: Clock,
    budget: Budget,
    accepted: AtomicU64,
    /// True since a wait for room timed out, until a message finds room. Meanwhile other messages are refused at once.
    is_full: AtomicBool,
    /// Like `is_full`, for large bodies.
    is_full_of_bodies: AtomicBool,
}

/// Receipt of a durable message.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// LSN of the message's batch in the spool.
    pub lsn: Lsn,
    /// The stamped entries of its destinations; each destination's crate reads its own results from them.
    pub entries: Vec<Entry>,
}

/// A message on its way into the spool, kept for retries until an append succeeds.
struct Pending {
    entries: Vec<Entry>,
    units: u64,
    pins: Vec<Arc<dyn Held>>,
    front: FrontFields,
    parts: Vec<Bytes>,
    large: Option<FinishedUpload>,
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intake").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl Intake {
    /// An intake into this spool.
    pub fn new(spool: Arc<dyn Spool>, config: Config) -> Self {
        Self::with_clock(spool, config, Arc::new(Instant::now))
    }

    /// Like [`new`](Self::new), with a clock for waits for room.
    pub fn with_clock(spool: Arc<dyn Spool>, config: Config, clock: Clock) -> Self {
        Intake(Arc::new(Shared {
            budget: Budget::new(config.backlog_bytes.into()),
            spool,
            config,
            clock,
            accepted: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            is_full_of_bodies: AtomicBool::new(false),
        }))
    }

    /// The spool.
    pub fn spool(&self) -> &Arc<dyn Spool> {
        &self.0.spool
    }

    /// The memory budget that destinations share.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Its limits.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Messages made durable.
    pub fn accepted(&self) -> u64 {
        self.0.accepted.load(Ordering::Relaxed)
    }

    /// Makes a message durable for all of its destinations, or for none.
    ///
    /// Once this returns `Ok`, no power cut can lose the message. Dropping the future does not cancel an appended
    /// message.
    ///
    /// # Errors
    /// All of [`IntakeError`] except `Cancelled`.
    pub async fn accept<D>(
        &self,
        destinations: &[D],
        mail: &Mail<'_>,
        body: GatheredBody,
    ) -> Result<Receipt, IntakeError>
    where
        D: Deref<Target: Destination> + Sync,
    {
        self.run(destinations, mail, body, None).await
    }

    /// Like [`accept`](Self::accept), until `give_up` completes. From then on the message is cancelled if possible. One
    /// atomic decision settles it: either `Ok` and delivered, or [`IntakeError::Cancelled`] and not. Dropping the
    /// future cancels the message in the same way, without an answer.
    ///
    /// One exception: the message was already being written, and a kill or power cut precedes the durability of its
    /// cancel entry. Then the next start delivers it. On a working disk the cancel entry follows at once.
    ///
    /// # Errors
    /// See [`IntakeError`].
    pub async fn accept_unless<D>(
        &self,
        destinations: &[D],
        mail: &Mail<'_>,
        body: GatheredBody,
        give_up: impl Future<Output = ()>,
    ) -> Result<Receipt, IntakeError>
    where
        D: Deref<Target: Destination> + Sync,
    {
        let under_way = UnderWay::default();
        let work = pin!(self.run(destinations, mail, body, Some(&under_way)));
        unless(&under_way, work, give_up).await
    }

    async fn run<D>(
        &self,
        destinations: &[D],
        mail: &Mail<'_>,
        mut body: GatheredBody,
        under_way: Option<&UnderWay>,
    ) -> Result<Receipt, IntakeError>
    where
        D: Deref<Target: Destination> + Sync,
    {
        if body.len() > self.0.config.inline_bytes_max {
            body = Box::pin(self.in_a_file(body)).await?;
        }
        let mut reserved = reserve(destinations, mail, &body).await?;
        if matches!(body, GatheredBody::Memory(_)) && !self.0.budget.covers(reserved.units) {
            // All destinations together would hold more of it than there may be.
            drop(reserved);
            body = Box::pin(self.in_a_file(body)).await?;
            reserved = reserve(destinations, mail, &body).await?;
        }
        let Reserved { entries, units, pins } = reserved;
        let front = mail.front.clone();
        let pending = match body {
            GatheredBody::Memory(parts) => {
                // Of a batch without a body no destination holds anything, nor gives anything back.
                let units = if parts.is_empty() && front.is_empty() { 0 } else { units };
                Pending { entries, units, pins, front, parts, large: None }
            }
            GatheredBody::Large(body) => {
                Pending { entries, units: 0, pins, front, parts: Vec::new(), large: Some(body.upload) }
            }
        };
        let kept = self.keep(destinations, pending, under_way).await;
        self.0.accepted.fetch_add(u64::from(kept.is_ok()), Ordering::Relaxed);
        kept
    }

    /// Makes entries durable that belong to no message.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub async fn note(&self, entries: Vec<Entry>) -> Result<Lsn, IntakeError> {
        let front = FrontFields::default();
        let parts = Vec::new();
        let pins = Vec::new();
        let pending = Pending { entries, units: 0, pins, front, parts, large: None };
        let nowhere: &[Box<dyn Destination>] = &[];
        self.keep(nowhere, pending, None).await.map(|receipt| receipt.lsn)
    }

    /// Retries the append until there is room, and waits for the commit.
    async fn keep<D>(
        &self,
        destinations: &[D],
        mut pending: Pending,
        under_way: Option<&UnderWay>,
    ) -> Result<Receipt, IntakeError>
    where
        D: Deref<Target: Destination> + Sync,
    {
        let mut wait = self.begin_wait(&self.0.is_full);
        let mut has_looked = false;
        loop {
            let (outcome, ticket) = self.append(destinations, &mut pending).await?;
            if let Some(under_way) = under_way {
                under_way.appended(ticket);
            }
            match outcome.await.map_err(|_| IntakeError::Closed)? {
                Ok(lsn) => {
                    wait.found();
                    return Ok(Receipt { lsn, entries: pending.entries });
                }
                // The spool's keeper has been asked for room.
                Err(error @ (AppendError::Full(_) | AppendError::Busy)) => {
                    if under_way.is_some_and(|under_way| !under_way.may_append_again()) {
                        return Err(error.into());
                    }
                    if wait.goes_on().await {
                        continue;
                    }
                    // The last wait was in vain. Appending asks no file system, so one look finds the space that somebody has made since.
                    if has_looked || !Box::pin(self.has_room()).await {
                        return Err(error.into());
                    }
                    has_looked = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn has_room(&self) -> bool {
        let spool = Arc::clone(&self.0.spool);
        blocking(move || spool.check_room(0)).await.is_ok()
    }

    /// Takes the memory, and appends once.
    async fn append<D>(
        &self,
        destinations: &[D],
        pending: &mut Pending,
    ) -> Result<(oneshot::Receiver<Result<Lsn, AppendError>>, Ticket), IntakeError>
    where
        D: Deref<Target: Destination> + Sync,
    {
        let budget = &self.0.budget;
        if budget.is_closed() {
            return Err(IntakeError::Closed);
        }
        let share = match pending.units {
            0 => None,
            units => Some(budget.share(units).await.map_err(|_| IntakeError::Closed)?),
        };
        let (done, outcome) = oneshot::channel();
        let pins = pending.pins.clone();
        let then = move |outcome: Result<Lsn, AppendError>| {
            if outcome.is_ok() {
                // The destinations were told before, and each gives back its part.
                share.into_iter().for_each(BudgetShare::hand_over);
            }
            drop(pins);
            drop(done.send(outcome));
        };
        Ok((outcome, self.stamp_and_append(destinations, pending, Box::new(then))))
    }

    fn stamp_and_append<D>(&self, destinations: &[D], pending: &mut Pending, then: Then) -> Ticket
    where
        D: Deref<Target: Destination>,
    {
        // None for most destinations, so nothing is allocated for them.
        let mut guards = Vec::new();
        for destination in destinations {
            guards.extend(destination.stamp(&mut pending.entries));
        }
        let ticket = self.0.spool.append(pending.batch(), then);
        drop(guards);
        ticket
    }

    async fn in_a_file(&self, body: GatheredBody) -> Result<GatheredBody, IntakeError> {
        let announced = body.len();
        let GatheredBody::Memory(parts) = body else { return Ok(body) };
        let mut writer = BodyWriter::new(self.when_room(move |spool| spool.upload(announced)).await?);
        for part in &parts {
            writer.write(part).await?;
        }
        Ok(GatheredBody::Large(writer.finish().await?))
    }

    /// Reports an accepted and discarded message to its destinations, some of which may record it.
    pub fn discard<D: Deref<Target: Destination>>(&self, destinations: &[D], mail: &Mail<'_>) {
        destinations.iter().for_each(|destination| destination.discarded(mail));
    }

    /// Recommended pause before the next message, so that the spool need not refuse it. `queued`: part of it is for a
    /// queue that asks for pauses of its own.
    pub fn pause(&self, queued: bool) -> Duration {
        self.0.spool.pressure().pause(queued)
    }

    /// Starts a large body, which is written to a file as it arrives. Makes the file, so it may block on the disk. The
    /// announcement is free: room is reserved in steps as the body arrives, and none while it
    /// [pauses](BodyWriter::pause).
    ///
    /// # Errors
    /// [`IntakeError::Full`] if there is no room for `announced` bytes (0: unknown), or no file can be made.
    pub fn upload(&self, announced: u64) -> Result<BodyWriter, IntakeError> {
        self.0.spool.upload(announced).map(BodyWriter::new).map_err(IntakeError::Full)
    }

    /// Like [`upload`](Self::upload), but waits for room for at most [`room_patience`](Config::room_patience), as every
    /// message does. Also returns the bytes that were free for large bodies before, without others' reservations.
    ///
    /// # Errors
    /// [`IntakeError::Full`] if there was no room, [`IntakeError::Sync`] if no file can be made.
    pub async fn upload_when_room(&self, announced: u64) -> Result<(BodyWriter, u64), IntakeError> {
        let opened = self.when_room(move |spool| {
            let free = spool.room()?;
            Ok((spool.upload(announced)?, free))
        });
        opened.await.map(|(upload, free)| (BodyWriter::new(upload), free))
    }

    /// Waits for room for a body of this size, like [`upload_when_room`](Self::upload_when_room). Reserves nothing.
    ///
    /// # Errors
    /// Like [`upload_when_room`](Self::upload_when_room).
    pub async fn wait_for_room(&self, bytes: u64) -> Result<(), IntakeError> {
        self.when_room(move |spool| spool.check_room(bytes)).await
    }

    fn begin_wait<'a>(&'a self, is_full: &'a AtomicBool) -> RoomWait<'a> {
        RoomWait::begin(&*self.0.clock, self.0.config.room_patience, is_full)
    }

    /// Retries a blocking attempt for a large body, until there is room for it or
    /// [`room_patience`](Config::room_patience) ends.
    ///
    /// # Errors
    /// [`IntakeError::Full`] without room, else the attempt's error.
    async fn when_room<T: Send + 'static>(
        &self,
        attempt: impl Fn(&dyn Spool) -> io::Result<T> + Clone + Send + 'static,
    ) -> Result<T, IntakeError> {
        let mut wait = self.begin_wait(&self.0.is_full_of_bodies);
        loop {
            let attempt = attempt.clone();
            let spool = self.spool().clone();
            match blocking(move || attempt(&*spool)).await {
                Err(IntakeError::Full(error)) => {
                    if !wait.goes_on().await {
                        return Err(IntakeError::Full(error));
                    }
                }
                ended => {
                    wait.found();
                    return ended;
                }
            }
        }
    }

    /// Accepts nothing more: messages that wait for memory, and later ones, get [`IntakeError::Closed`].
    pub fn close(&self) {
        self.0.budget.close();
    }

    /// [Closes](Self::close) it, and makes a last checkpoint of the spool, which shortens the next opening. Waits until
    /// `deadline`, at least one second: if the disk hangs, a thread keeps the spool. Blocks.
    pub fn end(&self, deadline: Instant) {
        self.close();
        let spool = self.0.spool.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let checkpoint = move || {
            // A failure has been told as an event.
            drop(spool.checkpoint());
            drop(spool);
            let _ = tell.send(());
        };
        if std::thread::Builder::new().name("spool-end".to_owned()).spawn(checkpoint).is_ok() {
            let _ = told.recv_timeout(deadline.saturating_duration_since(Instant::now()).max(END_MIN));
        }
    }
}

async fn reserve<D>(destinations: &[D], mail: &Mail<'_>, body: &GatheredBody) -> Result<Reserved, IntakeError>
where
    D: Deref<Target: Destination> + Sync,
{
    let facts = body.facts(&mail.front);
    let mut reserved = Reserved { entries: mail.also.clone(), ..Reserved::default() };
    for destination in destinations {
        let taken = match destination.reserve(mail, facts, &mut reserved) {
            Reserving::Done(taken) => taken,
            Reserving::Waiting(taking) => taking.await,
        };
        taken.map_err(IntakeError::NotTaken)?;
    }
    Ok(reserved)
}

impl Pending {
    fn batch(&self) -> Batch {
        // What is kept here is for the next try, should this one be refused.
        let body = match &self.large {
            Some(upload) => posthaste_spool::Body::File(self.front.clone(), upload.clone()),
            None if self.parts.is_empty() && self.front.is_empty() => posthaste_spool::Body::None,
            None => posthaste_spool::Body::Inline(self.front.clone(), self.parts.clone()),
        };
        Batch { entries: self.entries.clone(), body }
    }
}

/// Minimum wait for the last checkpoint.
const END_MIN: Duration = Duration::from_secs(1);
