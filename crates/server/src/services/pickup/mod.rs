//! Mail from programs on this machine. The service takes the files of the pickup directory one by one, and passes each
//! to the receiver like a message by SMTP.
//!
//! A file is removed once its message is durable in the spool. A kill in between is the only cause of a second copy:
//! the file is taken again. For a permanent refusal the sender is notified before the file is moved away. A file that
//! cannot be removed is not handed over again by the same server.

mod files;
mod handover;
mod notice;
mod settle;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use posthaste_directory::Directory as Accounts;
use posthaste_pickup::{PickupMessage, PickupReadError};
use posthaste_smtp::server::Config as SmtpConfig;
use posthaste_smtp::{ForwardPath, RcptTo};
use tokio::sync::watch as tokio_watch;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until};

use crate::lifecycle::{Alive, Ended, Ending, OnFailure, Service, Unfinished};
use crate::receive::events;
use crate::receive::handler::Receiver;
use posthaste_config::Config;

use self::files::{Files, Found};
use self::handover::{Fates, HandoverError, Refused, hand_over};
use self::notice::TellError;
use self::settle::{Place, REFUSED, SettleError, Settlement};
use self::watch::Watch;

/// The service.
pub(crate) struct Pickup {
    config: Arc<RwLock<SmtpConfig>>,
    /// `true`: takes no more files.
    draining: tokio_watch::Sender<bool>,
    work: JoinHandle<()>,
    /// Until the drain.
    ended: Option<Ended>,
}

impl Pickup {
    /// Makes the directory, and begins with existing files. Errors are logged and retried: other mail is still
    /// received.
    pub async fn begin(config: &Config, receiver: Receiver) -> Self {
        let path = config.pickup.directory.clone();
        let shared = Arc::new(RwLock::new(config.local_session()));
        let (alive, ended) = Ended::new();
        let (draining, is_draining) = tokio_watch::channel(false);
        let worker = Worker { path, receiver, config: Arc::clone(&shared), is_draining };
        let opened = worker.open().await;
        let work = tokio::spawn(worker.run(opened, alive));
        Self { config: shared, draining, work, ended: Some(ended) }
    }
}

impl Service for Pickup {
    fn name(&self) -> &'static str {
        "pickup"
    }

    fn on_failure(&self) -> OnFailure {
        OnFailure::GoOn("mail of programs on this machine waits in the pickup directory")
    }

    fn reload(&mut self, config: &Config, _: &Arc<Accounts>) -> Vec<&'static str> {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config.local_session();
        Vec::new()
    }

    /// Messages that are being received are finished.
    fn drain(&mut self, deadline: Instant) -> Ending<'_> {
        // Fails if the work has ended.
        let _ = self.draining.send(true);
        let ended = self.ended.take();
        Box::pin(async move {
            let Some(ended) = ended else { return Ok(()) };
            ended
                .by(deadline)
                .await
                .then_some(())
                .ok_or(Unfinished("a file of the pickup directory was not finished; the next start takes it again"))
        })
    }

    fn stop(self: Box<Self>, _: Instant) -> Ending<'static> {
        self.work.abort();
        Box::pin(std::future::ready(Ok(())))
    }

    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ended.as_mut().map_or(Poll::Pending, |ended| ended.poll(cx))
    }
}

/// State of the worker task.
struct Worker {
    path: PathBuf,
    receiver: Receiver,
    config: Arc<RwLock<SmtpConfig>>,
    is_draining: tokio_watch::Receiver<bool>,
}

/// Outcome of an attempt at a file.
enum Attempt {
    /// The file is finished.
    Done,
    /// More work at once: recipients for another transaction. Contains the refused recipients so far.
    Retry(Refused),
    /// The work cannot continue now. If the message is done, its file still has to be settled this way.
    Later(Option<Settlement>),
}

impl Worker {
    async fn open(&self) -> std::io::Result<(Arc<Place>, Watch)> {
        let path = self.path.clone();
        let opened = spawn_blocking(move || Ok((Place::open(&path)?, Watch::new(&path)?))).await;
        opened.unwrap_or_else(|error| Err(error.into()))
    }

