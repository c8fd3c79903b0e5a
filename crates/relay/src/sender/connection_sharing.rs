//! The connections of all sites together. If more sites have mail than connections are allowed, sites without one
//! queue, and connections end for them.
//!
//! One lock holds the number of open connections, the queue, and the number of connections about to end for it. So
//! sites that ask at the same moment get no more than are allowed. Lock it after a site. After each message a
//! connection checks whether to give its turn away, without the lock while no site waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The shares of the allowed connections; `S` is a site.
pub(super) struct ConnectionSharing<S> {
    /// Maximum connections.
    most: usize,
    shares: Mutex<Shares<S>>,
    /// True if a connection in use should end for a waiting site. Set at the end of each [change](Self::change).
    wants_turns: AtomicBool,
    /// Notified when a connection has ended.
    ended: Condvar,
}

struct Shares<S> {
    open: usize,
    /// Connections that will end soon to make room for another site, or to refill the reserve.
    giving_way: usize,
    /// Sites with mail but no connection, longest wait first.
    waiting: BTreeMap<Place, Arc<S>>,
    /// The next place in the queue.
    next_place: u64,
}

/// The place of a site that waits for its first connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

impl<S> Shares<S> {
    /// Connections above `most * (1 - 1/part)`: the used part of a reserve.
    fn reserve_used(&self, most: usize, part: usize) -> usize {
        self.open.saturating_sub(most - most / part)
    }

    /// Number of connections still to end: one for each waiting site, and `spare` more.
    fn wanted(&self, spare: usize) -> usize {
        (self.waiting.len() + spare).saturating_sub(self.giving_way)
    }
}

/// One of the allowed connections, from the decision to open it to its end.
pub(super) struct Share<S>(Arc<ConnectionSharing<S>>);

impl<S> Drop for Share<S> {
    fn drop(&mut self) {
        self.0.change(|shares| shares.open -= 1);
        self.0.ended.notify_all();
    }
}

/// Held by a connection that is about to end for another site.
pub(super) struct GivesWay<S>(Arc<ConnectionSharing<S>>);

impl<S> Drop for GivesWay<S> {
    fn drop(&mut self) {
        self.0.change(|shares| shares.giving_way -= 1);
    }
}

impl<S> ConnectionSharing<S> {
    pub fn new(most: usize) -> Self {
        let shares = Mutex::new(Shares { open: 0, giving_way: 0, waiting: BTreeMap::new(), next_place: 0 });
        ConnectionSharing { most, shares, wants_turns: AtomicBool::new(false), ended: Condvar::new() }
    }

    fn shares(&self) -> MutexGuard<'_, Shares<S>> {
        self.shares.lock().expect("the connections")
    }

    /// Changes the shares. All changes go through here, so `wants_turns` is always updated.
    fn change<T>(&self, change: impl FnOnce(&mut Shares<S>) -> T) -> T {
        let mut shares = self.shares();
        let done = change(&mut shares);
        // Stored under the lock, so in the order of the changes.
        self.wants_turns.store(shares.wanted(0) > 0, Ordering::Relaxed);
        done
    }

    /// Number of open connections, including those about to open.
    pub fn open(&self) -> usize {
        self.shares().open
    }

    /// Takes a share for one more connection of a site that has `connections`. A site that gets none for its first
    /// connection is queued, unless it has a `place` already.
    pub fn take(self: &Arc<Self>, site: &Arc<S>, connections: usize, place: &mut Option<Place>) -> Option<Share<S>> {
        self.change(|shares| {
            let is_reserved = connections > 0 && shares.reserve_used(self.most, RESERVE) > 0;
            if shares.open < self.most && !is_reserved && shares.waiting.is_empty() {
                shares.open += 1;
                return Some(Share(self.clone()));
            }
            if connections == 0 && place.is_none() {
                let last = Place(shares.next_place);
                shares.next_place += 1;
                shares.waiting.insert(last, site.clone());
                *place = Some(last);
            }
            None
        })
    }

    /// Removes a site from the queue.
    pub fn leave(&self, place: Place) {
        self.change(|shares| shares.waiting.remove(&place));
    }

    /// The next waiting site, with a share for its first connection; `None` if no site waits or no share is left.
    pub fn next(self: &Arc<Self>) -> Option<(Arc<S>, Share<S>)> {
        self.change(|shares| {
            if shares.open >= self.most {
                return None;
            }
            let (_, site) = shares.waiting.pop_first()?;
            shares.open += 1;
            Some((site, Share(self.clone())))
        })
    }

    /// Decides if a connection ends after a message, to give a waiting site its turn. `used`: how long its site has had
    /// the connection. Takes no lock while no site waits.
    pub fn gives_turn(self: &Arc<Self>, used: Duration) -> Option<GivesWay<S>> {
        // A flag that is seen late takes effect after the next message.
        if used >= TURN && self.wants_turns.load(Ordering::Relaxed) { self.give(|_| 0) } else { None }
    }

    /// Decides if an unused connection ends: for a waiting site, or, if it was idle before, for a future one.
    pub fn gives_way(self: &Arc<Self>, was_idle: bool) -> Option<GivesWay<S>> {
        self.give(|shares| if was_idle { shares.reserve_used(self.most, IDLE_RESERVE) } else { 0 })
    }

    fn give(self: &Arc<Self>, spare: impl FnOnce(&Shares<S>) -> usize) -> Option<GivesWay<S>> {
        self.change(|shares| {
            if shares.wanted(spare(shares)) == 0 {
                return None;
            }
            shares.giving_way += 1;
            Some(GivesWay(self.clone()))
        })
    }

    /// Idle connections still to end.
    pub fn wanted(&self) -> usize {
        let shares = self.shares();
        shares.wanted(shares.reserve_used(self.most, IDLE_RESERVE))
    }

    /// Waits until no connection is open, or until the deadline. Blocks.
    pub fn wait_until_none(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        drop(self.ended.wait_timeout_while(self.shares(), left, |shares| shares.open > 0));
    }
}

