//! Queries in flight, and a fair order of waiting ones, so that silent names do not block others.
//!
//! A question is *slow* if it has had no answer for [`QUICK`], or if its name had none the last time. Slow questions
//! have at most half of the slots. A question that becomes slow is given up if that half is full, or if others wait for
//! that half. Its name starts as slow the next time.
//!
//! Three kinds of look-ups take turns: those of connections, of queues to be routed, and of checks of incoming mail.
//! Among the queues, tenants take turns. Within each, the newest and the oldest take turns: a new name passes a
//! thousand dead ones, and none of these waits forever.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// Slots for questions.
pub struct Slots {
    state: Mutex<State>,
    most: usize,
    slow_most: usize,
}

/// Expected pace of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Answered quickly so far, or unknown.
    Quick,
    /// Answered late or never.
    Slow,
}

/// The purpose of a question that waits for a slot.
#[derive(Debug, Clone, Copy)]
pub enum Asker<'a> {
    /// A connection, for the addresses of a host.
    Connection,
    /// The queue of a tenant, to be routed.
    Tenant(&'a Arc<str>),
    /// A check of incoming mail. Strangers choose its names and their number.
    Check,
}

/// One query in flight. Dropping it frees the slot.
pub struct Slot {
    slots: Arc<Slots>,
    pace: Pace,
}

/// Called with a slot, which it returns if unneeded. It runs where a slot is freed, so it must not block.
type Waiter = Box<dyn FnOnce(Slot) -> Result<(), Slot> + Send>;

#[derive(Default)]
struct State {
    in_use: usize,
    slow_in_use: usize,
    /// Waiters of both paces.
    waiting: usize,
    quick: Waiting,
    slow: Waiting,
    slow_is_next: bool,
    /// True while a caller is giving slots to waiters, including slots freed meanwhile.
    is_giving: bool,
}

/// Look-ups that wait for a slot of one pace.
#[derive(Default)]
struct Waiting {
    connections: Line,
    checks: Line,
    tenants: HashMap<Arc<str>, Line>,
    /// The names in `tenants`, in their turn.
    order: VecDeque<Arc<str>>,
    /// The kind of [`Asker`] whose turn is next.
    turn: usize,
}

/// Alternates between newest and oldest.
#[derive(Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    oldest_is_next: bool,
}

impl Slots {
    /// At most `most` slots, at least one.
    pub fn new(most: usize) -> Arc<Slots> {
        let most = most.max(1);
        Arc::new(Slots { state: Mutex::default(), most, slow_most: (most / 2).max(1) })
    }

    /// Calls `waiter` with a slot, at once or in its turn.
    pub fn wait(
        self: &Arc<Self>,
        pace: Pace,
        asker: Asker<'_>,
        waiter: impl FnOnce(Slot) -> Result<(), Slot> + Send + 'static,
    ) {
        {
            let mut state = self.state();
            state.waiting += 1;
            let waiting = if pace == Pace::Slow { &mut state.slow } else { &mut state.quick };
            waiting.push(asker, Box::new(waiter));
        }
        self.give();
    }

    /// Waits for a slot.
    pub async fn slot(self: &Arc<Self>, pace: Pace, asker: Asker<'_>) -> Slot {
        let (give, given) = oneshot::channel();
        self.wait(pace, asker, |slot| give.send(slot));
        given.await.expect("each waiter has its turn while the slots are there")
    }

