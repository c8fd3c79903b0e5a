//! All transports: opening, queries and end.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Instant, SystemTime};

use posthaste_consumer::{AttachedStream, ConsumerRuntime, NewRuntime, StreamHandle, StreamOpenError};
use posthaste_spool::{Entry, Lsn, Spool};
use tokio::sync::{Notify, Semaphore};

use crate::config::Config;
use crate::consumer::Shared;
use crate::entry::{Deliver, Target, TargetKey, TransportEntry};
use crate::events::{TransportEvent, TransportEvents, unix_secs};
use crate::queues::Queues;
use crate::record::{DeliveryRecorder, KEYS_MAX};
use crate::refusals::tell_refusals;
use crate::waiting::{TransportWaits, WaitingTarget};
use crate::workers::schedule;

/// The name of the stream of all transports.
pub const STREAM: &str = "transports";

/// Delivery to programs, files and LMTP servers, open. Clones share it.
#[derive(Clone)]
pub struct Transports(pub(crate) Arc<Handle>);

impl std::fmt::Debug for Transports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transports").field("config", &self.0.shared.config).finish_non_exhaustive()
    }
}

/// The last handle ends the delivery.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    attached: AttachedStream,
    /// The runtime, whose main task is the scheduler.
    pub(crate) runtime: ConsumerRuntime,
}

/// The envelope of a message for transports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportMessage {
    /// The sender's address; empty for none.
    pub sender: Arc<str>,
    /// True if it came with BODY=8BITMIME.
    pub is_8bit: bool,
    /// True if its header needs SMTPUTF8.
    pub smtputf8: bool,
    /// Targets of the message: 1 to 65,535.
    pub targets: Vec<Target>,
}

/// The findings of an opening.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TransportOpenReport {
    /// Messages whose delivery was not recorded.
    pub messages: usize,
    /// Unreadable batches.
    pub damaged: Vec<Lsn>,
    /// Batches that a later version has written. They stay in the spool.
    pub unknown: Vec<Lsn>,
    /// Targets that are now held, as records of deliveries are lost.
    pub held: usize,
}

/// A transport's queue is full.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("too much mail waits for transports: {bytes} bytes for {transport} itself")]
pub struct TransportFull {
    /// The transport.
    pub transport: Arc<str>,
    /// Bytes that wait for the transport.
    pub bytes: u64,
}

/// Figures since opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransportStats {
    /// Targets that got their message.
    pub delivered: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Messages that wait now.
    pub messages: usize,
    /// Bytes that wait now.
    pub bytes: u64,
    /// Transports with waiting messages.
    pub transports: usize,
}

impl Transports {
    /// Registers the stream and delivers everything in it whose delivery is not recorded.
    ///
    /// # Errors
    /// See [`StreamOpenError`].
    pub fn open(
        spool: Arc<dyn Spool>,
        config: Config,
        events: TransportEvents,
    ) -> Result<(Self, TransportOpenReport), StreamOpenError> {
        let mut queues = Queues::new(config.clone());
        let mut replayed = StreamHandle::register(spool, STREAM)?.replay(&mut queues)?;
        queues.replayed();
        let messages = queues.messages();
        let damaged = std::mem::take(&mut replayed.damaged);
        let unknown = queues.unknown().to_vec();
        let held = queues.holds_to_record.len();
        let report = TransportOpenReport { messages, damaged, unknown, held };
        let runtime = NewRuntime::new("transport", BLOCKING_THREADS_MAX)
            .map_err(StreamOpenError::io("threads for transports"))?;
        let lmtp_memory_kib =
            u32::try_from(config.lmtp_bytes_max / 1024).unwrap_or(u32::MAX >> 3).clamp(1, u32::MAX >> 3);
        let wake = Arc::<Notify>::default();
        let recorder = Arc::new(DeliveryRecorder::new(replayed.stream().spool(), &config, &events, wake.clone()));
        let shared = Arc::new(Shared {
            stream: replayed.stream().clone(),
            config,
            events,
            queues: Mutex::new(queues),
            wake,
            notices_wanted: Notify::new(),
            idle: Condvar::new(),
            wanted: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            recorder,
            lmtp_memory: Arc::new(Semaphore::new(lmtp_memory_kib as usize)),
            lmtp_memory_kib,
            delivered: AtomicU64::new(0),
            failed_attempts: AtomicU64::new(0),
        });
        let attached = replayed.attach(shared.clone())?;
        shared.record_holds();
        let scheduled = schedule(shared.clone());
        let told = tell_refusals(shared.clone());
        let runtime = runtime.run(async move {
            tokio::join!(scheduled, told);
        });
        Ok((Transports(Arc::new(Handle { shared, attached, runtime })), report))
    }

