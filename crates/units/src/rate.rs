//! Rates in text form.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "serde")]
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bounds::A_YEAR;
use crate::quantities::duration;

/// A rate with a burst: `100/minute`, `5/second, burst 20`, `1000/15m`.
///
/// Without a burst, the rate allows one second's worth at once, rounded up. One token comes each
/// [`interval`](Self::interval), which is rounded up to whole nanoseconds, so the rate is never exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    seconds: u32,
    burst: u32,
}

/// Why a text or a pair of numbers is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RateError(String);

impl Rate {
    /// A rate of `count` in `seconds`, at most `burst` at once.
    ///
    /// # Errors
    /// One of them is 0; the rate exceeds 1,000,000 a second; the burst exceeds 1,000,000; or one token takes over a
    /// year.
    pub fn new(count: u32, seconds: u32, burst: u32) -> Result<Rate, RateError> {
        let bad = |text: &str| Err(RateError(text.to_owned()));
        if count == 0 || seconds == 0 || burst == 0 {
            return bad("a rate, its time and its burst must be at least 1");
        }
        if u64::from(count) > u64::from(seconds) * 1_000_000 {
            return bad("a rate must be at most 1000000 a second");
        }
        if burst > BURST_MAX || u64::from(seconds) > A_YEAR * u64::from(count) {
            return bad("a burst must be at most 1000000, and a rate at least 1 a year");
        }
        Ok(Rate { count, seconds, burst })
    }

    /// Nanoseconds from one token to the next, at least 1000.
    pub fn interval(self) -> u64 {
        (u64::from(self.seconds) * 1_000_000_000).div_ceil(u64::from(self.count))
    }

    /// Tokens in [`seconds`](Self::seconds).
    pub fn count(self) -> u32 {
        self.count
    }

    /// The period of [`count`](Self::count), in seconds.
    pub fn seconds(self) -> u32 {
        self.seconds
    }

    /// Tokens that may be taken at once.
    pub fn burst(self) -> u32 {
        self.burst
    }

    /// One of `parts` equal shares, with a burst of at least 1. All together do not exceed the rate.
    ///
    /// # Panics
    /// If `parts` is 0.
    pub fn share(self, parts: u32) -> Rate {
        let Rate { count, seconds, burst } = self;
        let burst = (burst / parts).max(1);
        if count.is_multiple_of(parts) {
            Rate { count: count / parts, seconds, burst }
        } else {
            Rate { count, seconds: seconds.saturating_mul(parts), burst }
        }
    }

    /// Nanoseconds for `tokens` to accumulate; saturates.
    pub(crate) fn cost(self, tokens: u32) -> u64 {
        self.interval().saturating_mul(u64::from(tokens))
    }

    /// Reads a rate as [`FromStr`] does, except that without a burst the whole count is the burst. For people, who
    /// write to many at one time and to nobody for hours.
    ///
    /// # Errors
    /// As [`FromStr`].
    pub fn parse_with_full_burst(text: &str) -> Result<Rate, RateError> {
        Rate::parse(text, |count, _| count.min(BURST_MAX))
    }

    /// `burst_of` computes the burst from count and seconds if the text has none.
    fn parse(text: &str, burst_of: impl Fn(u32, u32) -> u32) -> Result<Rate, RateError> {
        let bad = || RateError(format!("`{text}` is not a rate; write 100/minute, 5/s or 1000/15m, burst 50"));
        let (rate, burst) = match text.split_once(',') {
            Some((rate, burst)) => (rate, Some(burst.trim().strip_prefix("burst").ok_or_else(bad)?)),
            None => (text, None),
        };
        let (count, time) = rate.split_once('/').ok_or_else(bad)?;
        let count: u32 = count.trim().parse().map_err(|_| bad())?;
        // A bare unit means one of that unit; a bare number has no unit, and would be read as seconds.
        let time = time.trim();
        let time = if time.starts_with(|c: char| c.is_ascii_digit()) { time.to_owned() } else { format!("1{time}") };
        if !time.ends_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(bad());
        }
        let time = duration(&time).map_err(|_| bad())?;
        if time.subsec_nanos() != 0 {
            return Err(RateError(format!("`{text}`: the time of a rate is in whole seconds")));
        }
        let seconds = u32::try_from(time.as_secs()).map_err(|_| bad())?;
        let burst = match burst {
            Some(burst) => burst.trim().parse().map_err(|_| bad())?,
            None => burst_of(count, seconds),
        };
        Rate::new(count, seconds, burst)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        Rate::parse(text, |count, seconds| count.div_ceil(seconds.max(1)))
    }
}

/// Writes the form that [`FromStr`] reads, with the burst.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rate { count, seconds, burst } = self;
        match seconds {
            1 => write!(f, "{count}/second"),
            60 => write!(f, "{count}/minute"),
            3600 => write!(f, "{count}/hour"),
            86_400 => write!(f, "{count}/day"),
            _ => write!(f, "{count}/{seconds}s"),
        }?;
        write!(f, ", burst {burst}")
    }
}

#[cfg(feature = "serde")]
impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

const BURST_MAX: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        let good = [
            ("100/minute", (100, 60, 2), "100/minute, burst 2"),
            ("5/s", (5, 1, 5), "5/second, burst 5"),
            (" 1000 / 15m , burst 50", (1000, 900, 50), "1000/900s, burst 50"),
            ("1/day", (1, 86_400, 1), "1/day, burst 1"),
            ("10/hour, burst 3", (10, 3600, 3), "10/hour, burst 3"),
        ];
        for (text, (count, seconds, burst), shown) in good {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate, Rate { count, seconds, burst }, "{text}");
            assert_eq!((rate.to_string(), rate.to_string().parse()), (shown.to_owned(), Ok(rate)));
        }
        for (text, burst) in [("100/hour", 100), ("10/hour, burst 3", 3), ("80000000/day", 1_000_000)] {
            assert_eq!(Rate::parse_with_full_burst(text).unwrap().burst(), burst, "{text}");
        }
        for bad in ["", "5", "5/", "/s", "x/s", "5/10", "5/fortnight", "5/s, 7", "-1/s", "5/s, burst x", "5/500ms"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
        for bad in ["0/s", "5/s, burst 0", "1000001/s", "5/0s", "5/s, burst 1000001"] {
            let said = bad.parse::<Rate>().unwrap_err().to_string();
            assert!(said.contains("must be"), "{bad}: {said}");
        }
    }

    #[test]
    fn an_interval_is_rounded_up() {
        assert_eq!(Rate::new(3, 1, 1).unwrap().interval(), 333_333_334);
        assert_eq!(Rate::new(100, 60, 1).unwrap().interval(), 600_000_000);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn configuration_has_rates_as_texts() {
        #[derive(Deserialize, Serialize, Debug, PartialEq)]
        struct Limits {
            rate: Rate,
        }
        let limits: Limits = toml::from_str("rate = '100/minute, burst 7'").unwrap();
        assert_eq!(toml::from_str::<Limits>(&toml::to_string(&limits).unwrap()).unwrap(), limits);
        let error = toml::from_str::<Limits>("rate = 'often'").unwrap_err();
        assert!(error.message().contains("`often` is not a rate"), "{error}");
    }
}
