//! The lifecycle of every part of the server: start, reload, drain, stop with a deadline.
//!
//! A new part is a [`Service`] and one [`Services::add`] in `server.rs`. Only the log is none: it starts before the
//! first service and ends after the last, as all of them write to it.

use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use posthaste_directory::Directory;
use posthaste_net::Listeners;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use posthaste_config::Config;

/// A part of the server. Its constructor starts it.
pub(crate) trait Service: Send + Sync {
    /// Name in log lines and errors.
    fn name(&self) -> &'static str;

    /// The server's reaction if this service ends before it is stopped.
    fn on_failure(&self) -> OnFailure;

    /// Applies `config` and its `directory`, as far as a running service can. Keys that need a restart have their old
    /// value in it. Returns parts that stay unchanged because the new value is unusable; the log says why.
    fn reload(&mut self, config: &Config, directory: &Arc<Directory>) -> Vec<&'static str> {
        let _ = (config, directory);
        Vec::new()
    }

    /// Accepts nothing new from clients and finishes open work, by `deadline`.
    fn drain(&mut self, deadline: Instant) -> Ending<'_> {
        let _ = deadline;
        Box::pin(ready(Ok(())))
    }

    /// Finishes its own work by `deadline`, and ends.
    fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static>;

    /// Ready if the service has ended before it was stopped, which is a bug. Must not be called again after that.
    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// Notified when the process must end before the server has started. A process starts one server.
pub(crate) static START_ENDS: Notify = Notify::const_new();

/// A drain or stop in progress.
pub(crate) type Ending<'a> = Pin<Box<dyn Future<Output = Result<(), Unfinished>> + Send + 'a>>;

/// Ends something on a thread that may block.
pub(crate) fn end_blocking(end: impl FnOnce() + Send + 'static) -> Ending<'static> {
    Box::pin(async move {
        // If the runtime is going down, dropping the last handle does the same.
        let _ = spawn_blocking(end).await;
        Ok(())
    })
}

/// Drains listeners that were taken out of their service, so that they are drained once.
pub(crate) fn drain_listeners(
    listeners: Option<Listeners>,
    deadline: Instant,
    unfinished: &'static str,
) -> Ending<'static> {
    Box::pin(async move {
        let Some(listeners) = listeners else { return Ok(()) };
        let grace = deadline.saturating_duration_since(Instant::now());
        listeners.shutdown(grace).await.then_some(()).ok_or(Unfinished(unfinished))
    })
}

/// Work that a service had not finished at its deadline, as a sentence without a full stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unfinished(pub &'static str);

/// The server's reaction when a service ends before it is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// The server stops and reports an error: without the service it could not receive or keep mail.
    Stop,
    /// The server continues. The log names the function that is missing until a restart.
    GoOn(&'static str),
}

/// The running services. Each may use earlier ones.
#[derive(Default)]
pub(crate) struct Services(Vec<Box<dyn Service>>);

impl Services {
    /// Adds a service that has started. It stops before all others.
    pub fn add(&mut self, service: impl Service + 'static) {
        self.0.push(Box::new(service));
    }

    /// Adds a service that has started. It stops after all others.
    pub fn add_stopping_last(&mut self, service: impl Service + 'static) {
        self.0.insert(0, Box::new(service));
    }

    /// Puts `config` in force everywhere.
    pub fn reload(&mut self, config: &Config, directory: &Arc<Directory>) -> Vec<&'static str> {
        self.0.iter_mut().flat_map(|service| service.reload(config, directory)).collect()
    }

    /// Waits for the end of an essential service, and returns its name. Ends of others are logged. Dropping the future
    /// loses nothing.
    pub async fn failed(&mut self) -> &'static str {
        loop {
            let failed = poll_fn(|cx| {
                let failed = self.0.iter_mut().position(|service| service.poll_failed(cx).is_ready());
                failed.map_or(Poll::Pending, Poll::Ready)
            });
            let failed = failed.await;
            let service = self.0.remove(failed);
            let name = service.name();
            match service.on_failure() {
                OnFailure::Stop => return name,
                OnFailure::GoOn(without) => {
                    tracing::error!(service = name, "a service has ended by itself: {without}; restart the server");
                }
            }
        }
    }

    /// Drains all services at once, then stops them in reverse order. Each of the two steps has one deadline, `grace` from
    /// its beginning, which the services share; a service that is late in its stop has [`LEAST`]. A service that does not
    /// come back is abandoned [`OVERTIME`] later. Returns whether all were drained in time.
    pub async fn shutdown(mut self, grace: Duration) -> bool {
        let mut in_time = true;
        let deadline = Instant::now() + grace;
        let mut drains: Vec<_> = (self.0.iter_mut().rev())
            .map(|service| {
                let name = service.name();
                Box::pin(by(deadline, name, service.drain(deadline)))
            })
            .collect();
        // All at once: a client of one service that does not end must not take the time of the others.
        poll_fn(|cx| {
            drains.retain_mut(|drain| match drain.as_mut().poll(cx) {
                Poll::Ready(is_drained) => {
                    in_time &= is_drained;
                    false
                }
                Poll::Pending => true,
            });
            if drains.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(drains);
        self.stop(grace).await;
        in_time
    }

    /// Stops all services in reverse order, without a drain: no client was served yet.
    pub async fn stop(mut self, grace: Duration) {
        let common = Instant::now() + grace;
        while let Some(service) = self.0.pop() {
            let deadline = common.max(Instant::now() + LEAST);
            by(deadline, service.name(), service.stop(deadline)).await;
        }
    }
}

/// True if all finished by the deadline; the log names the others.
async fn by(deadline: Instant, service: &'static str, ending: Ending<'_>) -> bool {
    let ended = timeout_at(deadline + OVERTIME, ending).await;
    match ended.unwrap_or(Err(Unfinished("it does not answer and is abandoned"))) {
        Ok(()) => true,
        Err(Unfinished(what)) => {
            tracing::warn!(service, unfinished = what, "a service did not finish in time");
            false
        }
    }
}

/// Held by the thread of a service: dropped when the thread ends, even by a panic.
pub(crate) type Alive = oneshot::Sender<()>;

/// Receiver of [`Alive`]: learns of the thread's end.
#[derive(Debug)]
pub(crate) struct Ended(oneshot::Receiver<()>);

impl Ended {
    pub fn new() -> (Alive, Self) {
        let (alive, ended) = oneshot::channel();
        (alive, Self(ended))
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx).map(drop)
    }

    /// True if the thread has ended by the deadline.
    pub async fn by(self, deadline: Instant) -> bool {
        timeout_at(deadline, self.0).await.is_ok()
    }
}