    async fn run(mut self, mut opened: std::io::Result<(Arc<Place>, Watch)>, alive: Alive) {
        let _alive = alive;
        let mut told = false;
        while !self.is_draining() {
            match opened {
                Ok((place, watch)) => {
                    told = false;
                    self.work(&place, watch).await;
                }
                Err(error) => {
                    let dir = self.path.display().to_string();
                    let error = error.to_string();
                    if !std::mem::replace(&mut told, true) {
                        tracing::error!(dir, error, "no mail can be taken from the pickup directory; trying again");
                    }
                    tokio::select! {
                        () = sleep(LOOK_EVERY) => {}
                        () = drain(&mut self.is_draining) => {}
                    }
                }
            }
            opened = self.open().await;
        }
    }

    /// Runs until a drain, or until the directory is changed.
    async fn work(&mut self, place: &Arc<Place>, mut watch: Watch) {
        let mut files = Files::default();
        let mut session = 0;
        let mut attempts = JoinSet::new();
        let mut tidied: Option<Instant> = None;
        let mut look_at = Instant::now();
        let mut wants_look = true;
        loop {
            let draining = self.is_draining() || watch.is_gone();
            if draining && attempts.is_empty() {
                return;
            }
            while !draining && attempts.len() < AT_ONCE_MAX {
                let Some((name, unsettled, refused)) = files.take() else { break };
                session += 1;
                attempts.spawn(self.attempt(Arc::clone(place), name, unsettled, refused, session));
            }
            if !draining && wants_look && files.has_none_queued() {
                wants_look = self.look(place, &mut files).await;
                look_at = Instant::now() + LOOK_EVERY;
                if tidied.is_none_or(|tidied| tidied.elapsed() >= TIDY_EVERY) {
                    tidied = Some(Instant::now());
                    self.tidy(place).await;
                }
                continue;
            }
            let wake_at = wake_at(files.due(), look_at, wants_look);
            tokio::select! {
                Some(ended) = attempts.join_next() => match ended {
                    // Asked once the name is forgotten: from here on, an event about a new file of this name finds it.
                    Ok((name, Attempt::Done)) => {
                        files.forget(&name);
                        if !wants_look {
                            self.enter(place, &mut files, vec![name]).await;
                        }
                    }
                    Ok((name, Attempt::Retry(refused))) => files.again(name, refused),
                    Ok((name, Attempt::Later(settlement))) => files.later(name, settlement, Instant::now()),
                    // A panic, which costs the file its place in the line until the next start.
                    Err(error) => tracing::error!(error = error.to_string(), "a task for a file of the pickup directory failed, which is a bug: the file waits for the next start"),
                },
                came = watch.changed(), if !draining => {
                    wants_look |= came.more;
                    // What comes is not to put off a look that waits for the queue to become empty, and finds it, too.
                    if !wants_look {
                        self.enter(place, &mut files, came.names).await;
                    }
                }
                () = sleep_until(wake_at.unwrap_or(look_at)), if !draining && wake_at.is_some() => {
                    files.wake(Instant::now());
                    wants_look |= Instant::now() >= look_at;
                }
                () = drain(&mut self.is_draining), if !draining => {}
            }
        }
    }

    /// True if no more files are taken, or the service has ended.
    fn is_draining(&self) -> bool {
        *self.is_draining.borrow() || self.is_draining.has_changed().is_err()
    }

    /// Queues new files among these. Cheap, while a scan reads the whole directory.
    async fn enter(&self, place: &Arc<Place>, files: &mut Files, mut names: Vec<OsString>) {
        names.retain(|name| !files.is_known(name));
        let place = Arc::clone(place);
        let found = spawn_blocking(move || {
            let owned = |name: OsString| Some(Found { uid: place.directory.owner(&name)?, name });
            names.into_iter().filter_map(owned).collect()
        });
        // After a panic the next look finds them.
        files.add(found.await.unwrap_or_default());
    }

