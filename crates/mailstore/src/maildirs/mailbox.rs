//! An open Maildir: looks for changes, and reads messages.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use posthaste_maildir::MailboxPath;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout};
use tokio::try_join;

use super::answers::{PATIENCE, ended, no_answer, unavailable};
use super::body::wire_len;
use super::change_queue::ChangeQueue;
use super::core::MailboxCore;
use super::file::MailFile;
use super::file_work::FileTurns;
use super::loaded::LoadedMailboxes;
use super::locks::lock;
use super::looking::look;
use super::looks::{Looked, Looks};
use super::names_out::begin_writing_names;
use super::owner::Owner;
use super::read_turns::ReadTurns;
use super::reading::commit_cache;
use super::shared::Shared;
use super::state::Messages;
use super::told::{Oddities, Told};
use crate::error::{Asked, MailstoreError};
use crate::mail_body::{MailBody, copied, first_bodies, first_fields};
use crate::message_list::Message;
use crate::name::MailboxName;
use crate::opening_view::OpeningMailbox;
use crate::row::{MailboxId, ModSeq, NumberRange, Uid, UidValidity, UniqueIds};
use crate::snapshot::Source;
use crate::store::KeptKind;

/// Time that a session waits for a look at a known mailbox; changes on a slow disk are reported later.
const LOOK_PATIENCE: Duration = Duration::from_millis(200);
/// Minimum messages of a request for fields that two threads share.
const HALVED_MIN: usize = 32;

#[derive(Debug, Clone)]
pub(super) struct MaildirMailbox {
    core: Arc<MailboxCore>,
    loaded: Arc<LoadedMailboxes<Self>>,
}

impl MaildirMailbox {
    pub fn new(
        shared: Arc<Shared>,
        loaded: Arc<LoadedMailboxes<Self>>,
        owner: Arc<Owner>,
        id: MailboxId,
        name: MailboxName,
        path: MailboxPath,
    ) -> Self {
        let reading = ReadTurns::of_mailbox(&shared.read_turns);
        let core = Arc::new(MailboxCore {
            shared,
            owner,
            id: id.0,
            is_spent: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            name: Mutex::new(name),
            path: Mutex::new(path),
            reading,
            files: FileTurns::default(),
            uid_validity: AtomicU32::new(0),
            recent_from: AtomicU32::new(1),
            is_recent_known: AtomicBool::new(false),
            state: Mutex::default(),
            looks: Mutex::new(Looks::new()),
            dir_events: Arc::new(watch::Sender::new(0)),
            looked: watch::Sender::new(Looked {
                number: 0,
                messages: None,
                error: None,
                is_ahead: false,
                opening: None,
            }),
            suspects: Mutex::default(),
            sizes: Mutex::default(),
            told: Told::default(),
            changing: Mutex::default(),
            changes: ChangeQueue::default(),
            is_writing_names: AtomicBool::new(false),
            has_lost_names: AtomicBool::new(false),
            is_unlisted: AtomicBool::new(true),
            is_miscounted: AtomicBool::new(false),
            adding: Arc::default(),
            is_deleted: AtomicBool::new(false),
            unique_ids: Mutex::default(),
            uid_list: Mutex::default(),
        });
        Self { core, loaded }
    }

    pub fn core(&self) -> &Arc<MailboxCore> {
        &self.core
    }

    /// The mailboxes that sessions have asked for.
    pub fn loaded(&self) -> &LoadedMailboxes<Self> {
        &self.loaded
    }

    pub fn path(&self) -> MailboxPath {
        lock(&self.core.path).clone()
    }

    /// Sets the path after another program has changed its encoding. Not during a rename of the directory, which may
    /// take long.
    pub fn set_path(&self, path: MailboxPath) {
        if let Ok(mut current) = self.core.path.try_lock() {
            *current = path;
        }
    }

    /// True if the directory of a folder exists; an INBOX may have none. Blocks.
    pub fn is_there(&self) -> bool {
        self.core.reader().is_ok()
    }

    /// Applies published entries and notifies sessions. False: read the mailbox from the ledger again.
    pub fn catch_up(&self) -> bool {
        self.core.catch_up()
    }

    /// True if only its account refers to it, and no look is running.
    pub fn is_unused(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && Arc::strong_count(&self.core) == 1
    }

    /// Unloads its messages; the next look reads them from the ledger.
    pub fn unload(&self) {
        let mut state = lock(&self.core.state);
        *state = None;
        *lock(&self.core.unique_ids) = None;
        self.core.shared.ledger.unfollow(self.core.id);
        self.core.looked.send_modify(|looked| looked.messages = None);
    }

