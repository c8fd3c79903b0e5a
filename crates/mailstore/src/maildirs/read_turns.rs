//! Limits the threads that read messages.
//!
//! After reading messages, a pool thread keeps some 0.65 MiB of the allocator's memory (debug build), and the pool may
//! have 512 threads. Without a bound, 40 clients that do not read their answers occupy them all.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};

use super::answers::{PATIENCE, ended, no_answer};
use super::file_work::turn;
use crate::error::MailstoreError;

/// Maximum threads that read messages of one mailbox: a hanging disk blocks no more.
const MAILBOX_READS_MAX: usize = 4;
/// Maximum threads that read messages of all mailboxes.
const READS_MAX: usize = 32;
/// A read that takes longer hangs: it no longer counts against [`READS_MAX`], so that other mailboxes are read.
const READ_PATIENCE: Duration = Duration::from_secs(2);

/// Permits to read messages of one mailbox.
#[derive(Debug, Clone)]
pub(super) struct ReadTurns {
    of_mailbox: Arc<Semaphore>,
    of_all: Arc<Semaphore>,
}

impl ReadTurns {
    /// Permits shared by all mailboxes.
    pub fn of_all() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(READS_MAX))
    }

    pub fn of_mailbox(of_all: &Arc<Semaphore>) -> Self {
        Self { of_mailbox: Arc::new(Semaphore::new(MAILBOX_READS_MAX)), of_all: Arc::clone(of_all) }
    }

    /// Runs `read` on a thread that may block, once it has a permit. If the session ends meanwhile, the thread keeps
    /// the mailbox's permit.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, MailstoreError> {
        self.read_with(|| (), move |()| read()).await
    }

    /// Like [`read`](Self::read), with memory that this thread allocates once the permit is there.
    ///
    /// # Errors
    /// [`MailstoreError::Unavailable`]: no answer within [`PATIENCE`], the wait for the permit included.
    pub async fn read_with<B: Send + 'static, T: Send + 'static>(
        &self,
        prepare: impl FnOnce() -> B,
        read: impl FnOnce(B) -> T + Send + 'static,
    ) -> Result<T, MailstoreError> {
        let deadline = Instant::now() + PATIENCE;
        let of_mailbox = timeout_at(deadline, turn(&self.of_mailbox)).await.map_err(|_| no_answer())?;
        let of_all = timeout_at(deadline, self.of_all.acquire()).await.map_err(|_| no_answer())?;
        let of_all = of_all.expect("it is never closed");
        let prepared = prepare();
        let mut reading = spawn_blocking(move || {
            let _of_mailbox = of_mailbox;
            read(prepared)
        });
        let done = match timeout(READ_PATIENCE, &mut reading).await {
            Ok(done) => done,
            Err(_) => {
                drop(of_all);
                timeout_at(deadline, reading).await.map_err(|_| no_answer())?
            }
        };
        done.map_err(ended)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use tokio::task::{JoinSet, yield_now};
    use tokio::time::advance;

    use super::*;

    /// Reads of a disk that hangs.
    struct Hung {
        /// The disk hangs until this is dropped.
        hangs: Option<Sender<()>>,
        disk: Arc<Mutex<Receiver<()>>>,
        begun: Arc<AtomicUsize>,
        reads: JoinSet<Result<(), MailstoreError>>,
    }

    impl Hung {
        fn new() -> Self {
            let (hangs, disk) = channel();
            Self { hangs: Some(hangs), disk: Arc::new(Mutex::new(disk)), begun: Arc::default(), reads: JoinSet::new() }
        }

        fn begin(&mut self, turns: &ReadTurns, count: usize) {
            for _ in 0..count {
                let (turns, disk, begun) = (turns.clone(), Arc::clone(&self.disk), Arc::clone(&self.begun));
                self.reads.spawn(async move {
                    let read = move || {
                        begun.fetch_add(1, Ordering::SeqCst);
                        let _ = disk.lock().unwrap().recv();
                    };
                    turns.read(read).await
                });
            }
        }

        async fn have_begun(&self, count: usize) {
            while self.begun.load(Ordering::SeqCst) < count {
                yield_now().await;
            }
            assert_eq!(self.begun.load(Ordering::SeqCst), count);
        }
    }

    #[tokio::test]
    async fn few_threads_read_one_mailbox() {
        let turns = ReadTurns::of_mailbox(&ReadTurns::of_all());
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut reads = JoinSet::new();
        for _ in 0..200 {
            let (turns, now, most) = (turns.clone(), Arc::clone(&now), Arc::clone(&most));
            reads.spawn(async move {
                let read = move || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                };
                turns.read(read).await.unwrap();
            });
        }
        reads.join_all().await;
        assert!(most.load(Ordering::SeqCst) <= MAILBOX_READS_MAX, "{most:?}");
    }

    /// Sessions of a disk that hangs would hold a piece of a message each.
    #[tokio::test]
    async fn those_who_wait_for_a_turn_have_no_buffer() {
        let turns = ReadTurns::of_mailbox(&ReadTurns::of_all());
        let (hangs, disk) = channel::<()>();
        let (disk, prepared) = (Arc::new(Mutex::new(disk)), Arc::new(AtomicUsize::new(0)));
        let mut reads = JoinSet::new();
        for _ in 0..20 {
            let (turns, disk, prepared) = (turns.clone(), Arc::clone(&disk), Arc::clone(&prepared));
            reads.spawn(async move {
                let prepare = || prepared.fetch_add(1, Ordering::SeqCst);
                let _ = turns.read_with(prepare, move |_| disk.lock().unwrap().recv()).await;
            });
        }
        // Each of them has begun then.
        while prepared.load(Ordering::SeqCst) < MAILBOX_READS_MAX {
            yield_now().await;
        }
        yield_now().await;
        assert_eq!(prepared.load(Ordering::SeqCst), MAILBOX_READS_MAX);
        drop(hangs);
        while reads.join_next().await.is_some() {}
        assert_eq!(prepared.load(Ordering::SeqCst), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_that_hang_hold_up_their_mailboxes_alone() {
        let all = ReadTurns::of_all();
        let mut hung = Hung::new();
        // More than all turns, on one hung mount.
        let mailboxes: Vec<ReadTurns> = (0..20).map(|_| ReadTurns::of_mailbox(&all)).collect();
        mailboxes.iter().for_each(|mailbox| hung.begin(mailbox, 10));
        for begun in [READS_MAX, 2 * READS_MAX, 20 * MAILBOX_READS_MAX] {
            hung.have_begun(begun).await;
            advance(READ_PATIENCE).await;
        }
        assert_eq!(ReadTurns::of_mailbox(&all).read(|| 7).await, Ok(7), "of another disk");
        hung.have_begun(20 * MAILBOX_READS_MAX).await;
        hung.hangs = None;
        while let Some(read) = hung.reads.join_next().await {
            read.unwrap().unwrap();
        }
        hung.have_begun(200).await;
    }

    /// Decision 46, for FETCH.
    #[tokio::test(start_paused = true)]
    async fn reads_of_a_disk_that_hangs_have_an_end() {
        let turns = ReadTurns::of_mailbox(&ReadTurns::of_all());
        let mut hung = Hung::new();
        hung.begin(&turns, MAILBOX_READS_MAX);
        hung.have_begun(MAILBOX_READS_MAX).await;
        // None of these has a thread.
        hung.begin(&turns, 20);
        yield_now().await;
        advance(PATIENCE - READ_PATIENCE).await;
        yield_now().await;
        assert!(hung.reads.try_join_next().is_none(), "a slow disk has its time");
        advance(READ_PATIENCE).await;
        while let Some(read) = hung.reads.join_next().await {
            assert_eq!(read.unwrap(), Err(no_answer()));
        }
        hung.have_begun(MAILBOX_READS_MAX).await;
        hung.hangs = None;
        assert_eq!(turns.read(|| 7).await, Ok(7), "the disk answers again");
    }
}
