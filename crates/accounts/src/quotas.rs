//! Limits on the recipients that each login, and each user of this machine, may send to.
//!
//! This is the only guard once a password is stolen or a web page is abused: it caps the damage.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use posthaste_units::{Bucket, Rate, Refused};
use tokio::time::Instant;

/// Counts the recipients of each account. It survives a reload. After a start the buckets are full, so that no mail is
/// refused because of it.
#[derive(Debug)]
pub struct Quotas {
    /// Time zero of the buckets.
    opened: Instant,
    /// By a login's name, or `uid 1000`. There are at most as many as logins and users of this machine.
    accounts: Mutex<HashMap<Box<str>, Vec<Bucket>>>,
}

/// An account's quota is exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaReached {
    /// The rate with the longest wait.
    pub rate: Rate,
    /// Wait until one more recipient is allowed.
    pub wait: Duration,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { opened: Instant::now(), accounts: Mutex::default() }
    }
}

impl Quotas {
    /// Counts one recipient if all of the rates allow it.
    ///
    /// # Errors
    /// The rate with the longest wait. Nothing is counted.
    pub fn take(&self, account: &str, rates: &[Rate]) -> Result<(), QuotaReached> {
        if rates.is_empty() {
            return Ok(());
        }
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that each account's time goes forward.
        let now = self.now();
        if !accounts.contains_key(account) {
            accounts.insert(account.into(), Vec::new());
        }
        let buckets = accounts.get_mut(account).expect("known, or just inserted");
        if !buckets.iter().map(Bucket::rate).eq(rates.iter().copied()) {
            *buckets = rates.iter().map(|rate| carry_over(buckets, *rate, now)).collect();
        }
        let refused = buckets.iter().filter_map(|bucket| match bucket.check(1, now) {
            Err(Refused::Until(until)) => Some((until, bucket.rate())),
            // A burst is one at least.
            Err(Refused::Never) | Ok(()) => None,
        });
        if let Some((until, rate)) = refused.max_by_key(|(until, _)| *until) {
            return Err(QuotaReached { rate, wait: Duration::from_nanos(until - now) });
        }
        for bucket in buckets {
            bucket.take(1, now).expect("checked, and nobody else has the lock");
        }
        Ok(())
    }

    /// Undoes one [`take`](Self::take): the recipient was refused afterwards.
    pub fn give_back(&self, account: &str) {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        for bucket in accounts.get_mut(account).into_iter().flatten() {
            let debt = bucket.debt(now).saturating_sub(bucket.rate().interval());
            *bucket = Bucket::restore(bucket.rate(), debt, now);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A bucket for a new rate, which continues the one of the same period, else the emptiest.
fn carry_over(before: &[Bucket], rate: Rate, now: u64) -> Bucket {
    let same = before.iter().find(|bucket| bucket.rate().seconds() == rate.seconds());
    let missing = |bucket: &&Bucket| bucket.rate().burst() - bucket.available(now);
    match same.or_else(|| before.iter().max_by_key(missing)) {
        Some(before) => before.with_rate(rate, now),
        None => Bucket::new(rate, rate.burst(), now),
    }
}

impl fmt::Display for QuotaReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.wait.as_secs() + u64::from(self.wait.subsec_nanos() > 0);
        let rate = self.rate.to_string();
        let full_burst = format!(", burst {}", self.rate.count());
        write!(f, "No more recipients than {}, try again in {secs} s", rate.trim_end_matches(&full_burst))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use posthaste_random::Random;

    use super::*;

    fn rates(texts: &[&str]) -> Vec<Rate> {
        texts.iter().map(|text| Rate::parse_with_full_burst(text).unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_back_can_be_taken_again() {
        let (quotas, rates) = (Quotas::default(), rates(&["2/hour", "3/day"]));
        quotas.give_back("ann@example.org");
        for _ in 0..5 {
            quotas.take("ann@example.org", &rates).unwrap();
            quotas.give_back("ann@example.org");
            quotas.give_back("bob@example.org");
        }
        quotas.take("ann@example.org", &rates).unwrap();
        quotas.take("ann@example.org", &rates).unwrap();
        assert_eq!(quotas.take("ann@example.org", &rates).unwrap_err().rate, rates[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_window_has_more_recipients_than_any_of_the_rates() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let rates = rates(&["7/minute, burst 5", "60/hour, burst 20"]);
            let (quotas, begun, mut taken) = (Quotas::default(), Instant::now(), Vec::new());
            while begun.elapsed() < Duration::from_secs(3 * 3600) {
                tokio::time::advance(Duration::from_millis(random.below(20_000))).await;
                match quotas.take("ann@example.org", &rates) {
                    Ok(()) => taken.push(begun.elapsed()),
                    Err(reached) => {
                        tokio::time::advance(reached.wait - Duration::from_nanos(1)).await;
                        assert!(quotas.take("ann@example.org", &rates).is_err(), "seed {seed}: {reached}");
                        tokio::time::advance(Duration::from_nanos(1)).await;
                        quotas.take("ann@example.org", &rates).expect("it is the time that was told");
                        taken.push(begun.elapsed());
                    }
                }
            }
            for rate in &rates {
                let interval = Duration::from_nanos(rate.interval());
                for (first, from) in taken.iter().enumerate() {
                    for (last, until) in taken.iter().enumerate().skip(first) {
                        let extra = (last - first + 1).saturating_sub(rate.burst() as usize) as u32;
                        assert!(interval * extra <= *until - *from, "seed {seed}, {rate}: {first} to {last}");
                    }
                }
            }
            assert!(taken.len() > 100, "seed {seed}: {}", taken.len());
        }
    }

    #[test]
    fn two_sessions_at_once_have_one_account() {
        let (quotas, rates, barrier) = (Quotas::default(), rates(&["1000/day", "2000/day"]), Barrier::new(2));
        let taken = std::thread::scope(|scope| {
            let session = || {
                barrier.wait();
                (0..1000).filter(|_| quotas.take("ann@example.org", &rates).is_ok()).count()
            };
            let sessions = [scope.spawn(session), scope.spawn(session)];
            sessions.into_iter().map(|session| session.join().unwrap()).sum::<usize>()
        });
        // One more comes every 86 s.
        assert_eq!(taken, 1000);
        quotas.take("bob@example.org", &rates).unwrap();
        quotas.take("uid 1000", &rates).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_counted_stays_counted_with_other_rates() {
        let quotas = Quotas::default();
        let take = |texts: &[&str]| {
            let rates = rates(texts);
            (0..1000).take_while(|_| quotas.take("ann@example.org", &rates).is_ok()).count()
        };
        assert_eq!(take(&["10/hour", "15/day"]), 10);
        assert_eq!(take(&["15/day"]), 5);
        assert_eq!(take(&["12/hour", "20/day"]), 0, "the emptiest counts where no rate has this time");
        assert_eq!(take(&[]), 1000);
        assert_eq!(take(&["30/hour", "40/day"]), 18);
        let reached = quotas.take("ann@example.org", &rates(&["30/hour", "40/day"])).unwrap_err();
        assert_eq!(reached.to_string(), "No more recipients than 30/hour, try again in 120 s");
    }
}