    /// Its messages, if a look would find no change. Does not block.
    pub fn unchanged(&self) -> Option<Arc<Messages>> {
        let messages = self.core.unchanged()?;
        self.is_used(messages.messages.len());
        Some(messages)
    }

    /// Notes a use with so many messages in memory.
    fn is_used(&self, messages: usize) {
        self.loaded.used(self.core.id, messages, Self::unload);
    }

    /// True after a failed takeover: the mailbox needs another id, and this object is unusable.
    pub fn is_broken(&self) -> bool {
        self.core.is_broken.load(Ordering::Relaxed)
    }

    /// Creates the mailbox, if the ledger lacks it; true if UIDs can then be assigned. Blocks.
    pub fn make(&self) -> bool {
        let mut odd = Oddities::default();
        let reader = match self.core.reader() {
            Ok(reader) => Some(reader),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.core.failed(&error);
                return false;
            }
        };
        let made = self.core.make(reader.as_ref(), &mut odd, None, &|| Ok(()));
        self.core.told.tell(&lock(&self.core.path).to_string(), &odd);
        made.is_ok() && self.core.shared.ledger.pin(self.core.id).unwrap_or(false)
    }

    /// Requests a look that begins after now, and returns its number.
    fn want_look(&self) -> u64 {
        let mut looks = lock(&self.core.looks);
        looks.wanted = looks.begun + 1;
        if !std::mem::replace(&mut looks.is_running, true) {
            let mailbox = self.clone();
            drop(spawn_blocking(move || look_as_wanted(&mailbox)));
        }
        looks.wanted
    }

    /// Waits for a look, however long it takes.
    #[cfg(test)]
    pub async fn look_patiently(&self) -> Result<Arc<Messages>, MailstoreError> {
        let mut looked = self.core.looked.subscribe();
        let wanted = self.want_look();
        let looked = looked.wait_for(|looked| looked.number >= wanted).await.unwrap().clone();
        looked.error.map_or_else(|| Ok(looked.messages.unwrap()), Err)
    }

    /// Starts to watch the directories, if the kernel can. Does not wait: a mount may hang.
    fn watch_dirs(&self) {
        if self.core.shared.hot_dirs.begin(self.core.id) {
            let core = Arc::clone(&self.core);
            spawn_blocking(move || core.watch());
        }
    }

    /// The counters of a mailbox whose messages are being loaded. `None`: wait for a look.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]: its disk has not answered for five minutes.
    pub async fn opening(&self) -> Result<Option<OpeningMailbox<Arc<MailFile>>>, MailstoreError> {
        if self.core.is_loaded() {
            return Ok(None);
        }
        let mut looked = self.core.looked.subscribe();
        let wanted = self.want_look();
        let is_done = |looked: &Looked| looked.opening.is_some() || looked.is_ahead || looked.number >= wanted;
        let looked = timeout(PATIENCE, looked.wait_for(is_done)).await.map_err(|_| no_answer())?;
        let looked = looked.expect("the sender is in `self`");
        Ok(looked.opening.as_ref().map(|(_, opening)| opening.clone()))
    }

    async fn look_now(&self) -> Result<Arc<Messages>, MailstoreError> {
        let mut looked = self.core.looked.subscribe();
        loop {
            let is_known = self.core.catch_up();
            // Answered here: the change of threads takes longer than the rest of a STATUS.
            if is_known && let Some(messages) = self.unchanged() {
                return Ok(messages);
            }
            let wanted = self.want_look();
            let error = if is_known {
                match timeout(LOOK_PATIENCE, looked.wait_for(|looked| looked.number >= wanted)).await {
                    Ok(looked) => looked.expect("the sender is in `self`").error.clone(),
                    Err(_) => None,
                }
            } else {
                let is_done = |looked: &Looked| looked.number >= wanted || looked.is_ahead;
                let looked = timeout(PATIENCE, looked.wait_for(is_done)).await.map_err(|_| no_answer())?;
                let looked = looked.expect("the sender is in `self`");
                // Else it is that of an earlier look.
                looked.error.clone().filter(|_| looked.number >= wanted)
            };
            self.core.catch_up();
            if let Some(error) = error {
                return Err(error);
            }
            // Without messages it was unloaded just now.
            if let Some(messages) = looked.borrow().messages.clone() {
                return Ok(messages);
            }
        }
    }

    /// Reads a message to find its size.
    fn read_size(&self, message: &Message<Arc<MailFile>>) -> Asked<'static, u64> {
        let (core, message) = (Arc::clone(&self.core), message.clone());
        Box::pin(async move {
            core.listed().await?;
            let turns = core.reading.clone();
            let work = move || {
                let (opened, size) = core.open(message.uid, &message.file)?;
                let wire_size = wire_len(&opened, size, &message.file)?;
                core.found_size(&message, size, wire_size);
                Ok(wire_size)
            };
            turns.read(work).await?
        })
    }
}

