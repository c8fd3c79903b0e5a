//! Opening: every message that the journal still has is put into its mailboxes exactly once.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_journal::storage::make_dir;
use posthaste_journal::{Note, Recovery};
use posthaste_maildir::MailRoot;
use tokio::sync::Semaphore;

use super::config::{JournaledConfig, OpenError};
use super::core::{Core, Counters, load, permits, random_nonce, spooled_in};
use super::keeper::Keeper;
use super::report::ReplayReport;
use crate::log::Log;
use crate::places::{Looked, copy, key_of, no_answer};
use crate::record::{Delivered, KIND_DELIVERED, KIND_DISTRUST, KIND_MESSAGE, Stored};
use crate::seams::Seams;
use crate::session::SessionTag;
use crate::spool::{SPOOL, Spool};
use crate::workers::{Letter, Workers};

impl<L: Log> Core<L> {
    /// Sees that every message that the log held when it was opened is in its mailboxes, or waits. The threads of the
    /// executor are not started yet.
    pub(super) fn open(
        log: L,
        recovery: Recovery,
        config: JournaledConfig,
        seams: Seams,
    ) -> Result<(Arc<Self>, ReplayReport), OpenError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| OpenError::Io { path, error }
        };
        // One that is there becomes durable with the mail in it, and its disk may hang.
        if !config.mail_root.is_dir() {
            make_dir(&config.mail_root).map_err(at(&config.mail_root))?;
        }
        let root = MailRoot::open(&config.mail_root).map_err(at(&config.mail_root))?;
        let root = root.with_owners(config.owners.clone());
        let session = SessionTag::of(&config.mail_root).map_err(at(&config.mail_root))?;
        let visible = Visible::of(&recovery.notes, session);

        let mut report =
            ReplayReport { damage: recovery.damage, bytes_read: recovery.bytes_read, ..ReplayReport::default() };
        let mut ids = Vec::new();
        let mut bodies = HashSet::new();
        let mut sought = Sought::default();
        for record in recovery.records.iter().filter(|record| record.kind == KIND_MESSAGE) {
            // Bodies are read again when it is their turn, so that they need not all be in memory.
            match load(&log, record.id) {
                Ok(stored) => {
                    ids.push(record.id);
                    bodies.extend(spooled_in(&stored));
                    sought.add(record.id, &stored, &visible);
                }
                Err(error) => report.unreadable.push((record.id, error)),
            }
        }
        let spool_dir = config.journal_dir.join(SPOOL);
        let all_known = report.unreadable.is_empty() && !report.damage.iter().any(|damage| damage.promised);
        let spool = Spool::open(spool_dir.clone(), &bodies, all_known).map_err(at(&spool_dir))?;
        let queue_bytes_max = u64::from(config.backlog_bytes) / QUEUE_SHARE;
        let core = Arc::new(Core {
            nonce: random_nonce(),
            host: config.host.as_str().into(),
            session,
            log,
            workers: Arc::new(Workers::new(root, config.mail_root.clone(), spool, seams, queue_bytes_max)),
            backlog: Arc::new(Semaphore::new(permits(config.backlog_bytes.into()) as usize)),
            keeper: Keeper::new(config.pending_bytes_max),
            counters: Counters::default(),
            config,
        });
        core.keeper.space.opened(core.bytes_to_next_checkpoint());
        report.messages = ids.len();
        let there = sought.find(&core.workers, core.config.open_patience);
        for id in ids {
            core.replay(id, &visible, &there, &mut report);
        }
        if visible.distrust && !(all_known && report.unreadable.is_empty() && report.deferred == 0) {
            // Not all of it could be written anew, so it is for whoever opens next as well.
            core.distrust();
        }
        if report.messages > 0 {
            core.want_checkpoint();
        }
        Ok((core, report))
    }

    /// Sees that a recovered message is in its mailboxes.
    fn replay(&self, id: u64, visible: &Visible, there: &There, report: &mut ReplayReport) {
        let stored = match self.load(id) {
            Ok(stored) => stored,
            Err(error) => return report.unreadable.push((id, error)),
        };
        let letter = Letter::again(id, stored, self.failed_syncs(), None);
        let places = self.workers.places();
        let mut failed = Vec::new();
        for (target, &number) in letter.stored.numbers.iter().enumerate() {
            let outcome = there.look_into(&letter.stored, target).and_then(|looked| {
                if visible.is_done(id, number) {
                    return Ok(false);
                }
                let found = looked.get(&key_of(&letter.stored, id, number))?;
                let written =
                    !visible.done.contains(&(id, number)) && places.restore_found(&letter.stored, id, target, found)?;
                // What was written just now is as good as what is delivered: the next checkpoint makes it durable, or writes it anew.
                if let Some(found) = found.filter(|_| visible.distrust && !written) {
                    places.renew(&letter.stored, id, target, found)?;
                }
                Ok(written)
            });
            match outcome {
                Ok(written) => report.restored += usize::from(written),
                Err(error) => {
                    failed.push((number, error.to_string().into()));
                    report.deferred += 1;
                }
            }
        }
        self.settle_or_defer(&letter, failed);
    }
}