    /// Queries in flight, and waiting ones.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.in_use as u64, state.waiting as u64)
    }

    /// Gives free slots to waiters. One caller does it for all, as nested calls would be as deep as the queue is long.
    fn give(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().is_giving, true) {
            return;
        }
        loop {
            let (waiter, pace) = {
                let mut state = self.state();
                let Some(next) = state.next(self) else {
                    state.is_giving = false;
                    return;
                };
                next
            };
            drop(waiter(Slot { slots: self.clone(), pace }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the slots")
    }
}

impl State {
    /// Takes a slot for the next waiter. `None`: no free slot, or no waiter.
    fn next(&mut self, slots: &Slots) -> Option<(Waiter, Pace)> {
        if self.in_use == slots.most {
            return None;
        }
        let may_slow = self.slow_in_use < slots.slow_most && !self.slow.is_empty();
        let is_slow = may_slow && (self.slow_is_next || self.quick.is_empty());
        let next = if is_slow { (self.slow.pop()?, Pace::Slow) } else { (self.quick.pop()?, Pace::Quick) };
        self.slow_is_next = !is_slow;
        self.waiting -= 1;
        self.in_use += 1;
        self.slow_in_use += usize::from(is_slow);
        Some(next)
    }
}

impl Waiting {
    fn push(&mut self, asker: Asker<'_>, waiter: Waiter) {
        let line = match asker {
            Asker::Connection => &mut self.connections,
            Asker::Check => &mut self.checks,
            Asker::Tenant(tenant) => self.tenants.entry(tenant.clone()).or_insert_with(|| {
                self.order.push_back(tenant.clone());
                Line::default()
            }),
        };
        line.waiters.push_back(waiter);
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty() && self.connections.waiters.is_empty() && self.checks.waiters.is_empty()
    }

    fn pop(&mut self) -> Option<Waiter> {
        (0..KINDS).find_map(|_| {
            self.turn = (self.turn + 1) % KINDS;
            match self.turn {
                0 => self.connections.pop(),
                1 => self.checks.pop(),
                _ => self.pop_of_tenant(),
            }
        })
    }

    fn pop_of_tenant(&mut self) -> Option<Waiter> {
        let tenant = self.order.pop_front()?;
        let line = self.tenants.get_mut(&tenant)?;
        let waiter = line.pop();
        if line.waiters.is_empty() {
            self.tenants.remove(&tenant);
        } else {
            self.order.push_back(tenant);
        }
        waiter
    }
}

impl Line {
    fn pop(&mut self) -> Option<Waiter> {
        let next = if self.oldest_is_next { self.waiters.pop_front() } else { self.waiters.pop_back() }?;
        self.oldest_is_next = !self.oldest_is_next;
        Some(next)
    }
}

impl Slot {
    /// Sends a query in this slot and returns its answer.
    ///
    /// # Errors
    /// Why there was none: a timeout after `time`, or after 2 s if the slow half is full.
    pub async fn ask<T>(mut self, time: Duration, question: impl Future<Output = T>) -> Result<T, &'static str> {
        let mut question = pin!(question);
        let quick = if self.pace == Pace::Slow { time } else { QUICK.min(time) };
        if let Ok(answer) = timeout(quick, question.as_mut()).await {
            return Ok(answer);
        }
        let left = time - quick;
        if left.is_zero() {
            return Err("timeout");
        }
        if !self.become_slow() {
            return Err("no answer within 2 s, while many names are slow");
        }
        timeout(left, question).await.map_err(|_| "timeout")
    }

    /// `false`: the slow half is full, or others wait for it.
    fn become_slow(&mut self) -> bool {
        let mut state = self.slots.state();
        if state.slow_in_use == self.slots.slow_most || !state.slow.is_empty() {
            return false;
        }
        state.slow_in_use += 1;
        self.pace = Pace::Slow;
        true
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut state = self.slots.state();
            state.in_use -= 1;
            state.slow_in_use -= usize::from(self.pace == Pace::Slow);
        }
        self.slots.give();
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("pace", &self.pace).finish_non_exhaustive()
    }
}

