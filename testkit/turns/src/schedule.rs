//! The scheduler: the running thread, the event that each thread waits for, and the clock.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::pthread_t;
use posthaste_random::Random;

pub struct Turns {
    state: Mutex<State>,
    /// True once the first thread has ended: the others continue normally.
    is_over: AtomicBool,
}

pub struct State {
    pub random: Random,
    pub now: Duration,
    pub threads: Vec<Thread>,
    running: usize,
    /// One in this many chances to let another thread go first is taken.
    patience: u64,
}

pub struct Thread {
    pub waits: Waits,
    /// True if its wait timed out.
    is_late: bool,
    turn: Arc<Condvar>,
    /// The C library's handle.
    pub handle: pthread_t,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Waits {
    ForItsTurn,
    ForWord { word: *const AtomicU32, expected: u32, until: Option<Duration> },
    Until(Duration),
    ForEndOf(usize),
    HasEnded,
}

// SAFETY: the pointer is read only while the thread that waits for its word waits, and that thread borrows it.
unsafe impl Send for Waits {}

impl Thread {
    pub fn new() -> Self {
        Thread { waits: Waits::ForItsTurn, is_late: false, turn: Arc::default(), handle: 0 }
    }

    fn deadline(&self) -> Option<Duration> {
        match self.waits {
            Waits::ForWord { until, .. } => until,
            Waits::Until(until) => Some(until),
            _ => None,
        }
    }
}

impl State {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let patience = [1, 2, 8][random.below(3) as usize];
        State { random, now: START, threads: vec![Thread::new()], running: 0, patience }
    }

    /// The next thread to run, if any can.
    fn next(&mut self) -> Option<usize> {
        loop {
            let is_ready = |&id: &usize| self.threads[id].waits == Waits::ForItsTurn;
            let ready: Vec<usize> = (0..self.threads.len()).filter(is_ready).collect();
            if !ready.is_empty() {
                return Some(ready[self.random.below(ready.len() as u64) as usize]);
            }
            let mut is_any_changed = false;
            for thread in &mut self.threads {
                // Somebody who takes no turns may have changed it.
                // SAFETY: see `Waits`.
                if let Waits::ForWord { word, expected, .. } = thread.waits
                    && unsafe { &*word }.load(Ordering::Relaxed) != expected
                {
                    thread.waits = Waits::ForItsTurn;
                    is_any_changed = true;
                }
            }
            if is_any_changed {
                continue;
            }
            let (deadline, id) =
                self.threads.iter().zip(0..).filter_map(|(thread, id)| Some((thread.deadline()?, id))).min()?;
            self.now = self.now.max(deadline);
            assert!(self.now < END, "nothing happens any more, and threads wait");
            self.threads[id].waits = Waits::ForItsTurn;
            self.threads[id].is_late = true;
        }
    }

    /// Makes threads that wait for the word ready, at most `count`; returns their number.
    pub fn wake(&mut self, word: *const AtomicU32, mut count: usize) -> usize {
        let mut woken = 0;
        for thread in &mut self.threads {
            if count > 0 && matches!(thread.waits, Waits::ForWord { word: other, .. } if other == word) {
                thread.waits = Waits::ForItsTurn;
                woken += 1;
                count -= 1;
            }
        }
        woken
    }
}

/// Start of the clock, which is never near 0 on a real machine.
const START: Duration = Duration::from_secs(1000);
/// Longer than any test takes.
const END: Duration = Duration::from_secs(100_000);
/// Wall-clock time at the clock's moment 0: November 2023.
pub const EPOCH: Duration = Duration::from_secs(1_700_000_000);
/// Duration of a look at the clock.
pub const LOOK: Duration = Duration::from_micros(1);
/// Real time to wait for a thread outside the schedule, before it counts as a deadlock.
const PATIENCE: Duration = Duration::from_secs(20);

