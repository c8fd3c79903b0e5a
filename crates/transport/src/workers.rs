//! The scheduler and the workers.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use posthaste_directory::TransportKind;

use crate::blocking::blocking;
use crate::body::failed;
use crate::consumer::Shared;
use crate::entry::{TargetKey, TransportEntry};
use crate::lmtp::Session;
use crate::mbox::{Append, AppendError};
use crate::work::{Outcome, Work};

/// Starts workers for all permitted work, until the end.
pub(crate) async fn schedule(shared: Arc<Shared>) {
    let mut looked = Instant::now();
    loop {
        let now = Instant::now();
        if now.saturating_duration_since(looked) >= LOOK_EVERY {
            looked = now;
            shared.look_at_records();
        }
        let mut next = None;
        // Not while the queues are locked: it may tell of poison.
        if shared.may_begin() && !shared.is_ending.load(Ordering::Acquire) {
            let mut queues = shared.queues();
            queues.wake(now);
            while shared.recorder.budget.may_begin()
                && let Some((worker, work)) = queues.take(now)
            {
                start(shared.clone(), worker, work);
            }
            next = queues.next_due().map(|due| due.saturating_duration_since(now));
            if queues.is_any_ready() {
                // When a worker counts as slow, another may begin.
                next = Some(next.unwrap_or(BUSY_PAUSE).min(BUSY_PAUSE));
            }
        }
        // Poison ends what is under way.
        let has_more = {
            let queues = shared.queues();
            queues.workers() > 0 || !queues.holds_to_record.is_empty()
        };
        if shared.recorder.budget.needs_look() || has_more {
            next = Some(next.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
        }
        shared.advance();
        shared.idle.notify_all();
        let _ = tokio::time::timeout(next.unwrap_or(IDLE_PAUSE), shared.wake.notified()).await;
    }
}

/// Starts a worker. The only place that does, so that each end is handled: a panic fails an attempt, but does not
/// affect the transport.
fn start(shared: Arc<Shared>, worker: u64, work: Work) {
    tokio::spawn(async move {
        let panicked = caught(run(&shared, worker, work)).await.err();
        shared.worker_ended(worker, panicked.as_deref());
    });
}

/// The result of a future, or the text of its panic.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = std::pin::pin!(future);
    let poll = |cx: &mut Context<'_>| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(text_of(&*panic))),
    };
    std::future::poll_fn(poll).await
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it does not say why").to_owned()
}

/// One worker: a message, then others for the same LMTP server over the same connection.
async fn run(shared: &Arc<Shared>, worker: u64, mut work: Work) {
    let transport = work.transport.text().clone();
    let memory = shared.lmtp_memory.clone();
    let config = &shared.config;
    let mut session = Session::new(&config.host_name, config.lmtp_time, memory, shared.lmtp_memory_kib);
    loop {
        let outcomes = deliver(shared, &work, &mut session).await;
        shared.finish(worker, &work, outcomes);
        let more = || shared.queues().take_more(worker, &transport, Instant::now());
        match (!shared.is_ending.load(Ordering::Acquire) && shared.may_begin()).then(more).flatten() {
            Some(more) => work = more,
            None => break,
        }
    }
    shared.unless_poisoned(session.end()).await;
}

/// Delivers one message to all targets of the work: several only at an LMTP server.
async fn deliver(shared: &Arc<Shared>, work: &Work, session: &mut Session) -> Vec<Outcome> {
    let reader = shared.reader(work);
    let Some(part) = work.targets.first() else { return Vec::new() };
    let outcome = match work.transport.kind() {
        TransportKind::Program(arguments) => {
            let patience = shared.config.program_time;
            crate::program::run(arguments, &work.deliver, &part.target, reader, patience).await
        }
        TransportKind::File(path) => {
            let body = reader.clone();
            let shared = shared.clone();
            let path = path.clone();
            let deliver = work.deliver.clone();
            let part = part.clone();
            let key: TargetKey = (work.body, part.number);
            let append = move || {
                let append = Append {
                    path: &path,
                    deliver: &deliver,
                    target: &part.target,
                    reader: &reader,
                    begun: part.begun,
                    lock_time: shared.config.lock_time,
                };
                append.run(&mut |file_bytes| shared.append_durably(&TransportEntry::Begun { key, file_bytes }))
            };
            match blocking(append).await {
                Ok(()) => Outcome::Delivered,
                Err(AppendError::Body(error)) => blocking(move || failed(&body, error, "")).await,
                Err(AppendError::File(error)) => Outcome::Unavailable(error.into()),
            }
        }
        _ => {
            let outcomes = shared.unless_poisoned(session.deliver(work, reader)).await;
            return outcomes.unwrap_or_else(|| {
                session.cut();
                vec![Outcome::Unavailable("the spool takes no records".into()); work.targets.len()]
            });
        }
    };
    vec![outcome]
}

/// Time until a waiting worker is checked again.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Interval of checks that deliveries are recorded.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const IDLE_PAUSE: Duration = Duration::from_secs(60);
