//! The tokio runtime of a consumer: its threads, and one task that must not end before the consumer does.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// A runtime of two threads with one main task.
#[derive(Debug)]
pub struct ConsumerRuntime {
    name: &'static str,
    runtime: Mutex<Option<Runtime>>,
    main: Mutex<JoinHandle<()>>,
}

/// A runtime whose main task has not begun.
#[derive(Debug)]
pub struct NewRuntime {
    name: &'static str,
    runtime: Runtime,
}

/// A runtime that is to be shut down, once.
#[derive(Debug)]
#[must_use = "it is shut down by `shut_down`"]
pub struct Ending {
    name: &'static str,
    runtime: Runtime,
}

impl NewRuntime {
    /// Starts the threads, which get this name. `blocking_threads_max`: threads for blocking calls, made when they are needed.
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
        Ok(NewRuntime { name, runtime })
    }

    /// For tasks beside the main one.
    pub fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Begins the main task.
    pub fn run(self, main: impl Future<Output = ()> + Send + 'static) -> ConsumerRuntime {
        let main = Mutex::new(self.runtime.spawn(main));
        ConsumerRuntime { name: self.name, runtime: Mutex::new(Some(self.runtime)), main }
    }
}

impl ConsumerRuntime {
    /// Ready once the main task has ended or panicked. Not to be called after that.
    pub fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut main = self.main.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *main).poll(cx).map(drop)
    }

    /// Begins the end, while tasks still run. `None` if another call has begun it.
    pub fn begin_end(&self) -> Option<Ending> {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Ending { name: self.name, runtime })
    }
}

impl Ending {
    /// Drops all tasks. Waits one second for threads that a disk may hold. May be called by a task.
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
