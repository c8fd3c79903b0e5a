//! File operations that a session waits for: with a deadline until the batch begins, on few threads.
//!
//! The counterpart of the [change queue](super::change_queue) for COPY, MOVE, APPEND, CREATE, DELETE and RENAME, whose
//! files and directories lie on a disk that may hang.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use super::answers::{PATIENCE, ended, no_answer};
use super::locks::lock;
use crate::error::MailstoreError;

/// Maximum threads that write appended messages of one mailbox: a hanging disk blocks no more.
const APPENDS_MAX: usize = 4;
/// Maximum threads that copy from one mailbox, and maximum threads that copy to one.
const COPIES_MAX: usize = 8;
/// Maximum threads that copy from one mailbox to one other: if the disk of one hangs, threads remain for others.
const PAIR_COPIES_MAX: usize = 2;

/// Permits for file operations of one mailbox.
#[derive(Debug)]
pub(super) struct FileTurns {
    appends: Arc<Semaphore>,
    from: Arc<Semaphore>,
    to: Arc<Semaphore>,
    /// Permits to copy from this mailbox, by id of the target.
    pairs: Mutex<HashMap<u32, Arc<Semaphore>>>,
}

/// Permits to copy, held by a thread until it ends.
pub(super) type CopyTurns = [OwnedSemaphorePermit; 3];

impl Default for FileTurns {
    fn default() -> Self {
        Self { appends: turns(APPENDS_MAX), from: turns(COPIES_MAX), to: turns(COPIES_MAX), pairs: Mutex::default() }
    }
}

impl FileTurns {
    /// Waits for a permit to write appended messages.
    pub async fn to_append(&self) -> OwnedSemaphorePermit {
        turn(&self.appends).await
    }

    /// Waits for permits to copy files from here to the mailbox `id`. While waiting it holds no permit that other pairs
    /// need.
    pub async fn to_copy(&self, id: u32, target: &Self) -> CopyTurns {
        let pair = turn(&self.pair(id)).await;
        loop {
            let from = turn(&self.from).await;
            if let Ok(to) = Arc::clone(&target.to).try_acquire_owned() {
                return [pair, from, to];
            }
            drop(from);
            let to = turn(&target.to).await;
            if let Ok(from) = Arc::clone(&self.from).try_acquire_owned() {
                return [pair, from, to];
            }
        }
    }

    fn pair(&self, id: u32) -> Arc<Semaphore> {
        let mut pairs = lock(&self.pairs);
        // Permits refer to their semaphore.
        pairs.retain(|_, pair| Arc::strong_count(pair) > 1);
        Arc::clone(pairs.entry(id).or_insert_with(|| turns(PAIR_COPIES_MAX)))
    }
}

/// Permits for `count` threads.
pub(super) fn turns(count: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(count))
}

/// Waits for the next permit.
pub(super) async fn turn(turns: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(turns).acquire_owned().await.expect("it is never closed")
}

/// Work on a thread, shared with the waiting session.
pub(super) struct FileWork<T> {
    stage: Arc<Mutex<Stage>>,
    durable: Mutex<Option<Durable<T>>>,
}

/// Takes the answer of a durable batch.
type Durable<T> = Box<dyn FnOnce(T) + Send>;

#[derive(Clone, Copy)]
enum Stage {
    /// The work may be withdrawn. True: it has made progress since the session last checked.
    Waiting(bool),
    Withdrawn,
    Begun,
    /// The session has its answer, so the work must not be undone.
    Told,
    /// The work undoes itself; the session waits for its end.
    Undone,
}

impl<T> FileWork<T> {
    /// Work without a deadline: it is never withdrawn.
    pub fn patient() -> Self {
        Self { stage: Arc::new(Mutex::new(Stage::Waiting(false))), durable: Mutex::default() }
    }

    /// A part of this work. Once the batch of the part is durable, the session gets `answer`.
    pub fn of_part<P>(&self, answer: T) -> FileWork<P>
    where
        T: Send + 'static,
    {
        let durable = lock(&self.durable).take();
        let durable = durable.map(|durable| -> Durable<P> { Box::new(move |_| durable(answer)) });
        FileWork { stage: Arc::clone(&self.stage), durable: Mutex::new(durable) }
    }

    /// Like [`step`](Self::step), without progress.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]: the work was withdrawn.
    pub fn check(&self) -> Result<(), MailstoreError> {
        if matches!(*lock(&self.stage), Stage::Withdrawn) { Err(no_answer()) } else { Ok(()) }
    }

