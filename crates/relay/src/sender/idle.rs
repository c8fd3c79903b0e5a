//! Connections of a site that wait for messages.
//!
//! Idle connections are listed here and, for other sites, in [`reuse`](super::reuse). Each message changes this list,
//! under the lock of its site. Only a site about to connect searches the other list, across all sites, by the key of an
//! address. A single list would take the lock of all sites each time a connection becomes idle or busy, and would still
//! need both orders.

use std::task::Waker;

#[derive(Default)]
pub(super) struct Idle {
    /// Longest wait first.
    waiting: Vec<Waker>,
    /// A connection has taken a message since the last [`give_way`](Self::give_way).
    is_recent: bool,
}

impl Idle {
    pub fn wait(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    /// Removes a connection that no longer waits.
    pub fn remove(&mut self, waker: &Waker) {
        self.waiting.retain(|waiting| !waiting.will_wake(waker));
    }

    /// Notes that a connection has taken a message.
    pub fn note_taken(&mut self) {
        self.is_recent = true;
    }

    /// Wakes the connection that has waited shortest; false if there is none.
    pub fn wake_latest(&mut self) -> bool {
        self.waiting.pop().map(Waker::wake).is_some()
    }

    /// Wakes the connection that has waited longest, unless the site has taken a message since the last call. True if
    /// one was woken.
    pub fn give_way(&mut self) -> bool {
        let gives_way = !std::mem::take(&mut self.is_recent) && !self.waiting.is_empty();
        if gives_way {
            self.waiting.remove(0).wake();
        }
        gives_way
    }

    pub fn wake_all(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_site_that_has_sent_of_late_gives_way_at_the_second_call() {
        let mut idle = Idle::default();
        let task = Waker::from(Arc::new(Task));
        assert!(!idle.give_way() && !idle.wake_latest(), "none waits");
        idle.note_taken();
        idle.wait(&task);
        assert!(!idle.give_way(), "it has sent");
        assert!(idle.give_way());
        assert!(!idle.give_way(), "it is woken");
        idle.wait(&task);
        idle.remove(&task);
        assert!(!idle.give_way());
    }
}
