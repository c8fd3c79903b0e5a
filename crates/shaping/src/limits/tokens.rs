//! Tokens of one message, reserved when it is chosen and spent at its MAIL; and those of one connection, reserved until
//! it connects.
//!
//! A message read from a slow disk reaches MAIL late, and a connection that looks up a name connects late, or never.
//! Tokens spent early would let later messages add up to more than a burst.

use std::sync::Arc;

use super::rate::RateLimit;

/// Reserved tokens, one of each limit. Dropped unspent, they are released.
pub struct LimitTokens<W>(Vec<Arc<RateLimit<W>>>);

impl<W> Default for LimitTokens<W> {
    fn default() -> Self {
        LimitTokens(Vec::new())
    }
}

impl<W> LimitTokens<W> {
    /// Reserves a token of each limit. All were checked, and nobody else reserves meanwhile.
    pub fn reserve(limits: Vec<Arc<RateLimit<W>>>) -> Self {
        limits.iter().for_each(|limit| limit.reserve());
        LimitTokens(limits)
    }

    /// Reserves a token of each limit. Safe against concurrent callers. `None`: one has none left, and nothing is
    /// reserved.
    pub fn try_reserve(limits: &[Arc<RateLimit<W>>], now: u64) -> Option<Self> {
        let mut tokens = LimitTokens::default();
        for limit in limits {
            if !limit.try_reserve(now) {
                return None;
            }
            tokens.0.push(limit.clone());
        }
        Some(tokens)
    }

    /// False if a lent token has died.
    pub fn are_there(&self) -> bool {
        self.0.iter().all(|limit| limit.is_there())
    }

    /// Spends the tokens: the message counts from now on. `false`: it must not be sent, as a lent token has died. Only
    /// a reservation takes tokens from a bucket. `clock`: reads the time of all buckets.
    pub fn spend(self, clock: impl Fn() -> u64) -> bool {
        // A dead token must not cost those of other limits.
        self.are_there()
            && self.0.iter().all(|limit| {
                // Another thread may have read the clock later and still been first. A second read is later than that.
                let reads = if limit.is_lent() { 1 } else { CLOCK_READS };
                (0..reads).any(|_| limit.take(clock()))
            })
    }
}

impl<W> Drop for LimitTokens<W> {
    fn drop(&mut self) {
        self.0.iter().for_each(|limit| limit.unreserve());
    }
}

