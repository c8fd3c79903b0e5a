//! Bounds the outcomes that a consumer may have in the world without a durable record.
//!
//! An unrecorded outcome happens again after a restart. So at a bound nothing new begins: while the disk hangs, while
//! the ring refuses records, and at once when the spool is poisoned. Usually this costs one atomic read for each start
//! of work, and one lock for each batch of records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use posthaste_spool::Spool;

/// Returns why the spool is closed to writing, if it is: see [`Spool::poisoned`]. A budget calls it before anything
/// begins, so no consumer can forget to.
pub type PoisonWatch = Arc<dyn Fn() -> Option<Arc<str>> + Send + Sync>;

/// Watches this spool without keeping it open: a budget may be held by callbacks of the spool.
pub fn poison_watch(spool: &Arc<dyn Spool>) -> PoisonWatch {
    let spool = Arc::downgrade(spool);
    Arc::new(move || spool.upgrade()?.poisoned())
}

/// Counts outcomes that happened and are not durably recorded yet.
pub struct OutcomeBudget {
    poison: PoisonWatch,
    /// False if nothing may begin now.
    gate: Option<BudgetGate>,
    unrecorded: AtomicU64,
    limit: AtomicU64,
    /// The last record was refused.
    is_refused: AtomicBool,
    is_closed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Start of the second being counted.
    since: Instant,
    /// Outcomes recorded in this interval and in the previous one.
    now: u64,
    before: u64,
    /// Tasks that wait to begin; a new list gets a new number.
    waiting: Vec<Waker>,
    list: u64,
    has_recorded: bool,
    /// Why the last record was refused.
    refusal: Option<Arc<str>>,
    is_stopped: bool,
}

/// Called before anything begins; must not block. True if it may.
pub type BudgetGate = Arc<dyn Fn() -> bool + Send + Sync>;

/// A change found by a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetChange {
    /// The budget is closed, and no record became durable between two looks.
    Stopped {
        /// Outcomes that would be repeated after a restart.
        unrecorded: u64,
        /// Why the records are refused; `None` if the spool does not answer.
        why: Option<Arc<str>>,
    },
    /// Outcomes are recorded again.
    GoesOn,
}

/// The list of an [`OutcomeBudget`] in which a task already waits; one for each task.
#[derive(Debug, Default)]
pub struct BudgetWait(Option<u64>);

impl OutcomeBudget {
    /// An empty budget. `poison`: state of the spool that takes the records.
    pub fn new(poison: PoisonWatch, now: Instant) -> Self {
        let state = State {
            since: now,
            now: 0,
            before: 0,
            waiting: Vec::new(),
            list: 0,
            has_recorded: true,
            refusal: None,
            is_stopped: false,
        };
        OutcomeBudget {
            poison,
            gate: None,
            unrecorded: AtomicU64::new(0),
            limit: AtomicU64::new(UNRECORDED_MAX),
            is_refused: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Blocks all new work while this gate is closed. Waiting tasks are woken by the [look](Self::look) after it opens.
    pub fn gated(mut self, gate: Option<BudgetGate>) -> Self {
        self.gate = gate;
        self
    }

    /// True if new work may begin. Work in flight still ends when the bound is reached.
    pub fn may_begin(&self) -> bool {
        !self.is_closed()
            && self.is_open()
            && !self.is_refused.load(Ordering::Acquire)
            && self.unrecorded() < self.limit.load(Ordering::Relaxed)
    }

    fn is_open(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate())
    }

    /// Why nothing may begin again, if the spool is poisoned.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        (self.poison)()
    }

