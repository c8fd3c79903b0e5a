//! The right to act for a shard. It expires by the clock, whatever the threads do.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::LeaseClock;
use crate::queue::Told;

/// The right to act for a shard in one epoch. Clones share the lease. Checking it needs no engine and never waits.
#[derive(Clone)]
pub struct Lease(Arc<LeaseState>);

struct LeaseState {
    shard: u16,
    epoch: u64,
    clock: Arc<dyn LeaseClock>,
    /// End of the right to act, in microseconds of the clock.
    act_until: AtomicU64,
    begin_until: AtomicU64,
    begun: Mutex<BegunCount>,
}

#[derive(Default)]
struct BegunCount {
    count: usize,
    is_closed: bool,
    /// Called when the last transaction ends.
    then: Option<Told>,
}

/// A transaction under a lease. A hand-over waits until it is dropped.
#[must_use = "a hand-over waits for it"]
pub struct BegunTransaction(Lease);

impl Lease {
    /// A lease that is not granted yet.
    pub(crate) fn new(shard: u16, epoch: u64, clock: Arc<dyn LeaseClock>) -> Self {
        let (act_until, begin_until, begun) = Default::default();
        Lease(Arc::new(LeaseState { shard, epoch, clock, act_until, begin_until, begun }))
    }

    /// The shard.
    pub fn shard(&self) -> u16 {
        self.0.shard
    }

    /// The number of this ownership of the shard.
    pub fn epoch(&self) -> u64 {
        self.0.epoch
    }

    /// True while the owner may have effects: deliver, and answer the end of a body.
    pub fn may_act(&self) -> bool {
        self.is_before(&self.0.act_until)
    }

    /// Begins a transaction that takes mail. `None` if none may begin now.
    pub fn begin(&self) -> Option<BegunTransaction> {
        let mut begun = self.begun();
        if begun.is_closed || !self.is_before(&self.0.begin_until) {
            return None;
        }
        begun.count += 1;
        drop(begun);
        Some(BegunTransaction(self.clone()))
    }

    /// True while a failed [`begin`](Self::begin) may soon succeed: the lease is not given up or lost, and the engine has
    /// been silent for less than `patience`.
    pub fn may_begin_within(&self, patience: Duration) -> bool {
        let silent_since = self.0.begin_until.load(Ordering::Acquire);
        !self.begun().is_closed && micros(self.0.clock.now()) < silent_since.saturating_add(micros(patience))
    }

    pub(crate) fn set(&self, act_until: Duration, begin_until: Duration) {
        self.0.act_until.store(micros(act_until), Ordering::Release);
        self.0.begin_until.store(micros(begin_until), Ordering::Release);
    }

    /// Stops new transactions. Calls `then` when the last one has ended.
    pub(crate) fn close(&self, then: Told) {
        let mut begun = self.begun();
        begun.is_closed = true;
        if begun.count > 0 {
            begun.then = Some(then);
            return;
        }
        drop(begun);
        then();
    }

    /// Ends the lease permanently.
    pub(crate) fn revoke(&self) {
        self.set(Duration::ZERO, Duration::ZERO);
        let mut begun = self.begun();
        begun.is_closed = true;
        begun.then = None;
    }

    fn is_before(&self, end: &AtomicU64) -> bool {
        micros(self.0.clock.now()) < end.load(Ordering::Acquire)
    }

    fn begun(&self) -> MutexGuard<'_, BegunCount> {
        self.0.begun.lock().expect("nothing panics while it is held")
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease of shard {} in epoch {}", self.0.shard, self.0.epoch)
    }
}

impl Drop for BegunTransaction {
    fn drop(&mut self) {
        let then = {
            let mut begun = self.0.begun();
            begun.count -= 1;
            if begun.count == 0 { begun.then.take() } else { None }
        };
        if let Some(then) = then {
            then();
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, channel};

    use super::*;

    #[derive(Default)]
    struct HandClock(Mutex<Duration>);

    impl LeaseClock for HandClock {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_lease_ends_by_the_clock() {
        let clock = Arc::new(HandClock::default());
        let lease = Lease::new(3, 1, clock.clone());
        assert!(!lease.may_act() && lease.begin().is_none());
        lease.set(secs(15), secs(3));
        assert!(lease.may_act() && lease.begin().is_some());
        *clock.0.lock().unwrap() = secs(3);
        assert!(lease.may_act() && lease.begin().is_none());
        *clock.0.lock().unwrap() = secs(15);
        assert!(!lease.may_act() && lease.may_begin_within(secs(60)));
        lease.set(secs(30), secs(18));
        assert!(lease.begin().is_some(), "the engine answers again");
    }

    #[test]
    fn a_long_silence_is_not_waited_for() {
        let clock = Arc::new(HandClock::default());
        let lease = Lease::new(3, 1, clock.clone());
        lease.set(secs(15), secs(3));
        *clock.0.lock().unwrap() = secs(62);
        assert!(lease.may_begin_within(secs(60)));
        *clock.0.lock().unwrap() = secs(63);
        assert!(!lease.may_begin_within(secs(60)));
        lease.set(secs(75), secs(63));
        assert!(lease.may_begin_within(secs(60)), "it has answered");
    }

    #[test]
    fn closing_waits_for_what_has_begun() {
        let lease = Lease::new(3, 1, Arc::new(HandClock::default()));
        lease.set(secs(15), secs(15));
        let one = lease.begin().unwrap();
        let two = lease.begin().unwrap();
        let (tell, told) = channel();
        lease.close(Box::new(move || tell.send(()).unwrap()));
        assert!(lease.begin().is_none() && lease.may_act() && !lease.may_begin_within(secs(60)));
        drop(one);
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
        drop(two);
        assert_eq!(told.try_recv(), Ok(()));
        let (tell, told) = channel();
        lease.close(Box::new(move || tell.send(()).unwrap()));
        assert_eq!(told.try_recv(), Ok(()), "none is left");
        lease.revoke();
        assert!(!lease.may_act());
    }
}