const CLOCK_READS: usize = 1000;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use posthaste_units::{Bucket, Rate};

    use super::super::lent::Lent;
    use super::*;

    fn limit(rate: Rate) -> Arc<RateLimit<()>> {
        Arc::new(RateLimit::new("a limit".into(), "here".into(), Bucket::new(rate, rate.burst(), 0)))
    }

    #[test]
    fn what_is_set_aside_is_nobody_elses_and_comes_back_unspent() {
        let limit = limit(Rate::new(1, 86_400, 2).unwrap());
        let one = LimitTokens::reserve(vec![limit.clone()]);
        assert_eq!((limit.available(0), limit.until(0)), (1, None));
        let two = LimitTokens::reserve(vec![limit.clone()]);
        assert_eq!(limit.available(0), 0);
        assert!(limit.until(0).is_some_and(|until| until > 0), "not none, and not for ever");
        assert!(!limit.is_full(0), "nobody may forget it");
        drop(one);
        assert_eq!(limit.available(0), 1);
        assert!(two.spend(|| 0));
        assert_eq!((limit.available(0), limit.until(0)), (1, None));
        assert!(LimitTokens::reserve(vec![limit.clone()]).spend(|| 0));
        assert_eq!(limit.until(0), Some(86_400_000_000_000));
    }

    /// As many tokens as the number says.
    struct TestTokens(Arc<AtomicU32>);

    impl Lent for TestTokens {
        fn available(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }

        fn take(&self) -> bool {
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
        }

        fn hold(&self, _: bool) {}

        fn want(&self, _: u32) -> u64 {
            1_000_000
        }
    }

    #[test]
    fn a_dead_token_costs_none_of_other_limits() {
        let counts = [1, 1].map(|count| Arc::new(AtomicU32::new(count)));
        let rate = Rate::new(1, 1, 1).unwrap();
        let lent = |count: &Arc<AtomicU32>| {
            let tokens = Box::new(TestTokens(count.clone()));
            Arc::new(RateLimit::<()>::lent("a limit".into(), "here".into(), rate, tokens))
        };
        let own = limit(rate);
        let limits = [own.clone(), lent(&counts[0]), lent(&counts[1])];
        let tokens = LimitTokens::try_reserve(&limits, 0).unwrap();
        assert!(tokens.are_there());
        counts[1].store(0, Ordering::Relaxed);
        assert!(!tokens.are_there() && !tokens.spend(|| 0));
        assert_eq!((own.available(0), counts[0].load(Ordering::Relaxed)), (1, 1));
        counts[1].store(1, Ordering::Relaxed);
        assert!(LimitTokens::try_reserve(&limits, 0).unwrap().spend(|| 0));
        assert_eq!((own.available(0), counts[0].load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn another_rate_knows_of_what_is_set_aside() {
        let limit = limit(Rate::new(1, 1, 10).unwrap());
        let _some: Vec<LimitTokens<()>> = (0..4).map(|_| LimitTokens::reserve(vec![limit.clone()])).collect();
        let other = Rate::new(1, 60, 5).unwrap();
        assert_eq!(limit.bucket_with(other, 0).available(0), 1);
    }

    #[test]
    fn of_those_who_want_the_last_token_at_once_one_gets_it() {
        let limit = limit(Rate::new(1, 86_400, 10).unwrap());
        let taken = Mutex::new(Vec::new());
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..5 {
                        let tokens = LimitTokens::try_reserve(std::slice::from_ref(&limit), 0);
                        taken.lock().unwrap().extend(tokens);
                    }
                });
            }
        });
        let taken = taken.into_inner().unwrap();
        // One may have been refused because another was about to be refused, too.
        assert!((1..=10).contains(&taken.len()), "{}", taken.len());
        assert_eq!(limit.available(0), 10 - taken.len() as u32);
        drop(taken);
        let both = [limit.clone(), self::limit(Rate::new(1, 86_400, 1).unwrap())];
        let one = LimitTokens::try_reserve(&both, 0).expect("of both");
        assert!(LimitTokens::try_reserve(&both, 0).is_none());
        assert_eq!(limit.available(0), 9, "what was refused is free again");
        drop(one);
    }

    /// Forty senders choose messages, which wait any time for their bodies and are sent in any order.
    #[test]
    fn a_reserved_token_is_kept_and_no_window_exceeds_its_limit() {
        for seed in 0..20_u64 {
            let rate = Rate::new(200, 1, 1 + seed as u32 % 7).unwrap();
            let limit = limit(rate);
            let mut state = seed;
            let mut below = |most: u64| {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                (state >> 33) % most
            };
            // By the time of its next step, a sender and the tokens of its message.
            let mut steps: BTreeMap<(u64, usize), Option<LimitTokens<()>>> =
                (0..40).map(|sender| ((0, sender), None)).collect();
            let mut chosen = 0;
            let mut times = Vec::new();
            while let Some(((now, sender), tokens)) = steps.pop_first() {
                if let Some(tokens) = tokens {
                    assert!(tokens.spend(|| now), "seed {seed}");
                    times.push(now);
                }
                if chosen == 300 {
                    continue;
                }
                let tokens = limit.until(now).is_none().then(|| {
                    chosen += 1;
                    LimitTokens::reserve(vec![limit.clone()])
                });
                steps.insert((now + 1000 * below(20_000), sender), tokens);
            }
            assert_eq!(times.len(), 300);
            for (from, begin) in times.iter().enumerate() {
                for (to, end) in times.iter().enumerate().skip(from) {
                    let allowed = (end - begin) / rate.interval() + u64::from(rate.burst());
                    assert!((to - from + 1) as u64 <= allowed, "seed {seed}: {} in {}", to - from + 1, end - begin);
                }
            }
        }
    }
}
