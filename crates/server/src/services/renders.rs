//! Renders templates of requests: a few messages at a time, for a limited time, and only while the client waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The threads for concurrent rendering. Clones share them.
#[derive(Clone)]
pub(crate) struct Renders(Arc<Semaphore>);

/// The rendering of one request. It ends on drop: the client has its answer, or has disconnected.
pub(crate) struct Rendering {
    renders: Renders,
    spent: Arc<Spent>,
}

#[derive(Default)]
struct Spent {
    micros: AtomicU64,
    is_over: AtomicBool,
}

/// Why nothing was rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenderFailure {
    /// No thread was free in time.
    Busy,
    /// A panic, which is logged.
    Panicked,
}

impl Renders {
    pub fn new(at_a_time: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_a_time)))
    }

    pub fn begin(&self) -> Rendering {
        Rendering { renders: self.clone(), spent: Arc::default() }
    }

    async fn turn(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.0).acquire_owned().await.expect("the semaphore is never closed")
    }
}

impl Rendering {
    /// Runs a part of the work in its turn, on a blocking thread. The closure gets a function that is true while time
    /// is left, over all parts: [`RENDER_TIME`].
    ///
    /// # Errors
    /// See [`RenderFailure`].
    pub async fn part<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, RenderFailure> {
        let turn = timeout(TURN_PATIENCE, self.renders.turn()).await.map_err(|_| RenderFailure::Busy)?;
        let spent = Arc::clone(&self.spent);
        let timed = move || {
            let begun = Instant::now();
            let used = || Duration::from_micros(spent.micros.load(Ordering::Relaxed)) + begun.elapsed();
            let done = work(&|| !spent.is_over.load(Ordering::Relaxed) && used() < RENDER_TIME);
            spent.micros.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
            drop(turn);
            done
        };
        spawn_blocking(timed).await.map_err(|_| RenderFailure::Panicked)
    }

    /// Repeats finished work as a part: it is known to end, so it has no time limit.
    ///
    /// # Errors
    /// [`RenderFailure::Panicked`].
    pub async fn again<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, RenderFailure> {
        let turn = self.renders.turn().await;
        let spent = Arc::clone(&self.spent);
        let untimed = move || {
            let done = work(&|| !spent.is_over.load(Ordering::Relaxed));
            drop(turn);
            done
        };
        spawn_blocking(untimed).await.map_err(|_| RenderFailure::Panicked)
    }
}

impl Drop for Rendering {
    fn drop(&mut self) {
        self.spent.is_over.store(true, Ordering::Relaxed);
    }
}

/// Time for all templates of a request, without its waits for a turn.
const RENDER_TIME: Duration = Duration::from_secs(30);
/// Wait for a turn.
const TURN_PATIENCE: Duration = Duration::from_secs(10);
/// Duration of a part of the work that yields to others.
pub(crate) const PART_TIME: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn a_render_ends_when_nobody_waits_for_it() {
        let rendering = Renders::new(1).begin();
        let (begun, began) = channel();
        let (ended, end) = channel();
        let endless = tokio::spawn(async move {
            let work = move |may_go_on: &dyn Fn() -> bool| {
                begun.send(()).unwrap();
                while may_go_on() {
                    std::thread::yield_now();
                }
                ended.send(()).unwrap();
            };
            rendering.part(work).await
        });
        spawn_blocking(move || began.recv().unwrap()).await.unwrap();
        endless.abort();
        spawn_blocking(move || end.recv_timeout(Duration::from_secs(60)).unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn time_counts_over_all_parts_of_one_request() {
        let renders = Renders::new(1);
        let rendering = renders.begin();
        assert_eq!(rendering.part(|may_go_on| may_go_on()).await, Ok(true));
        rendering.spent.micros.fetch_add(RENDER_TIME.as_micros() as u64, Ordering::Relaxed);
        assert_eq!(rendering.part(|may_go_on| may_go_on()).await, Ok(false));
        assert_eq!(renders.begin().part(|may_go_on| may_go_on()).await, Ok(true));
        let panicked: Result<(), _> = renders.begin().part(|_| panic!("a defect")).await;
        assert_eq!(panicked, Err(RenderFailure::Panicked));
        assert_eq!(renders.begin().part(|_| 1).await, Ok(1), "a panic keeps no turn");
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_renders_are_busy() {
        let renders = Renders::new(1);
        let turn = renders.0.acquire().await.unwrap();
        assert_eq!(renders.begin().part(|_| ()).await, Err(RenderFailure::Busy));
        drop(turn);
    }
}
