//! Finds stuck workers: they have work and make no progress.
//!
//! For any program with threads or tasks that may hang. It reads no clock and starts no thread.
//!
//! A worker reports its current step through a [`Pulse`]: one store in memory, no look at a clock. A thread outside
//! calls [`Watcher::look`] now and then. A worker is stuck if it has stayed in one step across looks for longer than
//! its patience. Each is reported once, with its nested states, and once more when it goes on or ends.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use posthaste_watch::Watcher;
//!
//! let (watcher, begun) = (Watcher::default(), Instant::now());
//! let worker = watcher.watch().worker("site mx.example", &["", "waiting for the reply"], Duration::from_secs(300));
//! worker.within("session to 192.0.2.1:25");
//! worker.pulse().step(1);
//! assert!(watcher.look(begun).is_empty());
//! let stuck = watcher.look(begun + Duration::from_secs(400)).remove(0);
//! assert_eq!(stuck.to_string(), "site mx.example > session to 192.0.2.1:25 > waiting for the reply for 400 s");
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The workers of a part of the program. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Workers>);

#[derive(Debug, Default)]
struct Workers {
    serial: AtomicU64,
    by_serial: Mutex<HashMap<u64, Arc<WorkerState>>>,
}

#[derive(Debug)]
struct WorkerState {
    name: String,
    /// Current work of the worker, shown between the worker's name and its step.
    within: Mutex<String>,
    steps: &'static [&'static str],
    patience: Duration,
    pulse: Arc<AtomicU64>,
}

/// A watched worker; dropping it ends the watch.
#[derive(Debug)]
pub struct Worker {
    of: Watch,
    serial: u64,
    state: Arc<WorkerState>,
    pulse: Pulse,
}

/// A worker's progress: the number of its step, and a count of changes. Written by one thread at a time.
#[derive(Debug, Clone)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Begins a step, by its index in the list of steps; 0 means idle.
    pub fn step(&self, step: u8) {
        let count = (self.0.load(Ordering::Relaxed) >> STEP_BITS).wrapping_add(1);
        self.0.store(count << STEP_BITS | u64::from(step), Ordering::Relaxed);
    }

    /// True if the worker has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) & STEP_MASK == 0
    }
}

impl Watch {
    /// Adds a worker with the names of its steps, the first of which means idle. It is stuck if it stays in another
    /// step for longer than `patience`.
    pub fn worker(&self, name: impl Into<String>, steps: &'static [&'static str], patience: Duration) -> Worker {
        let pulse = Arc::new(AtomicU64::new(0));
        let state = Arc::new(WorkerState {
            name: name.into(),
            within: Mutex::default(),
            steps,
            patience,
            pulse: pulse.clone(),
        });
        let serial = self.0.serial.fetch_add(1, Ordering::Relaxed);
        self.workers().insert(serial, state.clone());
        Worker { of: self.clone(), serial, state, pulse: Pulse(pulse) }
    }

    fn workers(&self) -> MutexGuard<'_, HashMap<u64, Arc<WorkerState>>> {
        self.0.by_serial.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// A handle to report its steps. The last step begun counts.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Names the activity around its next steps; empty for none. Takes a lock that is held only briefly.
    pub fn within(&self, what: impl Into<String>) {
        *self.state.within() = what.into();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.of.workers().remove(&self.serial);
    }
}

impl WorkerState {
    fn within(&self) -> MutexGuard<'_, String> {
        self.within.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of the worker's states, outermost first.
    fn states(&self, pulse: u64) -> String {
        let step = self.steps.get((pulse & STEP_MASK) as usize).copied().unwrap_or("a step without a name");
        let mut states = vec![self.name.clone(), self.within().clone(), step.to_owned()];
        states.retain(|state| !state.is_empty());
        states.join(" > ")
    }
}

/// A worker that has become stuck, or is so no more: a finding of [`Watcher::look`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckWorker {
    /// The states that the worker is, or was, in, outermost first.
    pub states: String,
    /// Time in this state, as seen by the checks.
    pub time: Duration,
    /// Change since the last report.
    pub what: Became,
}

/// Change of a worker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Became {
    /// The worker is stuck; reported once.
    Stuck,
    /// The worker was stuck and has made progress.
    WentOn,
    /// The worker was stuck and has ended.
    Ended,
}

