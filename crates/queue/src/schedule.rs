//! Schedule of retries and expiry.

use std::time::Duration;

use posthaste_random::mix;
use posthaste_units::values;
use posthaste_units::words::Problem;
use posthaste_units::{A_YEAR, BackOff, check_bounds};
use serde::{Deserialize, Serialize};

use super::change::RecipientKey;
use super::clock::Secs;

/// Times of attempts. Attempt `n` is followed by a pause of `first_secs` × 2^(n-1), at most `longest_secs`, and a
/// random part of it on top.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetrySchedule {
    /// Time from the first attempt to the second. It doubles with each further attempt.
    #[serde(deserialize_with = "values::secs")]
    pub first_secs: u64,
    /// The longest pause.
    #[serde(deserialize_with = "values::secs")]
    pub longest_secs: u64,
    /// Each pause is longer by a random part, up to this percentage.
    #[serde(deserialize_with = "values::count")]
    pub jitter_percent: u64,
    /// Time from the reception until a recipient is given up. Mail that is
    /// [sent later](relay.md#mail-that-is-sent-later) counts from its release.
    #[serde(deserialize_with = "values::secs")]
    pub max_age_secs: u64,
    /// Time from there until a sender who asked for it (NOTIFY=DELAY) is told of the delay.
    #[serde(deserialize_with = "values::secs")]
    pub delay_notice_secs: u64,
}

impl Default for RetrySchedule {
    fn default() -> Self {
        RetrySchedule {
            first_secs: 300,
            longest_secs: 4 * 3600,
            jitter_percent: 20,
            max_age_secs: 5 * 86_400,
            delay_notice_secs: 4 * 3600,
        }
    }
}

impl RetrySchedule {
    /// Validates the schedule. `table` is its name in the configuration.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn check(&self, table: &str) -> Result<(), Problem> {
        check_bounds(
            table,
            &[
                ("first_secs", self.first_secs, 1, A_YEAR),
                ("longest_secs", self.longest_secs, self.first_secs, A_YEAR),
                ("jitter_percent", self.jitter_percent, 0, 100),
                ("max_age_secs", self.max_age_secs, 1, A_YEAR),
                ("delay_notice_secs", self.delay_notice_secs, 1, A_YEAR),
            ],
        )
    }

    /// Seconds from a failed attempt, number `attempts` from 1, to the next. The random part follows from the seed, the
    /// recipient and the attempt.
    pub fn pause(&self, attempts: u8, key: RecipientKey, seed: u64) -> u32 {
        let [first, longest] = [self.first_secs, self.longest_secs].map(Duration::from_secs);
        let pause = BackOff::new(first, longest).after(attempts.into()).as_secs();
        let most = pause * self.jitter_percent / 100;
        let which = key.message.get() ^ u64::from(key.number) << 48 ^ u64::from(attempts) << 40;
        (pause + mix(seed ^ mix(which)) % (most + 1)) as u32
    }

    pub(super) fn expires(&self, received: Secs) -> Secs {
        received.saturating_add(self.max_age_secs.min(A_YEAR) as u32)
    }
}

/// A schedule for each queue: the first rule that fits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedules {
    /// For mail that no rule fits.
    pub default: RetrySchedule,
    /// Rules in order; the first 65,536 count.
    pub rules: Vec<ScheduleRule>,
}

/// A schedule for some queues.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleRule {
    /// For this tenant only.
    pub tenant: Option<String>,
    /// For this campaign only.
    pub campaign: Option<String>,
    /// For this domain only, in any case.
    pub domain: Option<String>,
    /// The schedule.
    pub schedule: RetrySchedule,
}

impl Schedules {
    /// The schedule for mail of a tenant and campaign to a domain (in lower case).
    pub fn of(&self, tenant: &str, campaign: &str, domain: &str) -> &RetrySchedule {
        self.get(self.find(tenant, campaign, domain))
    }

    pub(super) fn get(&self, number: Option<u16>) -> &RetrySchedule {
        number.and_then(|number| self.rules.get(usize::from(number))).map_or(&self.default, |rule| &rule.schedule)
    }

    /// Number of the rule.
    pub(super) fn find(&self, tenant: &str, campaign: &str, domain: &str) -> Option<u16> {
        let is = |rule: &Option<String>, name: &str| rule.as_ref().is_none_or(|rule| rule == name);
        let fits = |rule: &ScheduleRule| {
            let is_domain = rule.domain.as_ref().is_none_or(|rule| rule.eq_ignore_ascii_case(domain));
            is(&rule.tenant, tenant) && is(&rule.campaign, campaign) && is_domain
        };
        self.rules.iter().position(fits).and_then(|number| u16::try_from(number).ok())
    }
}

#[cfg(test)]
mod tests {
    use posthaste_spool::Lsn;

    use super::*;

    fn key(message: u64) -> RecipientKey {
        RecipientKey { message: Lsn::new(message), number: 0 }
    }

    #[test]
    fn pauses_double_up_to_the_longest_with_a_random_fifth() {
        let schedule = RetrySchedule::default();
        let bases = [300, 600, 1200, 2400, 4800, 9600, 14_400, 14_400];
        for (attempts, base) in (1..).zip(bases) {
            let pauses: Vec<u32> = (0..2000).map(|message| schedule.pause(attempts, key(message), 7)).collect();
            let least = *pauses.iter().min().unwrap();
            let most = *pauses.iter().max().unwrap();
            assert!(least >= base && most <= base + base / 5, "attempt {attempts}: {least} to {most}");
            assert!(
                least < base + base / 100 && most > base + base * 19 / 100,
                "attempt {attempts}: {least} to {most}"
            );
        }
        assert!((14_400..=17_280).contains(&schedule.pause(255, key(1), 7)));
        assert_ne!(schedule.pause(3, key(1), 7), schedule.pause(3, key(1), 8), "the seed counts");
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let schedules: Schedules = toml::from_str(
            "default.max_age_secs = '2 days'\n\
             [[rules]]\ntenant = 'a'\ndomain = 'X.example'\nschedule.first_secs = '1m'\n\
             [[rules]]\ntenant = 'a'\nschedule.first_secs = 120",
        )
        .unwrap();
        let first = |tenant, domain| schedules.of(tenant, "c", domain).first_secs;
        assert_eq!((first("a", "x.example"), first("a", "y.example"), first("b", "x.example")), (60, 120, 300));
        assert_eq!(schedules.of("b", "", "z").max_age_secs, 172_800);
        assert!(toml::from_str::<Schedules>("default.first = 1").is_err());
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        let schedule = RetrySchedule { longest_secs: 10, ..RetrySchedule::default() };
        let said = schedule.check("queue").unwrap_err().message;
        assert_eq!(said, "must be between 300 seconds and 365 days");
        RetrySchedule::default().check("queue").unwrap();
    }
}
