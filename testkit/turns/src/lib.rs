//! Deterministic threads: they run one at a time, in an order that a seed decides, on a simulated clock.
//!
//! For tests of programs that use the standard library's threads, locks and channels, and tokio on top of them,
//! unchanged. This crate replaces the C library's `pthread_create`, futex, clock and `getrandom` in a test that depends
//! on it. Threads below [`in_turns`] are simulated; all others still use the C library. A turn ends where a thread must
//! wait, and where it may let another go first: when it wakes another, starts one, or yields. So at a
//! [`yield_now`](std::thread::yield_now), the others may come in between in any order. When all wait, the clock
//! advances to the earliest deadline.
//!
//! Not decided by the seed: system calls made past the C library, as `rustix` does, and the order in which a file
//! system lists a directory. A thread below [`in_turns`] must not wait in the kernel for another: no pipes, sockets,
//! file locks. Locks in statics are shared with other runs and threads (the standard library takes one whenever a
//! thread begins or ends). They are waited for in the kernel as well, so a holder must not let another go first. Linux
//! with glibc only.
#![allow(unsafe_code, reason = "it stands in for functions of the C library")]

mod calls;
mod schedule;

use std::sync::Arc;

pub use posthaste_random::Random;
use schedule::{Member, Turns};

/// Runs `act` and every thread that it starts in turns that `seed` decides. Threads that outlive `act` continue
/// normally.
///
/// # Panics
/// Panics as `act` does. Ends the process if all threads wait for each other for good.
pub fn in_turns<T: Send>(seed: u64, act: impl FnOnce() -> T + Send) -> T {
    let first = Member { turns: Arc::new(Turns::new(seed)), id: 0 };
    // A thread of its own, which nothing has been decided for yet: it asks for the seeds of its hash maps anew.
    let ended = std::thread::scope(|scope| scope.spawn(|| first.run(act)).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};
    use std::sync::{Condvar, Mutex, mpsc};
    use std::time::{Duration, Instant, SystemTime};

    use super::*;

    /// Runs three threads that lock, send, yield, sleep and look at the clock; returns the order of events.
    fn run(seed: u64) -> Vec<String> {
        in_turns(seed, || {
            let shared = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
            let (tell, told) = mpsc::channel();
            let threads: Vec<_> = (0..3)
                .map(|id: u64| {
                    let (shared, tell) = (shared.clone(), tell.clone());
                    std::thread::spawn(move || {
                        for step in 0..4 {
                            shared.0.lock().unwrap().push(format!("{id}: step {step}"));
                            shared.1.notify_all();
                            std::thread::yield_now();
                        }
                        std::thread::sleep(Duration::from_secs(3600 * (3 - id)));
                        let order: Vec<u64> = (0..9).map(|n| (n, ())).collect::<HashMap<_, _>>().into_keys().collect();
                        tell.send(format!("{id}: {order:?} at {:?}", SystemTime::now())).unwrap();
                    })
                })
                .collect();
            drop(tell);
            let begun = Instant::now();
            let mut all = shared.1.wait_while(shared.0.lock().unwrap(), |all| all.len() < 12).unwrap().clone();
            let late = told.recv_timeout(Duration::from_secs(60));
            all.push(format!("{late:?}"));
            all.extend(told);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            all.push(format!("{:?}, {:?} processors", begun.elapsed(), std::thread::available_parallelism()));
            all
        })
    }

    #[test]
    fn a_run_follows_from_its_seed_and_seeds_differ() {
        let begun = Instant::now();
        let mut orders = BTreeSet::new();
        for seed in 0..30 {
            let first = run(seed);
            assert_eq!(run(seed), first, "seed {seed}");
            assert!(first[12].contains("Timeout"), "{}", first[12]);
            // By their alarm clocks: the last thread first.
            let woken: Vec<_> = first[13..16].iter().map(|line| &line[..1]).collect();
            assert_eq!(woken, ["2", "1", "0"]);
            orders.insert(first[..12].to_vec());
        }
        assert!(orders.len() > 20, "{} orders of 30", orders.len());
        assert!(begun.elapsed() < Duration::from_secs(3600), "nobody has slept");
    }

    #[test]
    fn a_panic_comes_out_and_threads_that_are_left_go_on() {
        let (tell, told) = mpsc::channel();
        let panicked = std::panic::catch_unwind(|| {
            in_turns(1, || {
                std::thread::spawn(move || {
                    while tell.send(()).is_ok() {
                        std::thread::yield_now();
                    }
                });
                panic!("on purpose");
            })
        });
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"on purpose"));
        (0..1000).for_each(|_| told.recv().expect("it goes on"));
    }

    #[test]
    fn the_clock_stands_still_while_a_lock_of_everybodys_is_held() {
        static EVERYBODYS: Mutex<()> = Mutex::new(());
        let (held, (tell, told)) = (EVERYBODYS.lock().unwrap(), mpsc::channel());
        let run = std::thread::spawn(move || {
            in_turns(1, || {
                let (begun, sleeper) =
                    (Instant::now(), std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60))));
                tell.send(()).unwrap();
                drop(EVERYBODYS.lock());
                let waited = begun.elapsed();
                sleeper.join().unwrap();
                waited
            })
        });
        told.recv().unwrap();
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            std::thread::yield_now();
        }
        drop(held);
        assert!(run.join().unwrap() < Duration::from_secs(1));
    }

    #[test]
    fn two_runs_at_a_time_do_not_disturb_each_other() {
        let alone = [run(3), run(4)];
        let beside = std::thread::scope(|scope| {
            [3, 4]
                .map(|seed| scope.spawn(move || (0..20).map(|_| run(seed)).collect::<Vec<_>>()))
                .map(|t| t.join().unwrap())
        });
        for (runs, alone) in beside.iter().zip(alone) {
            assert!(runs.iter().all(|run| *run == alone));
        }
    }
}
