//! Tokens of one message, reserved when it is chosen and spent at its MAIL; and those of one connection, reserved until
//! it connects.
//!
//! A message read from a slow disk reaches MAIL late, and a connection that looks up a name connects late, or never.
//! Tokens spent early would let later messages add up to more than a burst.

use std::sync::Arc;

use super::{Alarm, RateLimit};

/// Reserved tokens, one of each limit. Dropped unspent, they are released.
#[derive(Debug, Default)]
pub(in crate::sender) struct Tokens(Vec<Arc<RateLimit>>);

impl Tokens {
    /// Reserves a token of each limit. All were checked, and nobody else reserves meanwhile.
    pub fn reserve(limits: Vec<Arc<RateLimit>>) -> Self {
        limits.iter().for_each(|limit| limit.reserve());
        Tokens(limits)
    }

    /// Reserves a token of each limit. Safe against concurrent callers. `None`: one has none left, and nothing is
    /// reserved.
    pub fn try_reserve(limits: &[Arc<RateLimit>], now: u64) -> Option<Self> {
        let mut tokens = Tokens::default();
        for limit in limits {
            if !limit.try_reserve(now) {
                return None;
            }
            tokens.0.push(limit.clone());
        }
        Some(tokens)
    }

    /// Spends the tokens: the message counts from now on. `false`: it must not be sent. Not expected, since only a
    /// reservation takes tokens from a bucket.
    pub fn spend(self, alarm: &Alarm) -> bool {
        self.0.iter().all(|limit| {
            // Another thread may have read the clock later and still been first. A second read is later than that.
            (0..CLOCK_READS).any(|_| limit.take(alarm.now()))
        })
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.0.iter().for_each(|limit| limit.unreserve());
    }
}

const CLOCK_READS: usize = 1000;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use posthaste_random::Random;
    use posthaste_units::{Bucket, Rate};

    use super::*;

    fn limit(rate: Rate) -> Arc<RateLimit> {
        Arc::new(RateLimit::new("a limit".into(), "here".into(), Bucket::new(rate, rate.burst(), 0)))
    }

    #[test]
    fn what_is_set_aside_is_nobody_elses_and_comes_back_unspent() {
        let (alarm, limit) = (Alarm::new(), limit(Rate::new(1, 86_400, 2).unwrap()));
        let one = Tokens::reserve(vec![limit.clone()]);
        assert_eq!((limit.available(0), limit.until(0)), (1, None));
        let two = Tokens::reserve(vec![limit.clone()]);
        assert_eq!(limit.available(0), 0);
        assert!(limit.until(0).is_some_and(|until| until > 0), "not none, and not for ever");
        assert!(!limit.is_full(0), "nobody may forget it");
        drop(one);
        assert_eq!(limit.available(0), 1);
        assert!(two.spend(&alarm));
        let now = alarm.now();
        assert_eq!((limit.available(now), limit.until(now)), (1, None));
        assert!(Tokens::reserve(vec![limit.clone()]).spend(&alarm));
        let now = alarm.now();
        assert!(limit.until(now).is_some_and(|until| until > now + 80_000_000_000_000), "a day but for a moment");
    }

    #[test]
    fn another_rate_knows_of_what_is_set_aside() {
        let limit = limit(Rate::new(1, 1, 10).unwrap());
        let _some: Vec<Tokens> = (0..4).map(|_| Tokens::reserve(vec![limit.clone()])).collect();
        let other = Rate::new(1, 60, 5).unwrap();
        assert_eq!(limit.bucket_with(other, 0).available(0), 1);
    }

    #[test]
    fn of_those_who_want_the_last_token_at_once_one_gets_it() {
        let limit = limit(Rate::new(1, 86_400, 10).unwrap());
        let (taken, barrier) = (Mutex::new(Vec::new()), std::sync::Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..5 {
                        let tokens = Tokens::try_reserve(std::slice::from_ref(&limit), 0);
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
        let one = Tokens::try_reserve(&both, 0).expect("of both");
        assert!(Tokens::try_reserve(&both, 0).is_none());
        assert_eq!(limit.available(0), 9, "what was refused is free again");
        drop(one);
    }

    /// Four threads choose messages, which wait any time for their bodies and are sent in any order.
    #[tokio::test(start_paused = true)]
    async fn a_reserved_token_is_kept_and_no_window_exceeds_its_limit() {
        for seed in 0..20 {
            let rate = Rate::new(200, 1, 1 + seed as u32 % 7).unwrap();
            let (alarm, limit) = (Arc::new(Alarm::new()), limit(rate));
            let (choosing, times) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
            let senders = (0..40).map(|which| {
                let (alarm, limit, choosing, times) = (alarm.clone(), limit.clone(), choosing.clone(), times.clone());
                let mut random = Random::of(seed, which);
                tokio::spawn(async move {
                    loop {
                        let tokens = {
                            let mut chosen = choosing.lock().unwrap();
                            match limit.until(alarm.now()) {
                                _ if *chosen == 300 => return,
                                None => {
                                    *chosen += 1;
                                    Some(Tokens::reserve(vec![limit.clone()]))
                                }
                                Some(_) => None,
                            }
                        };
                        tokio::time::sleep(Duration::from_micros(random.below(20_000))).await;
                        if let Some(tokens) = tokens {
                            let now = alarm.now();
                            assert!(tokens.spend(&alarm), "seed {seed}");
                            times.lock().unwrap().push(now);
                        }
                    }
                })
            });
            for sender in senders.collect::<Vec<_>>() {
                sender.await.unwrap();
            }
            let times = times.lock().unwrap();
            for (from, begin) in times.iter().enumerate() {
                for (to, end) in times.iter().enumerate().skip(from) {
                    let allowed = (end - begin) / rate.interval() + u64::from(rate.burst());
                    assert!((to - from + 1) as u64 <= allowed, "seed {seed}: {} in {}", to - from + 1, end - begin);
                }
            }
        }
    }
}
