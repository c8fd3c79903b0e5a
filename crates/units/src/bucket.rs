//! A [`Bucket`] enforces a [`Rate`], exactly even across threads. It reads no clock: `now` is nanoseconds on any
//! monotonic scale.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::rate::Rate;

/// A token bucket in one atomic word (GCRA, the generic cell rate algorithm of ITU-T I.371).
///
/// In any window of `t` nanoseconds at most `t / interval + burst` tokens are taken, whichever threads take them and in whatever order their times
/// reach the bucket. A token counts when it is taken; none is given back.
///
/// ```
/// use posthaste_units::{Bucket, Rate, Refused};
///
/// let rate: Rate = "60/minute, burst 2".parse().unwrap();
/// let bucket = Bucket::new(rate, 2, 0);
/// assert_eq!((bucket.take(1, 0), bucket.take(1, 0)), (Ok(()), Ok(())));
/// assert_eq!(bucket.take(1, 0), Err(Refused::Until(1_000_000_000)));
/// assert_eq!(bucket.take(1, 1_000_000_000), Ok(()));
/// ```
#[derive(Debug)]
pub struct Bucket {
    rate: Rate,
    /// Time at which the bucket is full again; in the past if it is full.
    paid_at: AtomicU64,
}

/// The reason why no token was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Earliest time at which the same call can succeed, in nanoseconds. Others may be faster.
    #[error("the rate is reached")]
    Until(u64),
    /// More tokens at once than the burst allows: no time is late enough.
    #[error("the burst of the rate allows fewer at once")]
    Never,
}

impl Bucket {
    /// A bucket with `tokens` in it at `now`, at most the burst. After a restart without a saved state, 0 is safe: no
    /// burst is given twice.
    pub fn new(rate: Rate, tokens: u32, now: u64) -> Bucket {
        let missing = rate.burst().saturating_sub(tokens);
        Bucket::restore(rate, rate.cost(missing), now)
    }

    /// A bucket with the state returned by [`debt`](Self::debt). The time in between is not credited, unless the caller
    /// subtracts it from `debt`.
    pub fn restore(rate: Rate, debt: u64, now: u64) -> Bucket {
        Bucket { rate, paid_at: AtomicU64::new(now.saturating_add(debt.min(rate.cost(rate.burst())))) }
    }

    /// The state for [`restore`](Self::restore): nanoseconds until the bucket is full again.
    pub fn debt(&self, now: u64) -> u64 {
        self.paid_at.load(Ordering::Relaxed).saturating_sub(now)
    }

    /// Returns the bucket with another rate: as many tokens are missing as before, at most the new burst.
    pub fn with_rate(&self, rate: Rate, now: u64) -> Bucket {
        let missing = self.debt(now).div_ceil(self.rate.interval());
        Bucket::restore(rate, rate.cost(u32::try_from(missing).unwrap_or(u32::MAX)), now)
    }