/// Requests a drain like a service manager, for a token with this name. It does not count as a signal: the manager's
/// own, which follows, must not cut the drain short.
pub(crate) fn request_drain(token: &str) {
    tracing::info!(token, "an HTTP request has started the drain");
    DRAIN.notify_one();
}

/// Waits for a [requested](request_drain) drain.
pub(crate) async fn drain_requested() {
    DRAIN.notified().await;
}

/// A process has one server, as it has one set of signals.
static DRAIN: Notify = Notify::const_new();

/// Minimum time for the stop of each service.
const LEAST: Duration = Duration::from_secs(1);
/// Time from a service's deadline until it is abandoned. Sessions have a second of it for their last reply, and the last
/// checkpoint too.
const OVERTIME: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Notes what is done to it.
    struct Noted {
        name: &'static str,
        on_failure: OnFailure,
        hangs: bool,
        ended: Ended,
        notes: Notes,
    }

    type Notes = Arc<Mutex<Vec<(&'static str, &'static str, Instant)>>>;

    impl Noted {
        fn note(&self, act: &'static str, deadline: Instant) -> Ending<'static> {
            self.notes.lock().unwrap().push((self.name, act, deadline));
            let hangs = self.hangs;
            Box::pin(async move { if hangs { std::future::pending().await } else { Ok(()) } })
        }
    }

    impl Service for Noted {
        fn name(&self) -> &'static str {
            self.name
        }
        fn on_failure(&self) -> OnFailure {
            self.on_failure
        }
        fn drain(&mut self, deadline: Instant) -> Ending<'_> {
            self.note("drain", deadline)
        }
        fn stop(self: Box<Self>, deadline: Instant) -> Ending<'static> {
            self.note("stop", deadline)
        }
        fn poll_failed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
            self.ended.poll(cx)
        }
    }

    fn noted(name: &'static str, on_failure: OnFailure, notes: &Notes) -> (Alive, Noted) {
        let (alive, ended) = Ended::new();
        (alive, Noted { name, on_failure, hangs: false, ended, notes: notes.clone() })
    }

    #[tokio::test(start_paused = true)]
    async fn services_drain_at_once_and_then_stop_in_reverse_order() {
        let (notes, mut services) = (Notes::default(), Services::default());
        let (_alive_first, mut first) = noted("first", OnFailure::Stop, &notes);
        let (_alive_second, second) = noted("second", OnFailure::Stop, &notes);
        let (_alive_last, last) = noted("last to stop", OnFailure::Stop, &notes);
        first.hangs = true;
        services.add(first);
        services.add(second);
        services.add_stopping_last(last);
        let begun = Instant::now();
        assert!(!services.shutdown(Duration::from_secs(5)).await, "one hangs, and is left");
        let drained = notes.lock().unwrap().iter().filter(|(_, act, _)| *act == "drain").count();
        assert_eq!(drained, 3);
        // Its drain and its stop, each to its deadline and the overtime.
        assert!(begun.elapsed() <= 2 * (Duration::from_secs(5) + OVERTIME));
        let notes = notes.lock().unwrap();
        let order: Vec<_> = notes.iter().map(|(name, act, _)| (*name, *act)).collect();
        let names = ["second", "first", "last to stop"];
        let expected: Vec<_> = ["drain", "stop"].iter().flat_map(|act| names.map(|name| (name, *act))).collect();
        assert_eq!(order, expected);
        let deadlines: Vec<Instant> = notes.iter().map(|(.., deadline)| *deadline).collect();
        assert!(deadlines[0] == deadlines[1] && deadlines[1] == deadlines[2]);
        assert!(deadlines[3] == deadlines[4]);
    }

    #[tokio::test]
    async fn a_panic_in_a_service_is_noticed_and_ends_a_needed_one() {
        let (notes, mut services) = (Notes::default(), Services::default());
        let (alive_extra, extra) = noted("extra", OnFailure::GoOn("something is missing"), &notes);
        let (alive_needed, needed) = noted("needed", OnFailure::Stop, &notes);
        let (_alive_other, other) = noted("other", OnFailure::Stop, &notes);
        services.add(extra);
        services.add(needed);
        services.add(other);
        let panics = move || {
            let _alive = alive_extra;
            panic!("this test wants a thread that panics");
        };
        std::thread::spawn(panics).join().unwrap_err();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(std::pin::pin!(services.failed()).poll(&mut cx).is_pending(), "the server goes on without it");
        assert_eq!(services.0.len(), 2);
        drop(alive_needed);
        assert_eq!(services.failed().await, "needed");
        services.shutdown(Duration::ZERO).await;
        assert!(notes.lock().unwrap().iter().all(|(name, ..)| *name == "other"), "only what runs is stopped");
    }
}
