//! A signal that ends another thread's work or wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Ends a watch, an update or a wait for the lock from another thread.
#[derive(Debug, Clone)]
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    /// # Errors
    /// Fails when the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self(Arc::new(fd?)))
    }

    /// Asks the work to end after its current step. May be called repeatedly.
    pub fn stop(&self) {
        // `write` is refused only if the counter is at its maximum: then the request is already visible.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Waits until [`stop`](Self::stop) is called, but at most this long. True if it was called.
    pub fn wait(&self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
            let mut ready = [PollFd::new(&*self.0, PollFlags::IN)];
            match poll(&mut ready, left.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                // A descriptor that cannot be waited for is as good as a stop: better than turning in circles.
                result => return result.is_err() || ready[0].revents().contains(PollFlags::IN),
            }
        }
    }

    /// True once [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.wait(Duration::ZERO)
    }
}

/// Readable once [`stop`](Stop::stop) was called, to be polled with other descriptors.
impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