    /// Records progress: the deadline starts again.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]: the work was withdrawn.
    pub fn step(&self) -> Result<(), MailstoreError> {
        match &mut *lock(&self.stage) {
            Stage::Withdrawn => return Err(no_answer()),
            Stage::Waiting(has_moved) => *has_moved = true,
            Stage::Begun | Stage::Told | Stage::Undone => {}
        }
        Ok(())
    }

    /// Called before the batch: afterwards the work cannot be withdrawn.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]: the work was withdrawn.
    pub fn begin(&self) -> Result<(), MailstoreError> {
        let mut stage = lock(&self.stage);
        if matches!(*stage, Stage::Withdrawn) {
            return Err(no_answer());
        }
        *stage = Stage::Begun;
        Ok(())
    }

    /// Called once the batch is durable. The session gets this answer if the remaining renames of files take too long.
    pub fn is_durable(&self, answer: T) {
        if let Some(durable) = lock(&self.durable).take() {
            durable(answer);
        }
    }

    /// True if the session has no answer yet and now waits for the end: the work may be undone.
    pub fn undo(&self) -> bool {
        let mut stage = lock(&self.stage);
        if matches!(*stage, Stage::Begun) {
            *stage = Stage::Undone;
        }
        !matches!(*stage, Stage::Told)
    }

    /// True if the session may have the answer of the durable batch.
    fn tell(&self) -> bool {
        let mut stage = lock(&self.stage);
        if matches!(*stage, Stage::Begun) {
            *stage = Stage::Told;
        }
        matches!(*stage, Stage::Told)
    }

    /// True if the work is in no batch, and will not be.
    pub(super) fn withdraw(&self) -> bool {
        let mut stage = lock(&self.stage);
        *stage = match *stage {
            Stage::Waiting(true) => Stage::Waiting(false),
            Stage::Waiting(false) => Stage::Withdrawn,
            other => other,
        };
        matches!(*stage, Stage::Withdrawn)
    }

    fn is_begun(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Begun | Stage::Told | Stage::Undone)
    }
}

