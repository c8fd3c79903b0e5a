//! Request rates of tokens.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;

use posthaste_units::{Bucket, Rate, Refused};

use crate::token::TokenHash;

/// One bucket for each active token.
#[derive(Debug)]
pub(crate) struct TokenRates {
    begun: Instant,
    rate: RwLock<Rate>,
    buckets: Mutex<HashMap<TokenHash, Bucket>>,
}

impl TokenRates {
    pub fn new(rate: Rate) -> Self {
        Self { begun: Instant::now(), rate: RwLock::new(rate), buckets: Mutex::default() }
    }

    /// Sets the rate for later requests.
    pub fn set(&self, rate: Rate) {
        *self.rate.write().unwrap_or_else(PoisonError::into_inner) = rate;
    }

    /// Counts a request of a token.
    ///
    /// # Errors
    /// Too many requests: the seconds until the next one is allowed.
    pub fn take(&self, token: &TokenHash) -> Result<(), u16> {
        self.take_at(token, self.begun.elapsed().as_nanos() as u64)
    }

    fn take_at(&self, token: &TokenHash, now: u64) -> Result<(), u16> {
        let rate = *self.rate.read().unwrap_or_else(PoisonError::into_inner);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(token) {
            // A full bucket is as good as none. Tokens that are removed leave one.
            buckets.retain(|_, bucket| bucket.debt(now) > 0);
        }
        let bucket = buckets.entry(*token).or_insert_with(|| Bucket::new(rate, rate.burst(), now));
        if bucket.rate() != rate {
            *bucket = bucket.with_rate(rate, now);
        }
        bucket.take(1, now).map_err(|refused| match refused {
            Refused::Until(at) => u16::try_from(at.saturating_sub(now).div_ceil(1_000_000_000)).unwrap_or(u16::MAX),
            Refused::Never => u16::MAX,
        })
    }
}

/// Maximum number of buckets: as many as tokens in the file.
const BUCKETS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_its_own_rate() {
        const SECOND: u64 = 1_000_000_000;
        let rates = TokenRates::new("2/second".parse().unwrap());
        let (one, other) = ([1; 32], [2; 32]);
        assert_eq!([0, 0, 0].map(|now| rates.take_at(&one, now)), [Ok(()), Ok(()), Err(1)]);
        assert_eq!(rates.take_at(&other, 0), Ok(()));
        assert_eq!([SECOND / 2, SECOND / 2].map(|now| rates.take_at(&one, now)), [Ok(()), Err(1)]);
        rates.set("1/minute".parse().unwrap());
        assert_eq!([SECOND * 2, SECOND * 3].map(|now| rates.take_at(&one, now)), [Ok(()), Err(59)]);
    }

    #[test]
    fn tokens_that_ask_no_more_take_no_memory() {
        let rates = TokenRates::new("1/second".parse().unwrap());
        for number in 0..3 * BUCKETS_MAX as u64 {
            let mut token = [0; 32];
            token[..8].copy_from_slice(&number.to_be_bytes());
            rates.take_at(&token, number * 1_000_000).unwrap();
        }
        assert!(rates.buckets.lock().unwrap().len() <= BUCKETS_MAX);
    }
}
