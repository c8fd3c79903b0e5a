//! The date-time of RFC 5322 section 3.3, always in UTC.

use std::fmt;

/// A moment in UTC, displayed as RFC 5322 demands, such as `Sun, 06 Nov 1994 08:49:37 +0000`.
///
/// Displays the years 1 to 9999; a moment outside is shown as the nearest one inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DateTime {
    unix_secs: i64,
}

impl DateTime {
    /// The moment `unix_secs` seconds after 1970-01-01 00:00:00 UTC, without leap seconds.
    pub fn from_unix(unix_secs: i64) -> Self {
        Self { unix_secs: unix_secs.clamp(FIRST_SECOND, LAST_SECOND) }
    }

    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub fn unix_secs(self) -> i64 {
        self.unix_secs
    }
}

impl fmt::Display for DateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.unix_secs.div_euclid(SECS_PER_DAY);
        let second = self.unix_secs.rem_euclid(SECS_PER_DAY);
        let (year, month, day) = civil_from_days(days);
        // 1970-01-01 was a Thursday.
        let weekday = WEEKDAYS[(days + 4).rem_euclid(7) as usize];
        write!(
            f,
            "{weekday}, {day:02} {} {year:04} {:02}:{:02}:{:02} +0000",
            MONTHS[month - 1],
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

/// Year, month (1 to 12) and day (1 to 31) of the day that is `days` after 1970-01-01 in the Gregorian calendar.
fn civil_from_days(days: i64) -> (i64, usize, i64) {
    // Years are counted from 1 March, so that the leap day is the last of its year; an era is 400 years.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month as usize, day)
}

const SECS_PER_DAY: i64 = 86_400;
/// 0001-01-01 00:00:00.
const FIRST_SECOND: i64 = -62_135_596_800;
/// 9999-12-31 23:59:59.
const LAST_SECOND: i64 = 253_402_300_799;
const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(unix_secs: i64, expected: &str) {
        assert_eq!(DateTime::from_unix(unix_secs).to_string(), expected);
    }

    #[test]
    fn known_moments() {
        check(0, "Thu, 01 Jan 1970 00:00:00 +0000");
        check(784_111_777, "Sun, 06 Nov 1994 08:49:37 +0000");
        check(951_782_399, "Mon, 28 Feb 2000 23:59:59 +0000");
        check(951_782_400, "Tue, 29 Feb 2000 00:00:00 +0000");
        check(1_709_251_199, "Thu, 29 Feb 2024 23:59:59 +0000");
        check(4_107_542_400, "Mon, 01 Mar 2100 00:00:00 +0000");
        check(-1, "Wed, 31 Dec 1969 23:59:59 +0000");
    }

    #[test]
    fn moments_out_of_range_are_clamped() {
        check(i64::MIN, "Mon, 01 Jan 0001 00:00:00 +0000");
        check(i64::MAX, "Fri, 31 Dec 9999 23:59:59 +0000");
    }
}