/// Runs `work` on a thread that may block, once it has its permits. The thread holds the permits until its end. If the
/// future is dropped, started work continues.
///
/// # Errors
/// Errors of the work. [`MailstoreError::Unavailable`] after five minutes without progress: nothing was changed.
pub(super) async fn run<G: Send + 'static, T: Send + 'static>(
    turns: impl Future<Output = G>,
    work: impl FnOnce(&FileWork<T>) -> Result<T, MailstoreError> + Send + 'static,
) -> Result<T, MailstoreError> {
    let deadline = Instant::now() + PATIENCE;
    let turns = timeout_at(deadline, turns).await.map_err(|_| no_answer())?;
    let (sender, durable) = oneshot::channel();
    let tell: Durable<T> = Box::new(move |answer| drop(sender.send(answer)));
    let seen = Arc::new(FileWork { durable: Mutex::new(Some(tell)), ..FileWork::patient() });
    let shared = Arc::clone(&seen);
    let mut running = spawn_blocking(move || {
        let _turns = turns;
        work(&shared)
    });
    let mut waited = timeout_at(deadline, &mut running).await;
    loop {
        match waited {
            Ok(done) => return done.map_err(ended)?,
            Err(_) if seen.withdraw() => return Err(no_answer()),
            Err(_) if seen.is_begun() => break,
            Err(_) => waited = timeout(PATIENCE, &mut running).await,
        }
    }
    // A batch has it, and may be durable.
    tokio::select! {
        biased;
        done = &mut running => return done.map_err(ended)?,
        Ok(answer) = durable => if seen.tell() {
            return Ok(answer);
        },
    }
    running.await.map_err(ended)?
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use tokio::task::{JoinHandle, yield_now};
    use tokio::time::advance;

    use super::*;

    type Answer = Result<u8, MailstoreError>;

    /// A disk that hangs until the sender is dropped. The work calls `before`, hangs, and calls `after`.
    fn hung(
        before: impl FnOnce(&FileWork<u8>) + Send + 'static,
        after: impl FnOnce(&FileWork<u8>) -> Answer + Send + 'static,
    ) -> (JoinHandle<Answer>, Sender<()>) {
        let (hangs, disk) = channel::<()>();
        let work = move |work: &FileWork<u8>| {
            before(work);
            let _ = disk.recv();
            after(work)
        };
        (tokio::spawn(run(ready(()), work)), hangs)
    }

    async fn advance_until(has_ended: impl Fn() -> bool) {
        while !has_ended() {
            advance(Duration::from_secs(60)).await;
            yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_before_its_batch_is_withdrawn() {
        let (told, tell) = channel();
        let (answer, hangs) = hung(
            |_| {},
            move |work| {
                let begun = work.step().and(work.begin());
                told.send(begun.clone()).unwrap();
                begun.map(|()| 1)
            },
        );
        advance_until(|| answer.is_finished()).await;
        assert!(matches!(answer.await.unwrap(), Err(MailstoreError::Unavailable(_))));
        drop(hangs);
        assert!(tell.recv().unwrap().is_err(), "the disk answers later: no batch is begun any more");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_after_its_batch_has_its_answer() {
        let (begun, has_begun) = channel();
        let before = move |work: &FileWork<u8>| {
            work.begin().unwrap();
            work.is_durable(7);
            begun.send(()).unwrap();
        };
        let (answer, hangs) = hung(before, |_| Ok(8));
        while has_begun.try_recv().is_err() {
            yield_now().await;
        }
        advance_until(|| answer.is_finished()).await;
        assert_eq!(answer.await.unwrap(), Ok(7), "its files have no names yet");
        drop(hangs);
    }

    /// A RENAME whose directories cannot be renamed is undone, unless its session believes it.
    #[tokio::test(start_paused = true)]
    async fn work_is_undone_or_answered() {
        for is_told in [false, true] {
            let (begun, has_begun) = channel();
            let before = move |work: &FileWork<u8>| {
                work.begin().unwrap();
                work.of_part(7).is_durable("copied");
                assert!(is_told || work.undo());
                begun.send(()).unwrap();
            };
            let (told, tell) = channel();
            let after = move |work: &FileWork<u8>| {
                told.send(work.undo()).unwrap();
                Err(MailstoreError::Exists)
            };
            let (answer, hangs) = hung(before, after);
            while has_begun.try_recv().is_err() {
                yield_now().await;
            }
            if is_told {
                advance_until(|| answer.is_finished()).await;
            } else {
                advance(3 * PATIENCE).await;
                yield_now().await;
                assert!(!answer.is_finished());
            }
            drop(hangs);
            let expected = if is_told { Ok(7) } else { Err(MailstoreError::Exists) };
            assert_eq!(answer.await.unwrap(), expected);
            assert_eq!(tell.recv().unwrap(), !is_told);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_in_progress_has_a_new_deadline() {
        let (begun, has_begun) = channel();
        let before = move |work: &FileWork<u8>| {
            work.step().unwrap();
            begun.send(()).unwrap();
        };
        let (answer, hangs) = hung(before, |work| work.begin().map(|()| 1));
        while has_begun.try_recv().is_err() {
            yield_now().await;
        }
        advance(PATIENCE + Duration::from_secs(1)).await;
        for _ in 0..100 {
            yield_now().await;
        }
        assert!(!answer.is_finished());
        drop(hangs);
        assert_eq!(answer.await.unwrap(), Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_mailbox_that_hangs_has_few_threads_and_leaves_turns() {
        let (from, hung, other) = (FileTurns::default(), FileTurns::default(), FileTurns::default());
        let (to_from, to_hung, to_other) = (1, 2, 3);
        let mut held = Vec::new();
        for _ in 0..PAIR_COPIES_MAX {
            held.push(from.to_copy(to_hung, &hung).await);
            held.push(hung.to_copy(to_other, &other).await);
        }
        assert!(timeout(PATIENCE, from.to_copy(to_hung, &hung)).await.is_err());
        assert!(timeout(PATIENCE, hung.to_copy(to_other, &other)).await.is_err());
        drop((from.to_copy(to_other, &other).await, other.to_copy(to_from, &from).await, hung.to_append().await));
        // Of many mailboxes.
        let sources: Vec<FileTurns> = (0..COPIES_MAX).map(|_| FileTurns::default()).collect();
        for source in &sources[PAIR_COPIES_MAX..] {
            held.push(source.to_copy(to_hung, &hung).await);
        }
        assert!(timeout(PATIENCE, sources[0].to_copy(to_hung, &hung)).await.is_err());
        drop(sources[0].to_copy(to_other, &other).await);
        drop(held);
        drop(from.to_copy(to_hung, &hung).await);
        assert_eq!(lock(&from.pairs).len(), 1, "the others are forgotten");
    }
}