    /// Ready once new work may begin; `false` if it never may.
    pub fn poll_begin(&self, wait: &mut BudgetWait, cx: &Context<'_>) -> Poll<bool> {
        if self.may_begin() {
            return Poll::Ready(true);
        }
        let mut state = self.state();
        // A record may have become durable meanwhile: whoever counts it down takes the lock after that.
        if self.is_closed() || self.may_begin() {
            return Poll::Ready(!self.is_closed());
        }
        if wait.0.replace(state.list) != Some(state.list) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Outcomes that are done and not recorded.
    pub fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Ordering::Acquire)
    }

    /// Counts outcomes that are not recorded yet. Each is [recorded](Self::recorded) once.
    pub fn done(&self, outcomes: usize) {
        self.unrecorded.fetch_add(outcomes as u64, Ordering::AcqRel);
    }

    /// Counts outcomes whose record is durable.
    pub fn recorded(&self, outcomes: usize, now: Instant) {
        let outcomes = outcomes as u64;
        let before = self.unrecorded.fetch_sub(outcomes, Ordering::AcqRel);
        assert!(before >= outcomes, "{outcomes} recorded of {before}");
        self.is_refused.store(false, Ordering::Release);
        let mut state = self.state();
        state.has_recorded = true;
        state.turn(now);
        state.now += outcomes;
        self.set_limit(&state);
        self.wake(state);
    }

    /// Notes that the spool refused the record: nothing begins until one is [durable](Self::recorded). The caller
    /// retries.
    pub fn refused(&self, why: Arc<str>) {
        self.state().refusal = Some(why);
        self.is_refused.store(true, Ordering::Release);
    }

    /// For the end of the stream's owner: calls `repeat` to retry refused records until all outcomes are recorded, the
    /// spool is closed, or the deadline. Returns the number of unrecorded outcomes, which happen again after the next
    /// start. Blocks.
    pub fn wait_recorded(&self, deadline: Instant, repeat: impl Fn()) -> u64 {
        while self.unrecorded() > 0 && !self.is_closed() && Instant::now() < deadline {
            if self.is_refused.load(Ordering::Acquire) {
                repeat();
            }
            std::thread::sleep(REPEAT_EVERY);
        }
        self.unrecorded()
    }

    /// Closes the budget after the spool was poisoned. True the first time.
    pub fn close(&self) -> bool {
        let is_new = !self.is_closed.swap(true, Ordering::AcqRel);
        self.wake(self.state());
        is_new
    }

    /// True if nothing may begin again: it was [closed](Self::close), or the spool is poisoned.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire) || self.poisoned().is_some()
    }

    /// Updates the bound, which shrinks without records. Call it each second while [needed](Self::needs_look). Returns
    /// each change once, for the log.
    pub fn look(&self, now: Instant) -> Option<BudgetChange> {
        let mut state = self.state();
        state.turn(now);
        self.set_limit(&state);
        let has_recorded = std::mem::take(&mut state.has_recorded);
        if self.is_closed() || !self.is_open() {
            return None;
        }
        let change = match (self.may_begin(), state.is_stopped) {
            (false, false) if !has_recorded => {
                state.is_stopped = true;
                let why = state.refusal.clone().filter(|_| self.is_refused.load(Ordering::Acquire));
                Some(BudgetChange::Stopped { unrecorded: self.unrecorded(), why })
            }
            (true, true) => {
                state.is_stopped = false;
                Some(BudgetChange::GoesOn)
            }
            _ => None,
        };
        // The gate may have opened.
        self.wake(state);
        change
    }

    /// True while [`look`](Self::look) may have something to report: outcomes are unrecorded, nothing may begin, or an
    /// end of a stop was not reported yet.
    pub fn needs_look(&self) -> bool {
        self.unrecorded() > 0 || !self.may_begin() || self.state().is_stopped
    }

    fn set_limit(&self, state: &State) {
        self.limit.store(state.now.max(state.before).max(UNRECORDED_MAX), Ordering::Relaxed);
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        if state.waiting.is_empty() || !self.is_closed() && !self.may_begin() {
            return;
        }
        state.list += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= SECOND {
            self.before = if passed < 2 * SECOND { self.now } else { 0 };
            (self.now, self.since) = (0, now);
        }
    }
}

/// Outcomes that may be done and not recorded, if no more were recorded in the last second.
pub const UNRECORDED_MAX: u64 = 1000;
const SECOND: Duration = Duration::from_secs(1);
const REPEAT_EVERY: Duration = Duration::from_millis(10);