/// Looks until no look is requested. It belongs to no session, so that an ended session cancels nothing. Blocks: a
/// thread switch would cost more than a look at an unchanged mailbox.
fn look_as_wanted(mailbox: &MaildirMailbox) {
    let core = &mailbox.core;
    loop {
        let (number, known) = {
            let mut looks = lock(&core.looks);
            if looks.begun >= looks.wanted {
                looks.is_running = false;
                return;
            }
            looks.begun += 1;
            core.shared.hot_dirs.read_events_now(core.id);
            looks.events = *core.dir_events.borrow();
            (looks.begun, looks.known.take().unwrap_or_default())
        };
        let (begun, settled) = (Instant::now(), known.settled);
        // A bug of ours must not leave sessions waiting.
        let (known, outcome) = match catch_unwind(AssertUnwindSafe(|| look(core, known))) {
            Ok((known, outcome)) => (Some(known), outcome),
            Err(_) => (None, Err(MailstoreError::Unavailable("a look at the mailbox has failed".to_owned()))),
        };
        {
            let mut looks = lock(&core.looks);
            (looks.known, looks.last, looks.took) = (known, Instant::now(), begun.elapsed());
        }
        core.looked.send_modify(|looked| {
            (looked.number, looked.error, looked.is_ahead) = (number, outcome.err(), false);
        });
        // Asked for twice without a change: the next look need not go to the disk.
        if core.is_settled_as(settled) && core.shared.hot_dirs.begin(core.id) {
            core.watch();
        }
        begin_writing_names(core);
        mailbox.is_used(core.now().map_or(0, |now| now.messages.len()));
    }
}

impl Source for MaildirMailbox {
    type File = Arc<MailFile>;

    fn id(&self) -> MailboxId {
        MailboxId(self.core.id)
    }

    fn uid_validity(&self) -> UidValidity {
        let validity = Uid::new(self.core.uid_validity.load(Ordering::Relaxed)).or(Uid::new(1));
        UidValidity(validity.expect("it is not 0").0)
    }

    fn recent_from(&self) -> &AtomicU32 {
        &self.core.recent_from
    }

    fn folder(&self) -> Option<String> {
        Some(self.path().to_string())
    }

    fn file_name(file: &Self::File) -> Option<&str> {
        Some(&*file.name).filter(|_| file.awaited().is_none())
    }