impl Turns {
    pub fn new(seed: u64) -> Self {
        Turns { state: Mutex::new(State::new(seed)), is_over: AtomicBool::new(false) }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// A thread that takes turns.
pub struct Member {
    pub turns: Arc<Turns>,
    pub id: usize,
}

thread_local! {
    /// Null for other threads, and while a member's own bookkeeping locks and waits.
    static ME: Cell<*const Member> = const { Cell::new(null()) };
}

/// The calling member. Until this is dropped, the thread counts as none.
pub struct Calling(*const Member);

impl Calling {
    pub fn now() -> Option<Self> {
        let me = ME.replace(null());
        (!me.is_null()).then_some(Calling(me)).filter(|me| !me.turns.is_over())
    }
}

impl std::ops::Deref for Calling {
    type Target = Member;

    fn deref(&self) -> &Member {
        // SAFETY: it lies in the frame of `Member::run` below this one, and was there while `ME` led to it.
        unsafe { &*self.0 }
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        ME.set(self.0);
    }
}

impl Member {
    /// Runs the thread's own work, from its first turn to its end.
    pub fn run<T>(self, act: impl FnOnce() -> T) -> T {
        struct End<'a>(&'a Member);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                ME.set(null());
                self.0.end();
            }
        }
        self.wait_for_turn(self.turns.lock());
        let _end = End(&self);
        ME.set(&raw const self);
        act()
    }

    fn end(&self) {
        let mut state = self.turns.lock();
        for thread in &mut state.threads {
            if thread.waits == Waits::ForEndOf(self.id) {
                thread.waits = Waits::ForItsTurn;
            }
        }
        state.threads[self.id].waits = Waits::HasEnded;
        if self.id == 0 {
            self.turns.is_over.store(true, Ordering::Relaxed);
            state.threads.iter().for_each(|thread| thread.turn.notify_one());
        }
        drop(self.hand_on(state));
    }

    /// Possibly lets another thread go first.
    pub fn pause(&self) {
        let mut state = self.turns.lock();
        let patience = state.patience;
        if state.random.below(patience) == 0 {
            let state = self.hand_on(state);
            self.wait_for_turn(state);
        }
    }

    /// Waits for an event. False if the time ran out first.
    pub fn wait(&self, mut state: MutexGuard<'_, State>, waits: Waits) -> bool {
        state.threads[self.id].waits = waits;
        state.threads[self.id].is_late = false;
        let state = self.hand_on(state);
        self.wait_for_turn(state)
    }

    fn hand_on<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let begun = std::time::Instant::now();
        while !self.turns.is_over() {
            if let Some(next) = state.next() {
                state.running = next;
                state.threads[next].turn.notify_one();
                break;
            }
            if state.threads.iter().all(|thread| thread.waits == Waits::HasEnded) {
                break;
            }
            // They wait for somebody who takes no turns.
            assert!(begun.elapsed() < PATIENCE, "all threads wait for each other");
            drop(state);
            std::thread::sleep(Duration::from_micros(50));
            state = self.turns.lock();
        }
        state
    }

    fn wait_for_turn(&self, mut state: MutexGuard<'_, State>) -> bool {
        let turn = state.threads[self.id].turn.clone();
        while state.running != self.id && !self.turns.is_over() {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.threads[self.id].is_late
    }

    /// Waits until the word is woken. Returns an `errno` if its value differs already, or after the timeout.
    pub fn wait_for_word(
        &self,
        word: *const AtomicU32,
        expected: u32,
        until: impl FnOnce(Duration) -> Option<Duration>,
    ) -> Result<(), c_int> {
        let state = self.turns.lock();
        // SAFETY: the caller borrows the word until the call returns.
        if unsafe { &*word }.load(Ordering::Relaxed) != expected {
            return Err(libc::EAGAIN);
        }
        let until = until(state.now);
        if self.wait(state, Waits::ForWord { word, expected, until }) { Ok(()) } else { Err(libc::ETIMEDOUT) }
    }
}