impl std::fmt::Debug for OutcomeBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutcomeBudget").field("unrecorded", &self.unrecorded()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins and does as much as it may.
    fn begin(budget: &OutcomeBudget) -> usize {
        (0..100_000).take_while(|_| budget.may_begin().then(|| budget.done(1)).is_some()).count()
    }

    #[test]
    fn a_thousand_outcomes_may_be_unrecorded_at_first() {
        let begun = Instant::now();
        let budget = OutcomeBudget::new(Arc::new(|| None), begun);
        assert_eq!((begin(&budget), begin(&budget)), (1000, 0));
        budget.recorded(10, begun);
        assert_eq!((begin(&budget), budget.unrecorded()), (10, 1000));
    }

    #[test]
    fn as_many_may_be_unrecorded_as_were_recorded_in_a_second() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let budget = OutcomeBudget::new(Arc::new(|| None), begun);
        for _ in 0..8 {
            budget.done(500);
            budget.recorded(500, at(100));
        }
        assert_eq!(begin(&budget), 4000, "of this second");
        assert_eq!((budget.look(at(1100)), begin(&budget)), (None, 0), "of the last one");
        budget.recorded(3500, at(1200));
        assert_eq!(begin(&budget), 3500);
        budget.recorded(4000, at(3300));
        assert_eq!(begin(&budget), 4000, "this second's again");
        budget.look(at(4400));
        budget.look(at(5500));
        budget.recorded(3999, at(9000));
        assert_eq!(begin(&budget), 3998);
        budget.recorded(100, at(20_000));
        assert_eq!((begin(&budget), budget.unrecorded()), (0, 3899), "a slow second allows a thousand");
    }

    #[test]
    fn a_stop_is_told_once_and_once_when_it_goes_on() {
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let budget = OutcomeBudget::new(Arc::new(|| None), begun);
        begin(&budget);
        assert_eq!(budget.look(at(1)), None, "it may have been recorded a moment ago");
        assert_eq!(budget.look(at(2)), Some(BudgetChange::Stopped { unrecorded: 1000, why: None }));
        assert_eq!(budget.look(at(3)), None);
        budget.recorded(1, at(4));
        assert_eq!((budget.look(at(5)), budget.look(at(6))), (Some(BudgetChange::GoesOn), None));
        // A bound that is reached while records are made is none to speak of.
        for second in 7..20 {
            begin(&budget);
            budget.recorded(1, at(second));
            begin(&budget);
            assert_eq!(budget.look(at(second)), None);
        }
    }

    #[test]
    fn a_refused_record_stops_all_until_one_is_durable() {
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let budget = OutcomeBudget::new(Arc::new(|| None), begun);
        assert!(!budget.needs_look());
        budget.done(3);
        budget.refused("no room".into());
        assert_eq!((begin(&budget), budget.look(at(1))), (0, None));
        let stopped = BudgetChange::Stopped { unrecorded: 3, why: Some("no room".into()) };
        assert_eq!((budget.look(at(2)), budget.look(at(3))), (Some(stopped), None));
        budget.recorded(3, at(4));
        assert_eq!((budget.needs_look(), budget.look(at(4))), (true, Some(BudgetChange::GoesOn)));
        assert_eq!((budget.needs_look(), begin(&budget), budget.needs_look()), (false, 1000, true));
    }

    #[test]
    fn whoever_waits_is_woken_once_by_a_record_or_by_the_close() {
        let begun = Instant::now();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let cx = Context::from_waker(&waker);
        let wakes = || woken.0.load(Ordering::Relaxed);
        let (budget, mut wait) = (OutcomeBudget::new(Arc::new(|| None), begun), BudgetWait::default());
        assert_eq!(budget.poll_begin(&mut wait, &cx), Poll::Ready(true));
        begin(&budget);
        for _ in 0..3 {
            assert!(budget.poll_begin(&mut wait, &cx).is_pending());
        }
        budget.recorded(1, begun);
        assert_eq!((wakes(), budget.poll_begin(&mut wait, &cx)), (1, Poll::Ready(true)));
        begin(&budget);
        assert!(budget.poll_begin(&mut wait, &cx).is_pending());
        assert!(budget.close() && !budget.close());
        assert_eq!((wakes(), budget.poll_begin(&mut wait, &cx)), (2, Poll::Ready(false)));
        budget.recorded(1000, begun);
        assert!(!budget.may_begin(), "nothing begins on a poisoned spool");
    }

    #[test]
    fn nothing_begins_while_the_gate_is_closed() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let (cx, begun) = (Context::from_waker(&waker), Instant::now());
        let is_open = Arc::<AtomicBool>::default();
        let asked = is_open.clone();
        let gate: BudgetGate = Arc::new(move || asked.load(Ordering::Relaxed));
        let budget = OutcomeBudget::new(Arc::new(|| None), begun).gated(Some(gate));
        let mut wait = BudgetWait::default();
        assert!(budget.poll_begin(&mut wait, &cx).is_pending() && budget.needs_look());
        let later = |secs| begun + Duration::from_secs(secs);
        // That is no fault of the spool.
        assert_eq!([1, 2, 3].map(|secs| budget.look(later(secs))), [None, None, None]);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        is_open.store(true, Ordering::Relaxed);
        assert_eq!(budget.look(later(4)), None);
        assert_eq!((woken.0.load(Ordering::Relaxed), budget.poll_begin(&mut wait, &cx)), (1, Poll::Ready(true)));
    }

    #[test]
    fn nothing_begins_once_the_spool_is_poisoned() {
        let is_poisoned = Arc::<AtomicBool>::default();
        let asked = is_poisoned.clone();
        let poison: PoisonWatch = Arc::new(move || asked.load(Ordering::Relaxed).then(|| "EIO".into()));
        let budget = OutcomeBudget::new(poison, Instant::now());
        assert!(budget.may_begin());
        is_poisoned.store(true, Ordering::Relaxed);
        assert!(!budget.may_begin() && budget.is_closed() && budget.close(), "nobody has closed it yet");
        assert_eq!(budget.poisoned().as_deref(), Some("EIO"));
    }

    #[test]
    fn refused_entries_are_appended_at_the_end_while_possible() {
        let now = Instant::now();
        let refused = |poison: PoisonWatch| {
            let budget = OutcomeBudget::new(poison, now);
            budget.done(3);
            budget.refused("no room".into());
            budget
        };
        let far = now + Duration::from_secs(600);
        let (budget, repeats) = (refused(Arc::new(|| None)), AtomicUsize::new(0));
        let repeat = || match repeats.fetch_add(1, Ordering::Relaxed) {
            0 => budget.refused("no room yet".into()),
            _ => budget.recorded(3, now),
        };
        assert_eq!((budget.wait_recorded(far, repeat), repeats.load(Ordering::Relaxed)), (0, 2));
        assert_eq!(refused(Arc::new(|| None)).wait_recorded(now, || ()), 3, "the deadline");
        let never = || panic!("nothing can be recorded");
        assert_eq!(refused(Arc::new(|| Some("EIO".into()))).wait_recorded(far, never), 3);
    }
}