    /// The entry of a message for the batch that keeps it.
    pub fn entry(&self, message: TransportMessage) -> Entry {
        let TransportMessage { sender, is_8bit, smtputf8, targets } = message;
        let secs = unix_secs(SystemTime::now());
        let targets = (0..).zip(targets).collect();
        let deliver = Deliver { secs, sender, is_8bit, smtputf8, body: None, targets };
        self.0.shared.stream.entry_of_body(TransportEntry::Deliver(deliver).encode())
    }

    /// Checks that not too much mail waits for a transport, or for all of them (SMTP 452 4.2.2).
    ///
    /// # Errors
    /// Too much mail waits.
    pub fn check_transport(&self, transport: &Arc<str>) -> Result<(), TransportFull> {
        let queues = self.0.shared.queues();
        let config = &self.0.shared.config;
        let bytes = queues.bytes_of(transport);
        if bytes > config.pending_bytes_max || bytes > 0 && queues.bytes() > config.pending_bytes_max_all {
            Err(TransportFull { transport: transport.clone(), bytes })
        } else {
            Ok(())
        }
    }

    /// Passes waiting targets to `show`, in message order, until it breaks.
    pub fn waiting(&self, show: &mut dyn FnMut(WaitingTarget) -> ControlFlow<()>) {
        // What is shown may take long to be read.
        let all = self.queues().waiting(Instant::now());
        let _ = all.into_iter().try_for_each(show);
    }

    /// Releases targets that are held because their delivery is uncertain, and for which `is_meant` is true; returns
    /// their number. Durable on return. Blocks.
    ///
    /// # Errors
    /// The spool accepts nothing. Some may be released.
    pub fn release(&self, is_meant: &dyn Fn(&WaitingTarget) -> bool) -> Result<usize, String> {
        let held = self.queues().waiting(Instant::now());
        let held = held.iter().filter(|target| target.waits == TransportWaits::Uncertain && is_meant(target));
        let keys: Vec<TargetKey> = held.map(|target| (Lsn::new(target.id), target.number)).collect();
        for some in keys.chunks(KEYS_MAX) {
            self.0.shared.append_command(&TransportEntry::Released(some.to_vec()))?;
        }
        Ok(keys.len())
    }

    /// Drops held targets for which `is_meant` is true; returns their number. They get no message; only the observer is
    /// notified, with the reason `why`. Durable on return. Blocks.
    ///
    /// # Errors
    /// The spool accepts nothing. They are dropped as soon as it does; an earlier restart restores them.
    pub fn drop_held(&self, is_meant: &dyn Fn(&WaitingTarget) -> bool, why: &Arc<str>) -> Result<usize, String> {
        let shared = &self.0.shared;
        let dropped = shared.queues().drop_held(Instant::now(), is_meant);
        let keys: Vec<TargetKey> = dropped.iter().map(|target| (target.message, target.number)).collect();
        if let Some(observer) = &shared.config.observer {
            dropped.into_iter().for_each(|target| observer.given_up(target, why.clone()));
        }
        for (at, some) in keys.chunks(KEYS_MAX).enumerate() {
            if let Err(error) = shared.append_command(&TransportEntry::Done(some.to_vec())) {
                shared.record_done(keys[at * KEYS_MAX..].to_vec(), Vec::new());
                return Err(error);
            }
        }
        Ok(keys.len())
    }

    pub(crate) fn queues(&self) -> std::sync::MutexGuard<'_, Queues> {
        self.0.shared.queues()
    }

    /// Figures since opening.
    pub fn stats(&self) -> TransportStats {
        let shared = &self.0.shared;
        let queues = shared.queues();
        TransportStats {
            delivered: shared.delivered.load(Ordering::Relaxed),
            failed_attempts: shared.failed_attempts.load(Ordering::Relaxed),
            messages: queues.messages(),
            bytes: queues.bytes(),
            transports: queues.transports(),
        }
    }
}

impl Handle {
    pub(crate) fn end_by(&self, deadline: Instant) {
        let Some(ending) = self.runtime.begin_end() else { return };
        let shared = &self.shared;
        shared.is_ending.store(true, Ordering::Release);
        shared.wake.notify_one();
        shared.wait_until(deadline, |queues| queues.workers() == 0);
        shared.look_at_records();
        let budget = &shared.recorder.budget;
        let unrecorded = budget.wait_recorded(deadline, || shared.append_refused());
        // Poison has been told.
        if unrecorded > 0 && !budget.is_closed() {
            let why = "the spool has not taken the records before the end".into();
            (shared.events.0)(TransportEvent::NotRecorded { unrecorded, why, is_final: true });
        }
        self.attached.detach();
        shared.advance();
        // What still hangs is dropped, and with it its program.
        ending.shut_down();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end_by(Instant::now() + self.shared.config.shutdown_patience);
    }
}

/// Threads for files and for reading bodies: the maximum number of workers.
const BLOCKING_THREADS_MAX: usize = 256;

#[cfg(test)]
impl Transports {
    pub(crate) fn want(&self, through: Lsn) {
        posthaste_spool::Consumer::advance_wanted(&*self.0.shared, through);
    }
}