    /// The rate in force.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Takes `count` tokens, all or none.
    ///
    /// # Errors
    /// [`Refused`] says when to try again. Nothing is taken.
    pub fn take(&self, count: u32, now: u64) -> Result<(), Refused> {
        if count > self.rate.burst() {
            return Err(Refused::Never);
        }
        let cost = self.rate.cost(count);
        let allowed = self.rate.cost(self.rate.burst());
        let taken = self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid_at| {
            let after = paid_at.max(now).saturating_add(cost);
            (after <= now.saturating_add(allowed)).then_some(after)
        });
        match taken {
            Ok(_) => Ok(()),
            Err(paid_at) => Err(Refused::Until(paid_at.saturating_add(cost).saturating_sub(allowed))),
        }
    }

    /// Like [`take`](Self::take), but takes nothing: for a caller that takes from several buckets if all of them have
    /// enough.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn check(&self, count: u32, now: u64) -> Result<(), Refused> {
        if count > self.rate.burst() {
            return Err(Refused::Never);
        }
        let cost = self.rate.cost(count);
        let allowed = self.rate.cost(self.rate.burst());
        let paid_at = self.paid_at.load(Ordering::Relaxed);
        if paid_at.max(now).saturating_add(cost) <= now.saturating_add(allowed) {
            Ok(())
        } else {
            Err(Refused::Until(paid_at.saturating_add(cost).saturating_sub(allowed)))
        }
    }

    /// Number of tokens in the bucket.
    pub fn available(&self, now: u64) -> u32 {
        let missing = self.debt(now).div_ceil(self.rate.interval());
        self.rate.burst().saturating_sub(u32::try_from(missing).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use posthaste_random::Random;

    use super::*;

    /// The largest excess over `t / interval + burst` of any window between two of the sorted `times`.
    fn assert_never_exceeded(rate: Rate, mut times: Vec<u64>, seed: u64) {
        times.sort_unstable();
        // Number i at time t: in each window from number j, (i - j + 1) * interval <= t_i - t_j + burst * interval. The worst j has the least
        // of j * interval - t_j, so one pass checks all windows.
        let interval = i128::from(rate.interval());
        let allowed = i128::from(rate.burst()) * interval;
        let mut least = i128::MAX;
        for (number, &time) in times.iter().enumerate() {
            let position = number as i128 * interval - i128::from(time);
            least = least.min(position);
            assert!(position - least + interval <= allowed, "seed {seed}: number {number} at {time}, {rate}");
        }
    }

    fn any_rate(random: &mut Random) -> Rate {
        let seconds = [1, 60, 3600, 86_400][random.below(4) as usize];
        Rate::new(1 + random.below(1000) as u32, seconds, 1 + random.below(50) as u32).unwrap()
    }

    #[test]
    fn no_window_exceeds_the_rate_and_the_time_told_is_exact() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let rate = any_rate(&mut random);
            let mut now = random.below(1 << 40);
            let bucket = Bucket::new(rate, random.below(u64::from(rate.burst()) + 1) as u32, now);
            let mut times = Vec::new();
            while times.len() < 500 {
                now += random.below(rate.interval() * 3 / 2 + 1);
                let count = 1 + random.below(u64::from(rate.burst())) as u32;
                let check = bucket.check(count, now);
                assert_eq!(check, bucket.check(count, now), "seed {seed}: a check takes nothing");
                let taken = bucket.take(count, now);
                assert_eq!(check, taken, "seed {seed}");
                match taken {
                    Ok(()) => times.extend((0..count).map(|_| now)),
                    Err(Refused::Until(until)) => {
                        assert!(until > now, "seed {seed}");
                        assert_eq!(bucket.take(count, until - 1), Err(Refused::Until(until)), "seed {seed}");
                        now = until;
                        assert_eq!(bucket.take(count, now), Ok(()), "seed {seed}");
                        times.extend((0..count).map(|_| now));
                    }
                    Err(Refused::Never) => panic!("seed {seed}: {count} of {rate}"),
                }
            }
            assert_never_exceeded(rate, times, seed);
        }
    }

    #[test]
    fn no_window_exceeds_the_rate_with_four_threads() {
        for seed in 0..20 {
            let rate = any_rate(&mut Random::new(seed));
            let (bucket, clock) = (Bucket::new(rate, rate.burst(), 0), AtomicU64::new(0));
            let times = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|which| {
                        let (bucket, clock, mut random) = (&bucket, &clock, Random::of(seed, which));
                        scope.spawn(move || {
                            let mut times = Vec::new();
                            for _ in 0..5000 {
                                // The other threads go on meanwhile, so the bucket sees times out of order.
                                let now = clock.fetch_add(random.below(rate.interval()), Ordering::Relaxed);
                                if bucket.take(1, now).is_ok() {
                                    times.push(now);
                                }
                            }
                            times
                        })
                    })
                    .collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            assert!(times.len() > 5000, "seed {seed}: {} taken", times.len());
            assert_never_exceeded(rate, times, seed);
        }
    }

    #[test]
    fn a_restart_gives_no_extra_burst() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let rate = any_rate(&mut random);
            let (mut now, mut times) = (5, Vec::new());
            let mut bucket = Bucket::new(rate, rate.burst(), now);
            for _ in 0..300 {
                now += random.below(rate.interval());
                if bucket.take(1, now).is_ok() {
                    times.push(now);
                }
                if random.one_in(10) {
                    bucket = Bucket::restore(rate, bucket.debt(now), now);
                }
            }
            assert_never_exceeded(rate, times, seed);
        }
    }

    #[test]
    fn a_change_of_the_rate_keeps_what_is_missing() {
        let (slow, fast) = (Rate::new(1, 1, 10).unwrap(), Rate::new(100, 1, 20).unwrap());
        let bucket = Bucket::new(slow, 3, 7);
        assert_eq!(bucket.available(7), 3);
        let bucket = bucket.with_rate(fast, 7);
        assert_eq!((bucket.available(7), bucket.rate()), (13, fast));
        assert_eq!(bucket.take(21, 7), Err(Refused::Never));
    }
}