/// Minimum time for which a site keeps a connection.
const TURN: Duration = Duration::from_secs(2);
/// One connection in this many is reserved for sites that have none.
const RESERVE: usize = 8;
/// Idle connections end once all but one in this many are open. Those between this and [`RESERVE`] are for sites that
/// have one and need more.
const IDLE_RESERVE: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn sharing(most: usize) -> Arc<ConnectionSharing<usize>> {
        Arc::new(ConnectionSharing::new(most))
    }

    /// A share for the first connection of a site.
    fn first(sharing: &Arc<ConnectionSharing<usize>>, site: usize) -> Option<Share<usize>> {
        sharing.take(&Arc::new(site), 0, &mut None)
    }

    #[test]
    fn those_that_ask_at_once_get_no_more_than_allowed() {
        let sharing = sharing(3);
        let most_seen = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        if let Some(_share) = sharing.take(&Arc::new(0), 1, &mut None) {
                            most_seen.fetch_max(sharing.open(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert!((1..=3).contains(&most_seen.into_inner()));
        assert_eq!(sharing.open(), 0);
    }

    #[test]
    fn as_many_connections_give_way_as_sites_wait() {
        let sharing = sharing(2);
        let shares = [first(&sharing, 0), first(&sharing, 1)];
        assert!(shares.iter().all(Option::is_some) && sharing.gives_way(true).is_none(), "no site waits");
        assert!(first(&sharing, 2).is_none() && first(&sharing, 3).is_none() && sharing.next().is_none());
        let place = Place(1);
        assert!(sharing.take(&Arc::new(3), 0, &mut Some(place)).is_none(), "it waits already");
        assert!(sharing.gives_turn(Duration::ZERO).is_none(), "it has just begun");
        let given = [sharing.gives_turn(TURN), sharing.gives_way(false)];
        assert!(given.iter().all(Option::is_some) && sharing.gives_way(false).is_none());
        assert_eq!(sharing.wanted(), 0);
        // Their connections went to others: further ones give way for those that still wait.
        drop(given);
        assert!(sharing.wanted() == 2 && sharing.gives_way(false).is_some());
        drop(shares);
        assert!(first(&sharing, 4).is_none(), "others wait longer");
        let next = [sharing.next(), sharing.next()].map(|next| next.map(|(site, share)| (*site, share)));
        assert_eq!(next.each_ref().map(|next| next.as_ref().map(|(site, _)| *site)), [Some(2), Some(3)]);
        assert!(sharing.next().is_none(), "all are open");
        drop(next);
        assert_eq!(sharing.next().map(|(site, _)| *site), Some(4));
    }

    #[test]
    fn the_last_connections_are_for_sites_that_have_none() {
        let sharing = sharing(16);
        let more = || sharing.take(&Arc::new(0), 1, &mut None);
        let mut shares: Vec<_> = std::iter::from_fn(more).collect();
        assert_eq!(shares.len(), 15);
        shares.extend(first(&sharing, 1));
        assert_eq!((shares.len(), sharing.wanted()), (16, 4), "a quarter is for future sites");
        let given: Vec<_> = std::iter::from_fn(|| sharing.gives_way(true)).collect();
        assert_eq!(given.len(), 4);
        assert!(sharing.gives_way(false).is_none(), "nobody waits for one that is in use");
    }

    #[test]
    fn a_message_costs_no_lock_while_no_site_waits() {
        let sharing = sharing(2);
        let _shares = [first(&sharing, 0), first(&sharing, 1)];
        let told = {
            let _held = sharing.shares();
            let (tell, told) = std::sync::mpsc::channel();
            let asking = sharing.clone();
            std::thread::spawn(move || tell.send(asking.gives_turn(TURN).is_some()));
            told.recv_timeout(Duration::from_secs(10))
        };
        assert_eq!(told, Ok(false));
        assert!(first(&sharing, 2).is_none() && sharing.gives_turn(TURN).is_some(), "one waits");
    }

    #[test]
    fn a_site_that_leaves_the_queue_is_released_and_gets_no_turn() {
        let sharing = sharing(1);
        let share = first(&sharing, 0);
        let site = Arc::new(1);
        let mut place = None;
        assert!(sharing.take(&site, 0, &mut place).is_none() && first(&sharing, 2).is_none());
        sharing.leave(place.expect("it waits"));
        assert_eq!((Arc::strong_count(&site), sharing.wanted()), (1, 1));
        drop(share);
        assert_eq!(sharing.next().map(|(site, _)| *site), Some(2));
    }
}