/// Number of kinds of [`Asker`].
const KINDS: usize = 3;
/// A question without an answer for this long is slow.
const QUICK: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;

    const TIME: Duration = Duration::from_secs(10);

    /// Many questions that nobody answers. How many have ended.
    fn dead(slots: &Arc<Slots>, pace: Pace, asker: Asker<'_>, number: usize) -> Arc<AtomicUsize> {
        let ended = Arc::new(AtomicUsize::new(0));
        for _ in 0..number {
            let ended = ended.clone();
            slots.wait(pace, asker, move |slot| {
                tokio::spawn(async move {
                    slot.ask(TIME, pending::<()>()).await.unwrap_err();
                    ended.fetch_add(1, Ordering::Relaxed);
                });
                Ok(())
            });
        }
        ended
    }

    /// The seconds after which a question is answered that has an answer at once.
    async fn healthy(slots: &Arc<Slots>, pace: Pace, asker: Asker<'_>) -> f32 {
        let (started, (give, given)) = (Instant::now(), oneshot::channel());
        slots.wait(pace, asker, |slot| give.send(slot));
        given.await.unwrap().ask(TIME, async {}).await.unwrap();
        started.elapsed().as_secs_f32()
    }

    fn in_use(slots: &Slots) -> (usize, usize) {
        let state = slots.state();
        (state.in_use, state.slow_in_use)
    }

    async fn pass(secs: f32) {
        tokio::time::sleep(Duration::from_secs_f32(secs)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn dead_names_that_are_known_delay_no_other() {
        let slots = Slots::new(256);
        let ended = dead(&slots, Pace::Slow, Asker::Tenant(&"".into()), 3000);
        for at in 0..100 {
            assert_eq!(healthy(&slots, Pace::Quick, Asker::Tenant(&"".into())).await, 0.0, "{at}");
            assert_eq!(in_use(&slots), (128, 128));
            pass(0.3).await;
        }
        assert_eq!(ended.load(Ordering::Relaxed), 3 * 128, "they have their whole time");
    }

    #[tokio::test(start_paused = true)]
    async fn dead_names_that_are_new_delay_a_newer_one_by_2_s() {
        for asker in [Asker::Tenant(&"".into()), Asker::Tenant(&"other".into()), Asker::Connection, Asker::Check] {
            let slots = Slots::new(256);
            let ended = dead(&slots, Pace::Quick, Asker::Tenant(&"".into()), 3000);
            for at in 0..20 {
                let secs = healthy(&slots, Pace::Quick, asker).await;
                assert!(secs <= 2.01, "{at}: {secs} s");
                pass(0.1).await;
            }
            pass(60.0).await;
            assert_eq!(ended.load(Ordering::Relaxed), 3000, "the oldest have their turn as well");
            assert_eq!((in_use(&slots), slots.counts()), ((0, 0), (0, 0)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_are_counted() {
        let slots = Slots::new(4);
        dead(&slots, Pace::Quick, Asker::Tenant(&"one".into()), 10);
        dead(&slots, Pace::Quick, Asker::Connection, 5);
        dead(&slots, Pace::Slow, Asker::Connection, 5);
        assert_eq!(slots.counts(), (4, 16));
    }

    #[tokio::test(start_paused = true)]
    async fn one_tenants_dead_names_do_not_delay_anothers() {
        let slots = Slots::new(256);
        dead(&slots, Pace::Quick, Asker::Tenant(&"one".into()), 10_000);
        dead(&slots, Pace::Slow, Asker::Tenant(&"one".into()), 10_000);
        let before = Instant::now();
        let started: Vec<_> = (0..20)
            .map(|_| {
                let slots = slots.clone();
                tokio::spawn(async move { healthy(&slots, Pace::Quick, Asker::Tenant(&"two".into())).await })
            })
            .collect();
        for of_two in started {
            of_two.await.unwrap();
        }
        assert!(before.elapsed() <= Duration::from_millis(2010), "{:?}", before.elapsed());
        let secs = healthy(&slots, Pace::Slow, Asker::Tenant(&"two".into())).await;
        assert!(secs <= 10.0, "{secs} s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_strangers_names_does_not_delay_our_own() {
        let slots = Slots::new(256);
        let tenant = "".into();
        let ours = [Asker::Connection, Asker::Tenant(&tenant)];
        let waiting = ours.map(|asker| {
            let (give, given) = oneshot::channel();
            dead(&slots, Pace::Quick, Asker::Check, 1000);
            slots.wait(Pace::Quick, asker, move |slot| give.send(slot));
            given
        });
        // A thousand more come each second, so ours are neither the newest nor the oldest.
        let flood = {
            let slots = slots.clone();
            tokio::spawn(async move {
                loop {
                    dead(&slots, Pace::Quick, Asker::Check, 10);
                    pass(0.01).await;
                }
            })
        };
        let begun = Instant::now();
        for given in waiting {
            given.await.unwrap();
        }
        flood.abort();
        assert!(begun.elapsed() <= Duration::from_millis(2010), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn each_pace_keeps_half_while_both_wait() {
        let slots = Slots::new(10);
        let quick = dead(&slots, Pace::Quick, Asker::Connection, 1000);
        let slow = dead(&slots, Pace::Slow, Asker::Connection, 1000);
        pass(101.0).await;
        let ended = [&quick, &slow].map(|ended| ended.load(Ordering::Relaxed));
        assert!((240..=260).contains(&ended[0]) && (45..=50).contains(&ended[1]), "{ended:?}");
        // Connections and tenants take turns.
        assert!(healthy(&slots, Pace::Slow, Asker::Tenant(&"".into())).await <= 10.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_comes_while_slow_ones_are_few() {
        let slots = Slots::new(4);
        let late = async |slots: &Arc<Slots>| {
            let slot = slots.slot(Pace::Quick, Asker::Connection).await;
            slot.ask(TIME, tokio::time::sleep(Duration::from_secs(9))).await
        };
        assert_eq!(late(&slots).await, Ok(()));
        dead(&slots, Pace::Slow, Asker::Connection, 2);
        assert_eq!(late(&slots).await, Err("no answer within 2 s, while many names are slow"));
        pass(10.0).await;
        assert_eq!((late(&slots).await, in_use(&slots)), (Ok(()), (0, 0)));
        let short = slots.slot(Pace::Quick, Asker::Connection).await.ask(Duration::from_secs(1), pending::<()>()).await;
        assert_eq!((short, in_use(&slots)), (Err("timeout"), (0, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn slots_come_back_from_what_is_cancelled_or_panics() {
        for most in [1, 2, 3] {
            let slots = Slots::new(most);
            for pace in [Pace::Quick, Pace::Slow] {
                let asking = (0..10).map(|number| {
                    let slots = slots.clone();
                    tokio::spawn(async move {
                        let slot = slots.slot(pace, Asker::Connection).await;
                        assert!(number % 2 == 1, "a panic of this test");
                        slot.ask(TIME, pending::<()>()).await
                    })
                });
                let asking: Vec<_> = asking.collect();
                pass(1.0).await;
                // Some have a slot, others wait for one.
                asking.iter().for_each(|task| task.abort());
                pass(0.1).await;
                assert_eq!(in_use(&slots), (0, 0));
                assert_eq!(healthy(&slots, pace, Asker::Connection).await, 0.0);
            }
        }
    }

    #[test]
    fn a_million_that_want_no_slot_any_more_are_passed_over() {
        let slots = Slots::new(1);
        let mut kept = None;
        let (give, mut given) = oneshot::channel();
        slots.wait(Pace::Quick, Asker::Connection, |slot| give.send(slot));
        kept.replace(given.try_recv().unwrap());
        for _ in 0..1_000_000 {
            slots.wait(Pace::Quick, Asker::Tenant(&"".into()), Err);
        }
        drop(kept);
        assert!(slots.state().quick.is_empty());
        assert_eq!(in_use(&slots), (0, 0));
    }
}