    fn look(&self) -> Asked<'_, Arc<Messages>> {
        Box::pin(self.look_now())
    }

    fn known(&self) -> Asked<'_, Arc<Messages>> {
        if !self.core.catch_up() {
            return self.look();
        }
        let (error, messages) = {
            let looked = self.core.looked.borrow();
            (looked.error.clone(), looked.messages.clone())
        };
        match (error, messages) {
            (Some(MailstoreError::NoMailbox), _) => Box::pin(std::future::ready(Err(MailstoreError::NoMailbox))),
            (_, Some(messages)) => Box::pin(std::future::ready(Ok(messages))),
            (_, None) => self.look(),
        }
    }

    fn gone_since(&self, modseq: ModSeq) -> Asked<'_, Option<Vec<NumberRange>>> {
        let core = Arc::clone(&self.core);
        Box::pin(async move {
            let gone = spawn_blocking(move || core.shared.ledger.gone_since(core.id, modseq.0)).await.map_err(ended)?;
            gone.map_err(|error| MailstoreError::Unavailable(error.to_string()))
        })
    }

    fn unique_ids(&self) -> Asked<'_, Arc<UniqueIds>> {
        let core = Arc::clone(&self.core);
        Box::pin(async move {
            let known = lock(&core.unique_ids).clone();
            if let Some(known) = known {
                return Ok(known);
            }
            let read = move || {
                let ids = Arc::new(core.shared.ledger.unique_ids(core.id).map_err(unavailable)?);
                *lock(&core.unique_ids) = Some(Arc::clone(&ids));
                Ok(ids)
            };
            spawn_blocking(read).await.map_err(ended)?
        })
    }

    fn changed<'a>(&'a self, known: &'a Arc<Messages>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let mut looked = self.core.looked.subscribe();
            let is_other = |looked: &Looked| {
                looked.error == Some(MailstoreError::NoMailbox)
                    || looked.messages.as_ref().is_some_and(|now| !Arc::ptr_eq(now, known))
            };
            loop {
                self.watch_dirs();
                let mut events = self.core.dir_events.subscribe();
                tokio::select! {
                    // It cannot fail: the sender is in `self`.
                    _ = looked.wait_for(is_other) => return,
                    () = sleep_until(self.core.next_look()) => {}
                    // The next look is earlier now.
                    _ = events.changed() => continue,
                }
                // Another session's look may have come first.
                if Instant::now() >= self.core.next_look() {
                    let wanted = self.want_look();
                    let _ = looked.wait_for(|looked| looked.number >= wanted).await;
                }
            }
        })
    }

    fn known_size(&self, message: &Message<Self::File>) -> Option<u64> {
        message.file.wire_size()
    }

    fn size<'a>(&'a self, message: &'a Message<Self::File>) -> Asked<'a, u64> {
        match message.file.wire_size() {
            Some(size) => Box::pin(std::future::ready(Ok(size))),
            None => self.read_size(message),
        }
    }

    fn headers(&self, messages: Vec<Message<Arc<MailFile>>>) -> Asked<'_, Vec<Result<Bytes, MailstoreError>>> {
        let core = Arc::clone(&self.core);
        Box::pin(async move {
            core.listed().await?;
            let turns = core.reading.clone();
            let work = move || {
                // Without it each message says why.
                let reader = core.reader().ok();
                let messages = messages.iter().map(|message| core.as_listed(message));
                first_fields(messages.map(|message| core.header(reader.as_ref(), message.uid, &message.file)))
            };
            Ok(all_copied(turns.read(work).await?))
        })
    }

    fn fields(&self, messages: Vec<Message<Arc<MailFile>>>) -> Asked<'_, Vec<Result<Bytes, MailstoreError>>> {
        let core = Arc::clone(&self.core);
        Box::pin(async move {
            core.listed().await?;
            let (mut first, mut second) = (messages, Vec::new());
            if first.len() >= HALVED_MIN {
                second = first.split_off(first.len() / 2);
            }
            let count = first.len();
            let (mut fields, more) = try_join!(core.fields_in_turn(first), core.fields_in_turn(second))?;
            // Else there was not enough room for the first half.
            if fields.len() == count {
                fields.extend(more);
            }
            commit_cache(&core);
            Ok(all_copied(fields))
        })
    }

    fn kept(
        &self,
        kind: KeptKind,
        messages: Vec<Message<Arc<MailFile>>>,
    ) -> Asked<'_, Vec<Result<Option<Bytes>, MailstoreError>>> {
        let core = Arc::clone(&self.core);
        Box::pin(async move {
            core.listed().await?;
            let turns = core.reading.clone();
            turns.read(move || core.kept(kind, &messages)).await
        })
    }

    fn keep(&self, kind: KeptKind, message: &Message<Arc<MailFile>>, made: &[u8]) {
        let Message { file, email_id, .. } = self.core.as_listed(message);
        // Those of the file that was opened: without them it was read from the spool.
        if let Some(facts) = file.content_facts() {
            self.core.shared.header_cache.keep(kind, email_id, &facts, made);
            commit_cache(&self.core);
        }
    }

    fn bodies(
        &self,
        messages: Vec<Message<Arc<MailFile>>>,
    ) -> Asked<'_, Vec<Result<Arc<dyn MailBody>, MailstoreError>>> {
        let core = Arc::clone(&self.core);
        Box::pin(async move {
            core.listed().await?;
            let turns = core.reading.clone();
            let work = move || {
                let reader = core.reader_of_mail();
                let messages = messages.iter().map(|message| core.as_listed(message));
                first_bodies(messages.map(|message| core.body(&reader, &message)))
            };
            let bodies = turns.read(work).await?.into_iter();
            Ok(bodies.map(|body| body.map(|body| body.copied().unwrap_or(body))).collect())
        })
    }
}

/// See [`copied`].
fn all_copied(read: Vec<Result<Bytes, MailstoreError>>) -> Vec<Result<Bytes, MailstoreError>> {
    read.into_iter().map(|octets| octets.map(|octets| copied(&octets))).collect()
}
