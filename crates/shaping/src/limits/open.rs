//! Limits of open connections, and the sites that wait for one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::Waker;

/// A limit of connections that some sites share, and the sites that wait for one.
pub struct OpenLimit<S> {
    /// Name of the mail that is limited.
    pub name: Arc<str>,
    open: AtomicU32,
    waiting: Mutex<Waiters<S>>,
}

struct Waiters<S> {
    sites: VecDeque<Weak<S>>,
    /// Idle connections, by number: one ends for each waiting site.
    idle: BTreeMap<u64, Waker>,
}

impl<S> Waiters<S> {
    fn wake_idle(&self) {
        self.idle.values().take(self.sites.len()).for_each(Waker::wake_by_ref);
    }

    /// Removes the site at this address, which has nothing to send. True if others wait.
    fn are_left_without(&mut self, site: usize) -> bool {
        self.sites.retain(|other| other.as_ptr().addr() != site);
        !self.sites.is_empty()
    }
}

impl<S> OpenLimit<S> {
    /// A limit with no open connection.
    pub fn new(name: Arc<str>) -> Self {
        let waiting = Waiters { sites: VecDeque::new(), idle: BTreeMap::new() };
        OpenLimit { name, open: AtomicU32::new(0), waiting: Mutex::new(waiting) }
    }

    /// Open connections.
    pub fn count(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Opens one more connection, unless `most` are open.
    pub fn open(self: &Arc<Self>, most: u32) -> Option<OpenPermit<S>> {
        let more = |open: u32| (open < most).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(OpenPermit { limit: self.clone() })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiters<S>> {
        self.waiting.lock().expect("who waits")
    }

    /// Queues a site, to be woken in its turn when a connection ends. Ends an idle one now.
    pub fn wait(&self, site: &Arc<S>) {
        let mut waiting = self.waiting();
        // A site that is gone keeps its memory as long as it is queued.
        waiting.sites.retain(|other| other.strong_count() > 0);
        if !waiting.sites.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(site))) {
            waiting.sites.push_back(Arc::downgrade(site));
        }
        waiting.wake_idle();
    }

    /// Removes the site at this address in memory from the queue.
    pub fn leave(&self, site: usize) {
        self.waiting().are_left_without(site);
    }

    /// True if a site waits.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting().sites.is_empty()
    }

    /// True if others wait while the site at this address in memory has nothing to send. That site leaves the queue.
    pub fn is_waited_for_but_by(&self, site: usize) -> bool {
        self.waiting().are_left_without(site)
    }

    /// Registers an idle connection of the site at this address in memory: it is woken when others wait. True if they
    /// do already.
    pub fn set_idle(&self, connection: u64, site: usize, waker: &Waker) -> bool {
        let mut waiting = self.waiting();
        waiting.idle.insert(connection, waker.clone());
        waiting.are_left_without(site)
    }

    /// Ends the registration of an idle connection.
    pub fn forget_idle(&self, connection: u64) {
        self.waiting().idle.remove(&connection);
    }

    /// Wakes an idle connection for a waiting site; others may end for it, too.
    pub fn wake_idle(&self) {
        self.waiting().wake_idle();
    }

    fn next(&self) -> Option<Arc<S>> {
        let mut waiting = self.waiting();
        std::iter::from_fn(|| waiting.sites.pop_front()).find_map(|site| site.upgrade())
    }
}

/// One connection of an [`OpenLimit`], until it is dropped.
pub struct OpenPermit<S> {
    limit: Arc<OpenLimit<S>>,
}

impl<S> OpenPermit<S> {
    /// The limit that counts this connection.
    pub fn limit(&self) -> &Arc<OpenLimit<S>> {
        &self.limit
    }

    /// Ends the connection; returns the next site in turn.
    pub fn end(self) -> Option<Arc<S>> {
        let limit = self.limit.clone();
        drop(self);
        limit.next()
    }
}

/// Ends connections; returns the next sites in turn, to be woken.
pub fn end_all<S>(permits: impl IntoIterator<Item = OpenPermit<S>>) -> Vec<Arc<S>> {
    permits.into_iter().filter_map(OpenPermit::end).collect()
}

impl<S> Drop for OpenPermit<S> {
    fn drop(&mut self) {
        self.limit.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_allowed_are_open() {
        let limit = Arc::new(OpenLimit::<()>::new("a limit".into()));
        let most_seen = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        if let Some(_permit) = limit.open(2) {
                            most_seen.fetch_max(limit.count(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert!((1..=2).contains(&most_seen.into_inner()));
        assert_eq!(limit.count(), 0);
        let two = (limit.open(2).unwrap(), limit.open(2).unwrap());
        assert!(limit.open(2).is_none() && limit.open(3).is_some());
        drop(two);
        assert_eq!(limit.count(), 0);
    }

    #[test]
    fn sites_that_leave_or_are_gone_do_not_stay_queued() {
        let limit = OpenLimit::new("a limit".into());
        let [leaves, stays] = [1, 2].map(Arc::new);
        limit.wait(&leaves);
        limit.wait(&stays);
        limit.leave(Arc::as_ptr(&leaves).addr());
        assert!(limit.next().is_some_and(|next| Arc::ptr_eq(&next, &stays)));
        let gone = Arc::new(3);
        limit.wait(&gone);
        drop(gone);
        limit.wait(&stays);
        assert_eq!(limit.waiting().sites.len(), 1);
    }
}