    /// Queues new files. True if there are more.
    async fn look(&self, place: &Arc<Place>, files: &mut Files) -> bool {
        let place = Arc::clone(place);
        let mut look = files.look();
        let room = files.room();
        let found = spawn_blocking(move || {
            place.directory.files(room, |file| look.choose(file.file_name(), || Some(file.metadata().ok()?.uid())))
        });
        match found.await.unwrap_or_else(|error| Err(error.into())) {
            Ok((found, more)) => {
                files.add(found);
                more && files.room() > 0
            }
            Err(error) => {
                tracing::warn!(dir = %self.path.display(), error = error.to_string(), "cannot read the pickup directory");
                false
            }
        }
    }

    async fn tidy(&self, place: &Arc<Place>) {
        let place = Arc::clone(place);
        let removed = spawn_blocking(move || place.directory.remove_unfinished(SystemTime::now())).await;
        if let Ok(Ok(removed @ 1..)) = removed {
            tracing::info!(removed, "removed unfinished files from the pickup directory");
        }
    }

    /// Attempts one file.
    fn attempt(
        &self,
        place: Arc<Place>,
        name: OsString,
        unsettled: Option<Settlement>,
        refused: Refused,
        session: u64,
    ) -> impl Future<Output = (OsString, Attempt)> + use<> {
        let receiver = self.receiver.clone();
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        async move {
            let (settlement, again) = match unsettled {
                Some(settlement) => (settlement, None),
                None => receive(&receiver, config, &place, &name, session, refused).await,
            };
            if matches!(settlement, Settlement::Keep) {
                return (name, Attempt::Later(None));
            }
            let rest_is_left = matches!(&settlement, Settlement::Split { rest, .. } if !rest.is_empty());
            match (settle(&place, &name, settlement).await, again) {
                (Ok(()), Some(refused)) => (name, Attempt::Retry(refused)),
                (Ok(()), None) if rest_is_left => (name, Attempt::Later(None)),
                (Ok(()), None) => (name, Attempt::Done),
                (Err(settlement), _) => (name, Attempt::Later(Some(settlement))),
            }
        }
    }
}

/// Time of the next work without an event. A pending scan waits for an empty queue, not for a time.
fn wake_at(due: Option<Instant>, look_at: Instant, wants_look: bool) -> Option<Instant> {
    let look_at = Some(look_at).filter(|_| !wants_look);
    due.into_iter().chain(look_at).min()
}

/// Waits for the drain.
async fn drain(is_draining: &mut tokio_watch::Receiver<bool>) {
    // Fails if the service is gone.
    let _ = is_draining.wait_for(|draining| *draining).await;
}

/// Reads a file and passes its message to the receiver, for recipients outside `refused`. Returns the next step for the
/// file. If it has more recipients than one transaction takes, also returns those refused so far. One notice reports
/// all of them after the last transaction. They stay in the file until then, so they are refused once more after a
/// restart.
async fn receive(
    receiver: &Receiver,
    config: SmtpConfig,
    place: &Arc<Place>,
    name: &OsStr,
    session: u64,
    refused: Refused,
) -> (Settlement, Option<Refused>) {
    let within = Arc::clone(place);
    let own = name.to_owned();
    let opened = spawn_blocking(move || PickupMessage::open(&within.directory, &own)).await;
    let opened = opened.unwrap_or_else(|error| Err(PickupReadError::Io(error.into())));
    let uid = opened.as_ref().ok().map(PickupMessage::uid);
    let handed_over = match opened {
        Ok(message) => {
            let recipients = not_among(&refused, &message.head().recipients);
            if recipients.is_empty() {
                Ok(Fates::default())
            } else {
                hand_over(receiver, config, session, message, recipients).await
            }
        }
        Err(error) => Err(error.into()),
    };
    let file = name.to_string_lossy().into_owned();
    let handed_over = match handed_over {
        Ok(mut fates) => {
            let is_progress = fates.accepted + fates.refused.len() > 0;
            let now = std::mem::replace(&mut fates.refused, refused);
            fates.refused.extend(now);
            // The receiver has logged each reply of its own.
            if let (Some(reply), Some(recorder)) = (&fates.not_asked, receiver.events()) {
                events::pickup(recorder, &file, uid, &reply.to_string());
            }
            if fates.later.is_empty() && !fates.at_once.is_empty() && is_progress {
                return rest_of(fates);
            }
            Ok(fates)
        }
        failed => failed,
    };
    let told = match &handed_over {
        Ok(fates) => notice::tell(receiver, place, name, &fates.refused).await,
        Err(_) => Ok(()),
    };
    let handed_over = match told {
        // Nobody has read the message before if no recipient was accepted.
        Err(TellError::Damaged(error)) => Err(error.into()),
        Err(TellError::NotNow(why)) => handed_over.map(|fates| (fates, Some(why))),
        Ok(()) => handed_over.map(|fates| (fates, None)),
    };
    (settlement_of(receiver, &file, uid, handed_over), None)
}

