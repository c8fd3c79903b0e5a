//! The tokio runtime of a consumer: its threads, and a task that must outlive the others.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use posthaste_watch::{StuckWorker, Watch, Watcher, Worker};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// A runtime of two threads with one main task.
#[derive(Debug)]
pub struct ConsumerRuntime {
    name: &'static str,
    runtime: Mutex<Option<Runtime>>,
    main: Mutex<JoinHandle<()>>,
    /// Probe tasks that detect stuck threads: one for async tasks, one for blocking calls.
    probes: [Worker; 2],
    watcher: Watcher,
}

/// A runtime whose main task has not started.
#[derive(Debug)]
pub struct NewRuntime {
    name: &'static str,
    runtime: Runtime,
    watch: Watch,
}

/// A runtime, until it is shut down.
#[derive(Debug)]
#[must_use = "it is shut down by `shut_down`"]
pub struct Ending {
    name: &'static str,
    runtime: Runtime,
}

impl NewRuntime {
    /// Starts the threads with this name. `blocking_threads_max`: limit of threads for blocking calls, which start on
    /// demand.
    ///
    /// # Errors
    /// Threads could not be started.
    pub fn new(name: &'static str, blocking_threads_max: usize) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(blocking_threads_max)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(NewRuntime { name, runtime, watch: Watch::default() })
    }

    /// Handle to spawn further tasks.
    pub fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Watch of its workers.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Begins the main task.
    pub fn run(self, main: impl Future<Output = ()> + Send + 'static) -> ConsumerRuntime {
        let NewRuntime { name, runtime, watch } = self;
        let main = Mutex::new(runtime.spawn(main));
        let probe = |steps| watch.worker(name, steps, THREADS_PATIENCE);
        let probes =
            [probe(&["", "waiting for one of the threads"]), probe(&["", "waiting for a thread for blocking calls"])];
        ConsumerRuntime { name, runtime: Mutex::new(Some(runtime)), main, probes, watcher: Watcher::of(watch) }
    }
}

impl ConsumerRuntime {
    /// Ready once the main task has ended or panicked. Must not be called again after that.
    pub fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut main = self.main.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *main).poll(cx).map(drop)
    }

    /// Checks which workers are stuck, and if threads run tasks. Call it every few seconds, on another thread.
    pub fn look(&self, now: Instant) -> Vec<StuckWorker> {
        if let Some(runtime) = &*self.runtime.lock().unwrap_or_else(PoisonError::into_inner) {
            let [tasks, blocking] = &self.probes;
            if tasks.pulse().is_idle() {
                let pulse = tasks.pulse().clone();
                pulse.step(1);
                runtime.spawn(async move { pulse.step(0) });
            }
            if blocking.pulse().is_idle() {
                let pulse = blocking.pulse().clone();
                pulse.step(1);
                runtime.spawn_blocking(move || pulse.step(0));
            }
        }
        self.watcher.look(now)
    }

    /// Begins the shutdown while tasks still run. `None` if another call has begun it.
    pub fn begin_end(&self) -> Option<Ending> {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Ending { name: self.name, runtime })
    }
}

impl Ending {
    /// Drops all tasks. Waits one second for blocked threads. A task may call it.
    pub fn shut_down(self) {
        let Ending { name, runtime } = self;
        // A runtime must not be shut down by a task, so a thread of its own does it.
        let shutdown = move || runtime.shutdown_timeout(PATIENCE);
        if let Ok(thread) = std::thread::Builder::new().name(format!("{name}-end")).spawn(shutdown) {
            let _ = thread.join();
        }
    }
}

const THREADS: usize = 2;
/// A thread that runs no task for this long is stuck.
const THREADS_PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Waker;

    use super::*;

    #[test]
    fn the_end_of_the_main_task_is_seen_also_if_it_panics() {
        for panics in [false, true] {
            let (end, ended) = tokio::sync::oneshot::channel::<()>();
            let main = async move {
                let _ = ended.await;
                assert!(!panics, "as the test wants it");
            };
            let runtime = NewRuntime::new("main", 1).unwrap().run(main);
            assert!(runtime.poll_ended(&mut Context::from_waker(Waker::noop())).is_pending());
            end.send(()).unwrap();
            let waiting = Builder::new_current_thread().build().unwrap();
            waiting.block_on(std::future::poll_fn(|cx| runtime.poll_ended(cx)));
        }
    }

    #[test]
    fn threads_that_take_no_task_are_found_and_told_of_when_they_do() {
        let runtime = NewRuntime::new("held", 1).unwrap();
        let handle = runtime.handle().clone();
        let runtime = runtime.run(std::future::pending());
        let begun = Instant::now();
        let look = |secs: u64| runtime.look(begun + Duration::from_secs(secs));
        let texts =
            |found: Vec<StuckWorker>| found.iter().map(|found| format!("{found} {:?}", found.what)).collect::<Vec<_>>();
        assert!(look(0).is_empty());
        // Each thread sits in a task that does not come back, and so does the one for blocking calls.
        let (tell, told) = mpsc::channel();
        let mut held = Vec::new();
        for is_blocking in [false, false, true] {
            let (release, released) = mpsc::channel::<()>();
            let tell = tell.clone();
            let hold = move || {
                tell.send(()).unwrap();
                let _ = released.recv();
            };
            if is_blocking {
                drop(handle.spawn_blocking(hold))
            } else {
                drop(handle.spawn(async move { hold() }))
            }
            told.recv().unwrap();
            held.push(release);
        }
        // Those of the first look may have been waiting since then.
        look(1);
        look(2);
        let found = texts(look(63));
        assert_eq!(found.len(), 2, "{found:?}");
        for expected in ["a thread for blocking calls", "one of the threads"] {
            let expected = format!("held > waiting for {expected} for 6");
            assert!(found.iter().any(|found| found.starts_with(&expected)), "{expected} in {found:?}");
        }
        assert!(look(64).is_empty(), "once");
        drop(held);
        let mut went_on = 0;
        let end = Instant::now() + Duration::from_secs(60);
        while went_on < 2 {
            assert!(Instant::now() < end, "they do not go on");
            went_on += look(65).iter().filter(|found| found.what == posthaste_watch::Became::WentOn).count();
            std::thread::yield_now();
        }
    }

    #[test]
    fn it_ends_once_and_a_task_of_another_runtime_may_end_it() {
        let (tell, told) = mpsc::channel::<()>();
        let new = NewRuntime::new("twice", 1).unwrap();
        new.handle().spawn(async move {
            let _held = tell;
            std::future::pending::<()>().await;
        });
        let runtime = new.run(std::future::pending());
        Builder::new_current_thread().build().unwrap().block_on(async {
            runtime.begin_end().expect("the first").shut_down();
        });
        assert!(runtime.begin_end().is_none());
        assert_eq!(told.recv(), Err(mpsc::RecvError), "the task was dropped");
    }
}
