//! Planned outages: times at which the run's owner stops or kills the server. Errors of these times do not count against the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::failure::{Cause, Failure, Stage};

/// The outages of a run: the thread that kills the server reports them, the run reads them.
#[derive(Debug, Default)]
pub struct Outages {
    outages: Mutex<Vec<Outage>>,
    /// True while the first acknowledgement since the last outage is awaited.
    awaits_ack: AtomicBool,
}

#[derive(Debug)]
struct Outage {
    begun: Instant,
    /// Time at which the old process was certainly gone: later connections are not to it.
    gone: Option<Instant>,
    /// Time at which the new process was ready, and its id.
    back: Option<(Instant, u32)>,
    first_ack: Option<Instant>,
    connections: u64,
    messages: u64,
}

/// One kill of the server, with its effects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kill {
    /// Seconds since the run began.
    pub at_s: f64,
    /// Seconds until the server was ready again; absent if it never was.
    pub down_s: Option<f64>,
    /// Seconds from the kill to the first message acknowledged by the new process, if there was one.
    pub first_ack_s: Option<f64>,
    /// Connections that it broke.
    pub connections: u64,
    /// Messages in flight on them.
    pub messages: u64,
}

impl Outages {
    /// Call it before a kill of the server.
    pub fn begin(&self) {
        let outage =
            Outage { begun: Instant::now(), gone: None, back: None, first_ack: None, connections: 0, messages: 0 };
        self.lock().push(outage);
    }

    /// Call it when the killed process is gone.
    pub fn gone(&self) {
        self.last(|outage| outage.gone = Some(Instant::now()));
        self.awaits_ack.store(true, Ordering::Release);
    }

    /// Call it when a new process is ready.
    pub fn back(&self, pid: u32) {
        self.last(|outage| outage.back = Some((Instant::now(), pid)));
    }

    /// Number of outages.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Id of the newest process, if the server was ever killed and came back.
    pub(super) fn pid(&self) -> Option<u32> {
        self.lock().iter().rev().find_map(|outage| outage.back).map(|(_, pid)| pid)
    }

    /// True if the server is away now, and the time of its last return.
    pub(super) fn state(&self) -> (bool, Option<Instant>) {
        let last = self.lock();
        let Some(last) = last.last() else { return (false, None) };
        (last.back.is_none(), last.back.map(|(at, _)| at))
    }

    /// True if a connection opened at `opened` ended with `failure` because of an outage. Then the outage counts it,
    /// with its `messages` in flight.
    pub(super) fn explain(&self, opened: Instant, failure: &Failure, messages: usize) -> bool {
        let cause = failure.class.cause;
        if !matches!(cause, Cause::Refused | Cause::Reset | Cause::Closed | Cause::Handshake | Cause::System) {
            return false;
        }
        let mut outages = self.lock();
        // A process takes all its connections along, so the first kill after the beginning has broken it.
        let broke = |outage: &&mut Outage| outage.gone.is_none_or(|gone| opened <= gone);
        if let Some(outage) = outages.iter_mut().find(broke) {
            // What nobody had answered yet is not a connection that broke.
            outage.connections += u64::from(failure.class.stage != Stage::Connect);
            outage.messages += messages as u64;
            return true;
        }
        // Begun while nobody listened.
        let was_away = |outage: &Outage| outage.back.is_none_or(|(back, _)| opened <= back);
        failure.class.stage == Stage::Connect && outages.last().is_some_and(was_away)
    }

    /// Call it when a message was acknowledged over a connection opened at `opened`.
    pub(super) fn acknowledged(&self, opened: Instant) {
        if !self.awaits_ack.load(Ordering::Relaxed) {
            return;
        }
        self.last(|outage| {
            if outage.gone.is_some_and(|gone| opened > gone) && outage.first_ack.is_none() {
                outage.first_ack = Some(Instant::now());
                self.awaits_ack.store(false, Ordering::Release);
            }
        });
    }

    /// All outages, with times since `begun`.
    pub fn kills(&self, begun: Instant) -> Vec<Kill> {
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let kill = |outage: &Outage| Kill {
            at_s: seconds(begun, outage.begun),
            down_s: outage.back.map(|(back, _)| seconds(outage.begun, back)),
            first_ack_s: outage.first_ack.map(|ack| seconds(outage.begun, ack)),
            connections: outage.connections,
            messages: outage.messages,
        };
        self.lock().iter().map(kill).collect()
    }

    fn last(&self, change: impl FnOnce(&mut Outage)) {
        let mut outages = self.lock();
        change(outages.last_mut().expect("an outage begins before it goes on"));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Outage>> {
        self.outages.lock().expect("nothing panics while it looks at outages")
    }
}

/// Draws the times between kills: `mean` times 0.5 to 1.5.
pub fn kill_pauses(mean: Duration, seed: u64) -> impl Iterator<Item = Duration> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || mean.mul_f64(0.5 + random.f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(stage: Stage, cause: Cause) -> Failure {
        Failure::new(stage, cause, "")
    }

    #[test]
    fn only_what_a_kill_can_break_is_explained_by_it() {
        let outages = Outages::default();
        let (closed, refused) = (failure(Stage::Body, Cause::Closed), failure(Stage::Connect, Cause::Refused));
        let before = Instant::now();
        assert!(!outages.explain(before, &closed, 1), "nobody has killed anything");
        outages.begin();
        assert!(outages.explain(before, &closed, 1), "also while the process is still going");
        outages.gone();
        let between = Instant::now();
        assert!(outages.explain(between, &refused, 0), "nobody listens");
        assert!(!outages.explain(between, &closed, 1), "no old process can have closed this one");
        assert!(outages.state().0);
        outages.back(42);
        assert_eq!((outages.state().0, outages.pid()), (false, Some(42)));
        assert!(outages.explain(before, &failure(Stage::Rcpt, Cause::Reset), 2), "noticed late");
        for other in [Cause::Reply(451), Cause::Timeout, Cause::Garbage, Cause::Certificate] {
            assert!(!outages.explain(before, &failure(Stage::Body, other), 1), "{other:?}");
        }
        let after = Instant::now() + Duration::from_millis(1);
        assert!(!outages.explain(after, &closed, 1) && !outages.explain(after, &refused, 1));
        let kills = outages.kills(before);
        assert_eq!((kills.len(), kills[0].connections, kills[0].messages), (1, 2, 3), "{kills:?}");
        assert!(kills[0].down_s.is_some() && kills[0].first_ack_s.is_none());
    }

    #[test]
    fn the_first_acknowledgement_is_one_of_the_new_process() {
        let outages = Outages::default();
        let old = Instant::now();
        outages.begin();
        outages.gone();
        let new = Instant::now() + Duration::from_nanos(1);
        outages.acknowledged(old);
        assert_eq!(outages.kills(old)[0].first_ack_s, None, "it was on its way before the kill");
        outages.acknowledged(new);
        let first = outages.kills(old)[0].first_ack_s;
        outages.acknowledged(new);
        assert!(first.is_some() && outages.kills(old)[0].first_ack_s == first);
    }

    #[test]
    fn pauses_follow_from_the_seed_and_stay_near_their_mean() {
        let pauses = |seed| kill_pauses(Duration::from_secs(10), seed).take(1000).collect::<Vec<_>>();
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
        assert!(pauses(3).iter().all(|pause| (5.0..=15.0).contains(&pause.as_secs_f64())));
        let mean = pauses(3).iter().sum::<Duration>().as_secs_f64() / 1000.0;
        assert!((9.5..10.5).contains(&mean), "{mean}");
    }
}