/// Logs the outcome of a message, and decides the next step for its file. Takes the reason, if the sender cannot be
/// notified of a refusal yet.
fn settlement_of(
    receiver: &Receiver,
    file: &str,
    uid: Option<u32>,
    handed_over: Result<(Fates, Option<String>), HandoverError>,
) -> Settlement {
    match handed_over {
        Ok((mut fates, not_told)) => {
            if let Some(error) = not_told {
                tracing::warn!(file, uid, error, "cannot notify the sender of a refusal yet; retrying");
                // They are refused once more, and the sender is told then.
                fates.later.append(&mut fates.refused);
            }
            if let Some((rcpt, reply)) = fates.refused.first() {
                let refused = fates.refused.len();
                let first = rcpt.forward_path.to_string();
                let reply = reply.to_string();
                tracing::warn!(file, uid, refused, first, reply, "mail of a local program is refused: see {REFUSED}/");
            }
            if let Some((rcpt, reply)) = fates.later.first() {
                let first = rcpt.forward_path.to_string();
                let reply = reply.to_string();
                tracing::debug!(file, uid, waiting = fates.later.len(), first, reply, "mail of a local program waits");
            }
            Settlement::of(fates)
        }
        Err(HandoverError::Read(PickupReadError::Gone)) => Settlement::Remove,
        Err(HandoverError::Read(error)) if error.is_final() => {
            let why = error.to_string();
            tracing::warn!(file, uid, why, "a file of the pickup directory cannot be read and is moved to {REFUSED}/");
            if let Some(recorder) = receiver.events() {
                events::pickup(recorder, file, uid, &why);
            }
            Settlement::Refuse
        }
        Err(error) => {
            tracing::info!(file, uid, why = error.to_string(), "a file of the pickup directory is deferred; retrying");
            Settlement::Keep
        }
    }
}

/// The recipients that are not refused already.
fn not_among(refused: &Refused, all: &[RcptTo]) -> Vec<RcptTo> {
    let refused: HashSet<&ForwardPath> = refused.iter().map(|(rcpt, _)| &rcpt.forward_path).collect();
    all.iter().filter(|rcpt| !refused.contains(&rcpt.forward_path)).cloned().collect()
}

/// Keeps the file for later transactions' recipients, and for refused ones to be reported after them.
fn rest_of(fates: Fates) -> (Settlement, Option<Refused>) {
    let mut rest = fates.at_once;
    rest.extend(fates.refused.iter().map(|(rcpt, _)| rcpt.clone()));
    (Settlement::Split { refused: Vec::new(), rest }, Some(fates.refused))
}

/// Settles the file, or returns the settlement for a retry.
async fn settle(place: &Arc<Place>, name: &OsStr, settlement: Settlement) -> Result<(), Settlement> {
    let within = Arc::clone(place);
    let own = name.to_owned();
    let wanted = settlement.clone();
    let settled = spawn_blocking(move || within.settle(&own, &wanted)).await;
    let settled = settled.unwrap_or_else(|error| Err(SettleError::Io(error.into())));
    settled.map_err(|error| {
        let file = name.to_string_lossy().into_owned();
        let error = error.to_string();
        tracing::error!(file, error, "a processed file of the pickup directory cannot be removed; retrying");
        settlement
    })
}

/// Messages that are being received.
const AT_ONCE_MAX: usize = 16;
/// Interval between scans for files without an event.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const TIDY_EVERY: Duration = Duration::from_secs(3600);