impl fmt::Display for StuckWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {} s", self.states, self.time.as_secs())
    }
}

/// Finds stuck workers of a [`Watch`].
#[derive(Debug, Default)]
pub struct Watcher {
    watch: Watch,
    seen: Mutex<HashMap<u64, Seen>>,
}

#[derive(Debug)]
struct Seen {
    pulse: u64,
    since: Instant,
    /// States of the worker when it was reported as stuck; `None` if it was not.
    told: Option<String>,
}

impl Watcher {
    /// Watches these workers.
    pub fn of(watch: Watch) -> Self {
        Watcher { watch, seen: Mutex::default() }
    }

    /// Its workers.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Returns the news since the last look, longest stuck first.
    pub fn look(&self, now: Instant) -> Vec<StuckWorker> {
        let workers: HashMap<u64, Arc<WorkerState>> = self.watch.workers().clone();
        let mut all_seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        let time = |seen: &Seen| now.saturating_duration_since(seen.since);
        all_seen.retain(|serial, seen| {
            let has_ended = !workers.contains_key(serial);
            if has_ended && let Some(states) = seen.told.take() {
                found.push(StuckWorker { states, time: time(seen), what: Became::Ended });
            }
            !has_ended
        });
        for (serial, state) in workers {
            let pulse = state.pulse.load(Ordering::Relaxed);
            let seen = all_seen.entry(serial).or_insert(Seen { pulse, since: now, told: None });
            let time = time(seen);
            if seen.pulse != pulse {
                if let Some(states) = seen.told.take() {
                    found.push(StuckWorker { states, time, what: Became::WentOn });
                }
                (seen.pulse, seen.since) = (pulse, now);
            } else if pulse & STEP_MASK != 0 && time > state.patience && seen.told.is_none() {
                let states = state.states(pulse);
                seen.told = Some(states.clone());
                found.push(StuckWorker { states, time, what: Became::Stuck });
            }
        }
        found.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.states.cmp(&b.states)));
        found
    }
}

const STEP_BITS: u32 = 8;
const STEP_MASK: u64 = (1 << STEP_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const STEPS: &[&str] = &["", "working", "writing"];

    fn texts(found: Vec<StuckWorker>) -> Vec<(String, Became)> {
        found.into_iter().map(|found| (found.to_string(), found.what)).collect()
    }

    #[test]
    fn a_worker_is_told_of_once_and_again_when_it_goes_on_or_ends() {
        let (watch, begun) = (Watch::default(), Instant::now());
        let watcher = Watcher::of(watch.clone());
        let look = |secs: u32| texts(watcher.look(begun + secs * SECOND));
        let (one, other) = (watch.worker("one", STEPS, 10 * SECOND), watch.worker("other", STEPS, 20 * SECOND));
        let one_stuck = ("one > working for 11 s".to_owned(), Became::Stuck);
        one.pulse().step(1);
        other.within("a file");
        other.pulse().step(2);
        assert_eq!((look(0), look(10), look(11), look(12)), (vec![], vec![], vec![one_stuck], vec![]));
        one.pulse().step(1);
        let both = [
            ("other > a file > writing for 21 s".to_owned(), Became::Stuck),
            ("one > working for 21 s".to_owned(), Became::WentOn),
        ];
        let found = look(21);
        assert!(found.len() == 2 && both.iter().all(|one| found.contains(one)), "{found:?}");
        // The same step again is another.
        assert_eq!(look(31), []);
        drop(other);
        assert_eq!(
            look(32),
            [
                ("other > a file > writing for 32 s".to_owned(), Became::Ended),
                ("one > working for 11 s".to_owned(), Became::Stuck),
            ]
        );
        one.pulse().step(0);
        assert_eq!((look(33).len(), look(1000)), (1, vec![]), "who has nothing to do is not stuck");
        drop(one);
        assert!(watch.workers().is_empty() && look(2000).is_empty() && watcher.seen.lock().unwrap().is_empty());
    }

    #[test]
    fn a_worker_that_goes_on_between_looks_is_not_stuck() {
        let (watcher, begun) = (Watcher::default(), Instant::now());
        let worker = watcher.watch().worker("busy", STEPS, SECOND);
        for hour in 0..100 {
            worker.pulse().step(1);
            assert!(watcher.look(begun + hour * 3600 * SECOND).is_empty(), "hour {hour}");
        }
    }
}