/// What the notes say of the page cache.
struct Visible {
    /// Records and targets that became visible in this life of it.
    done: HashSet<(u64, u16)>,
    /// A sync of the mail has failed, or we do not know how it ended: what reads well may be in the page cache alone. In
    /// another life of it, what reads well has been read from the disk.
    distrust: bool,
}

impl Visible {
    fn of(notes: &[Note], session: SessionTag) -> Self {
        let delivered = notes.iter().filter(|note| note.kind == KIND_DELIVERED);
        let delivered = delivered.filter_map(|note| Delivered::decode(&note.payload));
        Visible {
            done: delivered.filter(|note| note.session == session).flat_map(|note| note.done).collect(),
            distrust: notes.iter().any(|note| note.kind == KIND_DISTRUST && note.payload == session.0),
        }
    }

    /// It became visible in this life of the page cache, so it is there, or its owner has taken it away.
    fn is_done(&self, id: u64, number: u16) -> bool {
        self.done.contains(&(id, number)) && !self.distrust
    }
}

/// Names that are looked for, by mailbox: a missing name costs a scan of its mailbox, and so do a thousand of them together.
#[derive(Default)]
struct Sought(HashMap<Arc<str>, Vec<String>>);

impl Sought {
    fn add(&mut self, id: u64, stored: &Stored, visible: &Visible) {
        for (&number, target) in stored.numbers.iter().zip(&stored.message.targets) {
            // Every mailbox is opened: a sync covers the file systems of those alone, and the record is forgotten with it.
            let keys = self.0.entry(target.mailbox.clone()).or_default();
            if !visible.is_done(id, number) {
                keys.push(key_of(stored, id, number));
            }
        }
    }

    /// Looks on threads of their own, which file systems that hang may keep: nobody else's mail waits for them.
    fn find(self, workers: &Arc<Workers>, patience: Duration) -> There {
        let threads = LOOK_THREADS.min(self.0.len());
        let sought = Arc::new(Mutex::new(self.0.into_iter()));
        let (tell, told) = channel();
        for _ in 0..threads {
            let (workers, sought, tell) = (workers.clone(), sought.clone(), tell.clone());
            let next = move || sought.lock().expect("what is sought").next();
            let look = move || {
                while let Some((mailbox, keys)) = next() {
                    let found = workers.places().find(&mailbox, &keys);
                    if tell.send((mailbox, found)).is_err() {
                        return;
                    }
                }
            };
            // Without threads nothing is found out, and the mail waits.
            let _ = std::thread::Builder::new().name("delivery-look".to_owned()).spawn(look);
        }
        drop(tell);
        There(std::iter::from_fn(|| told.recv_timeout(patience).ok()).collect())
    }
}

/// What was found in each mailbox that has answered.
struct There(HashMap<Arc<str>, io::Result<Looked>>);

impl There {
    /// What was found in the mailbox of a target.
    ///
    /// # Errors
    /// It could not be looked into.
    fn look_into(&self, stored: &Stored, target: usize) -> io::Result<&Looked> {
        self.0.get(&stored.message.targets[target].mailbox).ok_or_else(no_answer)?.as_ref().map_err(copy)
    }
}

/// Mailboxes that are looked into at a time.
const LOOK_THREADS: usize = 8;
/// Of the memory for messages under way a slow mailbox may take one part in this many.
const QUEUE_SHARE: u64 = 8;
